//! Writing records: one change of a leaf, with its undo record, under the record's lock.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Table, Txn};
use crate::{
    btree::{Finger, Tree, asks_to_merge},
    flush::{Amount, Claim},
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
    pool::WriteGuard,
    space::Space,
    sync::deadline,
    types::{Error, Result, TableId, TxnId, UndoPtr},
    undo::{Latched, UndoLog},
};

/// The kind of a write.
pub(super) enum Write<'a> {
    Put(&'a [u8]),
    Insert(&'a [u8]),
    Delete,
}

impl Txn {
    /// The leaf of `key`, latched exclusively, with the key not locked by any other transaction, and not
    /// changed since the snapshot was taken; and where in it the key is, as [`Node::search`] says.
    pub(super) fn lock_leaf(
        &mut self,
        space: &Arc<Space>,
        key: &[u8],
    ) -> Result<(WriteGuard, Result<usize, usize>)> {
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
    pub(super) fn write(&mut self, table: &Table, key: &[u8], write: Write<'_>) -> Result<bool> {
        self.busy(|txn| txn.write_any(table, key, write))
    }

    fn write_any(&mut self, table: &Table, key: &[u8], write: Write<'_>) -> Result<bool> {
        let space = self.space_to_write(table)?;
        let space = &*space;
        check_key(space, key)?;
        self.admit(match write {
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

    /// See [`TxnEngine::admit`](super::TxnEngine::admit).
    pub(super) fn admit(&self, claim: Claim<'_>) -> Result<()> {
        self.engine.admit_beside(claim, self.view.get().map(Arc::as_ref))
    }

    /// Writes a value, or the reference to one, that the leaf takes; `flags` say which. Returns whether the key
    /// existed.
    pub(super) fn write_short(
        &mut self,
        space: &Arc<Space>,
        key: &[u8],
        write: Write<'_>,
        flags: u8,
    ) -> Result<bool> {
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

    /// Changes one record of a latched leaf, together with its undo record (txn invariant 2). Returns whether the leaf
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

    pub(super) fn log_undo(&mut self, mtr: &mut Mtr, record: UndoRecord<'_>) -> Result<(UndoPtr, Latched)> {
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

pub(super) fn finger_of(fingers: &mut SmallVec<[(TableId, Finger); 4]>, table: TableId) -> &mut Finger {
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

pub(super) fn check_key(space: &Space, key: &[u8]) -> Result<()> {
    let bytes_max = space.key_bytes_max();
    if key.len() > bytes_max {
        return Err(Error::TooLarge { what: "key", bytes: key.len(), bytes_max });
    }
    Ok(())
}

/// Whether the value is too long for a leaf of the table.
pub(super) fn is_long(space: &Space, key: &[u8], value: &[u8]) -> bool {
    value.len() > space.value_bytes_max(key.len())
}

pub(super) fn check_value(value: &[u8]) -> Result<()> {
    let bytes_max = VALUE_BYTES_MAX;
    if value.len() > bytes_max {
        return Err(Error::TooLarge { what: "value", bytes: value.len(), bytes_max });
    }
    Ok(())
}
