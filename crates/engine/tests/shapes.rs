//! Room under histories of every shape: what is deleted gives its room back, whatever the order of inserts and
//! deletes, the kind of table and the place; and the first record is found in as many pages as the tree is high.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use lacuna_device::{MemPlace, Place, sim::SeededRng};
use lacuna_engine::{Direction, Store, StoreOptions, Table, TableCheck, TableOptions};

fn options() -> StoreOptions {
    StoreOptions { pool_bytes: 4 << 20, log_bytes: 1 << 20, background: false, ..StoreOptions::default() }
}

fn open(place: &Arc<dyn Place>, table: TableOptions) -> (Store, Table) {
    let store = Store::open(place.clone(), options()).expect("open");
    let table = store.open_table("t", table).expect("table");
    (store, table)
}

/// What a check counts in the table.
fn check(store: &Store) -> TableCheck {
    store.check().expect("sound").into_iter().find(|table| table.name == "t").expect("there")
}

/// A transaction of changes.
fn change(store: &Store, table: &Table, puts: impl Iterator<Item = u64>, deletes: impl Iterator<Item = u64>) {
    let mut txn = store.begin();
    puts.for_each(|i| txn.put(table, &i.to_be_bytes(), &[7; 100]).expect("put"));
    deletes.for_each(|i| assert!(txn.delete(table, &i.to_be_bytes()).expect("delete"), "{i}"));
    txn.commit().expect("commit");
}

/// Pages looked up to find the first record in that direction.
fn pages_to_first(store: &Store, table: &Table, direction: Direction) -> u64 {
    let pages = || {
        let pool = store.stats().expect("stats").pool;
        pool.hits + pool.misses
    };
    let txn = store.begin();
    let before = pages();
    txn.scan(table, Bound::Unbounded, Bound::Unbounded, direction, |_, _| ControlFlow::Break(()))
        .expect("scan");
    pages() - before
}

fn kinds() -> [TableOptions; 3] {
    [
        TableOptions::default().page_bytes(4096),
        TableOptions::compressed(lacuna_engine::Algorithm::Lz4).page_bytes(4096),
        TableOptions::row_compressed(4).page_bytes(8192),
    ]
}

/// A table like TPC-C's NEW-ORDER: inserted at one end, deleted at the other one.
fn run_queue(kind: TableOptions, is_ascending: bool) {
    const LIVE: u64 = 500;
    const ROUNDS: u64 = 100;
    let (store, table) = open(&(MemPlace::new() as Arc<dyn Place>), kind);
    let number = |i: u64| if is_ascending { i } else { u64::MAX - i };
    change(&store, &table, (0..LIVE).map(number), std::iter::empty());
    let full = check(&store);
    for round in 0..ROUNDS {
        let (first, next) = (round * 50, LIVE + round * 50);
        change(&store, &table, (next..next + 50).map(number), (first..first + 50).map(number));
    }
    let after = check(&store);
    assert_eq!(after.records, LIVE);
    assert!(
        after.leaves <= full.leaves * 2 + 2 && after.height <= full.height + 1,
        "{full:?}, then {after:?}"
    );
    for direction in [Direction::Forward, Direction::Backward] {
        let pages = pages_to_first(&store, &table, direction);
        assert!(pages <= 2 * after.height + 4, "{pages} pages, {direction:?}, {after:?}");
    }
}

#[test]
fn a_queue_has_the_leaves_of_what_is_live() {
    for kind in kinds() {
        run_queue(kind, true);
        run_queue(kind, false);
    }
}

/// All numbers below `count` in a random order.
fn shuffled(count: u64, rng: &mut SeededRng) -> Vec<u64> {
    let mut all: Vec<u64> = (0..count).collect();
    (1..all.len()).rev().for_each(|i| all.swap(i, rng.below(i as u64 + 1) as usize));
    all
}

#[test]
fn leaves_are_merged_however_records_are_deleted() {
    const COUNT: u64 = 10_000;
    for kind in kinds() {
        let mut rng = SeededRng::new(5);
        let orders: [Vec<u64>; 3] =
            [(0..COUNT).collect(), (0..COUNT).rev().collect(), shuffled(COUNT, &mut rng)];
        for order in orders {
            let (store, table) = open(&(MemPlace::new() as Arc<dyn Place>), kind);
            (0..COUNT).step_by(100).for_each(|i| change(&store, &table, i..i + 100, std::iter::empty()));
            let full = check(&store);
            assert!(full.height >= if kind == kinds()[0] { 3 } else { 2 }, "{full:?}");
            for (i, some) in order.chunks(100).enumerate() {
                change(&store, &table, std::iter::empty(), some.iter().copied());
                if i % 20 == 10 {
                    let now = check(&store);
                    // At worst those of row-compressed tables, which are merged in pairs, and to 3/4.
                    let most = now.records * full.leaves * 3 / COUNT + 3;
                    assert!(now.leaves <= most, "{kind:?}: {now:?} of {full:?}");
                }
            }
            let empty = check(&store);
            assert_eq!((empty.records, empty.leaves, empty.height), (0, 1, 1), "{kind:?}");
        }
    }
}

/// Or a table would keep the leaves of the longest values that it ever had.
#[test]
fn leaves_are_merged_when_values_become_shorter() {
    for kind in kinds() {
        let (store, table) = open(&(MemPlace::new() as Arc<dyn Place>), kind);
        change(&store, &table, 0..1000, std::iter::empty());
        let full = check(&store);
        for i in 0..1000u64 {
            let mut txn = store.begin();
            txn.put(&table, &i.to_be_bytes(), b"").expect("put");
            txn.commit().expect("commit");
        }
        let after = check(&store);
        assert!(after.leaves <= full.leaves / 2, "{kind:?}: {full:?}, then {after:?}");
    }
}
