//! The last batch that changed an inode: up to there a sync of it has to reach, and no further.
//!
//! A database syncs its log with every commit, and thereby all that was written before to its tables. When it
//! comes to sync these, nothing is left to do as a rule.
//!
//! **Invariants.**
//! 1. A change is under way from before the ftl may accept its batch until the batch's number is noted, or none
//!    was accepted.
//! 2. So every accepted batch that changed the inode is under way, or has a number of at most `seq`. What
//!    changed it before its node was made is among the latter: a node is loaded with the number of the last
//!    batch by then. Before it is loaded, this knows nothing.
//!
//! **Crash argument.** Recovery brings back a prefix of the batches, in the order of their numbers, with all
//! that were flushed. So once the store is flushed up to `seq`, a crash takes none of the inode's changes that
//! invariant 2 counts there. Others are under way: who called for them has no answer yet, but readers may see
//! them. A sync that comes upon one therefore covers all that the ftl has accepted, with it.
//!
//! It has no locks. Looking whether anything is under way comes before the look at `seq`: what ended in
//! between is in that, what began in between nobody could see when the sync was called.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use lacuna_ftl::Seq;

/// See the module.
#[derive(Default)]
pub(super) struct LastChange {
    under_way: AtomicU32,
    seq: AtomicU64,
}

/// A change that is under way until it is dropped.
pub(super) struct UnderWay<'a>(&'a LastChange);

impl LastChange {
    /// To be called before the batch is given to the ftl.
    pub(super) fn begin(&self) -> UnderWay<'_> {
        self.under_way.fetch_add(1, SeqCst);
        UnderWay(self)
    }

    /// Takes batches up to `seq` for changes.
    pub(super) fn note(&self, seq: Seq) {
        self.seq.fetch_max(seq.0, SeqCst);
    }

    /// Up to where a sync has to reach; none if a change is under way, whose number nobody knows yet.
    pub(super) fn seq(&self) -> Option<Seq> {
        (self.under_way.load(SeqCst) == 0).then(|| Seq(self.seq.load(SeqCst)))
    }
}

impl UnderWay<'_> {
    /// The batch was accepted.
    pub(super) fn end(self, seq: Seq) {
        self.0.note(seq);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_number_counts_once_nothing_is_under_way() {
        let change = LastChange::default();
        change.note(Seq(3));
        let (first, second, refused) = (change.begin(), change.begin(), change.begin());
        second.end(Seq(9));
        assert_eq!(change.seq(), None);
        first.end(Seq(8));
        assert_eq!(change.seq(), None);
        drop(refused);
        assert_eq!(change.seq(), Some(Seq(9)));
    }
}
