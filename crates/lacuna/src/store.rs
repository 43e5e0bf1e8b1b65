use std::{fmt, ops::Deref, path::Path};

use lacuna_engine as engine;

use crate::{Builder, Error, Result, storage::Storage};

/// A transactional store of tables, open. Cheap to clone; all clones are the same store.
///
/// Its methods are those of the engine's store, which it dereferences to: [`open_table`](engine::Store::open_table),
/// [`begin`](engine::Store::begin), [`check`](engine::Store::check), [`stats`](engine::Store::stats) and the others.
///
/// Dropping the last clone loses no commit; the next opening replays the log. [`Store::close`] leaves nothing to
/// replay.
#[derive(Clone)]
pub struct Store {
    // Fields are dropped in their order, and the engine writes to its storage until it is gone.
    engine: engine::Store,
    /// None in memory.
    storage: Option<Storage>,
}

impl Store {
    /// Opens the store at `path`, recovering it from a crash if need be: a store file, a block device or a directory.
    /// Where there is nothing a store file is made. [`Builder::open`] with default options.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        Store::builder().open(path)
    }

    /// A new store in memory, gone with its last handle.
    ///
    /// # Errors
    /// Only those of starting threads.
    pub fn in_memory() -> Result<Store> {
        Store::builder().in_memory()
    }

    /// Options for a store that is to be opened.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(engine: engine::Store, storage: Option<Storage>) -> Store {
        Store { engine, storage }
    }

    /// Makes a store file larger while it is in use, or the store on a block device that is larger than the store. Returns
    /// the size in bytes from then on; a store never becomes smaller.
    ///
    /// # Errors
    /// [`Error::BadOption`] for a store without a size of its own, in a directory or in memory; [`Error::BadStore`]
    /// for a size that it cannot have, smaller than now or larger than the device; [`Error::ReadOnly`].
    pub fn grow(&self, bytes: u64) -> Result<u64> {
        match &self.storage {
            Some(storage) => storage.grow(bytes),
            None => Err(Error::BadOption { what: "size", reason: "a store in memory has none".into() }),
        }
    }

    /// Writes everything, so that the next opening has nothing to replay, and stops the store's threads. All handles
    /// that remain, of tables, transactions and cursors, fail with [`Error::Closed`] from then on; the store file or
    /// directory can be opened again once they are dropped.
    ///
    /// # Errors
    /// [`Error::Closed`] when it was closed by another clone. Any other: the next opening has something to replay.
    pub fn close(self) -> Result<()> {
        let Store { engine, storage } = self;
        let closed = engine.close();
        if matches!(closed, Err(Error::Closed)) {
            return closed;
        }
        closed.and(storage.map_or(Ok(()), |storage| storage.close()))
    }
}

impl Deref for Store {
    type Target = engine::Store;

    fn deref(&self) -> &engine::Store {
        &self.engine
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.storage.as_ref().map(Storage::path);
        f.debug_struct("Store").field("path", &path).finish_non_exhaustive()
    }
}
