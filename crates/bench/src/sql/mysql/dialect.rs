use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::connection::Connection;
use crate::block_stat::tree_bytes;
use crate::sql::{
    address::{Address, Login},
    client::{self, Client},
    definition::{Definition, Type},
    dialect::{Dialect, Format, pairs, value},
    settings::{Changed, Connect},
};

/// Longest wait for a server to write out its dirty pages.
const SETTLE_MAX: Duration = Duration::from_secs(3600);
/// Settings that make a server write everything out. Of each pair one bounds the other.
const HURRY: [(&str, &str); 4] = [
    ("innodb_io_capacity_max", "100000"),
    ("innodb_io_capacity", "100000"),
    ("innodb_max_dirty_pages_pct_lwm", "0.001"),
    ("innodb_max_dirty_pages_pct", "0"),
];
/// Old row versions that may be left for the purge when a server counts as settled; an idle one keeps a few.
const HISTORY_SETTLED: u64 = 128;
/// Settings of a session. A read alone needs no commit: the next statement sees a new snapshot.
const SESSION: &str = "SET SESSION autocommit = 0, SESSION tx_isolation = 'READ-COMMITTED', \
    SESSION sql_mode = 'STRICT_ALL_TABLES'";

/// Connects for settings.
const CONNECT: Connect = |address, login| Ok(Box::new(Connection::connect(address, login)?));

/// MariaDB, with InnoDB or MyRocks.
#[derive(Debug)]
pub(crate) struct Mysql;

fn type_name(of: Type) -> String {
    match of {
        Type::Tiny => "tinyint unsigned".to_owned(),
        Type::Int => "int unsigned".to_owned(),
        Type::Big => "bigint unsigned".to_owned(),
        Type::Serial => "bigint unsigned AUTO_INCREMENT".to_owned(),
        Type::SignedInt => "int".to_owned(),
        Type::SignedBig => "bigint".to_owned(),
        Type::Char(length) => format!("char({length})"),
        Type::Text(length) => format!("varchar({length})"),
        Type::Name(length) => format!("varchar({length}) COLLATE latin1_bin"),
        Type::Bytes => "varchar(255)".to_owned(),
        Type::LongBytes => "mediumtext".to_owned(),
    }
}

fn format_options(format: &Format) -> &'static str {
    match format {
        Format::Plain => "ENGINE=InnoDB DEFAULT CHARSET=latin1 ROW_FORMAT=DYNAMIC",
        Format::Row => "ENGINE=InnoDB DEFAULT CHARSET=latin1 ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8",
        Format::Page(_) => "ENGINE=InnoDB DEFAULT CHARSET=latin1 PAGE_COMPRESSED=1",
        // It answers from an index alone only where it can decode the columns: in binary order.
        Format::Rocks => "ENGINE=ROCKSDB DEFAULT CHARSET=latin1 COLLATE=latin1_bin",
    }
}

/// Whether the tables are those of MyRocks.
fn has_rocks(client: &mut dyn Client) -> Result<bool> {
    let count = "SELECT COUNT(*) FROM information_schema.TABLES WHERE ENGINE = 'ROCKSDB'";
    Ok(value(client, count)? != "0")
}

/// Lets MyRocks write its memtables and compact what is due, and waits until no more is.
fn settle_rocks(client: &mut dyn Client) -> Result<()> {
    client.execute("SET GLOBAL rocksdb_force_flush_memtable_and_lzero_now = 1")?;
    let start = Instant::now();
    let pending = "SELECT COALESCE(SUM(VALUE), 0) FROM information_schema.ROCKSDB_CFSTATS \
        WHERE STAT_TYPE IN ('MEM_TABLE_FLUSH_PENDING', 'COMPACTION_PENDING', 'NUM_IMMUTABLE_MEM_TABLE')";
    while value(client, pending)? != "0" {
        ensure!(start.elapsed() < SETTLE_MAX, "after {} s MyRocks compacts still", SETTLE_MAX.as_secs());
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn status(client: &mut dyn Client, name: &str) -> Result<u64> {
    let rows = client.query(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))?;
    let value = rows.first().and_then(|row| row.get(1)?.as_deref()?.parse().ok());
    value.with_context(|| format!("the server has no counter {name}"))
}

/// Waits until all pages are written and old versions purged.
fn wait_until_clean(client: &mut dyn Client) -> Result<()> {
    let start = Instant::now();
    loop {
        let dirty = status(client, "Innodb_buffer_pool_pages_dirty")?;
        let history = status(client, "Innodb_history_list_length")?;
        if dirty == 0 && history <= HISTORY_SETTLED {
            return Ok(());
        }
        ensure!(
            start.elapsed() < SETTLE_MAX,
            "after {} s there are {dirty} dirty pages and {history} unpurged changes still",
            SETTLE_MAX.as_secs()
        );
        thread::sleep(Duration::from_millis(20));
    }
}

impl Dialect for Mysql {
    fn connect(&self, address: &Address, login: &Login) -> client::Result<Box<dyn Client>> {
        let mut connection = Connection::connect(address, login)?;
        connection.execute(SESSION)?;
        Ok(Box::new(connection))
    }

    fn enter(&self, address: &Address, login: &Login, makes: bool) -> Result<Box<dyn Client>> {
        let server = Login { database: None, ..login.clone() };
        let mut connection = Connection::connect(address, &server)?;
        let version = value(&mut connection, "SELECT VERSION()")?;
        ensure!(
            version.contains("MariaDB"),
            "the server is {version}, not MariaDB; MySQL keeps compressed tables, their sizes and counters otherwise"
        );
        if let (true, Some(database)) = (makes, &login.database) {
            connection.execute(&format!("CREATE DATABASE IF NOT EXISTS `{database}`"))?;
        }
        Ok(Box::new(connection))
    }

    fn table(&self, database: &str, table: &str) -> String {
        format!("`{database}`.`{table}`")
    }

    fn present(&self, client: &mut dyn Client, database: &str, tables: &[&str]) -> Result<Vec<String>> {
        let names = format!(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{database}' \
             AND TABLE_NAME IN ('{}')",
            tables.join("', '")
        );
        Ok(client.query(&names)?.into_iter().flatten().flatten().collect())
    }

    /// The server has one algorithm for all page-compressed tables, and asks for it whenever it writes a page.
    fn begin(
        &self,
        client: &mut dyn Client,
        place: (&Address, &Login),
        format: &Format,
    ) -> Result<Option<Changed>> {
        let Format::Page(algorithm) = format else { return Ok(None) };
        let settings = [("innodb_compression_algorithm", &algorithm[..])];
        Changed::make(client, CONNECT, place, &settings, "until the end of this run").map(Some)
    }

    fn create(
        &self,
        client: &mut dyn Client,
        database: &str,
        table: &Definition,
        format: &Format,
    ) -> Result<()> {
        let mut list = table.list(type_name);
        if let Some((name, columns)) = table.index {
            list += &format!(", KEY {name} ({columns})");
        }
        let name = self.table(database, table.name);
        client
            .execute(&format!("CREATE TABLE {name} ({list}) {}", format_options(format)))
            .with_context(|| table.name.to_owned())
    }

    fn data_directory(&self, client: &mut dyn Client) -> Result<String> {
        value(client, "SELECT @@datadir")
    }

    fn process(&self, client: &mut dyn Client, data_directory: &Path) -> Result<Option<u32>> {
        let pid_file = value(client, "SELECT @@pid_file")?;
        Ok(server_process(data_directory, Path::new(&pid_file)))
    }

    /// Lets the server write its dirty pages as fast as it can until there are none.
    fn settle(&self, client: &mut dyn Client, place: (&Address, &Login), _tables: &[&str]) -> Result<()> {
        if has_rocks(client)? {
            settle_rocks(client)?;
        }
        let changed = Changed::make(client, CONNECT, place, &HURRY, "until all pages are written")?;
        wait_until_clean(client)?;
        changed.give_back()
    }

    /// Of MyRocks all its files: tables share them.
    fn sizes(&self, client: &mut dyn Client, database: &str, data_directory: &Path) -> Result<(u64, u64)> {
        if has_rocks(client)? {
            let logical = format!(
                "SELECT SUM(DATA_LENGTH + INDEX_LENGTH) FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{database}'"
            );
            let logical = value(client, &logical)?.parse()?;
            let files = data_directory.join("#rocksdb");
            return Ok((logical, tree_bytes(&files).with_context(|| files.display().to_string())?));
        }
        let sizes = format!(
            "SELECT SUM(FILE_SIZE), SUM(ALLOCATED_SIZE) FROM information_schema.INNODB_SYS_TABLESPACES \
             WHERE NAME LIKE '{database}/%'"
        );
        let rows = client.query(&sizes)?;
        let size = |column: usize| -> Option<u64> { rows.first()?.get(column)?.as_deref()?.parse().ok() };
        size(0).zip(size(1)).context("the server does not tell the tables' sizes")
    }

    fn written(&self, client: &mut dyn Client) -> Result<u64> {
        ensure!(
            !has_rocks(client)?,
            "MyRocks has no counter of all that it writes: --written-from DEVICE or process"
        );
        status(client, self.written_name())
    }

    /// Pages, doublewrites and log as InnoDB sees them.
    fn written_name(&self) -> &'static str {
        "Innodb_data_written"
    }

    fn facts(&self, client: &mut dyn Client) -> Result<Vec<(String, String)>> {
        let variables = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'innodb_page_size', \
            'innodb_buffer_pool_size', 'innodb_doublewrite', 'innodb_flush_method', \
            'innodb_compression_algorithm', 'innodb_compression_level', 'innodb_flush_log_at_trx_commit', \
            'innodb_log_file_size', 'innodb_io_capacity', 'innodb_flush_neighbors', \
            'innodb_use_atomic_writes', 'innodb_use_native_aio', 'innodb_checksum_algorithm', 'datadir', \
            'log_bin', 'rocksdb_block_cache_size', 'rocksdb_db_write_buffer_size', \
            'rocksdb_default_cf_options', 'rocksdb_flush_log_at_trx_commit', 'rocksdb_use_direct_reads', \
            'rocksdb_use_direct_io_for_flush_and_compaction', 'rocksdb_max_background_jobs')";
        let status = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_dblwr_pages_written', \
            'Innodb_dblwr_writes', 'Innodb_pages_written', 'Innodb_data_written', 'Innodb_os_log_written', \
            'Innodb_num_pages_page_compressed', 'Innodb_page_compression_saved')";
        Ok([pairs(client, variables)?, pairs(client, status)?].concat())
    }

    fn force_index(&self, index: &str) -> String {
        format!(" FORCE INDEX ({index})")
    }

    fn on_duplicate(&self, _key: &str) -> String {
        "ON DUPLICATE KEY UPDATE".to_owned()
    }

    fn inserted(&self, column: &str) -> String {
        format!("VALUES({column})")
    }

    fn big_number(&self) -> &'static str {
        "SIGNED"
    }
}

/// The process that a pid file names, if it is a server's.
fn server_process(data_directory: &Path, pid_file: &Path) -> Option<u32> {
    let text = fs::read_to_string(data_directory.join(pid_file)).ok()?;
    let pid: u32 = text.trim().parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    ["mariadbd", "mysqld"].contains(&name.trim()).then_some(pid)
}
