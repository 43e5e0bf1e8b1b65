//! Deciding what is due.

use super::parts::Maintenance;
use crate::{
    addr::SegNo,
    gc::Collecting,
    log::{Claim, Log},
    map::Map,
    mutant::{Rule, is_broken},
    paging::DIRTY_SHARE,
    space::{MAP_EXTENT_BYTES, Space},
};

/// A checkpoint is due after this many bytes of log, or [`LOG_PER_MAP`] times the map, if that is more.
const LOG_BYTES_MIN: u64 = 1 << 30;

const LOG_PER_MAP: u64 = 32;

/// Dead segments that are worth a flush even where `ahead` is less than twice this number.
const FLUSHED_TOGETHER: usize = 8;

/// One piece of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    Checkpoint,
    Collect(SegNo),
    /// Write changed leaves of the map out, so that they can be evicted.
    WriteBack,
    /// Put reusable segments on the free list.
    Free,
    /// Write retained summaries for dead segments, so that they need not wait for a checkpoint.
    RetainedSummaries,
    /// Have untouched segments ready for use.
    MakeReady,
    /// Give used segments back to the host.
    Release,
    /// Make the deaths of segments durable, and let the writes of sealed ones reach the device, so
    /// that they can be collected.
    Flush,
}

impl Maintenance {
    /// The work that helps to free `missing` more segments, if any does.
    pub(super) fn plan(
        &self,
        log: &mut Log,
        map: &Map,
        collecting: &mut Collecting,
        missing: usize,
    ) -> Option<Plan> {
        if log.freed_by_a_flush(map.weight(0)) > 0 {
            return Some(Plan::Flush);
        }
        // A flush waits for all writes in flight, so it must be worth it; but a caller that misses many segments must
        // not wait until one flush frees them all.
        let ahead = self.ahead(log);
        let worth_a_flush = missing.min(ahead).min(FLUSHED_TOGETHER).max(ahead / 2);
        if log.pending_free() < worth_a_flush
            && let Some(victim) = self.collector.chosen_victim(log, map, collecting)
        {
            return Some(Plan::Collect(victim));
        }
        let waiting = self.reuse.waiting(log, map);
        log.set_pending_free(waiting.ready + waiting.flush);
        if waiting.ready > 0 {
            return Some(Plan::Free);
        }
        if waiting.flush >= worth_a_flush {
            return Some(Plan::Flush);
        }
        if waiting.checkpoint >= self.worth_retaining(log) && self.may_retain(log) {
            return Some(Plan::RetainedSummaries);
        }
        let gain = waiting.checkpoint + self.checkpoint_shrinks_by(log, map);
        if gain >= missing.max(self.pace(log)) {
            return Some(Plan::Checkpoint);
        }
        if let Some(victim) = self.collector.victim(log, map, collecting) {
            return Some(Plan::Collect(victim));
        }
        if waiting.flush > 0 || log.sealed_tails() {
            return Some(Plan::Flush);
        }
        self.plan_for_young(log, map, waiting.checkpoint)
    }

    /// The work that frees `waiting` dead segments that no checkpoint covers, or surplus segments of the map.
    fn plan_for_young(&self, log: &Log, map: &Map, waiting: usize) -> Option<Plan> {
        if waiting > 0 && self.may_retain(log) {
            return Some(Plan::RetainedSummaries);
        }
        (waiting + self.checkpoint_shrinks_by(log, map) > 0).then_some(Plan::Checkpoint)
    }

    /// Free segments beyond the reserves before work is due, and dead ones for which a flush is due. All
    /// of them are space that garbage cannot use.
    pub(crate) fn ahead(&self, log: &Log) -> usize {
        log.target_space().ahead(log.live_cost())
    }

    /// Segments that a checkpoint should free, so that its own bytes are few compared with theirs. Waiting for more
    /// would leave so much less space for garbage that collection costs more than is saved.
    fn pace(&self, log: &Log) -> usize {
        (log.target_segments() / 128).max(2)
    }

    /// Dead segments for which retained summaries are written: the bytes of these are few in any case, so waiting for
    /// several segments only shares the two syncs.
    fn worth_retaining(&self, log: &Log) -> usize {
        (log.target_segments() / 512).max(2)
    }

    /// Whether retained summaries are cheaper than a checkpoint: until they have taken half the bytes of a checkpoint
    /// that finds most leaves changed.
    fn may_retain(&self, log: &Log) -> bool {
        let map_bytes = log.peak_weight() * MAP_EXTENT_BYTES as u64 / 2;
        log.checkpoints().retained_bytes() < (map_bytes / 2).max(self.volume.space().segment_bytes as u64 / 2)
    }

    /// Segments of the map beyond those that the last checkpoint needs: how many the next one would free, and how many
    /// it would leave behind again, because a check reads the map that was there. Those do not count from which leaves
    /// cannot be moved, because they cannot be read.
    pub(super) fn map_surplus(&self, log: &Log, map: &Map) -> (usize, usize) {
        let left = log.checkpoints().left().iter().filter(|segment| map.leaf_bytes(**segment) > 0).count();
        let most = self.volume.space().map_segments_max(log.peak_weight()) + left;
        match log.map_segments().saturating_sub(most) {
            0 => (0, 0),
            surplus => {
                let pinned = self.checkpointer.map_segments_pinned(log, map).min(surplus);
                (surplus - pinned, pinned)
            }
        }
    }

    fn checkpoint_shrinks_by(&self, log: &Log, map: &Map) -> usize {
        self.map_surplus(log, map).0
    }

    /// Free segments below which work is due.
    fn low_water(&self, log: &Log) -> usize {
        log.left_by(Claim::Fresh) + self.ahead(log)
    }

    /// Free segments that are lacking and that writers must pay for. Segments that a flush will free count as free, but
    /// for at most half of those kept ahead: a writer waits before all are taken.
    pub(super) fn lacking(&self, log: &Log) -> usize {
        let pending_free = log.pending_free().min(self.ahead(log) / 2);
        self.low_water(log).saturating_sub(log.free_within(log.limit()) + pending_free + self.unpaid(log))
    }

    /// Segments of those kept ahead that may be lacking before any writer waits: about as many as are written while a
    /// flush or a checkpoint keeps the thread from collecting, and the thread wins these back. None without a thread.
    pub(super) fn unpaid(&self, log: &Log) -> usize {
        if self.is_threaded { self.ahead(log) / 4 } else { 0 }
    }

    /// Whether [`Maintenance::due`] may find something; cheap.
    pub(crate) fn is_due(&self, log: &Log) -> bool {
        self.is_short(log)
            || log.is_settling_due()
            || self.checkpoint_due(log)
            || self.to_make_ready(log) > 0
            || self.to_release(log) > 0
    }

    fn is_short(&self, log: &Log) -> bool {
        log.free_within(log.target_segments()) < self.low_water(log)
    }

    /// The work that is due on the host's space for the store.
    fn plan_for_host(&self, log: &Log) -> Option<Plan> {
        if self.to_release(log) > 0 {
            return Some(Plan::Release);
        }
        (self.to_make_ready(log) > 0).then_some(Plan::MakeReady)
    }

    pub(super) fn checkpoint_due(&self, log: &Log) -> bool {
        let map_bytes = log.peak_weight() * MAP_EXTENT_BYTES as u64;
        log.checkpoints().log_bytes() >= LOG_BYTES_MIN.max(map_bytes * LOG_PER_MAP)
            && !is_broken(Rule::LogMakesCheckpoint)
    }

    pub(super) fn due(&self, log: &mut Log, map: &Map, collecting: &mut Collecting) -> Option<Plan> {
        if self.pages.is_write_back_due(map, DIRTY_SHARE) {
            return Some(Plan::WriteBack);
        }
        if self.checkpoint_due(log) {
            return Some(Plan::Checkpoint);
        }
        if log.is_settling_due() {
            return Some(Plan::Flush);
        }
        let missing = self.low_water(log).saturating_sub(log.free_within(log.target_segments()));
        let plan = (missing > 0).then(|| self.plan(log, map, collecting, missing)).flatten();
        let Some(plan) = plan else { return self.plan_for_host(log) };
        // Nearly full segments are left to writers that really need them: moving them ahead of time
        // costs more wear than it saves waiting. Those that are slowed down do need them.
        let lacking = self.low_water(log).saturating_sub(log.free().len());
        let is_pressing = self.is_threaded && lacking * 2 > self.ahead(log);
        match plan {
            Plan::Collect(victim) if !is_pressing && !self.is_worth_the_wear(map, victim) => {
                self.plan_without_moving(log, map).or_else(|| self.plan_for_host(log))
            }
            plan => Some(plan),
        }
    }

    fn plan_without_moving(&self, log: &Log, map: &Map) -> Option<Plan> {
        let waiting = self.reuse.waiting(log, map);
        match waiting.flush {
            0 => self.plan_for_young(log, map, waiting.checkpoint),
            _ => Some(Plan::Flush),
        }
    }

    fn is_worth_the_wear(&self, map: &Map, victim: SegNo) -> bool {
        Space::moved_bytes(map.live(victim)) <= (self.volume.space().segment_bytes / 8 * 7) as u64
    }
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use super::*;
    use crate::{Lba, Op, SECTOR, Stream, log::AppendPoint, maintenance::throttle::Owed, store::test_store};

    /// Checkpoints were planned without end, to empty segments of the map that none can empty.
    #[test]
    fn leaves_that_cannot_be_read_are_no_reason_for_checkpoints() {
        const EXTENTS: u64 = 50_000;
        const TOGETHER: u64 = 200;
        let store = test_store::store(32 << 20, Some(64 << 10));
        let write = |ops: &[Op<'_>]| store.writer.write_batch(ops, Stream::Data);
        for first in (0..EXTENTS).step_by(TOGETHER as usize) {
            let data = |number: u64| {
                let mut sector = [0; SECTOR];
                sector[..8].copy_from_slice(&(number + 1).to_le_bytes());
                (Lba(32 * number), sector)
            };
            let together: Vec<_> = (first..first + TOGETHER).map(data).collect();
            let ops = together.iter().map(|(lba, data)| Op::Write { lba: *lba, data });
            write(&ops.collect::<Vec<_>>()).unwrap();
        }
        store.checkpointer.checkpoint().unwrap();
        let leaves = store.map.read().snapshot().leaves(|_| true);
        let mut damaged = Vec::new();
        for leaf in &leaves {
            let place = leaf.place.unwrap();
            if damaged.last().is_none_or(|(segment, _)| *segment != place.segment) {
                damaged.push((place.segment, leaf.span.clone()));
                let block = store.volume.offset(place.segment, place.offset()) / 4096 * 4096 + 4096;
                store.volume.device().write_at(block, &[0xee; 4096]).unwrap();
            }
        }
        drop(leaves);
        assert!(damaged.len() >= 6, "{} segments", damaged.len());
        store.map.write().evict(0, u64::MAX);
        for number in (0..EXTENTS).filter(|number| number % 40 > 0) {
            let _ = write(&[Op::Trim { lba: Lba(32 * number), sectors: 32 }]);
        }
        (0..2).for_each(|_| store.checkpointer.checkpoint().unwrap());
        let (log, map) = (store.journal.lock(), store.map.read());
        let most = store.volume.space().map_segments_max(log.peak_weight());
        assert!(log.map_segments() > most, "{} of {most} segments", log.map_segments());
        assert_eq!(store.maintenance.map_surplus(&log, &map), (0, 0));
    }

    #[test]
    fn what_a_flush_brings_is_as_good_as_free_up_to_a_half() {
        let store = test_store::threaded(256 << 20);
        let mut log = store.journal.lock();
        let (low_water, ahead) = (store.maintenance.low_water(&log), store.maintenance.ahead(&log));
        assert!(ahead >= 8 && log.free().len() > low_water);
        let waited_from = low_water - store.maintenance.unpaid(&log);
        log.free_mut().truncate(waited_from);
        assert_eq!(
            (store.maintenance.lacking(&log), store.maintenance.is_due(&log)),
            (0, true),
            "work for the thread alone"
        );
        log.free_mut().truncate(waited_from - 3);
        let lacking = |log: &mut Log, pending_free| {
            log.set_pending_free(pending_free);
            (
                store.maintenance.lacking(log),
                store.maintenance.owed(log, AppendPoint::Log, 4096) == Owed::NOTHING,
            )
        };
        assert_eq!(
            [0, 2, 3, 9].map(|pending_free| lacking(&mut log, pending_free)),
            [(3, false), (1, false), (0, true), (0, true)]
        );
        log.free_mut().truncate(low_water - ahead);
        assert_eq!(lacking(&mut log, 10 * ahead).0, ahead - ahead / 2 - ahead / 4);
    }
}
