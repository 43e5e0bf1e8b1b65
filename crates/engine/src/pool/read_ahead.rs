//! Read-ahead: the leaves that a scan is about to visit are read, verified and decompressed in the background.
//!
//! A scan that has gone from leaf to leaf four times names those that follow in the same parent, and a few threads
//! bring them into the pool: the device answers several reads in the time of one. That is all there is to gain, as
//! reading a page takes many times as long as scanning it. Without threads [`crate::Store::step`] does it.
//!
//! Invariants:
//!
//! 1. It is a hint, and no thread waits for it: beyond [`QUEUE_MAX`] names the oldest are dropped, and a page that
//!    cannot be read is left to the scan, which reports the error.
//! 2. A page is read under a pin of its table, so no page of a dropped table is read.
//! 3. By then the number may belong to another page: that it is in memory proves nothing. Scans still reach it through
//!    the tree.
//! 4. A scan is at most [`LEAVES_MAX`] leaves ahead of itself, and nothing is read while the pool is beyond its
//!    budget. Reading a page ahead does not count as a use, so pages that are used once still pass through the small
//!    queue (`pool::evict`).
//!
//! The queue's lock is a leaf. No latch but that of the page being read is held.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use super::Pool;

use crate::{
    poison::Poison,
    space::Spaces,
    sync::{Condvar, Mutex},
    types::{PageId, PageNo, TableId},
};

/// Threads that read. A single one is slower than none: the scan catches up with it at each page.
pub(crate) const THREADS: usize = 4;
/// Names that wait, at most.
const QUEUE_MAX: usize = 64;
/// Leaves that a scan names ahead of itself, at most.
const LEAVES_MAX: usize = 8;

/// The queue of pages to be read.
pub(crate) struct ReadAhead {
    pool: Arc<Pool>,
    spaces: Arc<Spaces>,
    poison: Arc<Poison>,
    queue: Mutex<Queue>,
    /// Something was named, or it is time to stop.
    named: Condvar,
}

#[derive(Default)]
struct Queue {
    pages: VecDeque<PageId>,
    stop: bool,
}

/// How far a scan is ahead of itself.
#[derive(Default)]
pub(crate) struct Run {
    /// Times it went from one leaf to the next.
    steps: u32,
    /// Leaves after the present one that are named already.
    named: usize,
    is_new_leaf: bool,
}

impl Run {
    /// The scan goes on to the next leaf.
    pub(crate) fn step(&mut self) {
        self.steps = self.steps.saturating_add(1);
        self.named = self.named.saturating_sub(1);
        self.is_new_leaf = true;
    }

    /// Which of the leaves that follow should be named, the next one being 0. Most scans are short: the first four
    /// leaves name nothing, later ones more and more.
    pub(crate) fn wish(&mut self) -> Range<usize> {
        let ahead = match self.steps {
            0..=3 => 0,
            steps => LEAVES_MAX.min(1 << (steps - 3).min(8)),
        };
        let is_due = std::mem::take(&mut self.is_new_leaf) && self.named <= ahead / 2;
        if is_due { self.named..ahead } else { 0..0 }
    }
}

impl ReadAhead {
    pub(crate) fn new(pool: Arc<Pool>, spaces: Arc<Spaces>, poison: Arc<Poison>) -> ReadAhead {
        ReadAhead { pool, spaces, poison, queue: Mutex::default(), named: Condvar::new() }
    }

    /// Names leaves that the scan `run` is going to visit.
    pub(crate) fn name(&self, run: &mut Run, table: TableId, leaves: &[PageNo]) {
        if leaves.is_empty() {
            return;
        }
        run.named += leaves.len();
        let mut queue = self.queue.lock();
        queue.pages.extend(leaves.iter().map(|page| PageId { table, page: *page }));
        let excess = queue.pages.len().saturating_sub(QUEUE_MAX);
        queue.pages.drain(..excess);
        drop(queue);
        for _ in 0..leaves.len().min(THREADS) {
            self.named.notify_one();
        }
    }

    /// Reads one page that was named. Returns whether there was one.
    pub(crate) fn step(&self) -> bool {
        let Some(id) = self.queue.lock().pages.pop_front() else { return false };
        self.read(id);
        true
    }

    fn read(&self, id: PageId) {
        if let Some(space) = self.spaces.pin_for_work(id.table) {
            // Invariant 1: the error is the scan's.
            let _ = self.pool.read_ahead(&space, id.page);
        }
    }

    pub(crate) fn run(&self) {
        loop {
            let id = {
                let mut queue = self.queue.lock();
                loop {
                    if queue.stop {
                        return;
                    }
                    if let Some(id) = queue.pages.pop_front() {
                        break id;
                    }
                    self.named.wait(&mut queue);
                }
            };
            self.poison.guard(|| self.read(id));
        }
    }

    pub(crate) fn stop(&self) {
        self.queue.lock().stop = true;
        self.named.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_asks_for_ever_more_leaves_and_for_each_once() {
        let mut run = Run::default();
        let mut asked = Vec::new();
        for leaf in 0..20_usize {
            let wish = run.wish();
            run.named += wish.len();
            asked.extend(wish.map(|next| leaf + 1 + next));
            assert!(run.wish().is_empty(), "more of the same leaf");
            run.step();
        }
        let first = asked[0];
        assert_eq!(first, 5);
        assert_eq!(asked, (first..first + asked.len()).collect::<Vec<_>>());
        assert!(asked.last().is_some_and(|last| (20..20 + LEAVES_MAX).contains(last)), "{asked:?}");
    }
}
