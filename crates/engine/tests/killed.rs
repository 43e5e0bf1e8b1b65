//! Processes that are killed, and a power cut while the next one opens the store: what it reads may be in a cache only.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use lacuna_device::{LogDevice, StreamHint, Vfs, log_device::MappedMemory};
use lacuna_engine::{
    Direction, Durability, EngineKey, KeyCost, KeyOptions, LOG_DEVICE_BYTES_MIN, LogDeviceVfs, Secret, Store,
    StoreOptions, TableOptions,
};
use lacuna_sim::{SeededRng, SimVfs, for_each_seed};

const RECORDS: u32 = 700;

fn options() -> StoreOptions {
    StoreOptions {
        pool_bytes: 8 << 20,
        background: false,
        durability: Durability::Sync,
        ..StoreOptions::default()
    }
}

/// Sets all records of the table.
fn change(store: &Store, value: u8) {
    let table = store.open_table("t", TableOptions::default()).expect("table");
    let mut txn = store.begin();
    (0..RECORDS).for_each(|key| txn.put(&table, &key.to_be_bytes(), &[value; 3000]).expect("put"));
    txn.commit().expect("commit");
}

/// The store opens, and holds what was set last.
fn assert_holds(vfs: &Arc<SimVfs>, options: StoreOptions, value: u8) {
    let store = Store::open(vfs.clone(), options).expect("opens after the cut");
    let table = store.table("t").expect("catalog").expect("there");
    let mut found = 0;
    let txn = store.begin();
    let scanned = txn.scan(&table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |_, record| {
        assert!(record == [value; 3000]);
        found += 1;
        ControlFlow::Continue(())
    });
    scanned.expect("scan");
    assert_eq!(found, RECORDS);
    drop((txn, table));
    store.check().expect("check");
}

/// A key that is in the key files' cache only when replay writes pages.
#[test]
fn a_cut_in_the_opening_after_a_kill_loses_no_key() {
    let slot = KeyOptions { cost: KeyCost::MIN, ..KeyOptions::default() };
    let key = EngineKey { secret: Secret::new("secret").expect("a secret"), slot };
    let options = || StoreOptions { key: Some(key.clone()), ..options() };
    for_each_seed(60, |seed| {
        let mut rng = SeededRng::new(seed);
        let vfs = SimVfs::new(seed);
        let store = Store::open(vfs.clone(), options()).expect("open");
        change(&store, 1);
        store.checkpoint().expect("checkpoint");
        change(&store, 2);
        vfs.set_cut_after(1 + rng.below(6));
        drop(store.set_encrypted("t", true));
        drop(store);
        vfs.kill();
        // With so little memory pages are written while the log is replayed.
        vfs.set_cut_after(1 + rng.below(300));
        drop(Store::open(vfs.clone(), StoreOptions { pool_bytes: 1 << 20, ..options() }));
        vfs.power_cycle();
        assert_holds(&vfs, options(), 2);
    });
}

/// The count of openings beside the tables must not fall behind that of the log device by two.
#[test]
fn a_cut_in_the_opening_after_a_kill_parts_no_store_from_its_log_device() {
    for_each_seed(60, |seed| {
        let mut rng = SeededRng::new(seed);
        let vfs = SimVfs::new(seed);
        let memory = MappedMemory::anonymous(LOG_DEVICE_BYTES_MIN as usize).expect("memory");
        let device: Arc<dyn LogDevice> = Arc::new(memory);
        drop(LogDeviceVfs::format(vfs.clone(), device.clone(), false).expect("format"));
        vfs.set_cut_after(1 + rng.below(4));
        drop(LogDeviceVfs::open(vfs.clone(), device.clone()));
        vfs.kill();
        vfs.set_cut_after(1 + rng.below(4));
        drop(LogDeviceVfs::open(vfs.clone(), device.clone()));
        vfs.power_cycle();
        let opened = LogDeviceVfs::open(vfs, device).map(|vfs| vfs.open("x", StreamHint::Data).is_err());
        assert!(opened.expect("they belong together"));
    });
}
