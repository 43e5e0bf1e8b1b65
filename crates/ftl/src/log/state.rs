//! The log as one thread at a time sees and changes it. See the documentation of the folder.

use std::sync::Arc;

use lacuna_device::Filled;

use crate::{
    Footprint, Seq,
    addr::SegNo,
    format::{Life, Marks, POSITIONS, Position, Salt},
    log::{
        batch::{Item, SpaceLeft, segments_needed},
        buffers::Buffers,
        checkpoints::Checkpoints,
        counters::Counters,
        flushes::Flushes,
        free::FreeSegments,
        lifetime::{Classes, Expected, MeanBatch},
        logging::Logging,
        peak::Peak,
        points::AppendPoint,
        queue::WriteQueue,
        reserve::Claim,
        segments::{Damaged, Segment, SegmentTable, State},
        streams::Streams,
        summary_cache::SummaryCache,
        tail::Tail,
    },
    map::Map,
    space::{Limits, Space},
    sync::{PerSegment, atomic::AtomicU32},
};

/// Whether segments are emptied at opening (`gc::restore`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restoring {
    No,
    /// The step has not opened a segment.
    MayOpen,
    HasOpened,
}

/// The first failed write or sync.
#[derive(Debug, Default)]
pub(super) struct Failure {
    /// The reason, for every later call.
    pub(super) reason: Option<String>,
    /// The error itself, until a call has returned it.
    pub(super) unreported: Option<lacuna_device::Error>,
}

/// The state with which a log begins after recovery.
pub(crate) struct Recovered {
    pub(crate) space: Space,
    pub(crate) salt: Salt,
    pub(crate) epoch: u64,
    pub(crate) generation_next: u64,
    /// The last batch and the last relocation that were found. All are durable.
    pub(crate) last: Marks,
    pub(crate) segments: Vec<Segment>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) replayed_batches: u64,
    /// Greatest weight of the map during recovery.
    pub(crate) weight: u64,
    /// Cost of the live data.
    pub(crate) live_cost: u64,
    pub(crate) footprint: Footprint,
    pub(crate) summary_memory: u64,
}

/// State of the log.
pub(crate) struct Log {
    pub(super) space: Space,
    pub(super) salt: Salt,
    /// Last batch accepted, and last relocation record appended.
    pub(super) last: Marks,
    /// Every batch, and every relocation, up to these is durable.
    pub(super) durable: Marks,
    pub(super) segments: SegmentTable,
    pub(super) streams: Streams,
    pub(super) queue: WriteQueue,
    /// Bytes of each segment that are on the device; the rest may still be in memory.
    pub(super) written: Arc<PerSegment>,
    /// Memory that pieces are made in.
    pub(super) buffers: Arc<Buffers>,
    pub(super) flushes: Flushes,
    pub(super) failure: Failure,
    /// Summaries of sealed segments.
    pub(super) summary_cache: SummaryCache,
    pub(super) checkpoints: Checkpoints,
    pub(super) peak: Peak,
    /// Live data, bookkeeping included, in bytes; see [`Space::cost`]. As of the last batch.
    pub(super) live_cost: u64,
    /// How much of the device to use.
    pub(super) footprint: Footprint,
    /// Segments beyond which writers pay for what they add (`footprint`).
    pub(super) limit: usize,
    /// About how many dead segments wait for nothing but a flush. Only a hint: segments also die unnoticed.
    pending_free: usize,
    /// Changed only with the maintenance lock held.
    pub(super) restoring: Restoring,
    pub(super) mean_batch: MeanBatch,
    pub(super) counters: Counters,
    /// The log device; none as long as flushes do not go there.
    pub(super) logging: Option<Logging>,
}

impl Log {
    /// A log with nothing open.
    pub(crate) fn new(recovered: Recovered) -> Log {
        let space = recovered.space;
        let segment_bytes = space.segment_bytes as u32;
        let mut log = Log {
            space,
            salt: recovered.salt,
            last: recovered.last,
            durable: recovered.last,
            segments: SegmentTable::new(recovered.segments, recovered.epoch, recovered.generation_next),
            streams: Streams::new(space.segments),
            queue: WriteQueue::default(),
            written: Arc::new((0..space.segments).map(|_| AtomicU32::new(segment_bytes)).collect()),
            buffers: Arc::new(Buffers::new(space)),
            flushes: Flushes::default(),
            failure: Failure::default(),
            summary_cache: SummaryCache::new(recovered.summary_memory),
            checkpoints: recovered.checkpoints,
            peak: Peak::default(),
            live_cost: recovered.live_cost,
            footprint: recovered.footprint,
            limit: space.segments,
            pending_free: 0,
            restoring: Restoring::No,
            mean_batch: MeanBatch::default(),
            counters: Counters { replayed_batches: recovered.replayed_batches, ..Counters::default() },
            logging: None,
        };
        log.peak.note(recovered.weight);
        log
    }

    /// Last batch accepted.
    pub(crate) fn last_seq(&self) -> Seq {
        self.last.batches
    }

    /// Last batch accepted, and last relocation record appended.
    pub(crate) fn last(&self) -> Marks {
        self.last
    }

    /// What is durable.
    pub(crate) fn durable(&self) -> Marks {
        self.durable
    }

    /// Epoch of segments that are opened now.
    pub(crate) fn epoch(&self) -> u64 {
        self.segments.epoch()
    }

    /// Generation of the segment that is opened next.
    pub(crate) fn generation_next(&self) -> u64 {
        self.segments.generation_next()
    }

    pub(crate) fn segment(&self, segment: SegNo) -> &Segment {
        self.segments.get(segment)
    }

    /// Life of a segment that is not free.
    pub(crate) fn life(&self, segment: SegNo) -> Life {
        self.segments.life(segment)
    }

    /// Segments in `state`.
    pub(crate) fn in_state(&self, state: State) -> impl Iterator<Item = SegNo> + '_ {
        self.segments.in_state(state)
    }

    /// Sealed segments without a live extent.
    pub(crate) fn dead(&self, map: &Map) -> Vec<SegNo> {
        self.in_state(State::Sealed).filter(|segment| map.live(*segment).extents == 0).collect()
    }

    pub(crate) fn free(&self) -> &FreeSegments {
        self.segments.free()
    }

    pub(crate) fn free_mut(&mut self) -> &mut FreeSegments {
        self.segments.free_mut()
    }

    /// Segments that hold leaves or records of checkpoints.
    pub(crate) fn map_segments(&self) -> usize {
        self.segments.map_segments()
    }

    pub(crate) fn damaged_segments(&self) -> usize {
        self.segments.damaged()
    }

    /// Limits of live data, given the segments that are out of use.
    pub(crate) fn limits(&self) -> Limits {
        self.space.limits(self.segments.damaged()).unwrap_or(Limits { grow: 0, hard: 0 })
    }

    /// Live data, bookkeeping included, in bytes, as of the last batch.
    pub(crate) fn live_cost(&self) -> u64 {
        self.live_cost
    }

    /// There are as many segments as `space` says now, the new ones free (`maintenance::grow`).
    pub(crate) fn grow(&mut self, space: Space) {
        for _ in self.space.segments..space.segments {
            self.written.push(AtomicU32::new(space.segment_bytes as u32));
        }
        self.segments.grow(space.segments);
        self.streams.grow(space.segments);
        self.space = space;
        self.move_limit();
    }

    /// Takes a free segment into a new life. The caller has made sure that there is one to take (`reserve`).
    pub(crate) fn take_free(&mut self, state: State, claim: Claim) -> Option<Life> {
        let life = self.segments.take(state, self.last.batches)?;
        let (left, kept) = (self.free().len(), self.left_by(claim));
        assert!(left >= kept, "the reserve: {claim:?} leaves {left} free segments, and must leave {kept}");
        Some(life)
    }

    /// Puts a segment back on the free list; the caller guarantees invariant 2 of `segments`.
    pub(crate) fn give_back(&mut self, segment: SegNo) {
        assert!(
            self.streams.tail(segment).is_none(),
            "a free segment: writes to segment {} on their way",
            segment.0
        );
        self.segments.give_back(segment);
        self.pending_free = self.pending_free.saturating_sub(1);
        self.summary_cache.forget(segment);
    }

    /// Puts a segment out of use that is no longer needed, or that may only be read.
    pub(crate) fn put_out_of_use(&mut self, segment: SegNo, why: Damaged) {
        self.segments.put_out_of_use(segment, why);
    }

    /// About how many dead segments wait for nothing but a flush.
    pub(crate) fn pending_free(&self) -> usize {
        self.pending_free
    }

    pub(crate) fn set_pending_free(&mut self, pending_free: usize) {
        self.pending_free = pending_free;
    }

    pub(crate) fn restoring(&self) -> Restoring {
        self.restoring
    }

    pub(crate) fn set_restoring(&mut self, restoring: Restoring) {
        self.restoring = restoring;
    }

    pub(crate) fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    pub(crate) fn checkpoints_mut(&mut self) -> &mut Checkpoints {
        &mut self.checkpoints
    }

    /// There is a durable retained summary of `segment`, of `bytes`, in the segment `lies_in`.
    pub(crate) fn note_retained(&mut self, segment: SegNo, lies_in: SegNo, bytes: u64) {
        self.segments.note_retained(segment);
        self.checkpoints.note_retained(lies_in, bytes);
        self.counters.retained += 1;
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Bytes of the summaries that are kept.
    pub(crate) fn summary_bytes(&self) -> u64 {
        self.summary_cache.bytes()
    }

    /// The classes of data, with `live_bytes` in the store.
    pub(crate) fn classes(&self, live_bytes: u64) -> Classes {
        Classes::new(self.space.classes(), self.mean_batch.turnover(live_bytes))
    }

    /// The expectation for the data in a segment.
    pub(crate) fn expected(&self, segment: SegNo) -> Expected {
        let Segment { class, expected, .. } = self.segment(segment);
        expected.or_of(*class)
    }

    /// Notes the expectation for `items` items that were just appended at `point`.
    pub(crate) fn note_expected(&mut self, point: AppendPoint, expected: Expected, items: usize) {
        if let Some(segment) = self.streams.open_at(point) {
            self.segments.note_expected(segment, expected, items);
        }
    }

    /// Space left in the segment that is open at `point`.
    pub(crate) fn space_left(&self, point: AppendPoint) -> Option<SpaceLeft> {
        self.streams.space_left(point, self.space)
    }

    /// Bytes that still fit behind the append offset of `point`.
    pub(crate) fn bytes_left(&self, point: AppendPoint) -> usize {
        self.space_left(point).map_or(0, |left| left.bytes())
    }

    /// Where the next record of each append point would go.
    pub(crate) fn positions(&self) -> [Option<Position>; POSITIONS] {
        self.streams.positions(&self.segments)
    }

    /// Free segments that `items` need at `point`.
    pub(crate) fn segments_needed(&self, point: AppendPoint, items: &[Item<'_>]) -> usize {
        segments_needed(items, self.space_left(point), self.space)
    }

    /// Whether sealed segments have bytes in flight to the device.
    pub(crate) fn sealed_tails(&self) -> bool {
        self.in_state(State::Sealed).any(|segment| !self.is_written(segment))
    }

    /// Whether all of a segment's bytes are on the device.
    pub(crate) fn is_written(&self, segment: SegNo) -> bool {
        self.streams.tail(segment).is_none()
    }

    /// Where the records of a segment end.
    pub(super) fn appended(&self, segment: SegNo) -> usize {
        self.streams.tail(segment).map_or(self.space.segment_bytes, Tail::end)
    }

    /// What of the `len` bytes at `offset` of a segment is in memory; see
    /// [`Tail::read`](crate::log::tail::Tail::read).
    pub(super) fn read(&self, segment: SegNo, offset: usize, len: usize) -> Option<(usize, Vec<Filled>)> {
        self.streams.tail(segment).map_or(Some((len, Vec::new())), |tail| tail.read(offset, len))
    }

    /// Everything up to `durable` is durable, and so are the deaths of `dead`.
    pub(super) fn note_flushed(&mut self, durable: Marks, dead: &[SegNo]) {
        self.durable = durable;
        self.peak.flushed();
        dead.iter().for_each(|segment| self.segments.note_durable_death(*segment));
    }

    /// Batches that are not durable yet, neither on the device nor on the log device.
    pub(crate) fn unflushed(&self) -> u64 {
        self.last_seq().0 - self.acknowledged().0
    }

    /// Whether a write or a sync has failed, or a thread has panicked.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.failure.reason.is_some()
    }

    /// Nothing is begun any more, for a `reason` that is not an error of the device.
    pub(super) fn stop(&mut self, reason: &str) {
        self.failure.reason.get_or_insert_with(|| reason.to_owned());
        self.wake_flushes();
    }

    fn wake_flushes(&mut self) {
        self.flushes.wake_all();
        if let Some(logging) = &mut self.logging {
            logging.flushes.wake_all();
        }
    }

    /// A sync, or a write that was handed out, has failed: what is on the device is unknown from here
    /// on. The write stays outstanding for ever.
    pub(super) fn fail(&mut self, error: lacuna_device::Error) {
        if self.failure.reason.is_none() {
            self.failure = Failure { reason: Some(error.to_string()), unreported: Some(error) };
        }
        self.wake_flushes();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
impl Log {
    /// A segment, to be changed at will.
    pub(crate) fn segment_mut(&mut self, segment: SegNo) -> &mut Segment {
        self.segments.at_in_test(segment)
    }
}
