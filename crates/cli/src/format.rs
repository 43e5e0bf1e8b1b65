use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use clap::Args;
use lacuna_nvmfs::{FormatOptions, format_path};

use crate::{say, size::Size};

/// Make an empty store: a new file, or a block device. Its root directory belongs to the user who makes it
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file, made when missing, or a block device
    store: PathBuf,
    /// Size of the store, such as 8G; needed for a new file, while a block device is used as it is
    #[arg(long)]
    size: Option<Size>,
    /// Overwrite whatever is there
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut options = FormatOptions::default();
    options.ftl.force = arguments.force;
    format_path(&arguments.store, size(&arguments.store, arguments.size)?, &options)?;
    say(&format!("{}: formatted\n", arguments.store.display()))
}

/// The size that the store is given; its own where there is none.
fn size(store: &Path, wanted: Option<Size>) -> Result<Option<u64>> {
    match fs::metadata(store) {
        Ok(found) if found.file_type().is_block_device() => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound && wanted.is_none() => {
            bail!("{}: there is none, and a new store file needs a --size", store.display())
        }
        _ => Ok(wanted.map(|size| size.0)),
    }
}
