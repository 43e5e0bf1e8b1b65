//! What the scenarios share: the search through schedules, a store whose VFS yields, and records with versions.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use lacuna_device::{BatchOp, Vfs};
use lacuna_engine::{Direction, Error, Store, StoreOptions, Table, TableOptions, Txn};
use lacuna_sim::{HookedVfs, Hooks, SeededRng as Rng, for_each_seed};
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
pub(super) const VALUE_BYTES: usize = 10_000;

/// Runs `scenario` under many schedules.
pub(super) fn explore(default_cases: u64, scenario: fn()) {
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
pub(super) fn dice() -> Rng {
    Rng::new(shuttle::rand::thread_rng().next_u64())
}

/// Others may go on whenever the VFS is asked for something.
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

pub(super) fn options() -> StoreOptions {
    StoreOptions {
        pool_bytes: 1 << 20,
        log_bytes: 1 << 20,
        flush_threads: 1,
        background: false,
        ..StoreOptions::default()
    }
}

pub(super) fn open(vfs: &Arc<dyn Vfs>, options: StoreOptions) -> (Store, Table) {
    let store = Store::open(HookedVfs::new(vfs.clone(), Arc::new(Yields)), options).unwrap();
    let table = store.open_table("t", TableOptions::default().page_bytes(64 << 10)).unwrap();
    (store, table)
}

pub(super) fn key(writer: u64, record: u64) -> Vec<u8> {
    format!("{writer}/{record:03}").into_bytes()
}

pub(super) fn value(version: u64) -> Vec<u8> {
    let mut value = vec![version as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&version.to_le_bytes());
    value
}

/// Commits records `0..count` of writer 0 with `version`.
pub(super) fn fill(store: &Store, table: &Table, count: u64, version: u64) {
    let mut txn = store.begin();
    (0..count).for_each(|record| txn.put(table, &key(0, record), &value(version)).unwrap());
    txn.commit().unwrap();
}

pub(super) fn version(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

pub(super) fn versions(
    txn: &Txn,
    table: &Table,
    direction: Direction,
) -> Result<BTreeMap<Vec<u8>, u64>, Error> {
    let mut found = BTreeMap::new();
    txn.scan(table, Bound::Unbounded, Bound::Unbounded, direction, |key, value| {
        assert!(found.insert(key.to_vec(), version(value)).is_none(), "each record once");
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

pub(super) fn join<T>(threads: Vec<thread::JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Checks that the store is sound and holds `want`, also after reopening.
pub(super) fn check(store: Store, table: Table, vfs: &Arc<dyn Vfs>, want: &BTreeMap<Vec<u8>, u64>) {
    store.check().unwrap();
    assert_eq!(versions(&store.begin(), &table, Direction::Backward).unwrap(), *want);
    drop((store, table));
    let (store, table) = open(vfs, options());
    store.check().unwrap();
    assert_eq!(versions(&store.begin(), &table, Direction::Forward).unwrap(), *want);
}
