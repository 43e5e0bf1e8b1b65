//! Reads: from the device, or from memory for what is still on its way there.
//!
//! A read holds the map's lock only while it collects and pins. It verifies every chunk that it
//! touches, whole, before it copies any byte of it. Chunks that do not lie in one run are read at the same
//! time. What is mapped but not in the log's memory yet is waited for: its writer is filling its space (`log::fill`).
//!
//! What lies on the device just as it was asked for, as large batches of whole pages do, is read to where it is
//! wanted and verified there. Where that fails, the memory is cleared: bytes that were not verified are never seen.

mod chunks;
mod found;
mod pinned;
mod reader;
mod runs;

pub use found::{Lost, Mapped, Remains};

pub(crate) use pinned::Pinned;
pub(crate) use reader::{NEAR_BYTES, Reader, sector_of};
pub(crate) use runs::{READ_BYTES, runs};
