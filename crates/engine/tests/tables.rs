//! Dropping tables: which drops are refused, what concurrent readers get, power cuts and failures in the middle, and
//! many threads at once. And defaults that tables follow.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::Arc,
    thread,
};

use crate::rigs::{self, Flash, Rig};
use lacuna_device::{MemVfs, Vfs};
use lacuna_engine::{Algorithm, Direction, Error, Store, StoreOptions, Table, TableKind, TableOptions, Txn};
use lacuna_sim::{SeededRng, SimVfs, for_each_seed};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(background: bool) -> StoreOptions {
    StoreOptions { pool_bytes: 1 << 20, log_bytes: 512 << 10, background, ..StoreOptions::default() }
}

fn kinds() -> [TableOptions; 3] {
    [
        TableOptions::default().page_bytes(4096),
        TableOptions::compressed(Algorithm::Lz4),
        TableOptions::row_compressed(4).page_bytes(8 << 10),
    ]
}

/// The table as it is, or a new one with `options`.
fn open_or_make(store: &Store, name: &str, options: TableOptions) -> Table {
    match store.table(name).expect("catalog") {
        Some(table) => table,
        None => store.create_table(name, options).expect("create"),
    }
}

fn fill(store: &Store, table: &Table, keys: u32, value: &[u8]) {
    for chunk in (0..keys).collect::<Vec<_>>().chunks(100) {
        let mut txn = store.begin();
        chunk.iter().for_each(|key| txn.put(table, &key.to_be_bytes(), value).expect("put"));
        txn.commit().expect("commit");
    }
}

fn read(txn: &Txn, table: &Table) -> Result<Model, Error> {
    let mut found = Model::new();
    txn.scan(table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |key, value| {
        found.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn is_gone<T>(outcome: Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::TableDropped { .. }))
}

#[test]
fn a_dropped_table_gives_its_room_back_and_its_handles_fail() {
    for background in [false, true] {
        for options_of_table in kinds() {
            let vfs = MemVfs::new();
            let store = Store::open(vfs.clone(), options(background)).expect("open");
            let other = store.create_table("other", kinds()[0]).expect("create");
            fill(&store, &other, 10, b"stays");
            let table = store.create_table("t", options_of_table).expect("create");
            let before = vfs.stats().expect("stats").allocated_bytes;
            let snapshot = store.begin();
            assert_eq!(snapshot.get(&other, b"x").expect("get"), None);
            let mut noise = vec![0; 20_000];
            for key in 0..100u32 {
                // Values that no algorithm compresses.
                SeededRng::new(key.into()).fill(&mut noise);
                let mut txn = store.begin();
                txn.put(&table, &key.to_be_bytes(), &noise).expect("put");
                txn.commit().expect("commit");
            }
            store.checkpoint().expect("checkpoint");
            // In the log and in memory, not on the device.
            fill(&store, &table, 50, &[b'd'; 300]);
            assert!(vfs.stats().expect("stats").allocated_bytes > before + (1 << 20));
            let files = vfs.list().expect("list").len();
            store.drop_table("t").expect("drop");
            store.checkpoint().expect("checkpoint");
            assert_eq!(vfs.list().expect("list").len(), files - 1);
            // Undo of the snapshot's history, and the log, may be left.
            assert!(vfs.stats().expect("stats").allocated_bytes < before + (1 << 20));
            assert!(store.table("t").expect("catalog").is_none());
            assert!(matches!(store.drop_table("t"), Err(Error::NoSuchTable { .. })));
            assert!(is_gone(snapshot.get(&table, b"k")) && is_gone(read(&snapshot, &table)));
            let mut txn = store.begin();
            assert!(is_gone(txn.put(&table, b"k", b"v")) && is_gone(txn.delete(&table, b"k")));
            assert!(is_gone(txn.get_for_update(&table, b"k")));
            txn.put(&other, b"k", b"v").expect("the transaction goes on");
            txn.commit().expect("commit");
            drop(snapshot);
            let again = store.create_table("t", kinds()[1]).expect("create again");
            assert!(again.id() > table.id(), "numbers are not given twice");
            assert!(
                read(&store.begin(), &again).expect("scan").is_empty()
                    && is_gone(read(&store.begin(), &table))
            );
            fill(&store, &again, 3, b"new");
            store.check().expect("check");
            drop((again, other));
            store.close().expect("close");
            let store = Store::open(vfs, options(background)).expect("open again");
            let found = ["other", "t"].map(|name| store.table(name).expect("catalog").expect("there"));
            assert_eq!(found.map(|table| read(&store.begin(), &table).expect("scan").len()), [11, 3]);
        }
    }
}

#[test]
fn a_table_in_use_is_not_dropped() {
    let store = Store::open(MemVfs::new(), options(false)).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    fill(&store, &table, 3, b"v");
    let uses: [fn(&mut Txn, &Table); 5] = [
        |txn, table| drop(txn.get(table, b"k").expect("get")),
        |txn, table| drop(read(txn, table).expect("scan")),
        |txn, table| drop(txn.get_for_update(table, b"k").expect("lock")),
        |txn, table| txn.put(table, b"k", b"v").expect("put"),
        |txn, table| assert!(txn.delete(table, &0u32.to_be_bytes()).expect("delete")),
    ];
    for (i, use_it) in uses.into_iter().enumerate() {
        let mut txn = store.begin();
        use_it(&mut txn, &table);
        assert!(matches!(store.drop_table("t"), Err(Error::TableInUse { .. })), "use {i}");
        assert_eq!(store.begin().get(&table, &1u32.to_be_bytes()).expect("get").as_deref(), Some(&b"v"[..]));
        if i % 2 == 0 { txn.rollback() } else { txn.commit() }.expect("end");
    }
    store.check().expect("check");
    store.drop_table("t").expect("nobody uses it any more");
}

/// Deletions and long values that a snapshot kept from being purged, in a table that is dropped by then; and the same
/// during recovery.
#[test]
fn history_of_a_dropped_table_is_passed_over() {
    for (background, crash) in [(false, false), (true, false), (false, true)] {
        let vfs = MemVfs::new();
        let store = Store::open(vfs.clone(), options(background)).expect("open");
        let other = store.create_table("other", kinds()[0]).expect("create");
        let table = store.create_table("t", kinds()[0]).expect("create");
        fill(&store, &table, 40, &[b'l'; 9000]);
        let snapshot = store.begin();
        assert_eq!(snapshot.get(&other, b"k").expect("get"), None);
        let mut txn = store.begin();
        for key in 0..30u32 {
            if key % 2 == 0 {
                assert!(txn.delete(&table, &key.to_be_bytes()).expect("delete"));
            } else {
                txn.put(&table, &key.to_be_bytes(), b"short").expect("put");
            }
        }
        txn.put(&other, b"k", b"v").expect("put");
        txn.commit().expect("commit");
        assert!(store.stats().expect("stats").history.transactions > 0);
        store.drop_table("t").expect("drop");
        assert_eq!(snapshot.get(&other, b"k").expect("get"), None);
        if crash {
            drop((snapshot, store));
        } else {
            drop(snapshot);
            store.check().expect("check");
            assert_eq!(store.stats().expect("stats").history.transactions, 0);
            store.close().expect("close");
        }
        let store = Store::open(vfs, options(background)).expect("open again");
        assert_eq!(store.check().expect("check").len(), 2, "the catalog and the other table");
        assert_eq!(store.begin().get(&other_of(&store), b"k").expect("get").as_deref(), Some(&b"v"[..]));
    }
}

/// Purging a table's history waits for memory and log, which here only flushing the table's own pages frees; the drop
/// waits for the purge.
#[test]
fn a_drop_beside_the_purge_of_a_long_history_ends() {
    let store = Store::open(MemVfs::new(), options(true)).expect("open");
    let other = store.create_table("other", kinds()[0]).expect("create");
    for _ in 0..4 {
        let table = store.create_table("t", kinds()[0]).expect("create");
        fill(&store, &table, 400, &[b'l'; 9000]);
        let snapshot = store.begin();
        assert_eq!(snapshot.get(&other, b"k").expect("get"), None);
        let mut txn = store.begin();
        for key in 0..400u32 {
            assert!(txn.delete(&table, &key.to_be_bytes()).expect("delete"));
        }
        txn.commit().expect("commit");
        // The purge thread begins.
        drop(snapshot);
        while store.stats().expect("stats").history.transactions > 0
            && store.stats().expect("stats").flush.throttled == 0
        {
            thread::yield_now();
        }
        store.drop_table("t").expect("drop");
        fill(&store, &other, 50, &[b'o'; 100]);
        let mut txn = store.begin();
        txn.delete(&other, b"k").expect("delete");
        txn.commit().expect("commit");
    }
    store.check().expect("check");
}

fn other_of(store: &Store) -> Table {
    store.table("other").expect("catalog").expect("there")
}

/// Random writes to both tables, some of them flushed, so that pages of each are dirty since any moment.
fn play(store: &Store, tables: &mut [(Table, Model)], rng: &mut SeededRng) -> Result<(), Error> {
    for _ in 0..rng.below(60) {
        let mut txn = store.begin();
        let mut after: Vec<_> = tables.iter().map(|(_, model)| model.clone()).collect();
        for _ in 0..1 + rng.below(8) {
            let i = rng.below(tables.len() as u64) as usize;
            let key = rng.below(300).to_be_bytes().to_vec();
            if rng.chance(25) {
                txn.delete(&tables[i].0, &key)?;
                after[i].remove(&key);
            } else {
                let len = if rng.chance(3) { 9000 } else { rng.below(300) };
                let mut value = vec![0; len as usize];
                rng.fill(&mut value);
                txn.put(&tables[i].0, &key, &value)?;
                after[i].insert(key, value);
            }
        }
        txn.commit()?;
        for ((_, model), after) in tables.iter_mut().zip(after) {
            *model = after;
        }
        match rng.below(30) {
            0 => store.checkpoint()?,
            1..4 => drop(store.step()?),
            _ => {}
        }
    }
    Ok(())
}

fn recover(rig: &dyn Rig, rng: &mut SeededRng) -> (Arc<dyn Vfs>, Store) {
    rigs::recover(rig, rng, |vfs| Ok((vfs.clone(), Store::open(vfs, options(false))?)))
}

fn table_files(vfs: &dyn Vfs) -> usize {
    vfs.list().expect("list").iter().filter(|name| name.starts_with('t')).count()
}

/// The table `victim` after a drop that may have failed must be whole or gone; returns whether it is gone.
fn assert_whole_or_gone(vfs: &dyn Vfs, store: &Store, victim: &Model, other: &Model) -> bool {
    let table = store.table("victim").expect("catalog");
    if let Some(table) = &table {
        assert!(read(&store.begin(), table).expect("scan") == *victim, "half a drop");
    }
    // Catalog, undo, the other one.
    assert_eq!(table_files(vfs), 3 + usize::from(table.is_some()), "a file was left behind");
    assert!(read(&store.begin(), &other_of(store)).expect("scan") == *other, "the other table");
    store.check().expect("check");
    table.is_none()
}

/// The power is cut at one of the first writes of a drop, or shortly after it.
fn drop_case(rig: &dyn Rig, seed: u64, outcomes: &mut [u64; 2]) {
    let mut rng = SeededRng::new(seed);
    let mut other = Model::new();
    for _ in 0..3 {
        let (_, store) = recover(rig, &mut rng);
        let other_table = open_or_make(&store, "other", kinds()[seed as usize % 3]);
        assert!(read(&store.begin(), &other_table).expect("scan") == other);
        let victim = open_or_make(&store, "victim", kinds()[rng.below(3) as usize]);
        let found = read(&store.begin(), &victim).expect("scan");
        let mut tables = [(other_table, other), (victim, found)];
        play(&store, &mut tables, &mut rng).expect("the power is on");
        let [(_, model), (_, victim)] = tables;
        other = model;
        rig.upkeep(&mut rng);
        rig.set_cut_after(rng.below(12));
        let acknowledged = store.drop_table("victim").is_ok();
        if acknowledged && rng.chance(50) {
            // Changes logged and flushed after the drop must not need the table.
            let mut tables = [(other_of(&store), other)];
            let _ = play(&store, &mut tables, &mut rng);
            let _ = store.create_table("victim", kinds()[0]);
            drop((tables, store));
            let (_, store) = recover(rig, &mut rng);
            if let Some(new) = store.table("victim").expect("catalog") {
                assert!(read(&store.begin(), &new).expect("scan").is_empty(), "a dropped table came back");
            }
            store.check().expect("check");
            // The other matrix checks whether a commit under way survived.
            other = read(&store.begin(), &other_of(&store)).expect("scan");
            continue;
        }
        drop(store);
        let (vfs, store) = recover(rig, &mut rng);
        let is_gone = assert_whole_or_gone(&*vfs, &store, &victim, &other);
        assert!(is_gone || !acknowledged, "a drop was lost");
        outcomes[usize::from(is_gone)] += 1;
        drop((vfs, store));
        rig.check();
    }
}

fn drop_matrix(case: impl Fn(u64, &mut [u64; 2])) {
    let mut outcomes = [0; 2];
    for_each_seed(150, |seed| case(seed, &mut outcomes));
    println!("{outcomes:?} tables whole, and gone");
}

#[test]
fn power_cuts_during_a_drop_on_flash_leave_a_whole_table_or_none() {
    drop_matrix(|seed, outcomes| drop_case(&Flash::new(seed, false), seed, outcomes));
}

#[test]
fn power_cuts_during_a_drop_on_a_directory_leave_a_whole_table_or_none() {
    drop_matrix(|seed, outcomes| drop_case(&SimVfs::new(seed), seed, outcomes));
}

/// Every write of a drop fails once, and every sync.
#[test]
fn a_failed_drop_stops_the_store_or_changes_nothing() {
    let mut whole = 0;
    for case in 0..24 {
        let vfs = SimVfs::new(case);
        let mut rng = SeededRng::new(case);
        let store = Store::open(vfs.clone(), options(case % 3 == 2)).expect("open");
        let tables = ["other", "victim"].map(|name| store.create_table(name, kinds()[0]).expect("create"));
        let mut tables = tables.map(|table| (table, Model::new()));
        play(&store, &mut tables, &mut rng).expect("play");
        let [(_, other), (_, victim)] = tables;
        match case % 12 {
            0 => vfs.fail_sync(),
            n => vfs.fail_writes_after(n),
        }
        let acknowledged = store.drop_table("victim").is_ok();
        assert!(acknowledged || matches!(store.drop_table("other"), Err(Error::Poisoned { .. })));
        drop(store);
        vfs.heal();
        if case % 2 == 0 {
            vfs.power_cycle();
        }
        let store = Store::open(vfs.clone(), options(false)).expect("open again");
        let is_gone = assert_whole_or_gone(&*vfs, &store, &victim, &other);
        assert!(is_gone || !acknowledged, "a drop was lost");
        whole += u64::from(!is_gone);
    }
    assert!(whole > 0 && whole < 24, "{whole} of 24 tables are whole");
}

/// Every write of a creation fails once, and every sync: the partial table is removed, or the store is stopped and the
/// next opening removes it.
#[test]
fn a_failed_creation_leaves_no_file() {
    let mut whole = 0;
    for case in 0..24 {
        let vfs = SimVfs::new(case);
        let store = Store::open(vfs.clone(), options(case % 3 == 2)).expect("open");
        let other = store.create_table("other", kinds()[0]).expect("create");
        fill(&store, &other, 50, b"stays");
        match case % 12 {
            0 => vfs.fail_sync(),
            n => vfs.fail_writes_after(n),
        }
        let acknowledged = store.create_table("new", kinds()[case as usize % 3]).is_ok();
        vfs.heal();
        if !acknowledged && store.create_table("next", kinds()[0]).is_ok() {
            assert_eq!(table_files(&*vfs), 4, "catalog, undo and two tables");
        }
        drop(store);
        if case % 2 == 0 {
            vfs.power_cycle();
        }
        let store = Store::open(vfs.clone(), options(false)).expect("open again");
        let tables = store.tables().expect("tables").len();
        assert!(!acknowledged || store.table("new").expect("catalog").is_some(), "a table was lost");
        assert_eq!(table_files(&*vfs), 2 + tables, "a file was left behind");
        store.check().expect("check");
        whole += usize::from(acknowledged);
    }
    assert!(whole < 24, "nothing failed");
}

/// Threads that use tables, while others drop and make them: each call succeeds or returns a documented error.
#[test]
fn tables_come_and_go_under_their_users() {
    let store = Store::open(MemVfs::new(), options(true)).expect("open");
    let names = ["a", "b", "c"];
    thread::scope(|scope| {
        for t in 0..3u64 {
            let store = &store;
            scope.spawn(move || {
                let mut rng = SeededRng::new(t);
                for _ in 0..400 {
                    let name = names[rng.below(3) as usize];
                    let Some(table) = store.table(name).expect("catalog") else { continue };
                    if let Err(e) = use_table(store, &table, &mut rng) {
                        assert!(matches!(e, Error::TableDropped { .. }) || e.is_retryable(), "{e}");
                    }
                    store.tables().expect("tables");
                }
            });
        }
        scope.spawn(|| {
            let mut rng = SeededRng::new(9);
            let mut dropped = 0;
            while dropped < 60 {
                let name = names[rng.below(3) as usize];
                open_or_make(&store, name, kinds()[rng.below(3) as usize]);
                match store.drop_table(name) {
                    Ok(()) => dropped += 1,
                    Err(Error::TableInUse { .. }) => thread::yield_now(),
                    Err(e) => panic!("{e}"),
                }
                if rng.chance(20) {
                    store.checkpoint().expect("checkpoint");
                }
            }
        });
    });
    store.check().expect("check");
    store.close().expect("close");
}

fn use_table(store: &Store, table: &Table, rng: &mut SeededRng) -> Result<(), Error> {
    let mut txn = store.begin();
    for _ in 0..rng.below(12) {
        let key = rng.below(200).to_be_bytes();
        match rng.below(10) {
            0..2 => drop(txn.delete(table, &key)?),
            2 => txn.put(table, &key, &vec![7; rng.below(20_000) as usize])?,
            3 => drop(read(&txn, table)?),
            _ => txn.put(table, &key, &vec![7; rng.below(900) as usize])?,
        }
    }
    if rng.chance(20) { txn.rollback() } else { txn.commit() }
}

/// Name, kind in force, and whether it follows the defaults, of every table.
fn kinds_in_force(store: &Store) -> Vec<(String, TableKind, bool)> {
    let tables = store.tables().expect("tables").into_iter();
    tables.map(|table| (table.name, table.options.kind, table.inherits)).collect()
}

#[test]
fn tables_follow_the_defaults_until_they_have_their_own() {
    let vfs = MemVfs::new();
    let store = Store::open(vfs.clone(), options(false)).expect("open");
    let [lz4, zstd] = [Algorithm::Lz4, Algorithm::Zstd].map(TableOptions::compressed);
    let row = TableOptions::row_compressed(8);
    assert_eq!(store.defaults().expect("defaults"), TableOptions::default());
    store.create_inheriting_table("early").expect("create");
    store.create_table("own", TableOptions::default()).expect("create");
    store.set_defaults(lz4.page_bytes(4096)).expect("set");
    let late = store.create_inheriting_table("late").expect("create");
    let page_bytes: Vec<_> = store.tables().expect("tables").iter().map(|t| t.options.page_bytes).collect();
    assert_eq!(page_bytes, [16 << 10, 4096, 16 << 10], "the size of pages is fixed when a table is made");
    let named = |early, late, own, own_inherits| {
        let name = str::to_owned;
        vec![(name("early"), early, true), (name("late"), late, true), (name("own"), own, own_inherits)]
    };
    assert_eq!(kinds_in_force(&store), named(lz4.kind, lz4.kind, TableKind::Plain, false));
    // Pages are written so, at once.
    fill(&store, &late, 1000, &[7; 200]);
    store.checkpoint().expect("checkpoint");
    let info = store.tables().expect("tables").remove(1);
    assert!(
        info.flushed_plain_pages == 0 && info.flushed_image_bytes < info.flushed_pages * 4096 / 2,
        "{info:?}"
    );

    store.inherit_defaults("own").expect("inherit");
    assert_eq!(kinds_in_force(&store), named(lz4.kind, lz4.kind, lz4.kind, true));
    store.alter_table("own", TableKind::Plain).expect("alter");
    store.set_defaults(zstd).expect("set");
    assert_eq!(kinds_in_force(&store), named(zstd.kind, zstd.kind, TableKind::Plain, false));
    // Defaults of another layout do not apply.
    store.set_defaults(row).expect("set");
    assert_eq!(kinds_in_force(&store), named(zstd.kind, zstd.kind, TableKind::Plain, false));
    assert_eq!(store.create_inheriting_table("row").expect("create").id().0, late.id().0 + 1);
    assert!(store.set_defaults(row.page_bytes(5000)).is_err());
    drop(late);
    store.close().expect("close");

    let store = Store::open(vfs, options(false)).expect("open again");
    assert_eq!(store.defaults().expect("defaults"), row);
    assert_eq!(kinds_in_force(&store)[3], ("row".into(), row.kind, true));
    store.set_defaults(lz4).expect("set");
    assert_eq!(kinds_in_force(&store)[..3], named(lz4.kind, lz4.kind, TableKind::Plain, false));
    assert_eq!(kinds_in_force(&store)[3].1, row.kind);
    // The row of the defaults is no table.
    assert!(store.table("").expect("catalog").is_none() && store.create_inheriting_table("").is_err());
    assert!(matches!(store.drop_table(""), Err(Error::NoSuchTable { .. })));
    assert!(matches!(store.alter_table("", TableKind::Plain), Err(Error::NoSuchTable { .. })));
    store.check().expect("check");
}

/// All tables follow a change of the defaults, or none does.
#[test]
fn power_cuts_leave_tables_and_defaults_in_step() {
    let kinds = [TableKind::Plain, TableOptions::compressed(Algorithm::Lz4).kind];
    let mut seen = [0; 2];
    for_each_seed(40, |seed| {
        let vfs = SimVfs::new(seed);
        let store = Store::open(vfs.clone(), options(false)).expect("open");
        for i in 0..20 {
            store.create_inheriting_table(&format!("t{i}")).expect("create");
        }
        vfs.set_cut_after(1 + seed % 8);
        let acknowledged =
            store.set_defaults(TableOptions { kind: kinds[1], ..TableOptions::default() }).is_ok();
        drop(store);
        vfs.power_cycle();
        let store = Store::open(vfs, options(false)).expect("recover");
        let found = store.defaults().expect("defaults").kind;
        assert!(found == kinds[1] || !acknowledged, "a change was lost");
        assert!(kinds_in_force(&store).iter().all(|(_, kind, inherits)| *kind == found && *inherits));
        seen[usize::from(found == kinds[1])] += 1;
    });
    println!("{seen:?} before, and after");
}
