//! What a reader sees: the newest version that is committed, or the reader's own.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use crate::{
    btree::{Direction, Start, Tree},
    core::Core,
    error::Result,
    ids::TxnId,
    node::{DELETED, LeafCell, Node},
    space::Space,
    undo::{self, Change},
};

/// Records that a scan copies at a time.
const SCAN_RECORDS: usize = 128;

/// The version of a leaf record that `me` sees, `None` when there is none. The caller holds the
/// leaf's latch, so the record's writer can neither change it nor take it back meanwhile; if the
/// writer finishes, it has committed.
pub(crate) fn visible(core: &Core, me: TxnId, cell: LeafCell<'_>) -> Result<Option<Vec<u8>>> {
    let current = || if cell.is_deleted() { None } else { Some(cell.value.to_vec()) };
    if cell.txn == me || core.txns.get(cell.txn).is_none() {
        return Ok(current());
    }
    let mut value = cell.value.to_vec();
    let mut ptr = cell.undo;
    loop {
        let Some(record) = undo::read(core, ptr, cell.txn)? else { return Ok(current()) };
        match record.change {
            Change::Insert => return Ok(None),
            Change::Update => value = record.old_value,
            // The value stayed in the leaf.
            Change::Delete => {}
        }
        if record.old_txn != cell.txn {
            return Ok(if record.old_flags & DELETED != 0 { None } else { Some(value) });
        }
        ptr = record.old_undo;
    }
}

/// Calls `each` with the records between the bounds that `me` sees, in order, until it breaks. No
/// latch is held during the calls.
pub(crate) fn scan(
    core: &Core,
    space: &Arc<Space>,
    me: TxnId,
    (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    direction: Direction,
    mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<()> {
    let tree = Tree::new(core, space);
    let (from, to) = match direction {
        Direction::Forward => (lower, upper),
        Direction::Backward => (upper, lower),
    };
    let mut start = Some(match from {
        Bound::Unbounded => Start::End,
        Bound::Included(key) => Start::At(key.to_vec()),
        Bound::Excluded(key) => Start::Behind(key.to_vec()),
    });
    let is_past = |key: &[u8]| match (to, direction) {
        (Bound::Unbounded, _) => false,
        (Bound::Included(end), Direction::Forward) => key > end,
        (Bound::Excluded(end), Direction::Forward) => key >= end,
        (Bound::Included(end), Direction::Backward) => key < end,
        (Bound::Excluded(end), Direction::Backward) => key <= end,
    };
    let mut records = Vec::new();
    while let Some(at) = start.take() {
        let leaf = tree.scan_leaf(&at, direction)?;
        let node = Node::new(&leaf.page);
        let mut is_done = false;
        let slots = leaf.slots;
        for i in 0..slots.len() {
            let slot = if direction == Direction::Forward { slots.start + i } else { slots.end - 1 - i };
            let cell = node.leaf_cell(slot);
            if is_past(cell.key) {
                is_done = true;
                break;
            }
            if let Some(value) = visible(core, me, cell)? {
                records.push((cell.key.to_vec(), value));
            }
            if records.len() >= SCAN_RECORDS && i + 1 < slots.len() {
                start = Some(Start::Behind(cell.key.to_vec()));
                break;
            }
        }
        if start.is_none() && !is_done {
            start = leaf.next;
        }
        drop(leaf.page);
        for (key, value) in records.drain(..) {
            if each(&key, &value).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}
