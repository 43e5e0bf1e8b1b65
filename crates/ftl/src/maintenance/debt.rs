//! What writers owe to collection, and how they pay it: see `throttle`.

use std::time::Instant;

use super::throttle;
use super::work::Maintenance;
use crate::{
    Work,
    log::{AppendPoint, Log},
    maintenance::throttle::{Owed, WAIT_MAX},
    sync::atomic::Ordering,
};

impl Maintenance {
    /// What a batch of `bytes` at `point` costs its writer, the batch being in the log.
    pub(super) fn owed(&self, log: &Log, point: AppendPoint, bytes: u64) -> Owed {
        let missing = self.lacking(log);
        if missing == 0 {
            return Owed::NOTHING;
        }
        let segment_bytes = self.volume.space().segment_bytes as u64;
        let lacking = (missing as u64 + 1) * segment_bytes - log.bytes_left(point) as u64;
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
    /// The batch is accepted, so what fails here is not its error: whoever needs the space meets it, and a
    /// poisoned store reports it to every later call.
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
}
