//! redb: a copy-on-write B+tree in a file, one writer at a time, every commit synced on its own
//! (`Durability::Immediate`, its default).
//!
//! Its cache gets the whole pool; it reads and writes through the page cache as well.

use std::path::Path;

use anyhow::Result;
use lacuna_bench::linkbench::{DbResult, Table, Visit};
use redb::{
    Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError,
    WriteTransaction,
};
use self_cell::self_cell;

use crate::peer::{Peer, Read, Settings, Write, fatal};

type Bytes = &'static [u8];
type OpenTables<'t> = [Option<redb::Table<'t, Bytes, Bytes>>; 4];

fn definition(table: Table) -> TableDefinition<'static, Bytes, Bytes> {
    TableDefinition::new(table.name())
}

pub(crate) struct Redb {
    db: Database,
}

/// Tables are opened when they are first read.
pub(crate) struct RedbReader {
    txn: ReadTransaction,
    tables: [Option<ReadOnlyTable<Bytes, Bytes>>; 4],
}

self_cell!(
    struct Writing {
        owner: WriteTransaction,
        #[not_covariant]
        dependent: OpenTables,
    }
);

/// A transaction and those of its tables that were used: opening one for each row would cost more than the row.
pub(crate) struct RedbWriter(Writing);

impl Peer for Redb {
    type Reader<'p> = RedbReader;
    type Writer<'p> = RedbWriter;

    fn open(directory: &Path, settings: &Settings) -> Result<Redb> {
        let mut builder = Database::builder();
        builder.set_cache_size(settings.pool_bytes as usize);
        let db = builder.create(directory.join("tables.redb"))?;
        let txn = db.begin_write()?;
        for table in Table::ALL {
            txn.open_table(definition(table))?;
        }
        txn.commit()?;
        Ok(Redb { db })
    }

    fn reader(&self) -> DbResult<RedbReader> {
        Ok(RedbReader { txn: self.db.begin_read().map_err(fatal)?, tables: Default::default() })
    }

    fn writer(&self) -> DbResult<RedbWriter> {
        let txn = self.db.begin_write().map_err(fatal)?;
        Ok(RedbWriter(Writing::new(txn, |_| Default::default())))
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }
}

fn get(table: &impl ReadableTable<Bytes, Bytes>, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
    Ok(table.get(key).map_err(fatal)?.map(|value| value.value().to_vec()))
}

fn scan(
    table: &impl ReadableTable<Bytes, Bytes>,
    from: &[u8],
    to: &[u8],
    visit: &mut Visit<'_>,
) -> DbResult<()> {
    for entry in table.range::<&[u8]>(from..to).map_err(fatal)? {
        let (key, value) = entry.map_err(fatal)?;
        if visit(key.value(), value.value()).is_break() {
            break;
        }
    }
    Ok(())
}

impl RedbReader {
    fn table(&mut self, table: Table) -> DbResult<&ReadOnlyTable<Bytes, Bytes>> {
        match &mut self.tables[table as usize] {
            Some(open) => Ok(open),
            closed => Ok(closed.insert(self.txn.open_table(definition(table)).map_err(fatal)?)),
        }
    }
}

impl RedbWriter {
    fn on<T>(
        &mut self,
        table: Table,
        work: impl FnOnce(&mut redb::Table<'_, Bytes, Bytes>) -> DbResult<T>,
    ) -> DbResult<T> {
        self.0.with_dependent_mut(|txn, tables| match &mut tables[table as usize] {
            Some(open) => work(open),
            closed => {
                let open: Result<_, TableError> = txn.open_table(definition(table));
                work(closed.insert(open.map_err(fatal)?))
            }
        })
    }
}

impl Read for RedbReader {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        get(self.table(table)?, key)
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        scan(self.table(table)?, from, to, visit)
    }
}

impl Read for RedbWriter {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.on(table, |table| get(table, key))
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        self.on(table, |table| scan(table, from, to, visit))
    }
}

impl Write for RedbWriter {
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.on(table, |table| {
            table.insert(key, value).map_err(fatal)?;
            Ok(())
        })
    }

    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<bool> {
        self.on(table, |table| {
            let is_new = table.get(key).map_err(fatal)?.is_none();
            if is_new {
                table.insert(key, value).map_err(fatal)?;
            }
            Ok(is_new)
        })
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<bool> {
        self.on(table, |table| Ok(table.remove(key).map_err(fatal)?.is_some()))
    }

    fn commit(self) -> DbResult<()> {
        self.0.into_owner().commit().map_err(fatal)
    }
}
