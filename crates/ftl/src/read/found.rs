//! What a look at a range finds.

use std::ops::Range;

use crate::{Error, Lba, SECTOR, format::Extent};

/// What [`crate::Ftl::read_mapped`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Runs of mapped sectors and what they hold, in order; between two of them lies what is not mapped.
    pub runs: Vec<(Lba, Vec<u8>)>,
    /// Up to here was looked; the end of the range if there is no more.
    pub end: Lba,
}

impl Mapped {
    /// Space for what `extents` hold, in order of their addresses.
    pub(super) fn zeroed(extents: &[(Lba, Extent)], end: Lba) -> Mapped {
        let mut runs: Vec<(Lba, Vec<u8>)> = Vec::with_capacity(extents.len());
        let mut lengths: Vec<usize> = Vec::with_capacity(extents.len());
        for (lba, extent) in extents {
            let bytes = usize::from(extent.sectors) * SECTOR;
            match (runs.last(), lengths.last_mut()) {
                (Some((start, _)), Some(len)) if start.0 + (*len / SECTOR) as u64 == lba.0 => *len += bytes,
                _ => {
                    runs.push((*lba, Vec::new()));
                    lengths.push(bytes);
                }
            }
        }
        for ((_, data), len) in runs.iter_mut().zip(lengths) {
            *data = vec![0; len];
        }
        Mapped { runs, end }
    }

    /// Puts in what is stored from `lba` on.
    pub(super) fn put(&mut self, lba: Lba, stored: &[u8]) {
        let index = self.runs.partition_point(|(start, _)| *start <= lba) - 1;
        let (start, data) = &mut self.runs[index];
        let at = (lba.0 - start.0) as usize * SECTOR;
        data[at..at + stored.len()].copy_from_slice(stored);
    }
}

/// What [`crate::Ftl::read_past_damage`] found.
#[derive(Debug)]
pub struct Remains {
    /// What can be read.
    pub mapped: Mapped,
    /// What cannot, in order.
    pub lost: Vec<Lost>,
}

/// Sectors that cannot be read.
#[derive(Debug)]
pub struct Lost {
    /// Data, or where the map is damaged all that it may lead to.
    pub range: Range<Lba>,
    /// Why.
    pub error: Error,
}
