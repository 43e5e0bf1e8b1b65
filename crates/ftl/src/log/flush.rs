//! Pieces of the log to the device, and flushes.
//!
//! The thread that has filled a piece begins its write and goes on, unless too many writes are in flight. A flush is
//! led by one thread for all that wait: it hands out the tails, writes them together, waits for all writes begun
//! before, and syncs. A piece that is still being filled is written by the thread that fills it; the flush waits for
//! that too. Up to [`LED_MAX`](crate::log::flushes::LED_MAX) flushes are led at a time, so that the sync of a
//! database's log need not wait for the sync of its tables to end. Other threads that call flush meanwhile wait. When a
//! flush ends, the threads that it covers return, and one of those that no flush covers yet leads the next. No other
//! thread is woken.
//!
//! Invariants:
//! 1. No lock is held while the device is called, which may call back before it returns.
//! 2. A flush covers only what was appended when it began, and syncs only after all of that is on the
//!    device.
//! 3. When a flush ends, one of the waiting threads that no flush covers is woken, or all of them if the flush failed:
//!    so there is a leader as long as a thread waits. With a log device there are two queues of threads that wait, and
//!    which one a thread has to join changes meanwhile: who was woken and then does not stay in that queue wakes the
//!    next one in it.
//! 4. Flushes end in the order in which they began, and none succeeds after one has failed. So the flushed prefix only
//!    grows, and no flush reports success after the device has reported an error to another.
//! 5. A store is dropped only once no write is in flight. A write that a device forgets, or in which it panics, counts
//!    as failed (`journal::Begun`).
//! 6. A flush of batches goes to the log device where there is one and it has space (`logging`). Those that settle do
//!    as without one, and then move its mark; but they note no death of a segment that a flush beside them may log.
//! 7. Each write that ends wakes one thread that waits to begin one, and a thread that has waited wakes the next when
//!    it leaves: so no thread waits when nothing is in flight, and few are woken in vain.

use crate::{
    Result, Seq,
    format::Marks,
    log::{Log, flushes::Flushes, journal::Journal, points::AppendPoint},
    mutant::{Rule, is_broken},
    sync::MutexGuard,
};

/// What a flush makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cover {
    Batches,
    /// Relocations too.
    All,
}

impl Journal {
    /// See [`crate::Ftl::flush`].
    pub(crate) fn flush(&self) -> Result<()> {
        let log = self.lock();
        let target = log.last_seq();
        self.flush_until(log, Some(target), Cover::Batches)
    }

    /// See [`crate::Ftl::flush_through`].
    pub(crate) fn flush_through(&self, seq: Seq) -> Result<()> {
        let log = self.lock();
        assert!(seq <= log.last_seq(), "a flush through batch {}, which is not there yet", seq.0);
        self.flush_until(log, Some(seq), Cover::Batches)
    }

    /// Makes everything durable that was written or appended so far, moved extents included, and
    /// notes the deaths of segments that it makes durable.
    pub(crate) fn flush_all(&self) -> Result<()> {
        self.flush_until(self.lock(), None, Cover::All)
    }

    /// The threads that wait for flushes of one kind.
    fn flushes(log: &mut Log, is_logged: bool) -> &mut Flushes {
        match &mut log.logging {
            Some(logging) if is_logged => &mut logging.flushes,
            _ => &mut log.flushes,
        }
    }

    /// Returns once the batch `target` is durable; until then leads a flush unless other threads already lead enough.
    /// Leading one flush is always enough.
    fn flush_until(&self, log: MutexGuard<'_, Log>, target: Option<Seq>, cover: Cover) -> Result<()> {
        let _sentinel = self.sentinel();
        let mut log = log; // given back before that
        let mut waited = None;
        loop {
            self.check_failure(&mut log)?;
            let durable = if cover == Cover::Batches { log.acknowledged() } else { log.durable.batches };
            let is_durable = target.is_some_and(|target| durable >= target);
            let is_logged = cover == Cover::Batches && log.can_log();
            if let Some(left) = waited.take().filter(|waited| is_durable || *waited != is_logged) {
                Journal::flushes(&mut log, left).pass_on();
            }
            if is_durable {
                return Ok(());
            }
            let flushes = Journal::flushes(&mut log, is_logged);
            if !flushes.must_wait(target) {
                return if is_logged { self.lead_logged_flush(log) } else { self.lead_flush(log, cover) };
            }
            let woken = flushes.wait(target);
            woken.wait(&mut log);
            waited = Some(is_logged);
        }
    }

    /// One flush: hand out all tails, wait until they and all earlier writes are on the device, sync, and wait for
    /// flushes that began before. A flush that fails fails the store, and all other flushes with it.
    fn lead_flush(&self, mut log: MutexGuard<'_, Log>, cover: Cover) -> Result<()> {
        let batches = log.last_seq();
        let moves = (cover == Cover::All).then_some(log.last.moves);
        let number = log.flushes.begin(batches);
        let (weight, dead) = {
            let map = self.map.read();
            let mut dead = if cover == Cover::All { log.dead(&map) } else { Vec::new() };
            log.leave_out_listed(&mut dead);
            (map.weight(0), dead)
        };
        log.peak.flush_begins(weight);
        for point in AppendPoint::all().filter(|point| cover == Cover::All || point.is_fresh()) {
            log.freeze(point);
        }
        let cut = log.cut_log();
        let mark = log.queue.mark();
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
            log.flushes.turn().wait(&mut log);
        }
        self.check_failure(&mut log)?;
        if let Some(cut) = cut {
            self.settle_to(&mut log, cut, batches)?;
            self.check_failure(&mut log)?;
        }
        let durable = Marks { batches, moves: moves.unwrap_or(log.durable.moves) };
        assert!(log.durable.max(durable) == durable, "flushes went backwards");
        log.note_flushed(durable, &dead);
        log.counters.flushes += 1;
        log.flushes.end(batches);
        Ok(())
    }

    /// Returns once all writes with an id below `mark` are on the device. Performs those that no thread has begun.
    fn write_below<'a>(&'a self, mut log: MutexGuard<'a, Log>, mark: u64) -> Result<MutexGuard<'a, Log>> {
        while log.queue.is_writing_below(mark) {
            self.check_failure(&mut log)?;
            let mut writes = Vec::new();
            while log.queue.may_begin()
                && let Some(write) = log.queue.next_below(mark)
            {
                writes.push(write);
            }
            match writes.is_empty() {
                true => self.signals.io_done.wait(&mut log),
                false => MutexGuard::unlocked(&mut log, || self.write_and_wait(writes)),
            }
        }
        self.check_failure(&mut log)?;
        Ok(log)
    }
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use std::{
        sync::{Arc, mpsc},
        thread,
        time::Duration,
    };

    use crate::{
        Error, Lba, Op,
        log::{AppendPoint, Batch},
        store::test_store,
    };

    /// What it waited for was filled then, and not written any more.
    #[test]
    fn a_flush_ends_when_the_log_stops() {
        let (store, data) = (Arc::new(test_store::store(64 << 20, None)), vec![7; 20_480]);
        let batch = Batch::prepare(&[Op::Write { lba: Lba(32), data: &data }], true).unwrap();
        let (seq, appended) = {
            let (mut log, mut map) = (store.journal.lock(), store.map.write());
            log.accept(&mut map, AppendPoint::Data(0), &batch, &batch.items)
        };
        let (ended, has_ended) = mpsc::channel();
        let flusher = Arc::clone(&store);
        thread::spawn(move || ended.send(flusher.journal.flush()).unwrap());
        // It holds the lock from there until it waits.
        while !store.journal.lock().flushes.must_wait(Some(seq)) {
            thread::yield_now();
        }
        store.journal.lock().stop("a forged map");
        assert!(matches!(store.journal.fill(&batch.items, appended), Err(Error::Poisoned { .. })));
        let outcome = has_ended.recv_timeout(Duration::from_secs(120)).expect("it waits for ever");
        assert!(matches!(outcome, Err(Error::Poisoned { .. })), "{outcome:?}");
    }
}
