//! A place that fills up: new records are refused, everything else goes on, and nothing is lost.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use lacuna_device::{BlockDevice, MemDevice, Place};
use lacuna_engine::{Algorithm, Direction, Error, Store, StoreOptions, Table, TableOptions};
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options};

fn device() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(device.clone(), &FormatOptions::default()).expect("format");
    device
}

fn place(device: &Arc<dyn BlockDevice>, background: bool) -> Arc<dyn Place> {
    let mut options = Options::default();
    options.ftl.background = background;
    Arc::new(Nvmfs::open(device.clone(), options).expect("open"))
}

fn options(background: bool) -> StoreOptions {
    StoreOptions { pool_bytes: 4 << 20, background, ..StoreOptions::default() }
}

fn count(store: &Store, table: &Table) -> u64 {
    let mut records = 0;
    let all = (Bound::Unbounded, Bound::Unbounded);
    let txn = store.begin();
    txn.scan(table, all.0, all.1, Direction::Forward, |_, _| {
        records += 1;
        ControlFlow::Continue(())
    })
    .expect("a full store is readable");
    records
}

/// Inserts until the store is full; the number of records committed.
fn fill(store: &Store, table: &Table, from: u64) -> u64 {
    let mut next = from;
    loop {
        let mut txn = store.begin();
        for i in 0..50u64 {
            // Bytes that do not compress.
            let mut state = (next + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let value: Vec<u8> = (0..800)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as u8
                })
                .collect();
            match txn.put(table, &(next + i).to_be_bytes(), &value) {
                Ok(()) => {}
                Err(Error::Full { .. }) => {
                    txn.rollback().expect("a full store rolls back");
                    return next;
                }
                Err(e) => panic!("{e}"),
            }
        }
        txn.commit().expect("what was admitted can be committed");
        next += 50;
    }
}

fn fill_empty_and_fill_again(background: bool) {
    let device = device();
    let store = Store::open(place(&device, background), options(background)).expect("open");
    let table = store.create_table("t", TableOptions::compressed(Algorithm::Lz4)).expect("create");
    let records = fill(&store, &table, 0);
    assert!(records * 800 > 27 << 20, "full after only {records} records");
    assert_eq!(count(&store, &table), records);
    drop((store, table));

    // As after a kill: recovery needs no room that is not there.
    let store = Store::open(place(&device, background), options(background)).expect("a full store opens");
    let table = store.table("t").expect("table").expect("there");
    assert_eq!(count(&store, &table), records);
    store.check().expect("check");
    for first in (0..records / 2).step_by(50) {
        let mut txn = store.begin();
        for i in first..first + 50 {
            assert!(txn.delete(&table, &i.to_be_bytes()).expect("a full store deletes"));
        }
        txn.commit().expect("commit");
    }
    let kept = count(&store, &table);
    drop(table);
    // Closing purges what was deleted, to the last record.
    store.close().expect("close");
    let store = Store::open(place(&device, background), options(background)).expect("open");
    let table = store.table("t").expect("table").expect("there");
    let more = fill(&store, &table, records);
    assert!(more > records, "deletes gave no room back");
    assert_eq!(count(&store, &table), kept + more - records);
    store.close().expect("close");
}

#[test]
fn a_full_store_refuses_and_recovers() {
    fill_empty_and_fill_again(false);
}

#[test]
fn a_full_store_refuses_and_recovers_with_threads() {
    fill_empty_and_fill_again(true);
}

/// The file system below grows while the store is open and full.
#[test]
fn a_full_store_goes_on_when_its_place_grows() {
    for background in [false, true] {
        let device = device();
        let mut run = Options::default();
        run.ftl.background = background;
        let fs = Arc::new(Nvmfs::open(device.clone(), run).expect("open"));
        let store = Store::open(fs.clone(), options(background)).expect("open");
        let table = store.create_table("t", TableOptions::compressed(Algorithm::Lz4)).expect("create");
        let before = fill(&store, &table, 0);
        let free = || fs.free_bytes().expect("free").expect("known");
        let free_before = free();
        assert_eq!(fs.grow(Some(128 << 20)).expect("grow"), 128 << 20);
        assert!(free() > free_before + (40 << 20));
        let after = fill(&store, &table, before);
        assert!(after > before + before * 8 / 10, "{before} records, then {after}");
        drop((store, table));
        drop(fs);
        let store = Store::open(place(&device, background), options(background)).expect("open again");
        let table = store.table("t").expect("table").expect("there");
        assert_eq!(count(&store, &table), after);
        store.check().expect("check");
    }
}
