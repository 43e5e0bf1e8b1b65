use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use lacuna_device::{RawDevice, RawOptions};
use lacuna_engine::{KeySlot, Store};
use lacuna_ftl::{Error as FtlError, Ftl, KeyChange};
use lacuna_nvmfs::Error;
use serde_json::json;

use crate::{
    keys::{self, NewKeyArguments},
    log_device,
    printable::one_line,
    say, say_done,
};

/// Show and change the keys that open an encrypted store, which must not be mounted, or encrypted tables. Data stays as
/// it is
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Change,
    /// The keys of the tables in the store, or in a directory, not those of the store itself
    #[arg(long, global = true)]
    tables: bool,
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
    /// Give tables that have no keys their first one (--tables-key-file and the like): from then on they can be
    /// encrypted
    Create {
        /// A store file, a block device, or a directory with tables
        store: PathBuf,
        /// What to call it: at most 40 bytes, which anybody who sees the store can read
        #[arg(long, default_value = "")]
        label: String,
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
    if arguments.tables {
        return run_on_tables(&arguments.command);
    }
    match &arguments.command {
        Change::Create { .. } => {
            bail!("a store gets its first key when it is made (lacuna format --encrypt); tables: --tables")
        }
        Change::List { store, json } => list(store, *json),
        Change::Add { store, new } => {
            let device = open(store, false)?;
            let secret = keys::secret_of(store)?;
            let new = new.key(store)?;
            let slot =
                Ftl::change_keys(&device, &secret, &KeyChange::Add { new: &new.secret, options: &new.slot })?;
            say_done(&format!("{}: key slot {slot} added\n", store.display()))
        }
        Change::Remove { store, slot } => {
            let device = open(store, false)?;
            Ftl::change_keys(&device, &keys::secret_of(store)?, &KeyChange::Remove { slot: *slot })?;
            say_done(&format!("{}: key slot {slot} removed\n", store.display()))
        }
        Change::Rotate { store, new } => {
            let device = open(store, false)?;
            let secret = keys::secret_of(store)?;
            let new = new.key(store)?;
            let change = KeyChange::Rotate { new: &new.secret, options: &new.slot };
            let slot = Ftl::change_keys(&device, &secret, &change)?;
            say_done(&format!("{}: key slot {slot} has the new key\n", store.display()))
        }
    }
}

fn run_on_tables(command: &Change) -> Result<()> {
    let (Change::List { store, .. }
    | Change::Create { store, .. }
    | Change::Add { store, .. }
    | Change::Remove { store, .. }
    | Change::Rotate { store, .. }) = command;
    let opened = keys::open_vfs(store, &log_device::vfs_options())?;
    let vfs = opened.vfs();
    let change = |change: &KeyChange<'_>| -> Result<usize> {
        Ok(Store::change_keys(&vfs, &keys::secret_of_tables(store)?, change)?)
    };
    let name = store.display();
    let done = match command {
        Change::List { json, .. } => match Store::keys(&vfs) {
            Err(lacuna_engine::Error::NoKeys { what }) => Err(anyhow!("{what}: its tables have no keys")),
            keys => keys.map_err(Into::into).and_then(|keys| show(store, &keys, *json)),
        },
        Change::Create { label, .. } => keys::new_tables_key(store, label)
            .and_then(|key| Ok(Store::create_keys(&vfs, &key)?))
            .and_then(|()| say_done(&format!("{name}: tables can be encrypted; key slot 0 has the key\n"))),
        Change::Add { new, .. } => new
            .key(store)
            .and_then(|new| change(&KeyChange::Add { new: &new.secret, options: &new.slot }))
            .and_then(|slot| say_done(&format!("{name}: key slot {slot} of the tables added\n"))),
        Change::Remove { slot, .. } => change(&KeyChange::Remove { slot: *slot })
            .and_then(|slot| say_done(&format!("{name}: key slot {slot} of the tables removed\n"))),
        Change::Rotate { new, .. } => new
            .key(store)
            .and_then(|new| change(&KeyChange::Rotate { new: &new.secret, options: &new.slot }))
            .and_then(|slot| say_done(&format!("{name}: key slot {slot} of the tables has the new key\n"))),
    };
    drop(vfs);
    opened.close()?;
    done
}

fn open(store: &Path, read_only: bool) -> Result<RawDevice> {
    let raw = RawOptions { read_only, ..RawOptions::default() };
    Ok(RawDevice::open(store, raw).map_err(Error::from)?)
}

fn list(store: &Path, as_json: bool) -> Result<()> {
    match Ftl::keys(&open(store, true)?) {
        Err(FtlError::NotEncrypted { device }) => bail!("{device}: not encrypted, so it has no keys"),
        keys => show(store, &keys?, as_json),
    }
}

fn show(store: &Path, slots: &[KeySlot], as_json: bool) -> Result<()> {
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
