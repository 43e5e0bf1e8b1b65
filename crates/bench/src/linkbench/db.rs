//! The interface that LinkBench needs of a database. Each engine under test implements it.

use std::ops::ControlFlow;

use anyhow::anyhow;

use super::schema::{CountRow, count_key};
use crate::Measured;

/// The tables of the graph; [`Table::LinkByTime`] is the secondary index of [`Table::Link`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Nodes by id.
    Node,
    /// Links by (type, id1, id2).
    Link,
    /// Links by (id1, type, visibility, newest first, id2), covering.
    LinkByTime,
    /// Number of visible links by (id, type).
    Count,
}

impl Table {
    /// Every table.
    pub const ALL: [Table; 4] = [Table::Node, Table::Link, Table::LinkByTime, Table::Count];

    /// Its name in a store.
    pub fn name(self) -> &'static str {
        match self {
            Table::Node => "node",
            Table::Link => "link",
            Table::LinkByTime => "link_by_time",
            Table::Count => "count",
        }
    }
}

/// Why a call to a database failed.
#[derive(Debug)]
pub enum DbError {
    /// The transaction lost against another one (deadlock, conflict, lock timeout) and was rolled
    /// back; the same one may succeed when run again.
    Retry(String),
    /// Anything else.
    Fatal(anyhow::Error),
}

impl From<anyhow::Error> for DbError {
    fn from(error: anyhow::Error) -> DbError {
        DbError::Fatal(error)
    }
}

/// Result of a call to a database.
pub type DbResult<T> = Result<T, DbError>;

/// Called for each entry of a scan with key and value.
pub type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// A transaction at read committed or better, with row locks that are held to its end. Dropping it
/// without a commit rolls it back.
pub trait Txn {
    /// The value of `key`.
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>>;

    /// The newest value of `key`, locked against other writers (where the key exists).
    fn get_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>>;

    /// Sets the value of `key`.
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()>;

    /// Adds `key`; `false`, and no change, when it is there already. A database that sends rows in
    /// groups may say `true` and report the duplicate later, at the latest by the commit, as
    /// [`DbError::Retry`].
    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<bool>;

    /// Removes `key`; `false` when it was not there.
    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<bool>;

    /// Visits the entries with keys in `from .. to` in ascending order until `visit` breaks.
    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()>;

    /// Adds `by` to the number of visible links of the list `(id1, link_type)`, under the lock of its
    /// row, and dates it `time`. A database that has one statement for this overrides it.
    fn change_count(&mut self, list: (u64, u64), by: i64, time: u64) -> DbResult<()>
    where
        Self: Sized,
    {
        let key = count_key(list.0, list.1);
        match self.get_for_update(Table::Count, &key)? {
            Some(value) => {
                let old = CountRow::of_value(&value)?;
                let count = u32::try_from(i64::from(old.count) + by)
                    .map_err(|_| anyhow!("count of {list:?} leaves its range"))?;
                self.put(Table::Count, &key, &CountRow { count, time, version: old.version + 1 }.value())
            }
            None => {
                let count = u32::try_from(by).map_err(|_| anyhow!("list {list:?} has links but no count"))?;
                insert(self, Table::Count, &key, &CountRow { count, time, version: 0 }.value())
            }
        }
    }

    /// Makes the changes visible, and durable when it returns.
    fn commit(self) -> DbResult<()>;
}

/// Inserts a key that the transaction did not find; another one may have been faster.
pub(crate) fn insert(txn: &mut impl Txn, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
    if txn.insert(table, key, value)? {
        return Ok(());
    }
    Err(DbError::Retry(format!("a key of table {} appeared meanwhile", table.name())))
}

/// A database that holds the tables of the graph.
pub trait Db: Measured {
    /// Its transactions.
    type Txn<'db>: Txn
    where
        Self: 'db;

    /// Begins a transaction.
    fn begin(&self) -> DbResult<Self::Txn<'_>>;
}
