//! An embeddable transactional engine: ordered tables of byte keys and values, in B+trees whose pages are compressed
//! when they are flushed.
//!
//! A [`Store`] lives in a [`lacuna_device::Vfs`]: a file system of Lacuna's own on flash, a directory, or memory. The
//! engine asks the VFS what it guarantees and chooses its crash protocol by that: on a VFS that writes atomically
//! and in order there is no doublewrite and no sync but the log's; elsewhere there are both.
//!
//! ```
//! use lacuna_device::MemVfs;
//! use lacuna_engine::{Algorithm, Store, StoreOptions, TableOptions};
//!
//! let store = Store::open(MemVfs::new(), StoreOptions::default())?;
//! let people = store.create_table("people", TableOptions::compressed(Algorithm::Lz4))?;
//! let mut txn = store.begin();
//! txn.put(&people, b"ada", b"countess")?;
//! txn.commit()?;
//! assert_eq!(store.begin().get(&people, b"ada")?.as_deref(), Some(&b"countess"[..]));
//! store.close()?;
//! # Ok::<(), lacuna_engine::Error>(())
//! ```
//!
//! # Layers
//!
//! Each folder imports only from those below it (`.ci/layers` checks the lines at the end of this head). No object is
//! passed to every layer: each layer takes the objects of the layers below that it needs.
//!
//! ```text
//! store       the public face: Store, making and dropping tables, the store's threads
//! recovery    opening: survey the log, restore torn pages, replay, roll back
//! catalog     which tables there are, in a table of its own
//! txn         TxnEngine: transactions, snapshots, row locks, rollback, purge, cursors
//! undo        UndoFile: undo logs and their slots
//! btree       Tree: descents, splits, merges, scans        overflow   Chains: long values
//! flush       Flusher: what is due, compression, doublewrite, checkpoints, space left
//! alloc       Allocator: free pages of a file, and its end
//! mtr         Mtr: page changes that are logged as one; Pager: pool and log together
//! pool        Pool: pages in memory, latches, eviction, dirty pages; read-ahead
//! log_device  LogDeviceVfs: the files of the log on a device of their own
//! wal         Log: groups, group commit, page-write records; the control file
//! space       Space: a table's file; pins that keep it from being dropped
//! keys        Keys: the keys of encrypted tables, of undo and of the log
//! row         Blocks: the baseline with compressed blocks, beside compression at flush
//! page        bytes of pages: nodes, undo records, chains, operations; no I/O, no locks
//! sync, poison, types, mutant   locks under a scheduler; stopped stores; names, options, errors
//! ```
//!
//! Calls go down. Two values must go up, through a closure or trait object that the upper layer passes down: the log
//! learns the oldest dirty page from a closure, and the flush layer learns from `flush::Transactions` which writers
//! images still have to name.
//!
//! # Why a crash at any instant is harmless
//!
//! - A page changes only by operations of mini-transactions (`mtr`), whose records are in the log before the page is on
//!   the device. The log (`wal`) is a chain of checksummed groups; it ends at the first offset without a whole group.
//! - A page image carries its LSN and checksum and is replaced atomically, by the VFS or by the doublewrite file
//!   (`flush`). So replaying the log by page LSN (`recovery::replay`) restores the last logged state of all pages.
//! - The log says which images are on the device, once they are (`wal::page_writes`). Replay does not read these pages,
//!   so it reads as many as may be dirty at a time, and no more.
//! - A value too long for a leaf is logged page by page before the change that names it (`overflow`).
//! - Undo is kept in such pages too (`undo`). So the restored state shows which transactions were running, and recovery
//!   rolls them back by further logged changes. A commit is one record: it is in the log or it is not.
//! - The history that snapshots keep of committed transactions is in undo pages, with the records and values that these
//!   deleted or replaced and that are not purged. No snapshot outlives a crash: recovery purges all of it.
//! - The log is freed only up to the oldest change that is not on the device (`flush`, invariant 4).
//!
//! # Why threads are harmless
//!
//! - A page has one copy in memory, and a latch (`pool`). Latches are taken from the root of a tree down, siblings from
//!   left to right; then pages of a chain; then the table's allocation page, whose list and new pages nobody else waits
//!   for; then the same in the undo file, a slot's first page before its last. So latch waits never form a cycle.
//! - Below latches come locks that are held briefly: a shard of the pool, the log's state, then the list of dirty
//!   pages. None of them is held across I/O, and no latch is held while a page is compressed or written, nor while a
//!   thread waits for a transaction, for space in the log's files or for memory (`txn`, invariant 4). Appending to the
//!   log waits, if its buffer is full, for a write of the log only, which takes no latch.
//! - An operation that fails between a page's change and its log record stops the store before the latch is free again
//!   (`mtr`): what can fail comes first.
//! - A record is locked by the transaction that it names as its writer, as long as that runs; each new wait searches
//!   the waits-for graph for a cycle (`txn::active`). Readers never wait for a lock: they follow undo records to the
//!   version that their view sees.
//! - The versions that a reader follows are kept: views hold back purge, tickets hold back the freeing of long values
//!   (`overflow`), pins hold back drops of tables (`space::pins`).
//! - A panic or a failed write stops the store for all threads before a latch is free again (`poison`). Pages in memory
//!   at that point are never written, so opening the store again recovers every acknowledged commit.
//!
//! Each module opens with its own invariants; `recovery` says in which order opening a store does what.
//!
//! layers: mutant < types < sync, poison < keys < page < row < space < wal < log_device, pool < mtr < alloc < flush < overflow < btree
//! layers:   < undo < txn < catalog < recovery < store < fuzz

mod alloc;
mod btree;
mod catalog;
mod flush;
#[cfg(test)]
mod format_doc;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz;
mod keys;
mod log_device;
mod mtr;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub mod mutant;
mod overflow;
mod page;
mod poison;
mod pool;
mod recovery;
mod row;
mod space;
mod store;
mod sync;
mod txn;
mod types;
mod undo;
mod wal;

pub use btree::Direction;
pub use flush::FlushStats;
pub use lacuna_crypt::{
    Cost as KeyCost, KeyChange, Secret, SlotInfo as KeySlot, SlotOptions as KeyOptions, Source as KeySource,
};
pub use lacuna_page::Algorithm;
pub use log_device::{LOG_DEVICE_BYTES_MIN, LogDeviceVfs};
pub use pool::{PoolStats, replay_cost::ReplayEstimate};
pub use recovery::RecoveryStats;
pub use row::RowStats;
pub use store::{AlterProgress, OptimizeProgress, Store, StoreStats, TableCheck, TableImages, TableInfo};
pub use txn::{Cursor, HistoryStats, Insertion, KeyRange, Record, Records, Savepoint, Swap, Table, Txn};
pub use types::{
    Doublewrite, Durability, EngineKey, Error, Isolation, Result, StoreOptions, TableId, TableKind,
    TableOptions, TransactionOptions,
};
pub use wal::LogStats;
