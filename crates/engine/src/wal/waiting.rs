//! The threads that wait for the log, and which of them is woken.

use std::sync::Arc;

use super::Until;
use crate::{sync::signal::Signal, types::Lsn};

/// A thread that waits.
struct Waiter {
    lsn: Lsn,
    until: Until,
    woken: Arc<Signal>,
}

/// The threads that wait, in the order in which they came.
#[derive(Default)]
pub(super) struct Waiting {
    waiters: Vec<Waiter>,
}

impl Waiting {
    /// The signal that wakes the thread waiting for the log up to `lsn`.
    pub(super) fn join(&mut self, lsn: Lsn, until: Until) -> Arc<Signal> {
        let woken = Arc::new(Signal::default());
        self.waiters.push(Waiter { lsn, until, woken: Arc::clone(&woken) });
        woken
    }

    /// Takes out all threads for which `is_reached` holds, and the first of the others that `may_lead`, preferably one
    /// that waits for a sync, as a sync serves all. Wake them after releasing all locks: each then goes on by itself
    /// without waiting for another.
    pub(super) fn take(
        &mut self,
        is_reached: impl Fn(Lsn, Until) -> bool,
        may_lead: impl Fn(Lsn, Until) -> bool,
    ) -> Vec<Arc<Signal>> {
        let reached = |waiter: &Waiter| is_reached(waiter.lsn, waiter.until);
        let first = |until| {
            self.waiters
                .iter()
                .position(|waiter| waiter.until == until && !reached(waiter) && may_lead(waiter.lsn, until))
        };
        let leader = first(Until::Flushed).or_else(|| first(Until::Written));
        let mut number = 0..;
        let taken = self.waiters.extract_if(.., |waiter| number.next() == leader || reached(waiter));
        taken.map(|waiter| waiter.woken).collect()
    }

    /// Takes out all.
    pub(super) fn take_all(&mut self) -> Vec<Arc<Signal>> {
        self.take(|_, _| true, |_, _| false)
    }
}

/// Wakes the threads that were taken out.
pub(super) fn wake(woken: Vec<Arc<Signal>>) {
    woken.iter().for_each(|signal| signal.raise());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_are_done_are_woken_and_the_first_who_may_lead() {
        let mut waiting = Waiting::default();
        let (written, flushed) = (Until::Written, Until::Flushed);
        let all = [(5, flushed), (9, written), (3, written), (9, flushed), (8, flushed), (9, written)]
            .map(|(lsn, until)| waiting.join(Lsn(lsn), until));
        let is = |woken: &[Arc<Signal>], want: &[usize]| {
            woken.len() == want.len()
                && want.iter().zip(woken).all(|(at, signal)| Arc::ptr_eq(signal, &all[*at]))
        };
        assert!(is(&waiting.take(|_, _| false, |_, _| false), &[]));
        assert!(is(&waiting.take(|lsn, _| lsn <= Lsn(5), |_, _| true), &[0, 2, 3]), "one who syncs leads");
        assert!(is(&waiting.take(|_, _| false, |_, until| until == written), &[1]), "or who may");
        assert!(is(&waiting.take(|_, until| until == flushed, |_, _| false), &[4]));
        assert!(is(&waiting.take_all(), &[5]));
    }
}
