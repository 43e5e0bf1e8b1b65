//! The debt of writers to collection, and how they pay it: see `throttle`.

use std::time::Instant;

use super::parts::Maintenance;
use super::throttle;
use crate::{
    Work,
    log::{AppendPoint, Log},
    maintenance::throttle::{Owed, WAIT_MAX},
    mutant::{Rule, is_broken},
    sync::atomic::Ordering,
};

impl Maintenance {
    /// The debt that a batch of `bytes` at `point`, which is already in the log, costs its writer.
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

    /// Notes the debt of a batch of `bytes` at `point`, which is in the log. Returns the count up to which the writer
    /// must pay ([`Maintenance::pay`]), if collection is not near it yet.
    pub(crate) fn owe(&self, log: &mut Log, point: AppendPoint, bytes: u64) -> Option<u64> {
        log.move_limit();
        let owed = self.owed(log, point, bytes);
        // Changed only with `log` held.
        let debt = &self.debt;
        if owed == Owed::NOTHING && self.is_threaded {
            // The space owed for is free, perhaps through a flush. If the debt stayed, all writers would wait at once
            // when segments next run short.
            debt.store(debt.load(Ordering::Relaxed).min(log.counters().gc_bytes), Ordering::Relaxed);
            return None;
        }
        let target = owed.target(debt.load(Ordering::Relaxed), log.counters().gc_bytes);
        debt.store(target, Ordering::Relaxed);
        let is_paid = throttle::is_paid(target, log.counters().gc_bytes);
        ((!is_paid || !self.is_threaded) && !is_broken(Rule::WritersPay)).then_some(target)
    }

    /// Waits for or does the work until about `target` bytes are moved. Unpaid debt is left to the next writer. The
    /// batch is already accepted, so a failure here is not its error: the next call that needs the space gets it, and a
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

    /// Waits until the thread has moved up to `target`, but only while it is collecting, and at most [`WAIT_MAX`].
    fn wait_for_thread(&self, target: u64) {
        let mut log = self.journal.lock();
        let until = Instant::now() + WAIT_MAX;
        while self.owes(&log, target) && !log.is_poisoned() && self.is_collecting() {
            if !self.journal.wait_for_move(&mut log, until) {
                break;
            }
        }
    }

    /// Does what is due, piece by piece, until `target` is reached.
    fn work_off(&self, target: u64) {
        let goes_on = || {
            let log = self.journal.lock();
            self.owes(&log, target) || self.checkpoint_due(&log)
        };
        while goes_on() && matches!(self.step(Work::Due), Ok(true)) {}
    }
}
