//! The interface of a peer, and the benchmark's transactions on top of it.
//!
//! A transaction of the benchmark does not declare at its begin whether it will write. Peers with one writer at a time
//! would have to treat every one as a writer; so a [`PeerTxn`] begins nothing before its first call, which decides it:
//! a transaction that changes or locks is a writer from that call on, any other a reader. The benchmark's transactions
//! that write lock or write first, so that none has read before it becomes a writer; one that had would see newer rows
//! then, which read committed allows.
//!
//! Every peer guarantees:
//!
//! 1. A commit that returned is durable: each peer is set to sync its log or file before.
//! 2. The value that [`Write::get_for_update`] returned is still the newest when the commit succeeds: by locks, by
//!    being the only writer, or because the commit fails with [`DbError::Retry`] otherwise.
//! 3. A writer that changed nothing commits nothing: no peer pays for a sync that it would not need.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use lacuna_bench::{
    Footprint, Measured,
    linkbench::{Db, DbError, DbResult, Table, Txn, Visit},
    tree_bytes,
};

/// The settings of a contestant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Memory for its own caches and buffers.
    pub pool_bytes: u64,
    /// Most bytes that its files may grow to, for engines that need to know it.
    pub size_bytes: u64,
    /// Threads that use it at a time.
    pub clients: u32,
    /// `None` is its default.
    pub compression: Option<Compression>,
}

/// Compression of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Lz4,
    Zstd,
    /// LZ4, and longer values apart from their keys.
    Lz4Blobs,
}

/// A view of a peer's tables.
pub(crate) trait Read {
    /// See [`Txn::get`].
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>>;

    /// See [`Txn::scan`].
    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()>;
}

/// A transaction that may write. Dropping it rolls it back.
pub(crate) trait Write: Read {
    /// See [`Txn::get_for_update`].
    fn get_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.get(table, key)
    }

    /// See [`Txn::put`].
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()>;

    /// See [`Txn::insert`].
    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<bool>;

    /// See [`Txn::delete`].
    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<bool>;

    /// See [`Txn::commit`].
    fn commit(self) -> DbResult<()>;
}

/// Another storage engine.
pub(crate) trait Peer: Sized + Sync {
    /// Whether entries of [`Table::LinkByTime`] are inserted and removed without a look at what is there: the schema
    /// guarantees it, since the row of the link is locked. Such calls always say `true`.
    #[cfg(test)]
    const WRITES_INDEX_BLIND: bool = false;

    /// Its views.
    type Reader<'p>: Read
    where
        Self: 'p;
    /// Its transactions.
    type Writer<'p>: Write
    where
        Self: 'p;

    /// Opens the tables in a directory, made when they are missing.
    fn open(directory: &Path, settings: &Settings) -> Result<Self>;

    /// Begins a view of the committed state.
    fn reader(&self) -> DbResult<Self::Reader<'_>>;

    /// Begins a transaction.
    fn writer(&self) -> DbResult<Self::Writer<'_>>;

    /// What follows until [`Peer::settle`] is the load of new rows into empty tables, durable when that returns.
    fn begin_load(&self) {}

    /// Writes its buffers to its files, and waits until it has no more background work. Called without transactions.
    fn settle(&self) -> Result<()>;
}

/// An error that running the transaction again does not cure.
pub(crate) fn fatal(error: impl Into<anyhow::Error>) -> DbError {
    DbError::Fatal(error.into())
}

/// A peer behind the trait of the benchmark.
pub(crate) struct PeerDb<P> {
    peer: P,
    directory: PathBuf,
}

impl<P: Peer> PeerDb<P> {
    /// Opens the tables in a directory, made when they are missing.
    pub(crate) fn open(directory: &Path, settings: &Settings) -> Result<PeerDb<P>> {
        let peer = P::open(directory, settings).with_context(|| directory.display().to_string())?;
        Ok(PeerDb { peer, directory: directory.to_owned() })
    }

    /// See [`Peer::begin_load`].
    pub(crate) fn begin_load(&self) {
        self.peer.begin_load();
    }
}

impl<P: Peer> Db for PeerDb<P> {
    type Txn<'db>
        = PeerTxn<'db, P>
    where
        P: 'db;

    fn begin(&self) -> DbResult<PeerTxn<'_, P>> {
        Ok(PeerTxn { peer: &self.peer, state: State::Idle, has_changes: false })
    }
}

impl<P: Peer> Measured for PeerDb<P> {
    /// Data that the peer left in the page cache is written as well.
    fn settle(&self) -> Result<()> {
        self.peer.settle()?;
        Ok(rustix::fs::syncfs(File::open(&self.directory)?)?)
    }

    /// Every file counts in full: peers do not report which bytes are live. Without a device to ask, the bytes that
    /// reached it are what this process caused to be written.
    fn footprint(&self) -> Result<Footprint> {
        let bytes = tree_bytes(&self.directory).with_context(|| self.directory.display().to_string())?;
        let io = std::fs::read_to_string("/proc/self/io").context("/proc/self/io")?;
        let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
        Ok(Footprint {
            logical_bytes: bytes,
            allocated_bytes: bytes,
            store_bytes: bytes,
            device_written_bytes: written.context("/proc/self/io: no write_bytes")?,
        })
    }
}

/// A transaction of a [`PeerDb`].
pub(crate) struct PeerTxn<'p, P: Peer + 'p> {
    peer: &'p P,
    state: State<'p, P>,
    has_changes: bool,
}

enum State<'p, P: Peer + 'p> {
    Idle,
    Reading(P::Reader<'p>),
    Writing(P::Writer<'p>),
}

impl<'p, P: Peer> PeerTxn<'p, P> {
    /// The transaction as one that writes, begun if need be.
    fn writer(&mut self) -> DbResult<&mut P::Writer<'p>> {
        if !matches!(self.state, State::Writing(_)) {
            // First the view goes: some peers allow a thread one of both.
            self.state = State::Idle;
            self.state = State::Writing(self.peer.writer()?);
        }
        match &mut self.state {
            State::Writing(writer) => Ok(writer),
            State::Idle | State::Reading(_) => unreachable!("a writer was begun above"),
        }
    }

    /// The transaction as it is, begun as a reader if need be.
    fn reader(&mut self) -> DbResult<&mut dyn Read> {
        if matches!(self.state, State::Idle) {
            self.state = State::Reading(self.peer.reader()?);
        }
        match &mut self.state {
            State::Reading(reader) => Ok(reader),
            State::Writing(writer) => Ok(writer),
            State::Idle => unreachable!("a reader was begun above"),
        }
    }
}

impl<P: Peer> Txn for PeerTxn<'_, P> {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.reader()?.get(table, key)
    }

    fn get_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.writer()?.get_for_update(table, key)
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.has_changes = true;
        self.writer()?.put(table, key, value)
    }

    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<bool> {
        let is_new = self.writer()?.insert(table, key, value)?;
        self.has_changes |= is_new;
        Ok(is_new)
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<bool> {
        let was_there = self.writer()?.delete(table, key)?;
        self.has_changes |= was_there;
        Ok(was_there)
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        self.reader()?.scan(table, from, to, visit)
    }

    fn commit(self) -> DbResult<()> {
        match self.state {
            State::Writing(writer) if self.has_changes => writer.commit(),
            State::Writing(_) | State::Reading(_) | State::Idle => Ok(()),
        }
    }
}
