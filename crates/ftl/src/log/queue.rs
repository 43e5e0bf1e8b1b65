//! Pieces of the log in flight to the device.

use std::collections::{BTreeSet, VecDeque};

use lacuna_device::Filled;

use crate::{
    addr::SegNo,
    log::{buffers::IN_FLIGHT_BYTES_MAX, points::AppendPoint, tail::Piece},
};

/// Pieces in flight to the device at a time: enough to keep a fast one busy. Few where
/// every order is tried.
const IN_FLIGHT_MAX: usize = if cfg!(feature = "shuttle") { 2 } else { 32 };

/// A piece in flight to the device.
pub(crate) struct DeviceWrite {
    pub(crate) id: u64,
    pub(crate) segment: SegNo,
    pub(crate) point: AppendPoint,
    pub(crate) piece: Piece,
}

/// Frozen pieces, from when they were cut off their tails until they are on the device.
#[derive(Default)]
pub(super) struct WriteQueue {
    /// Writes that no thread has begun, by id; some of them may not be filled yet.
    pending: VecDeque<DeviceWrite>,
    /// Ids of all that were handed out or are pending.
    outstanding: BTreeSet<u64>,
    /// Bytes of those; failed writes stay counted.
    outstanding_bytes: usize,
    write_next: u64,
    /// Writes handed out that have not come back, and their bytes.
    in_flight: usize,
    in_flight_bytes: usize,
}

impl WriteQueue {
    pub(super) fn outstanding_bytes(&self) -> usize {
        self.outstanding_bytes
    }

    /// Writes handed out that have not come back.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether another write may be begun.
    pub(super) fn may_begin(&self) -> bool {
        self.in_flight < IN_FLIGHT_MAX && self.in_flight_bytes < IN_FLIGHT_BYTES_MAX
    }

    pub(super) fn push(&mut self, segment: SegNo, point: AppendPoint, pieces: Vec<Piece>) {
        for piece in pieces {
            let id = self.write_next;
            self.write_next += 1;
            self.outstanding.insert(id);
            self.outstanding_bytes += piece.len;
            self.pending.push_back(DeviceWrite { id, segment, point, piece });
        }
    }

    /// The piece that starts at `start` of `segment` is filled: it can be written.
    pub(super) fn fill(&mut self, segment: SegNo, start: usize, bytes: Filled) {
        let is_it = |write: &&mut DeviceWrite| write.segment == segment && write.piece.start == start;
        let write = self.pending.iter_mut().find(is_it).expect("a piece is pending until it is filled");
        assert!(write.piece.bytes.replace(bytes).is_none(), "a piece was filled twice");
    }

    /// Place in `pending` of the first write that can be begun.
    fn ready(&self) -> Option<usize> {
        self.pending.iter().position(|write| write.piece.bytes.is_some())
    }

    /// Whether a write waits to be begun. A write that is not filled yet waits for the thread that fills it, which then
    /// begins it.
    pub(super) fn has_ready(&self) -> bool {
        self.ready().is_some()
    }

    /// Hands out a write that no thread has begun yet. It comes back in [`WriteQueue::have_ended`], then, unless it has
    /// failed, in [`WriteQueue::complete`].
    pub(super) fn next(&mut self) -> Option<DeviceWrite> {
        let write = self.pending.remove(self.ready()?)?;
        self.in_flight += 1;
        self.in_flight_bytes += write.piece.len;
        Some(write)
    }

    /// The same, of those with an id below `mark`.
    pub(super) fn next_below(&mut self, mark: u64) -> Option<DeviceWrite> {
        // In order of their ids, so it is the first or none.
        self.ready().filter(|index| self.pending[*index].id < mark).and_then(|_| self.next())
    }

    /// Id of the next write that will be queued; all earlier ones have lower ids.
    pub(super) fn mark(&self) -> u64 {
        self.write_next
    }

    /// Whether a write with an id below `mark` is not on the device yet.
    pub(super) fn is_writing_below(&self, mark: u64) -> bool {
        self.outstanding.first().is_some_and(|id| *id < mark)
    }

    /// `writes` are no longer in flight.
    pub(super) fn have_ended(&mut self, writes: &[DeviceWrite]) {
        self.in_flight -= writes.len();
        self.in_flight_bytes -= writes.iter().map(|write| write.piece.len).sum::<usize>();
    }

    /// `write`, which has ended, is on the device.
    pub(super) fn complete(&mut self, write: &DeviceWrite) {
        assert!(self.outstanding.remove(&write.id), "write completed twice");
        self.outstanding_bytes -= write.piece.len;
    }
}
