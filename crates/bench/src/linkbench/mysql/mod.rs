//! LinkBench's tables in a MySQL or MariaDB server, behind the trait of the benchmark.
//!
//! The schema is that of LinkBench's README, without its 16 partitions: `linktable` with its secondary
//! key, which stands for two tables of the trait, [`Table::Link`] and [`Table::LinkByTime`]; the server
//! keeps the second in step, so that writes to it through the trait are nothing here and reads of it
//! force the index. Ids of nodes are chosen by the benchmark, not by the server's counter.
//!
//! Transactions run at read committed without autocommit: a read alone needs no commit, because the
//! next statement sees a new snapshot. Rows that are inserted, and counts that grow, are kept back and
//! go to the server in groups, at the latest with the commit ([`txn`]). Every requester has one
//! connection, with its own prepared statements.

mod counters;
mod statements;
mod txn;

use std::{
    collections::HashMap,
    ops::ControlFlow,
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ::mysql::{Statement, Value};
use anyhow::{Context, Result, bail, ensure};

use super::db::{Db, DbError, DbResult};
use crate::{
    Footprint, Measured,
    block_stat::tree_bytes,
    mysql::{Address, Connection, Error, Login},
};

pub use counters::Written;
use counters::{processor_seconds, server_process};
use statements::Shape;
pub use txn::SqlTxn;

/// Names of the tables on the server.
const TABLES: [&str; 3] = ["linktable", "counttable", "nodetable"];
/// Longest wait for a server to write out its dirty pages.
const SETTLE_MAX: Duration = Duration::from_secs(3600);
/// Settings that make a server write everything out.
const HURRY: [(&str, &str); 4] = [
    ("innodb_io_capacity_max", "100000"),
    ("innodb_io_capacity", "100000"),
    ("innodb_max_dirty_pages_pct_lwm", "0.001"),
    ("innodb_max_dirty_pages_pct", "0"),
];
/// Old row versions that may be left for the purge when a server counts as settled; an idle one keeps a few.
const HISTORY_SETTLED: u64 = 128;

/// How InnoDB keeps the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// Uncompressed.
    Plain,
    /// ROW_FORMAT=COMPRESSED with KEY_BLOCK_SIZE=8, the older scheme (zlib).
    Row,
    /// PAGE_COMPRESSED=1 with this algorithm: lz4, zlib, lzo, lzma, bzip2 or snappy.
    Page(String),
}

impl Format {
    fn options(&self) -> &'static str {
        match self {
            Format::Plain => "ROW_FORMAT=DYNAMIC",
            Format::Row => "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8",
            Format::Page(_) => "PAGE_COMPRESSED=1",
        }
    }
}

/// A server with the tables of LinkBench in one of its databases.
#[derive(Debug)]
pub struct SqlDb {
    address: Address,
    login: Login,
    database: String,
    /// Connections that no transaction uses.
    idle: Mutex<Vec<Session>>,
    written: Written,
    /// Process of the server, when it runs here.
    process: Option<u32>,
    data_directory: String,
}

/// A connection and its prepared statements.
#[derive(Debug)]
struct Session {
    connection: Connection,
    statements: HashMap<Shape, Statement>,
}

impl Session {
    fn statement(&mut self, shape: Shape) -> Result<Statement, Error> {
        if let Some(statement) = self.statements.get(&shape) {
            return Ok(statement.clone());
        }
        let statement = self.connection.prepare(&shape.sql())?;
        self.statements.insert(shape, statement.clone());
        Ok(statement)
    }

    fn run(&mut self, shape: Shape, params: Vec<Value>) -> Result<u64, Error> {
        let statement = self.statement(shape)?;
        self.connection.run(&statement, params)
    }

    fn select(
        &mut self,
        shape: Shape,
        params: Vec<Value>,
        visit: impl FnMut(&[Value]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let statement = self.statement(shape)?;
        self.connection.select(&statement, params, visit)
    }
}

fn classify(error: Error) -> DbError {
    // Rows that were kept back find their duplicate when they are sent: a race that was lost.
    if error.is_lost_race() { DbError::Retry(error.to_string()) } else { DbError::Fatal(error.into()) }
}

impl SqlDb {
    /// Makes the tables in `login.database`, which is made when it is missing.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses, when the tables are there already, and when it does not know the
    /// compression.
    pub fn create(address: &Address, login: &Login, format: &Format, written: Written) -> Result<SqlDb> {
        let database = login.database.clone().unwrap_or_default();
        check_name(&database)?;
        let named = || address.to_string();
        let mut server =
            Connection::connect(address, &Login { database: None, ..login.clone() }).with_context(named)?;
        server.execute(&format!("CREATE DATABASE IF NOT EXISTS `{database}`")).with_context(named)?;
        let there = present_tables(&mut server, &database).with_context(named)?;
        if let Some(table) = there.first() {
            bail!(
                "{address}: holds the table {database}.{table} already; drop it, or give another --database"
            );
        }
        if let Format::Page(algorithm) = format {
            check_name(algorithm)?;
            let set = format!("SET GLOBAL innodb_compression_algorithm = '{algorithm}'");
            server
                .execute(&set)
                .with_context(|| format!("{address}: innodb_compression_algorithm {algorithm}"))?;
        }
        for table in TABLES {
            let create = statements::create_table(&database, table, format.options());
            server.execute(&create).with_context(|| format!("{address}: {table}"))?;
        }
        SqlDb::attach(server, address, login, database, written)
    }

    /// Finds the tables in `login.database`.
    ///
    /// # Errors
    /// When the server cannot be reached, and when a table is missing.
    pub fn open(address: &Address, login: &Login, written: Written) -> Result<SqlDb> {
        let database = login.database.clone().unwrap_or_default();
        check_name(&database)?;
        let named = || address.to_string();
        let mut server =
            Connection::connect(address, &Login { database: None, ..login.clone() }).with_context(named)?;
        let there = present_tables(&mut server, &database).with_context(named)?;
        if let Some(missing) = TABLES.iter().find(|table| !there.iter().any(|name| name == *table)) {
            bail!("{address}: holds no table {database}.{missing}");
        }
        SqlDb::attach(server, address, login, database, written)
    }

    fn attach(
        mut server: Connection,
        address: &Address,
        login: &Login,
        database: String,
        written: Written,
    ) -> Result<SqlDb> {
        let named = || address.to_string();
        let data_directory = value(&mut server, "SELECT @@datadir").with_context(named)?;
        let process = match address {
            Address::Socket(_) => {
                let pid_file = value(&mut server, "SELECT @@pid_file").with_context(named)?;
                server_process(Path::new(&data_directory), Path::new(&pid_file))
            }
            Address::Tcp(..) => None,
        };
        let written = written.resolve(Path::new(&data_directory), process)?;
        let (address, login) = (address.clone(), login.clone());
        let idle = Mutex::default();
        Ok(SqlDb { address, login, database, idle, written, process, data_directory })
    }

    /// Drops the tables.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn drop_tables(&self) -> Result<()> {
        // Dropping would wait for a connection that holds a table open.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let mut server = self.server()?;
        for table in TABLES {
            server
                .execute(&format!("DROP TABLE `{}`.`{table}`", self.database))
                .with_context(|| self.name())?;
        }
        Ok(())
    }

    /// The counter that measures traffic, in words.
    pub fn written_from(&self) -> String {
        self.written.to_string()
    }

    /// Version and settings of the server that matter for comparisons, and its counters of
    /// doublewrites, by name.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn server_facts(&self) -> Result<Vec<(String, String)>> {
        let mut server = self.server()?;
        let variables = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'innodb_page_size', \
            'innodb_buffer_pool_size', 'innodb_doublewrite', 'innodb_flush_method', \
            'innodb_compression_algorithm', 'innodb_compression_level', 'innodb_flush_log_at_trx_commit', \
            'innodb_log_file_size', 'innodb_io_capacity', 'innodb_flush_neighbors', \
            'innodb_use_atomic_writes', 'innodb_use_native_aio', 'innodb_checksum_algorithm', 'datadir', \
            'log_bin')";
        let status = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_dblwr_pages_written', \
            'Innodb_dblwr_writes', 'Innodb_pages_written', 'Innodb_data_written', 'Innodb_os_log_written', \
            'Innodb_num_pages_page_compressed', 'Innodb_page_compression_saved')";
        let mut facts = Vec::new();
        for query in [variables, status] {
            let rows = server.query(query).with_context(|| self.name())?;
            facts.extend(rows.into_iter().filter_map(|row| match <[_; 2]>::try_from(row) {
                Ok([Some(name), Some(value)]) => Some((name.to_lowercase(), value)),
                _ => None,
            }));
        }
        Ok(facts)
    }

    /// Where the server is.
    pub fn name(&self) -> String {
        self.address.to_string()
    }

    fn server(&self) -> Result<Connection> {
        Connection::connect(&self.address, &self.login).with_context(|| self.name())
    }

    fn session(&self) -> DbResult<Session> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(session) = idle {
            return Ok(session);
        }
        let mut connection = self.server()?;
        let setup = "SET SESSION autocommit = 0, SESSION tx_isolation = 'READ-COMMITTED', \
            SESSION sql_mode = 'STRICT_ALL_TABLES'";
        connection.execute(setup).with_context(|| self.name())?;
        Ok(Session { connection, statements: HashMap::new() })
    }

    fn give_back(&self, session: Session) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }
}

/// Names go into statements as they are.
fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    ensure!(!name.is_empty() && name.chars().all(plain), "{name:?}: a name is of letters, digits and _");
    Ok(())
}

fn present_tables(server: &mut Connection, database: &str) -> Result<Vec<String>> {
    let names = format!(
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{database}' \
         AND TABLE_NAME IN ('{}')",
        TABLES.join("', '")
    );
    Ok(server.query(&names)?.into_iter().flatten().flatten().collect())
}

/// The single value that a query returns.
fn value(server: &mut Connection, query: &str) -> Result<String> {
    let rows = server.query(query)?;
    rows.into_iter().flatten().flatten().next().with_context(|| format!("no answer to {query}"))
}

fn status(server: &mut Connection, name: &str) -> Result<u64> {
    let rows = server.query(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))?;
    let value = rows.first().and_then(|row| row.get(1)?.as_deref()?.parse().ok());
    value.with_context(|| format!("the server has no counter {name}"))
}

/// Waits until all pages are written and old versions purged.
fn wait_until_clean(server: &mut Connection) -> Result<()> {
    let start = Instant::now();
    loop {
        let dirty = status(server, "Innodb_buffer_pool_pages_dirty")?;
        let history = status(server, "Innodb_history_list_length")?;
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

impl Db for SqlDb {
    type Txn<'db> = SqlTxn<'db>;

    fn begin(&self) -> DbResult<SqlTxn<'_>> {
        Ok(SqlTxn::new(self, self.session()?))
    }
}

impl Measured for SqlDb {
    /// Lets the server write its dirty pages as fast as it can until there are none, then restores its settings.
    fn settle(&self) -> Result<()> {
        let mut server = self.server()?;
        let mut restore = Vec::new();
        for (name, _) in HURRY {
            let old = value(&mut server, &format!("SELECT @@GLOBAL.{name}")).with_context(|| self.name())?;
            // In turned order: each of a pair bounds the other.
            restore.insert(0, format!("SET GLOBAL {name} = {old}"));
        }
        let hurried =
            HURRY.iter().try_for_each(|(name, fast)| server.execute(&format!("SET GLOBAL {name} = {fast}")));
        let clean = hurried.map_err(Into::into).and_then(|()| wait_until_clean(&mut server));
        for set in restore {
            server.execute(&set).with_context(|| self.name())?;
        }
        clean.with_context(|| self.name())
    }

    fn footprint(&self) -> Result<Footprint> {
        let mut server = self.server()?;
        let sizes = format!(
            "SELECT SUM(FILE_SIZE), SUM(ALLOCATED_SIZE) FROM information_schema.INNODB_SYS_TABLESPACES \
             WHERE NAME LIKE '{}/%'",
            self.database
        );
        let rows = server.query(&sizes).with_context(|| self.name())?;
        let size = |column: usize| -> Option<u64> { rows.first()?.get(column)?.as_deref()?.parse().ok() };
        let (logical, allocated) =
            size(0).zip(size(1)).context("the server does not tell the tables' sizes")?;
        let written = match &self.written {
            Written::Status => status(&mut server, "Innodb_data_written")?,
            measured => measured.bytes()?,
        };
        Ok(Footprint {
            logical_bytes: logical,
            allocated_bytes: allocated,
            store_bytes: tree_bytes(Path::new(&self.data_directory)).unwrap_or(allocated),
            device_written_bytes: written,
        })
    }

    fn server_cpu_seconds(&self) -> f64 {
        self.process.and_then(processor_seconds).unwrap_or(0.0)
    }
}
