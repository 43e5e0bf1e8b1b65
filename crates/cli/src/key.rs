use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};
use lacuna_device::{RawDevice, RawOptions};
use lacuna_ftl::{Ftl, KeyChange};
use lacuna_nvmfs::Error;
use serde_json::json;

use crate::{
    keys::{self, NewKeyArguments},
    printable::one_line,
    say,
};

/// Show and change the keys that open an encrypted store, which must not be mounted. Data stays as it is
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Change,
}

#[derive(Subcommand)]
enum Change {
    /// Show the key slots in use; no key is needed
    List {
        /// A store file or a block device
        store: PathBuf,
        /// As JSON on standard output
        #[arg(long)]
        json: bool,
    },
    /// Let one more key open the store
    Add {
        /// A store file or a block device
        store: PathBuf,
        #[command(flatten)]
        new: NewKeyArguments,
    },
    /// Let the key in a slot no longer open it; needs the key of another slot
    Remove {
        /// A store file or a block device
        store: PathBuf,
        /// The slot's number
        slot: usize,
    },
    /// Put a new key in the place of the one that is given
    Rotate {
        /// A store file or a block device
        store: PathBuf,
        #[command(flatten)]
        new: NewKeyArguments,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Change::List { store, json } => list(store, *json),
        Change::Add { store, new } => {
            let device = open(store, false)?;
            let secret = keys::secret_of(store)?;
            let new = new.key(store)?;
            let slot =
                Ftl::change_keys(&device, &secret, &KeyChange::Add { new: &new.secret, options: &new.slot })?;
            say(&format!("{}: key slot {slot} added\n", store.display()))
        }
        Change::Remove { store, slot } => {
            let device = open(store, false)?;
            Ftl::change_keys(&device, &keys::secret_of(store)?, &KeyChange::Remove { slot: *slot })?;
            say(&format!("{}: key slot {slot} removed\n", store.display()))
        }
        Change::Rotate { store, new } => {
            let device = open(store, false)?;
            let secret = keys::secret_of(store)?;
            let new = new.key(store)?;
            let change = KeyChange::Rotate { new: &new.secret, options: &new.slot };
            let slot = Ftl::change_keys(&device, &secret, &change)?;
            say(&format!("{}: key slot {slot} has the new key\n", store.display()))
        }
    }
}

fn open(store: &Path, read_only: bool) -> Result<RawDevice> {
    let raw = RawOptions { read_only, ..RawOptions::default() };
    Ok(RawDevice::open(store, raw).map_err(Error::from)?)
}

fn list(store: &Path, as_json: bool) -> Result<()> {
    let slots = Ftl::keys(&open(store, true)?)?;
    if as_json {
        let slots = slots.iter().map(|slot| {
            json!({
                "slot": slot.slot,
                "source": slot.source.to_string(),
                "label": slot.label,
                "memory_kib": slot.cost.memory_kib,
                "passes": slot.cost.passes,
            })
        });
        return say(&(serde_json::to_string_pretty(&slots.collect::<Vec<_>>())? + "\n"));
    }
    for slot in slots {
        let label = if slot.label.is_empty() { String::new() } else { format!(" {}", slot.label) };
        let line = format!("{}: key slot {}: {}{label}", store.display(), slot.slot, slot.source);
        say(&format!("{}\n", one_line(&line)))?;
    }
    Ok(())
}
