//! LMDB: a copy-on-write B+tree in a mapped file, one writer at a time, every commit synced on its own.
//!
//! It has no cache of its own: the page cache is. `NO_READ_AHEAD`, as its documentation advises for data larger than
//! memory.

use std::{
    ops::Bound::{Excluded, Included, Unbounded},
    path::Path,
};

use anyhow::Result;
use heed::{
    Database, Env, EnvFlags, EnvOpenOptions, MdbError, PutFlags, RoTxn, RwTxn, WithTls, types::Bytes,
};
use lacuna_bench::linkbench::{DbResult, Table, Visit};

use crate::peer::{Peer, Read, Settings, Write, fatal};

type Tables = [Database<Bytes, Bytes>; 4];

pub(crate) struct Lmdb {
    env: Env,
    tables: Tables,
}

pub(crate) struct LmdbReader<'p> {
    txn: RoTxn<'p, WithTls>,
    tables: &'p Tables,
}

pub(crate) struct LmdbWriter<'p> {
    txn: RwTxn<'p>,
    tables: &'p Tables,
}

impl Peer for Lmdb {
    type Reader<'p> = LmdbReader<'p>;
    type Writer<'p> = LmdbWriter<'p>;

    fn open(directory: &Path, settings: &Settings) -> Result<Lmdb> {
        let mut options = EnvOpenOptions::new();
        // A multiple of the page.
        options.map_size(settings.size_bytes as usize & !0xFFFF);
        options.max_dbs(4);
        options.max_readers(settings.clients + 16);
        // SAFETY: no other process changes the files while they are mapped: the directory is this run's own. The flag
        // changes advice to the kernel only; none of those that give up durability or locks is set.
        #[allow(unsafe_code)]
        let env = unsafe { options.flags(EnvFlags::NO_READ_AHEAD).open(directory) }?;
        let mut txn = env.write_txn()?;
        let mut make = |table: Table| env.create_database(&mut txn, Some(table.name()));
        let [node, link, link_by_time, count] = Table::ALL.map(&mut make);
        let tables = [node?, link?, link_by_time?, count?];
        txn.commit()?;
        Ok(Lmdb { env, tables })
    }

    fn reader(&self) -> DbResult<LmdbReader<'_>> {
        Ok(LmdbReader { txn: self.env.read_txn().map_err(fatal)?, tables: &self.tables })
    }

    fn writer(&self) -> DbResult<LmdbWriter<'_>> {
        Ok(LmdbWriter { txn: self.env.write_txn().map_err(fatal)?, tables: &self.tables })
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }
}

fn get(tables: &Tables, txn: &RoTxn<'_>, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
    Ok(tables[table as usize].get(txn, key).map_err(fatal)?.map(<[u8]>::to_vec))
}

fn scan(
    tables: &Tables,
    txn: &RoTxn<'_>,
    table: Table,
    from: &[u8],
    to: &[u8],
    visit: &mut Visit<'_>,
) -> DbResult<()> {
    // No key is empty, and LMDB refuses to look for such a one.
    let lower = if from.is_empty() { Unbounded } else { Included(from) };
    for entry in tables[table as usize].range(txn, &(lower, Excluded(to))).map_err(fatal)? {
        let (key, value) = entry.map_err(fatal)?;
        if visit(key, value).is_break() {
            break;
        }
    }
    Ok(())
}

impl Read for LmdbReader<'_> {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        get(self.tables, &self.txn, table, key)
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        scan(self.tables, &self.txn, table, from, to, visit)
    }
}

impl Read for LmdbWriter<'_> {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        get(self.tables, &self.txn, table, key)
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        scan(self.tables, &self.txn, table, from, to, visit)
    }
}

impl Write for LmdbWriter<'_> {
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.tables[table as usize].put(&mut self.txn, key, value).map_err(fatal)
    }

    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<bool> {
        let table = &self.tables[table as usize];
        match table.put_with_flags(&mut self.txn, PutFlags::NO_OVERWRITE, key, value) {
            Ok(()) => Ok(true),
            Err(heed::Error::Mdb(MdbError::KeyExist)) => Ok(false),
            Err(error) => Err(fatal(error)),
        }
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<bool> {
        self.tables[table as usize].delete(&mut self.txn, key).map_err(fatal)
    }

    fn commit(self) -> DbResult<()> {
        self.txn.commit().map_err(fatal)
    }
}
