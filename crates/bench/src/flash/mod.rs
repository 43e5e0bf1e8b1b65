//! A model of an SSD's internal writes for given host writes: pure, no data, no clock.
//!
//! Flash is programmed page by page and erased block by block, so an SSD maps pages and collects
//! blocks just as the ftl maps extents and collects segments, and multiplies the host's writes once
//! more. Fed with the write trace of any run (see [`crate::trace`]), the model computes by how much.
//!
//! A [`FlashModel`] owns a page map, its inverse, the state of each erase block, and a write buffer.
//!
//! 1. `map` and `owner` are inverse to each other: `owner[map[page]] == page`, and every other entry of
//!    `owner` is `NO_PAGE`.
//! 2. A block's `valid` is the number of its pages that have an owner; pages from `written` on have
//!    none.
//! 3. A block is exactly one of: free, an append point, or closed (written to its end).
//!    Blocks are numbered in the order of their first use, and take no memory before: the size that a trace or an option
//!    names may be that of no drive.
//! 4. Whenever the host takes a free block another one is left, which collection may take; collection frees at least as
//!    many as it takes.
//!
//! Collection always gains space: at most `blocks - 3` blocks' worth of pages are mapped, so of the closed blocks, at
//! least `blocks - 2` when collection is due, one is not all valid.
//!
//! Scope of the model: greedy victims; one append point for the host and one for collection; the least worn free block
//! is taken first, but cold blocks are not moved to level wear. A page that is written in part is programmed whole. The
//! buffer collects pages, oldest out first, and a sync empties it: the drive has no power-loss protection. The drive
//! starts out empty, unless it is [preconditioned](FlashModel::precondition).

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use lacuna_device::{Error, Result};

use crate::trace::TraceOp;

#[cfg(test)]
mod tests;

/// An entry of `owner` that no page has.
const NO_PAGE: u64 = u64::MAX;
/// Blocks beyond the capacity in any case: two append points and one for the first collection.
const SPARE_BLOCKS: u64 = 3;

/// The drive that is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashOptions {
    /// Unit of programming and of the drive's map, in bytes.
    pub page_bytes: u64,
    /// Unit of erasing in bytes, a multiple of the page. On a drive that stripes over its chips, that
    /// of a whole stripe.
    pub erase_block_bytes: u64,
    /// Flash beyond the capacity, in percent of it.
    pub over_provisioning_percent: u64,
    /// Size of the write buffer in bytes; at least one page is buffered.
    pub buffer_bytes: u64,
}

impl Default for FlashOptions {
    fn default() -> FlashOptions {
        FlashOptions {
            page_bytes: 16 << 10,
            erase_block_bytes: 8 << 20,
            over_provisioning_percent: 7,
            buffer_bytes: 1 << 20,
        }
    }
}

/// The cost of a trace for the drive.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlashReport {
    /// Capacity that the drive offers, in bytes.
    pub capacity_bytes: u64,
    /// Erase blocks that it has.
    pub blocks: u64,
    /// Bytes written by the host.
    pub host_bytes: u64,
    /// Bytes discarded by the host.
    pub discarded_bytes: u64,
    /// Syncs by the host.
    pub syncs: u64,
    /// Bytes that hold data at the end, in whole pages.
    pub live_bytes: u64,
    /// Bytes programmed into flash, collection included.
    pub programmed_bytes: u64,
    /// Bytes of these that collection moved.
    pub moved_bytes: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Erases of the least worn block.
    pub erases_min: u64,
    /// Erases of the most worn block.
    pub erases_max: u64,
    /// Erases per block on average.
    pub erases_mean: f64,
}

impl FlashReport {
    /// Bytes programmed per byte written by the host; 0 when none was.
    pub fn write_amplification(&self) -> f64 {
        if self.host_bytes == 0 { 0.0 } else { self.programmed_bytes as f64 / self.host_bytes as f64 }
    }
}

/// The most bytes that hold data at any time of a trace, in whole pages: the smallest drive that it fits on.
///
/// # Errors
/// Those of the trace.
pub fn live_bytes_peak(trace: impl IntoIterator<Item = Result<TraceOp>>, page_bytes: u64) -> Result<u64> {
    assert!(page_bytes > 0, "pages of no bytes");
    let mut live = HashSet::new();
    let mut peak = 0;
    for op in trace {
        match op? {
            TraceOp::Write { offset, len } => {
                live.extend(offset / page_bytes..offset.saturating_add(len).div_ceil(page_bytes));
                peak = peak.max(live.len());
            }
            TraceOp::Discard { offset, len } => {
                let gone = offset.div_ceil(page_bytes)..offset.saturating_add(len) / page_bytes;
                if gone.end.saturating_sub(gone.start) > live.len() as u64 {
                    live.retain(|page| !gone.contains(page));
                } else {
                    gone.for_each(|page| {
                        live.remove(&page);
                    });
                }
            }
            TraceOp::Sync => {}
        }
    }
    Ok(peak as u64 * page_bytes)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Append,
    Closed,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    state: State,
    /// Pages with an owner.
    valid: u32,
    /// Pages programmed since it was erased.
    written: u32,
    erases: u64,
}

/// The cause of programming a page.
#[derive(Clone, Copy)]
enum Writer {
    Host,
    Collection,
}

/// The drive. See the module documentation.
#[derive(Debug)]
pub struct FlashModel {
    options: FlashOptions,
    block_pages: u32,
    capacity_pages: u64,
    /// Logical to physical page.
    map: HashMap<u64, u64>,
    /// Physical to logical page, of the blocks that were used.
    owner: Vec<u64>,
    /// Those that were used, of `blocks_max`.
    blocks: Vec<Block>,
    blocks_max: usize,
    /// Blocks that were erased, by wear.
    free: BTreeSet<(u64, usize)>,
    /// Append points of host and collection.
    append: [Option<usize>; 2],
    /// Pages that wait to be programmed, oldest first.
    buffer: VecDeque<u64>,
    counters: FlashReport,
}

impl FlashModel {
    /// An empty drive of at least `capacity_bytes`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for sizes that no drive has.
    pub fn new(capacity_bytes: u64, options: FlashOptions) -> Result<FlashModel> {
        let refuse = |operation| Err(Error::Unsupported { what: "flash model".into(), operation });
        let FlashOptions { page_bytes, erase_block_bytes, .. } = options;
        if page_bytes == 0 || !erase_block_bytes.is_multiple_of(page_bytes) || erase_block_bytes == 0 {
            return refuse("an erase block that is not a whole number of pages");
        }
        let Ok(block_pages) = u32::try_from(erase_block_bytes / page_bytes) else {
            return refuse("an erase block of 2^32 pages or more");
        };
        if options.over_provisioning_percent > 1000 {
            return refuse("over-provisioning of more than 1000 percent");
        }
        let capacity_pages = capacity_bytes.div_ceil(page_bytes);
        let capacity_blocks = capacity_pages.div_ceil(u64::from(block_pages));
        let percent = u128::from(100 + options.over_provisioning_percent);
        let pages = (u128::from(capacity_pages) * percent).div_ceil(100);
        let blocks = pages.div_ceil(u128::from(block_pages)).max(u128::from(capacity_blocks + SPARE_BLOCKS));
        if blocks * u128::from(block_pages) > u128::from(u32::MAX) {
            return refuse("a drive of 2^32 pages or more; choose larger pages");
        }
        Ok(FlashModel {
            options,
            block_pages,
            capacity_pages,
            map: HashMap::new(),
            owner: Vec::new(),
            blocks: Vec::new(),
            blocks_max: blocks as usize,
            free: BTreeSet::new(),
            append: [None; 2],
            buffer: VecDeque::new(),
            counters: FlashReport::default(),
        })
    }

    /// Writes every page once, in order, and counts none of it: a drive that was in use before. What the trace neither
    /// writes nor discards stays data that collection has to keep.
    ///
    /// # Errors
    /// As [`FlashModel::apply`].
    pub fn precondition(&mut self) -> Result<()> {
        assert_eq!(self.counters, FlashReport::default(), "only a new drive is preconditioned");
        self.write(0, self.capacity_pages * self.options.page_bytes)?;
        self.drain()?;
        assert_eq!(self.counters.erases, 0, "the capacity fits without collection");
        self.counters = FlashReport::default();
        Ok(())
    }

    /// Takes one element of a trace.
    ///
    /// # Errors
    /// [`Error::Full`] when more pages hold data than the drive has.
    pub fn apply(&mut self, op: TraceOp) -> Result<()> {
        match op {
            TraceOp::Write { offset, len } => self.write(offset, len),
            TraceOp::Discard { offset, len } => {
                self.discard(offset, len);
                Ok(())
            }
            TraceOp::Sync => self.sync(),
        }
    }

    fn write(&mut self, offset: u64, len: u64) -> Result<()> {
        self.counters.host_bytes = self.counters.host_bytes.saturating_add(len);
        if len == 0 {
            return Ok(());
        }
        let buffer_pages = (self.options.buffer_bytes / self.options.page_bytes).max(1) as usize;
        let last = offset.saturating_add(len - 1) / self.options.page_bytes;
        for page in offset / self.options.page_bytes..=last {
            if self.buffer.contains(&page) {
                continue;
            }
            if self.buffer.len() == buffer_pages {
                self.program_oldest()?;
            }
            self.buffer.push_back(page);
        }
        Ok(())
    }

    /// Unmaps the pages that are entirely in the range: drives ignore the rest.
    fn discard(&mut self, offset: u64, len: u64) {
        self.counters.discarded_bytes = self.counters.discarded_bytes.saturating_add(len);
        let first = offset.div_ceil(self.options.page_bytes);
        let end = offset.saturating_add(len) / self.options.page_bytes;
        if end <= first {
            return;
        }
        self.buffer.retain(|page| !(first..end).contains(page));
        if end - first > self.map.len() as u64 {
            let gone: Vec<u64> =
                self.map.keys().copied().filter(|page| (first..end).contains(page)).collect();
            gone.into_iter().for_each(|page| self.unmap(page));
        } else {
            (first..end).for_each(|page| self.unmap(page));
        }
    }

    fn sync(&mut self) -> Result<()> {
        self.counters.syncs += 1;
        self.drain()
    }

    fn drain(&mut self) -> Result<()> {
        while !self.buffer.is_empty() {
            self.program_oldest()?;
        }
        Ok(())
    }

    fn program_oldest(&mut self) -> Result<()> {
        let Some(page) = self.buffer.pop_front() else { return Ok(()) };
        if !self.map.contains_key(&page) && self.map.len() as u64 >= self.capacity_pages {
            return Err(Error::Full { what: "flash model".into() });
        }
        self.unmap(page);
        self.program(page, Writer::Host);
        Ok(())
    }

    fn unmap(&mut self, page: u64) {
        let Some(physical) = self.map.remove(&page) else { return };
        assert_eq!(self.owner[physical as usize], page, "invariant 1");
        self.owner[physical as usize] = NO_PAGE;
        self.blocks[(physical / u64::from(self.block_pages)) as usize].valid -= 1;
    }

    /// Programs a page that is not mapped.
    fn program(&mut self, page: u64, writer: Writer) {
        let number = match self.append[writer as usize] {
            Some(number) => number,
            None => self.open_block(writer),
        };
        let block = &mut self.blocks[number];
        let physical = number as u64 * u64::from(self.block_pages) + u64::from(block.written);
        block.written += 1;
        block.valid += 1;
        if block.written == self.block_pages {
            block.state = State::Closed;
            self.append[writer as usize] = None;
        }
        self.owner[physical as usize] = page;
        let before = self.map.insert(page, physical);
        assert!(before.is_none(), "page {page} is mapped already");
        self.counters.programmed_bytes += self.options.page_bytes;
    }

    fn open_block(&mut self, writer: Writer) -> usize {
        if matches!(writer, Writer::Host) {
            while self.blocks_max - self.blocks.len() + self.free.len() < 2 {
                self.collect();
            }
        }
        // What was never used is the least worn.
        let number = if self.blocks.len() < self.blocks_max {
            self.blocks.push(Block { state: State::Free, valid: 0, written: 0, erases: 0 });
            self.owner.resize(self.blocks.len() * self.block_pages as usize, NO_PAGE);
            self.blocks.len() - 1
        } else {
            self.free.pop_first().expect("collection has a free block (invariant 4)").1
        };
        self.blocks[number].state = State::Append;
        self.append[writer as usize] = Some(number);
        number
    }

    /// Moves the valid pages of the block with the fewest, and erases it.
    fn collect(&mut self) {
        let closed = self.blocks.iter().enumerate().filter(|(_, block)| block.state == State::Closed);
        let victim = closed.min_by_key(|(_, block)| (block.valid, block.erases)).map(|(number, _)| number);
        let victim = victim.expect("all but two blocks are closed when collection is due");
        assert!(self.blocks[victim].valid < self.block_pages, "collection gains nothing");
        let first = victim * self.block_pages as usize;
        for physical in first..first + self.block_pages as usize {
            let page = self.owner[physical];
            if page != NO_PAGE {
                self.unmap(page);
                self.program(page, Writer::Collection);
                self.counters.moved_bytes += self.options.page_bytes;
            }
        }
        let block = &mut self.blocks[victim];
        assert_eq!(block.valid, 0, "everything was moved");
        *block = Block { state: State::Free, valid: 0, written: 0, erases: block.erases + 1 };
        self.free.insert((block.erases, victim));
        self.counters.erases += 1;
    }

    /// The cost so far, after programming everything that is still in the buffer.
    ///
    /// # Errors
    /// As [`FlashModel::apply`].
    pub fn report(&mut self) -> Result<FlashReport> {
        self.drain()?;
        let erases = self.blocks.iter().map(|block| block.erases);
        let are_all_used = self.blocks.len() == self.blocks_max;
        Ok(FlashReport {
            capacity_bytes: self.capacity_pages * self.options.page_bytes,
            blocks: self.blocks_max as u64,
            live_bytes: self.map.len() as u64 * self.options.page_bytes,
            erases_min: erases.clone().min().filter(|_| are_all_used).unwrap_or(0),
            erases_max: erases.max().unwrap_or(0),
            erases_mean: self.counters.erases as f64 / self.blocks_max as f64,
            ..self.counters
        })
    }

    /// Checks the invariants of the module by a recount.
    ///
    /// # Panics
    /// When one is broken.
    pub fn check(&self) {
        for (page, physical) in &self.map {
            assert_eq!(self.owner[*physical as usize], *page, "invariant 1");
        }
        let owned = self.owner.iter().filter(|page| **page != NO_PAGE).count();
        assert_eq!(owned, self.map.len(), "invariant 1");
        for (number, block) in self.blocks.iter().enumerate() {
            let first = number * self.block_pages as usize;
            let owners = &self.owner[first..first + self.block_pages as usize];
            let valid = owners.iter().filter(|page| **page != NO_PAGE).count();
            assert_eq!(valid, block.valid as usize, "invariant 2");
            assert!(owners[block.written as usize..].iter().all(|page| *page == NO_PAGE), "invariant 2");
            let expected =
                match (self.free.contains(&(block.erases, number)), self.append.contains(&Some(number))) {
                    (true, false) => State::Free,
                    (false, true) => State::Append,
                    (false, false) if block.written == self.block_pages => State::Closed,
                    other => panic!("invariant 3: block {number}: {other:?}, {block:?}"),
                };
            assert_eq!(block.state, expected, "invariant 3");
        }
        let erases: u64 = self.blocks.iter().map(|block| block.erases).sum();
        assert_eq!(erases, self.counters.erases);
    }

    /// The logical pages that hold data, those in the buffer included, in no order.
    #[cfg(test)]
    fn live_pages(&self) -> BTreeSet<u64> {
        self.map.keys().chain(&self.buffer).copied().collect()
    }
}
