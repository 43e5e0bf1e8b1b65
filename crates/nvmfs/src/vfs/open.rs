//! From a path to a VFS: the entry point for the command line and the engine's users.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use lacuna_device::{
    BlockDevice, DirOptions, DirVfs, NewFile, Patient, RawDevice, RawOptions, Vfs, open_log_device,
};
use lacuna_ftl::{self as ftl, LogDeviceUse};

use crate::{
    error::{Error, Result},
    vfs::{Nvmfs, Options},
    volume::FormatOptions,
};

/// The log device of a store at a path; see [`LogDeviceUse`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogDevicePath {
    /// None, or the one in the options of the ftl.
    #[default]
    None,
    /// This one.
    Path(PathBuf),
    /// The store goes on without the one that it had.
    Without,
    /// This one, which must hold nothing, from now on.
    New(PathBuf),
}

impl LogDevicePath {
    /// Opens it.
    ///
    /// # Errors
    /// As [`open_log_device`].
    pub fn opened(&self, read_only: bool) -> Result<LogDeviceUse> {
        Ok(match self {
            LogDevicePath::None => LogDeviceUse::None,
            LogDevicePath::Path(path) => LogDeviceUse::Device(open_log_device(path, read_only)?),
            LogDevicePath::Without => LogDeviceUse::Without,
            LogDevicePath::New(path) => LogDeviceUse::New(open_log_device(path, read_only)?),
        })
    }
}

/// How [`open_vfs`] opens or makes a VFS.
#[derive(Clone, Debug)]
pub struct VfsOptions {
    /// When nothing exists at the path: make a store file of this size in bytes, a multiple of 4096.
    pub create_size: Option<u64>,
    /// Refuse every change.
    pub read_only: bool,
    /// A write to a store file waits for space of its file system, and while one waits, changes that need more are
    /// refused as on a full store. Otherwise such a write stops the store.
    pub wait_for_space: bool,
    /// The log device of a store.
    pub log_device: LogDevicePath,
    /// How to run the file system in a store.
    pub options: Options,
    /// How to make a store.
    pub format: FormatOptions,
}

impl Default for VfsOptions {
    fn default() -> VfsOptions {
        let ftl = ftl::Options { background: true, ..ftl::Options::default() };
        VfsOptions {
            create_size: None,
            read_only: false,
            wait_for_space: false,
            log_device: LogDevicePath::None,
            options: Options { ftl, ..Options::default() },
            format: FormatOptions::default(),
        }
    }
}

/// What was found at a path.
#[derive(Clone)]
#[non_exhaustive]
pub enum OpenedVfs {
    /// A directory: tables are plain files in it.
    Directory(Arc<DirVfs>),
    /// A store file or block device.
    Store(Arc<Nvmfs>),
}

impl OpenedVfs {
    /// The VFS, of either kind.
    pub fn vfs(&self) -> Arc<dyn Vfs> {
        match self {
            OpenedVfs::Directory(vfs) => vfs.clone(),
            OpenedVfs::Store(vfs) => vfs.clone(),
        }
    }

    /// Makes everything durable and leaves a store so that the next open has nothing to replay.
    pub fn close(&self) -> Result<()> {
        match self {
            OpenedVfs::Directory(vfs) => Ok(vfs.sync()?),
            OpenedVfs::Store(vfs) => vfs.close(),
        }
    }
}

/// Opens the existing directory, store file or block device at `path`; or makes a store file.
///
/// # Errors
/// Each names the path. A foreign file is [`ftl::Error::NotAStore`] and left as it is; a VFS that
/// another process has open is [`lacuna_device::Error::Busy`].
pub fn open_vfs(path: &Path, options: &VfsOptions) -> Result<OpenedVfs> {
    let raw = RawOptions { read_only: options.read_only, ..RawOptions::default() };
    match (fs::metadata(path), options.create_size) {
        (Ok(metadata), _) if metadata.is_dir() && options.log_device != LogDevicePath::None => {
            let operation = "a log device for a directory";
            Err(lacuna_device::Error::Unsupported { what: path.display().to_string(), operation }.into())
        }
        (Ok(metadata), _) if metadata.is_dir() => {
            let vfs = DirVfs::open(path, DirOptions { read_only: options.read_only })?;
            Ok(OpenedVfs::Directory(vfs))
        }
        (Err(error), Some(size)) if error.kind() == io::ErrorKind::NotFound && !options.read_only => {
            let log_device = options.log_device.opened(false)?;
            let mut format = options.format.clone();
            if let LogDeviceUse::Device(device) = &log_device {
                format.ftl.log_device = Some(Arc::clone(device));
            }
            match make_store_file(path, size, raw, &format) {
                // Somebody made it just now.
                Err(Error::Device(lacuna_device::Error::Exists { .. })) => {}
                made => made?,
            }
            open_store_with(Arc::new(RawDevice::open(path, raw)?), options, log_device)
        }
        _ => {
            let device = Arc::new(RawDevice::open(path, raw)?);
            // One without holes too: on file systems that copy what is overwritten it may still need space.
            match options.wait_for_space && !options.read_only && !device.is_block_device() {
                true => {
                    let device = Arc::new(Patient::new(device)?);
                    let opened = open_store(Arc::clone(&device) as Arc<dyn BlockDevice>, options)?;
                    device.has_opened();
                    Ok(opened)
                }
                false => open_store(device, options),
            }
        }
    }
}

/// Opens the remains of the store at `path`, a store file or block device; see [`Nvmfs::salvage`].
///
/// # Errors
/// As [`open_vfs`]; damage only where the ftl has no superblock or root to begin with.
pub fn salvage_store(path: &Path, options: Options) -> Result<(Arc<Nvmfs>, Vec<String>)> {
    let raw = RawOptions { read_only: true, ..RawOptions::default() };
    let (fs, damage) = Nvmfs::salvage(Arc::new(RawDevice::open(path, raw)?), options)?;
    Ok((Arc::new(fs), damage))
}

fn open_store(device: Arc<dyn BlockDevice>, options: &VfsOptions) -> Result<OpenedVfs> {
    let read_only = options.read_only || options.options.ftl.read_only;
    open_store_with(device, options, options.log_device.opened(read_only)?)
}

fn open_store_with(
    device: Arc<dyn BlockDevice>,
    options: &VfsOptions,
    log_device: LogDeviceUse,
) -> Result<OpenedVfs> {
    let mut run = options.options.clone();
    run.ftl.read_only |= options.read_only;
    if options.log_device != LogDevicePath::None {
        run.ftl.log_device = log_device;
    }
    Ok(OpenedVfs::Store(Arc::new(Nvmfs::open(device, run)?)))
}

/// Makes a file system at `path`: a new store file, an existing one or a block device.
///
/// `size` is needed for a new file; an existing file that holds anything, or has another size, is
/// overwritten only if the options force it. A block device keeps its size.
pub fn format_path(path: &Path, size: Option<u64>, options: &FormatOptions) -> Result<()> {
    let raw = RawOptions::default();
    let is_missing =
        matches!(fs::symlink_metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound);
    if let (true, Some(size)) = (is_missing, size) {
        return make_store_file(path, size, raw, options);
    }
    let mut device = RawDevice::open(path, raw)?;
    let old_size = device.size_bytes()?;
    if let Some(size) = size.filter(|size| *size != old_size) {
        if old_size > 0 && !options.ftl.force {
            let holds = format!("{old_size} bytes, not {size}");
            return Err(ftl::Error::NotEmpty { device: device.name().to_owned(), holds }.into());
        }
        device.recreate(size)?;
    }
    format_raw(Arc::new(device), options)
}

/// Makes a store file, which has its name only when it is a store, and durable: whoever is killed meanwhile leaves nothing
/// that the next opener would refuse, and what others make under that name stays.
fn make_store_file(path: &Path, size: u64, raw: RawOptions, options: &FormatOptions) -> Result<()> {
    let file = NewFile::make(path, size, raw)?;
    format_raw(Arc::clone(file.device()), options)?;
    Ok(file.publish()?)
}

/// Space is set aside last, when it is known that what is there may be overwritten.
fn format_raw(device: Arc<RawDevice>, options: &FormatOptions) -> Result<()> {
    Nvmfs::format(Arc::clone(&device) as Arc<dyn BlockDevice>, options)?;
    if options.preallocate {
        device.preallocate()?;
    }
    Ok(())
}
