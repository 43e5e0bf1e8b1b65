//! The buffer pool: uncompressed pages in bounded memory.
//!
//! A page of a row-compressed table has its block after it in the same frame. When such a page is evicted its block is
//! kept a while longer, sealed; a page has a frame or a kept block, never both.
//!
//! Owns all frames. A page is found, inserted and evicted under its shard's lock; its content is guarded by its own
//! latch.
//!
//! Invariants:
//!
//! 1. A page has at most one frame, so the holder of its latch sees its only copy in memory.
//! 2. A frame is evicted only when the shard alone holds it and no change in it is missing on the device; so what is
//!    read back is never older than what was evicted.
//! 3. A frame enters its shard latched exclusively by the thread that fills it; others wait for the
//!    latch, not for the shard. When filling fails the frame is discarded and the others look again.
//!
//! Lock order: page latches (parents before children), then a shard, then `wanted`. No shard is locked
//! across I/O; the latch of a page being read is.
//!
//! The budget is exceeded rather than waited for, because the caller may hold latches: writers are
//! slowed before they take any (see `flush`), and eviction catches up with each later miss.

mod dirty;
mod evict;
mod frame;
pub(crate) mod read_ahead;
pub(crate) mod replay_cost;

use std::{cell::RefCell, hash::BuildHasher, sync::Arc, time::Duration};

use lacuna_device::{AlignedBuf, SECTOR};
use lacuna_page::{Decoder, Meta, TRAILER_BYTES};
use rustc_hash::FxBuildHasher;

pub(crate) use dirty::DirtyList;
pub(crate) use frame::{Frame, ReadGuard, WriteGuard};

use crate::{
    page::{node, ops},
    poison::Poison,
    row,
    space::{Space, corrupt},
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        signal::Signal,
    },
    types::{Error, Lsn, PageId, PageNo, Result, TableId},
};
use evict::Shard;

/// How long a thread waits for a page that no sound table has it wait for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Shards of a pool that is large enough for so many.
const SHARDS_MAX: usize = 16;
/// A shard holds at least this many pages of 16 KiB.
const SHARD_BYTES_MIN: usize = 64 * (16 << 10);

/// One unit of time is one miss for each so many bytes of the pool.
const MOMENT_BYTES: usize = 32 * (16 << 10);

/// Share of the budget that blocks without their pages may take. They hold twice to four times as much in
/// the same memory, but each use costs a decompression and a second copy.
const KEPT_SHARE: (usize, usize) = (5, 8);

/// So many dirty pages that block eviction are flushed at once; fewer at the producer's next round.
const WANTED_DUE: usize = 16;

/// Counters of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Look-ups that found the page uncompressed in memory.
    pub hits: u64,
    /// Look-ups that read it.
    pub misses: u64,
    /// Pages read ahead of scans.
    pub read_ahead: u64,
    /// Pages among them that were evicted before their first use.
    pub read_ahead_unused: u64,
    /// Pages evicted to make space.
    pub evictions: u64,
    /// Bytes of pages in memory.
    pub bytes: u64,
    /// Bytes of pages with changes that are not on the device.
    pub dirty_bytes: u64,
}

pub(crate) struct Pool {
    shards: Vec<Mutex<Shard>>,
    budget_bytes: usize,
    /// Misses between which uses of a page count as one.
    moment_misses: u64,
    bytes: AtomicUsize,
    dirty: DirtyList,
    /// No image on the device has a greater LSN: the log's end when it was opened, or the newest written.
    newest_lsn: AtomicU64,
    /// Dirty pages that eviction found and the flush has not taken yet.
    wanted: Mutex<Vec<Arc<Frame>>>,
    /// Raised when there are enough of them for a job, or a page that was read in found no space.
    needs_flush: Signal,
    poison: Arc<Poison>,
    misses: AtomicU64,
    read_ahead: AtomicU64,
    read_ahead_unused: AtomicU64,
    evictions: AtomicU64,
}

/// A new frame's latch, and the page's block if that was kept.
type ToFill = (WriteGuard, Option<Box<[u8]>>);

/// Memory to read an image into, one for each thread.
struct ReadMemory {
    image: AlignedBuf,
    decoder: Decoder,
}

thread_local! {
    static READ_MEMORY: RefCell<ReadMemory> =
        RefCell::new(ReadMemory { image: AlignedBuf::zeroed(0), decoder: Decoder::unpacking(node::unpack) });
}

impl Pool {
    /// A pool for a store whose log ends at `log_end`.
    pub(crate) fn new(budget_bytes: usize, log_end: Lsn, poison: Arc<Poison>) -> Pool {
        let shards = (budget_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        Pool {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            budget_bytes,
            moment_misses: (budget_bytes / MOMENT_BYTES).max(1) as u64,
            bytes: AtomicUsize::new(0),
            dirty: DirtyList::default(),
            newest_lsn: AtomicU64::new(log_end.0),
            wanted: Mutex::default(),
            needs_flush: Signal::default(),
            poison,
            misses: AtomicU64::new(0),
            read_ahead: AtomicU64::new(0),
            read_ahead_unused: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// Notes that images with LSNs up to `lsn` are about to be written.
    pub(crate) fn note_written(&self, lsn: Lsn) {
        self.newest_lsn.fetch_max(lsn.0, Ordering::AcqRel);
    }

    pub(crate) fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    pub(crate) fn stats(&self) -> PoolStats {
        PoolStats {
            hits: self.shards.iter().map(|shard| shard.lock().hits).sum(),
            misses: self.misses.load(Ordering::Relaxed),
            read_ahead: self.read_ahead.load(Ordering::Relaxed),
            read_ahead_unused: self.read_ahead_unused.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
            bytes: self.bytes() as u64,
            dirty_bytes: self.dirty.dirty_bytes() as u64,
        }
    }

    /// The pages that have changes which are not on the device.
    pub(crate) fn dirty(&self) -> &DirtyList {
        &self.dirty
    }

    /// Wakes the flush producer.
    pub(crate) fn ask_for_flush(&self) {
        self.needs_flush.raise();
    }

    /// Waits until a flush is requested, or for `timeout`.
    pub(crate) fn wait_until_asked(&self, timeout: Duration) {
        self.needs_flush.wait_for(timeout);
    }

    /// Bytes of pages in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Evicts until the budget is kept, or nothing more can be evicted.
    pub(crate) fn shrink(&self) {
        for shard in &self.shards {
            self.make_space(&mut shard.lock(), 0);
        }
    }

    /// Makes pages evictable again that the flush held. The caller gives up its references.
    pub(crate) fn take_back(&self, frames: Vec<Arc<Frame>>) {
        for frame in frames {
            let mut shard = self.shard(frame.id).lock();
            shard.take_back(&frame);
            // Before the lock is released, or eviction would find it in use.
            drop(frame);
        }
        if self.bytes() > self.budget_bytes {
            self.shrink();
        }
    }

    /// Evicts from a shard until `bytes` more fit; returns the buffer of an evicted page.
    fn make_space(&self, shard: &mut Shard, bytes: usize) -> Option<AlignedBuf> {
        let budget = self.budget_bytes / self.shards.len();
        let mut wanted = Vec::new();
        let mut buffer = None;
        while shard.bytes + bytes > budget {
            if let Some(bytes) = shard.drop_block(budget / KEPT_SHARE.1 * KEPT_SHARE.0) {
                self.bytes.fetch_sub(bytes, Ordering::Relaxed);
                continue;
            }
            let Some(frame) = shard.evict(budget, &mut wanted) else {
                if evict::wants_enough(&wanted) {
                    break; // they make space once they are flushed
                }
                // All other pages are in use or dirty; blocks are neither.
                let Some(bytes) = shard.drop_block(0) else { break };
                self.bytes.fetch_sub(bytes, Ordering::Relaxed);
                continue;
            };
            self.evictions.fetch_add(1, Ordering::Relaxed);
            self.read_ahead_unused.fetch_add(u64::from(frame.is_ahead()), Ordering::Relaxed);
            self.bytes.fetch_sub(frame.memory_bytes, Ordering::Relaxed);
            let (id, page_bytes, is_row) = (frame.id, frame.page_bytes, frame.blocks.is_some());
            buffer = Arc::try_unwrap(frame).ok().and_then(Frame::into_buffer);
            if is_row && let Some(memory) = &mut buffer {
                let block = row::seal(memory, page_bytes);
                self.bytes.fetch_add(block.len(), Ordering::Relaxed);
                shard.keep_block(id, block);
            }
        }
        let mut is_due = shard.bytes + bytes > budget;
        if !wanted.is_empty() {
            let mut all = self.wanted.lock();
            let before = all.len();
            all.append(&mut wanted);
            is_due |= before < WANTED_DUE && all.len() >= WANTED_DUE;
        }
        if is_due {
            self.needs_flush.raise();
        }
        buffer
    }

    /// Dirty pages that block eviction. The caller returns them by [`Pool::take_back`].
    pub(crate) fn take_wanted(&self) -> Vec<Arc<Frame>> {
        std::mem::take(&mut *self.wanted.lock())
    }

    /// The page, latched shared, read from the device when it is not in memory.
    pub(crate) fn read(&self, space: &Space, page: PageNo) -> Result<ReadGuard> {
        self.read_by(space, page, || space.note_read(page))
    }

    /// [`Pool::read`]; calls `missed` after it was read from the device.
    fn read_by(&self, space: &Space, page: PageNo, missed: impl Fn()) -> Result<ReadGuard> {
        let filled = |guard: WriteGuard| {
            missed();
            guard.downgrade()
        };
        self.find(space, page, |frame| frame.read(), filled, |guard| Some(&guard.frame))
    }

    /// The page, latched exclusively, read from the device when it is not in memory.
    pub(crate) fn write(&self, space: &Space, page: PageNo) -> Result<WriteGuard> {
        let filled = |guard| {
            space.note_read(page);
            guard
        };
        self.find(space, page, |frame| frame.write(), filled, |guard| Some(&*guard.frame))
    }

    /// As [`Pool::write`]; `None` if others keep the page for [`PATIENCE`].
    pub(crate) fn write_soon(&self, space: &Space, page: PageNo) -> Result<Option<WriteGuard>> {
        let latch = |frame: Arc<Frame>| frame.write_within(PATIENCE);
        let filled = |guard| {
            space.note_read(page);
            Some(guard)
        };
        self.find(space, page, latch, filled, |guard| guard.as_ref().map(|guard| &*guard.frame))
    }

    /// The page, latched exclusively, if it is in memory.
    pub(crate) fn write_in_memory(&self, space: &Space, page: PageNo) -> Option<WriteGuard> {
        let id = PageId { table: space.id(), page };
        let frame = self.shard(id).lock().find(id, self.now())?;
        let guard = frame.write();
        (!guard.frame.failed.load(Ordering::Acquire)).then_some(guard)
    }

    fn find<G>(
        &self,
        space: &Space,
        page: PageNo,
        latch: impl Fn(Arc<Frame>) -> G,
        filled: impl Fn(WriteGuard) -> G,
        frame_of: impl Fn(&G) -> Option<&Arc<Frame>>,
    ) -> Result<G> {
        let id = PageId { table: space.id(), page };
        loop {
            let (frame, fill) = self.look_up(space, id);
            if let Some(to_fill) = fill {
                self.misses.fetch_add(u64::from(to_fill.1.is_none()), Ordering::Relaxed);
                return self.fill(space, to_fill).map(filled);
            }
            if frame.is_mine() {
                return Err(needed_twice(space, page));
            }
            let guard = latch(frame);
            let failed = frame_of(&guard).filter(|frame| frame.failed.load(Ordering::Acquire));
            let Some(failed) = failed.cloned() else { return Ok(guard) };
            drop(guard);
            // After a panic the frame stays as it is; one that could not be read is gone.
            if self.shard(id).lock().get(id).is_some_and(|frame| Arc::ptr_eq(frame, &failed)) {
                self.poison.check()?;
            }
        }
    }

    /// Fills a new frame.
    fn fill(&self, space: &Space, (mut guard, kept): ToFill) -> Result<WriteGuard> {
        let newest = Lsn(self.newest_lsn.load(Ordering::Acquire));
        match fill_page(space, newest, kept.as_deref(), &mut guard) {
            Ok(()) => Ok(guard),
            Err(e) => {
                self.discard(&guard.frame);
                Err(e)
            }
        }
    }

    /// Reads a page into memory ahead of its use, unless it is there or memory is short.
    pub(crate) fn read_ahead(&self, space: &Space, page: PageNo) -> Result<()> {
        let id = PageId { table: space.id(), page };
        if self.bytes() > self.budget_bytes || self.shard(id).lock().get(id).is_some() {
            return Ok(());
        }
        if let (frame, Some(to_fill)) = self.look_up(space, id) {
            frame.set_ahead();
            self.fill(space, to_fill)?;
            self.read_ahead.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Like [`Pool::read`], and not counted as one; `None` when nothing was ever written there.
    pub(crate) fn read_if_written(&self, space: &Space, page: PageNo) -> Result<Option<ReadGuard>> {
        match self.read_by(space, page, || ()) {
            Ok(guard) => Ok(Some(guard)),
            Err(_) if is_unwritten(space, page)? => Ok(None),
            // It may have been written since: only a second failure is one.
            Err(_) => self.read_by(space, page, || ()).map(Some),
        }
    }

    /// The page, latched exclusively and zeroed but for its header, without reading it: it was just allocated, or
    /// recovery is about to initialise it.
    pub(crate) fn create(&self, space: &Space, page: PageNo) -> WriteGuard {
        self.create_by(space, page, |frame| Some(frame.write())).expect("it waits for the latch")
    }

    /// As [`Pool::create`]; `None` if others keep the page for [`PATIENCE`].
    pub(crate) fn create_soon(&self, space: &Space, page: PageNo) -> Option<WriteGuard> {
        self.create_by(space, page, |frame| frame.write_within(PATIENCE))
    }

    fn create_by(
        &self,
        space: &Space,
        page: PageNo,
        latch: impl Fn(Arc<Frame>) -> Option<WriteGuard>,
    ) -> Option<WriteGuard> {
        let id = PageId { table: space.id(), page };
        loop {
            let (frame, fill) = self.look_up(space, id);
            let is_new = fill.is_some();
            let mut guard = match fill {
                Some((guard, _)) => guard,
                None => latch(frame.clone())?,
            };
            if frame.failed.load(Ordering::Acquire) && self.poison.check().is_ok() {
                continue; // It was being read ahead, in vain.
            }
            if !is_new {
                // Its image, if it has one, may be of any length.
                frame.disk_bytes.store(frame.page_bytes as u32, Ordering::Relaxed);
                frame.image_bytes.store(0, Ordering::Relaxed);
            }
            blank(&mut guard);
            return Some(guard);
        }
    }

    /// Refuses a page that this thread has latched exclusively, and so needs for something else.
    pub(crate) fn must_not_be_mine(&self, space: &Space, page: PageNo) -> Result<()> {
        let id = PageId { table: space.id(), page };
        let frame = self.shard(id).lock().find(id, self.now());
        if frame.is_some_and(|frame| frame.is_mine()) { Err(needed_twice(space, page)) } else { Ok(()) }
    }

    fn shard(&self, id: PageId) -> &Mutex<Shard> {
        // The low bits choose the bucket within the shard.
        let hash = FxBuildHasher.hash_one(id) >> 32;
        &self.shards[hash as usize % self.shards.len()]
    }

    /// The frame of a page; a new one comes latched exclusively.
    fn look_up(&self, space: &Space, id: PageId) -> (Arc<Frame>, Option<ToFill>) {
        let shard = self.shard(id);
        let memory_bytes = space.memory_bytes();
        let mut made = None;
        loop {
            let mut locked = shard.lock();
            if let Some(frame) = locked.find(id, self.now()) {
                return (frame, None);
            }
            let kept = locked.take_block(id);
            self.bytes.fetch_sub(kept.as_ref().map_or(0, |block| block.len()), Ordering::Relaxed);
            // Space was made before the memory was allocated: making it again would have more pages written.
            let buffer = made.take().or_else(|| {
                let evicted = self.make_space(&mut locked, memory_bytes);
                evicted.filter(|buffer| buffer.len() == memory_bytes)
            });
            let Some(buffer) = buffer else {
                if let Some(block) = kept {
                    self.bytes.fetch_add(block.len(), Ordering::Relaxed);
                    locked.keep_block(id, block);
                }
                drop(locked);
                // It may be the first of a huge page, which the kernel zeroes: no other thread should wait for that.
                made = Some(AlignedBuf::dense(memory_bytes));
                continue;
            };
            let frame = Frame::new(space, id.page, buffer, self.now(), Arc::clone(&self.poison));
            let guard = frame.clone().write();
            locked.insert(frame.clone());
            self.bytes.fetch_add(memory_bytes, Ordering::Relaxed);
            return (frame, Some((guard, kept)));
        }
    }

    /// The time that uses are noted by.
    fn now(&self) -> u32 {
        (self.misses.load(Ordering::Relaxed) / self.moment_misses) as u32
    }

    /// Drops the pages of a table whose file is about to be removed, changes included: its number may be given to
    /// another table. They are not in use, and none is in flight.
    pub(crate) fn forget_table(&self, table: TableId) {
        self.dirty.forget_table(table);
        for shard in &self.shards {
            let bytes = shard.lock().forget_table(table);
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Discards a frame that could not be filled; the caller still holds its latch.
    fn discard(&self, frame: &Arc<Frame>) {
        frame.failed.store(true, Ordering::Release);
        let shard = self.shard(frame.id);
        if shard.lock().discard(frame) {
            self.bytes.fetch_sub(frame.memory_bytes, Ordering::Relaxed);
        }
    }
}

/// Zeroes a page and gives it the header of its address, of no kind yet.
fn blank(guard: &mut WriteGuard) {
    let id = guard.id();
    let (_, block, stale) = guard.parts_mut();
    if !block.is_empty() {
        lacuna_page::reset_block(block);
        *stale = false;
    }
    let bytes = guard.bytes_mut();
    bytes.fill(0);
    lacuna_page::write_meta(bytes, &Meta { kind: 0, table: id.table.0, page_no: id.page.0, lsn: 0 });
}

/// Whether the device holds nothing at `page`.
fn is_unwritten(space: &Space, page: PageNo) -> Result<bool> {
    let mut image = AlignedBuf::zeroed(space.slot_bytes());
    space.file().read_at(space.offset(page), &mut image)?;
    Ok(image.iter().all(|byte| *byte == 0))
}

/// Fills the page of a frame from its device, or from its block that was kept.
fn fill_page(space: &Space, newest: Lsn, kept: Option<&[u8]>, guard: &mut WriteGuard) -> Result<()> {
    let page = guard.id().page;
    let Some(blocks) = space.blocks() else { return read_image(space, page, newest, guard) };
    let id = guard.id();
    let (target, block, _) = guard.parts_mut();
    if let Some(kept) = kept {
        blocks.count_kept();
        block.copy_from_slice(kept);
    } else {
        space.file().read_at(space.offset(page), block)?;
    }
    blocks.load(id, newest, target, block).map_err(|reason| corrupt(space, page, reason))?;
    guard.frame.image_bytes.store(blocks.block_bytes() as u32, Ordering::Relaxed);
    Ok(())
}

fn needed_twice(space: &Space, page: PageNo) -> Error {
    corrupt(space, page, "one change needs it for two purposes")
}

fn read_image(space: &Space, page: PageNo, newest: Lsn, guard: &mut WriteGuard) -> Result<()> {
    let corrupt =
        |reason: String| Error::Corrupt { what: space.name(), at: format!("page {}", page.0), reason };
    READ_MEMORY.with_borrow_mut(|scratch| {
        if scratch.image.len() < space.page_bytes() {
            scratch.image = AlignedBuf::zeroed(space.page_bytes());
        }
        let image = &mut scratch.image[..space.page_bytes()];
        space.file().read_at(space.offset(page), image)?;
        let target = guard.bytes_mut();
        let decoded = scratch.decoder.decode_with(space.cipher(), image, (space.id().0, page.0), target);
        decoded.map_err(|e| space.bad_image(page, &e))?;
        ops::validate(target).map_err(|e| corrupt(e.to_string()))?;
        let lsn = ops::lsn(target);
        if lsn > newest {
            // Replay would skip changes logged from now on: the log lost its end, or its root is old.
            return Err(corrupt(format!("{lsn} is behind the end of the log, {newest}")));
        }
        debug_assert!(target.len() > TRAILER_BYTES);
        let bytes = lacuna_page::image_bytes(image).map_err(|e| corrupt(e.to_string()))?;
        guard.frame.disk_bytes.store(bytes as u32, Ordering::Relaxed);
        guard.frame.image_bytes.store(bytes as u32, Ordering::Relaxed);
        if space.cipher().is_some() {
            guard.frame.taken_bytes.store(taken_bytes(image, bytes) as u32, Ordering::Relaxed);
        }
        Ok(())
    })
}

/// Bytes of a page's place up to the last sector with anything in it, from an image of `bytes` on.
fn taken_bytes(place: &[u8], bytes: usize) -> usize {
    let behind = &place[bytes..];
    let is_blank = |sector: &&[u8]| sector.iter().fold(0, |all, byte| all | byte) == 0;
    bytes + behind.len().saturating_sub(behind.rchunks(SECTOR).take_while(is_blank).count() * SECTOR)
}

#[cfg(test)]
mod tests;
