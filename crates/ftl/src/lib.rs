//! A host-side flash translation layer: a sparse, persistent, atomic space of sectors.

mod addr;
mod error;
mod options;
mod store;

pub use addr::{Lba, SECTOR, Seq};
pub use error::{Error, Result};
pub use options::{CheckDepth, Finding, FormatOptions, Op, Options, Report, Stats, Stream, Work};
pub use store::{BATCH_BYTES_MAX, Ftl};
