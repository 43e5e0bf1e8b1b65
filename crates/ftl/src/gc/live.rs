//! The live extents of a segment.

use std::{collections::HashSet, ops::Range};

use super::mover::Mover;
use crate::{
    Lba, Result,
    addr::SegNo,
    format::{Entry, EntryKind, Extent},
    media::scan::Record,
};

/// Records of which the entries are looked up together: most have one, and look-ups that need not wait for each other
/// take half the time.
pub(super) const RECORDS_AT_ONCE: usize = 16;

/// Entries of all `records`. An entry that does not parse was never mapped.
pub(super) fn entries_of(records: &[Record]) -> Vec<Entry> {
    records.iter().flat_map(|record| record.entries().unwrap_or_default()).collect()
}

/// What is moved for the sake of `found`: plain extents as they are, an encoded chunk whole, and once. All parts of an
/// encoded chunk are among `found`, or none is.
fn moved_for(mut found: Vec<(Lba, Extent)>) -> Vec<(Lba, Extent)> {
    let mut met = HashSet::new();
    found.retain_mut(|(lba, extent)| {
        if extent.is_encoded() {
            (lba.0, *extent) = extent.whole_encoded(lba.0);
        }
        !extent.is_encoded() || met.insert(extent.phys)
    });
    found
}

/// Bytes that moving `extent` takes.
pub(super) fn moved_bytes(extent: &Extent) -> usize {
    if extent.is_encoded() { extent.stored.into() } else { extent.bytes() }
}

impl Mover {
    /// Those of `entries` that the map still holds at the place that each names, in part at least.
    pub(super) fn live_among(&self, entries: &[Entry]) -> Result<Vec<(Lba, Extent)>> {
        let mut found = Vec::new();
        let entries: Vec<_> = entries.iter().filter(|entry| entry.kind != EntryKind::Trim).collect();
        let ranges = entries.iter().map(|entry| entry.range()).collect();
        self.pages.visit_extents_of_each(ranges, |index, lba, extent| {
            if extent.phys == entries[index].phys {
                found.push((lba, extent));
            }
        })?;
        Ok(moved_for(found))
    }

    /// Extents in `segment` that the map holds in `range`.
    pub(super) fn live_in(&self, segment: SegNo, range: Range<u64>) -> Result<Vec<(Lba, Extent)>> {
        let mut found = Vec::new();
        self.pages.visit_extents(range, |lba, extent| {
            if extent.phys.segment == segment {
                found.push((lba, extent));
            }
            true
        })?;
        Ok(moved_for(found))
    }
}
