//! The reasons for which pages are written.

use lacuna_device::MemVfs;
use lacuna_engine::{FlushStats, Store, StoreOptions, TableOptions};

/// Changes 4,000 records ten times, in another order each time.
fn flushed(pool_bytes: usize, log_bytes: u64) -> (Store, FlushStats) {
    let options = StoreOptions { pool_bytes, log_bytes, background: false, ..StoreOptions::default() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = store.open_table("t", TableOptions::default().page_bytes(4096)).expect("table");
    for round in 0..10_u32 {
        for part in 0..40 {
            let mut txn = store.begin();
            for i in 0..100 {
                let key = (part * 100 + i) * (2 * round + 7) % 4_000;
                txn.put(&table, &key.to_be_bytes(), &[round as u8; 300]).expect("put");
            }
            txn.commit().expect("commit");
            store.step().expect("step");
        }
    }
    let stats = store.stats().expect("stats").flush;
    (store, stats)
}

fn for_reasons(stats: FlushStats) -> u64 {
    stats.for_eviction + stats.for_log + stats.for_dirty
}

#[test]
fn a_small_log_makes_pages_be_written() {
    let (store, stats) = flushed(64 << 20, 1 << 20);
    assert!(stats.for_log > 0 && stats.for_eviction + stats.for_dirty == 0, "{stats:?}");
    assert!(stats.again > 0 && stats.again < stats.pages, "{stats:?}");
    assert_eq!(for_reasons(stats), stats.pages);
    store.checkpoint().expect("checkpoint");
    let after = store.stats().expect("stats").flush;
    assert!(after.pages > stats.pages && for_reasons(after) == for_reasons(stats), "{after:?}");
}

#[test]
fn a_small_pool_makes_pages_be_written() {
    let (_, stats) = flushed(1 << 20, 256 << 20);
    assert!(stats.for_eviction + stats.for_dirty > 0 && stats.for_log == 0, "{stats:?}");
}

#[test]
fn with_space_for_all_nothing_is_written() {
    let (_, stats) = flushed(64 << 20, 256 << 20);
    assert_eq!(stats.pages, 0, "{stats:?}");
}

/// Nearly all of the pool is dirty, and each transaction brings in one page and dirties it.
#[test]
fn few_pages_are_written_twice_although_all_are_dirty() {
    let options = StoreOptions { pool_bytes: 2 << 20, background: false, ..StoreOptions::default() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = store.open_table("t", TableOptions::default().page_bytes(4096)).expect("table");
    for round in 0..3_u32 {
        for i in 0..20_000_u32 {
            let mut txn = store.begin();
            // Records of a page lie far apart in time; one of three is in every transaction.
            for key in [i % 3, 100 + i * 7_919 % 20_000] {
                txn.put(&table, &key.to_be_bytes(), &[round as u8; 300]).expect("put");
            }
            txn.commit().expect("commit");
            if i % 50 == 0 {
                store.step().expect("step");
            }
        }
    }
    let stats = store.stats().expect("stats").flush;
    assert!(stats.for_eviction > 40_000, "{stats:?}");
    assert!(stats.again < stats.pages / 40, "{stats:?}");
}

/// Groups of the log that were made for a larger one may be longer than what is to be freed of a smaller one.
#[test]
fn a_log_that_may_hold_less_than_before_lets_writers_on() {
    for (records, log_bytes) in [(3_000_u32, 256 << 10), (12_000, 1 << 20), (60_000, 4 << 20)] {
        let vfs = MemVfs::new();
        let open = |log_bytes, background| {
            let options = StoreOptions { log_bytes, background, ..StoreOptions::default() };
            Store::open(vfs.clone(), options).expect("open")
        };
        let store = open(256 << 20, false);
        let table = store.open_table("t", TableOptions::default()).expect("table");
        let mut txn = store.begin();
        for i in 0..records {
            txn.put(&table, &i.to_be_bytes(), &[i as u8; 100]).expect("put");
        }
        txn.commit().expect("commit");
        drop((table, store)); // as by a crash
        for background in [false, true] {
            let store = open(log_bytes, background);
            let (sender, ended) = std::sync::mpsc::channel();
            let writer = {
                let store = store.clone();
                std::thread::spawn(move || {
                    let table = store.open_table("t", TableOptions::default()).expect("table");
                    let mut txn = store.begin();
                    txn.put(&table, b"another key", b"value").expect("put");
                    txn.commit().expect("commit");
                    sender.send(()).expect("somebody waits");
                })
            };
            let written = ended.recv_timeout(std::time::Duration::from_secs(60));
            written.unwrap_or_else(|_| {
                panic!("{records} records, {log_bytes} bytes: the writer waits for ever")
            });
            writer.join().expect("ends");
            drop(store); // as by a crash
        }
    }
}
