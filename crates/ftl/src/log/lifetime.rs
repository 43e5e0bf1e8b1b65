//! Grouping data by how long it will live. Pure arithmetic.
//!
//! Data that dies together should lie together: then victims of collection are nearly empty, and long-lived data is
//! seldom moved. Each class has an append point for batches and one for moved extents. Class 0 is the hottest.
//!
//! - Each segment remembers the interval *expected* of its data, in batches from one write of a sector to the next
//!   (SepBIT, Wang et al., FAST 2022, sorts by the interval of the last write), and from how many intervals that was
//!   learnt. Both are means over the data written to it.
//! - A batch is expected to live as long as the mean of all intervals so far: those remembered by the segment that
//!   holds the old version, and the one that now ends. So the first interval dominates for data of which nothing was
//!   known, and a single interval changes little for data that is rewritten often. At most [`SEEN_MAX`] intervals
//!   count, so that data whose pattern changes reaches its new class after some intervals.
//! - A moved extent is expected to live as long as its segment says, but no less than it has lived already.
//!
//! Intervals are measured in *turnovers*, the time in which as much is written as is live, so that the classes fit any
//! store; the intervals of each class are three times as long as those of the one before. Means are taken over
//! logarithms: otherwise a single long interval would outweigh a hundred short ones.
//!
//! Pages written per page, from a simulation of 209,715 pages in segments of 63, 81.7% of the space live (as 80% of 4
//! GiB are), overwritten with Zipf 0.99 three times to reach a steady state and three times more:
//!
//! | | |
//! |---|---|
//! | each rate known and in segments of its own, by calculation | 1.55 |
//! | each rate known, 12 classes of twice the length each | 1.54 |
//! | each rate known, these 7 classes | 1.58 |
//! | these classes, a memory of all intervals of each page | 1.62 |
//! | as here | 1.64 |
//! | as here, but the last interval always counts a fifth | 1.66 |
//! | as here, but ages count as if they were means of logarithms | 1.66 |
//!
//! Entries, headers and checkpoints come on top. Of the store itself: `cargo run --release -p lacuna-ftl --example
//! amplification -- 80 4096 0.99`, where ages that do not count cost 3% and two intervals instead of seven 0.5%.

use crate::space::CLASSES_MAX;

/// The class of the longest-lived data.
pub(crate) const COLDEST: u8 = CLASSES_MAX as u8 - 1;

/// Ends of the classes' intervals in turnovers; those of the coldest have none.
const ENDS: [f32; CLASSES_MAX - 1] = [0.01, 0.03, 0.09, 0.27, 0.81, 2.43];
/// Intervals that count at most.
const SEEN_MAX: f32 = 7.0;
/// Weight, in intervals, of the expectation for data of which nothing is known.
const SEEN_OF_UNKNOWN: f32 = 0.3;
/// Weight, in intervals, of the expectation that follows from a segment's class alone.
const SEEN_OF_CLASS: f32 = 3.0;
/// Where overwrites come at random, the logarithm of the mean interval is so much more than the mean of logarithms:
/// Euler's constant.
const EULER: f32 = 0.577;
/// Weight of a batch in the mean size: about this many of the last ones count.
const MEAN_OVER: f64 = 1024.0;

/// An expected interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Expected {
    /// Mean logarithm of turnovers.
    log: f32,
    /// Number of intervals in the mean.
    seen: f32,
}

impl Expected {
    /// For data that is not known to replace anything: about a turnover.
    pub(crate) const UNKNOWN: Expected = Expected { log: -EULER, seen: SEEN_OF_UNKNOWN };

    /// Of a segment of which only the class is known.
    fn of(class: u8) -> Expected {
        let (first, last) = (ENDS[0] / 3.0, ENDS[CLASSES_MAX - 2]);
        let start = class
            .checked_sub(1)
            .map_or(first, |colder| ENDS.get(usize::from(colder)).copied().unwrap_or(last));
        Expected { log: (start * 1.5).ln() - EULER, seen: SEEN_OF_CLASS }
    }
}

/// Mean of the expectations of several pieces of data.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MeanExpected {
    log: f32,
    seen: f32,
    weight: f32,
}

impl MeanExpected {
    pub(crate) fn note(&mut self, expected: Expected, weight: usize) {
        self.log += expected.log * weight as f32;
        self.seen += expected.seen * weight as f32;
        self.weight += weight as f32;
    }

    /// `None` if nothing was noted.
    pub(crate) fn get(&self) -> Option<Expected> {
        let MeanExpected { log, seen, weight } = *self;
        (weight > 0.0).then(|| Expected { log: log / weight, seen: seen / weight })
    }

    /// The mean, or else the expectation of `class`.
    pub(crate) fn or_of(&self, class: u8) -> Expected {
        self.get().unwrap_or(Expected::of(class))
    }
}

/// From intervals in batches to classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Classes {
    turnover: f32,
    coldest: u8,
}

impl Classes {
    /// `count` classes, where `turnover` batches rewrite the live data.
    pub(crate) fn new(count: usize, turnover: u64) -> Classes {
        assert!((1..=CLASSES_MAX).contains(&count), "{count} classes");
        Classes { turnover: turnover.max(1) as f32, coldest: count as u8 - 1 }
    }

    /// The class of data with this expectation.
    pub(crate) fn class(&self, expected: Expected) -> u8 {
        let turnovers = (expected.log + EULER).exp();
        let longer = ENDS.iter().filter(|end| turnovers >= **end).count();
        // Fewer classes leave out the hottest.
        (longer as u8).saturating_sub(COLDEST - self.coldest)
    }

    fn log(&self, batches: u64) -> f32 {
        (batches.max(1) as f32 / self.turnover).ln()
    }

    /// The expectation after an overwrite, `interval` batches after the last one, of data with the expectation
    /// `before`.
    pub(crate) fn overwritten(&self, before: Expected, interval: u64) -> Expected {
        let seen = before.seen.min(SEEN_MAX - 1.0);
        Expected { log: (before.log * seen + self.log(interval)) / (seen + 1.0), seen: seen + 1.0 }
    }

    /// The expectation of data that was written `age` batches ago and is moved.
    pub(crate) fn moved(&self, before: Expected, age: u64) -> Expected {
        // A mean interval is no less than the age, not a mean of logarithms.
        Expected { log: before.log.max(self.log(age) - EULER), ..before }
    }
}

/// Mean payload of a batch, log streams' counted as none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeanBatch(f64);

impl Default for MeanBatch {
    fn default() -> MeanBatch {
        MeanBatch(16384.0)
    }
}

impl MeanBatch {
    pub(crate) fn note(&mut self, bytes: u64) {
        self.0 += (bytes as f64 - self.0) / MEAN_OVER;
    }

    /// Batches that write `bytes`.
    pub(crate) fn turnover(&self, bytes: u64) -> u64 {
        (bytes as f64 / self.0.max(1.0)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expectation of data that lives this many thousandths of a turnover, after `seen` intervals.
    fn seen_for(thousandths: u64, seen: f32) -> Expected {
        Expected { log: (thousandths as f32 / 1000.0).ln() - EULER, seen }
    }

    #[test]
    fn intervals_have_classes() {
        let classes = Classes::new(7, 1000);
        let of = [1, 9, 11, 29, 31, 89, 91, 269, 271, 809, 811, 2429, 2431, u64::MAX]
            .map(|interval| classes.class(seen_for(interval, 1.0)));
        assert_eq!(of, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]);
        let two = Classes::new(2, 1000);
        assert_eq!([0, 2429, 2431].map(|interval| two.class(seen_for(interval, 1.0))), [0, 0, 1]);
        assert_eq!(Classes::new(1, 1000).class(seen_for(0, 1.0)), 0);
        assert!([0, 1, 3, 5, 6].iter().all(|class| classes.class(Expected::of(*class)) == *class));
        assert_eq!(classes.class(Expected::UNKNOWN), 5);
    }

    #[test]
    fn a_single_interval_tells_most_of_what_is_unknown_and_little_of_the_rest() {
        let classes = Classes::new(7, 1000);
        let after_one = |before| classes.class(classes.overwritten(before, 2));
        assert_eq!(after_one(Expected::UNKNOWN), 1);
        assert_eq!([0.5, 1.0, 3.0, 7.0, 100.0].map(|seen| after_one(seen_for(1000, seen))), [1, 2, 3, 4, 4]);
        let (mut expected, mut seen) = (seen_for(1000, 100.0), Vec::new());
        for _ in 0..60 {
            expected = classes.overwritten(expected, 2);
            seen.push(classes.class(expected));
        }
        assert_eq!((seen[0], seen[59]), (4, 0), "what changes its ways comes to its own");
        assert!(seen.is_sorted_by(|before, after| before >= after));
    }

    #[test]
    fn moving_never_makes_hotter() {
        let classes = Classes::new(7, 1000);
        let class = |before, age| classes.class(classes.moved(seen_for(before, 1.0), age));
        assert_eq!([5, 50, 150, 3000].map(|before| class(before, 0)), [0, 2, 3, 6]);
        assert_eq!([5, 50, 500, 3000].map(|before| class(before, 100)), [3, 3, 4, 6]);
    }

    #[test]
    fn a_segment_expects_the_mean_of_what_came_into_it() {
        let mut mean = MeanExpected::default();
        assert_eq!(mean.get(), None);
        // The last bits of a logarithm are not the same everywhere, nor twice under Miri.
        assert!((mean.or_of(3).log - Expected::of(3).log).abs() < 1e-5);
        mean.note(Expected { log: -3.0, seen: 1.0 }, 3);
        mean.note(Expected { log: 1.0, seen: 5.0 }, 1);
        assert_eq!(mean.or_of(3), Expected { log: -2.0, seen: 2.0 });
    }

    #[test]
    fn the_mean_follows_the_load() {
        let mut mean = MeanBatch::default();
        assert_eq!(mean.turnover(1 << 20), 64);
        (0..20_000).for_each(|_| mean.note(4096));
        assert_eq!(mean.turnover(1 << 20), 255);
    }
}
