//! All segments of a store: the use of each, and which are free.
//!
//! Invariants:
//! 1. A segment's generation was never used before by any segment of the store.
//! 2. A free segment has no live extent, no reader pin, no write in flight, and is not needed by
//!    the durable checkpoint or by replay from it (`reuse`).

use crate::{
    Seq,
    addr::SegNo,
    format::Life,
    log::{
        free::FreeSegments,
        lifetime::{COLDEST, Expected, MeanExpected},
    },
};

/// The use of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Holds the superblocks.
    Superblock,
    Free,
    /// Records are appended to it.
    Open,
    /// Records, some of them perhaps live.
    Sealed,
    /// Holds leaves of the map or records of a checkpoint.
    Checkpoint,
    /// Sealed, and kept out of use until the store is opened anew.
    Damaged(Damaged),
}

/// Why a segment is out of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damaged {
    /// It holds live data that cannot be read, or of which the map cannot be read.
    Unreadable,
    /// Live data that it counts is nowhere in the map, all of which can be read.
    Miscounted,
}

/// A segment as the log sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) state: State,
    /// This life of it; meaningless while free.
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
    /// Last batch accepted when it was opened: its age, for collection.
    pub(crate) opened_seq: Seq,
    /// How long its data is expected to live; see [`crate::log::lifetime`].
    pub(crate) class: u8,
    /// The same, finer; since open.
    pub(crate) expected: MeanExpected,
    /// A flush of everything that began when it was dead has ended.
    pub(crate) death_is_durable: bool,
    /// A durable retained summary lists all its records.
    pub(crate) has_retained_summary: bool,
}

impl Segment {
    /// One that was never used.
    pub(crate) fn unused(state: State) -> Segment {
        Segment {
            state,
            generation: 0,
            epoch: 0,
            opened_seq: Seq(0),
            class: COLDEST,
            expected: MeanExpected::default(),
            death_is_durable: false,
            has_retained_summary: false,
        }
    }
}

/// See the module documentation.
pub(super) struct SegmentTable {
    segments: Vec<Segment>,
    free: FreeSegments,
    epoch: u64,
    generation_next: u64,
    /// How many hold leaves of the map or records of checkpoints.
    map_segments: usize,
    /// How many are damaged.
    damaged: usize,
}

impl SegmentTable {
    /// The segments as recovery found them.
    pub(super) fn new(segments: Vec<Segment>, epoch: u64, generation_next: u64) -> SegmentTable {
        let count = |state| segments.iter().filter(|segment| segment.state == state).count();
        let (map_segments, damaged) = (count(State::Checkpoint), count(State::Damaged(Damaged::Unreadable)));
        let free =
            (0..segments.len() as u32).map(SegNo).filter(|no| segments[no.0 as usize].state == State::Free);
        let free = FreeSegments::new(free, |no| segments[no.0 as usize].generation > 0);
        SegmentTable { segments, free, epoch, generation_next, map_segments, damaged }
    }

    pub(super) fn get(&self, segment: SegNo) -> &Segment {
        &self.segments[segment.0 as usize]
    }

    fn at(&mut self, segment: SegNo) -> &mut Segment {
        &mut self.segments[segment.0 as usize]
    }

    /// Segments in `state`.
    pub(super) fn in_state(&self, state: State) -> impl Iterator<Item = SegNo> + '_ {
        let numbered = self.segments.iter().enumerate();
        numbered.filter(move |(_, segment)| segment.state == state).map(|(no, _)| SegNo(no as u32))
    }

    pub(super) fn free(&self) -> &FreeSegments {
        &self.free
    }

    pub(super) fn free_mut(&mut self) -> &mut FreeSegments {
        &mut self.free
    }

    pub(super) fn map_segments(&self) -> usize {
        self.map_segments
    }

    pub(super) fn damaged(&self) -> usize {
        self.damaged
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn generation_next(&self) -> u64 {
        self.generation_next
    }

    /// Segments opened from here on belong to the next epoch.
    pub(super) fn begin_epoch(&mut self) {
        self.epoch += 1;
    }

    /// Life of a segment that is not free.
    pub(super) fn life(&self, segment: SegNo) -> Life {
        let Segment { generation, epoch, .. } = *self.get(segment);
        Life { segment, generation, epoch }
    }

    /// There are `segments` now, the new ones free.
    pub(super) fn grow(&mut self, segments: usize) {
        let new = self.segments.len() as u32..segments as u32;
        self.segments.resize(segments, Segment::unused(State::Free));
        self.free.grow(new.map(SegNo));
    }

    /// Takes a free segment into a new life, after batch `opened_seq`.
    pub(super) fn take(&mut self, state: State, opened_seq: Seq) -> Option<Life> {
        let no = self.free.take()?;
        let (generation, epoch) = (self.generation_next, self.epoch);
        self.generation_next += 1;
        self.map_segments += usize::from(state == State::Checkpoint);
        let segment = self.at(no);
        assert_eq!(segment.state, State::Free, "invariant 2: segment {} on the free list", no.0);
        *segment = Segment { generation, epoch, opened_seq, ..Segment::unused(state) };
        Some(Life { segment: no, generation, epoch })
    }

    /// Puts a segment back on the free list; the caller guarantees invariant 2.
    pub(super) fn give_back(&mut self, segment: SegNo) {
        assert_ne!(self.get(segment).state, State::Free, "segment {} freed twice", segment.0);
        self.leave_map(segment);
        self.at(segment).state = State::Free;
        self.free.give_back(segment);
    }

    fn leave_map(&mut self, segment: SegNo) {
        self.map_segments -= usize::from(self.get(segment).state == State::Checkpoint);
    }

    /// Puts a segment out of use.
    pub(super) fn put_out_of_use(&mut self, segment: SegNo, why: Damaged) {
        self.leave_map(segment);
        self.damaged += 1;
        self.at(segment).state = State::Damaged(why);
    }

    /// Nothing is appended to the segment any more.
    pub(super) fn seal(&mut self, segment: SegNo) {
        self.at(segment).state = State::Sealed;
    }

    pub(super) fn set_class(&mut self, segment: SegNo, class: u8) {
        self.at(segment).class = class;
    }

    /// `weight` items with this expectation were appended to the segment.
    pub(super) fn note_expected(&mut self, segment: SegNo, expected: Expected, weight: usize) {
        self.at(segment).expected.note(expected, weight);
    }

    pub(super) fn note_durable_death(&mut self, segment: SegNo) {
        self.at(segment).death_is_durable = true;
    }

    pub(super) fn note_retained(&mut self, segment: SegNo) {
        self.at(segment).has_retained_summary = true;
    }

    #[cfg(all(test, not(feature = "shuttle")))]
    pub(super) fn at_in_test(&mut self, segment: SegNo) -> &mut Segment {
        self.at(segment)
    }
}
