//! A place that says that it has little space: flushes in parts, where not all that is dirty would fit, an undo file that
//! is cut, and refusals.

use std::{
    cell::RefCell,
    ops::{Bound, ControlFlow},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use crate::rigs::{Flash, Rig, recover};
use lacuna_device::{BatchOp, MemVfs, StreamHint, Vfs};
use lacuna_engine::{
    Algorithm, Direction, Durability, Error, Store, StoreOptions, Table, TableKind, TableOptions, Txn,
};
use lacuna_sim::{CutTally, HookedVfs, Hooks, SeededRng, SimVfs, for_each_seed};

const RECORDS: u64 = 300;

fn options() -> StoreOptions {
    StoreOptions {
        pool_bytes: 1 << 20,
        log_bytes: 256 << 10,
        durability: Durability::Sync,
        background: false,
        ..StoreOptions::default()
    }
}

/// Says that so much is free, if it is not `u64::MAX`, or fails to.
struct Little {
    free_bytes: AtomicU64,
    fails: AtomicBool,
    /// Batches with pages that were written since.
    parts: AtomicU64,
}

impl Hooks for Little {
    fn after_batch(&self, ops: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        let has_pages = ops.iter().any(|op| matches!(op, BatchOp::Write { .. }));
        self.parts.fetch_add(u64::from(has_pages), Relaxed);
        Ok(())
    }

    fn free_bytes(&self) -> lacuna_device::Result<Option<u64>> {
        if self.fails.load(Relaxed) {
            return Err(lacuna_device::Error::io("it", std::io::Error::other("an error")));
        }
        Ok(Some(self.free_bytes.load(Relaxed)).filter(|bytes| *bytes != u64::MAX))
    }
}

fn little() -> Arc<Little> {
    Arc::new(Little { free_bytes: u64::MAX.into(), fails: false.into(), parts: 0.into() })
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// A third of it does not compress.
fn value(number: u64, version: u64) -> Vec<u8> {
    let mut value = vec![version as u8; 600];
    SeededRng::new(number << 8 | version).fill(&mut value[..200]);
    value
}

fn write(
    txn: &mut Txn,
    table: &Table,
    numbers: impl Iterator<Item = u64>,
    version: u64,
) -> Result<(), Error> {
    numbers.into_iter().try_for_each(|number| txn.put(table, &key(number), &value(number, version)))
}

/// Demands all records in the version that each is to have.
fn assert_holds(store: &Store, table: &Table, version: impl Fn(u64) -> u64) {
    let mut next: Vec<_> = (0..RECORDS).map(|number| (key(number), number)).collect();
    next.sort_unstable();
    let mut next = next.into_iter();
    let txn = store.begin();
    txn.scan(table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |found, content| {
        let (key, number) = next.next().expect("no more than were written");
        assert!(found == key && content == value(number, version(number)), "record {number}");
        ControlFlow::Continue(())
    })
    .expect("scan");
    assert_eq!(next.next(), None, "a record is missing");
    store.check().expect("sound");
}

/// Writes further records until one fails.
fn write_until_refused(txn: &mut Txn, table: &Table) -> Error {
    (RECORDS..).find_map(|number| txn.put(table, &key(number), &value(number, 1)).err()).expect("it ends")
}

/// A transaction that changed many pages finds space for some of them only, and flushes these one part after the other;
/// the power is cut after so many operations, unless it ends before.
fn cut(rig: &dyn Rig, seed: u64, operations: u64, kind: TableOptions, tally: &RefCell<CutTally>) {
    let little = little();
    let vfs = HookedVfs::new(rig.open_vfs().expect("open"), little.clone());
    let store = Store::open(vfs, options()).expect("open");
    let table = store.create_table("t", kind).expect("create");
    for (step, version) in [(1, 1), (3, 2)] {
        store.checkpoint().expect("checkpoint");
        let mut txn = store.begin();
        write(&mut txn, &table, (0..RECORDS).step_by(step), version).expect("there is space");
        txn.commit().expect("commit");
    }
    let mut running = store.begin();
    write(&mut running, &table, (0..RECORDS).step_by(5), 3).expect("there is space");
    little.free_bytes.store(80 << 10, Relaxed);
    little.parts.store(0, Relaxed);
    rig.set_cut_after(operations);
    let refused = write_until_refused(&mut running, &table);
    if rig.is_off() {
        tally.borrow_mut().note(match little.parts.load(Relaxed) {
            0 => "the first part",
            1..3 => "the next parts",
            _ => "later ones, or behind them",
        });
    } else {
        rig.set_cut_after(u64::MAX);
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        assert!(little.parts.load(Relaxed) >= 3, "it was not flushed in parts");
        running.rollback().expect("there is space for a rollback");
    }
    drop((table, store));
    let mut rng = SeededRng::new(seed << 16 | operations);
    let store = recover(rig, &mut rng, |vfs| Store::open(vfs, options()));
    let table = store.table("t").expect("catalog").expect("made before");
    assert_holds(&store, &table, |number| if number % 3 == 0 { 2 } else { 1 });
    rig.check();
}

fn undo_bytes(vfs: &dyn Vfs) -> u64 {
    vfs.open("t00000001.32k", StreamHint::Data).and_then(|file| file.len()).expect("undo file")
}

/// A store without holes in which the history of a snapshot that was closed is the end of the undo file. A record that
/// finds no space lets it be purged and the file be cut, while the power is, after so many operations.
fn cut_undo(rig: &dyn Rig, seed: u64, operations: u64, kind: TableOptions, tally: &RefCell<CutTally>) {
    const VERSIONS: u64 = 4;
    let little = little();
    let options = || StoreOptions { trim: false, ..options() };
    let vfs = rig.open_vfs().expect("open");
    let store = Store::open(HookedVfs::new(vfs.clone(), little.clone()), options()).expect("open");
    let table = store.create_table("t", kind).expect("create");
    let mut snapshot = None;
    for version in 1..=VERSIONS {
        let mut txn = store.begin();
        write(&mut txn, &table, 0..RECORDS, version).expect("there is space");
        txn.commit().expect("commit");
        snapshot.get_or_insert_with(|| store.begin()).get(&table, &key(0)).expect("get");
    }
    store.checkpoint().expect("checkpoint");
    let full = undo_bytes(&*vfs);
    drop(snapshot);
    little.free_bytes.store(0, Relaxed);
    // It measures.
    store.optimize("t", |_| ControlFlow::Continue(())).expect_err("no space");
    little.free_bytes.store(200 << 10, Relaxed);
    let mut running = store.begin();
    rig.set_cut_after(operations);
    let refused = write_until_refused(&mut running, &table);
    let checkpoint = store.checkpoint();
    let is_off = rig.is_off();
    if !is_off {
        rig.set_cut_after(u64::MAX);
        checkpoint.expect("checkpoint");
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        assert!(undo_bytes(&*vfs) < full, "{full} bytes of undo are left");
        running.rollback().expect("there is space for a rollback");
    }
    drop((table, store, vfs));
    let mut rng = SeededRng::new(seed << 16 | operations);
    let store = recover(rig, &mut rng, |vfs| Store::open(vfs, options()));
    if is_off {
        let is_cut = undo_bytes(&*rig.open_vfs().expect("open")) < full;
        tally.borrow_mut().note(if is_cut { "behind the file's cut" } else { "before it" });
    }
    let table = store.table("t").expect("catalog").expect("made before");
    assert_holds(&store, &table, |_| VERSIONS);
    rig.check();
}

/// Cuts at each of so many operations, for tables of each kind, `times` times.
fn cut_everywhere(
    cut: impl Fn(&dyn Rig, u64, u64, TableOptions, &RefCell<CutTally>),
    (operations, times): (u64, u64),
    make: impl Fn(u64) -> Box<dyn Rig>,
    places: &[(&str, u64)],
) {
    let kinds = [
        TableOptions::default().page_bytes(4096),
        TableOptions::compressed(Algorithm::Lz4).page_bytes(4096),
        TableOptions::row_compressed(4).page_bytes(8 << 10),
    ];
    let cases = operations * times * kinds.len() as u64;
    let (tally, mut done) = (RefCell::default(), 0);
    for_each_seed(cases, |seed| {
        let (round, kind) = (seed / kinds.len() as u64, kinds[seed as usize % kinds.len()]);
        cut(&*make(seed), seed, 1 + round % operations, kind, &tally);
        done += 1;
    });
    let tally: CutTally = tally.into_inner();
    eprintln!("cuts in\n{tally}");
    if done >= cases {
        tally.assert_each(places);
    }
}

#[test]
fn power_cuts_while_parts_are_flushed_on_a_directory_lose_nothing() {
    let places = [("the first part", 60), ("the next parts", 70), ("later ones, or behind them", 30)];
    cut_everywhere(cut, (120, 1), |seed| Box::new(SimVfs::new(seed)), &places);
}

#[test]
fn power_cuts_while_parts_are_flushed_on_flash_lose_nothing() {
    let places = [("the first part", 8), ("the next parts", 6), ("later ones, or behind them", 14)];
    cut_everywhere(cut, (12, 4), |seed| Box::new(Flash::new(seed, false)), &places);
}

#[test]
fn the_undo_file_is_cut_before_a_record_is_refused() {
    cut_undo(&SimVfs::new(1), 1, u64::MAX, TableOptions::default(), &RefCell::default());
}

#[test]
fn power_cuts_while_the_undo_file_is_cut_on_a_directory_lose_nothing() {
    let places = [("before it", 200), ("behind the file's cut", 15)];
    cut_everywhere(cut_undo, (140, 1), |seed| Box::new(SimVfs::new(seed)), &places);
}

#[test]
fn power_cuts_while_the_undo_file_is_cut_on_flash_lose_nothing() {
    let places = [("before it", 40), ("behind the file's cut", 2)];
    cut_everywhere(cut_undo, (40, 1), |seed| Box::new(Flash::new(seed, false)), &places);
}

/// However much history is allowed.
#[test]
fn history_takes_a_share_of_a_small_place() {
    const PLACE_BYTES: u64 = 8 << 20;
    let little = little();
    little.free_bytes.store(PLACE_BYTES, Relaxed);
    let store = Store::open(HookedVfs::new(MemVfs::new(), little.clone()), options()).expect("open");
    little.free_bytes.store(u64::MAX, Relaxed);
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let snapshot = store.begin();
    assert!(snapshot.get(&table, &key(0)).expect("get").is_none());
    for version in 0..20 {
        let mut txn = store.begin();
        write(&mut txn, &table, 0..RECORDS, version).expect("there is space");
        txn.commit().expect("commit");
        let kept = store.stats().expect("stats").history.bytes;
        assert!(kept <= PLACE_BYTES / 8, "{kept} bytes are kept");
    }
    assert!(matches!(snapshot.get(&table, &key(0)), Err(Error::SnapshotTooOld)));
}

/// A rollback asks nobody for space, and must not stop for the question how much there is.
#[test]
fn a_rollback_goes_on_where_free_space_is_not_known_any_more() {
    let little = little();
    let store = Store::open(HookedVfs::new(MemVfs::new(), little.clone()), options()).expect("open");
    let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
    let mut txn = store.begin();
    write(&mut txn, &table, 0..RECORDS, 1).expect("there is space");
    txn.commit().expect("commit");
    let mut running = store.begin();
    write(&mut running, &table, 1..RECORDS, 2).expect("there is space");
    little.free_bytes.store(120 << 10, Relaxed);
    assert!(matches!(write_until_refused(&mut running, &table), Error::Full { .. }));
    little.fails.store(true, Relaxed);
    assert!(matches!(write_until_refused(&mut running, &table), Error::Device(_)));
    little.parts.store(0, Relaxed);
    running.rollback().expect("a rollback goes on");
    assert!(little.parts.load(Relaxed) > 0, "it did not flush");
    little.fails.store(false, Relaxed);
    little.free_bytes.store(u64::MAX, Relaxed);
    assert_holds(&store, &table, |_| 1);
}

/// Whoever has no snapshot open beside a transaction that is refused is not told to close one.
#[test]
fn a_refusal_tells_what_other_snapshots_keep() {
    let little = little();
    let store = Store::open(HookedVfs::new(MemVfs::new(), little.clone()), options()).expect("open");
    let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
    let delete = |number| {
        let mut txn = store.begin();
        assert!(txn.delete(&table, &key(number)).expect("there is space"));
        txn.commit().expect("commit");
    };
    let snapshot = || {
        let txn = store.begin();
        assert!(txn.get(&table, &key(0)).expect("get").is_some());
        txn
    };
    let refused = |txn: &mut Txn| {
        little.free_bytes.store(0, Relaxed);
        // It measures.
        store.optimize("t", |_| ControlFlow::Continue(())).expect_err("no space");
        let error = txn.delete(&table, &key(0)).expect_err("no space");
        little.free_bytes.store(u64::MAX, Relaxed);
        let Error::Full { history_bytes, .. } = error else { panic!("{error}") };
        assert_eq!(history_bytes > 0, error.to_string().contains("snapshots"), "{error}");
        history_bytes
    };
    let kept = || store.stats().expect("stats").history.bytes;
    let mut txn = store.begin();
    write(&mut txn, &table, 0..10, 1).expect("there is space");
    txn.commit().expect("commit");

    let mut own = snapshot();
    delete(1);
    assert!(kept() > 0);
    assert_eq!(refused(&mut own), 0, "there is no other one");
    assert_eq!(refused(&mut store.begin()), kept(), "of one that has none");
    let later = snapshot();
    assert_eq!(refused(&mut own), 0, "it needs nothing");
    let before = kept();
    delete(2);
    assert_eq!(refused(&mut own), kept() - before, "what it needs");
    let mut last = snapshot();
    assert_eq!(refused(&mut last), kept());
    drop((own, later));
    store.step().expect("step");
    assert_eq!((refused(&mut last), kept()), (0, 0));
}

/// Images of pages that come to rest may become longer, and nobody asked for that.
#[test]
fn no_page_comes_to_rest_in_the_space_that_deletes_need() {
    let little = little();
    let store = Store::open(HookedVfs::new(MemVfs::new(), little.clone()), options()).expect("open");
    let kind = TableOptions { kind: TableKind::Adaptive { level: 0 }, ..TableOptions::default() };
    let table = store.create_table("t", kind).expect("create");
    let mut txn = store.begin();
    write(&mut txn, &table, 0..RECORDS, 1).expect("there is space");
    txn.commit().expect("commit");
    store.checkpoint().expect("checkpoint");
    let rested = || {
        (0..200).for_each(|_| assert!(store.step().is_ok()));
        store.tables().expect("tables")[0].rested_pages
    };
    little.free_bytes.store(300 << 10, Relaxed);
    let mut txn = store.begin();
    // Until it measures.
    write_until_refused(&mut txn, &table);
    txn.rollback().expect("rollback");
    assert_eq!(rested(), 0);
    // Nobody writes, and nothing else measures.
    little.free_bytes.store(u64::MAX, Relaxed);
    assert!(rested() > 0);
}

/// A host that has so many bytes, and the most that was taken of it.
struct Host {
    vfs: Arc<SimVfs>,
    bytes: AtomicU64,
    most: AtomicU64,
}

impl Host {
    fn taken(&self) -> u64 {
        let taken = self.vfs.stats().expect("stats").allocated_bytes;
        self.most.fetch_max(taken, Relaxed);
        taken
    }
}

impl Hooks for Host {
    fn after_batch(&self, _: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        self.taken();
        Ok(())
    }

    fn before_sync(&self) -> lacuna_device::Result<()> {
        self.taken();
        Ok(())
    }

    fn free_bytes(&self) -> lacuna_device::Result<Option<u64>> {
        Ok(Some(self.bytes.load(Relaxed).saturating_sub(self.taken())))
    }
}

/// The doublewrite file is sparse at first, and no page was written when others took the space of the host.
#[test]
fn a_flush_of_what_fits_has_space_for_its_copies() {
    let vfs = SimVfs::new(1);
    let host = Arc::new(Host { vfs: vfs.clone(), bytes: (64 << 20).into(), most: 0.into() });
    let options = || StoreOptions { pool_bytes: 8 << 20, log_bytes: 8 << 20, ..options() };
    let store = Store::open(HookedVfs::new(vfs.clone(), host.clone()), options()).expect("open");
    let table = store.create_table("t", TableOptions::default().page_bytes(64 << 10)).expect("create");
    let mut txn = store.begin();
    write(&mut txn, &table, 0..RECORDS, 1).expect("there is space");
    let other = |number| RECORDS + number;
    write(&mut txn, &table, (0..2500).map(other), 1).expect("there is space");
    txn.commit().expect("commit");
    let free_bytes = 3 << 20;
    host.bytes.store(host.taken() + free_bytes, Relaxed);
    let written = || store.stats().expect("stats").flush.written_bytes;
    let before = written();
    let mut running = store.begin();
    assert!(matches!(write_until_refused(&mut running, &table), Error::Full { .. }));
    running.rollback().expect("there is space for a rollback");
    assert!(written() - before > free_bytes / 2, "{} bytes of pages", written() - before);
    let (most, bytes) = (host.most.load(Relaxed), host.bytes.load(Relaxed));
    assert!(most <= bytes, "{most} of {bytes} bytes were taken");
    store.check().expect("sound");
}
