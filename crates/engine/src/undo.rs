//! Undo logs: what a transaction must know to be taken back, and readers to look behind its back.
//!
//! The undo file (table 1) holds `SLOTS` undo logs. Slot `i` owns page `1 + i` for ever, the first
//! page of its log; a log that outgrows it chains further pages. A transaction takes a slot with its
//! first write and gives it back when it is rolled back, or purged after its commit. Undo pages are
//! ordinary pool pages, changed by mini-transactions together with the leaf they speak of; so after a
//! crash they say exactly which changes of unfinished transactions the tables hold.
//!
//! ```text
//! 64      72      76      80        88        96         104        128
//! | txn   | used  | state | next    | last    | record   | newest   | records ...
//! ```
//!
//! Invariants:
//!
//! 1. Only the transaction that owns a slot changes its pages, so first pages are latched exclusively
//!    without ever waiting for another transaction.
//! 2. `record` points at the newest record that still counts; each record at the one before. Rolling
//!    back one change and moving `record` are one mini-transaction: a crash resumes in between.
//! 3. A page carries the number of the transaction that last wrote it. A reader that finds another
//!    number than the one it looks for knows that the transaction is finished.
//!
//! Latches: a leaf before undo pages; the first page before the last one; both before the allocation
//! page.

use lacuna_page::{HEADER_BYTES, TRAILER_BYTES};

use crate::{
    alloc::{Allocator, corrupt, u64_at},
    core::Core,
    error::Result,
    ids::{PageNo, TableId, TxnId, UndoPtr},
    mtr::Mtr,
    node::{OVERFLOW, key_bytes_max, value_bytes_max},
    ops::{self, PageKind, PageOp},
    overflow::Reference,
    pool::{ReadGuard, WriteGuard},
    space::Space,
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
const RECORDS: usize = HEADER_BYTES + 64;

/// Record header: kind, flags, key length, value length, table, previous record, old transaction,
/// old undo pointer.
const RECORD_HEADER: usize = 1 + 1 + 2 + 2 + 4 + 8 + 6 + 8;

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
}

/// One change, as it is logged and read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UndoRecord {
    pub(crate) change: Change,
    pub(crate) table: TableId,
    /// The record of the same transaction before this one.
    pub(crate) previous: UndoPtr,
    /// Flags, transaction and undo pointer of the leaf record before the change.
    pub(crate) old_flags: u8,
    pub(crate) old_txn: TxnId,
    pub(crate) old_undo: UndoPtr,
    pub(crate) key: Vec<u8>,
    /// The value before the change, for [`Change::Update`]; the reference, where [`OVERFLOW`] is set.
    pub(crate) old_value: Vec<u8>,
}

impl UndoRecord {
    /// The reference in place of a long old value.
    pub(crate) fn old_reference(&self) -> Option<Reference> {
        let is_long = self.old_flags & OVERFLOW != 0;
        is_long.then(|| Reference::parse(&self.old_value).expect("parsing the record proved it"))
    }

    fn encode(&self) -> Vec<u8> {
        assert!(self.key.len() <= key_bytes_max(lacuna_page::PAGE_BYTES_MAX));
        assert!(self.old_value.len() <= value_bytes_max(lacuna_page::PAGE_BYTES_MAX));
        let mut out = Vec::with_capacity(RECORD_HEADER + self.key.len() + self.old_value.len());
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
        out
    }

    /// Reads the record at `at` of a page; `None` when there is no sound one.
    pub(crate) fn parse(page: &[u8], at: usize) -> Option<UndoRecord> {
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
            key: bytes.get(RECORD_HEADER..RECORD_HEADER + key_bytes)?.to_vec(),
            old_value: bytes
                .get(RECORD_HEADER + key_bytes..RECORD_HEADER + key_bytes + value_bytes)?
                .to_vec(),
        };
        let is_long = record.old_flags & OVERFLOW != 0;
        (!is_long || Reference::parse(&record.old_value).is_some()).then_some(record)
    }
}

fn used(page: &[u8]) -> usize {
    u32::from_le_bytes(page[USED..USED + 4].try_into().expect("four bytes")) as usize
}

fn put(mtr: &mut Mtr, page: &mut WriteGuard, at: usize, data: &[u8]) {
    mtr.apply(page, PageOp::Bytes { offset: at as u16, data });
}

/// Zeroes what no record takes, so that an image of the page compresses well.
pub(crate) fn tidy(page: &mut [u8]) {
    let end = page.len() - TRAILER_BYTES;
    let from = used(page).clamp(RECORDS, end);
    page[from..end].fill(0);
}

/// Makes the undo file.
pub(crate) fn format(core: &Core, space: &std::sync::Arc<Space>) -> Result<()> {
    let mut mtr = Mtr::new();
    let mut allocator = Allocator::format(core, space, &mut mtr, 1 + u64::from(SLOTS))?;
    mtr.commit(core, &mut [&mut allocator.header])?;
    Ok(())
}

/// A transaction's undo log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UndoLog {
    slot: u32,
    txn: TxnId,
}

/// Undo pages latched for one change; they go into the mini-transaction's commit.
pub(crate) struct Latched {
    pages: Vec<WriteGuard>,
}

impl Latched {
    pub(crate) fn pages(&mut self) -> impl Iterator<Item = &mut WriteGuard> {
        self.pages.iter_mut()
    }
}

impl UndoLog {
    /// Takes a slot that is free for `txn`. Nothing is written before the first record.
    pub(crate) fn new(slot: u32, txn: TxnId) -> UndoLog {
        assert!(slot < SLOTS);
        UndoLog { slot, txn }
    }

    pub(crate) fn slot(self) -> u32 {
        self.slot
    }

    pub(crate) fn txn(self) -> TxnId {
        self.txn
    }

    fn first(self) -> PageNo {
        PageNo(1 + u64::from(self.slot))
    }

    /// Appends `record` (its `previous` is filled in here) and returns where it lies. The first
    /// record of a transaction claims the slot.
    pub(crate) fn append(
        self,
        core: &Core,
        mtr: &mut Mtr,
        mut record: UndoRecord,
        is_first: bool,
    ) -> Result<(UndoPtr, Latched)> {
        let space = core.undo_space();
        let mut pages = Vec::with_capacity(2);
        let mut first = if is_first {
            self.claim(core, mtr, &mut pages)?
        } else {
            core.pool.write(space, self.first())?
        };
        assert_eq!(u64_at(&first, TXN), self.txn.0, "invariant 1");
        record.previous = UndoPtr(u64_at(&first, RECORD));
        let bytes = record.encode();
        let last = PageNo(u64_at(&first, LAST));
        let mut last = if last == self.first() { None } else { Some(core.pool.write(space, last)?) };
        let room = UNDO_PAGE_BYTES - TRAILER_BYTES;
        if used(last.as_ref().unwrap_or(&first)) + bytes.len() > room {
            let mut allocator = Allocator::latch(core, space)?;
            let mut page = allocator.allocate(mtr)?;
            pages.push(allocator.header);
            mtr.apply(&mut page, PageOp::Blank { kind: PageKind::Undo });
            put(mtr, &mut page, TXN, &self.txn.0.to_le_bytes());
            put(mtr, &mut page, USED, &(RECORDS as u32).to_le_bytes());
            let number = page.id().page.0.to_le_bytes();
            put(mtr, last.as_mut().unwrap_or(&mut first), NEXT, &number);
            put(mtr, &mut first, LAST, &number);
            pages.extend(last.replace(page));
        }
        let target = last.as_mut().unwrap_or(&mut first);
        let at = used(target);
        let ptr = UndoPtr::new(target.id().page, at);
        put(mtr, target, at, &bytes);
        put(mtr, target, USED, &((at + bytes.len()) as u32).to_le_bytes());
        put(mtr, &mut first, RECORD, &ptr.0.to_le_bytes());
        pages.push(first);
        pages.extend(last);
        Ok((ptr, Latched { pages }))
    }

    /// Makes the first page this transaction's.
    fn claim(self, core: &Core, mtr: &mut Mtr, pages: &mut Vec<WriteGuard>) -> Result<WriteGuard> {
        let space = core.undo_space();
        let mut first;
        if !core.txns.slots.is_made(self.slot) {
            let mut allocator = Allocator::latch(core, space)?;
            let bound = allocator.extra().max(u64::from(self.slot) + 1);
            allocator.set_extra(mtr, bound);
            core.txns.slots.set_made(self.slot);
            first = core.pool.create(space, self.first());
            mtr.apply(&mut first, PageOp::Blank { kind: PageKind::Undo });
            pages.push(allocator.header);
        } else {
            first = core.pool.write(space, self.first())?;
        }
        let newest = self.txn.0.max(u64_at(&first, TXN)).max(u64_at(&first, NEWEST));
        let mut header = [0; RECORDS - TXN];
        header[..8].copy_from_slice(&self.txn.0.to_le_bytes());
        header[USED - TXN..USED - TXN + 4].copy_from_slice(&(RECORDS as u32).to_le_bytes());
        header[STATE - TXN] = State::Active as u8;
        header[LAST - TXN..LAST - TXN + 8].copy_from_slice(&self.first().0.to_le_bytes());
        header[NEWEST - TXN..NEWEST - TXN + 8].copy_from_slice(&newest.to_le_bytes());
        put(mtr, &mut first, TXN, &header);
        Ok(first)
    }

    /// The newest record that counts.
    pub(crate) fn newest(self, core: &Core) -> Result<UndoPtr> {
        Ok(UndoPtr(u64_at(&core.pool.read(core.undo_space(), self.first())?, RECORD)))
    }

    /// Notes that the newest record was undone and the one before it counts now.
    pub(crate) fn retract(self, core: &Core, mtr: &mut Mtr, previous: UndoPtr) -> Result<WriteGuard> {
        let mut first = core.pool.write(core.undo_space(), self.first())?;
        assert_eq!(u64_at(&first, TXN), self.txn.0, "invariant 1");
        put(mtr, &mut first, RECORD, &previous.0.to_le_bytes());
        Ok(first)
    }

    /// Overwrites what the record at `ptr`, one of this log's, says was done.
    pub(crate) fn mark(self, core: &Core, mtr: &mut Mtr, ptr: UndoPtr, change: Change) -> Result<WriteGuard> {
        let mut page = core.pool.write(core.undo_space(), ptr.page())?;
        assert_eq!(u64_at(&page, TXN), self.txn.0, "invariant 1");
        put(mtr, &mut page, ptr.offset(), &[change as u8]);
        Ok(page)
    }

    /// Marks the transaction committed; the record's end is the commit's LSN.
    pub(crate) fn commit(self, core: &Core) -> Result<crate::ids::Lsn> {
        let mut mtr = Mtr::new();
        let mut first = core.pool.write(core.undo_space(), self.first())?;
        assert_eq!(u64_at(&first, TXN), self.txn.0, "invariant 1");
        put(&mut mtr, &mut first, STATE, &[State::Committed as u8]);
        mtr.commit(core, &mut [&mut first])
    }

    /// Whether the log has more than its first page.
    pub(crate) fn is_chained(self, core: &Core) -> Result<bool> {
        Ok(u64_at(&core.pool.read(core.undo_space(), self.first())?, NEXT) != 0)
    }

    /// Marks the slot idle, giving all but the first page back.
    pub(crate) fn clear(self, core: &Core) -> Result<()> {
        let space = core.undo_space();
        // Unhook one page at a time: a log may be far longer than memory, a mini-transaction not.
        loop {
            core.throttle()?;
            let mut mtr = Mtr::new();
            let mut first = core.pool.write(space, self.first())?;
            let next = PageNo(u64_at(&first, NEXT));
            if next.0 == 0 {
                put(&mut mtr, &mut first, STATE, &[State::Idle as u8]);
                put(&mut mtr, &mut first, LAST, &self.first().0.to_le_bytes());
                put(&mut mtr, &mut first, RECORD, &0u64.to_le_bytes());
                mtr.commit(core, &mut [&mut first])?;
                return Ok(());
            }
            let mut page = core.pool.write(space, next)?;
            let behind = u64_at(&page, NEXT);
            put(&mut mtr, &mut first, NEXT, &behind.to_le_bytes());
            // Records in the pages given back no longer count, nor need they: all were dealt with.
            put(&mut mtr, &mut first, RECORD, &0u64.to_le_bytes());
            let mut allocator = Allocator::latch(core, space)?;
            allocator.free(&mut mtr, &mut page);
            mtr.commit(core, &mut [&mut first, &mut page, &mut allocator.header])?;
        }
    }
}

/// Reads the record at `ptr` of `txn`; `None` when that transaction is finished (invariant 3).
pub(crate) fn read(core: &Core, ptr: UndoPtr, txn: TxnId) -> Result<Option<UndoRecord>> {
    let page: ReadGuard = core.pool.read(core.undo_space(), ptr.page())?;
    if ops::kind(&page) != Some(PageKind::Undo) || u64_at(&page, TXN) != txn.0 {
        return Ok(None);
    }
    match UndoRecord::parse(&page, ptr.offset()) {
        Some(record) => Ok(Some(record)),
        None => Err(corrupt(core.undo_space(), ptr.page(), format!("no undo record at {}", ptr.offset()))),
    }
}

/// State and log of every slot ever used, and the greatest transaction number ever, for recovery.
/// Slots are handed out in any order, so the page of one may not have been made yet although that of a
/// later one has.
pub(crate) fn survey(core: &Core) -> Result<(Vec<(UndoLog, State)>, TxnId)> {
    let space = core.undo_space();
    let bound = Allocator::latch(core, space)?.extra();
    if bound > u64::from(SLOTS) {
        return Err(corrupt(space, PageNo(0), "more undo slots than there are"));
    }
    let mut found = Vec::new();
    let mut newest = TxnId::NONE;
    for slot in 0..bound as u32 {
        let Some(page) = core.pool.read_if_written(space, PageNo(1 + u64::from(slot)))? else { continue };
        core.txns.slots.set_made(slot);
        let state = match page[STATE] {
            0 => State::Idle,
            1 => State::Active,
            2 => State::Committed,
            _ => return Err(corrupt(space, PageNo(1 + u64::from(slot)), "unknown undo state")),
        };
        newest = newest.max(TxnId(u64_at(&page, TXN))).max(TxnId(u64_at(&page, NEWEST)));
        found.push((UndoLog { slot, txn: TxnId(u64_at(&page, TXN)) }, state));
    }
    Ok((found, newest))
}

/// Chains that undo records of running transactions speak of.
#[derive(Default)]
pub(crate) struct UndoChains {
    /// Of values that were replaced: no leaf names them.
    pub(crate) replaced: Vec<(TableId, Reference)>,
    /// Of values that were written.
    pub(crate) announced: Vec<(TableId, Reference)>,
}

/// Collects the chains of running transactions, for checks. Nothing may write meanwhile.
pub(crate) fn chains(core: &Core) -> Result<UndoChains> {
    let mut chains = UndoChains::default();
    for (log, state) in survey(core)?.0 {
        let mut ptr = if state == State::Active { log.newest(core)? } else { UndoPtr::NONE };
        while !ptr.is_none() {
            let Some(record) = read(core, ptr, log.txn())? else { break };
            match (record.change, record.old_reference()) {
                (Change::Update | Change::Orphan, Some(chain)) => chains.replaced.push((record.table, chain)),
                (Change::Chain, Some(chain)) => chains.announced.push((record.table, chain)),
                _ => {}
            }
            ptr = record.previous;
        }
    }
    Ok(chains)
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
            key: b"key".to_vec(),
            old_value: vec![9; 300],
        };
        let mut page = vec![0; 4096];
        let bytes = record.encode();
        page[100..100 + bytes.len()].copy_from_slice(&bytes);
        assert_eq!(UndoRecord::parse(&page, 100), Some(record));
        assert_eq!(UndoRecord::parse(&page, 0), None);
        assert_eq!(UndoRecord::parse(&page, 4000), None);
    }
}
