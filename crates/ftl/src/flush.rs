//! Pieces of the log to the device, and flushes.
//!
//! Whoever has filled a piece begins its write and goes on, unless too much is on its way.
//! A flush is led by one thread for all that wait: it hands out the tails, waits for all writes begun
//! before, and syncs. A piece that is being filled yet is written by who fills it; the flush waits for that
//! too. Those that come meanwhile wait for it to end; whom it covers returns, and one of the others leads
//! the next. Nobody else is woken.
//!
//! Invariants:
//! 1. No lock is held while the device is called, which may call back before it returns.
//! 2. A flush covers only what was appended when it began, and syncs only after all of that is on the
//!    device.
//! 3. When a flush ends, one of those that it does not cover is woken, or all if it failed: so somebody
//!    leads as long as somebody waits.
//! 4. A store is dropped only once no write is on its way.
//! 5. Each write that ends wakes one of those that wait to begin one, and who has waited wakes the next when
//!    it goes: so nobody waits when nothing is in flight, and few are woken in vain.

use std::sync::Arc;

use lacuna_device::{self as device, AlignedBuf, Filled};

use crate::{
    Error, Result, Seq,
    format::Marks,
    log::{AppendPoint, DeviceWrite, Log},
    mutant::{Rule, is_broken},
    space::Space,
    store::Store,
    sync::{Condvar, Mutex, MutexGuard, atomic::AtomicU32},
    tail::PIECE_BYTES_MAX,
};

/// Pieces on their way to the device at a time: enough to keep a fast one busy. Few where
/// every order is tried.
const IN_FLIGHT_MAX: usize = if cfg!(feature = "shuttle") { 2 } else { 16 };

/// Nor is another one begun while so many bytes are on their way: reads would wait behind them.
const IN_FLIGHT_BYTES_MAX: usize = 4 << 20;

/// Memory that is kept for later pieces.
const IDLE_BYTES_MAX: usize = 2 * IN_FLIGHT_BYTES_MAX;

/// Memory that pieces are made in, used again and again.
pub(crate) struct Buffers {
    len: usize,
    idle: Mutex<Vec<AlignedBuf>>,
}

impl Buffers {
    pub(crate) fn new(space: Space) -> Buffers {
        Buffers { len: PIECE_BYTES_MAX.min(space.segment_bytes), idle: Mutex::default() }
    }

    /// Makes memory for a batch of `bytes` beforehand, so that it is not made with the log locked.
    pub(crate) fn stock(&self, bytes: usize) {
        let pieces = bytes / self.len;
        if pieces == 0 {
            return;
        }
        let lacking = pieces.saturating_sub(self.idle.lock().len());
        let made: Vec<_> = (0..lacking).map(|_| AlignedBuf::zeroed(self.len)).collect();
        self.idle.lock().extend(made);
    }

    pub(crate) fn take(&self) -> AlignedBuf {
        let idle = self.idle.lock().pop();
        idle.unwrap_or_else(|| AlignedBuf::zeroed(self.len))
    }

    /// Takes the memory back, if nobody else has a part of it.
    fn give_back(&self, bytes: Filled) {
        if let Some(memory) = bytes.into_memory() {
            let mut idle = self.idle.lock();
            if idle.len() * self.len < IDLE_BYTES_MAX {
                idle.push(memory);
            }
        }
    }
}

/// What a flush makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cover {
    Batches,
    /// Relocations too.
    All,
}

/// Who leads a flush, and who waits for it to end.
#[derive(Default)]
pub(crate) struct Flushes {
    is_led: bool,
    waiting: Vec<Waiting>,
}

struct Waiting {
    /// The batch that must be durable; none for one who leads a flush of their own in any case.
    target: Option<Seq>,
    woken: Arc<Condvar>,
}

impl Flushes {
    /// Wakes those whose batch is durable, and of the others the one that came first.
    fn ended(&mut self, flushed: Seq) {
        self.is_led = false;
        let mut has_leader = false;
        self.waiting.retain(|waiting| {
            let is_covered = waiting.target.is_some_and(|target| target <= flushed);
            let wakes = is_covered || !std::mem::replace(&mut has_leader, true);
            if wakes {
                waiting.woken.notify_one();
            }
            !wakes
        });
    }

    pub(crate) fn wake_all(&mut self) {
        for waiting in self.waiting.drain(..) {
            waiting.woken.notify_one();
        }
    }
}

/// What the end of a write needs of the store. Not the device: whoever drops the last handle of that
/// may have to wait for writes.
#[derive(Clone)]
struct Ending {
    log: Arc<Mutex<Log>>,
    written: Arc<[AtomicU32]>,
    io_done: Arc<Condvar>,
    may_begin: Arc<Condvar>,
    buffers: Arc<Buffers>,
}

impl Ending {
    fn end(&self, write: &DeviceWrite, outcome: device::Result<()>, bytes: Filled) {
        let mut log = self.log.lock();
        match outcome {
            Ok(()) => {
                log.complete(write, &self.written);
                self.may_begin.notify_one();
            }
            Err(error) => {
                log.fail(error, Some(write));
                self.may_begin.notify_all();
            }
        }
        self.io_done.notify_all();
        drop(log);
        // The log has let go of what is on the device.
        self.buffers.give_back(bytes);
    }
}

/// Whether another write may be on its way.
fn may_begin(log: &Log) -> bool {
    let in_flight = log.in_flight();
    in_flight.writes < IN_FLIGHT_MAX && in_flight.bytes < IN_FLIGHT_BYTES_MAX
}

impl Store {
    /// Begins all writes that wait for it.
    pub(crate) fn begin_writes(&self, mut log: MutexGuard<'_, Log>) -> Result<()> {
        let mut has_waited = false;
        let result = loop {
            if let Err(error) = self.check_failure(&mut log) {
                break Err(error);
            }
            let mut writes = Vec::new();
            while may_begin(&log)
                && let Some(write) = log.next_write()
            {
                writes.push(write);
            }
            if !writes.is_empty() {
                MutexGuard::unlocked(&mut log, || {
                    writes.into_iter().for_each(|write| self.begin_write(write));
                });
            } else if log.has_pending() {
                has_waited = true;
                self.may_begin.wait(&mut log);
            } else {
                break Ok(());
            }
        };
        if has_waited {
            self.may_begin.notify_one();
        }
        result
    }

    fn begin_write(&self, mut write: DeviceWrite) {
        let offset = self.device_offset(write.segment, write.piece.start);
        let bytes = write.piece.bytes.take().expect("handed out when it is filled");
        let ending = self.ending();
        let done = Box::new(move |outcome, bytes| ending.end(&write, outcome, bytes));
        self.device.submit_write(offset, bytes, done);
    }

    /// Writes one piece and waits for it, which for a single one is faster than to be told.
    fn write_and_wait(&self, mut write: DeviceWrite) {
        let offset = self.device_offset(write.segment, write.piece.start);
        let bytes = write.piece.bytes.take().expect("handed out when it is filled");
        let outcome = self.device.write_at(offset, &bytes);
        self.ending().end(&write, outcome, bytes);
    }

    fn ending(&self) -> Ending {
        Ending {
            log: Arc::clone(&self.log),
            written: Arc::clone(&self.written),
            io_done: Arc::clone(&self.io_done),
            may_begin: Arc::clone(&self.may_begin),
            buffers: Arc::clone(&self.buffers),
        }
    }

    /// Waits until no write is on its way.
    pub(crate) fn wait_for_writes(&self) {
        let mut log = self.log.lock();
        while log.in_flight().writes > 0 {
            self.io_done.wait(&mut log);
        }
    }

    /// See [`crate::Ftl::flush`].
    pub(crate) fn flush(&self) -> Result<()> {
        let log = self.log.lock();
        let target = log.last_seq;
        self.flush_until(log, Some(target), Cover::Batches)
    }

    /// Makes everything durable that was written or appended so far, moved extents included, and
    /// notes the deaths of segments that it makes durable.
    pub(crate) fn flush_all(&self) -> Result<()> {
        self.flush_until(self.log.lock(), None, Cover::All)
    }

    /// Returns once the batch `target` is durable; until then leads a flush whenever nobody else does.
    /// One flush of one's own is always enough.
    fn flush_until(&self, mut log: MutexGuard<'_, Log>, target: Option<Seq>, cover: Cover) -> Result<()> {
        loop {
            self.check_failure(&mut log)?;
            if target.is_some_and(|target| log.flushed_seq >= target) {
                return Ok(());
            }
            if !log.flushes.is_led {
                break;
            }
            let woken = Arc::new(Condvar::new());
            log.flushes.waiting.push(Waiting { target, woken: Arc::clone(&woken) });
            woken.wait(&mut log);
        }
        log.flushes.is_led = true;
        let result = self.lead_flush(log, cover);
        let mut log = self.log.lock();
        let flushed = log.flushed_seq;
        log.flushes.ended(flushed);
        result
    }

    /// One flush: hand out all tails, wait until they and all earlier writes are on the device, sync.
    fn lead_flush(&self, mut log: MutexGuard<'_, Log>, cover: Cover) -> Result<()> {
        let durable = match cover {
            Cover::Batches => Marks { batches: log.last_seq, moves: log.flushed_move },
            Cover::All => Marks { batches: log.last_seq, moves: log.last_move },
        };
        let (weight, dead) = {
            let map = self.map.read();
            let dead = if cover == Cover::All { self.dead(&log, &map) } else { Vec::new() };
            (map.weight(0), dead)
        };
        log.peak.flush_begins(weight);
        for point in AppendPoint::all().filter(|point| cover == Cover::All || point.is_fresh()) {
            log.freeze(point);
        }
        let mark = log.write_mark();
        let mut log = self.write_below(log, mark)?;
        let synced = match is_broken(Rule::FlushSyncs) {
            true => Ok(()),
            false => MutexGuard::unlocked(&mut log, || self.device.sync()),
        };
        if let Err(error) = synced {
            return Err(self.poison(&mut log, error));
        }
        assert!(log.durable().max(durable) == durable, "flushes went backwards");
        log.note_flushed(durable, &dead);
        log.counters.flushes += 1;
        Ok(())
    }

    /// Returns once all writes with an id below `mark` are on the device. Begins those that nobody has
    /// begun, and does the last of them itself.
    fn write_below<'a>(&'a self, mut log: MutexGuard<'a, Log>, mark: u64) -> Result<MutexGuard<'a, Log>> {
        while log.is_writing_below(mark) {
            self.check_failure(&mut log)?;
            if !log.has_pending() || !may_begin(&log) {
                self.io_done.wait(&mut log);
                continue;
            }
            let write = log.next_write().expect("just seen");
            let is_last = !log.has_pending();
            MutexGuard::unlocked(&mut log, || match is_last {
                true => self.write_and_wait(write),
                false => self.begin_write(write),
            });
        }
        self.check_failure(&mut log)?;
        Ok(log)
    }

    /// Fails when an earlier write or sync did.
    pub(crate) fn check_poison(&self, log: &Log) -> Result<()> {
        match &log.poison {
            Some(reason) => Err(Error::Poisoned { device: self.device_name(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// The same; the first to ask after a failed write gets the device's error.
    fn check_failure(&self, log: &mut Log) -> Result<()> {
        match log.failure.take() {
            Some(error) => Err(Error::Device(error)),
            None => self.check_poison(log),
        }
    }

    /// Stops all further writing: what reached the device is unknown from here on.
    pub(crate) fn poison(&self, log: &mut Log, error: device::Error) -> Error {
        let reason = error.to_string();
        log.fail(error, None);
        self.io_done.notify_all();
        self.may_begin.notify_all();
        log.failure
            .take()
            .map_or_else(|| Error::Poisoned { device: self.device_name(), reason }, Error::Device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Invariant 3.
    #[test]
    fn an_ended_flush_wakes_whom_it_covers_and_one_more() {
        let mut flushes = Flushes { is_led: true, waiting: Vec::new() };
        for target in [Some(5), Some(9), None, Some(3), Some(7)] {
            flushes.waiting.push(Waiting { target: target.map(Seq), woken: Arc::default() });
        }
        let mut left = |flushed| {
            flushes.ended(Seq(flushed));
            assert!(!flushes.is_led);
            flushes.waiting.iter().map(|waiting| waiting.target).collect::<Vec<_>>()
        };
        assert_eq!(left(5), [None, Some(Seq(7))], "5 and 3 are covered, 9 leads");
        assert_eq!(left(6), [Some(Seq(7))]);
        assert_eq!(left(6), []);
        assert_eq!(left(9), []);
    }
}
