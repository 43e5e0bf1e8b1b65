//! How much of a store may be live, and how many segments must stay free. Pure arithmetic.
//!
//! The rules that keep a store from ever getting stuck:
//!
//! 1. *Checkpoint.* Free segments, plus those of the checkpoint on the device, plus those already
//!    taken for the one being written, always suffice for two checkpoints of the largest map that a
//!    recovery could bring back; and the free ones alone (with those taken) suffice for one. So
//!    recovery can write its checkpoint, and afterwards, when the old one is freed, still another.
//! 2. *Garbage collection.* Fresh data leaves [`GC_SEGMENTS`] segments beyond rule 1, so collection
//!    can always open one and move a whole victim.
//! 3. *Live data.* What is live, bookkeeping included, is limited so that all segments that hold it
//!    could not be full at the same time: some victim always yields more than it costs. A segment
//!    is taken to hold no more than [`Space::usable_bytes`], whatever the chunks' sizes.

use crate::{
    addr::CHUNK_BYTES,
    format::{ENTRY_BYTES, MAP_ENTRY_BYTES, RECORD_HEADER_BYTES, RECORDS_START, Root},
    lifetime::CLASSES_MAX,
    map::Live,
    store::BATCH_BYTES_MAX,
};

/// Segments that fresh data leaves to garbage collection.
pub(crate) const GC_SEGMENTS: usize = 2;
/// Segments of the store per class of data.
const SEGMENTS_PER_CLASS: usize = 20;
/// Largest number of map entries in one record of a checkpoint.
pub(crate) const MAP_RECORD_ENTRIES: usize = 4096;
/// What an extent costs besides its bytes: its entry when it is moved, and two checkpoints'.
pub(crate) const EXTENT_BYTES: u64 = (ENTRY_BYTES + 2 * MAP_ENTRY_BYTES) as u64 + 8;

/// Sizes of a store; all limits follow from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) segments: usize,
    pub(crate) segment_bytes: usize,
    pub(crate) block_bytes: usize,
    pub(crate) reserve_percent: u8,
}

/// Live bytes at which batches are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Batches that add live bytes stay below this.
    pub(crate) grow: u64,
    /// Batches that only add bookkeeping (an overwrite that splits extents) stay below this.
    pub(crate) hard: u64,
}

impl Space {
    /// Bytes of a segment that payload and entries can fill whatever their sizes are: a record is
    /// cut when the next chunk does not fit, and its start may be aligned to 4 KiB.
    pub(crate) fn usable_bytes(&self) -> usize {
        self.segment_bytes - RECORDS_START - 2 * RECORD_HEADER_BYTES - (CHUNK_BYTES + ENTRY_BYTES) - 4096
    }

    /// Largest batch in bytes: small stores could not hold old and new side by side.
    pub(crate) fn batch_bytes_max(&self) -> u64 {
        BATCH_BYTES_MAX.min((self.segments * self.segment_bytes) as u64 / 8)
    }

    /// Segments that the largest batch needs.
    pub(crate) fn batch_segments_max(&self) -> usize {
        (self.batch_bytes_max() as usize).div_ceil(self.usable_bytes()) + 1
    }

    /// Offset of the first record in a checkpoint's segment.
    pub(crate) fn checkpoint_start(&self) -> usize {
        RECORDS_START.next_multiple_of(self.block_bytes)
    }

    /// Segments that a checkpoint of `extents` extents needs, its root included.
    pub(crate) fn checkpoint_segments(&self, extents: u64) -> usize {
        let room = self.segment_bytes - self.checkpoint_start();
        let record = RECORD_HEADER_BYTES + MAP_RECORD_ENTRIES * MAP_ENTRY_BYTES;
        let whole = room / record.next_multiple_of(self.block_bytes);
        let rest = room - whole * record.next_multiple_of(self.block_bytes);
        let rest_entries = rest.saturating_sub(RECORD_HEADER_BYTES) / MAP_ENTRY_BYTES;
        let per_segment = (whole * MAP_RECORD_ENTRIES + rest_entries) as u64;
        extents.div_ceil(per_segment) as usize + 1
    }

    /// Whether a checkpoint's root can name as many segments as a store of this size may need.
    pub(crate) fn root_fits(&self) -> bool {
        let names =
            (self.segment_bytes - self.checkpoint_start() - RECORD_HEADER_BYTES - Root::bytes_for(0)) / 16;
        names >= self.segments
    }

    /// Segments that must stay free for checkpoints (rule 1), when the one on the device has
    /// `durable` and the one being written has taken `taken`.
    pub(crate) fn checkpoint_reserve(&self, extents: u64, durable: usize, taken: usize) -> usize {
        let need = self.checkpoint_segments(extents);
        (need + need.saturating_sub(durable)).saturating_sub(taken)
    }

    /// Classes of data: each takes two open segments, which a small store has not to spare.
    pub(crate) fn classes(&self) -> usize {
        (self.segments / SEGMENTS_PER_CLASS).clamp(1, CLASSES_MAX)
    }

    /// Segments that are open for appends at most: batches and moved extents of each class, log.
    fn open_segments(&self) -> usize {
        1 + 2 * self.classes()
    }

    /// Segments that never hold live data for long: superblocks, append points, reserves of the
    /// rules above (rounding of two checkpoints included), the largest batch before it is applied.
    fn fixed_segments(&self) -> usize {
        1 + self.open_segments() + GC_SEGMENTS + 4 + self.batch_segments_max()
    }

    /// Limits when `damaged` segments are out of use; none when the store is too small.
    pub(crate) fn limits(&self, damaged: usize) -> Option<Limits> {
        let usable = self.usable_bytes() as u64;
        let data = self.segments.saturating_sub(self.fixed_segments() + damaged) as u64;
        let hard = data * usable / 100 * 97;
        let kept = (self.segments as u64 - 1) * usable / 100 * u64::from(100 - self.reserve_percent.min(90));
        (data >= 4).then(|| Limits { grow: kept.min(hard / 100 * 97), hard })
    }

    /// Bytes that count against the limits.
    pub(crate) fn cost(total: Live) -> u64 {
        total.bytes + total.extents * EXTENT_BYTES
    }

    /// Bytes that a segment's live extents take once moved.
    pub(crate) fn moved_bytes(live: Live) -> u64 {
        live.bytes + live.extents * ENTRY_BYTES as u64
    }

    /// How well collecting a segment with `live` pays: room won per byte moved, times its age,
    /// because what is old will hardly be overwritten soon (cost-benefit, Rosenblum and Ousterhout,
    /// "The design and implementation of a log-structured file system", 1992).
    pub(crate) fn worth(&self, live: Live, age: u64) -> f64 {
        let moved = Space::moved_bytes(live) as f64;
        let won = self.usable_bytes() as f64 - moved;
        won / moved.max(1.0) * age as f64
    }

    /// Whether moving a segment with `live` yields more room than it costs.
    pub(crate) fn worth_moving(&self, live: Live) -> bool {
        Space::moved_bytes(live) < self.usable_bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(segments: usize, segment_bytes: usize) -> Space {
        Space { segments, segment_bytes, block_bytes: 512, reserve_percent: 7 }
    }

    #[test]
    fn a_large_store_keeps_the_percentage() {
        let limits = space(1024, 64 << 20).limits(0).unwrap();
        let share = limits.grow as f64 / (1024.0 * f64::from(64 << 20));
        assert!((0.92..0.93).contains(&share), "{share}");
        assert!(limits.hard > limits.grow);
    }

    #[test]
    fn tiny_stores_are_refused() {
        assert_eq!(space(12, 64 << 10).limits(0), None);
        assert!(space(32, 64 << 10).limits(0).is_some());
        assert_eq!(space(32, 64 << 10).limits(20), None);
    }

    #[test]
    fn checkpoint_segments_hold_their_extents() {
        let space = space(64, 64 << 10);
        assert_eq!(space.checkpoint_segments(0), 1);
        let per_segment = ((64 << 10) - 512 - 64) / 32;
        assert_eq!(space.checkpoint_segments(per_segment), 2);
        assert_eq!(space.checkpoint_segments(per_segment + 1), 3);
    }

    #[test]
    fn two_checkpoints_are_kept() {
        let space = space(64, 64 << 10);
        let need = space.checkpoint_segments(10_000);
        assert_eq!(space.checkpoint_reserve(10_000, 0, 0), 2 * need);
        assert_eq!(space.checkpoint_reserve(10_000, need + 3, 0), need);
        assert_eq!(space.checkpoint_reserve(10_000, need - 1, 2), need - 1);
    }

    #[test]
    fn limits_leave_a_victim_worth_moving() {
        for segments in [32, 64, 1024, 5000] {
            let space = space(segments, 1 << 20);
            let limits = space.limits(0).unwrap();
            let data = (segments - space.fixed_segments()) as u64;
            assert!(limits.hard < data * space.usable_bytes() as u64);
        }
    }
}
