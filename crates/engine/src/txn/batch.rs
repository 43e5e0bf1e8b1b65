//! Walking over the records of a range, copying them from the leaves a batch at a time.
//!
//! A batch is copied under the latch of one leaf, each record in the version that the reader sees. The caller
//! then uses the batch without a latch, for as long as it likes, and may write to the same leaf.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use super::read::{Reader, StoredValue, VisibleValue, visible};
use crate::{
    btree::{Direction, Start, Tree},
    mutant::{Rule, is_broken},
    page::{
        node::{LeafCell, Node},
        scratch::Scratch,
    },
    pool::read_ahead,
    space::Space,
    txn::TxnEngine,
    types::Result,
};

/// Most records in a batch.
pub(super) const BATCH_RECORDS: usize = 128;
/// Bytes of long values beyond which a batch takes no more.
const BATCH_LONG_BYTES: u64 = 1 << 20;

/// Records copied from a leaf, in the order of the walk.
#[derive(Default)]
pub(super) struct Batch {
    /// Keys and short values, back to back.
    bytes: Scratch,
    records: Vec<Copied>,
}

/// Where the parts of a record lie.
struct Copied {
    key_at: usize,
    value_at: usize,
    value: Value,
}

enum Value {
    /// Length of the value after the key.
    Short(usize),
    Long(Vec<u8>),
}

impl Batch {
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn key(&self, at: usize) -> &[u8] {
        let Copied { key_at, value_at, .. } = self.records[at];
        &self.bytes[key_at..value_at]
    }

    pub(super) fn value(&self, at: usize) -> &[u8] {
        let Copied { value_at, value, .. } = &self.records[at];
        match value {
            Value::Short(bytes) => &self.bytes[*value_at..value_at + bytes],
            Value::Long(value) => value,
        }
    }

    /// Forgets the records and keeps the memory.
    fn clear(&mut self) {
        self.bytes.clear();
        self.records.clear();
    }

    /// Copies a record, the value only if it is short.
    fn push(&mut self, key: &[u8], found: &StoredValue<'_>) {
        let key_at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let value_at = self.bytes.len();
        let value = match found {
            StoredValue::Short(value) => {
                self.bytes.extend_from_slice(value);
                Value::Short(value.len())
            }
            StoredValue::Long(_) => Value::Long(Vec::new()),
        };
        self.records.push(Copied { key_at, value_at, value });
    }
}

/// The position of a walk over the records between two bounds.
pub(super) struct Walk<K> {
    direction: Direction,
    /// Where it goes on; `None` at its end.
    start: Option<Start>,
    /// The bound in whose direction it goes.
    end: Bound<K>,
    run: read_ahead::Run,
}

impl<K: AsRef<[u8]>> Walk<K> {
    pub(super) fn new((lower, upper): (Bound<K>, Bound<K>), direction: Direction) -> Walk<K> {
        let (from, end) = match direction {
            Direction::Forward => (lower, upper),
            Direction::Backward => (upper, lower),
        };
        let start = match from {
            Bound::Unbounded => Start::End,
            Bound::Included(key) => Start::At(key.as_ref().to_vec()),
            Bound::Excluded(key) => Start::Behind(key.as_ref().to_vec()),
        };
        Walk { direction, start: Some(start), end, run: read_ahead::Run::default() }
    }

    /// Whether nothing is left.
    pub(super) fn is_over(&self) -> bool {
        self.start.is_none()
    }

    fn is_past(&self, key: &[u8]) -> bool {
        match (&self.end, self.direction) {
            (Bound::Unbounded, _) => false,
            (Bound::Included(end), Direction::Forward) => key > end.as_ref(),
            (Bound::Excluded(end), Direction::Forward) => key >= end.as_ref(),
            (Bound::Included(end), Direction::Backward) => key < end.as_ref(),
            (Bound::Excluded(end), Direction::Backward) => key <= end.as_ref(),
        }
    }

    /// Replaces what is in `batch` by the next records, `records_max` at most; none at the end. After an error the walk
    /// must not go on. The caller holds no latch.
    pub(super) fn fill(
        &mut self,
        engine: &TxnEngine,
        space: &Arc<Space>,
        reader: Reader<'_>,
        records_max: usize,
        batch: &mut Batch,
    ) -> Result<()> {
        let _call = engine.poison.call();
        loop {
            batch.clear();
            let mut long = Vec::new();
            let mut long_bytes = 0;
            self.leaf(engine, space, reader, |cell, kept| {
                batch.push(cell.key, &kept.found);
                if let StoredValue::Long(reference) = &kept.found {
                    long_bytes += u64::from(reference.bytes);
                    long.push((batch.len() - 1, kept.detached()));
                }
                batch.len() < records_max && long_bytes < BATCH_LONG_BYTES
            })?;
            // All are read before the caller gets the batch: it may then wait for a transaction that waits for these
            // tickets.
            for (at, kept) in long {
                batch.records[at].value = Value::Long(kept.read(engine, space)?);
            }
            if batch.len() > 0 || self.is_over() {
                return Ok(());
            }
        }
    }

    /// Counts the records that are left.
    pub(super) fn count(mut self, engine: &TxnEngine, space: &Arc<Space>, reader: Reader<'_>) -> Result<u64> {
        let _call = engine.poison.call();
        let mut records = 0;
        while !self.is_over() {
            engine.flusher.throttle_memory()?;
            self.leaf(engine, space, reader, |_, _| {
                records += 1;
                true
            })?;
        }
        Ok(records)
    }

    /// Calls `each` with the records of the next leaf that `reader` sees, under its latch, until that is enough. After
    /// an error what `each` has seen does not count.
    fn leaf<'a>(
        &mut self,
        engine: &'a TxnEngine,
        space: &Arc<Space>,
        reader: Reader<'_>,
        mut each: impl FnMut(LeafCell<'_>, VisibleValue<'a, '_>) -> bool,
    ) -> Result<()> {
        let Some(at) = &self.start else { return Ok(()) };
        let leaf = Tree::new(&engine.pager, space).scan_leaf(at, self.direction, self.run.wish())?;
        engine.read_ahead.name(&mut self.run, space.id(), &leaf.following);
        let node = Node::new(&leaf.page);
        let slots = leaf.slots;
        let mut next = leaf.next;
        let mut is_same_leaf = false;
        for i in 0..slots.len() {
            let slot = match self.direction {
                Direction::Forward => slots.start + i,
                Direction::Backward => slots.end - 1 - i,
            };
            let cell = node.leaf_cell(slot);
            if self.is_past(cell.key) {
                next = None;
                break;
            }
            let Some(kept) = visible(engine, reader, cell)? else { continue };
            if !each(cell, kept) && i + 1 < slots.len() {
                next = Some(Start::Behind(cell.key.to_vec()));
                is_same_leaf = true;
                break;
            }
        }
        // Records that the view should see may have been purged from the leaf.
        if !is_broken(Rule::WalksAskTheView) {
            reader.check()?;
        }
        if !is_same_leaf && next.is_some() {
            self.run.step();
        }
        self.start = next;
        Ok(())
    }
}

/// Calls `each` with the records between the bounds that `reader` sees, in order, until it breaks. No
/// latch is held during the calls.
pub(crate) fn scan(
    engine: &TxnEngine,
    space: &Arc<Space>,
    reader: Reader<'_>,
    bounds: (Bound<&[u8]>, Bound<&[u8]>),
    direction: Direction,
    mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<()> {
    let mut walk = Walk::new(bounds, direction);
    let mut batch = Batch::default();
    while !walk.is_over() {
        walk.fill(engine, space, reader, BATCH_RECORDS, &mut batch)?;
        for at in 0..batch.len() {
            if each(batch.key(at), batch.value(at)).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}
