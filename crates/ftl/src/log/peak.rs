//! The largest map that a recovery could bring back.

use std::collections::VecDeque;

/// The largest weight of a map that a recovery could bring back: that of any state since the last flush, because an
/// unflushed trim may be undone by a power cut; and two more for each item since, because the relocations of the
/// fragments that it left may survive a power cut that loses the batch itself. So may a relocation that cut an extent.
#[derive(Debug, Default)]
pub(super) struct Peak {
    flushed: Since,
    /// Of each flush that is led, oldest first.
    began: VecDeque<Since>,
}

/// The same, since some moment.
#[derive(Clone, Copy, Debug, Default)]
struct Since {
    weight: u64,
    cuts: u64,
}

impl Peak {
    fn all(&mut self) -> impl Iterator<Item = &mut Since> {
        [&mut self.flushed].into_iter().chain(&mut self.began)
    }

    pub(super) fn note(&mut self, weight: u64) {
        self.all().for_each(|since| since.weight = since.weight.max(weight));
    }

    /// A batch of `items` was accepted. Each has two ends, at which it may have cut an extent.
    pub(super) fn charge(&mut self, items: u64) {
        self.all().for_each(|since| since.cuts += 2 * items);
    }

    /// An extent was cut to be moved.
    pub(super) fn note_cut(&mut self) {
        self.all().for_each(|since| since.cuts += 1);
    }

    pub(super) fn flush_begins(&mut self, weight: u64) {
        self.began.push_back(Since { weight, cuts: 0 });
    }

    /// The oldest flush has ended.
    pub(super) fn flushed(&mut self) {
        self.flushed = self.began.pop_front().expect("it began");
    }

    pub(super) fn weight(&self) -> u64 {
        self.flushed.weight + self.flushed.cuts
    }

    /// The weight after a batch of `items`, which makes that of the map `weight`.
    pub(super) fn weight_after(&self, items: u64, weight: u64) -> u64 {
        self.flushed.weight.max(weight) + self.flushed.cuts + 2 * items
    }
}
