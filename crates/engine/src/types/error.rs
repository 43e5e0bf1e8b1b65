use std::sync::Arc;

use lacuna_page::Algorithm;

use crate::{TableOptions, types::ids::TableId};

/// The reasons why an engine call fails.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device or file system below failed.
    #[error(transparent)]
    Device(Arc<lacuna_device::Error>),
    /// Bytes of the store are not those that were written.
    #[error("{what}: corrupt at {at}: {reason}")]
    Corrupt {
        /// The file.
        what: String,
        /// The page or offset.
        at: String,
        /// The check that failed.
        reason: String,
    },
    /// A page or option needs a compression algorithm that this program was built without. The store is intact: a
    /// program built with the algorithm reads and writes it.
    #[error("{what}: needs {algorithm}, which is not built in (cargo feature `{algorithm}`)")]
    NotBuiltIn {
        /// The page, table or option.
        what: String,
        /// The algorithm; its name is that of the feature.
        algorithm: Algorithm,
    },
    /// The store was written by a newer version, or is not a store at all.
    #[error("{what}: {reason}")]
    BadStore {
        /// The VFS.
        what: String,
        /// The reason.
        reason: String,
    },
    /// A key or value is longer than the table's page size allows.
    #[error("{what} of {bytes} bytes is longer than {bytes_max}")]
    TooLarge {
        /// "key" or "value".
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// `insert` met a record with that key.
    #[error("a record with that key exists already")]
    KeyExists,
    /// Records for [`crate::Txn::bulk_load`] are not in ascending order of their keys.
    #[error("record {record}: its key is not greater than the one before")]
    OutOfOrder {
        /// The first that is out of order, counted from 0.
        record: u64,
    },
    /// A table of that name exists already.
    #[error("table {name}: exists already")]
    TableExists {
        /// The table's name.
        name: String,
    },
    /// [`crate::Store::open_table`] was given other options than the table of that name has.
    /// [`crate::Store::table`] opens it as it is, [`crate::Store::alter_table`] changes its kind.
    #[error("table {name}: exists with {}, not with {}", found.text(), asked.text())]
    OtherOptions {
        /// The table's name.
        name: String,
        /// The options in force.
        found: TableOptions,
        /// The options that the caller asked for.
        asked: TableOptions,
    },
    /// The key does not open the store's keys, or these cannot be changed as asked.
    #[error("{what}: {reason}")]
    Key {
        /// The VFS.
        what: String,
        /// The reason.
        reason: lacuna_crypt::Error,
    },
    /// A store with encrypted tables was opened without a key ([`crate::StoreOptions::key`]).
    #[error("{what}: its tables are encrypted, and no key was given")]
    NoKey {
        /// The VFS.
        what: String,
    },
    /// A key was given for a store that has no keys.
    #[error("{what}: its tables have no keys, but one was given")]
    NoKeys {
        /// The VFS.
        what: String,
    },
    /// An encrypted table whose own key is missing or damaged. Other tables are not affected.
    #[error("{id}: encrypted, and its key is missing or damaged")]
    TableLocked {
        /// The table's number.
        id: TableId,
    },
    /// No table has that name.
    #[error("table {name}: there is none")]
    NoSuchTable {
        /// The name.
        name: String,
    },
    /// A transaction that is not finished has read or written the table, or the table is being optimized, so
    /// it cannot be dropped now.
    #[error("table {name}: in use")]
    TableInUse {
        /// The table's name.
        name: String,
    },
    /// The table of this handle was dropped.
    #[error("{id}: dropped")]
    TableDropped {
        /// The table's number.
        id: TableId,
    },
    /// The store was opened by the process that this one was forked from, and only that one can use it. Here it can be
    /// dropped, and once the other one has closed it, be opened.
    #[error("the store belongs to the process that this one was forked from")]
    Forked,
    /// The VFS has only the space left that finishing and rolling back transactions may need. Nothing was changed;
    /// deletes still work for a while and free space. Beside open snapshots they free none, and are refused at last as
    /// well: close these, that is, end the transactions that read them.
    #[error("{what}: no space left{}", kept(*history_bytes))]
    Full {
        /// The VFS.
        what: String,
        /// Bytes of records that were deleted or replaced which open snapshots keep, of
        /// [`crate::HistoryStats::bytes`]. The refused transaction's own snapshot, which ends with it, does not count.
        history_bytes: u64,
    },
    /// An option or name out of range.
    #[error("{what}: {reason}")]
    BadOption {
        /// The option.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// Waiting for a lock would have closed a cycle. The transaction should be rolled back and
    /// tried again.
    #[error("deadlock: the transaction was chosen as the victim")]
    Deadlock,
    /// Another transaction changed the record and committed after this one's snapshot was taken. The
    /// transaction should be rolled back and tried again.
    #[error("conflict: the record was changed since the snapshot was taken")]
    Conflict,
    /// More history was kept for the transaction's snapshot than [`crate::StoreOptions::history_bytes`]
    /// allows, so it was revoked. The transaction should be rolled back and tried again.
    #[error("snapshot too old: its history was given up")]
    SnapshotTooOld,
    /// A lock was not granted in time. The transaction may go on or be rolled back.
    #[error("lock wait timed out")]
    LockTimeout,
    /// As many transactions write as can at a time, and none of them ended within
    /// [`crate::StoreOptions::lock_timeout`]. The transaction may go on or be rolled back.
    #[error("{max} transactions write, which is the most at a time, and none ended in time")]
    TooManyWriters {
        /// How many can.
        max: u32,
    },
    /// The store of this handle was closed, or all its [`crate::Store`] handles were dropped.
    #[error("store closed")]
    Closed,
    /// A store of this process is open in the VFS.
    #[error("{what}: open already in this process")]
    Busy {
        /// The VFS.
        what: String,
    },
    /// The store was opened for reading only.
    #[error("store opened for reading only")]
    ReadOnly,
    /// A store that was not closed cannot be opened for reading only: its log would have to be replayed, which writes.
    #[error("{what}: not closed cleanly ({reason}), so it has to be opened for writing first")]
    NotClosed {
        /// The VFS.
        what: String,
        /// The work that is left.
        reason: &'static str,
    },
    /// An earlier write, sync or rollback failed; the store accepts no more until it is reopened.
    #[error("store stopped: {reason}")]
    Poisoned {
        /// The failure.
        reason: String,
    },
    /// The transaction was started on another store, or the table belongs to one.
    #[error("transaction and table belong to different stores")]
    WrongStore,
}

/// What snapshots keep, as a part of a message.
fn kept(history_bytes: u64) -> String {
    match history_bytes {
        0 => " for new records".to_owned(),
        _ => format!(": open snapshots keep {history_bytes} bytes of history until they are closed"),
    }
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<lacuna_device::Error> for Error {
    fn from(e: lacuna_device::Error) -> Error {
        Error::Device(Arc::new(e))
    }
}

impl Error {
    /// Whether the transaction may succeed when it is rolled back and run again.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Error::Deadlock
                | Error::LockTimeout
                | Error::TooManyWriters { .. }
                | Error::Conflict
                | Error::SnapshotTooOld
        )
    }
}
