//! A panic: an invariant did not hold, and it is unknown how much of a change was made.
//!
//! A thread that changes the log or the map holds a [`Sentinel`]. It stops the store when the thread panics: what was
//! flushed is on the device, and opening the store again is recovery from a power cut at that instant.
//!
//! Invariants:
//! 1. A sentinel is made before the locks are taken under which something changes, and so dropped after them.
//! 2. A store that was stopped begins no write, and every call that would read or change it fails: space that was
//!    reserved may never be filled, and the map may be between two states.
//! 3. A thread that waits for another checks again when the store stops. So no thread waits for one that is gone.

use std::thread;

use crate::{
    mutant::{Rule, is_broken},
    sync::MutexGuard,
};

pub(super) const REASON: &str = "a thread panicked while it changed the store";

/// Calls `stop` when it is dropped by a panic that began after it was made.
pub(crate) struct Sentinel<F: Fn()> {
    stop: F,
    was_panicking: bool,
}

impl<F: Fn()> Sentinel<F> {
    pub(crate) fn new(stop: F) -> Sentinel<F> {
        Sentinel { stop, was_panicking: thread::panicking() }
    }
}

impl<F: Fn()> Drop for Sentinel<F> {
    fn drop(&mut self) {
        // A scheduled thread that panics ends the test, and its locks cannot be taken again.
        let stops = !cfg!(feature = "shuttle") && !is_broken(Rule::PanicsStop);
        if stops && thread::panicking() && !self.was_panicking {
            (self.stop)();
        }
    }
}

/// The right to do a piece of maintenance. A panic with it stops the store.
pub(crate) struct Turn<'a, F: Fn()> {
    // Released first, by invariant 1.
    pub(super) _lock: MutexGuard<'a, ()>,
    pub(super) _sentinel: Sentinel<F>,
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use std::{
        ops::ControlFlow,
        panic::{AssertUnwindSafe, catch_unwind},
        sync::{Arc, mpsc},
        thread,
        time::Duration,
    };

    use crate::{
        CheckDepth, Error, Lba, Op, Result, Stream,
        log::State,
        store::test_store::{self, Parts},
    };

    const PATIENCE: Duration = Duration::from_secs(20);

    /// The next thread that opens a segment panics in the middle of a batch.
    fn spoil(store: &Parts) {
        let mut log = store.journal.lock();
        let free: Vec<_> = log.in_state(State::Free).collect();
        free.into_iter().for_each(|segment| log.segment_mut(segment).state = State::Sealed);
    }

    #[test]
    fn a_panic_within_a_batch_lets_nobody_wait() {
        let store = Arc::new(test_store::store(64 << 20, Some(1 << 20)));
        let data = vec![7; 5 * 16384];
        let write = |store: &Parts, number: u64| {
            store.writer.write_batch(&[Op::Write { lba: Lba(number * 160), data: &data }], Stream::Data)
        };
        write(&store, 0).unwrap();
        store.journal.flush().unwrap();
        spoil(&store);
        let panicked =
            (1..100).any(|number| catch_unwind(AssertUnwindSafe(|| write(&store, number).unwrap())).is_err());
        assert!(panicked, "no segment was opened");
        let (ended, all_ended) = mpsc::channel::<()>();
        thread::spawn(move || {
            let is_stopped = |result: Result<()>| matches!(result, Err(Error::Poisoned { .. }));
            assert!(is_stopped(store.journal.flush()));
            assert!(is_stopped(store.writer.write_batch(&[], Stream::Data).map(drop)));
            assert!(is_stopped(store.checkpointer.checkpoint()));
            // This was flushed long before, but the map is in an unknown state now.
            assert!(is_stopped(store.reader.read(Lba(0), &mut [0; 512])));
            let all = |at| (at == 0).then_some(0..1 << 40);
            assert!(is_stopped(store.verifier.sweep_sectors(&all, 1 << 20, |_, _| {})));
            assert!(is_stopped(
                store.verifier.check(CheckDepth::Structure, &mut |_| ControlFlow::Continue(())).map(drop)
            ));
            assert!(is_stopped(store.verifier.scrub(|_| ControlFlow::Continue(())).map(drop)));
            drop(store);
            ended.send(()).unwrap();
        });
        assert_eq!(all_ended.recv_timeout(PATIENCE), Ok(()), "somebody waits, or got no error");
    }
}
