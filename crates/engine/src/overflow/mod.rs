//! Long values: chains of pages beside the tree.
//!
//! A value that is too long for a leaf lies in a chain of pages of the same file, and the leaf holds a
//! [`Reference`] to it. Chains are never changed: a new value gets a new chain.
//!
//! Invariants:
//!
//! 1. A chain that is in use has one owner, which names its first page: the undo record that announced
//!    it (`Change::Chain`) until its transaction's leaf record takes over, then that leaf record, then
//!    the undo record of the change that replaced it or of the deletion that removed it. Ownership
//!    passes in the mini-transaction that changes the leaf. So a chain is freed once, with the undo record that owns
//!    it: by rollback for new chains, by purge for old ones.
//! 2. A chain grows page by page at its end and is freed page by page after its first one, the first page last,
//!    together with the change of the undo record that owns it. So a crash at any time leaves a chain that its owner
//!    still names, shorter at most, which only its removal sees.
//! 3. Pages are freed only after every reader that may have seen a reference to them has left. A reader takes a
//!    [`Ticket`] while it holds the latch of the leaf that led it to the chain, and reads the chain without any latch
//!    but those of its pages, one at a time.
//!
//! Space: a value takes its bytes, 96 in each page that it fills and about 160 in the last one, and the padding to a
//! unit of holes there: 512 bytes at most on flash and in memory, 4 KiB in a directory. For the image of the last page
//! is compressed in plain tables too (`flush`), and the part of the page that the value does not fill is a hole. A
//! leaf, which takes values up to a quarter of the page, may waste as much as one of these is long when its keys came
//! in order. So of many long values none takes more than 1.25 times its length, and such a unit. Row-compressed tables
//! have blocks instead of images; there the last one is taken whole.
//!
//! Latches: a page of the chain before the next one, both before the allocation page, that before undo
//! pages.

mod readers;

use std::sync::Arc;

use readers::Readers;
pub(crate) use readers::Ticket;

use lacuna_page::HEADER_BYTES;

use crate::{
    alloc::Allocator,
    flush::Flusher,
    mtr::{Mtr, Pager},
    page::{
        ops::{self, PageKind, PageOp},
        overflow::{self, Link, Reference},
    },
    pool::{ReadGuard, WriteGuard},
    space::{Space, corrupt},
    types::{PageNo, Result, TableId},
};

/// Chains that undo records name.
#[derive(Default)]
pub(crate) struct UndoChains {
    /// Of values that were replaced: no leaf names them.
    pub(crate) replaced: Vec<(TableId, Reference)>,
    /// Of values that running transactions wrote.
    pub(crate) announced: Vec<(TableId, Reference)>,
}

/// A page that a mini-transaction adds to a chain; both are to be committed with it.
pub(crate) struct NewPage {
    pub(crate) page: WriteGuard,
    pub(crate) header: WriteGuard,
}

/// Makes the first page of a chain.
pub(crate) fn start(pager: &Pager, space: &Arc<Space>, mtr: &mut Mtr, part: &[u8]) -> Result<NewPage> {
    let mut allocator = Allocator::latch(pager, space)?;
    let mut page = allocator.allocate(mtr)?;
    let first = page.id().page;
    fill(mtr, &mut page, first, 0, part);
    Ok(NewPage { page, header: allocator.header })
}

/// Adds a page after `last`, the last one of the chain so far; returns its number.
pub(crate) fn extend(
    pager: &Pager,
    space: &Arc<Space>,
    first: PageNo,
    last: PageNo,
    index: u32,
    part: &[u8],
) -> Result<PageNo> {
    let mut before = pager.write(space, last)?;
    let mut allocator = Allocator::latch(pager, space)?;
    let mut mtr = Mtr::new();
    let mut page = allocator.allocate(&mut mtr)?;
    let number = page.id().page;
    fill(&mut mtr, &mut page, first, index, part);
    put_next(&mut mtr, &mut before, number);
    mtr.commit(pager, &mut [&mut before, &mut allocator.header, &mut page])?;
    Ok(number)
}

fn fill(mtr: &mut Mtr, page: &mut WriteGuard, first: PageNo, index: u32, part: &[u8]) {
    let link = Link { next: PageNo(0), first, index, part };
    mtr.apply(page, PageOp::Blank { kind: PageKind::Overflow });
    mtr.apply(page, PageOp::Bytes { offset: HEADER_BYTES as u16, data: &link.encode() });
}

fn put_next(mtr: &mut Mtr, page: &mut WriteGuard, next: PageNo) {
    mtr.apply(page, PageOp::Bytes { offset: overflow::NEXT as u16, data: &next.0.to_le_bytes() });
}

/// The page as a link of the chain that starts at `first`.
fn link<'a>(space: &Space, page: &'a [u8], number: PageNo, first: PageNo) -> Result<Link<'a>> {
    if ops::kind(page) != Some(PageKind::Overflow) {
        return Err(corrupt(space, number, "not an overflow page"));
    }
    let link = Link::parse(page).map_err(|reason| corrupt(space, number, reason))?;
    if link.first != first {
        return Err(corrupt(space, number, format!("belongs to the long value at page {}", link.first.0)));
    }
    Ok(link)
}

/// Calls `each` with the number and the part of every page of a chain that is not being freed.
fn walk(
    pager: &Pager,
    space: &Arc<Space>,
    reference: Reference,
    mut each: impl FnMut(PageNo, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut next = reference.first;
    let mut bytes = 0;
    for index in 0.. {
        let page: ReadGuard = pager.read(space, next)?;
        let link = link(space, &page, next, reference.first)?;
        bytes += link.part.len();
        if link.index != index || bytes > reference.bytes as usize {
            return Err(corrupt(space, next, "overflow page out of its place"));
        }
        each(next, link.part)?;
        next = link.next;
        if next.0 == 0 {
            break;
        }
    }
    if bytes != reference.bytes as usize {
        return Err(corrupt(space, reference.first, "long value is cut short"));
    }
    Ok(())
}

/// Reads a long value; the caller holds a ticket and no latch (invariant 3).
pub(crate) fn read(
    pager: &Pager,
    space: &Arc<Space>,
    reference: Reference,
    _: &Ticket<'_>,
) -> Result<Vec<u8>> {
    // The length is not verified yet: a file has no more pages than its bytes allow.
    let mut value = Vec::new();
    walk(pager, space, reference, |_, part| {
        value.extend_from_slice(part);
        Ok(())
    })?;
    if lacuna_crc::crc32c(&value) != reference.checksum {
        return Err(corrupt(space, reference.first, "long value does not match its checksum"));
    }
    Ok(value)
}

/// Calls `mark` with the number of every page of the chain, after verifying that it is whole. For checks.
pub(crate) fn check(
    pager: &Pager,
    space: &Arc<Space>,
    reference: Reference,
    mut mark: impl FnMut(PageNo) -> Result<()>,
) -> Result<()> {
    let mut checksum = 0;
    walk(pager, space, reference, |page, part| {
        checksum = lacuna_crc::crc32c_append(checksum, part);
        mark(page)
    })?;
    if checksum != reference.checksum {
        return Err(corrupt(space, reference.first, "long value does not match its checksum"));
    }
    Ok(())
}

/// The state that the long values of all tables share: their readers (invariant 3).
pub(crate) struct Chains {
    pager: Arc<Pager>,
    flusher: Arc<Flusher>,
    readers: Readers,
}

impl Chains {
    pub(crate) fn new(pager: Arc<Pager>, flusher: Arc<Flusher>) -> Chains {
        Chains { pager, flusher, readers: Readers::default() }
    }

    /// Registers a reader. The caller still holds the latch of the leaf that led to the chain.
    pub(crate) fn enter(&self) -> Ticket<'_> {
        self.readers.enter()
    }

    /// Frees all pages of the chain at `first` but the first one, once its readers have left. May be interrupted and
    /// repeated. The caller holds no latch; the chain is no longer reachable.
    pub(crate) fn shorten(&self, space: &Arc<Space>, first: PageNo) -> Result<()> {
        self.readers.wait_for_earlier();
        let pager = &*self.pager;
        loop {
            self.flusher.throttle()?;
            let mut head = pager.write(space, first)?;
            let next = link(space, &head, first, first)?.next;
            if next.0 == 0 {
                return Ok(());
            }
            let mut second = pager.write(space, next)?;
            let behind = link(space, &second, next, first)?.next;
            let mut allocator = Allocator::latch(pager, space)?;
            let mut mtr = Mtr::new();
            put_next(&mut mtr, &mut head, behind);
            allocator.free(&mut mtr, &mut second);
            mtr.commit(pager, &mut [&mut head, &mut second, &mut allocator.header])?;
        }
    }
}

/// The first page of a shortened chain, about to be freed.
pub(crate) struct First<'a> {
    page: WriteGuard,
    allocator: Allocator<'a>,
}

/// Latches the first page of a shortened chain.
pub(crate) fn latch_first<'a>(pager: &'a Pager, space: &'a Arc<Space>, first: PageNo) -> Result<First<'a>> {
    let page = pager.write(space, first)?;
    let next = link(space, &page, first, first)?.next;
    assert!(next.0 == 0, "a chain is shortened before its first page is given back");
    Ok(First { page, allocator: Allocator::latch(pager, space)? })
}

impl First<'_> {
    /// Frees it; the caller commits the change of its owner with it.
    pub(crate) fn free(mut self, mtr: &mut Mtr) -> [WriteGuard; 2] {
        self.allocator.free(mtr, &mut self.page);
        [self.page, self.allocator.header]
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use lacuna_device::MemVfs;

    use super::*;
    use crate::{Store, StoreOptions, TableOptions, btree::Tree, page::node::Node};

    #[test]
    fn a_chain_stays_while_someone_who_saw_it_reads() {
        let options = StoreOptions { background: false, ..StoreOptions::default() };
        let store = Store::open(MemVfs::new(), options).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("create");
        let value: Vec<u8> = (0..200_000u32).map(|i| (i / 7) as u8).collect();
        let mut txn = store.begin();
        txn.put(&table, b"k", &value).expect("put");
        txn.commit().expect("commit");
        let (pager, space) = (table.engine().pager(), table.space());
        let leaf = Tree::new(pager, space).leaf_read(b"k").expect("leaf");
        let reference = Node::new(&leaf).leaf_cell(0).reference().expect("long");
        let ticket = table.engine().chains().enter();
        drop(leaf);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Without background threads the commit purges, and waits for the ticket.
                let mut txn = store.begin();
                assert!(txn.delete(&table, b"k").expect("delete"));
                txn.commit().expect("commit");
            });
            while Node::new(&Tree::new(pager, space).leaf_read(b"k").expect("leaf")).count() > 0 {
                thread::yield_now();
            }
            // Time for a purge that does not wait to do its harm.
            thread::sleep(Duration::from_millis(50));
            assert!(read(pager, space, reference, &ticket).expect("whole") == value);
            drop(ticket);
        });
        assert_eq!(store.check().expect("check")[1].overflow_pages, 0);
    }
}
