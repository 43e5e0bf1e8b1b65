//! Mini-transactions: a set of page changes that recovery applies whole or not at all.
//!
//! A mini-transaction latches the pages it changes exclusively, applies operations to them while
//! recording each, and commits by appending the record to the log. Only then are the latches released, so a page's
//! changes appear in the log in the order in which they were made (invariant of replay by page LSN). It holds pages
//! itself that the caller cannot hold.

mod pager;
mod space;

use smallvec::SmallVec;

pub(crate) use pager::Pager;
pub(crate) use space::{LOGGED_OP_BYTES, make_space, try_make_space};

use crate::{
    page::{ops::PageOp, scratch::Scratch},
    pool::WriteGuard,
    row,
    types::{Lsn, PageId, Result},
};

/// A mini-transaction in the making. Whatever can fail comes before its first operation: when it is dropped uncommitted
/// after one, the guards of the changed pages stop the store before another thread sees them.
#[must_use]
pub(crate) struct Mtr {
    ops: Scratch,
    held: SmallVec<[WriteGuard; 1]>,
}

impl Mtr {
    pub(crate) fn new() -> Mtr {
        Mtr { ops: Scratch::new(), held: SmallVec::new() }
    }

    /// Applies `op` to a latched page and records it.
    pub(crate) fn apply(&mut self, page: &mut WriteGuard, op: PageOp<'_>) {
        op.encode(page.id(), &mut self.ops);
        page.apply(&op).unwrap_or_else(|e| panic!("{}: {}", page.id(), e.0));
        page.set_modified();
    }

    /// Takes over a latched page until it commits, beside those that are named then.
    pub(crate) fn hold(&mut self, page: WriteGuard) {
        self.held.push(page);
    }

    /// Returns a page that it holds.
    pub(crate) fn let_go(&mut self, page: PageId) -> Option<WriteGuard> {
        let at = self.held.iter().position(|held| held.id() == page)?;
        Some(self.held.remove(at))
    }

    /// Makes a new block of a latched page, of a table that has them, and records it. False, and no
    /// change, when it would leave less than `capacity` bytes for its log.
    pub(crate) fn recompress(&mut self, page: &mut WriteGuard, space: usize) -> bool {
        let is_new = page.recompress(space);
        if is_new {
            PageOp::Block { data: &page.export_block() }.encode(page.id(), &mut self.ops);
            page.set_modified();
        }
        is_new
    }

    /// Appends the record to the log and stamps the pages. `pages` are all that were changed.
    ///
    /// When the log fails the store is poisoned: the pages hold changes that will never be logged,
    /// and because of the poison they will never be written either.
    pub(crate) fn commit(mut self, pager: &Pager, pages: &mut [&mut WriteGuard]) -> Result<Lsn> {
        assert!(!self.ops.is_empty(), "a mini-transaction changes something");
        let mut held = std::mem::take(&mut self.held);
        let mut pages: SmallVec<[&mut WriteGuard; 8]> =
            held.iter_mut().chain(pages.iter_mut().map(|page| &mut **page)).collect();
        for page in pages.iter_mut().filter(|page| page.is_stale()) {
            assert!(self.recompress(page, row::RESERVE), "{}: space was made for it before", page.id());
        }
        pager.log().append(&self.ops, |start, end| {
            for page in pages.iter_mut().filter(|page| page.is_modified()) {
                pager.pool().dirty().enter(page.frame(), start);
                page.set_lsn(end);
            }
        })
    }
}
