//! An open store and its tables.

mod alter;
mod images;
mod keys;
mod lock;
mod optimize;
mod tables;
mod threads;

pub use alter::AlterProgress;
pub use images::TableImages;
pub use optimize::OptimizeProgress;
pub use tables::TableInfo;

use std::sync::Arc;

use lacuna_device::{Vfs, VfsStats};

use lock::StoreLock;

use crate::{
    btree::Tree,
    flush::FlushStats,
    pool::{PoolStats, replay_cost::ReplayEstimate},
    recovery::{self, RecoveryStats, read_only},
    row::RowStats,
    sync::{Mutex, MutexGuard, thread::JoinHandle},
    txn::{HistoryStats, Txn, TxnEngine},
    types::{Error, Result, StoreOptions, TableId, TransactionOptions},
    undo,
    wal::{LogStats, Until},
};

/// A transactional store of tables. Cheap to clone; all clones are the same store.
///
/// Dropping the last clone stops its threads and leaves everything committed to the log; the next
/// opening replays it. [`Store::close`] leaves nothing to replay. Either way the VFS is free for the next opening,
/// and every other handle, of tables, transactions and cursors, fails with [`Error::Closed`] from then on.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Arc<TxnEngine>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Tables are made, altered, dropped and checked one at a time.
    ddl: Mutex<()>,
    recovery: RecoveryStats,
    /// Until it is closed.
    claim: Mutex<Option<StoreLock>>,
}

/// Counters of a store.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct StoreStats {
    /// The buffer pool.
    pub pool: PoolStats,
    /// The write-ahead log.
    pub log: LogStats,
    /// Page writes.
    pub flush: FlushStats,
    /// The VFS below: all its traffic and space.
    pub vfs: VfsStats,
    /// Row-compressed tables.
    pub row: RowStats,
    /// Open snapshots, and the history kept for them.
    pub history: HistoryStats,
    /// The work of opening the store.
    pub recovery: RecoveryStats,
    /// The work of opening it if it ended now.
    pub replay: ReplayEstimate,
}

/// Counts of a table by [`Store::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableCheck {
    /// Its name.
    pub name: String,
    /// Records, deleted ones excluded.
    pub records: u64,
    /// Leaf pages.
    pub leaves: u64,
    /// Inner pages.
    pub inner_nodes: u64,
    /// Pages of values that are too long for a leaf.
    pub overflow_pages: u64,
    /// Free pages.
    pub free_pages: u64,
    /// Levels of its tree.
    pub height: u64,
    /// Its key is missing or damaged: of its pages nothing but the checksums was checked, and nothing counted.
    pub is_locked: bool,
}

impl Store {
    /// Opens the store in `vfs`, recovering it from a crash if need be; makes a new one in an empty
    /// VFS.
    ///
    /// # Errors
    /// [`Error::BadStore`] for a VFS that holds something else or a newer store,
    /// [`Error::Corrupt`] for damage that recovery met, [`Error::BadOption`], [`Error::Busy`] when a store of this
    /// process is open in the VFS.
    pub fn open(vfs: Arc<dyn Vfs>, options: StoreOptions) -> Result<Store> {
        let background = options.background;
        let claim = Mutex::new(Some(StoreLock::new(&vfs)?));
        let (engine, recovery) = recovery::open(vfs, options)?;
        let threads = if background {
            threads::start(&engine)
                .map_err(|e| Error::BadOption { what: "background threads", reason: format!("{e}") })?
        } else {
            Vec::new()
        };
        let inner = Inner { engine, threads: Mutex::new(threads), ddl: Mutex::new(()), recovery, claim };
        Ok(Store { inner: Arc::new(inner) })
    }

    /// Opens the store in `vfs` for reading only: nothing is written to the VFS, and no thread is started. All
    /// changes, of tables too, fail with [`Error::ReadOnly`].
    ///
    /// # Errors
    /// [`Error::NotClosed`] for a store that was not closed: opening it for writing recovers it. [`Error::BadStore`]
    /// for a VFS that holds no store; those of [`Store::open`].
    ///
    /// ```
    /// # use lacuna_device::MemVfs;
    /// # use lacuna_engine::{Error, Store, StoreOptions, TableOptions};
    /// # let vfs = MemVfs::new();
    /// let store = Store::open(vfs.clone(), StoreOptions::default())?;
    /// store.create_table("people", TableOptions::default())?;
    /// store.close()?;
    ///
    /// let store = Store::open_read_only(vfs, StoreOptions::default())?;
    /// let people = store.table("people")?.expect("made above");
    /// let mut txn = store.begin();
    /// assert_eq!(txn.get(&people, b"ada")?, None);
    /// assert!(matches!(txn.put(&people, b"ada", b"countess"), Err(Error::ReadOnly)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn open_read_only(vfs: Arc<dyn Vfs>, options: StoreOptions) -> Result<Store> {
        let claim = Mutex::new(Some(StoreLock::new(&vfs)?));
        let engine = read_only::open(vfs, StoreOptions { background: false, ..options })?;
        let (threads, recovery) = (Mutex::default(), RecoveryStats::default());
        Ok(Store { inner: Arc::new(Inner { engine, threads, ddl: Mutex::new(()), recovery, claim }) })
    }

    /// Begins a transaction that reads a snapshot. Any number may read; 1,024 can have written something at a time.
    pub fn begin(&self) -> Txn {
        self.begin_with(TransactionOptions::default())
    }

    /// Begins a transaction.
    pub fn begin_with(&self, options: TransactionOptions) -> Txn {
        Txn::new(self.inner.engine.clone(), options)
    }

    fn begin_internal(&self) -> Txn {
        self.begin_with(TransactionOptions::READ_COMMITTED)
    }

    /// Counters since the store was opened.
    pub fn stats(&self) -> Result<StoreStats> {
        let engine = self.engine()?;
        Ok(StoreStats {
            pool: engine.pager().pool().stats(),
            log: engine.pager().log().stats(),
            flush: engine.flusher().stats(),
            row: RowStats::sum(
                engine.spaces().all().iter().filter_map(|space| space.blocks().map(|blocks| &**blocks)),
            ),
            vfs: engine.flusher().vfs().stats()?,
            history: engine.history_stats(),
            recovery: self.inner.recovery,
            replay: engine.flusher().replay_estimate(),
        })
    }

    /// Whether pages are written twice because the VFS could tear them.
    pub fn writes_twice(&self) -> bool {
        self.inner.engine.flusher().writes_twice()
    }

    /// Writes all changed pages and frees the log up to now. Other threads may go on meanwhile.
    pub fn checkpoint(&self) -> Result<()> {
        let engine = self.engine()?;
        let _call = engine.poison().call();
        engine.flusher().flush_all()
    }

    /// One round of reading ahead, purging, flushing and checkpointing in this thread, for stores opened without
    /// [`StoreOptions::background`]. Returns whether pages were written.
    pub fn step(&self) -> Result<bool> {
        let engine = self.engine()?;
        engine.poison().check()?;
        let _call = engine.poison().call();
        while engine.read_ahead().step() {}
        engine.purge_history().map_err(|e| engine.poison().set(e))?;
        engine.flusher().sync_relaxed()?;
        engine.flusher().flush_step()
    }

    /// Reads every page of every table and checks the trees' invariants, and that no page is lost. No transaction may
    /// write meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first damage found.
    pub fn check(&self) -> Result<Vec<TableCheck>> {
        let engine = self.engine()?;
        let _call = engine.poison().call();
        let _one = self.inner.ddl.lock();
        let mut named = vec![("(catalog)".to_string(), TableId::CATALOG)];
        named.extend(recovery::read_catalog(engine)?.into_iter().map(|(name, row)| (name, row.id)));
        recovery::counters::check(engine)?;
        engine.check_owed();
        engine.wait_for_purge()?;
        undo::check(engine.undo())?;
        let chains = undo::chains(engine.undo())?;
        let mut checks = Vec::new();
        for (name, id) in named {
            let space = engine.spaces().get(id).expect("recovery found each table's file");
            if space.is_locked() {
                images::verify(&space)?;
                checks.push(TableCheck { name, is_locked: true, ..TableCheck::default() });
                continue;
            }
            let r = Tree::new(engine.pager(), &space).check(&chains, engine.txns().next())?;
            checks.push(TableCheck {
                name,
                records: r.records,
                leaves: r.leaves,
                inner_nodes: r.inner_nodes,
                free_pages: r.free_pages,
                overflow_pages: r.overflow_pages,
                height: r.height,
                is_locked: false,
            });
        }
        Ok(checks)
    }

    /// Writes everything and stops the store's threads. Transactions that still run elsewhere are rolled back by the
    /// next opening. All calls on handles that remain fail with [`Error::Closed`]; one that is under way meanwhile may
    /// fail with that or succeed. The store is closed whatever this returns.
    ///
    /// # Errors
    /// [`Error::Closed`] when it was closed by another handle. [`Error::Forked`]. Any other: the next opening has something
    /// to replay.
    pub fn close(self) -> Result<()> {
        let engine = &self.inner.engine;
        engine.poison().begin_to_close()?;
        self.inner.stop();
        let call = engine.poison().call();
        let outcome = self.write_all();
        drop(call);
        // Transactions that are dropped later must not roll back: the VFS may have a new owner by then.
        threads::close(engine);
        *self.inner.claim.lock() = None;
        outcome
    }

    /// Leaves nothing to recover for the next opening, unless a transaction is open.
    fn write_all(&self) -> Result<()> {
        let engine = &self.inner.engine;
        while engine.txns().revoke_oldest_view() {}
        if engine.poison().is_read_only() {
            return Ok(());
        }
        // What stopped it may have left a purge half done.
        engine.poison().check()?;
        engine.check_owed();
        engine.purge_waiting()?;
        engine.flusher().flush_all()?;
        Ok(engine.flusher().vfs().sync()?)
    }

    /// Lets no other thread change tables meanwhile.
    fn change_tables(&self) -> Result<MutexGuard<'_, ()>> {
        self.engine()?;
        Ok(self.inner.ddl.lock())
    }

    /// The parts of the store, while it is open.
    fn engine(&self) -> Result<&Arc<TxnEngine>> {
        self.inner.engine.poison().check_open()?;
        Ok(&self.inner.engine)
    }
}

impl Inner {
    fn stop(&self) {
        threads::stop(&self.engine, self.threads.lock().drain(..));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.engine.poison().is_forked() {
            // The ends of these wait for threads and locks of the other process, and give up its claims.
            let claim = self.claim.get_mut().take();
            let threads = std::mem::take(self.threads.get_mut());
            return std::mem::forget((claim, threads, Arc::clone(&self.engine)));
        }
        // Commits from now on are told that the store is closed, unless it was closed before.
        let _ = self.engine.poison().begin_to_close();
        self.stop();
        // With relaxed durability the last commits are still in memory.
        let _ = self.engine.pager().log().reach(self.engine.pager().log().next(), Until::Flushed);
        // Before the lock is free: remaining transactions must not touch the VFS under its next owner.
        threads::close(&self.engine);
    }
}
