//! The open store: its parts put together, and the public face of it.
//!
//! Each part knows those below it only; threads share them. The locks and their order are those of
//! [`Journal`](crate::log::Journal).

mod ftl;
mod parts;
mod stats;
#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) mod test_store;

pub use ftl::Ftl;
