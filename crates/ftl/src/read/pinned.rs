//! Extents whose segments stay what they are while they are read.

use std::ops::Range;

use super::reader::Reader;
use crate::{Lba, Result, format::Extent};

/// Sectors that are looked for while the map is locked.
const LOOKS_MAX: usize = 1024;

/// Extents whose segments are pinned until it is dropped.
pub(crate) struct Pinned<'a> {
    pub(super) reader: &'a Reader,
    pub(super) extents: Vec<(Lba, Extent)>,
}

impl Pinned<'_> {
    pub(crate) fn extents(&self) -> &[(Lba, Extent)] {
        &self.extents
    }

    /// Sorts them as they lie on the device, so that extents in the same or neighbouring blocks are read at once.
    pub(super) fn sort_by_place(&mut self) {
        self.extents.sort_unstable_by_key(|(_, extent)| (extent.phys.segment, extent.phys.offset()));
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        for (_, extent) in &self.extents {
            self.reader.map.unpin(extent.phys.segment);
        }
    }
}

impl Reader {
    /// Pins all extents in `ranges`, in the order in which they lie on the device.
    pub(crate) fn pin_each(&self, ranges: Vec<Range<u64>>) -> Result<Pinned<'_>> {
        let mut kept = Vec::new();
        for ranges in ranges.chunks(LOOKS_MAX) {
            kept.extend(self.pages.fault_ahead(|map| map.absent_of(ranges.iter().map(|range| range.start)))?);
        }
        let mut pinned = Pinned { reader: self, extents: Vec::with_capacity(ranges.len()) };
        self.pages.visit_extents_of_each(ranges, |_, lba, extent| {
            self.map.pin(extent.phys.segment);
            pinned.extents.push((lba, extent));
        })?;
        pinned.sort_by_place();
        Ok(pinned)
    }

    /// Pins those of `extents`, which were mapped, whose segments were not opened since: of `generation_next` or a
    /// later generation. Also returns the others, including those in segments in which nothing is mapped any more. A
    /// pinned extent may be mapped elsewhere by now, but its bytes are unchanged.
    pub(crate) fn pin_unchanged(
        &self,
        extents: Vec<(Lba, Extent)>,
        generation_next: u64,
    ) -> (Pinned<'_>, Vec<(Lba, Extent)>) {
        let log = self.journal.lock();
        let map = self.map.read();
        let (same, others) = extents.into_iter().partition(|(_, extent)| {
            let segment = extent.phys.segment;
            // A segment with a live extent is not about to be reused.
            log.segment(segment).generation < generation_next && map.live(segment).extents > 0
        });
        let pinned = Pinned { reader: self, extents: same };
        pinned.extents.iter().for_each(|(_, extent)| self.map.pin(extent.phys.segment));
        (pinned, others)
    }

    /// Pins the first `extents_max` extents in `range`.
    pub(crate) fn pin_some(&self, range: Range<u64>, extents_max: usize) -> Result<Pinned<'_>> {
        let mut pinned = Pinned { reader: self, extents: Vec::new() };
        self.pages.visit_extents(range, |lba, extent| {
            self.map.pin(extent.phys.segment);
            pinned.extents.push((lba, extent));
            pinned.extents.len() < extents_max
        })?;
        Ok(pinned)
    }
}
