//! One page in memory and its latch.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use lacuna_device::AlignedBuf;
use lacuna_page::Meta;

use crate::{
    page::ops::{self, BadOp, PageOp},
    poison::{IN_A_CALL, Poison, Sentinel},
    row::{self, Blocks},
    space::Space,
    sync::{
        Latch, LatchRead, LatchWrite,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    types::{Lsn, PageId, PageNo},
};

/// In place of the use count: the page was read ahead of its first use.
const AHEAD: u8 = u8::MAX;

const UNKNOWN: u32 = u32::MAX;

/// A page in the pool. An `Arc` of it keeps it from being evicted.
pub(crate) struct Frame {
    pub(super) id: PageId,
    pub(super) page_bytes: usize,
    /// Bytes of page and block.
    pub(super) memory_bytes: usize,
    /// The page is of a row-compressed table: its block follows the page in the buffer.
    pub(super) blocks: Option<Arc<Blocks>>,
    /// LSN of the page when it was last found not to fit into its block.
    unfit_lsn: AtomicU64,
    /// The latch: shared to read the page, exclusive to change it.
    latch: Latch<AlignedBuf>,
    /// Uses since it was read in, saturating, or [`AHEAD`]; eviction decides by it.
    uses: AtomicU8,
    /// When it was used last.
    used_at: AtomicU32,
    /// Start of the oldest change that is not in an image handed to a flush worker; 0 when there is
    /// none. Changed only under the lock of the list of dirty pages.
    pub(super) dirty_since: AtomicU64,
    /// Start of the oldest change in the image on its way to the device; 0 when there is none.
    /// Changed only under that lock too.
    pub(super) in_flight_since: AtomicU64,
    /// Bytes that the image on the device takes; 0 when there is none.
    pub(super) disk_bytes: AtomicU32,
    /// The same, but 0 where there may be one of any length.
    pub(super) image_bytes: AtomicU32,
    /// Bytes of its place on the device behind which there is nothing, or [`UNKNOWN`]. Behind an encrypted image there may
    /// be plaintext of the time before, so there it is found out.
    pub(super) taken_bytes: AtomicU32,
    /// It was written since it came in.
    written: AtomicBool,
    /// Reading it failed, or changing it panicked: threads that waited for the latch must look the page up again.
    pub(super) failed: AtomicBool,
    /// The store's poison, set by a panic.
    poison: Arc<Poison>,
    /// Eviction asked for it to be flushed, and keeps it in no queue until it was.
    pub(super) wanted: AtomicBool,
    /// The thread that holds the latch exclusively; 0 for none.
    owner: AtomicUsize,
}

thread_local! {
    /// Its address stands for the thread.
    static THREAD: u8 = const { 0 };
}

fn this_thread() -> usize {
    THREAD.with(|thread| std::ptr::from_ref(thread).addr())
}

impl Frame {
    pub(super) fn new(
        space: &Space,
        page: PageNo,
        buffer: AlignedBuf,
        now: u32,
        poison: Arc<Poison>,
    ) -> Arc<Frame> {
        assert_eq!(buffer.len(), space.memory_bytes());
        Arc::new(Frame {
            id: PageId { table: space.id(), page },
            page_bytes: space.page_bytes(),
            memory_bytes: space.memory_bytes(),
            blocks: space.blocks().cloned(),
            unfit_lsn: AtomicU64::new(0),
            latch: Latch::new(buffer),
            uses: AtomicU8::new(0),
            used_at: AtomicU32::new(now),
            dirty_since: AtomicU64::new(0),
            in_flight_since: AtomicU64::new(0),
            disk_bytes: AtomicU32::new(0),
            image_bytes: AtomicU32::new(0),
            taken_bytes: AtomicU32::new(UNKNOWN),
            written: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            poison,
            wanted: AtomicBool::new(false),
            owner: AtomicUsize::new(0),
        })
    }

    pub(crate) fn id(&self) -> PageId {
        self.id
    }

    /// Bytes of the page.
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Bytes that the image on the device takes; 0 if there is none.
    pub(crate) fn disk_bytes(&self) -> usize {
        self.disk_bytes.load(Ordering::Relaxed) as usize
    }

    /// Bytes that the image on the device takes for sure.
    pub(crate) fn image_bytes(&self) -> usize {
        self.image_bytes.load(Ordering::Relaxed) as usize
    }

    /// Bytes of its place on the device behind which there is nothing, where that is known.
    pub(crate) fn taken_bytes(&self) -> Option<usize> {
        let taken = self.taken_bytes.load(Ordering::Relaxed);
        (taken != UNKNOWN).then_some(taken as usize)
    }

    /// Notes that an image of `disk_bytes` is on the device, which is no hole if it `is_image`, and whether it is all that
    /// is left in its place. Returns whether one was written before since the page came in.
    pub(crate) fn note_written(&self, disk_bytes: usize, is_image: bool, is_all: bool) -> bool {
        self.disk_bytes.store(disk_bytes as u32, Ordering::Relaxed);
        self.image_bytes.store(disk_bytes as u32, Ordering::Relaxed);
        self.taken_bytes.store(if is_all { disk_bytes as u32 } else { UNKNOWN }, Ordering::Relaxed);
        is_image && self.written.swap(true, Ordering::Relaxed)
    }

    /// Notes a use at the time `now`, unless one was noted then. The one that brings the page in is not noted, nor is
    /// the one that it was brought in for.
    pub(super) fn touch(&self, now: u32) {
        let is_same = self.used_at.load(Ordering::Relaxed) == now;
        if !is_same {
            self.used_at.store(now, Ordering::Relaxed);
        }
        match self.uses.load(Ordering::Relaxed) {
            AHEAD => self.uses.store(0, Ordering::Relaxed),
            uses if uses < 3 && !is_same => self.uses.store(uses + 1, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Whether it was read ahead and not used yet.
    pub(super) fn is_ahead(&self) -> bool {
        self.uses.load(Ordering::Relaxed) == AHEAD
    }

    /// Its first use is still to come.
    pub(super) fn set_ahead(&self) {
        self.uses.store(AHEAD, Ordering::Relaxed);
    }

    pub(super) fn uses(&self) -> u8 {
        Some(self.uses.load(Ordering::Relaxed)).filter(|uses| *uses != AHEAD).unwrap_or(0)
    }

    pub(super) fn set_uses(&self, uses: u8) {
        self.uses.store(uses, Ordering::Relaxed);
    }

    /// Whether its only up-to-date copy is here.
    pub(crate) fn is_dirty(&self) -> bool {
        self.has_changes() || self.is_in_flight()
    }

    /// Whether it has changes that no image holds yet.
    pub(crate) fn has_changes(&self) -> bool {
        self.dirty_since.load(Ordering::Acquire) != 0
    }

    /// Whether an image of it is on its way to the device.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight_since.load(Ordering::Acquire) != 0
    }

    pub(super) fn read(self: Arc<Frame>) -> ReadGuard {
        let page = self.latch.read();
        ReadGuard { frame: self, page }
    }

    /// The shared latch, unless a thread holds it exclusively, or panicked while changing the page.
    pub(crate) fn try_read(self: &Arc<Frame>) -> Option<ReadGuard> {
        let page = self.latch.try_read()?;
        (!self.failed.load(Ordering::Acquire)).then(|| ReadGuard { frame: self.clone(), page })
    }

    pub(super) fn write(self: Arc<Frame>) -> WriteGuard {
        let page = self.latch.write();
        self.latched(page)
    }

    /// As [`Frame::write`]; `None` if others keep it for so long.
    pub(super) fn write_within(self: Arc<Frame>, patience: Duration) -> Option<WriteGuard> {
        let page = self.latch.write_within(patience)?;
        Some(self.latched(page))
    }

    fn latched(self: Arc<Frame>, page: LatchWrite<AlignedBuf>) -> WriteGuard {
        self.owner.store(this_thread(), Ordering::Relaxed);
        let frame = LatchedFrame { frame: self, sentinel: Sentinel::new(), is_modified: false };
        WriteGuard { frame, page, stale: false }
    }

    /// Whether this thread holds the latch exclusively, and would wait for itself. Only pages that name each other as
    /// no sound ones do lead there. The tests' scheduler runs all its threads in one.
    pub(super) fn is_mine(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        // Mostly nobody holds it: then there is no need to ask which thread this is.
        owner != 0 && !cfg!(feature = "shuttle") && owner == this_thread()
    }

    /// Takes the buffer back from a frame that is no longer used.
    pub(super) fn into_buffer(self) -> Option<AlignedBuf> {
        self.latch.into_inner()
    }
}

/// A page latched shared.
pub(crate) struct ReadGuard {
    pub(super) frame: Arc<Frame>,
    page: LatchRead<AlignedBuf>,
}

impl Deref for ReadGuard {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.page[..self.frame.page_bytes]
    }
}

impl ReadGuard {
    pub(crate) fn id(&self) -> PageId {
        self.frame.id
    }

    pub(crate) fn frame(&self) -> &Arc<Frame> {
        &self.frame
    }

    /// The page's block; empty in tables without.
    pub(crate) fn block(&self) -> &[u8] {
        &self.page[self.frame.page_bytes..]
    }
}

/// The frame of a page that is latched exclusively. It is dropped before the latch: if the thread panicked, or failed
/// between a change and its log record, the store is stopped before another thread can see the page.
pub(crate) struct LatchedFrame {
    frame: Arc<Frame>,
    sentinel: Sentinel,
    /// A mini-transaction changed the page and has not been committed yet.
    is_modified: bool,
}

impl Deref for LatchedFrame {
    type Target = Arc<Frame>;

    fn deref(&self) -> &Arc<Frame> {
        &self.frame
    }
}

impl Drop for LatchedFrame {
    fn drop(&mut self) {
        self.frame.owner.store(0, Ordering::Relaxed);
        if self.sentinel.sees_panic() {
            self.frame.poison.panicked(IN_A_CALL);
            self.frame.failed.store(true, Ordering::Release);
        } else if self.is_modified {
            self.frame.poison.left_unlogged(self.frame.id);
        }
    }
}

/// A page latched exclusively.
pub(crate) struct WriteGuard {
    // Before the latch: see there.
    pub(super) frame: LatchedFrame,
    page: LatchWrite<AlignedBuf>,
    /// Its block does not hold its last changes: there was no space.
    stale: bool,
}

impl WriteGuard {
    pub(crate) fn frame(&self) -> &Arc<Frame> {
        &self.frame
    }

    pub(crate) fn id(&self) -> PageId {
        self.frame.id
    }

    pub(super) fn downgrade(self) -> ReadGuard {
        ReadGuard { frame: Arc::clone(&self.frame), page: Latch::downgrade(self.page) }
    }

    /// The page's bytes, for a mini-transaction or recovery.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let page_bytes = self.frame.page_bytes;
        &mut self.page.deref_mut()[..page_bytes]
    }

    /// Page and block, and whether the block is stale.
    pub(super) fn parts_mut(&mut self) -> (&mut [u8], &mut [u8], &mut bool) {
        let (page, block) = self.page.deref_mut().split_at_mut(self.frame.page_bytes);
        (page, block, &mut self.stale)
    }

    /// The page's block; empty in tables without.
    pub(crate) fn block(&self) -> &[u8] {
        &self.page[self.frame.page_bytes..]
    }

    /// Whether the page has a block: its table is row-compressed.
    pub(crate) fn has_block(&self) -> bool {
        self.frame.blocks.is_some()
    }

    /// The block, as it goes to the log.
    pub(crate) fn export_block(&self) -> Vec<u8> {
        lacuna_page::export_block(self.block())
    }

    /// Applies `op` to the page, and to its block if it has one.
    pub(crate) fn apply(&mut self, op: &PageOp<'_>) -> Result<(), BadOp> {
        if !self.has_block() {
            return op.apply(self.bytes_mut());
        }
        let (page, block, stale) = self.parts_mut();
        row::apply(op, page, block, stale)
    }

    /// Makes a new block of the page with `log_bytes` for its log; false, and no change, when it does not fit.
    pub(crate) fn recompress(&mut self, log_bytes: usize) -> bool {
        let blocks = self.frame.blocks.clone().expect("a table with blocks");
        let (page, block, stale) = self.parts_mut();
        let fits = blocks.recompress(page, block, log_bytes);
        *stale &= !fits;
        fits
    }

    /// Notes that the page, as it is now, does not fit into its block.
    pub(crate) fn note_unfit(&self) {
        self.frame.unfit_lsn.store(ops::lsn(self).0, Ordering::Relaxed);
    }

    /// Whether that was noted, and the page has not changed since.
    pub(crate) fn is_unfit(&self) -> bool {
        self.frame.unfit_lsn.load(Ordering::Relaxed) == ops::lsn(self).0
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.stale
    }

    pub(crate) fn is_modified(&self) -> bool {
        self.frame.is_modified
    }

    pub(crate) fn set_modified(&mut self) {
        self.frame.is_modified = true;
    }

    /// Stamps the page with the end of the record that changed it.
    pub(crate) fn set_lsn(&mut self, lsn: Lsn) {
        let page = self.bytes_mut();
        let meta = Meta { lsn: lsn.0, ..lacuna_page::read_meta(page) };
        lacuna_page::write_meta(page, &meta);
        self.frame.is_modified = false;
    }
}

impl Deref for WriteGuard {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.page[..self.frame.page_bytes]
    }
}
