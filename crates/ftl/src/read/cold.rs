//! Chunks that nobody has written for long, by the numbers of the batches that wrote them. A collection that moves data
//! leaves these as they are.

use std::ops::Range;

use crate::{Algorithm, Lba, Result, Seq, addr::CHUNK_SECTORS, paging::PagedMap};

/// Result of [`crate::Ftl::cold_chunks`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cold {
    /// First sector of each chunk of the space that was found, in order.
    pub chunks: Vec<Lba>,
    /// End of the part that was looked at; the end of the range if there is no more.
    pub end: Lba,
}

/// What a chunk of the space holds.
struct Chunk {
    start: u64,
    /// The last batch that wrote any of it.
    newest: Seq,
    /// Sectors that zstd might make shorter.
    sectors: u64,
}

impl Chunk {
    fn is_cold(&self, births: &Range<Seq>) -> bool {
        births.contains(&self.newest) && self.sectors > 1
    }
}

/// See [`crate::Ftl::cold_chunks`].
pub(crate) fn cold_chunks(
    pages: &PagedMap,
    range: Range<u64>,
    births: &Range<Seq>,
    extents_max: usize,
) -> Result<Cold> {
    let mut cold = Cold { chunks: Vec::new(), end: Lba(range.end) };
    let (mut chunk, mut left) = (None::<Chunk>, extents_max);
    pages.visit_extents(range, |lba, extent| {
        let start = lba.0 / CHUNK_SECTORS * CHUNK_SECTORS;
        if chunk.as_ref().is_none_or(|chunk| chunk.start != start) {
            let whole = chunk.replace(Chunk { start, newest: Seq(0), sectors: 0 });
            cold.chunks.extend(whole.filter(|chunk| chunk.is_cold(births)).map(|chunk| Lba(chunk.start)));
            if left == 0 {
                cold.end = Lba(start);
                chunk = None;
                return false;
            }
        }
        left = left.saturating_sub(1);
        if let Some(chunk) = &mut chunk {
            chunk.newest = chunk.newest.max(extent.birth);
            chunk.sectors += if extent.encoding == Algorithm::Zstd { 0 } else { u64::from(extent.sectors) };
        }
        true
    })?;
    cold.chunks.extend(chunk.filter(|chunk| chunk.is_cold(births)).map(|chunk| Lba(chunk.start)));
    Ok(cold)
}
