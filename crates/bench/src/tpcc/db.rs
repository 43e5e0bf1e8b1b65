//! The interface that the benchmark needs of a database.

use anyhow::{Result, anyhow};

use super::schema::{OrderLineRow, Row, Table};
use crate::{
    Measured,
    linkbench::{DbError, DbResult},
};

/// Called for each record of a scan with key and value.
pub type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'v;

/// A transaction at read committed or better, with row locks that are held to its end. Dropping it without a commit
/// rolls it back.
pub trait Txn: Sized {
    /// The value of a key.
    fn find(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>>;

    /// The newest value of a key, locked against other writers (where the key exists).
    fn find_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>>;

    /// Sets the value of a key that is there.
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()>;

    /// Adds a key that no other transaction can have added. A database may report a duplicate later, at the latest by
    /// the commit.
    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()>;

    /// Removes a key that must be there.
    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<()>;

    /// Visits the records whose keys begin with `start`, in order, until `visit` fails. `start` has whole columns, and
    /// may have none.
    fn scan(&mut self, table: Table, start: &[u8], visit: &mut Visit<'_>) -> DbResult<()>;

    /// Visits the records from `from` until before `to`, which differ in their last column alone.
    fn scan_between(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()>;

    /// The first key that begins with `start`.
    fn first(&mut self, table: Table, start: &[u8]) -> DbResult<Option<Vec<u8>>>;

    /// Makes the changes visible, and durable when it returns.
    fn commit(self) -> DbResult<()>;

    /// Undoes the changes.
    fn rollback(self) -> DbResult<()>;

    /// The value of a key that must be there.
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Vec<u8>> {
        self.find(table, key)?.ok_or_else(|| missing(table, key))
    }

    /// The newest value of a key that must be there, locked against other writers.
    fn get_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Vec<u8>> {
        self.find_for_update(table, key)?.ok_or_else(|| missing(table, key))
    }

    /// Dates the delivery of all lines of an order that the transaction has locked; returns the sum of their amounts.
    /// A database that has statements for that overrides it.
    fn deliver_lines(&mut self, order: &[u8], now: u64) -> DbResult<i64> {
        let mut lines = Vec::new();
        self.scan(Table::OrderLine, order, &mut |key, value| {
            lines.push((key.to_vec(), value.to_vec()));
            Ok(())
        })?;
        let mut total = 0;
        for (key, value) in lines {
            let line = OrderLineRow::of_value(&value)?;
            total += line.amount;
            self.put(Table::OrderLine, &key, &OrderLineRow { delivery: now, ..line }.value())?;
        }
        Ok(total)
    }
}

/// A database that holds the tables of the benchmark.
pub trait Db: Measured {
    /// Its transactions.
    type Txn<'db>: Txn
    where
        Self: 'db;

    /// Begins a transaction.
    fn begin(&self) -> DbResult<Self::Txn<'_>>;
}

/// The error for a key that must be there and is not.
pub(crate) fn missing(table: Table, key: &[u8]) -> DbError {
    DbError::Fatal(anyhow!("{} {key:02x?} is not there", table.name()))
}
