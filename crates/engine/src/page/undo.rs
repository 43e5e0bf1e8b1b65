//! Bytes of undo pages and of undo records.
//!
//! ```text
//! 64      72      76      80     88     96       104      112       120     128
//! | txn   | used  | state | next | last | record | newest | history | links | records ...
//! ```
//!
//! The module `undo` documents what the fields mean and which code changes them.

use std::borrow::Cow;

use lacuna_page::{HEADER_BYTES, TRAILER_BYTES};
use zerocopy::TryFromBytes;

use super::{
    kind::{self, PageKind},
    node::{DELETED, OVERFLOW, key_bytes_max, value_bytes_max},
    overflow::Reference,
    u32_at, u64_at,
};
use crate::types::{PageNo, TableId, TxnId, UndoPtr};

/// Its page size: any record of any table fits into a page.
pub(crate) const UNDO_PAGE_BYTES: usize = 32 << 10;
pub(crate) const TXN: usize = HEADER_BYTES;
pub(crate) const USED: usize = HEADER_BYTES + 8;
pub(crate) const STATE: usize = HEADER_BYTES + 12;
pub(crate) const NEXT: usize = HEADER_BYTES + 16;
pub(crate) const LAST: usize = HEADER_BYTES + 24;
pub(crate) const RECORD: usize = HEADER_BYTES + 32;
/// Greatest number of a transaction that ever had the slot: slots change hands in any order.
pub(crate) const NEWEST: usize = HEADER_BYTES + 40;
/// The newest link.
pub(crate) const HISTORY: usize = HEADER_BYTES + 48;
/// Links that count.
pub(crate) const LINKS: usize = HEADER_BYTES + 56;
pub(crate) const RECORDS: usize = HEADER_BYTES + 64;

/// Record header: kind, flags, key length, value length, table, previous record, old transaction,
/// old undo pointer.
pub(crate) const RECORD_HEADER: usize = 1 + 1 + 2 + 2 + 4 + 8 + 6 + 8;

const _: () = {
    let page = lacuna_page::PAGE_BYTES_MAX;
    assert!(RECORDS + RECORD_HEADER + page / 8 + page / 4 + TRAILER_BYTES <= UNDO_PAGE_BYTES);
};

/// The state of the transaction whose log is in a slot.
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

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub(crate) enum Change {
    /// There was no record with that key.
    Insert = 1,
    /// There was one, with the value kept here.
    Update = 2,
    /// There was one, and its value is still in the leaf. A long value's reference is here too.
    Delete = 3,
    /// A chain was begun for a long value. It is rolled back with the transaction.
    Chain = 4,
    /// A chain that no leaf names any more: it is freed in any case. The record was of another kind before.
    Orphan = 5,
    /// The chain of the old value was freed. The record was of another kind before.
    Spent = 6,
    /// No change: the log of another transaction begins after it. `old_txn` wrote the log before it, `old_undo` is that
    /// log's newest record, `previous` the previous link.
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

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
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
        let change = Change::try_read_from_bytes(&header[..1]).ok()?;
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
            _ if record.old_flags & !(DELETED | OVERFLOW) != 0 => false,
            _ => !is_long || Reference::parse(&record.old_value).is_some(),
        };
        is_sound.then_some(record)
    }
}

pub(crate) fn used(page: &[u8]) -> usize {
    u32_at(page, USED) as usize
}

/// Checks a page of undo records just read from a device.
pub(crate) fn validate(page: &[u8]) -> Result<(), &'static str> {
    match (RECORDS..=page.len() - TRAILER_BYTES).contains(&used(page)) {
        true => Ok(()),
        false => Err("undo records that end outside of their page"),
    }
}

/// Copies a page of undo records with its unused bytes zeroed, so that an image of it compresses well.
pub(crate) fn copy_tidied(page: &[u8], out: &mut [u8]) {
    let end = page.len() - TRAILER_BYTES;
    let from = used(page).clamp(RECORDS, end);
    out[..from].copy_from_slice(&page[..from]);
    out[from..end].fill(0);
    out[end..].copy_from_slice(&page[end..]);
}

/// Appends records to a page of undo records, for [`super::ops::PageOp::Append`]; false when they do not fit, or it is
/// none.
#[must_use]
pub(crate) fn append(page: &mut [u8], is_newest: bool, records: &[u8]) -> bool {
    let (at, end) = (used(page), page.len() - TRAILER_BYTES);
    let fits = at >= RECORDS && at <= end && records.len() <= end - at;
    if kind::kind(page) != Some(PageKind::Undo) || !fits {
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
        let capacity = page.len() - TRAILER_BYTES - used(&page);
        assert!(
            !append(&mut page, true, &vec![1; capacity + 1]) && append(&mut page, true, &vec![1; capacity])
        );
        assert!(!append(&mut page, false, b"x") && append(&mut page, false, b""));
    }
}
