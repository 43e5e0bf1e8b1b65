//! Pages that our engine read and wrote while requests were measured, and why.

use std::ops::Sub;

use lacuna_engine::{Store, StoreStats};
use serde::Serialize;

use crate::side_by_side::SideBySide;

/// Counters of the engine, over the measured part and settling at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageTraffic {
    /// Pages that were looked up and had to be read.
    pub read: u64,
    /// Bytes read from the device: fewer than those of the pages where the store had them in memory.
    pub device_read_bytes: u64,
    /// Pages read ahead of scans.
    pub read_ahead: u64,
    /// Pages among them that were evicted unused.
    pub read_ahead_unused: u64,
    /// Pages written.
    pub written: u64,
    /// Pages among them that blocked eviction.
    pub written_for_eviction: u64,
    /// Pages among them whose oldest changes kept too much log.
    pub written_for_log: u64,
    /// Pages among them because too much of the pool was dirty.
    pub written_for_dirty: u64,
    /// Pages among them that had been written since they were read.
    pub written_again: u64,
    /// Batches that pages were written in.
    pub batches: u64,
    /// Bytes written in the places of pages: images, and what fills atomic writes up.
    pub page_bytes: u64,
    /// Bytes written to the doublewrite file.
    pub doublewrite_bytes: u64,
    /// Holes punched behind images that became shorter, and of free pages.
    pub trims: u64,
    /// Holes and atomic writes that the storage refused.
    pub refused: u64,
    /// Bytes of the log, padding included.
    pub log_bytes: u64,
    /// Times a writer was made to wait.
    pub throttled: u64,
}

impl PageTraffic {
    pub(crate) fn of(store: &Store) -> lacuna_engine::Result<PageTraffic> {
        let StoreStats { pool, flush, log, vfs, .. } = store.stats()?;
        Ok(PageTraffic {
            read: pool.misses,
            device_read_bytes: vfs.device_read_bytes,
            read_ahead: pool.read_ahead,
            read_ahead_unused: pool.read_ahead_unused,
            written: flush.pages,
            written_for_eviction: flush.for_eviction,
            written_for_log: flush.for_log,
            written_for_dirty: flush.for_dirty,
            written_again: flush.again,
            batches: flush.batches,
            page_bytes: flush.written_bytes,
            doublewrite_bytes: flush.doublewrite_bytes,
            trims: flush.punches,
            refused: flush.refused_punches + flush.refused_atomic_writes,
            log_bytes: log.written_bytes,
            throttled: flush.throttled,
        })
    }
}

impl Sub for PageTraffic {
    type Output = PageTraffic;

    fn sub(self, before: PageTraffic) -> PageTraffic {
        PageTraffic {
            read: self.read - before.read,
            device_read_bytes: self.device_read_bytes - before.device_read_bytes,
            read_ahead: self.read_ahead - before.read_ahead,
            read_ahead_unused: self.read_ahead_unused - before.read_ahead_unused,
            written: self.written - before.written,
            written_for_eviction: self.written_for_eviction - before.written_for_eviction,
            written_for_log: self.written_for_log - before.written_for_log,
            written_for_dirty: self.written_for_dirty - before.written_for_dirty,
            written_again: self.written_again - before.written_again,
            batches: self.batches - before.batches,
            page_bytes: self.page_bytes - before.page_bytes,
            doublewrite_bytes: self.doublewrite_bytes - before.doublewrite_bytes,
            trims: self.trims - before.trims,
            refused: self.refused - before.refused,
            log_bytes: self.log_bytes - before.log_bytes,
            throttled: self.throttled - before.throttled,
        }
    }
}

/// Adds the rows for these counters, per thousand of `requests`; none when no run was our engine's.
pub(crate) fn add_rows<R>(
    table: &mut SideBySide<'_, R>,
    requests: impl Fn(&R) -> u64,
    of: impl Fn(&R) -> Option<PageTraffic>,
) {
    if table.runs().iter().all(|run| of(run).is_none()) {
        return;
    }
    let mut row = |name: &str, count: fn(PageTraffic) -> u64| {
        let per_thousand =
            |run: &R| count(of(run).unwrap_or_default()) as f64 * 1e3 / requests(run).max(1) as f64;
        table.row(name, 1, per_thousand);
    };
    row("pages read per 1,000", |pages| pages.read);
    row("  KB from the device", |pages| pages.device_read_bytes / 1000);
    row("  read ahead of scans", |pages| pages.read_ahead);
    row("pages written per 1,000", |pages| pages.written);
    row("  for space in the pool", |pages| pages.written_for_eviction);
    row("  for space in the log", |pages| pages.written_for_log);
    row("  against too many dirty", |pages| pages.written_for_dirty);
    row("  not for the first time", |pages| pages.written_again);
    row("  batches of them", |pages| pages.batches);
    row("  KB in their places", |pages| pages.page_bytes / 1000);
    row("  KB in the doublewrite file", |pages| pages.doublewrite_bytes / 1000);
    row("trims per 1,000", |pages| pages.trims);
    row("log per 1,000, KB", |pages| pages.log_bytes / 1000);
}
