//! The segments open for appends: one for each append point, its summary as it grows, and the tails of all segments
//! whose bytes are not all on the device.

use crate::{
    addr::SegNo,
    format::{POSITIONS, Position, Summary},
    log::{
        batch::SpaceLeft,
        points::{APPEND_POINTS, AppendPoint},
        segments::SegmentTable,
        tail::Tail,
    },
    space::Space,
};

/// See the module documentation.
pub(super) struct Streams {
    open: [Option<SegNo>; APPEND_POINTS],
    /// Of the open segments.
    summaries: [Summary; APPEND_POINTS],
    /// By segment: each write looks its own up several times.
    tails: Vec<Option<Box<Tail>>>,
}

impl Streams {
    /// Nothing is open, in a store of `segments` segments.
    pub(super) fn new(segments: usize) -> Streams {
        let tails = (0..segments).map(|_| None).collect();
        Streams { open: [None; APPEND_POINTS], summaries: Default::default(), tails }
    }

    /// The store has `segments` segments now.
    pub(super) fn grow(&mut self, segments: usize) {
        self.tails.resize_with(segments, || None);
    }

    pub(super) fn open_at(&self, point: AppendPoint) -> Option<SegNo> {
        self.open[point.index()]
    }

    pub(super) fn is_nothing_open(&self) -> bool {
        self.open.iter().all(Option::is_none)
    }

    /// The tail of a segment that has one: it is open, or not all of it is on the device.
    pub(super) fn tail(&self, segment: SegNo) -> Option<&Tail> {
        self.tails[segment.0 as usize].as_deref()
    }

    /// The same, to be changed.
    pub(super) fn tail_mut(&mut self, segment: SegNo) -> &mut Tail {
        self.tails[segment.0 as usize].as_mut().expect("a tail stays until it is written")
    }

    /// All of a segment that is not open is on the device.
    pub(super) fn forget(&mut self, segment: SegNo) {
        self.tails[segment.0 as usize] = None;
    }

    /// The summary of the segment that is open at `point`.
    pub(super) fn summary_mut(&mut self, point: AppendPoint) -> &mut Summary {
        &mut self.summaries[point.index()]
    }

    /// A segment is open at `point` from now on.
    pub(super) fn open(&mut self, point: AppendPoint, segment: SegNo, tail: Tail) {
        self.tails[segment.0 as usize] = Some(Box::new(tail));
        self.open[point.index()] = Some(segment);
    }

    /// Nothing is open at `point` any more. Returns the segment that was, and its summary.
    pub(super) fn close(&mut self, point: AppendPoint) -> Option<(SegNo, Summary)> {
        let segment = self.open[point.index()].take()?;
        Some((segment, std::mem::take(&mut self.summaries[point.index()])))
    }

    /// Space left in the segment that is open at `point`.
    pub(super) fn space_left(&self, point: AppendPoint, space: Space) -> Option<SpaceLeft> {
        let tail = self.tail(self.open_at(point)?)?;
        Some(SpaceLeft::new(space, tail.append_offset(), self.summaries[point.index()].body_bytes()))
    }

    /// Where the next record of `point` would go.
    pub(super) fn position(&self, point: AppendPoint, segments: &SegmentTable) -> Option<Position> {
        let segment = self.open_at(point)?;
        let offset = self.tail(segment)?.append_offset() as u32;
        Some(Position { segment, generation: segments.get(segment).generation, offset })
    }

    /// Where the next record of each append point would go.
    pub(super) fn positions(&self, segments: &SegmentTable) -> [Option<Position>; POSITIONS] {
        let mut positions = [None; POSITIONS];
        for point in AppendPoint::all() {
            positions[point.index()] = self.position(point, segments);
        }
        positions
    }
}
