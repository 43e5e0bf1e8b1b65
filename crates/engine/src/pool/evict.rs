//! Eviction: a two-queue FIFO with second chances and ghosts.
//!
//! New pages enter a small queue; only one that is used again while it is there moves to the main
//! queue, so a scan passes through the small queue and leaves the rest alone. A page that comes back
//! soon after it left is remembered by a ghost and goes to the main queue at once. (Yang et al.,
//! "FIFO queues are all you need for cache eviction", SOSP 2023.)
//!
//! Uses at about the same time count once: a writer first locks a record, and perhaps reads it before, so that a page
//! used by this writer alone would count as reused. Time is counted in misses: its unit is a small share of those that
//! replace the pool's content.
//!
//! A dirty page whose turn it is leaves its queue and is *wanted*: it is handed to the flush. When its job is done it
//! comes back, to the front of the main queue if it may be evicted now. So each is requested once, and eviction neither
//! skips it again and again nor uses up the use counts of hot pages meanwhile. A few are requested at a time: an
//! eviction that searched on for a clean page would request all cold pages, long before they have to leave, and those
//! that are changed meanwhile would be written twice.
//!
//! Invariant: each frame is in one of the queues, or `wanted`. Its flag `wanted` changes under the shard's lock only.

use std::{collections::VecDeque, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};

use super::frame::Frame;
use crate::{
    sync::atomic::Ordering,
    types::{PageId, TableId},
};

/// The small queue may take one in this many bytes of the budget.
const SMALL_SHARE: usize = 10;
/// Dirty pages requested in one search for space, at most.
const WANTED_MAX: usize = 4;

/// The pages of one shard. Frames are found, entered and evicted under the shard's lock only.
#[derive(Default)]
pub(super) struct Shard {
    frames: FxHashMap<PageId, Arc<Frame>>,
    small: VecDeque<PageId>,
    main: VecDeque<PageId>,
    ghosts: VecDeque<PageId>,
    ghost_set: FxHashSet<PageId>,
    small_bytes: usize,
    /// Blocks whose pages were evicted, each under the number of that eviction.
    blocks: FxHashMap<PageId, (u64, Box<[u8]>)>,
    /// The same, the oldest first; entries whose block has left since stay a while.
    block_queue: VecDeque<(u64, PageId)>,
    blocks_kept: u64,
    /// Look-ups that found a page here.
    pub(super) hits: u64,
    block_bytes: usize,
    /// Of frames and blocks.
    pub(super) bytes: usize,
}

impl Shard {
    pub(super) fn get(&self, id: PageId) -> Option<&Arc<Frame>> {
        self.frames.get(&id)
    }

    /// The page's frame, for a use at the time `now`.
    pub(super) fn find(&mut self, id: PageId, now: u32) -> Option<Arc<Frame>> {
        let frame = self.frames.get(&id)?;
        self.hits += 1;
        frame.touch(now);
        Some(frame.clone())
    }

    pub(super) fn insert(&mut self, frame: Arc<Frame>) {
        let id = frame.id;
        self.bytes += frame.memory_bytes;
        if self.ghost_set.remove(&id) {
            self.main.push_back(id);
        } else {
            self.small_bytes += frame.memory_bytes;
            self.small.push_back(id);
        }
        let before = self.frames.insert(id, frame);
        assert!(before.is_none(), "a page has one frame");
    }

    /// Takes out a frame whose page could not be read. Returns whether it was there.
    pub(super) fn discard(&mut self, frame: &Arc<Frame>) -> bool {
        let is_here = self.frames.get(&frame.id).is_some_and(|f| Arc::ptr_eq(f, frame));
        if is_here {
            self.frames.remove(&frame.id);
            self.bytes -= frame.memory_bytes;
            if let Some(at) = self.small.iter().position(|id| *id == frame.id) {
                self.small.remove(at);
                self.small_bytes -= frame.memory_bytes;
            } else {
                self.main.retain(|id| *id != frame.id);
            }
        }
        is_here
    }

    /// Keeps the block of a page that was evicted.
    pub(super) fn keep_block(&mut self, id: PageId, block: Box<[u8]>) {
        self.bytes += block.len();
        self.block_bytes += block.len();
        self.blocks_kept += 1;
        self.block_queue.push_back((self.blocks_kept, id));
        let before = self.blocks.insert(id, (self.blocks_kept, block));
        assert!(before.is_none(), "a page has a frame or a block");
        if self.block_queue.len() > 2 * self.blocks.len() + 64 {
            let blocks = &self.blocks;
            self.block_queue.retain(|(number, id)| blocks.get(id).is_some_and(|kept| kept.0 == *number));
        }
    }

    /// Takes out the block of a page that comes back.
    pub(super) fn take_block(&mut self, id: PageId) -> Option<Box<[u8]>> {
        let (_, block) = self.blocks.remove(&id)?;
        self.bytes -= block.len();
        self.block_bytes -= block.len();
        Some(block)
    }

    /// Drops the block kept for longest, while blocks take more than `bytes_max`; returns its bytes.
    pub(super) fn drop_block(&mut self, bytes_max: usize) -> Option<usize> {
        while self.block_bytes > bytes_max {
            let (number, id) = self.block_queue.pop_front().expect("each block is in the queue");
            if self.blocks.get(&id).is_some_and(|kept| kept.0 == number) {
                return self.take_block(id).map(|block| block.len());
            }
        }
        None
    }

    /// Takes out all pages of a table; returns their bytes.
    pub(super) fn forget_table(&mut self, table: TableId) -> usize {
        let blocks: Vec<_> = self.blocks.keys().filter(|id| id.table == table).copied().collect();
        let kept: usize = blocks.into_iter().filter_map(|id| self.take_block(id)).map(|b| b.len()).sum();
        // In one pass: a table may fill the pool. Wanted pages are in no queue.
        let in_small = self.small.iter().filter(|id| id.table == table);
        self.small_bytes -= in_small.map(|id| self.frames[id].memory_bytes).sum::<usize>();
        self.small.retain(|id| id.table != table);
        self.main.retain(|id| id.table != table);
        let gone = self.frames.extract_if(|id, _| id.table == table);
        let bytes: usize = gone.map(|(_, frame)| frame.memory_bytes).sum();
        self.bytes -= bytes;
        kept + bytes
    }

    /// Evicts one clean, unused page. Dirty ones met on the way move from their queue to `wanted`. `None` when `wanted`
    /// is full, or a whole round found nothing.
    pub(super) fn evict(&mut self, budget_bytes: usize, wanted: &mut Vec<Arc<Frame>>) -> Option<Arc<Frame>> {
        // Each page is met at most this often: it has three uses to lose, and moves queues once.
        let mut steps = (self.small.len() + self.main.len()) * 2;
        while steps > 0 {
            steps -= 1;
            let from_small = self.small_bytes > budget_bytes / SMALL_SHARE || self.main.is_empty();
            let queue = if from_small { &mut self.small } else { &mut self.main };
            let id = *queue.front()?;
            let frame = self.frames.get(&id).expect("queues and frames agree");
            let uses = frame.uses();
            if uses == 0 && frame.is_dirty() && wants_enough(wanted) {
                return None;
            }
            queue.pop_front();
            if from_small {
                self.small_bytes -= frame.memory_bytes;
            }
            if uses > 0 {
                frame.set_uses(if from_small { 0 } else { uses - 1 });
                self.main.push_back(id);
                continue;
            }
            if frame.is_dirty() {
                frame.wanted.store(true, Ordering::Relaxed);
                wanted.push(frame.clone());
                if from_small {
                    self.remember(id);
                }
                continue;
            }
            // The map holds one reference.
            if Arc::strong_count(frame) > 1 {
                self.main.push_back(id);
                continue;
            }
            let frame = self.frames.remove(&id).expect("just found");
            self.bytes -= frame.memory_bytes;
            if from_small {
                self.remember(id);
            }
            return Some(frame);
        }
        None
    }

    /// Puts a page that was wanted into a queue again.
    pub(super) fn take_back(&mut self, frame: &Arc<Frame>) {
        let is_here = self.frames.get(&frame.id).is_some_and(|f| Arc::ptr_eq(f, frame));
        if !is_here || !frame.wanted.swap(false, Ordering::Relaxed) {
            return;
        }
        if frame.uses() == 0 && !frame.is_dirty() {
            self.main.push_front(frame.id);
        } else {
            self.main.push_back(frame.id);
        }
    }

    fn remember(&mut self, id: PageId) {
        if self.ghost_set.insert(id) {
            self.ghosts.push_back(id);
        }
        while self.ghosts.len() > self.frames.len().max(16) {
            let old = self.ghosts.pop_front().expect("not empty");
            self.ghost_set.remove(&old);
        }
    }
}

/// Whether no more dirty pages may be requested in this search for space.
pub(super) fn wants_enough(wanted: &[Arc<Frame>]) -> bool {
    wanted.len() >= WANTED_MAX
}
