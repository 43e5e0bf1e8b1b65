//! Readers of chains that no longer hold the latch of the leaf.

use crate::sync::{Condvar, Mutex};
use std::collections::BTreeSet;

/// Numbers the readers of chains, so that a thread that frees pages can wait for the earlier ones.
#[derive(Default)]
pub(crate) struct Readers {
    tickets: Mutex<Tickets>,
    left: Condvar,
}

#[derive(Default)]
struct Tickets {
    next: u64,
    held: BTreeSet<u64>,
}

/// A reader's ticket: what it saw stays until it is dropped.
pub(crate) struct Ticket<'a> {
    readers: &'a Readers,
    number: u64,
}

impl Readers {
    /// Registers a reader. The caller still holds the latch of the leaf that led to the chain.
    pub(crate) fn enter(&self) -> Ticket<'_> {
        let mut tickets = self.tickets.lock();
        let number = tickets.next;
        tickets.next += 1;
        tickets.held.insert(number);
        Ticket { readers: self, number }
    }

    /// Waits until all readers registered so far have left. The caller holds no latch and no ticket.
    pub(crate) fn wait_for_earlier(&self) {
        let mut tickets = self.tickets.lock();
        let bound = tickets.next;
        while tickets.held.first().is_some_and(|oldest| *oldest < bound) {
            self.left.wait(&mut tickets);
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.readers.tickets.lock().held.remove(&self.number);
        self.readers.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn only_earlier_readers_are_waited_for() {
        let readers = Readers::default();
        let early = readers.enter();
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let readers = &readers;
            scope.spawn(move || {
                readers.wait_for_earlier();
                sender.send(()).expect("receiver lives");
            });
            // Whether this one comes before or after the wait begins, it leaves.
            drop(readers.enter());
            assert!(receiver.try_recv().is_err(), "the early reader is still there");
            drop(early);
            receiver.recv().expect("the wait ends");
        });
        let _late = readers.enter();
        drop(readers.enter());
        assert_eq!(readers.tickets.lock().held.len(), 1);
    }
}
