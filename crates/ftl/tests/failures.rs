//! Devices that fail, have silent faults, hold foreign data, or were damaged.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use crate::harness::{Change, Model, SEGMENT_BYTES, assert_sound, format, open, ops};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{CheckDepth, Error, FormatOptions, Ftl, Lba, Op, Options, SECTOR, Stream, Work};
use lacuna_sim::{BeforeReads, SeededRng, SimDevice, unreadable};

const BYTES: u64 = 4 << 20;

fn sim(seed: u64) -> (Arc<SimDevice>, Arc<dyn BlockDevice>) {
    let device = SimDevice::new(BYTES, seed);
    let shared: Arc<dyn BlockDevice> = device.clone();
    format(&shared);
    (device, shared)
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    SeededRng::new(seed).fill(&mut data);
    data
}

fn write(ftl: &Ftl, lba: u64, data: &[u8]) -> Result<(), Error> {
    ftl.write_batch(&[Op::Write { lba: Lba(lba), data }], Stream::Data).map(drop)
}

fn read(ftl: &Ftl, lba: u64, len: usize) -> Result<Vec<u8>, Error> {
    let mut buf = vec![0; len];
    ftl.read(Lba(lba), &mut buf).map(|()| buf)
}

/// Offset of `needle` on the device.
fn find(device: &dyn BlockDevice, needle: &[u8]) -> u64 {
    let mut all = vec![0; BYTES as usize];
    device.read_at(0, &mut all).unwrap();
    all.windows(needle.len()).position(|window| window == needle).expect("it is on the device") as u64
}

#[test]
fn a_failed_sync_poisons_until_the_store_is_opened_anew() {
    let (device, shared) = sim(1);
    let ftl = open(&shared);
    let (kept, lost) = (noise(1, 4096), noise(2, 4096));
    write(&ftl, 0, &kept).unwrap();
    ftl.flush().unwrap();
    write(&ftl, 8, &lost).unwrap();
    device.fail_sync();
    assert!(matches!(ftl.flush(), Err(Error::Device(_))));
    device.heal();
    assert!(matches!(ftl.flush(), Err(Error::Poisoned { .. })), "a later sync proves nothing");
    assert!(matches!(write(&ftl, 16, &lost), Err(Error::Poisoned { .. })));
    assert!(matches!(ftl.checkpoint(), Err(Error::Poisoned { .. })));
    assert!(matches!(ftl.step(Work::Gc), Err(Error::Poisoned { .. })));
    assert_eq!(read(&ftl, 0, 4096).unwrap(), kept, "reads go on");
    drop(ftl);
    device.power_cycle();
    let ftl = open(&shared);
    assert_eq!(read(&ftl, 0, 4096).unwrap(), kept);
    write(&ftl, 16, &lost).unwrap();
    ftl.flush().unwrap();
    assert_sound(&ftl);
}

#[test]
fn a_failed_write_poisons() {
    for fail in [SimDevice::enospc as fn(&SimDevice), |device| device.fail_writes_after(1)] {
        let (device, shared) = sim(2);
        let ftl = open(&shared);
        write(&ftl, 0, &noise(1, 4096)).unwrap();
        fail(&device);
        assert!(matches!(ftl.flush(), Err(Error::Device(_))));
        device.heal();
        assert!(matches!(ftl.flush(), Err(Error::Poisoned { .. })));
        drop(ftl);
        assert_sound(&open(&shared));
    }
}

#[test]
fn a_flipped_bit_is_an_error_that_names_the_place() {
    let (device, shared) = sim(3);
    let ftl = open(&shared);
    let (good, bad) = (noise(1, 16384), noise(2, 16384));
    write(&ftl, 0, &good).unwrap();
    write(&ftl, 32, &bad).unwrap();
    ftl.checkpoint().unwrap();
    let chunk = find(&*shared, &bad[..512]);
    device.flip_bit(chunk + 5000, 3);
    assert_eq!(read(&ftl, 0, 16384).unwrap(), good);
    for (lba, len) in [(32, 16384), (63, 512), (0, 32768)] {
        match read(&ftl, lba, len) {
            Err(Error::Corrupt { at, .. }) => assert_eq!(at, chunk),
            other => panic!("{:?}", other.map(drop)),
        }
    }
    let report = ftl.check(CheckDepth::Payload).unwrap();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    write(&ftl, 32, &good).unwrap();
    assert_sound(&ftl);
}

#[test]
fn collection_goes_on_around_a_corrupt_chunk_and_keeps_the_error() {
    let (device, shared) = sim(4);
    let ftl = open(&shared);
    let mut model = Model::new(4096);
    let bad = noise(99, 16384);
    write(&ftl, 5000, &bad).unwrap();
    for round in 0..200 {
        let batch = [Change::Write(round % 30 * 32, noise(round, 16384))];
        ftl.write_batch(&ops(&batch), Stream::Data).unwrap();
        model.apply(&batch);
        if round == 5 {
            ftl.flush().unwrap();
            device.flip_bit(find(&*shared, &bad[..512]) + 100, 0);
        }
        ftl.step(Work::Gc).unwrap();
    }
    assert_eq!(ftl.stats().corrupt_chunks, 1);
    model.assert_same(&ftl);
    assert!(matches!(read(&ftl, 5000, 16384), Err(Error::Corrupt { .. })));
    assert!(!ftl.check(CheckDepth::Structure).unwrap().is_clean(), "the damaged segment is reported");
    ftl.close().unwrap();
    drop(ftl);
    let ftl = open(&shared);
    assert!(matches!(read(&ftl, 5000, 16384), Err(Error::Corrupt { .. })), "the error outlives a reopen");
    ftl.write_batch(&[Op::Trim { lba: Lba(5000), sectors: 32 }], Stream::Data).unwrap();
    assert_sound(&ftl);
}

/// No write fails for it, with a thread that collects or without.
#[test]
fn collection_goes_on_around_what_cannot_be_read() {
    for background in [false, true] {
        let (_, device) = sim(5);
        let bad = noise(99, 16384);
        let ftl = open(&device);
        write(&ftl, 5000, &bad).unwrap();
        write(&ftl, 6000, &noise(98, 16384)).unwrap();
        ftl.close().unwrap();
        let place = find(&*device, &bad[..512]);
        let device = unreadable(device, std::iter::once(place + 512..place + 15872).collect());
        let ftl = Ftl::open(device, Options { background, ..Options::default() }).unwrap();
        let mut model = Model::new(4096);
        for round in 0..1000 {
            let batch = [Change::Write(round % 60 * 32, noise(round, 16384))];
            ftl.write_batch(&ops(&batch), Stream::Data).unwrap();
            model.apply(&batch);
        }
        while ftl.step(Work::Gc).unwrap() {}
        assert_eq!(ftl.stats().corrupt_chunks, 1, "its segment was chosen, and put aside");
        model.assert_same(&ftl);
        assert!(matches!(read(&ftl, 5000, 16384), Err(Error::Device(_))));
        assert_eq!(read(&ftl, 6000, 16384).unwrap(), noise(98, 16384), "what lies beside it is there");
    }
}

#[test]
fn damage_below_the_flush_mark_is_reported_and_not_taken_for_a_cut() {
    let (device, shared) = sim(5);
    let ftl = open(&shared);
    let first = noise(1, 4096);
    write(&ftl, 0, &first).unwrap();
    ftl.flush().unwrap();
    // The next record says that the first batch is durable.
    write(&ftl, 8, &noise(2, 4096)).unwrap();
    ftl.flush().unwrap();
    drop(ftl);
    // A record's header takes 64 bytes, its one entry 9, and the payload starts on the next grain.
    let header = find(&*shared, &first[..512]) - 80;
    device.flip_bit(header + 20, 1);
    match Ftl::open(shared.clone(), Options::default()) {
        Err(Error::Corrupt { what, .. }) => assert!(what.contains("log"), "{what}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn damage_to_one_superblock_slot_is_harmless() {
    for slot in [0, 32 << 10] {
        let (device, shared) = sim(6);
        let ftl = open(&shared);
        let data = noise(1, 50_000 / SECTOR * SECTOR);
        write(&ftl, 0, &data).unwrap();
        ftl.checkpoint().unwrap();
        ftl.checkpoint().unwrap();
        drop(ftl);
        // In the sequence, and in the version, which then is an unknown one.
        for (at, bit) in [(70, 1), (8, 1)] {
            device.flip_bit(slot + at, bit);
            let ftl = open(&shared);
            assert_eq!(read(&ftl, 0, data.len()).unwrap(), data);
            assert_sound(&ftl);
        }
    }
}

#[test]
fn a_superblock_slot_that_cannot_be_read_is_harmless() {
    for slot in [0, 32 << 10] {
        let (_, shared) = sim(12);
        let ftl = open(&shared);
        let data = noise(1, 4096);
        write(&ftl, 0, &data).unwrap();
        ftl.flush().unwrap();
        drop(ftl);
        let ftl = open(&unreadable(shared.clone(), std::iter::once(slot..slot + 512).collect()));
        assert_eq!(read(&ftl, 0, data.len()).unwrap(), data);
    }
    let (_, shared) = sim(12);
    let blind = unreadable(shared, vec![0..512, 32 << 10..(32 << 10) + 512]);
    assert!(matches!(Ftl::open(blind, Options::default()), Err(Error::Device(_))));
}

#[test]
fn a_damaged_checkpoint_is_reported() {
    let (device, shared) = sim(7);
    let ftl = open(&shared);
    for page in 0..40 {
        write(&ftl, page * 32, &noise(page, 16384)).unwrap();
    }
    ftl.close().unwrap();
    drop(ftl);
    let mut superblock = [0; 512];
    shared.read_at(0, &mut superblock).unwrap();
    let number = |at: usize| u64::from(u32::from_le_bytes(superblock[at..at + 4].try_into().unwrap()));
    let root = number(88) * u64::from(SEGMENT_BYTES) + number(92);
    for at in [root + 70, root - 500] {
        device.flip_bit(at, 1);
        assert!(matches!(Ftl::open(shared.clone(), Options::default()), Err(Error::Corrupt { .. })), "{at}");
        device.flip_bit(at, 1);
    }
    assert_sound(&open(&shared));
}

/// Open does not read the leaves of the map; reading what a damaged leaf maps is an error, the rest is intact.
#[test]
fn a_damaged_leaf_of_the_map_is_an_error_where_it_is_needed() {
    let (device, shared) = sim(11);
    let ftl = open(&shared);
    // Some hundred extents: several leaves.
    let data = noise(1, 512);
    for page in 0..400 {
        write(&ftl, page * 32, &data).unwrap();
    }
    ftl.close().unwrap();
    drop(ftl);
    // The first record of leaves; a leaf lies behind its header.
    let is_leaves = |at: &u64| {
        let mut head = [0; 512];
        shared.read_at(*at, &mut head).unwrap();
        head.starts_with(b"LREC") && head[8] == 3
    };
    let leaf = (u64::from(SEGMENT_BYTES)..BYTES)
        .step_by(512)
        .find(is_leaves)
        .expect("a record of leaves is on the device")
        + 64;
    device.flip_bit(leaf + 200, 3);
    let ftl = open(&shared);
    let is_damaged = |lba| match read(&ftl, lba, 512) {
        Ok(found) => {
            assert_eq!(found, data);
            false
        }
        Err(Error::Corrupt { what, at, .. }) => {
            assert!(what.contains("map leaf") && at == leaf, "{what} at {at}");
            true
        }
        Err(error) => panic!("{error}"),
    };
    let damaged = (0..400).filter(|page| is_damaged(page * 32)).count();
    assert!((1..200).contains(&damaged), "{damaged}");
    let report = ftl.check(CheckDepth::Structure).unwrap();
    assert!(report.findings.iter().any(|finding| finding.message.contains("map leaf")), "{report:?}");
    assert!(matches!(ftl.mapped(Lba(0)..Lba(1 << 40)), Err(Error::Corrupt { .. })));
    assert!(matches!(write(&ftl, 0, &data), Err(Error::Corrupt { .. })), "it would change that leaf");
    // Operations that do not need the leaf continue, checkpoints included.
    for round in 0..400 {
        write(&ftl, (300 + round % 100) * 32, &data).unwrap();
        ftl.step(Work::Gc).unwrap();
    }
    ftl.close().unwrap();
    drop(ftl);
    let ftl = open(&shared);
    assert!(matches!(read(&ftl, 0, 512), Err(Error::Corrupt { .. })), "the error outlives a reopen");
    assert_eq!(read(&ftl, 399 * 32, 512).unwrap(), data);
}

/// Nearly all segments hold dead data of a leaf that cannot be read, and one or two live data: only these are lost to
/// collection.
#[test]
fn a_damaged_leaf_of_the_map_costs_no_segment_without_live_data_in_it() {
    let (device, shared) = sim(12);
    let ftl = open(&shared);
    let data = noise(1, 4096);
    let mut rng = SeededRng::new(1);
    for page in 0..280 {
        write(&ftl, page * 32, &data).unwrap();
    }
    // The first pages are written again and again among others, and last of all.
    for round in 0..4000 {
        let page = if round % 4 == 0 { rng.below(8) } else { 140 + rng.below(140) };
        write(&ftl, page * 32, &data).unwrap();
        ftl.step(Work::Gc).unwrap();
    }
    for page in 0..8 {
        write(&ftl, page * 32, &data).unwrap();
    }
    ftl.close().unwrap();
    drop(ftl);
    // The first that is read for page 0 is its leaf.
    let reads = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&reads);
    let watched: Arc<dyn BlockDevice> = BeforeReads::new(shared.clone(), move |ranges: &[Range<u64>]| {
        noted.lock().unwrap().extend_from_slice(ranges);
        Ok(())
    });
    let ftl = open(&watched);
    reads.lock().unwrap().clear();
    read(&ftl, 0, 512).unwrap();
    drop(ftl);
    let leaf = reads.lock().unwrap()[0].clone();
    device.flip_bit(leaf.start + 100, 3);
    let ftl = open(&shared);
    assert!(matches!(read(&ftl, 0, 512), Err(Error::Corrupt { .. })));
    for round in 0..3000 {
        let page = 140 + rng.below(140);
        write(&ftl, page * 32, &data).unwrap_or_else(|error| panic!("round {round}: {error}"));
        ftl.step(Work::Gc).unwrap();
    }
    let out_of_use = ftl.stats().corrupt_chunks;
    assert!(out_of_use < 6, "{out_of_use} segments are out of use");
    (140..280).for_each(|page| assert_eq!(read(&ftl, page * 32, 4096).unwrap(), data));
}

#[test]
fn what_is_no_store_is_refused_by_name() {
    let empty: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(BYTES));
    assert!(matches!(Ftl::open(empty.clone(), Options::default()), Err(Error::NotAStore { .. })));
    let (_, shared) = sim(8);
    let mut superblock = vec![0; 512];
    shared.read_at(0, &mut superblock).unwrap();
    superblock[8] = 2;
    for slot in [0, 32 << 10] {
        shared.write_at(slot, &superblock).unwrap();
    }
    let newer = Ftl::open(shared, Options::default()).unwrap_err();
    assert!(matches!(newer, Error::Version { found: 2, supported: 1, .. }), "{newer}");
    let tiny: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(4096));
    assert!(matches!(Ftl::open(tiny.clone(), Options::default()), Err(Error::NotAStore { .. })));
    assert!(matches!(Ftl::format(tiny, &FormatOptions::default()), Err(Error::Geometry { .. })));
}

#[test]
fn a_truncated_store_is_refused() {
    let (_, shared) = sim(9);
    open(&shared).close().unwrap();
    let mut bytes = vec![0; BYTES as usize / 2];
    shared.read_at(0, &mut bytes).unwrap();
    let half: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(BYTES / 2));
    half.write_at(0, &bytes).unwrap();
    let refused = Ftl::open(half, Options::default()).unwrap_err();
    assert!(
        matches!(refused, Error::Geometry { .. }) && refused.to_string().contains("truncated"),
        "{refused}"
    );
}

#[test]
fn format_overwrites_only_when_forced() {
    let options =
        |force| FormatOptions { segment_bytes: Some(SEGMENT_BYTES), force, ..FormatOptions::default() };
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(BYTES));
    Ftl::format(device.clone(), &options(false)).unwrap();
    write(&open(&device), 0, &noise(1, 4096)).unwrap();
    let refused = Ftl::format(device.clone(), &options(false)).unwrap_err();
    assert!(refused.to_string().contains("a Lacuna store"), "{refused}");
    Ftl::format(device.clone(), &options(true)).unwrap();
    let ftl = open(&device);
    assert_eq!(read(&ftl, 0, 4096).unwrap(), [0; 4096], "nothing of the old store comes back");
    for at in [1024, BYTES - 512] {
        let foreign: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(BYTES));
        foreign.write_at(at, &[7; 512]).unwrap();
        let refused = Ftl::format(foreign, &options(false)).unwrap_err();
        assert!(refused.to_string().contains(&format!("foreign data at byte {at}")), "{refused}");
    }
}

#[test]
fn read_only_writes_nothing() {
    let (_, shared) = sim(10);
    let ftl = open(&shared);
    let data = noise(1, 4096);
    write(&ftl, 0, &data).unwrap();
    ftl.flush().unwrap();
    drop(ftl);
    let before = shared.stats();
    let ftl = Ftl::open(shared.clone(), Options { read_only: true, ..Options::default() }).unwrap();
    assert_eq!(read(&ftl, 0, 4096).unwrap(), data);
    assert!(matches!(write(&ftl, 0, &data), Err(Error::ReadOnly { .. })));
    assert!(matches!(ftl.checkpoint(), Err(Error::ReadOnly { .. })));
    assert_sound(&ftl);
    ftl.close().unwrap();
    let after = shared.stats();
    assert_eq!(
        (before.writes, before.syncs, before.discarded_bytes),
        (after.writes, after.syncs, after.discarded_bytes)
    );
}
