//! Long values: chains of overflow pages under transactions, readers and damage.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use lacuna_device::{AlignedBuf, MemVfs, StreamHint, Vfs};
use lacuna_engine::{
    Algorithm, Direction, Error, Store, StoreOptions, Table, TableCheck, TableOptions, TransactionOptions,
};

const PAGE: usize = 4096;

fn options(background: bool) -> StoreOptions {
    StoreOptions { pool_bytes: 2 << 20, log_bytes: 1 << 20, background, ..StoreOptions::default() }
}

fn store_and_table(vfs: Arc<dyn Vfs>) -> (Store, Table) {
    let store = Store::open(vfs, options(false)).expect("open");
    let table = store.open_table("t", TableOptions::default().page_bytes(PAGE)).expect("table");
    (store, table)
}

fn value(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed) as u8).collect()
}

fn put(store: &Store, table: &Table, key: &[u8], value: &[u8]) {
    let mut txn = store.begin();
    txn.put(table, key, value).expect("put");
    txn.commit().expect("commit");
}

fn get(store: &Store, table: &Table, key: &[u8]) -> Option<Vec<u8>> {
    store.begin().get(table, key).expect("get")
}

/// The counts of a check of the table.
fn check(store: &Store) -> TableCheck {
    store.check().expect("check").pop().expect("a table")
}

/// Pages that a value takes, by the format.
fn pages(len: usize) -> u64 {
    len.div_ceil(PAGE - 64 - 24 - 8) as u64
}

#[test]
fn values_of_every_awkward_length_come_back() {
    let vfs = MemVfs::new();
    let (store, table) = store_and_table(vfs.clone());
    let part = PAGE - 96;
    let lengths = [1, 1024, 1025, part - 1, part, part + 1, 2 * part, 2 * part + 1, 100 << 10, 3 << 20];
    for (i, len) in lengths.into_iter().enumerate() {
        put(&store, &table, &[i as u8], &value(i, len));
    }
    let want: u64 = lengths.iter().filter(|len| **len > PAGE / 4).map(|len| pages(*len)).sum();
    assert_eq!(check(&store).overflow_pages, want);
    drop((table, store));
    let (store, table) = store_and_table(vfs);
    for (i, len) in lengths.into_iter().enumerate() {
        assert_eq!(get(&store, &table, &[i as u8]), Some(value(i, len)), "{len} bytes");
    }
    let mut found = Vec::new();
    store
        .begin()
        .scan(&table, Bound::Unbounded, Bound::Unbounded, Direction::Backward, |_, value| {
            found.push(value.len());
            ControlFlow::Continue(())
        })
        .expect("scan");
    found.reverse();
    assert_eq!(found, lengths);
}

#[test]
fn the_longest_value_fits_and_is_given_back() {
    let vfs = MemVfs::new();
    let store = Store::open(vfs, StoreOptions { background: true, ..StoreOptions::default() }).expect("open");
    let table = store.create_table("t", TableOptions::compressed(Algorithm::Lz4)).expect("create");
    let longest = value(1, 16 << 20);
    put(&store, &table, b"k", &longest);
    assert_eq!(get(&store, &table, b"k"), Some(longest));
    assert_eq!(check(&store).free_pages, 0);
    let mut txn = store.begin();
    assert!(txn.delete(&table, b"k").expect("delete"));
    txn.commit().expect("commit");
    let after = check(&store);
    assert_eq!((after.overflow_pages, after.records), (0, 0));
    assert!(after.free_pages > 1000, "{after:?}");
}

#[test]
fn old_values_stay_until_the_commit_and_no_page_is_lost() {
    let (store, table) = store_and_table(MemVfs::new());
    let (old, new) = (value(1, 50_000), value(2, 70_000));
    put(&store, &table, b"k", &old);
    let mut txn = store.begin();
    txn.put(&table, b"k", &new).expect("put");
    assert_eq!(txn.get(&table, b"k").expect("get"), Some(new.clone()));
    assert_eq!(get(&store, &table, b"k"), Some(old.clone()), "read committed");
    assert_eq!(check(&store).overflow_pages, pages(50_000) + pages(70_000));
    txn.rollback().expect("rollback");
    assert_eq!(get(&store, &table, b"k"), Some(old.clone()));
    assert_eq!(check(&store).overflow_pages, pages(50_000));

    let mut txn = store.begin();
    assert!(txn.delete(&table, b"k").expect("delete"));
    let point = txn.savepoint().expect("savepoint");
    txn.insert(&table, b"k", &new).expect("insert");
    txn.put(&table, b"k", b"short").expect("put");
    txn.put(&table, b"k", &value(3, 9000)).expect("put");
    assert_eq!(get(&store, &table, b"k"), Some(old), "read committed");
    check(&store);
    txn.rollback_to(point).expect("rollback_to");
    assert_eq!(txn.get(&table, b"k").expect("get"), None);
    txn.put(&table, b"k", &new).expect("put");
    txn.commit().expect("commit");
    assert_eq!(get(&store, &table, b"k"), Some(new));
    assert_eq!(check(&store).overflow_pages, pages(70_000));
    put(&store, &table, b"k", b"short again");
    assert_eq!(check(&store).overflow_pages, 0);
}

/// The deletion is committed but not purged when another transaction writes over it and goes back.
#[test]
fn a_long_value_deleted_by_one_and_overwritten_by_another_goes_once() {
    for commits in [false, true] {
        let vfs = MemVfs::new();
        let store = Store::open(vfs, options(true)).expect("open");
        let table = store.create_table("t", TableOptions::default().page_bytes(PAGE)).expect("create");
        for round in 0..30 {
            put(&store, &table, b"k", &value(round, 30_000));
            let mut deleter = store.begin();
            assert!(deleter.delete(&table, b"k").expect("delete"));
            deleter.commit().expect("commit");
            // The purge thread may or may not have been here.
            let mut writer = store.begin();
            writer.insert(&table, b"k", &value(round, 20_000)).expect("insert");
            if commits {
                writer.commit().expect("commit");
            } else {
                writer.rollback().expect("rollback");
            }
            let after = check(&store);
            assert_eq!(after.overflow_pages, if commits { pages(20_000) } else { 0 }, "round {round}");
        }
    }
}

#[test]
fn an_insert_of_a_key_that_is_there_leaves_nothing_behind() {
    let (store, table) = store_and_table(MemVfs::new());
    put(&store, &table, b"k", b"there");
    let mut txn = store.begin();
    assert!(matches!(txn.insert(&table, b"k", &value(1, 50_000)), Err(Error::KeyExists)));
    txn.commit().expect("commit");
    assert_eq!(check(&store).overflow_pages, 0);
}

#[test]
fn a_long_value_is_locked_while_it_is_written() {
    let (store, table) = store_and_table(MemVfs::new());
    let mut first = store.begin();
    first.put(&table, b"k", &value(1, 50_000)).expect("put");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
            txn.put(&table, b"k", &value(2, 40_000)).expect("put");
            txn.commit().expect("commit");
        });
        std::thread::yield_now();
        first.commit().expect("commit");
        waiter.join().expect("granted");
    });
    assert_eq!(get(&store, &table, b"k"), Some(value(2, 40_000)));
    assert_eq!(check(&store).overflow_pages, pages(40_000));
}

#[test]
fn readers_see_whole_values_while_writers_replace_them() {
    let store = Store::open(MemVfs::new(), options(true)).expect("open");
    let table = store.create_table("t", TableOptions::default().page_bytes(PAGE)).expect("create");
    for key in 0..4u8 {
        put(&store, &table, &[key], &[0; 20_000]);
    }
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 1..150u8 {
                for key in 0..4u8 {
                    // Freed pages are used again at once, by another value.
                    put(&store, &table, &[key], &vec![round; 20_000 + usize::from(round) * 100]);
                }
            }
        });
        while !writer.is_finished() {
            let sound = |value: &[u8]| value.iter().all(|byte| *byte == value[0]) && value.len() >= 20_000;
            assert!(sound(&get(&store, &table, &[1]).expect("there")));
            store
                .begin()
                .scan(&table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |_, value| {
                    assert!(sound(value));
                    ControlFlow::Continue(())
                })
                .expect("scan");
        }
        writer.join().expect("writer");
    });
    check(&store);
    store.close().expect("close");
}

#[test]
fn a_damaged_chain_is_an_error_and_never_wrong_data() {
    let vfs = MemVfs::new();
    let (store, table) = store_and_table(vfs.clone());
    let whole = value(1, 20_000);
    put(&store, &table, b"k", &whole);
    store.close().expect("close");
    drop(table);
    let file = vfs.open("t00000016.4k", StreamHint::Data).expect("table file");
    for page in 2..2 + pages(20_000) {
        let mut image = AlignedBuf::zeroed(PAGE);
        file.read_at(page * PAGE as u64, &mut image).expect("read");
        let sound = image.to_vec();
        // Another page of the same chain instead of it, with a valid checksum.
        for damage in [vec![0; PAGE], {
            let mut flipped = sound.clone();
            flipped[200] ^= 1;
            flipped
        }] {
            image.copy_from_slice(&damage);
            file.write_at(page * PAGE as u64, &image).expect("write");
            let (store, table) = store_and_table(vfs.clone());
            assert!(matches!(store.begin().get(&table, b"k"), Err(Error::Corrupt { .. })), "page {page}");
            assert!(matches!(store.check(), Err(Error::Corrupt { .. })), "page {page}");
            drop((table, store));
        }
        image.copy_from_slice(&sound);
        file.write_at(page * PAGE as u64, &image).expect("write");
    }
    let (store, table) = store_and_table(vfs);
    assert_eq!(get(&store, &table, b"k"), Some(whole));
}
