//! Recounting what a map counts.

use std::ops::Range;

use super::{Leaf, Live};
use crate::{SECTOR, addr::CHUNK_SECTORS};

/// A recount of the map, leaf by leaf in order.
pub(crate) struct Recount {
    segments: Vec<Live>,
    pub(super) total: Live,
    last_end: u64,
}

impl Recount {
    pub(crate) fn new(segments: usize) -> Recount {
        Recount { segments: vec![Live::default(); segments], total: Live::default(), last_end: 0 }
    }

    /// Counts the rows of the next leaf, which covers `span`.
    pub(crate) fn leaf(&mut self, span: &Range<u64>, live: Live, leaf: &Leaf, mut found: impl FnMut(String)) {
        for ((lba, extent), bytes) in leaf.counted_rows() {
            if lba < self.last_end {
                found(format!("sector {lba}: extent overlaps the one before it"));
            }
            if extent.sectors == 0 || extent.bytes().div_ceil(SECTOR) != usize::from(extent.sectors) {
                found(format!("sector {lba}: extent has sectors without payload"));
            }
            self.last_end = lba + u64::from(extent.sectors);
            if lba / CHUNK_SECTORS != (self.last_end - 1) / CHUNK_SECTORS {
                found(format!("sector {lba}: extent crosses a chunk boundary"));
            }
            if !span.contains(&lba) || self.last_end > span.end {
                found(format!("sector {lba}: outside its map leaf, which holds {span:?}"));
            }
            self.segments[extent.phys.segment.0 as usize].add(bytes);
            self.total.add(bytes);
        }
        if leaf.sum() != live {
            found(format!("map leaf of sectors {span:?} counts {live:?}, not {:?}", leaf.sum()));
        }
    }

    /// Checks the sums against the counters `segments`.
    pub(crate) fn finish(&self, segments: &[Live], mut found: impl FnMut(String)) {
        for (segment, (counted, sum)) in segments.iter().zip(&self.segments).enumerate() {
            if counted != sum {
                found(format!("segment {segment}: counted {counted:?}, the extents' sum is {sum:?}"));
            }
        }
    }
}
