use std::{fmt, ops::ControlFlow};

use super::value::Value;

/// Why a statement or a connection failed.
#[derive(Debug)]
pub enum Error {
    /// The transaction was the victim of others and may succeed when run again: a lock wait that timed out, a deadlock,
    /// a conflict in the snapshot.
    LostRace(String),
    /// A key is there already.
    Duplicate(String),
    /// A statement that must change a row found none.
    Missing,
    /// Anything else.
    Other(String),
}

/// Result of a call to the server.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::LostRace(text) | Error::Duplicate(text) | Error::Other(text) => text.fmt(f),
            Error::Missing => write!(f, "a row that must be changed is not there"),
        }
    }
}

impl std::error::Error for Error {}

/// Called for each row of a query.
pub(crate) type VisitRow<'v> = dyn FnMut(&[Value]) -> anyhow::Result<ControlFlow<()>> + 'v;

/// A connection to a server. Statements run one after the other. Outside of a transaction each one commits by itself;
/// places of parameters are `?` for all servers.
pub(crate) trait Client: fmt::Debug + Send {
    /// Runs a statement; rows that it may return are dropped.
    fn execute(&mut self, sql: &str) -> Result<()>;

    /// Runs a statement and returns all its rows as the server writes them, NULL as `None`.
    fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>>;

    /// Prepares a statement; its number in this connection.
    fn prepare(&mut self, sql: &str) -> Result<usize>;

    /// Runs a prepared statement that returns no rows, and returns how many it found to change.
    fn run(&mut self, statement: usize, params: &[Value]) -> Result<u64>;

    /// The same, at the latest with the next call that returns something of the server; an error that is found then is
    /// that call's. Fails when it does not find at least `rows_min` rows to change.
    fn queue(&mut self, statement: usize, params: &[Value], rows_min: u64) -> Result<()> {
        let found = self.run(statement, params)?;
        if found < rows_min { Err(Error::Missing) } else { Ok(()) }
    }

    /// Runs a prepared statement and visits its rows as they arrive; those after a break are read and dropped.
    fn select(&mut self, statement: usize, params: &[Value], visit: &mut VisitRow<'_>) -> anyhow::Result<()>;

    /// Begins a transaction, unless one is under way.
    fn begin(&mut self) -> Result<()>;

    /// Ends the transaction under way; it is durable then.
    fn commit(&mut self) -> Result<()>;

    /// Undoes the transaction under way.
    fn roll_back(&mut self) -> Result<()>;
}
