//! Which pages are dirty, and since when: the flush list.
//!
//! Invariants:
//!
//! 1. A page whose newest change is not on the medium is in `dirty`, in `in_flight`, or in both, under
//!    the start of its oldest such change. The least of all these bounds what recovery must read.
//! 2. A page has one image in flight at a time.
//! 3. Entering happens with the log locked and the page latched exclusively; moving to `in_flight`
//!    happens with the page latched shared. So the image holds all changes older than its entry in
//!    `dirty`, if it has one.

use std::{collections::BTreeMap, sync::Arc};

use super::frame::{Frame, ReadGuard};
use crate::{
    mutant::{Rule, is_broken},
    pool::replay_cost,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    types::{Lsn, PageId, TableId},
};

/// The list. Its lock is a leaf: nothing is locked under it.
#[derive(Default)]
pub(crate) struct DirtyList {
    inner: Mutex<Inner>,
    /// Bytes of pages dirty and in flight; a page that is both counts twice.
    unflushed_bytes: AtomicUsize,
    /// Reads that replay has to make for these ([`replay_cost::reads`]).
    unflushed_reads: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    dirty: BTreeMap<(Lsn, PageId), Arc<Frame>>,
    dirty_bytes: usize,
    dirty_reads: usize,
    in_flight: BTreeMap<(Lsn, PageId), Arc<Frame>>,
    /// End of what recovery has replayed so far; none once all is.
    replayed: Option<Lsn>,
}

impl DirtyList {
    /// Notes that `frame`, latched exclusively by the caller, changed in the record that starts at
    /// `start`.
    pub(crate) fn enter(&self, frame: &Arc<Frame>, start: Lsn) {
        // It stays so: by invariant 3 no thread takes it off the list while the caller has it latched.
        if frame.has_changes() {
            return;
        }
        assert!(start.0 > 0, "a record starts behind its group's header");
        let mut inner = self.inner.lock();
        frame.dirty_since.store(start.0, Ordering::Release);
        inner.dirty.insert((start, frame.id), frame.clone());
        inner.dirty_bytes += frame.page_bytes;
        inner.dirty_reads += replay_cost::reads(frame.page_bytes);
        self.unflushed_bytes.fetch_add(frame.page_bytes, Ordering::Relaxed);
        self.unflushed_reads.fetch_add(replay_cost::reads(frame.page_bytes), Ordering::Relaxed);
    }

    /// Moves a page that is dirty since before `before`, and that the caller has latched shared, into flight;
    /// false when it is not, or in flight already.
    pub(crate) fn take_off(&self, page: &ReadGuard, before: Lsn) -> bool {
        let frame = &page.frame;
        let mut inner = self.inner.lock();
        let since = Lsn(frame.dirty_since.load(Ordering::Relaxed));
        if since.0 == 0 || since >= before || frame.in_flight_since.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let entry = inner.dirty.remove(&(since, frame.id)).expect("invariant 1");
        inner.dirty_bytes -= frame.page_bytes;
        inner.dirty_reads -= replay_cost::reads(frame.page_bytes);
        inner.in_flight.insert((since, frame.id), entry);
        frame.in_flight_since.store(since.0, Ordering::Release);
        frame.dirty_since.store(0, Ordering::Release);
        true
    }

    /// Notes that the images of these pages are on the medium, or, where it is ordered, handed to it.
    pub(crate) fn land(&self, frames: &[Arc<Frame>]) {
        let mut inner = self.inner.lock();
        for frame in frames {
            let since = Lsn(frame.in_flight_since.swap(0, Ordering::AcqRel));
            inner.in_flight.remove(&(since, frame.id)).expect("invariant 1");
            self.subtract(frame);
        }
    }

    /// Notes that the log was replayed only up to `end`: later changes are on no page and in no list yet. `None` when
    /// the replay is over.
    pub(crate) fn set_replayed(&self, end: Option<Lsn>) {
        self.inner.lock().replayed = end;
    }

    /// Start of the oldest change that is not on the medium.
    pub(crate) fn oldest(&self) -> Option<Lsn> {
        let inner = self.inner.lock();
        let dirty = inner.dirty.keys().next().map(|key| key.0);
        let in_flight = inner.in_flight.keys().next().map(|key| key.0);
        let in_flight = in_flight.filter(|_| !is_broken(Rule::FlightsCount));
        dirty.into_iter().chain(in_flight).chain(inner.replayed).min()
    }

    fn subtract(&self, frame: &Frame) {
        self.unflushed_bytes.fetch_sub(frame.page_bytes, Ordering::Relaxed);
        self.unflushed_reads.fetch_sub(replay_cost::reads(frame.page_bytes), Ordering::Relaxed);
    }

    /// Bytes of pages that have changes no image holds yet.
    pub(crate) fn dirty_bytes(&self) -> usize {
        self.dirty_bytes_and_reads().0
    }

    /// The same, and the reads that replay has to make for them.
    pub(crate) fn dirty_bytes_and_reads(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.dirty_bytes, inner.dirty_reads)
    }

    /// Bytes of pages that have an image in flight.
    pub(crate) fn in_flight_bytes(&self) -> usize {
        let inner = self.inner.lock();
        self.unflushed_bytes.load(Ordering::Relaxed) - inner.dirty_bytes
    }

    /// Bytes of pages whose newest change is not on the medium; may lag slightly.
    pub(crate) fn unflushed_bytes(&self) -> usize {
        self.unflushed_bytes.load(Ordering::Relaxed)
    }

    /// Reads that replay has to make for pages whose newest change is not on the medium; may lag slightly.
    pub(crate) fn unflushed_reads(&self) -> usize {
        self.unflushed_reads.load(Ordering::Relaxed)
    }

    /// Up to `count` dirty pages whose oldest change starts before `before`, oldest first, that have
    /// no image in flight.
    pub(crate) fn oldest_pages(&self, before: Lsn, count: usize) -> Vec<Arc<Frame>> {
        let inner = self.inner.lock();
        let due = inner.dirty.iter().take_while(|(key, _)| key.0 < before);
        due.filter(|(_, f)| f.in_flight_since.load(Ordering::Relaxed) == 0)
            .map(|(_, f)| f.clone())
            .take(count)
            .collect()
    }

    /// Whether a page of the table has changes that are not on the device.
    pub(crate) fn has_any_of(&self, table: TableId) -> bool {
        let inner = self.inner.lock();
        inner.dirty.keys().chain(inner.in_flight.keys()).any(|key| key.1.table == table)
    }

    /// Drops the changes of a table whose file is about to be removed. None of its pages may be in flight.
    pub(crate) fn forget_table(&self, table: TableId) {
        let mut inner = self.inner.lock();
        assert!(inner.in_flight.keys().all(|key| key.1.table != table), "nobody uses the table");
        let gone: Vec<_> = inner.dirty.keys().filter(|key| key.1.table == table).copied().collect();
        for key in gone {
            let frame = inner.dirty.remove(&key).expect("just listed");
            inner.dirty_bytes -= frame.page_bytes;
            inner.dirty_reads -= replay_cost::reads(frame.page_bytes);
            self.subtract(&frame);
            frame.dirty_since.store(0, Ordering::Release);
        }
    }
}
