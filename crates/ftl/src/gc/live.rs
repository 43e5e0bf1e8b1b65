//! The live extents of a segment.

use std::{collections::HashSet, ops::Range};

use super::mover::Mover;
use crate::{
    Error, Lba, Result,
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
    /// Those of `entries` that the map still holds at the place that each names, in part at least, as far as its leaves
    /// can be read; and whether all could be.
    pub(super) fn live_among(&self, entries: &[Entry]) -> Result<(Vec<(Lba, Extent)>, bool)> {
        let mut found = Vec::new();
        let entries: Vec<_> = entries.iter().filter(|entry| entry.kind != EntryKind::Trim).collect();
        let ranges = entries.iter().map(|entry| entry.range()).collect();
        let is_whole = self.visit_readable(ranges, |index, lba, extent| {
            if extent.phys == entries[index].phys {
                found.push((lba, extent));
            }
        })?;
        Ok((moved_for(found), is_whole))
    }

    /// Extents in `segment` that the map holds in `range`, as far as its leaves can be read; and whether all could be.
    pub(super) fn live_in(&self, segment: SegNo, range: Range<u64>) -> Result<(Vec<(Lba, Extent)>, bool)> {
        let mut found = Vec::new();
        let is_whole = self.visit_readable(vec![range], |_, lba, extent| {
            if extent.phys.segment == segment {
                found.push((lba, extent));
            }
        })?;
        Ok((moved_for(found), is_whole))
    }

    /// Calls `visit` as far as the map can be read; whether that was all.
    fn visit_readable(&self, ranges: Vec<Range<u64>>, visit: impl FnMut(usize, Lba, Extent)) -> Result<bool> {
        let mut is_whole = true;
        self.pages.visit_readable(ranges, visit, |error| match error {
            Error::Corrupt { .. } | Error::Device(_) if !self.journal.is_lost() => {
                is_whole = false;
                Ok(())
            }
            error => Err(error),
        })?;
        Ok(is_whole)
    }
}
