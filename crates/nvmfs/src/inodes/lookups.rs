//! Inodes that a kernel knows: how often it looked each up, less what it has forgotten.
//!
//! A kernel looks a name up, and uses the inode's number later: to open it, or because it is a process's working
//! directory. The name may be removed in between. As on any file system of Linux, the inode then stays until the kernel
//! has forgotten it. [`Posix::counting_lookups`](crate::posix::Posix::counting_lookups) counts here; a caller without
//! it has only a number, which may be stale by the time of the next call.
//!
//! The price is that a removal through a kernel takes two batches: one removes the name, and one frees the inode once
//! the kernel has forgotten it.
//!
//! **References to an inode.** Its names (`nlink`), its openings (`opens` of its node), and its count here. The
//! operation that removes the last of them frees the inode.
//! 1. A count rises only with the `record` of the inode's node held, shared or alone, and the inode live or not
//!    readable. So a thread that holds `record` alone and finds no count may free the inode: no count can reappear.
//! 2. An operation that holds `record` alone and finds a count leaves the inode as an orphan and marks the count, both
//!    at once: the operation that removes a marked count frees the inode. It holds no lock in between, so it checks
//!    names, openings and counts again, with `record` held alone: another operation may have opened or freed the inode.
//! 3. A count that is not marked belongs to an inode with a name, or to one that is open, or that damage keeps until
//!    the next open: forgetting it needs no read, even for a million of them. A needless mark, because a batch was
//!    refused, costs one check.
//! 4. A count that is too high does no harm but this: its inode is freed by [`Lookups::forget_all`], or when the
//!    store is opened next.
//!
//! **Locks.** One, held for moments, behind all others.
//!
//! **Crash.** Nothing here is persistent. An inode that is kept without a name is an orphan, which the next open frees.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::format::Ino;

/// See the module.
#[derive(Default)]
pub(super) struct Lookups {
    table: Mutex<Table>,
    /// An orphan was freed.
    freed: Condvar,
}

#[derive(Default)]
struct Table {
    counts: HashMap<Ino, Count>,
    /// Marked orphans whose look-ups are forgotten, and that are not freed yet.
    freeing: u64,
    /// Those that were freed so far.
    freed: u64,
    /// When a count was marked last.
    last_marked: Option<Instant>,
    /// Threads that wait for one to be freed.
    waiting: usize,
}

/// So many threads wait at a time: each keeps others from being served, and whoever makes marks can let all wait.
const WAITING_MAX: usize = 8;

/// Slots of the table that are kept for more counts.
const SPARE_COUNTS: usize = 1024;

/// What is left of an inode's look-ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgotten {
    /// Some.
    Known,
    /// None.
    Unknown,
    /// None, and the inode was marked: the caller frees it.
    Marked,
}

struct Count {
    lookups: u64,
    is_marked: bool,
}

impl Lookups {
    /// Counts a look-up. See invariant 1.
    pub(super) fn add(&self, ino: Ino) {
        let mut table = self.table.lock();
        let count = table.counts.entry(ino).or_insert(Count { lookups: 0, is_marked: false });
        count.lookups += 1;
    }

    /// Whether the inode must stay because of its look-ups; marks it if so (invariant 2).
    pub(super) fn mark(&self, ino: Ino) -> bool {
        let mut table = self.table.lock();
        let Some(count) = table.counts.get_mut(&ino) else { return false };
        count.is_marked = true;
        table.last_marked = Some(Instant::now());
        true
    }

    /// Subtracts look-ups. Those that were never counted are not subtracted.
    pub(super) fn forget(&self, ino: Ino, lookups: u64) -> Forgotten {
        let mut table = self.table.lock();
        let Some(count) = table.counts.get_mut(&ino) else { return Forgotten::Unknown };
        count.lookups = count.lookups.saturating_sub(lookups);
        if count.lookups > 0 {
            return Forgotten::Known;
        }
        let is_marked = table.counts.remove(&ino).is_some_and(|count| count.is_marked);
        let needed = table.counts.len() + SPARE_COUNTS;
        if table.counts.capacity() > 4 * needed {
            table.counts.shrink_to(needed);
        }
        table.freeing += u64::from(is_marked);
        if is_marked { Forgotten::Marked } else { Forgotten::Unknown }
    }

    /// Removes all look-ups. Returns the inodes that the caller must free.
    pub(super) fn forget_all(&self) -> Vec<Ino> {
        let mut table = self.table.lock();
        let counts = std::mem::take(&mut table.counts);
        let marked: Vec<_> =
            counts.into_iter().filter(|(_, count)| count.is_marked).map(|(ino, _)| ino).collect();
        table.freeing += marked.len() as u64;
        marked
    }

    /// So many marked orphans were freed, or will not be.
    pub(super) fn note_freed(&self, orphans: usize) {
        let mut table = self.table.lock();
        table.freeing = table.freeing.saturating_sub(orphans as u64);
        table.freed += orphans as u64;
        self.freed.notify_all();
    }

    /// Waits until an orphan is freed, at most for `timeout` after the last mark, or while some are being freed. False if
    /// none is freed.
    pub(super) fn wait_for_freed(&self, timeout: Duration) -> bool {
        let mut table = self.table.lock();
        let Some(marked) = table.last_marked else { return false };
        let from = if table.freeing > 0 { Instant::now() } else { marked };
        let deadline = from + timeout;
        if table.freeing == 0 && table.waiting >= WAITING_MAX {
            return false;
        }
        table.waiting += 1;
        let before = table.freed;
        while table.freed == before
            && (table.freeing > 0 || table.counts.values().any(|count| count.is_marked))
        {
            if self.freed.wait_until(&mut table, deadline).timed_out() {
                break;
            }
        }
        table.waiting -= 1;
        table.freed > before
    }

    /// Whether the inode has a look-up that is not forgotten.
    pub(super) fn knows(&self, ino: Ino) -> bool {
        self.table.lock().counts.contains_key(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_forgets_the_last_look_up_of_what_is_marked_frees_it() {
        let lookups = Lookups::default();
        let [first, second, unknown] = [20, 21, 22].map(|number| Ino::new(number).unwrap());
        assert!(!lookups.mark(unknown) && lookups.forget(unknown, 1) == Forgotten::Unknown);
        for ino in [first, first, second] {
            lookups.add(ino);
        }
        assert!(lookups.mark(first));
        assert!(lookups.forget(first, 1) == Forgotten::Known && lookups.knows(first));
        assert!(lookups.forget(first, 1) == Forgotten::Marked && !lookups.knows(first));
        assert_eq!(lookups.forget(second, 5), Forgotten::Unknown, "it has a name");
        assert!(!lookups.knows(second));
        lookups.add(first);
        lookups.add(second);
        assert!(lookups.mark(second));
        assert_eq!(lookups.forget_all(), [second]);
        assert!(!lookups.knows(first));
    }

    #[test]
    fn nobody_waits_for_what_is_not_going_to_be_freed() {
        let lookups = Lookups::default();
        let ino = Ino::new(20).unwrap();
        let forever = Duration::from_secs(1 << 20);
        assert!(!lookups.wait_for_freed(forever), "nothing was ever removed");
        lookups.add(ino);
        assert!(lookups.mark(ino));
        assert!(!lookups.wait_for_freed(Duration::from_millis(1)), "somebody holds it for long");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lookups.wait_for_freed(forever));
            while !waits.is_finished() {
                lookups.note_freed(1);
                std::thread::yield_now();
            }
            assert!(waits.join().unwrap());
        });
        assert_eq!(lookups.forget(ino, 1), Forgotten::Marked);
        assert!(!lookups.wait_for_freed(Duration::from_millis(1)), "it is not freed yet");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lookups.wait_for_freed(forever));
            while lookups.table.lock().waiting == 0 {
                std::thread::yield_now();
            }
            lookups.note_freed(1);
            assert!(waits.join().unwrap(), "what is about to be freed is waited for");
        });
        assert!(!lookups.wait_for_freed(forever), "none is left");
    }

    #[test]
    fn few_threads_wait_at_a_time() {
        let lookups = Lookups::default();
        let ino = Ino::new(20).unwrap();
        let forever = Duration::from_secs(1 << 20);
        lookups.add(ino);
        assert!(lookups.mark(ino));
        let waiting = || lookups.table.lock().waiting;
        std::thread::scope(|scope| {
            let waits: Vec<_> =
                (0..WAITING_MAX).map(|_| scope.spawn(|| lookups.wait_for_freed(forever))).collect();
            while waiting() < WAITING_MAX {
                std::thread::yield_now();
            }
            let one_more = scope.spawn(|| lookups.wait_for_freed(forever));
            while !one_more.is_finished() && waiting() == WAITING_MAX {
                std::thread::yield_now();
            }
            let waited = waiting();
            lookups.note_freed(1);
            assert_eq!(waited, WAITING_MAX, "one more waits");
            assert!(!one_more.join().unwrap());
            assert!(waits.into_iter().all(|thread| thread.join().unwrap()));
        });
    }
}
