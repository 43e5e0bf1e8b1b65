//! Lacuna's own engine behind the traits of the benchmarks.

use std::{ops::Bound, sync::Arc};

use anyhow::{Context, Result, bail};
use lacuna_device::Place;
use lacuna_engine::{Direction, Error, Store, StoreOptions, TableOptions, TransactionOptions};

use crate::{
    Footprint, Measured, RowCompression,
    linkbench::{Db, DbError, DbResult, Table, Txn, Visit},
};

/// A store of the engine with the tables of LinkBench.
pub struct EngineDb {
    store: Store,
    tables: [lacuna_engine::Table; 4],
}

impl EngineDb {
    /// Opens the store in `place`, or makes one in an empty place, and makes the tables.
    ///
    /// # Errors
    /// When the tables are there already, and whatever the engine fails with.
    pub fn create(
        place: Arc<dyn Place>,
        store_options: StoreOptions,
        table_options: TableOptions,
    ) -> Result<EngineDb> {
        let name = place.name().to_owned();
        let named = || name.clone();
        let store = Store::open(place, store_options).with_context(named)?;
        for table in Table::ALL {
            if store.table(table.name()).with_context(named)?.is_some() {
                bail!(
                    "{name}: holds the table {} already; give another place, or remove this one's content",
                    table.name()
                );
            }
        }
        let make = |table: Table| store.create_table(table.name(), table_options).with_context(named);
        let [node, link, link_by_time, count] = Table::ALL.map(make);
        let tables = [node?, link?, link_by_time?, count?];
        Ok(EngineDb { store, tables })
    }

    /// Opens the store in `place`, which has the tables.
    ///
    /// # Errors
    /// When a table is missing, and whatever the engine fails with.
    pub fn open(place: Arc<dyn Place>, store_options: StoreOptions) -> Result<EngineDb> {
        let name = place.name().to_owned();
        let named = || name.clone();
        if place.list().with_context(named)?.is_empty() {
            bail!("{name}: holds no tables");
        }
        let store = Store::open(place, store_options).with_context(named)?;
        let find = |table: Table| {
            let found = store.table(table.name()).with_context(named)?;
            found.with_context(|| format!("{name}: holds no table {}", table.name()))
        };
        let [node, link, link_by_time, count] = Table::ALL.map(find);
        let tables = [node?, link?, link_by_time?, count?];
        Ok(EngineDb { store, tables })
    }

    /// What row compression did since the store was opened.
    pub fn row_compression(&self) -> Result<RowCompression> {
        RowCompression::of(&self.store)
    }

    /// Writes everything and stops the store.
    pub fn close(self) -> Result<()> {
        Ok(self.store.close()?)
    }
}

impl Db for EngineDb {
    type Txn<'db> = EngineTxn<'db>;

    fn begin(&self) -> DbResult<EngineTxn<'_>> {
        // What LinkBench asks for, and what servers run it with; its figures stay comparable.
        let txn = self.store.begin_with(TransactionOptions::READ_COMMITTED);
        Ok(EngineTxn { txn, tables: &self.tables })
    }
}

impl Measured for EngineDb {
    fn settle(&self) -> Result<()> {
        Ok(self.store.checkpoint()?)
    }

    fn footprint(&self) -> Result<Footprint> {
        footprint(&self.store)
    }
}

/// Sizes and traffic of a store.
pub(crate) fn footprint(store: &Store) -> Result<Footprint> {
    let place = store.stats()?.place;
    Ok(Footprint {
        logical_bytes: store.tables()?.iter().map(|table| table.file_bytes).sum(),
        allocated_bytes: place.allocated_bytes,
        store_bytes: place.store_bytes,
        device_written_bytes: place.device_written_bytes,
    })
}

/// A transaction of [`EngineDb`].
pub struct EngineTxn<'db> {
    txn: lacuna_engine::Txn,
    tables: &'db [lacuna_engine::Table; 4],
}

/// What an error of the engine means to a client.
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
