//! Opening a store to look at it, by those who may only read it too.

use std::{io, path::Path, sync::Arc};

use anyhow::{Context, Result};
use lacuna_device::{Error as DeviceError, StreamHint, Vfs};
use lacuna_engine::{Store, StoreOptions};
use lacuna_ftl::Error as FtlError;
use lacuna_nvmfs::{Error, LogDevicePath, OpenedVfs, VfsOptions};

use crate::{
    control::FIRST_OF_TABLES,
    keys::{open_tables, open_vfs},
    log_device,
};

/// For the map: several times as much as a check reads at once.
const MAP_MEMORY: u64 = 128 << 20;

/// Options for reading everything that a store holds.
pub(crate) fn reading_all() -> VfsOptions {
    let mut options = log_device::vfs_options();
    options.options.ftl.map_memory = Some(MAP_MEMORY);
    options
}

/// A store that is open for the length of a look.
pub(crate) struct Look {
    pub(crate) opened: OpenedVfs,
    pub(crate) is_read_only: bool,
}

impl Look {
    /// Opens `store`: for writing, which makes the recovery from a crash permanent; for reading only where the system
    /// allows no more or has no space for it. Without its log device too, which recovery would give up for good, or with
    /// another one, which is refused. And with it, unless tables have to be recovered: it goes with one copy of the
    /// store from then on, and this may be another copy.
    pub(crate) fn at(store: &Path, mut options: VfsOptions) -> Result<Look> {
        if options.log_device != LogDevicePath::None {
            let read_only = VfsOptions { read_only: true, ..options.clone() };
            let look = Look { opened: open_vfs(store, &read_only)?, is_read_only: true };
            // An error here comes again, and is reported, when the store is looked at.
            let may_hold_tables = || holds_tables(&*look.opened.vfs()).unwrap_or(false);
            let can_write = matches!(options.log_device, LogDevicePath::Path(_));
            if !can_write || !may_hold_tables() || !look.tables_must_be_recovered(store) {
                return Ok(look);
            }
        }
        match open_vfs(store, &options) {
            Ok(opened) => Ok(Look { opened, is_read_only: false }),
            Err(error) if is_not_writable(&error) => {
                options.read_only = true;
                Ok(Look { opened: open_vfs(store, &options)?, is_read_only: true })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The tables in the store called `name`. Only who may write can recover them.
    pub(crate) fn tables(&self, name: &str) -> Result<Store> {
        let vfs: Arc<dyn Vfs> = self.opened.vfs();
        let store =
            open_tables(Path::new(name), &StoreOptions::default(), |options| match self.is_read_only {
                true => Store::open_read_only(vfs.clone(), options),
                false => Store::open(vfs.clone(), options),
            });
        store.with_context(|| name.to_owned())
    }

    fn tables_must_be_recovered(&self, name: &Path) -> bool {
        let opened = self.tables(&name.display().to_string());
        opened.is_err_and(|e| matches!(e.downcast_ref(), Some(lacuna_engine::Error::NotClosed { .. })))
    }

    /// Ends the look.
    pub(crate) fn close(&self, tables: Option<Store>) -> Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        if let Some(tables) = tables {
            tables.close()?;
        }
        Ok(self.opened.close()?)
    }
}

/// Whether `path` is a directory in which the engine certainly keeps no tables. Nothing in it is touched.
pub(crate) fn has_no_tables(path: &Path) -> bool {
    let first = path.join(FIRST_OF_TABLES).symlink_metadata();
    path.is_dir() && first.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Whether the engine keeps tables in `vfs`: its first file is there.
pub(crate) fn holds_tables(vfs: &dyn Vfs) -> Result<bool> {
    match vfs.open(FIRST_OF_TABLES, StreamHint::Data) {
        Ok(_) => Ok(true),
        Err(DeviceError::NotFound { .. }) => Ok(false),
        // It may be the name of no file.
        Err(_) => Ok(vfs.list()?.iter().any(|name| name == FIRST_OF_TABLES)),
    }
}

/// Whether the file system that a store lies in has no space for it.
pub(crate) fn is_host_full(error: &Error) -> bool {
    matches!(
        error,
        Error::Device(DeviceError::Full { .. }) | Error::Ftl(FtlError::Device(DeviceError::Full { .. }))
    )
}

/// Whether the store might be opened for reading all the same.
fn is_not_writable(error: &Error) -> bool {
    match error {
        error if is_host_full(error) => true,
        Error::Device(DeviceError::Io { source, .. })
        | Error::Ftl(FtlError::Device(DeviceError::Io { source, .. })) => {
            matches!(
                source.kind(),
                io::ErrorKind::PermissionDenied
                    | io::ErrorKind::ReadOnlyFilesystem
                    | io::ErrorKind::FileTooLarge
                    | io::ErrorKind::QuotaExceeded
            )
        }
        _ => false,
    }
}
