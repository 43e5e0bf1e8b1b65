//! Leaves that split, merge and become holes beside threads that read, write and flush.

use super::*;

/// Records of the merges' scenarios: so many leaves' worth, and every fifth of them is left alone.
const LEFT_ALONE: u64 = 5;

fn is_left_alone(record: u64) -> bool {
    record.is_multiple_of(LEFT_ALONE)
}

/// Splits and merges beside scans in both directions, evictions and flushes, in a pool of sixteen pages.
#[test]
fn records_stay_in_order_while_leaves_split_and_merge() {
    explore(5, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, table) = open(&vfs, options());
        let writers = (0..2).map(|writer| {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let mut want = BTreeMap::new();
                for round in 0..6 {
                    let mut txn = store.begin();
                    for record in 4 * round..4 * round + 4 {
                        txn.put(&table, &key(writer, record), &value(round)).unwrap();
                        want.insert(key(writer, record), round);
                    }
                    if round >= 2 {
                        for record in 4 * (round - 2)..4 * (round - 2) + 4 {
                            assert!(txn.delete(&table, &key(writer, record)).unwrap());
                            want.remove(&key(writer, record));
                        }
                    }
                    txn.commit().unwrap();
                }
                want
            })
        });
        let writers: Vec<_> = writers.collect();
        let helper = {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                for _ in 0..4 {
                    let txn = store.begin();
                    let there = versions(&txn, &table, Direction::Forward).unwrap();
                    assert_eq!(versions(&txn, &table, Direction::Backward).unwrap(), there);
                    assert!(there.len().is_multiple_of(4), "whole transactions");
                    drop(txn);
                    if dice().chance(50) {
                        store.checkpoint().unwrap()
                    } else {
                        store.step().unwrap();
                    }
                }
            })
        };
        let want = join(writers).into_iter().flatten().collect();
        helper.join().unwrap();
        check(store, table, &vfs, &want);
    });
}

/// Empties and thins out leaves in an order that the schedule chooses: in whole leaves from either end, or here and
/// there, by deletion or by shorter values.
fn thin_out(store: &Store, table: &Table, records: std::ops::Range<u64>) -> BTreeMap<Vec<u8>, u64> {
    let mut rng = dice();
    let mut records: Vec<u64> = records.filter(|record| !is_left_alone(*record)).collect();
    match rng.below(3) {
        0 => {}
        1 => records.reverse(),
        _ => records.sort_by_cached_key(|_| rng.next_u64()),
    }
    let mut left = BTreeMap::new();
    for some in records.chunks(4) {
        let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
        for record in some {
            if rng.chance(60) {
                assert!(txn.delete(table, &key(0, *record)).unwrap());
            } else {
                txn.put(table, &key(0, *record), &value(9)[..100]).unwrap();
                left.insert(key(0, *record), 9);
            }
        }
        txn.commit().unwrap();
    }
    left
}

/// Leaves become empty, two become one and three become two, while others look for records and scan in both
/// directions: each of them finds every untouched record, once and in order, and a snapshot sees what it saw first.
#[test]
fn nothing_is_missed_while_leaves_merge() {
    explore(3, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, table) = open(&vfs, options());
        fill(&store, &table, 26, 1);
        let thinners = [0..13, 13..26].map(|records| {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || thin_out(&store, &table, records))
        });
        let purge = {
            let store = store.clone();
            thread::spawn(move || {
                for _ in 0..4 {
                    store.step().unwrap();
                    thread::yield_now();
                }
            })
        };
        let readers = [Direction::Forward, Direction::Backward].map(|direction| {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let snapshot = dice().chance(50).then(|| store.begin());
                let seen = snapshot.as_ref().map(|txn| versions(txn, &table, direction).unwrap());
                for _ in 0..3 {
                    let txn = store.begin_with(TransactionOptions::READ_COMMITTED);
                    let found = versions(&txn, &table, direction).unwrap();
                    for record in (0..26).filter(|record| is_left_alone(*record)) {
                        assert_eq!(found.get(&key(0, record)), Some(&1), "{record}, {direction:?}");
                    }
                    let one = key(0, LEFT_ALONE * dice().below(6));
                    assert!(txn.get(&table, &one).unwrap().is_some_and(|value| version(&value) == 1));
                }
                if let (Some(txn), Some(seen)) = (snapshot, seen) {
                    let other = [Direction::Backward, Direction::Forward][direction as usize];
                    assert_eq!(versions(&txn, &table, other).unwrap(), seen);
                }
            })
        });
        let mut want: BTreeMap<_, _> = join(thinners.into()).into_iter().flatten().collect();
        purge.join().unwrap();
        join(readers.into());
        want.extend((0..26).filter(|record| is_left_alone(*record)).map(|record| (key(0, record), 1)));
        store.step().unwrap();
        let leaves = store.check().unwrap()[1].leaves;
        assert!(leaves <= 3, "{leaves} leaves for six long records and some short ones");
        check(store, table, &vfs, &want);
    });
}

/// A cursor stays open while the leaves around it merge: its transaction deletes what it stands on, or another one all
/// around.
#[test]
fn cursors_stay_open_while_leaves_merge() {
    explore(3, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, table) = open(&vfs, options());
        fill(&store, &table, 20, 1);
        let thinner = {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let left = thin_out(&store, &table, 0..20);
                store.step().unwrap();
                left
            })
        };
        let walkers = [true, false].map(|is_snapshot| {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let txn = match is_snapshot {
                    true => store.begin(),
                    false => store.begin_with(TransactionOptions::READ_COMMITTED),
                };
                let seen = versions(&txn, &table, Direction::Forward).unwrap();
                let mut cursor = table.cursor();
                for is_backward in [false, true, false] {
                    let mut found = Vec::new();
                    while let Some(record) = match is_backward {
                        false => cursor.next(&txn).unwrap(),
                        true => cursor.prev(&txn).unwrap(),
                    } {
                        found.push(record.key().to_vec());
                        if dice().chance(20) {
                            // It copied some records; from here on it reads again.
                            let again = cursor.seek(&txn, record.key()).unwrap();
                            let is_there = again.is_some_and(|again| again.key() == record.key());
                            assert!(is_there || !is_snapshot);
                            if !is_there {
                                break;
                            }
                        }
                    }
                    let sorted = found.is_sorted_by(|a, b| if is_backward { a > b } else { a < b });
                    assert!(sorted, "each record once, in order");
                    if is_snapshot {
                        found.sort();
                        assert!(found.iter().eq(seen.keys()), "all of the snapshot");
                    }
                }
            })
        });
        let mut want = thinner.join().unwrap();
        join(walkers.into());
        // And one that deletes all under itself.
        let mut txn = store.begin();
        let mut cursor = table.cursor();
        let untouched = (0..20).filter(|record| is_left_alone(*record)).map(|record| (key(0, record), 1));
        want.extend(untouched);
        for (key, _) in want {
            assert_eq!(cursor.next(&txn).unwrap().unwrap().key(), key);
            assert!(txn.delete(&table, &key).unwrap());
        }
        assert!(cursor.next(&txn).unwrap().is_none());
        txn.commit().unwrap();
        drop(cursor);
        store.step().unwrap();
        assert_eq!(store.check().unwrap()[1].leaves, 1);
        check(store, table, &vfs, &BTreeMap::new());
    });
}

/// A leaf is split for a record at either of its ends, which is then refused: its key was locked in between.
#[test]
fn a_record_that_is_refused_leaves_no_empty_leaf() {
    explore(20, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, table) = open(&vfs, StoreOptions { lock_timeout: Duration::ZERO, ..options() });
        let is_descending = dice().chance(50);
        // So many that the leaf at that end is full.
        let count = if is_descending { 15 } else { 18 };
        let mut records: Vec<u64> = (1..=count).collect();
        if is_descending {
            records.reverse();
        }
        for record in records {
            let mut txn = store.begin();
            txn.put(&table, &key(0, record), &value(1)).unwrap();
            txn.commit().unwrap();
        }
        let leaves = store.check().unwrap()[1].leaves;
        let next = key(0, if is_descending { 0 } else { count + 1 });
        let writer = {
            let (store, table, next) = (store.clone(), table.clone(), next.clone());
            thread::spawn(move || {
                let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
                match txn.put(&table, &next, &value(1)) {
                    Ok(()) | Err(Error::LockTimeout) => txn.rollback().unwrap(),
                    Err(error) => panic!("{error}"),
                }
            })
        };
        let mut locker = store.begin_with(TransactionOptions::READ_COMMITTED);
        match locker.get_for_update(&table, &next) {
            Ok(found) => assert!(found.is_none()),
            Err(error) => assert!(matches!(error, Error::LockTimeout), "{error}"),
        }
        writer.join().unwrap();
        locker.rollback().unwrap();
        assert_eq!(store.check().unwrap()[1].leaves, leaves, "descending: {is_descending}");
        check(store, table, &vfs, &(1..=count).map(|record| (key(0, record), 1)).collect());
    });
}

/// Long values in a table of small pages are deleted, so that their pages become holes and the file is truncated, while
/// others allocate, flush and read.
#[test]
fn holes_and_cuts_spare_what_is_allocated_meanwhile() {
    const LONG_BYTES: usize = 90_000;
    fn long(version: u64) -> Vec<u8> {
        let mut long = value(version);
        long.resize(LONG_BYTES, version as u8);
        long
    }
    explore(2, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, other) = open(&vfs, options());
        let table = store.create_table("long", TableOptions::default().page_bytes(4096)).unwrap();
        let mut txn = store.begin();
        (0..3).for_each(|record| txn.put(&table, &key(0, record), &long(record)).unwrap());
        txn.commit().unwrap();
        store.checkpoint().unwrap();
        let mut txn = store.begin();
        (1..3).for_each(|record| assert!(txn.delete(&table, &key(0, record)).unwrap()));
        txn.commit().unwrap();
        let cutter = {
            let store = store.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    store.step().unwrap();
                    store.checkpoint().unwrap();
                }
            })
        };
        let writers = (1..3).map(|writer| {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let mut want = BTreeMap::new();
                for round in 0..2 {
                    let mut txn = store.begin();
                    txn.put(&table, &key(writer, round), &long(10 * writer + round)).unwrap();
                    if dice().chance(30) {
                        txn.rollback().unwrap();
                        continue;
                    }
                    txn.commit().unwrap();
                    want.insert(key(writer, round), 10 * writer + round);
                    if dice().chance(50) {
                        store.checkpoint().unwrap();
                    }
                    let found = store.begin().get(&table, &key(writer, round)).unwrap();
                    assert!(found == Some(long(10 * writer + round)));
                    if dice().chance(30) {
                        let mut txn = store.begin();
                        assert!(txn.delete(&table, &key(writer, round)).unwrap());
                        txn.commit().unwrap();
                        want.remove(&key(writer, round));
                    }
                }
                want
            })
        });
        let mut want: BTreeMap<_, _> = join(writers.collect()).into_iter().flatten().collect();
        cutter.join().unwrap();
        want.insert(key(0, 0), 0);
        store.check().unwrap();
        drop((store, table, other));
        let (store, _) = open(&vfs, options());
        let table = store.table("long").unwrap().unwrap();
        store.check().unwrap();
        let txn = store.begin();
        assert_eq!(versions(&txn, &table, Direction::Forward).unwrap(), want);
        for (key, version) in want {
            assert!(txn.get(&table, &key).unwrap() == Some(long(version)));
        }
    });
}
