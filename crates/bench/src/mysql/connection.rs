//! Connections to a MySQL or MariaDB server: the crate `mysql`, set up for a benchmark.
//!
//! The client asks the server nothing on its own: it does not look for a socket, ask for limits, or close statements
//! that are rarely used.

use std::{fmt, ops::ControlFlow, path::PathBuf, str::FromStr};

use ::mysql::{Conn, OptsBuilder, Statement, Value, consts::CapabilityFlags, prelude::Queryable};

/// Longest packet that is sent.
const PACKET_BYTES_MAX: usize = 16 << 20;

/// Why a statement or a connection failed.
#[derive(Debug)]
pub struct Error(::mysql::Error);

/// Result of a call to the server.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether a transaction that fails with this was the victim of others and may succeed when run again: a lock wait
    /// that timed out, a deadlock, or a conflict in the snapshot.
    pub(crate) fn is_lost_race(&self) -> bool {
        matches!(&self.0, ::mysql::Error::MySqlError(error) if [1205, 1213, 1020].contains(&error.code))
    }

    /// Whether a key is there already.
    pub(crate) fn is_duplicate(&self) -> bool {
        matches!(&self.0, ::mysql::Error::MySqlError(error) if error.code == 1062)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ::mysql::Error::MySqlError(error) => write!(f, "{} (error {})", error.message, error.code),
            ::mysql::Error::DriverError(error) => error.fmt(f),
            ::mysql::Error::IoError(error) => error.fmt(f),
            other => other.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<::mysql::Error> for Error {
    fn from(error: ::mysql::Error) -> Error {
        Error(error)
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Socket(PathBuf),
    /// A host and a port.
    Tcp(String, u16),
}

impl FromStr for Address {
    type Err = &'static str;

    /// A path holds a slash; anything else is `HOST:PORT`.
    fn from_str(text: &str) -> std::result::Result<Address, &'static str> {
        if text.contains('/') {
            return Ok(Address::Socket(text.into()));
        }
        let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = parts
            .ok_or("a server is the path of its socket, such as /run/mysqld/mysqld.sock, or HOST:PORT")?;
        Ok(Address::Tcp(host.to_owned(), port))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Socket(path) => path.display().fmt(f),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

/// User, password and database of a connection.
#[derive(Clone, Debug, Default)]
pub struct Login {
    /// User.
    pub user: String,
    /// Password; empty for none.
    pub password: String,
    /// Database to begin in.
    pub database: Option<String>,
}

/// A connection to a server. Statements run one after the other.
#[derive(Debug)]
pub struct Connection(Conn);

impl Connection {
    /// Connects and logs in.
    ///
    /// # Errors
    /// When no server listens there, or when it refuses the login.
    pub fn connect(address: &Address, login: &Login) -> Result<Connection> {
        let options = OptsBuilder::new()
            .user(Some(&login.user))
            .pass(Some(&login.password).filter(|password| !password.is_empty()))
            .db_name(login.database.as_ref())
            // Every byte is a character of its own, so nothing is converted on the way.
            .init(vec!["SET NAMES latin1"])
            // An update counts the rows that it finds, whether or not they differ afterwards.
            .additional_capabilities(CapabilityFlags::CLIENT_FOUND_ROWS)
            .max_allowed_packet(Some(PACKET_BYTES_MAX))
            .prefer_socket(false)
            .stmt_cache_size(0);
        let options = match address {
            Address::Socket(path) => options.socket(Some(path.to_string_lossy())),
            Address::Tcp(host, port) => options.ip_or_hostname(Some(host)).tcp_port(*port),
        };
        Ok(Connection(Conn::new(options)?))
    }

    /// Runs a statement; rows that it may return are dropped.
    ///
    /// # Errors
    /// Whatever the server answers, or a lost connection.
    pub fn execute(&mut self, sql: &str) -> Result<()> {
        Ok(self.0.query_drop(sql)?)
    }

    /// Runs a statement and returns all its rows as the server writes them, NULL as `None`.
    ///
    /// # Errors
    /// Whatever the server answers, or a lost connection.
    pub fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        let text = |value| match value {
            Value::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            _ => None,
        };
        let rows = self.0.query_iter(sql)?.map(|row| Ok(row?.unwrap().into_iter().map(text).collect()));
        rows.collect()
    }

    /// Prepares a statement.
    ///
    /// # Errors
    /// Whatever the server answers, or a lost connection.
    pub(crate) fn prepare(&mut self, sql: &str) -> Result<Statement> {
        Ok(self.0.prep(sql)?)
    }

    /// Runs a prepared statement that returns no rows, and returns how many it found to change; a row that was
    /// replaced on a duplicate key counts twice.
    ///
    /// # Errors
    /// Whatever the server answers, or a lost connection.
    pub(crate) fn run(&mut self, statement: &Statement, params: Vec<Value>) -> Result<u64> {
        Ok(self.0.exec_iter(statement, params)?.affected_rows())
    }

    /// Runs a prepared statement and visits its rows as they arrive; those after a break are read and
    /// dropped.
    ///
    /// # Errors
    /// Whatever the server answers, or a lost connection.
    pub(crate) fn select(
        &mut self,
        statement: &Statement,
        params: Vec<Value>,
        mut visit: impl FnMut(&[Value]) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<()> {
        for row in self.0.exec_iter(statement, params).map_err(Error)? {
            if visit(&row.map_err(Error)?.unwrap())?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        assert_eq!("/run/x.sock".parse(), Ok(Address::Socket("/run/x.sock".into())));
        assert_eq!("./x".parse(), Ok(Address::Socket("./x".into())));
        assert_eq!("localhost:3306".parse(), Ok(Address::Tcp("localhost".to_owned(), 3306)));
        for bad in ["localhost", "localhost:", "localhost:99999", ""] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
