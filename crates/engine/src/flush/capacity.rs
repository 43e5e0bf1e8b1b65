//! Reserved space, so that a store that fills up refuses new records and nothing else.
//!
//! A store whose storage is full to the last byte could neither commit nor roll back nor recover. So new records are
//! refused while less is free than accepted work may come to need: the log up to its limit, and the largest allowed
//! number of dirty pages, rewritten at their full size. Deletes need log before they free space. They are refused only
//! when the pages that are dirty now, at their full size, and a little log, would no longer fit even after everything
//! was flushed and the log freed, which is done while there still is space for it. Pages whose images are small may all
//! become large: after [`crate::Store::alter_table`].
//! Rewriting them for that ([`crate::Store::optimize`]) keeps the same distance. Before a new record is refused, deleted
//! records are purged and, now and then, everything is flushed: freed pages thereby become holes, and count as free
//! again. Before a delete is refused both are done each time: a snapshot that was closed may have kept the missing space.
//! In small storage log and dirty pages are limited to a share of it.
//!
//! Rollback and purge ask nobody, and log too, before they free anything. So a [`reserve`] is left to them, and what is
//! dirty is flushed, whoever writes, before that or the log since takes more than a part of what is free. A flush without
//! space stops the store: no more pages are flushed at a time than would fit at their full size, beside those on their way.
//!
//! Where no holes are made, a free page keeps its space, and counts as free for its own table only. So records that free
//! pages of their table may take are admitted longer than others, and refused before deletes are. After a flush more is
//! free all the same than can be dirty. What they take of it, in a place that was a hole or had a short image, the next
//! measurement shows.
//!
//! What rollbacks may need again ([`Owed`](super::Owed)) counts as taken, for new records, rewriting and deletes alike;
//! only rows of the catalog ignore it. While there is not plenty, an
//! image that would be longer than the one before it keeps the algorithm of that, and by a higher level if need be: of a
//! table that was compressed once, or better, all would grow otherwise.
//!
//! Dirty pages are limited to what a recovery can read in time as well ([`StoreOptions::replay_time`]).

use std::sync::Arc;

use lacuna_page::PAGE_BYTES_MAX;

use crate::{
    alloc::Allocator,
    flush::{Flusher, doublewrite},
    mutant::{Rule, is_broken},
    pool::replay_cost,
    space::Space,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    types::{Error, Result, StoreOptions},
};

/// The log may take one in this many bytes of a VFS, and dirty pages as many.
const SHARE: u64 = 8;
/// Share of the pool that may be dirty. Beyond it the oldest are flushed, many of which will be changed again soon;
/// eviction asks for none of these. But without any clean page each miss would wait for a flush.
const DIRTY_SHARE: (u64, u64) = (15, 16);
/// Log written between two measurements, at most.
const MEASURE_BYTES: u64 = 128 << 10;
/// Free pages that must be left in a table for a record and the splits that it causes.
const SPLIT_PAGES: u64 = 16;
/// Least space for the log, however small the storage is.
const LOG_BYTES_MIN: u64 = 256 << 10;
/// Least space that only rollback and purge may take, if that is not much of the log.
const RESERVE_BYTES_MIN: u64 = 256 << 10;

/// What there is space for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Plenty,
    ReuseOnly,
    DeletesOnly,
    Nothing,
}

/// What a write takes of the storage, beside log and undo.
#[derive(Clone, Copy)]
pub(crate) enum Claim<'a> {
    /// None: a delete.
    Log,
    /// Next to none, for what may be the way out of a full store: a row of the catalog.
    Row,
    /// Space for a record of so many bytes, new or longer than before, which free pages of its table may have.
    Record(&'a Arc<Space>, usize),
    /// Space that nothing had before.
    Space,
}

/// The last measurement.
pub(crate) struct Capacity {
    /// What was free; `u64::MAX` where the VFS does not know, and before the first measurement.
    free_bytes: AtomicU64,
    /// End of the log then.
    measured_at: AtomicU64,
    /// Bytes of pages dirty and on their way then.
    dirty_then: AtomicU64,
    /// Bytes that images have taken beyond those before them.
    taken: AtomicU64,
    /// The same then.
    taken_then: AtomicU64,
    /// One measurement at a time: held while the VFS is asked for its free space, by threads that hold no latch.
    measuring: Mutex<()>,
    /// Bytes of dirty pages beyond which the oldest are flushed.
    pub(super) dirty_bytes_max: u64,
    /// Reads in a replay of pages dirty and on their way, beyond which writers wait.
    pub(super) reads_max: u64,
    /// End of the log when everything was last flushed for a writer without space.
    flushed_at: AtomicU64,
    /// The same of [`Flusher::flush_while_possible`].
    flushed_early_at: AtomicU64,
}

impl Capacity {
    /// For a VFS of `vfs_bytes`.
    pub(super) fn new(options: &StoreOptions, vfs_bytes: u64) -> Capacity {
        let dirty_bytes_max =
            (options.pool_bytes as u64 / DIRTY_SHARE.1 * DIRTY_SHARE.0).min(vfs_bytes / SHARE);
        Capacity {
            free_bytes: AtomicU64::new(u64::MAX),
            measured_at: AtomicU64::new(0),
            dirty_then: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            taken_then: AtomicU64::new(0),
            measuring: Mutex::new(()),
            dirty_bytes_max,
            reads_max: replay_cost::reads_max(options.replay_time, options.log_bytes),
            flushed_at: AtomicU64::new(0),
            flushed_early_at: AtomicU64::new(0),
        }
    }

    /// Reads in a replay of dirty pages beyond which the oldest are flushed.
    pub(super) fn dirty_reads_max(&self) -> u64 {
        self.reads_max / 16 * 15
    }

    /// Bytes of pages dirty and on their way beyond which writers wait.
    pub(super) fn unflushed_bytes_max(&self) -> u64 {
        self.dirty_bytes_max / 16 * 17
    }
}

/// Bytes of log for a VFS of `vfs_bytes`.
pub(crate) fn log_bytes(options: &StoreOptions, vfs_bytes: u64) -> u64 {
    options.log_bytes.min((vfs_bytes / SHARE).max(LOG_BYTES_MIN))
}

/// Bytes of history that snapshots may keep in a VFS of `vfs_bytes`.
pub(crate) fn history_bytes(options: &StoreOptions, vfs_bytes: u64) -> u64 {
    match is_broken(Rule::HistoryFits) {
        true => options.history_bytes,
        false => options.history_bytes.min(vfs_bytes / SHARE),
    }
}

/// Space that only rollback and purge may take, where the log may have so many bytes: they ask nobody, change several pages
/// at a time, and flush before that or what they log takes more than a part of this.
fn reserve(log_bytes: u64) -> u64 {
    if is_broken(Rule::ReserveKept) {
        return 0;
    }
    (log_bytes / 16).max(RESERVE_BYTES_MIN.min(log_bytes / 4))
}

/// Space that accepted work may come to need, in bytes.
struct Need {
    log_used: u64,
    log_max: u64,
    dirty: u64,
    dirty_max: u64,
}

fn level(free_bytes: u64, need: &Need) -> Level {
    let with_log = free_bytes.saturating_add(need.log_used);
    if free_bytes >= need.log_max.saturating_sub(need.log_used) + need.dirty_max {
        Level::Plenty
    } else if free_bytes >= need.log_max / 4 + need.dirty_max && with_log >= need.log_max / 2 + need.dirty_max
    {
        Level::ReuseOnly
    } else if free_bytes >= reserve(need.log_max) + need.dirty {
        Level::DeletesOnly
    } else {
        Level::Nothing
    }
}

/// Whether there will be plenty when what is dirty now has taken its space. Records of tables without holes need that: what
/// they take is never given back, and must leave the distance in which their free pages are used again.
fn is_plenty_once_flushed(free_bytes: u64, need: &Need) -> bool {
    level(free_bytes.saturating_sub(need.dirty), need) == Level::Plenty
}

impl Flusher {
    /// Measures the space left. The producer does so at each round, and writers when the log has grown
    /// much since.
    pub(super) fn measure_capacity(&self) -> Result<()> {
        let capacity = &self.capacity;
        let _one = capacity.measuring.lock();
        let measured_at = self.pager.log().end_hint();
        // An image that was noted before is on its way still, or on the device.
        let taken_then = capacity.taken.load(Ordering::Acquire);
        let dirty_then = self.pager.pool().dirty().unflushed_bytes() as u64;
        // What is in memory only takes its space later.
        let unwritten = self.pager.log().unwritten_bytes();
        let free_bytes = self.vfs.free_bytes()?.map_or(u64::MAX, |free| free.saturating_sub(unwritten));
        let known = [
            (&capacity.measured_at, measured_at),
            (&capacity.taken_then, taken_then),
            (&capacity.dirty_then, dirty_then),
            (&capacity.free_bytes, free_bytes),
        ];
        known.into_iter().for_each(|(to, bytes)| to.store(bytes, Ordering::Relaxed));
        Ok(())
    }

    /// Notes that an image that is about to be written takes more than the one before it.
    pub(super) fn note_taken(&self, bytes: usize) {
        self.capacity.taken.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    /// What is free now, if everything since the last measurement took space.
    pub(super) fn free_bytes(&self) -> u64 {
        let measured_at = self.capacity.measured_at.load(Ordering::Relaxed);
        match self.capacity.free_bytes.load(Ordering::Relaxed) {
            u64::MAX => u64::MAX,
            free => {
                let logged = self.pager.log().end_hint().saturating_sub(measured_at);
                let taken_then = self.capacity.taken_then.load(Ordering::Relaxed);
                let taken = self.capacity.taken.load(Ordering::Relaxed).saturating_sub(taken_then);
                free.saturating_sub(logged + taken)
            }
        }
    }

    /// What of it no rollback may come to need.
    fn unowed_bytes(&self) -> u64 {
        self.free_bytes().saturating_sub(self.owed.bytes())
    }

    /// Space that the pages dirty and on their way may come to need; those that were so at the last measurement may have
    /// needed it.
    fn dirty_need(&self) -> u64 {
        let dirty = self.pager.pool().dirty().unflushed_bytes() as u64;
        dirty.max(self.capacity.dirty_then.load(Ordering::Relaxed))
    }

    fn need(&self) -> Need {
        Need {
            log_used: self.pager.log().used_bytes(),
            log_max: self.options.log_bytes,
            dirty: self.dirty_need(),
            // Operations that passed the throttle at the same time may exceed it a little.
            dirty_max: self.capacity.unflushed_bytes_max() / 4 * 5,
        }
    }

    /// Bytes of pages that [`crate::Store::optimize`] rewrites between two looks at log and space: what that may come to
    /// log and to take is a small part of both.
    pub(crate) fn rewrite_bytes(&self) -> u64 {
        (self.options.log_bytes / 16).min(self.capacity.dirty_bytes_max / 4)
    }

    /// Refuses to rewrite pages of `bytes` where those may take the space that deletes need.
    pub(crate) fn must_have_space_to_rewrite(&self, bytes: u64) -> Result<()> {
        self.measure_capacity()?;
        if !self.has_space_to_rewrite(bytes) && self.may_flush() {
            self.flush_what_fits()?;
            self.measure_capacity()?;
        }
        match self.has_space_to_rewrite(bytes) {
            true => Ok(()),
            false => Err(self.full()),
        }
    }

    pub(super) fn has_space_to_rewrite(&self, bytes: u64) -> bool {
        self.unowed_bytes() >= reserve(self.options.log_bytes) + self.dirty_need() + 2 * bytes
    }

    fn full(&self) -> Error {
        Error::Full { what: self.vfs.name().into(), history_bytes: 0 }
    }

    /// Whether there is space for a page that is dirty; otherwise a flush might stop the store.
    fn may_flush(&self) -> bool {
        let least = if is_broken(Rule::PartsFlushed) { u64::MAX } else { PAGE_BYTES_MAX as u64 };
        self.free_bytes() >= self.dirty_need().min(least)
    }

    /// Whether there is so little space that a flush, which gives back what the log takes, may not be possible much longer.
    fn may_soon_not_flush(&self) -> bool {
        self.free_bytes() < self.options.log_bytes / 4 + self.dirty_need()
    }

    /// Whether so much is dirty, or was logged since the last flush for space, at `last`, that another one may free some.
    fn may_flush_for_space(&self, last: &AtomicU64, (logged, dirty): (u64, u64)) -> bool {
        let end = self.pager.log().end_hint();
        let before = last.load(Ordering::Relaxed);
        let is_due = end.saturating_sub(before) > logged || end > before && self.dirty_need() > dirty;
        is_due && last.compare_exchange(before, end, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Refuses work that may be given up while there is less space than accepted work may need.
    pub(crate) fn must_have_space(&self) -> Result<()> {
        self.measure_if_due()?;
        match level(self.unowed_bytes(), &self.need()) {
            Level::Plenty => Ok(()),
            _ => Err(self.full()),
        }
    }

    /// Whether there is so little space that no image should become longer than its page needs.
    pub(super) fn is_short_of_space(&self) -> bool {
        level(self.unowed_bytes(), &self.need()) != Level::Plenty && !is_broken(Rule::ImagesStayShort)
    }

    /// Whether regions of the doublewrite file may take space that they did not have.
    pub(super) fn has_space_for_regions(&self) -> bool {
        let beside_them = self.unowed_bytes().saturating_sub(doublewrite::BYTES);
        level(beside_them, &self.need()) == Level::Plenty || is_broken(Rule::CopiesHaveSpace)
    }

    fn measure_if_due(&self) -> Result<()> {
        let measured_at = self.capacity.measured_at.load(Ordering::Relaxed);
        let is_due = self.pager.log().end_hint().saturating_sub(measured_at) > MEASURE_BYTES;
        if is_due { self.measure_capacity() } else { Ok(()) }
    }

    /// Refuses a write that there is no space for. `purge` removes records that were deleted and that no view needs.
    /// The caller holds no latch.
    pub(crate) fn admit(&self, claim: Claim<'_>, purge: impl FnOnce() -> Result<()>) -> Result<()> {
        self.flush_while_possible()?;
        if self.has_space_for(claim)? {
            return Ok(());
        }
        // What is known may be old.
        self.measure_capacity()?;
        if self.has_space_for(claim)? {
            return Ok(());
        }
        let is_delete = matches!(claim, Claim::Log | Claim::Row);
        let enough = (MEASURE_BYTES, self.options.log_bytes / 16);
        if is_delete && self.may_flush() {
            self.flush_what_fits()?;
            self.measure_capacity()?;
            if self.has_space_for(claim)? {
                return Ok(());
            }
        }
        if self.may_flush() && (is_delete || self.may_flush_for_space(&self.capacity.flushed_at, enough)) {
            if !is_broken(Rule::RefusedAfterPurge) {
                // Deleted records take their space until they are purged, and so does the history of snapshots that were
                // closed.
                purge()?;
            }
            // The log, stale images of dirty pages and freed pages that are not holes yet may hold the missing space.
            self.flush_what_fits()?;
        }
        // The VFS may have grown, or other users of it have freed space.
        self.measure_capacity()?;
        match self.has_space_for(claim)? {
            true => Ok(()),
            false => Err(self.full()),
        }
    }

    /// Flushes everything, which gives back what the log takes, while there is space for that. The caller holds no latch.
    pub(super) fn flush_while_possible(&self) -> Result<()> {
        // Where that fails, what is known stays: rollbacks must not stop for it.
        let _ = self.measure_if_due();
        // Of little space little may be taken in between.
        let part = self.free_bytes() / 4;
        let enough = (MEASURE_BYTES.min(part), part.min(self.options.log_bytes / 16));
        let is_due = self.may_soon_not_flush() && self.may_flush();
        if is_due && self.may_flush_for_space(&self.capacity.flushed_early_at, enough) {
            self.flush_what_fits()?;
            let _ = self.measure_capacity();
        }
        Ok(())
    }

    fn has_space_for(&self, claim: Claim<'_>) -> Result<bool> {
        let is_row = matches!(claim, Claim::Row);
        let free_bytes = if is_row { self.free_bytes() } else { self.unowed_bytes() };
        let need = self.need();
        let level = level(free_bytes, &need);
        Ok(match claim {
            Claim::Log | Claim::Row => level <= Level::DeletesOnly,
            Claim::Space => level == Level::Plenty,
            Claim::Record(..) if is_plenty_once_flushed(free_bytes, &need) => true,
            Claim::Record(space, _) if self.makes_holes(space) => level == Level::Plenty,
            Claim::Record(space, bytes) => level <= Level::ReuseOnly && self.has_free_pages(space, bytes)?,
        })
    }

    /// Whether a record of `bytes` finds free pages in a table that makes no holes of them. Nor are there any as long as
    /// the log cannot be given back as holes: too little would be left for deletes.
    fn has_free_pages(&self, space: &Arc<Space>, bytes: usize) -> Result<bool> {
        if space.file().props().hole_unit == 0 || self.stats.lock().refused_punches > 0 {
            return Ok(false);
        }
        let needed = SPLIT_PAGES + 2 * (bytes / space.page_bytes()) as u64;
        Ok(Allocator::latch(&self.pager, space)?.free_count() >= needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_follow_the_space() {
        let need = Need { log_used: 110, log_max: 160, dirty: 20, dirty_max: 50 };
        for (free, want) in [
            (100, Level::Plenty),
            (1000, Level::Plenty),
            (99, Level::ReuseOnly),
            (90, Level::ReuseOnly),
            (89, Level::DeletesOnly),
            (60, Level::DeletesOnly),
            (59, Level::Nothing),
            (0, Level::Nothing),
        ] {
            assert_eq!(level(free, &need), want, "{free}");
        }
        let need = Need { log_used: 0, ..need };
        for (free, want) in [(210, Level::Plenty), (130, Level::ReuseOnly), (129, Level::DeletesOnly)] {
            assert_eq!(level(free, &need), want, "{free}, without log");
        }
    }

    #[test]
    fn a_small_place_has_a_small_log() {
        let options = StoreOptions { log_bytes: 256 << 20, ..StoreOptions::default() };
        assert_eq!(log_bytes(&options, 8 << 30), 256 << 20);
        assert_eq!(log_bytes(&options, 64 << 20), 8 << 20);
        assert_eq!(log_bytes(&options, 0), LOG_BYTES_MIN);
    }
}
