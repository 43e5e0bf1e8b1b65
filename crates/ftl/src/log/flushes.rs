//! Which flushes are led, and which threads wait for one to end. See `flush`.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    Seq,
    mutant::{Rule, is_broken},
    sync::Condvar,
};

/// Flushes of the device that are led at a time. More at a time would make each cover less.
pub(super) const LED_MAX: usize = 2;

/// Which flushes are led, and which threads wait for them to end.
pub(super) struct Flushes {
    /// How many are led at a time.
    led_max: usize,
    /// The last batch that each covers, in the order in which they began.
    led: VecDeque<Seq>,
    /// Flushes that have ended.
    ended: u64,
    waiting: Vec<Waiting>,
    /// An older flush has ended, or failed.
    turn: Arc<Condvar>,
}

struct Waiting {
    /// The batch that must be durable; none for a thread that leads a flush of its own in any case.
    target: Option<Seq>,
    woken: Arc<Condvar>,
}

impl Default for Flushes {
    fn default() -> Flushes {
        Flushes::new(LED_MAX)
    }
}

impl Flushes {
    /// None is led, and `led_max` are at a time.
    pub(super) fn new(led_max: usize) -> Flushes {
        Flushes { led_max, led: VecDeque::new(), ended: 0, waiting: Vec::new(), turn: Arc::default() }
    }

    /// Whether the caller must wait for `target` rather than lead a flush.
    pub(super) fn must_wait(&self, target: Option<Seq>) -> bool {
        self.led.len() >= self.led_max || self.is_led_for(target)
    }

    fn is_led_for(&self, target: Option<Seq>) -> bool {
        target.is_some_and(|target| self.led.back().is_some_and(|covered| *covered >= target))
    }

    /// Begins a flush up to `batches`; returns its number.
    pub(super) fn begin(&mut self, batches: Seq) -> u64 {
        assert!(self.led.back().is_none_or(|covered| *covered <= batches), "flushes began out of order");
        self.led.push_back(batches);
        self.ended + self.led.len() as u64 - 1
    }

    /// Whether all flushes before `number` have ended.
    pub(super) fn is_next(&self, number: u64) -> bool {
        self.ended == number
    }

    /// The oldest flush has ended and all batches up to `flushed` are durable: wakes the threads that wait for those,
    /// and the first of the threads that no flush covers.
    pub(super) fn end(&mut self, flushed: Seq) {
        self.led.pop_front().expect("it was begun");
        self.ended += 1;
        self.turn.notify_all();
        self.waiting.retain(|waiting| {
            let is_covered = waiting.target.is_some_and(|target| target <= flushed);
            if is_covered {
                waiting.woken.notify_one();
            }
            !is_covered
        });
        self.wake_leader();
    }

    /// The calling thread was woken, and will neither lead a flush here nor wait here again: wakes the first of the
    /// threads that no flush covers, unless a flush that is led will.
    pub(super) fn pass_on(&mut self) {
        if self.led.is_empty() && !is_broken(Rule::WakeUpsPassedOn) {
            self.wake_leader();
        }
    }

    fn wake_leader(&mut self) {
        let leads = |waiting: &Waiting| !self.is_led_for(waiting.target);
        if let Some(first) = self.waiting.iter().position(leads) {
            self.waiting.remove(first).woken.notify_one();
        }
    }

    /// Registers the calling thread as waiting for `target`. Returns the condition variable that wakes it when it must
    /// look again whether `target` is durable, or must lead a flush itself.
    pub(super) fn wait(&mut self, target: Option<Seq>) -> Arc<Condvar> {
        let woken = Arc::new(Condvar::new());
        self.waiting.push(Waiting { target, woken: Arc::clone(&woken) });
        woken
    }

    /// The condition variable that wakes the leaders waiting for older flushes to end.
    pub(super) fn turn(&self) -> Arc<Condvar> {
        Arc::clone(&self.turn)
    }

    pub(super) fn wake_all(&mut self) {
        self.turn.notify_all();
        for waiting in self.waiting.drain(..) {
            waiting.woken.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(targets: &[Option<u64>]) -> Flushes {
        let mut flushes = Flushes::default();
        for target in targets {
            flushes.waiting.push(Waiting { target: target.map(Seq), woken: Arc::default() });
        }
        flushes
    }

    fn left(flushes: &mut Flushes, flushed: u64) -> Vec<Option<Seq>> {
        flushes.end(Seq(flushed));
        flushes.waiting.iter().map(|waiting| waiting.target).collect()
    }

    /// Invariant 3.
    #[test]
    fn an_ended_flush_wakes_whom_it_covers_and_one_more() {
        let mut flushes = waiting(&[Some(5), Some(9), None, Some(3), Some(7)]);
        for (flushed, then) in
            [(5, vec![None, Some(Seq(7))]), (6, vec![Some(Seq(7))]), (6, vec![]), (9, vec![])]
        {
            flushes.begin(Seq(flushed));
            assert_eq!(left(&mut flushes, flushed), then, "after a flush up to {flushed}");
        }
    }

    /// A thread that a running flush covers sleeps on; one that no flush covers leads.
    #[test]
    fn nobody_is_woken_for_what_another_flush_covers() {
        let mut flushes = waiting(&[]);
        assert!(!flushes.must_wait(Some(Seq(1))));
        let first = flushes.begin(Seq(5));
        assert!(
            flushes.must_wait(Some(Seq(5))) && !flushes.must_wait(Some(Seq(6))) && !flushes.must_wait(None)
        );
        let second = flushes.begin(Seq(7));
        assert!(flushes.must_wait(Some(Seq(9))) && flushes.must_wait(None));
        assert!(flushes.is_next(first) && !flushes.is_next(second), "invariant 4");
        flushes.waiting = waiting(&[Some(6), Some(5), Some(9), Some(8), None]).waiting;
        assert_eq!(left(&mut flushes, 5), [Some(Seq(6)), Some(Seq(8)), None], "5 is covered, 9 leads");
        assert!(flushes.is_next(second));
        flushes.begin(Seq(9));
        assert_eq!(left(&mut flushes, 7), [Some(Seq(8))], "6 is covered, 8 is led for, none leads");
    }
}
