//! Atomic writes, doublewriting, holes and packing: what they do where they are there, refused and switched off.

use std::{
    io,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use lacuna_device::{AtomicWrites, BatchOp, Error as DeviceError, MemVfs, Vfs};
use lacuna_engine::{
    Algorithm, Doublewrite, Durability, FlushStats, Store, StoreOptions, Table, TableInfo, TableKind,
    TableOptions,
};
use lacuna_sim::{HookedVfs, Hooks, SimVfs, for_each_seed};

const WRITES: AtomicWrites = AtomicWrites { bytes_min: 4096, bytes_max: 64 << 10 };
const KEYS: u32 = 400;

fn options() -> StoreOptions {
    StoreOptions { pool_bytes: 4 << 20, log_bytes: 1 << 20, background: false, ..StoreOptions::default() }
}

fn compressed() -> TableOptions {
    TableOptions::compressed(Algorithm::Lz4)
}

/// A value of which `noise` bytes do not compress; in round 2 it is shorter, so that records move.
fn value(key: u32, round: u32, noise: usize) -> Vec<u8> {
    let mut state = u64::from(key ^ round << 16).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    let len = if round == 2 { 350 } else { 500 };
    (0..len).map(|at| if at < noise { next() } else { 7 }).collect()
}

fn write(store: &Store, table: &Table, round: u32, noise: usize) {
    for key in 0..KEYS {
        let mut txn = store.begin();
        txn.put(table, &key.to_be_bytes(), &value(key, round, noise)).expect("put");
        txn.commit().expect("commit");
    }
    store.checkpoint().expect("checkpoint");
}

fn assert_holds(store: &Store, table: &Table, round: u32, noise: usize) {
    for key in 0..KEYS {
        let found = store.begin().get(table, &key.to_be_bytes()).expect("get");
        assert!(found == Some(value(key, round, noise)), "key {key}");
    }
    store.check().expect("sound");
}

fn flushed(store: &Store) -> FlushStats {
    store.stats().expect("stats").flush
}

fn info(store: &Store, name: &str) -> TableInfo {
    store.tables().expect("tables").into_iter().find(|info| info.name == name).expect("is there")
}

#[test]
fn where_single_writes_are_atomic_pages_are_written_once() {
    let vfs = SimVfs::with_atomic_writes(1, WRITES);
    let store = Store::open(vfs.clone(), options()).expect("open");
    assert!(!store.writes_twice());
    let table = store.create_table("t", compressed()).expect("create");
    write(&store, &table, 1, 300);
    let stats = flushed(&store);
    assert_eq!((stats.doublewrite_bytes, stats.refused_atomic_writes), (0, 0), "{stats:?}");
    assert!(
        stats.written_bytes >= stats.image_bytes && stats.written_bytes.is_multiple_of(4096),
        "{stats:?}"
    );
    assert!(!vfs.list().expect("list").contains(&"doublewrite".into()));
    // Images of 10 to 12 KiB are written as 16 KiB; what fills them up takes no space.
    let info = info(&store, "t");
    assert!(info.punches > 10 && info.allocated_bytes < info.flushed_pages * (16 << 10), "{info:?}");
    assert!(info.splits > 5 && info.refused_punches == 0, "{info:?}");
    drop((table, store));
    vfs.power_cycle();
    let store = Store::open(vfs, options()).expect("open again");
    assert_holds(&store, &store.table("t").expect("catalog").expect("there"), 1, 300);
}

#[test]
fn without_atomic_writes_pages_are_written_twice_and_a_table_may_differ() {
    for (atomic_writes, of_store, of_table, is_twice) in [
        (true, Doublewrite::Auto, Doublewrite::Auto, false),
        (true, Doublewrite::Auto, Doublewrite::On, true),
        (true, Doublewrite::On, Doublewrite::Auto, true),
        (true, Doublewrite::On, Doublewrite::Off, false),
        (false, Doublewrite::Auto, Doublewrite::Auto, true),
        (false, Doublewrite::Auto, Doublewrite::Off, false),
        (false, Doublewrite::Off, Doublewrite::On, true),
    ] {
        let vfs = SimVfs::with_atomic_writes(1, WRITES);
        // The system's pages follow the store; their share is left to the checkpoint before.
        let options = StoreOptions { atomic_writes, doublewrite: of_store, ..options() };
        let store = Store::open(vfs.clone(), options.clone()).expect("open");
        let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
        write(&store, &table, 1, 300);
        store.set_doublewrite("t", of_table).expect("set");
        store.checkpoint().expect("checkpoint");
        let (before, pages_before) = (flushed(&store), info(&store, "t").flushed_image_bytes);
        write(&store, &table, 2, 300);
        let twice = flushed(&store).doublewrite_bytes - before.doublewrite_bytes;
        let bytes = info(&store, "t").flushed_image_bytes - pages_before;
        let case = format!("{atomic_writes} {of_store:?} {of_table:?}: {twice} of {bytes}");
        assert_eq!(twice >= bytes, is_twice, "{case}");
        assert_eq!(info(&store, "t").options.doublewrite, of_table);
        drop((table, store));
        let store = Store::open(vfs, options).expect("open again");
        assert_eq!(info(&store, "t").options.doublewrite, of_table, "it is kept");
        assert_holds(&store, &store.table("t").expect("catalog").expect("there"), 2, 300);
    }
}

/// Otherwise it would hold for the file that the copy replaces, and only until the next opening for the copy.
#[test]
fn what_is_set_while_a_table_is_altered_holds_for_the_copy() {
    for (of_table, is_twice) in [(Doublewrite::On, true), (Doublewrite::Off, false)] {
        let vfs = SimVfs::with_atomic_writes(1, WRITES);
        let of_store = if is_twice { Doublewrite::Off } else { Doublewrite::On };
        let store = Store::open(vfs, StoreOptions { doublewrite: of_store, ..options() }).expect("open");
        let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
        write(&store, &table, 1, 300);
        drop(table);
        let mut is_set = false;
        let kind = TableKind::RowCompressed { key_block_size: 2, algorithm: Algorithm::Zlib, level: 0 };
        let altered = store.alter_table_with("t", kind, |_| {
            if !std::mem::replace(&mut is_set, true) {
                store.set_doublewrite("t", of_table).expect("set");
            }
            ControlFlow::Continue(())
        });
        assert!(altered.expect("alter").is_done && is_set);
        store.checkpoint().expect("checkpoint");
        let (before, pages_before) = (flushed(&store), info(&store, "t").flushed_image_bytes);
        write(&store, &store.table("t").expect("catalog").expect("there"), 2, 300);
        let twice = flushed(&store).doublewrite_bytes - before.doublewrite_bytes;
        let bytes = info(&store, "t").flushed_image_bytes - pages_before;
        assert_eq!(twice >= bytes, is_twice, "{of_table:?}: {twice} of {bytes}");
        assert_eq!(info(&store, "t").options.doublewrite, of_table);
    }
}

/// A directory that refuses what it offers, after so many atomic writes or holes.
struct Refusing {
    atomic_writes: AtomicU64,
    holes: AtomicU64,
    asked: AtomicU64,
    error: fn() -> DeviceError,
}

fn refusing(atomic_writes: u64, holes: u64, error: fn() -> DeviceError) -> Arc<Refusing> {
    let (atomic_writes, holes) = (atomic_writes.into(), holes.into());
    Arc::new(Refusing { atomic_writes, holes, asked: 0.into(), error })
}

impl Refusing {
    fn ask(&self, left: &AtomicU64) -> lacuna_device::Result<()> {
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        self.asked.fetch_add(u64::from(taken.is_err()), Ordering::Relaxed);
        taken.map(drop).map_err(|_| (self.error)())
    }
}

impl Hooks for Refusing {
    fn before_atomic_write(&self) -> lacuna_device::Result<()> {
        self.ask(&self.atomic_writes)
    }

    fn before_batch(&self, ops: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        let is_hole = ops.iter().any(|op| matches!(op, BatchOp::Punch { .. }));
        if is_hole { self.ask(&self.holes) } else { Ok(()) }
    }

    fn before_punch(&self) -> lacuna_device::Result<()> {
        self.ask(&self.holes)
    }
}

fn unsupported() -> DeviceError {
    DeviceError::Unsupported { what: "directory".into(), operation: "that" }
}

fn full() -> DeviceError {
    DeviceError::Full { what: "directory".into() }
}

fn other() -> DeviceError {
    DeviceError::io("directory", io::Error::other("something else"))
}

#[test]
fn refused_atomic_writes_are_noted_once_and_pages_written_twice_from_then_on() {
    for (error, after) in [(unsupported as fn() -> DeviceError, 0), (unsupported, 5), (full, 9)] {
        for doublewrite in [Doublewrite::Auto, Doublewrite::Off] {
            let sim = SimVfs::with_atomic_writes(after + 1, WRITES);
            let hooks = refusing(after, u64::MAX, error);
            let vfs = HookedVfs::new(sim.clone(), hooks.clone());
            let options = StoreOptions { doublewrite, durability: Durability::Sync, ..options() };
            let store = Store::open(vfs.clone(), options.clone()).expect("open");
            let table = store.create_table("t", compressed()).expect("create");
            write(&store, &table, 1, 300);
            let before = flushed(&store);
            write(&store, &table, 2, 300);
            let stats = flushed(&store);
            assert_eq!(
                (stats.refused_atomic_writes, hooks.asked.load(Ordering::Relaxed)),
                (1, 1),
                "{stats:?}"
            );
            let [images, twice] =
                [stats.image_bytes - before.image_bytes, stats.doublewrite_bytes - before.doublewrite_bytes];
            assert!(twice >= images, "{stats:?}");
            assert!(store.writes_twice() || doublewrite == Doublewrite::Off);
            drop((table, store));
            sim.power_cycle();
            let store = Store::open(vfs, options).expect("open again");
            assert_holds(&store, &store.table("t").expect("catalog").expect("there"), 2, 300);
        }
    }
}

/// With and without atomic writes, and whatever the reason.
#[test]
fn refused_holes_of_any_kind_are_counted_once_and_the_store_goes_on() {
    for error in [unsupported as fn() -> DeviceError, full, other] {
        for sim in [SimVfs::new(1), SimVfs::with_atomic_writes(1, WRITES)] {
            let hooks = refusing(u64::MAX, 0, error);
            let vfs = HookedVfs::new(sim, hooks.clone());
            let store = Store::open(vfs, options()).expect("open");
            let table = store.create_table("t", compressed()).expect("create");
            write(&store, &table, 1, 500);
            write(&store, &table, 2, 10);
            let stats = flushed(&store);
            assert_eq!((stats.punches, stats.refused_punches), (0, 1), "{stats:?}");
            assert_eq!(info(&store, "t").refused_punches, 1);
            assert_holds(&store, &table, 2, 10);
        }
    }
}

#[test]
fn without_trim_nothing_is_given_back_and_without_packing_images_are_longer() {
    let run = |options: StoreOptions, vfs: Arc<dyn Vfs>| {
        let store = Store::open(vfs.clone(), options).expect("open");
        let table = store.create_table("t", compressed()).expect("create");
        write(&store, &table, 1, 500);
        write(&store, &table, 2, 10);
        let (stats, allocated) = (flushed(&store), info(&store, "t").allocated_bytes);
        store.close().expect("close");
        // What was written one way is read any way.
        let store = Store::open(vfs, self::options()).expect("open again");
        assert_holds(&store, &store.table("t").expect("catalog").expect("there"), 2, 10);
        (stats, allocated)
    };
    let vfss: [fn() -> Arc<dyn Vfs>; 3] =
        [|| MemVfs::new(), || SimVfs::new(1), || SimVfs::with_atomic_writes(1, WRITES)];
    for vfs in vfss {
        let (all, allocated) = run(options(), vfs());
        let (without, kept) = run(StoreOptions { trim: false, ..options() }, vfs());
        assert!(all.punches > 0 && without.punches == 0, "{all:?} {without:?}");
        assert!(kept > 2 * allocated, "{kept} and {allocated} bytes");
        let (without, _) = run(StoreOptions { packing: false, ..options() }, vfs());
        assert!(without.image_bytes > all.image_bytes, "{all:?} {without:?}");
    }
}

/// Where nothing tears pages, their bodies may go unchecked; elsewhere the switch has no effect.
#[test]
fn without_checksums_bodies_are_not_checked_where_pages_are_never_torn() {
    for (atomic_writes, checksums, is_noticed) in
        [(true, true, true), (true, false, false), (false, true, true), (false, false, true)]
    {
        let vfs = SimVfs::with_atomic_writes(1, WRITES);
        let options = StoreOptions { checksums, atomic_writes, ..options() };
        let store = Store::open(vfs.clone(), options.clone()).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("create");
        write(&store, &table, 1, 500);
        let file = format!("t{:08}.16k", info(&store, "t").id.0);
        store.close().expect("close");
        // In a value of the first leaf, which follows the header and the root.
        let leaf = 3 * (16 << 10);
        vfs.flip_bit(&file, leaf + 8000, 3);
        let open = || Store::open(vfs.clone(), options.clone()).expect("open again");
        let read = |store: &Store| {
            let table = store.table("t").expect("catalog").expect("there");
            let txn = store.begin();
            (0..KEYS).try_for_each(|key| txn.get(&table, &key.to_be_bytes()).map(drop))
        };
        assert_eq!(read(&open()).is_err(), is_noticed, "{atomic_writes} {checksums}");
        // The header is checked always: here its LSN.
        vfs.flip_bit(&file, leaf + 8000, 3);
        vfs.flip_bit(&file, leaf + 25, 3);
        assert!(read(&open()).is_err(), "a header is checked");
    }
}

/// Changes all values of a store that was written with `first`, opened with `second`, and cuts the power anywhere while
/// the pages are written; each value is `noise.0` bytes that do not compress at first, then `noise.1`.
fn cut_while_written(
    table: TableOptions,
    first: &StoreOptions,
    second: &StoreOptions,
    noise: (usize, usize),
) {
    let durable = |options: &StoreOptions| StoreOptions { durability: Durability::Sync, ..options.clone() };
    for_each_seed(150, |seed| {
        let vfs = SimVfs::with_atomic_writes(seed, WRITES);
        let store = Store::open(vfs.clone(), durable(first)).expect("open");
        let handle = store.create_table("t", table).expect("create");
        write(&store, &handle, 1, noise.0);
        drop(handle);
        store.close().expect("close");
        let store = Store::open(vfs.clone(), durable(second)).expect("open");
        let handle = store.table("t").expect("catalog").expect("there");
        let mut txn = store.begin();
        for key in 0..KEYS {
            txn.put(&handle, &key.to_be_bytes(), &value(key, 2, noise.1)).expect("put");
        }
        txn.commit().expect("commit");
        vfs.set_cut_after(1 + seed % 75);
        drop(store.checkpoint());
        vfs.set_cut_after(0);
        drop((handle, store));
        vfs.power_cycle();
        let store = Store::open(vfs, durable(second)).expect("open after the cut");
        assert_holds(&store, &store.table("t").expect("catalog").expect("there"), 2, noise.1);
    });
}

/// The end of the old image is still needed while the new one may be lost.
#[test]
fn a_page_that_becomes_shorter_is_whole_after_any_cut() {
    cut_while_written(compressed(), &options(), &options(), (500, 100));
}

/// Nothing but the newer image shows that a page without a checksum is torn.
#[test]
fn a_page_without_a_checksum_that_is_written_twice_is_whole_after_any_cut() {
    let unchecked = StoreOptions { checksums: false, ..options() };
    let twice = StoreOptions { doublewrite: Doublewrite::On, ..options() };
    cut_while_written(TableOptions::default(), &unchecked, &twice, (500, 500));
}

/// Images for atomic writes have no checksums of their bodies. Once such writes are refused they may be torn.
#[test]
fn a_page_without_a_checksum_whose_atomic_write_is_refused_is_whole_after_any_cut() {
    for_each_seed(150, |seed| {
        let sim = SimVfs::with_atomic_writes(seed, WRITES);
        let hooks = refusing(u64::MAX, u64::MAX, unsupported);
        let vfs = HookedVfs::new(sim.clone(), hooks.clone());
        let options = StoreOptions { checksums: false, durability: Durability::Sync, ..options() };
        let store = Store::open(vfs.clone(), options.clone()).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("create");
        write(&store, &table, 1, 500);
        let mut txn = store.begin();
        for key in 0..KEYS {
            txn.put(&table, &key.to_be_bytes(), &value(key, 3, 500)).expect("put");
        }
        txn.commit().expect("commit");
        hooks.atomic_writes.store(seed % 5, Ordering::Relaxed);
        sim.set_cut_after(1 + seed % 40);
        drop(store.checkpoint());
        sim.set_cut_after(0);
        drop((table, store));
        sim.power_cycle();
        let store = Store::open(sim, options).expect("open after the cut");
        assert_holds(&store, &store.table("t").expect("catalog").expect("there"), 3, 500);
    });
}
