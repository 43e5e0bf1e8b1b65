//! The tables in a store of the engine.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use anyhow::{Result, anyhow};
use lacuna_device::Vfs;
use lacuna_engine::{Direction, Error, RowStats, Store, StoreOptions, TableOptions, TransactionOptions};

use super::schema::{Table, end_of};
use crate::{
    Footprint, Measured,
    engine::{classify, create_tables, footprint, open_tables},
    linkbench::{DbError, DbResult},
    page_traffic::PageTraffic,
};

/// A store with the tables of the benchmark.
pub struct Database {
    store: Store,
    tables: Vec<lacuna_engine::Table>,
}

impl Database {
    /// Opens the store in `vfs`, or makes one in an empty VFS, and makes the tables.
    ///
    /// # Errors
    /// When the tables are there already, and whatever the engine fails with.
    pub fn create(
        vfs: Arc<dyn Vfs>,
        store_options: StoreOptions,
        table_options: TableOptions,
    ) -> Result<Database> {
        let names = Table::ALL.map(Table::name);
        let (store, tables) = create_tables(vfs, store_options, &names, table_options)?;
        Ok(Database { store, tables })
    }

    /// Opens the store in `vfs`, which has the tables.
    ///
    /// # Errors
    /// When a table is missing, and whatever the engine fails with.
    pub fn open(vfs: Arc<dyn Vfs>, store_options: StoreOptions) -> Result<Database> {
        let (store, tables) = open_tables(vfs, store_options, &Table::ALL.map(Table::name))?;
        Ok(Database { store, tables })
    }

    pub(crate) fn begin(&self) -> Txn<'_> {
        Txn { txn: self.store.begin_with(TransactionOptions::READ_COMMITTED), tables: &self.tables }
    }

    /// Counters of row compression since the store was opened.
    pub fn row_compression(&self) -> Result<RowStats> {
        Ok(self.store.stats()?.row)
    }

    /// Writes everything and stops the store.
    pub fn close(self) -> Result<()> {
        Ok(self.store.close()?)
    }
}

impl Measured for Database {
    fn settle(&self) -> Result<()> {
        Ok(self.store.checkpoint()?)
    }

    fn footprint(&self) -> Result<Footprint> {
        footprint(&self.store)
    }

    fn page_traffic(&self) -> Result<Option<PageTraffic>> {
        Ok(Some(PageTraffic::of(&self.store)?))
    }
}

/// A transaction; dropping it rolls it back.
pub(crate) struct Txn<'db> {
    txn: lacuna_engine::Txn,
    tables: &'db [lacuna_engine::Table],
}

impl Txn<'_> {
    fn table(&self, table: Table) -> &lacuna_engine::Table {
        &self.tables[table as usize]
    }

    /// The value of a key that must be there.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> DbResult<Vec<u8>> {
        self.find(table, key)?.ok_or_else(|| missing(table, key))
    }

    pub(crate) fn find(&self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.txn.get(self.table(table), key).map_err(classify)
    }

    /// The newest value of a key that must be there, locked against other writers.
    pub(crate) fn get_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Vec<u8>> {
        self.find_for_update(table, key)?.ok_or_else(|| missing(table, key))
    }

    pub(crate) fn find_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.txn.get_for_update(&self.tables[table as usize], key).map_err(classify)
    }

    pub(crate) fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.txn.put(&self.tables[table as usize], key, value).map_err(classify)
    }

    /// Adds a key that no other transaction can have added.
    pub(crate) fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.txn.insert(&self.tables[table as usize], key, value).map_err(|error| match error {
            Error::KeyExists => DbError::Fatal(anyhow!("{} {key:02x?} is there already", table.name())),
            error => classify(error),
        })
    }

    /// Removes a key that must be there.
    pub(crate) fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<()> {
        let existed = self.txn.delete(&self.tables[table as usize], key).map_err(classify)?;
        if existed { Ok(()) } else { Err(missing(table, key)) }
    }

    /// Calls `visit` with the records whose keys begin with `start`, in order, until it fails or breaks.
    pub(crate) fn scan(
        &self,
        table: Table,
        start: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
    ) -> DbResult<()> {
        let end = end_of(start);
        self.scan_range(table, (Bound::Included(start), Bound::Excluded(&end)), visit)
    }

    pub(crate) fn scan_range(
        &self,
        table: Table,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
    ) -> DbResult<()> {
        let mut failure = None;
        self.txn
            .scan(self.table(table), lower, upper, Direction::Forward, |key, value| {
                visit(key, value).unwrap_or_else(|error| {
                    failure = Some(error);
                    ControlFlow::Break(())
                })
            })
            .map_err(classify)?;
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// The first key that begins with `start`.
    pub(crate) fn first(&self, table: Table, start: &[u8]) -> DbResult<Option<Vec<u8>>> {
        let mut first = None;
        self.scan(table, start, |key, _| {
            first = Some(key.to_vec());
            Ok(ControlFlow::Break(()))
        })?;
        Ok(first)
    }

    pub(crate) fn commit(self) -> DbResult<()> {
        self.txn.commit().map_err(classify)
    }

    pub(crate) fn rollback(self) -> DbResult<()> {
        self.txn.rollback().map_err(classify)
    }
}

fn missing(table: Table, key: &[u8]) -> DbError {
    DbError::Fatal(anyhow!("{} {key:02x?} is not there", table.name()))
}
