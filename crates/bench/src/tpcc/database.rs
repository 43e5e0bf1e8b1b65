//! The tables in a store of the engine.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use anyhow::{Result, anyhow};
use lacuna_device::Vfs;
use lacuna_engine::{Direction, Error, RowStats, Store, StoreOptions, TableOptions, TransactionOptions};

use super::{
    db::{Db, Txn, Visit, missing},
    schema::{Table, end_of},
};
use crate::{
    Footprint, Measured,
    engine::{classify, create_tables, open_tables},
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

    /// Counters of row compression since the store was opened.
    pub fn row_compression(&self) -> Result<RowStats> {
        Ok(self.store.stats()?.row)
    }

    /// Writes everything and stops the store.
    pub fn close(self) -> Result<()> {
        Ok(self.store.close()?)
    }
}

impl Db for Database {
    type Txn<'db> = EngineTxn<'db>;

    fn begin(&self) -> DbResult<EngineTxn<'_>> {
        let txn = self.store.begin_with(TransactionOptions::READ_COMMITTED);
        Ok(EngineTxn { txn, tables: &self.tables })
    }
}

impl Measured for Database {
    fn settle(&self) -> Result<()> {
        self.store.settle()
    }

    fn footprint(&self) -> Result<Footprint> {
        self.store.footprint()
    }

    fn page_traffic(&self) -> Result<Option<PageTraffic>> {
        self.store.page_traffic()
    }
}

/// A transaction of [`Database`].
pub struct EngineTxn<'db> {
    txn: lacuna_engine::Txn,
    tables: &'db [lacuna_engine::Table],
}

impl EngineTxn<'_> {
    fn table(&self, table: Table) -> &lacuna_engine::Table {
        &self.tables[table as usize]
    }

    fn visit(
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
}

impl Txn for EngineTxn<'_> {
    fn find(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.txn.get(self.table(table), key).map_err(classify)
    }

    fn find_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.txn.get_for_update(&self.tables[table as usize], key).map_err(classify)
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.txn.put(&self.tables[table as usize], key, value).map_err(classify)
    }

    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.txn.insert(&self.tables[table as usize], key, value).map_err(|error| match error {
            Error::KeyExists => DbError::Fatal(anyhow!("{} {key:02x?} is there already", table.name())),
            error => classify(error),
        })
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<()> {
        let existed = self.txn.delete(&self.tables[table as usize], key).map_err(classify)?;
        if existed { Ok(()) } else { Err(missing(table, key)) }
    }

    fn scan(&mut self, table: Table, start: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        let end = (!start.is_empty()).then(|| end_of(start));
        let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.visit(table, (Bound::Included(start), upper), |key, value| {
            visit(key, value).map(ControlFlow::Continue)
        })
    }

    fn scan_between(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        self.visit(table, (Bound::Included(from), Bound::Excluded(to)), |key, value| {
            visit(key, value).map(ControlFlow::Continue)
        })
    }

    fn first(&mut self, table: Table, start: &[u8]) -> DbResult<Option<Vec<u8>>> {
        let (end, mut first) = (end_of(start), None);
        self.visit(table, (Bound::Included(start), Bound::Excluded(&end)), |key, _| {
            first = Some(key.to_vec());
            Ok(ControlFlow::Break(()))
        })?;
        Ok(first)
    }

    fn commit(self) -> DbResult<()> {
        self.txn.commit().map_err(classify)
    }

    fn rollback(self) -> DbResult<()> {
        self.txn.rollback().map_err(classify)
    }
}
