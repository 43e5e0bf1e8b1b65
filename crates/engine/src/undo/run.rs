//! Undo records of many inserts at a time.

use super::{Latched, Pages, UndoFile, UndoLog, allocate, chain, put};
use crate::{
    mtr::Mtr,
    page::{
        ops::PageOp,
        scratch::Scratch,
        u64_at,
        undo::{Change, LAST, RECORD, RECORD_HEADER, TXN, UNDO_PAGE_BYTES, UndoRecord, used},
    },
    types::{PageNo, Result, TableId, TxnId, UndoPtr},
};
use lacuna_page::TRAILER_BYTES;

impl UndoLog {
    /// Appends the undo records of inserts of `keys`, at least one and as many as fit into a page, and returns their
    /// addresses. The log has a record already.
    pub(crate) fn append_inserts<'k>(
        self,
        file: &UndoFile,
        mtr: &mut Mtr,
        table: TableId,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<(Vec<UndoPtr>, Latched)> {
        let mut pages = Pages::new();
        let mut first = file.write(self.first())?;
        assert_eq!(u64_at(&first, TXN), self.txn.0, "invariant 1");
        let mut previous = UndoPtr(u64_at(&first, RECORD));
        let last = PageNo(u64_at(&first, LAST));
        let mut last = if last == self.first() { None } else { Some(file.write(last)?) };
        let mut keys = keys.peekable();
        let least = RECORD_HEADER + keys.peek().expect("at least one").len();
        let capacity = UNDO_PAGE_BYTES - TRAILER_BYTES;
        if used(last.as_ref().unwrap_or(&first)) + least > capacity {
            let next = allocate(file, mtr, &mut pages)?;
            pages.extend(chain(mtr, next, &mut first, &mut last));
        }
        let target = last.as_mut().unwrap_or(&mut first);
        if u64_at(target, TXN) != self.txn.0 {
            put(mtr, target, TXN, &self.txn.0.to_le_bytes());
        }
        let (page, at) = (target.id().page, used(target));
        let mut bytes = Scratch::new();
        let mut all = Vec::new();
        for key in keys {
            if at + bytes.len() + RECORD_HEADER + key.len() > capacity {
                break;
            }
            let ptr = UndoPtr::new(page, at + bytes.len());
            let record = UndoRecord {
                change: Change::Insert,
                table,
                previous,
                old_flags: 0,
                old_txn: TxnId::NONE,
                old_undo: UndoPtr::NONE,
                key: key.into(),
                old_value: (&[]).into(),
            };
            record.encode(&mut bytes);
            previous = ptr;
            all.push(ptr);
        }
        mtr.apply(target, PageOp::Append { is_newest: false, data: &bytes });
        assert!(!all.is_empty(), "there was space for one");
        put(mtr, &mut first, RECORD, &previous.0.to_le_bytes());
        pages.push(first);
        pages.extend(last);
        Ok((all, Latched { pages }))
    }
}
