//! The end of a rolled-back log: what it took goes back at once, although the slot's history stays (invariant 6).
//! Otherwise transactions that are tried again and again beside a long snapshot would fill the undo file.

use super::{UndoFile, UndoLog, put};
use crate::{
    alloc::Allocator,
    mtr::Mtr,
    mutant::{Rule, is_broken},
    page::{
        u64_at,
        undo::{LAST, NEXT, STATE, State, TXN, USED},
    },
    types::{PageNo, Result},
};

impl UndoLog {
    /// Leaves a slot that holds logs of others, with nothing of the transaction, whose changes were all undone, but
    /// perhaps its link.
    ///
    /// Nothing names its records any more: whoever followed one held the latch of the leaf that named it, which undoing
    /// the change took exclusively.
    pub(crate) fn leave(self, file: &UndoFile) -> Result<()> {
        // Unknown to recovery, which purges the whole slot next.
        let start = file.slots.record_start(self.slot);
        if let Some(start) = start {
            self.free_behind(file, start.page())?;
        }
        let mut mtr = Mtr::new();
        let mut first = file.write(self.first())?;
        assert_eq!(u64_at(&first, TXN), self.txn.0, "invariant 1");
        let mut last = match start {
            Some(start) if start.page() != self.first() => Some(file.write(start.page())?),
            _ => None,
        };
        put(&mut mtr, &mut first, STATE, &[State::Idle as u8]);
        if let Some(start) = start {
            let used = (start.offset() as u32).to_le_bytes();
            put(&mut mtr, last.as_mut().unwrap_or(&mut first), USED, &used);
        }
        let mut pages = vec![&mut first];
        pages.extend(&mut last);
        mtr.commit(&file.pager, &mut pages)?;
        Ok(())
    }

    /// Frees the pages of the chain behind `end`, all of them the transaction's own, one at a time as in
    /// [`super::trim`]: the chain is whole after each.
    fn free_behind(self, file: &UndoFile, end: PageNo) -> Result<()> {
        loop {
            file.flusher.throttle()?;
            let mut mtr = Mtr::new();
            let mut first = file.write(self.first())?;
            let mut last = if end == self.first() { None } else { Some(file.write(end)?) };
            let next = PageNo(u64_at(last.as_ref().unwrap_or(&first), NEXT));
            if next.0 == 0 || is_broken(Rule::UndoneUndoFreed) {
                return Ok(());
            }
            let mut page = file.write(next)?;
            let mut allocator = Allocator::latch(&file.pager, file.space())?;
            let behind = u64_at(&page, NEXT);
            put(&mut mtr, last.as_mut().unwrap_or(&mut first), NEXT, &behind.to_le_bytes());
            if behind == 0 {
                put(&mut mtr, &mut first, LAST, &end.0.to_le_bytes());
            }
            allocator.free(&mut mtr, &mut page);
            let mut pages = vec![&mut first, &mut page, &mut allocator.header];
            pages.extend(&mut last);
            mtr.commit(&file.pager, &mut pages)?;
        }
    }
}
