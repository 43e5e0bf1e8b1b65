//! A host-side flash translation layer: a sparse, persistent, atomic space of sectors.

mod addr;
mod background;
mod batch;
mod check;
mod checkpoint;
mod error;
mod format;
mod gc;
mod log;
mod map;
mod options;
mod read;
mod recovery;
mod scan;
mod space;
mod store;
mod superblock;
mod tail;
mod write;

pub use addr::{Lba, SECTOR, Seq};
pub use error::{Error, Result};
pub use options::{CheckDepth, Finding, FormatOptions, Op, Options, Report, Stats, Stream, Work};
pub use store::{BATCH_BYTES_MAX, Ftl};
