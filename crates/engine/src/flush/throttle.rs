//! Throttling: writers and readers wait while log or memory are nearly used up.

use super::{Flusher, INTERVAL};
use crate::{pool::replay_cost::ReplayEstimate, types::Result};

impl Flusher {
    /// Flushes before there is no space for it any more, and slows a writer down while log or memory are nearly used up.
    /// The caller holds no latch.
    pub(crate) fn throttle(&self) -> Result<()> {
        self.flush_while_possible()?;
        let is_tight = || self.is_log_tight() || self.is_memory_tight();
        if !is_tight() {
            return Ok(());
        }
        self.stats.lock().throttled += 1;
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

    /// Whether the log is nearly used up.
    pub(super) fn is_log_tight(&self) -> bool {
        self.pager.log().used_bytes() > self.options.log_bytes / 8 * 7
    }

    /// Whether the pool is nearly used up, or too much of it is dirty: for the pool, the VFS, or a recovery.
    pub(super) fn is_memory_tight(&self) -> bool {
        self.pager.pool().dirty().unflushed_bytes() as u64 > self.capacity.unflushed_bytes_max()
            || self.pager.pool().dirty().unflushed_reads() as u64 > self.capacity.reads_max
            || self.pager.pool().bytes() > self.pager.pool().budget_bytes() / 8 * 9
    }

    /// Flushes in this thread while memory is nearly used up; recovery does so, before the flush threads run. The
    /// caller holds no latch.
    pub(crate) fn relieve_memory(&self) -> Result<()> {
        while self.is_memory_tight() && self.flush_step()? {
            self.pager.pool().shrink();
        }
        Ok(())
    }

    /// Slows a reader down while far more than the pool's budget is in memory, which only happens
    /// when nearly all of it is dirty. The caller holds no latch.
    pub(crate) fn throttle_memory(&self) -> Result<()> {
        let is_far_over = || self.pager.pool().bytes() > self.pager.pool().budget_bytes() / 4 * 5;
        if is_far_over() {
            self.pager.pool().shrink();
        }
        // A store that is stopped, or only read, flushes nothing, and can be read.
        if is_far_over() && self.poison.check().is_ok() { self.throttle() } else { Ok(()) }
    }

    /// The work of a recovery if the store ended now.
    pub(crate) fn replay_estimate(&self) -> ReplayEstimate {
        let reads = self.pager.pool().dirty().unflushed_reads() as u64;
        ReplayEstimate::new(self.pager.log().used_bytes(), reads, self.capacity.reads_max)
    }
}
