//! A small client of the MySQL protocol, as MariaDB speaks it: text statements, prepared statements,
//! rows as they arrive, the native password scheme. No TLS, no compression, nothing asynchronous.
//!
//! It exists because a benchmark needs a client with little overhead and no hidden requests, and because the known
//! crates bring 70 others with them. The protocol is described at <https://mariadb.com/kb/en/clientserver-protocol/>.
//!
//! All input from the server is checked: invalid bytes yield [`Error::Protocol`], never a panic. A connection that
//! failed in any way but by [`Error::Server`] is unusable, and every later call returns an error.

mod connection;
mod wire;

pub use connection::{Address, Connection, Done, Login, Statement};
pub use wire::{Field, Param};

/// Why a statement or a connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused a statement; the connection lives on.
    #[error("{message} (error {code})")]
    Server {
        /// The server's number for it, such as 1213 for a deadlock.
        code: u16,
        /// Its words.
        message: String,
    },
    /// The connection is gone.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The server sent a packet that this client does not understand.
    #[error("the server does not keep to the protocol: {0}")]
    Protocol(&'static str),
    /// Something that this client cannot do.
    #[error("{0}")]
    Unsupported(String),
}

impl Error {
    /// A transaction that fails with this was the victim of others and may succeed when run again:
    /// a lock wait that timed out, a deadlock, a conflict in the snapshot.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Server { code: 1205 | 1213 | 1020, .. })
    }

    /// A row with that key is there already.
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Error::Server { code: 1062, .. })
    }
}

/// Result of a call to the server.
pub type Result<T> = std::result::Result<T, Error>;
