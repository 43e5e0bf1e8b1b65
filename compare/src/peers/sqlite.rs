//! SQLite: B-trees in a file with a write-ahead log, one writer at a time, every commit synced on its own
//! (`synchronous=FULL`).
//!
//! Each table has its key as primary key, `WITHOUT ROWID`, so that it is one tree. Each requester has a connection of
//! its own; writers queue up at a lock here, since SQLite's own waiting is sleeping and trying again. The file is
//! mapped (`mmap_size`), so that connections share the page cache rather than each having a part of the pool; pages
//! beyond SQLite's limit of 2 GiB are read.

use std::{
    path::{Path, PathBuf},
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Result, ensure};
use lacuna_bench::linkbench::{DbResult, Table, Visit};
use rusqlite::{Connection, OptionalExtension, params};

use crate::peer::{Peer, Read, Settings, Write, fatal};

pub(crate) struct Sqlite {
    path: PathBuf,
    /// Connections that no transaction uses.
    idle: Mutex<Vec<Connection>>,
    /// Held by the transaction that writes.
    writer: Mutex<()>,
}

pub(crate) struct SqliteReader<'p> {
    db: &'p Sqlite,
    /// Until the transaction ends.
    connection: Option<Connection>,
}

pub(crate) struct SqliteWriter<'p> {
    reader: SqliteReader<'p>,
    is_open: bool,
    _only: MutexGuard<'p, ()>,
}

/// The statements of a table.
struct Statements {
    get: String,
    scan: String,
    put: String,
    insert: String,
    delete: String,
}

static STATEMENTS: LazyLock<[Statements; 4]> = LazyLock::new(|| {
    Table::ALL.map(Table::name).map(|table| Statements {
        get: format!("SELECT value FROM {table} WHERE key = ?1"),
        scan: format!("SELECT key, value FROM {table} WHERE key >= ?1 AND key < ?2 ORDER BY key"),
        put: format!("INSERT INTO {table} VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2"),
        insert: format!("INSERT INTO {table} VALUES (?1, ?2) ON CONFLICT (key) DO NOTHING"),
        delete: format!("DELETE FROM {table} WHERE key = ?1"),
    })
});

fn of(table: Table) -> &'static Statements {
    &STATEMENTS[table as usize]
}

fn connect(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.set_prepared_statement_cache_capacity(32);
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    ensure!(mode == "wal", "the journal's mode is {mode}");
    connection.execute_batch("PRAGMA synchronous = FULL")?;
    connection.pragma_update(None, "mmap_size", i64::MAX)?;
    Ok(connection)
}

impl Peer for Sqlite {
    type Reader<'p> = SqliteReader<'p>;
    type Writer<'p> = SqliteWriter<'p>;

    fn open(directory: &Path, _: &Settings) -> Result<Sqlite> {
        let path = directory.join("tables.sqlite");
        let connection = connect(&path)?;
        for table in Table::ALL.map(Table::name) {
            connection.execute_batch(&format!(
                "CREATE TABLE IF NOT EXISTS {table} (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
            ))?;
        }
        Ok(Sqlite { path, idle: Mutex::new(vec![connection]), writer: Mutex::new(()) })
    }

    fn reader(&self) -> DbResult<SqliteReader<'_>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = idle.map_or_else(|| connect(&self.path), Ok)?;
        Ok(SqliteReader { db: self, connection: Some(connection) })
    }

    fn writer(&self) -> DbResult<SqliteWriter<'_>> {
        let only = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = self.reader()?;
        reader
            .connection()
            .prepare_cached("BEGIN IMMEDIATE")
            .and_then(|mut s| s.execute([]))
            .map_err(fatal)?;
        Ok(SqliteWriter { reader, is_open: true, _only: only })
    }

    fn settle(&self) -> Result<()> {
        let reader = self.reader().map_err(|_| anyhow::anyhow!("no connection to settle with"))?;
        let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
        let is_busy: bool = reader.connection().query_row(checkpoint, [], |row| row.get(0))?;
        ensure!(!is_busy, "a checkpoint was kept from its end");
        Ok(())
    }
}

impl SqliteReader<'_> {
    fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("a transaction has its connection until it ends")
    }

    fn execute(&self, sql: &str, params: impl rusqlite::Params) -> DbResult<usize> {
        self.connection().prepare_cached(sql).and_then(|mut s| s.execute(params)).map_err(fatal)
    }
}

impl Drop for SqliteReader<'_> {
    fn drop(&mut self) {
        let idle = &mut self.db.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.extend(self.connection.take());
    }
}

impl Read for SqliteReader<'_> {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        let mut statement = self.connection().prepare_cached(&of(table).get).map_err(fatal)?;
        statement.query_row([key], |row| row.get(0)).optional().map_err(fatal)
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        let mut scan = || -> Result<()> {
            let mut statement = self.connection().prepare_cached(&of(table).scan)?;
            let mut rows = statement.query([from, to])?;
            while let Some(row) = rows.next()? {
                if visit(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?).is_break() {
                    break;
                }
            }
            Ok(())
        };
        scan().map_err(fatal)
    }
}

impl Read for SqliteWriter<'_> {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.reader.get(table, key)
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        self.reader.scan(table, from, to, visit)
    }
}

impl Write for SqliteWriter<'_> {
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.reader.execute(&of(table).put, params![key, value]).map(drop)
    }

    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<bool> {
        Ok(self.reader.execute(&of(table).insert, params![key, value])? == 1)
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<bool> {
        Ok(self.reader.execute(&of(table).delete, [key])? == 1)
    }

    fn commit(mut self) -> DbResult<()> {
        self.reader.execute("COMMIT", [])?;
        self.is_open = false;
        Ok(())
    }
}

impl Drop for SqliteWriter<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // Fails only where SQLite has rolled back already.
            let _ = self.reader.execute("ROLLBACK", []);
        }
    }
}
