//! Reads: from the device, or from memory for bytes that are still on their way there.
//!
//! A read holds the map's lock only while it collects and pins. It verifies every chunk that it touches, whole, before
//! it copies any byte of it. Chunks that do not lie in one run are read at the same time. A read waits for extents that
//! are mapped but not in the log's memory yet: their writer is filling its space (`log::fill`).
//!
//! Where the device holds the bytes in the layout of the caller's buffer, as after large batches of whole pages, they
//! are read straight into that buffer and verified there. If verification fails, the buffer is cleared: the caller
//! never sees unverified bytes.

mod cache;
mod chunks;
mod cold;
mod decoded;
mod found;
mod pinned;
mod reader;
mod room;
mod runs;
mod stored;

pub use cold::Cold;
pub use found::{Lost, Mapped, Remains};

pub(crate) use cache::ChunkCache;
pub(crate) use cold::cold_chunks;
pub(crate) use pinned::Pinned;
pub(crate) use reader::{NEAR_BYTES, Reader};
pub(crate) use room::room;
pub(crate) use runs::{READ_BYTES, runs};
pub(crate) use stored::Stored;
