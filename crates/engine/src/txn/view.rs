//! Read views: which transactions a snapshot sees.
//!
//! A view is taken with the first read or write of a snapshot transaction. It sees the transactions committed by then.
//! Its position in the order of commits and views is its *moment*: of the finished transactions a view does not see
//! those that finished at a later moment, and only their history must be kept for it.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    mutant::{Rule, is_broken},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    types::{Error, Result, TxnId},
};

/// The moment of no view: later than any.
const NEVER: u64 = u64::MAX;

/// The set of transactions that a snapshot sees.
#[derive(Debug)]
pub(crate) struct View {
    moment: u64,
    /// Lesser numbers were finished; numbers from `next` on had not begun.
    oldest: u64,
    next: u64,
    /// Transactions in between that were running, ascending.
    running: Vec<TxnId>,
    is_revoked: AtomicBool,
}

impl View {
    /// Whether `txn` was committed when the view was taken.
    pub(crate) fn sees(&self, txn: TxnId) -> bool {
        txn.0 < self.oldest || (txn.0 < self.next && self.running.binary_search(&txn).is_err())
    }

    /// When it was taken.
    pub(crate) fn moment(&self) -> u64 {
        self.moment
    }

    /// The view sees all lesser numbers.
    pub(super) fn oldest(&self) -> u64 {
        self.oldest
    }

    /// Fails once history that the view needs may be gone. A reader checks after it read a leaf or history: if the view
    /// was valid then, so was the data read.
    pub(crate) fn check(&self) -> Result<()> {
        let is_revoked = self.is_revoked.load(Ordering::Acquire) && !is_broken(Rule::SnapshotsFail);
        if is_revoked { Err(Error::SnapshotTooOld) } else { Ok(()) }
    }
}

/// All open views, and the order of moments. Lives under the lock of the running transactions.
pub(super) struct Views {
    moment: u64,
    open: BTreeMap<u64, Arc<View>>,
}

impl Views {
    pub(super) fn new() -> Views {
        Views { moment: 0, open: BTreeMap::new() }
    }

    /// A moment later than all before.
    pub(super) fn next_moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    pub(super) fn open(&mut self, next: u64, running: Vec<TxnId>, oldest_view: &AtomicU64) -> Arc<View> {
        let moment = self.next_moment();
        let oldest = running.first().map_or(next, |id| id.0);
        let view = Arc::new(View { moment, oldest, next, running, is_revoked: AtomicBool::new(false) });
        self.open.insert(moment, view.clone());
        self.publish(oldest_view);
        view
    }

    /// Whether it was the oldest.
    pub(super) fn close(&mut self, view: &View, oldest_view: &AtomicU64) -> bool {
        let was_oldest = self.open.first_key_value().is_some_and(|(moment, _)| *moment == view.moment);
        self.open.remove(&view.moment);
        self.publish(oldest_view);
        was_oldest
    }

    /// Takes the oldest view away from its transaction; false when there is none.
    pub(super) fn revoke_oldest(&mut self, oldest_view: &AtomicU64) -> bool {
        let Some((_, view)) = self.open.pop_first() else { return false };
        // Before any thread can find its history purgeable.
        view.is_revoked.store(true, Ordering::Release);
        self.publish(oldest_view);
        true
    }

    pub(super) fn oldest(&self) -> Option<&View> {
        self.open.first_key_value().map(|(_, view)| &**view)
    }

    /// Moment of the oldest beside `own`.
    pub(super) fn oldest_beside(&self, own: Option<&View>) -> Option<u64> {
        self.open.keys().copied().find(|moment| own.is_none_or(|own| own.moment != *moment))
    }

    pub(super) fn count(&self) -> usize {
        self.open.len()
    }

    fn publish(&self, oldest_view: &AtomicU64) {
        let moment = self.open.first_key_value().map_or(NEVER, |(moment, _)| *moment);
        oldest_view.store(moment, Ordering::Release);
    }
}

/// Moment of the oldest open view, readable without a lock.
pub(super) fn no_view() -> AtomicU64 {
    AtomicU64::new(NEVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_sees_what_was_finished() {
        let oldest_view = no_view();
        let mut views = Views::new();
        let view = views.open(10, vec![TxnId(4), TxnId(7)], &oldest_view);
        let seen: Vec<u64> = (1..13).filter(|id| view.sees(TxnId(*id))).collect();
        assert_eq!(seen, [1, 2, 3, 5, 6, 8, 9]);
        let later = views.open(10, Vec::new(), &oldest_view);
        assert!(later.sees(TxnId(9)) && !later.sees(TxnId(10)));
        assert_eq!(oldest_view.load(Ordering::Relaxed), view.moment);
        assert!(!views.close(&later, &oldest_view) && view.check().is_ok());
        assert!(views.revoke_oldest(&oldest_view) && !views.revoke_oldest(&oldest_view));
        assert!(matches!(view.check(), Err(Error::SnapshotTooOld)));
        assert_eq!(oldest_view.load(Ordering::Relaxed), NEVER);
    }
}
