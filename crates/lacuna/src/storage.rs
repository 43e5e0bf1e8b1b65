//! The storage of a store: the file system on a store file or device, or a directory.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use lacuna_device::{Error as DeviceError, Vfs};
use lacuna_nvmfs::{Error as FsError, OpenedVfs, VfsOptions, open_vfs};
use parking_lot::Mutex;

use crate::{Error, Result, error::of_storage};

/// The storage that this process has open, by device and inode. The operating system's lock shows only that some
/// process has it.
static OPEN: Mutex<BTreeMap<(u64, u64), Weak<dyn Vfs>>> = Mutex::new(BTreeMap::new());

/// Open storage of one store.
#[derive(Clone)]
pub(crate) struct Storage {
    opened: OpenedVfs,
    path: PathBuf,
}

impl Storage {
    /// # Errors
    /// Each names the path.
    pub(crate) fn open(path: &Path, options: &VfsOptions) -> Result<Storage> {
        let busy = || Error::Busy { what: path.display().to_string() };
        if is_open(path) {
            return Err(busy());
        }
        if path.is_dir() && options.format.ftl.key.is_some() {
            let reason = format!("{}: tables in a directory are not encrypted", path.display());
            return Err(Error::BadOption { what: "key", reason });
        }
        let opened = open_vfs(path, options).map_err(|error| match error {
            // Another thread may have been opening it.
            FsError::Device(DeviceError::Busy { .. }) if is_open(path) => busy(),
            error => of_storage(path, error),
        })?;
        if let Some(identity) = identity(path) {
            let mut open = OPEN.lock();
            open.retain(|_, vfs| vfs.strong_count() > 0);
            open.insert(identity, Arc::downgrade(&opened.vfs()));
        }
        Ok(Storage { opened, path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn vfs(&self) -> Arc<dyn Vfs> {
        self.opened.vfs()
    }

    pub(crate) fn close(&self) -> Result<()> {
        self.opened.close().map_err(|error| of_storage(&self.path, error))
    }

    pub(crate) fn grow(&self, bytes: u64) -> Result<u64> {
        match &self.opened {
            OpenedVfs::Store(fs) => fs.grow(Some(bytes)).map_err(|error| of_storage(&self.path, error)),
            _ => Err(Error::BadOption { what: "size", reason: "a store in a directory has none".into() }),
        }
    }
}

/// Identifies the file at a path, under any of its names; `None` where there is none.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some(match metadata.file_type().is_block_device() {
        true => (u64::MAX, metadata.rdev()),
        false => (metadata.dev(), metadata.ino()),
    })
}

fn is_open(path: &Path) -> bool {
    let open = OPEN.lock();
    identity(path).and_then(|identity| open.get(&identity)).is_some_and(|vfs| vfs.strong_count() > 0)
}
