use std::{
    io,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use lacuna_device::{AtomicWrites, BatchOp};
use lacuna_sim::{HookedVfs, Hooks, SeededRng, SimVfs, for_each_seed};

use super::{super::Flusher, *};
use crate::{
    Doublewrite, Durability, Error, Store, StoreOptions, Table, TableOptions, flush::stats::Cause, wal::Until,
};

/// A directory in which a batch waits when the test asks for it, and fails then.
struct Failing {
    is_next: AtomicBool,
    written: Barrier,
    fails: Barrier,
}

impl Hooks for Failing {
    fn after_batch(&self, _: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        if !self.is_next.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        self.written.wait();
        self.fails.wait();
        Err(lacuna_device::Error::io("directory", io::Error::other("injected failure")))
    }
}

/// Otherwise a job that waited for the region would overwrite the only whole image of a torn page.
#[test]
fn the_region_of_pages_that_were_not_written_is_not_used_anew() {
    for_each_seed(12, |seed| {
        let vfs = SimVfs::new(seed);
        let failing = Arc::new(Failing {
            is_next: AtomicBool::new(false),
            written: Barrier::new(2),
            fails: Barrier::new(2),
        });
        let options =
            StoreOptions { background: false, durability: Durability::Sync, ..StoreOptions::default() };
        let store = Store::open(HookedVfs::new(vfs.clone(), failing.clone()), options.clone()).expect("open");
        let [first, second] =
            ["first", "second"].map(|name| store.create_table(name, TableOptions::default()).expect("table"));
        let put = |table: &Table, value: u8| {
            let mut txn = store.begin();
            (0..12_u8).for_each(|key| txn.put(table, &[key], &[value; 1000]).expect("put"));
            txn.commit().expect("commit");
        };
        put(&first, 1);
        store.checkpoint().expect("checkpoint");
        put(&first, 2);
        let doublewrite = first.engine().flusher().doublewrite().expect("a directory tears pages");
        doublewrite.free.lock().truncate(1);
        failing.is_next.store(true, Ordering::SeqCst);
        thread::scope(|scope| {
            let fails = scope.spawn(|| store.checkpoint());
            failing.written.wait();
            put(&second, 1);
            let waits = scope.spawn(|| store.checkpoint());
            thread::sleep(Duration::from_millis(30)); // for it to come to the region
            failing.fails.wait();
            assert!(fails.join().expect("thread").is_err() && waits.join().expect("thread").is_err());
        });
        drop((first, second, store));
        vfs.power_cycle();
        let store = Store::open(vfs, options).expect("each page is whole somewhere");
        let table = store.table("first").expect("catalog").expect("there");
        assert_eq!(store.begin().get(&table, &[3]).expect("get").as_deref(), Some(&[2; 1000][..]));
        store.check().expect("check");
    });
}

/// Writes what is dirty, in the region of the two that was not used last, and no checkpoint.
fn land(flusher: &Flusher) {
    flusher.doublewrite().expect("a directory tears pages").free.lock().reverse();
    let until = flusher.pager.log().next();
    flusher
        .carry_out(flusher.jobs(flusher.pager.pool().dirty().oldest_pages(until, 512), until, Cause::Asked))
        .expect("flush");
    flusher.pager.log().reach(flusher.pager.log().next(), Until::Flushed).expect("log");
}

fn put(store: &Store, table: &Table, value: u8) {
    let mut txn = store.begin();
    txn.put(table, b"k", &[value; 1000]).expect("put");
    txn.commit().expect("commit");
}

/// A store whose table has its page in both regions, with 1 and with 2, and the image with 1.
fn written_twice(options: &StoreOptions) -> (Arc<SimVfs>, Store, Table, AlignedBuf) {
    let vfs = SimVfs::new(1);
    let store = Store::open(vfs.clone(), options.clone()).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("table");
    store.checkpoint().expect("checkpoint");
    table.engine().flusher().doublewrite().expect("a directory tears pages").free.lock().truncate(2);
    put(&store, &table, 1);
    land(table.engine().flusher());
    let mut older = AlignedBuf::zeroed(16 << 10);
    table.space().file().read_at(16 << 10, &mut older).expect("read");
    put(&store, &table, 2);
    land(table.engine().flusher());
    (vfs, store, table, older)
}

fn options() -> StoreOptions {
    StoreOptions { background: false, ..StoreOptions::default() }
}

/// Otherwise replay would pass over the changes that it lacks.
#[test]
fn an_image_older_than_one_on_the_device_is_not_put_back() {
    let (vfs, store, table, _) = written_twice(&options());
    let name = table.space().name();
    drop((table, store));
    vfs.power_cycle();
    vfs.flip_bit(&name, (16 << 10) + 9000, 1);
    let store = Store::open(vfs, options()).expect("the newer one is there");
    let recovery = store.stats().expect("stats").recovery;
    assert!(recovery.restored_pages == 1 && recovery.applied == 0, "{recovery:?}");
    let table = store.table("t").expect("catalog").expect("there");
    assert_eq!(store.begin().get(&table, b"k").expect("get").as_deref(), Some(&[2; 1000][..]));
}

#[test]
fn a_page_older_than_its_image_on_the_device_is_damaged() {
    let (vfs, store, table, older) = written_twice(&options());
    put(&store, &table, 3);
    let name = table.space().name();
    drop((table, store));
    let file = vfs.open(&name, StreamHint::Data).expect("open");
    file.write_at(16 << 10, &older).expect("write");
    let outcome = Store::open(vfs, options());
    assert!(matches!(outcome, Err(Error::Corrupt { .. })), "{:?}", outcome.err());
}

/// Neither may an image that was only read in a cache: of the file's, it may be the only whole one.
#[test]
fn a_cut_in_the_opening_after_a_kill_tears_no_page_for_good() {
    for_each_seed(600, |seed| {
        let mut rng = SeededRng::new(seed);
        let writes = AtomicWrites { bytes_min: 4096, bytes_max: 64 << 10 };
        let vfs = if seed % 3 == 0 { SimVfs::with_atomic_writes(seed, writes) } else { SimVfs::new(seed) };
        let twice = StoreOptions { doublewrite: Doublewrite::On, durability: Durability::Sync, ..options() };
        // What was written singly and twice lies side by side.
        let other = StoreOptions { doublewrite: Doublewrite::Auto, ..twice.clone() };
        let [first, next] = if rng.chance(70) { [&twice, &other] } else { [&other, &twice] };
        let store = Store::open(vfs.clone(), twice.clone()).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("table");
        let put = |store: &Store, table: &Table, value: u8| {
            let mut txn = store.begin();
            (0..40_u8).for_each(|key| txn.put(table, &[key], &[value; 1000]).expect("put"));
            txn.commit().expect("commit");
        };
        put(&store, &table, 0);
        // The log behind it makes no page anew.
        store.checkpoint().expect("checkpoint");
        put(&store, &table, 1);
        land(table.engine().flusher());
        drop((table, store));
        let store = Store::open(vfs.clone(), first.clone()).expect("open");
        let table = store.table("t").expect("catalog").expect("there");
        put(&store, &table, 2);
        let flusher = table.engine().flusher();
        // In the place of the copies that were made before.
        flusher.doublewrite().expect("a directory tears pages").free.lock().truncate(1);
        vfs.set_cut_after(2 + rng.below(3));
        let until = flusher.pager.log().next();
        let due = flusher.pager.pool().dirty().oldest_pages(until, 512);
        drop(flusher.carry_out(flusher.jobs(due, until, Cause::Asked)));
        drop((table, store));
        vfs.kill();
        vfs.set_cut_after(5 + rng.below(12));
        drop(Store::open(vfs.clone(), next.clone()));
        vfs.power_cycle();
        let store = Store::open(vfs, next.clone()).expect("each page is whole somewhere");
        let table = store.table("t").expect("catalog").expect("there");
        for key in 0..40_u8 {
            assert_eq!(store.begin().get(&table, &[key]).expect("get").as_deref(), Some(&[2; 1000][..]));
        }
        store.check().expect("check");
    });
}

/// A table was encrypted in place, say, with nothing else changed.
#[test]
fn an_image_of_the_same_changes_in_another_form_is_left_alone() {
    let (vfs, store, table, _) = written_twice(&options());
    let space = table.space();
    let (file, name) = (space.file(), space.name());
    let mut image = AlignedBuf::zeroed(16 << 10);
    file.read_at(16 << 10, &mut image).expect("read");
    let mut page = vec![0; 16 << 10];
    let expect = (space.id().0, 1);
    Decoder::unpacking(node::unpack).decode(&image, expect, &mut page).expect("sound");
    let mut other = AlignedBuf::zeroed(16 << 10);
    let codec = lacuna_page::Codec { algorithm: lacuna_page::Algorithm::Lz4, level: 0 };
    lacuna_page::Encoder::new().encode(&page, codec, 512, &mut other);
    assert!(image[..] != other[..]);
    drop((table, store));
    vfs.open(&name, StreamHint::Data).expect("open").write_at(16 << 10, &other).expect("write");
    drop(Store::open(vfs.clone(), options()).expect("open"));
    vfs.open(&name, StreamHint::Data).expect("open").read_at(16 << 10, &mut image).expect("read");
    assert!(image[..] == other[..], "the image in place is whole");
}
