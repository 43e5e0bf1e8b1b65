use std::{num::NonZeroU64, str::FromStr, time::Duration};

use lacuna_crypt::{Secret, SlotOptions};
use lacuna_page::{Algorithm, BLOCK_ALGORITHMS, Codec, PAGE_BYTES_MAX, PAGE_BYTES_MIN};

use crate::types::error::{Error, Result};

/// Longest page that can be row-compressed.
const ROW_PAGE_BYTES_MAX: usize = 16 << 10;

/// zstd's level for pages that rest.
const REST_LEVEL: i32 = 4;

/// When a commit returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Once it is on the medium. Commits at the same time share one sync.
    #[default]
    Sync,
    /// At once; it reaches the medium within [`StoreOptions::relaxed_interval`]. A crash may lose the last commits,
    /// always the latest ones and each as a whole.
    Relaxed,
}

/// Which changes of others a transaction sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// It sees the state committed at its first read or write, however long it runs, and its own changes. Changing or
    /// locking a record that another transaction has changed since fails with [`Error::Conflict`].
    ///
    /// Two such transactions may still each read what the other one writes (*write skew*, Adya's G2-item): both
    /// commit, as in no order one after the other. Where a decision depends on a record that the transaction does not
    /// write, [`crate::Txn::get_for_update`] instead of [`crate::Txn::get`], or a write of that record, prevents it. A
    /// scan cannot lock records that it did *not* find; lock one record that stands for the range instead.
    ///
    /// ```
    /// # use lacuna_device::MemVfs;
    /// # use lacuna_engine::{Error, Store, StoreOptions, TableOptions};
    /// # let store = Store::open(MemVfs::new(), StoreOptions::default())?;
    /// let on_call = store.create_table("on call", TableOptions::default())?;
    /// let mut setup = store.begin();
    /// setup.put(&on_call, b"ada", b"yes")?;
    /// setup.put(&on_call, b"bob", b"yes")?;
    /// setup.commit()?;
    ///
    /// // Each leaves because the other one stays.
    /// let (mut ada, mut bob) = (store.begin(), store.begin());
    /// assert_eq!(ada.get(&on_call, b"bob")?.as_deref(), Some(&b"yes"[..]));
    /// assert_eq!(bob.get(&on_call, b"ada")?.as_deref(), Some(&b"yes"[..]));
    /// ada.put(&on_call, b"ada", b"no")?;
    /// bob.put(&on_call, b"bob", b"no")?;
    /// ada.commit()?;
    /// bob.commit()?; // and nobody is on call
    ///
    /// // With the record locked that the decision rests on, the second one finds out.
    /// let (mut ada, mut bob) = (store.begin(), store.begin());
    /// ada.get(&on_call, b"ada")?;
    /// bob.get(&on_call, b"ada")?;
    /// ada.get_for_update(&on_call, b"bob")?;
    /// ada.put(&on_call, b"ada", b"yes")?;
    /// ada.commit()?;
    /// assert!(matches!(bob.get_for_update(&on_call, b"ada"), Err(Error::Conflict)));
    /// # Ok::<(), Error>(())
    /// ```
    #[default]
    Snapshot,
    /// Each read sees all commits before it, and the transaction's own changes. No history is kept for it.
    ReadCommitted,
}

/// Settings of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionOptions {
    /// Which changes of others it sees. Default: a snapshot.
    pub isolation: Isolation,
}

impl TransactionOptions {
    /// A transaction whose reads see all commits before each.
    pub const READ_COMMITTED: TransactionOptions = TransactionOptions { isolation: Isolation::ReadCommitted };
}

/// Settings of an open store. None of them but [`StoreOptions::log_salt`] and [`StoreOptions::key`] is kept in the store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Memory for pages, in bytes; at least 1 MiB. Default 128 MiB.
    pub pool_bytes: usize,
    /// When a commit returns.
    pub durability: Durability,
    /// How often the log is synced when durability is relaxed. Default 1 s.
    pub relaxed_interval: Duration,
    /// Log that a recovery may have to replay, in bytes; writers are slowed when it is nearly used
    /// up. At least 256 KiB. Default 256 MiB.
    pub log_bytes: u64,
    /// How long replaying the log may take after a crash, on a device that reads 128 MiB of log and 5,000 pages of
    /// 16 KiB a second; a fast one takes a tenth of that. So many pages may be dirty as it can read in what
    /// `log_bytes` leaves of this time (40,000 by default, and never less than 256), however large the pool is. More
    /// time spares writes of pages that are changed again. Default 10 s.
    pub replay_time: Duration,
    /// Threads that compress and write pages. Default: one for each processor.
    pub flush_threads: usize,
    /// How long a writer waits for another transaction's lock. Default 50 s.
    pub lock_timeout: Duration,
    /// Space for the history of committed transactions that open snapshots do not see, in bytes on the device and 128 in
    /// memory for each transaction; beyond it the oldest snapshot is revoked ([`Error::SnapshotTooOld`]). At least 1
    /// KiB; at most an eighth of the VFS is used. Default 1 GiB.
    pub history_bytes: u64,
    /// Whether pages are first written to a doublewrite file. Default: where the VFS cannot write a
    /// page atomically.
    pub doublewrite: Doublewrite,
    /// Whether use is made of what the VFS writes atomically. Without, it counts as one that tears pages. Default true;
    /// off for comparisons.
    pub atomic_writes: bool,
    /// Whether holes are made behind images that became shorter, and of free pages. Default true; without, these keep
    /// the space.
    pub trim: bool,
    /// Whether leaves are packed before they are compressed. Default true; off for comparisons. Pages that were written
    /// otherwise are read all the same.
    pub packing: bool,
    /// Whether images of pages have a checksum of all their bytes. Default true. Without, one of their headers only,
    /// where the VFS writes pages atomically; elsewhere, and in row-compressed tables, checksums find torn pages and are
    /// always there. Then a flipped bit may be taken for data, unless the VFS finds it: nvmfs has checksums of its own.
    pub checksums: bool,
    /// Whether flushing, purging and checkpoints run in threads of their own. Without, they run in
    /// the threads that call the store, and in [`crate::Store::step`]. Default true.
    pub background: bool,
    /// The salt of a store that is made now. It distinguishes the store's log from bytes of values that are made to
    /// look like it; users who choose values must not know it. Stores that exist keep their own. Default: random; tests
    /// give one to write the same bytes each time.
    pub log_salt: Option<NonZeroU64>,
    /// What opens the keys of encrypted tables. A store that is made now gets keys of its own if there is one; one that
    /// exists is refused with a key if it has none, and without one if it has. Log and undo of a store with keys are
    /// encrypted, and those tables that [`TableOptions::encrypted`] says. Default: none.
    pub key: Option<EngineKey>,
}

/// What opens the keys of encrypted tables.
#[derive(Clone, Debug)]
pub struct EngineKey {
    /// A passphrase, the content of a key file, or the like.
    pub secret: Secret,
    /// How its slot is made, in a store that is made.
    pub slot: SlotOptions,
}

/// Whether pages are written twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Doublewrite {
    /// Where the VFS cannot write a page atomically; for a table, as the store's setting says.
    #[default]
    Auto = 0,
    /// Always.
    On = 1,
    /// Never. On a VFS that tears writes, a crash may then destroy the store.
    Off = 2,
}

impl Doublewrite {
    /// As the catalog stores it; none for a byte that no version writes.
    pub(crate) fn from_byte(byte: u8) -> Option<Doublewrite> {
        [Doublewrite::Auto, Doublewrite::On, Doublewrite::Off].into_iter().find(|it| *it as u8 == byte)
    }

    /// Its name, which [`str::parse`] reads back.
    pub fn name(self) -> &'static str {
        match self {
            Doublewrite::Auto => "auto",
            Doublewrite::On => "on",
            Doublewrite::Off => "off",
        }
    }
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            pool_bytes: 128 << 20,
            durability: Durability::Sync,
            relaxed_interval: Duration::from_secs(1),
            log_bytes: 256 << 20,
            replay_time: Duration::from_secs(10),
            flush_threads: std::thread::available_parallelism().map_or(2, usize::from),
            lock_timeout: Duration::from_secs(50),
            history_bytes: 1 << 30,
            doublewrite: Doublewrite::Auto,
            atomic_writes: true,
            trim: true,
            packing: true,
            checksums: true,
            background: true,
            log_salt: None,
            key: None,
        }
    }
}

impl StoreOptions {
    /// Whether a store can have them, which opening it checks as well.
    ///
    /// # Errors
    /// [`Error::BadOption`], which names the option.
    pub fn check(&self) -> Result<()> {
        let bad = |what, reason: &str| Err(Error::BadOption { what, reason: reason.into() });
        if self.pool_bytes < 1 << 20 {
            return bad("pool_bytes", "at least 1 MiB");
        }
        if self.log_bytes < 256 << 10 {
            return bad("log_bytes", "at least 256 KiB");
        }
        if self.history_bytes < 1 << 10 {
            return bad("history_bytes", "at least 1 KiB");
        }
        if self.flush_threads == 0 || self.flush_threads > 256 {
            return bad("flush_threads", "1 to 256");
        }
        Ok(())
    }
}

/// How a table's pages are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableKind {
    /// Uncompressed; of the last page of a long value only the part that the value fills.
    #[default]
    Plain,
    /// Compressed when they are flushed; the space saved is punched as a hole.
    PageCompressed {
        /// The algorithm; [`Algorithm::None`] writes pages as they are. It must be built in
        /// ([`Algorithm::is_built_in`]).
        algorithm: Algorithm,
        /// The algorithm's level, one of [`Algorithm::levels`]; 0 is its default.
        level: i32,
    },
    /// Compressed when they are flushed, each page as it is used: by LZ4 at its default level while it is written often,
    /// by zstd once it rests and is not read often. Threads of the store, or [`crate::Store::step`], encode pages anew that
    /// rest, and those that are read often then.
    Adaptive {
        /// zstd's level for pages that rest, 0 to 22; 0 is 4.
        level: i32,
    },
    /// Compressed row by row into blocks of a fixed length, as InnoDB's `ROW_FORMAT=COMPRESSED` does: each
    /// block holds a compressed page and a log of changes to it; when that is full the thread that changes the
    /// page compresses it again, and splits it when it does not fit. Kept as the baseline that page compression is
    /// measured against; it needs the cargo feature `zlib`.
    RowCompressed {
        /// Length of a block in KiB: 1, 2, 4, 8 or 16, and at most a page, whose length is at most 16 KiB, as in
        /// InnoDB. With blocks as long as a page nothing is saved but in long values; there is space for a log of
        /// changes.
        key_block_size: u32,
        /// zlib, as in InnoDB, or LZ4. Each block says which one made it: those that are there stay as they are when
        /// this changes.
        algorithm: Algorithm,
        /// The algorithm's level, one of [`Algorithm::levels`]; 0 is its default.
        level: i32,
    },
}

impl TableKind {
    pub(crate) fn codec(self) -> Codec {
        match self {
            TableKind::Plain | TableKind::RowCompressed { .. } => Codec::PLAIN,
            TableKind::Adaptive { .. } => Codec::fast(Algorithm::Lz4),
            TableKind::PageCompressed { algorithm, level } => Codec { algorithm, level },
        }
    }

    /// The codec of pages that rest, where they have one of their own.
    pub(crate) fn rest_codec(self) -> Option<Codec> {
        let TableKind::Adaptive { level } = self else { return None };
        Some(Codec { algorithm: Algorithm::Zstd, level: if level == 0 { REST_LEVEL } else { level } })
    }
}

/// Settings of a table, kept in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// How its pages are kept.
    pub kind: TableKind,
    /// Bytes of a page: 4, 8, 16, 32 or 64 KiB. Default 16 KiB.
    pub page_bytes: usize,
    /// Whether its pages are written twice. Default: as [`StoreOptions::doublewrite`] says.
    pub doublewrite: Doublewrite,
    /// Whether its pages are encrypted by a key of its own; not of row-compressed tables. Needs a store with keys
    /// ([`StoreOptions::key`]). Default false.
    pub encrypted: bool,
}

impl Default for TableOptions {
    fn default() -> TableOptions {
        TableOptions {
            kind: TableKind::Plain,
            page_bytes: 16 << 10,
            doublewrite: Doublewrite::Auto,
            encrypted: false,
        }
    }
}

impl TableOptions {
    /// A table whose pages are compressed by `algorithm` at its default level.
    pub fn compressed(algorithm: Algorithm) -> TableOptions {
        TableOptions { kind: TableKind::PageCompressed { algorithm, level: 0 }, ..TableOptions::default() }
    }

    /// A row-compressed table with blocks of `key_block_size` KiB, by zlib at its default level.
    pub fn row_compressed(key_block_size: u32) -> TableOptions {
        TableOptions {
            kind: TableKind::RowCompressed { key_block_size, algorithm: Algorithm::Zlib, level: 0 },
            ..TableOptions::default()
        }
    }

    /// The same settings with pages of `page_bytes`.
    #[must_use]
    pub fn page_bytes(self, page_bytes: usize) -> TableOptions {
        TableOptions { page_bytes, ..self }
    }

    /// The same settings for a table whose pages are encrypted.
    #[must_use]
    pub fn encrypted(self) -> TableOptions {
        TableOptions { encrypted: true, ..self }
    }

    /// Whether a table may have them, in this program.
    pub(crate) fn check(&self) -> Result<()> {
        let algorithm = match self.kind {
            TableKind::RowCompressed { algorithm, .. } => algorithm,
            kind => kind.codec().algorithm,
        };
        // Row-compressed pages are recompressed by zlib where the other algorithm does not shrink them enough.
        let is_row = matches!(self.kind, TableKind::RowCompressed { .. });
        let rest = self.kind.rest_codec().map(|codec| codec.algorithm);
        let all = [Some(algorithm), rest, is_row.then_some(Algorithm::Zlib)];
        if let Some(algorithm) = all.into_iter().flatten().find(|algorithm| !algorithm.is_built_in()) {
            return Err(Error::NotBuiltIn { what: "table options".into(), algorithm });
        }
        self.check_stored()?;
        match self.kind {
            TableKind::RowCompressed { key_block_size, .. }
                if !is_block_bytes(key_block_size as usize * 1024, self.page_bytes) =>
            {
                Err(self.no_such_block(key_block_size))
            }
            _ => Ok(()),
        }
    }

    fn no_such_block(&self, key_block_size: u32) -> Error {
        let page = self.page_bytes / 1024;
        let reason = format!(
            "{key_block_size} KiB beside pages of {page} KiB: a block takes 1, 2, 4, 8 or 16 KiB, at most a page, \
             and pages at most 16 KiB"
        );
        Error::BadOption { what: "key_block_size", reason }
    }

    /// Whether they are sound, in a program that has all algorithms.
    pub(crate) fn check_stored(&self) -> Result<()> {
        if let TableKind::PageCompressed { algorithm, level }
        | TableKind::RowCompressed { algorithm, level, .. } = self.kind
            && !algorithm.levels().contains(&level)
        {
            let levels = algorithm.levels();
            let reason = format!("{level} is not one of {algorithm}, {} to {}", levels.start(), levels.end());
            return Err(Error::BadOption { what: "level", reason });
        }
        if let TableKind::Adaptive { level } = self.kind
            && !(0..=22).contains(&level)
        {
            return Err(Error::BadOption { what: "level", reason: format!("{level} is not 0 to 22") });
        }
        if !self.page_bytes.is_power_of_two() || !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&self.page_bytes)
        {
            let reason = format!("{} is not 4, 8, 16, 32 or 64 KiB", self.page_bytes);
            return Err(Error::BadOption { what: "page_bytes", reason });
        }
        if let TableKind::RowCompressed { key_block_size, algorithm, .. } = self.kind {
            if self.encrypted {
                let reason = "row-compressed tables cannot be encrypted".into();
                return Err(Error::BadOption { what: "encrypted", reason });
            }
            if !may_have_blocks(key_block_size as usize * 1024, self.page_bytes) {
                return Err(self.no_such_block(key_block_size));
            }
            if !BLOCK_ALGORITHMS.contains(&algorithm) {
                let reason = format!("{algorithm}: row-compressed tables have zlib or lz4");
                return Err(Error::BadOption { what: "algorithm", reason });
            }
        }
        Ok(())
    }

    /// For error messages.
    pub(crate) fn text(&self) -> String {
        let kind = match self.kind {
            TableKind::Plain => "plain".into(),
            TableKind::PageCompressed { algorithm, level } => format!("{algorithm} (level {level})"),
            TableKind::Adaptive { level } => format!("adaptive (level {level})"),
            TableKind::RowCompressed { key_block_size, algorithm, level } => {
                format!("row-compressed (blocks of {key_block_size} KiB, {algorithm}, level {level})")
            }
        };
        let encrypted = if self.encrypted { ", encrypted" } else { "" };
        format!("{kind} pages of {} KiB{encrypted}", self.page_bytes / 1024)
    }

    /// The part of them that lasts for the life of the table.
    pub(crate) fn layout(&self) -> Layout {
        let block_bytes = match self.kind {
            TableKind::RowCompressed { key_block_size, .. } => Some(key_block_size as usize * 1024),
            TableKind::Plain | TableKind::PageCompressed { .. } | TableKind::Adaptive { .. } => None,
        };
        Layout { page_bytes: self.page_bytes, block_bytes }
    }
}

impl FromStr for Doublewrite {
    type Err = Error;

    fn from_str(s: &str) -> Result<Doublewrite> {
        match s {
            "auto" => Ok(Doublewrite::Auto),
            "on" => Ok(Doublewrite::On),
            "off" => Ok(Doublewrite::Off),
            _ => Err(Error::BadOption { what: "doublewrite", reason: format!("{s} is not auto, on or off") }),
        }
    }
}

/// Sizes that a table keeps for life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) page_bytes: usize,
    /// Of a row-compressed table.
    pub(crate) block_bytes: Option<usize>,
}

impl Layout {
    /// Of a table whose pages are stored uncompressed, or compressed when they are flushed.
    pub(crate) fn of_pages(page_bytes: usize) -> Layout {
        Layout { page_bytes, block_bytes: None }
    }

    /// Whether its blocks are of lengths that the first programs of version 1 do not know; they refuse a store with
    /// such a table by a feature in the control file.
    pub(crate) fn has_later_blocks(self) -> bool {
        self.block_bytes.is_some_and(|bytes| {
            bytes < PAGE_BYTES_MIN || bytes * 2 != self.page_bytes && bytes * 4 != self.page_bytes
        })
    }

    /// Bytes that a page takes in the file.
    pub(crate) fn slot_bytes(self) -> usize {
        self.block_bytes.unwrap_or(self.page_bytes)
    }
}

/// Whether a table with pages of `page_bytes` can be made with blocks of `bytes`: by InnoDB's rules.
pub(crate) fn is_block_bytes(bytes: usize, page_bytes: usize) -> bool {
    bytes.is_power_of_two()
        && (1 << 10..=page_bytes.min(ROW_PAGE_BYTES_MAX)).contains(&bytes)
        && page_bytes <= ROW_PAGE_BYTES_MAX
}

/// Whether a table with pages of `page_bytes` that exists may have blocks of `bytes`: the first programs of version 1
/// also made some of larger pages.
pub(crate) fn may_have_blocks(bytes: usize, page_bytes: usize) -> bool {
    let layout = Layout { page_bytes, block_bytes: Some(bytes) };
    is_block_bytes(bytes, page_bytes) || !layout.has_later_blocks()
}
