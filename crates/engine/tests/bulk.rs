//! Loading sorted records: against a map, whole or not at all across crashes and errors, in full leaves.

use std::{collections::BTreeMap, sync::Arc, thread, time::Duration};

use crate::rigs::{self, Flash, Rig};
use lacuna_device::{MemDevice, MemVfs, Vfs};
use lacuna_engine::{Algorithm, Error, Store, StoreOptions, Table, TableOptions, TransactionOptions, Txn};
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options};
use lacuna_sim::{SeededRng, SimVfs, for_each_seed};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(background: bool) -> StoreOptions {
    StoreOptions { pool_bytes: 1 << 20, log_bytes: 512 << 10, background, ..StoreOptions::default() }
}

fn kinds() -> [TableOptions; 4] {
    [
        TableOptions::default().page_bytes(4096),
        TableOptions::compressed(Algorithm::Lz4),
        TableOptions::default().page_bytes(64 << 10),
        TableOptions::row_compressed(4).page_bytes(8 << 10),
    ]
}

fn read(txn: &Txn, table: &Table) -> Model {
    txn.range(table, ..).expect("range").map(|record| record.expect("step").to_pair()).collect()
}

fn value(rng: &mut SeededRng, page_bytes: usize) -> Vec<u8> {
    let bytes = match rng.below(100) {
        0 => rng.below(50_000),
        1..4 => rng.below(page_bytes as u64 / 4 + 1),
        _ => rng.below(120),
    };
    vec![rng.below(256) as u8; bytes as usize]
}

/// Loads into an empty table, after its last record and in between, beside deleted records and others' changes.
fn play(seed: u64, table_options: TableOptions) {
    let mut rng = SeededRng::new(seed);
    let store = Store::open(MemVfs::new(), options(seed.is_multiple_of(2))).expect("open");
    let table = store.create_table("t", table_options).expect("create");
    let mut committed = Model::new();
    for _ in 0..6 {
        let mut txn = store.begin();
        let mut model = committed.clone();
        for _ in 0..rng.below(4) {
            // Records that are there already or not, thinned out: runs end at them.
            for _ in 0..rng.below(80) {
                let key = (rng.below(1 << 20) as u32).to_be_bytes().to_vec();
                if rng.chance(30)
                    && let Some(key) = model.range(key.clone()..).next().map(|(key, _)| key.clone())
                {
                    assert!(txn.delete(&table, &key).expect("delete"));
                    model.remove(&key);
                } else {
                    txn.put(&table, &key, b"in between").expect("put");
                    model.insert(key, b"in between".to_vec());
                }
            }
            let (step, first) = (1 + rng.below(200) as u32, rng.below(1 << 20) as u32);
            let keys = (0..rng.below(1500) as u32).map(|n| (first + n * step).to_be_bytes().to_vec());
            let load: Vec<_> = keys
                .filter(|key| !model.contains_key(key))
                .map(|key| (key, value(&mut rng, table_options.page_bytes)))
                .collect();
            assert_eq!(txn.bulk_load(&table, load.iter().cloned()).expect("load"), load.len() as u64);
            model.extend(load);
            assert!(read(&txn, &table) == model);
            assert!(read(&store.begin(), &table) == committed, "nobody else sees it yet");
        }
        if rng.chance(30) {
            txn.rollback().expect("rollback");
        } else {
            txn.commit().expect("commit");
            committed = model;
        }
        assert!(read(&store.begin(), &table) == committed);
        store.check().expect("check");
    }
}

#[test]
fn loads_agree_with_a_map_on_all_kinds_of_tables() {
    for (number, table_options) in (0..).zip(kinds()) {
        for_each_seed(5, |seed| play(10 * number + seed, table_options));
    }
}

fn numbers(range: std::ops::Range<u32>) -> impl Iterator<Item = ([u8; 4], [u8; 40])> {
    range.map(|n| (n.to_be_bytes(), [n as u8; 40]))
}

#[test]
fn a_load_that_fails_leaves_none_of_its_records_and_the_transaction_goes_on() {
    for table_options in kinds() {
        let store = Store::open(MemVfs::new(), options(false)).expect("open");
        let table = store.create_table("t", table_options).expect("create");
        let mut txn = store.begin();
        txn.put(&table, &5000u32.to_be_bytes(), b"mine").expect("put");
        let mine = read(&txn, &table);
        let twice = numbers(0..3000).chain(numbers(2999..3001));
        assert!(matches!(txn.bulk_load(&table, twice), Err(Error::OutOfOrder { record: 3000 })));
        assert!(read(&txn, &table) == mine);
        assert!(matches!(txn.bulk_load(&table, numbers(3000..6000)), Err(Error::KeyExists)));
        assert!(read(&txn, &table) == mine);
        let too_long = [(vec![0; 4], vec![0; 10]), (vec![1; 60_000], vec![])];
        assert!(matches!(txn.bulk_load(&table, too_long), Err(Error::TooLarge { what: "key", .. })));
        assert!(read(&txn, &table) == mine);
        assert_eq!(txn.bulk_load(&table, numbers(5001..8000)).expect("behind the last one"), 2999);
        txn.commit().expect("commit");
        assert_eq!(store.begin().count(&table, ..).expect("count"), 3000);
        store.check().expect("check");
    }
}

#[test]
fn a_load_waits_for_locks_in_its_way() {
    let lock_timeout = Duration::from_millis(20);
    let options = StoreOptions { lock_timeout, ..options(true) };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut locker = store.begin();
    locker.get_for_update(&table, &77u32.to_be_bytes()).expect("free, and not there");
    let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
    assert!(matches!(txn.bulk_load(&table, numbers(0..200)), Err(Error::LockTimeout)));
    assert_eq!(txn.count(&table, ..).expect("count"), 0);
    assert_eq!(txn.bulk_load(&table, numbers(0..77)).expect("before it"), 77);
    locker.put(&table, &77u32.to_be_bytes(), b"locker's").expect("it has the lock");
    locker.commit().expect("commit");
    assert!(matches!(txn.bulk_load(&table, numbers(77..200)), Err(Error::KeyExists)));
    txn.bulk_load(&table, numbers(78..200)).expect("behind it");
    txn.commit().expect("commit");
    assert_eq!(store.begin().count(&table, ..).expect("count"), 200);
}

#[test]
fn leaves_are_left_full() {
    let store = Store::open(MemVfs::new(), StoreOptions::default()).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut txn = store.begin();
    txn.bulk_load(&table, numbers(0..100_000)).expect("load");
    txn.commit().expect("commit");
    let found = store.check().expect("check").pop().expect("the table");
    // Heads and slots of records take 21 bytes, those of a page 104.
    let fill = (100_000 * (4 + 40 + 21)) as f64 / (found.leaves * (16_384 - 104)) as f64;
    assert!((0.92..=0.945).contains(&fill), "{fill} of {} leaves", found.leaves);
}

#[test]
fn loads_beside_each_other_and_readers() {
    let store = Store::open(MemVfs::new(), options(true)).expect("open");
    let table = store.create_table("t", kinds()[0]).expect("create");
    thread::scope(|scope| {
        for part in 0..4u32 {
            let (store, table) = (&store, &table);
            scope.spawn(move || {
                for round in 0..6 {
                    // Interleaved: every fourth number is this thread's.
                    let first = round * 4000;
                    let mine =
                        (first..first + 4000).filter(|n| n % 4 == part).map(|n| (n.to_be_bytes(), [7; 40]));
                    let mut txn = store.begin();
                    assert_eq!(txn.bulk_load(table, mine).expect("load"), 1000);
                    if round == 3 { txn.rollback().expect("rollback") } else { txn.commit().expect("commit") }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..40 {
                let records = store.begin().count(&table, ..).expect("count");
                assert!(records.is_multiple_of(1000), "{records}: a load is seen in part");
            }
        });
    });
    assert_eq!(store.begin().count(&table, ..).expect("count"), 20_000);
    store.check().expect("check");
}

#[test]
fn a_load_that_fills_the_store_leaves_nothing() {
    let device = Arc::new(MemDevice::new(24 << 20));
    Nvmfs::format(device.clone(), &FormatOptions::default()).expect("format");
    let vfs: Arc<dyn Vfs> = Arc::new(Nvmfs::open(device, Options::default()).expect("open"));
    let store = Store::open(vfs.clone(), options(true)).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut rng = SeededRng::new(1);
    let mut noise = vec![0; 200];
    for _ in 0..2 {
        let mut txn = store.begin();
        let endless = (0..u32::MAX).map(|n| {
            rng.fill(&mut noise);
            (n.to_be_bytes(), noise.clone())
        });
        assert!(matches!(txn.bulk_load(&table, endless), Err(Error::Full { .. })));
        assert_eq!(txn.count(&table, ..).expect("count"), 0);
        txn.commit().expect("it has nothing to commit");
        store.checkpoint().expect("checkpoint");
    }
    store.check().expect("check");
    drop(store);
    let store = Store::open(vfs, options(true)).expect("open again");
    assert_eq!(store.check().expect("check")[1].records, 0);
}

/// The power is cut during loads: each is there in whole, or not at all if it was not acknowledged.
fn cut_case(rig: &dyn Rig, seed: u64, outcomes: &mut [u64; 2]) {
    let mut rng = SeededRng::new(seed);
    let mut loads: Vec<bool> = Vec::new();
    for round in 0..4u32 {
        let (_vfs, store) = rigs::recover(rig, &mut rng, |vfs| {
            Ok((vfs.clone(), Store::open(vfs, options(seed.is_multiple_of(5)))?))
        });
        let kind = kinds()[seed as usize % 4];
        // The table itself may have been lost.
        let Ok(table) = store.open_table("t", kind) else { panic!("the power is on") };
        let txn = store.begin();
        let part = |n: u32| (n * 10_000).to_be_bytes()..((n + 1) * 10_000).to_be_bytes();
        for (n, is_acknowledged) in loads.iter_mut().enumerate() {
            let found = txn.count(&table, part(n as u32)).expect("count");
            assert!(found == 0 || found == 1 + 900 * (n as u64 % 2 + 1), "load {n}: {found} records");
            assert!(found > 0 || !*is_acknowledged, "load {n} was lost");
            outcomes[usize::from(found > 0)] += 1;
            *is_acknowledged = found > 0;
        }
        drop(txn);
        store.check().expect("check");
        rig.check();
        rig.upkeep(&mut rng);
        rig.set_cut_after(rng.below(60));
        let first = round * 10_000;
        let count = 900 * (round % 2 + 1);
        let records = (first..=first + count).map(|n| (n.to_be_bytes(), vec![n as u8; 20 + n as usize % 90]));
        let mut txn = store.begin();
        let loaded = txn.bulk_load(&table, records).and_then(|_| match rng.chance(80) {
            true => txn.commit().map(|()| true),
            false => txn.rollback().map(|()| false),
        });
        loads.push(loaded.unwrap_or(false));
        if rng.chance(30) {
            let _ = store.checkpoint();
        }
    }
}

#[test]
fn power_cuts_during_loads_on_flash_leave_them_whole_or_not_at_all() {
    let mut outcomes = [0; 2];
    for_each_seed(40, |seed| {
        let rig = Flash::new(seed, false);
        cut_case(&rig, seed, &mut outcomes);
    });
    println!("{outcomes:?} loads gone, and there");
    assert!(outcomes.iter().all(|count| *count > 20));
}

#[test]
fn power_cuts_during_loads_on_a_directory_leave_them_whole_or_not_at_all() {
    let mut outcomes = [0; 2];
    for_each_seed(60, |seed| cut_case(&SimVfs::new(seed), seed, &mut outcomes));
    println!("{outcomes:?} loads gone, and there");
    assert!(outcomes.iter().all(|count| *count > 20));
}
