//! Allocation states that somebody forged: errors, and no thread waits for a page that it has latched itself, or long for
//! one that another thread has.

use std::{sync::mpsc, time::Duration};

use lacuna_device::MemVfs;
use lacuna_sim::Watchdog;

use super::*;
use crate::{Error, Store, StoreOptions, Table, TableOptions, undo::UNDO_TABLE};

/// Ends a test that would wait for ever.
fn watch() -> Watchdog {
    Watchdog::new("a thread waits for itself".into(), Duration::from_secs(60))
}

fn table() -> (Store, Table) {
    let options = StoreOptions { background: false, ..StoreOptions::default() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    (store, table)
}

/// Overwrites fields of the allocation page.
fn forge(pager: &Pager, space: &Arc<Space>, fields: &[(usize, u64)]) {
    let (mut allocator, mut mtr) = (Allocator::latch(pager, space).expect("sound"), Mtr::new());
    fields.iter().for_each(|(at, value)| allocator.put(&mut mtr, *at, *value));
    mtr.commit(pager, &mut [&mut allocator.header]).expect("commit");
}

/// Makes `page` a page of the free list that lists `others`.
fn forge_list(pager: &Pager, space: &Arc<Space>, page: PageNo, others: &[u64]) {
    let (mut list, mut mtr) = (pager.create(space, page), Mtr::new());
    mtr.apply(&mut list, PageOp::Blank { kind: PageKind::Free });
    for (i, other) in others.iter().enumerate() {
        let offset = (ENTRIES + ENTRY_BYTES * i) as u16;
        mtr.apply(&mut list, PageOp::Bytes { offset, data: &other.to_le_bytes() });
    }
    put_listed(&mut mtr, &mut list, others.len());
    mtr.commit(pager, &mut [&mut list]).expect("commit");
}

#[test]
fn a_page_beyond_the_file_that_is_latched_is_an_error() {
    let (_watchdog, (_store, table)) = (watch(), table());
    let (pager, space) = (table.engine().pager(), table.space());
    let latched = pager.write(space, PageNo(1)).expect("the root");
    forge(pager, space, &[(USED, 1)]);
    let refused = Allocator::latch(pager, space).expect("sound").allocate(&mut Mtr::new()).map(drop);
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    drop(latched);
}

#[test]
fn a_free_list_that_names_an_undo_slot_is_an_error() {
    let (_watchdog, (store, table)) = (watch(), table());
    let pager = table.engine().pager();
    let undo = table.engine().spaces().get(UNDO_TABLE).expect("undo");
    // The first page of the second slot, which nobody has used.
    forge_list(pager, &undo, PageNo(2), &[]);
    forge(pager, &undo, &[(FREE_HEAD, 2), (FREE_COUNT, 1)]);
    let (mut first, mut second) = (store.begin(), store.begin());
    first.put(&table, b"one", b"1").expect("in the first slot");
    let refused = second.put(&table, b"two", b"2");
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
}

#[test]
fn a_page_that_is_free_twice_is_an_error() {
    let (_watchdog, (_store, table)) = (watch(), table());
    let (pager, space) = (table.engine().pager(), table.space());
    space.reserve(PageNo(9)).expect("space");
    forge_list(pager, space, PageNo(9), &[5, 5]);
    forge(pager, space, &[(USED, 10), (FREE_HEAD, 9), (FREE_COUNT, 3)]);
    let refused = truncate(pager, space, true, 1 << 20);
    assert!(
        refused.as_ref().is_err_and(|error| error.to_string().contains("twice in the free list")),
        "{refused:?}"
    );
}

/// Threads that hold pages of a tree may wait for the header meanwhile: whoever holds that must not wait for them.
#[test]
fn nobody_waits_for_a_page_that_is_free_and_in_use() {
    let (_watchdog, (_store, table)) = (watch(), table());
    let (pager, space) = (table.engine().pager(), table.space());
    space.reserve(PageNo(9)).expect("space");
    let allocate = || {
        let (mut allocator, mut mtr) = (Allocator::latch(pager, space).expect("sound"), Mtr::new());
        let mut page = allocator.allocate(&mut mtr).expect("at the end of the file");
        mtr.apply(&mut page, PageOp::Blank { kind: PageKind::Hole });
        mtr.commit(pager, &mut [&mut allocator.header, &mut page]).expect("commit");
        page.id().page
    };
    // The first page of the list is in use; so is what it lists; so is what lies beyond the file.
    forge_list(pager, space, PageNo(9), &[5]);
    for (used, head) in [(10, 5), (11, 9)] {
        forge(pager, space, &[(USED, used), (FREE_HEAD, head), (FREE_COUNT, 1)]);
        while_latched(pager, space, PageNo(5), || assert_eq!(allocate(), PageNo(used)));
    }
    forge(pager, space, &[(USED, 5), (FREE_HEAD, 0), (FREE_COUNT, 0)]);
    while_latched(pager, space, PageNo(5), || {
        let refused = Allocator::latch(pager, space).expect("sound").allocate(&mut Mtr::new()).map(drop);
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    });
}

/// Calls `then` while another thread has a page latched.
fn while_latched(pager: &Pager, space: &Arc<Space>, page: PageNo, then: impl FnOnce()) {
    let ((ready, is_ready), (done, is_done)) = (mpsc::channel(), mpsc::channel::<()>());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _page = pager.create(space, page);
            ready.send(()).expect("it is waited for");
            let _ = is_done.recv();
        });
        is_ready.recv().expect("latched");
        then();
        drop(done);
    });
}
