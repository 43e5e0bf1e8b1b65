//! The tables of a benchmark in one of a server's databases.
//!
//! Each requester has one connection, with its own prepared statements. Sessions run at read committed without
//! autocommit: a read alone needs no commit, because the next statement sees a new snapshot.

use std::{
    collections::HashMap,
    fmt::Debug,
    hash::Hash,
    ops::ControlFlow,
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ::mysql::{Statement, Value};
use anyhow::{Context, Result, bail, ensure};

use super::{
    connection::{Address, Connection, Error, Login},
    counters::{Written, processor_seconds, server_process},
};
use crate::{Footprint, Measured, block_stat::tree_bytes};

/// Rows of one statement that inserts many: buffered rows are sent in groups of these sizes.
const GROUPS: [usize; 4] = [256, 32, 4, 1];
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

/// The tables of a benchmark on a server.
pub trait OnServer {
    /// Drops the tables.
    ///
    /// # Errors
    /// When the server refuses.
    fn drop_tables(&self) -> Result<()>;

    /// The counter that measures traffic, in words.
    fn written_from(&self) -> String;

    /// Version and settings of the server that matter for comparisons, and its counters of doublewrites, by name.
    ///
    /// # Errors
    /// When the server refuses.
    fn server_facts(&self) -> Result<Vec<(String, String)>>;
}

/// A kind of prepared statement.
pub(crate) trait Prepared: Copy + Debug + Eq + Hash + Send {
    /// Its text.
    fn sql(self) -> String;
}

/// A connection and its prepared statements.
#[derive(Debug)]
pub(crate) struct Session<S> {
    connection: Connection,
    statements: HashMap<S, Statement>,
}

impl<S: Prepared> Session<S> {
    fn statement(&mut self, shape: S) -> Result<Statement, Error> {
        if let Some(statement) = self.statements.get(&shape) {
            return Ok(statement.clone());
        }
        let statement = self.connection.prepare(&shape.sql())?;
        self.statements.insert(shape, statement.clone());
        Ok(statement)
    }

    /// Runs a statement that returns no rows; see [`Connection::run`].
    pub(crate) fn run(&mut self, shape: S, params: Vec<Value>) -> Result<u64, Error> {
        let statement = self.statement(shape)?;
        self.connection.run(&statement, params)
    }

    /// Visits the rows of a query; see [`Connection::select`].
    pub(crate) fn select(
        &mut self,
        shape: S,
        params: Vec<Value>,
        visit: impl FnMut(&[Value]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let statement = self.statement(shape)?;
        self.connection.select(&statement, params, visit)
    }

    /// Ends the transaction under way.
    pub(crate) fn commit(&mut self) -> Result<(), Error> {
        self.connection.execute("COMMIT")
    }

    /// Undoes the transaction under way.
    pub(crate) fn roll_back(&mut self) -> Result<(), Error> {
        self.connection.execute("ROLLBACK")
    }
}

/// A server with the tables of a benchmark in one of its databases; `S` are its statements.
#[derive(Debug)]
pub(crate) struct Server<S> {
    address: Address,
    login: Login,
    database: String,
    tables: Vec<&'static str>,
    /// Connections that no transaction uses.
    idle: Mutex<Vec<Session<S>>>,
    written: Written,
    /// Process of the server, when it runs here.
    process: Option<u32>,
    data_directory: String,
}

impl<S: Prepared> Server<S> {
    /// Makes tables of these names and definitions of columns in `login.database`, which is made when it is missing.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses, when one of the tables is there already, and when it does not know
    /// the compression.
    pub(crate) fn create(
        address: &Address,
        login: &Login,
        tables: &[(&'static str, String)],
        format: &Format,
        written: Written,
    ) -> Result<Server<S>> {
        let (mut connection, database) = connect(address, login)?;
        let named = || address.to_string();
        connection.execute(&format!("CREATE DATABASE IF NOT EXISTS `{database}`")).with_context(named)?;
        let names: Vec<&'static str> = tables.iter().map(|(name, _)| *name).collect();
        let there = present_tables(&mut connection, &database, &names).with_context(named)?;
        if let Some(table) = there.first() {
            bail!(
                "{address}: holds the table {database}.{table} already; drop it, or give another --database"
            );
        }
        if let Format::Page(algorithm) = format {
            check_name(algorithm)?;
            let set = format!("SET GLOBAL innodb_compression_algorithm = '{algorithm}'");
            connection
                .execute(&set)
                .with_context(|| format!("{address}: innodb_compression_algorithm {algorithm}"))?;
        }
        let options = format!("ENGINE=InnoDB DEFAULT CHARSET=latin1 {}", format.options());
        for (table, columns) in tables {
            let create = format!("CREATE TABLE `{database}`.`{table}` ({columns}) {options}");
            connection.execute(&create).with_context(|| format!("{address}: {table}"))?;
        }
        Server::attach(connection, address, login, database, names, written)
    }

    /// Finds the tables in `login.database`.
    ///
    /// # Errors
    /// When the server cannot be reached, and when a table is missing.
    pub(crate) fn open(
        address: &Address,
        login: &Login,
        tables: &[&'static str],
        written: Written,
    ) -> Result<Server<S>> {
        let (mut connection, database) = connect(address, login)?;
        let there =
            present_tables(&mut connection, &database, tables).with_context(|| address.to_string())?;
        if let Some(missing) = tables.iter().find(|table| !there.iter().any(|name| name == *table)) {
            bail!("{address}: holds no table {database}.{missing}");
        }
        Server::attach(connection, address, login, database, tables.to_vec(), written)
    }

    fn attach(
        mut connection: Connection,
        address: &Address,
        login: &Login,
        database: String,
        tables: Vec<&'static str>,
        written: Written,
    ) -> Result<Server<S>> {
        let named = || address.to_string();
        let data_directory = value(&mut connection, "SELECT @@datadir").with_context(named)?;
        let process = match address {
            Address::Socket(_) => {
                let pid_file = value(&mut connection, "SELECT @@pid_file").with_context(named)?;
                server_process(Path::new(&data_directory), Path::new(&pid_file))
            }
            Address::Tcp(..) => None,
        };
        let written = written.resolve(Path::new(&data_directory), process)?;
        let (address, login) = (address.clone(), login.clone());
        let idle = Mutex::default();
        Ok(Server { address, login, database, tables, idle, written, process, data_directory })
    }

    /// See [`OnServer::drop_tables`].
    pub(crate) fn drop_tables(&self) -> Result<()> {
        // Dropping would wait for a connection that holds a table open.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let mut connection = self.connection()?;
        for table in &self.tables {
            let drop = format!("DROP TABLE `{}`.`{table}`", self.database);
            connection.execute(&drop).with_context(|| self.name())?;
        }
        Ok(())
    }

    /// See [`OnServer::written_from`].
    pub(crate) fn written_from(&self) -> String {
        self.written.to_string()
    }

    /// See [`OnServer::server_facts`].
    pub(crate) fn facts(&self) -> Result<Vec<(String, String)>> {
        let mut connection = self.connection()?;
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
            let rows = connection.query(query).with_context(|| self.name())?;
            facts.extend(rows.into_iter().filter_map(|row| match <[_; 2]>::try_from(row) {
                Ok([Some(name), Some(value)]) => Some((name.to_lowercase(), value)),
                _ => None,
            }));
        }
        Ok(facts)
    }

    fn name(&self) -> String {
        self.address.to_string()
    }

    fn connection(&self) -> Result<Connection> {
        Connection::connect(&self.address, &self.login).with_context(|| self.name())
    }

    /// A connection for a transaction.
    ///
    /// # Errors
    /// When a new one is needed and cannot be had.
    pub(crate) fn session(&self) -> Result<Session<S>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(session) = idle {
            return Ok(session);
        }
        let mut connection = self.connection()?;
        let setup = "SET SESSION autocommit = 0, SESSION tx_isolation = 'READ-COMMITTED', \
            SESSION sql_mode = 'STRICT_ALL_TABLES'";
        connection.execute(setup).with_context(|| self.name())?;
        Ok(Session { connection, statements: HashMap::new() })
    }

    /// Keeps the connection of a transaction that has ended for the next one.
    pub(crate) fn give_back(&self, session: Session<S>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }
}

/// Connects to a server, but not to the database of the login, whose name is returned.
fn connect(address: &Address, login: &Login) -> Result<(Connection, String)> {
    let database = login.database.clone().unwrap_or_default();
    check_name(&database)?;
    let server = Login { database: None, ..login.clone() };
    let connection = Connection::connect(address, &server).with_context(|| address.to_string())?;
    Ok((connection, database))
}

/// Names go into statements as they are.
fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    ensure!(!name.is_empty() && name.chars().all(plain), "{name:?}: a name is of letters, digits and _");
    Ok(())
}

fn present_tables(connection: &mut Connection, database: &str, tables: &[&str]) -> Result<Vec<String>> {
    let names = format!(
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{database}' \
         AND TABLE_NAME IN ('{}')",
        tables.join("', '")
    );
    Ok(connection.query(&names)?.into_iter().flatten().flatten().collect())
}

/// The single value that a query returns.
fn value(connection: &mut Connection, query: &str) -> Result<String> {
    let rows = connection.query(query)?;
    rows.into_iter().flatten().flatten().next().with_context(|| format!("no answer to {query}"))
}

fn status(connection: &mut Connection, name: &str) -> Result<u64> {
    let rows = connection.query(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))?;
    let value = rows.first().and_then(|row| row.get(1)?.as_deref()?.parse().ok());
    value.with_context(|| format!("the server has no counter {name}"))
}

/// Waits until all pages are written and old versions purged.
fn wait_until_clean(connection: &mut Connection) -> Result<()> {
    let start = Instant::now();
    loop {
        let dirty = status(connection, "Innodb_buffer_pool_pages_dirty")?;
        let history = status(connection, "Innodb_history_list_length")?;
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

impl<S: Prepared> Measured for Server<S> {
    /// Lets the server write its dirty pages as fast as it can until there are none, then restores its settings.
    fn settle(&self) -> Result<()> {
        let mut connection = self.connection()?;
        let mut restore = Vec::new();
        for (name, _) in HURRY {
            let old =
                value(&mut connection, &format!("SELECT @@GLOBAL.{name}")).with_context(|| self.name())?;
            // In turned order: each of a pair bounds the other.
            restore.insert(0, format!("SET GLOBAL {name} = {old}"));
        }
        let hurried = HURRY
            .iter()
            .try_for_each(|(name, fast)| connection.execute(&format!("SET GLOBAL {name} = {fast}")));
        let clean = hurried.map_err(Into::into).and_then(|()| wait_until_clean(&mut connection));
        for set in restore {
            connection.execute(&set).with_context(|| self.name())?;
        }
        clean.with_context(|| self.name())
    }

    fn footprint(&self) -> Result<Footprint> {
        let mut connection = self.connection()?;
        let sizes = format!(
            "SELECT SUM(FILE_SIZE), SUM(ALLOCATED_SIZE) FROM information_schema.INNODB_SYS_TABLESPACES \
             WHERE NAME LIKE '{}/%'",
            self.database
        );
        let rows = connection.query(&sizes).with_context(|| self.name())?;
        let size = |column: usize| -> Option<u64> { rows.first()?.get(column)?.as_deref()?.parse().ok() };
        let (logical, allocated) =
            size(0).zip(size(1)).context("the server does not tell the tables' sizes")?;
        let written = match &self.written {
            Written::Status => status(&mut connection, "Innodb_data_written")?,
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

/// Cuts into groups of the sizes that there are statements for.
pub(crate) fn groups<T>(mut items: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let size = GROUPS.into_iter().find(|&size| size <= items.len())?;
        let (group, rest) = items.split_at(size);
        items = rest;
        Some(group)
    })
}

/// Places for the values of so many rows.
pub(crate) fn places(columns: usize, rows: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    vec![row; rows].join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_rows_is_made_of_groups() {
        assert_eq!(places(2, 3), "(?, ?), (?, ?), (?, ?)");
        let sizes = |rows: usize| groups(&vec![0; rows]).map(<[_]>::len).collect::<Vec<_>>();
        assert_eq!(sizes(295), [256, 32, 4, 1, 1, 1]);
        assert_eq!(sizes(0), [0; 0]);
    }
}
