//! Pages of a table file: which are free.
//!
//! Page 0 of every file counts the pages ever used and heads a list of those given back. Its latch
//! is taken after those of all pages that a mini-transaction already holds, and before that of the
//! page it allocates, which nobody else can be waiting for.

use std::sync::Arc;

use lacuna_page::HEADER_BYTES;

use crate::{
    core::Core,
    error::{Error, Result},
    ids::PageNo,
    mtr::Mtr,
    ops::{self, PageKind, PageOp},
    pool::WriteGuard,
    space::Space,
};

/// The page that holds a file's allocation state.
const HEADER_PAGE: PageNo = PageNo(0);
/// u64: pages ever used; the next one to use when none is free.
const USED: usize = HEADER_BYTES;
/// u64: first free page, 0 when there is none.
const FREE_HEAD: usize = HEADER_BYTES + 8;
/// u64: how many pages are free.
const FREE_COUNT: usize = HEADER_BYTES + 16;
/// u64: for the owner of the file.
const EXTRA: usize = HEADER_BYTES + 24;
/// u64 in a free page: the next free page, 0 at the end.
const NEXT_FREE: usize = HEADER_BYTES;

pub(crate) fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"))
}

/// The latched allocation state of a file.
pub(crate) struct Allocator<'a> {
    core: &'a Core,
    space: &'a Arc<Space>,
    pub(crate) header: WriteGuard,
}

impl<'a> Allocator<'a> {
    /// Makes page 0 of a new file, of which the first `reserved` pages are in use by agreement.
    pub(crate) fn format(
        core: &'a Core,
        space: &'a Arc<Space>,
        mtr: &mut Mtr,
        reserved: u64,
    ) -> Result<Self> {
        space.reserve(PageNo(reserved - 1))?;
        let mut header = core.pool.create(space, HEADER_PAGE);
        mtr.apply(&mut header, PageOp::Blank { kind: PageKind::Space });
        let mut allocator = Allocator { core, space, header };
        allocator.put(mtr, USED, reserved);
        Ok(allocator)
    }

    /// Latches the allocation state.
    pub(crate) fn latch(core: &'a Core, space: &'a Arc<Space>) -> Result<Self> {
        let header = core.pool.write(space, HEADER_PAGE)?;
        if ops::kind(&header) != Some(PageKind::Space) {
            return Err(corrupt(space, HEADER_PAGE, "not an allocation page"));
        }
        Ok(Allocator { core, space, header })
    }

    fn put(&mut self, mtr: &mut Mtr, at: usize, value: u64) {
        mtr.apply(&mut self.header, PageOp::Bytes { offset: at as u16, data: &value.to_le_bytes() });
    }

    /// Pages ever used.
    pub(crate) fn used(&self) -> u64 {
        u64_at(&self.header, USED)
    }

    /// A number that the file's owner keeps here.
    pub(crate) fn extra(&self) -> u64 {
        u64_at(&self.header, EXTRA)
    }

    pub(crate) fn set_extra(&mut self, mtr: &mut Mtr, value: u64) {
        self.put(mtr, EXTRA, value);
    }

    /// A page for the caller to make into something; its content is undefined.
    pub(crate) fn allocate(&mut self, mtr: &mut Mtr) -> Result<WriteGuard> {
        let head = PageNo(u64_at(&self.header, FREE_HEAD));
        if head.0 == 0 {
            let page = PageNo(u64_at(&self.header, USED));
            self.space.reserve(page)?;
            self.put(mtr, USED, page.0 + 1);
            return Ok(self.core.pool.create(self.space, page));
        }
        let page = self.core.pool.write(self.space, head)?;
        if ops::kind(&page) != Some(PageKind::Free) {
            return Err(corrupt(self.space, head, "page in the free list is not free"));
        }
        self.put(mtr, FREE_HEAD, u64_at(&page, NEXT_FREE));
        let count = u64_at(&self.header, FREE_COUNT);
        self.put(mtr, FREE_COUNT, count.saturating_sub(1));
        Ok(page)
    }

    /// Gives `page` back.
    pub(crate) fn free(&mut self, mtr: &mut Mtr, page: &mut WriteGuard) {
        let head = u64_at(&self.header, FREE_HEAD);
        let count = u64_at(&self.header, FREE_COUNT);
        mtr.apply(page, PageOp::Blank { kind: PageKind::Free });
        mtr.apply(page, PageOp::Bytes { offset: NEXT_FREE as u16, data: &head.to_le_bytes() });
        let number = page.id().page.0;
        self.put(mtr, FREE_HEAD, number);
        self.put(mtr, FREE_COUNT, count + 1);
    }

    /// Pages ever used, and the free ones among them, in order of the list. For checks.
    pub(crate) fn survey(&self) -> Result<(u64, Vec<PageNo>)> {
        let used = u64_at(&self.header, USED);
        if used == 0 {
            return Err(corrupt(self.space, HEADER_PAGE, "no pages in use"));
        }
        let mut free = Vec::new();
        let mut next = PageNo(u64_at(&self.header, FREE_HEAD));
        while next.0 != 0 {
            if free.len() as u64 > used || next.0 >= used {
                return Err(corrupt(self.space, next, "free list runs in a circle or out of the file"));
            }
            free.push(next);
            let page = self.core.pool.read(self.space, next)?;
            if ops::kind(&page) != Some(PageKind::Free) {
                return Err(corrupt(self.space, next, "page in the free list is not free"));
            }
            next = PageNo(u64_at(&page, NEXT_FREE));
        }
        if free.len() as u64 != u64_at(&self.header, FREE_COUNT) {
            return Err(corrupt(self.space, HEADER_PAGE, "free pages do not add up"));
        }
        Ok((used, free))
    }
}

/// An error that names a page.
pub(crate) fn corrupt(space: &Space, page: PageNo, reason: impl Into<String>) -> Error {
    Error::Corrupt { what: space.name(), at: format!("page {}", page.0), reason: reason.into() }
}

/// Rows of FORMAT.md: structure, offset, bytes, field.
#[cfg(test)]
pub(crate) const LAYOUT: &[(&str, usize, usize, &str)] = &[
    ("allocation", USED, 8, "used"),
    ("allocation", FREE_HEAD, 8, "free_head"),
    ("allocation", FREE_COUNT, 8, "free_count"),
    ("allocation", EXTRA, 8, "extra"),
    ("free", NEXT_FREE, 8, "next_free"),
];
