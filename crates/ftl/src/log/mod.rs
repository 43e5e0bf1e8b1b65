//! The log: segments, append points, numbering, what is on its way to the device, flushes.
//!
//! All of its state is in a [`Log`], behind one mutex, which is never held across device I/O. The methods of a log
//! change memory only: bytes to be written are handed out by a queue, and come back to it when they are on the device.
//!
//! Invariants:
//! 1. Batches are numbered without gaps, in the order in which they enter the log and the map.
//! 2. Relocation records are numbered without gaps, in the order in which they enter log and map.

pub(crate) mod admission;
pub(crate) mod append;
pub(crate) mod batch;
pub(crate) mod buffers;
pub(crate) mod checkpoints;
pub(crate) mod counters;
pub(crate) mod fill;
pub(crate) mod flush;
pub(crate) mod flushes;
pub(crate) mod footprint;
pub(crate) mod free;
pub(crate) mod journal;
pub(crate) mod lifetime;
pub(crate) mod peak;
pub(crate) mod points;
pub(crate) mod queue;
pub(crate) mod reserve;
pub(crate) mod segments;
pub(crate) mod sentinel;
pub(crate) mod state;
pub(crate) mod streams;
pub(crate) mod summary_cache;
pub(crate) mod tail;

pub(crate) use journal::Journal;
pub(crate) use points::AppendPoint;
pub(crate) use segments::{Segment, State};
pub(crate) use state::{Log, Restoring};
