//! Assigns each extent to the window of a sweep in which it is read: decided once, by its place at that time.
//!
//! The segments are cut into *slices* with about as many extents in each. A survey notes for each extent, in order of
//! addresses, in which slice it lies: a byte, and none where the extents of a whole block lie in the same one, as they
//! do where data is written in order. A window is some slices with not more extents than can be planned.
//!
//! Later walks meet the same extents in the same order, wherever they lie by then. Where they do not, something was
//! written or unmapped, and everything that the block maps is read in that window. Extents that stayed mapped have then
//! been read once or twice, and the block is finished.

use std::ops::Range;

use super::walk::BLOCKS_AT_ONCE;
use crate::{
    Lba,
    addr::SegNo,
    format::{Extent, Live},
};

/// Number of slices: a slice number fits into a byte.
const SLICES: usize = 256;

/// Consecutive extents, and the slices in which they lie.
struct Block {
    range: Range<u64>,
    /// The lowest and the highest slice in which an extent lies; in reverse order once the block is finished.
    slices: (u8, u8),
    /// If those differ.
    split: Option<Split>,
}

/// A block with extents in several slices.
struct Split {
    fingerprint: u64,
    /// Of each extent.
    slices: Box<[u8]>,
}

/// See the module.
pub(super) struct Survey {
    /// Of each segment.
    slices: Vec<u8>,
    /// Extents that were noted in each slice.
    extents: [usize; SLICES],
    /// In order.
    blocks: Vec<Block>,
}

impl Survey {
    /// An empty survey of segments that hold `live`.
    pub(super) fn new(live: &[Live]) -> Survey {
        let total: u64 = live.iter().map(|live| live.extents).sum();
        let mut before = 0;
        let slice = |live: &Live| {
            let slice = u128::from(before) * SLICES as u128 / u128::from(total.max(1));
            before += live.extents;
            slice.min(SLICES as u128 - 1) as u8
        };
        Survey { slices: live.iter().map(slice).collect(), extents: [0; SLICES], blocks: Vec::new() }
    }

    fn slice(&self, segment: SegNo) -> u8 {
        // A segment that the store did not have when the survey began is read with the last slice.
        self.slices.get(segment.0 as usize).copied().unwrap_or((SLICES - 1) as u8)
    }

    /// Notes the extents of the next block.
    pub(super) fn note(&mut self, range: Range<u64>, extents: &[(Lba, Extent)]) {
        let slices: Box<[u8]> = extents.iter().map(|(_, extent)| self.slice(extent.phys.segment)).collect();
        slices.iter().for_each(|slice| self.extents[usize::from(*slice)] += 1);
        let (Some(least), Some(greatest)) = (slices.iter().min(), slices.iter().max()) else { return };
        let both = (*least, *greatest);
        let split = (least != greatest).then(|| Split { fingerprint: fingerprint(extents), slices });
        self.blocks.push(Block { range, slices: both, split });
    }

    /// The window that begins with slice `from` or behind it, for plans of `plan_extents`; empty if nothing is left.
    pub(super) fn window(&self, from: usize, plan_extents: usize) -> Range<usize> {
        let Some(start) = (from..SLICES).find(|slice| self.extents[*slice] > 0) else { return 0..0 };
        let mut sum = 0;
        let fits = |slice: &usize| {
            sum += self.extents[*slice];
            sum <= plan_extents
        };
        start..start + (start..SLICES).take_while(fits).count().max(1)
    }

    /// The next blocks, from `first` on, that have something in `window`.
    pub(super) fn due(&self, window: &Range<usize>, first: usize) -> Vec<usize> {
        let is_due = |index: &usize| {
            let (least, greatest) = self.blocks[*index].slices;
            usize::from(least) < window.end && usize::from(greatest) >= window.start && least <= greatest
        };
        (first..self.blocks.len()).filter(is_due).take(BLOCKS_AT_ONCE).collect()
    }

    pub(super) fn range(&self, block: usize) -> Range<u64> {
        self.blocks[block].range.clone()
    }

    /// Those of `extents`, the block's current extents, that are read in `window`.
    pub(super) fn choose<'e>(
        &mut self,
        block: usize,
        window: &Range<usize>,
        extents: &'e [(Lba, Extent)],
    ) -> impl Iterator<Item = &'e (Lba, Extent)> {
        let block = &mut self.blocks[block];
        let is_as_noted =
            |split: &Split| split.slices.len() == extents.len() && split.fingerprint == fingerprint(extents);
        if block.split.as_ref().is_some_and(|split| !is_as_noted(split)) {
            (block.split, block.slices) = (None, (u8::MAX, 0));
        }
        let slices = block.split.as_ref().map(|split| &split.slices);
        extents.iter().enumerate().filter_map(move |(index, extent)| {
            slices.is_none_or(|slices| window.contains(&usize::from(slices[index]))).then_some(extent)
        })
    }
}

/// A fingerprint of the addresses of extents. Two different lists collide once in 2^64.
fn fingerprint(extents: &[(Lba, Extent)]) -> u64 {
    let fold = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    extents.iter().fold(0, |hash, (lba, extent)| fold(fold(hash, lba.0), extent.sectors.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Seq, addr::PhysAddr};

    const SEGMENTS: u64 = if cfg!(miri) { 100 } else { 1000 };
    /// A tenth of all.
    const PLAN_EXTENTS: usize = SEGMENTS as usize;

    fn extent(lba: u64, segment: u64) -> (Lba, Extent) {
        let phys = PhysAddr { segment: SegNo(segment as u32), grain: 9 };
        (Lba(lba), Extent { phys, stored: 512, birth: Seq(1), sectors: 1, ..Extent::default() })
    }

    /// Blocks of ten extents, `segment` of each, in segments that hold ten each.
    fn survey(segment: impl Fn(u64) -> u64) -> (Survey, Vec<Vec<(Lba, Extent)>>) {
        let mut survey = Survey::new(&vec![Live { bytes: 0, extents: 10 }; SEGMENTS as usize]);
        let block = |start: u64| (start..start + 10).map(|lba| extent(lba, segment(lba))).collect();
        let blocks: Vec<Vec<_>> = (0..SEGMENTS).map(|block_no| block(10 * block_no)).collect();
        for (start, block) in (0..).step_by(10).zip(&blocks) {
            survey.note(start..start + 10, block);
        }
        (survey, blocks)
    }

    /// The addresses that each window reads, of blocks as `now` has them.
    fn windows(survey: &mut Survey, plan_extents: usize, now: &[Vec<(Lba, Extent)>]) -> Vec<Vec<u64>> {
        let (mut windows, mut from) = (Vec::new(), 0);
        loop {
            let window = survey.window(from, plan_extents);
            if window.is_empty() {
                return windows;
            }
            from = window.end;
            let (mut chosen, mut block) = (Vec::new(), 0);
            loop {
                let due = survey.due(&window, block);
                let Some(last) = due.last() else { break };
                block = last + 1;
                for index in due {
                    chosen.extend(survey.choose(index, &window, &now[index]).map(|(lba, _)| lba.0));
                }
            }
            windows.push(chosen);
        }
    }

    #[test]
    fn data_in_order_takes_no_byte_for_an_extent() {
        let (mut survey, blocks) = survey(|lba| lba / 10);
        assert!(survey.blocks.iter().all(|block| block.split.is_none()));
        let windows = windows(&mut survey, PLAN_EXTENTS, &blocks);
        assert!(windows.len() >= 10 && windows.iter().all(|window| window.len() <= PLAN_EXTENTS));
        assert_eq!(windows.concat(), (0..10 * SEGMENTS).collect::<Vec<_>>());
    }

    #[test]
    fn scattered_extents_are_read_once_by_where_they_lay() {
        let segment = |lba: u64| lba * 7919 % SEGMENTS;
        let (mut survey, mut blocks) = survey(segment);
        // By now all lie in the last segment.
        blocks.iter_mut().flatten().for_each(|(_, extent)| extent.phys.segment = SegNo(SEGMENTS as u32 - 1));
        let windows = windows(&mut survey, PLAN_EXTENTS, &blocks);
        let mut last = 0;
        for window in &windows {
            assert!(window.len() <= PLAN_EXTENTS);
            let segments: Vec<u64> = window.iter().map(|lba| segment(*lba)).collect();
            let (first, end) = (segments.iter().min().unwrap(), segments.iter().max().unwrap());
            assert!(last <= *first, "a window of segments before those of the one before it");
            last = end + 1;
        }
        let mut all = windows.concat();
        all.sort_unstable();
        assert_eq!(all, (0..10 * SEGMENTS).collect::<Vec<_>>());
    }

    #[test]
    fn a_block_that_has_changed_is_read_whole_in_the_next_window() {
        let (mut survey, mut blocks) = survey(|lba| lba * 7919 % SEGMENTS);
        blocks[7].remove(3);
        blocks[8].remove(3); // as many as before, but others
        blocks[8].push(extent(1 << 40, 5));
        let windows = windows(&mut survey, PLAN_EXTENTS, &blocks);
        let count = |lba| windows.iter().flatten().filter(|met| **met == lba).count();
        for lba in (70..90).filter(|lba| ![73, 83].contains(lba)) {
            assert_eq!(count(lba), 1, "sector {lba}");
        }
        assert_eq!((count(1 << 40), count(73)), (1, 0));
    }

    #[test]
    fn more_in_a_slice_than_a_plan_takes_is_a_window_of_its_own() {
        let (mut survey, blocks) = survey(|_| 5);
        let windows = windows(&mut survey, 10, &blocks);
        assert_eq!((windows.len(), windows[0].len() as u64), (1, 10 * SEGMENTS));
    }
}
