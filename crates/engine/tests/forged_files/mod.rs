//! Forges the files of stores, and uses each as a program would. `fuzz/` includes this file too.

use std::{
    ops::{Bound, ControlFlow},
    sync::{Arc, OnceLock},
    time::Duration,
};

use lacuna_device::{AlignedBuf, FileProps, MemVfs, SECTOR, StreamHint, Vfs};
use lacuna_engine::{
    Algorithm, Direction, Durability, Error, Result, Store, StoreOptions, Table, TableOptions,
};
use lacuna_sim::{
    HookedVfs, Hooks, SeededRng,
    forge::{Outcome, forge_number, reseal_file_part, watch},
};

/// Records that a look at a table reads.
const RECORDS_MAX: usize = 2000;

/// A file: its name, its length, and where it is not zeros.
#[derive(Clone)]
struct Stored {
    name: String,
    len: u64,
    runs: Vec<(u64, Vec<u8>)>,
}

fn options() -> StoreOptions {
    StoreOptions {
        pool_bytes: 1 << 20,
        log_bytes: 256 << 10,
        durability: Durability::Sync,
        lock_timeout: Duration::from_millis(300),
        background: false,
        ..StoreOptions::default()
    }
}

fn tables() -> [(&'static str, TableOptions); 3] {
    [
        ("plain", TableOptions::default()),
        ("compressed", TableOptions::compressed(Algorithm::Lz4)),
        ("row", TableOptions::row_compressed(8)),
    ]
}

/// What the files lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It writes pages whole, and in order.
    Atomic,
    /// It may tear pages, so they are written twice.
    Tearing,
}

/// Takes the promises of a VFS away.
struct NoPromise;

impl Hooks for NoPromise {
    fn props(&self, props: FileProps) -> FileProps {
        FileProps { atomic_bytes_max: 0, atomic_align: 0, ordered: false, ..props }
    }
}

impl Place {
    fn vfs(self, files: Arc<MemVfs>) -> Arc<dyn Vfs> {
        match self {
            Place::Atomic => files,
            Place::Tearing => HookedVfs::new(files, Arc::new(NoPromise)),
        }
    }

    /// How parts of files begin that are forged.
    fn magics(self) -> &'static [&'static [u8]] {
        match self {
            Place::Atomic => &[b"LcPg", b"LcRB", b"LcWG", b"LacunaDB"],
            Place::Tearing => &[b"LcPg", b"LcRB", b"LcWG", b"LacunaDB", b"LcDW"],
        }
    }

    /// Stores to begin with: used and closed, used and cut off.
    fn stores(self) -> &'static [Vec<Stored>] {
        static STORES: [OnceLock<Vec<Vec<Stored>>>; 2] = [const { OnceLock::new() }; 2];
        STORES[self as usize].get_or_init(|| [true, false].map(|is_closed| store(self, is_closed)).to_vec())
    }
}

fn store(place: Place, is_closed: bool) -> Vec<Stored> {
    let (vfs, mut rng) = (MemVfs::new(), SeededRng::new(1));
    let store = Store::open(place.vfs(vfs.clone()), options()).expect("open");
    assert_eq!(store.writes_twice(), place == Place::Tearing);
    for (name, options) in tables() {
        let table = store.create_table(name, options).expect("create");
        for _ in 0..20 {
            let mut txn = store.begin();
            for _ in 0..20 {
                let mut value = vec![0; rng.below(900) as usize];
                rng.fill(&mut value);
                txn.put(&table, format!("{:04}", rng.below(800)).as_bytes(), &value).expect("put");
                txn.delete(&table, format!("{:04}", rng.below(800)).as_bytes()).expect("delete");
            }
            txn.put(&table, b"long", &vec![7; 20_000 + rng.below(30_000) as usize]).expect("put");
            txn.commit().expect("commit");
        }
    }
    if is_closed {
        store.close().expect("close");
        return files(&vfs);
    }
    // A transaction runs, and the log is to be replayed.
    let table = store.table("plain").expect("table").expect("made above");
    let mut running = store.begin();
    running.put(&table, b"0001", b"not committed").expect("put");
    running.delete(&table, b"long").expect("delete");
    store.begin().commit().expect("commit");
    store.checkpoint().expect("checkpoint");
    let mut last = store.begin();
    last.put(&table, b"last", &[9; 3000]).expect("put");
    last.commit().expect("commit");
    files(&vfs)
}

fn files(vfs: &Arc<MemVfs>) -> Vec<Stored> {
    let stored = |name: String| {
        let file = vfs.open(&name, StreamHint::Data).expect("open");
        let (len, mut runs) = (file.len().expect("len"), Vec::<(u64, Vec<u8>)>::new());
        const PIECE: u64 = 64 << 10;
        for at in (0..len).step_by(PIECE as usize) {
            let bytes = PIECE.min(len - at).next_multiple_of(SECTOR as u64);
            if file.allocated(at, PIECE.min(len - at)).expect("allocated") == 0 {
                continue;
            }
            let mut buf = AlignedBuf::zeroed(bytes as usize);
            file.read_at(at, &mut buf).expect("read");
            for (sector, bytes) in buf.chunks(SECTOR).enumerate() {
                let at = at + (sector * SECTOR) as u64;
                match runs.last_mut() {
                    _ if bytes.iter().all(|byte| *byte == 0) => {}
                    Some((start, run)) if *start + run.len() as u64 == at => run.extend(bytes),
                    _ => runs.push((at, bytes.to_vec())),
                }
            }
        }
        Stored { name, len, runs }
    };
    vfs.list().expect("list").into_iter().map(stored).collect()
}

fn vfs_of(place: Place, files: &[Stored]) -> Arc<dyn Vfs> {
    let vfs = MemVfs::new();
    for Stored { name, len, runs } in files {
        let file = vfs.create(name, StreamHint::Data).expect("create");
        file.set_len(*len).expect("set_len");
        for (at, bytes) in runs {
            let mut buf = AlignedBuf::zeroed(bytes.len());
            buf.copy_from_slice(bytes);
            file.write_at(*at, &buf).expect("write");
        }
    }
    place.vfs(vfs)
}

/// Forges a number in a page, a group of the log, the control file or the doublewrite file, and seals that.
fn forge(place: Place, files: &mut [Stored], rng: &mut SeededRng) {
    // Every part that starts with a magic number: file, run, offset in the run.
    let mut parts = Vec::new();
    for (file, Stored { name, runs, .. }) in files.iter().enumerate() {
        for (run, (_, bytes)) in runs.iter().enumerate() {
            for at in (0..bytes.len()).step_by(SECTOR) {
                if place.magics().iter().any(|magic| bytes[at..].starts_with(magic)) {
                    // There are few of the system's pages, and they lead to all others.
                    let weight =
                        if name.starts_with("t000000") && !name.starts_with("t0000001") { 5 } else { 1 };
                    (0..weight).for_each(|_| parts.push((file, run, at)));
                }
            }
        }
    }
    let (file, run, at) = parts[rng.below(parts.len() as u64) as usize];
    let bytes = &mut files[file].runs[run].1;
    let page_bytes = match bytes[at..].starts_with(b"LcPg") {
        true => u32::from_le_bytes(bytes[at + 12..at + 16].try_into().expect("four bytes")) as usize,
        false => 8192,
    };
    let part_end = bytes.len().min(at + page_bytes.clamp(1024, 64 << 10));
    let part = &mut bytes[at..part_end];
    let field = match rng.below(4) {
        0 => 4..64.min(part.len()),
        1 => 32..160.min(part.len()),
        2 => part.len().saturating_sub(120)..part.len(),
        _ => 0..part.len(),
    };
    forge_number(part, field, rng);
    reseal_file_part(part);
}

/// Forges the files of a store and uses it; `case` says how to do that again.
pub(crate) fn try_files(place: Place, mut rng: SeededRng, case: String) -> Outcome {
    let stores = place.stores();
    let mut files = stores[rng.below(stores.len() as u64) as usize].clone();
    for _ in 0..=rng.below(3) {
        forge(place, &mut files, &mut rng);
    }
    let _watchdog = watch(case);
    if let Ok(store) = Store::open_read_only(vfs_of(place, &files), options()) {
        look_at(&store);
        let _ = store.check();
    }
    let vfs = vfs_of(place, &files);
    let Ok(store) = Store::open(vfs.clone(), options()) else {
        return Outcome::refused();
    };
    let is_sound = store.check().is_ok();
    look_at(&store);
    let changed = change(&store, &mut rng).and_then(|()| settle(&store));
    // Or it is left as a crash leaves it.
    let mut closed = Ok(());
    if rng.chance(70) {
        closed = store.close();
    } else {
        drop(store);
    }
    if is_sound {
        // A forged name is a name: the table that is to be dropped may have another one, or the name of another kind.
        match changed {
            Ok(()) | Err(Error::NoSuchTable { .. } | Error::TableExists { .. } | Error::BadOption { .. }) => {
            }
            Err(error) => panic!("a store that check called sound cannot be changed: {error}"),
        }
        closed.expect("a store that check called sound closes");
    }
    match Store::open(vfs, options()) {
        Ok(store) => {
            let checked = store.check();
            assert!(!is_sound || checked.is_ok(), "sound before it was used: {checked:?}");
        }
        Err(error) => assert!(!is_sound, "a store that check called sound does not open again: {error}"),
    }
    Outcome::opened(is_sound)
}

fn look_at(store: &Store) {
    let _ = (store.tables(), store.stats(), store.defaults());
    for (name, _) in tables() {
        let _ = store.images(name);
        let Ok(Some(table)) = store.table(name) else { continue };
        let txn = store.begin();
        let _ = (txn.get(&table, b"long"), txn.get(&table, b"0400"), table.estimated_count());
        for direction in [Direction::Forward, Direction::Backward] {
            let mut left = RECORDS_MAX;
            let _ = txn.scan(&table, Bound::Unbounded, Bound::Unbounded, direction, |_, _| {
                left -= 1;
                if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
    }
}

fn change(store: &Store, rng: &mut SeededRng) -> Result<()> {
    let mut outcome = Ok(());
    for (name, _) in tables() {
        let changed = match store.table(name) {
            Ok(Some(table)) => change_table(store, &table, rng),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        outcome = outcome.and(changed);
    }
    let made = store.create_table("new", TableOptions::default()).and_then(|table| {
        let mut txn = store.begin();
        txn.put(&table, b"key", &[1; 9000])?;
        txn.commit()
    });
    outcome.and(made).and(store.drop_table("compressed")).and(store.checkpoint()).and(store.step().map(drop))
}

fn change_table(store: &Store, table: &Table, rng: &mut SeededRng) -> Result<()> {
    for number in 0..6 {
        let mut txn = store.begin();
        for _ in 0..20 {
            let key = format!("{:04}", rng.below(1000));
            txn.put(table, key.as_bytes(), &vec![number; rng.below(1500) as usize])?;
            txn.delete(table, format!("{:04}", rng.below(1000)).as_bytes())?;
        }
        txn.put(table, b"long", &vec![number; 30_000])?;
        if number % 2 == 0 {
            txn.commit()?;
        } else {
            txn.rollback()?;
        }
    }
    let mut txn = store.begin();
    txn.delete(table, b"long")?;
    txn.commit()
}

/// Changes how tables are stored, and what can be changed in a transaction beside records.
fn settle(store: &Store) -> Result<()> {
    store.optimize("plain", |_| ControlFlow::Continue(()))?;
    store.alter_table("plain", TableOptions::compressed(Algorithm::Lz4).kind)?;
    store.set_defaults(TableOptions::compressed(Algorithm::Lz4).page_bytes(8192))?;
    store.inherit_defaults("plain")?;
    let table = store.create_inheriting_table("inherits")?;
    let mut txn = store.begin();
    txn.bulk_load(&table, (0..500u32).map(|key| (key.to_be_bytes(), [1; 60])))?;
    let savepoint = txn.savepoint()?;
    for key in 0..500u32 {
        txn.put(&table, &key.to_be_bytes(), &[2; 200])?;
    }
    txn.rollback_to(savepoint)?;
    txn.delete(&table, &7u32.to_be_bytes())?;
    txn.commit()?;
    store.optimize("row", |_| ControlFlow::Continue(()))?;
    store.step().map(drop)
}
