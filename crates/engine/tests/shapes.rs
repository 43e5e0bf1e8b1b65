//! Space under histories of every shape: deletes free their space, whatever the order of inserts and deletes, the kind
//! of table and the VFS; and the first record is found in as many page look-ups as the tree is high.

use std::{
    collections::BTreeMap,
    fs,
    ops::{Bound, ControlFlow},
    path::Path,
    sync::Arc,
};

use crate::rigs::{self, Flash, Rig};
use lacuna_device::{AlignedBuf, BlockDevice, DirOptions, DirVfs, MemDevice, MemVfs, StreamHint, Vfs};
use lacuna_engine::{
    Algorithm, Direction, Durability, Error, Store, StoreOptions, Table, TableCheck, TableInfo, TableKind,
    TableOptions,
};
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options};
use lacuna_sim::{SeededRng, SimVfs, for_each_seed};

fn options() -> StoreOptions {
    StoreOptions { pool_bytes: 4 << 20, log_bytes: 1 << 20, background: false, ..StoreOptions::default() }
}

fn open(vfs: &Arc<dyn Vfs>, table: TableOptions) -> (Store, Table) {
    let store = Store::open(vfs.clone(), options()).expect("open");
    let table = store.open_table("t", table).expect("table");
    (store, table)
}

/// The counts of a check of the table.
fn check(store: &Store) -> TableCheck {
    store.check().expect("sound").into_iter().find(|table| table.name == "t").expect("there")
}

/// A transaction of changes.
fn change(store: &Store, table: &Table, puts: impl Iterator<Item = u64>, deletes: impl Iterator<Item = u64>) {
    let mut txn = store.begin();
    puts.for_each(|i| txn.put(table, &i.to_be_bytes(), &[7; 100]).expect("put"));
    deletes.for_each(|i| assert!(txn.delete(table, &i.to_be_bytes()).expect("delete"), "{i}"));
    txn.commit().expect("commit");
}

/// Pages looked up to find the first record in that direction.
fn pages_to_first(store: &Store, table: &Table, direction: Direction) -> u64 {
    let pages = || {
        let pool = store.stats().expect("stats").pool;
        pool.hits + pool.misses
    };
    let txn = store.begin();
    let before = pages();
    txn.scan(table, Bound::Unbounded, Bound::Unbounded, direction, |_, _| ControlFlow::Break(()))
        .expect("scan");
    pages() - before
}

fn kinds() -> [TableOptions; 3] {
    [
        TableOptions::default().page_bytes(4096),
        TableOptions::compressed(Algorithm::Lz4).page_bytes(4096),
        TableOptions::row_compressed(4).page_bytes(8192),
    ]
}

/// A table like TPC-C's NEW-ORDER: inserted at one end, deleted at the other one.
fn run_queue(kind: TableOptions, is_ascending: bool) {
    const LIVE: u64 = 500;
    const ROUNDS: u64 = 100;
    let (store, table) = open(&(MemVfs::new() as Arc<dyn Vfs>), kind);
    let number = |i: u64| if is_ascending { i } else { u64::MAX - i };
    change(&store, &table, (0..LIVE).map(number), std::iter::empty());
    let full = check(&store);
    for round in 0..ROUNDS {
        let (first, next) = (round * 50, LIVE + round * 50);
        change(&store, &table, (next..next + 50).map(number), (first..first + 50).map(number));
    }
    let after = check(&store);
    assert_eq!(after.records, LIVE);
    assert!(
        after.leaves <= full.leaves * 2 + 2 && after.height <= full.height + 1,
        "{full:?}, then {after:?}"
    );
    for direction in [Direction::Forward, Direction::Backward] {
        let pages = pages_to_first(&store, &table, direction);
        assert!(pages <= 2 * after.height + 4, "{pages} pages, {direction:?}, {after:?}");
    }
}

#[test]
fn a_queue_has_the_leaves_of_what_is_live() {
    for kind in kinds() {
        run_queue(kind, true);
        run_queue(kind, false);
    }
}

/// All numbers below `count` in a random order.
fn shuffled(count: u64, rng: &mut SeededRng) -> Vec<u64> {
    let mut all: Vec<u64> = (0..count).collect();
    (1..all.len()).rev().for_each(|i| all.swap(i, rng.below(i as u64 + 1) as usize));
    all
}

#[test]
fn leaves_are_merged_however_records_are_deleted() {
    const COUNT: u64 = 10_000;
    for kind in kinds() {
        let mut rng = SeededRng::new(5);
        let orders: [Vec<u64>; 3] =
            [(0..COUNT).collect(), (0..COUNT).rev().collect(), shuffled(COUNT, &mut rng)];
        for order in orders {
            let (store, table) = open(&(MemVfs::new() as Arc<dyn Vfs>), kind);
            (0..COUNT).step_by(100).for_each(|i| change(&store, &table, i..i + 100, std::iter::empty()));
            let full = check(&store);
            assert!(full.height >= if kind == kinds()[0] { 3 } else { 2 }, "{full:?}");
            for (i, some) in order.chunks(100).enumerate() {
                change(&store, &table, std::iter::empty(), some.iter().copied());
                if i % 20 == 10 {
                    let now = check(&store);
                    // At worst those of row-compressed tables, which are merged in pairs, and to 3/4.
                    let most = now.records * full.leaves * 3 / COUNT + 3;
                    assert!(now.leaves <= most, "{kind:?}: {now:?} of {full:?}");
                }
            }
            let empty = check(&store);
            assert_eq!((empty.records, empty.leaves, empty.height), (0, 1, 1), "{kind:?}");
        }
    }
}

/// Or a table would keep the leaves of the longest values that it ever had.
#[test]
fn leaves_are_merged_when_values_become_shorter() {
    for kind in kinds() {
        let (store, table) = open(&(MemVfs::new() as Arc<dyn Vfs>), kind);
        change(&store, &table, 0..1000, std::iter::empty());
        let full = check(&store);
        for i in 0..1000u64 {
            let mut txn = store.begin();
            txn.put(&table, &i.to_be_bytes(), b"").expect("put");
            txn.commit().expect("commit");
        }
        let after = check(&store);
        assert!(after.leaves <= full.leaves / 2, "{kind:?}: {full:?}, then {after:?}");
    }
}

/// Most space left after all was deleted: the pages of an empty table, and a list of free ones.
const EMPTY_BYTES: u64 = 128 << 10;

fn flash(bytes: u64) -> Arc<dyn Vfs> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(bytes));
    Nvmfs::format(device.clone(), &FormatOptions::default()).expect("format");
    let mut options = Options::default();
    options.ftl.background = false;
    Arc::new(Nvmfs::open(device, options).expect("open"))
}

/// Each kind of VFS, by name. The directory is made for the test of that name.
fn places(test: &str) -> Vec<(&'static str, Arc<dyn Vfs>)> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("directory");
    let directory = DirVfs::open(&path, DirOptions::default()).expect("directory");
    vec![("memory", MemVfs::new()), ("flash", flash(256 << 20)), ("directory", directory)]
}

fn info(store: &Store) -> TableInfo {
    store.tables().expect("tables").into_iter().find(|table| table.name == "t").expect("there")
}

/// A value that does not compress.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    SeededRng::new(seed).fill(&mut value);
    value
}

/// Inserts records with values of these lengths, and deletes them in the order of their keys.
fn put_all(store: &Store, table: &Table, lens: &[usize]) {
    for (i, some) in lens.chunks(50).enumerate() {
        let mut txn = store.begin();
        for (j, len) in some.iter().enumerate() {
            let i = (i * 50 + j) as u64;
            txn.put(table, &i.to_be_bytes(), &noise(i, *len)).expect("put");
        }
        txn.commit().expect("commit");
    }
}

fn delete_all(store: &Store, table: &Table, count: usize) {
    for first in (0..count as u64).step_by(50) {
        change(store, table, std::iter::empty(), first..(first + 50).min(count as u64));
    }
}

#[test]
fn what_is_deleted_is_given_back_on_every_place() {
    let lens: Vec<usize> = (0..1500).map(|i| if i % 50 == 7 { 50_000 } else { 300 }).collect();
    for (vfs_name, vfs) in places("given_back") {
        for kind in kinds() {
            let name = format!("{vfs_name}, {kind:?}");
            let (store, table) = open(&vfs, kind);
            put_all(&store, &table, &lens);
            store.checkpoint().expect("checkpoint");
            let full = info(&store);
            assert!(full.allocated_bytes > 1 << 20, "{name}: {full:?}");
            delete_all(&store, &table, lens.len());
            store.checkpoint().expect("checkpoint");
            let after = info(&store);
            assert!(after.allocated_bytes <= EMPTY_BYTES, "{name}: {after:?}");
            store.optimize("t", |_| ControlFlow::Continue(())).expect("optimize");
            let cut = info(&store);
            assert!(cut.file_bytes <= EMPTY_BYTES, "{name}: {cut:?}");
            assert_eq!(check(&store).records, 0, "{name}");
            drop(table);
            store.close().expect("close");
            // Free pages are found again, and used before the file grows.
            let (store, table) = open(&vfs, kind);
            put_all(&store, &table, &lens);
            store.checkpoint().expect("checkpoint");
            let again = info(&store);
            assert!(again.allocated_bytes <= full.allocated_bytes / 8 * 9, "{name}: {full:?}, {again:?}");
            assert_eq!(check(&store).records, lens.len() as u64, "{name}");
            for (i, len) in lens.iter().enumerate().step_by(7) {
                let value = store.begin().get(&table, &i.to_be_bytes()).expect("get");
                assert!(value == Some(noise(i as u64, *len)), "{name}: {i}");
            }
            drop(table);
            store.drop_table("t").expect("drop");
            store.close().expect("close");
        }
    }
}

#[test]
fn undo_is_given_back_on_every_place() {
    for (name, vfs) in places("undo_given_back") {
        let (store, table) = open(&vfs, TableOptions::default());
        let lens = vec![1000; 3000];
        put_all(&store, &table, &lens);
        let mut txn = store.begin();
        for i in 0..lens.len() as u64 {
            txn.put(&table, &i.to_be_bytes(), &noise(i + 1, 999)).expect("put");
        }
        store.checkpoint().expect("checkpoint");
        let undo = vfs.open("t00000001.32k", StreamHint::Data).expect("undo");
        let allocated = || undo.allocated(0, u64::MAX / 2).expect("allocated");
        let full = allocated();
        assert!(full > 2 << 20, "{name}: {full}");
        txn.commit().expect("commit");
        store.checkpoint().expect("checkpoint");
        assert!(allocated() <= 2 * EMPTY_BYTES, "{name}: {} of {full}", allocated());
        store.check().expect("sound");
    }
}

/// Inserts until the store is full; the number of records then.
fn fill(store: &Store, table: &Table, from: u64) -> u64 {
    let mut next = from;
    loop {
        let mut txn = store.begin();
        for i in next..next + 50 {
            match txn.put(table, &i.to_be_bytes(), &noise(i, 800)) {
                Ok(()) => {}
                Err(Error::Full { .. }) => return next,
                Err(e) => panic!("{e}"),
            }
        }
        txn.commit().expect("what was admitted can be committed");
        next += 50;
    }
}

#[test]
fn a_full_store_takes_new_records_once_enough_were_deleted() {
    for kind in [kinds()[0], kinds()[2]] {
        let vfs = flash(32 << 20);
        let (store, table) = open(&vfs, kind);
        let mut next = fill(&store, &table, 0);
        let mut first = 0;
        for _ in 0..2 {
            let gone = (next - first) / 2;
            for at in (first..first + gone).step_by(50) {
                change(&store, &table, std::iter::empty(), at..(at + 50).min(first + gone));
            }
            first += gone;
            let more = fill(&store, &table, next);
            assert!(more - next > gone / 4 * 3, "{kind:?}: {} for {gone}", more - next);
            next = more;
        }
        assert_eq!(check(&store).records, next - first);
    }
}

type Model = BTreeMap<u64, Vec<u8>>;

fn read(store: &Store, table: &Table) -> Model {
    let mut found = Model::new();
    let each = |key: &[u8], value: &[u8]| {
        found.insert(u64::from_be_bytes(key.try_into().expect("a number")), value.to_vec());
        ControlFlow::Continue(())
    };
    let txn = store.begin();
    txn.scan(table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, each).expect("scan");
    found
}

/// A transaction that makes the table grow or shrink much; `model` becomes the table's content after its commit.
fn swing(store: &Store, table: &Table, model: &mut Model, rng: &mut SeededRng) -> Result<(), Error> {
    let before = model.clone();
    let mut txn = store.begin();
    if model.len() < 30 || rng.chance(40) {
        for _ in 0..20 + rng.below(150) {
            let (number, len) =
                (rng.below(1000), if rng.chance(5) { rng.below(20_000) } else { rng.below(200) });
            let value = noise(rng.below(1 << 30), len as usize);
            txn.put(table, &number.to_be_bytes(), &value)?;
            model.insert(number, value);
        }
    } else {
        let (first, last) = (rng.below(1000), rng.below(2000));
        let thin = rng.chance(40);
        let gone: Vec<u64> = model.keys().copied().filter(|i| (first..last).contains(i) != thin).collect();
        for number in gone {
            assert!(txn.delete(table, &number.to_be_bytes())?);
            model.remove(&number);
        }
    }
    if rng.chance(10) {
        *model = before;
        return txn.rollback();
    }
    txn.commit()
}

/// Pages that are freed, become holes, are used again and cut off, while the power is cut.
fn cut_case(rig: &dyn Rig, seed: u64) {
    let mut rng = SeededRng::new(seed);
    let kind = kinds()[rng.below(3) as usize];
    let mut options = options();
    options.log_bytes = 256 << 10 << rng.below(3);
    options.pool_bytes = 1 << 20;
    let mut states = vec![Model::new()];
    for round in 0..3 {
        let store = rigs::recover(rig, &mut rng, |vfs| {
            let store = Store::open(vfs, options.clone())?;
            store.open_table("t", kind)?;
            Ok(store)
        });
        let table = store.table("t").expect("catalog").expect("there");
        let found = read(&store, &table);
        assert!(states.contains(&found), "round {round}: {} records, none of the states", found.len());
        store.check().unwrap_or_else(|e| panic!("round {round}: {e}"));
        rig.check();
        states = vec![found];
        let ops_max = [50, 300, 1500][rng.below(3) as usize];
        rig.set_cut_after(1 + rng.below(ops_max));
        while !rig.is_off() {
            let before = states.last().expect("a state").clone();
            let mut after = before.clone();
            let outcome = swing(&store, &table, &mut after, &mut rng);
            states = if outcome.is_ok() { vec![after] } else { vec![before, after] };
            let upkeep = match rng.below(10) {
                0 => store.checkpoint(),
                1 => store.optimize("t", |_| ControlFlow::Continue(())).map(drop),
                2 => {
                    rig.upkeep(&mut rng);
                    Ok(())
                }
                3..=5 => store.step().map(drop),
                _ => Ok(()),
            };
            assert!(outcome.and(upkeep).is_ok() || rig.may_fail());
        }
    }
}

#[test]
fn power_cuts_among_holes_and_cut_files_on_a_directory() {
    for_each_seed(30, |seed| cut_case(&SimVfs::new(seed), seed));
}

#[test]
fn power_cuts_among_holes_and_cut_files_on_flash() {
    for_each_seed(20, |seed| cut_case(&Flash::new(seed, false), seed));
}

/// The bound of `overflow`, and of leaves whose keys come in order.
#[test]
fn no_length_takes_much_more_than_itself() {
    const COUNT: u64 = 60;
    for (name, vfs) in places("lengths") {
        let unit = u64::from(vfs.props().hole_unit);
        for page_bytes in [4096, 16 << 10] {
            for len in
                [300, 700, 1000, 1024, 1025, 2000, 3000, 4050, 4096, 4097, 6000, 9000, 16_300, 16_400, 40_000]
            {
                for is_ascending in [true, false] {
                    let (store, table) = open(&vfs, TableOptions::default().page_bytes(page_bytes));
                    for i in 0..COUNT {
                        let key = if is_ascending { i } else { COUNT - i };
                        let mut txn = store.begin();
                        txn.put(&table, &key.to_be_bytes(), &noise(i, len)).expect("put");
                        txn.commit().expect("commit");
                    }
                    store.checkpoint().expect("checkpoint");
                    let allocated = info(&store).allocated_bytes;
                    let bound = COUNT * (len as u64 * 5 / 4 + unit) + 8 * page_bytes as u64;
                    let case =
                        format!("{name}, {len} bytes in pages of {page_bytes}, ascending: {is_ascending}");
                    assert!(allocated <= bound, "{case}: {} each", allocated / COUNT);
                    drop(table);
                    store.drop_table("t").expect("drop");
                    store.close().expect("close");
                }
            }
        }
    }
}

/// Pages after the new end must be free in every state that a crash leaves.
#[test]
fn files_are_cut_only_once_the_log_says_that_their_end_is_free() {
    const COUNT: u64 = 2000;
    for cut in 1..40 {
        let vfs = SimVfs::new(cut);
        let open = || {
            let options = StoreOptions { durability: Durability::Relaxed, ..options() };
            let store = Store::open(vfs.clone(), options).expect("open");
            let table = store.open_table("t", TableOptions::default().page_bytes(4096)).expect("table");
            (store, table)
        };
        let (store, table) = open();
        change(&store, &table, 0..COUNT, std::iter::empty());
        store.checkpoint().expect("checkpoint");
        change(&store, &table, std::iter::empty(), 100..COUNT);
        vfs.set_cut_after(cut);
        let outcome = store.checkpoint();
        assert!(outcome.is_ok() || vfs.is_off());
        vfs.set_cut_after(0);
        drop((table, store));
        vfs.power_cycle();
        let (store, table) = open();
        let found = read(&store, &table).len() as u64;
        assert!(found == 100 || found == COUNT, "cut {cut}: {found} records");
        assert_eq!(check(&store).records, found);
    }
}

/// A table and its expected content.
struct Shape<'a> {
    store: &'a Store,
    table: &'a Table,
    kind: TableOptions,
    unit: u64,
    model: Model,
    rng: SeededRng,
}

impl Shape<'_> {
    /// Row-compressed pages are half noise, as they would take two blocks otherwise.
    fn value(&mut self, len: u64) -> Vec<u8> {
        let mut value = noise(self.rng.below(1 << 40), len as usize);
        if self.kind.layout_is_row() {
            value[len as usize / 3..].fill(7);
        }
        value
    }

    /// Puts and deletes in one transaction; a full store loses some instead.
    fn play(&mut self, puts: &[(u64, u64)], deletes: &[u64]) {
        let mut txn = self.store.begin();
        let mut after = self.model.clone();
        for number in deletes {
            txn.delete(self.table, &number.to_be_bytes()).expect("delete");
            after.remove(number);
        }
        for (number, len) in puts {
            let value = self.value(*len);
            match txn.put(self.table, &number.to_be_bytes(), &value) {
                Ok(()) => drop(after.insert(*number, value)),
                Err(Error::Full { .. }) => break,
                Err(e) => panic!("{e}"),
            }
        }
        txn.commit().expect("commit");
        self.model = after;
    }

    /// Checks content, tree and bounds.
    fn prove(&mut self, what: &str) {
        self.store.checkpoint().expect("checkpoint");
        let (is_row, page_bytes) = (self.kind.layout_is_row(), self.kind.page_bytes as u64);
        let is_plain = self.kind.kind == TableKind::Plain;
        let what = format!("{what}, {:?}, holes of {}", self.kind.kind, self.unit);
        assert!(read(self.store, self.table) == self.model, "{what}");
        // Records with their heads; a long value may waste a unit of holes, in row-compressed tables a block.
        let waste = if is_row { 4096 } else { self.unit };
        let long = |len: u64| if len > page_bytes / 4 { waste } else { 0 };
        let live: u64 = self.model.values().map(|v| v.len() as u64 + 29 + long(v.len() as u64)).sum();
        let factor = if is_plain || is_row { 16 } else { 13 };
        let allocated = info(self.store).allocated_bytes;
        assert!(allocated <= live * factor / 10 + EMPTY_BYTES, "{what}: {allocated} bytes for {live}");
        let found = check(self.store);
        assert_eq!(found.records, self.model.len() as u64, "{what}");
        let leaves_max = live * if is_row { 30 } else { 17 } / 10 / page_bytes + 4;
        assert!(found.leaves <= leaves_max, "{what}: {live} bytes in {found:?}");
        // A scan copies what is in its first leaf, with the pages of long values.
        let has_long = self.model.values().any(|v| long(v.len() as u64) > 0);
        for direction in [Direction::Forward, Direction::Backward].into_iter().filter(|_| !has_long) {
            let pages = pages_to_first(self.store, self.table, direction);
            assert!(pages <= 2 * found.height + 6, "{what}: {pages} pages to the first record, {found:?}");
        }
    }

    fn some_of(&mut self, count: usize) -> Vec<u64> {
        let numbers: Vec<u64> = self.model.keys().copied().collect();
        let order = shuffled(numbers.len() as u64, &mut self.rng);
        order.into_iter().take(count).map(|at| numbers[at as usize]).collect()
    }

    fn run(&mut self) {
        const STEP: u64 = 50;
        let short = |rng: &mut SeededRng, number: u64| (number, 150 + rng.below(100));
        for i in 0..60 {
            let puts: Vec<_> = (i * STEP..(i + 1) * STEP).map(|n| short(&mut self.rng, n)).collect();
            let gone: Vec<_> = if i < 20 { Vec::new() } else { ((i - 20) * STEP..(i - 19) * STEP).collect() };
            self.play(&puts, &gone);
        }
        self.prove("queue");
        for i in 60..80 {
            let puts: Vec<_> = (i * STEP..(i + 1) * STEP).map(|n| short(&mut self.rng, n)).collect();
            self.play(&puts, &[]);
        }
        for i in (50..80).rev() {
            self.play(&[], &(i * STEP..(i + 1) * STEP).collect::<Vec<_>>());
        }
        self.prove("stack");
        for _ in 0..40 {
            let puts: Vec<_> = (0..STEP).map(|_| self.rng.below(1 << 40)).collect();
            let puts: Vec<_> = puts.into_iter().map(|n| short(&mut self.rng, n)).collect();
            let gone = self.some_of(if self.model.len() > 1500 { STEP as usize } else { 0 });
            self.play(&puts, &gone);
        }
        self.prove("churn");
        while self.model.len() > 300 {
            let gone = self.some_of(STEP as usize);
            self.play(&[], &gone);
        }
        self.prove("thinned");
        let page = self.kind.page_bytes as u64;
        let limits =
            [0, 1, page / 8, page / 4 - 1, page / 4, page / 4 + 1, page - 96, page - 95, 2 * page, 40_000];
        for (i, len) in limits.iter().cycle().take(100).enumerate() {
            let number = self.rng.below(1 << 40);
            let gone = self.some_of(usize::from(i % 3 == 0));
            self.play(&[(number, *len)], &gone);
        }
        self.prove("limits");
        while !self.model.is_empty() {
            let gone = self.some_of(STEP as usize);
            self.play(&[], &gone);
        }
        self.prove("nothing");
    }
}

trait IsRow {
    fn layout_is_row(&self) -> bool;
}

impl IsRow for TableOptions {
    fn layout_is_row(&self) -> bool {
        matches!(self.kind, TableKind::RowCompressed { .. })
    }
}

/// Every shape on every kind of table and VFS.
#[test]
fn space_follows_what_is_live_in_histories_of_every_shape() {
    for_each_seed(9, |seed| {
        let (name, vfs) = places(&format!("shapes_{seed}")).swap_remove(seed as usize % 3);
        let kind = match seed / 3 % 3 {
            0 => TableOptions::default().page_bytes(4096 << (seed / 9 % 3)),
            1 => TableOptions::compressed(Algorithm::Lz4),
            _ => TableOptions::row_compressed(4).page_bytes(8192),
        };
        let unit = u64::from(vfs.props().hole_unit);
        let (store, table) = open(&vfs, kind);
        let (model, rng) = (Model::new(), SeededRng::new(seed));
        let mut shape = Shape { store: &store, table: &table, kind, unit, model, rng };
        shape.run();
        drop(table);
        store.close().unwrap_or_else(|e| panic!("{name}: {e}"));
    });
}

/// In a store that is 95% full.
#[test]
fn a_nearly_full_store_goes_on_for_ever() {
    for kind in [kinds()[0], kinds()[1]] {
        let vfs = flash(24 << 20);
        let (store, table) = open(&vfs, kind);
        // In random order of keys: leaves reach their steady fill.
        let mut rng = SeededRng::new(3);
        let mut live: Vec<u64> = Vec::new();
        let number = |rng: &mut SeededRng| rng.below(1 << 60);
        let mut is_full = false;
        while !is_full {
            let mut txn = store.begin();
            let some: Vec<u64> = (0..50).map(|_| number(&mut rng)).collect();
            is_full = some.iter().any(|n| txn.put(&table, &n.to_be_bytes(), &noise(*n, 800)).is_err());
            if is_full { txn.rollback() } else { txn.commit() }.expect("end");
            live.extend(some.into_iter().filter(|_| !is_full));
        }
        let delete = |live: &mut Vec<u64>, count: usize| {
            let gone = live.split_off(live.len() - count);
            change(&store, &table, std::iter::empty(), gone.into_iter());
        };
        let twentieth = live.len() / 20;
        delete(&mut live, twentieth);
        for _ in 0..100 {
            delete(&mut live, 40);
            let mut txn = store.begin();
            for _ in 0..40 {
                let number = number(&mut rng);
                txn.put(&table, &number.to_be_bytes(), &noise(number, 800)).expect("as much was deleted");
                live.insert(rng.below(live.len() as u64) as usize, number);
            }
            txn.commit().expect("commit");
        }
        assert_eq!(check(&store).records, live.len() as u64);
    }
}

/// Bytes that the log's files take.
fn log_takes(vfs: &dyn Vfs) -> u64 {
    let names = vfs.list().expect("list").into_iter().filter(|name| name.starts_with("wal."));
    let bytes = |name: String| {
        let file = vfs.open(&name, StreamHint::Log).expect("open");
        file.allocated(0, file.len().expect("length")).expect("allocated")
    };
    names.map(bytes).sum()
}

/// A block that is given back in two parts stayed: a tenth of all log that was ever written.
#[test]
fn log_is_given_back_to_the_last_block() {
    const LOG_BYTES: u64 = 256 << 10;
    for (place, vfs) in places("log_blocks").into_iter().rev() {
        let options = || StoreOptions { log_bytes: LOG_BYTES, durability: Durability::Relaxed, ..options() };
        let store = Store::open(vfs.clone(), options()).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("create");
        let log_bytes = if place == "directory" { 24 << 20 } else { 4 << 20 };
        while store.stats().expect("stats").log.written_bytes < log_bytes {
            let mut txn = store.begin();
            txn.put(&table, b"k", &noise(1, 2000)).expect("put");
            txn.commit().expect("commit");
            store.step().expect("step");
        }
        let takes = log_takes(&*vfs);
        assert!(takes < LOG_BYTES * 5 / 4, "{place}: {takes} bytes of log");
        store.close().expect("close");
        drop(table);
        // As after a crash between a checkpoint and what it gives back.
        let log = vfs.open("wal.000000", StreamHint::Log).expect("open");
        log.write_at(0, &AlignedBuf::zeroed(1 << 20)).expect("write");
        log.sync().expect("sync");
        drop(log);
        let store = Store::open(vfs.clone(), options()).expect("open");
        let takes = log_takes(&*vfs);
        assert!(takes < LOG_BYTES * 5 / 4, "{place}: {takes} bytes of log after it was opened");
        store.check().expect("sound");
        store.close().expect("close");
    }
}

/// A batch was as long as in a large store, and refused: the store stopped, and after the next opening again.
#[test]
fn batches_fit_into_small_stores() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(16 << 20));
    let format =
        lacuna_ftl::FormatOptions { segment_bytes: Some(256 << 10), ..lacuna_ftl::FormatOptions::default() };
    let format = FormatOptions { ftl: format, ..FormatOptions::default() };
    Nvmfs::format(device.clone(), &format).expect("format");
    let mut open = Options::default();
    open.ftl.background = false;
    let vfs: Arc<dyn Vfs> = Arc::new(Nvmfs::open(device, open).expect("open"));
    let store = Store::open(vfs.clone(), options()).expect("open");
    let table = store.create_table("t", TableOptions::default().page_bytes(64 << 10)).expect("create");
    for first in (0..2_000).step_by(20) {
        let mut txn = store.begin();
        for key in first..first + 20_u64 {
            txn.put(&table, &key.to_be_bytes(), &noise(key, 600)).expect("put");
        }
        txn.commit().expect("commit");
    }
    store.checkpoint().expect("checkpoint");
    store.check().expect("sound");
    store.close().expect("close");
}
