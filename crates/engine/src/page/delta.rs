//! Deltas, which turn one value into another of the same length. Pure.
//!
//! A delta is a list of *hunks*: the number of bytes that stay as they are since the last hunk, the number of bytes
//! that are replaced (both LEB128), and the new bytes. Most changes of a record concern a few of its bytes, so the log
//! and the undo record of a change hold a delta each: one turns the old value into the new one, the other the new one
//! into the old.

use std::ops::Range;

use smallvec::SmallVec;

use crate::page::varint;

/// Equal bytes between two hunks that are worth a hunk of its own: it takes two bytes, or a few more.
const GAP_MIN: usize = 4;
/// Bytes before a hunk's own, at most, where values are shorter than 16 KiB.
const HUNK_HEADER_MAX: usize = 4;

/// Where two values of the same length differ.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    hunks: SmallVec<[Range<usize>; 8]>,
}

impl Difference {
    /// Where they differ; `None` when a delta cannot or need not be: their lengths differ, or it would hardly be
    /// shorter than a value.
    pub(crate) fn of(before: &[u8], behind: &[u8]) -> Option<Difference> {
        if before.len() != behind.len() {
            return None;
        }
        let mut hunks = SmallVec::new();
        let mut bytes = 0;
        let mut at = 0;
        while let Some(equal) = common_bytes(&before[at..], &behind[at..]) {
            let start = at + equal;
            at = end_of_hunk(before, behind, start);
            bytes += HUNK_HEADER_MAX + at - start;
            if bytes >= before.len() {
                return None;
            }
            hunks.push(start..at);
        }
        Some(Difference { hunks })
    }

    /// Appends the delta that turns the other one into `value`, which is either of the two.
    pub(crate) fn encode(&self, value: &[u8], out: &mut Vec<u8>) {
        let mut at = 0;
        for hunk in &self.hunks {
            varint::put((hunk.start - at) as u64, out);
            varint::put(hunk.len() as u64, out);
            out.extend_from_slice(&value[hunk.clone()]);
            at = hunk.end;
        }
    }
}

/// Bytes before the first that differs; `None` when none does.
fn common_bytes(a: &[u8], b: &[u8]) -> Option<usize> {
    let (words, of_b) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    let equal =
        words.iter().zip(of_b).take_while(|(a, b)| u64::from_ne_bytes(**a) == u64::from_ne_bytes(**b));
    let from = 8 * equal.count();
    a[from..].iter().zip(&b[from..]).position(|(a, b)| a != b).map(|at| from + at)
}

/// The end of the last differing byte before [`GAP_MIN`] equal ones, from `start` on, which differs.
fn end_of_hunk(before: &[u8], behind: &[u8], start: usize) -> usize {
    let mut end = start + 1;
    let window = |end: usize| end..before.len().min(end + GAP_MIN);
    while let Some(equal) = common_bytes(&before[window(end)], &behind[window(end)]) {
        end += equal + 1;
    }
    end
}

/// Turns `value` into the other one. `None`, and undefined bytes in `value`, when the delta is not of a value of that
/// length.
#[must_use]
pub(crate) fn apply(mut delta: &[u8], value: &mut [u8]) -> Option<()> {
    let mut rest = value;
    while !delta.is_empty() {
        let stay = usize::try_from(varint::take(&mut delta)?).ok()?;
        let count = usize::try_from(varint::take(&mut delta)?).ok()?;
        let bytes = delta.split_off(..count)?;
        let (hunk, behind) = rest.split_at_mut_checked(stay)?.1.split_at_mut_checked(count)?;
        hunk.copy_from_slice(bytes);
        rest = behind;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn delta(difference: &Difference, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        difference.encode(value, &mut out);
        out
    }

    #[test]
    fn a_delta_holds_what_differs() {
        let mut behind = [7; 300];
        behind[2..4].fill(1);
        behind[7] = 1; // three equal bytes before it
        behind[290] = 2;
        let difference = Difference::of(&[7; 300], &behind).expect("shorter");
        assert_eq!(delta(&difference, &behind), [2, 6, 1, 1, 7, 7, 7, 1, 0x80 | 26, 2, 1, 2]);
        assert_eq!(Difference::of(&[7; 300], &[7; 300]), Some(Difference { hunks: SmallVec::new() }));
        assert_eq!(Difference::of(&[7; 300], &[8; 300]), None, "no shorter");
        assert_eq!(Difference::of(&[7; 300], &[7; 301]), None);
        assert_eq!(Difference::of(b"", b""), Some(Difference { hunks: SmallVec::new() }));
    }

    #[test]
    fn a_delta_of_another_length_is_refused() {
        for bad in
            [&[0, 5, 1, 2, 3, 4, 5][..], &[4, 1, 0], &[0, 2, 0], &[0], &[0x80; 12], &[3, 1, 0, 0, 1, 0]]
        {
            assert_eq!(apply(bad, &mut [9; 4]), None, "{bad:?}");
        }
        assert_eq!(apply(&[], &mut []), Some(()));
    }

    proptest! {
        #[test]
        fn deltas_lead_there_and_back(
            before in prop::collection::vec(any::<u8>(), 0..400),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..30),
        ) {
            let mut behind = before.clone();
            for (at, byte) in changes {
                if !behind.is_empty() {
                    let at = at.index(behind.len());
                    behind[at] = byte;
                }
            }
            let Some(difference) = Difference::of(&before, &behind) else { return Ok(()) };
            let (there, back) = (delta(&difference, &behind), delta(&difference, &before));
            prop_assert!(there.len() == back.len() && there.len() <= before.len());
            let mut value = before.clone();
            prop_assert_eq!(apply(&there, &mut value), Some(()));
            prop_assert_eq!(&value, &behind);
            prop_assert_eq!(apply(&back, &mut value), Some(()));
            prop_assert_eq!(&value, &before);
        }

        #[test]
        fn any_bytes_apply_or_fail(delta in prop::collection::vec(0..40u8, 0..60)) {
            let mut value = [1; 30];
            let _ = apply(&delta, &mut value);
        }
    }
}
