//! Pages that replay reads: no more than allowed, whenever the crash comes, and none with a page-write record. Measured
//! by counts, not clocks.

use std::{
    ops::{Bound, ControlFlow},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use lacuna_device::{BlockDevice, StreamHint, Vfs};
use lacuna_engine::{
    Direction, Error, RecoveryStats, Store, StoreOptions, Table, TableOptions, TransactionOptions,
};
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options};
use lacuna_sim::{SeededRng, SimDevice, SimVfs};

const RECORDS: u64 = 20_000;
/// Reads allowed when `replay_time` is zero.
const READS_MIN: u64 = 256;
/// Pages that an admitted operation may change: a path of the tree and its undo.
const OPERATION_READS: u64 = 8;

/// Something of which a copy can be taken at any time, as a power cut would leave it.
trait Rig: Sync {
    fn vfs(&self) -> Arc<dyn Vfs>;
    fn cut(&self, seed: u64) -> Box<dyn Rig>;
}

impl Rig for Arc<SimVfs> {
    fn vfs(&self) -> Arc<dyn Vfs> {
        self.clone()
    }

    fn cut(&self, seed: u64) -> Box<dyn Rig> {
        let copy = self.fork(seed);
        copy.power_cycle();
        Box::new(copy)
    }
}

impl Rig for Arc<SimDevice> {
    fn vfs(&self) -> Arc<dyn Vfs> {
        let raw: Arc<dyn BlockDevice> = self.clone();
        Arc::new(Nvmfs::open(raw, Options::default()).expect("open"))
    }

    fn cut(&self, seed: u64) -> Box<dyn Rig> {
        let copy = self.fork(seed);
        copy.power_cycle();
        Box::new(copy)
    }
}

fn directory() -> Box<dyn Rig> {
    Box::new(SimVfs::new(1))
}

fn flash() -> Box<dyn Rig> {
    let device = SimDevice::new(128 << 20, 1);
    let mut format = FormatOptions::default();
    format.ftl.segment_bytes = Some(1 << 20);
    Nvmfs::format(device.clone(), &format).expect("format");
    Box::new(device)
}

/// A pool that could be dirty all over, and a log that has space for a change of every leaf.
fn options() -> StoreOptions {
    StoreOptions {
        pool_bytes: 24 << 20,
        log_bytes: 8 << 20,
        replay_time: Duration::ZERO,
        background: false,
        ..StoreOptions::default()
    }
}

/// 1,600 leaves or more, all of them on the device.
fn load(store: &Store) -> Table {
    let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
    for first in (0..RECORDS).step_by(100) {
        let mut txn = store.begin();
        (first..first + 100).for_each(|key| txn.put(&table, &key.to_be_bytes(), &[1; 300]).expect("put"));
        txn.commit().expect("commit");
    }
    store.checkpoint().expect("checkpoint");
    table
}

/// A small change of a record anywhere.
fn change(store: &Store, table: &Table, rng: &mut SeededRng) {
    let mut value = [1; 300];
    value[100..108].copy_from_slice(&rng.below(u64::MAX).to_le_bytes());
    let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
    txn.put(table, &rng.below(RECORDS).to_be_bytes(), &value).expect("put");
    txn.commit().expect("commit");
}

fn read_all(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let table = store.table("t").expect("catalog").expect("there");
    let mut found = Vec::new();
    let each = |key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    store.begin().scan(&table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, each).expect("scan");
    found
}

/// The reads of opening a copy, by its own count and by the pool's, which also counts reads after the replay.
fn recovered(rig: &dyn Rig, seed: u64) -> RecoveryStats {
    let copy = rig.cut(seed);
    let store = Store::open(copy.vfs(), options()).expect("open");
    let stats = store.stats().expect("stats");
    assert!(stats.pool.misses >= stats.recovery.pages, "{stats:?}");
    assert!(stats.pool.misses <= stats.recovery.pages + 20, "{stats:?}");
    stats.recovery
}

/// Pages read by recoveries from cuts among changes by one thread.
fn reads_after_cuts(rig: &dyn Rig, options: StoreOptions) -> Vec<RecoveryStats> {
    let store = Store::open(rig.vfs(), options).expect("open");
    let table = load(&store);
    let mut rng = SeededRng::new(5);
    let mut all = Vec::new();
    for cut in 0..20 {
        (0..rng.below(2_000)).for_each(|_| change(&store, &table, &mut rng));
        let estimate = store.stats().expect("stats").replay;
        assert!(estimate.reads <= estimate.reads_max + OPERATION_READS, "{estimate:?}");
        all.push(recovered(rig, cut));
    }
    all
}

#[test]
fn replay_reads_what_is_allowed_wherever_it_is_cut() {
    for rig in [directory(), flash()] {
        for did in reads_after_cuts(&*rig, options()) {
            assert!(did.pages <= READS_MIN + OPERATION_READS, "{did:?}");
        }
    }
}

/// Shows that the test above is effective.
#[test]
fn with_all_the_time_in_the_world_replay_reads_more() {
    let all = reads_after_cuts(&*directory(), StoreOptions { replay_time: Duration::MAX, ..options() });
    assert!(all.iter().any(|did| did.pages > 4 * READS_MIN), "{all:?}");
    assert!(all.iter().any(|did| did.on_device > 0), "{all:?}");
}

#[test]
fn replay_reads_what_is_allowed_while_threads_write() {
    const WRITERS: u64 = 4;
    let rig = directory();
    let store = Store::open(rig.vfs(), StoreOptions { background: true, ..options() }).expect("open");
    let table = load(&store);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..WRITERS {
            let (store, table, is_over) = (&store, &table, &is_over);
            scope.spawn(move || {
                let mut rng = SeededRng::new(seed);
                while !is_over.load(Ordering::Relaxed) {
                    change(store, table, &mut rng);
                }
            });
        }
        for cut in 0..20 {
            thread::sleep(Duration::from_millis(30));
            let did = recovered(&*rig, cut);
            assert!(did.pages <= READS_MIN + WRITERS * OPERATION_READS, "{did:?}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Nor does the recovery after a recovery read more than that.
#[test]
fn pages_on_the_device_are_not_read() {
    for rig in [directory(), flash()] {
        // So many pages leave the pool that most of those that the log names have a page-write record.
        let options = StoreOptions { pool_bytes: 1 << 20, log_bytes: 64 << 20, ..options() };
        let store = Store::open(rig.vfs(), options.clone()).expect("open");
        let table = load(&store);
        let mut rng = SeededRng::new(5);
        (0..3_000).for_each(|_| change(&store, &table, &mut rng));
        let mut rig = rig.cut(1);
        let mut before: Option<RecoveryStats> = None;
        for round in 0..4 {
            let store = Store::open(rig.vfs(), options.clone()).expect("open");
            let did = store.stats().expect("stats").recovery;
            assert!(did.on_device > 2_000 && did.pages < 300, "{did:?}");
            let most = before.map_or(300, |before| before.pages + 10 * OPERATION_READS);
            assert!(did.pages <= most, "{before:?}, {did:?}");
            before = Some(did);
            let table = store.table("t").expect("catalog").expect("there");
            (0..10).for_each(|_| change(&store, &table, &mut rng));
            let next = rig.cut(round);
            drop((table, store));
            rig = next;
        }
    }
}

#[test]
fn threads_replay_what_one_does_with_little_memory_or_much() {
    for rig in [directory(), flash()] {
        let patient = StoreOptions { replay_time: Duration::MAX, ..options() };
        let store = Store::open(rig.vfs(), patient.clone()).expect("open");
        let table = load(&store);
        let mut rng = SeededRng::new(5);
        (0..20_000).for_each(|_| change(&store, &table, &mut rng));
        let want = read_all(&store);
        let cut = rig.cut(1);
        for pool_bytes in [1 << 20, 24 << 20] {
            for background in [false, true] {
                let copy = cut.cut(1);
                let options = StoreOptions { pool_bytes, background, ..patient.clone() };
                let store = Store::open(copy.vfs(), options).expect("open");
                let did = store.stats().expect("stats").recovery;
                assert!(did.applied > 10_000, "{did:?}");
                assert!(read_all(&store) == want, "{pool_bytes}, {background}");
                store.check().expect("check");
            }
        }
    }
}

/// Or the store would seem to have been made a moment ago, and all tables would be removed.
#[test]
fn a_catalog_that_was_written_and_is_gone_is_missed() {
    let vfs = SimVfs::new(1);
    // Pages have to be written before the first checkpoint is due.
    let store = Store::open(vfs.clone(), StoreOptions { log_bytes: 256 << 20, ..options() }).expect("open");
    let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
    let mut rng = SeededRng::new(5);
    (0..5_000).for_each(|_| change(&store, &table, &mut rng));
    assert_eq!(store.stats().expect("stats").flush.checkpoints, 0);
    drop((table, store));
    for name in ["t00000000.16k", "doublewrite"] {
        let file = vfs.open(name, StreamHint::Data).expect("open");
        file.punch(0, file.len().expect("length")).expect("punch");
    }
    let outcome = Store::open(vfs.clone(), options());
    assert!(matches!(outcome, Err(Error::Corrupt { .. })), "{:?}", outcome.err());
    assert!(vfs.list().expect("list").iter().any(|name| name.starts_with("t00000016")));
}
