//! Threads on one store under shuttle, which decides at every lock, latch, atomic and request to the place who goes
//! on: at random, and by PCT, which finds what takes few but unlikely switches. A thread that nobody wakes is a
//! deadlock, which shuttle reports.
//!
//! `cargo test -p lacuna-engine --features shuttle --test shuttle`; seeds as everywhere. Pages of 64 KiB with long
//! records make undo logs of several pages, splits, merges and evictions of a few records each.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use lacuna_device::{
    BatchOp, MemPlace, Place, SimPlace,
    sim::{HookedPlace, Hooks, SeededRng as Rng, for_each_seed},
};
use lacuna_engine::{Direction, Error, Store, StoreOptions, Table, TableOptions, Txn};
use shuttle::{
    Config, FailurePersistence, Runner,
    rand::RngCore,
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
    thread,
};

/// Schedules of each scheduler for a seed. PCT learns from each how long the next may be.
const SCHEDULES: usize = 10;
/// Switches that PCT places, plus one.
const PCT_DEPTH: usize = 3;
/// Two of them fill a page of undo records, six a leaf.
const VALUE_BYTES: usize = 10_000;

/// Runs `scenario` under many schedules.
fn explore(default_cases: u64, scenario: fn()) {
    fn run(scheduler: impl Scheduler + 'static, scenario: fn()) {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config.failure_persistence = FailurePersistence::None;
        config.silence_warnings = true; // That all orderings of atomics count as the strongest.
        Runner::new(scheduler, config).run(scenario);
    }
    for_each_seed(default_cases, |seed| {
        run(RandomScheduler::new_from_seed(seed, SCHEDULES), scenario);
        run(PctScheduler::new_from_seed(seed, PCT_DEPTH, SCHEDULES), scenario);
    });
}

/// Chance that the schedule decides.
fn dice() -> Rng {
    Rng::new(shuttle::rand::thread_rng().next_u64())
}

/// Others may go on whenever the place is asked for something.
struct Yields;

impl Hooks for Yields {
    fn before_batch(&self, _ops: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        thread::yield_now();
        Ok(())
    }

    fn after_batch(&self, _ops: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        thread::yield_now();
        Ok(())
    }

    fn before_sync(&self) -> lacuna_device::Result<()> {
        thread::yield_now();
        Ok(())
    }
}

fn options() -> StoreOptions {
    StoreOptions {
        pool_bytes: 1 << 20,
        log_bytes: 1 << 20,
        flush_threads: 1,
        background: false,
        ..StoreOptions::default()
    }
}

fn open(place: &Arc<dyn Place>, options: StoreOptions) -> (Store, Table) {
    let store = Store::open(HookedPlace::new(place.clone(), Arc::new(Yields)), options).unwrap();
    let table = store.open_table("t", TableOptions::default().page_bytes(64 << 10)).unwrap();
    (store, table)
}

fn key(writer: u64, record: u64) -> Vec<u8> {
    format!("{writer}/{record:03}").into_bytes()
}

fn value(version: u64) -> Vec<u8> {
    let mut value = vec![version as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&version.to_le_bytes());
    value
}

fn version(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

fn versions(txn: &Txn, table: &Table, direction: Direction) -> Result<BTreeMap<Vec<u8>, u64>, Error> {
    let mut found = BTreeMap::new();
    txn.scan(table, Bound::Unbounded, Bound::Unbounded, direction, |key, value| {
        assert!(found.insert(key.to_vec(), version(value)).is_none(), "each record once");
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn join<T>(threads: Vec<thread::JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// The store is sound, holds `want`, and does so too when it is opened again.
fn check(store: Store, table: Table, place: &Arc<dyn Place>, want: &BTreeMap<Vec<u8>, u64>) {
    store.check().unwrap();
    assert_eq!(versions(&store.begin(), &table, Direction::Backward).unwrap(), *want);
    drop((store, table));
    let (store, table) = open(place, options());
    store.check().unwrap();
    assert_eq!(versions(&store.begin(), &table, Direction::Forward).unwrap(), *want);
}

/// Undo slots change hands while purge gives their pages back: writers that commit and roll back beside snapshots.
#[test]
fn undo_pages_have_one_owner() {
    explore(20, || {
        let place: Arc<dyn Place> = MemPlace::new();
        let (store, table) = open(&place, options());
        let writers = (0..2).map(|writer| {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let mut rng = dice();
                let mut committed = 0;
                for round in 1..=3 {
                    let mut txn = store.begin();
                    for record in 0..3 {
                        txn.put(&table, &key(writer, record), &value(round)).unwrap();
                    }
                    if rng.chance(60) {
                        txn.rollback().unwrap();
                    } else {
                        txn.commit().unwrap();
                        committed = round;
                    }
                }
                committed
            })
        });
        let writers: Vec<_> = writers.collect();
        let reader = {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                for _ in 0..3 {
                    let txn = store.begin();
                    let first = txn.get(&table, &key(0, 0)).unwrap().map(|value| version(&value));
                    let last = txn.get(&table, &key(0, 2)).unwrap().map(|value| version(&value));
                    assert_eq!(first, last, "of one transaction");
                    drop(txn);
                    store.step().unwrap();
                }
            })
        };
        let committed = join(writers);
        reader.join().unwrap();
        let all = committed.iter().zip(0..).filter(|(round, _)| **round > 0);
        let want = all.flat_map(|(round, writer)| (0..3).map(move |record| (key(writer, record), *round)));
        let want = want.collect();
        check(store, table, &place, &want);
    });
}

/// Purge has seen the log of a slot's owner when that one takes everything back, and the next owner writes a log of
/// several pages.
#[test]
fn purge_leaves_the_pages_of_the_next_owner_alone() {
    explore(30, || {
        let place: Arc<dyn Place> = MemPlace::new();
        let (store, table) = open(&place, options());
        let put_all = |txn: &mut Txn, table: &Table, version| {
            (0..4).for_each(|record| txn.put(table, &key(0, record), &value(version)).unwrap());
        };
        let mut first = store.begin();
        put_all(&mut first, &table, 0);
        first.commit().unwrap();
        // Undo records that hold the values before, in more than one page.
        let mut kept = store.begin();
        put_all(&mut kept, &table, 1);
        let view = store.begin();
        assert!(view.get(&table, b"none").unwrap().is_none());
        kept.commit().unwrap();
        let mut owner = store.begin();
        put_all(&mut owner, &table, 2);
        drop(view);
        let purge = {
            let store = store.clone();
            thread::spawn(move || {
                store.step().unwrap();
            })
        };
        owner.rollback().unwrap();
        let mut next = store.begin();
        put_all(&mut next, &table, 3);
        purge.join().unwrap();
        next.rollback().unwrap();
        let want = (0..4).map(|record| (key(0, record), 1)).collect();
        check(store, table, &place, &want);
    });
}

/// What the undo records of its history are overwritten by leads back to itself.
#[test]
fn versions_of_a_snapshot_that_was_given_up_end() {
    explore(1, || {
        let place: Arc<dyn Place> = MemPlace::new();
        let (store, table) = open(&place, StoreOptions { history_bytes: 1024, ..options() });
        let put = |key: &[u8], version| {
            let mut txn = store.begin();
            txn.put(&table, key, &[version; 50]).unwrap();
            txn.commit().unwrap();
        };
        put(b"k", 0);
        let old = store.begin();
        assert!(old.get(&table, b"k").unwrap().is_some());
        (0..40).for_each(|version| put(b"other", version));
        (0..2 + dice().below(3) as u8).for_each(|version| put(b"k", version));
        let reader = {
            let table = table.clone();
            thread::spawn(move || old.get(&table, b"k"))
        };
        assert!(store.begin().get(&table, b"k").unwrap().is_some());
        assert!(matches!(reader.join().unwrap(), Err(Error::SnapshotTooOld)));
    });
}

/// A snapshot reads what it saw first, or is told that it was given up; it never waits for ever.
#[test]
fn snapshots_that_are_given_up_fail() {
    explore(10, || {
        let place: Arc<dyn Place> = MemPlace::new();
        let (store, table) =
            open(&place, StoreOptions { history_bytes: 3 * VALUE_BYTES as u64, ..options() });
        let mut txn = store.begin();
        (0..2).for_each(|record| txn.put(&table, &key(0, record), &value(0)).unwrap());
        txn.commit().unwrap();
        let readers = (0..2).map(|_| {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let txn = store.begin();
                    let read = |record| Ok(txn.get(&table, &key(0, record))?.map(|value| version(&value)));
                    let is_over = |outcome: Result<_, Error>| match outcome {
                        Ok(version) => Some(version),
                        Err(Error::SnapshotTooOld) => None,
                        Err(error) => panic!("{error}"),
                    };
                    let Some(first) = is_over(read(0)) else { continue };
                    for _ in 0..3 {
                        let Some(again) = is_over(read(dice().below(2))) else { break };
                        assert_eq!(again, first, "of one snapshot");
                    }
                }
            })
        });
        let readers: Vec<_> = readers.collect();
        for version in 1..8 {
            let mut txn = store.begin();
            (0..2).for_each(|record| txn.put(&table, &key(0, record), &value(version)).unwrap());
            if dice().chance(30) { txn.rollback().unwrap() } else { txn.commit().unwrap() }
        }
        join(readers);
        store.check().unwrap();
    });
}

/// Splits and merges beside scans in both directions, evictions and flushes, in a pool of sixteen pages.
#[test]
fn records_stay_in_order_while_leaves_split_and_merge() {
    explore(5, || {
        let place: Arc<dyn Place> = MemPlace::new();
        let (store, table) = open(&place, options());
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
        check(store, table, &place, &want);
    });
}

/// The same keys: waits, deadlocks, savepoints that let waiters go on. Sums stay.
#[test]
fn writers_of_the_same_records_end() {
    explore(15, || {
        let place: Arc<dyn Place> = MemPlace::new();
        let (store, table) = open(&place, options());
        let mut txn = store.begin();
        (0..3).for_each(|record| txn.put(&table, &key(0, record), &value(100)).unwrap());
        txn.commit().unwrap();
        let movers = (0..3).map(|_| {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let mut rng = dice();
                for _ in 0..2 {
                    let mut txn = store.begin();
                    let (from, to) = (rng.below(3), rng.below(3));
                    let mut transfer = || {
                        let savepoint = txn.savepoint()?;
                        txn.put(&table, &key(0, rng.below(3)), &value(7))?;
                        txn.rollback_to(savepoint)?;
                        for (record, add) in [(from, u64::MAX), (to, 1)] {
                            let key = key(0, record);
                            let now = version(&txn.get_for_update(&table, &key)?.unwrap());
                            txn.put(&table, &key, &value(now.wrapping_add(add)))?;
                        }
                        Ok(())
                    };
                    match transfer() {
                        Ok(()) => txn.commit().unwrap(),
                        Err(Error::Deadlock | Error::Conflict | Error::LockTimeout) => {
                            txn.rollback().unwrap()
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        });
        join(movers.collect());
        let sum: u64 = versions(&store.begin(), &table, Direction::Forward).unwrap().values().sum();
        assert_eq!(sum, 300);
        store.check().unwrap();
    });
}

/// Whoever returns from a commit finds it after a power cut, whoever led its group.
#[test]
fn commits_that_returned_survive_a_power_cut() {
    explore(10, || {
        let medium = SimPlace::new(dice().next_u64());
        let place: Arc<dyn Place> = medium.clone();
        let (store, table) = open(&place, StoreOptions { log_bytes: 256 << 10, ..options() });
        let writers = (0..3).map(|writer| {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                for round in 1..=2 {
                    let mut txn = store.begin();
                    txn.put(&table, &key(writer, 0), &value(round)).unwrap();
                    txn.commit().unwrap();
                    if dice().chance(20) {
                        return round;
                    }
                }
                2
            })
        });
        let acknowledged = join(writers.collect());
        medium.set_cut_after(1);
        drop((store, table));
        medium.power_cycle();
        let (store, table) = open(&place, options());
        store.check().unwrap();
        for (round, writer) in acknowledged.into_iter().zip(0..) {
            let found = store.begin().get(&table, &key(writer, 0)).unwrap();
            assert_eq!(found.map(|value| version(&value)), Some(round));
        }
    });
}

/// A table is dropped while others begin to use it: they are told, or the drop is refused.
#[test]
fn a_table_is_dropped_beside_its_users() {
    explore(10, || {
        let place: Arc<dyn Place> = MemPlace::new();
        let (store, table) = open(&place, options());
        let user = {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                for round in 0..3 {
                    let mut txn = store.begin();
                    let written =
                        (0..3).try_for_each(|record| txn.put(&table, &key(0, record), &value(round)));
                    match written {
                        Ok(()) if dice().chance(50) => txn.commit().unwrap(),
                        Ok(()) => txn.rollback().unwrap(),
                        Err(Error::TableDropped { .. }) => return,
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        };
        let helper = {
            let store = store.clone();
            thread::spawn(move || {
                (0..3).for_each(|_| {
                    store.step().unwrap();
                })
            })
        };
        let is_dropped = match store.drop_table("t") {
            Ok(()) => true,
            Err(Error::TableInUse { .. }) => false,
            Err(error) => panic!("{error}"),
        };
        user.join().unwrap();
        helper.join().unwrap();
        assert_eq!(store.table("t").unwrap().is_none(), is_dropped);
        store.check().unwrap();
    });
}
