//! History: the undo logs of committed transactions are kept while views need them, then purged and dropped.
//!
//! A log that no view needs and that has nothing to purge is dropped at the commit: its slot is free at once. One that
//! needs purging goes to the purge thread together with its slot. One that a view needs stays in the slot, which is
//! returned (see `slots`); once the oldest view sees its transaction the purge thread purges and drops it. Without
//! threads, committing transactions and [`crate::Store::step`] do this work.
//!
//! History is bounded: beyond `history_bytes` the oldest view is revoked, and beyond twice as much committing
//! transactions help to purge.
//!
//! Locks: `one` (held across a purge, never by a thread that holds a latch) before everything else; `queue` before
//! those of the slots and of the running transactions.

use std::{collections::VecDeque, time::Instant};

use super::{purge, view::View};
use crate::undo::slots::{Clearance, Drained, RetainedLog};
use crate::{
    flush::{Claim, INTERVAL},
    mutant::{Rule, is_broken},
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
        deadline,
    },
    txn::TxnEngine,
    types::{Error, Result},
    undo::{self, UndoLog},
};

/// Snapshots, and the history that is kept for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryStats {
    /// Open snapshots.
    pub snapshots: u64,
    /// Committed transactions whose history is kept.
    pub transactions: u64,
    /// Bytes of their undo records, of long values they replaced or deleted, and 128 in memory for each of them.
    pub bytes: u64,
    /// Transactions whose history was purged since the store was opened.
    pub purged: u64,
    /// Snapshots revoked because too much history was kept for them.
    pub revoked: u64,
}

/// State of purging.
#[derive(Default)]
pub(crate) struct Purge {
    queue: Mutex<Queue>,
    /// There is something to purge, or it is time to stop.
    work: Condvar,
    /// The purge thread has nothing left to do.
    idle: Condvar,
    /// History is purged by one at a time.
    one: Mutex<()>,
    purged: AtomicU64,
    revoked: AtomicU64,
}

/// The undo log of a committed transaction that no view needs, with its slot.
struct Retired {
    log: UndoLog,
    /// It deleted records, or replaced long values; otherwise there are only pages to free.
    needs_purge: bool,
}

/// Logs that are to be purged.
#[derive(Default)]
struct Queue {
    logs: VecDeque<Retired>,
    is_working: bool,
}

impl TxnEngine {
    pub(crate) fn history_stats(&self) -> HistoryStats {
        let (transactions, bytes) = self.undo.slots().history();
        HistoryStats {
            snapshots: self.txns.views() as u64,
            transactions,
            bytes,
            purged: self.purge.purged.load(Ordering::Relaxed),
            revoked: self.purge.revoked.load(Ordering::Relaxed),
        }
    }

    /// Takes an undo slot for a transaction, and whether it holds history; the caller holds no latch.
    pub(crate) fn take_undo_slot(&self) -> Result<(u32, bool)> {
        self.undo.slots().take(self.options.lock_timeout, &self.poison)
    }

    /// Gives back a slot to which nothing was written.
    pub(crate) fn give_slot_back(&self, slot: u32, holds_history: bool) {
        let left = if holds_history {
            self.clear_slot(slot)
        } else {
            self.undo.slots().give_back(slot);
            Ok(())
        };
        if let Err(e) = left {
            self.poison.set(e);
        }
    }

    /// Gives back the slot of a transaction that was rolled back.
    pub(crate) fn leave_slot(&self, log: UndoLog) -> Result<()> {
        if log.appends() {
            log.leave(&self.undo)?;
        }
        self.clear_slot(log.slot())
    }

    /// Gives back a slot in which its holder leaves nothing, and frees its pages where the holder has to.
    pub(crate) fn clear_slot(&self, slot: u32) -> Result<()> {
        self.undo.slots().leave(slot).map_or(Ok(()), |clearance| self.clear_whole(clearance))
    }

    /// Takes over the undo log of a committed transaction, whose own view is closed. It finished at `moment`.
    pub(crate) fn retire(&self, log: UndoLog, moment: u64, needs_purge: bool, bytes: u64) -> Result<()> {
        // A view that is taken from now on sees the transaction.
        let is_needed = self.txns.oldest_view() < moment;
        if is_needed || log.appends() {
            let kept = RetainedLog { log, moment, newest: log.newest(&self.undo)?, needs_purge, bytes };
            if self.undo.slots().keep(kept, log.first(), is_needed) {
                if !self.flusher.has_threads()
                    || self.undo.slots().history().1 / 2 > self.options.history_bytes
                {
                    self.purge_history()?;
                }
                self.wake_purge_if_due();
                return Ok(());
            }
        }
        let retired = Retired { log, needs_purge };
        if !needs_purge && !log.is_chained(&self.undo)? {
            self.undo.slots().give_back(log.slot());
        } else if self.flusher.has_threads() {
            self.purge.queue.lock().logs.push_back(retired);
            self.purge.work.notify_one();
        } else {
            self.purge_one(&retired)?;
        }
        Ok(())
    }

    /// Purges one committed transaction that no view needs.
    fn purge_one(&self, retired: &Retired) -> Result<()> {
        let log = retired.log;
        if retired.needs_purge {
            purge(self, log, log.newest(&self.undo)?)?;
        }
        if log.is_chained(&self.undo)? {
            return self.clear_slot(log.slot());
        }
        self.undo.slots().give_back(log.slot());
        Ok(())
    }

    /// Purges and forgets all history that no view needs; then, while there is too much, revokes views. The
    /// caller holds no latch.
    pub(crate) fn purge_history(&self) -> Result<()> {
        let _one = self.purge.one.lock();
        loop {
            loop {
                let logs = self.undo.slots().due(|| self.txns.oldest_view());
                if logs.is_empty() {
                    break;
                }
                self.purge_kept(&logs)?;
            }
            self.remove_retired()?;
            if !self.history_is_too_long() || !self.txns.revoke_oldest_view() {
                return Ok(());
            }
            self.purge.revoked.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Purges and forgets the oldest logs of a slot.
    fn purge_kept(&self, logs: &[RetainedLog]) -> Result<()> {
        for kept in logs.iter().filter(|kept| kept.needs_purge) {
            purge(self, kept.log, kept.newest)?;
        }
        let newest = logs.last().expect("at least one").log;
        self.flusher.throttle()?;
        newest.forget(&self.undo, logs.len() - 1)?;
        // Only now may their pages be reused.
        match self.undo.slots().purged(newest.slot(), logs.len()) {
            Drained::Whole(all) => self.clear_whole(all)?,
            Drained::UpTo(part) => {
                undo::trim(&self.undo, &part)?;
                self.undo.slots().trimmed(part).map_or(Ok(()), |all| self.clear_whole(all))?;
            }
            Drained::Owned => {}
        }
        self.purge.purged.fetch_add(logs.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Clears a slot that holds no history any more, and returns it.
    fn clear_whole(&self, clearance: Clearance) -> Result<()> {
        undo::clear(&self.undo, &clearance)?;
        self.undo.slots().cleared(clearance);
        Ok(())
    }

    fn history_is_too_long(&self) -> bool {
        self.undo.slots().history().1 > self.options.history_bytes && !is_broken(Rule::HistoryBounded)
    }

    fn history_is_due(&self) -> bool {
        // A stopped store purges nothing any more.
        let is_due = self.undo.slots().is_due(self.txns.oldest_view()) || self.history_is_too_long();
        (is_due || self.retired_is_due()) && self.poison.check().is_ok()
    }

    /// Purges what its thread left when it was stopped.
    pub(crate) fn purge_waiting(&self) -> Result<()> {
        while let Some(retired) = self.next_to_purge() {
            self.purge_one(&retired)?;
        }
        self.purge_history()
    }

    fn next_to_purge(&self) -> Option<Retired> {
        self.purge.queue.lock().logs.pop_front()
    }

    /// Refuses a write that there is no space for, even after a purge; see [`crate::flush::Flusher::admit`]. It waits
    /// for that as long as for a lock: other transactions may delete faster than the thread purges.
    pub(crate) fn admit(&self, claim: Claim<'_>) -> Result<()> {
        self.admit_beside(claim, None)
    }

    /// The same for a transaction that has this view. The error tells what other ones keep: this one ends with the
    /// transaction that is refused.
    pub(super) fn admit_beside(&self, claim: Claim<'_>, own: Option<&View>) -> Result<()> {
        let purge = || {
            self.wait_for_purge_until(Some(deadline(self.options.lock_timeout)))?;
            if is_broken(Rule::UndoFileCut) {
                return Ok(());
            }
            // What history and rollbacks took of the undo file is its end.
            self.flusher.truncate_without_holes(self.undo.space().id())
        };
        self.flusher.admit(claim, purge).map_err(|error| match error {
            Error::Full { what, .. } => {
                let oldest = self.txns.oldest_view_beside(own);
                let history_bytes = oldest.map_or(0, |moment| self.undo.slots().bytes_since(moment));
                Error::Full { what, history_bytes }
            }
            error => error,
        })
    }

    /// Returns once every transaction that is committed by now, and that no view needs, is purged.
    pub(crate) fn wait_for_purge(&self) -> Result<()> {
        self.wait_for_purge_until(None)
    }

    fn wait_for_purge_until(&self, deadline: Option<Instant>) -> Result<()> {
        if !self.flusher.has_threads() {
            return self.purge_waiting().map_err(|e| self.poison.set(e));
        }
        let mut queue = self.purge.queue.lock();
        while !queue.logs.is_empty() || queue.is_working || self.history_is_due() {
            self.poison.check()?;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
            self.purge.work.notify_one();
            self.purge.idle.wait_for(&mut queue, INTERVAL);
        }
        Ok(())
    }

    /// Makes the purge thread check for work.
    pub(crate) fn wake_purge(&self) {
        // Under the lock: between its check and its wait the thread would miss this.
        let queue = self.purge.queue.lock();
        self.purge.work.notify_all();
        drop(queue);
    }

    pub(crate) fn wake_purge_if_due(&self) {
        if self.flusher.has_threads() && self.history_is_due() {
            self.wake_purge();
        }
    }

    /// The purge thread.
    pub(crate) fn purge_loop(&self) {
        loop {
            let retired = {
                let mut queue = self.purge.queue.lock();
                loop {
                    let retired = queue.logs.pop_front();
                    if retired.is_some() || self.history_is_due() {
                        queue.is_working = true;
                        break retired;
                    }
                    if !self.flusher.has_threads() {
                        return;
                    }
                    self.purge.work.wait(&mut queue);
                }
            };
            let purge = || {
                self.flusher.throttle().and_then(|()| match &retired {
                    Some(retired) => self.purge_one(retired),
                    None => self.purge_history(),
                })
            };
            if let Some(Err(e)) = self.poison.guard(purge) {
                // The slot stays taken; recovery purges it again.
                self.poison.set(e);
            }
            self.purge.queue.lock().is_working = false;
            self.purge.idle.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lacuna_device::MemVfs;

    use super::*;
    use crate::{Store, StoreOptions, TableOptions};

    /// A purge that does not end, as beside transactions that delete faster than it works.
    #[test]
    fn a_wait_for_purge_ends_with_the_timeout_of_locks() {
        let options = StoreOptions { lock_timeout: Duration::from_millis(20), ..StoreOptions::default() };
        let store = Store::open(MemVfs::new(), options).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("create");
        let engine = table.engine();
        engine.purge.queue.lock().is_working = true;
        let before = Instant::now();
        engine.wait_for_purge_until(Some(deadline(engine.options.lock_timeout))).expect("no error");
        assert!(before.elapsed() >= engine.options.lock_timeout, "it did not wait");
        engine.purge.queue.lock().is_working = false;
        drop(table);
        store.close().expect("close");
    }
}
