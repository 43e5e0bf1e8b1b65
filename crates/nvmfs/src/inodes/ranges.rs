//! Ranges of sectors of one file that are being changed.
//!
//! A change of part of a sector reads the sector, changes it and writes it back; no other operation may write it in
//! between. So every write holds the sectors that it writes, and every change of the length those from the last byte
//! that stays on. Writes of different sectors do not conflict.
//!
//! Operations get a sector in the order of their requests: a change of the length, which needs very many sectors, comes
//! after those that asked before it, and before those that ask after it.
//!
//! An operation that waits here holds no other lock except, in a batch, ranges of files with smaller numbers.

use std::ops::Range;

use parking_lot::{Condvar, Mutex};

/// The ranges of one file that are held, or waited for.
#[derive(Default)]
pub(crate) struct Ranges {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Default)]
struct State {
    /// By number, in no order. A claim that overlaps none with a smaller number is held.
    claims: Vec<(u64, Vec<Range<u64>>)>,
    next_claim: u64,
}

impl State {
    /// Whether this one is held.
    fn is_held(&self, claim: u64) -> bool {
        let own = self.claims.iter().rfind(|(number, _)| *number == claim);
        let (_, own) = own.expect("a claim is in the list until it is given up");
        self.claims.iter().all(|(number, ranges)| *number >= claim || !overlap(ranges, own))
    }
}

/// Ranges held until it is dropped.
pub(crate) struct HeldRanges<'a> {
    ranges: &'a Ranges,
    claim: u64,
}

impl Ranges {
    /// Waits until no earlier claim includes a sector of `wanted`, and holds them.
    pub(crate) fn lock(&self, wanted: Range<u64>) -> HeldRanges<'_> {
        self.lock_all(std::iter::once(wanted).collect())
    }

    /// As [`Ranges::lock`] for several ranges at once.
    pub(crate) fn lock_all(&self, mut wanted: Vec<Range<u64>>) -> HeldRanges<'_> {
        wanted.sort_unstable_by_key(|range| range.start);
        let mut state = self.state.lock();
        let claim = state.next_claim;
        state.next_claim += 1;
        state.claims.push((claim, wanted));
        while !state.is_held(claim) {
            self.released.wait(&mut state);
        }
        HeldRanges { ranges: self, claim }
    }

    /// Number of operations that hold ranges or wait for some.
    #[cfg(test)]
    fn claims(&self) -> usize {
        self.state.lock().claims.len()
    }
}

impl Drop for HeldRanges<'_> {
    fn drop(&mut self) {
        let mut state = self.ranges.state.lock();
        let index = state.claims.iter().position(|(number, _)| *number == self.claim);
        state.claims.swap_remove(index.expect("a claim is in the list until it is given up"));
        drop(state);
        self.ranges.released.notify_all();
    }
}

/// Whether two lists, each in order of their starts, have a sector in common.
fn overlap(a: &[Range<u64>], b: &[Range<u64>]) -> bool {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let mut reach = [0, 0]; // greatest end so far of each list
    while a.peek().is_some() || b.peek().is_some() {
        let from_a = match (a.peek(), b.peek()) {
            (Some(x), Some(y)) => x.start <= y.start,
            (x, _) => x.is_some(),
        };
        let next = if from_a { a.next() } else { b.next() };
        let Some(range) = next.filter(|range| !range.is_empty()) else { continue };
        if range.start < reach[usize::from(from_a)] {
            return true;
        }
        let own = usize::from(!from_a);
        reach[own] = range.end.max(reach[own]);
    }
    false
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use lacuna_sim::{SeededRng, for_each_seed};

    use super::*;

    fn random_ranges(rng: &mut SeededRng) -> Vec<Range<u64>> {
        let mut ranges: Vec<_> = (0..rng.below(4))
            .map(|_| {
                let start = rng.below(40);
                start..start + rng.below(6)
            })
            .collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }

    #[test]
    fn overlaps_are_those_of_the_sets() {
        for_each_seed(3000, |seed| {
            let mut rng = SeededRng::new(seed);
            let (a, b) = (random_ranges(&mut rng), random_ranges(&mut rng));
            let expected = (0..64).any(|n| {
                let holds = |ranges: &[Range<u64>]| ranges.iter().any(|range| range.contains(&n));
                holds(&a) && holds(&b)
            });
            assert_eq!(overlap(&a, &b), expected, "{a:?} {b:?}");
        });
    }

    #[test]
    fn holders_of_one_sector_exclude_each_other() {
        let ranges = Ranges::default();
        let counters: Vec<AtomicU32> = (0..46).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (ranges, counters) = (&ranges, &counters);
                scope.spawn(move || {
                    let mut rng = SeededRng::new(seed);
                    for _ in 0..if cfg!(miri) { 20 } else { 500 } {
                        let start = rng.below(40);
                        let wanted = start..start + 1 + rng.below(5);
                        let held = ranges.lock(wanted.clone());
                        for sector in wanted.clone() {
                            assert_eq!(counters[sector as usize].fetch_add(1, SeqCst), 0);
                        }
                        for sector in wanted {
                            counters[sector as usize].fetch_sub(1, SeqCst);
                        }
                        drop(held);
                    }
                });
            }
        });
    }

    /// Otherwise a change of a file's length might wait for ever beside many threads that write to its end.
    #[test]
    fn nobody_is_overtaken() {
        let ranges = Ranges::default();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let first = ranges.lock(0..1);
            scope.spawn(|| {
                let _held = ranges.lock(0..10);
                order.lock().push("wide");
            });
            while ranges.claims() < 2 {
                std::thread::yield_now();
            }
            let narrow = scope.spawn(|| {
                let _held = ranges.lock(5..6);
                order.lock().push("narrow");
            });
            while ranges.claims() < 3 && !narrow.is_finished() {
                std::thread::yield_now();
            }
            drop(ranges.lock(20..30)); // conflicts with no claim
            assert!(!narrow.is_finished());
            drop(first);
        });
        assert_eq!(*order.lock(), ["wide", "narrow"]);
    }
}
