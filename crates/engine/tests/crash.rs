//! The crash matrix of the engine: power cuts at random writes, syncs and discards, and again during
//! recovery, on the file system over the simulated device and on a simulated directory that tears and
//! reorders writes.
//!
//! After each cut the store must hold every acknowledged commit, at most the one under way besides,
//! and nothing of any other transaction.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    num::NonZeroU64,
    ops::{Bound, ControlFlow},
    thread,
};

use crate::rigs::{self, Flash, Rig, beside::Beside, edited::edited, log_device::FlashAndMemory};
use lacuna_device::AtomicWrites;
use lacuna_engine::{
    Algorithm, Direction, Doublewrite, Durability, EngineKey, Error, KeyCost, KeyOptions, Secret, Store,
    StoreOptions, Table, TableKind, TableOptions, Txn,
};
use lacuna_sim::{CutTally, SeededRng, SimVfs, for_each_seed};

const TABLES: [&str; 3] = ["plain", "compressed", "row"];
const ROUNDS: u64 = 3;

/// Key and value of every record, by table.
type Model = BTreeMap<(usize, Vec<u8>), Vec<u8>>;

fn options(rng: &mut SeededRng) -> StoreOptions {
    StoreOptions {
        pool_bytes: 1 << 20,
        log_bytes: [256 << 10, 512 << 10, 1 << 20][rng.below(3) as usize],
        history_bytes: [20 << 10, 1 << 30][rng.below(2) as usize],
        background: false,
        durability: if rng.chance(70) { Durability::Sync } else { Durability::Relaxed },
        log_salt: NonZeroU64::new(7),
        ..StoreOptions::default()
    }
}

/// One for each of [`TABLES`].
fn kinds() -> [TableOptions; 3] {
    [
        TableOptions::default().page_bytes(4096),
        TableOptions::compressed(Algorithm::Lz4),
        TableOptions::row_compressed(4).page_bytes(8 << 10),
    ]
}

/// Of other sizes now and then, for larger pages take longer.
fn random_kinds(rng: &mut SeededRng) -> [TableOptions; 3] {
    let [plain, compressed, row] = kinds();
    if rng.chance(60) {
        return [plain, compressed, row];
    }
    let row_bytes: usize = 4096 << rng.below(3);
    // Shorter ones do not take the longest keys.
    let block_bytes = (row_bytes >> rng.below(3)).max(4096);
    [
        plain.page_bytes(4096 << rng.below(5)),
        compressed.page_bytes(4096 << rng.below(5)),
        TableOptions::row_compressed((block_bytes >> 10) as u32).page_bytes(row_bytes),
    ]
}

fn recover(rig: &dyn Rig, rng: &mut SeededRng, options: &StoreOptions, kinds: [TableOptions; 3]) -> Store {
    recover_noting(rig, rng, options, kinds, &RefCell::default())
}

/// The same; notes each cut while the store is opened.
fn recover_noting(
    rig: &dyn Rig,
    rng: &mut SeededRng,
    options: &StoreOptions,
    kinds: [TableOptions; 3],
    tally: &RefCell<CutTally>,
) -> Store {
    rigs::recover(rig, rng, |vfs| {
        let opened = Store::open(vfs, options.clone());
        if opened.is_err() && rig.is_off() {
            tally.borrow_mut().note("recovery");
        }
        let store = opened?;
        for (name, kind) in TABLES.iter().zip(kinds) {
            if store.table(name)?.is_none() {
                store.create_table(name, kind)?;
            }
        }
        Ok(store)
    })
}

fn tables(store: &Store) -> [Table; 3] {
    TABLES.map(|name| store.table(name).expect("catalog").expect("made by recover"))
}

fn read_all(store: &Store) -> Model {
    read_by(&store.begin(), &tables(store)).expect("scan")
}

fn read_by(txn: &Txn, tables: &[Table; 3]) -> Result<Model, Error> {
    let mut found = Model::new();
    for (i, table) in tables.iter().enumerate() {
        txn.scan(table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |key, value| {
            found.insert((i, key.to_vec()), value.to_vec());
            ControlFlow::Continue(())
        })?;
    }
    Ok(found)
}

/// Open snapshots, and what each must see.
#[derive(Default)]
struct Snapshots(Vec<(Txn, Model)>);

impl Snapshots {
    /// At random opens a snapshot of the state `now`, reads one again, or ends one.
    fn play(
        &mut self,
        store: &Store,
        tables: &[Table; 3],
        now: &Model,
        rng: &mut SeededRng,
    ) -> Result<(), Error> {
        let chosen = rng.below(self.0.len().max(1) as u64) as usize;
        match rng.below(30) {
            0 if self.0.len() < 4 => {
                let txn = store.begin();
                txn.get(&tables[0], b"")?;
                self.0.push((txn, now.clone()));
            }
            1 if !self.0.is_empty() => drop(self.0.swap_remove(chosen)),
            2 if !self.0.is_empty() => {
                let (txn, then) = &self.0[chosen];
                match read_by(txn, tables) {
                    Ok(found) => assert!(found == *then, "a snapshot changed"),
                    // Its history grew too large for this small VFS.
                    Err(Error::SnapshotTooOld) => drop(self.0.swap_remove(chosen)),
                    Err(e) => return Err(e),
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Key number `number`; some are as long as the smallest blocks take.
fn key(prefix: &[u8], number: u64) -> Vec<u8> {
    let mut key = [prefix, &number.to_be_bytes()].concat();
    match number % 16 {
        0 => key.resize(512, 7),
        1 => key.resize(300, number as u8),
        _ => {}
    }
    key
}

/// Random writes of one transaction, made in the store and the model.
fn change(
    txn: &mut Txn,
    tables: &[Table; 3],
    prefix: &[u8],
    rng: &mut SeededRng,
    model: &mut Model,
) -> Result<(), Error> {
    let mut savepoint = None;
    for _ in 0..1 + rng.below(12) {
        let i = rng.below(3) as usize;
        let key = key(prefix, rng.below(400));
        if rng.chance(25) {
            txn.delete(&tables[i], &key)?;
            model.remove(&(i, key));
        } else {
            let len = match rng.below(100) {
                0 => rng.below(100 << 10),
                1..=2 => rng.below(10 << 10),
                3 => (1024 << rng.below(5)) - 2 + rng.below(5),
                4..=6 => 1000,
                _ => rng.below(120),
            };
            let mut value = vec![0; len as usize];
            rng.fill(&mut value);
            if let Some(old) = model.get(&(i, key.clone())).filter(|old| !old.is_empty())
                && rng.chance(40)
            {
                value = edited(old, rng);
            }
            txn.put(&tables[i], &key, &value)?;
            model.insert((i, key), value);
        }
        if rng.chance(5) {
            savepoint = Some((txn.savepoint()?, model.clone()));
        } else if rng.chance(5)
            && let Some((point, then)) = savepoint.take()
        {
            txn.rollback_to(point)?;
            *model = then;
        }
    }
    Ok(())
}

fn delete_some(
    txn: &mut Txn,
    tables: &[Table; 3],
    rng: &mut SeededRng,
    model: &mut Model,
) -> Result<(), Error> {
    for _ in 0..1 + rng.below(20) {
        let at = rng.below(model.len().max(1) as u64) as usize;
        let Some((i, key)) = model.keys().nth(at).cloned() else { break };
        assert!(txn.delete(&tables[i], &key)?);
        model.remove(&(i, key));
    }
    Ok(())
}

/// Now and then, does what threads of the store do, or makes everything durable.
fn step_or_checkpoint(
    store: &Store,
    rng: &mut SeededRng,
    states: &mut Vec<Model>,
    place: &Cell<&'static str>,
) -> Result<(), Error> {
    match rng.below(40) {
        0..3 => {
            place.set("step");
            store.step().map(drop)
        }
        3 => {
            place.set("checkpoint");
            let done = store.checkpoint();
            if done.is_ok() {
                states.drain(..states.len() - 1);
            }
            done
        }
        _ => Ok(()),
    }
}

/// Runs transactions until the power is cut, or the VFS fails. `states` are all states that a crash may leave now, and
/// `place` what is being done.
fn run_until_cut(
    rig: &dyn Rig,
    store: &Store,
    rng: &mut SeededRng,
    durability: Durability,
    states: &mut Vec<Model>,
    place: &Cell<&'static str>,
) {
    let tables = tables(store);
    let mut snapshots = Snapshots::default();
    for _ in 0..20_000 {
        let now = states.last().expect("a state").clone();
        let mut after = now.clone();
        place.set("snapshot");
        let looked = snapshots.play(store, &tables, &now, rng);
        let mut txn = store.begin();
        let mut outcome = looked.and_then(|()| {
            place.set("change");
            change(&mut txn, &tables, b"", rng, &mut after)
        });
        if matches!(outcome, Err(Error::Full { .. })) {
            if now.is_empty() {
                return rig.set_cut_after(0); // nothing will happen any more
            }
            drop(txn); // it is taken back, and that must not fail
            txn = store.begin();
            after = now.clone();
            outcome = delete_some(&mut txn, &tables, rng, &mut after);
        }
        if matches!(outcome, Err(Error::Full { .. })) {
            return rig.set_cut_after(0); // not even deletions fit any more
        }
        if outcome.is_ok() && rng.chance(10) {
            // Pages with changes that are not committed, nor even logged, may be due.
            place.set("step in a transaction");
            outcome = store.step().map(drop);
            rig.upkeep(rng);
        }
        if outcome.is_ok() && rng.chance(15) {
            place.set("rollback");
            outcome = txn.rollback();
        } else if outcome.is_ok() {
            place.set("commit");
            outcome = txn.commit();
            match outcome {
                Ok(()) if durability == Durability::Sync => *states = vec![after],
                _ => states.push(after),
            }
        } else {
            drop(txn);
        }
        if let Err(error) = outcome {
            assert!(rig.may_fail(), "{error}");
            return;
        }
        if rng.chance(10) {
            place.set("upkeep");
            rig.upkeep(rng);
        }
        if rng.below(1000) < 5 {
            rig.fail(rng);
        }
        let upkeep = step_or_checkpoint(store, rng, states, place);
        if upkeep.is_err() || rig.is_off() {
            assert!(rig.may_fail(), "{upkeep:?}");
            return;
        }
    }
    panic!("the power was never cut");
}

fn crash_case(rig: &dyn Rig, seed: u64, doublewrite: Doublewrite, tally: &RefCell<CutTally>) {
    crash_case_beside(rig, seed, |options, _| options.doublewrite = doublewrite, tally, |_| {});
}

/// Runs `case` for `cases` seeds, and demands so many cuts in each of `places`: half of what they are.
fn matrix(cases: u64, places: &[(&str, u64)], case: impl Fn(u64, &RefCell<CutTally>)) {
    let (tally, mut done) = (RefCell::default(), 0);
    for_each_seed(cases, |seed| {
        case(seed, &tally);
        done += 1;
    });
    let tally: CutTally = tally.into_inner();
    eprintln!("{done} cases, cuts in\n{tally}");
    if done >= cases {
        tally.assert_each(places);
    }
}

/// `choose` changes the options of each opening; `join` is called with each store before work begins on it.
fn crash_case_beside(
    rig: &dyn Rig,
    seed: u64,
    choose: impl Fn(&mut StoreOptions, &mut SeededRng),
    tally: &RefCell<CutTally>,
    join: impl Fn(&Store),
) {
    let place = Cell::new("nothing");
    let mut rng = SeededRng::new(seed);
    let mut kinds = random_kinds(&mut rng);
    let mut states = vec![Model::new()];
    for round in 0..ROUNDS {
        let mut options = options(&mut rng);
        choose(&mut options, &mut rng);
        if seed % 4 == 3 {
            kinds[1].kind = TableKind::Adaptive { level: 1 };
        }
        if options.key.is_some() {
            let chosen = &mut kinds[seed as usize % 2];
            *chosen = chosen.encrypted();
        }
        let store = recover_noting(rig, &mut rng, &options, kinds, tally);
        let found = read_all(&store);
        let survived = states.iter().position(|state| *state == found);
        assert!(
            survived.is_some(),
            "round {round}: {} records survived, which is none of the {} states that may",
            found.len(),
            states.len()
        );
        store.check().unwrap_or_else(|e| panic!("round {round}: {e}"));
        rig.check();
        states = vec![found];
        join(&store);
        let ops_max = [30, 300, 1500][rng.below(3) as usize];
        rig.set_cut_after(1 + rng.below(ops_max));
        run_until_cut(rig, &store, &mut rng, options.durability, &mut states, &place);
        if rig.is_off() {
            tally.borrow_mut().note(place.get());
        }
    }
}

#[test]
fn power_cuts_on_flash_lose_no_commit() {
    let places = [("commit", 86), ("step", 3), ("checkpoint", 6), ("upkeep", 17), ("recovery", 14)];
    matrix(120, &places, |seed, tally| {
        let doublewrite = if seed % 5 == 0 { Doublewrite::On } else { Doublewrite::Auto };
        crash_case(&Flash::new(seed, false), seed, doublewrite, tally);
    });
}

/// The log lies in persistent memory, the pages on flash, and one cut hits both.
#[test]
fn power_cuts_with_the_log_in_memory_lose_no_commit() {
    let places = [("commit", 60), ("checkpoint", 3), ("recovery", 10)];
    matrix(120, &places, |seed, tally| {
        crash_case(&FlashAndMemory::new(seed), seed, Doublewrite::Auto, tally);
    });
}

/// Log and undo are encrypted, and one of the tables.
#[test]
fn power_cuts_with_encrypted_tables_lose_no_commit() {
    let slot = KeyOptions { cost: KeyCost::MIN, ..KeyOptions::default() };
    let key = EngineKey { secret: Secret::new("secret").expect("a secret"), slot };
    let encrypt = |options: &mut StoreOptions, _: &mut SeededRng| options.key = Some(key.clone());
    matrix(120, &[("commit", 50), ("checkpoint", 10), ("recovery", 20)], |seed, tally| match seed / 2 % 3 {
        0 => crash_case_beside(&Flash::new(seed, false), seed, encrypt, tally, |_| {}),
        1 => crash_case_beside(&SimVfs::new(seed), seed, encrypt, tally, |_| {}),
        _ => crash_case_beside(&FlashAndMemory::new(seed), seed, encrypt, tally, |_| {}),
    });
}

/// A full VFS refuses new records; rollbacks, purges and recoveries have the space that they need.
#[test]
fn power_cuts_on_full_flash_lose_no_commit() {
    for_each_seed(12, |seed| {
        let rig = Flash::new(seed, false);
        let mut rng = SeededRng::new(seed);
        let tables = random_kinds(&mut rng);
        let options = options(&mut rng);
        recover(&rig, &mut rng, &options, tables).close().expect("close");
        rig.power_cycle();
        rig.fill_up_to(1 << 20 << (seed % 3));
        crash_case(&rig, seed, Doublewrite::Auto, &RefCell::default());
    });
}

#[test]
fn power_cuts_on_a_directory_lose_no_commit() {
    let places = [
        ("change", 13),
        ("step in a transaction", 17),
        ("commit", 71),
        ("step", 7),
        ("checkpoint", 53),
        ("recovery", 111),
    ];
    matrix(150, &places, |seed, tally| crash_case(&SimVfs::new(seed), seed, Doublewrite::Auto, tally));
}

/// A directory whose files take atomic writes of a power of two: up to the largest page; or less, then larger pages of
/// other tables are written twice.
fn atomic(seed: u64) -> std::sync::Arc<SimVfs> {
    let bytes_max = [64 << 10, 16 << 10, 4096][seed as usize % 3];
    SimVfs::with_atomic_writes(seed, AtomicWrites { bytes_min: [512, 4096][seed as usize % 2], bytes_max })
}

#[test]
fn power_cuts_on_a_directory_with_atomic_writes_lose_no_commit() {
    let places = [
        ("change", 13),
        ("step in a transaction", 17),
        ("commit", 71),
        ("step", 7),
        ("checkpoint", 53),
        ("recovery", 111),
    ];
    matrix(150, &places, |seed, tally| {
        let doublewrite = [Doublewrite::Auto, Doublewrite::Off][(seed % 3 == 0) as usize];
        crash_case(&atomic(seed), seed, doublewrite, tally);
    });
}

/// The same with switches that change from one opening to the next: pages lie there as other settings wrote them.
#[test]
fn power_cuts_among_changing_switches_lose_no_commit() {
    for_each_seed(100, |seed| {
        let choose = |options: &mut StoreOptions, rng: &mut SeededRng| {
            options.doublewrite = [Doublewrite::Auto, Doublewrite::On][rng.below(2) as usize];
            options.atomic_writes = rng.chance(70);
            options.checksums = rng.chance(30);
            options.trim = rng.chance(80);
            options.packing = rng.chance(80);
        };
        crash_case_beside(&atomic(seed), seed, choose, &RefCell::default(), |_| {});
    });
}

/// The same with a second writer. Its pages are flushed between the write of others and their sync, and it then moves
/// the checkpoint.
#[test]
fn power_cuts_beside_another_writer_lose_no_commit() {
    for_each_seed(100, |seed| {
        let rig = Beside::new(seed);
        crash_case_beside(&rig, seed, |_, _| {}, &RefCell::default(), |store| rig.work_on(store));
        rig.heal();
    });
}

/// Pages of an unfinished transaction that the ftl has made durable, and a cut before the log is: the
/// log must have been there first.
#[test]
fn pages_never_overtake_the_log() {
    for_each_seed(10, |seed| {
        let rig = Flash::new(seed, false);
        let mut rng = SeededRng::new(seed);
        let options = StoreOptions { durability: Durability::Relaxed, ..options(&mut rng) };
        let store = recover(&rig, &mut rng, &options, kinds());
        let tables = tables(&store);
        let mut txn = store.begin();
        for key in 0..6000_u64 {
            txn.put(&tables[1], &rng.below(1 << 40).to_be_bytes(), &[key as u8; 100]).expect("put");
            if rng.chance(1) {
                while store.step().expect("flush") {}
            }
        }
        rig.upkeep(&mut rng);
        rig.open.lock().clone().expect("open").ftl().flush().expect("flush");
        rig.set_cut_after(0);
        drop((txn, tables, store));
        rig.power_cycle();
        let store = recover(&rig, &mut rng, &options, kinds());
        assert!(read_all(&store).is_empty(), "nothing was committed");
        store.check().expect("check");
    });
}

/// A process that ended left the end of its log in a cache. If recovery has so little memory that it writes pages
/// during replay, it must sync the log before them.
#[test]
fn pages_never_overtake_a_log_that_only_a_cache_held() {
    const RECORDS: u64 = 3000;
    for_each_seed(20, |seed| {
        let vfs = SimVfs::new(seed);
        let mut rng = SeededRng::new(seed);
        let options = StoreOptions {
            pool_bytes: 32 << 20,
            log_bytes: 64 << 20,
            durability: Durability::Sync,
            ..options(&mut rng)
        };
        let store = recover(&vfs, &mut rng, &options, kinds());
        let table = tables(&store)[0].clone();
        let mut txn = store.begin();
        (0..RECORDS).for_each(|key| txn.put(&table, &key.to_be_bytes(), &[1; 600]).expect("put"));
        txn.commit().expect("commit");
        store.checkpoint().expect("checkpoint");
        let mut txn = store.begin();
        for key in (0..RECORDS).step_by(5) {
            txn.put(&table, &key.to_be_bytes(), &[2; 600]).expect("put");
        }
        vfs.fail_sync();
        txn.commit().expect_err("the sync failed");
        drop((table, store));
        vfs.heal();
        vfs.set_cut_after(1 + rng.below(200));
        let little = StoreOptions { pool_bytes: 1 << 20, ..options.clone() };
        drop(Store::open(vfs.clone(), little));
        vfs.power_cycle();
        let store = recover(&vfs, &mut rng, &options, kinds());
        let changed = read_all(&store).into_values().filter(|value| value[0] == 2).count() as u64;
        assert!(changed == 0 || changed == RECORDS.div_ceil(5), "{changed} changes of a transaction");
        store.check().expect("check");
    });
}

/// Pages that leave a small pool after a commit whose end is not in the log yet: an image must still name the writer,
/// or recovery could not roll it back.
#[test]
fn images_name_writers_whose_end_may_be_lost() {
    for_each_seed(20, |seed| {
        let rig = SimVfs::new(seed);
        let mut rng = SeededRng::new(seed);
        let options = StoreOptions { durability: Durability::Relaxed, ..options(&mut rng) };
        let store = recover(&rig, &mut rng, &options, kinds());
        let table = tables(&store)[1].clone();
        let key = |rng: &mut SeededRng| rng.below(1000).to_be_bytes();
        let mut state = [0_u8; 1000];
        let mut fill = store.begin();
        for at in 0..1000_u64 {
            fill.put(&table, &at.to_be_bytes(), &[0; 3000]).expect("put");
        }
        fill.commit().expect("commit");
        store.checkpoint().expect("checkpoint");
        let mut states = vec![state];
        for value in 0..1 + rng.below(20) as u8 {
            // Reads evict pages, and changed ones are flushed.
            let look_around = |rng: &mut SeededRng| {
                for _ in 0..rng.below(8) {
                    store.begin().get(&table, &key(rng)).expect("get");
                    store.step().expect("step");
                }
            };
            let mut txn = store.begin();
            for _ in 0..1 + rng.below(5) {
                let changed = key(&mut rng);
                txn.put(&table, &changed, &[value; 3000]).expect("put");
                state[u64::from_be_bytes(changed) as usize] = value;
                look_around(&mut rng);
            }
            txn.commit().expect("commit");
            states.push(state);
            look_around(&mut rng);
        }
        rig.power_cycle();
        drop((table, store));
        let store = recover(&rig, &mut rng, &options, kinds());
        let found = read_all(&store).into_values().map(|value| value[0]).collect::<Vec<_>>();
        assert!(states.iter().any(|state| state[..] == found[..]), "not what one of the commits left");
        store.check().expect("check");
    });
}

/// Verifies that the matrix catches torn pages: without the doublewrite file a directory that tears pages must fail.
#[test]
fn a_directory_without_doublewrite_is_caught() {
    let caught = (1..=60).any(|seed| {
        let rig = SimVfs::new(seed);
        let case =
            std::panic::AssertUnwindSafe(|| crash_case(&rig, seed, Doublewrite::Off, &RefCell::default()));
        std::panic::catch_unwind(case).is_err()
    });
    assert!(caught, "60 cases without a torn page");
}

/// Many threads with group commit, all background work, and a cut at a random moment. Which commits
/// were under way depends on the scheduler, so a seed names the cut, not the whole history.
fn threads_case(rig: &dyn Rig, seed: u64) {
    let mut rng = SeededRng::new(seed);
    let mut options = options(&mut rng);
    options.durability = Durability::Sync;
    let threads = 4;
    let mut acknowledged: Vec<Model> = vec![Model::new(); threads];
    for _ in 0..2 {
        let quiet = StoreOptions { background: false, ..options.clone() };
        drop(recover(rig, &mut rng, &quiet, kinds()));
        let vfs = rig.open_vfs().expect("recovered");
        let store = Store::open(vfs, StoreOptions { background: true, ..options.clone() }).expect("open");
        let handles = tables(&store);
        rig.set_cut_after(1 + rng.below(2000));
        let base = rng.next_u64();
        let outcomes: Vec<(Model, Model)> = thread::scope(|scope| {
            scope.spawn(|| read_until_cut(rig, &store, &handles));
            let workers: Vec<_> = (0..threads)
                .map(|t| {
                    let (store, handles) = (store.clone(), handles.clone());
                    let model = acknowledged[t].clone();
                    scope.spawn(move || commit_until_cut(&store, &handles, t as u8, base ^ t as u64, model))
                })
                .collect();
            workers.into_iter().map(|w| w.join().expect("worker")).collect()
        });
        assert!(rig.is_off());
        drop((handles, store));
        let store = recover(rig, &mut rng, &quiet, kinds());
        let found = read_all(&store);
        for (t, (acked, in_flight)) in outcomes.into_iter().enumerate() {
            let mine: Model = found
                .iter()
                .filter(|((_, key), _)| key[0] == t as u8)
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            assert!(mine == acked || mine == in_flight, "thread {t} lost a commit");
            acknowledged[t] = mine;
        }
        store.check().expect("check");
        rig.check();
    }
}

#[test]
fn power_cuts_under_many_threads_lose_no_commit() {
    for_each_seed(30, |seed| threads_case(&Flash::new(seed, true), seed));
}

#[test]
fn power_cuts_under_many_threads_on_a_directory_lose_no_commit() {
    for_each_seed(6, |seed| threads_case(&SimVfs::new(seed), seed));
}

#[test]
fn power_cuts_under_many_threads_with_atomic_writes_lose_no_commit() {
    for_each_seed(6, |seed| threads_case(&atomic(seed), seed));
}

/// Takes snapshots, and reads each twice.
fn read_until_cut(rig: &dyn Rig, store: &Store, tables: &[Table; 3]) {
    let read_twice = || -> Result<bool, Error> {
        let txn = store.begin();
        let once = read_by(&txn, tables)?;
        thread::yield_now();
        Ok(read_by(&txn, tables)? == once)
    };
    while !rig.is_off() {
        match read_twice() {
            Ok(is_same) => assert!(is_same, "a snapshot changed"),
            Err(Error::SnapshotTooOld) => {}
            Err(e) => assert!(rig.is_off(), "{e}"),
        }
    }
}

/// The acknowledged state, and the one with the commit that was under way.
fn commit_until_cut(
    store: &Store,
    tables: &[Table; 3],
    t: u8,
    seed: u64,
    mut acked: Model,
) -> (Model, Model) {
    let mut rng = SeededRng::new(seed);
    loop {
        let mut after = acked.clone();
        let mut txn = store.begin();
        let changed = change(&mut txn, tables, &[t], &mut rng, &mut after);
        if changed.is_err() {
            return (acked.clone(), acked);
        }
        if txn.commit().is_err() {
            return (acked, after);
        }
        acked = after;
    }
}
