//! The last batch that changed an inode: a sync of the inode has to reach up to that batch, and no further.
//!
//! A database syncs its log with every commit, and thereby everything written to its tables before. So there is usually
//! nothing left to do when it syncs the tables.
//!
//! **Invariants.**
//! 1. A change is under way from before the ftl may accept its batch until the batch's number is noted, or none
//!    was accepted.
//! 2. So every accepted batch that changed the inode is under way, or has a number of at most `seq`. Batches that
//!    changed it before its node was made are among the latter: a node is loaded with the number of the last batch at
//!    that time. Before it is loaded, nothing is known here.
//!
//! **Crash argument.** Recovery brings back a prefix of the batches, in the order of their numbers, with all that were
//! flushed. So once the store is flushed up to `seq`, a crash loses none of the inode's changes with numbers up to
//! `seq` (invariant 2). Other changes are under way: their callers have no answer yet, but readers may see them. A sync
//! that finds a change under way therefore covers everything that the ftl has accepted, including that change.
//!
//! It has no locks. The check for changes under way comes before the read of `seq`: a change that ended in between is
//! included in `seq`, and a change that began in between was not visible when the sync was called.

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
    /// Must be called before the batch is passed to the ftl.
    pub(super) fn begin(&self) -> UnderWay<'_> {
        self.under_way.fetch_add(1, SeqCst);
        UnderWay(self)
    }

    /// Counts all batches up to `seq` as changes.
    pub(super) fn note(&self, seq: Seq) {
        self.seq.fetch_max(seq.0, SeqCst);
    }

    /// The batch up to which a sync has to reach; none if a change is under way, because its number is not known yet.
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
