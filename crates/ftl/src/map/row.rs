//! Rows of the map: extents by their first sector, and parts of them.

use std::ops::{AddAssign, Range};

use super::Live;
use crate::format::{Extent, LeafAddr};

/// An extent and its first sector.
pub(crate) type Row = (u64, Extent);

/// The sectors that a root is responsible for.
pub(super) const SPACE: Range<u64> = 0..u64::MAX;

/// The part of `extent`, which starts at `lba`, that lies in `range`.
pub(super) fn clip(lba: u64, extent: &Extent, range: &Range<u64>) -> Option<(u64, Extent)> {
    let start = lba.max(range.start);
    let end = (lba + u64::from(extent.sectors)).min(range.end);
    (start < end).then(|| {
        let skipped = (start - lba) as u8;
        (start, Extent { sectors: (end - start) as u8, skip: extent.skip + skipped, ..*extent })
    })
}

impl Live {
    /// Adds an extent that counts `bytes`.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.extents += 1;
    }

    /// What is left without an extent that counts `bytes`; nothing if that was not counted.
    pub(super) fn without(&self, bytes: u64) -> Option<Live> {
        let bytes = self.bytes.checked_sub(bytes)?;
        let extents = self.extents.checked_sub(1)?;
        ((bytes == 0) == (extents == 0)).then_some(Live { bytes, extents })
    }
}

impl AddAssign for Live {
    fn add_assign(&mut self, other: Live) {
        self.bytes += other.bytes;
        self.extents += other.extents;
    }
}

/// A leaf that is on the device only, and the span and sums that it must match.
#[derive(Clone, Debug)]
pub(crate) struct Absent {
    pub(crate) span: Range<u64>,
    /// Sum of its rows.
    pub(crate) live: Live,
    pub(crate) place: LeafAddr,
}
