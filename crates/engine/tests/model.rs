//! The engine against a model in memory: one thread with random operations, then many threads.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    thread,
};

use crate::rigs::edited::edited;
use lacuna_device::MemVfs;
use lacuna_engine::{
    Algorithm, Direction, Error, Isolation, Store, StoreOptions, Table, TableOptions, TransactionOptions, Txn,
};
use lacuna_sim::{SeededRng as Rng, for_each_seed};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(background: bool) -> StoreOptions {
    StoreOptions { pool_bytes: 4 << 20, log_bytes: 2 << 20, background, ..StoreOptions::default() }
}

/// With a log of another length each time, as when the options change or the file system has less space.
fn any_options(background: bool, rng: &mut Rng) -> StoreOptions {
    let log_bytes = [256 << 10, 1 << 20, 2 << 20, 16 << 20][rng.below(4) as usize];
    StoreOptions { log_bytes, ..options(background) }
}

fn contents(txn: &Txn, table: &Table, direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    txn.scan(table, Bound::Unbounded, Bound::Unbounded, direction, |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .expect("scan");
    found
}

fn assert_same(txn: &Txn, table: &Table, model: &Model) {
    let want: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    let forward = contents(txn, table, Direction::Forward);
    assert!(forward == want, "forward: {} records, {} expected", forward.len(), want.len());
    let mut backward = contents(txn, table, Direction::Backward);
    backward.reverse();
    assert!(backward == want, "backward: {} records, {} expected", backward.len(), want.len());
}

/// Ranges with random bounds, in both directions, abandoned after some records.
fn assert_same_ranges(txn: &Txn, table: &Table, model: &Model, rng: &mut Rng, page_bytes: usize) {
    for _ in 0..20 {
        let mut bound = || {
            let key = random_key(rng, page_bytes);
            [Bound::Unbounded, Bound::Included(key.clone()), Bound::Excluded(key)][rng.below(3) as usize]
                .clone()
        };
        let (lower, upper) = (bound(), bound());
        let limit = 1 + rng.below(400) as usize;
        let as_slice = |bound: &Bound<Vec<u8>>| bound.as_ref().map(Vec::len);
        let is_empty = match (&lower, &upper) {
            (Bound::Included(l), Bound::Included(u)) => l > u,
            (Bound::Included(l) | Bound::Excluded(l), Bound::Included(u) | Bound::Excluded(u)) => l >= u,
            _ => false,
        };
        // A map panics where a scan finds nothing.
        let want: Vec<_> = if is_empty {
            Vec::new()
        } else {
            model.range((lower.clone(), upper.clone())).map(|(k, v)| (k.clone(), v.clone())).collect()
        };
        for direction in [Direction::Forward, Direction::Backward] {
            let mut found = Vec::new();
            let (from, to) = (lower.as_ref().map(|key| &key[..]), upper.as_ref().map(|key| &key[..]));
            txn.scan(table, from, to, direction, |key, value| {
                found.push((key.to_vec(), value.to_vec()));
                if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .expect("scan");
            let is_same = match direction {
                Direction::Forward => found.iter().eq(want.iter().take(limit)),
                Direction::Backward => found.iter().eq(want.iter().rev().take(limit)),
            };
            let bounds = (as_slice(&lower), as_slice(&upper));
            assert!(is_same, "{direction:?} {bounds:?}: {} of {} records", found.len(), want.len());
        }
    }
}

fn random_key(rng: &mut Rng, page_bytes: usize) -> Vec<u8> {
    let number = rng.below(3000);
    let mut key = number.to_be_bytes().to_vec();
    if number.is_multiple_of(7) {
        // Blocks of a quarter of the page take keys of an eighth of that.
        key.resize(8 + (number as usize * 37) % (page_bytes / 32 - 8), b'k');
    }
    key
}

fn random_value(rng: &mut Rng, page_bytes: usize) -> Vec<u8> {
    let len = match rng.below(80) {
        0 => rng.below(100 << 10),
        1..=4 => rng.below(page_bytes as u64 / 4 + 1),
        5..=25 => 0,
        _ => rng.below(200),
    };
    let byte = rng.below(256) as u8;
    let mut value: Vec<u8> = (0..len).map(|i| byte.wrapping_add((i / 5) as u8)).collect();
    if rng.chance(40) {
        // Values that do not compress.
        rng.fill(&mut value);
    }
    value
}

/// One transaction of random operations on table and model; rolled back in part or whole at times.
fn random_txn(store: &Store, table: &Table, model: &mut Model, rng: &mut Rng, page_bytes: usize) {
    let mut txn = store.begin();
    let mut changed = model.clone();
    let mut savepoint = None;
    for _ in 0..rng.below(60) {
        let key = random_key(rng, page_bytes);
        match rng.below(12) {
            0..=4 => {
                let value = match changed.get(&key) {
                    Some(old) if !old.is_empty() && rng.chance(40) => edited(old, rng),
                    _ => random_value(rng, page_bytes),
                };
                txn.put(table, &key, &value).expect("put");
                changed.insert(key, value);
            }
            5..=7 => {
                let existed = txn.delete(table, &key).expect("delete");
                assert_eq!(existed, changed.remove(&key).is_some());
            }
            8 => {
                let value = random_value(rng, page_bytes);
                match txn.insert(table, &key, &value) {
                    Ok(()) => assert!(changed.insert(key, value).is_none()),
                    Err(Error::KeyExists) => assert!(changed.contains_key(&key)),
                    Err(e) => panic!("{e}"),
                }
            }
            9 => {
                let got = txn.get_for_update(table, &key).expect("get_for_update");
                assert_eq!(got.as_ref(), changed.get(&key));
            }
            10 => savepoint = Some((txn.savepoint().expect("savepoint"), changed.clone())),
            _ => {
                if let Some((point, then)) = savepoint.take() {
                    txn.rollback_to(point).expect("rollback_to");
                    changed = then;
                }
            }
        }
        let probe = random_key(rng, page_bytes);
        assert_eq!(txn.get(table, &probe).expect("get").as_ref(), changed.get(&probe));
        // Others see none of it yet.
        assert_eq!(store.begin().get(table, &probe).expect("get").as_ref(), model.get(&probe));
    }
    match rng.below(5) {
        0 => drop(txn),
        1 => txn.rollback().expect("rollback"),
        _ => {
            txn.commit().expect("commit");
            *model = changed;
        }
    }
}

fn run_against_model(table_options: TableOptions, background: bool, rounds: u64) {
    for_each_seed(3, |seed| model_case(table_options, background, rounds, &mut Rng::new(seed)));
}

fn model_case(table_options: TableOptions, background: bool, rounds: u64, rng: &mut Rng) {
    let vfs = MemVfs::new();
    let mut model = Model::new();
    let mut store = Store::open(vfs.clone(), any_options(background, rng)).expect("open");
    store.create_table("t", table_options).expect("create");
    for round in 0..rounds {
        let table = store.table("t").expect("table").expect("there");
        for _ in 0..40 {
            random_txn(&store, &table, &mut model, rng, table_options.page_bytes);
        }
        assert_same(&store.begin(), &table, &model);
        assert_same_ranges(&store.begin(), &table, &model, rng, table_options.page_bytes);
        if round % 4 == 3 {
            drop(table);
            match rng.below(2) {
                0 => store.close().expect("close"),
                // As after a kill: committed changes are in the log.
                _ => drop(store),
            }
            store = Store::open(vfs.clone(), any_options(background, rng)).expect("reopen");
            let table = store.table("t").expect("table").expect("there");
            assert_same(&store.begin(), &table, &model);
        }
        store.check().expect("check");
    }
    assert!(store.stats().expect("stats").pool.bytes <= (4 << 20) * 9 / 8);
}

#[test]
fn plain_pages_behave_like_a_map() {
    run_against_model(TableOptions::default().page_bytes(4096), false, 12);
}

#[test]
fn compressed_pages_behave_like_a_map() {
    run_against_model(TableOptions::compressed(Algorithm::Lz4), true, 12);
}

#[test]
fn large_pages_behave_like_a_map() {
    run_against_model(TableOptions::compressed(Algorithm::Zstd).page_bytes(64 << 10), false, 6);
}

#[test]
fn row_compressed_pages_behave_like_a_map() {
    run_against_model(TableOptions::row_compressed(8), true, 12);
}

#[test]
fn row_compressed_quarter_pages_behave_like_a_map() {
    run_against_model(TableOptions::row_compressed(4), false, 12);
}

#[test]
fn a_table_many_times_the_pool_shrinks_again() {
    let vfs = MemVfs::new();
    let store = Store::open(vfs, options(true)).expect("open");
    let table = store.create_table("t", TableOptions::compressed(Algorithm::Lz4)).expect("create");
    let value = vec![b'v'; 900];
    let keys = 40_000u32;
    for chunk in 0..keys / 100 {
        let mut txn = store.begin();
        for i in 0..100 {
            txn.put(&table, &(chunk * 100 + i).to_be_bytes(), &value).expect("put");
        }
        txn.commit().expect("commit");
    }
    let stats = store.stats().expect("stats");
    assert!(stats.pool.bytes <= (4 << 20) * 5 / 4, "{stats:?}");
    let full = store.check().expect("check").pop().expect("one table");
    assert_eq!(full.records, u64::from(keys));
    for chunk in 0..keys / 100 {
        let mut txn = store.begin();
        for i in 0..100 {
            assert!(txn.delete(&table, &(chunk * 100 + i).to_be_bytes()).expect("delete"));
        }
        txn.commit().expect("commit");
    }
    assert!(contents(&store.begin(), &table, Direction::Forward).is_empty());
    store.close().expect("close");
}

#[test]
fn a_transaction_larger_than_memory_rolls_back() {
    let store = Store::open(MemVfs::new(), options(true)).expect("open");
    let table = store.create_table("t", TableOptions::compressed(Algorithm::Lz4)).expect("create");
    let mut setup = store.begin();
    for i in 0..1000u32 {
        setup.put(&table, &i.to_be_bytes(), b"before").expect("put");
    }
    setup.commit().expect("commit");
    let mut txn = store.begin();
    for i in 0..12_000u32 {
        txn.put(&table, &i.to_be_bytes(), &[b'x'; 1000]).expect("put");
    }
    txn.rollback().expect("rollback");
    let left = contents(&store.begin(), &table, Direction::Forward);
    assert_eq!(left.len(), 1000);
    assert!(left.iter().all(|(_, value)| value == b"before"));
    store.check().expect("check");
}

#[test]
fn concurrent_transfers_keep_the_sum_and_deadlocks_are_broken() {
    let store = Store::open(MemVfs::new(), options(true)).expect("open");
    let table = store.create_table("accounts", TableOptions::default()).expect("create");
    let accounts = 12u64;
    let mut setup = store.begin();
    for i in 0..accounts {
        setup.put(&table, &i.to_be_bytes(), &1000i64.to_le_bytes()).expect("put");
    }
    setup.commit().expect("commit");
    let base = 1u64;
    let threads: Vec<_> = (0..6u64)
        .map(|t| {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let mut rng = Rng::new(base ^ t);
                let mut deadlocks = 0u32;
                for _ in 0..400 {
                    let (from, to) = (rng.below(accounts), rng.below(accounts));
                    if from != to && transfer(&store, &table, from, to, rng.below(50) as i64).is_err() {
                        deadlocks += 1;
                    }
                }
                deadlocks
            })
        })
        .collect();
    let deadlocks: u32 = threads.into_iter().map(|t| t.join().expect("thread")).sum();
    println!("{deadlocks} deadlocks");
    let sum: i64 = contents(&store.begin(), &table, Direction::Forward).iter().map(|(_, v)| amount(v)).sum();
    assert_eq!(sum, 1000 * accounts as i64);
}

fn amount(value: &[u8]) -> i64 {
    i64::from_le_bytes(value.try_into().expect("eight bytes"))
}

fn transfer(store: &Store, table: &Table, from: u64, to: u64, sum: i64) -> Result<(), Error> {
    let mut txn = store.begin();
    for (account, change) in [(from, -sum), (to, sum)] {
        let key = account.to_be_bytes();
        let before = txn.get_for_update(table, &key)?.expect("account");
        txn.put(table, &key, &(amount(&before) + change).to_le_bytes())?;
    }
    txn.commit()
}

#[test]
fn many_threads_on_one_tree_agree_with_their_models() {
    let store = Store::open(MemVfs::new(), options(true)).expect("open");
    let table =
        store.create_table("t", TableOptions::compressed(Algorithm::Lz4).page_bytes(4096)).expect("create");
    let base = 1u64;
    let threads: Vec<_> = (0..4u64)
        .map(|t| {
            let (store, table) = (store.clone(), table.clone());
            thread::spawn(move || {
                let mut rng = Rng::new(base ^ (t << 32));
                let mut model = Model::new();
                for _ in 0..300 {
                    let mut txn = store.begin();
                    for _ in 0..rng.below(20) {
                        // Keys of all threads interleave, so that they share leaves and split them.
                        let key = (rng.below(2000) * 4 + t).to_be_bytes().to_vec();
                        if rng.below(3) == 0 {
                            let existed = txn.delete(&table, &key).expect("delete");
                            assert_eq!(existed, model.remove(&key).is_some());
                        } else {
                            let value = random_value(&mut rng, 4096);
                            txn.put(&table, &key, &value).expect("put");
                            model.insert(key, value);
                        }
                    }
                    txn.commit().expect("commit");
                }
                model
            })
        })
        .collect();
    let mut model = Model::new();
    for thread in threads {
        model.extend(thread.join().expect("thread"));
    }
    assert_same(&store.begin(), &table, &model);
    store.close().expect("close");
}

/// Readers walk in both directions while leaves split and merge under them: records that stay are always seen once and
/// in order, and a snapshot sees the same forwards and backwards.
#[test]
fn scans_in_both_directions_keep_their_place_among_splits_and_merges() {
    let store = Store::open(MemVfs::new(), options(true)).expect("open");
    let table =
        store.create_table("t", TableOptions::compressed(Algorithm::Lz4).page_bytes(4096)).expect("create");
    let fixed: Vec<_> = (0..300u64).map(|i| (i * 64).to_be_bytes().to_vec()).collect();
    let mut txn = store.begin();
    fixed.iter().for_each(|key| txn.put(&table, key, b"fixed").expect("put"));
    txn.commit().expect("commit");
    thread::scope(|scope| {
        let writers: Vec<_> = (0..2u64)
            .map(|t| {
                let (store, table) = (&store, &table);
                scope.spawn(move || {
                    for round in 0..8u64 {
                        for chunk in 0..30u64 {
                            let mut txn = store.begin();
                            for i in chunk * 10..chunk * 10 + 10 {
                                let key = (i * 64 + 1 + t).to_be_bytes();
                                if round % 2 == 0 {
                                    txn.put(table, &key, &[7; 900]).expect("put");
                                } else {
                                    assert!(txn.delete(table, &key).expect("delete"));
                                }
                            }
                            txn.commit().expect("commit");
                        }
                    }
                })
            })
            .collect();
        let mut rounds = 0;
        while rounds < 3 || !writers.iter().all(|writer| writer.is_finished()) {
            rounds += 1;
            for options in [TransactionOptions::default(), TransactionOptions::READ_COMMITTED] {
                let mut txn = store.begin_with(options);
                // A change of its own is seen too.
                let own = (rounds % 300 * 64 + 3u64).to_be_bytes().to_vec();
                txn.put(&table, &own, b"own").expect("put");
                let forward = contents(&txn, &table, Direction::Forward);
                let mut backward = contents(&txn, &table, Direction::Backward);
                assert!(backward.is_sorted_by(|a, b| a.0 > b.0), "backward out of order");
                backward.reverse();
                for found in [&forward, &backward] {
                    let stayed = found.iter().filter(|(_, value)| value == b"fixed").map(|(key, _)| key);
                    assert!(stayed.eq(fixed.iter()), "a record that stayed was missed or seen twice");
                    assert!(found.iter().any(|(key, _)| *key == own));
                }
                let is_snapshot = options.isolation == Isolation::Snapshot;
                assert!(!is_snapshot || forward == backward, "a snapshot differs by direction");
                txn.rollback().expect("rollback");
            }
        }
    });
    store.check().expect("check");
}

#[test]
fn bad_input_is_refused_by_name() {
    let store = Store::open(MemVfs::new(), options(false)).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    assert!(matches!(store.create_table("t", TableOptions::default()), Err(Error::TableExists { .. })));
    assert!(store.create_table("u", TableOptions::default().page_bytes(5000)).is_err());
    assert!(store.create_table("", TableOptions::default()).is_err());
    let mut txn = store.begin();
    assert!(matches!(txn.put(&table, &[0; 2049], b""), Err(Error::TooLarge { what: "key", .. })));
    let too_long = vec![0; (16 << 20) + 1];
    assert!(matches!(txn.put(&table, b"k", &too_long), Err(Error::TooLarge { what: "value", .. })));
    txn.put(&table, &[0; 2048], &[1; 4096]).expect("the largest record of a leaf");
    txn.commit().expect("commit");
    let other = Store::open(MemVfs::new(), options(false)).expect("open");
    assert!(matches!(other.begin().get(&table, b"k"), Err(Error::WrongStore)));
}
