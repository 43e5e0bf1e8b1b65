//! The log: segments, append points, numbering, writes in flight to the device, flushes.
//!
//! All of its state is in a [`Log`], behind one mutex, which is never held across device I/O. The methods of a log
//! change memory only: bytes to be written are handed out by a queue, and come back to it when they are on the device.
//!
//! Invariants:
//! 1. Batches are numbered without gaps, in the order in which they enter the log and the map.
//! 2. Relocation records are numbered without gaps, in the order in which they enter log and map.

mod admission;
mod append;
mod batch;
mod buffers;
mod checkpoints;
mod counters;
mod fill;
mod flush;
mod flushes;
mod footprint;
mod free;
mod journal;
mod lifetime;
mod logging;
mod peak;
mod points;
mod queue;
mod reserve;
mod segments;
mod sentinel;
mod state;
mod streams;
mod summary_cache;
mod tail;

pub(crate) use batch::{Batch, Item, stored_after};
pub(crate) use checkpoints::{Checkpoints, Coverage};
#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) use fill::Appended;
pub(crate) use journal::Journal;
pub(crate) use lifetime::{COLDEST, Classes, Expected, MeanExpected};
pub(crate) use points::AppendPoint;
pub(crate) use reserve::Claim;
pub(crate) use segments::{Damaged, Segment, State};
pub(crate) use state::{Log, Recovered, Restoring};
