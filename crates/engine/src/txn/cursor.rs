//! Cursors: a position among the keys of a table that outlasts writes of the same transaction.
//!
//! A cursor holds a position and a batch of records that it has copied, and borrows the transaction for each step only.
//! So the transaction may write in between. Its writes are seen: a batch is valid for the state of one transaction, and
//! any write invalidates it. The next step then seeks its position again, by key.

use std::{ops::Bound, sync::Arc};

use super::{
    Txn,
    batch::{BATCH_RECORDS, Batch, Walk},
    records::{FIRST_BATCH, Record, renewed},
};
use crate::{
    btree::Direction,
    mutant::{Rule, is_broken},
    txn::Table,
    types::Result,
};

/// Records of a batch after a write: the next write likely invalidates it.
const BATCH_BEHIND_WRITE: usize = 4;

/// A position among the records of a table, from which it moves in either direction.
///
/// Each step borrows a transaction, which may be written to between two steps: the next step sees that. It moves to the
/// nearest record after the key where the cursor stands, or before it, whether that key is still there or not. A cursor
/// may also go on in another transaction of the same store. At read committed, records that others commit close after
/// its position may be seen late, as a step may have copied the records there before.
///
/// No latch is held between two steps, so a cursor delays no other transaction, and never fails because others split
/// and merge pages. While a transaction lives that a cursor has read in, the table cannot be dropped.
///
/// ```
/// # use lacuna_device::MemVfs;
/// # use lacuna_engine::{Error, Store, StoreOptions, TableOptions};
/// # let store = Store::open(MemVfs::new(), StoreOptions::default())?;
/// # let table = store.create_table("t", TableOptions::default())?;
/// let mut txn = store.begin();
/// for key in 0..10u8 {
///     txn.put(&table, &[key], &[key])?;
/// }
/// let mut cursor = table.cursor();
/// while let Some(record) = cursor.next(&txn)? {
///     if record.value()[0] % 2 == 1 {
///         txn.delete(&table, record.key())?;
///     }
/// }
/// assert_eq!(cursor.seek(&txn, &[3])?.expect("the next one").key(), [4]);
/// assert_eq!(cursor.prev(&txn)?.expect("one before").key(), [2]);
/// # Ok::<(), Error>(())
/// ```
pub struct Cursor {
    table: Table,
    position: Position,
    /// The key that the position refers to, where it needs one.
    key: Vec<u8>,
    copied: Option<Copied>,
    batch: Arc<Batch>,
}

/// Where a cursor stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Before all records.
    Start,
    /// Behind all records.
    End,
    /// On the record with its key, if that still exists.
    On,
    /// Between that key, or where it would be, and the record before it.
    Before,
    /// Between that key and the record after it.
    Behind,
}

/// The part of the batch that is valid.
struct Copied {
    walk: Walk<Vec<u8>>,
    direction: Direction,
    /// The transaction, and the number of its changes then.
    stamp: (u64, u64),
    /// The record on which the cursor stands.
    at: usize,
    records_max: usize,
}

impl Table {
    /// A cursor before the first record.
    pub fn cursor(&self) -> Cursor {
        let batch = Arc::default();
        Cursor { table: self.clone(), position: Position::Start, key: Vec::new(), copied: None, batch }
    }
}

impl Cursor {
    /// Moves to the next record, at first the one with the least key. `None` at the end; the cursor then stands after
    /// the last record, and a record that is written there later is the next one.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld), [`Error::TableDropped`](crate::Error::TableDropped),
    /// [`Error::Closed`](crate::Error::Closed), [`Error::WrongStore`](crate::Error::WrongStore). The cursor stands
    /// where it did.
    pub fn next(&mut self, txn: &Txn) -> Result<Option<Record>> {
        self.step(txn, Direction::Forward)
    }

    /// Moves to the record before, at the end to the last one. `None` at the start, before which the cursor then
    /// stands.
    ///
    /// # Errors
    /// Those of [`Cursor::next`].
    pub fn prev(&mut self, txn: &Txn) -> Result<Option<Record>> {
        self.step(txn, Direction::Backward)
    }

    /// Moves to the record with the least key.
    ///
    /// # Errors
    /// Those of [`Cursor::next`].
    pub fn first(&mut self, txn: &Txn) -> Result<Option<Record>> {
        self.stand(Position::Start, &[]);
        self.next(txn)
    }

    /// Moves to the record with the greatest key.
    ///
    /// # Errors
    /// Those of [`Cursor::next`].
    pub fn last(&mut self, txn: &Txn) -> Result<Option<Record>> {
        self.stand(Position::End, &[]);
        self.prev(txn)
    }

    /// Moves to the first record whose key is `key` or greater. Without one the cursor stands where `key` would be.
    ///
    /// # Errors
    /// Those of [`Cursor::next`].
    pub fn seek(&mut self, txn: &Txn, key: &[u8]) -> Result<Option<Record>> {
        self.stand(Position::Before, key);
        self.next(txn)
    }

    /// Moves to the last record whose key is `key` or less. Without one the cursor stands where `key` would be.
    ///
    /// # Errors
    /// Those of [`Cursor::next`].
    pub fn seek_back(&mut self, txn: &Txn, key: &[u8]) -> Result<Option<Record>> {
        self.stand(Position::Behind, key);
        self.prev(txn)
    }

    fn stand(&mut self, position: Position, key: &[u8]) {
        self.position = position;
        self.key.clear();
        self.key.extend_from_slice(key);
        self.copied = None;
    }

    /// Where a walk in that direction starts.
    fn start(&self, direction: Direction) -> Option<Bound<Vec<u8>>> {
        use Direction::{Backward, Forward};
        match (self.position, direction) {
            (Position::Start, Forward) | (Position::End, Backward) => Some(Bound::Unbounded),
            (Position::Start, Backward) | (Position::End, Forward) => None,
            (Position::Before, Forward) | (Position::Behind, Backward) => {
                Some(Bound::Included(self.key.clone()))
            }
            (Position::On, _) | (Position::Before, Backward) | (Position::Behind, Forward) => {
                Some(Bound::Excluded(self.key.clone()))
            }
        }
    }

    fn step(&mut self, txn: &Txn, direction: Direction) -> Result<Option<Record>> {
        txn.engine.poison.check_open()?;
        let stamp = (txn.serial, txn.changes);
        let was_changed = self.copied.as_ref().is_some_and(|copied| copied.stamp != stamp);
        let is_good = |copied: &Copied| {
            copied.direction == direction
                && (copied.stamp == stamp || is_broken(Rule::CursorsLookAgain) && copied.stamp.0 == stamp.0)
        };
        let mut copied = match self.copied.take().filter(is_good) {
            Some(mut copied) if copied.at + 1 < self.batch.len() => {
                copied.at += 1;
                return Ok(Some(self.stand_on(copied)));
            }
            Some(copied) if !copied.walk.is_over() => copied,
            _ => {
                let Some(from) = self.start(direction) else { return Ok(None) };
                let bounds = match direction {
                    Direction::Forward => (from, Bound::Unbounded),
                    Direction::Backward => (Bound::Unbounded, from),
                };
                let records_max = if was_changed { BATCH_BEHIND_WRITE } else { FIRST_BATCH };
                Copied { walk: Walk::new(bounds, direction), direction, stamp, at: 0, records_max }
            }
        };
        let batch = renewed(&mut self.batch);
        txn.copy_next(&self.table, &mut copied.walk, copied.records_max, batch)?;
        if batch.len() == 0 {
            self.pass(direction);
            return Ok(None);
        }
        copied.records_max = (copied.records_max * 2).min(BATCH_RECORDS);
        copied.at = 0;
        Ok(Some(self.stand_on(copied)))
    }

    fn stand_on(&mut self, copied: Copied) -> Record {
        let record = Record::new(&self.batch, copied.at);
        self.stand(Position::On, record.key());
        self.copied = Some(copied);
        record
    }

    /// There was no record any more in that direction.
    fn pass(&mut self, direction: Direction) {
        self.position = match (self.position, direction) {
            (Position::On, Direction::Forward) => Position::Behind,
            (Position::On, Direction::Backward) => Position::Before,
            (position, _) => position,
        };
    }
}
