//! Allocation states that somebody forged: errors, and no thread waits for a page that it has latched itself.

use std::time::Duration;

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
