//! Pages of a table file: which are free, and where the file ends.
//!
//! Page 0 of every file counts the pages in use and free, and heads a list of free pages. Each of these lists as many
//! others as fit: all but one in hundreds are *holes*, whose content is never read.
//!
//! Invariants:
//!
//! 1. A page is in use, in the list, or listed by a page of the list, once.
//! 2. The image of a hole is a hole in the file (`flush`). It is written like any other image: after the log that frees
//!    the page has reached the device, and one at a time for a page; so a hole never overtakes the change that frees
//!    its page, nor collides with an image of the page's next use.
//! 3. An allocated page is initialised without being read. Replay may then find a hole where an older version of the
//!    page was, and skips the changes before it was initialised (`replay`, invariant 5).
//! 4. The file is truncated only beyond its first `used` pages, once no crash can bring a greater `used` back, and with
//!    the header latched.
//!
//! Latch order: all pages that a mini-transaction already holds; the header; pages of the list; then the page that is
//! allocated, which no other thread can be waiting for. A forged list names pages of trees, whose users may wait for the
//! header meanwhile: so no thread waits long for a page of the list, and then takes one at the end of the file.

mod page_set;
mod truncate;

pub(crate) use page_set::PageSet;
pub(crate) use truncate::{truncate, truncate_all};

use std::sync::Arc;

use lacuna_page::{HEADER_BYTES, TRAILER_BYTES};

use crate::{
    mtr::{Mtr, Pager},
    page::{
        ops::{self, PageKind, PageOp},
        u32_at, u64_at,
    },
    pool::WriteGuard,
    space::{Space, corrupt},
    types::{Circle, PageId, PageNo, Result},
};

/// The page that holds a file's allocation state.
const HEADER_PAGE: PageNo = PageNo(0);
/// u64: pages in use or free; the next one to use when none is free.
const USED: usize = HEADER_BYTES;
/// u64: first free page, 0 when there is none.
const FREE_HEAD: usize = HEADER_BYTES + 8;
/// u64: how many pages are free.
const FREE_COUNT: usize = HEADER_BYTES + 16;
/// u64: for the owner of the file.
const EXTRA: usize = HEADER_BYTES + 24;
/// u64 in a page of the list: the next one, 0 at the end.
const NEXT_FREE: usize = HEADER_BYTES;
/// u32 in a page of the list: how many others it lists.
const LISTED: usize = HEADER_BYTES + 8;
/// Their numbers.
const ENTRIES: usize = HEADER_BYTES + 16;
const ENTRY_BYTES: usize = 8;
/// No file has so many pages. Numbers below it are added and multiplied without a look.
const PAGES_MAX: u64 = 1 << 40;

/// The latched allocation state of a file.
pub(crate) struct Allocator<'a> {
    pager: &'a Pager,
    space: &'a Arc<Space>,
    pub(crate) header: WriteGuard,
    /// The first page of the list, until a mini-transaction takes it. It is read up front: a read that fails after a
    /// change would leave that without a log record.
    list: Option<WriteGuard>,
}

impl<'a> Allocator<'a> {
    /// Makes page 0 of a new file, of which the first `reserved` pages are in use by agreement.
    pub(crate) fn format(
        pager: &'a Pager,
        space: &'a Arc<Space>,
        mtr: &mut Mtr,
        reserved: u64,
    ) -> Result<Self> {
        space.reserve(PageNo(reserved - 1))?;
        let mut header = pager.create(space, HEADER_PAGE);
        mtr.apply(&mut header, PageOp::Blank { kind: PageKind::Space });
        let mut allocator = Allocator { pager, space, header, list: None };
        allocator.put(mtr, USED, reserved);
        Ok(allocator)
    }

    /// Latches the allocation state.
    pub(crate) fn latch(pager: &'a Pager, space: &'a Arc<Space>) -> Result<Self> {
        let header = pager.write(space, HEADER_PAGE)?;
        if ops::kind(&header) != Some(PageKind::Space) {
            return Err(corrupt(space, HEADER_PAGE, "not an allocation page"));
        }
        let (head, used) = (PageNo(u64_at(&header, FREE_HEAD)), u64_at(&header, USED));
        if used == 0 || used > PAGES_MAX || head.0 >= used || u64_at(&header, FREE_COUNT) > used {
            return Err(corrupt(space, HEADER_PAGE, "pages in use, or free ones, that cannot be"));
        }
        let list = if head.0 == 0 { None } else { pager.write_soon(space, head)? };
        Ok(Allocator { pager, space, header, list })
    }

    fn put(&mut self, mtr: &mut Mtr, at: usize, value: u64) {
        mtr.apply(&mut self.header, PageOp::Bytes { offset: at as u16, data: &value.to_le_bytes() });
    }

    /// Pages in use or free.
    pub(crate) fn used(&self) -> u64 {
        u64_at(&self.header, USED)
    }

    /// Free ones.
    pub(crate) fn free_count(&self) -> u64 {
        u64_at(&self.header, FREE_COUNT)
    }

    /// A number that the file's owner keeps here.
    pub(crate) fn extra(&self) -> u64 {
        u64_at(&self.header, EXTRA)
    }

    pub(crate) fn set_extra(&mut self, mtr: &mut Mtr, value: u64) {
        self.put(mtr, EXTRA, value);
    }

    /// A page for the caller to initialise; its content is undefined.
    pub(crate) fn allocate(&mut self, mtr: &mut Mtr) -> Result<WriteGuard> {
        if let Some(page) = self.allocate_free(mtr)? {
            return Ok(page);
        }
        let page = PageNo(u64_at(&self.header, USED));
        self.pager.pool().must_not_be_mine(self.space, page)?;
        let _writing = self.pager.poison().begin_to_write()?;
        self.space.reserve(page)?;
        let made = self.pager.create_soon(self.space, page);
        let made = made.ok_or_else(|| corrupt(self.space, page, "beyond the pages in use, and used"))?;
        self.put(mtr, USED, page.0 + 1);
        Ok(made)
    }

    /// A page of the list, unless there is none, or others keep its pages.
    fn allocate_free(&mut self, mtr: &mut Mtr) -> Result<Option<WriteGuard>> {
        let head = PageNo(u64_at(&self.header, FREE_HEAD));
        if head.0 == 0 {
            return Ok(None);
        }
        let list = match self.take_list(mtr) {
            Some(list) => Some(list),
            None => self.pager.write_soon(self.space, head)?,
        };
        let Some(mut list) = list else { return Ok(None) };
        let listed = self.listed(&list)?;
        let count = u64_at(&self.header, FREE_COUNT);
        if listed == 0 {
            self.put(mtr, FREE_HEAD, u64_at(&list, NEXT_FREE));
            self.put(mtr, FREE_COUNT, count.saturating_sub(1));
            return Ok(Some(list));
        }
        let page = self.entry(&list, listed - 1)?;
        self.pager.pool().must_not_be_mine(self.space, page)?;
        let made = self.pager.create_soon(self.space, page);
        if made.is_some() {
            put_listed(mtr, &mut list, listed - 1);
            self.put(mtr, FREE_COUNT, count.saturating_sub(1));
        }
        mtr.hold(list);
        Ok(made)
    }

    /// Frees `page`.
    pub(crate) fn free(&mut self, mtr: &mut Mtr, page: &mut WriteGuard) {
        let head = u64_at(&self.header, FREE_HEAD);
        let count = u64_at(&self.header, FREE_COUNT);
        let number = page.id().page.0;
        let list = self.take_list(mtr);
        let listed = list.as_ref().and_then(|list| self.listed(list).ok());
        match (list, listed.filter(|listed| *listed < listed_max(self.space))) {
            (Some(mut list), Some(listed)) => {
                mtr.apply(page, PageOp::Blank { kind: PageKind::Hole });
                let offset = (ENTRIES + ENTRY_BYTES * listed) as u16;
                mtr.apply(&mut list, PageOp::Bytes { offset, data: &number.to_le_bytes() });
                put_listed(mtr, &mut list, listed + 1);
                mtr.hold(list);
            }
            (list, _) => {
                mtr.apply(page, PageOp::Blank { kind: PageKind::Free });
                mtr.apply(page, PageOp::Bytes { offset: NEXT_FREE as u16, data: &head.to_le_bytes() });
                self.put(mtr, FREE_HEAD, number);
                list.into_iter().for_each(|list| mtr.hold(list));
            }
        }
        self.put(mtr, FREE_COUNT, count + 1);
        self.space.note_freed();
    }

    /// The first page of the list, if it is latched already.
    fn take_list(&mut self, mtr: &mut Mtr) -> Option<WriteGuard> {
        let head = PageId { table: self.space.id(), page: PageNo(u64_at(&self.header, FREE_HEAD)) };
        self.list.take_if(|list| list.id() == head).or_else(|| mtr.let_go(head))
    }

    /// Pages that a page of the list lists.
    fn listed(&self, list: &WriteGuard) -> Result<usize> {
        listed(self.space, list.id().page, list)
    }

    fn entry(&self, list: &[u8], at: usize) -> Result<PageNo> {
        entry(self.space, u64_at(&self.header, USED), list, at)
    }

    /// Pages in use or free, and the free ones. For checks.
    pub(crate) fn survey(&self) -> Result<(u64, Vec<PageNo>)> {
        let used = u64_at(&self.header, USED);
        let (mut free, mut circle) = (Vec::new(), Circle::new());
        let mut next = PageNo(u64_at(&self.header, FREE_HEAD));
        while next.0 != 0 {
            if circle.closes(next) || next.0 >= used {
                return Err(corrupt(self.space, next, "free list runs in a circle or out of the file"));
            }
            free.push(next);
            let page: &[u8] = match &self.list {
                Some(list) if list.id().page == next => list,
                _ => &self.pager.read(self.space, next)?,
            };
            for at in 0..listed(self.space, next, page)? {
                free.push(entry(self.space, used, page, at)?);
            }
            next = PageNo(u64_at(page, NEXT_FREE));
        }
        if free.len() as u64 != u64_at(&self.header, FREE_COUNT) {
            return Err(corrupt(self.space, HEADER_PAGE, "free pages do not add up"));
        }
        Ok((used, free))
    }
}

/// Pages that a page of the list lists.
fn listed(space: &Space, number: PageNo, page: &[u8]) -> Result<usize> {
    if ops::kind(page) != Some(PageKind::Free) {
        return Err(corrupt(space, number, "page in the free list is not free"));
    }
    let listed = u32_at(page, LISTED) as usize;
    if listed > listed_max(space) {
        return Err(corrupt(space, number, "lists more free pages than a page holds"));
    }
    Ok(listed)
}

/// A page that a page of the list lists, in a file of `used` pages.
fn entry(space: &Space, used: u64, page: &[u8], at: usize) -> Result<PageNo> {
    let number = PageNo(u64_at(page, ENTRIES + ENTRY_BYTES * at));
    if number.0 == 0 || number.0 >= used {
        return Err(corrupt(space, number, "free page out of the file"));
    }
    Ok(number)
}

/// Pages that a page can list. The list fits into a block uncompressed.
fn listed_max(space: &Space) -> usize {
    let of_page = space.page_bytes() - TRAILER_BYTES - ENTRIES;
    space.blocks().map_or(of_page, |blocks| of_page.min(blocks.part_bytes_max())) / ENTRY_BYTES
}

fn put_listed(mtr: &mut Mtr, list: &mut WriteGuard, listed: usize) {
    mtr.apply(list, PageOp::Bytes { offset: LISTED as u16, data: &(listed as u32).to_le_bytes() });
}

/// Rows of FORMAT.md: structure, offset, bytes, field.
#[cfg(test)]
pub(crate) const LAYOUT: &[(&str, usize, usize, &str)] = &[
    ("allocation", USED, 8, "used"),
    ("allocation", FREE_HEAD, 8, "free_head"),
    ("allocation", FREE_COUNT, 8, "free_count"),
    ("allocation", EXTRA, 8, "extra"),
    ("free", NEXT_FREE, 8, "next_free"),
    ("free", LISTED, 4, "listed"),
    ("free", ENTRIES, 0, "pages"),
];

#[cfg(test)]
mod tests;
