//! Rebuilding a table in another layout while it is used: the copy, and the file that it replaces.
//!
//! A copier reads the table leaf by leaf, in the order of keys, and puts its records into another file, the *target*,
//! whether they are committed or not. Transactions repeat in the target what they change of keys that were copied
//! before. When all is copied, writers are kept out for a moment, until those that have written the table have ended;
//! then the target holds what is committed, and takes the table's place (`store::alter`).
//!
//! Records in the target name no writer, as if they had always existed: all views that will read them see them
//! (`space::lineage`, invariant 1).
//!
//! Invariants:
//!
//! 1. With the leaf of a key latched that the frontier covers, the target holds what the leaf does of it, except that a
//!    transaction that changed it before may not have repeated that yet. It does before the call that changed it
//!    returns, so before its transaction ends.
//! 2. The frontier passes a leaf, or a part of it, while that is latched, before it is read. So a change of the leaf is read by the
//!    copier, or repeated.
//! 3. What is put into the target is what the table's leaf holds at that moment: the leaf is latched until then. So it
//!    does not matter in which order changes of a key are repeated, nor how often. A long value is copied without the
//!    latch, and put there only if the record is the same afterwards.
//! 4. The target has no row in the catalog until it replaces the table: a crash before leaves the table as it was, and
//!    opening the store removes the target. The old file is removed only once the row is durable.
//! 5. The old file stays as long as a view is open that is older than the replacement, or a transaction that has read
//!    it. Its history is purged as before.
//!
//! Latches: those of the table before those of the target. A failure to repeat a change fails the rebuild, never the
//! change.

use std::sync::Arc;

use super::{
    TxnEngine,
    write::{check_key, is_long},
};
use crate::{
    btree::{Direction, Finger, Start, Tree, asks_to_merge},
    flush::Claim,
    mtr::{self, LOGGED_OP_BYTES, Mtr},
    mutant::{Rule, is_broken},
    overflow,
    page::{
        node::{self, LeafCell, Node, OVERFLOW, SLOT},
        ops::PageOp,
        overflow::Reference,
    },
    pool::read_ahead,
    space::{Space, lineage::Rebuild},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    types::{Result, TxnId, UndoPtr},
};

/// Bytes of records that are copied under one latch, but for a record that is longer: writers of the leaf wait so long,
/// and so much more than allowed comes to be logged and dirty.
const PART_BYTES: usize = 8 << 10;

/// How far a copier has come.
pub(crate) struct Copier<'a> {
    engine: &'a TxnEngine,
    source: &'a Arc<Space>,
    rebuild: &'a Rebuild,
    /// Where it goes on; `None` at the end.
    next: Option<Start>,
    finger: Finger,
    run: read_ahead::Run,
    /// Records copied so far.
    pub(crate) records: u64,
}

impl<'a> Copier<'a> {
    pub(crate) fn new(engine: &'a TxnEngine, source: &'a Arc<Space>, rebuild: &'a Rebuild) -> Copier<'a> {
        let (next, finger, run) = (Some(Start::End), Finger::default(), read_ahead::Run::default());
        Copier { engine, source, rebuild, next, finger, run, records: 0 }
    }

    /// Copies the records of a leaf, or a part of them; false when there is none left. The caller holds no latch.
    pub(crate) fn step(&mut self) -> Result<bool> {
        let Some(start) = self.next.take() else { return Ok(false) };
        let (engine, target) = (self.engine, self.rebuild.target());
        engine.poison.check_open()?;
        self.rebuild.check()?;
        engine.admit(Claim::Space)?;
        engine.flusher.throttle()?;
        let tree = Tree::new(&engine.pager, self.source);
        let leaf = tree.scan_leaf(&start, Direction::Forward, self.run.wish())?;
        engine.read_ahead.name(&mut self.run, self.source.id(), &leaf.following);
        let node = Node::new(&leaf.page);
        let mut part_bytes = 0;
        let is_in_part = |slot: &usize| {
            part_bytes += node.cell(*slot).len();
            part_bytes <= PART_BYTES || *slot == leaf.slots.start
        };
        let end = leaf.slots.start + leaf.slots.clone().take_while(is_in_part).count();
        let next = match end < leaf.slots.end {
            true => Some(Start::At(node.key(end).to_vec())),
            false => leaf.next,
        };
        let bound = |start: &Option<Start>| match start {
            Some(Start::At(key) | Start::Behind(key)) => Some(key.clone()),
            Some(Start::End) | None => None,
        };
        if is_broken(Rule::FrontierFirst) {
            self.rebuild.advance(Some(&bound(&Some(start)).unwrap_or_default()));
        } else {
            self.rebuild.advance(bound(&next).as_deref());
        }
        let (mut long, mut unused) = (Vec::new(), Vec::new());
        let slots = leaf.slots.start..end;
        for cell in slots.map(|slot| node.leaf_cell(slot)).filter(|cell| !cell.is_deleted()) {
            self.records += 1;
            check_key(target, cell.key)?;
            if needs_chain(target, cell) {
                long.push(cell.key.to_vec());
            } else {
                unused.extend(engine.place(target, &mut self.finger, cell.key, Some((0, cell.value)))?);
            }
        }
        drop(leaf.page);
        for chain in unused {
            engine.free_copy(target, chain)?;
        }
        for key in long {
            engine.admit(Claim::Space)?;
            engine.copy_key(self.source, target, &key)?;
        }
        if end == leaf.slots.end {
            self.run.step();
        }
        self.next = next;
        Ok(self.next.is_some())
    }
}

/// Whether a record is copied without the latch of its leaf: its value is in a chain, or will be.
fn needs_chain(target: &Space, cell: LeafCell<'_>) -> bool {
    cell.flags & OVERFLOW != 0 || is_long(target, cell.key, cell.value)
}

impl TxnEngine {
    /// Repeats in the copy, if the table is being rebuilt, what was changed of a record. The caller holds no latch, and
    /// pins the table.
    pub(super) fn repeat(&self, source: &Arc<Space>, key: &[u8]) {
        let Some(rebuild) = source.rebuild() else { return };
        if !rebuild.covers(key) || rebuild.check().is_err() || is_broken(Rule::ChangesRepeated) {
            return;
        }
        // Without a pin it was given up.
        let Some(target) = rebuild.target().pin_for_work() else { return };
        let outcome = self.flusher.must_have_space().and_then(|()| self.copy_key(source, &target, key));
        if let Err(error) = outcome {
            rebuild.fail(error);
        }
    }

    /// Makes the target hold of `key` what the table does.
    fn copy_key(&self, source: &Arc<Space>, target: &Arc<Space>, key: &[u8]) -> Result<()> {
        check_key(target, key)?;
        let tree = Tree::new(&self.pager, source);
        loop {
            self.flusher.throttle()?;
            let leaf = tree.leaf_read(key)?;
            let node = Node::new(&leaf);
            let slot = node.search(key).ok();
            let cell = slot.map(|slot| node.leaf_cell(slot)).filter(|cell| !cell.is_deleted());
            let Some(cell) = cell.filter(|cell| needs_chain(target, *cell)) else {
                let unused =
                    self.place(target, &mut Finger::default(), key, cell.map(|cell| (0, cell.value)))?;
                drop(leaf);
                return unused.map_or(Ok(()), |chain| self.free_copy(target, chain));
            };
            let seen = node.cell(slot.expect("it has a cell")).to_vec();
            let value = match cell.reference() {
                Some(reference) => {
                    let ticket = self.chains.enter();
                    drop(leaf);
                    overflow::read(&self.pager, source, reference, &ticket)?
                }
                None => {
                    let value = cell.value.to_vec();
                    drop(leaf);
                    value
                }
            };
            let chain = is_long(target, key, &value).then(|| self.copy_chain(target, &value)).transpose()?;
            let encoded = chain.map(Reference::encode);
            let new = encoded.as_ref().map_or((0, &value[..]), |reference| (OVERFLOW, &reference[..]));
            let leaf = tree.leaf_read(key)?;
            let node = Node::new(&leaf);
            let is_current =
                node.search(key).is_ok_and(|slot| node.cell(slot) == seen) || is_broken(Rule::CopiesCurrent);
            let unused = match is_current {
                true => self.place(target, &mut Finger::default(), key, Some(new))?,
                false => chain,
            };
            drop(leaf);
            unused.map_or(Ok(()), |chain| self.free_copy(target, chain))?;
            if is_current {
                return Ok(());
            }
        }
    }

    /// Makes the target's record of `key` one of these flags and this value, or none. Returns the chain that the record
    /// named before.
    fn place(
        &self,
        target: &Arc<Space>,
        finger: &mut Finger,
        key: &[u8],
        new: Option<(u8, &[u8])>,
    ) -> Result<Option<Reference>> {
        let tree = Tree::new(&self.pager, target);
        loop {
            let mut leaf = tree.leaf_at(finger, key)?;
            let node = Node::new(&leaf);
            let found = node.search(key);
            let old = found.ok().map(|slot| node.leaf_cell(slot));
            if old.map(|cell| (cell.flags, cell.value)) == new {
                return Ok(None);
            }
            let unused = old.and_then(|cell| cell.reference());
            let (slot, is_new) = (found.unwrap_or_else(|slot| slot), old.is_none());
            let record_bytes = new.map_or(0, |(_, value)| node::LEAF_CELL_HEADER + key.len() + value.len());
            let more_bytes = match (new, old) {
                (None, _) => 0,
                (Some((_, value)), Some(old)) => value.len().saturating_sub(old.value.len()),
                (Some(_), None) => record_bytes + SLOT,
            };
            let logged = LOGGED_OP_BYTES + record_bytes;
            let fits = more_bytes <= node.free() && (!is_new || tree.accepts(node, slot, more_bytes));
            if !fits || !mtr::make_space(&self.pager, &mut leaf, logged)? {
                drop(leaf);
                tree.split(key, more_bytes, logged)?;
                finger.forget();
                continue;
            }
            let used = Node::new(&leaf).used();
            let (mut mtr, mut cell, slot) = (Mtr::new(), Vec::new(), slot as u16);
            if let Some((flags, value)) = new {
                LeafCell { flags, txn: TxnId::NONE, undo: UndoPtr::NONE, key, value }.encode(&mut cell);
            }
            mtr.apply(
                &mut leaf,
                match (new, is_new) {
                    (None, _) => PageOp::Remove { slot },
                    (Some(_), true) => PageOp::Insert { slot, cell: &cell },
                    (Some(_), false) => PageOp::Replace { slot, cell: &cell },
                },
            );
            let asks = asks_to_merge(Node::new(&leaf), used);
            mtr.commit(&self.pager, &mut [&mut leaf])?;
            drop(leaf);
            if asks {
                tree.merge(key);
            }
            return Ok(unused);
        }
    }

    /// Writes a chain of the target. When that fails what there is of it goes with the target.
    fn copy_chain(&self, target: &Arc<Space>, value: &[u8]) -> Result<Reference> {
        let mut parts = value.chunks(target.part_bytes_max());
        let mut mtr = Mtr::new();
        let first = parts.next().expect("a long value is not empty");
        let mut new = overflow::start(&self.pager, target, &mut mtr, first)?;
        let reference = Reference::new(new.page.id().page, value);
        mtr.commit(&self.pager, &mut [&mut new.page, &mut new.header])?;
        drop(new);
        let mut last = reference.first;
        for (at, part) in parts.enumerate() {
            self.flusher.throttle()?;
            self.flusher.must_have_space()?;
            last = overflow::extend(&self.pager, target, reference.first, last, at as u32 + 1, part)?;
        }
        Ok(reference)
    }

    /// Frees a chain of the target that no record names.
    fn free_copy(&self, target: &Arc<Space>, chain: Reference) -> Result<()> {
        self.chains.shorten(target, chain.first)?;
        let mut mtr = Mtr::new();
        let first = overflow::latch_first(&self.pager, target, chain.first)?;
        let [mut page, mut header] = first.free(&mut mtr);
        mtr.commit(&self.pager, &mut [&mut page, &mut header])?;
        Ok(())
    }
}

/// Files that were replaced, and are kept for older views.
#[derive(Default)]
pub(crate) struct Retired {
    files: Mutex<Vec<(Arc<Space>, u64)>>,
    count: AtomicUsize,
}

impl TxnEngine {
    /// Keeps a file that was replaced at `moment` until nobody needs it.
    pub(crate) fn keep_retired(&self, space: Arc<Space>, moment: u64) {
        let mut files = self.retired.files.lock();
        files.push((space, moment));
        self.retired.count.store(files.len(), Ordering::Release);
    }

    /// Whether there are such files.
    pub(super) fn has_retired(&self) -> bool {
        self.retired.count.load(Ordering::Acquire) > 0
    }

    /// Whether one of them may be removed.
    pub(super) fn retired_is_due(&self) -> bool {
        let oldest_view = self.txns.oldest_view();
        let is_due = |(space, moment): &(Arc<Space>, u64)| *moment < oldest_view && space.is_free();
        self.has_retired() && self.retired.files.lock().iter().any(is_due)
    }

    /// The replaced files of a table that is now `space`.
    pub(crate) fn retired_of(&self, space: &Arc<Space>) -> Vec<Arc<Space>> {
        let is_its = |old: &Arc<Space>| old.newest().is_some_and(|newest| Arc::ptr_eq(&newest, space));
        self.retired.files.lock().iter().map(|(old, _)| old.clone()).filter(is_its).collect()
    }

    /// Removes the replaced files that nobody needs any more. The caller holds no latch.
    pub(crate) fn remove_retired(&self) -> Result<()> {
        while self.has_retired() {
            let mut files = self.retired.files.lock();
            // Under the lock: a view that needs a file was open before the file was entered.
            let oldest_view = self.txns.oldest_view();
            let is_due = |(space, moment): &(Arc<Space>, u64)| {
                (*moment < oldest_view || is_broken(Rule::OldFilesKept))
                    && (space.is_closed() || space.close())
            };
            let Some(at) = files.iter().position(is_due) else { return Ok(()) };
            let (space, _) = files.swap_remove(at);
            self.retired.count.store(files.len(), Ordering::Release);
            drop(files);
            if let Some((after, _)) = space.after() {
                after.forget_before();
            }
            space.close_for_good();
            self.remove_file(&space)?;
        }
        Ok(())
    }

    /// Removes the file of a table that has no row, durably, and drops its pages from the pool. The table is no longer
    /// in use.
    pub(crate) fn remove_file(&self, space: &Space) -> Result<()> {
        let _writing = self.poison.begin_to_write()?;
        self.spaces.remove(space.id());
        self.flusher.vfs().remove(&space.name())?;
        if !self.flusher.vfs().props().ordered {
            self.flusher.vfs().sync()?;
        }
        if let Some(keys) = self.spaces.keys() {
            keys.forget(space.id())?;
        }
        // A write of the table's pages that failed is still under way for the pool.
        self.poison.check()?;
        // From here on the checkpoint may pass the table's log records.
        self.pager.pool().forget_table(space.id());
        // Handles of the table keep the file open, and on most VFSs its space with it. No other component uses it.
        let _ = space.file().set_len(0);
        Ok(())
    }
}
