//! What is done beside the batches, and when: collection and checkpoints.
//!
//! Deciding is separate from doing, and doing is one piece at a time, so that a thread, a simulation
//! and a writer that has run out of free segments can all drive it.
//!
//! Where there is a thread, it collects, and writers wait for it in small portions (`throttle`): the fewer
//! segments are free, the more must have been moved before a write returns. So they are slowed down to what
//! collection wins back, and hardly ever come to the point where one has to wait for a whole segment. Where
//! there is no thread, a writer moves the same share itself, piece by piece.

mod grow;
pub(crate) mod host;
pub(crate) mod throttle;

use std::{sync::Arc, time::Instant};

use crate::{
    Error, Result, Work,
    addr::SegNo,
    checkpoint::{Checkpointer, Rewrite},
    gc::{Collecting, Collector},
    log::reserve::Claim,
    log::{AppendPoint, Journal, Log},
    maintenance::{
        host::Host,
        throttle::{Owed, WAIT_MAX},
    },
    map::{Map, SharedMap},
    media::Volume,
    paging::{Base, DIRTY_SHARE, DIRTY_SHARE_MAX, PagedMap},
    reuse::Reuse,
    space::{MAP_EXTENT_BYTES, Space},
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
        thread::{self, JoinHandle},
    },
};

/// A checkpoint is due after so many bytes of log, or [`LOG_PER_MAP`] times the map, if that is more.
const LOG_BYTES_MIN: u64 = 1 << 30;
const LOG_PER_MAP: u64 = 32;

/// Dead segments for which a flush is worth it even where fewer are kept ahead than twice as many.
const FLUSHED_TOGETHER: usize = 8;

/// One piece of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Checkpoint,
    Collect(SegNo),
    /// Write changed leaves of the map out, so that they can be evicted.
    WriteBack,
    /// Put reusable segments on the free list.
    Free,
    /// Write epitaphs for dead segments, so that they need not wait for a checkpoint.
    Epitaphs,
    /// Have untouched segments ready for use.
    MakeReady,
    /// Give used segments back to the host.
    Release,
    /// Make the deaths of segments durable, and let the writes of sealed ones reach the device, so
    /// that they can be collected.
    Flush,
}

/// Does what is due: collection, checkpoints and the like.
pub(crate) struct Maintenance {
    volume: Arc<Volume>,
    map: Arc<SharedMap>,
    journal: Arc<Journal>,
    pages: Arc<PagedMap>,
    reuse: Arc<Reuse>,
    checkpointer: Arc<Checkpointer>,
    collector: Arc<Collector>,
    host: Host,
    /// A thread does it; see [`crate::Options::background`].
    is_threaded: bool,
    signal: Mutex<Signal>,
    changed: Condvar,
    activity: Mutex<Activity>,
    /// Bytes that collection shall have moved since open; see `throttle`.
    debt: AtomicU64,
}

impl Maintenance {
    pub(crate) fn new(
        base: Base,
        reuse: Arc<Reuse>,
        checkpointer: Arc<Checkpointer>,
        collector: Arc<Collector>,
        is_threaded: bool,
    ) -> Maintenance {
        let Base { volume, map, journal, pages } = base;
        Maintenance {
            volume,
            map,
            journal,
            pages,
            reuse,
            checkpointer,
            collector,
            host: Host::default(),
            is_threaded,
            signal: Mutex::default(),
            changed: Condvar::default(),
            activity: Mutex::default(),
            debt: AtomicU64::new(0),
        }
    }

    /// See [`crate::Ftl::step`].
    pub(crate) fn step(&self, work: Work) -> Result<bool> {
        self.volume.must_write()?;
        let _turn = self.journal.turn();
        let mut collecting = self.collector.collecting();
        let plan = {
            let mut log = self.journal.lock();
            self.journal.check_poison(&log)?;
            let map = self.map.read();
            match work {
                Work::Due => self.due(&mut log, &map, &mut collecting),
                Work::Checkpoint => Some(Plan::Checkpoint),
                Work::Gc => self.collector.victim(&log, &map, &mut collecting).map(Plan::Collect),
            }
        };
        let Some(plan) = plan else { return Ok(false) };
        self.carry_out(plan, &mut collecting)?;
        Ok(true)
    }

    /// Makes room for a batch that misses free segments.
    ///
    /// # Errors
    /// `Full` when nothing can be done.
    pub(crate) fn make_room(&self, missing: impl Fn(&Log, &Map) -> usize) -> Result<()> {
        let _turn = self.journal.turn();
        let mut collecting = self.collector.collecting();
        loop {
            let plan = {
                let mut log = self.journal.lock();
                self.journal.check_poison(&log)?;
                let map = self.map.read();
                let missing = missing(&log, &map);
                if missing == 0 {
                    return Ok(());
                }
                let target = missing + self.ahead(&log);
                let plan = self.plan(&mut log, &map, &mut collecting, target);
                // A reader may pin what could be freed. It waits for nobody, so it will be gone soon.
                let plan = plan.or((self.reuse.waiting(&log, &map).reader > 0).then_some(Plan::Flush));
                plan.ok_or_else(|| self.journal.full(&log, &map))?
            };
            self.carry_out(plan, &mut collecting)?;
        }
    }

    /// Brings changed leaves of the map below what they may take of the memory, if they are above.
    pub(crate) fn limit_dirty_leaves(&self) -> Result<()> {
        if !self.pages.is_write_back_due(&self.map.read(), DIRTY_SHARE_MAX) {
            return Ok(());
        }
        let _turn = self.journal.turn();
        while self.pages.is_write_back_due(&self.map.read(), DIRTY_SHARE_MAX) {
            match self.checkpointer.write_back() {
                // Memory is exceeded rather than a batch refused.
                Err(Error::Full { .. }) => break,
                result => result?,
            }
        }
        Ok(())
    }

    /// What a batch of `bytes` at `point` costs its writer, the batch being in the log.
    fn owed(&self, log: &Log, point: AppendPoint, bytes: u64) -> Owed {
        let missing = self.lacking(log);
        if missing == 0 {
            return Owed::NOTHING;
        }
        let segment_bytes = self.volume.space().segment_bytes as u64;
        let lacking = (missing as u64 + 1) * segment_bytes - log.room(point) as u64;
        let kept = self.ahead(log) - self.unpaid(log);
        Owed::new(bytes, lacking, (kept as u64 + 1) * segment_bytes)
    }

    /// Notes what a batch of `bytes` at `point`, which is in the log, owes. Returns what is to be paid up to
    /// ([`Maintenance::pay`]), if that is not near yet.
    pub(crate) fn owe(&self, log: &mut Log, point: AppendPoint, bytes: u64) -> Option<u64> {
        log.move_limit();
        let owed = self.owed(log, point, bytes);
        // Changed only with `log` held.
        let debt = &self.debt;
        if owed == Owed::NOTHING && self.is_threaded {
            // What was owed is there, by a flush perhaps: or all writers would wait at once when the next lacks.
            debt.store(debt.load(Ordering::Relaxed).min(log.counters().gc_bytes), Ordering::Relaxed);
            return None;
        }
        let target = owed.target(debt.load(Ordering::Relaxed), log.counters().gc_bytes);
        debt.store(target, Ordering::Relaxed);
        let is_paid = throttle::is_paid(target, log.counters().gc_bytes);
        (!is_paid || !self.is_threaded).then_some(target)
    }

    /// Sees to it that as much is moved as `target`, or near it. What is not paid is left to the next writer.
    /// The batch is accepted, so what fails here is not its error: whoever needs the room meets it, and a
    /// poisoned maintenance tells every later call.
    pub(crate) fn pay(&self, target: u64) {
        match self.is_threaded {
            true => self.wait_for_thread(target),
            false => self.work_off(target),
        }
    }

    fn owes(&self, log: &Log, target: u64) -> bool {
        !throttle::is_paid(target, log.counters().gc_bytes) && self.lacking(log) > 0
    }

    /// Waits until the thread has moved up to `target`, but not longer than collection goes on, not at all
    /// while it does something else, and not for long.
    fn wait_for_thread(&self, target: u64) {
        let mut log = self.journal.lock();
        let until = Instant::now() + WAIT_MAX;
        while self.owes(&log, target) && !log.is_poisoned() && self.is_collecting() {
            if !self.journal.wait_for_move(&mut log, until) {
                break;
            }
        }
    }

    /// Does what is due, piece by piece, until as much is moved.
    fn work_off(&self, target: u64) {
        let goes_on = || {
            let log = self.journal.lock();
            self.owes(&log, target) || self.checkpoint_due(&log)
        };
        while goes_on() && matches!(self.step(Work::Due), Ok(true)) {}
    }

    /// Says what is going on, and wakes those who wait for collection when it is something else.
    fn set_activity(&self, activity: Activity) {
        let before = std::mem::replace(&mut *self.activity.lock(), activity);
        if before == Activity::Collecting && activity != before {
            self.journal.notify_moved();
        }
    }

    fn carry_out(&self, plan: Plan, collecting: &mut Collecting) -> Result<()> {
        self.set_activity(match plan {
            Plan::Collect(_) => Activity::Collecting,
            _ => Activity::Other,
        });
        match plan {
            Plan::Checkpoint => self.checkpointer.checkpoint_in_turn(Rewrite::Sparse),
            Plan::Collect(victim) => self.collector.collect(victim, collecting),
            Plan::WriteBack => self.checkpointer.write_back(),
            Plan::Flush => self.reuse.flush_and_free(),
            Plan::Epitaphs => self.checkpointer.tell_and_free(),
            Plan::Free => {
                self.reuse.free_reusable();
                Ok(())
            }
            Plan::MakeReady => self.make_ready(),
            Plan::Release => {
                self.release(Maintenance::to_release);
                Ok(())
            }
        }
    }

    /// What brings `missing` more free segments nearer, if anything does.
    fn plan(&self, log: &mut Log, map: &Map, collecting: &mut Collecting, missing: usize) -> Option<Plan> {
        if log.freed_by_a_flush(map.weight(0)) > 0 {
            return Some(Plan::Flush);
        }
        // A flush waits for all that is on its way, so it shall be worth it; but who needs much shall not wait
        // until it is there at once.
        let ahead = self.ahead(log);
        let worth_a_flush = missing.min(ahead).min(FLUSHED_TOGETHER).max(ahead / 2);
        if log.coming() < worth_a_flush
            && let Some(victim) = self.collector.chosen_victim(log, map, collecting)
        {
            return Some(Plan::Collect(victim));
        }
        let waiting = self.reuse.waiting(log, map);
        log.set_coming(waiting.ready + waiting.flush);
        if waiting.ready > 0 {
            return Some(Plan::Free);
        }
        if waiting.flush >= worth_a_flush {
            return Some(Plan::Flush);
        }
        if waiting.checkpoint >= self.worth_epitaphs(log) && self.may_write_epitaphs(log) {
            return Some(Plan::Epitaphs);
        }
        let gain = waiting.checkpoint + self.checkpoint_shrinks_by(log);
        if gain >= missing.max(self.pace(log)) {
            return Some(Plan::Checkpoint);
        }
        if let Some(victim) = self.collector.victim(log, map, collecting) {
            return Some(Plan::Collect(victim));
        }
        if waiting.flush > 0 || log.sealed_tails() {
            return Some(Plan::Flush);
        }
        self.plan_for_young(log, waiting.checkpoint)
    }

    /// What makes `waiting` dead segments free that no checkpoint covers, or those of the map that are too many.
    fn plan_for_young(&self, log: &Log, waiting: usize) -> Option<Plan> {
        if waiting > 0 && self.may_write_epitaphs(log) {
            return Some(Plan::Epitaphs);
        }
        (waiting + self.checkpoint_shrinks_by(log) > 0).then_some(Plan::Checkpoint)
    }

    /// Free segments beyond the reserves before work is due, and dead ones for which a flush is due. All
    /// of them are room that garbage cannot use.
    pub(crate) fn ahead(&self, log: &Log) -> usize {
        log.wished_space().ahead(log.live_cost())
    }

    /// Segments that a checkpoint should free, so that its own bytes are few beside theirs. More
    /// would leave so much less room for garbage that collection costs more than it saves.
    fn pace(&self, log: &Log) -> usize {
        (log.wished_segments() / 128).max(2)
    }

    /// Dead segments for which epitaphs are written: their bytes are few however many there are, so it is only for
    /// the two syncs that some are waited for.
    fn worth_epitaphs(&self, log: &Log) -> usize {
        (log.wished_segments() / 512).max(2)
    }

    /// Whether epitaphs are cheaper than a checkpoint: until they have taken half of what one writes that finds
    /// most leaves changed.
    fn may_write_epitaphs(&self, log: &Log) -> bool {
        let map_bytes = log.peak_weight() * MAP_EXTENT_BYTES as u64 / 2;
        log.checkpoints().epitaph_bytes() < (map_bytes / 2).max(self.volume.space().segment_bytes as u64 / 2)
    }

    /// Segments of the map that a checkpoint now would free.
    fn checkpoint_shrinks_by(&self, log: &Log) -> usize {
        log.map_segments().saturating_sub(self.volume.space().map_segments_max(log.peak_weight()))
    }

    /// Free segments below which work is due.
    fn low_water(&self, log: &Log) -> usize {
        log.left_by(Claim::Fresh) + self.ahead(log)
    }

    /// Free segments that writers shall see to. Those that a flush brings count as free, but not as more than half
    /// of what is kept: before all is taken, a writer waits.
    fn lacking(&self, log: &Log) -> usize {
        let coming = log.coming().min(self.ahead(log) / 2);
        self.low_water(log).saturating_sub(log.free_within(log.limit()) + coming + self.unpaid(log))
    }

    /// Segments of those kept ahead that may lack before anybody waits: what is written while a flush or a checkpoint
    /// keeps the thread from collecting, which wins it back.
    fn unpaid(&self, log: &Log) -> usize {
        self.ahead(log) / 4
    }

    /// Whether [`Maintenance::due`] may find something; cheap.
    pub(crate) fn is_due(&self, log: &Log) -> bool {
        self.is_short(log)
            || self.checkpoint_due(log)
            || self.to_make_ready(log) > 0
            || self.to_release(log) > 0
    }

    fn is_short(&self, log: &Log) -> bool {
        log.free_within(log.wished_segments()) < self.low_water(log)
    }

    /// What there is to do about the room that the host has for the maintenance.
    fn plan_for_host(&self, log: &Log) -> Option<Plan> {
        if self.to_release(log) > 0 {
            return Some(Plan::Release);
        }
        (self.to_make_ready(log) > 0).then_some(Plan::MakeReady)
    }

    fn checkpoint_due(&self, log: &Log) -> bool {
        let map_bytes = log.peak_weight() * MAP_EXTENT_BYTES as u64;
        log.checkpoints().log_bytes() >= LOG_BYTES_MIN.max(map_bytes * LOG_PER_MAP)
    }

    fn due(&self, log: &mut Log, map: &Map, collecting: &mut Collecting) -> Option<Plan> {
        if self.pages.is_write_back_due(map, DIRTY_SHARE) {
            return Some(Plan::WriteBack);
        }
        if self.checkpoint_due(log) {
            return Some(Plan::Checkpoint);
        }
        let missing = self.low_water(log).saturating_sub(log.free_within(log.wished_segments()));
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
            0 => self.plan_for_young(log, waiting.checkpoint),
            _ => Some(Plan::Flush),
        }
    }

    fn is_worth_the_wear(&self, map: &Map, victim: SegNo) -> bool {
        Space::moved_bytes(map.live(victim)) <= (self.volume.space().segment_bytes / 8 * 7) as u64
    }
}

/// What whoever holds `maintenance` is doing, or did last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Activity {
    #[default]
    Other,
    Collecting,
}

#[derive(Default)]
struct Signal {
    kicked: bool,
    stopped: bool,
}

impl Maintenance {
    /// Starts the thread; [`Maintenance::stop`] ends it.
    pub(crate) fn spawn(self: &Arc<Self>) -> JoinHandle<()> {
        let maintenance = Arc::clone(self);
        thread::Builder::new()
            .name("ftl-background".into())
            .spawn(move || run(&maintenance))
            .expect("the system has no thread left")
    }

    /// Work may be due.
    pub(crate) fn kick(&self) {
        self.signal.lock().kicked = true;
        self.changed.notify_one();
    }

    /// Ends the thread after its current piece of work.
    pub(crate) fn stop(&self) {
        self.signal.lock().stopped = true;
        self.changed.notify_one();
    }

    /// Waits for a kick; false when it is time to end.
    fn wait(&self) -> bool {
        let mut signal = self.signal.lock();
        while !signal.kicked && !signal.stopped {
            self.changed.wait(&mut signal);
        }
        signal.kicked = false;
        !signal.stopped
    }

    fn is_collecting(&self) -> bool {
        *self.activity.lock() == Activity::Collecting
    }

    fn is_stopped(&self) -> bool {
        self.signal.lock().stopped
    }
}

fn run(maintenance: &Maintenance) {
    while maintenance.wait() {
        let result = loop {
            match maintenance.step(Work::Due) {
                Ok(true) if !maintenance.is_stopped() => {}
                result => break result,
            }
        };
        // Nobody shall wait for a thread that has nothing to do, or cannot do it.
        maintenance.set_activity(Activity::Other);
        // A poisoned maintenance tells every later call. Other errors are met by whoever needs the room, who
        // reports them.
        if result.is_err() && maintenance.journal.lock().is_poisoned() {
            return;
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use super::*;
    use crate::store::test_store;

    #[test]
    fn what_a_flush_brings_is_as_good_as_free_up_to_a_half() {
        let store = test_store::store(256 << 20, None);
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
        let lacking = |log: &mut Log, coming| {
            log.set_coming(coming);
            (
                store.maintenance.lacking(log),
                store.maintenance.owed(log, AppendPoint::Log, 4096) == Owed::NOTHING,
            )
        };
        assert_eq!(
            [0, 2, 3, 9].map(|coming| lacking(&mut log, coming)),
            [(3, false), (1, false), (0, true), (0, true)]
        );
        log.free_mut().truncate(low_water - ahead);
        assert_eq!(lacking(&mut log, 10 * ahead).0, ahead - ahead / 2 - ahead / 4);
    }
}
