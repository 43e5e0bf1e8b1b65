//! Traffic of a store.

use crate::{StreamStats, log::points::AppendPoint};

/// Traffic since open; see [`crate::Stats`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) data: StreamStats,
    pub(crate) log: StreamStats,
    pub(crate) gc_bytes: u64,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) prepared_bytes: u64,
    pub(crate) flushes: u64,
    pub(crate) gc_segments: u64,
    pub(crate) retained: u64,
    pub(crate) checkpoints: u64,
    pub(crate) replayed_batches: u64,
    pub(crate) corrupt_chunks: u64,
}

impl Counters {
    /// A batch with `host_bytes` of data was accepted at `point`.
    pub(crate) fn note_batch(&mut self, point: AppendPoint, host_bytes: u64) {
        let stream = if point == AppendPoint::Log { &mut self.log } else { &mut self.data };
        stream.batches += 1;
        stream.host_bytes += host_bytes;
    }
}

impl Counters {
    /// This many bytes that were appended at `point` are on the device.
    pub(super) fn note_written(&mut self, point: AppendPoint, bytes: u64) {
        match point {
            AppendPoint::Data(_) => self.data.written_bytes += bytes,
            AppendPoint::Log => self.log.written_bytes += bytes,
            AppendPoint::Gc(_) => self.gc_bytes += bytes,
        }
    }
}
