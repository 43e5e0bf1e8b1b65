//! Free segments, ordered by what their next use costs the host.

use std::collections::VecDeque;

use crate::addr::SegNo;

/// Free segments.
#[derive(Debug, Default)]
pub(crate) struct FreeSegments {
    /// Segments that held something when the store was opened or since; oldest first, so that wear spreads.
    used: VecDeque<SegNo>,
    /// Segments filled with zeros, so that writing there needs no more space of the host.
    ready: VecDeque<SegNo>,
    /// Segments for which the host may have no space yet; in order.
    untouched: VecDeque<SegNo>,
    /// Being made ready, or given back (invariant 3 of `footprint`).
    away: Vec<SegNo>,
}

impl FreeSegments {
    /// From the `free` segments, in order: those that were used, according to `was_used`, and the others.
    pub(crate) fn new(free: impl Iterator<Item = SegNo>, was_used: impl Fn(SegNo) -> bool) -> FreeSegments {
        let (used, untouched) = free.partition(|segment| was_used(*segment));
        FreeSegments { used, untouched, ..FreeSegments::default() }
    }

    /// How many may be taken.
    pub(crate) fn len(&self) -> usize {
        self.used.len() + self.ready.len() + self.untouched.len()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = SegNo> + '_ {
        let lists = [&self.used, &self.ready, &self.untouched];
        lists.into_iter().flatten().chain(&self.away).copied()
    }

    pub(crate) fn take(&mut self) -> Option<SegNo> {
        let lists = [&mut self.used, &mut self.ready, &mut self.untouched];
        lists.into_iter().find_map(VecDeque::pop_front)
    }

    pub(crate) fn give_back(&mut self, segment: SegNo) {
        self.used.push_back(segment);
    }

    /// Adds `new` segments, which lie behind all others.
    pub(crate) fn grow(&mut self, new: impl Iterator<Item = SegNo>) {
        self.untouched.extend(new);
    }

    /// How many were used, or were made ready.
    pub(crate) fn touched(&self) -> usize {
        self.used.len() + self.ready.len()
    }

    pub(crate) fn untouched(&self) -> usize {
        self.untouched.len()
    }

    /// Takes up to `count` untouched ones off the lists.
    pub(crate) fn lend_untouched(&mut self, count: usize) -> Vec<SegNo> {
        let count = count.min(self.untouched.len());
        self.away = self.untouched.drain(..count).collect();
        self.away.clone()
    }

    /// Takes up to `count` segments for which the host has space off the lists: those that lie last on the device.
    pub(crate) fn lend_touched(&mut self, count: usize) -> Vec<SegNo> {
        let mut last: Vec<_> = self.used.iter().chain(&self.ready).copied().collect();
        last.sort_unstable();
        self.away = last.split_off(last.len().saturating_sub(count));
        for list in [&mut self.used, &mut self.ready] {
            list.retain(|segment| self.away.binary_search(segment).is_err());
        }
        self.away.clone()
    }

    /// The segments that were lent are ready.
    pub(crate) fn are_ready(&mut self) {
        self.ready.extend(self.away.drain(..));
    }

    /// The segments that were lent are untouched.
    pub(crate) fn are_untouched(&mut self) {
        self.untouched.extend(self.away.drain(..));
        self.untouched.make_contiguous().sort_unstable();
    }

    #[cfg(test)]
    pub(crate) fn truncate(&mut self, len: usize) {
        while self.len() > len {
            self.take();
        }
    }
}
