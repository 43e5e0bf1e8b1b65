use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Result, bail};
use clap::Args;
use lacuna_device::{LogDevice, create_log_device, open_log_device};
use lacuna_nvmfs::{Compression, FormatOptions, LogDevicePath, format_path};

use crate::{complain, keys, log_device, say_done, size::Size};

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
    /// How files are compressed that say nothing themselves: none, lz4, zstd or zstd:LEVEL, 1 to 22
    #[arg(long, value_name = "HOW", default_value_t = Compression::Default, hide_default_value = true)]
    compress: Compression,
    /// Overwrite whatever is there
    #[arg(long)]
    force: bool,
    /// Make a file of this size for the log device (--log-device PATH), such as 1G; needed if there is none. An existing
    /// file or device is used whole
    #[arg(long, value_name = "SIZE")]
    log_size: Option<Size>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut options = FormatOptions::default();
    options.ftl.force = arguments.force;
    options.preallocate = arguments.preallocate;
    options.compression = arguments.compress;
    if keys::is_given() && !arguments.encrypt {
        bail!("{}: a key is given, but not --encrypt", arguments.store.display());
    }
    let (file_bytes, capacity_bytes) = sizes(arguments)?;
    options.ftl.capacity_bytes = capacity_bytes;
    if arguments.encrypt {
        options.ftl.key = Some(keys::new_store_key(&arguments.store, &arguments.label)?);
    }
    let log = log_device(arguments)?;
    options.ftl.log_device = log.as_ref().map(|log| Arc::clone(&log.device));
    if let Err(error) = format_path(&arguments.store, file_bytes, &options) {
        if let Some(LogDeviceFile { made: Some(path), .. }) = log {
            let _ = fs::remove_file(path); // the error says more than a failure to tidy up
        }
        return Err(error.into());
    }
    if let Some(log) = log.filter(|log| log.device.is_volatile()) {
        complain(&format!(
            "{}: ordinary memory, whose content is gone with the power: for trials only; what was synced is then lost",
            log.device.name()
        ));
    }
    say_done(&format!("{}: formatted\n", arguments.store.display()))
}

/// A log device for a new store.
struct LogDeviceFile {
    device: Arc<dyn LogDevice>,
    /// The file, if it did not exist.
    made: Option<PathBuf>,
}

fn log_device(arguments: &Arguments) -> Result<Option<LogDeviceFile>> {
    let path = match log_device::chosen() {
        LogDevicePath::Path(path) => path,
        LogDevicePath::None if arguments.log_size.is_none() => return Ok(None),
        _ => bail!("{}: a new store takes its log device by --log-device PATH", arguments.store.display()),
    };
    let is_missing = matches!(fs::metadata(&path), Err(error) if error.kind() == ErrorKind::NotFound);
    Ok(Some(match (is_missing, arguments.log_size) {
        (true, _) if is_for_devices(&path) => bail!("{}: there is no such device", path.display()),
        (true, Some(size)) => LogDeviceFile { device: create_log_device(&path, size.0)?, made: Some(path) },
        (true, None) => bail!("{}: there is none, and a new one needs a --log-size", path.display()),
        (false, Some(size)) => {
            let device = open_log_device(&path, false)?;
            let bytes = device.capacity_bytes();
            if bytes != size.0 {
                bail!("{}: it has {bytes} bytes, not {}: it is used whole", path.display(), size.0);
            }
            LogDeviceFile { device, made: None }
        }
        (false, None) => LogDeviceFile { device: open_log_device(&path, false)?, made: None },
    }))
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
        Err(error) if error.kind() == ErrorKind::NotFound && is_for_devices(store) => {
            bail!(
                "{}: there is no such device, and files in /dev are gone when the machine starts anew",
                store.display()
            )
        }
        Err(error) if error.kind() == ErrorKind::NotFound && bytes.is_none() => {
            bail!("{}: there is none, and a new store file needs a --size", store.display())
        }
        _ => Ok((bytes, None)),
    }
}

/// Whether a file there would lie among the devices, in memory.
fn is_for_devices(path: &Path) -> bool {
    let path = std::path::absolute(path).ok();
    let directory = path.and_then(|path| path.parent()?.canonicalize().ok());
    directory.is_some_and(|directory| directory.starts_with("/dev") && !directory.starts_with("/dev/shm"))
}
