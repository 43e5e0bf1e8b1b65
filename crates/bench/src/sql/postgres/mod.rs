//! PostgreSQL servers, from version 14 on.
//!
//! layers: login_url, stream < login < connection < dialect

mod connection;
mod dialect;
mod login;
mod login_url;
mod stream;
#[cfg(test)]
mod tests;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use connection::fuzz;
pub(crate) use dialect::Postgres;
pub use login_url::LoginUrl;
