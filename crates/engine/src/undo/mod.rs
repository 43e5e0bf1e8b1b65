//! Undo logs: what a transaction must know to be taken back, and readers to look behind its back.
//!
//! The undo file (table 1) holds `SLOTS` undo slots. Slot `i` owns page `1 + i` for ever, its first
//! page; what outgrows it chains further pages. A transaction takes a slot with its first write and gives
//! it back when it is rolled back, or committed and no longer needed (`txn::slots`). Undo pages are
//! ordinary pool pages, changed by mini-transactions together with the leaf they speak of; so after a
//! crash they say exactly which changes of unfinished transactions the tables hold.
//!
//! ```text
//! 64      72      76      80     88     96       104      112       120     128
//! | txn   | used  | state | next | last | record | newest | history | links | records ...
//! ```
//!
//! When views need the log of a committed transaction, the next one in its slot appends behind it. Its
//! first record is then a *link*, which names the log before; `history` and `links` head the list of these.
//! Once nobody needs the oldest log any more it is taken off the list, and the pages before the next one
//! are given back, all but the first.
//!
//! Invariants:
//!
//! 1. Only the transaction that owns a slot appends to it. Beside it purge marks records of finished
//!    transactions, and takes pages off the front of the chain; never the last one. So first pages are
//!    latched exclusively for moments only.
//! 2. `record` points at the newest record of the log's transaction that still counts; each record at the
//!    one before. Rolling back one change and moving `record` are one mini-transaction: a crash resumes in
//!    between.
//! 3. A page carries the number of the transaction that last wrote it. A reader that finds another
//!    number than the one it looks for knows that the transaction is finished.
//! 4. What a log says stays while a transaction is running, or a view does not see it; and, if it deleted
//!    records or replaced long values, until it is purged. All logs not purged are found after a crash: the
//!    one of the first page's transaction if that has not been rolled back, and `links` others.
//! 5. Pages are given back only with a clearance (`txn::slots`, invariant 3). Until it is returned the page that it
//!    keeps stays in the chain, whoever appends behind it.
//!
//! Latches: a leaf before undo pages; the first page before the last one; both before the allocation
//! page.

mod run;
pub(crate) mod slots;

use std::{borrow::Cow, sync::Arc};

use lacuna_page::{HEADER_BYTES, TRAILER_BYTES};
use smallvec::SmallVec;

use crate::{
    alloc::Allocator,
    flush::Flusher,
    mtr::{Mtr, Pager},
    mutant::{Rule, is_broken},
    overflow::{Reference, UndoChains},
    page::{
        node::{OVERFLOW, key_bytes_max, value_bytes_max},
        ops::{self, PageKind, PageOp},
        scratch::Scratch,
        u32_at, u64_at,
    },
    pool::WriteGuard,
    space::{Space, corrupt},
    types::{
        error::Result,
        ids::{PageNo, TableId, TxnId, UndoPtr},
    },
    undo::slots::{Clearance, Slots},
};

/// The undo file.
pub(crate) const UNDO_TABLE: TableId = TableId(1);
/// Its page size: any record of any table fits into a page.
pub(crate) const UNDO_PAGE_BYTES: usize = 32 << 10;
/// Undo logs that may exist at a time, and so writing transactions.
pub(crate) const SLOTS: u32 = 1024;

const TXN: usize = HEADER_BYTES;
const USED: usize = HEADER_BYTES + 8;
const STATE: usize = HEADER_BYTES + 12;
const NEXT: usize = HEADER_BYTES + 16;
const LAST: usize = HEADER_BYTES + 24;
const RECORD: usize = HEADER_BYTES + 32;
/// Greatest number of a transaction that ever had the slot: slots change hands in any order.
const NEWEST: usize = HEADER_BYTES + 40;
/// The newest link.
const HISTORY: usize = HEADER_BYTES + 48;
/// Links that count.
const LINKS: usize = HEADER_BYTES + 56;
const RECORDS: usize = HEADER_BYTES + 64;

/// Record header: kind, flags, key length, value length, table, previous record, old transaction,
/// old undo pointer.
pub(crate) const RECORD_HEADER: usize = 1 + 1 + 2 + 2 + 4 + 8 + 6 + 8;

const _: () = {
    let page = lacuna_page::PAGE_BYTES_MAX;
    assert!(RECORDS + RECORD_HEADER + page / 8 + page / 4 + TRAILER_BYTES <= UNDO_PAGE_BYTES);
};

/// What became of the transaction whose log is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Nothing to do.
    Idle = 0,
    /// Not finished: after a crash it is rolled back.
    Active = 1,
    /// Committed; what it deleted may still have to be purged.
    Committed = 2,
}

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Change {
    /// There was no record with that key.
    Insert = 1,
    /// There was one, with the value kept here.
    Update = 2,
    /// There was one, and its value is still in the leaf. A long value's reference is here too.
    Delete = 3,
    /// A chain was begun for a long value. It is taken back with the transaction.
    Chain = 4,
    /// A chain that no leaf names any more: it is given back in any case. Such a record was another
    /// one before.
    Orphan = 5,
    /// The chain of the old value was given back. Such a record was another one before.
    Spent = 6,
    /// No change: behind it lies the log of another transaction than before. `old_txn` had the one before,
    /// `old_undo` is its newest record, `previous` the link before.
    Link = 7,
    /// There was one with a short value of the same length; kept here is the delta that leads back to it.
    Edit = 8,
}

/// One change, as it is logged and read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UndoRecord<'a> {
    pub(crate) change: Change,
    pub(crate) table: TableId,
    /// The record of the same transaction before this one.
    pub(crate) previous: UndoPtr,
    /// Flags, transaction and undo pointer of the leaf record before the change.
    pub(crate) old_flags: u8,
    pub(crate) old_txn: TxnId,
    pub(crate) old_undo: UndoPtr,
    pub(crate) key: Cow<'a, [u8]>,
    /// The value before the change, for [`Change::Update`]; the reference, where [`OVERFLOW`] is set; the delta, for
    /// [`Change::Edit`].
    pub(crate) old_value: Cow<'a, [u8]>,
}

impl UndoRecord<'_> {
    /// The reference in place of a long old value.
    pub(crate) fn old_reference(&self) -> Option<Reference> {
        let is_long = self.old_flags & OVERFLOW != 0;
        is_long.then(|| Reference::parse(&self.old_value).expect("parsing the record proved it"))
    }

    /// Bytes that the record takes, and the long value that was replaced or deleted.
    pub(crate) fn bytes(&self) -> u64 {
        let old = self.old_reference().filter(|_| self.change != Change::Chain);
        let chain = old.map_or(0, |reference| u64::from(reference.bytes));
        (RECORD_HEADER + self.key.len() + self.old_value.len()) as u64 + chain
    }

    fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.key.len() <= key_bytes_max(lacuna_page::PAGE_BYTES_MAX));
        assert!(self.old_value.len() <= value_bytes_max(lacuna_page::PAGE_BYTES_MAX));
        out.reserve(RECORD_HEADER + self.key.len() + self.old_value.len());
        out.push(self.change as u8);
        out.push(self.old_flags);
        out.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        out.extend_from_slice(&(self.old_value.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.table.0.to_le_bytes());
        out.extend_from_slice(&self.previous.0.to_le_bytes());
        out.extend_from_slice(&self.old_txn.0.to_le_bytes()[..6]);
        out.extend_from_slice(&self.old_undo.0.to_le_bytes());
        out.extend_from_slice(&self.key);
        out.extend_from_slice(&self.old_value);
    }

    /// Reads the record at `at` of a page; `None` when there is no sound one.
    pub(crate) fn parse(page: &[u8], at: usize) -> Option<UndoRecord<'static>> {
        let bytes = page.get(at..page.len() - TRAILER_BYTES)?;
        let header = bytes.get(..RECORD_HEADER)?;
        let key_bytes = u16::from_le_bytes([header[2], header[3]]) as usize;
        let value_bytes = u16::from_le_bytes([header[4], header[5]]) as usize;
        let change = match header[0] {
            1 => Change::Insert,
            2 => Change::Update,
            3 => Change::Delete,
            4 => Change::Chain,
            5 => Change::Orphan,
            6 => Change::Spent,
            7 => Change::Link,
            8 => Change::Edit,
            _ => return None,
        };
        let mut txn = [0; 8];
        txn[..6].copy_from_slice(&header[18..24]);
        let record = UndoRecord {
            change,
            old_flags: header[1],
            table: TableId(u32::from_le_bytes(header[6..10].try_into().expect("four bytes"))),
            previous: UndoPtr(u64_at(header, 10)),
            old_txn: TxnId(u64::from_le_bytes(txn)),
            old_undo: UndoPtr(u64_at(header, 24)),
            key: bytes.get(RECORD_HEADER..RECORD_HEADER + key_bytes)?.to_vec().into(),
            old_value: bytes
                .get(RECORD_HEADER + key_bytes..RECORD_HEADER + key_bytes + value_bytes)?
                .to_vec()
                .into(),
        };
        let is_long = record.old_flags & OVERFLOW != 0;
        let is_sound = match record.change {
            Change::Edit => record.old_flags == 0,
            _ => !is_long || Reference::parse(&record.old_value).is_some(),
        };
        is_sound.then_some(record)
    }
}

fn used(page: &[u8]) -> usize {
    u32_at(page, USED) as usize
}

fn put(mtr: &mut Mtr, page: &mut WriteGuard, at: usize, data: &[u8]) {
    mtr.apply(page, PageOp::Bytes { offset: at as u16, data });
}

/// Copies a page of undo records with zeros for what no record takes, so that an image of it compresses well.
pub(crate) fn copy_tidied(page: &[u8], out: &mut [u8]) {
    let end = page.len() - TRAILER_BYTES;
    let from = used(page).clamp(RECORDS, end);
    out[..from].copy_from_slice(&page[..from]);
    out[from..end].fill(0);
    out[end..].copy_from_slice(&page[end..]);
}

/// Appends records to a page of undo records, for [`PageOp::Append`]; false when they do not fit, or it is none.
#[must_use]
pub(crate) fn append(page: &mut [u8], is_newest: bool, records: &[u8]) -> bool {
    let (at, end) = (used(page), page.len() - TRAILER_BYTES);
    let fits = at >= RECORDS && at <= end && records.len() <= end - at;
    if ops::kind(page) != Some(PageKind::Undo) || !fits {
        return false;
    }
    page[at..at + records.len()].copy_from_slice(records);
    page[USED..USED + 4].copy_from_slice(&((at + records.len()) as u32).to_le_bytes());
    if is_newest {
        let number = PageNo(lacuna_page::read_meta(page).page_no);
        page[RECORD..RECORD + 8].copy_from_slice(&UndoPtr::new(number, at).0.to_le_bytes());
    }
    true
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
}

/// A transaction's undo log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UndoLog {
    slot: u32,
    txn: TxnId,
    /// It lies behind logs that are kept.
    appends: bool,
}

/// The first page, the last one, one behind that, and the allocation page.
type Pages = SmallVec<[WriteGuard; 4]>;

/// Chains another page behind the last one, which it becomes.
fn add_page(
    file: &UndoFile,
    mtr: &mut Mtr,
    pages: &mut Pages,
    first: &mut WriteGuard,
    last: &mut Option<WriteGuard>,
) -> Result<()> {
    let mut allocator = Allocator::latch(&file.pager, file.space())?;
    let mut page = allocator.allocate(mtr)?;
    pages.push(allocator.header);
    mtr.apply(&mut page, PageOp::Blank { kind: PageKind::Undo });
    put(mtr, &mut page, USED, &(RECORDS as u32).to_le_bytes());
    let number = page.id().page.0.to_le_bytes();
    put(mtr, last.as_mut().unwrap_or(first), NEXT, &number);
    put(mtr, first, LAST, &number);
    pages.extend(last.replace(page));
    Ok(())
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
    /// The log of `txn` in the slot that it took; behind those that are there if it `appends`. Nothing is
    /// written before the first record.
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

    /// Appends `record` (its `previous` is filled in here) and returns where it lies. The first
    /// record of a transaction claims the slot.
    pub(crate) fn append(
        self,
        file: &UndoFile,
        mtr: &mut Mtr,
        mut record: UndoRecord<'_>,
        is_first: bool,
    ) -> Result<(UndoPtr, Latched)> {
        let space = file.space();
        let mut pages = SmallVec::new();
        let (mut first, link) = if is_first {
            self.claim(file, mtr, &mut pages)?
        } else {
            (file.pager.write(space, self.first())?, None)
        };
        assert_eq!(u64_at(&first, TXN), self.txn.0, "invariant 1");
        record.previous = UndoPtr(u64_at(&first, RECORD));
        let mut bytes = Scratch::new();
        if let Some(link) = &link {
            link.encode(&mut bytes);
        }
        let link_bytes = bytes.len();
        record.encode(&mut bytes);
        let last = PageNo(u64_at(&first, LAST));
        let mut last = if last == self.first() { None } else { Some(file.pager.write(space, last)?) };
        let room = UNDO_PAGE_BYTES - TRAILER_BYTES;
        if used(last.as_ref().unwrap_or(&first)) + bytes.len() > room {
            add_page(file, mtr, &mut pages, &mut first, &mut last)?;
        }
        let target = last.as_mut().unwrap_or(&mut first);
        if u64_at(target, TXN) != self.txn.0 {
            put(mtr, target, TXN, &self.txn.0.to_le_bytes());
        }
        let at = used(target);
        let page = target.id().page;
        let is_newest = page == self.first() && link.is_none();
        mtr.apply(target, PageOp::Append { is_newest, data: &bytes });
        if link.is_some() {
            put(mtr, &mut first, HISTORY, &UndoPtr::new(page, at).0.to_le_bytes());
        }
        let ptr = UndoPtr::new(page, at + link_bytes);
        if !is_newest {
            put(mtr, &mut first, RECORD, &ptr.0.to_le_bytes());
        }
        pages.push(first);
        pages.extend(last);
        Ok((ptr, Latched { pages }))
    }

    /// Makes the first page this transaction's. Returns the link to write in front of its first record.
    fn claim(
        self,
        file: &UndoFile,
        mtr: &mut Mtr,
        pages: &mut Pages,
    ) -> Result<(WriteGuard, Option<UndoRecord<'static>>)> {
        let space = file.space();
        let mut first;
        if !file.slots.is_made(self.slot) {
            let mut allocator = Allocator::latch(&file.pager, space)?;
            let bound = allocator.extra().max(u64::from(self.slot) + 1);
            allocator.set_extra(mtr, bound);
            file.slots.set_made(self.slot);
            first = file.pager.create(space, self.first());
            mtr.apply(&mut first, PageOp::Blank { kind: PageKind::Undo });
            pages.push(allocator.header);
        } else {
            first = file.pager.write(space, self.first())?;
        }
        let newest = self.txn.0.max(u64_at(&first, TXN)).max(u64_at(&first, NEWEST));
        if self.appends {
            return Ok(self.claim_kept(file, mtr, first, newest));
        }
        let mut header = [0; RECORDS - TXN];
        header[..8].copy_from_slice(&self.txn.0.to_le_bytes());
        header[USED - TXN..USED - TXN + 4].copy_from_slice(&(RECORDS as u32).to_le_bytes());
        header[STATE - TXN] = State::Active as u8;
        header[LAST - TXN..LAST - TXN + 8].copy_from_slice(&self.first().0.to_le_bytes());
        header[NEWEST - TXN..NEWEST - TXN + 8].copy_from_slice(&newest.to_le_bytes());
        put(mtr, &mut first, TXN, &header);
        Ok((first, None))
    }

    /// Takes over a first page in front of logs that are kept. Whether the newest of them still counts is
    /// decided under the page's latch, see [`UndoLog::forget`].
    fn claim_kept(
        self,
        file: &UndoFile,
        mtr: &mut Mtr,
        mut first: WriteGuard,
        newest: u64,
    ) -> (WriteGuard, Option<UndoRecord<'static>>) {
        file.slots.start_log(self.slot, PageNo(u64_at(&first, LAST)));
        let link = (first[STATE] == State::Committed as u8).then(|| UndoRecord {
            change: Change::Link,
            table: UNDO_TABLE,
            previous: UndoPtr(u64_at(&first, HISTORY)),
            old_flags: 0,
            old_txn: TxnId(u64_at(&first, TXN)),
            old_undo: UndoPtr(u64_at(&first, RECORD)),
            key: Cow::default(),
            old_value: Cow::default(),
        });
        if link.is_some() {
            let links = u32_at(&first, LINKS) + 1;
            put(mtr, &mut first, LINKS, &links.to_le_bytes());
        }
        put(mtr, &mut first, TXN, &self.txn.0.to_le_bytes());
        put(mtr, &mut first, STATE, &[State::Active as u8]);
        put(mtr, &mut first, RECORD, &0u64.to_le_bytes());
        put(mtr, &mut first, NEWEST, &newest.to_le_bytes());
        (first, link)
    }

    /// The newest record that counts.
    pub(crate) fn newest(self, file: &UndoFile) -> Result<UndoPtr> {
        Ok(UndoPtr(u64_at(&file.pager.read(file.space(), self.first())?, RECORD)))
    }

    /// Notes that the newest record was undone and the one before it counts now.
    pub(crate) fn retract(self, file: &UndoFile, mtr: &mut Mtr, previous: UndoPtr) -> Result<WriteGuard> {
        let mut first = file.pager.write(file.space(), self.first())?;
        assert_eq!(u64_at(&first, TXN), self.txn.0, "invariant 1");
        put(mtr, &mut first, RECORD, &previous.0.to_le_bytes());
        Ok(first)
    }

    /// Overwrites what the record at `ptr`, one of this log's, says was done.
    pub(crate) fn mark(
        self,
        file: &UndoFile,
        mtr: &mut Mtr,
        ptr: UndoPtr,
        change: Change,
    ) -> Result<WriteGuard> {
        let mut page = file.pager.write(file.space(), ptr.page())?;
        parse(file, &page, ptr)?;
        put(mtr, &mut page, ptr.offset(), &[change as u8]);
        Ok(page)
    }

    /// Marks the transaction committed; the record's end is the commit's LSN.
    pub(crate) fn commit(self, file: &UndoFile) -> Result<crate::types::ids::Lsn> {
        let mut mtr = Mtr::new();
        let mut first = file.pager.write(file.space(), self.first())?;
        assert_eq!(u64_at(&first, TXN), self.txn.0, "invariant 1");
        put(&mut mtr, &mut first, STATE, &[State::Committed as u8]);
        mtr.commit(&file.pager, &mut [&mut first])
    }

    /// Whether the log has more than its first page.
    pub(crate) fn is_chained(self, file: &UndoFile) -> Result<bool> {
        Ok(u64_at(&file.pager.read(file.space(), self.first())?, NEXT) != 0)
    }

    /// Notes that nothing of the transaction, all of whose changes were taken back, is left in a slot
    /// that holds logs of others.
    pub(crate) fn leave(self, file: &UndoFile) -> Result<()> {
        let mut mtr = Mtr::new();
        let mut first = file.pager.write(file.space(), self.first())?;
        assert_eq!(u64_at(&first, TXN), self.txn.0, "invariant 1");
        put(&mut mtr, &mut first, STATE, &[State::Idle as u8]);
        mtr.commit(&file.pager, &mut [&mut first])?;
        Ok(())
    }

    /// Notes that this log and the `older` ones before it in the slot, its oldest, are purged. While nobody
    /// claimed the slot since, its log is that of the first page, and without a link.
    pub(crate) fn forget(self, file: &UndoFile, older: usize) -> Result<()> {
        let mut mtr = Mtr::new();
        let mut first = file.pager.write(file.space(), self.first())?;
        let mut links = older as u32;
        if u64_at(&first, TXN) == self.txn.0 {
            put(&mut mtr, &mut first, STATE, &[State::Idle as u8]);
            put(&mut mtr, &mut first, RECORD, &0u64.to_le_bytes());
        } else {
            links += 1;
        }
        let left = u32_at(&first, LINKS).checked_sub(links);
        let miscounted = || corrupt(file.space(), self.first(), "fewer undo logs than were kept");
        put(&mut mtr, &mut first, LINKS, &left.ok_or_else(miscounted)?.to_le_bytes());
        mtr.commit(&file.pager, &mut [&mut first])?;
        Ok(())
    }

    /// Whether an idle slot has neither links nor pages but the first.
    pub(crate) fn is_clear(self, file: &UndoFile) -> Result<bool> {
        let first = file.pager.read(file.space(), self.first())?;
        Ok(u64_at(&first, NEXT) == 0 && u32_at(&first, LINKS) == 0)
    }
}

/// The page that a slot owns for ever.
fn first_page(slot: u32) -> PageNo {
    assert!(slot < SLOTS);
    PageNo(1 + u64::from(slot))
}

/// Marks a slot idle, giving all but the first page back. All records in it were dealt with.
pub(crate) fn clear(file: &UndoFile, clearance: &Clearance) -> Result<()> {
    assert!(clearance.keep().is_none(), "invariant 5");
    let mut mtr = Mtr::new();
    let mut first = file.pager.write(file.space(), first_page(clearance.slot()))?;
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

/// Gives back those pages of a slot of which the clearance says so. No record in them counts.
pub(crate) fn trim(file: &UndoFile, clearance: &Clearance) -> Result<()> {
    let space = file.space();
    let (first_no, keep) = (first_page(clearance.slot()), clearance.keep());
    // Unhook one page at a time: a log may be far longer than memory, a mini-transaction not.
    while keep != Some(first_no) {
        file.flusher.throttle()?;
        let mut mtr = Mtr::new();
        let mut first = file.pager.write(space, first_no)?;
        let next = PageNo(u64_at(&first, NEXT));
        if keep == Some(next) {
            break;
        }
        if next.0 == 0 {
            assert!(
                keep.is_none() || is_broken(Rule::OneGivesPagesBack),
                "invariant 5: a page to keep is there"
            );
            break;
        }
        let mut page = file.pager.write(space, next)?;
        let behind = u64_at(&page, NEXT);
        put(&mut mtr, &mut first, NEXT, &behind.to_le_bytes());
        let mut allocator = Allocator::latch(&file.pager, space)?;
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
    // A page that was given back may be a hole.
    let Some(page) = file.pager.read_if_written(file.space(), ptr.page())? else { return Ok(None) };
    if ops::kind(&page) != Some(PageKind::Undo) || u64_at(&page, TXN) != txn.0 {
        return Ok(None);
    }
    parse(file, &page, ptr).map(Some)
}

/// Reads a record that is there by invariant 4.
pub(crate) fn read_kept(file: &UndoFile, ptr: UndoPtr) -> Result<UndoRecord<'static>> {
    parse(file, &file.pager.read(file.space(), ptr.page())?, ptr)
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
    Ok((found, newest))
}

/// Committed logs of the slot that may not be purged yet, and the newest record of each. Nobody may write
/// meanwhile.
pub(crate) fn committed_logs(file: &UndoFile, log: UndoLog, state: State) -> Result<Vec<(UndoLog, UndoPtr)>> {
    let first = file.pager.read(file.space(), log.first())?;
    let mut logs = Vec::new();
    if state == State::Committed {
        logs.push((log, UndoPtr(u64_at(&first, RECORD))));
    }
    let (mut link, mut links) = (UndoPtr(u64_at(&first, HISTORY)), u32_at(&first, LINKS));
    drop(first);
    if is_broken(Rule::HistoryPurged) {
        links = 0;
    }
    for _ in 0..links {
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
            while !ptr.is_none() {
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

/// Proves that every page of the undo file is a slot's first one, in the chain of one slot, or free.
/// Nothing may write meanwhile.
pub(crate) fn check(file: &UndoFile) -> Result<()> {
    let space = file.space();
    let (used, free) = Allocator::latch(&file.pager, space)?.survey()?;
    let mut seen = vec![false; used as usize];
    let mut mark = |page: PageNo| match seen.get_mut(page.0 as usize) {
        Some(seen) if !*seen => {
            *seen = true;
            Ok(())
        }
        _ => Err(corrupt(space, page, "reached twice, or beyond the file's pages")),
    };
    (0..=u64::from(SLOTS)).map(PageNo).chain(free).try_for_each(&mut mark)?;
    for (log, _) in survey(file)?.0 {
        let mut next = PageNo(u64_at(&file.pager.read(space, log.first())?, NEXT));
        while next.0 != 0 {
            mark(next)?;
            let page = file.pager.read(space, next)?;
            if ops::kind(&page) != Some(PageKind::Undo) {
                return Err(corrupt(space, next, "not an undo page"));
            }
            next = PageNo(u64_at(&page, NEXT));
        }
    }
    match seen.iter().position(|seen| !seen) {
        Some(lost) => Err(corrupt(space, PageNo(lost as u64), "neither in use nor free")),
        None => Ok(()),
    }
}

/// Rows of FORMAT.md: structure, offset, bytes, field.
#[cfg(test)]
pub(crate) const LAYOUT: &[(&str, usize, usize, &str)] = &[
    ("undo", TXN, 8, "transaction"),
    ("undo", USED, 4, "used"),
    ("undo", STATE, 1, "state"),
    ("undo", NEXT, 8, "next"),
    ("undo", LAST, 8, "last"),
    ("undo", RECORD, 8, "record"),
    ("undo", NEWEST, 8, "newest"),
    ("undo", HISTORY, 8, "history"),
    ("undo", LINKS, 4, "links"),
    ("undo", RECORDS, 0, "records"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive() {
        let record = UndoRecord {
            change: Change::Update,
            table: TableId(7),
            previous: UndoPtr(1 << 50),
            old_flags: 1,
            old_txn: TxnId(TxnId::MAX),
            old_undo: UndoPtr(3),
            key: b"key".into(),
            old_value: vec![9; 300].into(),
        };
        let mut page = vec![0; 4096];
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        page[100..100 + bytes.len()].copy_from_slice(&bytes);
        assert_eq!(UndoRecord::parse(&page, 100), Some(record));
        page[100] = Change::Edit as u8;
        assert_eq!(UndoRecord::parse(&page, 100), None, "of a deleted record");
        assert_eq!(UndoRecord::parse(&page, 0), None);
        assert_eq!(UndoRecord::parse(&page, 4000), None);
    }

    #[test]
    fn records_are_appended_as_far_as_they_fit() {
        let mut page = vec![0; 4096];
        let at = |page_no| lacuna_page::Meta { kind: PageKind::Undo as u8, table: 1, page_no, lsn: 0 };
        lacuna_page::write_meta(&mut page, &at(3));
        assert!(!append(&mut page, false, b"x"), "its records have no beginning");
        page[USED..USED + 4].copy_from_slice(&(RECORDS as u32).to_le_bytes());
        assert!(append(&mut page, true, b"one") && append(&mut page, false, b"two"));
        assert_eq!(&page[RECORDS..RECORDS + 7], b"onetwo\0");
        assert_eq!((used(&page), u64_at(&page, RECORD)), (RECORDS + 6, UndoPtr::new(PageNo(3), RECORDS).0));
        let room = page.len() - TRAILER_BYTES - used(&page);
        assert!(!append(&mut page, true, &vec![1; room + 1]) && append(&mut page, true, &vec![1; room]));
        assert!(!append(&mut page, false, b"x") && append(&mut page, false, b""));
    }
}
