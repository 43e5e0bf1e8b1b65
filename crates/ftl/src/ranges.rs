//! Ranges of numbers: sorted, without overlap.

use std::ops::Range;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_ranges_are_sorted_and_apart() {
        let of = |ranges: &[(u64, u64)]| merged(ranges.iter().map(|(start, end)| *start..*end).collect());
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[(8, 9), (0, 4), (3, 6), (1, 2)]), [0..6, 8..9]);
        assert_eq!(of(&[(4, 8), (0, 4), (9, 9)]), [0..8, 9..9]);
    }
}
