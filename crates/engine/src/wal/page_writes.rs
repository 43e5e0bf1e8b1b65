//! Page-write records: the log says which page images are on the device, so that recovery need not read those pages.
//!
//! Without these records recovery would read each page that the log names since the checkpoint, at random, only to find
//! most of them newer than all their log records. With them it reads only the pages that were dirty or in flight when
//! the last group that is left was sealed. The limits on these pages (`flush::capacity`) limit the reads.
//!
//! Invariants:
//!
//! 1. A page-write record is appended once its image can no longer be lost unless the log after it is lost too (flush
//!    invariant 2). It holds the LSN of the image. The image has all changes of its page up to there, and so does every
//!    later image.
//! 2. A page leaves flight only after its record was appended. So when a group is sealed, each page that the log names
//!    by then, and that is neither dirty nor in flight, has a page-write record after its last change.
//! 3. They are records of their own, which change no page. Losing them costs recovery only time: replay finds the page
//!    newer than its changes.
//! 4. Replay skips the changes that such an image holds. So nothing may overwrite it by an older image: the doublewrite
//!    file does not, and a page that is read and found to be older is corrupt.

use rustc_hash::FxHashMap;

use crate::{
    page::{ops::BadOp, varint},
    types::{Lsn, PageId, PageNo, TableId},
    wal::LogRecord,
};

/// Stands where operations have their tag.
const TAG: u8 = 12;

/// Appends to `out` the record that an image of `page` with this LSN is on the device.
pub(crate) fn encode(page: PageId, lsn: Lsn, out: &mut Vec<u8>) {
    out.push(TAG);
    varint::put(u64::from(page.table.0), out);
    varint::put(page.page.0, out);
    varint::put(lsn.0, out);
}

/// Whether a record of the log consists of page-write records.
pub(crate) fn is_page_writes(ops: &[u8]) -> bool {
    ops.first() == Some(&TAG)
}

/// Of each page the newest image that page-write records name. It takes 50 bytes a page at most; a log holds one record
/// in 60 bytes or more, for no page is written unchanged.
#[derive(Default)]
pub(crate) struct PageWrites(FxHashMap<PageId, Lsn>);

impl PageWrites {
    /// Collects a record of the log, if it consists of page-write records.
    pub(crate) fn take_in(&mut self, record: &LogRecord<'_>) -> Result<(), BadOp> {
        let mut rest = record.ops;
        while is_page_writes(rest) {
            rest = &rest[1..];
            let mut number = || varint::take(&mut rest).ok_or(BadOp("page-write record cut short"));
            let table = TableId(u32::try_from(number()?).map_err(|_| BadOp("table number too long"))?);
            let page = PageId { table, page: PageNo(number()?) };
            let lsn = Lsn(number()?);
            if lsn > record.start {
                return Err(BadOp("page-write record of an image that is newer"));
            }
            let newest = self.0.entry(page).or_insert(lsn);
            *newest = lsn.max(*newest);
        }
        if is_page_writes(record.ops) && !rest.is_empty() {
            return Err(BadOp("operation among page-write records"));
        }
        Ok(())
    }

    /// LSN of the newest image of the page that was written; its image on the device is not older.
    pub(crate) fn lsn(&self, page: PageId) -> Option<Lsn> {
        self.0.get(&page).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::ops::PageOp;

    fn page(page: u64) -> PageId {
        PageId { table: TableId(300), page: PageNo(page) }
    }

    fn take_in(on_device: &mut PageWrites, ops: &[u8]) -> Result<(), BadOp> {
        on_device.take_in(&LogRecord { start: Lsn(1000), end: Lsn(1000 + ops.len() as u64), ops })
    }

    #[test]
    fn the_newest_record_of_a_page_counts() {
        let mut on_device = PageWrites::default();
        for lsn in [400, 700, 600] {
            let mut ops = Vec::new();
            encode(page(1 << 40), Lsn(lsn), &mut ops);
            encode(page(7), Lsn(1000), &mut ops);
            assert!(is_page_writes(&ops));
            take_in(&mut on_device, &ops).expect("sound");
        }
        let lsns = [1 << 40, 7, 8].map(|number| on_device.lsn(page(number)));
        assert_eq!(lsns, [Some(Lsn(700)), Some(Lsn(1000)), None]);
    }

    #[test]
    fn what_is_no_note_is_passed_over_or_refused() {
        let mut on_device = PageWrites::default();
        let (mut op, mut writes, mut early) = (Vec::new(), Vec::new(), Vec::new());
        PageOp::Remove { slot: 1 }.encode(page(7), &mut op);
        encode(page(7), Lsn(900), &mut writes);
        encode(page(7), Lsn(1001), &mut early);
        assert_eq!(take_in(&mut on_device, &op), Ok(()));
        for bad in [&writes[..writes.len() - 1], &early[..], &[writes.clone(), op.clone()].concat()[..]] {
            assert!(take_in(&mut on_device, bad).is_err(), "{bad:?}");
        }
    }
}
