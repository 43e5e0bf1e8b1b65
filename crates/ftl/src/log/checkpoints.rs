//! The log's view of checkpoints: what the durable one covers, and what was written for the map since.

use crate::{
    addr::SegNo,
    format::{POSITIONS, Position, Root},
};

/// Which segments the durable checkpoint covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Segments of this generation or a later one were opened after it began.
    pub(crate) generation_next: u64,
    /// Segments that were open when it began: what was appended behind these places is replayed.
    pub(crate) positions: [Option<Position>; POSITIONS],
}

impl Coverage {
    /// What `root` covers.
    pub(crate) fn of(root: &Root) -> Coverage {
        Coverage { generation_next: root.generation_next, positions: root.positions }
    }

    /// Whether no record of this life of `segment` is replayed.
    fn holds(&self, segment: SegNo, generation: u64) -> bool {
        let was_open = self.positions.iter().flatten().any(|place| place.segment == segment);
        generation < self.generation_next && !was_open
    }
}

/// Only the holder of the maintenance lock changes it.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    /// What the durable checkpoint covers.
    coverage: Coverage,
    /// Segments that the durable checkpoint refers to for its map, or that hold retained summaries since, sorted.
    root_segments: Vec<SegNo>,
    /// Segments in which the durable checkpoint has left leaves that it should have written anew and could not read.
    left: Vec<SegNo>,
    /// Segments that the checkpoint being written has taken.
    taken: usize,
    /// Where the next record of the map goes.
    position: Option<Position>,
    /// Bytes appended to the log since the durable checkpoint began.
    log_bytes: u64,
    /// Bytes of retained summaries since the durable checkpoint.
    retained_bytes: u64,
}

impl Checkpoints {
    /// After recovery from a checkpoint that refers to `root_segments`, sorted.
    pub(crate) fn recovered(coverage: Coverage, root_segments: Vec<SegNo>) -> Checkpoints {
        Checkpoints { coverage, root_segments, ..Checkpoints::default() }
    }

    /// Whether no record of this life of `segment` is replayed.
    pub(crate) fn covers(&self, segment: SegNo, generation: u64) -> bool {
        self.coverage.holds(segment, generation)
    }

    /// Whether the durable checkpoint, or a retained summary written since, needs `segment`.
    pub(crate) fn refers_to(&self, segment: SegNo) -> bool {
        self.root_segments.binary_search(&segment).is_ok()
    }

    /// Segments that checkpoints do not empty, because leaves in them cannot be read.
    pub(crate) fn left(&self) -> &[SegNo] {
        &self.left
    }

    /// Where the next record of the map goes.
    pub(crate) fn position(&self) -> Option<Position> {
        self.position
    }

    pub(crate) fn set_position(&mut self, position: Option<Position>) {
        self.position = position;
    }

    /// Segments that the checkpoint being written has taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// The checkpoint being written has taken a segment.
    pub(crate) fn note_taken(&mut self) {
        self.taken += 1;
    }

    /// The checkpoint that was being written is abandoned.
    pub(crate) fn abandon(&mut self) {
        self.taken = 0;
    }

    /// Bytes appended to the log since the durable checkpoint began.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    pub(super) fn note_appended(&mut self, bytes: u64) {
        self.log_bytes += bytes;
    }

    /// Bytes of retained summaries since the durable checkpoint.
    pub(crate) fn retained_bytes(&self) -> u64 {
        self.retained_bytes
    }

    /// A durable retained summary of `bytes` lies in `segment`.
    pub(super) fn note_retained(&mut self, segment: SegNo, bytes: u64) {
        self.retained_bytes += bytes;
        if let Err(index) = self.root_segments.binary_search(&segment) {
            self.root_segments.insert(index, segment);
        }
    }

    /// A checkpoint is durable that covers this and refers to `root_segments`, sorted. `log_bytes` were appended
    /// before it began. It could not empty the segments in `left`.
    pub(crate) fn finish(
        &mut self,
        coverage: Coverage,
        root_segments: Vec<SegNo>,
        log_bytes: u64,
        left: Vec<SegNo>,
    ) {
        (self.coverage, self.root_segments, self.left) = (coverage, root_segments, left);
        (self.taken, self.retained_bytes) = (0, 0);
        self.log_bytes -= log_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_covers_what_was_sealed_before_it_began() {
        let mut positions = [None; POSITIONS];
        positions[3] = Some(Position { segment: SegNo(5), generation: 8, offset: 512 });
        let coverage = Coverage { generation_next: 10, positions };
        assert!(coverage.holds(SegNo(4), 9));
        assert!(!coverage.holds(SegNo(4), 10), "opened later");
        assert!(!coverage.holds(SegNo(5), 8), "open then");
        assert!(!Coverage::default().holds(SegNo(4), 0), "a new store has no checkpoint");
    }
}
