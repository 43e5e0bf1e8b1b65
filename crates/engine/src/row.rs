//! Row-compressed tables: the scheme of InnoDB's `ROW_FORMAT=COMPRESSED`, kept as a baseline.
//!
//! A page of such a table has a *block* of fixed length, in memory after the page and on the device instead of it. The
//! block holds the page compressed, and a log of the operations applied to it since. A writer appends to that log; when
//! it is full the page is compressed again, in the foreground and under the latch, and the new block goes to the
//! write-ahead log; when the page does not fit it is split. A flush writes blocks as they are. The pool may drop a page
//! and keep its block.
//!
//! Invariants:
//!
//! 1. Outside of a mini-transaction block and page have the same content: restoring the block's image and applying its
//!    log gives the page, except for the offsets of its cells.
//! 2. Replay takes a block through the same states: the bytes appended depend on block and operation alone, and every
//!    compressed image is in the write-ahead log. So it needs no compressor, and a page that fitted fits again.
//! 3. [`RESERVE`] bytes of a block's log are for truncations alone. So any page can be split: the right part is chosen
//!    so that it fits, the left one is truncated in its log.
//! 4. A page with two records fits its block uncompressed ([`Blocks::record_bytes_max`]), so a page that
//!    must be split can be.
//!
//! Padding follows InnoDB: when more than [`FAILURE_THRESHOLD_PCT`] of a round's compressions failed, leaves
//! are from then on left emptier by [`PAD_STEP_BYTES`], at most half of a page; after [`CALM_ROUNDS`] rounds
//! without that the padding shrinks by one step.

use std::{cell::RefCell, mem};

use lacuna_device::AlignedBuf;
use lacuna_page::{Algorithm, BlockCodec, Codec, HEADER_BYTES, TRAILER_BYTES, block_capacity};

use crate::{
    page::{
        node,
        ops::{self, BadOp, BlockOps, PageKind, PageOp},
    },
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    types::{Lsn, PageId, may_have_blocks},
};

/// Bytes of a block's log that only truncations may use.
pub(crate) const RESERVE: usize = 128;
/// Most that an operation takes in a block's log beside its cell.
pub(crate) const LOGGED_OP_BYTES: usize = 24;
/// Bytes of an image before a node's first cell.
const NODE_BYTES: usize = node::CELLS - HEADER_BYTES;
/// Compressions in a round of the padding.
const ROUND: u64 = 128;
/// Share of failures in a round from which on leaves are padded more (InnoDB's default).
const FAILURE_THRESHOLD_PCT: u64 = 5;
/// Rounds without too many failures after which they are padded less.
const CALM_ROUNDS: u64 = 5;
/// Step of the padding.
const PAD_STEP_BYTES: u32 = 128;

/// Counters of row-compressed tables since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowStats {
    /// Compressions of pages, failed ones included.
    pub compressions: u64,
    /// Compressions whose result was too long for the block.
    pub failures: u64,
    /// Compressions because a block's log was full.
    pub recompressions: u64,
    /// Pages split because they did not fit into their block.
    pub splits: u64,
    /// Pages restored from their blocks.
    pub decompressions: u64,
    /// Pages among them whose block was in memory.
    pub decompressions_without_read: u64,
    /// Greatest padding of a table now, in bytes of a page.
    pub pad_bytes: u64,
}

impl RowStats {
    /// All counters with their names, for reports.
    pub fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("compressions", self.compressions),
            ("failures", self.failures),
            ("recompressions", self.recompressions),
            ("splits", self.splits),
            ("decompressions", self.decompressions),
            ("decompressions_without_read", self.decompressions_without_read),
            ("pad_bytes", self.pad_bytes),
        ]
    }

    pub(crate) fn sum<'a>(spaces: impl Iterator<Item = &'a Blocks>) -> RowStats {
        let mut sum = RowStats::default();
        for space in spaces {
            let stats = space.counts.lock().stats;
            sum.compressions += stats.compressions;
            sum.failures += stats.failures;
            sum.recompressions += stats.recompressions;
            sum.splits += stats.splits;
            sum.decompressions += stats.decompressions;
            sum.decompressions_without_read += stats.decompressions_without_read;
            sum.pad_bytes = sum.pad_bytes.max(space.pad_bytes() as u64);
        }
        sum
    }
}

/// The blocks of one table.
pub(crate) struct Blocks {
    block_bytes: usize,
    page_bytes: usize,
    codec: Mutex<Codec>,
    pad_bytes: AtomicU32,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    /// All but the padding.
    stats: RowStats,
    /// Failures in this round, and calm rounds in a row.
    round_failures: u64,
    calm_rounds: u64,
}

impl Blocks {
    pub(crate) fn new(block_bytes: usize, page_bytes: usize) -> Blocks {
        assert!(may_have_blocks(block_bytes, page_bytes));
        Blocks {
            block_bytes,
            page_bytes,
            codec: Mutex::new(Codec { algorithm: Algorithm::Zlib, level: 0 }),
            pad_bytes: AtomicU32::new(0),
            counts: Mutex::default(),
        }
    }

    /// Length of a block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Makes blocks be compressed so from now on; by zlib while recovery cannot read the catalog yet.
    pub(crate) fn set_codec(&self, codec: Codec) {
        *self.codec.lock() = codec;
    }

    /// Longest record, key and value, that stays in a leaf: two fit into a block, and into a page beside any padding.
    pub(crate) fn record_bytes_max(&self) -> usize {
        let in_block = block_capacity(self.block_bytes) - RESERVE - 2 * LOGGED_OP_BYTES - NODE_BYTES;
        let in_page = node::capacity(self.page_bytes) - self.pad_bytes_max();
        let cell = in_block.min(in_page) / 2 - node::SLOT;
        (cell - node::LEAF_CELL_HEADER).min(self.block_bytes / 16 * 7)
    }

    fn pad_bytes_max(&self) -> usize {
        self.page_bytes / 2
    }

    /// Longest part of a long value: it fits uncompressed, with space for its page's own fields.
    pub(crate) fn part_bytes_max(&self) -> usize {
        block_capacity(self.block_bytes) - RESERVE - 128
    }

    /// Bytes of a leaf that inserts leave free, so that it compresses into its block.
    pub(crate) fn pad_bytes(&self) -> usize {
        self.pad_bytes.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn count_split(&self) {
        self.counts.lock().stats.splits += 1;
    }

    fn note(&self, fits: bool) {
        let mut counts = self.counts.lock();
        counts.stats.compressions += 1;
        counts.stats.failures += u64::from(!fits);
        counts.round_failures += u64::from(!fits);
        if !counts.stats.compressions.is_multiple_of(ROUND) {
            return;
        }
        let pad = self.pad_bytes.load(Ordering::Relaxed);
        if mem::take(&mut counts.round_failures) * 100 > ROUND * FAILURE_THRESHOLD_PCT {
            counts.calm_rounds = 0;
            let pad_max = self.pad_bytes_max() as u32;
            self.pad_bytes.store((pad + PAD_STEP_BYTES).min(pad_max), Ordering::Relaxed);
            return;
        }
        counts.calm_rounds += 1;
        if counts.calm_rounds >= CALM_ROUNDS {
            counts.calm_rounds = 0;
            self.pad_bytes.store(pad.saturating_sub(PAD_STEP_BYTES), Ordering::Relaxed);
        }
    }
}

/// Memory for compressing, one for each thread.
#[derive(Default)]
struct CompressionMemory {
    codec: BlockCodec,
    page: Vec<u8>,
}

thread_local! {
    static MEMORY: RefCell<CompressionMemory> = RefCell::default();
}

/// Compresses a page into a block with at least `capacity` bytes for its log; false, and no change, when it
/// does not fit.
fn compress(row: &Blocks, page: &[u8], block: &mut [u8], space: usize) -> bool {
    let codec = *row.codec.lock();
    let fits = MEMORY.with_borrow_mut(|scratch| {
        let copy = &mut scratch.page;
        copy.resize(page.len(), 0);
        let end = page.len() - TRAILER_BYTES;
        let (head, tail) = if ops::kind(page) == Some(PageKind::Node) {
            node::copy_tidied(page, copy);
            node::gap(copy)
        } else {
            copy.copy_from_slice(page);
            let used = copy[..end].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            (used.max(HEADER_BYTES), end)
        };
        let kind = lacuna_page::read_meta(copy).kind;
        let body = (&copy[HEADER_BYTES..head], &copy[tail..end]);
        scratch.codec.compress(block, kind, body, codec, space)
    });
    row.note(fits);
    fits
}

/// Restores a page from its block (invariant 1); the page's header names it already.
fn restore(page: &mut [u8], block: &[u8]) -> Result<(), BadOp> {
    let meta = lacuna_page::Meta { kind: lacuna_page::block_kind(block), ..lacuna_page::read_meta(page) };
    MEMORY
        .with_borrow_mut(|scratch| scratch.codec.restore(block, &meta, page))
        .map_err(|_| BadOp("block does not hold the page it claims"))?;
    if ops::kind(page).is_some() {
        ops::validate(page).map_err(BadOp)?;
    }
    for op in BlockOps::new(lacuna_page::block_log(block)) {
        op?.apply(page)?;
    }
    Ok(())
}

/// The block of a page that is still to be made, as it goes to the log; `None` when it does not fit.
pub(crate) fn block_of(row: &Blocks, page: &[u8]) -> Option<Vec<u8>> {
    let mut block = vec![0; row.block_bytes];
    compress(row, page, &mut block, RESERVE).then(|| lacuna_page::export_block(&block))
}

/// Applies `op` to page and block. Where the block has no space the page becomes `stale`, and the mini-transaction
/// makes a new block before it commits.
pub(crate) fn apply(
    op: &PageOp<'_>,
    page: &mut [u8],
    block: &mut [u8],
    stale: &mut bool,
) -> Result<(), BadOp> {
    if let PageOp::Block { data } = op {
        lacuna_page::adopt_block(block, data).map_err(|_| BadOp("block of a wrong length"))?;
        restore(page, block)?;
        *stale = false;
        return Ok(());
    }
    op.apply(page)?;
    if matches!(op, PageOp::Init { .. } | PageOp::Blank { .. }) {
        lacuna_page::reset_block(block);
        *stale = false;
    }
    if !*stale {
        let mut bytes = Vec::new();
        op.encode_in_block(&mut bytes);
        let kept = if matches!(op, PageOp::Truncate { .. }) { 0 } else { RESERVE };
        *stale = lacuna_page::block_log_space(block) < bytes.len() + kept
            || !lacuna_page::append_to_block(block, &bytes);
    }
    Ok(())
}

impl Blocks {
    /// Makes a new block of a page with at least `log_bytes` for its log; false, and no change, when it does not fit.
    pub(crate) fn recompress(&self, page: &[u8], block: &mut [u8], log_bytes: usize) -> bool {
        self.counts.lock().stats.recompressions += 1;
        compress(self, page, block, log_bytes)
    }

    /// Restores a page from its sealed block, which was read from the device, or kept in memory. Images on the device
    /// have no greater LSN than `newest`. After an error neither means anything.
    pub(crate) fn load(
        &self,
        id: PageId,
        newest: Lsn,
        page: &mut [u8],
        block: &mut [u8],
    ) -> Result<(), String> {
        self.counts.lock().stats.decompressions += 1;
        let meta =
            lacuna_page::open_block(block, (id.table.0, id.page.0), page.len()).map_err(|e| e.to_string())?;
        if Lsn(meta.lsn) > newest {
            return Err(format!("{} is behind the end of the log, {newest}", Lsn(meta.lsn)));
        }
        // All between header and trailer is restored.
        lacuna_page::write_meta(page, &meta);
        restore(page, block).map_err(|e| e.0.to_string())?;
        ops::validate(page).map_err(Into::into)
    }

    /// Counts a page that is restored from a block in memory.
    pub(crate) fn count_kept(&self) {
        self.counts.lock().stats.decompressions_without_read += 1;
    }
}

/// The sealed block of an evicted page: all that is kept of it.
pub(crate) fn seal(memory: &mut AlignedBuf, page_bytes: usize) -> Box<[u8]> {
    let (page, block) = memory.split_at_mut(page_bytes);
    lacuna_page::seal_block(block, &lacuna_page::read_meta(page), page_bytes);
    Box::from(&*block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_follows_the_failures() {
        let row = Blocks::new(8 << 10, 16 << 10);
        for _ in 0..ROUND {
            row.note(false);
        }
        assert_eq!(row.pad_bytes(), 128);
        for _ in 0..CALM_ROUNDS * ROUND {
            row.note(true);
        }
        assert_eq!(row.pad_bytes(), 0);
        for _ in 0..1000 * ROUND {
            row.note(false);
        }
        assert_eq!(row.pad_bytes(), 8 << 10);
    }

    #[test]
    fn two_records_of_the_greatest_length_fit_uncompressed() {
        let sizes = [4, 8, 16, 32, 64]
            .into_iter()
            .flat_map(|page| [1, 2, 4, 8, 16, 32].map(|block| (block << 10, page << 10)));
        for (block_bytes, page_bytes) in sizes.filter(|(block, page)| may_have_blocks(*block, *page)) {
            let row = Blocks::new(block_bytes, page_bytes);
            let record = node::LEAF_CELL_HEADER + row.record_bytes_max() + node::SLOT;
            let image = (node::CELLS - HEADER_BYTES) + 2 * record;
            assert!(image + LOGGED_OP_BYTES + RESERVE <= block_capacity(block_bytes), "{block_bytes}");
            assert!(row.pad_bytes_max() + 2 * record <= node::capacity(page_bytes), "{block_bytes}");
        }
    }
}
