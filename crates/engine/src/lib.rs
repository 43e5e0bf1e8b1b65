//! An embeddable transactional engine: ordered tables of byte keys and values, in B+trees whose pages
//! are compressed when they are flushed.
//!
//! A [`Store`] lives in a [`lacuna_device::Place`]: a file system of Lacuna's own on flash, a
//! directory, or memory. The engine asks the place what it can do and chooses its crash protocol by
//! that: on a place that writes atomically and in order there is no doublewrite and no sync but the
//! log's; elsewhere there are both.
//!
//! ```
//! use lacuna_device::MemPlace;
//! use lacuna_engine::{Algorithm, Store, StoreOptions, TableOptions};
//!
//! let store = Store::open(MemPlace::new(), StoreOptions::default())?;
//! let people = store.create_table("people", TableOptions::compressed(Algorithm::Lz4))?;
//! let mut txn = store.begin();
//! txn.put(&people, b"ada", b"countess")?;
//! txn.commit()?;
//! assert_eq!(store.begin().get(&people, b"ada")?.as_deref(), Some(&b"countess"[..]));
//! store.close()?;
//! # Ok::<(), lacuna_engine::Error>(())
//! ```
//!
//! # Why a crash at any instant is harmless
//!
//! - A page changes only by operations of mini-transactions, whose records are in the
//!   log before the page is on the device. The log is a chain of checksummed groups; its end is the
//!   first place without a whole group.
//! - A page image carries its LSN and checksum and is replaced atomically, by the place or by the
//!   doublewrite file; so replaying the log by page LSN restores the last logged state of all pages.
//! - The log says which images are on the device, once they are. Replay does not read these pages, so its reads are as
//!   many as pages may be dirty at a time.
//! - A value too long for a leaf is in the log page by page before the change that names it.
//! - Undo is kept in such pages too. So that state says which transactions were running; they are
//!   rolled back by further logged changes. A transaction's commit is one record: it is in the log or
//!   it is not.
//! - What snapshots keep of committed transactions is in undo pages too, with what they deleted or replaced and
//!   is not purged. No snapshot outlives a crash: recovery purges all of it.
//! - The log is given up only behind the oldest change that is not on the device.
//!
//! Each module opens with its own invariants; `recovery` tells the order of events.
//!
//! layers: mutant < types < sync, poison < page < row < space < wal < pool < mtr < alloc < flush < overflow < btree
//! layers:   < undo < txn < catalog < recovery < store < fuzz

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod alloc;
mod btree;
mod catalog;
mod flush;
#[cfg(test)]
mod format_doc;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz;
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
pub use lacuna_page::Algorithm;
pub use pool::{PoolStats, replay_cost::ReplayEstimate};
pub use recovery::RecoveryStats;
pub use row::RowStats;
pub use store::{OptimizeProgress, Store, StoreStats, TableCheck, TableImages, TableInfo};
pub use txn::{Cursor, HistoryStats, Insertion, KeyRange, Record, Records, Savepoint, Swap, Table, Txn};
pub use types::{
    error::{Error, Result},
    ids::TableId,
    options::{
        Doublewrite, Durability, Isolation, StoreOptions, TableKind, TableOptions, TransactionOptions,
    },
};
pub use wal::LogStats;
