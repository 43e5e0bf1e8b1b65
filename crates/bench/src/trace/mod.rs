//! Write traces: the offsets that a run wrote, discarded and synced, in their order, without the data.
//!
//! [`TraceDevice`] and [`TraceVfs`] stand between a layer and the storage below it and report each operation to a
//! [`TraceWriter`], which writes a file; [`TraceReader`] reads that back, for the [flash model](crate::flash) or other
//! tools. The bytes of the file are in `format` and in docs/FORMAT.md. [`BlockEvents`] reads what the kernel recorded of
//! a block device instead.
//!
//! An operation is recorded once it has returned without an error. So the order of operations that
//! overlap in time is one of those possible, and a write that failed in part is not in the trace.

mod block_events;
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

pub use block_events::BlockEvents;
pub use device::TraceDevice;
pub use reader::TraceReader;
pub use vfs::TraceVfs;
pub use writer::TraceWriter;

/// One operation of a run on its medium. Offsets and lengths are in bytes, whole sectors.
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

/// The traced storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceSource {
    /// One device; offsets are its own.
    Device {
        /// Its size in bytes.
        capacity_bytes: u64,
    },
    /// The files of a VFS. Each has [`FILE_SPAN_BYTES`] of addresses of its own; their location on the device, the file
    /// system's journal and its metadata are not in the trace. Truncated, punched and removed ranges count as
    /// discarded.
    Files,
}

/// Distance between the addresses of two files in a trace of [`TraceSource::Files`], in bytes.
pub const FILE_SPAN_BYTES: u64 = 1 << 45;
