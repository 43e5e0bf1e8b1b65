//! The crash matrix with tables of all kinds that come and go, are altered and optimized, among transactions over
//! several of them with long values: after each power cut the store has the acknowledged tables, kinds and records,
//! with or without the change under way, and no file without a table.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use crate::rigs::{self, Flash, Rig, edited::edited};
use lacuna_device::Vfs;
use lacuna_engine::{
    Algorithm, Direction, Durability, Error, Store, StoreOptions, TableKind, TableOptions, Txn,
};
use lacuna_sim::{SeededRng, SimVfs, for_each_seed};

const ROUNDS: u64 = 3;
const TABLES_MAX: u64 = 5;
const KEYS: u64 = 150;

/// Each table's kind, and its records.
type Model = BTreeMap<String, (TableKind, BTreeMap<Vec<u8>, Vec<u8>>)>;

fn options(rng: &mut SeededRng) -> StoreOptions {
    StoreOptions {
        pool_bytes: 1 << 20,
        log_bytes: 512 << 10,
        background: false,
        durability: if rng.chance(70) { Durability::Sync } else { Durability::Relaxed },
        ..StoreOptions::default()
    }
}

fn random_kind(rng: &mut SeededRng) -> TableOptions {
    match rng.below(9) {
        0 => TableOptions::default().page_bytes(4096),
        1 => TableOptions::default(),
        2 => TableOptions::compressed(Algorithm::Lz4).page_bytes(4096),
        3 => TableOptions::compressed(Algorithm::Zstd),
        4 => TableOptions::compressed(Algorithm::Zstd).page_bytes(64 << 10),
        5 => TableOptions::default().page_bytes(32 << 10),
        6 => TableOptions::row_compressed(4).page_bytes(8 << 10),
        7 => TableOptions::compressed([Algorithm::Lzo, Algorithm::Snappy][rng.below(2) as usize]),
        _ => TableOptions::row_compressed(8),
    }
}

fn recover(rig: &dyn Rig, rng: &mut SeededRng, options: &StoreOptions) -> (Arc<dyn Vfs>, Store) {
    rigs::recover(rig, rng, |vfs| Ok((vfs.clone(), Store::open(vfs, options.clone())?)))
}

fn read_all(store: &Store, txn: &Txn) -> Result<Model, Error> {
    let mut found = Model::new();
    for info in store.tables()? {
        let table = store.table(&info.name)?.expect("it was listed");
        let mut records = BTreeMap::new();
        txn.scan(&table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |key, value| {
            records.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        })?;
        found.insert(info.name, (info.options.kind, records));
    }
    Ok(found)
}

/// One transaction over several tables, in the store, and if it may have been committed in the model.
fn write(store: &Store, rng: &mut SeededRng, model: &mut Model) -> Result<(), Error> {
    let mut txn = store.begin();
    let mut after = model.clone();
    change(store, &mut txn, rng, &mut after)?;
    if rng.chance(15) {
        return txn.rollback();
    }
    *model = after;
    txn.commit()
}

fn change(store: &Store, txn: &mut Txn, rng: &mut SeededRng, model: &mut Model) -> Result<(), Error> {
    let names: Vec<String> = model.keys().cloned().collect();
    let mut savepoint = None;
    for _ in 0..1 + rng.below(15) {
        let name = &names[rng.below(names.len() as u64) as usize];
        let table = store.table(name)?.expect("it is in the model");
        let records = &mut model.get_mut(name).expect("named").1;
        let key = rng.below(KEYS).to_be_bytes().to_vec();
        match rng.below(100) {
            0..25 => {
                let existed = txn.delete(&table, &key)?;
                assert_eq!(existed, records.remove(&key).is_some());
            }
            25..30 => {
                let found = txn.get_for_update(&table, &key)?;
                assert_eq!(found.as_ref(), records.get(&key));
            }
            which => {
                let len = match which {
                    98.. => rng.below(150 << 10),
                    95.. => rng.below(10 << 10),
                    _ => rng.below(200),
                };
                let mut value = vec![0; len as usize];
                rng.fill(&mut value[..len as usize / 2]);
                if let Some(old) = records.get(&key).filter(|old| !old.is_empty())
                    && rng.chance(40)
                {
                    value = edited(old, rng);
                }
                txn.put(&table, &key, &value)?;
                records.insert(key, value);
            }
        }
        if rng.chance(5) {
            savepoint = Some((txn.savepoint()?, model.clone()));
        } else if rng.chance(5)
            && let Some((point, then)) = savepoint.take()
        {
            txn.rollback_to(point)?;
            *model = then;
        }
        if rng.chance(3) {
            store.step()?;
        }
    }
    Ok(())
}

/// Any kind that the pages of a table allow.
fn other_kind(store: &Store, name: &str, rng: &mut SeededRng) -> Result<TableKind, Error> {
    let info = store.tables()?.into_iter().find(|info| info.name == name).expect("there");
    let page = info.options.page_bytes as u32 >> 10;
    let new = match (info.options.kind, rng.below(6)) {
        (TableKind::RowCompressed { key_block_size, .. }, level @ 0..2) => {
            let algorithm = if rng.chance(50) { Algorithm::Zlib } else { Algorithm::Lz4 };
            TableKind::RowCompressed { key_block_size, algorithm, level: 1 + level as i32 }
        }
        (_, 0..4) if page <= 16 => {
            TableOptions::row_compressed(page >> rng.below(u64::from(page.ilog2()) + 1)).kind
        }
        (_, 4) => TableOptions::compressed(Algorithm::Lz4).kind,
        (_, 5) => TableOptions::compressed(Algorithm::Zstd).kind,
        _ => TableKind::Plain,
    };
    Ok(new)
}

/// Makes, drops, alters or optimizes a table, in the store and in the model. False if there was nothing to do.
fn define(store: &Store, rng: &mut SeededRng, model: &mut Model) -> Result<bool, Error> {
    let name = format!("table {}", rng.below(TABLES_MAX));
    let Some((kind, _)) = model.get_mut(&name) else {
        let options = random_kind(rng);
        model.insert(name.clone(), (options.kind, BTreeMap::new()));
        return store.create_table(&name, options).map(|_| true);
    };
    match rng.below(3) {
        0 => {
            model.remove(&name);
            store.drop_table(&name)?;
        }
        1 => {
            *kind = other_kind(store, &name, rng)?;
            store.alter_table(&name, *kind)?;
        }
        _ => {
            store.optimize(&name, |_| ControlFlow::Continue(()))?;
            return Ok(false);
        }
    }
    Ok(true)
}

/// Works until the power is cut. `states` are all states that a crash may leave now.
fn run_until_cut(rig: &dyn Rig, store: &Store, rng: &mut SeededRng, is_sync: bool, states: &mut Vec<Model>) {
    let mut snapshot: Option<(Txn, Model)> = None;
    for _ in 0..20_000 {
        let now = states.last().expect("a state").clone();
        let mut after = now.clone();
        let choice = rng.below(100);
        let outcome = match choice {
            choice if choice < 8 || now.is_empty() => {
                // A snapshot keeps tables that it has read from being dropped.
                snapshot = None;
                define(store, rng, &mut after)
            }
            8..10 => {
                let txn = store.begin();
                read_all(store, &txn).map(|found| {
                    assert!(found == now, "not what was written");
                    snapshot = Some((txn, found));
                    false
                })
            }
            10..13 => match snapshot.take() {
                None => Ok(false),
                Some((txn, then)) => match read_all(store, &txn) {
                    Ok(found) => {
                        let records = |(name, of): (String, (TableKind, _))| (name, of.1);
                        let [found, then] = [found, then].map(|all| all.into_iter().map(records).collect());
                        let _: &BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>> = &found;
                        assert!(found == then, "a snapshot changed");
                        Ok(false)
                    }
                    Err(Error::SnapshotTooOld) => Ok(false),
                    Err(e) => Err(e),
                },
            },
            13..20 => store.step().map(|_| false),
            20 => store.checkpoint().map(|()| true),
            21..24 => {
                // Beside a snapshot, which goes on seeing what it saw.
                let (name, (kind, _)) =
                    after.iter_mut().nth(rng.below(now.len() as u64) as usize).expect("there");
                other_kind(store, name, rng).and_then(|other| {
                    *kind = other;
                    store.alter_table(name, other).map(|()| true)
                })
            }
            _ => write(store, rng, &mut after).map(|()| is_sync),
        };
        match outcome {
            Ok(true) => *states = vec![after],
            // A change that is not durable yet, or had no effect.
            Ok(false) if states.last() == Some(&after) => {}
            _ => states.push(after),
        }
        if let Err(error) = outcome {
            assert!(rig.may_fail(), "{error}");
            return;
        }
        if rng.chance(10) {
            rig.upkeep(rng);
        }
        if rng.below(1000) < 5 {
            rig.fail(rng);
        }
        if rig.is_off() {
            return;
        }
    }
    panic!("the power was never cut");
}

fn crash_case(rig: &dyn Rig, seed: u64) {
    let mut rng = SeededRng::new(seed);
    let mut states = vec![Model::new()];
    for round in 0..ROUNDS {
        let options = options(&mut rng);
        let (vfs, store) = recover(rig, &mut rng, &options);
        let found = read_all(&store, &store.begin()).expect("scan");
        let is_possible = states.contains(&found);
        let kinds: Vec<_> = found.iter().map(|(name, of)| (name, of.0, of.1.len())).collect();
        assert!(is_possible, "round {round}: {kinds:?} is none of the {} states that may be", states.len());
        store.check().unwrap_or_else(|e| panic!("round {round}: {e}"));
        let files = vfs.list().expect("list").iter().filter(|name| name.starts_with('t')).count();
        assert_eq!(files, found.len() + 2, "round {round}: a file for each table, catalog and undo");
        rig.check();
        states = vec![found];
        let ops_max = [30, 300, 1500][rng.below(3) as usize];
        rig.set_cut_after(1 + rng.below(ops_max));
        drop(vfs);
        let is_sync = options.durability == Durability::Sync;
        run_until_cut(rig, &store, &mut rng, is_sync, &mut states);
    }
}

#[test]
fn power_cuts_on_flash_leave_every_table_whole_or_gone() {
    for_each_seed(60, |seed| crash_case(&Flash::new(seed, false), seed));
}

#[test]
fn power_cuts_on_a_directory_leave_every_table_whole_or_gone() {
    for_each_seed(60, |seed| crash_case(&SimVfs::new(seed), seed));
}
