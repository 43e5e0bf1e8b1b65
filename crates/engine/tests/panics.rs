//! A panic inside of the store stops it for all threads, with an error; no thread waits for ever, and every
//! acknowledged commit is there when it is opened again.

use std::{
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use lacuna_device::{BatchOp, MemVfs, Vfs};
use lacuna_engine::{Algorithm, Error, Store, StoreOptions, Table, TableOptions};
use lacuna_sim::{HookedVfs, Hooks, SeededRng as Rng, for_each_seed};

const THREADS: u64 = 3;
/// How long a stopped store may take to release all threads.
const PATIENCE: Duration = Duration::from_secs(20);

/// Panics in the n-th call that changes something, whichever thread makes it.
struct Fuse {
    left: AtomicU64,
}

impl Fuse {
    fn burn(&self) {
        let burn = |left: u64| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, burn) == Ok(1) {
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

fn options() -> StoreOptions {
    StoreOptions { pool_bytes: 1 << 20, log_bytes: 512 << 10, flush_threads: 2, ..StoreOptions::default() }
}

fn key(thread: u64, record: u64) -> Vec<u8> {
    format!("{thread}/{record:04}").into_bytes()
}

/// Commits transactions of three records until the store stops; returns how many were acknowledged.
fn work(store: &Store, table: &Table, thread: u64) -> u64 {
    for round in 1.. {
        let attempt = || {
            let mut txn = store.begin();
            let mut rng = Rng::new(thread << 32 | round);
            for record in 0..3 {
                let mut value = vec![0; 100 + rng.below(3000) as usize];
                rng.fill(&mut value);
                value[..8].copy_from_slice(&round.to_le_bytes());
                txn.put(table, &key(thread, record + 3 * (round % 200)), &value)?;
            }
            if rng.chance(20) { txn.rollback().map(|()| false) } else { txn.commit().map(|()| true) }
        };
        match attempt() {
            Ok(_) => {}
            Err(Error::Poisoned { reason }) => {
                assert!(reason.contains("panic"), "{reason}");
                return round - 1;
            }
            Err(error) => panic!("not told of the panic: {error}"),
        }
    }
    unreachable!()
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let vfs = MemVfs::new();
    let fuse = Arc::new(Fuse { left: AtomicU64::new(0) });
    let hooked: Arc<dyn Vfs> = HookedVfs::new(vfs.clone(), Arc::clone(&fuse));
    let store = Store::open(hooked, options()).expect("open");
    let table = store.create_table("t", TableOptions::compressed(Algorithm::Lz4)).expect("table");
    fuse.left.store(1 + rng.below(600), Ordering::SeqCst);
    let (ended, all_ended) = mpsc::channel();
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (store, table, ended) = (store.clone(), table.clone(), ended.clone());
            thread::spawn(move || {
                let _ended = ended; // also by a panic
                work(&store, &table, thread)
            })
        })
        .collect();
    let checker = {
        let store = store.clone();
        thread::spawn(move || {
            let _ended = ended;
            while !matches!(store.checkpoint(), Err(Error::Poisoned { .. })) {
                thread::yield_now();
            }
        })
    };
    assert_eq!(
        all_ended.recv_timeout(PATIENCE),
        Err::<(), _>(mpsc::RecvTimeoutError::Disconnected),
        "somebody still waits"
    );
    let acknowledged: Vec<Option<u64>> = threads.into_iter().map(|thread| thread.join().ok()).collect();
    let _ = checker.join();
    assert!(matches!(store.begin().put(&table, b"k", b"v"), Err(Error::Poisoned { .. })));
    drop((table, store));

    let store = Store::open(vfs, options()).expect("open again");
    let table = store.table("t").expect("catalog").expect("table");
    store.check().expect("check");
    for (thread, rounds) in acknowledged.into_iter().enumerate() {
        for round in (1..=rounds.unwrap_or(0)).rev().take(100) {
            let mut rng = Rng::new((thread as u64) << 32 | round);
            let mut values = Vec::new();
            for record in 0..3 {
                let mut value = vec![0; 100 + rng.below(3000) as usize];
                rng.fill(&mut value);
                value[..8].copy_from_slice(&round.to_le_bytes());
                values.push((key(thread as u64, record + 3 * (round % 200)), value));
            }
            if rng.chance(20) {
                continue;
            }
            for (key, value) in values {
                assert!(
                    store.begin().get(&table, &key).expect("get") == Some(value),
                    "an acknowledged commit"
                );
            }
        }
    }
}

#[test]
fn a_panic_stops_the_store_for_everybody_and_loses_nothing() {
    for_each_seed(30, run);
}

/// The caller catches the panic and goes on with the store, which holds changes that are in no log.
#[test]
fn a_panic_that_is_caught_stops_the_store() {
    let fuse = Arc::new(Fuse { left: AtomicU64::new(0) });
    let vfs = HookedVfs::new(MemVfs::new(), Arc::clone(&fuse));
    let store = Store::open(vfs, StoreOptions { background: false, ..options() }).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("table");
    let mut txn = store.begin();
    txn.put(&table, b"key", b"value").expect("put");
    txn.commit().expect("commit");
    fuse.left.store(1, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| store.checkpoint())).is_err(), "nothing was written");
    let outcome = store.begin().put(&table, b"key", b"other");
    assert!(matches!(&outcome, Err(Error::Poisoned { reason }) if reason.contains("panic")), "{outcome:?}");
}

/// As that, while a caller's own thread writes pages: in `optimize`, or in a transaction that is used again.
#[test]
fn a_panic_in_a_flush_by_the_caller_stops_the_store() {
    for in_optimize in [false, true] {
        let fuse = Arc::new(Fuse { left: AtomicU64::new(0) });
        let vfs = HookedVfs::new(MemVfs::new(), Arc::clone(&fuse));
        let store = Store::open(vfs, StoreOptions { background: false, ..options() }).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("table");
        let mut txn = store.begin();
        let mut value = vec![0; 3000];
        let mut rng = Rng::new(1);
        (0..100).for_each(|record| {
            rng.fill(&mut value);
            txn.put(&table, &key(0, record), &value).expect("put");
        });
        if in_optimize {
            txn.commit().expect("commit");
            store.alter_table("t", TableOptions::compressed(Algorithm::Lz4).kind).expect("alter");
            fuse.left.store(1, Ordering::SeqCst);
            let caught =
                catch_unwind(AssertUnwindSafe(|| store.optimize("t", |_| ControlFlow::Continue(()))));
            assert!(caught.is_err(), "nothing was written");
        } else {
            fuse.left.store(1, Ordering::SeqCst);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                for record in 100.. {
                    rng.fill(&mut value);
                    txn.put(&table, &key(0, record), &value).expect("put");
                }
            }));
            assert!(caught.is_err());
            let outcome = txn.put(&table, b"key", b"other");
            assert!(matches!(outcome, Err(Error::Poisoned { .. })), "{outcome:?}");
        }
        let outcome = store.checkpoint();
        assert!(
            matches!(&outcome, Err(Error::Poisoned { reason }) if reason.contains("panic")),
            "{outcome:?}"
        );
    }
}
