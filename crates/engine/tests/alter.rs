//! Altering tables between plain, page-compressed and row-compressed while they are used: what they hold afterwards,
//! what snapshots see, which writers wait, power cuts and failures in the middle.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crate::rigs::{self, Flash, Rig};
use lacuna_device::{MemVfs, Vfs};
use lacuna_engine::{
    Algorithm, AlterProgress, Direction, Error, Store, StoreOptions, Table, TableKind, TableOptions, Txn,
};
use lacuna_sim::{SeededRng, SimVfs, for_each_seed};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const LZ4: TableKind = TableKind::PageCompressed { algorithm: Algorithm::Lz4, level: 0 };

fn row(key_block_size: u32) -> TableKind {
    TableKind::RowCompressed { key_block_size, algorithm: Algorithm::Zlib, level: 0 }
}

fn options(background: bool) -> StoreOptions {
    let defaults = StoreOptions::default();
    StoreOptions {
        pool_bytes: 1 << 20,
        log_bytes: 512 << 10,
        flush_threads: 2,
        lock_timeout: Duration::from_millis(300),
        background,
        ..defaults
    }
}

fn read(txn: &Txn, table: &Table) -> Model {
    let mut found = Model::new();
    let all = (Bound::Unbounded, Bound::Unbounded);
    txn.scan(table, all.0, all.1, Direction::Forward, |key, value| {
        found.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    })
    .expect("scan");
    found
}

fn go_on(_: AlterProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn value(rng: &mut SeededRng) -> Vec<u8> {
    let len = match rng.below(100) {
        0 => 40_000,
        1..4 => 3000,
        4..6 => 1000,
        _ => 3 * rng.below(60),
    };
    let mut value = vec![b'v'; len as usize];
    rng.fill(&mut value[..len as usize / 3]);
    value
}

/// A random transaction: changes, savepoints that it goes back to, loads; committed or rolled back.
fn change(store: &Store, table: &Table, model: &mut Model, rng: &mut SeededRng) -> Result<(), Error> {
    let mut txn = store.begin();
    let mut after = model.clone();
    let mut savepoint = None;
    for _ in 0..12 {
        let key = rng.below(600).to_be_bytes().to_vec();
        match rng.below(20) {
            0..5 => {
                txn.delete(table, &key)?;
                after.remove(&key);
            }
            5 => savepoint = Some((txn.savepoint()?, after.clone())),
            6 => {
                if let Some((point, then)) = savepoint.take() {
                    txn.rollback_to(point)?;
                    after = then;
                }
            }
            7 => {
                let records: Vec<_> = (0..5u8).map(|at| ([&key[..], &[at]].concat(), value(rng))).collect();
                match txn.bulk_load(table, records.clone()) {
                    Ok(_) => after.extend(records),
                    Err(Error::KeyExists) => {}
                    Err(error) => return Err(error),
                }
            }
            _ => {
                let value = value(rng);
                txn.put(table, &key, &value)?;
                after.insert(key, value);
            }
        }
    }
    if rng.chance(25) {
        return txn.rollback();
    }
    // One that fails may have been committed.
    *model = after;
    txn.commit()
}

fn filled(vfs: Arc<dyn Vfs>, options: StoreOptions, kind: TableOptions, txns: u64) -> (Store, Table, Model) {
    let store = Store::open(vfs, options).expect("open");
    let table = store.create_table("t", kind).expect("create");
    let (mut model, mut rng) = (Model::new(), SeededRng::new(1));
    (0..txns).for_each(|_| change(&store, &table, &mut model, &mut rng).expect("change"));
    (store, table, model)
}

fn files(vfs: &Arc<MemVfs>) -> Vec<String> {
    let mut names = vfs.list().expect("list");
    names.retain(|name| name.starts_with("t000000"));
    names.sort();
    names.split_off(2)
}

#[test]
fn tables_of_all_layouts_hold_the_same_in_all_others() {
    for page in [4u32, 8, 16] {
        let vfs = MemVfs::new();
        let made = TableOptions::default().page_bytes((page as usize) << 10);
        let (store, table, model) = filled(vfs.clone(), options(false), made, 60);
        let blocks: Vec<_> = [1, 2, 4, 8, 16].into_iter().filter(|block| *block <= page).map(row).collect();
        let kinds =
            blocks.iter().flat_map(|row| [*row, LZ4]).chain(blocks.iter().copied()).chain([TableKind::Plain]);
        for kind in kinds {
            let progress = store.alter_table_with("t", kind, go_on).expect("alter");
            assert!(progress.is_done);
            assert!(read(&store.begin(), &table) == model, "{kind:?} in pages of {page}K");
            let check = store.check().unwrap_or_else(|e| panic!("{kind:?} in pages of {page}K: {e}"));
            assert_eq!(check[1].records, model.len() as u64);
            let info = store.tables().expect("tables").remove(0);
            assert_eq!((info.options.kind, info.options.page_bytes), (kind, (page as usize) << 10));
            assert_eq!(files(&vfs).len(), 1, "the old file is gone");
        }
        store.close().expect("close");
        let store = Store::open(vfs, options(false)).expect("open again");
        let table = store.table("t").expect("catalog").expect("there");
        assert!(read(&store.begin(), &table) == model);
    }
}

#[test]
fn what_cannot_be_is_refused_and_leaves_the_table() {
    let vfs = MemVfs::new();
    let (store, table, model) = filled(vfs.clone(), options(false), TableOptions::default(), 20);
    for bad in [0, 3, 32, 64] {
        let refused = store.alter_table("t", row(bad));
        assert!(
            matches!(refused, Err(Error::BadOption { what: "key_block_size", .. })),
            "{bad}: {refused:?}"
        );
    }
    store.create_table("large", TableOptions::default().page_bytes(32 << 10)).expect("create");
    assert!(matches!(store.alter_table("large", row(8)), Err(Error::BadOption { .. })));
    assert!(matches!(store.alter_table("u", row(8)), Err(Error::NoSuchTable { .. })));
    // A key that blocks of 1 KiB do not take, found by the copier, or written meanwhile.
    let long_key = [7; 400];
    for beside in [false, true] {
        let put = || {
            let mut txn = store.begin();
            txn.put(&table, &long_key, b"").expect("put");
            txn.commit().expect("commit");
        };
        if !beside {
            put();
        }
        let refused = store.alter_table_with("t", row(1), |_| {
            if beside {
                put();
            }
            ControlFlow::Continue(())
        });
        assert!(matches!(refused, Err(Error::TooLarge { what: "key", .. })), "{refused:?}");
        let mut txn = store.begin();
        assert!(txn.delete(&table, &long_key).expect("delete"));
        txn.commit().expect("commit");
    }
    assert!(read(&store.begin(), &table) == model);
    assert_eq!(files(&vfs).len(), 2, "no copy is left");
    store.alter_table("t", row(1)).expect("now it can be");
    assert!(read(&store.begin(), &table) == model);
    store.check().expect("check");
}

/// Between any two leaves that are copied, and when all are, transactions of all sorts come and go.
#[test]
fn changes_beside_the_copying_are_in_the_copy() {
    for seed in 0..12 {
        let vfs = MemVfs::new();
        let made = TableOptions::default().page_bytes(4096);
        let (store, table, mut model) = filled(vfs.clone(), options(false), made, 40);
        let mut rng = SeededRng::new(seed);
        for kind in [row(2), LZ4, row(4), row(1), TableKind::Plain] {
            let progress = store
                .alter_table_with("t", kind, |_| {
                    for _ in 0..rng.below(3) {
                        change(&store, &table, &mut model, &mut rng).expect("change");
                    }
                    ControlFlow::Continue(())
                })
                .expect("alter");
            assert!(progress.is_done && progress.copied > 0);
            assert!(read(&store.begin(), &table) == model, "seed {seed}: {kind:?}");
            store.check().unwrap_or_else(|e| panic!("seed {seed}: {kind:?}: {e}"));
        }
    }
}

#[test]
fn snapshots_see_what_they_saw_and_do_not_write() {
    for background in [false, true] {
        let vfs = MemVfs::new();
        let (store, table, model) = filled(vfs.clone(), options(background), TableOptions::default(), 40);
        // One that has read the table, one that has not, and one that follows what is committed.
        let (reader, mut idle) = (store.begin(), store.begin());
        let other = store.create_table("other", TableOptions::default()).expect("create");
        let committed = store.begin_with(lacuna_engine::TransactionOptions::READ_COMMITTED);
        assert!(read(&reader, &table) == model && read(&committed, &table) == model);
        assert_eq!(idle.get(&other, b"k").expect("get"), None);
        let (mut after, mut rng) = (model.clone(), SeededRng::new(7));
        let mut middle = None;
        store
            .alter_table_with("t", row(8), |progress| {
                change(&store, &table, &mut after, &mut rng).expect("change");
                if middle.is_none() && progress.copied > 100 {
                    let txn = store.begin();
                    middle = Some((read(&txn, &table), txn));
                }
                ControlFlow::Continue(())
            })
            .expect("alter");
        let newest = store.table("t").expect("catalog").expect("there");
        for _ in 0..20 {
            change(&store, &table, &mut after, &mut rng).expect("change");
        }
        store.step().expect("step");
        let (then, mut middle) = middle.expect("there are more records");
        for handle in [&table, &newest] {
            assert!(read(&reader, handle) == model, "the snapshot of before");
            assert!(read(&idle, handle) == model, "the one that comes later");
            assert!(read(&middle, handle) == then, "that of the middle");
            assert!(read(&committed, handle) == after, "what is committed");
            assert!(read(&store.begin(), handle) == after);
        }
        assert_eq!(files(&vfs).len(), 3, "the old file is kept");
        for (key, txn) in [(b"k", &mut idle), (b"l", &mut middle)] {
            assert!(matches!(txn.put(&table, b"k", b"v"), Err(Error::Conflict)));
            assert!(matches!(txn.get_for_update(&newest, b"k"), Err(Error::Conflict)));
            txn.put(&other, key, b"v").expect("another table");
            assert!(matches!(txn.delete(&other, key), Ok(true)));
        }
        assert!(matches!(store.drop_table("t"), Err(Error::TableInUse { .. })));
        drop((reader, idle, middle, committed));
        store.check().expect("check");
        store.step().expect("step");
        assert_eq!(files(&vfs).len(), 2, "nobody needs it any more");
        store.drop_table("t").expect("drop");
        assert!(matches!(store.begin().get(&table, b"k"), Err(Error::TableDropped { .. })));
        assert!(matches!(table.estimated_count(), Err(Error::TableDropped { .. })));
    }
}

#[test]
fn a_snapshot_that_comes_late_finds_the_old_file() {
    let vfs = MemVfs::new();
    let (store, table, model) = filled(vfs.clone(), options(false), TableOptions::default(), 40);
    let other = store.create_table("other", TableOptions::default()).expect("create");
    let (late, later) = (store.begin(), store.begin());
    assert_eq!(late.get(&other, b"k").expect("get"), None);
    let mut txn = store.begin();
    txn.put(&table, b"written after the snapshot", b"").expect("put");
    txn.commit().expect("commit");
    store.alter_table("t", row(4)).expect("alter");
    assert_eq!(later.get(&other, b"k").expect("get"), None);
    store.step().expect("step");
    assert!(read(&late, &table) == model);
    let mut newer = store.begin();
    assert_eq!(newer.get(&table, b"written after the snapshot").expect("get"), Some(Vec::new()));
    newer.put(&table, b"k", b"v").expect("it may write");
    newer.commit().expect("commit");
    drop(late);
    store.step().expect("step");
    assert_eq!(files(&vfs).len(), 2, "of the other table, and of the copy");
    assert_eq!(later.get(&table, b"k").expect("get"), None);
    drop(later);
    store.check().expect("check");
}

#[test]
fn writers_that_do_not_end_are_waited_for_and_others_go_on() {
    let vfs = MemVfs::new();
    let (store, table, mut model) = filled(vfs.clone(), options(true), TableOptions::default(), 40);
    let mut writer = store.begin();
    writer.put(&table, b"key of a writer", b"1").expect("put");
    assert!(matches!(store.alter_table("t", row(8)), Err(Error::LockTimeout)));
    assert_eq!(files(&vfs).len(), 1, "no copy is left");
    let is_altered = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let altered = store.alter_table_with("t", row(8), |progress| {
                is_altered.store(progress.copied > 0, Ordering::Relaxed);
                ControlFlow::Continue(())
            });
            assert!(altered.expect("alter").is_done);
        });
        while !is_altered.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        assert!(matches!(store.alter_table("t", LZ4), Err(Error::TableInUse { .. }) | Ok(())));
        let mut rng = SeededRng::new(9);
        for _ in 0..5 {
            change(&store, &table, &mut model, &mut rng).expect("others write, too");
        }
        writer.put(&table, b"key of a writer", b"2").expect("it goes on");
        writer.commit().expect("commit");
    });
    model.insert(b"key of a writer".to_vec(), b"2".to_vec());
    assert!(read(&store.begin(), &table) == model);
    store.check().expect("check");
}

#[test]
fn it_can_be_given_up() {
    let vfs = MemVfs::new();
    let (store, table, mut model) = filled(vfs.clone(), options(false), TableOptions::default(), 40);
    let mut rng = SeededRng::new(1);
    let progress = store.alter_table_with("t", row(4), |progress| {
        assert!(progress.copied > 0 && progress.records > 0);
        assert!(matches!(store.drop_table("t"), Err(Error::TableInUse { .. })));
        assert!(matches!(store.alter_table("t", LZ4), Err(Error::TableInUse { .. })));
        assert_eq!(files(&vfs).len(), 2);
        ControlFlow::Break(())
    });
    assert!(!progress.expect("no error").is_done);
    assert_eq!(files(&vfs).len(), 1);
    change(&store, &table, &mut model, &mut rng).expect("change");
    assert!(read(&store.begin(), &table) == model);
    assert_eq!(store.tables().expect("tables")[0].options.kind, TableKind::Plain);
    store.check().expect("check");
    store.alter_table("t", row(4)).expect("again");
    assert!(read(&store.begin(), &table) == model);
}

#[test]
fn readers_and_writers_go_on_meanwhile() {
    let store = Store::open(MemVfs::new(), options(true)).expect("open");
    let tables = ["a", "b"]
        .map(|name| store.create_table(name, TableOptions::default().page_bytes(4096)).expect("create"));
    let is_done = AtomicBool::new(false);
    let models = thread::scope(|scope| {
        let writers: Vec<_> = (0..2u64)
            .map(|t| {
                let (store, table, is_done) = (&store, &tables[t as usize], &is_done);
                scope.spawn(move || {
                    let (mut model, mut rng) = (Model::new(), SeededRng::new(t));
                    while !is_done.load(Ordering::Relaxed) {
                        match change(store, table, &mut model, &mut rng) {
                            // The snapshot was older than the copy, and nothing was written.
                            Ok(()) | Err(Error::Conflict) => {}
                            Err(error) => panic!("{error}"),
                        }
                        assert!(read(&store.begin(), table) == model, "a change was lost");
                    }
                    model
                })
            })
            .collect();
        for round in 0..6 {
            for name in ["a", "b"] {
                store.alter_table(name, [row(2), LZ4, row(4)][round % 3]).expect("alter");
            }
        }
        is_done.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().expect("writer")).collect::<Vec<_>>()
    });
    for (table, model) in tables.iter().zip(models) {
        assert!(read(&store.begin(), table) == model);
    }
    store.check().expect("check");
}

#[test]
fn a_long_value_that_changes_while_it_is_copied_is_copied_again() {
    let large = StoreOptions { pool_bytes: 16 << 20, log_bytes: 16 << 20, ..options(true) };
    let store = Store::open(MemVfs::new(), large).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let put = |round: usize| {
        let mut txn = store.begin_with(lacuna_engine::TransactionOptions::READ_COMMITTED);
        txn.put(&table, b"k", &vec![round as u8; 1 << 20]).expect("put");
        txn.commit().expect("commit");
    };
    put(0);
    let mut rng = SeededRng::new(1);
    let mut took = Duration::from_millis(10);
    for round in 1..200_usize {
        let pause = took.mul_f64(rng.below(100) as f64 / 100.0);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(pause);
                put(round);
            });
            let since = std::time::Instant::now();
            store.alter_table("t", [row(8), TableKind::Plain][round % 2]).expect("alter");
            took = since.elapsed().min(Duration::from_millis(100));
        });
        let found = store.begin().get(&table, b"k").expect("get").expect("there");
        assert!(found.iter().all(|byte| *byte == round as u8), "round {round}: {}", found[0]);
    }
    store.check().expect("check");
}

#[test]
fn a_full_store_keeps_the_table_as_it_was() {
    for seed in 0..2 {
        let rig = Flash::new(seed, true);
        let small = StoreOptions { log_bytes: 256 << 10, ..options(false) };
        let store = Store::open(rig.open_vfs().expect("open"), small).expect("open");
        let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
        let (mut model, mut rng) = (Model::new(), SeededRng::new(seed));
        // Values that do not compress, until most of the store is in use.
        let mut number = 0_u32;
        loop {
            let mut txn = store.begin();
            let mut value = vec![0; 1500];
            rng.fill(&mut value);
            match txn.put(&table, &number.to_be_bytes(), &value) {
                Ok(()) => txn.commit().expect("commit"),
                Err(Error::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            model.insert(number.to_be_bytes().to_vec(), value);
            number += 1;
        }
        assert!(
            matches!(store.alter_table("t", row(4)), Err(Error::Full { .. })),
            "there is no space for two"
        );
        assert!(read(&store.begin(), &table) == model);
        // With a little space the copy runs out of it on its way.
        for key in (0..number).step_by(6) {
            let mut txn = store.begin();
            assert!(txn.delete(&table, &key.to_be_bytes()).expect("delete"));
            txn.commit().expect("commit");
            model.remove(&key.to_be_bytes()[..]);
        }
        let mut copied = 0;
        let outcome = store.alter_table_with("t", row(4), |progress| {
            copied = progress.copied;
            ControlFlow::Continue(())
        });
        assert!(matches!(outcome, Err(Error::Full { .. })), "{outcome:?} after {copied}");
        assert!(read(&store.begin(), &table) == model);
        store.check().expect("check");
        rig.check();
    }
}

/// The power is cut at some write of an alteration, among transactions.
fn cut_case(rig: &dyn Rig, seed: u64) {
    let mut rng = SeededRng::new(seed);
    let mut model = Model::new();
    let mut kind = TableKind::Plain;
    for round in 0..3 {
        let store = rigs::recover(rig, &mut rng, |vfs| Store::open(vfs, options(false)));
        let table = match store.table("t").expect("catalog") {
            Some(table) => table,
            None => store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create"),
        };
        for _ in 0..rng.below(40) {
            change(&store, &table, &mut model, &mut rng).expect("the power is on");
        }
        let new = [LZ4, TableKind::Plain, row(1), row(2), row(4)][rng.below(5) as usize];
        let ops_max = [20, 200, 600][rng.below(3) as usize];
        rig.upkeep(&mut rng);
        // In the copying, or in what follows the last leaf.
        let is_late = rng.chance(40);
        if !is_late {
            rig.set_cut_after(rng.below(ops_max));
        }
        let mut states = vec![model.clone()];
        let outcome = store.alter_table_with("t", new, |_| {
            if is_late {
                rig.set_cut_after(1 + rng.below(15));
            } else if rng.chance(50) {
                let mut after = states.last().expect("a state").clone();
                let outcome = change(&store, &table, &mut after, &mut rng);
                if outcome.is_ok() {
                    states.clear();
                }
                states.push(after);
            }
            ControlFlow::Continue(())
        });
        assert!(outcome.is_ok() || rig.is_off(), "{outcome:?}");
        drop((table, store));
        let store = rigs::recover(rig, &mut rng, |vfs| Store::open(vfs, options(false)));
        let table = store.table("t").expect("catalog").expect("there");
        let found = read(&store.begin(), &table);
        assert!(states.contains(&found), "round {round}, {outcome:?}");
        model = found;
        let now = store.tables().expect("tables")[0].options.kind;
        assert!(
            now == new || outcome.is_err() && now == kind,
            "{now:?}: {kind:?} was altered to {new:?}, {outcome:?}"
        );
        kind = now;
        store.check().unwrap_or_else(|e| panic!("round {round}: {e}"));
        rig.check();
    }
}

#[test]
fn power_cuts_during_an_alteration_on_flash_leave_the_old_table_or_the_new_one() {
    for_each_seed(60, |seed| cut_case(&Flash::new(seed, false), seed));
}

#[test]
fn power_cuts_during_an_alteration_on_a_directory_leave_the_old_table_or_the_new_one() {
    for_each_seed(60, |seed| cut_case(&SimVfs::new(seed), seed));
}
