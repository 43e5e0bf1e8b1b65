//! Pins: the users of a table, which keep it from being dropped.
//!
//! A transaction pins a table from its first read or write of it to its own end; a drop refuses while one does. The
//! store's own work (purging, counting) pins it for one operation at a time, a flush for one batch of images; a drop
//! waits for these.
//!
//! Invariants:
//!
//! 1. Outside of recovery a table's pages and its file are accessed only under a pin of it.
//! 2. A table is closed to transactions only while none pins it, and to the store's own work only once its row is gone
//!    from the catalog for good: purge, which skips tables that are gone, must not skip one that stays.
//! 3. It is closed to flushes last: an operation may wait for memory or log that only a flush of the table's own pages
//!    frees.
//! 4. A transaction that changes records of a table, or locks keys, pins it as a writer, too. While the table is shut
//!    to writers none can begin, and those that had begun have ended once [`Space::shut`] returns true.
//!
//! The lock is a leaf. A thread that closes a table, or waits to write one, holds no latch. Operations wait for flushes
//! at most, flushes for the device and the log, and neither makes or drops a table; so both always end. Writers may wait
//! for each other, so whoever waits for them has a deadline.

use std::{ops::Deref, sync::Arc, time::Instant};

use crate::{
    mutant::{Rule, is_broken},
    poison::{POISON_CHECK, Poison},
    space::Space,
    sync::{Condvar, Mutex},
    types::{Error, Result},
};

/// The pins of one table.
#[derive(Default)]
pub(crate) struct Pins {
    counts: Mutex<Counts>,
    /// An operation or a flush ended.
    ended: Condvar,
}

#[derive(Default)]
struct Counts {
    transactions: usize,
    writers: usize,
    operations: usize,
    flushes: usize,
    is_closed: bool,
    is_gone: bool,
    is_sealed: bool,
    is_shut: bool,
    /// Another file took its place.
    is_replaced: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    Transaction,
    Writer,
    Operation,
    Flush,
}

/// A pin of a table; it ends when this is dropped.
pub(crate) struct TablePin {
    space: Arc<Space>,
    holder: Holder,
}

impl Deref for TablePin {
    type Target = Arc<Space>;

    fn deref(&self) -> &Arc<Space> {
        &self.space
    }
}

impl Drop for TablePin {
    fn drop(&mut self) {
        let pins = &self.space.pins;
        let mut counts = pins.counts.lock();
        match self.holder {
            Holder::Transaction => counts.transactions -= 1,
            Holder::Writer => counts.writers -= 1,
            Holder::Operation => counts.operations -= 1,
            Holder::Flush => counts.flushes -= 1,
        }
        if self.holder != Holder::Transaction {
            pins.ended.notify_all();
        }
    }
}

impl Space {
    /// A pin by a transaction.
    ///
    /// # Errors
    /// [`Error::TableDropped`].
    pub(crate) fn pin(self: &Arc<Space>) -> Result<TablePin> {
        let mut counts = self.pins.counts.lock();
        if counts.is_closed {
            return Err(Error::TableDropped { id: self.id });
        }
        if self.is_locked() {
            return Err(Error::TableLocked { id: self.id });
        }
        counts.transactions += 1;
        Ok(TablePin { space: self.clone(), holder: Holder::Transaction })
    }

    /// A pin by a transaction that has one, and is about to write, once the table is not shut any more; `None` when
    /// another file has taken its place.
    ///
    /// # Errors
    /// [`Error::TableDropped`]; [`Error::LockTimeout`] at `deadline`; the store's failure.
    pub(crate) fn pin_for_writing(
        self: &Arc<Space>,
        deadline: Instant,
        poison: &Poison,
    ) -> Result<Option<TablePin>> {
        let mut counts = self.pins.counts.lock();
        loop {
            if counts.is_closed {
                return Err(Error::TableDropped { id: self.id });
            }
            if counts.is_replaced {
                return Ok(None);
            }
            if !counts.is_shut {
                counts.writers += 1;
                return Ok(Some(TablePin { space: self.clone(), holder: Holder::Writer }));
            }
            if Instant::now() >= deadline {
                return Err(Error::LockTimeout);
            }
            poison.check()?;
            let tick = deadline.min(Instant::now() + POISON_CHECK);
            self.pins.ended.wait_until(&mut counts, tick);
        }
    }

    /// Keeps new writers waiting until [`Space::admit_writers`], and waits for those that there are. False, and no
    /// change, when some are left at `deadline`.
    pub(crate) fn shut(&self, deadline: Instant) -> bool {
        let mut counts = self.pins.counts.lock();
        counts.is_shut = true;
        while counts.writers > 0 && !is_broken(Rule::WritersDrain) {
            self.pins.ended.wait_until(&mut counts, deadline);
            if counts.writers > 0 && Instant::now() >= deadline {
                counts.is_shut = false;
                self.pins.ended.notify_all();
                return false;
            }
        }
        true
    }

    /// Lets writers in again.
    pub(crate) fn admit_writers(&self) {
        self.pins.counts.lock().is_shut = false;
        self.pins.ended.notify_all();
    }

    /// Sends writers to the file that took this one's place.
    pub(super) fn replace(&self) {
        self.pins.counts.lock().is_replaced = true;
        self.pins.ended.notify_all();
    }

    /// Whether no transaction uses it.
    pub(crate) fn is_free(&self) -> bool {
        self.pins.counts.lock().transactions == 0
    }

    /// Whether it is closed to transactions.
    pub(crate) fn is_closed(&self) -> bool {
        self.pins.counts.lock().is_closed
    }

    /// A pin by the store's own work; `None` once the table is gone.
    pub(crate) fn pin_for_work(self: &Arc<Space>) -> Option<TablePin> {
        let mut counts = self.pins.counts.lock();
        if counts.is_gone {
            return None;
        }
        counts.operations += 1;
        Some(TablePin { space: self.clone(), holder: Holder::Operation })
    }

    /// A pin by a flush; `None` once the table is closed to flushes.
    pub(crate) fn pin_for_flush(self: &Arc<Space>) -> Option<TablePin> {
        let mut counts = self.pins.counts.lock();
        if counts.is_sealed {
            return None;
        }
        counts.flushes += 1;
        Some(TablePin { space: self.clone(), holder: Holder::Flush })
    }

    /// Closes the table to transactions; false, and nothing done, while one uses it.
    pub(crate) fn close(&self) -> bool {
        let mut counts = self.pins.counts.lock();
        let is_free = counts.transactions == 0;
        counts.is_closed |= is_free;
        is_free
    }

    /// Opens it again to transactions.
    pub(crate) fn reopen(&self) {
        self.pins.counts.lock().is_closed = false;
    }

    /// Closes it to the store's own work, then to flushes, and waits for operations under way.
    pub(crate) fn close_for_good(&self) {
        let mut counts = self.pins.counts.lock();
        assert!(counts.is_closed && counts.transactions == 0, "invariant 2");
        counts.is_gone = true;
        while counts.operations > 0 {
            self.pins.ended.wait(&mut counts);
        }
        counts.is_sealed = true;
        while counts.flushes > 0 {
            self.pins.ended.wait(&mut counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use lacuna_device::{MemVfs, StreamHint, Vfs};

    use super::*;
    use crate::types::{Layout, TableId};

    #[test]
    fn a_drop_refuses_transactions_and_waits_for_operations() {
        let file = MemVfs::new().create("t", StreamHint::Data).expect("create");
        let space = Arc::new(Space::new(TableId(16), file, Layout::of_pages(4096)).expect("space"));
        let reader = space.pin().expect("open");
        assert!(!space.close(), "a transaction uses it");
        drop(reader);
        assert!(space.close());
        assert!(matches!(space.pin(), Err(Error::TableDropped { id: TableId(16) })));
        space.reopen();
        drop(space.pin().expect("open again"));
        let work = space.pin_for_work().expect("still there");
        assert!(space.close());
        thread::scope(|scope| {
            let dropping = scope.spawn(|| space.close_for_good());
            while space.pin_for_work().is_some() {
                thread::yield_now();
            }
            // The flush that the work may wait for is still possible.
            let flush = space.pin_for_flush().expect("not sealed");
            assert!(!dropping.is_finished(), "work is under way");
            drop(work);
            while space.pin_for_flush().is_some() {
                thread::yield_now();
            }
            assert!(!dropping.is_finished(), "a flush is under way");
            drop(flush);
        });
    }
}
