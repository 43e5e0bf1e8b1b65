//! Walking over the extents mapped in some ranges, a block of a few leaves at a time.

use std::{collections::BTreeSet, ops::Range};

use super::{Ranges, Swept};
use crate::{Lba, Result, format::Extent, read::Reader};

/// Leaves of a block, which is walked under one hold of the map's lock.
const LEAVES_IN_BLOCK: usize = 16;
/// Blocks whose leaves are brought in at the same time.
pub(super) const BLOCKS_AT_ONCE: usize = 64;
/// Leaves of those at most.
pub(super) const LEAVES_AT_ONCE: usize = LEAVES_IN_BLOCK * BLOCKS_AT_ONCE;

/// A first walk, and others over the blocks that it found.
pub(super) struct Walk<'a> {
    reader: &'a Reader,
    ranges: Ranges<'a>,
    /// How far the first walk has come.
    pub(super) cursor: u64,
    /// The extents of the current block.
    met: Vec<(Lba, Extent)>,
    /// Where leaves begin that could not be read: each is reported once.
    lost: BTreeSet<u64>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(reader: &'a Reader, ranges: Ranges<'a>) -> Walk<'a> {
        Walk { reader, ranges, cursor: 0, met: Vec::new(), lost: BTreeSet::new() }
    }

    /// Whether the first walk is at its end.
    pub(super) fn is_through(&self) -> bool {
        (self.ranges)(self.cursor).is_none()
    }

    /// The next blocks of the first walk. Each lies in one of the ranges. The map is not locked while the caller is asked
    /// for these.
    pub(super) fn next_blocks(&mut self) -> Vec<Range<u64>> {
        let mut blocks = Vec::with_capacity(BLOCKS_AT_ONCE);
        while blocks.len() < BLOCKS_AT_ONCE
            && let Some(range) = (self.ranges)(self.cursor)
        {
            let start = range.start.max(self.cursor);
            self.cursor = self.reader.map().read().leaves_end(start, LEAVES_IN_BLOCK).min(range.end);
            blocks.push(start..self.cursor);
        }
        blocks
    }

    /// Passes what each of `blocks` maps to `take`, with its index.
    pub(super) fn over(
        &mut self,
        blocks: &[Range<u64>],
        found: &mut impl FnMut(Swept<'_>),
        mut take: impl FnMut(usize, &[(Lba, Extent)]),
    ) -> Result<()> {
        // Unreadable leaves are found one by one below.
        let _kept = self.reader.pages().fault_ahead(|map| {
            let absent = blocks.iter().flat_map(|block| map.absent_ahead(block.clone(), LEAVES_IN_BLOCK));
            let mut absent: Vec<_> = absent.collect();
            absent.dedup_by_key(|absent| absent.span.start);
            absent
        });
        for (index, block) in blocks.iter().enumerate() {
            self.met.clear();
            if self.meet(block.clone()).is_err() {
                self.meet_by_leaves(block.clone(), found)?;
            }
            take(index, &self.met);
        }
        Ok(())
    }

    /// Notes what `range` maps, or nothing of it.
    fn meet(&mut self, range: Range<u64>) -> Result<()> {
        let before = self.met.len();
        let met = &mut self.met;
        let visited = self.reader.pages().visit_extents(range, |lba, extent| {
            met.push((lba, extent));
            true
        });
        if visited.is_err() {
            self.met.truncate(before);
        }
        visited
    }

    /// Notes what `block` maps but for damaged leaves.
    fn meet_by_leaves(&mut self, block: Range<u64>, found: &mut impl FnMut(Swept<'_>)) -> Result<()> {
        let mut at = block.start;
        while at < block.end {
            let leaf = at..self.reader.map().read().leaf_end(at).min(block.end);
            at = leaf.end;
            match self.meet(leaf.clone()) {
                Err(error) if error.is_damage() => {
                    if self.lost.insert(leaf.start) {
                        found(Swept::Unknown(leaf, error));
                    }
                }
                met => met?,
            }
        }
        Ok(())
    }
}
