//! Transactions that are rolled back beside an open snapshot, in undo slots whose history that keeps: they take no space
//! (undo's invariant 6), and the history stays whole through power cuts.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use crate::rigs::{self, Flash, Rig};
use lacuna_device::{MemVfs, StreamHint, Vfs};
use lacuna_engine::{Direction, Error, Store, StoreOptions, Table, TableOptions, Txn};
use lacuna_sim::{SeededRng, SimVfs, for_each_seed};

type Model = BTreeMap<u64, Vec<u8>>;

const UNDO_PAGE: u64 = 32 << 10;

fn options(background: bool) -> StoreOptions {
    StoreOptions { pool_bytes: 1 << 20, log_bytes: 1 << 20, background, ..StoreOptions::default() }
}

fn open(vfs: Arc<dyn Vfs>, background: bool) -> lacuna_engine::Result<(Store, Table)> {
    let store = Store::open(vfs, options(background))?;
    let table = store.open_table("t", TableOptions::default().page_bytes(4096))?;
    Ok((store, table))
}

fn read(txn: &Txn, table: &Table) -> Result<Model, Error> {
    let mut found = Model::new();
    txn.scan(table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |key, value| {
        found.insert(u64::from_be_bytes(key.try_into().expect("a number")), value.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn put(txn: &mut Txn, table: &Table, keys: u64, value: u8) -> Result<(), Error> {
    (0..keys).try_for_each(|key| txn.put(table, &key.to_be_bytes(), &[value; 300]))
}

#[test]
fn transactions_that_are_rolled_back_beside_a_snapshot_take_no_undo() {
    for background in [false, true] {
        let vfs = MemVfs::new();
        let (store, table) = open(vfs.clone(), background).expect("open");
        let commit = |keys, value| {
            let mut txn = store.begin();
            put(&mut txn, &table, keys, value).expect("put");
            txn.commit().expect("commit");
        };
        commit(400, 0);
        let view = store.begin();
        let before = read(&view, &table).expect("read");
        let undo = vfs.open("t00000001.32k", StreamHint::Data).expect("undo file");
        let len = || {
            store.checkpoint().expect("checkpoint");
            undo.len().expect("len")
        };
        // One whose log fits into a page, and one of many pages, each in turn with one that stays.
        for (keys, times) in [(1, 40_000), (400, 100)] {
            commit(1, 1);
            let first = len();
            for time in 0..times {
                let mut txn = store.begin();
                put(&mut txn, &table, keys, time as u8).expect("put");
                if time % 2 == 0 {
                    txn.savepoint().and_then(|point| txn.rollback_to(point)).expect("rollback_to");
                }
                txn.rollback().expect("rollback");
            }
            // One step by which the file is extended, and the pages of the longest one. What all write is three times
            // that.
            let last = len();
            assert!(last <= first + 160 * UNDO_PAGE, "{first} to {last} bytes, {keys} keys, {background}");
        }
        assert!(read(&view, &table).expect("read") == before);
        drop(view);
        store.check().expect("sound");
        assert_eq!(store.stats().expect("stats").history.transactions, 0);
    }
}

/// Commits and rollbacks of all lengths, with a view that keeps their history, while the power is cut.
fn cut_case(rig: &dyn Rig, seed: u64) {
    let mut rng = SeededRng::new(seed);
    let mut states = vec![Model::new()];
    for round in 0..3 {
        let (store, table) = rigs::recover(rig, &mut rng, |vfs| open(vfs, false));
        let found = read(&store.begin(), &table).expect("read");
        assert!(states.contains(&found), "round {round}: {} records, none of the states", found.len());
        store.check().unwrap_or_else(|e| panic!("round {round}: {e}"));
        rig.check();
        states = vec![found.clone()];
        let mut view = (store.begin(), found);
        let _ = read(&view.0, &table);
        let ops_max = [50, 300, 1500][rng.below(3) as usize];
        rig.set_cut_after(1 + rng.below(ops_max));
        while !rig.is_off() {
            let before = states.last().expect("a state").clone();
            let keys_max = [3, 30, 300][rng.below(3) as usize];
            let (keys, value) = (1 + rng.below(keys_max), rng.below(256) as u8);
            let is_undone = rng.chance(60);
            let mut txn = store.begin();
            let written = put(&mut txn, &table, keys, value);
            let mut after = before.clone();
            if !is_undone {
                after.extend((0..keys).map(|key| (key, vec![value; 300])));
            }
            let outcome = written.and_then(|()| if is_undone { txn.rollback() } else { txn.commit() });
            states = if outcome.is_ok() { vec![after] } else { vec![before, after] };
            let upkeep = match rng.below(10) {
                0 => store.checkpoint(),
                1..=4 => store.step().map(drop),
                5 if outcome.is_ok() => {
                    match read(&view.0, &table) {
                        Ok(found) => assert!(found == view.1, "another version"),
                        Err(error) => assert!(rig.may_fail(), "{error}"),
                    }
                    view = (store.begin(), states[0].clone());
                    read(&view.0, &table).map(drop)
                }
                _ => Ok(()),
            };
            assert!(outcome.and(upkeep).is_ok() || rig.may_fail());
        }
    }
}

#[test]
fn power_cuts_among_rollbacks_beside_snapshots_on_a_directory() {
    for_each_seed(30, |seed| cut_case(&SimVfs::new(seed), seed));
}

#[test]
fn power_cuts_among_rollbacks_beside_snapshots_on_flash() {
    for_each_seed(20, |seed| cut_case(&Flash::new(seed, false), seed));
}
