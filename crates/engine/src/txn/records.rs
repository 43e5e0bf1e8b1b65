//! Iterators over the records of a transaction's view.

use std::{fmt, iter::FusedIterator, ops::Bound, sync::Arc};

use super::{
    Txn,
    batch::{BATCH_RECORDS, Batch, Walk},
    bounds::{KeyRange, prefix_end},
};
use crate::{btree::Direction, txn::Table, types::Result};

/// Records that the first batch takes: many ranges are short, or abandoned early.
pub(super) const FIRST_BATCH: usize = 16;

/// A record as the transaction sees it. It shares the memory of a batch of up to 128 records, which it keeps.
#[derive(Clone)]
pub struct Record {
    batch: Arc<Batch>,
    at: usize,
}

impl Record {
    pub(super) fn new(batch: &Arc<Batch>, at: usize) -> Record {
        Record { batch: batch.clone(), at }
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        self.batch.key(self.at)
    }

    /// The value.
    pub fn value(&self) -> &[u8] {
        self.batch.value(self.at)
    }

    /// Copies of key and value.
    pub fn to_pair(&self) -> (Vec<u8>, Vec<u8>) {
        (self.key().to_vec(), self.value().to_vec())
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("key", &self.key()).field("value", &self.value()).finish()
    }
}

/// The records of a range, in the order of their keys, or from the end by [`Iterator::rev`] or
/// [`DoubleEndedIterator::next_back`]. Made by [`Txn::range`].
///
/// No latch is held between two steps. At read committed each record is the version that was committed, or the
/// transaction's own, when its leaf was read. After an error there are no more records.
pub struct Records<'t> {
    txn: &'t Txn,
    table: &'t Table,
    front: End,
    back: End,
    is_over: bool,
}

/// One end of a range.
struct End {
    walk: Walk<Vec<u8>>,
    batch: Arc<Batch>,
    /// The next record of the batch.
    at: usize,
    records_max: usize,
    /// The key that this end gave out last: the other one stops before it.
    last: Option<Vec<u8>>,
}

impl End {
    fn new(bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>), direction: Direction) -> End {
        let batch = Arc::default();
        End { walk: Walk::new(bounds, direction), batch, at: 0, records_max: FIRST_BATCH, last: None }
    }

    fn next(&mut self, txn: &Txn, table: &Table) -> Result<Option<Record>> {
        txn.engine.poison.check_open()?;
        if self.at == self.batch.len() {
            self.at = 0;
            let batch = renewed(&mut self.batch);
            txn.copy_next(table, &mut self.walk, self.records_max, batch)?;
            self.records_max = (self.records_max * 2).min(BATCH_RECORDS);
            if batch.len() == 0 {
                return Ok(None);
            }
        }
        let record = Record::new(&self.batch, self.at);
        self.at += 1;
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(record.key());
        Ok(Some(record))
    }
}

/// The batch, or another one where records still use it.
pub(super) fn renewed(batch: &mut Arc<Batch>) -> &mut Batch {
    if Arc::get_mut(batch).is_none() {
        *batch = Arc::default();
    }
    Arc::get_mut(batch).expect("nobody else has it")
}

impl Records<'_> {
    fn step(&mut self, direction: Direction) -> Option<Result<Record>> {
        if self.is_over {
            return None;
        }
        let (this, other) = match direction {
            Direction::Forward => (&mut self.front, &self.back),
            Direction::Backward => (&mut self.back, &self.front),
        };
        let outcome = this.next(self.txn, self.table).map(|record| {
            record.filter(|record| match (&other.last, direction) {
                (None, _) => true,
                (Some(last), Direction::Forward) => record.key() < &last[..],
                (Some(last), Direction::Backward) => record.key() > &last[..],
            })
        });
        self.is_over = !matches!(outcome, Ok(Some(_)));
        outcome.transpose()
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        self.step(Direction::Forward)
    }
}

impl DoubleEndedIterator for Records<'_> {
    fn next_back(&mut self) -> Option<Result<Record>> {
        self.step(Direction::Backward)
    }
}

impl FusedIterator for Records<'_> {}

impl Txn {
    /// The records of a range of keys, in order; `.rev()` gives them from the end. While the iterator lives the
    /// transaction cannot be written to: a [`Cursor`](crate::Cursor) allows that.
    ///
    /// ```
    /// # use lacuna_device::MemVfs;
    /// # use lacuna_engine::{Error, Store, StoreOptions, TableOptions};
    /// # let store = Store::open(MemVfs::new(), StoreOptions::default())?;
    /// # let table = store.create_table("t", TableOptions::default())?;
    /// let mut txn = store.begin();
    /// for name in ["ada", "bob", "eve", "zoe"] {
    ///     txn.put(&table, name.as_bytes(), b"")?;
    /// }
    /// let mut names = Vec::new();
    /// for record in txn.range(&table, "b"..)?.rev() {
    ///     names.push(String::from_utf8_lossy(record?.key()).into_owned());
    /// }
    /// assert_eq!(names, ["zoe", "eve", "bob"]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TableDropped`](crate::Error::TableDropped), [`Error::Closed`](crate::Error::Closed). Each step may
    /// fail with [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld).
    pub fn range<'t>(&'t self, table: &'t Table, range: impl KeyRange) -> Result<Records<'t>> {
        let (lower, upper) = range.key_bounds();
        self.records(table, (lower.map(<[u8]>::to_vec), upper.map(<[u8]>::to_vec)))
    }

    /// The records whose keys begin with `prefix`, like [`Txn::range`].
    ///
    /// # Errors
    /// Those of [`Txn::range`].
    pub fn prefix<'t>(&'t self, table: &'t Table, prefix: impl AsRef<[u8]>) -> Result<Records<'t>> {
        let prefix = prefix.as_ref();
        self.records(table, (Bound::Included(prefix.to_vec()), prefix_end(prefix)))
    }

    fn records<'t>(
        &'t self,
        table: &'t Table,
        bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    ) -> Result<Records<'t>> {
        self.space(table)?;
        let front = End::new(bounds.clone(), Direction::Forward);
        Ok(Records { txn: self, table, front, back: End::new(bounds, Direction::Backward), is_over: false })
    }

    /// The record with the least key.
    ///
    /// # Errors
    /// Those of [`Txn::range`].
    pub fn first(&self, table: &Table) -> Result<Option<Record>> {
        self.range(table, ..)?.next().transpose()
    }

    /// The record with the greatest key.
    ///
    /// # Errors
    /// Those of [`Txn::range`].
    pub fn last(&self, table: &Table) -> Result<Option<Record>> {
        self.range(table, ..)?.next_back().transpose()
    }

    /// Counts the records of a range of keys in the transaction's view, by reading their leaves.
    /// [`Table::estimated_count`] is fast, and not exact.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld).
    pub fn count(&self, table: &Table, range: impl KeyRange) -> Result<u64> {
        let space = self.space(table)?;
        Walk::new(range.key_bounds(), Direction::Forward).count(&self.engine, &space, self.reader())
    }

    /// Copies the next records of a walk.
    pub(super) fn copy_next<K: AsRef<[u8]>>(
        &self,
        table: &Table,
        walk: &mut Walk<K>,
        records_max: usize,
        batch: &mut Batch,
    ) -> Result<()> {
        let space = self.space(table)?;
        self.engine.flusher.throttle_memory()?;
        walk.fill(&self.engine, &space, self.reader(), records_max, batch)
    }
}
