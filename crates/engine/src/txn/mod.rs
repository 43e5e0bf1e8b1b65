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
    btree::{Direction, Finger, Tree, asks_to_merge},
    flush::{Amount, Claim, Debt},
    mtr::{self, LOGGED_OP_BYTES, Mtr},
    mutant::{Rule, is_broken},
    page::{
        delta::Difference,
        node::{self, DELETED, LeafCell, Node, OVERFLOW, SLOT},
        ops::PageOp,
        overflow::VALUE_BYTES_MAX,
        scratch::Scratch,
        undo::{Change, UndoRecord},
    },
    poison::IN_A_CALL,
    pool::WriteGuard,
    space::{Space, pins::TablePin},
    sync::{Mutex, atomic::Ordering, deadline},
    types::{Durability, Error, Isolation, Result, TableId, TransactionOptions, TxnId, UndoPtr},
    undo::{Latched, UndoLog},
    wal::Until,
};
use view::View;

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

/// The kind of a write.
enum Write<'a> {
    Put(&'a [u8]),
    Insert(&'a [u8]),
    Delete,
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

    /// The leaf of `key`, latched exclusively, with the key not locked by any other transaction, and not
    /// changed since the snapshot was taken; and where in it the key is, as [`Node::search`] says.
    fn lock_leaf(&mut self, space: &Arc<Space>, key: &[u8]) -> Result<(WriteGuard, Result<usize, usize>)> {
        let me = self.id_for_locks();
        // The snapshot is of the moment before the first wait.
        self.view();
        let mut until = None;
        loop {
            self.engine.flusher.throttle()?;
            let tree = Tree::new(&self.engine.pager, space);
            let leaf = tree.leaf_at(finger_of(&mut self.fingers, space.id()), key)?;
            let node = Node::new(&leaf);
            let found = node.search(key);
            let writer = found.ok().map(|slot| node.leaf_cell(slot).txn);
            let owner = writer
                .filter(|txn| *txn != me && !is_broken(Rule::WritersLock))
                .and_then(|txn| self.engine.txns.get(txn));
            let Some(owner) = owner.or_else(|| self.engine.txns.lock_owner(me, space.id(), key)) else {
                self.check_conflict(writer)?;
                return Ok((leaf, found));
            };
            let releases = owner.releases();
            drop(leaf);
            let until = *until.get_or_insert_with(|| deadline(self.engine.options.lock_timeout));
            self.engine.txns.wait(me, (&owner, releases), until, &self.engine.poison)?;
        }
    }

    /// First updater wins. A newer deletion is not purged before this view ends, so the record is there.
    fn check_conflict(&self, writer: Option<TxnId>) -> Result<()> {
        let Some(view) = self.view() else { return Ok(()) };
        view.check()?;
        match writer {
            Some(txn) if txn != self.id() && !view.sees(txn) && !is_broken(Rule::FirstUpdaterWins) => {
                Err(Error::Conflict)
            }
            _ => Ok(()),
        }
    }

    /// Whether the key existed.
    fn write(&mut self, table: &Table, key: &[u8], write: Write<'_>) -> Result<bool> {
        self.busy(|txn| txn.write_any(table, key, write))
    }

    fn write_any(&mut self, table: &Table, key: &[u8], write: Write<'_>) -> Result<bool> {
        let space = self.space_to_write(table)?;
        let space = &*space;
        check_key(space, key)?;
        self.engine.admit(match write {
            // A row of the catalog takes next to nothing, and may be what lets a full store compress itself.
            _ if space.id() == TableId::CATALOG => Claim::Row,
            Write::Delete => Claim::Log,
            Write::Put(value) | Write::Insert(value) => {
                check_value(value)?;
                Claim::Record(space, key.len() + value.len())
            }
        })?;
        self.changes += 1;
        if self.slot.is_none() {
            self.slot = Some(self.engine.take_undo_slot()?);
        }
        match write {
            Write::Put(value) if is_long(space, key, value) => self.write_long(space, key, value, false),
            Write::Insert(value) if is_long(space, key, value) => self.write_long(space, key, value, true),
            _ => self.write_short(space, key, write, 0),
        }
    }

    /// Writes a value, or the reference to one, that the leaf takes; `flags` say which. Returns whether the key
    /// existed.
    fn write_short(&mut self, space: &Arc<Space>, key: &[u8], write: Write<'_>, flags: u8) -> Result<bool> {
        let mut has_split = false;
        let outcome = self.write_to_leaf(space, key, write, flags, &mut has_split);
        if has_split && outcome.is_err() && self.engine.poison.check().is_ok() {
            Tree::new(&self.engine.pager, space).merge_if_empty(key)?;
        }
        outcome
    }

    /// Notes whether it split a leaf.
    fn write_to_leaf(
        &mut self,
        space: &Arc<Space>,
        key: &[u8],
        write: Write<'_>,
        flags: u8,
        has_split: &mut bool,
    ) -> Result<bool> {
        loop {
            let (mut leaf, found) = self.lock_leaf(space, key)?;
            let node = Node::new(&leaf);
            let old = found.ok().map(|slot| node.leaf_cell(slot));
            let existed = old.is_some_and(|cell| !cell.is_deleted());
            let value = match write {
                Write::Insert(_) if existed => return Ok(true),
                Write::Delete if !existed => return Ok(false),
                Write::Put(value) | Write::Insert(value) => Some(value),
                Write::Delete => None,
            };
            let more_bytes = match (value, old) {
                (None, _) => 0,
                (Some(value), Some(old)) => value.len().saturating_sub(old.value.len()),
                (Some(value), None) => node::LEAF_CELL_HEADER + key.len() + value.len() + SLOT,
            };
            let slot = found.unwrap_or_else(|slot| slot);
            let is_new = old.is_none();
            let tree = Tree::new(&self.engine.pager, space);
            let logged =
                LOGGED_OP_BYTES + value.map_or(0, |value| node::LEAF_CELL_HEADER + key.len() + value.len());
            let fits = more_bytes <= node.free() && (!is_new || tree.accepts(node, slot, more_bytes));
            if !fits || !mtr::make_space(&self.engine.pager, &mut leaf, logged)? {
                drop(leaf);
                tree.split(key, more_bytes, logged)?;
                *has_split = true;
                // To the leaf that was split, wherever a forged leaf with the key lies.
                finger_of(&mut self.fingers, space.id()).forget();
                continue;
            }
            let is_small = self.change(space, leaf, slot, is_new, key, value.map(|value| (flags, value)))?;
            self.engine.repeat(space, key);
            if is_small {
                Tree::new(&self.engine.pager, space).merge(key);
            }
            return Ok(existed);
        }
    }

    /// Changes one record of a latched leaf, together with its undo record (invariant 2). Returns whether the leaf
    /// became so empty that it asks to be merged.
    fn change(
        &mut self,
        space: &Arc<Space>,
        mut leaf: WriteGuard,
        slot: usize,
        is_new: bool,
        key: &[u8],
        value: Option<(u8, &[u8])>,
    ) -> Result<bool> {
        let me = self.id();
        let old = (!is_new).then(|| Node::new(&leaf).leaf_cell(slot));
        let old_flags = old.map_or(0, |cell| cell.flags);
        let edit = edit_of(old, value);
        let mut mtr = Mtr::new();
        let (undo, mut undo_pages) = {
            let mut delta = Scratch::new();
            let record = undo_of(space.id(), key, (old, value), edit.as_ref(), &mut delta);
            let new_bytes = value.map_or(0, |(_, value)| value.len());
            let shorter = old.map_or(0, |cell| cell.value.len().saturating_sub(new_bytes));
            let amount = Amount::of(space, &record, shorter);
            let logged = self.log_undo(&mut mtr, record)?;
            self.engine.flusher.owed().owe(&mut self.debt, amount);
            logged
        };
        let slot = slot as u16;
        let mut bytes = Scratch::new();
        // The log of a block takes whole records, as InnoDB's does.
        let op = match (value, edit.filter(|_| space.blocks().is_none())) {
            (Some((_, value)), Some(edit)) => {
                edit.encode(value, &mut bytes);
                PageOp::Edit { slot, txn: me, undo, delta: &bytes }
            }
            (Some((flags, value)), None) => {
                self.needs_purge |= old_flags & OVERFLOW != 0;
                LeafCell { flags, txn: me, undo, key, value }.encode(&mut bytes);
                if is_new {
                    PageOp::Insert { slot, cell: &bytes }
                } else {
                    PageOp::Replace { slot, cell: &bytes }
                }
            }
            (None, _) => {
                self.needs_purge = true;
                PageOp::Stamp { slot, flags: DELETED | old_flags & OVERFLOW, txn: me, undo }
            }
        };
        let used = Node::new(&leaf).used();
        mtr.apply(&mut leaf, op);
        let asks = asks_to_merge(Node::new(&leaf), used);
        let mut pages: SmallVec<[&mut WriteGuard; 5]> = undo_pages.pages().collect();
        pages.push(&mut leaf);
        mtr.commit(&self.engine.pager, &mut pages)?;
        Ok(asks)
    }

    fn log_undo(&mut self, mtr: &mut Mtr, record: UndoRecord<'_>) -> Result<(UndoPtr, Latched)> {
        let is_first = self.undo.is_none();
        let (slot, holds_history) = self.slot.expect("taken before the leaf was latched");
        let log = self.undo.unwrap_or_else(|| UndoLog::new(slot, self.id(), holds_history));
        let bytes = record.bytes();
        let appended = log.append(&self.engine.undo, mtr, record, is_first)?;
        self.history_bytes += bytes;
        self.undo = Some(log);
        Ok(appended)
    }
}

fn finger_of(fingers: &mut SmallVec<[(TableId, Finger); 4]>, table: TableId) -> &mut Finger {
    let at = fingers.iter().position(|(of, _)| *of == table).unwrap_or_else(|| {
        fingers.push((table, Finger::default()));
        fingers.len() - 1
    });
    &mut fingers[at].1
}

/// The difference, when a record that is there gets another value and the log needs no more than that.
fn edit_of(old: Option<LeafCell<'_>>, value: Option<(u8, &[u8])>) -> Option<Difference> {
    match (old, value) {
        (Some(LeafCell { flags: 0, value: old, .. }), Some((0, value))) => Difference::of(old, value),
        _ => None,
    }
}

/// The undo record of a change from the record `old` to the flags and value `value`, or to none. `delta` is memory for
/// the one that an edit needs.
fn undo_of<'a>(
    table: TableId,
    key: &'a [u8],
    (old, value): (Option<LeafCell<'a>>, Option<(u8, &[u8])>),
    edit: Option<&Difference>,
    delta: &'a mut Vec<u8>,
) -> UndoRecord<'a> {
    let (change, old_value) = match (old, value, edit) {
        (None, ..) => (Change::Insert, &[][..]),
        (Some(cell), Some((_, value)), Some(edit)) => {
            edit.encode(if is_broken(Rule::EditsLeadBack) { value } else { cell.value }, delta);
            (Change::Edit, &delta[..])
        }
        (Some(cell), Some(_), None) => (Change::Update, cell.value),
        (Some(cell), None, _) if cell.flags & OVERFLOW != 0 => (Change::Delete, cell.value),
        (Some(_), None, _) => (Change::Delete, &[][..]),
    };
    UndoRecord {
        change,
        table,
        previous: UndoPtr::NONE,
        old_flags: old.map_or(0, |cell| cell.flags),
        old_txn: old.map_or(TxnId::NONE, |cell| cell.txn),
        old_undo: old.map_or(UndoPtr::NONE, |cell| cell.undo),
        key: key.into(),
        old_value: old_value.into(),
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

fn check_key(space: &Space, key: &[u8]) -> Result<()> {
    let bytes_max = space.key_bytes_max();
    if key.len() > bytes_max {
        return Err(Error::TooLarge { what: "key", bytes: key.len(), bytes_max });
    }
    Ok(())
}

/// Whether the value is too long for a leaf of the table.
fn is_long(space: &Space, key: &[u8], value: &[u8]) -> bool {
    value.len() > space.value_bytes_max(key.len())
}

fn check_value(value: &[u8]) -> Result<()> {
    let bytes_max = VALUE_BYTES_MAX;
    if value.len() > bytes_max {
        return Err(Error::TooLarge { what: "value", bytes: value.len(), bytes_max });
    }
    Ok(())
}
