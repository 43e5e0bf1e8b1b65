use std::{path::PathBuf, str::FromStr};

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_nvmfs::{Nvmfs, OpenedVfs};

use crate::{control, keys::open_vfs, log_device, say_done, size::Size};

/// Make a store larger, mounted or not; nothing in it changes
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file, which becomes as long as that, or a block device, which must be that large already
    store: PathBuf,
    /// Size from then on, such as 16G; max: all of the block device, or the file as long as it is
    #[arg(value_name = "SIZE|max")]
    size: Target,
}

/// The size that a store is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Max,
    Bytes(u64),
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Target, &'static str> {
        match text {
            "max" => Ok(Target::Max),
            size => size.parse().map(|Size(bytes)| Target::Bytes(bytes)),
        }
    }
}

impl Target {
    fn bytes(self) -> Option<u64> {
        match self {
            Target::Max => None,
            Target::Bytes(bytes) => Some(bytes),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let store = &arguments.store;
    let size = arguments.size.bytes().map_or("max".to_owned(), |bytes| bytes.to_string());
    let outcome = match control::ask(store, &format!("grow {size}"))? {
        Some(outcome) => outcome,
        None => match open_vfs(store, &log_device::vfs_options())? {
            OpenedVfs::Store(fs) => {
                let grown = grow(&fs, arguments.size);
                // What it had before is durable in any case.
                grown
                    .and_then(|text| fs.close().map(|()| text).with_context(|| store.display().to_string()))?
            }
            _ => bail!("{}: a directory, which has no size", store.display()),
        },
    };
    say_done(&format!("{}: {outcome}\n", store.display()))
}

/// Answers the question `grow SIZE` about a mounted store.
pub(crate) fn answer(fs: &Nvmfs, size: &str) -> Result<String, String> {
    let target = size.parse().map_err(|reason: &str| format!("grow {size}: {reason}"))?;
    grow(fs, target).map_err(|error| format!("{error:#}"))
}

fn grow(fs: &Nvmfs, target: Target) -> Result<String> {
    let before = fs.ftl().stats().capacity_bytes;
    let after = fs.grow(target.bytes())?;
    Ok(match after == before {
        true => format!("has {after} bytes already"),
        false => format!("grown from {before} to {after} bytes"),
    })
}
