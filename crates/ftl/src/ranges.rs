//! Ranges of numbers: sorted, without overlap.

use std::{collections::BTreeMap, ops::Range};

/// The same numbers in ranges that are sorted and do not overlap or touch.
pub(crate) fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, before| {
        let is_reached = next.start <= before.end;
        if is_reached {
            before.end = before.end.max(next.end);
        }
        is_reached
    });
    ranges
}

/// A set of numbers, as ranges.
#[derive(Default)]
pub(crate) struct Cover {
    /// Ends by starts; the ranges do not overlap.
    ranges: BTreeMap<u64, u64>,
}

impl Cover {
    /// Adds `range`; returns whether none of it was there.
    pub(crate) fn add(&mut self, mut range: Range<u64>) -> bool {
        let below = self.ranges.range(..range.end).rev();
        let met: Vec<_> =
            below.map(|(start, end)| *start..*end).take_while(|met| met.end > range.start).collect();
        for met in &met {
            self.ranges.remove(&met.start);
            range = range.start.min(met.start)..range.end.max(met.end);
        }
        self.ranges.insert(range.start, range.end);
        met.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cover_knows_what_it_holds() {
        let mut cover = Cover::default();
        let added = [(10, 20), (20, 30), (5, 10), (29, 31), (0, 4), (3, 6), (8, 9), (40, 50), (0, 60)];
        let were_free = added.map(|(start, end)| cover.add(start..end));
        assert_eq!(were_free, [true, true, true, false, true, false, false, true, false]);
        assert_eq!(cover.ranges.into_iter().collect::<Vec<_>>(), [(0, 60)]);
    }

    #[test]
    fn merged_ranges_are_sorted_and_apart() {
        let of = |ranges: &[(u64, u64)]| merged(ranges.iter().map(|(start, end)| *start..*end).collect());
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[(8, 9), (0, 4), (3, 6), (1, 2)]), [0..6, 8..9]);
        assert_eq!(of(&[(4, 8), (0, 4), (9, 9)]), [0..8, 9..9]);
    }
}
