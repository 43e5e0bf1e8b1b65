//! Write traces: which bytes a run wrote, discarded and synced, in which order; not what they were.
//!
//! [`TraceDevice`] and [`TraceVfs`] stand between a layer and what it lives on and tell a
//! [`TraceWriter`], which makes a file of it; [`TraceReader`] reads that back, for the
//! [flash model](crate::flash) or whatever else wants to know. The bytes of the file are in `format`
//! and in docs/FORMAT.md.
//!
//! An operation is recorded once it has returned without an error. So the order of operations that
//! overlap in time is one of those possible, and a write that failed in part is not in the trace.

mod device;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz;
mod reader;
#[cfg(test)]
mod tests;
mod vfs;
mod writer;

pub use device::TraceDevice;
pub use reader::TraceReader;
pub use vfs::TraceVfs;
pub use writer::TraceWriter;

/// One thing that a run did to its medium. Offsets and lengths are in bytes, whole sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceOp {
    /// Bytes were written.
    Write {
        /// Where they begin.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// Bytes are no longer needed.
    Discard {
        /// Where they begin.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// Everything before was made durable.
    Sync,
}

/// What was traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceSource {
    /// One device; offsets are its own.
    Device {
        /// Its size in bytes.
        capacity_bytes: u64,
    },
    /// The files of a VFS. Each has [`FILE_SPAN_BYTES`] of addresses of its own; where the file
    /// system puts them, its journal and its metadata are not in the trace. What was cut off, punched
    /// or removed counts as discarded.
    Files,
}

/// Distance between the addresses of two files in a trace of [`TraceSource::Files`], in bytes.
pub const FILE_SPAN_BYTES: u64 = 1 << 45;
