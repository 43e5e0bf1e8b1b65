//! The producer, which decides which pages are due, and the consumers, which write them.

use std::time::Duration;

use super::{
    Flusher, INTERVAL, ROUND_PAGES,
    queue::{Job, Work},
    stats::Cause,
    write::Writer,
};
use crate::{
    sync::{mpsc, thread},
    types::{Lsn, Result},
};

/// A page is flushed for its oldest change when more than this share of the log follows that. The later that is, the
/// more changes of a page share one image; but from 7/8 on writers wait, and the checkpoint follows by sixteenths.
const LOG_SHARE: (u64, u64) = (3, 4);

impl Flusher {
    pub(crate) fn produce(&self) {
        while self.has_threads() {
            self.pager.pool().wait_until_asked(INTERVAL);
            if self.poison.check().is_err() {
                // Nothing will be written any more, but waiting writers must be woken.
                self.done.notify_all();
                thread::sleep(INTERVAL);
                continue;
            }
            self.poison.guard(|| self.produce_round());
        }
    }

    pub(super) fn produce_round(&self) {
        // A VFS that fails here will report its error on the next write.
        let _ = self.measure_capacity();
        for work in self.due_work() {
            let refused = self.submit(Job { work, ended: None });
            if let Err(Job { work: Work::Flush(due), .. }) = refused {
                self.pager.pool().take_back(due.frames); // it is time to stop
            }
        }
        if let Some(work) = self.rest_work()
            && self.submit(Job { work, ended: None }).is_err()
        {
            self.end_rest(0, Duration::ZERO);
        }
        if self.checkpoint_is_due() && self.checkpoint().is_ok() {
            self.note_progress();
            let _ = self.truncate_all();
        }
        let _ = self.sync_relaxed();
    }

    /// Pages that should be flushed now: pages that eviction wants, pages whose changes keep too much log,
    /// and the oldest ones when too many are dirty.
    pub(super) fn due_work(&self) -> Vec<Work> {
        self.stats.lock().rounds += 1;
        let next = self.pager.log().next();
        let mut all = self.jobs(self.pager.pool().take_wanted(), next, Cause::Eviction);
        if let Some(before) = self.log_needs_flushed() {
            let pages = self.pager.pool().dirty().oldest_pages(before, ROUND_PAGES);
            all.extend(self.jobs(pages, before, Cause::Log));
        }
        let (bytes, reads) = self.pager.pool().dirty().dirty_bytes_and_reads();
        let too_many_bytes = bytes.saturating_sub(self.capacity.dirty_bytes_max as usize);
        let too_many_reads = reads.saturating_sub(self.capacity.dirty_reads_max() as usize);
        if too_many_bytes > 0 || too_many_reads > 0 {
            let pages = (too_many_bytes / (16 << 10) + 1).max(too_many_reads).min(ROUND_PAGES);
            all.extend(self.jobs(self.pager.pool().dirty().oldest_pages(next, pages), next, Cause::Dirty));
        }
        all
    }

    /// Bytes of log in use beyond which pages are flushed to give some back.
    pub(super) fn log_kept(&self) -> u64 {
        self.options.log_bytes / LOG_SHARE.1 * LOG_SHARE.0
    }

    /// Pages that are dirty since before that keep too much of the log.
    pub(super) fn log_needs_flushed(&self) -> Option<Lsn> {
        let log_kept = self.log_kept();
        let log = self.pager.log();
        // A group that was made for a larger log may be longer than what is to be freed.
        (log.used_bytes() > log_kept)
            .then(|| Lsn(log.next().0.saturating_sub(log_kept)).max(log.checkpoint_group_end()))
    }

    /// Queues a job; returns it when no thread will run it.
    pub(super) fn submit(&self, job: Job) -> Result<(), Job> {
        let mut queue = self.queue.lock();
        // Two jobs for each consumer keep all busy; more would only become stale.
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

    /// Runs all jobs in the consumers, several at a time, or without consumers in this thread, and waits for them.
    /// Returns the number of rewritten pages. The caller holds no latch.
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

    /// One round of flushing in this thread. Returns whether pages were written: due pages may be in flight already.
    pub(crate) fn flush_step(&self) -> Result<bool> {
        let all = self.due_work();
        let written_before = self.stats().pages;
        let mut writer = Writer::default();
        all.into_iter()
            .chain(self.rest_work())
            .try_for_each(|work| work.carry_out(self, &mut writer).map(drop))?;
        if self.checkpoint_is_due() {
            self.checkpoint()?;
            self.truncate_all()?;
        }
        Ok(self.stats().pages != written_before)
    }

    /// Wakes the threads that wait for space in the log or the pool.
    pub(super) fn note_progress(&self) {
        self.queue.lock().progress += 1;
        self.done.notify_all();
    }
}
