//! The log that threads share, and its writes in flight to the device.
//!
//! # Locks
//!
//! In this order; none is held across device I/O except that for maintenance, which no batch and no read needs:
//! maintenance (one piece of collection or one checkpoint at a time) -> log -> map.
//!
//! The mapping changes only with the log locked, so a thread that holds that lock sees no change; leaves of the
//! map are installed and evicted with the map's lock alone.

use std::{io, sync::Arc, time::Instant};

use lacuna_device::{self as device, Filled};

use crate::{
    Error, Result,
    addr::SegNo,
    format::{Flaw, Life},
    log::{
        Log,
        batch::Item,
        buffers::Buffers,
        fill::{Appended, PendingFills},
        queue::DeviceWrite,
        sentinel::{REASON, Sentinel, Turn},
    },
    map::{Map, SharedMap},
    media::{
        Volume,
        scan::Record,
        summaries::{read_summaries, records_of},
    },
    mutant::{Rule, is_broken},
    space::{Limits, Space},
    sync::{Condvar, Mutex, MutexGuard, PerSegment, atomic::Ordering},
};

/// See the module documentation.
pub(crate) struct Journal {
    pub(super) volume: Arc<Volume>,
    pub(super) map: Arc<SharedMap>,
    log: Arc<Mutex<Log>>,
    pub(super) signals: Arc<Signals>,
    /// Bytes of each segment that are on the device; the rest may still be in memory.
    written: Arc<PerSegment>,
    pub(super) buffers: Arc<Buffers>,
    /// Held for a piece of collection, a checkpoint and the like.
    pub(super) maintenance: Mutex<()>,
}

/// The events that threads wait for with the log locked.
#[derive(Default)]
pub(super) struct Signals {
    /// A write ended.
    pub(super) io_done: Condvar,
    /// Another write may be begun; see `flush`.
    may_begin: Condvar,
    /// Collection has moved something, or does something else now.
    moved: Condvar,
    /// For readers of space that is being filled.
    pub(super) fills: PendingFills,
}

impl Signals {
    fn notify_all(&self) {
        self.io_done.notify_all();
        self.may_begin.notify_all();
        self.moved.notify_all();
    }
}

/// The parts of the store that the end of a write needs. Not the device: the thread that drops the last handle of it
/// may have to wait for writes.
pub(super) struct Ending {
    log: Arc<Mutex<Log>>,
    signals: Arc<Signals>,
}

impl Ending {
    /// `writes` have ended, all alike.
    fn end(&self, writes: &[DeviceWrite], outcome: device::Result<()>) {
        let _sentinel = Sentinel::new(|| self.stop("a thread panicked when a write had ended"));
        let outcome = if is_broken(Rule::FailedWritesStop) { Ok(()) } else { outcome };
        let mut log = self.log.lock();
        log.queue.have_ended(writes);
        let has_moved = writes.iter().any(|write| !write.point.is_fresh());
        let has_failed = outcome.is_err();
        match outcome {
            Ok(()) => writes.iter().for_each(|write| log.complete(write)),
            Err(error) => log.fail(error),
        }
        // The woken thread needs the lock.
        drop(log);
        match has_failed {
            true => {
                self.signals.may_begin.notify_all();
            }
            false => writes.iter().for_each(|_| {
                self.signals.may_begin.notify_one();
            }),
        }
        self.signals.io_done.notify_all();
        if has_moved || has_failed {
            self.signals.moved.notify_all();
        }
    }

    /// Stops the store: no thread begins anything or waits any more, for a `reason` that is not an error of the device.
    pub(super) fn stop(&self, reason: &str) {
        let mut log = self.log.lock();
        log.stop(reason);
        self.signals.fills.lose();
        drop(log);
        self.signals.notify_all();
    }
}

/// Writes that were handed out. They count as failed if this is dropped before they have ended (invariant 5 of
/// `flush`).
struct Begun<W: AsRef<[DeviceWrite]> + AsMut<[DeviceWrite]>> {
    writes: Option<W>,
    ending: Ending,
}

impl<W: AsRef<[DeviceWrite]> + AsMut<[DeviceWrite]>> Begun<W> {
    fn writes(&mut self) -> &mut [DeviceWrite] {
        self.writes.as_mut().expect("they have not ended").as_mut()
    }

    fn end(mut self, outcome: device::Result<()>) {
        let writes = self.writes.take().expect("writes end once");
        self.ending.end(writes.as_ref(), outcome);
    }
}

impl<W: AsRef<[DeviceWrite]> + AsMut<[DeviceWrite]>> Drop for Begun<W> {
    fn drop(&mut self) {
        if let Some(writes) = self.writes.take() {
            let source = io::Error::other("the device has dropped a write");
            self.ending.end(writes.as_ref(), Err(device::Error::io("write", source)));
        }
    }
}

impl Journal {
    pub(crate) fn new(volume: Arc<Volume>, map: Arc<SharedMap>, log: Log) -> Journal {
        let (written, buffers) = (Arc::clone(&log.written), Arc::clone(&log.buffers));
        Journal {
            volume,
            map,
            log: Arc::new(Mutex::new(log)),
            signals: Arc::default(),
            written,
            buffers,
            maintenance: Mutex::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }

    pub(super) fn mutex(&self) -> &Mutex<Log> {
        &self.log
    }

    /// Allocates memory for a batch of `bytes` in advance; see [`Buffers::stock`].
    pub(crate) fn stock(&self, bytes: usize) {
        self.buffers.stock(bytes);
    }

    /// Whether the first `end` bytes of a segment are on the device.
    pub(crate) fn is_on_device(&self, segment: SegNo, end: usize) -> bool {
        end <= self.written[segment.0 as usize].load(Ordering::Acquire) as usize
    }

    /// What of the `len` bytes at `offset` of a segment is in memory: how many of them, at the beginning, are on the
    /// device instead, and the others. Waits for those that are being filled.
    ///
    /// # Errors
    /// When they will never be filled, because a thread has panicked; and where the map leads behind all records of the
    /// segment, which a forged one does.
    pub(crate) fn read(&self, segment: SegNo, offset: usize, len: usize) -> Result<(usize, Vec<Filled>)> {
        let mut log = self.log.lock();
        if offset + len > log.appended(segment) {
            let at = self.volume.offset(segment, offset);
            return Err(self.volume.corrupt("map", at, "it leads behind all records of a segment"));
        }
        let found = self.signals.fills.wait(&mut log, |log| log.read(segment, offset, len));
        drop(log);
        found.ok_or_else(|| self.must_not_be_stopped().expect_err("bytes are lost by a panic"))
    }

    /// Begins all writes that wait for it.
    pub(super) fn begin_writes(&self, mut log: MutexGuard<'_, Log>) -> Result<()> {
        let mut has_waited = false;
        let result = loop {
            if let Err(error) = self.check_failure(&mut log) {
                // A flush may wait for what is not begun now.
                self.signals.io_done.notify_all();
                break Err(error);
            }
            let mut writes = Vec::new();
            while log.queue.may_begin()
                && let Some(write) = log.queue.next()
            {
                writes.push(write);
            }
            if !writes.is_empty() {
                MutexGuard::unlocked(&mut log, || {
                    // All of them, before the first is given to a device that may panic.
                    let begun: Vec<_> = writes.into_iter().map(|write| self.begun([write])).collect();
                    begun.into_iter().for_each(|begun| self.begin_write(begun));
                });
            } else if log.queue.has_ready() {
                has_waited = true;
                self.signals.may_begin.wait(&mut log);
            } else {
                break Ok(());
            }
        };
        if has_waited {
            self.signals.may_begin.notify_one();
        }
        result
    }

    fn begun<W: AsRef<[DeviceWrite]> + AsMut<[DeviceWrite]>>(&self, writes: W) -> Begun<W> {
        Begun { writes: Some(writes), ending: self.ending() }
    }

    /// Where a write goes, and its bytes.
    fn taken(&self, write: &mut DeviceWrite) -> (u64, Filled) {
        let bytes = write.piece.bytes.take().expect("handed out when it is filled");
        (self.volume.offset(write.segment, write.piece.start), bytes)
    }

    fn begin_write(&self, mut begun: Begun<[DeviceWrite; 1]>) {
        let (offset, bytes) = self.taken(&mut begun.writes()[0]);
        let done = Box::new(move |outcome, _| begun.end(outcome));
        self.volume.device().submit_write(offset, bytes, done);
    }

    /// Writes pieces and waits for all of them, which costs less than a completion callback for each.
    pub(super) fn write_and_wait(&self, writes: Vec<DeviceWrite>) {
        let mut begun = self.begun(writes);
        let pieces: Vec<_> = begun.writes().iter_mut().map(|write| self.taken(write)).collect();
        begun.end(self.volume.device().write_many(&pieces));
    }

    pub(super) fn ending(&self) -> Ending {
        Ending { log: Arc::clone(&self.log), signals: Arc::clone(&self.signals) }
    }

    /// Fills the space that [`Log::append`] has reserved for `items`, with no lock held, and begins the writes that
    /// are possible then.
    ///
    /// # Errors
    /// When a write has failed; all space is filled nevertheless.
    pub(crate) fn fill(&self, items: &[Item<'_>], appended: Appended) -> Result<()> {
        let Appended { records, has_pending, salt, .. } = appended;
        let mut complete: Vec<(SegNo, usize)> = Vec::new();
        for record in records {
            let (range, segment) = (record.items.clone(), record.header.life.segment);
            record.fill(salt, &items[range], |at| complete.push((segment, at)));
        }
        self.signals.fills.report(self.mutex());
        if complete.is_empty() && !has_pending {
            return Ok(());
        }
        let mut log = self.lock();
        complete.into_iter().for_each(|(segment, at)| log.filled(segment, at));
        let begun = self.begin_writes(log);
        self.buffers.stock_one();
        begun
    }

    /// The records of each of `lives`, from its summary, or why there is no valid one. Summaries that are not kept are
    /// read at the same time.
    pub(crate) fn summaries(&self, lives: &[Life]) -> Result<Vec<Result<Vec<Record>, Flaw>>> {
        let kept = {
            let log = self.lock();
            lives.iter().map(|life| log.summary_cache.of(*life)).collect::<Vec<_>>()
        };
        let others: Vec<Life> =
            lives.iter().zip(&kept).filter(|(_, kept)| kept.is_none()).map(|(life, _)| *life).collect();
        let mut others = read_summaries(&self.volume, &others)?.into_iter();
        let records = lives.iter().zip(kept).map(|(life, kept)| match kept {
            Some(summary) => records_of(&self.volume, &summary, *life),
            None => others.next().expect("one for each that is not kept"),
        });
        Ok(records.collect())
    }

    /// A sentinel for a thread that is about to change something.
    pub(crate) fn sentinel(&self) -> Sentinel<impl Fn()> {
        Sentinel::new(|| self.ending().stop(REASON))
    }

    /// Waits for the right to do a piece of maintenance.
    pub(crate) fn turn(&self) -> Turn<'_, impl Fn()> {
        let sentinel = self.sentinel();
        Turn { _lock: self.maintenance.lock(), _sentinel: sentinel }
    }

    /// Whether a thread has panicked while it changed the store.
    pub(crate) fn is_lost(&self) -> bool {
        self.signals.fills.is_lost()
    }

    /// # Errors
    /// `Poisoned` after a panic. After a failed write reads go on.
    pub(crate) fn must_not_be_stopped(&self) -> Result<()> {
        match self.is_lost() {
            true => Err(Error::Poisoned { device: self.volume.name(), reason: REASON.into() }),
            false => Ok(()),
        }
    }

    /// Waits until collection has moved something, or does something else; false when `until` comes before.
    pub(crate) fn wait_for_move(&self, log: &mut MutexGuard<'_, Log>, until: Instant) -> bool {
        !self.signals.moved.wait_until(log, until).timed_out()
    }

    /// Collection does something else now.
    pub(crate) fn notify_moved(&self) {
        // A thread that checked the activity under this lock is waiting by now, so it is woken.
        drop(self.log.lock());
        self.signals.moved.notify_all();
    }

    /// Waits until no write is in flight.
    fn wait_for_writes(&self) {
        let mut log = self.log.lock();
        while log.queue.in_flight() > 0 {
            self.signals.io_done.wait(&mut log);
        }
    }

    /// Fails when an earlier write or sync did.
    pub(crate) fn check_poison(&self, log: &Log) -> Result<()> {
        match &log.failure.reason {
            Some(reason) => Err(Error::Poisoned { device: self.volume.name(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// The first failure.
    pub(crate) fn failure(&self) -> Option<String> {
        self.log.lock().failure.reason.clone()
    }

    /// As [`Journal::check_poison`]; the first to ask after a failed write gets the device's error.
    pub(crate) fn check_failure(&self, log: &mut Log) -> Result<()> {
        match log.failure.unreported.take() {
            Some(error) => Err(Error::Device(error)),
            None => self.check_poison(log),
        }
    }

    /// Stops all further writing: what reached the device is unknown from here on.
    pub(crate) fn poison(&self, log: &mut Log, error: device::Error) -> Error {
        let reason = error.to_string();
        log.fail(error);
        self.signals.notify_all();
        let unreported = log.failure.unreported.take();
        unreported.map_or_else(|| Error::Poisoned { device: self.volume.name(), reason }, Error::Device)
    }

    /// The error for a batch that does not fit within `limits`.
    pub(crate) fn full(&self, map: &Map, limits: Limits) -> Error {
        Error::Full {
            device: self.volume.name(),
            live_bytes: Space::cost(map.total()),
            limit_bytes: limits.grow,
        }
    }
}

impl Drop for Journal {
    /// The next open must find the device at rest.
    fn drop(&mut self) {
        self.wait_for_writes();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
impl Journal {
    /// Wakes the threads that wait for a write to end; returns how many.
    pub(crate) fn wake_flushers(&self) -> usize {
        self.signals.io_done.notify_all()
    }

    /// Wakes one of the threads that wait for space to be filled; returns whether one did.
    pub(crate) fn wake_reader(&self) -> bool {
        self.signals.fills.wake_one()
    }
}
