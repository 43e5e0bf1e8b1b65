//! Who uses a table, so that it can be dropped.
//!
//! A transaction uses a table from its first read or write of it to its own end; a drop refuses while one
//! does. The store's own work (purging, flushing, counting) uses it for one operation at a time; a drop waits
//! for that.
//!
//! Invariants:
//!
//! 1. Outside of recovery nobody touches a table's pages or its file without a use of it.
//! 2. A table is closed to transactions only while none uses it, and to the store's own work only once its
//!    row is gone from the catalog for good: purge, which skips tables that are gone, must not skip one that
//!    stays.
//!
//! The lock is a leaf. Whoever closes a table holds no latch; the store's own work never makes or drops a
//! table, so it always ends.

use std::{ops::Deref, sync::Arc};

use parking_lot::{Condvar, Mutex};

use crate::{
    error::{Error, Result},
    space::Space,
};

/// The uses of one table.
#[derive(Default)]
pub(crate) struct Uses {
    counts: Mutex<Counts>,
    /// A piece of the store's own work ended.
    ended: Condvar,
}

#[derive(Default)]
struct Counts {
    transactions: usize,
    operations: usize,
    is_closed: bool,
    is_gone: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum User {
    Transaction,
    Operation,
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
            User::Operation => {
                counts.operations -= 1;
                uses.ended.notify_all();
            }
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

    /// Closes it to the store's own work, and waits for what is under way.
    pub(crate) fn close_for_good(&self) {
        let mut counts = self.uses.counts.lock();
        assert!(counts.is_closed && counts.transactions == 0, "invariant 2");
        counts.is_gone = true;
        while counts.operations > 0 {
            self.uses.ended.wait(&mut counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use lacuna_device::{MemPlace, Place, StreamHint};

    use super::*;
    use crate::{ids::TableId, space::Layout};

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
            assert!(!dropping.is_finished(), "work is under way");
            drop(work);
        });
    }
}
