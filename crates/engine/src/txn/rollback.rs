//! Undoing changes, and purging the records and values that commits deleted and replaced.
//!
//! The undo record that owns a chain (see `overflow`) is changed with its last page: retracted by a
//! rollback, marked [`Change::Spent`] by a purge. So both may be interrupted and repeated.
//!
//! All pages of a mini-transaction are latched, which may read them, before the first is changed: a failure after a
//! change would leave it without a log record, and a flush that is under way could write it.

use std::{borrow::Cow, sync::Arc};

use smallvec::SmallVec;

use crate::{
    btree::{Tree, asks_to_merge},
    flush::{Amount, Debt},
    mtr::{self, LOGGED_OP_BYTES, Mtr},
    mutant::{Rule, is_broken},
    overflow,
    page::{
        delta,
        node::{DELETED, LEAF_CELL_HEADER, LeafCell, Node},
        ops::PageOp,
        undo::{Change, UndoRecord},
    },
    pool::WriteGuard,
    space::{Space, corrupt},
    txn::TxnEngine,
    types::{Circle, Error, Result, UndoPtr},
    undo::{self, UndoLog},
};

/// Undoes the changes of `log`, newest first, until the one at `keep` is the newest again ([`UndoPtr::NONE`]: all of
/// them).
///
/// Each step is one mini-transaction that restores a record and retracts its undo record, so that an interrupted
/// rollback continues where it stopped. What the transaction owes becomes less.
pub(crate) fn roll_back(engine: &TxnEngine, log: UndoLog, keep: UndoPtr, debt: &mut Debt) -> Result<()> {
    let mut circle = Circle::new();
    loop {
        engine.flusher.throttle()?;
        let newest = log.newest(&engine.undo)?;
        if newest == keep || newest.is_none() {
            return Ok(());
        }
        // Recovery takes the pointer from the device.
        let missing = || corrupt(engine.undo.space(), newest.page(), "an undo record that counts is missing");
        let record = undo::read(&engine.undo, newest, log.txn())?.ok_or_else(missing)?;
        // A record that became that of a chain without an owner is taken back once more.
        if circle.closes((newest, record.change)) {
            return Err(corrupt(engine.undo.space(), newest.page(), "undo records that run in a circle"));
        }
        if record.previous.is_none() && is_broken(Rule::RollbacksWhole) {
            let mut mtr = Mtr::new();
            let mut first = log.retract(&engine.undo, &mut mtr, record.previous)?;
            mtr.commit(&engine.pager, &mut [&mut first])?;
            return Ok(());
        }
        take_back(engine, log, newest, &record, debt)?;
    }
}

/// Whether the record at `keep` is one of those of `log` that count ([`UndoPtr::NONE`] always is).
pub(super) fn holds(engine: &TxnEngine, log: UndoLog, keep: UndoPtr) -> Result<bool> {
    if keep.is_none() {
        return Ok(true);
    }
    let mut ptr = log.newest(&engine.undo)?;
    while ptr != keep {
        let Some(record) = undo::read(&engine.undo, ptr, log.txn())? else { return Ok(false) };
        ptr = record.previous;
    }
    Ok(true)
}

fn no_chain(engine: &TxnEngine, ptr: UndoPtr) -> Error {
    corrupt(engine.undo.space(), ptr.page(), "an undo record of a chain that names none, or is spent")
}

fn take_back(
    engine: &TxnEngine,
    log: UndoLog,
    ptr: UndoPtr,
    record: &UndoRecord<'_>,
    debt: &mut Debt,
) -> Result<()> {
    let Some(space) = engine.spaces.get(record.table) else {
        // The crash took the table's creation, and all its content with it; or this recovery removed its file, since no
        // committed row names it.
        let mut mtr = Mtr::new();
        let mut first = log.retract(&engine.undo, &mut mtr, record.previous)?;
        mtr.commit(&engine.pager, &mut [&mut first])?;
        return Ok(());
    };
    if matches!(record.change, Change::Chain | Change::Orphan) {
        return free_chain(engine, &space, ptr, record, |mtr| {
            log.retract(&engine.undo, mtr, record.previous)
        });
    }
    let tree = Tree::new(&engine.pager, &space);
    loop {
        let mut leaf = tree.leaf_write(&record.key)?;
        let node = Node::new(&leaf);
        let slot = node.search(&record.key).ok();
        let slot = slot.filter(|s| (node.leaf_cell(*s).txn, node.leaf_cell(*s).undo) == (log.txn(), ptr));
        let page = leaf.id().page;
        let astray = || corrupt(&space, page, "a record is not as its running writer left it");
        let slot = slot.ok_or_else(astray)?;
        let value = node.leaf_cell(slot).value;
        let old_value = value_before(record, value).ok_or_else(astray)?;
        // A deletion leaves the value where it is.
        let is_other = record.change == Change::Delete
            && record.old_reference().is_some()
            && *value != *record.old_value;
        if old_value.len() > space.page_bytes() / 4 || is_other {
            return Err(astray());
        }
        let grown = old_value.len().saturating_sub(value.len());
        // In a full block more than that would be a split.
        let logged = match record.change {
            Change::Insert | Change::Delete => LOGGED_OP_BYTES,
            _ => LOGGED_OP_BYTES + LEAF_CELL_HEADER + record.key.len() + old_value.len(),
        };
        // A deletion that was committed when we overwrote it, and that no view needs any more: its own purge may have
        // passed. If a view needs it, its purge comes later, and takes this latch first.
        let was_purgeable = record.old_flags & DELETED != 0
            && record.old_txn != log.txn()
            && (engine.txns.is_seen_by_all(record.old_txn) || is_broken(Rule::DeletionsRestored));
        let fits = grown <= node.free() || was_purgeable;
        if !fits || !mtr::make_space(&engine.pager, &mut leaf, logged)? {
            drop(leaf);
            tree.split(&record.key, grown, logged)?;
            continue;
        }
        let mut mtr = Mtr::new();
        let mut cell = Vec::new();
        let op = op_back(&space, slot as u16, record, &old_value, was_purgeable, &mut cell);
        let op = op.ok_or_else(|| no_chain(engine, ptr))?;
        // Before the leaf, whose change must not be left without a log record when the undo page cannot be read. A
        // purgeable record's chain is left to this undo record, which is processed once more.
        let mut undo_page = match record.old_reference() {
            Some(_) if was_purgeable => log.mark(&engine.undo, &mut mtr, ptr, Change::Orphan)?,
            _ => log.retract(&engine.undo, &mut mtr, record.previous)?,
        };
        let used = Node::new(&leaf).used();
        mtr.apply(&mut leaf, op);
        let asks = asks_to_merge(Node::new(&leaf), used);
        mtr.commit(&engine.pager, &mut [&mut leaf, &mut undo_page])?;
        drop((leaf, undo_page));
        engine.flusher.owed().pay(debt, Amount::of(&space, record, grown));
        if asks {
            tree.merge(&record.key);
        }
        if !is_broken(Rule::RollbacksRepeated) {
            engine.repeat(&space, &record.key);
        }
        return Ok(());
    }
}

/// The value before the change that left `value`, as far as the undo record has it; `None` when that is of another
/// value.
fn value_before<'a>(record: &'a UndoRecord<'_>, value: &[u8]) -> Option<Cow<'a, [u8]>> {
    if record.change != Change::Edit {
        return Some(Cow::Borrowed(&record.old_value));
    }
    let mut before = value.to_vec();
    delta::apply(&record.old_value, &mut before)?;
    Some(Cow::Owned(before))
}

/// The operation that undoes the change of a leaf record; `None` when it is no such change. `cell` is memory for a
/// cell.
fn op_back<'a>(
    space: &Space,
    slot: u16,
    record: &'a UndoRecord<'_>,
    old_value: &[u8],
    was_purgeable: bool,
    cell: &'a mut Vec<u8>,
) -> Option<PageOp<'a>> {
    let (flags, txn, undo) = (record.old_flags, record.old_txn, record.old_undo);
    match record.change {
        Change::Insert => Some(PageOp::Remove { slot }),
        Change::Update if was_purgeable => Some(PageOp::Remove { slot }),
        Change::Edit if space.blocks().is_none() => {
            Some(PageOp::Edit { slot, txn, undo, delta: &record.old_value })
        }
        Change::Update | Change::Edit => {
            LeafCell { flags, txn, undo, key: &record.key, value: old_value }.encode(cell);
            Some(PageOp::Replace { slot, cell })
        }
        Change::Delete => Some(PageOp::Stamp { slot, flags, txn, undo }),
        Change::Chain | Change::Orphan | Change::Spent | Change::Link => None,
    }
}

/// Frees the chain that an undo record names, together with what `release` does to the record.
fn free_chain(
    engine: &TxnEngine,
    space: &Arc<Space>,
    ptr: UndoPtr,
    record: &UndoRecord<'_>,
    release: impl FnOnce(&mut Mtr) -> Result<WriteGuard>,
) -> Result<()> {
    let chain = record.old_reference().ok_or_else(|| no_chain(engine, ptr))?.first;
    engine.chains.shorten(space, chain)?;
    let mut mtr = Mtr::new();
    let chain = overflow::latch_first(&engine.pager, space, chain)?;
    let mut undo_page = release(&mut mtr)?;
    let [mut page, mut header] = chain.free(&mut mtr);
    mtr.commit(&engine.pager, &mut [&mut page, &mut header, &mut undo_page])?;
    Ok(())
}

/// Removes the records that the committed transaction of `log` deleted, where they are unchanged since, and frees the
/// chains that it replaced or deleted. `newest` is the log's newest record. All views see the transaction. May be
/// repeated.
pub(crate) fn purge(engine: &TxnEngine, log: UndoLog, newest: UndoPtr) -> Result<()> {
    let (mut ptr, mut circle) = (newest, Circle::new());
    while !ptr.is_none() {
        undo::must_go_on(&engine.undo, &mut circle, ptr)?;
        engine.flusher.throttle()?;
        let record = undo::read_kept(&engine.undo, ptr)?;
        ptr = purge_change(engine, log, ptr, &record).map(|()| record.previous)?;
    }
    Ok(())
}

fn purge_change(engine: &TxnEngine, log: UndoLog, ptr: UndoPtr, record: &UndoRecord<'_>) -> Result<()> {
    // The content of a dropped table is gone.
    let space = || engine.spaces.pin_for_work(record.table);
    match record.change {
        Change::Delete => space().map_or(Ok(()), |space| purge_record(engine, &space, log, ptr, record)),
        Change::Update if record.old_reference().is_some() => {
            let Some(space) = space() else { return Ok(()) };
            // Readers that found the writer running follow its undo record with the leaf latched. Once this thread
            // gets the latch they have left the leaf and hold their tickets, and later readers find the writer
            // finished.
            drop(Tree::new(&engine.pager, &space).leaf_write(&record.key)?);
            purge_chain(engine, &space, log, ptr, record)
        }
        Change::Orphan => space().map_or(Ok(()), |space| purge_chain(engine, &space, log, ptr, record)),
        Change::Insert | Change::Update | Change::Edit | Change::Chain | Change::Spent => Ok(()),
        Change::Link => Err(no_chain(engine, ptr)),
    }
}

fn purge_record(
    engine: &TxnEngine,
    space: &Arc<Space>,
    log: UndoLog,
    ptr: UndoPtr,
    record: &UndoRecord<'_>,
) -> Result<()> {
    let tree = Tree::new(&engine.pager, space);
    let (mut leaf, slot) = loop {
        let mut leaf = tree.leaf_write(&record.key)?;
        let node = Node::new(&leaf);
        let Ok(slot) = node.search(&record.key) else { return Ok(()) };
        let cell = node.leaf_cell(slot);
        if !cell.is_deleted() || cell.txn != log.txn() || cell.undo != ptr {
            return Ok(());
        }
        if mtr::make_space(&engine.pager, &mut leaf, LOGGED_OP_BYTES)? {
            break (leaf, slot);
        }
        drop(leaf);
        tree.split(&record.key, 0, LOGGED_OP_BYTES)?;
    };
    let mut mtr = Mtr::new();
    let is_long = record.old_reference().is_some();
    let mut undo_page = is_long.then(|| log.mark(&engine.undo, &mut mtr, ptr, Change::Orphan)).transpose()?;
    let used = Node::new(&leaf).used();
    mtr.apply(&mut leaf, PageOp::Remove { slot: slot as u16 });
    let asks = asks_to_merge(Node::new(&leaf), used);
    let mut pages: SmallVec<[&mut WriteGuard; 2]> = undo_page.iter_mut().collect();
    pages.push(&mut leaf);
    mtr.commit(&engine.pager, &mut pages)?;
    drop(pages);
    drop((leaf, undo_page));
    if asks {
        tree.merge(&record.key);
    }
    if is_long {
        purge_chain(engine, space, log, ptr, record)?;
    }
    Ok(())
}

/// Frees the chain that the record of a transaction that ended owns.
fn purge_chain(
    engine: &TxnEngine,
    space: &Arc<Space>,
    log: UndoLog,
    ptr: UndoPtr,
    record: &UndoRecord<'_>,
) -> Result<()> {
    free_chain(engine, space, ptr, record, |mtr| log.mark(&engine.undo, mtr, ptr, Change::Spent))
}
