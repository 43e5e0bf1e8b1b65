//! Who uses a table, so that it can be dropped.
//!
//! A transaction uses a table from its first read or write of it to its own end; a drop refuses while one
//! does. The store's own work (purging, counting) uses it for one operation at a time, a flush for one batch of
//! images; a drop waits for these.
//!
//! Invariants:
//!
//! 1. Outside of recovery nobody touches a table's pages or its file without a use of it.
//! 2. A table is closed to transactions only while none uses it, and to the store's own work only once its
//!    row is gone from the catalog for good: purge, which skips tables that are gone, must not skip one that
//!    stays.
//! 3. It is closed to flushes last: an operation may wait for memory or log that only a flush of the table's own
//!    pages gives back.
//!
//! The lock is a leaf. Whoever closes a table holds no latch. Operations wait for flushes at most, flushes for
//! the device and the log, and neither makes or drops a table; so both always end.

use std::{ops::Deref, sync::Arc};

use crate::{
    space::Space,
    sync::{Condvar, Mutex},
    types::error::{Error, Result},
};

/// The uses of one table.
#[derive(Default)]
pub(crate) struct Uses {
    counts: Mutex<Counts>,
    /// An operation or a flush ended.
    ended: Condvar,
}

#[derive(Default)]
struct Counts {
    transactions: usize,
    operations: usize,
    flushes: usize,
    is_closed: bool,
    is_gone: bool,
    is_sealed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum User {
    Transaction,
    Operation,
    Flush,
}

/// A use of a table; it ends when this is dropped.
pub(crate) struct Use {
    space: Arc<Space>,
    user: User,
}

impl Deref for Use {
    type Target = Arc<Space>;

    fn deref(&self) -> &Arc<Space> {
        &self.space
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let uses = &self.space.uses;
        let mut counts = uses.counts.lock();
        match self.user {
            User::Transaction => counts.transactions -= 1,
            User::Operation => counts.operations -= 1,
            User::Flush => counts.flushes -= 1,
        }
        if self.user != User::Transaction {
            uses.ended.notify_all();
        }
    }
}

impl Space {
    /// A use by a transaction.
    ///
    /// # Errors
    /// [`Error::TableDropped`].
    pub(crate) fn enter(self: &Arc<Space>) -> Result<Use> {
        let mut counts = self.uses.counts.lock();
        if counts.is_closed {
            return Err(Error::TableDropped { id: self.id });
        }
        counts.transactions += 1;
        Ok(Use { space: self.clone(), user: User::Transaction })
    }

    /// A use by the store's own work; `None` once the table is gone.
    pub(crate) fn operate(self: &Arc<Space>) -> Option<Use> {
        let mut counts = self.uses.counts.lock();
        if counts.is_gone {
            return None;
        }
        counts.operations += 1;
        Some(Use { space: self.clone(), user: User::Operation })
    }

    /// A use by a flush; `None` once nothing is to be written any more.
    pub(crate) fn flush(self: &Arc<Space>) -> Option<Use> {
        let mut counts = self.uses.counts.lock();
        if counts.is_sealed {
            return None;
        }
        counts.flushes += 1;
        Some(Use { space: self.clone(), user: User::Flush })
    }

    /// Closes the table to transactions; false, and nothing done, while one uses it.
    pub(crate) fn close(&self) -> bool {
        let mut counts = self.uses.counts.lock();
        let is_free = counts.transactions == 0;
        counts.is_closed |= is_free;
        is_free
    }

    /// Opens it again to transactions.
    pub(crate) fn reopen(&self) {
        self.uses.counts.lock().is_closed = false;
    }

    /// Closes it to the store's own work, then to flushes, and waits for what is under way.
    pub(crate) fn close_for_good(&self) {
        let mut counts = self.uses.counts.lock();
        assert!(counts.is_closed && counts.transactions == 0, "invariant 2");
        counts.is_gone = true;
        while counts.operations > 0 {
            self.uses.ended.wait(&mut counts);
        }
        counts.is_sealed = true;
        while counts.flushes > 0 {
            self.uses.ended.wait(&mut counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use lacuna_device::{MemPlace, Place, StreamHint};

    use super::*;
    use crate::types::{ids::TableId, options::Layout};

    #[test]
    fn a_drop_refuses_transactions_and_waits_for_operations() {
        let file = MemPlace::new().create("t", StreamHint::Data).expect("create");
        let space = Arc::new(Space::new(TableId(16), file, Layout::of_pages(4096)).expect("space"));
        let reader = space.enter().expect("open");
        assert!(!space.close(), "a transaction uses it");
        drop(reader);
        assert!(space.close());
        assert!(matches!(space.enter(), Err(Error::TableDropped { id: TableId(16) })));
        space.reopen();
        drop(space.enter().expect("open again"));
        let work = space.operate().expect("still there");
        assert!(space.close());
        thread::scope(|scope| {
            let dropping = scope.spawn(|| space.close_for_good());
            while space.operate().is_some() {
                thread::yield_now();
            }
            // What the work may wait for is still possible.
            let flush = space.flush().expect("not sealed");
            assert!(!dropping.is_finished(), "work is under way");
            drop(work);
            while space.flush().is_some() {
                thread::yield_now();
            }
            assert!(!dropping.is_finished(), "a flush is under way");
            drop(flush);
        });
    }
}
