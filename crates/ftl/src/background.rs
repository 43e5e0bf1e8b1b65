//! What is done beside the batches, and when: collection and checkpoints.
//!
//! Deciding is separate from doing, and doing is one piece at a time, so that a thread, a simulation
//! and a writer that has run out of free segments can all drive it.

use std::sync::Arc;

use crate::{
    Error, Result, Work,
    addr::SegNo,
    log::Log,
    map::Map,
    space::{GC_SEGMENTS, MAP_EXTENT_BYTES, Space},
    store::Store,
    sync::{
        Condvar, Mutex,
        thread::{self, JoinHandle},
    },
};

/// A checkpoint is due after so many bytes of log, or [`LOG_PER_MAP`] times the map, if that is more.
const LOG_BYTES_MIN: u64 = 1 << 30;
const LOG_PER_MAP: u64 = 32;

/// Pieces of work that a writer does for each segment it takes, if they are due. A victim that is
/// three quarters live yields a quarter of a segment.
const HELP_STEPS: usize = 4;

/// Eighths of the memory for the map that changed leaves may take before they are written out, and
/// before writers do that themselves.
pub(crate) const DIRTY_SHARE: u64 = 4;
pub(crate) const DIRTY_SHARE_MAX: u64 = 6;

/// One piece of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Checkpoint,
    Collect(SegNo),
    /// Write changed leaves of the map out, so that they can be evicted.
    WriteBack,
    /// Put reusable segments on the free list.
    Free,
    /// Make the deaths of segments durable, and let the writes of sealed ones reach the device, so
    /// that they can be collected.
    Flush,
}

impl Store {
    /// See [`crate::Ftl::step`].
    pub(crate) fn step(&self, work: Work) -> Result<bool> {
        self.must_write()?;
        let _turn = self.maintenance.lock();
        let plan = {
            let log = self.log.lock();
            self.check_poison(&log)?;
            let map = self.map.read();
            match work {
                Work::Due => self.due(&log, &map),
                Work::Checkpoint => Some(Plan::Checkpoint),
                Work::Gc => self.victim(&log, &map).map(Plan::Collect),
            }
        };
        let Some(plan) = plan else { return Ok(false) };
        self.carry_out(plan)?;
        Ok(true)
    }

    /// Makes room for a batch that misses free segments.
    ///
    /// # Errors
    /// `Full` when nothing can be done.
    pub(crate) fn make_room(&self, missing: impl Fn(&Log, &Map) -> usize) -> Result<()> {
        let _turn = self.maintenance.lock();
        loop {
            let plan = {
                let log = self.log.lock();
                self.check_poison(&log)?;
                let map = self.map.read();
                let missing = missing(&log, &map);
                if missing == 0 {
                    return Ok(());
                }
                let target = missing + self.ahead();
                let plan = self.plan(&log, &map, target);
                // A reader may pin what could be freed. It waits for nobody, so it will be gone soon.
                let plan = plan.or((self.waiting(&log, &map).reader > 0).then_some(Plan::Flush));
                plan.ok_or_else(|| self.full(&log, &map))?
            };
            self.carry_out(plan)?;
        }
    }

    /// What a writer does of the work that is due before it takes `fresh` segments: about as much as
    /// wins them back. So the free ones that collection needs to move a round of victims, from one
    /// checkpoint to the next, are not taken by writers that are faster than the thread.
    pub(crate) fn help(&self, fresh: usize) -> Result<()> {
        for _ in 0..fresh * HELP_STEPS {
            match self.step(Work::Due) {
                Ok(true) => {}
                // Whether the room suffices without, admission says.
                Ok(false) | Err(Error::Full { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Brings changed leaves of the map below what they may take of the memory, if they are above.
    pub(crate) fn limit_dirty_leaves(&self) -> Result<()> {
        if !self.is_write_back_due(&self.map.read(), DIRTY_SHARE_MAX) {
            return Ok(());
        }
        let _turn = self.maintenance.lock();
        while self.is_write_back_due(&self.map.read(), DIRTY_SHARE_MAX) {
            match self.write_back() {
                // Memory is exceeded rather than a batch refused.
                Err(Error::Full { .. }) => break,
                result => result?,
            }
        }
        Ok(())
    }

    fn carry_out(&self, plan: Plan) -> Result<()> {
        match plan {
            Plan::Checkpoint => self.checkpoint_in_turn(),
            Plan::Collect(victim) => self.collect(victim),
            Plan::WriteBack => self.write_back(),
            Plan::Flush => self.flush_and_free(),
            Plan::Free => {
                self.free_reusable();
                Ok(())
            }
        }
    }

    /// What brings `missing` more free segments nearer, if anything does.
    fn plan(&self, log: &Log, map: &Map, missing: usize) -> Option<Plan> {
        let waiting = self.waiting(log, map);
        if waiting.ready > 0 {
            return Some(Plan::Free);
        }
        if waiting.flush >= missing.min(self.ahead()) {
            return Some(Plan::Flush);
        }
        let gain = waiting.checkpoint + self.checkpoint_shrinks_by(log);
        if gain >= missing.max(self.pace()) {
            return Some(Plan::Checkpoint);
        }
        if let Some(victim) = self.victim(log, map) {
            return Some(Plan::Collect(victim));
        }
        if waiting.flush > 0 || log.sealed_tails() {
            return Some(Plan::Flush);
        }
        (gain > 0).then_some(Plan::Checkpoint)
    }

    /// Free segments beyond the reserves before work is due, and dead ones for which a flush is due. All
    /// of them are room that garbage cannot use.
    fn ahead(&self) -> usize {
        (self.space.segments / 160).max(2)
    }

    /// Segments that a checkpoint should free, so that its own bytes are few beside theirs. More
    /// would leave so much less room for garbage that collection costs more than it saves.
    fn pace(&self) -> usize {
        (self.space.segments / 64).max(2)
    }

    /// Segments of the map that a checkpoint now would free.
    fn checkpoint_shrinks_by(&self, log: &Log) -> usize {
        log.map_segments.saturating_sub(self.space.map_segments_max(log.peak.weight()))
    }

    /// Free segments below which work is due.
    fn low_water(&self, log: &Log) -> usize {
        let reserve = self.checkpoint_reserve(log, log.peak.weight()) + GC_SEGMENTS;
        reserve + self.ahead()
    }

    /// Whether [`Store::due`] may find something; cheap.
    pub(crate) fn is_due(&self, log: &Log) -> bool {
        log.free.len() < self.low_water(log) || self.checkpoint_due(log)
    }

    fn checkpoint_due(&self, log: &Log) -> bool {
        let map_bytes = log.peak.weight() * MAP_EXTENT_BYTES as u64;
        log.bytes_since_checkpoint >= LOG_BYTES_MIN.max(map_bytes * LOG_PER_MAP)
    }

    fn due(&self, log: &Log, map: &Map) -> Option<Plan> {
        if self.is_write_back_due(map, DIRTY_SHARE) {
            return Some(Plan::WriteBack);
        }
        if self.checkpoint_due(log) {
            return Some(Plan::Checkpoint);
        }
        let missing = self.low_water(log).saturating_sub(log.free.len());
        let plan = (missing > 0).then(|| self.plan(log, map, missing))??;
        // Nearly full segments are left to writers that really need them: moving them ahead of time
        // costs more wear than it saves waiting.
        match plan {
            Plan::Collect(victim) if !self.is_worth_the_wear(map, victim) => {
                self.plan_without_moving(log, map)
            }
            plan => Some(plan),
        }
    }

    fn plan_without_moving(&self, log: &Log, map: &Map) -> Option<Plan> {
        let waiting = self.waiting(log, map);
        match waiting.flush {
            0 => (waiting.checkpoint + self.checkpoint_shrinks_by(log) > 0).then_some(Plan::Checkpoint),
            _ => Some(Plan::Flush),
        }
    }

    fn is_worth_the_wear(&self, map: &Map, victim: SegNo) -> bool {
        Space::moved_bytes(map.live(victim)) <= (self.space.segment_bytes / 8 * 7) as u64
    }
}

/// Wakes and ends the background thread.
#[derive(Default)]
pub(crate) struct Background {
    signal: Mutex<Signal>,
    changed: Condvar,
}

#[derive(Default)]
struct Signal {
    kicked: bool,
    stopped: bool,
}

impl Background {
    /// Starts the thread; [`Background::stop`] ends it.
    pub(crate) fn spawn(store: &Arc<Store>) -> JoinHandle<()> {
        let store = store.clone();
        thread::Builder::new()
            .name("ftl-background".into())
            .spawn(move || run(&store))
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

    fn is_stopped(&self) -> bool {
        self.signal.lock().stopped
    }
}

fn run(store: &Store) {
    while store.background.wait() {
        loop {
            match store.step(Work::Due) {
                Ok(true) if !store.background.is_stopped() => {}
                Ok(_) => break,
                // The store is poisoned, which every later call reports.
                Err(Error::Device(_) | Error::Poisoned { .. }) => return,
                // Whoever needs the room meets the same error and reports it.
                Err(_) => break,
            }
        }
    }
}
