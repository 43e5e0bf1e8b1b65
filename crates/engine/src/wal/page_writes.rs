//! Notes in the log that pages have landed: recovery need not read those.
//!
//! It would have to read each page that the log names since the checkpoint, at random, only to find most of them newer
//! than all that the log says of them. With notes it reads those that were dirty or on their way to the device when
//! the last group was sealed that is left; what bounds these (`flush::room`) bounds the reads.
//!
//! Invariants:
//!
//! 1. A note is appended when an image can no longer be lost unless the log behind it is too (flush invariant 2). It
//!    says the LSN of the image, which holds all changes of its page up to there, as every later image does.
//! 2. A page leaves flight only after its note was appended. So when a group is sealed, each page that the log names
//!    by then, and that is neither dirty nor in flight, has a note behind its last change.
//! 3. Notes are records of their own. They change no page, and nothing is lost without them but time: replay finds the
//!    page newer than its changes.
//! 4. Replay passes over what an image holds that landed. So nothing may put an older one in its place: the doublewrite
//!    file does not, and a page that is read and found to be older is damaged.

use rustc_hash::FxHashMap;

use crate::{
    page::{ops::BadOp, varint},
    types::ids::{Lsn, PageId, PageNo, TableId},
    wal::Record,
};

/// Stands where operations have their tag.
const TAG: u8 = 12;

/// Appends to `out` that an image of `page` with this LSN has landed.
pub(crate) fn note(page: PageId, lsn: Lsn, out: &mut Vec<u8>) {
    out.push(TAG);
    varint::put(u64::from(page.table.0), out);
    varint::put(page.page.0, out);
    varint::put(lsn.0, out);
}

/// Whether a record consists of notes.
pub(crate) fn is_notes(ops: &[u8]) -> bool {
    ops.first() == Some(&TAG)
}

/// What notes say: of each page the newest image. In memory 50 bytes a page at most; a log has room for a note in
/// 60 bytes or more, for no page lands unchanged.
#[derive(Default)]
pub(crate) struct Landed(FxHashMap<PageId, Lsn>);

impl Landed {
    /// Takes in a record, if it consists of notes.
    pub(crate) fn take_in(&mut self, record: &Record<'_>) -> Result<(), BadOp> {
        let mut rest = record.ops;
        while is_notes(rest) {
            rest = &rest[1..];
            let mut number = || varint::take(&mut rest).ok_or(BadOp("note cut short"));
            let table = TableId(u32::try_from(number()?).map_err(|_| BadOp("table number too long"))?);
            let page = PageId { table, page: PageNo(number()?) };
            let lsn = Lsn(number()?);
            if lsn > record.start {
                return Err(BadOp("note of an image that is newer than the note"));
            }
            let newest = self.0.entry(page).or_insert(lsn);
            *newest = lsn.max(*newest);
        }
        if is_notes(record.ops) && !rest.is_empty() {
            return Err(BadOp("operation among notes"));
        }
        Ok(())
    }

    /// LSN of the newest image of the page that landed; its image on the device is not older.
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

    fn take_in(landed: &mut Landed, ops: &[u8]) -> Result<(), BadOp> {
        landed.take_in(&Record { start: Lsn(1000), end: Lsn(1000 + ops.len() as u64), ops })
    }

    #[test]
    fn the_newest_note_of_a_page_counts() {
        let mut landed = Landed::default();
        for lsn in [400, 700, 600] {
            let mut ops = Vec::new();
            note(page(1 << 40), Lsn(lsn), &mut ops);
            note(page(7), Lsn(1000), &mut ops);
            assert!(is_notes(&ops));
            take_in(&mut landed, &ops).expect("sound");
        }
        let lsns = [1 << 40, 7, 8].map(|number| landed.lsn(page(number)));
        assert_eq!(lsns, [Some(Lsn(700)), Some(Lsn(1000)), None]);
    }

    #[test]
    fn what_is_no_note_is_passed_over_or_refused() {
        let mut landed = Landed::default();
        let (mut op, mut notes, mut early) = (Vec::new(), Vec::new(), Vec::new());
        PageOp::Remove { slot: 1 }.encode(page(7), &mut op);
        note(page(7), Lsn(900), &mut notes);
        note(page(7), Lsn(1001), &mut early);
        assert_eq!(take_in(&mut landed, &op), Ok(()));
        for bad in [&notes[..notes.len() - 1], &early[..], &[notes.clone(), op.clone()].concat()[..]] {
            assert!(take_in(&mut landed, bad).is_err(), "{bad:?}");
        }
    }
}
