//! RocksDB: a log-structured merge tree with locking transactions, as MyRocks uses it; commits share syncs of its log.
//!
//! Options are those that its wiki recommends ("Setup Options and Basic Tuning"), with direct I/O. Three quarters of
//! the pool are block cache, filters and indexes included, the rest memtables. A transaction locks every row that it
//! reads for an update or writes; one of those in a deadlock loses.
//!
//! Indexes and filters are cut into blocks ("Partitioned Index Filters" there). Whole, the filter of a table outgrows
//! a shard of a small cache, is never kept, and is read again for every row: with 32 MB of pool all but stopped.
//!
//! Entries of the secondary index are written without a look at what is there ("Blind writes" of an LSM, as MyRocks
//! does for indexes that are not unique): the row of the link is locked. The load writes no log, looks for no
//! duplicates, and compacts at its end ("Can I bulk load data?" in its FAQ): nobody needs half of it after a crash.
//!
//! `/lz4-blobs` is BlobDB ("Integrated BlobDB" there): values from 256 bytes on lie in files of their own, which are
//! collected as it recommends for updates.
//!
//! The library offers no way to flush a database with locks, or to query its pending work. So settling closes it and
//! opens the same tables as a database without locks, which offers both; the block cache is kept meanwhile.

use std::{
    path::{Path, PathBuf},
    sync::{
        PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use anyhow::Result;
use lacuna_bench::linkbench::{DbError, DbResult, Table, Visit};
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB,
    DBCompressionType, DBRawIteratorWithThreadMode, ErrorKind, Options, ReadOptions, SingleThreaded,
    Transaction, TransactionDB, TransactionDBOptions, TransactionOptions, WriteOptions,
};
use self_cell::self_cell;

use crate::peer::{Compression, Peer, Read, Settings, Write};

type Database = TransactionDB<SingleThreaded>;
/// None once it is committed: that takes it.
type Locking<'db> = Option<Transaction<'db, Database>>;

/// Properties that are zero when a database has no more background work.
const PENDING: [&str; 4] = [
    "rocksdb.mem-table-flush-pending",
    "rocksdb.num-running-flushes",
    "rocksdb.compaction-pending",
    "rocksdb.num-running-compactions",
];

/// Values from this length on are blobs, in bytes.
const BLOB_BYTES_MIN: u64 = 256;

pub(crate) struct RocksDb {
    directory: PathBuf,
    /// Of the database and of each table; the block cache is theirs.
    options: (Options, Options),
    /// None while it is settled, and when that failed.
    db: RwLock<Option<Database>>,
    /// Until the first settling after [`Peer::begin_load`].
    is_loading: AtomicBool,
}

/// The database, which stays open while this is held.
type Open<'p> = RwLockReadGuard<'p, Option<Database>>;

pub(crate) struct RocksDbReader<'p>(Open<'p>);

self_cell!(
    struct RocksDbTransaction<'p> {
        owner: Open<'p>,
        #[covariant]
        dependent: Locking,
    }
);

pub(crate) struct RocksDbWriter<'p> {
    txn: RocksDbTransaction<'p>,
    is_load: bool,
}

fn database<'o>(open: &'o Open<'_>) -> &'o Database {
    open.as_ref().expect("who settles has no transactions, and ends it all if he fails")
}

fn family<'o>(open: &'o Open<'_>, table: Table) -> &'o ColumnFamily {
    database(open).cf_handle(table.name()).expect("every table was opened")
}

impl RocksDbWriter<'_> {
    fn with<T>(
        &self,
        table: Table,
        act: impl FnOnce(&Transaction<'_, Database>, &ColumnFamily) -> Result<T, rocksdb::Error>,
    ) -> DbResult<T> {
        self.txn.with_dependent(|open, txn| act(running(txn), family(open, table)).map_err(classify))
    }

    fn is_blind(&self, table: Table) -> bool {
        self.is_load || table == Table::LinkByTime
    }
}

fn running<'t, 'db>(txn: &'t Locking<'db>) -> &'t Transaction<'db, Database> {
    txn.as_ref().expect("a commit takes the writer as well")
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
    blocks.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    blocks.set_partition_filters(true);
    blocks.set_pin_top_level_index_and_filter(true);
    table.set_block_based_table_factory(&blocks);
    table.set_level_compaction_dynamic_level_bytes(true);
    table.set_write_buffer_size(pool / 8);
    match settings.compression {
        None => {}
        Some(Compression::None) => table.set_compression_type(DBCompressionType::None),
        Some(Compression::Lz4Blobs) => {
            table.set_compression_type(DBCompressionType::Lz4);
            table.set_enable_blob_files(true);
            table.set_min_blob_size(BLOB_BYTES_MIN);
            table.set_blob_compression_type(DBCompressionType::Lz4);
            table.set_enable_blob_gc(true);
        }
        Some(Compression::Lz4) => table.set_compression_type(DBCompressionType::Lz4),
        // As the wiki recommends: the last level, where nearly all data are.
        Some(Compression::Zstd) => {
            table.set_compression_type(DBCompressionType::Lz4);
            table.set_bottommost_compression_type(DBCompressionType::Zstd);
        }
    }
    Ok((options, table))
}

/// Every table, with the options of one.
fn families(options: &Options) -> impl Iterator<Item = ColumnFamilyDescriptor> {
    Table::ALL.into_iter().map(|table| ColumnFamilyDescriptor::new(table.name(), options.clone()))
}

impl RocksDb {
    fn open_locking(directory: &Path, (options, table): &(Options, Options)) -> Result<Database> {
        let locks = TransactionDBOptions::default();
        Ok(Database::open_cf_descriptors(options, &locks, directory, families(table))?)
    }

    /// Writes all memtables, compacts everything if that is asked for, and waits for all compactions. No other handle of
    /// the database is open.
    fn finish(&self, compacts: bool) -> Result<()> {
        let (options, table) = &self.options;
        let db = DB::open_cf_descriptors(options, &self.directory, families(table))?;
        let handle = |table: Table| db.cf_handle(table.name()).expect("every table was opened");
        for table in Table::ALL {
            db.flush_cf(handle(table))?;
            if compacts {
                db.compact_range_cf(handle(table), None::<&[u8]>, None::<&[u8]>);
            }
        }
        loop {
            let mut pending = 0;
            for table in Table::ALL {
                for property in PENDING {
                    pending += db.property_int_value_cf(handle(table), property)?.unwrap_or(0);
                }
            }
            if pending == 0 {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn database(&self) -> Open<'_> {
        self.db.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer for RocksDb {
    type Reader<'p> = RocksDbReader<'p>;
    type Writer<'p> = RocksDbWriter<'p>;

    #[cfg(test)]
    const WRITES_INDEX_BLIND: bool = true;

    fn open(directory: &Path, settings: &Settings) -> Result<RocksDb> {
        let (directory, options) = (directory.join("tables"), options(settings)?);
        let db = RwLock::new(Some(RocksDb::open_locking(&directory, &options)?));
        Ok(RocksDb { directory, options, db, is_loading: AtomicBool::new(false) })
    }

    fn begin_load(&self) {
        self.is_loading.store(true, Relaxed);
    }

    fn reader(&self) -> DbResult<RocksDbReader<'_>> {
        Ok(RocksDbReader(self.database()))
    }

    fn writer(&self) -> DbResult<RocksDbWriter<'_>> {
        let is_load = self.is_loading.load(Relaxed);
        let (mut write_options, mut options) = (WriteOptions::default(), TransactionOptions::default());
        write_options.set_sync(!is_load);
        write_options.disable_wal(is_load);
        options.set_deadlock_detect(true);
        let txn = RocksDbTransaction::new(self.database(), |open| {
            Some(database(open).transaction_opt(&write_options, &options))
        });
        Ok(RocksDbWriter { txn, is_load })
    }

    fn settle(&self) -> Result<()> {
        let mut db = self.db.write().unwrap_or_else(PoisonError::into_inner);
        drop(db.take());
        self.finish(self.is_loading.swap(false, Relaxed))?;
        *db = Some(RocksDb::open_locking(&self.directory, &self.options)?);
        Ok(())
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
        database(&self.0).get_cf(family(&self.0, table), key).map_err(classify)
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        scan(database(&self.0).raw_iterator_cf_opt(family(&self.0, table), until(to)), from, to, visit)
    }
}

impl Read for RocksDbWriter<'_> {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.with(table, |txn, family| txn.get_cf(family, key))
    }

    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        self.txn.with_dependent(|open, txn| {
            scan(running(txn).raw_iterator_cf_opt(family(open, table), until(to)), from, to, visit)
        })
    }
}

impl Write for RocksDbWriter<'_> {
    fn get_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.with(table, |txn, family| txn.get_for_update_cf(family, key, true))
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.with(table, |txn, family| txn.put_cf(family, key, value))
    }

    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<bool> {
        let is_new = self.is_blind(table) || self.get_for_update(table, key)?.is_none();
        if is_new {
            self.put(table, key, value)?;
        }
        Ok(is_new)
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<bool> {
        let was_there = self.is_blind(table) || self.get_for_update(table, key)?.is_some();
        if was_there {
            self.with(table, |txn, family| txn.delete_cf(family, key))?;
        }
        Ok(was_there)
    }

    fn commit(mut self) -> DbResult<()> {
        let txn = self.txn.with_dependent_mut(|_, txn| txn.take());
        txn.map_or(Ok(()), |txn| txn.commit().map_err(classify))
    }
}
