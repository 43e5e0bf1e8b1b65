//! Doing what is due, one piece at a time.

use std::sync::Arc;

use super::plan::Plan;
use super::thread::{Activity, Signal};
use crate::{
    Error, Result, Work,
    checkpoint::{Checkpointer, Rewrite},
    gc::{Collecting, Collector},
    log::{Journal, Log},
    maintenance::host::Host,
    map::{Map, SharedMap},
    media::Volume,
    paging::{Base, DIRTY_SHARE_MAX, PagedMap},
    reuse::Reuse,
    sync::{Condvar, Mutex, atomic::AtomicU64},
};

/// Does what is due: collection, checkpoints and the like.
pub(crate) struct Maintenance {
    pub(super) volume: Arc<Volume>,
    pub(super) map: Arc<SharedMap>,
    pub(super) journal: Arc<Journal>,
    pub(super) pages: Arc<PagedMap>,
    pub(super) reuse: Arc<Reuse>,
    pub(super) checkpointer: Arc<Checkpointer>,
    pub(super) collector: Arc<Collector>,
    pub(super) host: Host,
    /// A thread does it; see [`crate::Options::background`].
    pub(super) is_threaded: bool,
    pub(super) signal: Mutex<Signal>,
    pub(super) changed: Condvar,
    pub(super) activity: Mutex<Activity>,
    /// Bytes that collection must have moved since open; see `throttle`.
    pub(super) debt: AtomicU64,
}

impl Maintenance {
    pub(crate) fn new(
        base: Base,
        reuse: Arc<Reuse>,
        checkpointer: Arc<Checkpointer>,
        collector: Arc<Collector>,
        is_threaded: bool,
    ) -> Maintenance {
        let Base { volume, map, journal, pages } = base;
        Maintenance {
            volume,
            map,
            journal,
            pages,
            reuse,
            checkpointer,
            collector,
            host: Host::default(),
            is_threaded,
            signal: Mutex::default(),
            changed: Condvar::default(),
            activity: Mutex::default(),
            debt: AtomicU64::new(0),
        }
    }

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
                let plan = self.plan(&mut log, &map, &mut collecting, target);
                // A reader may pin a segment that could be freed. It waits for no other thread, so it will be gone
                // soon.
                let plan = plan.or((self.reuse.waiting(&log, &map).reader > 0).then_some(Plan::Flush));
                plan.ok_or_else(|| self.journal.full(&log, &map))?
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
