//! Sentences of the interface's contract that no other test covers.

use std::{
    ops::{Bound, ControlFlow},
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use lacuna_device::{MemDevice, MemVfs, Vfs};
use lacuna_engine::{
    Algorithm, Direction, Doublewrite, Error, Insertion, Savepoint, Store, StoreOptions, Swap, Table,
    TableKind, TableOptions, TransactionOptions, Txn,
};
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options};
use lacuna_sim::SimVfs;

fn options() -> StoreOptions {
    StoreOptions {
        pool_bytes: 4 << 20,
        log_bytes: 1 << 20,
        background: false,
        flush_threads: 1,
        ..StoreOptions::default()
    }
}

fn flash() -> Arc<dyn Vfs> {
    let device = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(device.clone(), &FormatOptions::default()).expect("format");
    Arc::new(Nvmfs::open(device, Options::default()).expect("open"))
}

/// Bytes that do not compress, the same for the same number.
fn noise(number: u32, len: usize) -> Vec<u8> {
    let mut state = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn write(store: &Store, table: &Table, keys: u32, value: impl Fn(u32) -> Vec<u8>) {
    for key in 0..keys {
        let mut txn = store.begin();
        txn.put(table, &key.to_be_bytes(), &value(key)).expect("put");
        txn.commit().expect("commit");
    }
    store.checkpoint().expect("checkpoint");
}

#[test]
fn handles_go_between_threads_and_are_shared_by_them() {
    fn is_shared<T: Send + Sync + 'static>() {}
    is_shared::<Store>();
    is_shared::<Table>();
    is_shared::<Txn>();
    is_shared::<Savepoint>();
    is_shared::<Error>();
}

/// The transaction whose wait would close the cycle fails at once, whatever the lock timeout; the other one goes on
/// once the victim is rolled back, and the victim succeeds when it is run again.
#[test]
fn a_deadlock_costs_one_transaction() {
    let options = StoreOptions { lock_timeout: Duration::from_secs(3600), background: true, ..options() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let both_have_one = Barrier::new(2);
    let work = |first: &[u8], second: &[u8]| {
        let mut txn = store.begin();
        txn.put(&table, first, b"locked").expect("nobody is in the way");
        both_have_one.wait();
        match txn.get_for_update(&table, second) {
            Ok(_) => txn.commit().map(|()| true),
            Err(Error::Deadlock) => txn.rollback().map(|()| false),
            Err(other) => Err(other),
        }
    };
    let went_on = thread::scope(|scope| {
        let one = scope.spawn(|| work(b"a", b"b"));
        let other = scope.spawn(|| work(b"b", b"a"));
        [one, other].map(|thread| thread.join().expect("ends").expect("no other error"))
    });
    assert_eq!(went_on.iter().filter(|went_on| **went_on).count(), 1);
    let mut again = store.begin();
    again.get_for_update(&table, b"a").expect("free");
    again.put(&table, b"b", b"again").expect("free");
    again.commit().expect("commit");
}

#[test]
fn a_wait_for_a_lock_ends_in_time_and_the_transaction_goes_on() {
    let options = StoreOptions { lock_timeout: Duration::from_millis(20), ..options() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut owner = store.begin();
    owner.put(&table, b"k", b"owner").expect("put");
    let mut other = store.begin();
    other.put(&table, b"mine", b"1").expect("put");
    let timed_out = |outcome: Result<(), Error>| matches!(outcome, Err(Error::LockTimeout));
    assert!(timed_out(other.put(&table, b"k", b"other")));
    assert!(timed_out(other.insert(&table, b"k", b"other")));
    assert!(timed_out(other.delete(&table, b"k").map(drop)));
    assert!(timed_out(other.get_for_update(&table, b"k").map(drop)));
    assert_eq!(other.get(&table, b"k").expect("readers do not wait"), None);
    other.put(&table, b"mine", b"2").expect("goes on");
    other.commit().expect("commit");
    owner.rollback().expect("rollback");
    let reader = store.begin();
    assert_eq!(reader.get(&table, b"mine").expect("get").as_deref(), Some(&b"2"[..]));
    assert_eq!(reader.get(&table, b"k").expect("get"), None);
}

/// Longest key of each size of pages, and of blocks, with a value that goes into overflow pages beside it.
#[test]
fn keys_take_an_eighth_of_a_page_and_no_byte_more() {
    let store = Store::open(MemVfs::new(), StoreOptions { pool_bytes: 16 << 20, ..options() }).expect("open");
    let kinds =
        [4, 8, 16, 32, 64].map(|kib| (TableOptions::default().page_bytes(kib << 10), (kib << 10) / 8));
    let blocks = [16, 8, 4, 2, 1].map(|kib| (TableOptions::row_compressed(kib), (kib as usize) << 7));
    for (number, (options, key_bytes_max)) in kinds.into_iter().chain(blocks).enumerate() {
        let table = store.create_table(&format!("t{number}"), options).expect("create");
        let mut txn = store.begin();
        for last in 0..20 {
            let mut key = noise(7, key_bytes_max);
            key[key_bytes_max - 1] = last;
            txn.put(&table, &key, &noise(last.into(), options.page_bytes)).expect("the longest key");
            assert_eq!(txn.get(&table, &key).expect("get"), Some(noise(last.into(), options.page_bytes)));
        }
        match txn.put(&table, &vec![1; key_bytes_max + 1], b"") {
            Err(Error::TooLarge { what: "key", bytes, bytes_max }) => {
                assert_eq!((bytes, bytes_max), (key_bytes_max + 1, key_bytes_max));
            }
            other => panic!("{options:?}: {other:?}"),
        }
        txn.put(&table, b"", b"").expect("the shortest record");
        txn.commit().expect("commit");
    }
    store.check().expect("sound");
}

/// Between bounds, from both ends, also for ranges without a key.
#[test]
fn ranges_end_where_they_are_told_to() {
    let store = Store::open(MemVfs::new(), options()).expect("open");
    let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
    write(&store, &table, 500, |key| vec![key as u8; 60]);
    let range = |lower: Bound<u32>, upper: Bound<u32>, direction| {
        let [lower, upper] = [lower, upper].map(|bound| bound.map(u32::to_be_bytes));
        let mut found = Vec::new();
        let bounds = (lower.as_ref().map(|key| &key[..]), upper.as_ref().map(|key| &key[..]));
        let each = |key: &[u8], _: &[u8]| {
            found.push(u32::from_be_bytes(key.try_into().expect("four bytes")));
            ControlFlow::Continue(())
        };
        store.begin().scan(&table, bounds.0, bounds.1, direction, each).expect("scan");
        found
    };
    let bounds = |key| [Bound::Included(key), Bound::Excluded(key), Bound::Unbounded];
    for (from, to) in [(0, 499), (17, 17), (17, 18), (18, 17), (100, 400), (498, 1000), (900, 1000), (400, 3)]
    {
        for lower in bounds(from) {
            for upper in bounds(to) {
                let is_in = |key: &u32| {
                    let above = match lower {
                        Bound::Included(from) => *key >= from,
                        Bound::Excluded(from) => *key > from,
                        Bound::Unbounded => true,
                    };
                    above
                        && match upper {
                            Bound::Included(to) => *key <= to,
                            Bound::Excluded(to) => *key < to,
                            Bound::Unbounded => true,
                        }
                };
                let mut expected: Vec<u32> = (0..500).filter(is_in).collect();
                assert_eq!(range(lower, upper, Direction::Forward), expected, "{lower:?} {upper:?}");
                expected.reverse();
                assert_eq!(range(lower, upper, Direction::Backward), expected, "{lower:?} {upper:?}");
            }
        }
    }
}

/// Only the space that an older, longer image took and a newer one does not is punched.
#[test]
fn holes_are_punched_only_where_images_became_shorter() {
    for (vfs, is_flash) in [(SimVfs::new(1) as Arc<dyn Vfs>, false), (flash(), true)] {
        let store = Store::open(vfs, options()).expect("open");
        let table = store.create_table("t", TableOptions::compressed(Algorithm::Lz4)).expect("create");
        let punches = || store.tables().expect("tables")[0].punches;
        let allocated = || store.tables().expect("tables")[0].allocated_bytes;
        write(&store, &table, 400, |_| vec![7; 400]);
        assert_eq!(punches(), 0, "what was never written is a hole already");
        write(&store, &table, 400, |key| noise(key, 400));
        let (grown, long) = (punches(), allocated());
        write(&store, &table, 400, |key| noise(key + 1000, 400));
        if !is_flash {
            assert_eq!(punches(), grown, "no image became shorter by a hole's unit");
        }
        write(&store, &table, 400, |_| vec![8; 400]);
        assert!(punches() > grown && allocated() < long / 2, "{} of {long} bytes", allocated());
        assert_eq!(store.stats().expect("stats").flush.refused_punches, 0);
    }
}

/// Whatever the VFS could do by itself.
#[test]
fn pages_are_written_twice_where_asked_for_and_where_they_could_be_torn() {
    for (doublewrite, on_flash, on_a_directory) in
        [(Doublewrite::On, true, true), (Doublewrite::Off, false, false), (Doublewrite::Auto, false, true)]
    {
        for (vfs, expected) in [(flash(), on_flash), (SimVfs::new(3) as Arc<dyn Vfs>, on_a_directory)] {
            let options = StoreOptions { doublewrite, ..options() };
            let store = Store::open(vfs.clone(), options.clone()).expect("open");
            assert_eq!(store.writes_twice(), expected);
            let table = store.create_table("t", TableOptions::compressed(Algorithm::Zstd)).expect("create");
            write(&store, &table, 300, |key| noise(key, 500));
            let stats = store.stats().expect("stats").flush;
            assert_eq!(stats.doublewrite_bytes > 0, expected, "{stats:?}");
            assert!(
                stats.doublewrite_bytes == 0 || stats.doublewrite_bytes >= stats.image_bytes,
                "{stats:?}"
            );
            drop((table, store));
            let store = Store::open(vfs, options).expect("open again");
            let table = store.table("t").expect("catalog").expect("there");
            for key in 0..300_u32 {
                assert_eq!(
                    store.begin().get(&table, &key.to_be_bytes()).expect("get"),
                    Some(noise(key, 500))
                );
            }
            store.check().expect("sound");
        }
    }
}

/// A table mixes algorithms: altering it changes how pages are written from then on, and nothing else.
#[test]
fn pages_are_counted_by_the_algorithms_of_their_images() {
    for vfs in [SimVfs::new(1) as Arc<dyn Vfs>, flash()] {
        let store = Store::open(vfs, options()).expect("open");
        let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
        let pages = || store.images("t").expect("images").pages.into_iter().collect::<Vec<_>>();
        assert!(pages().is_empty(), "what is in memory only does not count");
        let value = |key: u32| [noise(key, 40), vec![7; 100]].concat();
        write(&store, &table, 1000, value);
        let all = store.images("t").expect("images");
        let [(Algorithm::None, plain)] = pages()[..] else { panic!("{all:?}") };
        assert!(plain > 40 && all.image_bytes == plain * 4096, "{all:?}");
        let mut bytes_before = all.image_bytes;
        for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::None) {
            let kind = TableKind::PageCompressed { algorithm, level: 0 };
            store.alter_table("t", kind).expect("alter");
            assert!(pages().iter().all(|(of, _)| *of != algorithm), "so far");
            write(&store, &table, 300, |key| value(key + algorithm as u32));
            assert!(pages().len() > 1 && pages().iter().any(|(of, _)| *of == algorithm), "{:?}", pages());
            for key in 0..1000_u32 {
                assert!(store.begin().get(&table, &key.to_be_bytes()).expect("get").is_some());
            }
            store.optimize("t", |_| ControlFlow::Continue(())).expect("optimize");
            let all = store.images("t").expect("images");
            assert!(all.pages.keys().eq([&algorithm]), "{all:?}");
            assert_eq!(all.pages[&algorithm] + all.unwritten, plain);
            assert!(all.image_bytes < bytes_before, "{algorithm}: {all:?}");
            bytes_before = bytes_before.max(all.image_bytes);
        }
        assert!(matches!(store.images("u"), Err(Error::NoSuchTable { .. })));
        store.check().expect("sound");
    }
}

/// Into memory of any length before, of values in the leaf and in pages of their own.
#[test]
fn a_value_is_read_into_the_callers_memory() {
    let store = Store::open(MemVfs::new(), options()).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut txn = store.begin();
    let lengths = [100, 0, 50_000, 4096, 1, 200_000, 3];
    for (key, len) in (0..).zip(lengths) {
        txn.put(&table, &[key], &noise(key.into(), len)).expect("put");
    }
    let mut value = vec![7; 10_000];
    for (key, len) in (0..).zip(lengths) {
        assert!(txn.get_into(&table, &[key], &mut value).expect("get_into"));
        assert_eq!(value, noise(key.into(), len));
        assert!(!txn.get_into(&table, &[key, key], &mut value).expect("get_into") && value.is_empty());
    }
    assert!(txn.delete(&table, &[0]).expect("delete"));
    assert!(!txn.get_into(&table, &[0], &mut value).expect("get_into"));
    assert!(!store.begin().get_into(&table, &[1], &mut value).expect("get_into"), "not committed");
}

#[test]
fn conditional_writes_say_what_was_in_their_way() {
    let store = Store::open(MemVfs::new(), options()).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut txn = store.begin();
    let long = noise(1, 100_000);
    assert_eq!(txn.insert_if_absent(&table, b"k", &long).expect("free"), Insertion::Done);
    assert_eq!(txn.insert_if_absent(&table, b"k", b"2").expect("free"), Insertion::Present(long.clone()));
    let mut swap = |expected, new| txn.compare_and_swap(&table, b"k", expected, new).expect("free");
    assert_eq!(swap(None, Some(b"2")), Swap::Other(Some(long.clone())));
    assert_eq!(swap(Some(b"1"), None), Swap::Other(Some(long.clone())));
    assert_eq!(swap(Some(&long), Some(b"2")), Swap::Done);
    assert_eq!(swap(Some(b"2"), None), Swap::Done);
    assert_eq!(swap(Some(b"2"), Some(b"3")), Swap::Other(None));
    assert_eq!(swap(None, None), Swap::Done);
    assert_eq!(swap(None, Some(b"")), Swap::Done);
    assert_eq!(swap(Some(b""), Some(b"3")), Swap::Done, "an empty value is one");
    txn.commit().expect("commit");
    assert_eq!(store.begin().get(&table, b"k").expect("get").as_deref(), Some(&b"3"[..]));
    // A record that a snapshot does not see is in the way as well.
    let mut late = store.begin();
    assert!(late.get(&table, b"other").expect("get").is_none());
    write(&store, &table, 1, |_| b"newer".to_vec());
    let key = 0u32.to_be_bytes();
    assert!(matches!(late.compare_and_swap(&table, &key, None, Some(b"v")), Err(Error::Conflict)));
    assert!(matches!(late.insert_if_absent(&table, &key, b"v"), Err(Error::Conflict)));
}

/// Each number is taken by exactly one thread.
#[test]
fn threads_count_by_compare_and_swap() {
    let store = Store::open(MemVfs::new(), StoreOptions { background: true, ..options() }).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let number = |value: Option<&[u8]>| value.map_or(0, |v| u32::from_be_bytes(v.try_into().expect("four")));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut expected: Option<Vec<u8>> = None;
                let mut taken = 0;
                while taken < 200 {
                    let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
                    let next = (number(expected.as_deref()) + 1).to_be_bytes();
                    match txn
                        .compare_and_swap(&table, b"n", expected.as_deref(), Some(&next))
                        .expect("granted")
                    {
                        Swap::Done => {
                            txn.commit().expect("commit");
                            expected = Some(next.to_vec());
                            taken += 1;
                        }
                        Swap::Other(found) => expected = found,
                    }
                }
            });
        }
    });
    assert_eq!(number(store.begin().get(&table, b"n").expect("get").as_deref()), 800);
}
