//! What a table is being rebuilt as, what it became, and what it was before.
//!
//! A rebuild copies a table into a new file, of another number, and then puts the copy in the table's place
//! (`txn::rebuild`). From then on the table's handles lead to the copy; only snapshots taken before still read the file
//! that it replaced, which is kept for them.
//!
//! Invariants:
//!
//! 1. While a table is being replaced no transaction has written it that is not finished (`pins`, invariant 4). So what
//!    the copy holds is committed, and every view taken from then on sees it.
//! 2. The moment of the replacement is noted in the copy before any transaction can find that. So a view is older than
//!    it, and reads the replaced table, or newer, and reads the copy.

use std::sync::{Arc, OnceLock, Weak};

use crate::{
    mutant::{Rule, is_broken},
    space::Space,
    sync::{
        Mutex, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    types::{Error, Result},
};

/// The rebuild of a table that is under way.
pub(crate) struct Rebuild {
    target: Arc<Space>,
    frontier: Mutex<Frontier>,
    /// Why it has to be given up.
    failure: OnceLock<Error>,
}

/// The keys that were copied.
enum Frontier {
    /// All that are less than this one.
    Before(Vec<u8>),
    All,
}

impl Rebuild {
    fn new(target: Arc<Space>) -> Rebuild {
        Rebuild { target, frontier: Mutex::new(Frontier::Before(Vec::new())), failure: OnceLock::new() }
    }

    pub(crate) fn target(&self) -> &Arc<Space> {
        &self.target
    }

    /// Whether changes of `key` have to be repeated in the copy.
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        match &*self.frontier.lock() {
            Frontier::Before(bound) => key < &bound[..],
            Frontier::All => true,
        }
    }

    /// Changes of keys less than `bound`, of all keys without one, have to be repeated from now on.
    pub(crate) fn advance(&self, bound: Option<&[u8]>) {
        *self.frontier.lock() = bound.map_or(Frontier::All, |bound| Frontier::Before(bound.to_vec()));
    }

    /// The copy lacks something: it cannot replace the table any more.
    pub(crate) fn fail(&self, error: Error) {
        let _ = self.failure.set(error);
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// The past and future of one table file.
#[derive(Default)]
pub(crate) struct Lineage {
    /// There is a rebuild.
    is_rebuilt: AtomicBool,
    /// There is a file before or after this one.
    has_relatives: AtomicBool,
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    rebuild: Option<Arc<Rebuild>>,
    /// The file that this one replaces, as long as that is there, and the moment.
    before: Option<(Weak<Space>, u64)>,
    /// The file that replaced this one, and the moment.
    after: Option<(Arc<Space>, u64)>,
}

impl Space {
    /// Begins to rebuild the table as `target`; false when it is being rebuilt.
    pub(crate) fn begin_rebuild(&self, target: Arc<Space>) -> Option<Arc<Rebuild>> {
        let mut state = self.lineage.state.write();
        if state.rebuild.is_some() || state.after.is_some() {
            return None;
        }
        let rebuild = Arc::new(Rebuild::new(target));
        state.rebuild = Some(rebuild.clone());
        self.lineage.is_rebuilt.store(true, Ordering::Release);
        Some(rebuild)
    }

    pub(crate) fn end_rebuild(&self) {
        self.lineage.is_rebuilt.store(false, Ordering::Release);
        self.lineage.state.write().rebuild = None;
    }

    /// The rebuild under way. Who changed a leaf asks after it gave the leaf's latch up.
    pub(crate) fn rebuild(&self) -> Option<Arc<Rebuild>> {
        if !self.lineage.is_rebuilt.load(Ordering::Acquire) {
            return None;
        }
        self.lineage.state.read().rebuild.clone()
    }

    /// Notes that this copy replaces `before` for views from `moment` on (invariant 2).
    pub(crate) fn descend_from(&self, before: &Arc<Space>, moment: u64) {
        self.lineage.state.write().before = Some((Arc::downgrade(before), moment));
        self.lineage.has_relatives.store(true, Ordering::Release);
    }

    /// The file before this one is gone, and no view needs it.
    pub(crate) fn forget_before(&self) {
        let mut state = self.lineage.state.write();
        state.before = None;
        self.lineage.has_relatives.store(state.after.is_some(), Ordering::Release);
    }

    /// Puts `after` in this one's place, and lets its writers go on there.
    pub(crate) fn become_replaced(&self, after: Arc<Space>, moment: u64) {
        self.end_rebuild();
        self.lineage.state.write().after = Some((after.clone(), moment));
        self.lineage.has_relatives.store(true, Ordering::Release);
        after.admit_writers();
        self.replace();
    }

    /// The file that replaced this one, and the moment.
    pub(crate) fn after(&self) -> Option<(Arc<Space>, u64)> {
        if !self.lineage.has_relatives.load(Ordering::Acquire) {
            return None;
        }
        self.lineage.state.read().after.clone()
    }

    fn before(&self) -> Option<(Weak<Space>, u64)> {
        self.lineage.state.read().before.clone()
    }

    /// The table's file now; `None` when it is this one.
    pub(crate) fn newest(&self) -> Option<Arc<Space>> {
        let (mut newest, _) = self.after()?;
        while let Some((after, _)) = newest.after() {
            newest = after;
        }
        Some(newest)
    }

    /// The file of the table for a reader whose view was taken at `moment`, the newest without one; `None` when it is
    /// this one.
    ///
    /// # Errors
    /// [`Error::TableDropped`] when the view needs a file that is gone.
    pub(crate) fn as_of(self: &Arc<Space>, moment: Option<u64>) -> Result<Option<Arc<Space>>> {
        if !self.lineage.has_relatives.load(Ordering::Acquire) {
            return Ok(None);
        }
        let newest = self.newest();
        let Some(moment) = moment.filter(|_| !is_broken(Rule::OldViewsReadOldFile)) else {
            return Ok(newest);
        };
        let mut found = newest.unwrap_or_else(|| self.clone());
        while let Some((before, _)) = found.before().filter(|(_, replaced)| moment < *replaced) {
            found = before.upgrade().ok_or(Error::TableDropped { id: self.id() })?;
        }
        Ok((!Arc::ptr_eq(&found, self)).then_some(found))
    }
}
