//! Optimizing a table: the form of its pages, its space, readers and writers beside it, power cuts and failures in the
//! middle.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, ControlFlow},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::rigs::{self, Flash, Rig};
use lacuna_device::{BatchOp, MemVfs, Vfs};
use lacuna_engine::{
    Algorithm, Direction, Error, OptimizeProgress, Store, StoreOptions, Table, TableKind, TableOptions,
};
use lacuna_sim::{HookedVfs, Hooks, SeededRng, SimVfs, for_each_seed};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const PLAIN: TableKind = TableKind::Plain;
const LZ4: TableKind = TableKind::PageCompressed { algorithm: Algorithm::Lz4, level: 0 };
const ZSTD: TableKind = TableKind::PageCompressed { algorithm: Algorithm::Zstd, level: 1 };
const ZSTD_9: TableKind = TableKind::PageCompressed { algorithm: Algorithm::Zstd, level: 9 };

fn options(background: bool) -> StoreOptions {
    let defaults = StoreOptions::default();
    StoreOptions { pool_bytes: 1 << 20, log_bytes: 512 << 10, flush_threads: 2, background, ..defaults }
}

fn read(store: &Store, table: &Table) -> Model {
    let mut found = Model::new();
    let all = (Bound::Unbounded, Bound::Unbounded);
    store
        .begin()
        .scan(table, all.0, all.1, Direction::Forward, |key, value| {
            found.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        })
        .expect("scan");
    found
}

fn go_on(_: OptimizeProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Random transactions; values compress to about a third.
fn change(
    store: &Store,
    table: &Table,
    model: &mut Model,
    rng: &mut SeededRng,
    txns: u64,
) -> Result<(), Error> {
    for _ in 0..txns {
        let mut txn = store.begin();
        let mut after = model.clone();
        for _ in 0..20 {
            let key = rng.below(2000).to_be_bytes().to_vec();
            if rng.chance(20) {
                txn.delete(table, &key)?;
                after.remove(&key);
            } else {
                let len = if rng.chance(2) { 9000 } else { 3 * rng.below(150) };
                let mut value = vec![b'v'; len as usize];
                rng.fill(&mut value[..len as usize / 3]);
                txn.put(table, &key, &value)?;
                after.insert(key, value);
            }
        }
        txn.commit()?;
        *model = after;
    }
    Ok(())
}

fn allocated_bytes(store: &Store) -> u64 {
    store.tables().expect("tables")[0].allocated_bytes
}

#[test]
fn every_page_takes_the_form_asked_for_and_is_then_left_alone() {
    for background in [false, true] {
        let vfs = MemVfs::new();
        let mut store = Store::open(vfs.clone(), options(background)).expect("open");
        let mut table = store.create_table("t", TableOptions::default()).expect("create");
        let (mut model, mut rng) = (Model::new(), SeededRng::new(1));
        change(&store, &table, &mut model, &mut rng, 300).expect("change");
        // Purges first: a page that changes beside the optimizing is written by the next flush, in its own way.
        store.check().expect("check");
        store.checkpoint().expect("checkpoint");
        let plain_bytes = allocated_bytes(&store);
        let mut bytes = Vec::new();
        for kind in [LZ4, ZSTD, ZSTD_9, PLAIN] {
            store.alter_table("t", kind).expect("alter");
            let outcome = store.optimize("t", go_on).expect("optimize");
            // In the background flushes may have written some of them so before.
            assert!(outcome.rewritten > outcome.pages / 3 && outcome.done == outcome.pages, "{outcome:?}");
            bytes.push(allocated_bytes(&store));
            // The pool is small: in the background a few of the pages that are being rewritten may be flushed before,
            // and a flush compresses less.
            let again = store.optimize("t", go_on).expect("again").rewritten;
            assert!(
                again == 0 || background && again < outcome.pages / 2,
                "{kind:?}: {again} of {outcome:?}"
            );
            assert_eq!(store.optimize("t", go_on).expect("again").rewritten, 0, "{kind:?}");
            drop(table);
            store.close().expect("close");
            store = Store::open(vfs.clone(), options(background)).expect("open");
            table = store.table("t").expect("catalog").expect("there");
            assert_eq!(store.optimize("t", go_on).expect("again").rewritten, 0, "{kind:?}, opened again");
            assert!(read(&store, &table) == model, "{kind:?}");
            store.check().expect("check");
        }
        assert!(bytes[0] < plain_bytes / 10 * 7 && bytes[1] < bytes[0], "{plain_bytes}, then {bytes:?}");
        assert_eq!(bytes[3], plain_bytes, "plain again");
    }
}

#[test]
fn it_can_be_given_up_and_taken_up_again() {
    let store = Store::open(MemVfs::new(), options(false)).expect("open");
    let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
    let (mut model, mut rng) = (Model::new(), SeededRng::new(1));
    change(&store, &table, &mut model, &mut rng, 100).expect("change");
    store.checkpoint().expect("checkpoint");
    store.alter_table("t", LZ4).expect("alter");
    let mut last = OptimizeProgress::default();
    let first = store.optimize("t", |progress| {
        assert!(progress.done > last.done && progress.pages >= progress.done);
        // It uses the table like a transaction.
        assert!(matches!(store.drop_table("t"), Err(Error::TableInUse { .. })));
        last = progress;
        ControlFlow::Break(())
    });
    let first = first.expect("optimize");
    assert!(first == last && first.done < first.pages, "{first:?}");
    let second = store.optimize("t", go_on).expect("optimize");
    assert!(second.rewritten > 0 && second.done == second.pages);
    assert_eq!(store.optimize("t", go_on).expect("optimize").rewritten, 0);
    assert!(read(&store, &table) == model);
    assert!(matches!(store.optimize("u", go_on), Err(Error::NoSuchTable { .. })));
}

#[test]
fn blocks_of_row_compressed_tables_are_compressed_anew() {
    let vfs = MemVfs::new();
    let store = Store::open(vfs.clone(), options(false)).expect("open");
    let table = store.create_table("t", TableOptions::row_compressed(8)).expect("create");
    let (mut model, mut rng) = (Model::new(), SeededRng::new(1));
    change(&store, &table, &mut model, &mut rng, 100).expect("change");
    store
        .alter_table("t", TableKind::RowCompressed { key_block_size: 8, algorithm: Algorithm::Lz4, level: 9 })
        .expect("alter");
    let outcome = store.optimize("t", go_on).expect("optimize");
    assert!(outcome.rewritten > outcome.pages / 2, "{outcome:?}");
    assert!(read(&store, &table) == model);
    store.check().expect("check");
    drop((table, store));
    let store = Store::open(vfs, options(false)).expect("recover");
    let table = store.table("t").expect("catalog").expect("there");
    assert!(read(&store, &table) == model);
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
                        change(store, table, &mut model, &mut rng, 10).expect("change");
                        assert!(read(store, table) == model, "a change was lost");
                    }
                    model
                })
            })
            .collect();
        for round in 0..12 {
            let kind = [LZ4, PLAIN, ZSTD][round % 3];
            for name in ["a", "b"] {
                store.alter_table(name, kind).expect("alter");
                let outcome = store.optimize(name, go_on).expect("optimize");
                assert_eq!(outcome.done, outcome.pages);
            }
        }
        is_done.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().expect("writer")).collect::<Vec<_>>()
    });
    for (table, model) in tables.iter().zip(models) {
        assert!(read(&store, table) == model);
    }
    store.check().expect("check");
}

/// Which threads write pages.
#[derive(Default)]
struct Noted(Mutex<BTreeSet<String>>);

impl Hooks for Noted {
    fn before_batch(&self, _: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        self.0.lock().unwrap().insert(thread::current().name().unwrap_or_default().to_owned());
        Ok(())
    }
}

/// Pages are compressed by the threads that write them: the store's own, never its caller's.
#[test]
fn callers_write_no_pages() {
    let noted = Arc::new(Noted::default());
    let vfs = HookedVfs::new(MemVfs::new(), noted.clone());
    let store = Store::open(vfs, options(true)).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let (mut model, mut rng) = (Model::new(), SeededRng::new(1));
    change(&store, &table, &mut model, &mut rng, 100).expect("change");
    store.checkpoint().expect("checkpoint");
    store.alter_table("t", LZ4).expect("alter");
    assert!(store.optimize("t", go_on).expect("optimize").rewritten > 0);
    let writers: Vec<String> = noted.0.lock().unwrap().iter().cloned().collect();
    assert_eq!(writers, ["lacuna-write"]);
    store.close().expect("close");
}

fn recover(rig: &dyn Rig, rng: &mut SeededRng) -> Store {
    rigs::recover(rig, rng, |vfs| Store::open(vfs, options(false)))
}

/// The power is cut at some write of an optimization, among changes that are not flushed.
fn cut_case(rig: &dyn Rig, seed: u64) {
    let mut rng = SeededRng::new(seed);
    let mut model = Model::new();
    for round in 0..3 {
        let store = recover(rig, &mut rng);
        let table = match store.table("t").expect("catalog") {
            Some(altered) => altered,
            None => store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create"),
        };
        assert!(read(&store, &table) == model, "round {round}");
        let txns = rng.below(40);
        change(&store, &table, &mut model, &mut rng, txns).expect("the power is on");
        if rng.chance(50) {
            store.checkpoint().expect("the power is on");
            change(&store, &table, &mut model, &mut rng, 2).expect("the power is on");
        }
        let kind = [LZ4, PLAIN, ZSTD_9][rng.below(3) as usize];
        store.alter_table("t", kind).expect("the power is on");
        rig.upkeep(&mut rng);
        rig.set_cut_after(rng.below(40));
        let outcome = store.optimize("t", go_on);
        assert!(outcome.is_ok() || rig.is_off(), "{outcome:?}");
        drop((table, store));
        let store = recover(rig, &mut rng);
        let table = store.table("t").expect("catalog").expect("there");
        assert!(read(&store, &table) == model, "round {round}, {outcome:?}");
        store.check().unwrap_or_else(|e| panic!("round {round}: {e}"));
        rig.check();
        if rng.chance(30) {
            store.optimize("t", go_on).expect("the power is on");
            assert_eq!(store.tables().expect("tables")[0].options.kind, kind);
            assert_eq!(store.optimize("t", go_on).expect("again").rewritten, 0);
        }
    }
}

#[test]
fn power_cuts_during_an_optimization_on_flash_lose_nothing() {
    for_each_seed(80, |seed| cut_case(&Flash::new(seed, false), seed));
}

#[test]
fn power_cuts_during_an_optimization_on_a_directory_lose_nothing() {
    for_each_seed(80, |seed| cut_case(&SimVfs::new(seed), seed));
}

#[test]
fn a_failed_write_stops_the_store_and_loses_nothing() {
    for case in 1..25 {
        let vfs = SimVfs::new(case);
        let store = Store::open(vfs.clone(), options(case % 4 == 3)).expect("open");
        let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
        let (mut model, mut rng) = (Model::new(), SeededRng::new(case));
        change(&store, &table, &mut model, &mut rng, 30).expect("change");
        store.checkpoint().expect("checkpoint");
        store.alter_table("t", LZ4).expect("alter");
        if case % 5 == 0 {
            vfs.fail_sync()
        } else {
            vfs.fail_writes_after(case)
        }
        assert!(store.optimize("t", go_on).is_err(), "case {case}");
        assert!(matches!(store.optimize("t", go_on), Err(Error::Poisoned { .. })));
        drop((table, store));
        vfs.heal();
        if case % 2 == 0 {
            vfs.power_cycle();
        }
        let reopened: Arc<dyn Vfs> = vfs;
        let store = Store::open(reopened, options(false)).expect("open again");
        let table = store.table("t").expect("catalog").expect("there");
        assert!(read(&store, &table) == model, "case {case}");
        store.check().expect("check");
    }
}
