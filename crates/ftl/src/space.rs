//! How much of a store may be live, and how many segments must stay free. Pure arithmetic.
//!
//! The rules that keep a store from ever getting stuck are in [`crate::log::reserve`], and `F` is defined there. A
//! segment is taken to hold no more than [`Space::usable_bytes`], whatever the chunks' sizes.

use crate::{
    Footprint, Spare,
    addr::{CHUNK_BYTES, GRAIN},
    format::{
        LEAF_BYTES_MAX, LEAF_HEADER_BYTES, LEAF_PADDING, Live, MAP_INDEX_BYTES, PACKED_ENTRY_BYTES_MAX,
        RECORD_HEADER_BYTES, RECORDS_START, ROW_BYTES_MAX, Root, SEGMENT_LIVE_BYTES, SUMMARY_BYTES,
        SUMMARY_RECORD_BYTES_MAX,
    },
    mutant::{Rule, is_broken},
    options::FOOTPRINT_PERCENT_MIN,
};

/// Largest batch of any store in bytes, data and bookkeeping; small stores take less, see
/// [`crate::Ftl::batch_bytes_max`].
pub const BATCH_BYTES_MAX: u64 = 24 << 20;

/// Percent of the capacity kept out of use so that collection stays cheap; a few segments are kept in any case.
const RESERVE_PERCENT: u64 = 7;
/// Segments that writers leave to collection (invariant 2 of [`crate::log::reserve`]).
pub(crate) const GC_SEGMENTS: usize = 2;
/// Segments that collection has, at least, when a store was opened (invariant 4 there).
pub(crate) const GC_SEGMENTS_MIN: usize = 1;
/// Classes of lifetime of a large store.
pub(crate) const CLASSES_MAX: usize = 7;
/// However few extents a leaf of the map holds, space for checkpoints is kept as if they were so many: a leaf
/// then costs no more than its extents are taken to.
pub(crate) const LEAF_WEIGHT: u64 = 32;
/// Segments of the store per class of data.
const SEGMENTS_PER_CLASS: usize = 32;
/// Longest body of a record of leaves, index entries or counters.
pub(crate) const MAP_RECORD_BYTES: usize = 256 << 10;
/// Bytes of a leaf beside its rows, its place in the index included.
const LEAF_EXTRA_BYTES: usize = LEAF_HEADER_BYTES + LEAF_PADDING + GRAIN + MAP_INDEX_BYTES;
/// The most bytes that an extent takes in a checkpoint.
pub(crate) const MAP_EXTENT_BYTES: usize = ROW_BYTES_MAX + LEAF_EXTRA_BYTES.div_ceil(LEAF_WEIGHT as usize);
/// The most bytes that a moved extent takes in the log beside its payload: in the record, and in the summary.
const MOVED_ENTRY_BYTES: usize = 2 * PACKED_ENTRY_BYTES_MAX;
/// The bytes that an extent costs besides its payload: when it is moved, and in two checkpoints.
pub(crate) const EXTENT_BYTES: u64 = (MOVED_ENTRY_BYTES + 2 * MAP_EXTENT_BYTES) as u64 + 8;

/// Sizes of a store; all limits follow from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) segments: usize,
    pub(crate) segment_bytes: usize,
    /// Blocks of the device that the store is on: what is read and written, and what records are padded to.
    pub(crate) block_bytes: usize,
    /// The largest that the store may meet. Limits count with these, so a full store stays one on any device.
    pub(crate) block_bytes_max: usize,
    /// Segments that hold a superblock and nothing else.
    pub(crate) superblock_segments: usize,
}

/// Live bytes at which batches are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Batches that add live bytes stay below this.
    pub(crate) grow: u64,
    /// Batches that only add bookkeeping (an overwrite that splits extents) stay below this.
    pub(crate) hard: u64,
}

impl Limits {
    /// The limits of a batch that leaves `spare` to others.
    pub(crate) fn leaving(self, spare: Spare) -> Limits {
        let bytes = spare.of(self.grow);
        Limits { grow: self.grow - bytes, hard: self.hard - bytes }
    }
}

impl Space {
    /// Bytes of a segment that payload and entries can fill whatever their sizes are: a record is
    /// cut when the next chunk does not fit, and its start may be aligned to 4 KiB. The summary starts
    /// on a block; the entries' copies in it count as part of them.
    pub(crate) fn usable_bytes(&self) -> usize {
        let records = 2 * (RECORD_HEADER_BYTES + SUMMARY_RECORD_BYTES_MAX);
        let cut = CHUNK_BYTES + MOVED_ENTRY_BYTES + 4096;
        self.segment_bytes - RECORDS_START - records - cut - SUMMARY_BYTES - self.block_bytes_max
    }

    /// Largest batch in bytes: small stores could not hold old and new data side by side.
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

    /// Bytes of leaves that fit into a segment whatever their sizes are: records end on blocks, and a
    /// leaf that does not fit is left to the next segment.
    fn map_usable_bytes(&self) -> usize {
        let capacity = self.segment_bytes - RECORDS_START.next_multiple_of(self.block_bytes_max);
        let records = capacity.div_ceil(MAP_RECORD_BYTES - LEAF_BYTES_MAX);
        capacity - records * (RECORD_HEADER_BYTES + self.block_bytes_max) - LEAF_BYTES_MAX
    }

    /// Records of a checkpoint's index and counters, for `leaves` leaves.
    fn index_records(&self, leaves: usize) -> usize {
        let bytes = leaves * MAP_INDEX_BYTES + self.segments * SEGMENT_LIVE_BYTES;
        bytes / self.map_usable_bytes().min(MAP_RECORD_BYTES / 2) + 4
    }

    /// Segments that `bytes` of leaves, and the index, counters and root of a checkpoint of `leaves`
    /// leaves need.
    pub(crate) fn map_segments(&self, leaf_bytes: u64, leaves: u64) -> usize {
        let leaves = leaves as usize;
        let index = leaves * MAP_INDEX_BYTES + self.segments * SEGMENT_LIVE_BYTES;
        // A root that does not fit leaves as much space unused before it.
        let root = 2 * Root::bytes_for(self.index_records(leaves));
        let ends = 4 * (RECORD_HEADER_BYTES + self.block_bytes_max);
        (leaf_bytes as usize + index + root + ends).div_ceil(self.map_usable_bytes())
    }

    /// Segments that a whole checkpoint of `weight` extents (see [`crate::map::Map::weight`]) needs at
    /// most: F.
    pub(crate) fn checkpoint_segments(&self, weight: u64) -> usize {
        let leaves = weight / LEAF_WEIGHT + 1;
        let extra = (LEAF_EXTRA_BYTES - MAP_INDEX_BYTES) as u64;
        self.map_segments(weight * ROW_BYTES_MAX as u64 + leaves * extra, leaves)
    }

    /// Segments that may hold leaves and checkpoints when one of `weight` is done.
    pub(crate) fn map_segments_max(&self, weight: u64) -> usize {
        self.checkpoint_segments(weight) + 1
    }

    /// Whether a checkpoint's root can name as many records as the index of a store of this size may
    /// need.
    pub(crate) fn root_fits(&self) -> bool {
        let extents = (self.segments * self.segment_bytes) as u64 / EXTENT_BYTES;
        let records = self.index_records((extents / LEAF_WEIGHT) as usize + 1);
        let root = RECORD_HEADER_BYTES + Root::bytes_for(records.max(self.segments));
        RECORDS_START.next_multiple_of(self.block_bytes_max) + root <= self.segment_bytes
    }

    /// The most segments of this size that a store can have.
    pub(crate) fn segments_max(&self) -> usize {
        let (mut fit, mut too_many) = (self.segments, u32::MAX as usize + 1);
        while too_many - fit > 1 {
            let segments = fit + (too_many - fit) / 2;
            match (Space { segments, ..*self }).root_fits() {
                true => fit = segments,
                false => too_many = segments,
            }
        }
        fit
    }

    /// Segments that must stay free for checkpoints (invariant 1 of [`crate::log::reserve`]), when `in_use` hold leaves
    /// and checkpoints, of which the one being written has taken `taken`.
    pub(crate) fn checkpoint_reserve(&self, weight: u64, in_use: usize, taken: usize) -> usize {
        let whole = self.checkpoint_segments(weight);
        whole.saturating_sub(taken).max((2 * whole + 1).saturating_sub(in_use))
    }

    /// How many more segments must be free before a batch may be applied that takes `fresh` segments, when
    /// checkpoints own `before` and then `after` of the `free` ones (invariant 2 of [`crate::log::reserve`]).
    pub(crate) fn missing(fresh: usize, free: usize, before: usize, after: usize) -> usize {
        let grows = after > before && !is_broken(Rule::GrowthLeavesCollection);
        match fresh > 0 || grows {
            true => (fresh + after + GC_SEGMENTS).saturating_sub(free),
            false => 0,
        }
    }

    /// Segments in use beyond which collection is due, if the live data costs `live_cost` bytes.
    pub(crate) fn wished(&self, footprint: Footprint, live_cost: u64) -> usize {
        let Footprint::Live { percent, plus_bytes } = footprint else { return self.segments };
        let usable = self.usable_bytes() as u64;
        let live = live_cost / usable * u64::from(percent.max(FOOTPRINT_PERCENT_MIN)) / 100;
        let plus = plus_bytes / self.segment_bytes as u64;
        (live + plus.max(self.working_segments() as u64)).min(self.segments as u64) as usize
    }

    /// Number of classes of data: each takes two open segments, which a small store cannot spare.
    pub(crate) fn classes(&self) -> usize {
        (self.segments / SEGMENTS_PER_CLASS).clamp(1, CLASSES_MAX)
    }

    /// Whether batches are grouped by lifetime when the live data costs `live_cost` bytes. While that is less than a
    /// quarter of the store, victims are nearly empty anyway, and each append point costs a flush a request.
    pub(crate) fn groups(&self, live_cost: u64) -> bool {
        live_cost / self.usable_bytes() as u64 >= self.segments as u64 / 4
    }

    /// Segments that are open for appends at most: batches and moved extents of each class, log.
    fn open_segments(&self) -> usize {
        1 + 2 * self.classes()
    }

    /// Segments that never hold live data for long: superblocks, append points, reserves of the
    /// rules above (empty checkpoints and rounding included), the largest batch before it is applied.
    fn fixed_segments(&self) -> usize {
        self.working_segments() + self.batch_segments_max()
    }

    /// The same, but for the batch.
    fn working_segments(&self) -> usize {
        let checkpoints = self.checkpoint_segments(0) + self.map_segments_max(0) + 2;
        self.superblock_segments + self.open_segments() + GC_SEGMENTS + checkpoints
    }

    /// Limits when `damaged` segments are out of use; `None` when the store is too small.
    pub(crate) fn limits(&self, damaged: usize) -> Option<Limits> {
        let usable = self.usable_bytes() as u64;
        let data = self.segments.saturating_sub(self.fixed_segments() + damaged) as u64;
        let hard = data * usable / 100 * 97;
        let kept = (self.segments - self.superblock_segments) as u64 * usable / 100 * (100 - RESERVE_PERCENT);
        (data >= 4).then(|| Limits { grow: kept.min(hard / 100 * 97), hard })
    }

    /// Bytes that count against the limits.
    pub(crate) fn cost(total: Live) -> u64 {
        total.bytes + total.extents * EXTENT_BYTES
    }

    /// Bytes that a segment's live extents take once moved.
    pub(crate) fn moved_bytes(live: Live) -> u64 {
        live.bytes + live.extents * MOVED_ENTRY_BYTES as u64
    }

    /// Free segments beyond the reserves before work is due, when the live data costs `live_cost` bytes. That much can
    /// be written while a flush or a checkpoint keeps collection waiting. The less data is live, the less an idle
    /// segment costs: a twentieth of all segments is kept when 30% are live, next to none above 70%.
    pub(crate) fn ahead(&self, live_cost: u64) -> usize {
        let live = live_cost as usize / self.usable_bytes();
        let plenty = (self.segments / 4 * 3).saturating_sub(live);
        (plenty * plenty / self.segments / 4).clamp(self.segments / 512, self.segments / 16).max(2)
    }

    /// How well collecting a segment with `live` pays: space won per byte moved, times its age, because old data will
    /// hardly be overwritten soon (cost-benefit, Rosenblum and Ousterhout, "The design and implementation of a
    /// log-structured file system", 1992). The whole segment counts as won: measured by [`Space::usable_bytes`], a
    /// worst case, nearly full segments would be left for later.
    pub(crate) fn worth(&self, live: Live, age: u64) -> f64 {
        let moved = Space::moved_bytes(live) as f64;
        let won = (self.segment_bytes - RECORDS_START - SUMMARY_BYTES) as f64 - moved;
        won / moved.max(1.0) * age as f64
    }

    /// Whether moving a segment with `live` yields more space than it costs.
    pub(crate) fn worth_moving(&self, live: Live) -> bool {
        Space::moved_bytes(live) < self.usable_bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(segments: usize, segment_bytes: usize) -> Space {
        Space { segments, segment_bytes, block_bytes: 512, block_bytes_max: 4096, superblock_segments: 2 }
    }

    #[test]
    fn a_large_store_keeps_the_percentage() {
        let limits = space(2048, 64 << 20).limits(0).unwrap();
        let share = limits.grow as f64 / (2048.0 * f64::from(64 << 20));
        assert!((0.92..0.93).contains(&share), "{share}");
        assert!(limits.hard > limits.grow);
    }

    #[test]
    fn a_full_store_keeps_little_ahead() {
        let space = space(2048, 2 << 20);
        let ahead = |percent: u64| space.ahead((space.segments * space.segment_bytes) as u64 / 100 * percent);
        assert_eq!([0, 30, 50, 80, 95, 101].map(ahead), [128, 102, 30, 4, 4, 4]);
        assert_eq!(Space { segments: 40, ..space }.ahead(0), 2);
    }

    #[test]
    fn lifetimes_matter_once_a_quarter_is_live() {
        let space = space(2048, 2 << 20);
        let groups =
            |percent: u64| space.groups((space.segments * space.usable_bytes()) as u64 / 100 * percent);
        assert_eq!([0, 10, 24, 26, 50, 90].map(groups), [false, false, false, true, true, true]);
    }

    /// If less than the whole segment counted, nearly full ones would seem worse than they are.
    #[test]
    fn a_victim_gives_back_all_that_is_not_moved() {
        let space = space(2048, 1 << 20);
        for extents in [1, 30, 55, 62] {
            let live = Live { bytes: extents * 16384, extents };
            let moved = Space::moved_bytes(live) as f64;
            let won = space.worth(live, 10) * moved / 10.0;
            assert!(((won + moved) / f64::from(1 << 20) - 1.0).abs() < 0.001, "{won} beside {moved}");
        }
    }

    #[test]
    fn tiny_stores_are_refused() {
        assert_eq!(space(12, 64 << 10).limits(0), None);
        assert!(space(32, 64 << 10).limits(0).is_some());
        assert_eq!(space(32, 64 << 10).limits(20), None);
    }

    #[test]
    fn a_checkpoint_is_room_enough_for_its_extents() {
        for (segment_bytes, block_bytes) in [(64 << 10, 512), (64 << 10, 16 << 10), (64 << 20, 4096)] {
            let space = Space { block_bytes, block_bytes_max: block_bytes, ..space(64, segment_bytes) };
            let mut last = space.checkpoint_segments(0);
            for weight in (0..2_000_000).step_by(50_000) {
                let segments = space.checkpoint_segments(weight);
                assert!(segments >= last && (segments * segment_bytes) as u64 > weight * 34);
                last = segments;
            }
        }
    }

    #[test]
    fn only_what_takes_a_segment_or_grows_the_map_waits() {
        assert_eq!(Space::missing(0, 0, 9, 9), 0, "a trim into an open segment");
        assert_eq!(Space::missing(0, 0, 9, 8), 0);
        assert_eq!(Space::missing(0, 6, 3, 5), 1, "one that cuts extents leaves collection its part");
        assert_eq!(Space::missing(0, 7, 3, 5), 0);
        assert_eq!(Space::missing(1, 7, 5, 5), 1);
        assert_eq!(Space::missing(4, 7, 5, 5), 4);
    }

    #[test]
    fn two_checkpoints_are_kept() {
        let space = space(64, 64 << 10);
        let (whole, most) = (space.checkpoint_segments(10_000), space.map_segments_max(10_000));
        assert_eq!(space.checkpoint_reserve(10_000, 0, 0), whole + most);
        assert_eq!(space.checkpoint_reserve(10_000, most, 0), whole);
        assert_eq!(space.checkpoint_reserve(10_000, most + 3, 0), whole, "old ones give nothing to others");
        assert_eq!(space.checkpoint_reserve(10_000, most + 2, 2), whole - 2);
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
