use std::{fs, io::ErrorKind, os::unix::fs::FileTypeExt, path::PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use lacuna_nvmfs::{FormatOptions, format_path};

use crate::{keys, say, size::Size};

/// Make an empty store: a new file, or a block device. Its root directory belongs to the user who makes it
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file, made when missing, or a block device
    store: PathBuf,
    /// Size of the store, such as 8G; needed for a new file. A block device is used whole by default
    #[arg(long)]
    size: Option<Size>,
    /// Set the space of a store file aside at once, so that its file system cannot run out of it later
    #[arg(long)]
    preallocate: bool,
    /// Encrypt data with a new random key, which the key that is given, or asked for, opens
    #[arg(long)]
    encrypt: bool,
    /// What to call that key: at most 40 bytes, which anybody who sees the store can read
    #[arg(long, default_value = "", requires = "encrypt")]
    label: String,
    /// Overwrite whatever is there
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut options = FormatOptions::default();
    options.ftl.force = arguments.force;
    options.preallocate = arguments.preallocate;
    if keys::is_given() && !arguments.encrypt {
        bail!("{}: a key is given, but not --encrypt", arguments.store.display());
    }
    let (file_bytes, capacity_bytes) = sizes(arguments)?;
    options.ftl.capacity_bytes = capacity_bytes;
    if arguments.encrypt {
        options.ftl.key = Some(keys::new_store_key(&arguments.store, &arguments.label)?);
    }
    format_path(&arguments.store, file_bytes, &options)?;
    say(&format!("{}: formatted\n", arguments.store.display()))
}

/// The sizes that a store file, and the store on a block device, are given; else they have what there is.
fn sizes(arguments: &Arguments) -> Result<(Option<u64>, Option<u64>)> {
    let store = &arguments.store;
    let bytes = arguments.size.map(|size| size.0);
    match fs::metadata(store) {
        Ok(found) if found.file_type().is_block_device() && arguments.preallocate => {
            bail!(
                "{}: a block device has all of its space; --preallocate is for store files",
                store.display()
            )
        }
        Ok(found) if found.file_type().is_block_device() => Ok((None, bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound && bytes.is_none() => {
            bail!("{}: there is none, and a new store file needs a --size", store.display())
        }
        _ => Ok((bytes, None)),
    }
}
