//! Scans whose next leaves are read in the background.

use std::ops::{Bound, ControlFlow};

use lacuna_device::MemVfs;
use lacuna_engine::{Algorithm, Direction, Store, StoreOptions, Table, TableOptions};

const RECORDS: u32 = 10_000;

fn store(background: bool) -> (Store, Table) {
    let options = StoreOptions { pool_bytes: 1 << 20, background, ..StoreOptions::default() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = TableOptions::compressed(Algorithm::Lz4).page_bytes(4096);
    let table = store.open_table("t", table).expect("table");
    for part in 0..RECORDS / 1000 {
        let mut txn = store.begin();
        for key in part * 1000..(part + 1) * 1000 {
            txn.put(&table, &key.to_be_bytes(), &[key as u8; 200]).expect("put");
        }
        txn.commit().expect("commit");
        if !background {
            while store.step().expect("step") {}
        }
    }
    store.checkpoint().expect("checkpoint");
    (store, table)
}

/// Scans `count` records from the first or last on, calling `between` now and then; returns how many came in order.
fn scan(store: &Store, table: &Table, direction: Direction, count: u32, between: impl Fn()) -> u32 {
    let mut seen = 0;
    let each = |key: &[u8], value: &[u8]| {
        let number = match direction {
            Direction::Forward => seen,
            Direction::Backward => RECORDS - 1 - seen,
        };
        assert_eq!((key, value), (&number.to_be_bytes()[..], &[number as u8; 200][..]));
        seen += 1;
        if seen % 8 == 0 {
            between();
        }
        if seen < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    store.begin().scan(table, Bound::Unbounded, Bound::Unbounded, direction, each).expect("scan");
    seen
}

#[test]
fn long_scans_find_their_leaves_in_memory() {
    let (store, table) = store(false);
    for direction in [Direction::Forward, Direction::Backward] {
        let before = store.stats().expect("stats").pool;
        let step = || assert!(!store.step().expect("step"), "nothing is dirty");
        assert_eq!(scan(&store, &table, direction, RECORDS, step), RECORDS);
        let after = store.stats().expect("stats").pool;
        let (ahead, misses) = (after.read_ahead - before.read_ahead, after.misses - before.misses);
        assert!(ahead > 200 && misses * 4 < ahead, "{direction:?}: {ahead} ahead, {misses} missed");
    }
}

#[test]
fn short_scans_read_nothing_ahead() {
    let (store, table) = store(false);
    let step = || assert!(!store.step().expect("step"), "nothing is dirty");
    // Two leaves.
    assert_eq!(scan(&store, &table, Direction::Forward, 30, step), 30);
    assert_eq!(store.stats().expect("stats").pool.read_ahead, 0);
}

#[test]
fn scans_and_a_drop_get_along_with_the_thread() {
    let (store, table) = store(true);
    for _ in 0..3 {
        for direction in [Direction::Forward, Direction::Backward] {
            assert_eq!(scan(&store, &table, direction, RECORDS, || ()), RECORDS);
        }
    }
    assert_eq!(scan(&store, &table, Direction::Forward, RECORDS / 2, || ()), RECORDS / 2);
    drop(table);
    store.drop_table("t").expect("drop");
    store.check().expect("check");
    store.close().expect("close");
}
