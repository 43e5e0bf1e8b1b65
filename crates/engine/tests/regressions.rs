//! Histories that once failed, each named for the property that it must keep.

use std::{
    ops::{Bound, ControlFlow},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lacuna_device::{AlignedBuf, BatchOp, FileProps, MemVfs, StreamHint, Vfs};
use lacuna_engine::{
    Algorithm, Direction, Doublewrite, Durability, Error, Store, StoreOptions, Table, TableOptions,
    TransactionOptions,
};
use lacuna_sim::{HookedVfs, Hooks, SeededRng, SimVfs, for_each_seed};

fn options() -> StoreOptions {
    StoreOptions {
        pool_bytes: 16 << 20,
        log_bytes: 64 << 20,
        background: false,
        durability: Durability::Relaxed,
        lock_timeout: Duration::from_secs(1),
        ..StoreOptions::default()
    }
}

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

fn count(store: &Store, table: &Table) -> usize {
    let mut found = 0;
    let all = (Bound::Unbounded, Bound::Unbounded);
    store
        .begin()
        .scan(table, all.0, all.1, Direction::Forward, |_, _| {
            found += 1;
            ControlFlow::Continue(())
        })
        .expect("scan");
    found
}

/// More pages than recovery has memory for: some are flushed while the log is replayed, and the checkpoint must not
/// pass what was not replayed yet.
#[test]
fn recovery_under_pressure_replays_the_whole_log() {
    let vfs = MemVfs::new();
    let store = Store::open(vfs.clone(), options()).expect("open");
    let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
    for i in 0..20_000 {
        let mut txn = store.begin();
        txn.put(&table, &key(i), &[7; 100]).expect("put");
        txn.commit().expect("commit");
    }
    drop((table, store));
    let tight = StoreOptions { pool_bytes: 1 << 20, log_bytes: 256 << 10, ..options() };
    let store = Store::open(vfs, tight).expect("recover");
    let table = store.table("t").expect("catalog").expect("there");
    assert!(store.tables().expect("tables")[0].flushed_pages > 50);
    assert_eq!(count(&store, &table), 20_000);
    store.check().expect("check");
}

/// During replay the tables' options are not known yet. Compressed tables must not grow by it: the VFS may be full of
/// them.
#[test]
fn recovery_under_pressure_leaves_pages_as_small_as_they_were() {
    for (kind, is_plain) in
        [(TableOptions::default(), true), (TableOptions::compressed(Algorithm::Zstd), false)]
    {
        let vfs = MemVfs::new();
        let store = Store::open(vfs.clone(), options()).expect("open");
        let table = store.create_table("t", kind.page_bytes(4096)).expect("create");
        let write = |from: u32| {
            let mut txn = store.begin();
            (from..from + 20_000).for_each(|i| txn.put(&table, &key(i), &[7; 100]).expect("put"));
            txn.commit().expect("commit");
        };
        // Some pages are on the device, some only in the log.
        write(0);
        store.checkpoint().expect("checkpoint");
        write(5000);
        drop((table, store));
        let tight = StoreOptions { pool_bytes: 1 << 20, log_bytes: 256 << 10, ..options() };
        let store = Store::open(vfs, tight).expect("recover");
        let written = &store.tables().expect("tables")[0];
        assert!(written.flushed_pages > 50, "recovery wrote {} pages", written.flushed_pages);
        match is_plain {
            true => assert!(written.flushed_plain_pages > 0, "what was plain is plain"),
            false => assert_eq!(written.flushed_plain_pages, 0),
        }
    }
}

/// The undo slot of the greatest transaction number may be taken over by a lesser one.
#[test]
fn transaction_numbers_are_not_used_twice() {
    let vfs = MemVfs::new();
    let store = Store::open(vfs.clone(), options()).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut early = store.begin();
    early.get_for_update(&table, b"early").expect("lock");
    let mut late = store.begin();
    late.put(&table, b"late", b"committed").expect("put");
    late.commit().expect("commit");
    early.put(&table, b"early", b"committed").expect("put");
    early.commit().expect("commit");
    drop(table);
    store.close().expect("close");

    let store = Store::open(vfs, options()).expect("open");
    let table = store.table("t").expect("catalog").expect("there");
    let mut next = store.begin();
    next.put(&table, b"next", b"running").expect("put");
    let seen = store.begin().get(&table, b"late").expect("get");
    assert_eq!(seen.as_deref(), Some(&b"committed"[..]));
}

/// A table whose creation was cut off, with its pages in the log but not its row, leaves no pages in memory for the
/// next table of its number.
#[test]
fn a_table_of_another_page_size_may_follow_an_interrupted_one() {
    let options = StoreOptions { log_bytes: 256 << 10, ..options() };
    let small = TableOptions::default().page_bytes(4096);
    for (filler, cut) in (100..116).flat_map(|filler| (1..8).map(move |cut| (filler, cut))) {
        let vfs = SimVfs::new(cut);
        let store = Store::open(vfs.clone(), options.clone()).expect("open");
        let table = store.create_table("filler", small).expect("create");
        let mut txn = store.begin();
        for i in 0..filler {
            txn.put(&table, &key(i), &[7; 20]).expect("put");
        }
        txn.commit().expect("commit");
        vfs.set_cut_after(cut);
        let _ = store.create_table("small", small);
        drop((table, store));
        vfs.power_cycle();
        let store = Store::open(vfs.clone(), options.clone()).expect("recover");
        let table =
            store.create_table("large", TableOptions::default().page_bytes(64 << 10)).expect("create");
        let mut txn = store.begin();
        txn.put(&table, b"k", &[1; 16 << 10]).expect("put");
        txn.commit().expect("commit");
        store.checkpoint().expect("checkpoint");
        assert_eq!(count(&store, &table), 1);
    }
}

/// The doublewrite file, new in a store that had none, must not vanish in the crash that it is for.
#[test]
fn the_doublewrite_file_survives_the_first_crash() {
    for (cut, seed) in (1..20).flat_map(|cut| (0..10).map(move |seed| (cut, seed))) {
        let vfs = SimVfs::new(seed * 100 + cut);
        let without = StoreOptions { doublewrite: Doublewrite::Off, ..options() };
        let store = Store::open(vfs.clone(), without).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("create");
        let mut txn = store.begin();
        (0..50).for_each(|i| txn.put(&table, &key(i), &[7; 200]).expect("put"));
        txn.commit().expect("commit");
        drop(table);
        store.close().expect("close");

        let store = Store::open(vfs.clone(), options()).expect("open");
        let table = store.table("t").expect("catalog").expect("there");
        let mut txn = store.begin();
        (0..50).for_each(|i| txn.put(&table, &key(i), &[8; 200]).expect("put"));
        txn.commit().expect("commit");
        vfs.set_cut_after(cut);
        let _ = store.checkpoint();
        drop((table, store));
        vfs.power_cycle();
        let store = Store::open(vfs, options()).unwrap_or_else(|e| panic!("cut {cut}, seed {seed}: {e}"));
        let table = store.table("t").expect("catalog").expect("there");
        assert_eq!(count(&store, &table), 50);
    }
}

/// Damage in the middle of the log is not its end: commits after it were acknowledged.
#[test]
fn damage_inside_the_log_is_not_taken_for_its_end() {
    let vfs = SimVfs::new(1);
    let sync = StoreOptions { durability: Durability::Sync, ..options() };
    let store = Store::open(vfs.clone(), sync.clone()).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    for i in 0..100 {
        let mut txn = store.begin();
        txn.put(&table, &key(i), &[7; 100]).expect("put");
        txn.commit().expect("commit");
    }
    drop((table, store));
    vfs.flip_bit("wal.000000", 20 * 512 + 100, 3);
    let opened = Store::open(vfs, sync);
    assert!(matches!(opened, Err(Error::Corrupt { .. })), "commits were lost in silence");
}

/// The bytes of the log up to there.
fn log_of(vfs: &SimVfs, bytes: usize) -> AlignedBuf {
    let mut log = AlignedBuf::zeroed(bytes);
    vfs.open("wal.000000", StreamHint::Log).expect("log").read_at(0, &mut log).expect("read");
    log
}

/// A group of the log as an attacker would make it who knows all but the store's salt.
fn forged_group(at: u64) -> Vec<u8> {
    let records = [1, 0, 0, 0, 9];
    let mut group = b"LcWG\x01\0\0\0\0\0\0\0".to_vec();
    group.extend_from_slice(&(32 + records.len() as u32).to_le_bytes());
    group.extend_from_slice(&at.to_le_bytes());
    group.extend_from_slice(&u64::MAX.to_le_bytes());
    group.extend_from_slice(&records);
    let checksum = lacuna_crc::crc32c(&group);
    group[8..12].copy_from_slice(&checksum.to_le_bytes());
    group
}

/// The last group is torn: the bytes of a value follow the new end of the log.
#[test]
fn a_value_does_not_pass_for_a_group_of_the_log() {
    let sync = StoreOptions { durability: Durability::Sync, ..options() };
    let before = SimVfs::new(1);
    let store = Store::open(before.clone(), sync.clone()).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut txn = store.begin();
    txn.put(&table, b"before", b"v").expect("put");
    txn.commit().expect("commit");
    drop(table);
    store.close().expect("close");
    let logged = |value: &[u8]| {
        let vfs = before.fork(1);
        let store = Store::open(vfs.clone(), sync.clone()).expect("open");
        let table = store.table("t").expect("catalog").expect("there");
        let mut txn = store.begin();
        txn.put(&table, b"torn", value).expect("put");
        txn.commit().expect("commit");
        drop((table, store));
        vfs
    };
    let mut value = [0xa5; 2000];
    let log = log_of(&logged(&value), 64 << 10);
    let start = log.windows(value.len()).position(|bytes| *bytes == value).expect("the value is logged");
    let sector = start.next_multiple_of(512);
    let forged = forged_group(sector as u64);
    value[sector - start..][..forged.len()].copy_from_slice(&forged);

    let vfs = logged(&value);
    let log = log_of(&vfs, 64 << 10);
    assert!(log[sector..].starts_with(&forged), "the value lies where it lay before");
    let is_group = |at: &usize| log[*at..].starts_with(b"LcWG");
    let group = (0..sector).step_by(512).rfind(is_group).expect("the group that the value is in");
    let file = vfs.open("wal.000000", StreamHint::Log).expect("log");
    file.write_at(group as u64, &AlignedBuf::zeroed(512)).expect("write");
    let store = Store::open(vfs, sync.clone()).expect("a commit that was torn was not acknowledged");
    let table = store.table("t").expect("catalog").expect("there");
    assert_eq!(count(&store, &table), 1);
    store.check().expect("check");
}

/// The control file's newest slot is damaged: the older one names log that was freed.
#[test]
fn a_damaged_control_slot_is_noticed() {
    let mut refused = 0;
    for slot in [0, 4096] {
        let vfs = SimVfs::new(1);
        let store = Store::open(vfs.clone(), options()).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("create");
        for i in 0..300 {
            let mut txn = store.begin();
            txn.put(&table, &key(i), &[7; 100]).expect("put");
            txn.commit().expect("commit");
        }
        drop(table);
        store.close().expect("close");
        vfs.flip_bit("control", slot + 40, 3);
        match Store::open(vfs, options()) {
            Ok(store) => {
                let table = store.table("t").expect("catalog").expect("there");
                assert_eq!(count(&store, &table), 300);
            }
            Err(Error::Corrupt { .. }) => refused += 1,
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!(refused, 1, "one of the slots is the newest");
}

/// The catalog's pages are gone. Making a new catalog would remove every table's file.
#[test]
fn a_lost_catalog_is_not_made_anew() {
    let vfs = SimVfs::new(1);
    let store = Store::open(vfs.clone(), options()).expect("open");
    store.create_table("t", TableOptions::default()).expect("create");
    store.close().expect("close");
    let file = vfs.open("t00000000.16k", StreamHint::Data).expect("open");
    file.punch(0, file.len().expect("len")).expect("punch");
    let lost = matches!(Store::open(vfs.clone(), options()), Err(Error::Corrupt { .. }));
    assert!(lost, "a lost catalog was taken for a new store");
    assert!(vfs.list().expect("list").contains(&"t00000016.16k".to_string()));
}

/// A rollback writes as much as the changes it undoes: it must stay within the bounds of memory and log.
#[test]
fn a_long_rollback_keeps_within_memory() {
    let store = Store::open(MemVfs::new(), StoreOptions { pool_bytes: 1 << 20, ..options() }).expect("open");
    let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
    let mut txn = store.begin();
    for i in 0..40_000_u32 {
        // Far apart from one another, so that every change meets another page.
        txn.put(&table, &key(i.wrapping_mul(0x9e37_79b1)), &[7; 200]).expect("put");
    }
    txn.rollback().expect("rollback");
    let bytes = store.stats().expect("stats").pool.bytes;
    assert!(bytes < 2 << 20, "{bytes} bytes in a pool of 1 MiB");
}

/// Going back to a savepoint that an earlier one undid must not undo everything.
#[test]
fn a_savepoint_that_was_undone_is_refused() {
    let store = Store::open(MemVfs::new(), options()).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut txn = store.begin();
    txn.put(&table, b"a", b"1").expect("put");
    let first = txn.savepoint().expect("savepoint");
    txn.put(&table, b"b", b"2").expect("put");
    let second = txn.savepoint().expect("savepoint");
    txn.rollback_to(first).expect("rollback");
    txn.put(&table, b"c", b"3").expect("put");
    assert!(matches!(txn.rollback_to(second), Err(Error::BadOption { .. })));
    txn.rollback_to(first).expect("still good");
    txn.commit().expect("commit");
    assert_eq!(count(&store, &table), 1);
}

/// A transaction that outlives its store must not touch the VFS, which may have a new owner.
#[test]
fn a_closed_store_takes_no_more_changes() {
    let vfs: Arc<dyn Vfs> = MemVfs::new();
    let store = Store::open(vfs.clone(), options()).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut running = store.begin();
    running.put(&table, b"k", b"v").expect("put");
    store.close().expect("close");
    assert!(matches!(running.put(&table, b"l", b"v"), Err(Error::Closed)));
    drop(running);
    let store = Store::open(vfs, options()).expect("open");
    let table = store.table("t").expect("catalog").expect("there");
    assert_eq!(count(&store, &table), 0);
}

/// A VFS whose files have no holes, as on many network file systems.
struct Solid {
    /// The hole size it reports: it may find out only at the first request that it has no holes.
    hole_unit: u32,
    asked: AtomicU64,
}

fn solid(hole_unit: u32) -> (Arc<HookedVfs<Solid>>, Arc<Solid>) {
    let solid = Arc::new(Solid { hole_unit, asked: AtomicU64::new(0) });
    (HookedVfs::new(SimVfs::new(1), solid.clone()), solid)
}

impl Hooks for Solid {
    fn props(&self, props: FileProps) -> FileProps {
        FileProps { hole_unit: self.hole_unit, ..props }
    }
    fn before_batch(&self, ops: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        if ops.iter().any(|op| matches!(op, BatchOp::Punch { .. })) {
            assert!(self.hole_unit > 0 && ops.len() == 1, "who asks for a hole risks nothing else");
            self.asked.fetch_add(1, Ordering::Relaxed);
            return self.before_punch();
        }
        Ok(())
    }
    fn before_punch(&self) -> lacuna_device::Result<()> {
        Err(lacuna_device::Error::Unsupported { what: "solid file".into(), operation: "punch a hole" })
    }
}

#[test]
fn a_place_without_holes_opens_again() {
    let (vfs, _) = solid(0);
    let store = Store::open(vfs.clone(), options()).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut txn = store.begin();
    txn.put(&table, b"k", b"v").expect("put");
    txn.commit().expect("commit");
    drop((table, store));
    for _ in 0..2 {
        let store = Store::open(vfs.clone(), options()).expect("open again");
        let table = store.table("t").expect("catalog").expect("there");
        assert_eq!(count(&store, &table), 1);
        store.close().expect("close");
    }
}

/// Lengths of the log's files.
fn log_files(vfs: &dyn Vfs) -> Vec<(String, u64)> {
    let names = vfs.list().expect("list").into_iter().filter(|name| name.starts_with("wal."));
    names
        .map(|name| {
            let file = vfs.open(&name, StreamHint::Log).expect("open");
            (name, file.len().expect("length"))
        })
        .collect()
}

/// It grew for ever: what is no longer needed was given back by holes, or with a file of 2^40 bytes.
#[test]
fn a_place_without_holes_gives_log_back() {
    const FILE_BYTES: u64 = 64 << 20;
    let sim = SimVfs::new(1);
    // It was made where there are holes.
    let store = Store::open(sim.clone(), options()).expect("open");
    store.create_table("t", TableOptions::default()).expect("create");
    store.close().expect("close");
    let vfs = HookedVfs::new(sim, Arc::new(Solid { hole_unit: 0, asked: AtomicU64::new(0) }));
    let options = StoreOptions { log_bytes: 1 << 20, durability: Durability::Relaxed, ..options() };
    let value = vec![7; 100 << 10];
    let mut logged = 0;
    let mut version = 0_u32;
    while logged < 2 * FILE_BYTES {
        let store = Store::open(vfs.clone(), options.clone()).expect("open");
        let table = store.table("t").expect("catalog").expect("there");
        for _ in 0..200 {
            let mut txn = store.begin();
            txn.put(&table, b"long", &value).expect("put");
            txn.put(&table, b"version", &version.to_be_bytes()).expect("put");
            txn.commit().expect("commit");
            version += 1;
        }
        logged += store.stats().expect("stats").log.written_bytes;
        store.close().expect("close");
        let bytes: u64 = log_files(&*vfs).iter().map(|(_, bytes)| bytes).sum();
        assert!(bytes <= FILE_BYTES * 5 / 4, "{bytes} bytes of log after {logged}");
    }
    // A power cut may bring back the name of a file that was removed.
    let files = log_files(&*vfs);
    assert!(files.iter().all(|(name, _)| name != "wal.000000"), "{files:?}");
    vfs.create("wal.000000", StreamHint::Log).expect("create").set_len(1 << 20).expect("length");
    let store = Store::open(vfs.clone(), options).expect("open");
    let table = store.table("t").expect("catalog").expect("there");
    let txn = store.begin();
    assert_eq!(txn.get(&table, b"version").expect("get"), Some((version - 1).to_be_bytes().to_vec()));
    assert_eq!(txn.get(&table, b"long").expect("get"), Some(value));
    drop(txn);
    store.check().expect("sound");
    store.close().expect("close");
    let files = log_files(&*vfs);
    assert!(files.iter().all(|(name, _)| name != "wal.000000"), "{files:?}");
}

/// Where holes are refused, images that become shorter keep the space of longer ones, without any other effect.
#[test]
fn refused_holes_cost_room_and_nothing_else() {
    let (vfs, holes) = solid(4096);
    // Without threads a writer can be refused.
    let options = StoreOptions { doublewrite: Doublewrite::Off, log_bytes: 1 << 20, ..options() };
    let store = Store::open(vfs.clone(), options.clone()).expect("open");
    let table = store.create_table("t", TableOptions::compressed(Algorithm::Lz4)).expect("create");
    let write = |store: &Store, table: &Table, of: fn(u32) -> u8| {
        for i in 0..400_u32 {
            let value: Vec<u8> = (0..400).map(|at| of(i.wrapping_mul(40503).wrapping_add(at * at))).collect();
            let mut txn = store.begin();
            txn.put(table, &key(i), &value).expect("put");
            txn.commit().expect("commit");
        }
        store.checkpoint().expect("a refused hole is no failure");
    };
    write(&store, &table, |x| (x.wrapping_mul(2_654_435_761) >> 13) as u8);
    write(&store, &table, |_| 7);
    assert_eq!(holes.asked.load(Ordering::Relaxed), 1, "after the first refusal no more are asked for");
    let flush = store.stats().expect("stats").flush;
    assert_eq!((flush.punches, flush.refused_punches), (0, 1));
    let info = store.tables().expect("tables").remove(0);
    assert_eq!((info.punches, info.refused_punches), (0, 1));
    store.check().expect("sound");
    store.close().expect("close");

    let store = Store::open(vfs.clone(), options).expect("open again");
    let table = store.table("t").expect("catalog").expect("there");
    assert_eq!(count(&store, &table), 400);
    write(&store, &table, |x| (x.wrapping_mul(2_654_435_761) >> 13) as u8);
    write(&store, &table, |_| 8);
    assert_eq!(holes.asked.load(Ordering::Relaxed), 2, "once more for each opening");
    assert_eq!(store.begin().get(&table, &key(399)).expect("get"), Some(vec![8; 400]));
}

/// "For ever" is a timeout too.
#[test]
fn the_longest_timeout_does_not_overflow() {
    let options = StoreOptions { lock_timeout: Duration::MAX, ..options() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut txn = store.begin();
    txn.put(&table, b"k", b"v").expect("put");
    txn.commit().expect("commit");
}

/// After a failed sync the directory's cache shows what the medium may not hold. A store opened again over
/// that cache must make it durable before it builds on it.
#[test]
fn what_only_the_cache_held_after_a_failed_sync_survives_a_later_cut() {
    for_each_seed(60, |seed| {
        let vfs = SimVfs::new(seed);
        // Without doublewrite the first sync of a checkpoint is that of the pages themselves.
        let fails_pages = seed % 2 == 0;
        let doublewrite = if fails_pages { Doublewrite::Off } else { Doublewrite::Auto };
        let options = StoreOptions { durability: Durability::Sync, doublewrite, ..options() };
        let store = Store::open(vfs.clone(), options.clone()).expect("open");
        let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
        let commit = |store: &Store, table: &Table, i: u32| {
            let mut txn = store.begin();
            txn.put(table, &key(i), &[i as u8; 300])?;
            txn.commit()
        };
        for i in 0..40 {
            commit(&store, &table, i).expect("commit");
        }
        vfs.fail_sync();
        let failed = if fails_pages { store.checkpoint() } else { commit(&store, &table, 40) };
        assert!(failed.is_err(), "the sync did not fail");
        drop((table, store));
        vfs.heal();

        // No power cycle: the cache is still there.
        let store = Store::open(vfs.clone(), options.clone()).expect("opens over the cache");
        let table = store.table("t").expect("catalog").expect("there");
        let shown = count(&store, &table);
        assert!(shown >= 40);
        for i in 100..120 {
            commit(&store, &table, i).expect("commit");
        }
        if fails_pages || seed % 3 == 0 {
            store.checkpoint().expect("checkpoint");
        }
        drop((table, store));
        vfs.power_cycle();
        let store = Store::open(vfs.clone(), options.clone()).expect("opens after the cut");
        let table = store.table("t").expect("catalog").expect("there");
        assert_eq!(count(&store, &table), shown + 20);
        store.check().expect("check");
    });
}

/// A process that ends between the write of its pages and their sync leaves pages in the cache that only the
/// doublewrite file holds on the medium. The next opening overwrites that file, with other pages first.
#[test]
fn a_cut_in_a_recovery_after_a_kill_tears_no_page_for_good() {
    for_each_seed(20, |seed| {
        let mut rng = SeededRng::new(seed);
        let vfs = SimVfs::new(seed);
        let options = StoreOptions { pool_bytes: 4 << 20, ..options() };
        let change = |store: &Store, value: u8| {
            let table = store.open_table("t", TableOptions::default()).expect("table");
            let mut txn = store.begin();
            (0..400).for_each(|i| txn.put(&table, &key(i), &[value; 3000]).expect("put"));
            txn.commit().expect("commit");
        };
        let store = Store::open(vfs.clone(), options.clone()).expect("open");
        change(&store, 1);
        store.checkpoint().expect("checkpoint");
        change(&store, 2);
        vfs.set_cut_after(1 + rng.below(150));
        assert!(store.checkpoint().is_err() || !vfs.is_off());
        drop(store);
        vfs.kill();
        let again = Store::open(vfs.clone(), options.clone()).expect("opens over the cache");
        vfs.set_cut_after(1 + rng.below(150));
        assert!(again.checkpoint().is_err() || !vfs.is_off());
        drop(again);
        vfs.power_cycle();
        let store = Store::open(vfs.clone(), options.clone()).expect("opens after the cut");
        let table = store.table("t").expect("catalog").expect("there");
        assert_eq!(count(&store, &table), 400);
        store.check().expect("check");
    });
}

/// The same of names: the file of a dropped table must not come back when a part of its log has been freed.
#[test]
fn names_that_a_killed_process_changed_are_durable_before_the_log_is_given_up() {
    for_each_seed(20, |seed| {
        let mut rng = SeededRng::new(seed);
        let vfs = SimVfs::new(seed);
        let options = StoreOptions { durability: Durability::Sync, log_bytes: 256 << 10, ..options() };
        let write = |table: &Table, store: &Store, i: u32| {
            let mut txn = store.begin();
            txn.put(table, &key(i), &[i as u8; 700]).expect("put");
            txn.commit().expect("commit");
        };
        let store = Store::open(vfs.clone(), options.clone()).expect("open");
        let [stays, victim] = ["stays", "victim"]
            .map(|name| store.create_table(name, TableOptions::default().page_bytes(4096)).expect("table"));
        for i in 0..70 {
            write(&victim, &store, i * 37 % 70);
            write(&stays, &store, i);
        }
        drop(victim);
        vfs.set_cut_after(1 + rng.below(6));
        let cut = store.drop_table("victim");
        assert!(cut.is_err() || !vfs.is_off());
        vfs.set_cut_after(0);
        drop((stays, store));
        vfs.kill();
        let store = Store::open(vfs.clone(), options.clone()).expect("opens over the cache");
        let stays = store.table("stays").expect("catalog").expect("there");
        for i in 70..70 + rng.below(60) as u32 {
            write(&stays, &store, i);
            store.step().expect("step");
        }
        let records = count(&store, &stays);
        vfs.set_cut_after(0);
        drop((stays, store));
        vfs.power_cycle();
        let store = Store::open(vfs.clone(), options.clone()).expect("opens after the cut");
        let stays = store.table("stays").expect("catalog").expect("there");
        assert_eq!(count(&store, &stays), records);
        store.check().expect("check");
    });
}

/// A new holder of a lock sees what was committed under it. No transaction waits, so that many arrive while a lock is
/// released; and views are taken meanwhile, of many running transactions, so that it takes long to become visible.
#[test]
fn a_lock_is_given_up_with_what_was_done_under_it() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 400;
    /// Retries `work` until no other transaction has a lock that it needs.
    fn insist<T>(mut work: impl FnMut() -> Result<T, Error>) -> T {
        loop {
            match work() {
                Err(Error::LockTimeout) => std::hint::spin_loop(),
                done => return done.expect("nothing but a lock is in the way"),
            }
        }
    }
    let store = StoreOptions { lock_timeout: Duration::ZERO, ..options() };
    let store = Store::open(MemVfs::new(), store).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let committed = || store.begin_with(TransactionOptions::READ_COMMITTED);
    let running: Vec<_> = (0..2000_u32)
        .map(|i| {
            let mut txn = committed();
            txn.get_for_update(&table, &[&b"idle"[..], &key(i)].concat()).expect("lock");
            txn
        })
        .collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                store.begin().get(&table, b"nothing").expect("get");
            }
        });
        let add = || {
            for _ in 0..ROUNDS {
                let mut txn = committed();
                insist(|| txn.get_for_update(&table, b"lock"));
                let count = txn.get(&table, b"count").expect("get");
                let count = count.map_or(0, |count| u64::from_le_bytes(count.try_into().expect("a number")));
                insist(|| txn.put(&table, b"count", &(count + 1).to_le_bytes()));
                txn.commit().expect("commit");
            }
        };
        let adding: Vec<_> = (0..THREADS).map(|_| scope.spawn(add)).collect();
        let ended: Vec<_> = adding.into_iter().map(|thread| thread.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    let count = store.begin().get(&table, b"count").expect("get");
    assert_eq!(count.as_deref(), Some(&(THREADS * ROUNDS).to_le_bytes()[..]), "no addition is lost");
    drop(running);
}

/// A locked key stays locked, also when a write of it before the lock is rolled back.
#[test]
fn a_lock_on_a_written_key_outlives_the_write() {
    let options = StoreOptions { lock_timeout: Duration::ZERO, ..options() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut txn = store.begin();
    txn.put(&table, b"other", b"").expect("put");
    let savepoint = txn.savepoint().expect("savepoint");
    txn.put(&table, b"k", b"taken back").expect("put");
    assert_eq!(txn.get_for_update(&table, b"k").expect("lock").as_deref(), Some(&b"taken back"[..]));
    txn.rollback_to(savepoint).expect("back");
    let mut rival = store.begin();
    assert!(matches!(rival.put(&table, b"k", b"rival"), Err(Error::LockTimeout)));
    txn.commit().expect("commit");
    rival.put(&table, b"k", b"rival").expect("the lock ended with the transaction");
}

#[test]
fn a_savepoint_is_of_one_transaction() {
    let store = Store::open(MemVfs::new(), StoreOptions::default()).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("table");
    let (mut a, mut b) = (store.begin(), store.begin());
    let early = b.savepoint().expect("savepoint");
    a.put(&table, b"a", b"1").expect("put");
    let late = a.savepoint().expect("savepoint");
    b.put(&table, b"b", b"1").expect("put");
    for foreign in [early, b.savepoint().expect("savepoint")] {
        assert!(matches!(a.rollback_to(foreign), Err(Error::BadOption { what: "savepoint", .. })));
    }
    assert!(matches!(b.rollback_to(late), Err(Error::BadOption { what: "savepoint", .. })));
    a.commit().expect("commit");
    b.commit().expect("commit");
    assert!(store.begin().get(&table, b"a").expect("get").is_some());
    assert!(store.begin().get(&table, b"b").expect("get").is_some());
}

#[test]
fn who_waits_for_a_key_goes_on_when_its_writer_takes_it_back() {
    let options = StoreOptions { lock_timeout: Duration::from_secs(10), ..StoreOptions::default() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("table");
    let mut writer = store.begin();
    writer.put(&table, b"kept", b"1").expect("put");
    let savepoint = writer.savepoint().expect("savepoint");
    writer.put(&table, b"k", b"writer's").expect("put");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut txn = store.begin();
            txn.put(&table, b"k", b"waiter's").expect("the key is free");
            txn.commit().expect("commit");
        });
        // Whether it waits by then or comes later: it must not need the writer's end.
        std::thread::sleep(std::time::Duration::from_millis(50));
        writer.rollback_to(savepoint).expect("rollback");
        waiter.join().expect("thread");
    });
    writer.commit().expect("commit");
    assert_eq!(store.begin().get(&table, b"k").expect("get").as_deref(), Some(&b"waiter's"[..]));
}

#[test]
fn relaxed_commits_are_synced_in_time_without_threads_and_not_before() {
    for (relaxed_interval, is_synced) in [(Duration::ZERO, true), (Duration::from_secs(3600), false)] {
        let options = StoreOptions {
            background: false,
            durability: Durability::Relaxed,
            relaxed_interval,
            ..StoreOptions::default()
        };
        let store = Store::open(MemVfs::new(), options).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("table");
        let before = store.stats().expect("stats").log.syncs;
        let mut txn = store.begin();
        txn.put(&table, b"k", b"v").expect("put");
        txn.commit().expect("commit");
        assert_eq!(store.stats().expect("stats").log.syncs > before, is_synced, "{relaxed_interval:?}");
    }
}

/// The wait ended as for a lock, although nobody held one.
#[test]
fn more_writers_than_can_be_are_told_so() {
    let options = StoreOptions { lock_timeout: Duration::from_millis(10), ..StoreOptions::default() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = store.open_table("t", TableOptions::default()).expect("table");
    let mut writers: Vec<_> = (0..1024_u32)
        .map(|i| {
            let mut txn = store.begin();
            txn.put(&table, &i.to_be_bytes(), b"v").expect("put");
            txn
        })
        .collect();
    let mut late = store.begin();
    let refused = late.put(&table, b"one more", b"v").expect_err("there are as many as can be");
    assert!(matches!(refused, Error::TooManyWriters { max: 1024 }) && refused.is_retryable(), "{refused}");
    writers.pop().expect("one of many").commit().expect("commit");
    late.put(&table, b"one more", b"v").expect("put");
    late.commit().expect("commit");
}
