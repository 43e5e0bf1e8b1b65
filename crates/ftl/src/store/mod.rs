//! The open store: everything that threads share, and the public face of it.
//!
//! # Locks
//!
//! In this order; none is held across device I/O except `maintenance`, which no batch and no read needs:
//! `maintenance` (one piece of collection or one checkpoint at a time) -> `log` -> `map`.
//!
//! A change of what is mapped happens with `log` held, so who holds `log` sees that stand still;
//! leaves of the map come and go with `map` alone. Readers take only `map`, shared, and pin the
//! segments that they are going to read before they release it: a segment to which the map does not
//! lead can get no new pin.

mod ftl;
mod parts;
mod stats;
#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) mod test_store;

pub use ftl::Ftl;
