//! Grouping data by how long it will live. Pure arithmetic.
//!
//! What dies together should lie together: then victims of collection are nearly empty, and what lives
//! long is seldom moved. Each class has an append point for batches and one for moved extents. Class 0
//! is the hottest.
//!
//! - A batch belongs one class nearer to that of the *interval* in which it overwrites: batches since
//!   what it replaces was written (SepBIT, Wang et al., FAST 2022, does so with two classes). It starts
//!   from the class of the segment in which the old version lies, and goes one step at a time: that
//!   class is the memory of earlier intervals, of which a single one tells little.
//! - A moved extent stays in its class, or goes one colder if it is older already than the class's
//!   intervals. It never gets hotter by being moved.
//!
//! Intervals are measured in *turnovers*: the time in which as much is written as is live, so that the
//! classes fit any store; each is three times as long as the one before. With segments 81% full and
//! Zipf-distributed overwrites (exponent 0.99) a simulation gives 1.74 bytes written per byte with four classes
//! (2.49 with seven and age-blind victims), 1.67 so, and 1.57 where each page's rate is known beforehand. A mean
//! interval kept per page would give 1.62, one per segment 1.63, but with four classes 1.81.

/// Classes of a large store.
pub(crate) const CLASSES_MAX: usize = 7;
/// What is first written, or has lived longest.
pub(crate) const COLDEST: u8 = CLASSES_MAX as u8 - 1;

/// Weight of a batch in the mean size: about so many of the last ones count.
const MEAN_OVER: f64 = 1024.0;

/// Ends of the classes' intervals in batches; those of the coldest have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Classes {
    ends: [u64; CLASSES_MAX - 1],
    coldest: u8,
}

impl Classes {
    /// `count` classes, where `turnover` batches rewrite what is live.
    pub(crate) fn new(count: usize, turnover: u64) -> Classes {
        assert!((1..=CLASSES_MAX).contains(&count), "{count} classes");
        let ends = [1, 3, 9, 27, 81, 243].map(|hundredths| turnover * hundredths / 100);
        Classes { ends, coldest: count as u8 - 1 }
    }

    /// The class of `interval` batches.
    fn of(&self, interval: u64) -> u8 {
        let longer = self.ends.iter().filter(|end| interval >= **end).count();
        // Fewer classes leave out the hottest.
        (longer as u8).saturating_sub(COLDEST - self.coldest)
    }

    /// The class of an overwrite after `interval` batches of what lies in `class`.
    pub(crate) fn overwritten(&self, class: u8, interval: u64) -> u8 {
        let (class, of) = (class.min(self.coldest), self.of(interval));
        if of < class { class - 1 } else { class + u8::from(of > class) }
    }

    /// The class of what was written `age` batches ago and is moved out of `class`.
    pub(crate) fn moved(&self, class: u8, age: u64) -> u8 {
        let class = class.min(self.coldest);
        class + u8::from(self.of(age) > class)
    }

    /// The class of what is not known to replace anything.
    pub(crate) fn unknown(&self) -> u8 {
        self.coldest
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

    #[test]
    fn intervals_have_classes() {
        let classes = Classes::new(7, 1000);
        let of = [0, 9, 10, 29, 30, 89, 90, 269, 270, 809, 810, 2429, 2430, u64::MAX]
            .map(|interval| classes.of(interval));
        assert_eq!(of, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]);
        let two = Classes::new(2, 1000);
        assert_eq!([0, 2429, 2430].map(|interval| two.of(interval)), [0, 0, 1]);
        assert_eq!(Classes::new(1, 1000).of(0), 0);
    }

    #[test]
    fn a_single_interval_moves_by_one_class() {
        let classes = Classes::new(7, 1000);
        assert_eq!([0, 1, 3, 6].map(|class| classes.overwritten(class, 0)), [0, 0, 2, 5]);
        assert_eq!([0, 1, 3, 6].map(|class| classes.overwritten(class, 5000)), [1, 2, 4, 6]);
        assert_eq!([0, 1, 3, 6].map(|class| classes.overwritten(class, 100)), [1, 2, 3, 5]);
        assert_eq!(Classes::new(2, 1000).overwritten(3, 5000), 1, "of a store that had more");
    }

    #[test]
    fn moving_never_makes_hotter() {
        let classes = Classes::new(7, 1000);
        assert_eq!([0, 1, 3, 6].map(|class| classes.moved(class, 0)), [0, 1, 3, 6]);
        assert_eq!([0, 3, 4, 6].map(|class| classes.moved(class, 300)), [1, 4, 4, 6]);
    }

    #[test]
    fn the_mean_follows_the_load() {
        let mut mean = MeanBatch::default();
        assert_eq!(mean.turnover(1 << 20), 64);
        (0..20_000).for_each(|_| mean.note(4096));
        assert_eq!(mean.turnover(1 << 20), 255);
    }
}
