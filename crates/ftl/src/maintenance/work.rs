//! Doing what is due, one piece at a time.

use std::time::{Duration, Instant};

use super::parts::{Activity, Maintenance};
use super::plan::Plan;
use crate::{
    Error, Result, Work, checkpoint::Rewrite, gc::Collecting, log::Log, map::Map, paging::DIRTY_SHARE_MAX,
};

/// How long to wait before looking again whether a segment is still pinned.
const PINNED_WAIT: Duration = Duration::from_millis(1);

impl Maintenance {
    /// See [`crate::Ftl::step`].
    pub(crate) fn step(&self, work: Work) -> Result<bool> {
        self.volume.must_write()?;
        let _turn = self.journal.turn();
        let mut collecting = self.collector.collecting();
        let plan = {
            let mut log = self.journal.lock();
            self.journal.check_poison(&log)?;
            let map = self.map.read();
            match work {
                Work::Due => self.due(&mut log, &map, &mut collecting),
                Work::Checkpoint => Some(Plan::Checkpoint),
                Work::Gc => self.collector.victim(&log, &map, &mut collecting).map(Plan::Collect),
            }
        };
        let Some(plan) = plan else { return Ok(false) };
        self.carry_out(plan, &mut collecting)?;
        Ok(true)
    }

    /// Makes space for a batch that misses free segments.
    ///
    /// # Errors
    /// `Full` when nothing can be done.
    pub(crate) fn make_space(&self, missing: impl Fn(&Log, &Map) -> usize) -> Result<()> {
        let _turn = self.journal.turn();
        let mut collecting = self.collector.collecting();
        loop {
            let plan = {
                let mut log = self.journal.lock();
                self.journal.check_poison(&log)?;
                let map = self.map.read();
                let missing = missing(&log, &map);
                if missing == 0 {
                    return Ok(());
                }
                let target = missing + self.ahead(&log);
                match self.plan(&mut log, &map, &mut collecting, target) {
                    Some(plan) => plan,
                    None if self.reuse.waiting(&log, &map).reader == 0
                        && self.map_surplus(&log, &map).1 == 0 =>
                    {
                        return Err(self.journal.full(&map, log.limits()));
                    }
                    None => {
                        // A reader, or a check, pins a segment that could be freed. It waits for no other thread, so
                        // it will be gone soon, and the next plan counts again.
                        drop(map);
                        self.journal.wait_for_move(&mut log, Instant::now() + PINNED_WAIT);
                        continue;
                    }
                }
            };
            self.carry_out(plan, &mut collecting)?;
        }
    }

    /// Brings changed leaves of the map below what they may take of the memory, if they are above.
    pub(crate) fn limit_dirty_leaves(&self) -> Result<()> {
        if !self.pages.is_write_back_due(&self.map.read(), DIRTY_SHARE_MAX) {
            return Ok(());
        }
        let _turn = self.journal.turn();
        while self.pages.is_write_back_due(&self.map.read(), DIRTY_SHARE_MAX) {
            match self.checkpointer.write_back() {
                // The memory budget is exceeded rather than a batch refused.
                Err(Error::Full { .. }) => break,
                result => result?,
            }
        }
        Ok(())
    }

    fn carry_out(&self, plan: Plan, collecting: &mut Collecting) -> Result<()> {
        self.set_activity(match plan {
            Plan::Collect(_) => Activity::Collecting,
            _ => Activity::Other,
        });
        match plan {
            Plan::Checkpoint => self.checkpointer.checkpoint_in_turn(Rewrite::Sparse),
            Plan::Collect(victim) => self.collector.collect(victim, collecting),
            Plan::WriteBack => self.checkpointer.write_back(),
            Plan::Flush => self.reuse.flush_and_free(),
            Plan::RetainedSummaries => self.checkpointer.retain_and_free(),
            Plan::Free => {
                self.reuse.free_reusable();
                Ok(())
            }
            Plan::MakeReady => self.make_ready(),
            Plan::Release => {
                self.release(Maintenance::to_release);
                Ok(())
            }
        }
    }
}
