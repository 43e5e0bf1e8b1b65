//! Writing everything, and moving the checkpoint.

use std::{sync::Arc, time::Instant};

use super::{Flusher, ROUND_PAGES, stats::Cause};
use crate::{
    mutant::{Rule, is_broken},
    pool::Frame,
    sync::thread,
    types::Result,
    wal::{Until, control::Root},
};

impl Flusher {
    /// Syncs the log when [`crate::StoreOptions::relaxed_interval`] has passed; for stores with relaxed durability.
    pub(crate) fn sync_relaxed(&self) -> Result<()> {
        let mut synced = self.log_synced.lock();
        let is_early = synced.elapsed() < self.options.relaxed_interval && !is_broken(Rule::RelaxedWaits);
        if is_early || is_broken(Rule::RelaxedSyncs) {
            return Ok(());
        }
        *synced = Instant::now();
        drop(synced);
        self.pager.log().reach(self.pager.log().next(), Until::Flushed)
    }

    /// Writes every page that is dirty now, and moves the checkpoint to the log's end. If no transaction writes
    /// meanwhile, the next recovery has nothing to replay.
    pub(crate) fn flush_all(&self) -> Result<()> {
        self.flush_as_far_as(|_| true)
    }

    /// The same as far as there is space: never more pages at a time than would fit if each took its full size, beside
    /// those that are on their way already, in whichever thread. Most take none that they had not before. A cut finds some
    /// pages written and the checkpoint before the others, as in any flush.
    ///
    /// Of several threads that do so at once, each finds what another has chosen either on its way or among the oldest
    /// that it chooses itself.
    pub(super) fn flush_what_fits(&self) -> Result<()> {
        self.flush_as_far_as(|frames| {
            // Before the measurement, which may miss what is on its way.
            let in_flight = match is_broken(Rule::FlightsTakeSpace) {
                true => 0,
                false => self.pager.pool().dirty().in_flight_bytes() as u64,
            };
            // What is known stays if that fails.
            let _ = self.measure_capacity();
            let (free_bytes, mut bytes) = (self.free_bytes(), in_flight);
            let fits = frames.iter().take_while(|frame| {
                bytes += frame.page_bytes() as u64;
                bytes <= free_bytes
            });
            let count = fits.count();
            frames.truncate(count);
            // Others may fit once those have landed.
            count > 0 || in_flight > 0
        })
    }

    /// Writes every page that is dirty now, those at a time that `choose` leaves, as long as that returns true; and moves the
    /// checkpoint.
    fn flush_as_far_as(&self, mut choose: impl FnMut(&mut Vec<Arc<Frame>>) -> bool) -> Result<()> {
        self.truncate_all()?;
        let until = self.pager.log().next();
        self.pager.log().reach(until, Until::Flushed)?;
        loop {
            self.poison.check()?;
            let mut frames = self.pager.pool().dirty().oldest_pages(until, ROUND_PAGES);
            if !frames.is_empty() && !choose(&mut frames) {
                break;
            }
            self.carry_out(self.jobs(frames, until, Cause::Asked))?;
            if self.pager.pool().dirty().oldest().is_none_or(|oldest| oldest >= until) {
                break;
            }
            // The other pages are latched by a writer or on their way in another thread.
            thread::yield_now();
        }
        self.checkpoint()
    }

    /// It moves by sixteenths of the log. By less only if writers wait for space in the log, and no page that is due would
    /// move it further: they would wait for ever.
    pub(super) fn checkpoint_is_due(&self) -> bool {
        let oldest = || self.pager.pool().dirty().oldest();
        // Another thread may have moved it further.
        let start = self.pager.log().start_needed(oldest).0;
        let step = start.saturating_sub(self.control.root().checkpoint.0);
        let is_all = || {
            self.is_log_tight()
                && self
                    .log_needs_flushed()
                    .is_some_and(|before| oldest().is_none_or(|oldest| oldest >= before))
        };
        step > self.options.log_bytes / 16 || step > 0 && is_all()
    }

    /// Makes the store one that needs `features`, durably: programs that do not know them refuse it from now on.
    pub(crate) fn require(&self, features: u64) -> Result<()> {
        // They are never taken back.
        if self.control.root().features & features == features {
            return Ok(());
        }
        let _one = self.checkpointing.lock();
        let _writing = self.poison.begin_to_write()?;
        let before = self.control.root();
        let root = Root { features: before.features | features, ..before };
        self.control.write(root, true).map_err(|e| self.poison.set(e))
    }

    /// Moves the checkpoint as far as the pages on the device allow (invariant 4).
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one = self.checkpointing.lock();
        let before = self.control.root();
        let start = self.pager.log().start_needed(|| self.pager.pool().dirty().oldest());
        if start == before.checkpoint {
            return Ok(());
        }
        // Groups that only note page writes may still be in memory: given back first, their room would be taken for good.
        self.pager.log().reach(start, Until::Written)?;
        let _writing = self.poison.begin_to_write()?;
        let root = Root { checkpoint: start, ..before };
        let sync = !self.vfs.props().ordered && !is_broken(Rule::CheckpointsSynced);
        self.control.write(root, sync).map_err(|e| self.poison.set(e))?;
        self.pager.log().truncate(start)?;
        self.stats.lock().checkpoints += 1;
        Ok(())
    }
}
