//! Threads on one store under shuttle, which decides at every lock, latch, atomic and request to the VFS which thread
//! goes on: at random, and by PCT, which finds bugs that need few but unlikely switches. A thread that is never woken
//! is a deadlock, which shuttle reports.
//!
//! `cargo test -p lacuna-engine --features shuttle --test shuttle`; seeds as everywhere. Pages of 64 KiB with long
//! records make undo logs of several pages, splits, merges and evictions of a few records each.

mod full;
mod leaves;
mod rig;

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use lacuna_device::{BatchOp, MemVfs, Vfs};
use lacuna_engine::{
    Algorithm, Direction, Durability, Error, Store, StoreOptions, Table, TableKind, TableOptions,
    TransactionOptions, Txn,
};
use lacuna_sim::{HookedVfs, Hooks, SimVfs};
use shuttle::thread;

use rig::{VALUE_BYTES, check, dice, explore, fill, join, key, open, options, value, version, versions};

/// Undo slots change hands while purge frees their pages: writers that commit and roll back beside snapshots.
#[test]
fn undo_pages_have_one_owner() {
    explore(20, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, table) = open(&vfs, options());
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
        check(store, table, &vfs, &want);
    });
}

/// One waits for a key that the other releases at a savepoint, who then waits for a key of the first.
#[test]
fn no_cycle_goes_through_a_lock_that_was_released() {
    explore(60, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, table) = open(&vfs, options());
        let first = {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
                txn.put(&table, &key(0, 0), &value(1)).unwrap();
                txn.put(&table, &key(0, 1), &value(1)).unwrap();
                txn.commit().unwrap();
            })
        };
        let second = {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
                txn.put(&table, &key(0, 2), &value(2)).unwrap();
                let savepoint = txn.savepoint().unwrap();
                txn.put(&table, &key(0, 1), &value(2)).unwrap();
                txn.rollback_to(savepoint).unwrap();
                // Whoever of both waits, the other one goes on.
                txn.put(&table, &key(0, 0), &value(2)).unwrap();
                txn.commit().unwrap();
            })
        };
        first.join().unwrap();
        second.join().unwrap();
        store.check().unwrap();
    });
}

/// The other waits for a key that is still held, from before the savepoint.
#[test]
fn a_cycle_beside_a_released_lock_is_found() {
    explore(400, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, table) = open(&vfs, options());
        let end = |mut txn: Txn, table: &Table, last: u64| match txn.put(table, &key(0, last), &value(1)) {
            Ok(()) => txn.commit().unwrap(),
            Err(Error::Deadlock) => txn.rollback().unwrap(),
            Err(error) => panic!("{error}"),
        };
        let first = {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
                txn.put(&table, &key(0, 0), &value(1)).unwrap();
                end(txn, &table, 2);
            })
        };
        let second = {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
                txn.put(&table, &key(0, 2), &value(2)).unwrap();
                let savepoint = txn.savepoint().unwrap();
                txn.put(&table, &key(0, 1), &value(2)).unwrap();
                txn.rollback_to(savepoint).unwrap();
                end(txn, &table, 0);
            })
        };
        first.join().unwrap();
        second.join().unwrap();
        store.check().unwrap();
    });
}

/// Purge has seen the log of a slot's owner when that one rolls back, and the next owner writes a log of several pages.
#[test]
fn purge_leaves_the_pages_of_the_next_owner_alone() {
    explore(100, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, table) = open(&vfs, options());
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
        let mut other = store.begin();
        other.put(&table, &key(1, 0), &value(0)).unwrap();
        drop(view);
        let purge = {
            let store = store.clone();
            thread::spawn(move || {
                store.step().unwrap();
            })
        };
        owner.rollback().unwrap();
        // In between, so that the next owner does not get the pages of the one before in the same order.
        (1..8).for_each(|version| other.put(&table, &key(1, 0), &value(version)).unwrap());
        let mut next = store.begin();
        put_all(&mut next, &table, 3);
        purge.join().unwrap();
        next.rollback().unwrap();
        other.rollback().unwrap();
        let want = (0..4).map(|record| (key(0, record), 1)).collect();
        check(store, table, &vfs, &want);
    });
}

/// Purge finds no view open; then one is opened, and a writer that it does not see commits.
#[test]
fn a_view_opened_while_purge_begins_keeps_its_history() {
    explore(150, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, table) = open(&vfs, options());
        fill(&store, &table, 4, 1);
        // It has no view of its own: its deletion and its new value belong to the one opened meanwhile.
        let mut writer = store.begin_with(TransactionOptions::READ_COMMITTED);
        assert!(writer.delete(&table, &key(0, 1)).unwrap());
        writer.put(&table, &key(0, 2), &value(2)).unwrap();
        let purge = {
            let store = store.clone();
            thread::spawn(move || {
                store.step().unwrap();
            })
        };
        let reader = store.begin();
        let first = versions(&reader, &table, Direction::Forward).unwrap();
        writer.commit().unwrap();
        purge.join().unwrap();
        assert_eq!(versions(&reader, &table, Direction::Backward).unwrap(), first);
        drop(reader);
        let want = [(0, 1), (2, 2), (3, 1)].map(|(record, version)| (key(0, record), version));
        check(store, table, &vfs, &want.into());
    });
}

/// A store is dropped while a transaction commits: what the commit returns is what the next opening finds.
#[test]
fn a_commit_beside_the_end_of_the_store_says_what_became_of_it() {
    explore(20, || {
        for durability in [Durability::Sync, Durability::Relaxed] {
            let vfs: Arc<dyn Vfs> = MemVfs::new();
            let options = StoreOptions { durability, ..options() };
            let (store, table) = open(&vfs, options.clone());
            fill(&store, &table, 1, 1);
            let mut txn = store.begin();
            txn.put(&table, &key(0, 1), &value(2)).unwrap();
            drop(table);
            let closes = dice().chance(50);
            let ender = thread::spawn(move || if closes { store.close().unwrap() } else { drop(store) });
            let outcome = txn.commit();
            ender.join().unwrap();
            let (store, table) = open(&vfs, options);
            let is_there = store.begin().get(&table, &key(0, 1)).unwrap().is_some();
            match outcome {
                Ok(()) => assert!(is_there || durability == Durability::Relaxed, "acknowledged, and lost"),
                Err(Error::Closed) => assert!(!is_there, "refused, and there"),
                Err(Error::Poisoned { reason }) if reason.contains("on its way") => {} // either
                Err(error) => panic!("{error}"),
            }
        }
    });
}

/// A rebuild gives the table another file: it is there at each moment all the same.
#[test]
fn a_table_is_there_while_it_is_rebuilt() {
    explore(10, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let store = Store::open(vfs, options()).unwrap();
        let table = store.create_table("t", TableOptions::default()).unwrap();
        let mut txn = store.begin();
        txn.put(&table, b"key", b"value").unwrap();
        txn.commit().unwrap();
        let rebuild = {
            let store = store.clone();
            thread::spawn(move || {
                let kind =
                    TableKind::RowCompressed { key_block_size: 8, algorithm: Algorithm::Zlib, level: 0 };
                store.alter_table("t", kind).unwrap();
            })
        };
        let looks = {
            let store = store.clone();
            thread::spawn(move || {
                for _ in 0..4 {
                    assert!(store.table("t").unwrap().is_some());
                    assert_eq!(store.tables().unwrap().len(), 1);
                    assert!(table.estimated_count().unwrap() > 0);
                }
            })
        };
        rebuild.join().unwrap();
        looks.join().unwrap();
    });
}

/// The undo records of its history are overwritten by ones that lead back to themselves.
#[test]
fn versions_of_a_snapshot_that_was_given_up_end() {
    explore(1, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, table) = open(&vfs, StoreOptions { history_bytes: 1024, ..options() });
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

/// A snapshot reads what it saw first, or gets the error that it was revoked; it never waits for ever.
#[test]
fn snapshots_that_are_given_up_fail() {
    explore(10, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, table) = open(&vfs, StoreOptions { history_bytes: 3 * VALUE_BYTES as u64, ..options() });
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

/// The same keys: waits, deadlocks, savepoints that let waiters go on. The sums must not change.
#[test]
fn writers_of_the_same_records_end() {
    explore(15, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, table) = open(&vfs, options());
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

/// A commit that returned survives a power cut, whichever thread led its group.
#[test]
fn commits_that_returned_survive_a_power_cut() {
    explore(10, || {
        let medium = SimVfs::new(dice().next_u64());
        let vfs: Arc<dyn Vfs> = medium.clone();
        let (store, table) = open(&vfs, StoreOptions { log_bytes: 256 << 10, ..options() });
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
        let (store, table) = open(&vfs, options());
        store.check().unwrap();
        for (round, writer) in acknowledged.into_iter().zip(0..) {
            let found = store.begin().get(&table, &key(writer, 0)).unwrap();
            assert_eq!(found.map(|value| version(&value)), Some(round));
        }
    });
}

/// A table is dropped while others begin to use it: they get an error, or the drop is refused.
#[test]
fn a_table_is_dropped_beside_its_users() {
    explore(10, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let (store, table) = open(&vfs, options());
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

/// Panics in the n-th batch or sync.
struct Fuse {
    left: AtomicU64,
}

impl Fuse {
    fn burn(&self) {
        thread::yield_now();
        if self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) == Ok(1) {
            panic!("the test's fuse");
        }
    }
}

impl Hooks for Fuse {
    fn before_batch(&self, _ops: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        self.burn();
        Ok(())
    }

    fn before_sync(&self) -> lacuna_device::Result<()> {
        self.burn();
        Ok(())
    }
}

/// One thread panics, in a write or a sync, while others wait for its locks, its group of commits and its latches: each
/// of them is woken with an error, and every acknowledged commit is there afterwards.
#[test]
fn a_panic_wakes_everybody() {
    explore(10, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let fuse = Arc::new(Fuse { left: AtomicU64::new(0) });
        let store = Store::open(HookedVfs::new(vfs.clone(), fuse.clone()), options()).unwrap();
        let table = store.open_table("t", TableOptions::default().page_bytes(64 << 10)).unwrap();
        fill(&store, &table, 3, 1);
        fuse.left.store(1 + dice().below(8), SeqCst);
        let work = |writer: u64| {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let mut acknowledged = 0;
                let run = || -> Result<(), Error> {
                    for round in 1..=3 {
                        let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
                        // All want the first record.
                        txn.put(&table, &key(0, 0), &value(10 * writer + round))?;
                        txn.put(&table, &key(writer, 0), &value(round))?;
                        txn.commit()?;
                        acknowledged = round;
                        if dice().chance(50) {
                            store.checkpoint()?;
                        }
                    }
                    Ok(())
                };
                match catch_unwind(AssertUnwindSafe(run)) {
                    Ok(Ok(())) | Err(_) => {}
                    Ok(Err(Error::Poisoned { reason })) => assert!(reason.contains("panic"), "{reason}"),
                    Ok(Err(error)) => panic!("not told of the panic: {error}"),
                }
                acknowledged
            })
        };
        let acknowledged = join((1..=3).map(work).collect());
        drop((store, table));
        let (store, table) = open(&vfs, options());
        store.check().unwrap();
        for (round, writer) in acknowledged.into_iter().zip(1..) {
            let found = store.begin().get(&table, &key(writer, 0)).unwrap();
            assert!(found.map_or(0, |value| version(&value)) >= round, "an acknowledged commit");
        }
    });
}
