//! MySQL and MariaDB servers: connections to them, what they count, and the tables of a benchmark in them.
//!
//! layers: connection, counters < server

mod connection;
mod counters;
mod server;

pub use connection::{Address, Connection, Error, Login, Result};
pub use counters::Written;
pub use server::{Format, OnServer};
pub(crate) use server::{Prepared, Server, Session, groups, places};
