//! Transactions: reads of a snapshot or of what is committed, writes under row locks, rollback.
//!
//! A record's writer is named in the record. While that transaction runs, the record is locked: other
//! writers wait for the transaction to finish, readers follow the undo pointer to the version before.
//! So memory holds no lock per written row, only the waits-for graph, and the keys that were locked by
//! [`Txn::get_for_update`].
//!
//! A snapshot is a *view* (`view`): the transactions that were finished when it was taken. A reader
//! goes from a record back to the version that its view sees; the undo logs of transactions that some view does not
//! see are kept, as *history*, before those of later transactions in the same slot (`slots`). Records and values that
//! they deleted or replaced are purged once all views see them (`history`). Under a snapshot the first transaction to
//! update a record wins: a later one that finds a writer that its view does not see gets a conflict.
//!
//! Invariants:
//!
//! 1. A record whose writer runs is changed by no other transaction.
//! 2. A change and its undo record are one mini-transaction.
//! 3. A key's lock state is decided with its leaf latched exclusively, whether the key exists or not.
//! 4. No latch is held while waiting for a transaction, for log space or for memory.
//! 5. A record that was deleted, and a long value that was replaced, stay until all views see that. Rolling back a
//!    change of a deleted record restores it unless all views see the deletion, which is decided under the leaf's
//!    latch: once they do, the deletion is purged, after taking that latch.
//!
//! Crash argument: views end with the process. Recovery rolls back what was running, then purges every log
//! that was kept, and clears its slot.
//!
//! A commit first appends its record, then lets others see its changes, then waits for the log. A transaction that
//! builds on these changes commits after them in the log; only a reader may see changes that a crash in that moment
//! undoes.

mod active;
mod batch;
mod bounds;
mod bulk;
mod conditional;
mod cursor;
mod engine;
mod history;
mod long;
mod read;
mod rebuild;
mod records;
mod rollback;
mod table;
mod view;
mod write;

use std::{
    borrow::Cow,
    ops::{Bound, ControlFlow},
    sync::{Arc, OnceLock},
};

use active::LockedKey;
pub(crate) use active::{ActiveTxns, Running};
pub(crate) use batch::scan;
use batch::{BATCH_RECORDS, Batch, Walk};
pub use bounds::KeyRange;
pub use conditional::{Insertion, Swap};
pub use cursor::Cursor;
pub(crate) use engine::TxnEngine;
pub use history::HistoryStats;
pub(crate) use history::Purge;
pub(crate) use read::Reader;
use read::VisibleValue;
pub(crate) use rebuild::Copier;
pub use records::{Record, Records};
use rollback::holds;
pub(crate) use rollback::{purge, roll_back};
use smallvec::SmallVec;
pub use table::Table;

use crate::{
    btree::{Direction, Finger, Tree},
    flush::Debt,
    mutant::{Rule, is_broken},
    page::node::Node,
    poison::IN_A_CALL,
    space::{Space, pins::TablePin},
    sync::{Mutex, atomic::Ordering, deadline},
    types::{Durability, Error, Isolation, Result, TableId, TransactionOptions, TxnId, UndoPtr},
    undo::UndoLog,
    wal::Until,
};
use view::View;
use write::{Write, check_key};

/// A transaction. Dropping it rolls it back.
///
/// Reads see what [`Isolation`] says, and the transaction's own changes. Written and locked keys stay locked
/// until the end.
pub struct Txn {
    engine: Arc<TxnEngine>,
    options: TransactionOptions,
    /// Distinguishes it from all others of this process, also while it has no number.
    serial: u64,
    /// Taken with the first read or write, of a snapshot.
    view: OnceLock<Arc<View>>,
    running: Option<Arc<Running>>,
    /// The undo slot taken for it, before the first latch of its first write; and whether it holds history.
    slot: Option<(u32, bool)>,
    /// Set with the first change.
    undo: Option<UndoLog>,
    /// It deleted records, or replaced long values.
    needs_purge: bool,
    /// Bytes that its undo records take, and the long values they come to own.
    history_bytes: u64,
    /// Space that its rollback may need.
    debt: Debt,
    locked: Vec<LockedKey>,
    /// The leaf of each table that was latched last to lock a key.
    fingers: SmallVec<[(TableId, Finger); 4]>,
    /// Tables that it has read or written, which cannot be dropped until its end.
    pins: Mutex<Vec<TablePin>>,
    /// Those that it has written, or of which it has locked keys.
    writes: SmallVec<[TablePin; 4]>,
    /// Times that it wrote, or undid a change: cursors read again when this has increased.
    changes: u64,
    finished: bool,
    /// A change is under way: if the transaction is dropped now, that change panicked.
    is_busy: bool,
}

/// A point in a transaction that it can go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    /// [`Txn::serial`] of its transaction.
    of: u64,
    newest: UndoPtr,
}

impl Txn {
    pub(crate) fn new(engine: Arc<TxnEngine>, options: TransactionOptions) -> Txn {
        // It need not go through the scheduler of the tests.
        static BEGUN: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        Txn {
            engine,
            options,
            serial: BEGUN.fetch_add(1, Ordering::Relaxed),
            view: OnceLock::new(),
            running: None,
            slot: None,
            undo: None,
            needs_purge: false,
            history_bytes: 0,
            debt: Debt::default(),
            locked: Vec::new(),
            fingers: SmallVec::new(),
            pins: Mutex::default(),
            writes: SmallVec::new(),
            changes: 0,
            finished: false,
            is_busy: false,
        }
    }

    fn id(&self) -> TxnId {
        self.running.as_ref().map_or(TxnId::NONE, |running| running.id)
    }

    fn id_for_locks(&mut self) -> TxnId {
        self.running.get_or_insert_with(|| self.engine.txns.start()).id
    }

    /// The file of the table that this transaction reads.
    fn space<'t>(&self, table: &'t Table) -> Result<Cow<'t, Arc<Space>>> {
        if !Arc::ptr_eq(&self.engine, table.engine()) {
            return Err(Error::WrongStore);
        }
        self.engine.poison.check_open()?;
        // Before the file is chosen: a view that is taken later may have to read the one that replaces it.
        let view = self.view();
        loop {
            let found = match table.space().as_of(view.map(View::moment)) {
                Ok(found) => found,
                // The files that a view needs are kept until it is revoked.
                Err(gone) => return Err(view.map_or(Ok(()), View::check).err().unwrap_or(gone)),
            };
            let space = found.map_or(Cow::Borrowed(table.space()), Cow::Owned);
            if space.newest().is_some_and(|newest| newest.is_closed()) {
                return Err(Error::TableDropped { id: space.id() });
            }
            let mut pins = self.pins.lock();
            if pins.iter().any(|one| Arc::ptr_eq(one, &space)) {
                return Ok(space);
            }
            match space.pin() {
                Ok(pin) => {
                    pins.push(pin);
                    drop(pins);
                    return Ok(space);
                }
                // It was replaced and removed in between.
                Err(_) if view.is_none() && space.after().is_some() => {}
                Err(gone) => return Err(view.map_or(Ok(()), View::check).err().unwrap_or(gone)),
            }
        }
    }

    /// The file of the table that this transaction writes to. The caller holds no latch.
    fn space_to_write<'t>(&mut self, table: &'t Table) -> Result<Cow<'t, Arc<Space>>> {
        let mut until = None;
        loop {
            let space = self.space(table)?;
            self.engine.poison.check()?;
            if self.writes.iter().any(|one| Arc::ptr_eq(one, &space)) {
                return Ok(space);
            }
            if let Some((after, moment)) = space.after() {
                if self.view().is_none_or(|view| view.moment() > moment) {
                    continue;
                }
                if !is_broken(Rule::OldViewsWriteNothing) {
                    // What the copy holds may be newer than the view, and does not say so.
                    return Err(Error::Conflict);
                }
                return Ok(Cow::Owned(after));
            }
            let until = *until.get_or_insert_with(|| deadline(self.engine.options.lock_timeout));
            if let Some(pin) = space.pin_for_writing(until, &self.engine.poison)? {
                self.writes.push(pin);
                return Ok(space);
            }
        }
    }

    fn reader(&self) -> Reader<'_> {
        let view = match self.options.isolation {
            Isolation::Snapshot if is_broken(Rule::ViewsHold) => None,
            Isolation::ReadCommitted if is_broken(Rule::ReadsFresh) => Some(self.any_view()),
            _ => self.view(),
        };
        Reader { me: self.id(), view }
    }

    /// The snapshot's view; the caller holds no leaf yet.
    fn view(&self) -> Option<&View> {
        match self.options.isolation {
            Isolation::Snapshot => Some(self.any_view()),
            Isolation::ReadCommitted => None,
        }
    }

    fn any_view(&self) -> &View {
        self.view.get_or_init(|| self.engine.txns.open_view())
    }

    /// The value of `key`, if there is one. Never waits for a lock.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`].
    pub fn get(&self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let _call = self.engine.poison.call();
        let space = self.space(table)?;
        self.engine.flusher.throttle_memory()?;
        let reader = self.reader();
        let leaf = Tree::new(&self.engine.pager, &space).leaf_read(key)?;
        let node = Node::new(&leaf);
        match node.search(key) {
            Ok(slot) => {
                let kept =
                    read::visible(&self.engine, reader, node.leaf_cell(slot))?.map(VisibleValue::detached);
                drop(leaf);
                kept.map(|kept| kept.read(&self.engine, &space)).transpose()
            }
            Err(_) => reader.check().map(|()| None),
        }
    }

    /// Locks `key`, which need not exist, against other writers until the end of the transaction,
    /// and returns its value.
    ///
    /// # Errors
    /// [`Error::Deadlock`], [`Error::LockTimeout`], [`Error::Conflict`], [`Error::SnapshotTooOld`],
    /// [`Error::TooLarge`].
    pub fn get_for_update(&mut self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.busy(|txn| txn.lock_and_read(table, key))
    }

    fn lock_and_read(&mut self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let space = self.space_to_write(table)?;
        let space = &*space;
        check_key(space, key)?;
        let (leaf, found) = self.lock_leaf(space, key)?;
        let me = self.id();
        let node = Node::new(&leaf);
        let kept = match found {
            Ok(slot) => {
                read::visible(&self.engine, self.reader(), node.leaf_cell(slot))?.map(VisibleValue::detached)
            }
            Err(_) => None,
        };
        // Also if it has written the key: the write may be rolled back.
        self.locked.extend(self.engine.txns.lock(me, space.id(), key));
        drop(leaf);
        kept.map(|kept| kept.read(&self.engine, space)).transpose()
    }

    /// Sets the value of `key`, whether it exists or not. A key may take an eighth of the table's page, of a
    /// row-compressed table's block, and a value 16 MiB; one longer than a quarter of the page lies in pages of its
    /// own.
    ///
    /// # Errors
    /// [`Error::Deadlock`], [`Error::LockTimeout`], [`Error::Conflict`], [`Error::SnapshotTooOld`],
    /// [`Error::TooLarge`], [`Error::Full`].
    pub fn put(&mut self, table: &Table, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(table, key, Write::Put(value)).map(|_| ())
    }

    /// Sets the value of a new `key`, within the limits of [`Txn::put`].
    ///
    /// # Errors
    /// [`Error::KeyExists`], and those of [`Txn::put`].
    pub fn insert(&mut self, table: &Table, key: &[u8], value: &[u8]) -> Result<()> {
        match self.write(table, key, Write::Insert(value))? {
            true => Err(Error::KeyExists),
            false => Ok(()),
        }
    }

    /// Deletes `key`; returns whether it existed.
    ///
    /// # Errors
    /// Those of [`Txn::put`]; [`Error::Full`] comes later than there, as deletions free space.
    pub fn delete(&mut self, table: &Table, key: &[u8]) -> Result<bool> {
        self.write(table, key, Write::Delete)
    }

    /// Calls `each` with the records between the bounds, in order, until it breaks. No latch is held
    /// during the calls; at read committed each record is the version that was committed, or the
    /// transaction's own, when its leaf was read.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`].
    pub fn scan(
        &self,
        table: &Table,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut walk = Walk::new((lower, upper), direction);
        let mut batch = Batch::default();
        while !walk.is_over() {
            self.copy_next(table, &mut walk, BATCH_RECORDS, &mut batch)?;
            for at in 0..batch.len() {
                if each(batch.key(at), batch.value(at)).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// A point to which [`Txn::rollback_to`] can go back.
    pub fn savepoint(&self) -> Result<Savepoint> {
        self.engine.poison.check_open()?;
        let _call = self.engine.poison.call();
        let newest = self.undo.map_or(Ok(UndoPtr::NONE), |log| log.newest(&self.engine.undo))?;
        Ok(Savepoint { of: self.serial, newest })
    }

    /// Undoes all changes since `savepoint`. Locks of [`Txn::get_for_update`] are kept; keys written since are no
    /// longer locked, and transactions that wait for them go on.
    ///
    /// # Errors
    /// [`Error::BadOption`] for a savepoint of another transaction, or one that was itself rolled back; nothing has
    /// changed then.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        self.busy(|txn| txn.take_back_to(savepoint))
    }

    fn take_back_to(&mut self, savepoint: Savepoint) -> Result<()> {
        let bad = || Error::BadOption { what: "savepoint", reason: "is not of this transaction now".into() };
        if savepoint.of != self.serial {
            return Err(bad());
        }
        let Some(log) = self.undo else { return Ok(()) };
        self.engine.poison.check_open()?;
        self.engine.poison.check()?;
        if !holds(&self.engine, log, savepoint.newest)? {
            return Err(bad());
        }
        self.changes += 1;
        roll_back(&self.engine, log, savepoint.newest, &mut self.debt)
            .map_err(|e| self.engine.poison.set(e))?;
        self.running.iter().for_each(|running| self.engine.txns.note_release(running));
        Ok(())
    }

    /// Makes all changes visible and, unless the store's durability is relaxed, waits until they are
    /// on the medium.
    ///
    /// # Errors
    /// [`Error::Closed`]: the changes will not survive. With any other error it is unknown whether they will, and the
    /// store is stopped.
    pub fn commit(mut self) -> Result<()> {
        self.finished = true;
        self.busy(Txn::make_visible)
    }

    fn make_visible(&mut self) -> Result<()> {
        self.engine.poison.must_not_be_forked()?;
        let Some(log) = self.undo else {
            self.end();
            return Ok(());
        };
        self.engine.poison.check_open()?;
        let committed = self.engine.poison.check().and_then(|()| log.commit(&self.engine.undo));
        let lsn = committed.map_err(|e| self.engine.poison.set(e))?;
        self.slot = None;
        let moment = self.end();
        match self.engine.retire(log, moment, self.needs_purge, self.history_bytes) {
            // Whoever closed the store meanwhile has written the log, perhaps up to this commit.
            Ok(()) | Err(Error::Closed) => {}
            Err(error) => return Err(self.engine.poison.set(error)),
        }
        let reach = || self.engine.pager.log().reach(lsn, Until::Flushed);
        match self.engine.options.durability {
            Durability::Relaxed if self.engine.flusher.has_threads() => Ok(()),
            Durability::Relaxed => match self.engine.flusher.sync_relaxed() {
                Err(Error::Closed) => reach(),
                outcome => outcome,
            },
            Durability::Sync if is_broken(Rule::CommitSyncs) => Ok(()),
            Durability::Sync => reach(),
        }
    }

    /// Undoes all changes.
    pub fn rollback(mut self) -> Result<()> {
        self.busy(Txn::abort)
    }

    /// Calls `change`; a panic in it is found when the transaction is used again, or dropped.
    fn busy<T>(&mut self, change: impl FnOnce(&mut Txn) -> T) -> T {
        if self.is_busy {
            self.engine.poison.panicked(IN_A_CALL);
        }
        self.is_busy = true;
        let outcome = change(self);
        self.is_busy = false;
        outcome
    }

    fn abort(&mut self) -> Result<()> {
        self.finished = true;
        self.engine.poison.must_not_be_forked()?;
        let engine = self.engine.clone();
        if let Some(log) = self.undo {
            engine.poison.check()?;
            // A transaction that cannot be rolled back must not release its locks: stop the store.
            roll_back(&engine, log, UndoPtr::NONE, &mut self.debt)
                .and_then(|()| engine.leave_slot(log))
                .map_err(|e| engine.poison.set(e))?;
            self.slot = None;
        }
        self.end();
        Ok(())
    }

    /// Releases everything that the transaction holds. Returns the moment, if it had a number.
    fn end(&mut self) -> u64 {
        if let Some((slot, holds_history)) = self.slot.take() {
            self.engine.give_slot_back(slot, holds_history);
        }
        self.engine.flusher.owed().settle(&mut self.debt);
        let mut moment = 0;
        if let Some(running) = self.running.take() {
            moment = self.engine.txns.finish(&running, self.locked.drain(..));
        }
        if let Some(view) = self.view.take()
            && self.engine.txns.close_view(&view)
        {
            self.engine.wake_purge_if_due();
        }
        // Its changes are repeated, and either visible or undone.
        self.writes.clear();
        self.pins.get_mut().clear();
        if self.engine.has_retired() {
            self.engine.wake_purge_if_due();
        }
        moment
    }
}

impl Drop for Txn {
    fn drop(&mut self) {
        if self.is_busy {
            self.engine.poison.panicked(IN_A_CALL);
        } else if !self.finished {
            // On failure the store is poisoned, and the next call on it returns the reason.
            let _ = self.busy(Txn::abort);
        }
        if self.engine.poison.is_forked() {
            // Their ends take locks.
            std::mem::forget((std::mem::take(self.pins.get_mut()), std::mem::take(&mut self.writes)));
        }
    }
}
