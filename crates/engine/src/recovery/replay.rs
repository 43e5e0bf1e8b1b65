//! Replay: changes that the log holds and pages lack are applied, page by page in the order of their addresses.
//!
//! The log is read in *batches* of a share of the pool. From each the operations that are not on the device
//! (`page_writes`) are kept in memory, sorted by page. Then threads take page after page: a page is read once for all
//! its operations of the batch, the device has many reads to answer at a time, and they come in address order. Without
//! background threads the caller's thread does it alone.
//!
//! Invariants:
//!
//! 1. An operation is applied if the page is older than its record, operations of a page in the order of the log. No
//!    other order matters: the log is whole, so in the end no mini-transaction is applied in part.
//! 2. A page gets the LSN of a record with all the record's operations on it, under one latch.
//! 3. Batches follow each other. Until all is replayed, the list of dirty pages reports the start of the present batch
//!    as its oldest change, so the checkpoint does not pass operations that were kept and not applied.
//! 4. A page whose changes are on the device is not read. A page that is found to be current although the log lost its
//!    page-write record is recorded again, or else is dirty. So reads are those of pages that were dirty or in flight
//!    when the last group was sealed (`page_writes`, invariant 2), also in the next recovery. `flush::capacity` keeps
//!    them to what [`crate::ReplayEstimate`] allows; only a store that is opened with a smaller pool than it had reads
//!    some again.
//! 5. A page that cannot be read, because it was freed since and is a hole, or was torn, does no harm once the log
//!    initialises it: changes before that are skipped. Until all such pages were initialised the checkpoint stays; one
//!    that never is was damaged.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use crate::{
    mutant::{Rule, is_broken},
    page::ops::{self, OpReader, PageOp},
    recovery::{Parts, RecoveryStats, bad_log},
    space::corrupt,
    sync::Mutex,
    types::{Error, Lsn, PageId, Result, TableId},
    wal::{
        LogReader, LogRecord,
        page_writes::{self, PageWrites},
    },
};

/// Threads, each of which reads one page at a time: the queue depth that devices answer best.
const THREADS: usize = 32;
/// Share of the pool's bytes that a batch may take besides, and bounds of it.
const BATCH_SHARE: usize = 4;
const BATCH_BYTES: Range<usize> = 256 << 10..64 << 20;

/// Operations of a record on a page, side by side there.
struct Step {
    page: PageId,
    /// Of the record.
    start: Lsn,
    end: Lsn,
    /// Where in the batch they are.
    ops: Range<u32>,
}

/// Operations of a part of the log that are kept in memory.
#[derive(Default)]
struct Batch {
    steps: Vec<Step>,
    ops: Vec<u8>,
    /// Pages that could not be read, and that the log has not initialised so far (invariant 5).
    unread: Mutex<BTreeMap<PageId, Error>>,
}

impl Batch {
    fn bytes(&self) -> usize {
        self.ops.len() + size_of_val(&self.steps[..])
    }

    /// Keeps those operations of a record that are not on the device; returns how many are.
    fn keep(&mut self, on_device: &PageWrites, record: &LogRecord<'_>) -> Result<u64> {
        let mut were_on_device = 0;
        let mut ops = OpReader::new(record.ops);
        while let Some(item) = ops.next_encoded() {
            let (page, op) = item.map_err(|e| bad_log(record.start, e.0))?;
            if on_device.lsn(page) >= Some(record.end) {
                were_on_device += 1;
                continue;
            }
            let start = self.ops.len() as u32;
            self.ops.extend_from_slice(op);
            let ops = start..self.ops.len() as u32;
            match self.steps.last_mut() {
                Some(last) if (last.page, last.start) == (page, record.start) => last.ops.end = ops.end,
                _ => self.steps.push(Step { page, start: record.start, end: record.end, ops }),
            }
        }
        Ok(were_on_device)
    }

    /// Applies the kept operations, and drops them.
    fn apply(&mut self, parts: &Parts, on_device: &PageWrites, stats: &mut RecoveryStats) -> Result<()> {
        // Stable: a record may come back to a page.
        self.steps.sort_by_key(|step| (step.page, step.start));
        let pages: Vec<&[Step]> = self.steps.chunk_by(|a, b| a.page == b.page).collect();
        let next = AtomicUsize::new(0);
        let work = || -> Result<Applied> {
            let mut applied = Applied::default();
            while let Some(steps) = pages.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.apply_to_page(parts, on_device, steps, &mut applied)
                    .and_then(|()| relieve_memory(parts, steps[0].page.table))
                    .inspect_err(|_| next.store(pages.len(), Ordering::Relaxed))?;
            }
            if !applied.page_writes.is_empty() {
                parts.pager.log().append_page_writes(&applied.page_writes)?;
            }
            Ok(applied)
        };
        // The tests' scheduler does not know these threads.
        let may_help = parts.options.background && !cfg!(feature = "shuttle");
        let helpers = if may_help { THREADS.min(pages.len()).saturating_sub(1) } else { 0 };
        let outcomes = thread::scope(|scope| {
            // One that cannot be had is done without.
            let spawn =
                |_| thread::Builder::new().name("lacuna-replay".into()).spawn_scoped(scope, work).ok();
            let helpers: Vec<_> = (0..helpers).filter_map(spawn).collect();
            let mut outcomes = vec![work()];
            outcomes.extend(helpers.into_iter().map(|thread| thread.join().expect("replay does not panic")));
            outcomes
        });
        for outcome in outcomes {
            let applied = outcome?;
            stats.pages += applied.pages;
            stats.applied += applied.ops;
        }
        self.steps.clear();
        self.ops.clear();
        Ok(())
    }

    fn ops_of<'a>(&'a self, step: &Step) -> impl Iterator<Item = PageOp<'a>> + use<'a> {
        let ops = OpReader::new(&self.ops[step.ops.start as usize..step.ops.end as usize]);
        ops.map(|op| op.expect("it was read before").1)
    }

    /// Applies the steps of one page (invariants 1 and 2).
    fn apply_to_page(
        &self,
        parts: &Parts,
        on_device: &PageWrites,
        steps: &[Step],
        applied: &mut Applied,
    ) -> Result<()> {
        let id = steps[0].page;
        // A missing table was never fully created, or was dropped.
        let Some(space) = parts.spaces.get(id.table) else { return Ok(()) };
        let is_ordered = parts.flusher.vfs().props().ordered;
        let read = parts.pager.write(&space, id.page);
        applied.pages += 1;
        let is_made = read.is_err();
        let mut page = match read {
            Ok(page) if on_device.lsn(id) > Some(ops::lsn(&page)) => {
                return Err(corrupt(&space, id.page, "older than the image that the log says is here"));
            }
            Ok(page) => page,
            Err(e @ Error::Corrupt { .. }) => {
                if !steps.iter().any(|step| self.ops_of(step).any(|op| op.is_making())) {
                    self.unread.lock().entry(id).or_insert(e);
                    return Ok(());
                }
                self.unread.lock().remove(&id);
                parts.pager.create(&space, id.page)
            }
            Err(e) => return Err(e),
        };
        let mut is_passed_over = is_made && !is_broken(Rule::HolesReplayed);
        for steps in steps.chunk_by(|a, b| a.start == b.start) {
            let (start, end) = (steps[0].start, steps[0].end);
            let is_older = ops::lsn(&page) < end;
            // After a failed sync a page that reads as current may be in a cache only: it is written again before
            // the checkpoint passes.
            if is_older || !is_ordered {
                parts.pager.pool().dirty().enter(page.frame(), start);
            }
            if !is_older {
                continue;
            }
            for step in steps {
                for op in self.ops_of(step) {
                    is_passed_over &= !op.is_making();
                    if is_passed_over {
                        continue;
                    }
                    page.apply(&op).map_err(|e| corrupt(&space, id.page, format!("log: {}", e.0)))?;
                    applied.ops += 1;
                }
            }
            if page.is_stale() {
                return Err(corrupt(&space, id.page, "log: a page without a block that holds it"));
            }
            page.set_lsn(end);
        }
        if !page.frame().is_dirty() {
            page_writes::encode(id, ops::lsn(&page), &mut applied.page_writes);
        }
        Ok(())
    }
}

/// Flushes while memory is nearly used up, after a page of `table` was changed. Pages of a table that may lack its key are
/// not written: after each of them it would be tried in vain.
fn relieve_memory(parts: &Parts, table: TableId) -> Result<()> {
    let is_kept = parts.spaces.get(table).is_some_and(|space| parts.flusher.may_lack_key(&space));
    if is_kept { Ok(()) } else { parts.flusher.relieve_memory() }
}

/// Counts of one thread.
#[derive(Default)]
struct Applied {
    pages: u64,
    ops: u64,
    /// Page-write records of pages that were found on the device (invariant 4).
    page_writes: Vec<u8>,
}

/// Replays the log from the position of `reader` to `end`, except for changes that are `on_device`.
pub(super) fn replay(
    parts: &Parts,
    mut reader: LogReader,
    end: Lsn,
    on_device: &PageWrites,
    stats: &mut RecoveryStats,
) -> Result<()> {
    let from = reader.position();
    let bytes_max = (parts.options.pool_bytes / BATCH_SHARE).clamp(BATCH_BYTES.start, BATCH_BYTES.end);
    let mut batch = Batch::default();
    parts.pager.pool().dirty().set_replayed(Some(from));
    while reader.position() < end {
        let Some(group) = reader.next_group()? else {
            return Err(bad_log(reader.position(), "a group that was whole a moment ago is not any more"));
        };
        for record in group.records().filter(|record| !page_writes::is_page_writes(record.ops)) {
            stats.records += 1;
            stats.on_device += batch.keep(on_device, &record)?;
            if batch.bytes() > bytes_max {
                batch.apply(parts, on_device, stats)?;
                if batch.unread.lock().is_empty() {
                    parts.pager.pool().dirty().set_replayed(Some(record.end));
                }
            }
        }
    }
    batch.apply(parts, on_device, stats)?;
    if let Some((_, error)) = batch.unread.lock().pop_first() {
        return Err(error);
    }
    parts.pager.pool().dirty().set_replayed(None);
    stats.log_bytes = end.0 - from.0;
    Ok(())
}
