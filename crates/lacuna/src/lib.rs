//! An embeddable, transactional, ordered store for flash. It compresses database pages when it flushes them, writes
//! them in place and returns the gap after each to the flash, with no doublewrite buffer.
//!
//! ```no_run
//! use lacuna::{Algorithm, Store, TableOptions};
//!
//! let store = Store::open("people.lacuna")?;
//! let people = store.open_table("people", TableOptions::compressed(Algorithm::Lz4))?;
//! let mut txn = store.begin();
//! txn.put(&people, b"ada", b"countess")?;
//! txn.commit()?; // durable from here on
//! assert_eq!(store.begin().get(&people, b"ada")?.as_deref(), Some(&b"countess"[..]));
//! store.close()?;
//! # Ok::<(), lacuna::Error>(())
//! ```
//!
//! # Where a store is
//!
//! - In a *store file*, which is made where there is nothing yet, or on a *block device* that `lacuna format` has
//!   prepared: there Lacuna's own file system writes pages atomically and in order.
//! - In a *directory* of any file system, where tables are plain files; holes free space as far as that file system has
//!   them, and pages are written twice where it cannot write one atomically.
//! - In *memory*, for tests: [`Store::in_memory`].
//!
//! [`Store::builder`] has the options. The program `lacuna` inspects, checks and mounts stores.
//!
//! # Tables and transactions
//!
//! A [`Table`] is an ordered map of byte keys to byte values. All reads and writes are part of a transaction, [`Txn`]:
//! by default it reads a snapshot, and [`Txn::commit`] returns once it is durable. Secondary indexes are tables that
//! the caller keeps in the same transaction. Handles of tables and stores are cheap to clone, and shared by threads.
//!
//! ```
//! use std::ops::Bound;
//!
//! use lacuna::{Direction, Error, Store, TableOptions};
//!
//! let store = Store::in_memory()?;
//! let stock = store.open_table("stock", TableOptions::default())?;
//! loop {
//!     let mut txn = store.begin();
//!     match txn.insert(&stock, b"apples", b"3").and_then(|()| txn.commit()) {
//!         Ok(()) => break,
//!         Err(Error::KeyExists) => break,
//!         Err(e) if e.is_retryable() => {} // a deadlock or a conflict: begin anew
//!         Err(e) => return Err(e),
//!     }
//! }
//! let mut fruit = Vec::new();
//! store.begin().scan(&stock, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |key, _| {
//!     fruit.push(key.to_vec());
//!     std::ops::ControlFlow::Continue(())
//! })?;
//! assert_eq!(fruit, [b"apples"]);
//! # Ok::<(), Error>(())
//! ```
//!
//! # Cargo features
//!
//! Each compression algorithm is a feature: `lz4` and `zstd` by default, `zlib`, `lzo`, `snappy`, `bzip2`, `lzma`, or
//! `all-codecs`. Only `lz4` and `zstd` need a C compiler. A page of an algorithm that is not built in is
//! [`Error::NotBuiltIn`], whatever the store; [`Algorithm::is_built_in`] says what is.

mod builder;
mod error;
mod storage;
mod store;

pub use builder::Builder;
pub use lacuna_device::Error as DeviceError;
pub use lacuna_engine::{
    Algorithm, Cursor, Direction, Doublewrite, Durability, Error, Insertion, Isolation, KeyRange,
    OptimizeProgress, Record, Records, Result, Savepoint, Swap, Table, TableCheck, TableId, TableImages,
    TableInfo, TableKind, TableOptions, TransactionOptions, Txn,
};
pub use lacuna_ftl::{KeyError, Secret};
pub use store::Store;

/// The counters of a store: the parts of [`StoreStats`](stats::StoreStats), which `Store::stats` returns.
pub mod stats {
    pub use lacuna_device::VfsStats;
    pub use lacuna_engine::{
        FlushStats, HistoryStats, LogStats, PoolStats, RecoveryStats, ReplayEstimate, RowStats, StoreStats,
    };
}

/// The examples of both README.md compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../README.md")]
struct Readme;
