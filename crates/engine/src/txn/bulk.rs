//! Loading sorted records: as many at a time as a leaf takes.
//!
//! All records of a run that belong into one leaf, up to the next record that is there, go in by one mini-transaction
//! with their undo records. So what a write costs beside its bytes (finding and latching the leaf and the undo pages,
//! the log's lock) is shared by a leafful of records. Rollback, recovery and readers see the same as if they had been
//! inserted one by one.
//!
//! Leaves are left as ascending inserts leave them, 15/16 full.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Txn, roll_back,
    write::{check_key, check_value, finger_of, is_long},
};
use crate::{
    flush::Claim,
    mtr::Mtr,
    mutant::{Rule, is_broken},
    page::{
        node::{LEAF_CELL_HEADER, LeafCell, Node, SLOT},
        ops::PageOp,
        scratch::Scratch,
        undo::RECORD_HEADER,
    },
    pool::WriteGuard,
    space::Space,
    txn::Table,
    types::{Error, Result},
};

/// One in this many bytes of a leaf is left free after its last record.
const SPARE: usize = 16;

/// Records that were taken from the caller's iterator, and are not written yet.
struct Ahead<K, V> {
    records: Vec<(K, V)>,
    bytes: usize,
    /// The last one's key.
    last: Vec<u8>,
    /// How many were taken in all.
    taken: u64,
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>> Ahead<K, V> {
    /// Takes what may fill a leaf.
    fn take(&mut self, space: &Space, records: &mut impl Iterator<Item = (K, V)>) -> Result<()> {
        while self.bytes < space.page_bytes()
            && let Some((key, value)) = records.next()
        {
            let key_bytes = key.as_ref();
            check_key(space, key_bytes)?;
            check_value(value.as_ref())?;
            if self.taken > 0 && key_bytes <= &self.last[..] {
                return Err(Error::OutOfOrder { record: self.taken });
            }
            self.taken += 1;
            self.last.clear();
            self.last.extend_from_slice(key_bytes);
            self.bytes += bytes_of(key_bytes, value.as_ref());
            self.records.push((key, value));
        }
        Ok(())
    }

    /// Forgets the first `count`, which are written.
    fn drop_first(&mut self, count: usize) {
        let written = self.records.drain(..count);
        self.bytes -= written.map(|(key, value)| bytes_of(key.as_ref(), value.as_ref())).sum::<usize>();
    }
}

/// Bytes that a record takes in a leaf.
fn bytes_of(key: &[u8], value: &[u8]) -> usize {
    LEAF_CELL_HEADER + key.len() + value.len() + SLOT
}

impl Txn {
    /// Inserts records in ascending order of their keys, none of which may exist, and returns how many. Fastest into an
    /// empty table or after its last key, several times as fast as [`Txn::put`]; between existing keys the speed
    /// depends on the width of the gaps. Row-compressed tables, and values too long for a leaf, take as long as by
    /// [`Txn::insert`].
    ///
    /// It is part of the transaction, as if the records had been inserted one by one: a crash or a rollback removes all
    /// of them, others see them with the commit, and they may be more than memory holds. A rollback takes longer than
    /// the load: records are removed one by one.
    ///
    /// ```
    /// # use lacuna_device::MemVfs;
    /// # use lacuna_engine::{Error, Store, StoreOptions, TableOptions};
    /// # let store = Store::open(MemVfs::new(), StoreOptions::default())?;
    /// # let table = store.create_table("t", TableOptions::default())?;
    /// let mut txn = store.begin();
    /// let squares = (0..1000u32).map(|n| (n.to_be_bytes(), (n * n).to_be_bytes()));
    /// assert_eq!(txn.bulk_load(&table, squares)?, 1000);
    /// txn.commit()?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfOrder`], [`Error::KeyExists`], and those of [`Txn::put`]. None of the records is there then, and
    /// the transaction may go on.
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        table: &Table,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        let space = self.space_to_write(table)?;
        let space = &*space;
        let before = self.savepoint()?.newest;
        let outcome = self.load(table, space, &mut records.into_iter());
        if let (Err(_), Some(log)) = (&outcome, self.undo)
            && !is_broken(Rule::LoadsWhole)
        {
            self.changes += 1;
            self.busy(|txn| {
                roll_back(&txn.engine, log, before, &mut txn.debt).map_err(|e| txn.engine.poison.set(e))
            })?;
            self.running.iter().for_each(|running| self.engine.txns.note_release(running));
        }
        outcome
    }

    fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        table: &Table,
        space: &Arc<Space>,
        records: &mut impl Iterator<Item = (K, V)>,
    ) -> Result<u64> {
        let mut ahead = Ahead { records: Vec::new(), bytes: 0, last: Vec::new(), taken: 0 };
        loop {
            ahead.take(space, records)?;
            let Some((key, value)) = ahead.records.first() else { return Ok(ahead.taken) };
            let (key, value) = (key.as_ref(), value.as_ref());
            // The first change of a transaction claims its undo slot.
            let is_alone = self.undo.is_none() || space.blocks().is_some() || is_long(space, key, value);
            // Not around the caller's iterator: a panic in it is the caller's.
            let written = match is_alone {
                true => 0,
                false => self.busy(|txn| txn.load_into_leaf(space, &ahead.records))?,
            };
            if written == 0 {
                // Also what is there, deleted and not purged.
                self.insert(table, key, value)?;
            }
            ahead.drop_first(written.max(1));
        }
    }

    /// Inserts the first of `records`, as many as their leaf takes side by side; none where the first needs more than
    /// that.
    fn load_into_leaf<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        space: &Arc<Space>,
        records: &[(K, V)],
    ) -> Result<usize> {
        self.admit(Claim::Record(space, 0))?;
        self.changes += 1;
        let (mut leaf, found) = self.lock_leaf(space, records[0].0.as_ref())?;
        let Err(slot) = found else { return Ok(0) };
        let count = self.fitting(space, Node::new(&leaf), slot, records);
        if count == 0 {
            return Ok(0);
        }
        let (me, log) = (self.id(), self.undo.expect("the caller made sure of it"));
        let mut mtr = Mtr::new();
        let keys = records[..count].iter().map(|(key, _)| key.as_ref());
        let (undo, mut undo_pages) = log.append_inserts(&self.engine.undo, &mut mtr, space.id(), keys)?;
        let mut cell = Scratch::new();
        for (at, (undo, (key, value))) in undo.iter().zip(records).enumerate() {
            let (key, value) = (key.as_ref(), value.as_ref());
            cell.clear();
            LeafCell { flags: 0, txn: me, undo: *undo, key, value }.encode(&mut cell);
            mtr.apply(&mut leaf, PageOp::Insert { slot: (slot + at) as u16, cell: &cell });
            self.history_bytes += (RECORD_HEADER + key.len()) as u64;
        }
        let mut pages: SmallVec<[&mut WriteGuard; 5]> = undo_pages.pages().collect();
        pages.push(&mut leaf);
        mtr.commit(&self.engine.pager, &mut pages)?;
        drop(pages);
        drop((leaf, undo_pages));
        for (key, _) in &records[..undo.len()] {
            self.engine.repeat(space, key.as_ref());
        }
        Ok(undo.len())
    }

    /// How many of `records` go into the latched leaf at `slot`, side by side, without meeting a lock.
    fn fitting<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        space: &Arc<Space>,
        leaf: Node<'_>,
        slot: usize,
        records: &[(K, V)],
    ) -> usize {
        let me = self.id();
        let engine = &self.engine;
        // Locks are taken under the latch of the key's leaf, which is this one for all keys that count.
        let has_locks = engine.txns.has_locks(space.id());
        let next = (slot < leaf.count()).then(|| leaf.key(slot));
        let finger = finger_of(&mut self.fingers, space.id());
        let kept = if next.is_none() { (leaf.used() + leaf.free()) / SPARE } else { 0 };
        let mut free = leaf.free().saturating_sub(kept);
        let fits = |(at, (key, value)): &(usize, &(K, V))| {
            let (key, value) = (key.as_ref(), value.as_ref());
            let bytes = bytes_of(key, value);
            let is_before_bound = finger.is_before_bound(key) || is_broken(Rule::LoadsStayInLeaf);
            let is_here = *at == 0 || is_before_bound && next.is_none_or(|next| key < next);
            let has_locks = has_locks && !is_broken(Rule::LoadsAskForLocks);
            let is_free = *at == 0 || !has_locks || engine.txns.lock_owner(me, space.id(), key).is_none();
            let fits = bytes <= free && is_here && is_free && !is_long(space, key, value);
            free = free.saturating_sub(bytes);
            fits
        };
        records.iter().enumerate().take_while(fits).count()
    }
}
