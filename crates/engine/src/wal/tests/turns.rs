//! Syncs in parallel, on an `ordered` VFS whose syncs end when the test says so.

use std::{thread, time::Duration};

use lacuna_device::{Error as DeviceError, MemVfs};
use lacuna_sim::{HookedVfs, Hooks};

use super::super::*;
use crate::sync::Condvar;

/// Only a log that fails to wake a thread comes near it.
const PATIENCE: Duration = Duration::from_secs(100);

#[derive(Default)]
struct Gate {
    syncs: Mutex<Syncs>,
    changed: Condvar,
}

#[derive(Default)]
struct Syncs {
    begun: usize,
    /// Those numbered below have ended, or may.
    let_go: usize,
    /// All others fail.
    fails: bool,
}

impl Gate {
    fn wait_for(&self, count: usize) {
        let mut syncs = self.syncs.lock();
        while syncs.begun < count {
            assert!(!self.changed.wait_for(&mut syncs, PATIENCE).timed_out(), "sync {count} never began");
        }
    }

    fn change(&self, change: impl FnOnce(&mut Syncs)) {
        change(&mut self.syncs.lock());
        self.changed.notify_all();
    }
}

impl Hooks for Gate {
    fn before_sync(&self) -> Result<(), DeviceError> {
        let mut syncs = self.syncs.lock();
        let number = syncs.begun;
        syncs.begun += 1;
        self.changed.notify_all();
        while number >= syncs.let_go && !syncs.fails {
            self.changed.wait(&mut syncs);
        }
        match number < syncs.let_go {
            true => Ok(()),
            false => Err(DeviceError::Full { what: "gate".into() }),
        }
    }
}

/// Lets all syncs end when the test does, well or not: threads that wait for them would outlive it.
struct Opener<'a>(&'a Gate);

impl Drop for Opener<'_> {
    fn drop(&mut self) {
        self.0.change(|syncs| syncs.let_go = if syncs.fails { syncs.let_go } else { usize::MAX });
    }
}

fn gated_log() -> (Arc<Gate>, Log) {
    let gate = Arc::new(Gate::default());
    let vfs = HookedVfs::new(MemVfs::new(), Arc::clone(&gate));
    let files = Arc::new(LogFiles::open(vfs, 1 << 20, Salt(1)).expect("open"));
    let empty = (VecDeque::new(), Lsn(0));
    (gate, Log::start(files, Lsn(0), empty, 1, 1 << 20, Arc::default()).expect("start"))
}

fn append(log: &Log) -> Lsn {
    log.append(&[7; 100], |_, _| {}).expect("append")
}

#[test]
fn a_group_is_written_and_synced_beside_the_sync_of_another() {
    let (gate, log) = gated_log();
    thread::scope(|scope| {
        let _opener = Opener(&gate);
        let flush = |lsn| {
            let log = &log;
            scope.spawn(move || log.reach(lsn, Until::Flushed))
        };
        let first = flush(append(&log));
        gate.wait_for(1);
        let second = append(&log);
        let flushed = flush(second);
        gate.wait_for(2);
        log.reach(second, Until::Written).expect("it waits for no sync");
        let third = append(&log);
        log.reach(third, Until::Written).expect("nor does the third");
        assert!(!first.is_finished() && !flushed.is_finished(), "nothing is flushed yet");
        gate.change(|syncs| syncs.let_go = 2);
        first.join().unwrap().expect("flushed");
        flushed.join().unwrap().expect("flushed");
        assert_eq!(log.state.lock().flushed, format::next_group(second));
        let last = flush(third);
        gate.wait_for(3);
        gate.change(|syncs| syncs.let_go = 3);
        last.join().unwrap().expect("flushed");
    });
    assert_eq!(log.stats().syncs, 3);
}

/// Threads wait for one sync or another, for a group to be written, for a turn: each must be woken.
#[test]
fn all_go_on_when_syncs_end_and_when_they_fail() {
    let (gate, log) = gated_log();
    let flushed = AtomicU64::new(0);
    thread::scope(|scope| {
        let _opener = Opener(&gate);
        for thread in 0..8 {
            let (log, flushed) = (&log, &flushed);
            scope.spawn(move || {
                for number in 0.. {
                    let until = if (thread + number) % 4 == 0 { Until::Written } else { Until::Flushed };
                    if log.append(&[7; 100], |_, _| {}).and_then(|lsn| log.reach(lsn, until)).is_err() {
                        return;
                    }
                    flushed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in 0..300 {
            gate.wait_for(number + 1);
            gate.change(|syncs| syncs.let_go = number + 1);
        }
        gate.change(|syncs| syncs.fails = true);
    });
    assert!(flushed.load(Ordering::Relaxed) >= 200);
    log.reach(log.next(), Until::Flushed).expect_err("the log has stopped");
}
