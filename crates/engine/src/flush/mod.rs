//! Flushing: bringing changed pages to the device, many at a time, by many threads.
//!
//! One producer decides what is due, from the space left in the log and from the pages that stand in
//! the way of eviction, and fills a queue of jobs; consumers copy the pages of a job under a shared
//! latch, compress the copies outside of it, and write them in one batch. Foreground threads never
//! compress: a caller that wants all written, or a table optimized, hands in jobs and waits. (The multi-threaded
//! flush of Lindström et al., "NVM aware MariaDB database system", NVMSA 2015, with targets instead of a
//! fixed scan depth.)
//!
//! Invariants:
//!
//! 1. A page is written only when the log up to its LSN is: *written* before it where the place is
//!    `ordered`, flushed before it elsewhere.
//! 2. A page leaves the flush list only when its image can no longer be lost unless the log behind
//!    it is too: on an ordered place when it is written, elsewhere when it is synced.
//! 3. Where the place cannot write a page atomically, an image is synced in the doublewrite file
//!    before the page is overwritten.
//! 4. The control file names a checkpoint before the log behind it is given up.
//! 5. A job writes those of its pages that are dirty since before the log offset that it names. A caller that
//!    wants all changes up to an offset on the device names that offset; pages that were written since, and changed
//!    again, have no part in it.
//!
//! 6. The image of a page that is listed as free is a hole (`alloc`, invariant 2), which obeys all these.
//!
//! No latch is held while a page is compressed and written, and none is waited for: a page that is being
//! changed is left for the next round. Only rewriting (`rewrite.rs`) takes pages as others do; nobody waits
//! for a job with a page latched.

mod capacity;
mod doublewrite;
mod horizon;
mod rewrite;
mod stats;
mod write;

use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use lacuna_device::Place;

pub(crate) use capacity::{history_bytes, log_bytes};
#[cfg(test)]
pub(crate) use doublewrite::LAYOUT as DOUBLEWRITE_LAYOUT;
#[cfg(feature = "fuzzing")]
pub(crate) use doublewrite::fuzz_doublewrite;
pub(crate) use doublewrite::restore;
pub(crate) use rewrite::Rewrite;
pub use stats::FlushStats;
use write::Writer;

use crate::{
    alloc::{truncate, truncate_all},
    mtr::Pager,
    mutant::{Rule, is_broken},
    poison::Poison,
    pool::{Frame, replay_cost::ReplayEstimate},
    space::{Space, Spaces},
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc, thread,
    },
    types::{
        error::Result,
        ids::Lsn,
        options::{Doublewrite, StoreOptions},
    },
    wal::{
        Until,
        control::{Control, Root},
    },
};
use capacity::Capacity;
use doublewrite::DoublewriteFile;
use horizon::Horizon;
pub(crate) use horizon::Transactions;
use stats::{Cause, Counters};

/// Pages in a job, at most.
const JOB_PAGES: usize = 32;
/// Pages that a round of the producer asks for, at most.
const ROUND_PAGES: usize = 512;
/// Share of the log behind which a page is flushed for its oldest change. The later that is, the more changes of a
/// page go with one image; but from 7/8 on writers wait, and the checkpoint follows by sixteenths.
const LOG_SHARE: (u64, u64) = (3, 4);
/// Flushes after which a rewrite that waits has its turn, or optimizing would not end beside writers that never rest.
const FLUSHES_IN_A_ROW: usize = 8;
/// How often the producer looks around when nobody wakes it.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);

/// Brings pages to the device, and moves the checkpoint.
pub(crate) struct Flusher {
    place: Arc<dyn Place>,
    spaces: Arc<Spaces>,
    pager: Arc<Pager>,
    control: Control,
    transactions: Arc<dyn Transactions>,
    options: StoreOptions,
    poison: Arc<Poison>,
    queue: Mutex<Queue>,
    /// Jobs were queued, or it is time to stop.
    work: Condvar,
    /// A job was done.
    done: Condvar,
    doublewrite: Option<DoublewriteFile>,
    /// One checkpoint at a time.
    checkpointing: Mutex<()>,
    is_running: AtomicBool,
    /// When the log was last synced for its age.
    log_synced: Mutex<Instant>,
    room: Capacity,
    horizon: Horizon,
    counters: Counters,
}

#[derive(Default)]
struct Queue {
    flushes: VecDeque<Job>,
    /// Space in the log and memory wait for flushes; only a caller that optimizes waits for these. So these mostly come
    /// last.
    rewrites: VecDeque<Job>,
    /// Flushes taken since the last rewrite was.
    flushes_taken: usize,
    /// Grows with each job and checkpoint that is done.
    progress: u64,
    stop: bool,
}

impl Queue {
    /// The jobs among which this one waits, in the order in which they came.
    fn of(&mut self, work: &Work) -> &mut VecDeque<Job> {
        match work {
            Work::Flush(_) => &mut self.flushes,
            Work::Rewrite(_) => &mut self.rewrites,
        }
    }

    fn next(&mut self) -> Option<Job> {
        let is_turn = self.flushes.is_empty() || self.flushes_taken >= FLUSHES_IN_A_ROW;
        if is_turn && let Some(rewrite) = self.rewrites.pop_front() {
            self.flushes_taken = 0;
            return Some(rewrite);
        }
        let flush = self.flushes.pop_front();
        self.flushes_taken += usize::from(flush.is_some());
        flush
    }
}

/// Pages that are to be written if they still are dirty since before `before`: one that was written meanwhile, and
/// changed again, is not due any more.
pub(crate) struct Due {
    frames: Vec<Arc<Frame>>,
    before: Lsn,
    cause: Cause,
}

/// A unit of a consumer's work.
pub(crate) enum Work {
    /// Writes pages that are due.
    Flush(Due),
    /// Writes pages anew that did not change.
    Rewrite(Rewrite),
}

impl Work {
    /// The pages that were written anew. A failure has poisoned the store.
    fn carry_out(self, flusher: &Flusher, writer: &mut Writer) -> Result<u64> {
        match self {
            Work::Flush(due) => {
                let written = writer.write(flusher, &due);
                flusher.pager.pool().take_back(due.frames);
                written.map(|()| 0)
            }
            Work::Rewrite(rewrite) => writer.rewrite(flusher, rewrite),
        }
    }
}

/// Work in the queue.
struct Job {
    work: Work,
    /// Where its outcome goes, if somebody waits for it. Nobody else needs it: a failure poisons the store.
    ended: Option<mpsc::Sender<Result<u64>>>,
}

impl Flusher {
    pub(crate) fn new(
        (place, place_bytes): (Arc<dyn Place>, u64),
        options: &StoreOptions,
        spaces: Arc<Spaces>,
        pager: Arc<Pager>,
        control: Control,
        transactions: Arc<dyn Transactions>,
        poison: Arc<Poison>,
    ) -> Result<Flusher> {
        let props = place.props();
        let page = lacuna_page::PAGE_BYTES_MAX as u64;
        let is_atomic = props.atomic_bytes_max >= page && u64::from(props.atomic_align) <= 512;
        let twice = match options.doublewrite {
            Doublewrite::Auto => !is_atomic,
            Doublewrite::On => true,
            Doublewrite::Off => false,
        };
        let doublewrite = if twice { Some(DoublewriteFile::open(&*place)?) } else { None };
        Ok(Flusher {
            place,
            spaces,
            pager,
            control,
            transactions,
            options: options.clone(),
            poison,
            queue: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            doublewrite,
            checkpointing: Mutex::new(()),
            is_running: AtomicBool::new(false),
            log_synced: Mutex::new(Instant::now()),
            room: Capacity::new(options, place_bytes),
            horizon: Horizon::default(),
            counters: Counters::default(),
        })
    }

    pub(crate) fn stats(&self) -> FlushStats {
        self.counters.stats()
    }

    pub(crate) fn writes_twice(&self) -> bool {
        self.doublewrite.is_some()
    }
}

impl Flusher {
    /// From now on threads run [`Flusher::produce`] and [`Flusher::consume`], until [`Flusher::stop`].
    pub(crate) fn start(&self) {
        self.queue.lock().stop = false;
        self.is_running.store(true, Ordering::Release);
    }

    /// Asks the threads to end once they are done with what they are doing.
    pub(crate) fn stop(&self) {
        self.is_running.store(false, Ordering::Release);
        self.queue.lock().stop = true;
        self.work.notify_all();
        self.done.notify_all();
        self.pager.pool().ask_for_flush();
    }

    pub(crate) fn has_threads(&self) -> bool {
        self.is_running.load(Ordering::Acquire)
    }

    pub(crate) fn produce(&self) {
        while self.has_threads() {
            self.pager.pool().wait_until_asked(INTERVAL);
            if self.poison.check().is_err() {
                // Nothing will be written any more, but writers must be let go.
                self.done.notify_all();
                thread::sleep(INTERVAL);
                continue;
            }
            self.poison.guard(|| self.produce_round());
        }
    }

    fn produce_round(&self) {
        // A place that cannot be asked will say so when it is written to.
        let _ = self.measure_capacity();
        for work in self.due_work() {
            let refused = self.submit(Job { work, ended: None });
            if let Err(Job { work: Work::Flush(due), .. }) = refused {
                self.pager.pool().take_back(due.frames); // it is time to stop
            }
        }
        if self.checkpoint_is_due() && self.checkpoint().is_ok() {
            self.note_progress();
            let _ = truncate_all(&self.pager, &self.spaces, self.options.log_bytes)
                .map_err(|e| self.poison.set(e));
        }
        let _ = self.sync_relaxed();
    }

    /// Syncs the log when [`StoreOptions::relaxed_interval`] is over; for stores with relaxed durability.
    pub(crate) fn sync_relaxed(&self) -> Result<()> {
        let mut synced = self.log_synced.lock();
        if synced.elapsed() < self.options.relaxed_interval {
            return Ok(());
        }
        *synced = Instant::now();
        drop(synced);
        self.pager.log().reach(self.pager.log().next(), Until::Flushed)
    }

    /// Gives back what is free at the end of a table's file, also what a crash has left of that to do.
    pub(crate) fn truncate(&self, space: &Arc<Space>) -> Result<()> {
        truncate(&self.pager, space, true, self.options.log_bytes)
    }

    /// Where recovery would start now.
    pub(crate) fn checkpoint_lsn(&self) -> Lsn {
        self.control.root().checkpoint
    }

    pub(crate) fn place(&self) -> &dyn Place {
        &*self.place
    }

    /// Wakes the threads that wait for space in the log or the pool.
    fn note_progress(&self) {
        self.queue.lock().progress += 1;
        self.done.notify_all();
    }

    /// Pages that should be flushed now: pages that eviction wants, pages whose changes keep too much log,
    /// and the oldest ones when too many are dirty.
    fn due_work(&self) -> Vec<Work> {
        let next = self.pager.log().next();
        let mut all = into_work(self.pager.pool().take_wanted(), next, Cause::Eviction);
        let log_kept = self.options.log_bytes / LOG_SHARE.1 * LOG_SHARE.0;
        if self.pager.log().used_bytes() > log_kept {
            let before = Lsn(next.0.saturating_sub(log_kept));
            all.extend(into_work(
                self.pager.pool().dirty().oldest_pages(before, ROUND_PAGES),
                before,
                Cause::Log,
            ));
        }
        let (bytes, reads) = self.pager.pool().dirty().dirty_bytes_and_reads();
        let too_many_bytes = bytes.saturating_sub(self.room.dirty_bytes_max as usize);
        let too_many_reads = reads.saturating_sub(self.room.dirty_reads_max() as usize);
        if too_many_bytes > 0 || too_many_reads > 0 {
            let pages = (too_many_bytes / (16 << 10) + 1).max(too_many_reads).min(ROUND_PAGES);
            all.extend(into_work(self.pager.pool().dirty().oldest_pages(next, pages), next, Cause::Dirty));
        }
        all
    }

    /// Queues a job; gives it back when nobody is going to do it.
    fn submit(&self, job: Job) -> Result<(), Job> {
        let mut queue = self.queue.lock();
        // Two jobs for each consumer keep all busy; more would only grow stale.
        while queue.of(&job.work).len() >= 2 * self.options.flush_threads && !queue.stop {
            self.done.wait_for(&mut queue, INTERVAL);
        }
        if queue.stop || !self.has_threads() {
            return Err(job);
        }
        queue.of(&job.work).push_back(job);
        self.work.notify_one();
        Ok(())
    }

    /// Has all of it done by consumers, several at a time, or where there are none in this thread; waits for
    /// it. How many pages were written anew. The caller holds no latch.
    pub(crate) fn carry_out(&self, all: impl IntoIterator<Item = Work>) -> Result<u64> {
        let (ended, outcomes) = mpsc::channel();
        let mut writer = None;
        let (mut here, mut submitted) = (Ok(0), 0);
        for work in all {
            if let Err(job) = self.submit(Job { work, ended: Some(ended.clone()) }) {
                let writer = writer.get_or_insert_with(Writer::default);
                here = here.and_then(|pages| Ok(pages + job.work.carry_out(self, writer)?));
            } else {
                submitted += 1;
            }
        }
        drop(ended);
        // Until the last job has ended, whatever came of the others.
        let sum = outcomes.iter().inspect(|_| submitted -= 1).fold(here, |sum, outcome| Ok(sum? + outcome?));
        if submitted > 0 {
            self.poison.check()?; // a job that panicked has no outcome
        }
        sum
    }

    pub(crate) fn consume(&self) {
        let mut writer = Writer::default();
        loop {
            let Job { work, ended } = {
                let mut queue = self.queue.lock();
                loop {
                    if let Some(job) = queue.next() {
                        break job;
                    }
                    if queue.stop {
                        return;
                    }
                    self.work.wait(&mut queue);
                }
            };
            let outcome = self.poison.guard(|| work.carry_out(self, &mut writer));
            self.note_progress();
            // A caller that no longer waits finds the poison at its next write.
            if let (Some(ended), Some(outcome)) = (ended, outcome) {
                let _ = ended.send(outcome);
            }
        }
    }

    /// One round of flushing in this thread. Whether pages were written: what is due may be on its way already.
    pub(crate) fn flush_step(&self) -> Result<bool> {
        let all = self.due_work();
        let written_before = self.stats().pages;
        let mut writer = Writer::default();
        all.into_iter().try_for_each(|work| work.carry_out(self, &mut writer).map(drop))?;
        if self.checkpoint_is_due() {
            self.checkpoint()?;
            truncate_all(&self.pager, &self.spaces, self.options.log_bytes)?;
        }
        Ok(self.stats().pages != written_before)
    }

    /// Writes every page that is dirty now, and moves the checkpoint to the log's end. With nobody
    /// writing, the next recovery has nothing to replay.
    pub(crate) fn flush_all(&self) -> Result<()> {
        truncate_all(&self.pager, &self.spaces, self.options.log_bytes)?;
        let until = self.pager.log().next();
        self.pager.log().reach(until, Until::Flushed)?;
        loop {
            self.poison.check()?;
            let frames = self.pager.pool().dirty().oldest_pages(until, ROUND_PAGES);
            self.carry_out(into_work(frames, until, Cause::Asked))?;
            if self.pager.pool().dirty().oldest().is_none_or(|oldest| oldest >= until) {
                break;
            }
            // The other pages are latched by a writer or on their way in another thread.
            thread::yield_now();
        }
        self.checkpoint()
    }

    fn checkpoint_is_due(&self) -> bool {
        // Another thread may be ahead.
        let start = self.pager.log().start_needed(|| self.pager.pool().dirty().oldest()).0;
        start.saturating_sub(self.control.root().checkpoint.0) > self.options.log_bytes / 16
    }

    /// Moves the checkpoint as far as the pages on the device allow (invariant 4).
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one = self.checkpointing.lock();
        let before = self.control.root();
        let start = self.pager.log().start_needed(|| self.pager.pool().dirty().oldest());
        if start == before.checkpoint {
            return Ok(());
        }
        let root = Root { checkpoint: start, ..before };
        let sync = !self.place.props().ordered && !is_broken(Rule::CheckpointsSynced);
        self.control.write(root, sync).map_err(|e| self.poison.set(e))?;
        self.pager.log().truncate(start)?;
        self.counters.checkpointed();
        Ok(())
    }

    /// Slows a writer down while log or memory are nearly used up.
    /// The caller holds no latch.
    pub(crate) fn throttle(&self) -> Result<()> {
        let is_tight =
            || self.pager.log().used_bytes() > self.options.log_bytes / 8 * 7 || self.is_memory_tight();
        if !is_tight() {
            return Ok(());
        }
        self.counters.throttled();
        let mut seen = self.queue.lock().progress;
        while is_tight() {
            self.poison.check()?;
            if self.has_threads() {
                self.pager.pool().ask_for_flush();
                let mut queue = self.queue.lock();
                if queue.progress == seen {
                    self.done.wait_for(&mut queue, INTERVAL);
                }
                seen = queue.progress;
            } else if !self.flush_step()? {
                // Only pages in use are left in memory: let the caller make progress.
                self.checkpoint()?;
                return Ok(());
            }
            self.pager.pool().shrink();
        }
        Ok(())
    }

    /// Whether the pool is nearly used up, or too much of it is dirty: for the pool, the place, or a recovery.
    fn is_memory_tight(&self) -> bool {
        self.pager.pool().dirty().unflushed_bytes() as u64 > self.room.unflushed_bytes_max()
            || self.pager.pool().dirty().unflushed_reads() as u64 > self.room.reads_max
            || self.pager.pool().bytes() > self.pager.pool().budget_bytes() / 8 * 9
    }

    /// Flushes in this thread while memory is nearly used up: recovery does, before there are others. The caller
    /// holds no latch.
    pub(crate) fn relieve_memory(&self) -> Result<()> {
        while self.is_memory_tight() && self.flush_step()? {
            self.pager.pool().shrink();
        }
        Ok(())
    }

    /// The work of a recovery if the store ended now.
    pub(crate) fn replay_estimate(&self) -> ReplayEstimate {
        let reads = self.pager.pool().dirty().unflushed_reads() as u64;
        ReplayEstimate::new(self.pager.log().used_bytes(), reads, self.room.reads_max)
    }

    /// Slows a reader down while far more than the pool's budget is in memory, which only happens
    /// when nearly all of it is dirty. The caller holds no latch.
    pub(crate) fn throttle_memory(&self) -> Result<()> {
        if self.pager.pool().bytes() > self.pager.pool().budget_bytes() / 4 * 5 {
            self.throttle()
        } else {
            Ok(())
        }
    }
}

fn into_work(mut frames: Vec<Arc<Frame>>, before: Lsn, cause: Cause) -> Vec<Work> {
    frames.sort_by_key(|frame| frame.id());
    let mut all = Vec::new();
    while !frames.is_empty() {
        let rest = frames.split_off(frames.len().min(JOB_PAGES));
        all.push(Work::Flush(Due { frames: mem::replace(&mut frames, rest), before, cause }));
    }
    all
}

#[cfg(test)]
mod tests {
    use lacuna_device::{MemPlace, StreamHint};

    use super::*;
    use crate::{
        space::Space,
        types::{ids::TableId, options::Layout},
    };

    #[test]
    fn flushes_go_before_rewrites_each_in_turn() {
        let file = MemPlace::new().create("t", StreamHint::Data).expect("create");
        let space = Arc::new(Space::new(TableId(16), file, Layout::of_pages(4096)).expect("space"));
        let rewrite = |pages| Work::Rewrite(Rewrite { space: Arc::clone(&space), pages });
        let due = Due { frames: Vec::new(), before: Lsn(0), cause: Cause::Asked };
        let mut queue = Queue::default();
        for work in [rewrite(0..1), rewrite(1..2), Work::Flush(due)] {
            queue.of(&work).push_back(Job { work, ended: None });
        }
        let order = std::iter::from_fn(|| queue.next()).map(|job| match job.work {
            Work::Flush(_) => None,
            Work::Rewrite(rewrite) => Some(rewrite.pages.start),
        });
        assert_eq!(order.collect::<Vec<_>>(), [None, Some(0), Some(1)]);
    }

    #[test]
    fn a_rewrite_has_its_turn_beside_flushes_without_end() {
        let file = MemPlace::new().create("t", StreamHint::Data).expect("create");
        let space = Arc::new(Space::new(TableId(16), file, Layout::of_pages(4096)).expect("space"));
        let rewrite = || Work::Rewrite(Rewrite { space: Arc::clone(&space), pages: 0..1 });
        let flush = || Work::Flush(Due { frames: Vec::new(), before: Lsn(0), cause: Cause::Log });
        let push = |queue: &mut Queue, work: Work| queue.of(&work).push_back(Job { work, ended: None });
        let mut queue = Queue::default();
        push(&mut queue, rewrite());
        push(&mut queue, rewrite());
        let order: String = (0..24)
            .map(|_| {
                push(&mut queue, flush());
                match queue.next().expect("there is work").work {
                    Work::Flush(_) => 'f',
                    Work::Rewrite(_) => 'R',
                }
            })
            .collect();
        assert_eq!(order, "ffffffffRffffffffRffffff");
    }

    /// Otherwise the recovery after the next would read it again (replay invariant 4).
    #[test]
    fn what_landed_is_noted_again_when_the_log_lost_the_note() {
        let place = MemPlace::new();
        let open = || {
            let options = StoreOptions { background: false, ..StoreOptions::default() };
            crate::Store::open(place.clone(), options).expect("open")
        };
        let store = open();
        let table = store.create_table("t", crate::TableOptions::default()).expect("table");
        let flusher = table.engine().flusher().clone();
        let until = flusher.pager.log().next();
        let due =
            into_work(flusher.pager.pool().dirty().oldest_pages(until, ROUND_PAGES), until, Cause::Asked);
        flusher.carry_out(due).expect("flush");
        // The notes are still in memory, and end there.
        flusher.poison.close();
        drop((table, store, flusher));
        let recovered = [0; 3].map(|_| open().stats().expect("stats").recovery);
        assert!(recovered[0].pages > 3 && recovered[0].applied == 0, "{recovered:?}");
        // Opening changes a page of its own.
        assert!(recovered[1..].iter().all(|did| did.pages <= 1 && did.landed > 3), "{recovered:?}");
    }
}
