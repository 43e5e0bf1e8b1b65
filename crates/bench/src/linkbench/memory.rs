//! A database for tests: ordered maps under one lock, transactions with undo, retries at random.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicU64, atomic::Ordering::Relaxed},
};

use super::db::{Db, DbError, DbResult, Table, Txn, Visit};
use crate::{Footprint, Measured};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The tables. Each transaction holds the only lock from begin to end.
#[derive(Debug, Default)]
pub(crate) struct MemoryDb {
    pub tables: Mutex<[Map; 4]>,
    pub calls: AtomicU64,
    /// Every so many calls lose; 0 for never.
    pub lose_every: u64,
    /// Every call fails from this one on; 0 for never.
    pub fail_from: u64,
}

pub(crate) struct MemoryTxn<'db> {
    db: &'db MemoryDb,
    tables: MutexGuard<'db, [Map; 4]>,
    undo: Vec<(Table, Vec<u8>, Option<Vec<u8>>)>,
}

impl MemoryDb {
    fn call(&self) -> DbResult<()> {
        let call = self.calls.fetch_add(1, Relaxed) + 1;
        if self.fail_from > 0 && call >= self.fail_from {
            return Err(DbError::Fatal(anyhow::anyhow!("the disk is on fire")));
        }
        if self.lose_every > 0 && call.is_multiple_of(self.lose_every) {
            return Err(DbError::Retry("lost by chance".to_owned()));
        }
        Ok(())
    }
}

impl Db for MemoryDb {
    type Txn<'db> = MemoryTxn<'db>;

    fn begin(&self) -> DbResult<MemoryTxn<'_>> {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(MemoryTxn { db: self, tables, undo: Vec::new() })
    }
}

impl Measured for MemoryDb {
    fn settle(&self) -> anyhow::Result<()> {
        Ok(())
    }

    fn footprint(&self) -> anyhow::Result<Footprint> {
        Ok(Footprint { device_written_bytes: self.calls.load(Relaxed), ..Footprint::default() })
    }
}

impl MemoryTxn<'_> {
    fn set(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) -> bool {
        let map = &mut self.tables[table as usize];
        let old = match value {
            Some(value) => map.insert(key.to_vec(), value.to_vec()),
            None => map.remove(key),
        };
        let existed = old.is_some();
        self.undo.push((table, key.to_vec(), old));
        existed
    }
}

impl Drop for MemoryTxn<'_> {
    fn drop(&mut self) {
        for (table, key, old) in self.undo.drain(..).rev() {
            match old {
                Some(value) => self.tables[table as usize].insert(key, value),
                None => self.tables[table as usize].remove(&key),
            };
        }
    }
}

impl Txn for MemoryTxn<'_> {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.db.call()?;
        Ok(self.tables[table as usize].get(key).cloned())
    }

    fn get_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.get(table, key)
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.db.call()?;
        self.set(table, key, Some(value));
        Ok(())
    }

    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<bool> {
        self.db.call()?;
        let free = !self.tables[table as usize].contains_key(key);
        if free {
            self.set(table, key, Some(value));
        }
        Ok(free)
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<bool> {
        self.db.call()?;
        Ok(self.set(table, key, None))
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        let range = (Bound::Included(from), Bound::Excluded(to));
        for (key, value) in self.tables[table as usize].range::<[u8], _>(range) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(mut self) -> DbResult<()> {
        self.db.call()?;
        self.undo.clear();
        Ok(())
    }
}
