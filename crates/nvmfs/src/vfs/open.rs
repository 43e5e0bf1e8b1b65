//! From a path to a VFS: the entry point for the command line and the engine's users.

use std::{fs, io, path::Path, sync::Arc};

use lacuna_device::{BlockDevice, DirOptions, DirVfs, Patient, RawDevice, RawOptions, Vfs};
use lacuna_ftl as ftl;

use crate::{
    error::Result,
    vfs::{Nvmfs, Options},
    volume::FormatOptions,
};

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
        (Ok(metadata), _) if metadata.is_dir() => {
            let vfs = DirVfs::open(path, DirOptions { read_only: options.read_only })?;
            Ok(OpenedVfs::Directory(vfs))
        }
        (Err(error), Some(size)) if error.kind() == io::ErrorKind::NotFound && !options.read_only => {
            let device = Arc::new(RawDevice::create(path, size, raw)?);
            format_raw(Arc::clone(&device), &options.format)
                .and_then(|()| open_store(device, options))
                // It held nothing yet; and the error is more useful than a failure to remove the file.
                .inspect_err(|_| drop(fs::remove_file(path)))
        }
        _ => {
            let device = Arc::new(RawDevice::open(path, raw)?);
            // One without holes too: on file systems that copy what is overwritten it may still need space.
            match options.wait_for_space && !options.read_only && !device.is_block_device() {
                true => open_store(Arc::new(Patient::new(device)?), options),
                false => open_store(device, options),
            }
        }
    }
}

/// Opens the remains of the store at `path`, a store file or block device; see [`Nvmfs::salvage`].
///
/// # Errors
/// As [`open_vfs`]; damage only where there is no superblock or root to begin with.
pub fn salvage_store(path: &Path, options: Options) -> Result<(Arc<Nvmfs>, Vec<String>)> {
    let raw = RawOptions { read_only: true, ..RawOptions::default() };
    let (fs, damage) = Nvmfs::salvage(Arc::new(RawDevice::open(path, raw)?), options)?;
    Ok((Arc::new(fs), damage))
}

fn open_store(device: Arc<dyn BlockDevice>, options: &VfsOptions) -> Result<OpenedVfs> {
    let mut run = options.options.clone();
    run.ftl.read_only |= options.read_only;
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
        let device = Arc::new(RawDevice::create(path, size, raw)?);
        return format_raw(device, options).inspect_err(|_| drop(fs::remove_file(path)));
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

/// Space is set aside last, when it is known that what is there may be overwritten.
fn format_raw(device: Arc<RawDevice>, options: &FormatOptions) -> Result<()> {
    Nvmfs::format(Arc::clone(&device) as Arc<dyn BlockDevice>, options)?;
    if options.preallocate {
        device.preallocate()?;
    }
    Ok(())
}
