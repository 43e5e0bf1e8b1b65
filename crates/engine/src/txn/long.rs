//! Writing a value that is too long for a leaf.
//!
//! The key is locked first, so that no other transaction can write it while the chain is written. An undo record names
//! the chain before it grows: however the write is interrupted, rollback finds the chain.

use std::sync::Arc;

use super::{Txn, roll_back, write::Write};
use crate::{
    flush::Claim,
    mtr::Mtr,
    overflow,
    page::{
        node::{Node, OVERFLOW},
        overflow::Reference,
        undo::{Change, UndoRecord},
    },
    pool::WriteGuard,
    space::Space,
    types::{Result, TxnId, UndoPtr},
};

impl Txn {
    /// Like [`Txn::write_short`], of a value that goes into a chain. A failure leaves no part of it.
    pub(super) fn write_long(
        &mut self,
        space: &Arc<Space>,
        key: &[u8],
        value: &[u8],
        must_be_new: bool,
    ) -> Result<bool> {
        let (leaf, found) = self.lock_leaf(space, key)?;
        let node = Node::new(&leaf);
        let existed = found.is_ok_and(|slot| !node.leaf_cell(slot).is_deleted());
        if must_be_new && existed {
            return Ok(true);
        }
        let locked = self.engine.txns.lock(self.id(), space.id(), key);
        drop(leaf);
        let outcome = self.write_chain_and_leaf(space, key, value, must_be_new);
        // From here on the record's writer is the lock.
        self.engine.txns.unlock(self.id(), locked);
        if outcome.is_err() {
            self.running.iter().for_each(|running| self.engine.txns.note_release(running));
        }
        outcome
    }

    fn write_chain_and_leaf(
        &mut self,
        space: &Arc<Space>,
        key: &[u8],
        value: &[u8],
        must_be_new: bool,
    ) -> Result<bool> {
        let before = self.savepoint()?.newest;
        let outcome = self.write_chain(space, value).and_then(|reference| {
            let bytes = reference.encode();
            let write = if must_be_new { Write::Insert(&bytes) } else { Write::Put(&bytes) };
            self.write_short(space, key, write, OVERFLOW)
        });
        if let (Err(_), Some(log)) = (&outcome, self.undo) {
            roll_back(&self.engine, log, before, &mut self.debt).map_err(|e| self.engine.poison.set(e))?;
        }
        outcome
    }

    /// Writes a chain that holds `value` and is owned by this transaction's undo log.
    fn write_chain(&mut self, space: &Arc<Space>, value: &[u8]) -> Result<Reference> {
        let mut parts = value.chunks(space.part_bytes_max());
        let engine = self.engine.clone();
        let mut mtr = Mtr::new();
        let part = parts.next().expect("a long value is not empty");
        let mut new = overflow::start(&engine.pager, space, &mut mtr, part)?;
        let reference = Reference::new(new.page.id().page, value);
        let encoded = reference.encode();
        let record = UndoRecord {
            change: Change::Chain,
            table: space.id(),
            previous: UndoPtr::NONE,
            old_flags: OVERFLOW,
            old_txn: TxnId::NONE,
            old_undo: UndoPtr::NONE,
            key: (&[]).into(),
            old_value: (&encoded).into(),
        };
        let (_, mut undo_pages) = self.log_undo(&mut mtr, record)?;
        let mut pages: Vec<&mut WriteGuard> = undo_pages.pages().collect();
        pages.extend([&mut new.page, &mut new.header]);
        mtr.commit(&engine.pager, &mut pages)?;
        drop((new, undo_pages));
        let mut last = reference.first;
        for (i, part) in parts.enumerate() {
            // Each part takes space, log and memory like a record of its own.
            engine.flusher.throttle()?;
            self.admit(Claim::Record(space, space.page_bytes()))?;
            last = overflow::extend(&engine.pager, space, reference.first, last, i as u32 + 1, part)?;
        }
        Ok(reference)
    }
}
