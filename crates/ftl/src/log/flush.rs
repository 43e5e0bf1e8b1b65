//! Pieces of the log to the device, and flushes.
//!
//! Whoever has filled a piece begins its write and goes on, unless too much is on its way.
//! A flush is led by one thread for all that wait: it hands out the tails, writes them together, waits for all
//! writes begun before, and syncs. A piece that is being filled yet is written by who fills it; the flush waits
//! for that too. Up to [`LED_MAX`] are led at a time, so that a database's log need not wait for the sync of its
//! tables to end before its own begins. Others that come meanwhile wait; whom an ended flush covers
//! returns, and one of those that no flush covers yet leads the next. Nobody else is woken.
//!
//! Invariants:
//! 1. No lock is held while the device is called, which may call back before it returns.
//! 2. A flush covers only what was appended when it began, and syncs only after all of that is on the
//!    device.
//! 3. When a flush ends, one of those that no flush covers is woken, or all if it failed: so somebody
//!    leads as long as somebody waits.
//! 4. Flushes end in the order in which they began, and none ends well after one has failed. So what was
//!    flushed only grows, and an error that the device told another is nobody's success.
//! 5. A store is dropped only once no write is on its way. One that a device forgets, or panics over, counts as failed
//!    (`Begun`).
//! 6. Each write that ends wakes one of those that wait to begin one, and who has waited wakes the next when
//!    it goes: so nobody waits when nothing is in flight, and few are woken in vain.

use std::{collections::VecDeque, io, sync::Arc};

use lacuna_device::{self as device, AlignedBuf, Blank, Filled, Home};

use crate::{
    Error, Result, Seq,
    format::Marks,
    log::fill::Awaited,
    log::sentinel::Sentinel,
    log::tail::PIECE_BYTES_MAX,
    log::{AppendPoint, DeviceWrite, Log},
    mutant::{Rule, is_broken},
    space::Space,
    store::PerSegment,
    store::Store,
    sync::{Condvar, Mutex, MutexGuard},
};

/// Pieces on their way to the device at a time: enough to keep a fast one busy. Few where
/// every order is tried.
const IN_FLIGHT_MAX: usize = if cfg!(feature = "shuttle") { 2 } else { 32 };

/// Nor is another one begun while so many bytes are on their way: twice what a raw device hands to the system at a
/// time. From the end of a write to the begin of the one that waited for it two threads have to get a processor one
/// after the other, and where all are busy that takes 3 ms, in which a fast device writes the other half.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;

/// Memory that is kept for later pieces: what comes back at once when many writes end together.
const IDLE_BYTES_MAX: usize = IN_FLIGHT_BYTES_MAX;

/// Flushes that are led at a time. More would make each smaller.
const LED_MAX: usize = 2;

/// Memory that pieces are made in, used again and again.
pub(crate) struct Buffers {
    len: usize,
    idle: Mutex<Vec<AlignedBuf>>,
}

impl Buffers {
    pub(crate) fn new(space: Space) -> Buffers {
        Buffers { len: PIECE_BYTES_MAX.min(space.segment_bytes), idle: Mutex::default() }
    }

    /// Makes memory for a batch of `bytes` beforehand, so that it is not made with the log locked: that would take
    /// longer than all else that is done there.
    pub(crate) fn stock(&self, bytes: usize) {
        self.keep(bytes / self.len);
    }

    /// The same for the next who needs memory, however little.
    pub(crate) fn stock_one(&self) {
        self.keep(1);
    }

    fn keep(&self, count: usize) {
        if count == 0 {
            return;
        }
        let lacking = count.saturating_sub(self.idle.lock().len());
        let mut made = Vec::new();
        while made.len() < lacking {
            made.extend(AlignedBuf::for_long_use(self.len));
        }
        if lacking > 0 {
            self.idle.lock().extend(made);
        }
    }

    pub(crate) fn take(self: &Arc<Self>) -> Blank {
        let idle = self.idle.lock().pop();
        let memory = idle.unwrap_or_else(|| {
            let mut made = AlignedBuf::for_long_use(self.len);
            let taken = made.pop().expect("at least one");
            self.idle.lock().extend(made);
            taken
        });
        Blank::lent(memory, Arc::clone(self) as Arc<dyn Home>)
    }
}

impl Home for Buffers {
    fn take_back(&self, memory: AlignedBuf) {
        let mut idle = self.idle.lock();
        if idle.len() * self.len < IDLE_BYTES_MAX {
            idle.push(memory);
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

/// Which flushes are led, and who waits for them to end.
#[derive(Default)]
pub(crate) struct Flushes {
    /// The last batch that each covers, in the order in which they began.
    led: VecDeque<Seq>,
    /// Flushes that have ended.
    ended: u64,
    waiting: Vec<Waiting>,
    /// An older flush has ended, or failed.
    turn: Arc<Condvar>,
}

struct Waiting {
    /// The batch that must be durable; none for one who leads a flush of their own in any case.
    target: Option<Seq>,
    woken: Arc<Condvar>,
}

impl Flushes {
    /// Whether `target` is to be waited for rather than led for.
    fn must_wait(&self, target: Option<Seq>) -> bool {
        self.led.len() >= LED_MAX || self.is_led_for(target)
    }

    fn is_led_for(&self, target: Option<Seq>) -> bool {
        target.is_some_and(|target| self.led.back().is_some_and(|covered| *covered >= target))
    }

    /// Begins a flush up to `batches`; returns its number.
    fn begin(&mut self, batches: Seq) -> u64 {
        assert!(self.led.back().is_none_or(|covered| *covered <= batches), "flushes began out of order");
        self.led.push_back(batches);
        self.ended + self.led.len() as u64 - 1
    }

    /// Whether all flushes before `number` have ended.
    fn is_next(&self, number: u64) -> bool {
        self.ended == number
    }

    /// The oldest flush has ended and all up to `flushed` is durable: wakes those whose batch is, and of
    /// those that no flush covers the one that came first.
    fn end(&mut self, flushed: Seq) {
        self.led.pop_front().expect("it was begun");
        self.ended += 1;
        self.turn.notify_all();
        let mut has_leader = false;
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|waiting| {
            let is_covered = waiting.target.is_some_and(|target| target <= flushed);
            let leads =
                !is_covered && !self.is_led_for(waiting.target) && !std::mem::replace(&mut has_leader, true);
            if is_covered || leads {
                waiting.woken.notify_one();
            }
            !(is_covered || leads)
        });
        self.waiting = waiting;
    }

    pub(crate) fn wake_all(&mut self) {
        self.turn.notify_all();
        for waiting in self.waiting.drain(..) {
            waiting.woken.notify_one();
        }
    }
}

/// What the end of a write, or of all, needs of the store. Not the device: whoever drops the last handle of that
/// may have to wait for writes.
pub(crate) struct Ending {
    log: Arc<Mutex<Log>>,
    written: Arc<PerSegment>,
    io_done: Arc<Condvar>,
    may_begin: Arc<Condvar>,
    moved: Arc<Condvar>,
    awaited: Arc<Awaited>,
}

impl Ending {
    /// `writes` have ended, all alike.
    fn end(&self, writes: &[DeviceWrite], outcome: device::Result<()>) {
        let _sentinel = Sentinel::new(|| self.stop("a thread panicked when a write had ended"));
        let mut log = self.log.lock();
        log.have_ended(writes);
        let has_moved = writes.iter().any(|write| !write.point.is_fresh());
        let has_failed = outcome.is_err();
        match outcome {
            Ok(()) => writes.iter().for_each(|write| log.complete(write, &self.written)),
            Err(error) => log.fail(error),
        }
        // Whoever is woken wants the lock.
        drop(log);
        match has_failed {
            true => {
                self.may_begin.notify_all();
            }
            false => writes.iter().for_each(|_| {
                self.may_begin.notify_one();
            }),
        }
        self.io_done.notify_all();
        if has_moved || has_failed {
            self.moved.notify_all();
        }
    }

    /// Lets nobody begin anything, nor wait for anything, for a `reason` that is no error of the device.
    pub(crate) fn stop(&self, reason: &str) {
        let mut log = self.log.lock();
        log.stop(reason);
        self.awaited.lose();
        drop(log);
        self.io_done.notify_all();
        self.may_begin.notify_all();
        self.moved.notify_all();
    }
}

/// Writes that were handed out. They have failed if that is dropped before they have ended (invariant 5).
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
                    // All of them, before the first is given to a device that may panic.
                    let begun: Vec<_> = writes.into_iter().map(|write| self.begun([write])).collect();
                    begun.into_iter().for_each(|begun| self.begin_write(begun));
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

    /// Writes pieces and waits for all, which costs less than to be told of each.
    fn write_and_wait(&self, writes: Vec<DeviceWrite>) {
        let mut begun = self.begun(writes);
        let pieces: Vec<_> = begun.writes().iter_mut().map(|write| self.taken(write)).collect();
        begun.end(self.volume.device().write_many(&pieces));
    }

    pub(crate) fn ending(&self) -> Ending {
        Ending {
            log: Arc::clone(&self.log),
            written: Arc::clone(&self.written),
            io_done: Arc::clone(&self.io_done),
            may_begin: Arc::clone(&self.may_begin),
            moved: Arc::clone(&self.moved),
            awaited: Arc::clone(&self.awaited),
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

    /// See [`crate::Ftl::flush_through`].
    pub(crate) fn flush_through(&self, seq: Seq) -> Result<()> {
        let log = self.log.lock();
        assert!(seq <= log.last_seq, "a flush through batch {}, which is not there yet", seq.0);
        self.flush_until(log, Some(seq), Cover::Batches)
    }

    /// Makes everything durable that was written or appended so far, moved extents included, and
    /// notes the deaths of segments that it makes durable.
    pub(crate) fn flush_all(&self) -> Result<()> {
        self.flush_until(self.log.lock(), None, Cover::All)
    }

    /// Returns once the batch `target` is durable; until then leads a flush unless others lead enough.
    /// One flush of one's own is always enough.
    fn flush_until(&self, log: MutexGuard<'_, Log>, target: Option<Seq>, cover: Cover) -> Result<()> {
        let _sentinel = self.sentinel();
        let mut log = log; // given back before that
        loop {
            self.check_failure(&mut log)?;
            if target.is_some_and(|target| log.flushed_seq >= target) {
                return Ok(());
            }
            if !log.flushes.must_wait(target) {
                return self.lead_flush(log, cover);
            }
            let woken = Arc::new(Condvar::new());
            log.flushes.waiting.push(Waiting { target, woken: Arc::clone(&woken) });
            woken.wait(&mut log);
        }
    }

    /// One flush: hand out all tails, wait until they and all earlier writes are on the device, sync, and
    /// wait for flushes that began before. One that fails has failed the store, and all others with it.
    fn lead_flush(&self, mut log: MutexGuard<'_, Log>, cover: Cover) -> Result<()> {
        let batches = log.last_seq;
        let moves = (cover == Cover::All).then_some(log.last_move);
        let number = log.flushes.begin(batches);
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
            false => MutexGuard::unlocked(&mut log, || self.volume.device().sync()),
        };
        if let Err(error) = synced {
            return Err(self.poison(&mut log, error));
        }
        while !log.flushes.is_next(number) {
            self.check_failure(&mut log)?;
            let turn = Arc::clone(&log.flushes.turn);
            turn.wait(&mut log);
        }
        self.check_failure(&mut log)?;
        let durable = Marks { batches, moves: moves.unwrap_or(log.flushed_move) };
        assert!(log.durable().max(durable) == durable, "flushes went backwards");
        log.note_flushed(durable, &dead);
        log.counters.flushes += 1;
        log.flushes.end(batches);
        Ok(())
    }

    /// Returns once all writes with an id below `mark` are on the device. Does those that nobody has begun.
    fn write_below<'a>(&'a self, mut log: MutexGuard<'a, Log>, mark: u64) -> Result<MutexGuard<'a, Log>> {
        while log.is_writing_below(mark) {
            self.check_failure(&mut log)?;
            let mut writes = Vec::new();
            while may_begin(&log)
                && let Some(write) = log.next_write_below(mark)
            {
                writes.push(write);
            }
            match writes.is_empty() {
                true => self.io_done.wait(&mut log),
                false => MutexGuard::unlocked(&mut log, || self.write_and_wait(writes)),
            }
        }
        self.check_failure(&mut log)?;
        Ok(log)
    }

    /// Fails when an earlier write or sync did.
    pub(crate) fn check_poison(&self, log: &Log) -> Result<()> {
        match &log.poison {
            Some(reason) => Err(Error::Poisoned { device: self.volume.name(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// The same; the first to ask after a failed write gets the device's error.
    pub(crate) fn check_failure(&self, log: &mut Log) -> Result<()> {
        match log.failure.take() {
            Some(error) => Err(Error::Device(error)),
            None => self.check_poison(log),
        }
    }

    /// Stops all further writing: what reached the device is unknown from here on.
    pub(crate) fn poison(&self, log: &mut Log, error: device::Error) -> Error {
        let reason = error.to_string();
        log.fail(error);
        self.io_done.notify_all();
        self.may_begin.notify_all();
        self.moved.notify_all();
        log.failure
            .take()
            .map_or_else(|| Error::Poisoned { device: self.volume.name(), reason }, Error::Device)
    }
}

#[cfg(test)]
impl Buffers {
    /// How many are idle.
    pub(crate) fn idle(&self) -> usize {
        self.idle.lock().len()
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

    /// Whom a flush covers that is led yet sleeps on; who has nobody leads.
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
