//! Leaves that split and merge between reading a record and changing it: the leaf that was latched for a lock is not
//! always the one to write to.

use std::{
    ops::{Bound, ControlFlow},
    time::Duration,
};

use lacuna_device::MemVfs;
use lacuna_engine::{Direction, Store, StoreOptions, Table, TableOptions, TransactionOptions, Txn};

const KEYS: u32 = 400;
/// In the midst of a leaf that is not the first.
const MOVED: u32 = 201;

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

/// A table of several leaves that holds all even keys, and [`MOVED`].
fn store() -> (Store, Table) {
    let options = StoreOptions { background: false, lock_timeout: Duration::ZERO, ..StoreOptions::default() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
    write(&store, &table, (0..KEYS).filter(|i| i.is_multiple_of(2) || *i == MOVED));
    (store, table)
}

/// Writes each key by a transaction of its own, which remembers no leaf.
fn write(store: &Store, table: &Table, keys: impl Iterator<Item = u32>) {
    for i in keys {
        let mut txn = store.begin();
        txn.put(table, &key(i), &[1; 60]).expect("put");
        txn.commit().expect("commit");
    }
}

/// A transaction that has locked [`MOVED`] and not written it yet.
fn locker(store: &Store, table: &Table) -> Txn {
    let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
    txn.get_for_update(table, &key(MOVED)).expect("lock").expect("there");
    txn
}

fn leaves(store: &Store) -> u64 {
    store.check().expect("sound").iter().find(|table| table.name == "t").expect("there").leaves
}

/// Writes through the transaction, and compares the table with the expected records.
fn write_and_compare(store: &Store, table: &Table, mut txn: Txn, others: impl Fn(u32) -> bool) {
    txn.put(table, &key(MOVED), b"written").expect("put");
    txn.commit().expect("commit");
    store.check().expect("sound");
    let mut found = Vec::new();
    let all = (Bound::Unbounded, Bound::Unbounded);
    let reader = store.begin();
    let push = |key: &[u8], value: &[u8]| {
        found.push((u32::from_be_bytes(key.try_into().expect("a key")), value == b"written"));
        ControlFlow::Continue(())
    };
    reader.scan(table, all.0, all.1, Direction::Forward, push).expect("scan");
    let want: Vec<_> = (0..KEYS).filter(|i| *i == MOVED || others(*i)).map(|i| (i, i == MOVED)).collect();
    assert_eq!(found, want);
}

#[test]
fn a_record_that_moved_since_it_was_locked_is_written_where_it_is() {
    let (store, table) = store();
    let before = leaves(&store);
    let locked = locker(&store, &table);
    // Downwards: leaves are split in the middle, and have space left.
    write(&store, &table, (1..KEYS).step_by(2).rev().filter(|i| *i != MOVED));
    assert!(leaves(&store) > before * 3 / 2, "leaves were split");
    write_and_compare(&store, &table, locked, |_| true);
}

#[test]
fn a_record_is_inserted_where_it_belongs_although_the_leaf_was_split() {
    let (store, table) = store();
    let begin = |i| {
        let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
        txn.get_for_update(&table, &key(i)).expect("lock").expect("there");
        (i, txn)
    };
    let lockers: Vec<_> = (0..KEYS).step_by(10).map(begin).collect();
    write(&store, &table, (1..KEYS).step_by(2).rev());
    let new = |i: u32| [&key(i + 8)[..], &[1]].concat();
    for (i, mut txn) in lockers {
        txn.insert(&table, &new(i), b"new").expect("insert");
        txn.commit().expect("commit");
    }
    store.check().expect("sound");
    let reader = store.begin();
    for i in (0..KEYS).step_by(10) {
        assert_eq!(reader.get(&table, &new(i)).expect("get").as_deref(), Some(&b"new"[..]), "{i}");
    }
}

#[test]
fn a_leaf_that_was_freed_since_is_not_written() {
    let (store, table) = store();
    let before = leaves(&store);
    let locked = locker(&store, &table);
    let mut other = store.begin();
    for i in (2..KEYS).step_by(2) {
        assert!(other.delete(&table, &key(i)).expect("delete"));
    }
    other.commit().expect("commit");
    assert!(leaves(&store) < before / 2, "leaves were merged");
    write_and_compare(&store, &table, locked, |i| i == 0);
}
