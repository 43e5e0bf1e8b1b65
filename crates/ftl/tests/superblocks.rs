//! The superblock in its slots and copies: any of them is enough, none of another store counts, and a store opens on
//! devices with blocks of any size.

use std::sync::Arc;

use crate::harness::assert_sound;
use lacuna_device::{AlignedBuf, BlockDevice};
use lacuna_ftl::{Error, FormatOptions, Ftl, Lba, Op, Options, Stream, Work};
use lacuna_sim::{SimDevice, for_each_seed};

const MIB: u64 = 1 << 20;
const BYTES: u64 = 48 * MIB;
const PAGE: usize = 16 << 10;

fn device(block_bytes: u32) -> Arc<dyn BlockDevice> {
    SimDevice::with_block_bytes(BYTES, block_bytes, 1)
}

fn format(device: &Arc<dyn BlockDevice>, capacity_bytes: Option<u64>) {
    let options = FormatOptions { capacity_bytes, force: true, ..FormatOptions::default() };
    Ftl::format(device.clone(), &options).unwrap();
}

fn open(device: &Arc<dyn BlockDevice>) -> Ftl {
    Ftl::open(device.clone(), Options::default()).unwrap()
}

fn page(number: u64, byte: u8) -> Vec<u8> {
    (0..PAGE).map(|at| (at as u64 ^ number) as u8 ^ byte | 1).collect()
}

fn write(ftl: &Ftl, pages: impl IntoIterator<Item = u64>, byte: u8) {
    for number in pages {
        let data = page(number, byte);
        ftl.write_batch(&[Op::Write { lba: Lba(number * 32), data: &data }], Stream::Data).unwrap();
    }
}

fn assert_holds(ftl: &Ftl, pages: impl IntoIterator<Item = u64>, byte: u8) {
    let mut back = vec![0; PAGE];
    for number in pages {
        ftl.read(Lba(number * 32), &mut back).unwrap();
        assert!(back == page(number, byte), "page {number}");
    }
}

fn fill(device: &Arc<dyn BlockDevice>, at: u64, len: u64, byte: u8) {
    let mut bytes = AlignedBuf::zeroed(len as usize);
    bytes.fill(byte);
    device.write_at(at, &bytes).unwrap();
    device.sync().unwrap();
}

/// Where superblocks lie.
fn superblocks(device: &Arc<dyn BlockDevice>) -> Vec<u64> {
    let mut all = AlignedBuf::zeroed(device.geometry().capacity_bytes as usize);
    device.read_at(0, &mut all).unwrap();
    let starts = all.chunks_exact(512).zip(0..).filter(|(sector, _)| sector.starts_with(b"LACUNAFT"));
    starts.map(|(_, number)| number * 512).collect()
}

const PLACES: [u64; 4] = [0, 32 << 10, 16 * MIB, BYTES - (64 << 10)];

/// A store with some pages, closed or cut off, and how many.
fn store(block_bytes: u32, is_closed: bool) -> (Arc<dyn BlockDevice>, u64) {
    let device = device(block_bytes);
    format(&device, None);
    let ftl = open(&device);
    write(&ftl, 0..300, 2);
    ftl.flush().unwrap();
    if is_closed {
        ftl.close().unwrap();
    }
    (device, 300)
}

#[test]
fn a_store_survives_a_wipe_of_either_end() {
    for (block_bytes, is_closed) in [(512, true), (512, false), (4096, false)] {
        for wiped in [&[0][..], &[BYTES - MIB], &[0, BYTES - MIB]] {
            let (device, pages) = store(block_bytes, is_closed);
            assert_eq!(superblocks(&device), PLACES);
            wiped.iter().for_each(|at| fill(&device, *at, MIB, 0));
            let (salvaged, damage) = Ftl::salvage(device.clone(), Options::default()).unwrap();
            assert!(damage.is_empty(), "{damage:?}");
            assert_holds(&salvaged, 0..pages, 2);
            drop(salvaged);
            let ftl = open(&device);
            assert_holds(&ftl, 0..pages, 2);
            assert_sound(&ftl);
            assert_eq!(superblocks(&device), PLACES, "all are back");
            write(&ftl, 0..pages, 4);
            ftl.flush().unwrap();
            drop(ftl);
            assert_holds(&open(&device), 0..pages, 4);
        }
    }
}

/// Each place alone is enough, whatever a power cut did to the switch of the root before.
#[test]
fn every_place_leads_to_the_store_at_any_time() {
    for_each_seed(40, |seed| {
        let sim = SimDevice::new(BYTES, seed);
        let device: Arc<dyn BlockDevice> = sim.clone();
        format(&device, None);
        let ftl = open(&device);
        write(&ftl, 0..200, 2);
        ftl.flush().unwrap();
        sim.set_cut_after(1 + seed / 4);
        let cut = ftl.checkpoint();
        drop(ftl);
        sim.power_cycle();
        let kept = PLACES[(seed % 4) as usize];
        PLACES.iter().filter(|at| **at != kept).for_each(|at| fill(&device, *at, 512, 0));
        let ftl = open(&device);
        assert_holds(&ftl, 0..200, 2);
        assert_sound(&ftl);
        assert!(cut.is_err() || seed / 4 >= 6, "the cut falls into the checkpoint");
    });
}

#[test]
fn who_took_the_place_of_a_store_is_not_overwritten() {
    let (device, pages) = store(512, true);
    fill(&device, 0, MIB, 0);
    // A superblock of ext4, say.
    fill(&device, 1024, 1024, 0x53);
    let refused = Ftl::open(device.clone(), Options::default()).unwrap_err().to_string();
    assert!(refused.contains("something else") && refused.contains("rescue"), "{refused}");
    let mut there = [0; 512];
    device.read_at(1024, &mut there).unwrap();
    assert_eq!(there, [0x53; 512]);
    let (salvaged, _) = Ftl::salvage(device.clone(), Options::default()).unwrap();
    assert_holds(&salvaged, 0..pages, 2);
    drop(salvaged);
    fill(&device, 1024, 1024, 0);
    fill(&device, 0, MIB, 0);
    let refused = Ftl::format(device, &FormatOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("what is left of a Lacuna store"), "{refused}");
}

#[test]
fn no_superblock_of_an_older_store_counts() {
    let old = device(512);
    format(&old, None);
    write(&open(&old), 0..100, 2);
    let mut image = AlignedBuf::zeroed(BYTES as usize);
    old.read_at(0, &mut image).unwrap();

    // One that is formatted anew has no copies, whatever the size of either store.
    for (before, after) in [(None, Some(24 * MIB)), (Some(24 * MIB), None), (Some(25 * MIB), Some(24 * MIB))]
    {
        let device = device(512);
        format(&device, before);
        format(&device, after);
        assert_eq!(superblocks(&device).len(), 4, "{before:?}, then {after:?}");
    }
    // One over whose start another store is copied has.
    let small = device(512);
    format(&small, Some(24 * MIB));
    open(&small).close().unwrap();
    let mut start = AlignedBuf::zeroed(24 * MIB as usize);
    small.read_at(0, &mut start).unwrap();
    old.write_at(0, &start).unwrap();
    assert_eq!(open(&old).stats().capacity_bytes, 24 * MIB);
    fill(&old, 0, MIB, 0);
    for read_only in [false, true] {
        let refused = Ftl::open(old.clone(), Options { read_only, ..Options::default() }).unwrap_err();
        assert!(refused.to_string().contains("different stores"), "{refused}");
    }
    // Growing over it removes it.
    old.write_at(0, &start).unwrap();
    let ftl = open(&old);
    assert_eq!(ftl.grow(None).unwrap(), BYTES);
    write(&ftl, 0..200, 6);
    ftl.close().unwrap();
    drop(ftl);
    assert_eq!(superblocks(&old), [0, 32 << 10, 8 * MIB, BYTES - (64 << 10)]);
    fill(&old, 0, MIB, 0);
    assert_holds(&open(&old), 0..200, 6);
}

/// The copy at the old end leads to a root whose segments are used again. Were it there still, what is copied to a disk
/// of the old size would come back, without its other superblocks, as the store was before it grew.
#[test]
fn no_copy_stays_where_a_store_ended() {
    let device = device(512);
    format(&device, Some(24 * MIB));
    let ftl = open(&device);
    write(&ftl, 0..10, 2);
    ftl.checkpoint().unwrap();
    assert_eq!(superblocks(&device), [0, 32 << 10, 8 * MIB, 24 * MIB - (64 << 10)]);
    assert_eq!(ftl.grow(None).unwrap(), BYTES);
    write(&ftl, 0..10, 4);
    ftl.close().unwrap();
    drop(ftl);
    let mut start = AlignedBuf::zeroed(24 * MIB as usize);
    device.read_at(0, &mut start).unwrap();
    let small: Arc<dyn BlockDevice> = SimDevice::with_block_bytes(24 * MIB, 512, 1);
    small.write_at(0, &start).unwrap();
    fill(&small, 0, MIB, 0);
    fill(&small, 8 * MIB, 4096, 0);
    let found = Ftl::open(small, Options::default()).map(|ftl| ftl.stats().capacity_bytes);
    assert!(matches!(found, Err(Error::NotAStore { .. })), "{found:?}");
    assert_eq!(superblocks(&device), [0, 32 << 10, 8 * MIB, BYTES - (64 << 10)]);
}

#[test]
fn a_store_has_the_size_that_it_is_given() {
    let device = device(512);
    let refuse = |capacity_bytes| {
        let options = FormatOptions { capacity_bytes: Some(capacity_bytes), ..FormatOptions::default() };
        Ftl::format(device.clone(), &options).unwrap_err().to_string()
    };
    for (bytes, why) in [
        (0, "too few"),
        (MIB, "too few"),
        (30 * MIB + 512, "not a multiple of 4096"),
        (BYTES + 4096, "it has"),
        (u64::MAX / 4096 * 4096, "it has"),
    ] {
        assert!(refuse(bytes).contains(why), "{}", refuse(bytes));
    }
    format(&device, Some(30 * MIB));
    let ftl = open(&device);
    assert_eq!((ftl.stats().capacity_bytes, ftl.capacity_max().unwrap()), (30 * MIB, BYTES));
    assert_eq!(ftl.grow(Some(40 * MIB)).unwrap(), 40 * MIB);
    assert_eq!(ftl.grow(None).unwrap(), BYTES);
    assert_eq!(ftl.capacity_max().unwrap(), BYTES);
}

/// Copies all of a device to one with other blocks.
fn copied(from: &Arc<dyn BlockDevice>, block_bytes: u32) -> Arc<dyn BlockDevice> {
    let mut image = AlignedBuf::zeroed(BYTES as usize);
    from.read_at(0, &mut image).unwrap();
    let to = device(block_bytes);
    to.write_at(0, &image).unwrap();
    to
}

/// A full store, from disk to disk: what was written on each is read, replayed, collected and overwritten on the next.
#[test]
fn a_store_moves_between_disks_with_blocks_of_any_size() {
    let mut device = device(512);
    format(&device, None);
    let ftl = open(&device);
    let full = (0..).find(|number| {
        let data = page(*number, 2);
        let write = [Op::Write { lba: Lba(number * 32), data: &data }];
        matches!(ftl.write_batch(&write, Stream::Data), Err(Error::Full { .. }))
    });
    let pages = full.unwrap();
    ftl.flush().unwrap();
    drop(ftl);
    let mut last = 2;
    for (block_bytes, byte) in [(4096, 4), (512, 6), (2048, 8), (1024, 10), (4096, 12), (512, 14)] {
        device = copied(&device, block_bytes);
        let ftl = open(&device);
        assert_eq!(ftl.stats().capacity_bytes, BYTES);
        assert_holds(&ftl, 0..pages, last);
        assert_sound(&ftl);
        for number in 0..pages {
            write(&ftl, [number], byte);
            // Not where the others end.
            match number % 7 {
                0 => ftl.flush().unwrap(),
                1 => drop(ftl.step(Work::Gc).unwrap()),
                _ => {}
            }
        }
        assert_sound(&ftl);
        ftl.flush().unwrap();
        last = byte;
    }
    assert_holds(&open(&copied(&device, 4096)), 0..pages, last);
}

/// Bytes written for each small batch that is flushed by itself, on a device with blocks of `block_bytes`.
fn bytes_per_flush(block_bytes: u32, bytes: usize) -> u64 {
    const FLUSHES: u64 = 20;
    let device = device(block_bytes);
    format(&device, None);
    let ftl = open(&device);
    let data = vec![7; bytes];
    let append = |number: u64| {
        let write = [Op::Write { lba: Lba(number * 32), data: &data }];
        ftl.write_batch(&write, Stream::Log).unwrap();
        ftl.flush().unwrap();
    };
    append(0); // opens a segment
    let before = ftl.stats().log_bytes;
    (1..=FLUSHES).for_each(append);
    (ftl.stats().log_bytes - before) / FLUSHES
}

/// The figures of docs/layers/ftl.md.
#[test]
fn a_flush_costs_whole_blocks_of_its_disk_only() {
    for (bytes, on_512, on_4096) in
        [(512, 1024, 4096), (1024, 1536, 4096), (2048, 2560, 4096), (4096, 4608, 8192), (16384, 16896, 20480)]
    {
        let found = [512, 4096].map(|block_bytes| bytes_per_flush(block_bytes, bytes));
        assert_eq!(found, [on_512, on_4096], "{bytes} bytes");
    }
}
