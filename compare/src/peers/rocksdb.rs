//! RocksDB: a log-structured merge tree with optimistic transactions; commits share syncs of its log.
//!
//! Options are those that its wiki recommends ("Setup Options and Basic Tuning"), with direct I/O. Three quarters of
//! the pool are block cache, filters and indexes included, the rest memtables.
//!
//! Optimistic rather than locking transactions, because only of the former the library lets us flush and wait, as the
//! measurement wants. A transaction whose rows (those it read for an update and those it wrote) another one changed
//! meanwhile loses at its commit.

use std::{path::Path, thread, time::Duration};

use anyhow::Result;
use lacuna_bench::linkbench::{DbError, DbResult, Table, Visit};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DBCompressionType,
    DBRawIteratorWithThreadMode, ErrorKind, OptimisticTransactionDB, OptimisticTransactionOptions, Options,
    ReadOptions, SingleThreaded, Transaction, WriteOptions,
};

use crate::peer::{Compression, Peer, Read, Settings, Write};

type Database = OptimisticTransactionDB<SingleThreaded>;

/// What is to be zero before a database has nothing more to do.
const PENDING: [&str; 4] = [
    "rocksdb.mem-table-flush-pending",
    "rocksdb.num-running-flushes",
    "rocksdb.compaction-pending",
    "rocksdb.num-running-compactions",
];

pub(crate) struct RocksDb {
    db: Database,
}

pub(crate) struct RocksDbReader<'p>(&'p RocksDb);

pub(crate) struct RocksDbWriter<'p> {
    db: &'p RocksDb,
    txn: Transaction<'p, Database>,
}

fn classify(error: rocksdb::Error) -> DbError {
    match error.kind() {
        ErrorKind::Busy | ErrorKind::TryAgain | ErrorKind::TimedOut => DbError::Retry(error.to_string()),
        _ => DbError::Fatal(error.into()),
    }
}

/// Options of the database and those of each table.
fn options(settings: &Settings) -> Result<(Options, Options)> {
    let pool = settings.pool_bytes as usize;
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_max_background_jobs(thread::available_parallelism().map_or(2, |n| n.get().max(2) as i32));
    options.set_bytes_per_sync(1 << 20);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    options.set_db_write_buffer_size(pool / 4);

    let mut table = options.clone();
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(pool / 4 * 3)?);
    blocks.set_block_size(16 << 10);
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    blocks.set_format_version(5);
    blocks.set_bloom_filter(10.0, false);
    table.set_block_based_table_factory(&blocks);
    table.set_level_compaction_dynamic_level_bytes(true);
    table.set_write_buffer_size(pool / 8);
    // What commits are validated against once a memtable was flushed. Too little, and no long one ever succeeds.
    table.set_max_write_buffer_size_to_maintain((pool / 16).max(16 << 20) as i64);
    match settings.compression {
        None => {}
        Some(Compression::None) => table.set_compression_type(DBCompressionType::None),
        Some(Compression::Lz4) => table.set_compression_type(DBCompressionType::Lz4),
        // As the wiki recommends: the last level, where nearly all data are.
        Some(Compression::Zstd) => {
            table.set_compression_type(DBCompressionType::Lz4);
            table.set_bottommost_compression_type(DBCompressionType::Zstd);
        }
    }
    Ok((options, table))
}

impl RocksDb {
    fn family(&self, table: Table) -> &ColumnFamily {
        self.db.cf_handle(table.name()).expect("every table was opened")
    }
}

impl Peer for RocksDb {
    type Reader<'p> = RocksDbReader<'p>;
    type Writer<'p> = RocksDbWriter<'p>;

    fn open(directory: &Path, settings: &Settings) -> Result<RocksDb> {
        let (options, table_options) = options(settings)?;
        let families =
            Table::ALL.map(|table| ColumnFamilyDescriptor::new(table.name(), table_options.clone()));
        Ok(RocksDb { db: Database::open_cf_descriptors(&options, directory.join("tables"), families)? })
    }

    fn reader(&self) -> DbResult<RocksDbReader<'_>> {
        Ok(RocksDbReader(self))
    }

    fn writer(&self) -> DbResult<RocksDbWriter<'_>> {
        let mut write_options = WriteOptions::default();
        write_options.set_sync(true);
        let txn = self.db.transaction_opt(&write_options, &OptimisticTransactionOptions::default());
        Ok(RocksDbWriter { db: self, txn })
    }

    fn settle(&self) -> Result<()> {
        for table in Table::ALL {
            self.db.flush_cf(self.family(table))?;
        }
        loop {
            let mut pending = 0;
            for table in Table::ALL {
                for property in PENDING {
                    pending += self.db.property_int_value_cf(self.family(table), property)?.unwrap_or(0);
                }
            }
            if pending == 0 {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn until(to: &[u8]) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_iterate_upper_bound(to);
    options
}

fn scan<D: rocksdb::DBAccess>(
    mut entries: DBRawIteratorWithThreadMode<'_, D>,
    from: &[u8],
    to: &[u8],
    visit: &mut Visit<'_>,
) -> DbResult<()> {
    entries.seek(from);
    // The bound of the options does not hold for what the transaction itself wrote.
    while let Some((key, value)) = entries.item().filter(|(key, _)| *key < to) {
        if visit(key, value).is_break() {
            return Ok(());
        }
        entries.next();
    }
    entries.status().map_err(classify)
}

impl Read for RocksDbReader<'_> {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.0.db.get_cf(self.0.family(table), key).map_err(classify)
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        scan(self.0.db.raw_iterator_cf_opt(self.0.family(table), until(to)), from, to, visit)
    }
}

impl Read for RocksDbWriter<'_> {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.txn.get_cf(self.db.family(table), key).map_err(classify)
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        scan(self.txn.raw_iterator_cf_opt(self.db.family(table), until(to)), from, to, visit)
    }
}

impl Write for RocksDbWriter<'_> {
    fn get_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.txn.get_for_update_cf(self.db.family(table), key, true).map_err(classify)
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.txn.put_cf(self.db.family(table), key, value).map_err(classify)
    }

    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<bool> {
        let is_new = self.get_for_update(table, key)?.is_none();
        if is_new {
            self.put(table, key, value)?;
        }
        Ok(is_new)
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<bool> {
        let was_there = self.get_for_update(table, key)?.is_some();
        if was_there {
            self.txn.delete_cf(self.db.family(table), key).map_err(classify)?;
        }
        Ok(was_there)
    }

    fn commit(self) -> DbResult<()> {
        self.txn.commit().map_err(classify)
    }
}
