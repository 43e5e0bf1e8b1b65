//! Lacuna's own engine behind the traits of the benchmarks.

use std::{ops::Bound, sync::Arc};

use anyhow::{Context, Result, bail};
use lacuna_device::Vfs;
use lacuna_engine::{Direction, Error, RowStats, Store, StoreOptions, TableOptions, TransactionOptions};

use crate::{
    Footprint, Measured,
    linkbench::{Db, DbError, DbResult, Table, Txn, Visit},
    page_traffic::PageTraffic,
};

/// A store of the engine with the tables of LinkBench.
pub struct EngineDb {
    store: Store,
    tables: Vec<lacuna_engine::Table>,
}

impl EngineDb {
    /// Opens the store in `vfs`, or makes one in an empty VFS, and makes the tables.
    ///
    /// # Errors
    /// When the tables are there already, and whatever the engine fails with.
    pub fn create(
        vfs: Arc<dyn Vfs>,
        store_options: StoreOptions,
        table_options: TableOptions,
    ) -> Result<EngineDb> {
        let names = Table::ALL.map(Table::name);
        let (store, tables) = create_tables(vfs, store_options, &names, table_options)?;
        Ok(EngineDb { store, tables })
    }

    /// Opens the store in `vfs`, which has the tables.
    ///
    /// # Errors
    /// When a table is missing, and whatever the engine fails with.
    pub fn open(vfs: Arc<dyn Vfs>, store_options: StoreOptions) -> Result<EngineDb> {
        let (store, tables) = open_tables(vfs, store_options, &Table::ALL.map(Table::name))?;
        Ok(EngineDb { store, tables })
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

impl Db for EngineDb {
    type Txn<'db> = EngineTxn<'db>;

    fn begin(&self) -> DbResult<EngineTxn<'_>> {
        // The isolation that LinkBench asks for and that servers run it with, so that its figures stay comparable.
        let txn = self.store.begin_with(TransactionOptions::READ_COMMITTED);
        Ok(EngineTxn { txn, tables: &self.tables })
    }
}

impl Measured for Store {
    fn settle(&self) -> Result<()> {
        Ok(self.checkpoint()?)
    }

    fn footprint(&self) -> Result<Footprint> {
        let vfs = self.stats()?.vfs;
        Ok(Footprint {
            logical_bytes: self.tables()?.iter().map(|table| table.file_bytes).sum(),
            allocated_bytes: vfs.allocated_bytes,
            store_bytes: vfs.store_bytes,
            device_written_bytes: vfs.device_written_bytes,
        })
    }

    fn page_traffic(&self) -> Result<Option<PageTraffic>> {
        Ok(Some(PageTraffic::of(self)?))
    }
}

impl Measured for EngineDb {
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

/// Opens the store in `vfs`, or makes one in an empty VFS, and makes the tables `names` in it. They come in the same
/// order.
///
/// # Errors
/// When one of them is there already, and whatever the engine fails with.
pub(crate) fn create_tables(
    vfs: Arc<dyn Vfs>,
    store_options: StoreOptions,
    names: &[&str],
    table_options: TableOptions,
) -> Result<(Store, Vec<lacuna_engine::Table>)> {
    let at = vfs.name().to_owned();
    let named = || at.clone();
    let store = Store::open(vfs, store_options).with_context(named)?;
    for name in names {
        if store.table(name).with_context(named)?.is_some() {
            bail!("{at}: holds the table {name} already; give another place, or remove this one's content");
        }
    }
    let make = |name: &&str| store.create_table(name, table_options).with_context(named);
    let tables = names.iter().map(make).collect::<Result<_>>()?;
    Ok((store, tables))
}

/// Opens the store in `vfs`, which has the tables `names`. They come in the same order.
///
/// # Errors
/// When one of them is missing, and whatever the engine fails with.
pub(crate) fn open_tables(
    vfs: Arc<dyn Vfs>,
    store_options: StoreOptions,
    names: &[&str],
) -> Result<(Store, Vec<lacuna_engine::Table>)> {
    let at = vfs.name().to_owned();
    let named = || at.clone();
    if vfs.list().with_context(named)?.is_empty() {
        bail!("{at}: holds no tables");
    }
    let store = Store::open(vfs, store_options).with_context(named)?;
    let find = |name: &&str| {
        let found = store.table(name).with_context(named)?;
        found.with_context(|| format!("{at}: holds no table {name}"))
    };
    let tables = names.iter().map(find).collect::<Result<_>>()?;
    Ok((store, tables))
}

/// A transaction of [`EngineDb`].
pub struct EngineTxn<'db> {
    txn: lacuna_engine::Txn,
    tables: &'db [lacuna_engine::Table],
}

/// Classifies an error of the engine for a client.
pub(crate) fn classify(error: Error) -> DbError {
    if error.is_retryable() { DbError::Retry(error.to_string()) } else { DbError::Fatal(error.into()) }
}

impl EngineTxn<'_> {
    fn table(&self, table: Table) -> &lacuna_engine::Table {
        &self.tables[table as usize]
    }
}

impl Txn for EngineTxn<'_> {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.txn.get(self.table(table), key).map_err(classify)
    }

    fn get_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.txn.get_for_update(&self.tables[table as usize], key).map_err(classify)
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.txn.put(&self.tables[table as usize], key, value).map_err(classify)
    }

    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<bool> {
        match self.txn.insert(&self.tables[table as usize], key, value) {
            Ok(()) => Ok(true),
            Err(Error::KeyExists) => Ok(false),
            Err(error) => Err(classify(error)),
        }
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<bool> {
        self.txn.delete(&self.tables[table as usize], key).map_err(classify)
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        let (lower, upper) = (Bound::Included(from), Bound::Excluded(to));
        self.txn.scan(self.table(table), lower, upper, Direction::Forward, visit).map_err(classify)
    }

    fn commit(self) -> DbResult<()> {
        self.txn.commit().map_err(classify)
    }
}
