use std::{path::Path, time::Duration};

use lacuna_device::MemVfs;
use lacuna_engine::{self as engine, EngineKey, StoreOptions};
use lacuna_ftl::{Key, KeyOptions, NewKey, Secret};
use lacuna_nvmfs::VfsOptions;

use crate::{Doublewrite, Durability, Result, Store, error::at_path, storage::Storage};

/// Size of a new store file unless another is asked for. It takes space only as it is filled.
const SIZE_BYTES: u64 = 8 << 30;

/// Options of a store, and the calls that open it with them. Only the size of a new file is kept in the store.
///
/// ```
/// use lacuna::{Durability, Store};
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("events.lacuna");
///
/// let store = Store::builder()
///     .size(1 << 30)
///     .pool_bytes(64 << 20)
///     .durability(Durability::Relaxed)
///     .open(path)?;
/// # store.close()?;
/// # Ok::<(), lacuna::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    size_bytes: u64,
    storage: VfsOptions,
    engine: StoreOptions,
}

impl Default for Builder {
    fn default() -> Builder {
        let (storage, engine) = (VfsOptions::default(), StoreOptions::default());
        Builder { size_bytes: SIZE_BYTES, storage, engine }
    }
}

impl Builder {
    /// Size of a store file that is made, in bytes: a multiple of 4096. It limits the store's content, garbage
    /// included; the file is sparse. Default 8 GiB; [`Store::grow`] makes it larger later.
    pub fn size(mut self, bytes: u64) -> Builder {
        self.size_bytes = bytes;
        self
    }

    /// The key that opens the store, if it is encrypted; a store file that is made is encrypted, and this is its first key.
    /// Other keys are added by the program (`lacuna key`). Tables in a directory are not encrypted: it is refused there.
    pub fn key(mut self, key: Secret) -> Builder {
        self.storage.format.ftl.key = Some(NewKey { secret: key.clone(), slot: KeyOptions::default() });
        self.storage.options.ftl.key = Key::Secret(key);
        self
    }

    /// The key that opens the keys of encrypted tables ([`crate::TableOptions::encrypted`]), whatever they lie in; a store
    /// that is made gets keys, and this opens them. One that exists is refused if it has none. Log and undo are encrypted
    /// too. Other keys are added by the program (`lacuna key --tables`).
    ///
    /// ```
    /// use lacuna::{Secret, Store, TableOptions};
    ///
    /// let store = Store::builder().tables_key(Secret::new("correct horse")?).in_memory()?;
    /// let table = store.open_table("secrets", TableOptions::default().encrypted())?;
    /// # let _ = table;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tables_key(mut self, key: Secret) -> Builder {
        self.engine.key = Some(EngineKey { secret: key, slot: KeyOptions::default() });
        self
    }

    /// Opens without writing, which takes a store that was closed; changes fail with [`crate::Error::ReadOnly`].
    pub fn read_only(mut self) -> Builder {
        self.storage.read_only = true;
        self
    }

    /// Memory for pages, in bytes; at least 1 MiB. Default 128 MiB.
    pub fn pool_bytes(mut self, bytes: usize) -> Builder {
        self.engine.pool_bytes = bytes;
        self
    }

    /// When a commit returns. Default: once it is on the medium.
    pub fn durability(mut self, durability: Durability) -> Builder {
        self.engine.durability = durability;
        self
    }

    /// How often the log is synced when durability is relaxed. Default 1 s.
    pub fn relaxed_interval(mut self, interval: Duration) -> Builder {
        self.engine.relaxed_interval = interval;
        self
    }

    /// Log that a recovery may have to replay, in bytes; at least 256 KiB. Default 256 MiB, less in a small store.
    pub fn log_bytes(mut self, bytes: u64) -> Builder {
        self.engine.log_bytes = bytes;
        self
    }

    /// How long replaying the log may take after a crash, on a slow device. Default 10 s.
    pub fn replay_time(mut self, time: Duration) -> Builder {
        self.engine.replay_time = time;
        self
    }

    /// Threads that compress and write pages, 1 to 256. Default: one for each processor.
    pub fn flush_threads(mut self, threads: usize) -> Builder {
        self.engine.flush_threads = threads;
        self
    }

    /// How long a writer waits for another transaction's lock. Default 50 s.
    pub fn lock_timeout(mut self, timeout: Duration) -> Builder {
        self.engine.lock_timeout = timeout;
        self
    }

    /// Space for older versions of records that open snapshots still see, in bytes; beyond it the oldest snapshot is
    /// revoked ([`crate::Error::SnapshotTooOld`]). At least 1 KiB. Default 1 GiB, less in a small store.
    pub fn history_bytes(mut self, bytes: u64) -> Builder {
        self.engine.history_bytes = bytes;
        self
    }

    /// Whether pages are written twice. Default: where they could be torn, which is in a directory only, and there only
    /// where the file system has no atomic writes. A table may have a setting of its own.
    pub fn doublewrite(mut self, doublewrite: Doublewrite) -> Builder {
        self.engine.doublewrite = doublewrite;
        self
    }

    /// Whether pages are written atomically where the storage can do that. Default true.
    pub fn atomic_writes(mut self, is_on: bool) -> Builder {
        self.engine.atomic_writes = is_on;
        self
    }

    /// Whether the space behind a page that became shorter is given back. Default true.
    pub fn trim(mut self, is_on: bool) -> Builder {
        self.engine.trim = is_on;
        self
    }

    /// Whether trailing zeros of what is written are left out in a store file or block device. Default true.
    pub fn elide_zero_tails(mut self, is_on: bool) -> Builder {
        self.storage.options.ftl.elide_zero_tails = is_on;
        self
    }

    /// Whether pages have a checksum of all their bytes, also where the storage never tears them. Default true.
    pub fn checksums(mut self, is_on: bool) -> Builder {
        self.engine.checksums = is_on;
        self
    }

    /// Whether leaves are packed before they are compressed. Default true.
    pub fn packing(mut self, is_on: bool) -> Builder {
        self.engine.packing = is_on;
        self
    }

    /// Opens the store at `path`: a store file, a block device, or a directory. A store file is made where there is
    /// nothing, unless it is to be read only.
    ///
    /// # Errors
    /// Each names `path`, but [`Error::BadOption`].
    /// - [`Error::Busy`]: it is open in this process already, be it by a table or transaction of a closed store.
    /// - [`Error::Device`] with [`DeviceError::Busy`]: another process has it open. With others: the system refuses.
    /// - [`Error::BadStore`]: `path` holds something else, which is left as it is, or a store of a newer version; or one
    ///   that the key, or the lack of one, does not open.
    /// - [`Error::Corrupt`]: data needed to open it is damaged.
    /// - [`Error::NotClosed`]: it was to be opened for reading only, and has to be recovered first.
    /// - [`Error::NotBuiltIn`]: opening it takes an algorithm that is not built in.
    /// - [`Error::BadOption`]: an option is out of range.
    ///
    /// [`Error::Busy`]: crate::Error::Busy
    /// [`Error::Device`]: crate::Error::Device
    /// [`DeviceError::Busy`]: crate::DeviceError::Busy
    /// [`Error::BadStore`]: crate::Error::BadStore
    /// [`Error::Corrupt`]: crate::Error::Corrupt
    /// [`Error::NotClosed`]: crate::Error::NotClosed
    /// [`Error::NotBuiltIn`]: crate::Error::NotBuiltIn
    /// [`Error::BadOption`]: crate::Error::BadOption
    pub fn open(self, path: impl AsRef<Path>) -> Result<Store> {
        let path = path.as_ref();
        self.engine.check()?; // before a file is made
        let create_size = Some(self.size_bytes);
        let read_only = self.storage.read_only;
        let storage = Storage::open(path, &VfsOptions { create_size, ..self.storage })?;
        let engine = match read_only {
            true => engine::Store::open_read_only(storage.vfs(), self.engine),
            false => engine::Store::open(storage.vfs(), self.engine),
        };
        Ok(Store::new(engine.map_err(|e| at_path(path, e))?, Some(storage)))
    }

    /// Makes a store in memory, gone with its last handle.
    ///
    /// # Errors
    /// [`crate::Error::BadOption`]: an option is out of range.
    pub fn in_memory(self) -> Result<Store> {
        Ok(Store::new(engine::Store::open(MemVfs::new(), self.engine)?, None))
    }
}
