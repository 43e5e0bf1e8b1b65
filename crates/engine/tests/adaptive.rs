//! Adaptive tables: which pages are encoded anew, and when.

use std::{cell::RefCell, ops::ControlFlow, sync::Arc, thread, time::Duration};

use lacuna_device::{MemVfs, Vfs};
use lacuna_engine::{Algorithm, Store, StoreOptions, Table, TableImages, TableKind, TableOptions};
use lacuna_sim::{CutTally, SeededRng, SimVfs, for_each_seed};

use crate::rigs::{Flash, Rig, recover};

const ROWS: u64 = 6000;
/// A page holds about so many.
const ROWS_OF_PAGE: u64 = 16;
const LOG_BYTES: u64 = 1 << 20;

fn options() -> StoreOptions {
    StoreOptions { pool_bytes: 4 << 20, log_bytes: LOG_BYTES, background: false, ..StoreOptions::default() }
}

fn adaptive() -> TableOptions {
    TableOptions { kind: TableKind::Adaptive { level: 0 }, ..TableOptions::default() }.page_bytes(4096)
}

/// Words, of which zstd makes less than LZ4.
fn value(key: u64, version: u64) -> Vec<u8> {
    let words = ["flash ", "page ", "log ", "tree ", "leaf ", "undo ", "key ", "a ", "of "];
    let mut number = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version;
    let mut text = Vec::new();
    while text.len() < 200 {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.extend_from_slice(words[(number >> 60) as usize % words.len()].as_bytes());
    }
    text
}

fn fill(store: &Store) -> Table {
    fill_with(store, ROWS)
}

fn fill_with(store: &Store, rows: u64) -> Table {
    let table = store.create_table("t", adaptive()).expect("create");
    for first in (0..rows).step_by(500) {
        let mut txn = store.begin();
        for key in first..first + 500 {
            txn.put(&table, &key.to_be_bytes(), &value(key, 0)).expect("put");
        }
        txn.commit().expect("commit");
        store.step().expect("step");
    }
    store.checkpoint().expect("checkpoint");
    table
}

fn update(store: &Store, table: &Table, keys: impl Iterator<Item = u64>, version: u64) {
    for key in keys {
        let mut txn = store.begin();
        txn.put(table, &key.to_be_bytes(), &value(key, version)).expect("put");
        txn.commit().expect("commit");
    }
}

fn pages(images: &TableImages, algorithm: Algorithm) -> u64 {
    images.pages.get(&algorithm).copied().unwrap_or(0)
}

fn images(store: &Store) -> TableImages {
    store.images("t").expect("images")
}

/// Bytes of log written so far.
fn logged(store: &Store) -> u64 {
    store.stats().expect("stats").log.written_bytes
}

#[test]
fn pages_that_rest_change_their_codec_and_those_written_often_do_not() {
    let store = Store::open(MemVfs::new(), options()).expect("open");
    let table = fill(&store);
    let before = images(&store);
    let all: u64 = before.pages.values().sum();
    assert!(pages(&before, Algorithm::Lz4) > all / 10 * 9, "loaded by LZ4: {:?}", before.pages);
    // A twentieth of the pages is written again and again, until long after the others rest.
    let hot = ROWS / 20;
    let mut version = 0;
    let start = logged(&store);
    while logged(&store) < start + 4 * LOG_BYTES {
        version += 1;
        update(&store, &table, (0..hot).step_by(ROWS_OF_PAGE as usize / 2), version);
        store.checkpoint().expect("they are written now");
        for _ in 0..4 {
            store.step().expect("step");
        }
    }
    let after = images(&store);
    let info = store.tables().expect("tables").remove(0);
    assert!(pages(&after, Algorithm::Zstd) > all / 10 * 8, "they rest: {:?}", after.pages);
    assert!(pages(&after, Algorithm::Lz4) > all / 40, "they do not: {:?}", after.pages);
    assert!(after.image_bytes < before.image_bytes / 100 * 95, "it pays");
    // Each rests once: writes do not go on for nothing.
    assert!(info.rested_pages < all + all / 10, "{} of {all} pages", info.rested_pages);
    for key in 0..ROWS {
        let is_hot = key < hot && key % (ROWS_OF_PAGE / 2) == 0;
        let found = store.begin().get(&table, &key.to_be_bytes()).expect("get");
        assert_eq!(found, Some(value(key, if is_hot { version } else { 0 })));
    }
    store.check().expect("check");
}

/// Reads these keys in turn, again and again.
fn read_often(store: &Store, table: &Table, keys: impl Iterator<Item = u64> + Clone) {
    for _ in 0..8 {
        for key in keys.clone() {
            let found = store.begin().get(table, &key.to_be_bytes()).expect("get");
            assert_eq!(found, Some(value(key, 0)), "{key}");
        }
        for _ in 0..100 {
            store.step().expect("step");
        }
    }
}

/// And others are encoded as ones that rest, in a store in which nobody writes. What is read often changes, and the codecs
/// with it.
#[test]
fn pages_that_are_read_often_keep_the_codec_that_decodes_faster() {
    // A quarter of the table is twice the pool.
    let options = StoreOptions { pool_bytes: 1 << 20, ..options() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let rows = 5 * ROWS;
    let table = fill_with(&store, rows);
    let all: u64 = images(&store).pages.values().sum();
    let quarter =
        |number: u64| (number * rows / 4..(number + 1) * rows / 4).step_by(ROWS_OF_PAGE as usize / 2);
    read_often(&store, &table, quarter(0));
    let first = images(&store);
    assert!(pages(&first, Algorithm::Lz4) > all / 10, "read often: {:?}", first.pages);
    assert!(pages(&first, Algorithm::Zstd) > all / 2, "not read: {:?}", first.pages);
    // Another one now, whose pages are at rest.
    let woken = |store: &Store| store.tables().expect("tables")[0].woken_pages;
    let before = woken(&store);
    for _ in 0..4 {
        read_often(&store, &table, quarter(2));
    }
    let second = images(&store);
    assert!(woken(&store) - before > all / 10, "{} of {all} pages woke", woken(&store) - before);
    assert!(pages(&second, Algorithm::Lz4) > all / 10, "read often: {:?}", second.pages);
    assert!(
        pages(&second, Algorithm::Lz4) < all / 3,
        "those of before are not read any more: {:?}",
        second.pages
    );
    // Each once, and for the two quarters once more for each change.
    let written = woken(&store) + store.tables().expect("tables")[0].rested_pages;
    assert!(written < all * 5 / 2, "{written} pages written for {all}");
    store.check().expect("check");
}

/// Pages come to rest, and a third of them is woken; the power is cut after so many operations.
fn cut_case(rig: &dyn Rig, seed: u64, operations: u64, tally: &RefCell<CutTally>) {
    const ROWS: u64 = 1800;
    let mut rng = SeededRng::new(seed);
    let options = || StoreOptions { pool_bytes: 1 << 20, ..options() };
    let long = |key: u64| value(key, 0).repeat(8);
    let store = recover(rig, &mut rng, |vfs| Store::open(vfs, options()));
    let table = store.create_table("t", adaptive()).expect("create");
    for first in (0..ROWS).step_by(100) {
        let mut txn = store.begin();
        for key in first..first + 100 {
            txn.put(&table, &key.to_be_bytes(), &long(key)).expect("put");
        }
        txn.commit().expect("commit");
        store.step().expect("step");
    }
    store.checkpoint().expect("checkpoint");
    rig.set_cut_after(operations);
    let (mut rested, mut woken) = (0, 0);
    for round in 0..16 {
        for key in 0..ROWS / 3 {
            let found = store.begin().get(&table, &key.to_be_bytes());
            assert!(rig.is_off() || found.expect("get") == Some(long(key)), "{key}");
        }
        for _ in 0..60 {
            let stepped = store.step();
            assert!(stepped.is_ok() || rig.is_off(), "round {round}: {stepped:?}");
            if let Ok(tables) = store.tables() {
                (rested, woken) = (tables[0].rested_pages, tables[0].woken_pages);
            }
        }
        let written = store.checkpoint();
        assert!(written.is_ok() || rig.is_off(), "round {round}: {written:?}");
    }
    tally.borrow_mut().note(match (rig.is_off(), rested, woken) {
        (false, ..) => "behind all",
        (true, _, 1..) => "while pages wake",
        (true, 1.., _) => "while they rest",
        (true, ..) => "before",
    });
    drop((table, store));
    let store = recover(rig, &mut rng, |vfs| Store::open(vfs, options()));
    let table = store.table("t").expect("catalog").expect("made before");
    for key in 0..ROWS {
        assert_eq!(store.begin().get(&table, &key.to_be_bytes()).expect("get"), Some(long(key)), "{key}");
    }
    store.check().expect("check");
    rig.check();
}

fn cuts(make: impl Fn(u64) -> (Box<dyn Rig>, u64), places: &[(&str, u64)]) {
    const CASES: u64 = 40;
    let (tally, mut done) = (RefCell::default(), 0);
    for_each_seed(CASES, |seed| {
        let (rig, operations) = make(seed);
        cut_case(&*rig, seed, operations, &tally);
        done += 1;
    });
    let tally: CutTally = tally.into_inner();
    eprintln!("cuts\n{tally}");
    if done >= CASES {
        tally.assert_each(places);
    }
}

#[test]
fn power_cuts_while_pages_rest_and_wake_on_a_directory_lose_nothing() {
    let places = [("while they rest", 20), ("while pages wake", 8)];
    cuts(|seed| (Box::new(SimVfs::new(seed)), 100 + 70 * (seed % 40)), &places);
}

#[test]
fn power_cuts_while_pages_rest_and_wake_on_flash_lose_nothing() {
    let places = [("while they rest", 4), ("while pages wake", 5)];
    cuts(|seed| (Box::new(Flash::new(seed, false)), 1 + seed % 40), &places);
}

/// What woke is written by the cheap codec again, and rests later each time.
#[test]
fn a_page_that_is_written_now_and_then_is_not_written_much_more() {
    let store = Store::open(MemVfs::new(), options()).expect("open");
    let table = fill(&store);
    let all: u64 = images(&store).pages.values().sum();
    let rested = |store: &Store| store.tables().expect("tables")[0].rested_pages;
    let mut rounds = 0;
    for version in 1..=40 {
        // All of the table in turn, with a rest after each.
        update(&store, &table, (0..ROWS).step_by(ROWS_OF_PAGE as usize / 2), version);
        store.checkpoint().expect("checkpoint");
        for _ in 0..20 {
            store.step().expect("step");
        }
        rounds += 1;
    }
    let of_each = rested(&store) as f64 / all as f64;
    assert!(of_each < 8.0, "each page rested {of_each} times in {rounds} rounds");
    store.check().expect("check");
}

/// Without any change the log does not grow, and all pages rest in the end; a store that is opened again finds out which
/// do, and writes nothing anew.
#[test]
fn a_quiet_store_comes_to_rest() {
    let vfs: Arc<dyn Vfs> = MemVfs::new();
    let store = Store::open(vfs.clone(), options()).expect("open");
    drop(fill(&store));
    for _ in 0..400 {
        store.step().expect("step");
    }
    let rested = images(&store);
    assert_eq!(pages(&rested, Algorithm::Lz4), 0, "{:?}", rested.pages);
    store.close().expect("close");
    let store = Store::open(vfs, options()).expect("open again");
    for _ in 0..400 {
        store.step().expect("step");
    }
    assert_eq!(store.tables().expect("tables")[0].rested_pages, 0);
    assert_eq!(images(&store).pages, rested.pages);
    // By optimizing too, and altering changes the kind as any other.
    store.optimize("t", |_| ControlFlow::Continue(())).expect("optimize");
    assert_eq!(images(&store).pages, rested.pages);
    store.alter_table("t", TableKind::PageCompressed { algorithm: Algorithm::Lz4, level: 0 }).expect("alter");
    store.optimize("t", |_| ControlFlow::Continue(())).expect("optimize");
    assert_eq!(pages(&images(&store), Algorithm::Zstd), 0);
    store.alter_table("t", TableKind::Adaptive { level: 3 }).expect("alter");
    assert_eq!(store.tables().expect("tables")[0].options.kind, TableKind::Adaptive { level: 3 });
    store.check().expect("check");
}

/// It never did while more log was in use than pages that rest may take of it, and less than flushes begin at.
#[test]
fn a_quiet_store_comes_to_rest_with_a_log_half_full() {
    let options = StoreOptions { log_bytes: 4 * LOG_BYTES, ..options() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = fill(&store);
    let used = || store.stats().expect("stats").replay.log_bytes;
    let mut version = 0;
    while used() < 2 * LOG_BYTES {
        version += 1;
        // One page, so that few stay dirty.
        update(&store, &table, 0..1, version);
    }
    for _ in 0..400 {
        store.step().expect("step");
    }
    let after = images(&store);
    let all: u64 = after.pages.values().sum();
    assert!(used() < 3 * LOG_BYTES + LOG_BYTES / 4, "{} bytes of log", used());
    assert!(pages(&after, Algorithm::Lz4) < all / 20, "at rest but for dirty pages: {:?}", after.pages);
    store.check().expect("check");
}

#[test]
fn threads_of_a_store_bring_its_pages_to_rest() {
    let options = StoreOptions { background: true, ..options() };
    let store = Store::open(MemVfs::new(), options).expect("open");
    let table = fill(&store);
    let mut version = 0;
    let is_at_rest = || pages(&images(&store), Algorithm::Lz4) == 0;
    for round in 0..600 {
        if is_at_rest() {
            break;
        }
        assert!(round < 599, "still not at rest: {:?}", images(&store).pages);
        if round < 5 {
            version += 1;
            update(&store, &table, 0..200, version);
            store.checkpoint().expect("checkpoint");
        }
        thread::sleep(Duration::from_millis(100));
    }
    for key in 0..ROWS {
        let found = store.begin().get(&table, &key.to_be_bytes()).expect("get");
        assert_eq!(found, Some(value(key, if key < 200 { version } else { 0 })));
    }
    drop(table);
    store.check().expect("check");
    store.close().expect("close");
}
