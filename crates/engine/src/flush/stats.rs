//! Counters of flushing.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Counters of flushing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushStats {
    /// Pages written: the three counts below, and pages written because all were to be, as by a checkpoint.
    pub pages: u64,
    /// Pages among them that blocked eviction.
    pub for_eviction: u64,
    /// Pages among them that did not, but whose oldest changes kept too much log.
    pub for_log: u64,
    /// Pages among them written for neither reason, but because too much of the pool was dirty.
    pub for_dirty: u64,
    /// Pages of all of them that had been written since they came into the pool, and changed again.
    pub again: u64,
    /// Bytes of their images.
    pub image_bytes: u64,
    /// Batches they were written in.
    pub batches: u64,
    /// Holes punched because an image became shorter.
    pub punches: u64,
    /// Holes that the VFS refused. After the first refusal the store punches no more until it is reopened; this costs
    /// only space.
    pub refused_punches: u64,
    /// Bytes written to the doublewrite file.
    pub doublewrite_bytes: u64,
    /// Times a writer waited for the log or the pool.
    pub throttled: u64,
    /// Checkpoints.
    pub checkpoints: u64,
}

/// Why pages are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Eviction found them dirty.
    Eviction,
    /// Their oldest changes keep too much log.
    Log,
    /// Too much of the pool is dirty.
    Dirty,
    /// A caller asked for them to be written.
    Asked,
}

#[derive(Default)]
pub(crate) struct Counters {
    pages: [AtomicU64; 4],
    again: AtomicU64,
    image_bytes: AtomicU64,
    batches: AtomicU64,
    punches: AtomicU64,
    refused_punches: AtomicU64,
    doublewrite_bytes: AtomicU64,
    throttled: AtomicU64,
    checkpoints: AtomicU64,
}

impl Counters {
    pub(super) fn stats(&self) -> FlushStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of = |cause: Cause| get(&self.pages[cause as usize]);
        FlushStats {
            pages: self.pages.iter().map(get).sum(),
            for_eviction: of(Cause::Eviction),
            for_log: of(Cause::Log),
            for_dirty: of(Cause::Dirty),
            again: get(&self.again),
            image_bytes: get(&self.image_bytes),
            batches: get(&self.batches),
            punches: get(&self.punches),
            refused_punches: get(&self.refused_punches),
            doublewrite_bytes: get(&self.doublewrite_bytes),
            throttled: get(&self.throttled),
            checkpoints: get(&self.checkpoints),
        }
    }

    /// A batch of `pages` was written, `again` of them not for the first time.
    pub(super) fn wrote(&self, cause: Cause, pages: u64, again: u64, image_bytes: u64) {
        self.pages[cause as usize].fetch_add(pages, Ordering::Relaxed);
        self.again.fetch_add(again, Ordering::Relaxed);
        self.image_bytes.fetch_add(image_bytes, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn punched(&self) {
        self.punches.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it was the first.
    pub(super) fn refused_punch(&self) -> bool {
        self.refused_punches.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Whether holes still are asked for.
    pub(super) fn may_punch(&self) -> bool {
        self.refused_punches.load(Ordering::Relaxed) == 0
    }

    pub(super) fn wrote_twice(&self, bytes: u64) {
        self.doublewrite_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn throttled(&self) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn checkpointed(&self) {
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
    }
}
