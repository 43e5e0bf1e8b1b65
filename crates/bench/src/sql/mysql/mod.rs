//! MariaDB servers, which speak MySQL's protocol.
//!
//! layers: connection < dialect

mod connection;
mod dialect;

pub use connection::Connection;
pub(crate) use dialect::Mysql;
