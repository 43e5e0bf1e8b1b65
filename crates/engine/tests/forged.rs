//! Files of stores that somebody forged, checksums included: an error or some records; never a panic, never without
//! end, never memory by what a file says. What `check` calls sound stays sound when it is used.

use std::sync::Arc;

use crate::forged_files::{Place, try_files};
use lacuna_device::{AlignedBuf, MemVfs, SECTOR, StreamHint, Vfs};
use lacuna_engine::{Error, Result, Store, StoreOptions, TableOptions};
use lacuna_sim::forge::{reseal_file_part, try_seed, try_seeds};

/// Memory that a store of a megabyte with a pool of one may take.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

#[test]
fn forged_files_are_errors_or_harmless() {
    try_seeds(60, MEMORY_BYTES_MAX, |rng, case| try_files(Place::Atomic, rng, case));
}

#[test]
fn forged_files_whose_pages_are_written_twice_are_errors_or_harmless() {
    try_seeds(40, MEMORY_BYTES_MAX, |rng, case| try_files(Place::Tearing, rng, case));
}

/// Seeds that once ended in a panic, in no end, or in a store that was not as sound as `check` said.
#[test]
fn what_was_found_stays_mended() {
    for seed in [11335, 15504, 15689, 17851, 19980, 21459, 28965, 31085, 52778, 2_070_196] {
        try_seed(seed, |rng, case| try_files(Place::Atomic, rng, case));
    }
}

fn open(vfs: &Arc<MemVfs>) -> Result<Store> {
    Store::open(vfs.clone(), StoreOptions { background: false, ..StoreOptions::default() })
}

fn put(store: &Store, key: &[u8]) {
    let table = store.table("t").expect("look up").expect("made before");
    let mut txn = store.begin();
    txn.put(&table, key, b"value").expect("put");
    txn.commit().expect("commit");
}

fn has(store: &Store, key: &[u8]) -> bool {
    let table = store.table("t").expect("look up").expect("made before");
    store.begin().get(&table, key).expect("get").is_some()
}

/// Changes the parts of a file that start with `magic`, and seals them.
fn forge(vfs: &Arc<MemVfs>, file: &str, magic: &[u8], mut change: impl FnMut(&mut [u8])) {
    let file = vfs.open(file, StreamHint::Data).expect("open");
    let mut bytes = AlignedBuf::zeroed((file.len().expect("len") as usize).min(1 << 20));
    file.read_at(0, &mut bytes).expect("read");
    let starts: Vec<_> =
        (0..bytes.len()).step_by(SECTOR).filter(|at| bytes[*at..].starts_with(magic)).collect();
    for start in starts {
        change(&mut bytes[start..]);
        assert!(reseal_file_part(&mut bytes[start..]));
    }
    file.write_at(0, &bytes).expect("write");
}

/// What `check` calls sound can be used, and is sound afterwards; a store that can only be read can be read.
#[test]
fn counters_of_the_control_file_near_their_end_are_refused() {
    for at in [24, 32, 40] {
        for (value, can_be_read, can_be_changed, is_sound) in [
            (u64::MAX - 511, false, false, false),
            ((1 << 62) + 512, false, false, false),
            (1 << 62, true, false, false),
            ((1 << 61) + 512, true, false, false),
            ((1 << 61) - (1 << 20), true, true, false),
            ((1 << 60) + 512, true, true, false),
            ((1 << 60) - (1 << 30), true, true, true),
        ] {
            let vfs = MemVfs::new();
            let store = open(&vfs).expect("open");
            store.create_table("t", TableOptions::default()).expect("create");
            put(&store, b"before");
            store.close().expect("close");
            forge(&vfs, "control", b"LacunaDB", |slot| {
                let old = u64::from_le_bytes(slot[24..32].try_into().expect("eight bytes"));
                // The newer slot stays the newer one.
                let value = if at == 24 { value - 100 + old } else { value };
                slot[at..at + 8].copy_from_slice(&value.to_le_bytes());
            });
            let case = format!("{value:#x} at {at}");
            let read = Store::open_read_only(vfs.clone(), StoreOptions::default());
            assert_eq!(read.as_ref().is_ok_and(|store| has(store, b"before")), can_be_read, "{case}");
            drop(read);
            match open(&vfs) {
                Err(Error::BadStore { reason, .. }) if !can_be_changed => {
                    assert!(reason.contains("can only be read") || !can_be_read, "{case}: {reason}");
                }
                Err(error) => panic!("{case}: {error}"),
                Ok(store) => {
                    assert!(can_be_changed, "{case}");
                    assert_eq!(store.check().is_ok(), is_sound, "{case}");
                    put(&store, b"after");
                    store.close().expect("close");
                    let store = open(&vfs).unwrap_or_else(|error| panic!("{case}: {error}"));
                    assert!(has(&store, b"before") && has(&store, b"after"), "{case}");
                    assert_eq!(store.check().is_ok(), is_sound, "{case}");
                }
            }
        }
    }
}

/// The groups that are written after it would count as older, and be lost.
#[test]
fn a_group_of_a_later_opening_hides_none() {
    for (epoch, can_be_changed) in
        [(1000, true), ((1 << 61) - 100, true), ((1 << 61) + 1, false), (u64::MAX, false)]
    {
        let vfs = MemVfs::new();
        let store = open(&vfs).expect("open");
        store.create_table("t", TableOptions::default()).expect("create");
        put(&store, b"before");
        drop(store);
        let mut groups = 0;
        forge(&vfs, "wal.000000", b"LcWG", |_| groups += 1);
        forge(&vfs, "wal.000000", b"LcWG", |group| {
            groups -= 1;
            if groups == 0 {
                group[24..32].copy_from_slice(&u64::to_le_bytes(epoch));
            }
        });
        let store = open(&vfs);
        assert_eq!(store.is_ok(), can_be_changed, "{epoch:#x}");
        let Ok(store) = store else { continue };
        put(&store, b"after");
        drop(store);
        let store = open(&vfs).expect("open again");
        assert!(has(&store, b"before") && has(&store, b"after"), "{epoch:#x}");
    }
}
