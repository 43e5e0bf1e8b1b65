//! Damage where nobody looks for data: in a page that only house-keeping needs. It harms no other record, stops nothing,
//! and the store opens again.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use lacuna_device::{StreamHint, Vfs};
use lacuna_engine::{Direction, Durability, Error, Store, StoreOptions, Table, TableOptions};
use lacuna_sim::SimVfs;

const FILE: &str = "t00000016.4k";
const PAGE: u64 = 4096;
/// A bit of a page's header, which its checksum covers.
const BIT_AT: u64 = 70;
/// In the header of a page that lists free ones.
const FREE_KIND: u8 = 4;

fn options() -> StoreOptions {
    StoreOptions {
        pool_bytes: 1 << 20,
        log_bytes: 4 << 20,
        background: false,
        durability: Durability::Sync,
        ..StoreOptions::default()
    }
}

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

/// A closed store with records `0..count`.
fn filled(count: u32) -> Arc<SimVfs> {
    let vfs = SimVfs::new(1);
    let (store, table) = open(&vfs);
    let mut txn = store.begin();
    (0..count).for_each(|i| txn.put(&table, &key(i), &[7; 100]).expect("put"));
    txn.commit().expect("commit");
    drop(table);
    store.close().expect("close");
    vfs
}

fn open(vfs: &Arc<SimVfs>) -> (Store, Table) {
    let store = Store::open(vfs.clone(), options()).expect("open");
    let table = store.open_table("t", TableOptions::default().page_bytes(PAGE as usize)).expect("table");
    (store, table)
}

/// The records from `from` to `to`, or the error met there.
fn count(store: &Store, table: &Table, from: u32, to: u32) -> Result<u32, Error> {
    let mut found = 0;
    let (from, to) = (key(from), key(to));
    let range = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
    store.begin().scan(table, range.0, range.1, Direction::Forward, |_, _| {
        found += 1;
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Merging leaves needs the allocation page.
#[test]
fn deletes_go_on_where_no_leaf_can_be_merged() {
    let vfs = filled(400);
    vfs.flip_bit(FILE, BIT_AT, 0);
    let (store, table) = open(&vfs);
    for i in 0..399 {
        let mut txn = store.begin();
        txn.delete(&table, &key(i)).expect("delete");
        txn.commit().expect("commit");
    }
    assert_eq!(count(&store, &table, 0, 400).expect("scan"), 1);
    drop((table, store));
    // Purged again, by the log.
    let (store, table) = open(&vfs);
    assert_eq!(count(&store, &table, 0, 400).expect("scan"), 1);
    assert!(matches!(store.check(), Err(Error::Corrupt { .. })), "and it is found");
}

/// As does a merge the leaf beside, also when a rollback makes the leaf small, or recovery.
#[test]
fn changes_beside_a_leaf_that_cannot_be_read_are_made_and_taken_back() {
    let vfs = filled(4000);
    let pages = vfs.open(FILE, StreamHint::Data).expect("open").len().expect("length") / PAGE;
    vfs.flip_bit(FILE, pages / 2 * PAGE + BIT_AT, 3);
    let (store, table) = open(&vfs);
    let is_damaged = |i: &u32| store.begin().get(&table, &key(*i)).is_err();
    let first = (0..4000).find(is_damaged).expect("a leaf");
    let last = (0..4000).rev().find(is_damaged).expect("a leaf");
    assert!(first > 200 && last < 3800 && last - first < 100, "{first} to {last}");
    // So many that leaves are merged, and none is empty.
    let sound = |i: &u32| !(first..=last).contains(i) && !i.is_multiple_of(4);
    for i in (first - 100..last + 100).filter(sound) {
        let mut txn = store.begin();
        assert!(txn.delete(&table, &key(i)).expect("delete"));
        txn.commit().expect("commit");
    }
    // One more than the neighbours hold, taken back.
    let mut txn = store.begin();
    (first - 100..last + 100).filter(sound).for_each(|i| txn.put(&table, &key(i), &[8; 90]).expect("put"));
    txn.rollback().expect("rollback");
    let is_left = |i: &u32| !sound(i) || *i < first - 100 || *i >= last + 100;
    let look = |store: &Store, table: &Table| {
        // The next record on either side may be looked for in the damaged leaf.
        for (from, to) in [(0, first - 4), (last + 5, 4000)] {
            let want = (from..to).filter(is_left).count() as u32;
            assert_eq!(count(store, table, from, to).expect("scan"), want);
        }
        assert!(count(store, table, first, last + 1).is_err());
    };
    look(&store, &table);
    drop((table, store));
    let (store, table) = open(&vfs);
    look(&store, &table);
    store.begin().put(&table, b"new", b"record").expect("put");
}

/// A file is cut only where its free list can be read; all else is written.
#[test]
fn a_store_with_a_damaged_free_list_is_closed_whole() {
    let vfs = filled(4000);
    let (store, table) = open(&vfs);
    let pages = store.tables().expect("tables")[0].file_bytes / PAGE;
    let mut txn = store.begin();
    (0..2000).for_each(|i| assert!(txn.delete(&table, &key(i)).expect("delete")));
    txn.commit().expect("commit");
    drop(table);
    store.close().expect("close");
    // Pages of the list are the free pages that are no holes.
    let (store, table) = open(&vfs);
    let free = store.check().expect("check").iter().find(|check| check.name == "t").expect("t").free_pages;
    assert!(free > pages / 4, "{free} of {pages}");
    drop(table);
    store.close().expect("close");
    let file = vfs.open(FILE, StreamHint::Data).expect("open");
    let mut flipped = 0;
    for page in 1..pages {
        let mut bytes = vec![0; PAGE as usize];
        file.read_at(page * PAGE, &mut bytes).expect("read");
        if bytes.iter().any(|byte| *byte != 0) && lacuna_page::read_meta(&bytes).kind == FREE_KIND {
            vfs.flip_bit(FILE, page * PAGE + BIT_AT, 0);
            flipped += 1;
        }
    }
    assert!(flipped > 0, "a page of the list");
    let (store, table) = open(&vfs);
    let mut txn = store.begin();
    (2000..3990).for_each(|i| assert!(txn.delete(&table, &key(i)).expect("delete")));
    txn.commit().expect("commit");
    drop(table);
    store.close().expect("close");
    let (store, table) = open(&vfs);
    assert_eq!(store.stats().expect("stats").recovery.records, 0, "nothing was left to replay");
    assert_eq!(count(&store, &table, 0, 4000).expect("scan"), 10);
}
