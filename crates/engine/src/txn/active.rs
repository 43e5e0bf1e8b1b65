//! Active transactions: their numbers, their views, and the graph of waits.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Instant,
};

use rustc_hash::FxHashMap;

use super::view::{self, View, Views};
use crate::{
    flush::Transactions,
    mutant::{Rule, is_broken},
    poison::{POISON_CHECK, Poison},
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    types::{Error, Result, TableId, TxnId},
};

/// A key locked whether it is written or not.
pub(crate) type LockedKey = (TableId, Arc<[u8]>);

/// A table's locked keys, and their owners.
type Locks = HashMap<Arc<[u8]>, TxnId>;

/// A running transaction, as others see it.
pub(crate) struct Running {
    pub(crate) id: TxnId,
    progress: Mutex<Progress>,
    signal: Condvar,
}

/// The progress of a transaction for which others wait.
#[derive(Debug, Default)]
struct Progress {
    is_finished: bool,
    /// Times that it released some of its locks before its end.
    releases: u64,
}

impl Running {
    /// For [`ActiveTxns::wait`]; to be read while the transaction is known to hold a lock.
    pub(crate) fn releases(&self) -> u64 {
        self.progress.lock().releases
    }
}

impl Progress {
    /// Whether all locks are held that were when there had been `releases`.
    fn is_held(&self, releases: u64) -> bool {
        !self.is_finished && self.releases == releases
    }
}

/// All running transactions.
///
/// Locks, none of which is held while another is taken: `running`, `waits` (then only the progress of a transaction),
/// `locks`, the slots'.
pub(crate) struct ActiveTxns {
    running: Mutex<Numbers>,
    /// Least number of a running transaction, or the next number when none runs: whatever is less is
    /// finished. Only grows.
    oldest: AtomicU64,
    /// Moment of the oldest view.
    oldest_view: AtomicU64,
    /// The graph of waits. A transaction waits for one other at a time, so this is a set of chains.
    waits: Mutex<HashMap<TxnId, TxnId>>,
    /// Keys locked whether they are written or not, by table. A table's map stays when it is empty.
    locks: Mutex<FxHashMap<TableId, Locks>>,
}

struct Numbers {
    next: u64,
    running: BTreeMap<TxnId, Arc<Running>>,
    views: Views,
}

impl ActiveTxns {
    pub(crate) fn new() -> ActiveTxns {
        ActiveTxns {
            running: Mutex::new(Numbers { next: 1, running: BTreeMap::new(), views: Views::new() }),
            oldest: AtomicU64::new(1),
            oldest_view: view::no_view(),
            waits: Mutex::default(),
            locks: Mutex::default(),
        }
    }

    /// Makes sure that numbers from now on are greater than `seen`.
    pub(crate) fn skip_past(&self, seen: TxnId) {
        let mut numbers = self.running.lock();
        numbers.next = numbers.next.max(seen.0 + 1);
        self.publish_oldest(&numbers);
    }

    /// The number of the next transaction; all before it may have written.
    pub(crate) fn next(&self) -> TxnId {
        TxnId(self.running.lock().next)
    }

    /// Starts a transaction under a new number.
    pub(crate) fn start(&self) -> Arc<Running> {
        let mut numbers = self.running.lock();
        let id = TxnId(numbers.next);
        assert!(id.0 <= TxnId::MAX, "2^48 transactions");
        numbers.next += 1;
        self.enter(numbers, id)
    }

    /// Takes a transaction up again that a crash interrupted.
    pub(crate) fn resume(&self, id: TxnId) -> Arc<Running> {
        self.enter(self.running.lock(), id)
    }

    fn enter(&self, mut numbers: MutexGuard<'_, Numbers>, id: TxnId) -> Arc<Running> {
        let running = Arc::new(Running { id, progress: Mutex::default(), signal: Condvar::new() });
        numbers.running.insert(id, running.clone());
        self.publish_oldest(&numbers);
        running
    }

    fn publish_oldest(&self, numbers: &Numbers) {
        let oldest = numbers.running.keys().next().map_or(numbers.next, |id| id.0);
        self.oldest.store(oldest, Ordering::Release);
    }

    /// Makes the transaction's changes visible to others, releases the locks that it has beside those of the records it
    /// wrote, and wakes the transactions waiting for it. Returns the moment.
    ///
    /// In that order: as soon as it is visible its locks count as free, and its next holder sees all that was done
    /// under it. A lock that another took over by then stays.
    pub(crate) fn finish(&self, running: &Running, locked: impl ExactSizeIterator<Item = LockedKey>) -> u64 {
        let mut numbers = self.running.lock();
        numbers.running.remove(&running.id);
        let moment = numbers.views.next_moment();
        self.publish_oldest(&numbers);
        drop(numbers);
        if locked.len() > 0 {
            self.unlock(running.id, locked);
        }
        running.progress.lock().is_finished = true;
        running.signal.notify_all();
        moment
    }

    /// Takes a view of what is committed now.
    pub(crate) fn open_view(&self) -> Arc<View> {
        let mut numbers = self.running.lock();
        let running = numbers.running.keys().copied().collect();
        let next = numbers.next;
        numbers.views.open(next, running, &self.oldest_view)
    }

    /// Calls `look` while no transaction with a number runs, and none can begin, unless one runs now. It must not take a
    /// lock.
    pub(crate) fn while_none_runs(&self, look: impl FnOnce()) {
        let numbers = self.running.lock();
        if numbers.running.is_empty() {
            look();
        }
    }

    /// A moment later than those of all views so far.
    pub(crate) fn next_moment(&self) -> u64 {
        self.running.lock().views.next_moment()
    }

    /// Returns whether history may have become purgeable by that.
    pub(crate) fn close_view(&self, view: &View) -> bool {
        self.running.lock().views.close(view, &self.oldest_view)
    }

    /// Makes the oldest view fail from now on; false when there is none.
    pub(crate) fn revoke_oldest_view(&self) -> bool {
        self.running.lock().views.revoke_oldest(&self.oldest_view)
    }

    /// Open views.
    pub(crate) fn views(&self) -> usize {
        self.running.lock().views.count()
    }

    /// Moment of the oldest view: no view needs history of transactions that finished before it. A view that is opened
    /// later may be older than what this returned, but sees all that had finished by then: so who looks for history
    /// that may go asks under the lock under which history is kept, never before.
    pub(crate) fn oldest_view(&self) -> u64 {
        if is_broken(Rule::HistoryKept) {
            return u64::MAX;
        }
        self.oldest_view.load(Ordering::Acquire)
    }

    /// Moment of the oldest view beside `own`.
    pub(crate) fn oldest_view_beside(&self, own: Option<&View>) -> Option<u64> {
        self.running.lock().views.oldest_beside(own)
    }

    /// Whether all views see the finished transaction `txn`. Once true it stays true.
    pub(crate) fn is_seen_by_all(&self, txn: TxnId) -> bool {
        self.running.lock().views.oldest().is_none_or(|view| view.sees(txn))
    }

    /// The transaction of that number, if it runs.
    pub(crate) fn get(&self, id: TxnId) -> Option<Arc<Running>> {
        if id.0 < self.oldest.load(Ordering::Acquire) {
            return None;
        }
        self.running.lock().running.get(&id).cloned()
    }

    /// Wakes the waiters of `owner`, because it has released some of its locks. Until they find it in their way again they
    /// do not wait for it: it may itself go on to wait for one of them.
    pub(crate) fn note_release(&self, owner: &Running) {
        if is_broken(Rule::ReleasesWake) {
            return;
        }
        let mut waits = self.waits.lock();
        owner.progress.lock().releases += 1;
        // Under one lock: an edge that is added later is for a lock that it still holds, and stays.
        waits.retain(|_, behind| *behind != owner.id);
        drop(waits);
        owner.signal.notify_all();
    }

    /// Waits until `owner` is finished, or releases locks again after it had done so `releases` times. Read `releases`
    /// before releasing the leaf's latch under which `owner` was found to hold the lock, or the awaited event may have
    /// passed. Refuses with [`Error::Deadlock`] when `owner` waits, perhaps through others, for `waiter`.
    pub(crate) fn wait(
        &self,
        waiter: TxnId,
        (owner, releases): (&Running, u64),
        deadline: Instant,
        poison: &Poison,
    ) -> Result<()> {
        {
            let mut waits = self.waits.lock();
            // Otherwise the edges to it were removed already.
            if !owner.progress.lock().is_held(releases) {
                return Ok(());
            }
            let mut behind = Some(&owner.id);
            while let Some(id) = behind {
                if *id == waiter {
                    return Err(Error::Deadlock);
                }
                behind = waits.get(id);
            }
            waits.insert(waiter, owner.id);
        }
        let mut progress = owner.progress.lock();
        let mut outcome = Ok(());
        while progress.is_held(releases) && outcome.is_ok() {
            // The owner's thread may have died of the failure that stopped the store.
            let tick = deadline.min(Instant::now() + POISON_CHECK);
            let timed_out = owner.signal.wait_until(&mut progress, tick).timed_out();
            outcome = match timed_out && Instant::now() >= deadline && progress.is_held(releases) {
                true => Err(Error::LockTimeout),
                false => poison.check(),
            };
        }
        drop(progress);
        self.waits.lock().remove(&waiter);
        outcome
    }

    /// The transaction that holds an explicit lock on the key, if not `me`.
    pub(crate) fn lock_owner(&self, me: TxnId, table: TableId, key: &[u8]) -> Option<Arc<Running>> {
        let owner = *self.locks.lock().get(&table)?.get(key)?;
        if owner == me || is_broken(Rule::LocksHold) { None } else { self.get(owner) }
    }

    /// Whether any transaction holds an explicit lock on a key of the table.
    pub(crate) fn has_locks(&self, table: TableId) -> bool {
        self.locks.lock().get(&table).is_some_and(|locks| !locks.is_empty())
    }

    /// Takes an explicit lock; the caller holds the key's leaf latched and found no other owner.
    /// Returns the lock to release again, if it is new to `me`.
    pub(crate) fn lock(&self, me: TxnId, table: TableId, key: &[u8]) -> Option<LockedKey> {
        let key: Arc<[u8]> = key.into();
        let before = self.locks.lock().entry(table).or_default().insert(key.clone(), me);
        (before != Some(me)).then_some((table, key))
    }

    /// Releases explicit locks that are not needed any more, as those of keys that `me` has written. One that another
    /// transaction took over stays.
    pub(crate) fn unlock(&self, me: TxnId, keys: impl IntoIterator<Item = LockedKey>) {
        let mut locks = self.locks.lock();
        for (table, key) in keys {
            if let Some(of_table) = locks.get_mut(&table)
                && of_table.get(&key) == Some(&me)
            {
                of_table.remove(&key);
            }
        }
    }
}

impl Transactions for ActiveTxns {
    fn seen_by_all(&self) -> TxnId {
        let numbers = self.running.lock();
        let oldest = numbers.running.keys().next().map_or(numbers.next, |id| id.0);
        TxnId(numbers.views.oldest().map_or(oldest, |view| oldest.min(view.oldest())))
    }
}

#[cfg(test)]
mod tests {
    use std::{iter, thread, time::Duration};

    use super::*;
    use crate::sync::deadline;

    #[test]
    fn the_one_who_closes_the_circle_is_refused() {
        let txns = Arc::new(ActiveTxns::new());
        let [a, b, c] = [txns.start(), txns.start(), txns.start()];
        let long = Duration::from_secs(60);
        let waiters: Vec<_> = [(a.clone(), b.clone()), (b.clone(), c.clone())]
            .into_iter()
            .map(|(from, to)| {
                let txns = txns.clone();
                thread::spawn(move || {
                    txns.wait(from.id, (&to, 0), deadline(long), &Poison::default()).expect("granted");
                    txns.finish(&from, iter::empty());
                })
            })
            .collect();
        while txns.waits.lock().len() < 2 {
            thread::yield_now();
        }
        assert!(matches!(txns.wait(c.id, (&a, 0), deadline(long), &Poison::default()), Err(Error::Deadlock)));
        txns.finish(&c, iter::empty());
        for waiter in waiters {
            waiter.join().expect("thread");
        }
        assert!(txns.get(a.id).is_none() && txns.waits.lock().is_empty());
    }

    /// Otherwise a transaction that gets a lock in between would not see what was done under it.
    #[test]
    fn a_transaction_is_visible_before_its_locks_are_given_up() {
        let txns = ActiveTxns::new();
        let a = txns.start();
        let locked = txns.lock(a.id, TableId(16), b"key").expect("new to it");
        let mut given_up = 0;
        let locks = [locked].into_iter().inspect(|_| {
            assert!(txns.get(a.id).is_none(), "it is not visible yet");
            given_up += 1;
        });
        txns.finish(&a, locks);
        assert!(given_up == 1 && txns.locks.lock()[&TableId(16)].is_empty());
    }

    #[test]
    fn a_wait_ends_in_time() {
        let txns = ActiveTxns::new();
        let [a, b] = [txns.start(), txns.start()];
        assert!(matches!(
            txns.wait(a.id, (&b, 0), deadline(Duration::from_millis(1)), &Poison::default()),
            Err(Error::LockTimeout)
        ));
        assert!(txns.waits.lock().is_empty());
    }
}
