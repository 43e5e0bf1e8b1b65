//! The log on a device of its own: what a log device promises as a place for files, and what it refuses. Power cuts are
//! in `crash`.

use std::sync::Arc;

use lacuna_device::{
    Error as DeviceError, File, LogDevice, MemVfs, StreamHint, Vfs, log_device::MappedMemory,
};
use lacuna_engine::{
    Durability, LOG_DEVICE_BYTES_MIN, LogDeviceVfs, Result, Store, StoreOptions, TableOptions,
};
use lacuna_sim::{SimDevice, SimMemory};

const CAPACITY: u64 = LOG_DEVICE_BYTES_MIN;

fn memory() -> Arc<dyn LogDevice> {
    Arc::new(MappedMemory::anonymous(CAPACITY as usize).expect("memory"))
}

fn bytes(number: u64) -> Vec<u8> {
    (0..4096).map(|at| (at as u64 * 31 + number) as u8 | 1).collect()
}

fn read(file: &dyn File, offset: u64, len: usize) -> Vec<u8> {
    let mut back = vec![9; len];
    file.read_at(offset, &mut back).expect("read");
    back
}

/// Three times round; what was given back makes room, what was not is there.
#[test]
fn a_log_goes_round_and_round() {
    let (vfs, device) = (MemVfs::new(), memory());
    let mut place = LogDeviceVfs::format(vfs.clone(), device.clone(), false).expect("format");
    let mut file = place.create("wal.000000", StreamHint::Log).expect("create");
    let held = 100; // writes of 4 KiB
    for number in 0..3 * CAPACITY / 4096 {
        file.write_at(number * 4096, &bytes(number)).expect("write");
        if number >= held {
            file.punch((number - held) * 4096, 4096).expect("give back");
        }
        if number % 97 == 0 {
            drop((file, place));
            place = LogDeviceVfs::open(vfs.clone(), device.clone()).expect("open");
            file = place.open("wal.000000", StreamHint::Log).expect("open");
        }
        for number in (number + 1).saturating_sub(held)..=number {
            assert_eq!(read(&*file, number * 4096, 4096), bytes(number), "{number}");
        }
        assert_eq!(read(&*file, (number + 1) * 4096, 4096), [0; 4096], "behind the end");
        assert_eq!(file.allocated(0, u64::MAX).expect("allocated"), (number + 1).min(held) * 4096);
    }
    assert!(matches!(file.read_at(0, &mut [0; 512]), Err(DeviceError::Corrupt { .. })), "given back");
    assert_eq!(file.len().expect("length"), 3 * CAPACITY);
}

#[test]
fn what_has_no_space_is_refused_and_harms_nothing() {
    let place = LogDeviceVfs::format(MemVfs::new(), memory(), false).expect("format");
    let file = place.create("wal.000000", StreamHint::Log).expect("create");
    let mut written = 0;
    while file.write_at(written * 4096, &bytes(written)).is_ok() {
        written += 1;
    }
    assert_eq!(written, CAPACITY / 4096 - 2, "all but the header");
    assert!(matches!(file.write_at(written * 4096, &bytes(0)), Err(DeviceError::Full { .. })));
    (0..written).for_each(|number| assert_eq!(read(&*file, number * 4096, 4096), bytes(number)));
    file.punch(0, 8192).expect("give back");
    file.write_at(written * 4096, &bytes(7)).expect("there is space again");
    assert!(matches!(file.write_at(4096, &[1; 512]), Err(DeviceError::BadRange { .. })), "before the front");
}

#[test]
fn a_cut_and_extended_file_has_zeros() {
    let place = LogDeviceVfs::format(MemVfs::new(), memory(), false).expect("format");
    let file = place.create("wal.000000", StreamHint::Log).expect("create");
    (0..8).for_each(|number| file.write_at(number * 4096, &bytes(number)).expect("write"));
    file.set_len(10_240).expect("cut");
    file.set_len(1 << 26).expect("extend");
    assert_eq!(read(&*file, 8192, 2048), bytes(2)[..2048]);
    assert_eq!(read(&*file, 10_240, 30_000), [0; 30_000]);
    file.write_at(65_536, &bytes(3)).expect("write");
    assert_eq!(read(&*file, 10_240, 65_536 - 10_240), [0; 65_536 - 10_240]);
}

/// Giving log back fences what others wrote, and writes the header: neither may fail unnoticed.
#[test]
fn a_log_device_that_fails_while_log_is_given_back_stops_the_store() {
    // A checkpoint while all syncs from that number on fail, and then a commit, which syncs once.
    let run = |failing: u64| {
        let device = SimMemory::beside(&SimDevice::new(1 << 20, 1), 2 << 20, 1);
        let place = LogDeviceVfs::format(MemVfs::new(), device.clone(), false).expect("format");
        let options =
            StoreOptions { background: false, durability: Durability::Sync, ..StoreOptions::default() };
        let store = Store::open(place, options).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("create");
        let put = |i: u32| {
            let mut txn = store.begin();
            txn.put(&table, &i.to_be_bytes(), &[7; 100])?;
            txn.commit()
        };
        (0..1000).for_each(|i| put(i).expect("put"));
        device.fail_syncs_after(failing);
        (store.checkpoint(), put(1000))
    };
    let all: Vec<_> = (1..).map(run).take_while(|(_, commit)| commit.is_err()).collect();
    assert!(all.len() > 2, "{all:?}");
    let unnoticed = all.iter().filter(|(checkpoint, _)| checkpoint.is_ok()).count();
    assert_eq!(unnoticed, 1, "the sync of the commit: {all:?}");
}

/// The next file takes what the one before does not need, and its number is no other file's.
#[test]
fn files_follow_each_other() {
    let (vfs, device) = (MemVfs::new(), memory());
    let place = LogDeviceVfs::format(vfs.clone(), device.clone(), false).expect("format");
    place.create("table", StreamHint::Data).expect("a table").write_at(0, &[1; 512]).expect("write");
    for number in 0..2000_u64 {
        let name = format!("wal.{number:06}");
        let file = place.create(&name, StreamHint::Log).expect("create");
        file.write_at(512, &bytes(number)).expect("write");
        let before = format!("wal.{:06}", number.saturating_sub(1));
        let previous = place.open(&before, StreamHint::Log).expect("open");
        assert_eq!(read(&*previous, 512, 4096), bytes(number.saturating_sub(1)));
        if number > 0 {
            place.remove(&before).expect("remove");
        }
    }
    drop(place);
    let place = LogDeviceVfs::open(vfs, device).expect("open");
    let mut names = place.list().expect("list");
    names.sort();
    assert_eq!(names, ["table", "wal.001999"]);
    let file = place.open("wal.001999", StreamHint::Log).expect("open");
    assert_eq!(read(&*file, 0, 512 + 4096), [vec![0; 512], bytes(1999)].concat());
}

/// With either slot of the header damaged nothing of the log is missing, or the device is refused.
#[test]
fn a_damaged_header_hides_no_log() {
    for slot in [0, 4096] {
        let (vfs, device) = (MemVfs::new(), memory());
        let place = LogDeviceVfs::format(vfs.clone(), device.clone(), false).expect("format");
        let file = place.create("wal.000000", StreamHint::Log).expect("create");
        (0..20).for_each(|number| file.write_at(number * 4096, &bytes(number)).expect("write"));
        drop((file, place));
        device.persist(slot, &[0xff; 64]).expect("damage");
        match LogDeviceVfs::open(vfs, device) {
            Ok(place) => {
                let file = place.open("wal.000000", StreamHint::Log).expect("open");
                assert_eq!(file.len().expect("length"), 20 * 4096, "slot at {slot}");
                (0..20).for_each(|number| assert_eq!(read(&*file, number * 4096, 4096), bytes(number)));
            }
            Err(error) => assert!(error.to_string().contains("older copy"), "{error}"),
        }
    }
}

fn reason<T>(result: Result<T>) -> String {
    result.err().expect("it is refused").to_string()
}

#[test]
fn a_store_and_its_device_belong_together() {
    let (vfs, device) = (MemVfs::new(), memory());
    let options = || StoreOptions { background: false, ..StoreOptions::default() };
    let fill = |place: Arc<LogDeviceVfs>, key: &[u8]| {
        let store = Store::open(place, options()).expect("open");
        let table = store.open_table("t", TableOptions::default()).expect("table");
        let mut txn = store.begin();
        txn.put(&table, key, b"value").expect("put");
        txn.commit().expect("commit");
    };
    fill(LogDeviceVfs::format(vfs.clone(), device.clone(), false).expect("format"), b"1");
    assert!(reason(Store::open(vfs.clone(), options())).contains("its log lies on a log device"));
    assert!(reason(Store::open_read_only(vfs.clone(), options())).contains("its log lies on a log device"));
    assert!(reason(LogDeviceVfs::open(vfs.clone(), memory())).contains("is not the log device of"));
    assert!(reason(LogDeviceVfs::open(MemVfs::new(), device.clone())).contains("without a log device"));
    assert!(reason(LogDeviceVfs::format(MemVfs::new(), device.clone(), false)).contains("is not blank"));
    assert!(reason(LogDeviceVfs::format(vfs.clone(), memory(), false)).contains("holds files"));
    let others = memory();
    LogDeviceVfs::format(MemVfs::new(), others.clone(), false).expect("another store");
    assert!(reason(LogDeviceVfs::open(vfs.clone(), others)).contains("of another store"));

    // Copies: each is refused beside what has gone on without it.
    let old = memory();
    let mut all = vec![0; CAPACITY as usize];
    device.read_at(0, &mut all).expect("read");
    old.persist(0, &all).expect("write");
    for key in [b"2", b"3"] {
        fill(LogDeviceVfs::open(vfs.clone(), device.clone()).expect("open"), key);
    }
    assert!(reason(LogDeviceVfs::open(vfs.clone(), old)).contains("is an older copy"));
    let store = Store::open(LogDeviceVfs::open(vfs, device).expect("open"), options()).expect("open");
    let table = store.table("t").expect("look").expect("table");
    let txn = store.begin();
    assert!([b"1", b"2", b"3"].iter().all(|key| txn.get(&table, *key).expect("get").is_some()));
}

/// A process that ends while it writes leaves bytes that the next one reads, and that a power cut can still take: the
/// log's, zeros, and the header. What was found must survive, and so must one of the headers.
#[test]
fn what_was_found_survives_a_power_cut() {
    for (seed, syncs) in (0..20).flat_map(|seed| (1..12).map(move |syncs| (seed, syncs))) {
        for cut in 0..4 {
            let supply = SimDevice::new(1 << 20, seed);
            let memory = SimMemory::beside(&supply, CAPACITY, seed * 100 + syncs);
            let (vfs, device): (_, Arc<dyn LogDevice>) = (MemVfs::new(), memory.clone());
            let open = || LogDeviceVfs::open(vfs.clone(), device.clone());
            let place = LogDeviceVfs::format(vfs.clone(), device.clone(), false).expect("format");
            let file = place.create("wal.000000", StreamHint::Log).expect("create");
            file.write_at(0, &bytes(0)).expect("write");
            memory.fail_syncs_after(syncs);
            let work = || {
                for number in 1..4 {
                    file.write_at(number * 4096, &bytes(number))?;
                    file.set_len(number * 4096)?;
                }
                file.punch(0, 4096)
            };
            let _ = work();
            memory.heal();
            drop((file, place));
            let found = |place: Arc<LogDeviceVfs>| {
                let file = place.open("wal.000000", StreamHint::Log).expect("open");
                let skipped = if file.read_at(0, &mut [0; 512]).is_err() { 4096 } else { 0 };
                file.sync().expect("sync");
                (skipped, file.len().expect("length"), read(&*file, skipped, 5 * 4096))
            };
            if cut > 0 {
                supply.set_cut_after(cut);
                if let Ok(place) = open() {
                    drop(place);
                    supply.set_cut_after(0);
                }
                supply.power_cycle();
                memory.power_cycle();
            }
            let before = found(open().expect("one header is whole"));
            supply.set_cut_after(0);
            supply.power_cycle();
            memory.power_cycle();
            assert!(found(open().expect("open")) == before, "seed {seed}, sync {syncs}, cut {cut}");
        }
    }
}

/// Ten times as much log as there is space for, by several threads, relaxed and not.
#[test]
fn writers_wait_for_space_in_the_log() {
    for durability in [Durability::Sync, Durability::Relaxed] {
        let (vfs, device) = (MemVfs::new(), memory());
        let options = || StoreOptions { pool_bytes: 8 << 20, durability, ..StoreOptions::default() };
        let place = LogDeviceVfs::format(vfs.clone(), device.clone(), false).expect("format");
        let store = Store::open(place, options()).expect("open");
        let table = store.open_table("t", TableOptions::default()).expect("table");
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (store, table) = (&store, &table);
                scope.spawn(move || {
                    for number in 0..150_u64 {
                        let mut txn = store.begin();
                        for part in 0..4 {
                            let key = [thread, (number * 7 + part) % 300].map(u64::to_be_bytes).concat();
                            txn.put(table, &key, &bytes(number)[..3000]).expect("put");
                        }
                        if number % 5 == 4 {
                            txn.rollback().expect("rollback");
                        } else {
                            txn.commit().expect("commit");
                        }
                    }
                });
            }
        });
        assert!(store.stats().expect("stats").log.written_bytes > 5 * CAPACITY);
        store.check().expect("sound");
        drop((table, store));
        let store = Store::open(LogDeviceVfs::open(vfs, device).expect("open"), options()).expect("open");
        store.check().expect("sound");
    }
}
