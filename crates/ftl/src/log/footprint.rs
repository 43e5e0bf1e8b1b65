//! How many segments a store makes use of, where the rest of its device is of use to others.
//!
//! A store file takes room of the file system that it lies in, segment by segment, and the first use of each costs that
//! file system a commit of its journal, which a flush waits for unless zeros were written there ahead
//! (`examples/untouched`: half as many flushes without). So segments that were used before are used again before untouched
//! ones, and collection begins when as many are in use as [`Footprint`] says, though others are free. Invariants:
//!
//! 1. *It is a wish.* What is refused, and what each kind of work may take, is for `reserve` alone to say, which
//!    counts all segments. So nothing gets stuck for the sake of the footprint, and no batch waits for room for it.
//! 2. *Writers pay* what they add: the fewer of the segments up to the *limit* are free, the more collection must have
//!    moved before a write returns (`throttle`). When what is live shrinks at once, so does the wish, but the limit
//!    comes down only as fast as segments become free: who deletes much does not make the next writer pay for all of it.
//! 3. *What is made ready, or given back, is free and on no list meanwhile*, so nobody takes it. As many are left as all
//!    kinds of work may want at that moment.

use std::collections::VecDeque;

use lacuna_device::AlignedBuf;

use crate::{
    Footprint, Result,
    addr::SegNo,
    log::Log,
    log::reserve::Claim,
    space::Space,
    store::Store,
    sync::atomic::{AtomicBool, Ordering},
};

/// Bytes of untouched segments that are made ready together, and kept ready, if they are as many as a segment has.
const READY_BYTES: usize = 32 << 20;
/// Bytes written at a time while a segment is made ready.
const ZEROS_BYTES: usize = 1 << 20;

/// Segments that hold nothing.
#[derive(Debug, Default)]
pub(crate) struct FreeSegments {
    /// They held something since the store was opened, or when it was; oldest first, so that wear spreads.
    used: VecDeque<SegNo>,
    /// Filled with zeros, so that writing there needs no more room.
    ready: VecDeque<SegNo>,
    /// The host may have no room for them yet; in order.
    untouched: VecDeque<SegNo>,
    /// Being made ready, or given back (invariant 3).
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

    /// Takes up to `count` untouched ones off the lists.
    fn lend_untouched(&mut self, count: usize) -> Vec<SegNo> {
        let count = count.min(self.untouched.len());
        self.away = self.untouched.drain(..count).collect();
        self.away.clone()
    }

    /// Takes up to `count` of those for which there is room off the lists, which lie last on the device.
    fn lend_touched(&mut self, count: usize) -> Vec<SegNo> {
        let mut last: Vec<_> = self.used.iter().chain(&self.ready).copied().collect();
        last.sort_unstable();
        self.away = last.split_off(last.len().saturating_sub(count));
        for list in [&mut self.used, &mut self.ready] {
            list.retain(|segment| self.away.binary_search(segment).is_err());
        }
        self.away.clone()
    }

    fn are_ready(&mut self) {
        self.ready.extend(self.away.drain(..));
    }

    fn are_untouched(&mut self) {
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

impl Log {
    /// Segments of which use is made: those in use as wished, and those that must be free then.
    pub(crate) fn wished_segments(&self) -> usize {
        let wished = self.space.wished(self.footprint, self.live_cost);
        (wished + self.left_by(Claim::Fresh)).min(self.space.segments)
    }

    /// The same as `space`, were the device no larger than what is made use of.
    pub(crate) fn wished_space(&self) -> Space {
        Space { segments: self.wished_segments(), ..self.space }
    }

    /// Brings the limit down as far as invariant 2 has it.
    pub(crate) fn move_limit(&mut self) {
        let wished = self.wished_space();
        let in_use = self.space.segments - self.free.len();
        let kept = self.left_by(Claim::Fresh) + wished.ahead(self.live_cost);
        self.limit = wished.segments.max(self.limit.min(in_use + kept));
    }

    /// Free segments, were there no more than `segments`.
    pub(crate) fn free_within(&self, segments: usize) -> usize {
        self.free.len().saturating_sub(self.space.segments - segments)
    }

    /// Segments by which the wish goes up and down by itself, as logs are written and trimmed. What is given back
    /// meanwhile would have to be made ready again.
    fn swing(&self) -> usize {
        match self.footprint {
            Footprint::Live { plus_bytes, .. } => 6 * plus_bytes as usize / self.space.segment_bytes,
            _ => 0,
        }
    }

    /// Segments for which the host has room.
    pub(crate) fn touched(&self) -> usize {
        self.space.segments - self.free.untouched.len()
    }
}

impl Store {
    /// Untouched segments that shall be made ready now.
    pub(crate) fn to_make_ready(&self, log: &Log) -> usize {
        let at_once =
            (READY_BYTES / self.volume.space().segment_bytes).min(log.wished_segments() / 16).max(1);
        if !self.volume.is_sparse()
            || self.host.gave_up()
            || 2 * (log.free.ready.len() + log.free.used.len()) > at_once
        {
            return 0;
        }
        let spare = log.free.len().saturating_sub(log.left_by(Claim::Fresh) + self.ahead(log));
        let wished = log.wished_segments().saturating_sub(log.touched());
        at_once.min(spare).min(wished).min(log.free.untouched.len())
    }

    /// Free segments that shall be given back to the host now.
    pub(crate) fn to_release(&self, log: &Log) -> usize {
        let wished = log.wished_segments();
        match log.touched() > wished + wished / 8 + log.swing() {
            true => self.to_release_all(log),
            false => 0,
        }
    }

    /// The same, if the store is not used soon.
    fn to_release_all(&self, log: &Log) -> usize {
        let beyond = log.touched().saturating_sub(log.wished_segments());
        let have_room = log.free.len() - log.free.untouched.len();
        if self.volume.is_sparse() { beyond.min(have_room) } else { 0 }
    }

    /// Makes untouched segments ready. `maintenance` is held.
    ///
    /// # Errors
    /// When the sync fails, which poisons the store. What the host has no room for stays untouched.
    pub(crate) fn make_ready(&self) -> Result<()> {
        let lent = {
            let mut log = self.log.lock();
            let count = self.to_make_ready(&log);
            log.free.lend_untouched(count)
        };
        let zeros = AlignedBuf::zeroed(ZEROS_BYTES.min(self.volume.space().segment_bytes));
        let offsets = (0..self.volume.space().segment_bytes).step_by(zeros.len());
        let all = lent
            .iter()
            .flat_map(|segment| offsets.clone().map(|offset| self.volume.offset(*segment, offset)));
        let written = all.into_iter().try_for_each(|at| self.volume.device().write_at(at, &zeros));
        let synced = self.volume.device().sync();
        let mut log = self.log.lock();
        match &written {
            Ok(()) => {
                log.free.are_ready();
                log.counters.prepared_bytes += (lent.len() * self.volume.space().segment_bytes) as u64;
            }
            Err(_) => {
                self.host.give_up();
                log.free.are_untouched();
            }
        }
        synced.map_err(|error| self.poison(&mut log, error))
    }

    /// Gives back all that is beyond the wish, because the store is closed.
    pub(crate) fn release_all(&self) {
        let _turn = self.turn();
        self.release(Store::to_release_all);
    }

    /// Gives as many segments back to the host as `count` says. `maintenance` is held.
    pub(crate) fn release(&self, count: impl Fn(&Store, &Log) -> usize) {
        let lent = {
            let mut log = self.log.lock();
            let count = count(self, &log);
            log.free.lend_touched(count)
        };
        for run in lent.chunk_by(|left, right| left.0 + 1 == right.0) {
            // Advice, as ever; and what is not given back is not asked for again.
            let bytes = (run.len() * self.volume.space().segment_bytes) as u64;
            let _ = self.volume.device().discard(self.volume.offset(run[0], 0), bytes);
        }
        self.log.lock().free.are_untouched();
    }
}

/// What is remembered of the host.
#[derive(Debug, Default)]
pub(crate) struct Host(AtomicBool);

impl Host {
    /// It had no room.
    fn give_up(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn gave_up(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
