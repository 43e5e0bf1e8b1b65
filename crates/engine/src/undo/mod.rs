//! Undo logs: the records with which a transaction is rolled back, and with which readers find older versions.
//!
//! The undo file (table 1) holds `SLOTS` undo slots. Slot `i` owns page `1 + i` for ever, its first page; a longer log
//! chains further pages. A transaction takes a slot with its first write and returns it when it is rolled back, or
//! committed and its log no longer needed (`slots`). Undo pages are ordinary pool pages, changed by mini-transactions
//! together with the leaf they describe; so after a crash they list exactly the changes of unfinished transactions that
//! the tables hold.
//!
//! When views need the log of a committed transaction, the next one in its slot appends after it. Its first record is
//! then a *link*, which names the log before; `history` and `links` head the list of these. Once no view needs the
//! oldest log any more it is taken off the list, and the pages before the next one are freed, all but the first.
//!
//! Invariants:
//!
//! 1. Only the transaction that owns a slot appends to it. Beside it purge marks records of finished transactions, and
//!    takes pages off the front of the chain, never the last one. So first pages are latched exclusively only briefly.
//! 2. `record` points at the newest record of the log's transaction that still counts; each record at the
//!    one before. Rolling back one change and moving `record` are one mini-transaction: a crash resumes in
//!    between.
//! 3. A page carries the number of the transaction that last wrote it. A reader that finds another
//!    number than the one it looks for knows that the transaction is finished.
//! 4. A log is kept while its transaction is running, or a view does not see it; and, if it deleted records or replaced
//!    long values, until it is purged. All logs not purged are found after a crash: the one of the first page's
//!    transaction if that has not been rolled back, and `links` others.
//! 5. Pages are freed only with a clearance (`slots`, invariant 3). Until it is returned the page that it keeps stays
//!    in the chain, even when a transaction appends after it.
//! 6. But a transaction that was rolled back whole in a slot with history takes its own records, which nothing names
//!    any more, off the end: the chain ends with its first record's page, and that where the record began (`shorten`).
//!
//! Latches: a leaf before undo pages; the first page before the last one; both before the allocation
//! page.

mod run;
mod shorten;
pub(crate) mod slots;

use std::{borrow::Cow, sync::Arc};

use lacuna_page::TRAILER_BYTES;
use smallvec::SmallVec;

use crate::{
    alloc::{Allocator, PageSet},
    flush::Flusher,
    mtr::{Mtr, Pager},
    mutant::{Rule, is_broken},
    overflow::UndoChains,
    page::{
        ops::{self, PageKind, PageOp},
        scratch::Scratch,
        u32_at, u64_at,
        undo::{
            Change, HISTORY, LAST, LINKS, NEWEST, NEXT, RECORD, RECORDS, STATE, State, TXN, UNDO_PAGE_BYTES,
            USED, UndoRecord, used,
        },
    },
    pool::{ReadGuard, WriteGuard},
    space::{Space, corrupt},
    types::{Circle, PageNo, Result, TableId, TxnId, UndoPtr},
    undo::slots::{Clearance, LogStart, Slots},
};

/// The undo file.
pub(crate) const UNDO_TABLE: TableId = TableId(1);
/// Undo logs that may exist at a time, and so writing transactions.
pub(crate) const SLOTS: u32 = 1024;

fn put(mtr: &mut Mtr, page: &mut WriteGuard, at: usize, data: &[u8]) {
    mtr.apply(page, PageOp::Bytes { offset: at as u16, data });
}

/// Makes the undo file.
pub(crate) fn format(pager: &Pager, space: &Arc<Space>) -> Result<()> {
    let mut mtr = Mtr::new();
    let mut allocator = Allocator::format(pager, space, &mut mtr, 1 + u64::from(SLOTS))?;
    mtr.commit(pager, &mut [&mut allocator.header])?;
    Ok(())
}

/// The open undo file: its pages, and its slots.
pub(crate) struct UndoFile {
    pager: Arc<Pager>,
    flusher: Arc<Flusher>,
    space: Arc<Space>,
    slots: Slots,
}

impl UndoFile {
    pub(crate) fn new(pager: Arc<Pager>, flusher: Arc<Flusher>, space: Arc<Space>) -> UndoFile {
        UndoFile { pager, flusher, space, slots: Slots::new() }
    }

    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// An undo page, latched to be changed.
    fn write(&self, page: PageNo) -> Result<WriteGuard> {
        let guard = self.pager.write(&self.space, page)?;
        self.must_be_undo(&guard, page).map(|()| guard)
    }

    /// An undo page.
    fn read(&self, page: PageNo) -> Result<ReadGuard> {
        let guard = self.pager.read(&self.space, page)?;
        self.must_be_undo(&guard, page).map(|()| guard)
    }

    fn must_be_undo(&self, page: &[u8], number: PageNo) -> Result<()> {
        match ops::kind(page) {
            Some(PageKind::Undo) => Ok(()),
            _ => Err(corrupt(&self.space, number, "not an undo page")),
        }
    }
}

/// A transaction's undo log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UndoLog {
    slot: u32,
    txn: TxnId,
    /// The slot holds earlier logs that are kept.
    appends: bool,
}

/// The first page, the last one, one after that, and the allocation page.
type Pages = SmallVec<[WriteGuard; 4]>;

/// A page for the log; the allocation page goes to `pages`.
fn allocate(file: &UndoFile, mtr: &mut Mtr, pages: &mut Pages) -> Result<WriteGuard> {
    let mut allocator = Allocator::latch(&file.pager, file.space())?;
    let page = allocator.allocate(mtr)?;
    pages.push(allocator.header);
    Ok(page)
}

/// Chains `page`, just allocated, after the last one, which it becomes. That one, unless it is the first.
fn chain(
    mtr: &mut Mtr,
    mut page: WriteGuard,
    first: &mut WriteGuard,
    last: &mut Option<WriteGuard>,
) -> Option<WriteGuard> {
    mtr.apply(&mut page, PageOp::Blank { kind: PageKind::Undo });
    put(mtr, &mut page, USED, &(RECORDS as u32).to_le_bytes());
    let number = page.id().page.0.to_le_bytes();
    put(mtr, last.as_mut().unwrap_or(first), NEXT, &number);
    put(mtr, first, LAST, &number);
    last.replace(page)
}

/// Undo pages latched for one change; they go into the mini-transaction's commit.
pub(crate) struct Latched {
    pages: Pages,
}

impl Latched {
    pub(crate) fn pages(&mut self) -> impl Iterator<Item = &mut WriteGuard> {
        self.pages.iter_mut()
    }
}

impl UndoLog {
    /// The log of `txn` in the slot that it took; after the logs that are there if it `appends`. Nothing is written
    /// before the first record.
    pub(crate) fn new(slot: u32, txn: TxnId, appends: bool) -> UndoLog {
        assert!(slot < SLOTS);
        UndoLog { slot, txn, appends }
    }

    pub(crate) fn appends(self) -> bool {
        self.appends
    }

    pub(crate) fn slot(self) -> u32 {
        self.slot
    }

    pub(crate) fn txn(self) -> TxnId {
        self.txn
    }

    pub(crate) fn first(self) -> PageNo {
        first_page(self.slot)
    }

    /// Appends `record` (its `previous` is filled in here) and returns its address. The first record of a transaction
    /// claims the slot. Whatever can fail is done before the first change.
    pub(crate) fn append(
        self,
        file: &UndoFile,
        mtr: &mut Mtr,
        mut record: UndoRecord<'_>,
        is_first: bool,
    ) -> Result<(UndoPtr, Latched)> {
        let mut pages = Pages::new();
        let is_new = is_first && !file.slots.is_made(self.slot);
        let mut first =
            if is_new { self.make_first(file, mtr, &mut pages)? } else { file.write(self.first())? };
        let link = if is_first && self.appends { link_to_kept(&first) } else { None };
        record.previous = if is_first { UndoPtr(0) } else { UndoPtr(u64_at(&first, RECORD)) };
        let mut bytes = Scratch::new();
        if let Some(link) = &link {
            link.encode(&mut bytes);
        }
        let link_bytes = bytes.len();
        record.encode(&mut bytes);
        let starts_slot = is_first && !self.appends;
        let last = PageNo(u64_at(&first, LAST));
        let has_one = starts_slot || last == self.first();
        let mut last = if has_one { None } else { Some(file.write(last)?) };
        let used_bytes = if starts_slot { RECORDS } else { used(last.as_ref().unwrap_or(&first)) };
        let mut next = None;
        if used_bytes + bytes.len() > UNDO_PAGE_BYTES - TRAILER_BYTES {
            next = Some(allocate(file, mtr, &mut pages)?);
        }
        // From here on nothing fails.
        let (page, at) = match &next {
            Some(next) => (next.id().page, RECORDS),
            None => (last.as_ref().unwrap_or(&first).id().page, used_bytes),
        };
        let ptr = UndoPtr::new(page, at + link_bytes);
        if is_first {
            self.claim(file, mtr, &mut first, link.is_some(), ptr);
        }
        if let Some(next) = next {
            pages.extend(chain(mtr, next, &mut first, &mut last));
        }
        assert_eq!(u64_at(&first, TXN), self.txn.0, "invariant 1");
        let target = last.as_mut().unwrap_or(&mut first);
        if u64_at(target, TXN) != self.txn.0 {
            put(mtr, target, TXN, &self.txn.0.to_le_bytes());
        }
        let is_newest = page == self.first() && link.is_none();
        mtr.apply(target, PageOp::Append { is_newest, data: &bytes });
        if link.is_some() {
            put(mtr, &mut first, HISTORY, &UndoPtr::new(page, at).0.to_le_bytes());
        }
        if !is_newest {
            put(mtr, &mut first, RECORD, &ptr.0.to_le_bytes());
        }
        pages.push(first);
        pages.extend(last);
        Ok((ptr, Latched { pages }))
    }

    /// Makes the slot's first page, which it never had.
    fn make_first(self, file: &UndoFile, mtr: &mut Mtr, pages: &mut Pages) -> Result<WriteGuard> {
        let space = file.space();
        let mut allocator = Allocator::latch(&file.pager, space)?;
        file.pager.pool().must_not_be_mine(space, self.first())?; // the free list may name it
        let made = file.pager.create_soon(space, self.first());
        let mut first = made.ok_or_else(|| corrupt(space, self.first(), "a slot's first page, and used"))?;
        let bound = allocator.extra().max(u64::from(self.slot) + 1);
        allocator.set_extra(mtr, bound);
        file.slots.set_made(self.slot);
        mtr.apply(&mut first, PageOp::Blank { kind: PageKind::Undo });
        pages.push(allocator.header);
        Ok(first)
    }

    /// Makes the first page this transaction's; if the slot keeps logs, after these. Its first record comes to
    /// `record`.
    fn claim(self, file: &UndoFile, mtr: &mut Mtr, first: &mut WriteGuard, has_link: bool, record: UndoPtr) {
        let newest = self.txn.0.max(u64_at(first, TXN)).max(u64_at(first, NEWEST));
        if self.appends {
            file.slots.start_log(self.slot, LogStart { page: PageNo(u64_at(first, LAST)), record });
            if has_link {
                let links = u32_at(first, LINKS) + 1;
                put(mtr, first, LINKS, &links.to_le_bytes());
            }
            put(mtr, first, TXN, &self.txn.0.to_le_bytes());
            put(mtr, first, STATE, &[State::Active as u8]);
            put(mtr, first, RECORD, &0u64.to_le_bytes());
            put(mtr, first, NEWEST, &newest.to_le_bytes());
            return;
        }
        let mut header = [0; RECORDS - TXN];
        header[..8].copy_from_slice(&self.txn.0.to_le_bytes());
        header[USED - TXN..USED - TXN + 4].copy_from_slice(&(RECORDS as u32).to_le_bytes());
        header[STATE - TXN] = State::Active as u8;
        header[LAST - TXN..LAST - TXN + 8].copy_from_slice(&self.first().0.to_le_bytes());
        header[NEWEST - TXN..NEWEST - TXN + 8].copy_from_slice(&newest.to_le_bytes());
        put(mtr, first, TXN, &header);
    }

    /// The newest record that counts.
    pub(crate) fn newest(self, file: &UndoFile) -> Result<UndoPtr> {
        Ok(UndoPtr(u64_at(&file.read(self.first())?, RECORD)))
    }

    /// Notes that the newest record was undone and the one before it counts now.
    pub(crate) fn retract(self, file: &UndoFile, mtr: &mut Mtr, previous: UndoPtr) -> Result<WriteGuard> {
        let mut first = file.write(self.first())?;
        assert_eq!(u64_at(&first, TXN), self.txn.0, "invariant 1");
        put(mtr, &mut first, RECORD, &previous.0.to_le_bytes());
        Ok(first)
    }

    /// Overwrites the kind of change of the record at `ptr`, one of this log's.
    pub(crate) fn mark(
        self,
        file: &UndoFile,
        mtr: &mut Mtr,
        ptr: UndoPtr,
        change: Change,
    ) -> Result<WriteGuard> {
        let mut page = file.write(ptr.page())?;
        parse(file, &page, ptr)?;
        put(mtr, &mut page, ptr.offset(), &[change as u8]);
        Ok(page)
    }

    /// Marks the transaction committed; the record's end is the commit's LSN.
    pub(crate) fn commit(self, file: &UndoFile) -> Result<crate::types::Lsn> {
        let mut mtr = Mtr::new();
        let mut first = file.write(self.first())?;
        assert_eq!(u64_at(&first, TXN), self.txn.0, "invariant 1");
        put(&mut mtr, &mut first, STATE, &[State::Committed as u8]);
        mtr.commit(&file.pager, &mut [&mut first])
    }

    /// Whether the log has more than its first page.
    pub(crate) fn is_chained(self, file: &UndoFile) -> Result<bool> {
        Ok(u64_at(&file.read(self.first())?, NEXT) != 0)
    }

    /// Notes that this log and the `older` ones before it in the slot, its oldest, are purged. If the slot has not been
    /// claimed since, its log is that of the first page, and without a link.
    pub(crate) fn forget(self, file: &UndoFile, older: usize) -> Result<()> {
        let mut mtr = Mtr::new();
        let mut first = file.write(self.first())?;
        let is_newest = u64_at(&first, TXN) == self.txn.0;
        let left = u32_at(&first, LINKS).checked_sub(older as u32 + u32::from(!is_newest));
        let miscounted = || corrupt(file.space(), self.first(), "fewer undo logs than were kept");
        let left = left.ok_or_else(miscounted)?;
        if is_newest {
            put(&mut mtr, &mut first, STATE, &[State::Idle as u8]);
            put(&mut mtr, &mut first, RECORD, &0u64.to_le_bytes());
        }
        put(&mut mtr, &mut first, LINKS, &left.to_le_bytes());
        mtr.commit(&file.pager, &mut [&mut first])?;
        Ok(())
    }

    /// Whether an idle slot has neither links nor pages but the first.
    pub(crate) fn is_clear(self, file: &UndoFile) -> Result<bool> {
        let first = file.read(self.first())?;
        Ok(u64_at(&first, NEXT) == 0 && u32_at(&first, LINKS) == 0)
    }
}

/// What a log that begins in a slot with others has in front of its first record: the name of the one before, if that is
/// kept. Whether it is still needed is decided under the latch of the first page, see [`UndoLog::forget`].
fn link_to_kept(first: &[u8]) -> Option<UndoRecord<'static>> {
    (first[STATE] == State::Committed as u8).then(|| UndoRecord {
        change: Change::Link,
        table: UNDO_TABLE,
        previous: UndoPtr(u64_at(first, HISTORY)),
        old_flags: 0,
        old_txn: TxnId(u64_at(first, TXN)),
        old_undo: UndoPtr(u64_at(first, RECORD)),
        key: Cow::default(),
        old_value: Cow::default(),
    })
}

/// The page that a slot owns for ever.
fn first_page(slot: u32) -> PageNo {
    assert!(slot < SLOTS);
    PageNo(1 + u64::from(slot))
}

/// Marks a slot idle, freeing all but the first page. All records in it were processed.
pub(crate) fn clear(file: &UndoFile, clearance: &Clearance) -> Result<()> {
    assert!(clearance.keep().is_none(), "invariant 5");
    let mut mtr = Mtr::new();
    let mut first = file.write(first_page(clearance.slot()))?;
    put(&mut mtr, &mut first, STATE, &[State::Idle as u8]);
    put(&mut mtr, &mut first, RECORD, &0u64.to_le_bytes());
    if u32_at(&first, LINKS) != 0 {
        put(&mut mtr, &mut first, LINKS, &0u32.to_le_bytes());
    }
    mtr.commit(&file.pager, &mut [&mut first])?;
    drop(first);
    // A crash in between leaves pages that recovery finds, see `is_clear`.
    trim(file, clearance)
}

/// Frees the pages of a slot that the clearance covers. No record in them is needed.
pub(crate) fn trim(file: &UndoFile, clearance: &Clearance) -> Result<()> {
    let space = file.space();
    let (first_no, keep) = (first_page(clearance.slot()), clearance.keep());
    // Unhook one page at a time: a log may be far longer than memory, a mini-transaction not.
    while keep != Some(first_no) {
        file.flusher.throttle()?;
        let mut mtr = Mtr::new();
        let mut first = file.write(first_no)?;
        let next = PageNo(u64_at(&first, NEXT));
        if keep == Some(next) {
            break;
        }
        if next.0 == 0 {
            // Not by invariant 5; but what recovery kept came from the device.
            match keep.filter(|_| !is_broken(Rule::OneGivesPagesBack)) {
                None => break,
                Some(keep) => return Err(corrupt(space, keep, "an undo page that is needed is in no chain")),
            }
        }
        let mut page = file.write(next)?;
        let mut allocator = Allocator::latch(&file.pager, space)?;
        let behind = u64_at(&page, NEXT);
        put(&mut mtr, &mut first, NEXT, &behind.to_le_bytes());
        allocator.free(&mut mtr, &mut page);
        mtr.commit(&file.pager, &mut [&mut first, &mut page, &mut allocator.header])?;
    }
    Ok(())
}

fn parse(file: &UndoFile, page: &[u8], ptr: UndoPtr) -> Result<UndoRecord<'static>> {
    let record =
        if ops::kind(page) == Some(PageKind::Undo) { UndoRecord::parse(page, ptr.offset()) } else { None };
    let missing = || corrupt(file.space(), ptr.page(), format!("no undo record at {}", ptr.offset()));
    record.ok_or_else(missing)
}

/// Reads the record at `ptr` of `txn`; `None` when that transaction is finished (invariant 3).
pub(crate) fn read(file: &UndoFile, ptr: UndoPtr, txn: TxnId) -> Result<Option<UndoRecord<'static>>> {
    // A page that was freed may be a hole.
    let Some(page) = file.pager.read_if_written(file.space(), ptr.page())? else { return Ok(None) };
    if ops::kind(&page) != Some(PageKind::Undo) || u64_at(&page, TXN) != txn.0 {
        return Ok(None);
    }
    parse(file, &page, ptr).map(Some)
}

/// Reads a record that invariant 4 keeps.
pub(crate) fn read_kept(file: &UndoFile, ptr: UndoPtr) -> Result<UndoRecord<'static>> {
    parse(file, &file.pager.read(file.space(), ptr.page())?, ptr)
}

/// Refuses a chain of undo records that comes back to one, `ptr` being the next.
pub(crate) fn must_go_on(file: &UndoFile, circle: &mut Circle<UndoPtr>, ptr: UndoPtr) -> Result<()> {
    match circle.closes(ptr) {
        true => Err(corrupt(file.space(), ptr.page(), "undo records that run in a circle")),
        false => Ok(()),
    }
}

/// State and log of every slot ever used, and the greatest transaction number ever, for recovery.
/// Slots are handed out in any order, so the page of one may not have been made yet although that of a
/// later one has.
pub(crate) fn survey(file: &UndoFile) -> Result<(Vec<(UndoLog, State)>, TxnId)> {
    let space = file.space();
    let bound = Allocator::latch(&file.pager, space)?.extra();
    if bound > u64::from(SLOTS) {
        return Err(corrupt(space, PageNo(0), "more undo slots than there are"));
    }
    let mut found = Vec::new();
    let mut newest = TxnId::NONE;
    for slot in 0..bound as u32 {
        let Some(page) = file.pager.read_if_written(space, PageNo(1 + u64::from(slot)))? else { continue };
        file.must_be_undo(&page, PageNo(1 + u64::from(slot)))?;
        file.slots.set_made(slot);
        let state = match page[STATE] {
            0 => State::Idle,
            1 => State::Active,
            2 => State::Committed,
            _ => return Err(corrupt(space, PageNo(1 + u64::from(slot)), "unknown undo state")),
        };
        newest = newest.max(TxnId(u64_at(&page, TXN))).max(TxnId(u64_at(&page, NEWEST)));
        found.push((UndoLog::new(slot, TxnId(u64_at(&page, TXN)), false), state));
    }
    match newest.0 <= TxnId::COUNTED_MAX {
        true => Ok((found, newest)),
        false => Err(corrupt(space, PageNo(0), format!("numbers of transactions have come to {}", newest.0))),
    }
}

/// Committed logs of the slot that may not be purged yet, and the newest record of each. No transaction may write
/// meanwhile.
pub(crate) fn committed_logs(file: &UndoFile, log: UndoLog, state: State) -> Result<Vec<(UndoLog, UndoPtr)>> {
    let first = file.read(log.first())?;
    let mut logs = Vec::new();
    if state == State::Committed {
        logs.push((log, UndoPtr(u64_at(&first, RECORD))));
    }
    let (mut link, mut links) = (UndoPtr(u64_at(&first, HISTORY)), u32_at(&first, LINKS));
    drop(first);
    if is_broken(Rule::HistoryPurged) {
        links = 0;
    }
    let mut circle = Circle::new();
    for _ in 0..links {
        if circle.closes(link) {
            return Err(corrupt(file.space(), link.page(), "links that run in a circle"));
        }
        let record = read_kept(file, link)?;
        if record.change != Change::Link {
            return Err(corrupt(file.space(), link.page(), "an undo record in place of a link"));
        }
        logs.push((UndoLog { txn: record.old_txn, ..log }, record.old_undo));
        link = record.previous;
    }
    Ok(logs)
}

/// Collects the chains of undo records, for checks. Nothing may write meanwhile.
pub(crate) fn chains(file: &UndoFile) -> Result<UndoChains> {
    let mut chains = UndoChains::default();
    for (log, state) in survey(file)?.0 {
        let is_active = state == State::Active;
        let mut logs = committed_logs(file, log, state)?;
        if is_active {
            logs.push((log, log.newest(file)?));
        }
        for (log_of, mut ptr) in logs {
            let mut circle = Circle::new();
            while !ptr.is_none() {
                must_go_on(file, &mut circle, ptr)?;
                let record = read_kept(file, ptr)?;
                let is_running = is_active && log_of == log;
                match (record.change, record.old_reference()) {
                    (Change::Update | Change::Orphan, Some(chain)) => {
                        chains.replaced.push((record.table, chain));
                    }
                    (Change::Chain, Some(chain)) if is_running => {
                        chains.announced.push((record.table, chain));
                    }
                    _ => {}
                }
                ptr = record.previous;
            }
        }
    }
    Ok(chains)
}

/// Checks that every page of the undo file is a slot's first one, in the chain of one slot, or free. Nothing may write
/// meanwhile.
pub(crate) fn check(file: &UndoFile) -> Result<()> {
    let space = file.space();
    let (used, free) = Allocator::latch(&file.pager, space)?.survey()?;
    let mut seen = PageSet::default();
    let mut mark = |page: PageNo| match page.0 < used && seen.insert(page) {
        true => Ok(()),
        false => Err(corrupt(space, page, "reached twice, or beyond the file's pages")),
    };
    (0..=u64::from(SLOTS)).map(PageNo).chain(free).try_for_each(&mut mark)?;
    for (log, state) in survey(file)?.0 {
        let first = file.read(log.first())?;
        let (mut end, mut next) = (log.first(), PageNo(u64_at(&first, NEXT)));
        let last = PageNo(u64_at(&first, LAST));
        drop(first);
        while next.0 != 0 {
            mark(next)?;
            end = next;
            next = PageNo(u64_at(&file.read(next)?, NEXT));
        }
        if end != last && (state != State::Idle || end != log.first()) {
            return Err(corrupt(
                space,
                end,
                format!("the last page of undo slot {} is said to be {}", log.slot, last.0),
            ));
        }
    }
    match seen.first_missing(used) {
        Some(lost) => Err(corrupt(space, lost, "neither in use nor free")),
        None => Ok(()),
    }
}
