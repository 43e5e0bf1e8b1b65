//! Servers that speak SQL: connections to them, what they count, and the tables of a benchmark in them.
//!
//! What is the same for all servers is here, once: definitions of tables, sessions with their prepared statements, the
//! counters of the system. What differs is a `dialect::Dialect` and a `client::Client` for each.
//!
//! layers: address, counters, definition, value < client < settings < dialect < mysql, postgres < server

mod address;
mod client;
mod counters;
mod definition;
mod dialect;
pub mod mysql;
pub mod postgres;
mod server;
mod settings;
mod value;

pub use address::{Address, Login};
pub use client::{Error, Result};
pub use counters::Written;
pub(crate) use definition::{Column, Definition, Type};
pub(crate) use dialect::Dialect;
pub use dialect::Format;
pub use server::{Brand, OnServer};
pub(crate) use server::{Prepared, Server, Session, groups, places};
pub use settings::give_back_settings;
pub(crate) use value::{BAD_ROW, Value};
