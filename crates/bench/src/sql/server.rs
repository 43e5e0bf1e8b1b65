//! The tables of a benchmark in one of a server's databases.
//!
//! Each requester has one connection, with its own prepared statements. Transactions run at read committed.

use std::{
    collections::HashMap,
    fmt::Debug,
    hash::Hash,
    io::{self, Write},
    ops::ControlFlow,
    path::Path,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    address::{Address, Login},
    client::{self, Client},
    counters::{Written, processor_seconds},
    definition::Definition,
    dialect::{Dialect, Format},
    mysql::Mysql,
    postgres::Postgres,
    settings::Changed,
    value::Value,
};
use crate::{Footprint, Measured, block_stat::tree_bytes};

/// Rows of one statement that inserts many: buffered rows are sent in groups of these sizes.
const GROUPS: [usize; 4] = [256, 32, 4, 1];

/// What kind of server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brand {
    /// MariaDB, which speaks MySQL's protocol.
    Mysql,
    /// PostgreSQL.
    Postgres,
}

impl Brand {
    pub(crate) fn dialect(self) -> &'static dyn Dialect {
        match self {
            Brand::Mysql => &Mysql,
            Brand::Postgres => &Postgres,
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
    fn sql(self, dialect: &dyn Dialect) -> String;
}

/// A connection and its prepared statements.
#[derive(Debug)]
pub(crate) struct Session<S> {
    client: Box<dyn Client>,
    dialect: &'static dyn Dialect,
    statements: HashMap<S, usize>,
}

impl<S: Prepared> Session<S> {
    fn statement(&mut self, shape: S) -> client::Result<usize> {
        if let Some(&statement) = self.statements.get(&shape) {
            return Ok(statement);
        }
        let statement = self.client.prepare(&shape.sql(self.dialect))?;
        self.statements.insert(shape, statement);
        Ok(statement)
    }

    /// See [`Client::begin`].
    pub(crate) fn begin(&mut self) -> client::Result<()> {
        self.client.begin()
    }

    /// See [`Client::run`].
    pub(crate) fn run(&mut self, shape: S, params: &[Value]) -> client::Result<u64> {
        let statement = self.statement(shape)?;
        self.client.run(statement, params)
    }

    /// See [`Client::queue`].
    pub(crate) fn queue(&mut self, shape: S, params: &[Value], rows_min: u64) -> client::Result<()> {
        let statement = self.statement(shape)?;
        self.client.queue(statement, params, rows_min)
    }

    /// See [`Client::select`].
    pub(crate) fn select(
        &mut self,
        shape: S,
        params: &[Value],
        mut visit: impl FnMut(&[Value]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let statement = self.statement(shape)?;
        self.client.select(statement, params, &mut visit)
    }

    /// See [`Client::commit`].
    pub(crate) fn commit(&mut self) -> client::Result<()> {
        self.client.commit()
    }

    /// See [`Client::roll_back`].
    pub(crate) fn roll_back(&mut self) -> client::Result<()> {
        self.client.roll_back()
    }
}

/// A server with the tables of a benchmark in one of its databases; `S` are its statements.
#[derive(Debug)]
pub(crate) struct Server<S> {
    dialect: &'static dyn Dialect,
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
    /// What goes back in the end.
    _changed: Option<Changed>,
}

impl<S: Prepared> Server<S> {
    /// Makes tables in `login.database`, which is made when it is missing.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses, when one of the tables is there already, and when it does not know
    /// the compression.
    pub(crate) fn create(
        brand: Brand,
        address: &Address,
        login: &Login,
        tables: &[Definition],
        format: &Format,
        written: Written,
    ) -> Result<Server<S>> {
        let (dialect, database) = (brand.dialect(), database_of(login)?);
        if let Format::Page(algorithm) = format {
            check_name(algorithm)?;
        }
        let named = || address.to_string();
        let mut client = dialect.enter(address, login, true).with_context(named)?;
        let names: Vec<&'static str> = tables.iter().map(|table| table.name).collect();
        let there = dialect.present(&mut *client, &database, &names).with_context(named)?;
        if let Some(table) = there.first() {
            bail!(
                "{address}: holds the table {database}.{table} already; drop it, or give another --database"
            );
        }
        let changed = dialect.begin(&mut *client, (address, login), format).with_context(named)?;
        for table in tables {
            dialect.create(&mut *client, &database, table, format).with_context(named)?;
        }
        let server = Server::attach(dialect, client, address, login, database, names, written)?;
        Ok(Server { _changed: changed, ..server })
    }

    /// Finds the tables in `login.database`.
    ///
    /// # Errors
    /// When the server cannot be reached, and when a table is missing.
    pub(crate) fn open(
        brand: Brand,
        address: &Address,
        login: &Login,
        tables: &[&'static str],
        written: Written,
    ) -> Result<Server<S>> {
        let (dialect, database) = (brand.dialect(), database_of(login)?);
        let named = || address.to_string();
        let mut client = dialect.enter(address, login, false).with_context(named)?;
        let there = dialect.present(&mut *client, &database, tables).with_context(named)?;
        if let Some(missing) = tables.iter().find(|table| !there.iter().any(|name| name == *table)) {
            bail!("{address}: holds no table {database}.{missing}");
        }
        Server::attach(dialect, client, address, login, database, tables.to_vec(), written)
    }

    fn attach(
        dialect: &'static dyn Dialect,
        mut client: Box<dyn Client>,
        address: &Address,
        login: &Login,
        database: String,
        tables: Vec<&'static str>,
        written: Written,
    ) -> Result<Server<S>> {
        let named = || address.to_string();
        let data_directory = match address {
            Address::Tcp(host, _) if !is_this_machine(host) => NOT_HERE.to_owned(),
            _ => dialect.data_directory(&mut *client).with_context(named)?,
        };
        if std::fs::read_dir(&data_directory).is_err() {
            // Whoever reads it may have gone.
            let what = "its files cannot be read here: of space only what the server says itself is known";
            let _ = writeln!(io::stderr(), "{address}: {what}");
        }
        let process = match address {
            Address::Socket(_) => {
                dialect.process(&mut *client, Path::new(&data_directory)).with_context(named)?
            }
            Address::Tcp(..) => None,
        };
        let written = written.resolve(Path::new(&data_directory), process)?;
        let (address, login) = (address.clone(), login.clone());
        Ok(Server {
            dialect,
            address,
            login,
            database,
            tables,
            idle: Mutex::default(),
            written,
            process,
            data_directory,
            _changed: None,
        })
    }

    /// See [`OnServer::drop_tables`].
    pub(crate) fn drop_tables(&self) -> Result<()> {
        // Dropping would wait for a connection that holds a table open.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let mut client = self.client()?;
        for table in &self.tables {
            let drop = format!("DROP TABLE {}", self.dialect.table(&self.database, table));
            client.execute(&drop).with_context(|| self.name())?;
        }
        Ok(())
    }

    /// See [`OnServer::written_from`].
    pub(crate) fn written_from(&self) -> String {
        match self.written {
            Written::Status => format!("{} of the server", self.dialect.written_name()),
            ref measured => measured.to_string(),
        }
    }

    /// See [`OnServer::server_facts`].
    pub(crate) fn facts(&self) -> Result<Vec<(String, String)>> {
        let mut client = self.client()?;
        self.dialect.facts(&mut *client).with_context(|| self.name())
    }

    fn name(&self) -> String {
        self.address.to_string()
    }

    /// A connection for statements that are no transactions.
    fn client(&self) -> Result<Box<dyn Client>> {
        self.dialect.enter(&self.address, &self.login, false).with_context(|| self.name())
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
        let client = self.dialect.connect(&self.address, &self.login).with_context(|| self.name())?;
        Ok(Session { client, dialect: self.dialect, statements: HashMap::new() })
    }

    /// Keeps the connection of a transaction that has ended for the next one.
    pub(crate) fn give_back(&self, session: Session<S>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }
}

/// In place of the data directory of a server on another machine: nothing lies there.
const NOT_HERE: &str = "/dev/null";

/// Whether a server with that host has its files here, if anywhere that can be read.
fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The database of a login.
fn database_of(login: &Login) -> Result<String> {
    let database = login.database.clone().unwrap_or_default();
    check_name(&database)?;
    Ok(database)
}

/// Names go into statements as they are.
fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    ensure!(!name.is_empty() && name.chars().all(plain), "{name:?}: a name is of letters, digits and _");
    Ok(())
}

impl<S: Prepared> Measured for Server<S> {
    fn settle(&self) -> Result<()> {
        let mut client = self.client()?;
        let settled = self.dialect.settle(&mut *client, (&self.address, &self.login), &self.tables);
        settled.with_context(|| self.name())
    }

    fn footprint(&self) -> Result<Footprint> {
        let mut client = self.client()?;
        let directory = Path::new(&self.data_directory);
        let sizes = self.dialect.sizes(&mut *client, &self.database, directory);
        let (logical, allocated) = sizes.with_context(|| self.name())?;
        let written = match &self.written {
            Written::Status => self.dialect.written(&mut *client).with_context(|| self.name())?,
            measured => measured.bytes()?,
        };
        Ok(Footprint {
            logical_bytes: logical,
            allocated_bytes: allocated,
            store_bytes: tree_bytes(directory).unwrap_or(allocated),
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
