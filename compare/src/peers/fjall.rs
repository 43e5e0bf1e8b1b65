//! fjall: a log-structured merge tree with optimistic transactions, every commit synced on its own (the journal is
//! locked meanwhile).
//!
//! Three quarters of the pool are block cache, the rest memtables; files are read and written through the page cache.
//! A transaction that read what another one changed meanwhile loses at its commit.

use std::{path::Path, thread, time::Duration};

use anyhow::{Result, bail};
use fjall::{
    CompressionType, KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, PersistMode,
    Readable, Snapshot, config::CompressionPolicy,
};
use lacuna_bench::linkbench::{DbError, DbResult, Table, Visit};

use crate::peer::{Compression, Peer, Read, Settings, Write, fatal};

type Tables = [OptimisticTxKeyspace; 4];

pub(crate) struct Fjall {
    db: OptimisticTxDatabase,
    tables: Tables,
}

/// A view, or a transaction.
pub(crate) struct FjallTxn<'p, T> {
    txn: T,
    tables: &'p Tables,
}

impl Peer for Fjall {
    type Reader<'p> = FjallTxn<'p, Snapshot>;
    type Writer<'p> = FjallTxn<'p, fjall::OptimisticWriteTx>;

    fn open(directory: &Path, settings: &Settings) -> Result<Fjall> {
        let options = KeyspaceCreateOptions::default().max_memtable_size(settings.pool_bytes / 16);
        let options = match settings.compression {
            None => options,
            Some(Compression::None) => {
                options.data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
            }
            Some(Compression::Lz4) => {
                options.data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
            }
            Some(Compression::Zstd | Compression::Lz4Blobs) => bail!("fjall offers lz4 and none"),
        };
        let builder = OptimisticTxDatabase::builder(directory.join("tables"));
        let db = builder.cache_size(settings.pool_bytes / 4 * 3).open()?;
        let make = |table: Table| db.keyspace(table.name(), || options.clone());
        let [node, link, link_by_time, count] = Table::ALL.map(make);
        let tables = [node?, link?, link_by_time?, count?];
        Ok(Fjall { db, tables })
    }

    fn reader(&self) -> DbResult<Self::Reader<'_>> {
        Ok(FjallTxn { txn: self.db.read_tx(), tables: &self.tables })
    }

    fn writer(&self) -> DbResult<Self::Writer<'_>> {
        let txn = self.db.write_tx().map_err(fatal)?.durability(Some(PersistMode::SyncData));
        Ok(FjallTxn { txn, tables: &self.tables })
    }

    fn settle(&self) -> Result<()> {
        for table in &self.tables {
            table.inner().rotate_memtable_and_wait()?;
        }
        while self.db.inner().outstanding_flushes() + self.db.inner().active_compactions() > 0 {
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl<T: Readable> Read for FjallTxn<'_, T> {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        let value = self.txn.get(&self.tables[table as usize], key).map_err(fatal)?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        for entry in self.txn.range(&self.tables[table as usize], from..to) {
            let (key, value) = entry.into_inner().map_err(fatal)?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Write for FjallTxn<'_, fjall::OptimisticWriteTx> {
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.txn.insert(&self.tables[table as usize], key, value);
        Ok(())
    }

    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<bool> {
        let table = &self.tables[table as usize];
        let is_new = !self.txn.contains_key(table, key).map_err(fatal)?;
        if is_new {
            self.txn.insert(table, key, value);
        }
        Ok(is_new)
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<bool> {
        let table = &self.tables[table as usize];
        let was_there = self.txn.contains_key(table, key).map_err(fatal)?;
        if was_there {
            self.txn.remove(table, key);
        }
        Ok(was_there)
    }

    fn commit(self) -> DbResult<()> {
        let outcome = self.txn.commit().map_err(fatal)?;
        outcome.map_err(|conflict| DbError::Retry(conflict.to_string()))
    }
}
