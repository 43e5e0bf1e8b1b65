//! Results of looking at a range.

use std::ops::Range;

use super::stored::Stored;
use crate::{Error, Lba, SECTOR, format::Extent};

/// Result of [`crate::Ftl::read_mapped`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Runs of mapped sectors and their contents, in order; the sectors between two runs are not mapped.
    pub runs: Vec<(Lba, Vec<u8>)>,
    /// End of the part that was looked at; the end of the range if there is no more.
    pub end: Lba,
}

impl Mapped {
    /// Zeroed buffers for the contents of `extents`, in order of their addresses.
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

    /// Puts in the data stored from `lba` on.
    pub(super) fn put(&mut self, lba: Lba, stored: Stored<'_>) {
        let len = stored.len();
        stored.copy_to(self.space(lba, len));
    }

    /// The `len` bytes from `lba` on.
    pub(super) fn space(&mut self, lba: Lba, len: usize) -> &mut [u8] {
        let index = self.runs.partition_point(|(start, _)| *start <= lba) - 1;
        let (start, data) = &mut self.runs[index];
        let at = (lba.0 - start.0) as usize * SECTOR;
        &mut data[at..at + len]
    }
}

/// Result of [`crate::Ftl::read_past_damage`].
#[derive(Debug)]
pub struct Remains {
    /// The sectors that can be read.
    pub mapped: Mapped,
    /// The sectors that cannot be read, in order.
    pub lost: Vec<Lost>,
}

/// Sectors that cannot be read.
#[derive(Debug)]
pub struct Lost {
    /// Data; or, where the map is damaged, all sectors that the damaged leaf may map.
    pub range: Range<Lba>,
    /// Why.
    pub error: Error,
}
