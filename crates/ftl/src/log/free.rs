//! Segments that hold nothing, by what their next use costs the host.

use std::collections::VecDeque;

use crate::addr::SegNo;

/// Segments that hold nothing.
#[derive(Debug, Default)]
pub(crate) struct FreeSegments {
    /// They held something since the store was opened, or when it was; oldest first, so that wear spreads.
    used: VecDeque<SegNo>,
    /// Filled with zeros, so that writing there needs no more space.
    ready: VecDeque<SegNo>,
    /// The host may have no space for them yet; in order.
    untouched: VecDeque<SegNo>,
    /// Being made ready, or given back (invariant 3 of `footprint`).
    away: Vec<SegNo>,
}

impl FreeSegments {
    /// Of free segments, in order, those of which `was_used` says so, and the others.
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

    /// There are `new` ones, behind all others.
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

    /// Takes up to `count` of those for which there is space off the lists, which lie last on the device.
    pub(crate) fn lend_touched(&mut self, count: usize) -> Vec<SegNo> {
        let mut last: Vec<_> = self.used.iter().chain(&self.ready).copied().collect();
        last.sort_unstable();
        self.away = last.split_off(last.len().saturating_sub(count));
        for list in [&mut self.used, &mut self.ready] {
            list.retain(|segment| self.away.binary_search(segment).is_err());
        }
        self.away.clone()
    }

    /// Those that were lent are ready.
    pub(crate) fn are_ready(&mut self) {
        self.ready.extend(self.away.drain(..));
    }

    /// Those that were lent are untouched.
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
