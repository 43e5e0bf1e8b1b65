//! Truncating a file whose last pages are free.
//!
//! One mini-transaction rewrites the list without these pages, least numbers first, so that a shrunk file fills from
//! its start. The file is truncated only when the log of that is durable (`alloc`, invariant 4).

use std::sync::Arc;

use super::{Allocator, ENTRIES, ENTRY_BYTES, FREE_COUNT, FREE_HEAD, NEXT_FREE, USED, listed_max};
use crate::{
    mtr::{Mtr, Pager},
    mutant::{Rule, is_broken},
    page::{
        ops::{PageKind, PageOp},
        u64_at,
    },
    pool::WriteGuard,
    space::{Space, Spaces, corrupt},
    sync::thread,
    types::{Lsn, PageNo, Result},
    wal::{GROUP_BYTES_MAX, Until},
};

/// A rewritten list takes at most one in this many bytes of the log; of a longer list only the first part is rewritten.
const LOG_SHARE: u64 = 16;
/// Nor more bytes than this, however long the log may be: they are logged in one group.
const LIST_BYTES_MAX: u64 = GROUP_BYTES_MAX as u64 / 4;

/// The first pages of a list, and all that they list.
struct ListHead {
    lists: Vec<WriteGuard>,
    free: Vec<PageNo>,
    /// The next page of the list.
    rest: PageNo,
}

/// Truncates the files that are `chosen`, but none whose free list cannot be read. The caller holds no latch.
pub(crate) fn truncate_all(
    pager: &Pager,
    spaces: &Spaces,
    log_bytes: u64,
    chosen: impl Fn(&Space) -> bool,
) -> Result<()> {
    for space in spaces.all().into_iter().filter(|space| chosen(space)) {
        let Some(space) = space.pin_for_work() else { continue };
        if let Err(error) = truncate(pager, &space, false, log_bytes) {
            pager.poison().check()?;
            log::debug!("a file is not truncated: {error}");
        }
    }
    Ok(())
}

/// Truncates the file as far as the pages at its end are free; if it `is_asked`, also finishes a truncation that a
/// crash interrupted. The caller holds no latch, and pins the table.
pub(crate) fn truncate(pager: &Pager, space: &Arc<Space>, is_asked: bool, log_bytes: u64) -> Result<()> {
    let _one = space.begin_to_truncate();
    let end = match drop_last(pager, space, log_bytes)? {
        Some(end) => end,
        None if is_asked => pager.log().next(),
        None => return Ok(()),
    };
    if !is_broken(Rule::CutsFollowLog) {
        pager.log().reach(end, Until::Flushed)?;
    }
    // Meanwhile it may have grown again, but it was not cut.
    let allocator = Allocator::latch(pager, space)?;
    let used = allocator.used();
    let _latched = (!is_broken(Rule::CutsLatchHeader)).then_some(allocator);
    if is_broken(Rule::CutsLatchHeader) {
        // So long that others may allocate a page and flush it.
        (0..500).for_each(|_| thread::yield_now());
    }
    let _writing = pager.poison().begin_to_write()?;
    space.cut(used).map_err(|e| pager.poison().set(e))
}

/// Takes the free pages at the file's end out of the list; returns the LSN of that change, if there are any.
fn drop_last(pager: &Pager, space: &Arc<Space>, log_bytes: u64) -> Result<Option<Lsn>> {
    let mut allocator = Allocator::latch(pager, space)?;
    let used = allocator.used();
    let entries_max = (log_bytes / LOG_SHARE).min(LIST_BYTES_MAX) as usize / ENTRY_BYTES;
    let mut head = allocator.first_part(entries_max)?;
    head.free.sort_unstable();
    if let Some(twice) = head.free.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(corrupt(space, twice[0], "twice in the free list"));
    }
    let last = head.free.iter().rev().zip((0..used).rev()).take_while(|(page, last)| page.0 == *last);
    let dropped = last.count();
    if dropped == 0 {
        return Ok(None);
    }
    head.free.truncate(head.free.len() - dropped);
    let mut mtr = Mtr::new();
    let mut pages = allocator.write_list(&mut mtr, head)?;
    let count = u64_at(&allocator.header, FREE_COUNT).saturating_sub(dropped as u64);
    allocator.put(&mut mtr, FREE_COUNT, count);
    allocator.put(&mut mtr, USED, used - dropped as u64);
    let mut pages: Vec<_> = pages.iter_mut().collect();
    pages.push(&mut allocator.header);
    mtr.commit(pager, &mut pages).map(Some)
}

impl Allocator<'_> {
    /// Latches the first pages of the list, with `entries_max` others at most, but one page at least if there is one.
    fn first_part(&mut self, entries_max: usize) -> Result<ListHead> {
        let mut head =
            ListHead { lists: Vec::new(), free: Vec::new(), rest: PageNo(u64_at(&self.header, FREE_HEAD)) };
        while head.rest.0 != 0
            && (head.lists.is_empty() || head.free.len() + listed_max(self.space) <= entries_max)
        {
            if head.free.len() as u64 > self.used() {
                return Err(corrupt(self.space, head.rest, "free list runs in a circle"));
            }
            let list = match self.list.take() {
                Some(list) => list,
                // As [`Allocator::latch`]: others keep no page of a sound list.
                None => match self.pager.write_soon(self.space, head.rest)? {
                    Some(list) => list,
                    None => break,
                },
            };
            head.free.push(head.rest);
            for at in 0..self.listed(&list)? {
                head.free.push(self.entry(&list, at)?);
            }
            head.rest = PageNo(u64_at(&list, NEXT_FREE));
            head.lists.push(list);
        }
        Ok(head)
    }

    /// Makes `head.free`, in ascending order, the first part of the list. Pages of the list that are none of these, or
    /// not needed, become holes. All pages that were changed.
    fn write_list(&mut self, mtr: &mut Mtr, head: ListHead) -> Result<Vec<WriteGuard>> {
        let per_list = listed_max(self.space) + 1;
        let needed = head.free.len().div_ceil(per_list);
        let (mut lists, mut others): (Vec<_>, Vec<_>) =
            head.lists.into_iter().partition(|list| head.free.binary_search(&list.id().page).is_ok());
        others.extend(lists.split_off(needed.min(lists.len())));
        let mut entries = head.free;
        entries.retain(|page| lists.iter().all(|list| list.id().page != *page));
        while lists.len() < needed {
            let page = entries.pop().expect("more pages than lists");
            lists.push(match others.iter().position(|other| other.id().page == page) {
                Some(at) => others.swap_remove(at),
                None => {
                    let made = self.pager.create_soon(self.space, page);
                    made.ok_or_else(|| corrupt(self.space, page, "in the free list, and used"))?
                }
            });
        }
        for page in &mut others {
            mtr.apply(page, PageOp::Blank { kind: PageKind::Hole });
        }
        // The last list first: the first one gets the least numbers, and gives out the least first.
        let mut next = head.rest;
        for list in lists.iter_mut().rev() {
            let some = entries.split_off(entries.len().saturating_sub(per_list - 1));
            let mut data = next.0.to_le_bytes().to_vec();
            data.extend_from_slice(&(some.len() as u64).to_le_bytes());
            some.iter().rev().for_each(|page| data.extend_from_slice(&page.0.to_le_bytes()));
            debug_assert_eq!(data.len(), ENTRIES - NEXT_FREE + ENTRY_BYTES * some.len());
            mtr.apply(list, PageOp::Blank { kind: PageKind::Free });
            mtr.apply(list, PageOp::Bytes { offset: NEXT_FREE as u16, data: &data });
            next = list.id().page;
        }
        assert!(entries.is_empty(), "invariant 1");
        self.put(mtr, FREE_HEAD, next.0);
        lists.extend(others);
        Ok(lists)
    }
}
