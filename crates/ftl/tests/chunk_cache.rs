//! Stored chunks in memory: they spare reads of the device, and are never out of date.

use std::sync::Arc;

use crate::harness::{Change, Model, assert_sound, encode, format, ops, payload};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{Ftl, Lba, Op, Options, SECTOR, Stream, Work};
use lacuna_sim::{SeededRng, for_each_seed};

const PAGE_SECTORS: u64 = 16;

fn open(device: &Arc<dyn BlockDevice>, chunk_cache: u64) -> Ftl {
    Ftl::open(device.clone(), Options { chunk_cache, ..Options::default() }).unwrap()
}

fn write(ftl: &Ftl, lba: u64, data: &[u8]) {
    ftl.write_batch(&[Op::Write { lba: Lba(lba), data }], Stream::Data).unwrap();
}

fn read(ftl: &Ftl, lba: u64, sectors: u64) -> Vec<u8> {
    let mut back = vec![0xee; sectors as usize * SECTOR];
    ftl.read(Lba(lba), &mut back).unwrap();
    back
}

#[test]
fn what_was_read_is_not_read_again() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(16 << 20));
    format(&device);
    let ftl = open(&device, 1 << 20);
    let page = |number: u64| vec![number as u8 + 1; PAGE_SECTORS as usize * SECTOR];
    for number in 0..32 {
        write(&ftl, number * PAGE_SECTORS, &page(number));
    }
    ftl.close().unwrap();
    let ftl = open(&device, 1 << 20);
    let reads = || ftl.stats().device.reads;
    let read_all = || (0..32).for_each(|at| assert!(read(&ftl, at * PAGE_SECTORS, PAGE_SECTORS) == page(at)));
    read_all();
    let stats = ftl.stats();
    assert_eq!((stats.chunk_cache_hits, stats.chunk_cache_misses), (0, 32));
    let before = reads();
    read_all();
    // A part of a chunk as well.
    assert_eq!(read(&ftl, 3, 1), vec![1; SECTOR]);
    assert_eq!(reads(), before);
    assert_eq!(ftl.stats().chunk_cache_hits, 33);
    // Collection moves them; they are found all the same.
    for _ in 0..60 {
        ftl.step(Work::Gc).unwrap();
    }
    let before = reads();
    read_all();
    assert_eq!(reads(), before);
    // Long reads neither look nor leave anything there.
    let (hits, misses) = (ftl.stats().chunk_cache_hits, ftl.stats().chunk_cache_misses);
    read(&ftl, 0, 32 * PAGE_SECTORS);
    assert_eq!((ftl.stats().chunk_cache_hits, ftl.stats().chunk_cache_misses), (hits, misses));
}

/// Whoever keeps pages in memory of its own writes most of them when it needs their space, and reads them again soon.
#[test]
fn what_was_written_is_not_read() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(16 << 20));
    format(&device);
    let ftl = open(&device, 1 << 20);
    let pages = |fill: u8| (0..32).map(move |number| vec![fill + number; PAGE_SECTORS as usize * SECTOR]);
    let batch = |fill: u8, stream| {
        let pages: Vec<_> = pages(fill).collect();
        let ops = pages.iter().enumerate();
        let ops = ops.map(|(number, data)| Op::Write { lba: Lba(number as u64 * PAGE_SECTORS), data });
        ftl.write_batch(&ops.collect::<Vec<_>>(), stream).unwrap();
        ftl.flush().unwrap();
    };
    let reads_of_all = |fill: u8| {
        let before = ftl.stats().device.reads;
        for (number, page) in pages(fill).enumerate() {
            assert!(read(&ftl, number as u64 * PAGE_SECTORS, PAGE_SECTORS) == page);
        }
        ftl.stats().device.reads - before
    };
    for fill in [1, 50, 100] {
        batch(fill, Stream::Data);
        assert_eq!(reads_of_all(fill), 0);
    }
    // A cut chunk is another chunk; of the one that was cut the rest is found.
    ftl.write_batch(&[Op::Trim { lba: Lba(3), sectors: 2 }], Stream::Data).unwrap();
    let before = ftl.stats().device.reads;
    assert!(read(&ftl, 5, PAGE_SECTORS - 5) == vec![100; (PAGE_SECTORS as usize - 5) * SECTOR]);
    assert_eq!(read(&ftl, 3, 2), vec![0; 2 * SECTOR]);
    assert_eq!(ftl.stats().device.reads, before);
    // A log is not read again, and neither is most of what is copied in large pieces.
    batch(150, Stream::Log);
    assert_eq!(reads_of_all(150), 32);
    let before = ftl.stats().chunk_cache_bytes;
    write(&ftl, 10_000, &vec![7; 600 << 10]);
    assert_eq!(ftl.stats().chunk_cache_bytes, before);
}

#[test]
fn the_cache_keeps_to_its_memory() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(16 << 20));
    format(&device);
    let memory = 256 << 10;
    let ftl = open(&device, memory);
    let mut rng = SeededRng::new(1);
    for number in 0..500 {
        write(&ftl, number * PAGE_SECTORS, &payload(&mut rng, PAGE_SECTORS));
        read(&ftl, number * PAGE_SECTORS, PAGE_SECTORS);
    }
    let bytes = ftl.stats().chunk_cache_bytes;
    assert!((memory / 2..=memory).contains(&bytes), "{bytes}");
    let none = open(&device, 0);
    read(&none, 0, PAGE_SECTORS);
    assert_eq!((none.stats().chunk_cache_bytes, none.stats().chunk_cache_misses), (0, 0));
}

/// Whatever overwrites, cuts, trims and moves chunks: a read sees the last write. A tiny cache forgets all the time, a
/// large one nothing.
#[test]
fn no_read_is_out_of_date() {
    for_each_seed(6, |seed| {
        let mut rng = SeededRng::new(seed);
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(16 << 20));
        format(&device);
        let cache = [20 << 10, 8 << 20][seed as usize % 2];
        let mut ftl = open(&device, cache);
        let mut model = Model::new(600);
        let sectors = model.sectors();
        let mut hits = 0;
        for round in 0..3_000 {
            let lba = rng.below(sectors - 64);
            let batch = match rng.below(10) {
                0 => vec![Change::Trim(lba, 1 + rng.below(39))],
                // Twice in one batch, from the same sector on.
                1 => {
                    let (long, short) = (1 + rng.below(32), 1 + rng.below(32));
                    vec![
                        Change::Write(lba, payload(&mut rng, long)),
                        Change::Write(lba, payload(&mut rng, short)),
                    ]
                }
                _ => {
                    let sectors = 1 + rng.below(40);
                    vec![Change::Write(lba, payload(&mut rng, sectors))]
                }
            };
            let batch = if rng.chance(50) { encode(batch) } else { batch };
            ftl.write_batch(&ops(&batch), Stream::Data).unwrap();
            model.apply(&batch);
            for _ in 0..3 {
                model.assert_read(&ftl, rng.below(sectors - 64), 1 + rng.below(64));
            }
            if rng.chance(10) {
                ftl.step(Work::Gc).unwrap();
            }
            if round % 1000 == 999 {
                hits += ftl.stats().chunk_cache_hits;
                assert!(ftl.stats().chunk_cache_bytes <= cache);
                ftl.close().unwrap();
                ftl = open(&device, cache);
            }
        }
        assert!(hits > 1_000, "{hits}");
        assert_sound(&ftl);
    });
}
