//! The store against a plain array, without crashes.

use std::{ops::Range, sync::Arc};

use crate::harness::{Change, Model, assert_sound, changes, encode, format, open, ops, payload};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{Error, FormatOptions, Ftl, Lba, Op, Options, SECTOR, Stream, Work};
use lacuna_sim::{SeededRng, SimDevice, for_each_seed};

fn mem(bytes: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(bytes));
    format(&device);
    device
}

fn stream(rng: &mut SeededRng) -> Stream {
    if rng.chance(30) { Stream::Log } else { Stream::Data }
}

/// Adds up the results of `mapped` and `allocated` and compares them.
fn assert_counts_agree(ftl: &Ftl, sectors: u64) {
    let (mut at, mut bytes) = (Lba(0), 0);
    while let Some(run) = ftl.mapped(at..Lba(sectors)).unwrap() {
        assert!(run.start >= at && run.start < run.end && run.end.0 <= sectors);
        assert!(
            ftl.is_mapped(run.start).unwrap() && (run.end.0 == sectors || !ftl.is_mapped(run.end).unwrap())
        );
        bytes += ftl.allocated(run.clone()).unwrap();
        at = run.end;
    }
    assert_eq!(bytes, ftl.allocated(Lba(0)..Lba(u64::MAX)).unwrap());
    assert_eq!(bytes, ftl.stats().allocated_bytes);
}

/// Compares the results of `read_mapped`, piece by piece, with `mapped` and `read`.
fn assert_runs_agree(ftl: &Ftl, range: Range<u64>, bytes_max: usize) {
    let (mut at, end) = (Lba(range.start), Lba(range.end));
    while at < end {
        let found = ftl.read_mapped(at..end, bytes_max).unwrap();
        assert!(found.end > at && found.end <= end);
        let bytes: usize = found.runs.iter().map(|(_, data)| data.len()).sum();
        assert!(bytes <= bytes_max.max(16 << 10), "{bytes} bytes, at most {bytes_max}");
        for (lba, data) in found.runs {
            assert_eq!(ftl.mapped(at..lba).unwrap(), None);
            at = Lba(lba.0 + (data.len() / SECTOR) as u64);
            assert_eq!(ftl.mapped(lba..at).unwrap(), Some(lba..at));
            let mut expected = vec![1; data.len()];
            ftl.read(lba, &mut expected).unwrap();
            assert!(data == expected);
        }
        assert_eq!(ftl.mapped(at..found.end).unwrap(), None);
        at = found.end;
    }
}

#[test]
fn reads_back_what_was_written_across_reopen() {
    for_each_seed(12, |seed| {
        let mut rng = SeededRng::new(seed);
        // Blocks of 512 and of 4096 bytes.
        let block = if seed % 2 == 0 { 512 } else { 4096 };
        let device: Arc<dyn BlockDevice> = SimDevice::with_block_bytes(4 << 20, block, seed);
        format(&device);
        let mut model = Model::new(2000);
        let mut ftl = open(&device);
        for _ in 0..400 {
            let batch = changes(&mut rng, model.sectors());
            let batch = if seed % 3 > 0 { encode(batch) } else { batch };
            ftl.write_batch(&ops(&batch), stream(&mut rng)).unwrap();
            model.apply(&batch);
            let lba = rng.below(model.sectors() - 100);
            model.assert_read(&ftl, lba, 1 + rng.below(99));
            assert_runs_agree(&ftl, lba..model.sectors(), rng.below(100_000) as usize);
            match rng.below(40) {
                0 => ftl.flush().unwrap(),
                1 => ftl.checkpoint().unwrap(),
                2 => drop(ftl.step(Work::Gc).unwrap()),
                3 => {
                    ftl.flush().unwrap();
                    drop(ftl);
                    ftl = open(&device);
                }
                4 => {
                    ftl.close().unwrap();
                    drop(ftl);
                    ftl = open(&device);
                    assert_eq!(ftl.stats().replayed_batches, 0);
                }
                _ => {}
            }
        }
        model.assert_same(&ftl);
        assert_counts_agree(&ftl, model.sectors());
        assert_sound(&ftl);
    });
}

/// A map of which almost nothing fits into memory, without and with the background thread.
#[test]
fn a_map_ten_times_its_memory_works() {
    for_each_seed(4, |seed| {
        let mut rng = SeededRng::new(seed);
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(16 << 20));
        format(&device);
        let map_memory = Some([0, 4 << 10][seed as usize % 2]);
        let chunk_cache = [0, 64 << 10][seed as usize / 2 % 2];
        let options = Options { map_memory, chunk_cache, background: seed % 4 < 2, ..Options::default() };
        let reopen = || Ftl::open(device.clone(), options.clone()).unwrap();
        let mut ftl = reopen();
        let mut model = Model::new(24_000);
        let sectors = model.sectors();
        let (mut faults, mut evictions) = (0, 0);
        for round in 0..6_000 {
            let lba = rng.below(sectors - 40);
            let batch = match rng.below(100) {
                0 => vec![Change::Trim(lba, 1 + rng.below(39))],
                1 => {
                    let lba = rng.below(sectors - 4000);
                    vec![Change::Trim(lba, rng.below(4000))]
                }
                _ => vec![
                    Change::Write(lba, payload(&mut rng, 2)),
                    Change::Write(rng.below(sectors), vec![7; 512]),
                ],
            };
            let batch = if seed % 4 > 1 { encode(batch) } else { batch };
            ftl.write_batch(&ops(&batch), stream(&mut rng)).unwrap();
            model.apply(&batch);
            model.assert_read(&ftl, lba, 1 + rng.below(39));
            if rng.chance(2) {
                assert_runs_agree(&ftl, lba..sectors.min(lba + 4000), rng.below(1 << 20) as usize);
            }
            if round % 1500 == 1499 {
                if rng.chance(50) {
                    ftl.close().unwrap();
                } else {
                    ftl.flush().unwrap();
                }
                let stats = ftl.stats();
                faults += stats.map_faults;
                evictions += stats.map_evictions;
                drop(ftl);
                ftl = reopen();
            } else if rng.chance(1) {
                ftl.step(Work::Gc).unwrap();
            }
        }
        assert!(faults > 500 && evictions > 500, "{faults} faults, {evictions} evictions");
        assert!(ftl.stats().extents > 1_000, "{}", ftl.stats().extents);
        model.assert_same(&ftl);
        assert_counts_agree(&ftl, sectors);
        assert_sound(&ftl);
    });
}

#[test]
fn zero_tails_are_kept_when_asked_to() {
    let device = mem(4 << 20);
    let ftl = Ftl::open(device, Options { elide_zero_tails: false, ..Options::default() }).unwrap();
    ftl.write_batch(&[Op::Write { lba: Lba(0), data: &[0; 16384] }], Stream::Data).unwrap();
    assert_eq!(ftl.allocated(Lba(0)..Lba(32)).unwrap(), 16384);
    assert_eq!(ftl.mapped(Lba(0)..Lba(100)).unwrap(), Some(Lba(0)..Lba(32)));
}

#[test]
fn a_page_takes_the_room_of_its_bytes() {
    let device = mem(4 << 20);
    let ftl = open(&device);
    let mut page = [0; 16384];
    page[..5003].fill(7);
    ftl.write_batch(&[Op::Write { lba: Lba(64), data: &page }], Stream::Data).unwrap();
    assert_eq!(ftl.allocated(Lba(0)..Lba(1000)).unwrap(), 5008);
    assert_eq!(ftl.mapped(Lba(0)..Lba(1000)).unwrap(), Some(Lba(64)..Lba(74)));
    assert!(
        !ftl.is_mapped(Lba(63)).unwrap()
            && ftl.is_mapped(Lba(64)).unwrap()
            && !ftl.is_mapped(Lba(74)).unwrap()
    );
    ftl.write_batch(&[Op::Trim { lba: Lba(0), sectors: 1 << 40 }], Stream::Data).unwrap();
    assert_eq!(ftl.allocated(Lba(0)..Lba(1000)).unwrap(), 0);
}

#[test]
fn a_small_durable_append_costs_one_sector_more() {
    let device = mem(8 << 20);
    let ftl = open(&device);
    ftl.write_batch(&[Op::Write { lba: Lba(0), data: &[1; 4096] }], Stream::Log).unwrap();
    ftl.flush().unwrap();
    let before = device.stats().written_bytes;
    for page in 1..9 {
        ftl.write_batch(&[Op::Write { lba: Lba(page * 8), data: &[1; 4096] }], Stream::Log).unwrap();
        ftl.flush().unwrap();
    }
    assert_eq!(device.stats().written_bytes - before, 8 * 4608);
}

#[test]
fn traffic_is_told_by_stream() {
    let ftl = open(&mem(4 << 20));
    let page = [7; 4096];
    let write = |lba: u64, stream| {
        ftl.write_batch(&[Op::Write { lba: Lba(lba), data: &page }], stream).unwrap();
    };
    write(0, Stream::Data);
    write(0, Stream::Data);
    write(8, Stream::Log);
    ftl.flush().unwrap();
    let stats = ftl.stats();
    let (data, log) = (stats.data_stream, stats.log_stream);
    assert_eq!((data.batches, data.host_bytes), (2, 8192));
    assert_eq!((log.batches, log.host_bytes), (1, 4096));
    assert!(data.written_bytes > 8192 && log.written_bytes > 4096, "headers are counted: {stats:?}");
    assert_eq!((stats.batches, stats.host_bytes), (3, 12288));
    assert_eq!(stats.log_bytes, data.written_bytes + log.written_bytes);
}

#[test]
fn batches_span_segments() {
    let device = mem(16 << 20);
    let ftl = open(&device);
    let mut rng = SeededRng::new(1);
    let mut model = Model::new(5000);
    let mut data = vec![0; 1 << 20];
    rng.fill(&mut data);
    let batch = [Change::Write(100, data), Change::Trim(200, 7)];
    ftl.write_batch(&ops(&batch), Stream::Data).unwrap();
    model.apply(&batch);
    model.assert_same(&ftl);
    ftl.flush().unwrap();
    drop(ftl);
    let ftl = open(&device);
    assert_eq!(ftl.stats().replayed_batches, 1);
    model.assert_same(&ftl);
    assert_sound(&ftl);
    let too_large = vec![1; ftl.batch_bytes_max() as usize];
    let refused = ftl.write_batch(&[Op::Write { lba: Lba(0), data: &too_large }], Stream::Data);
    assert!(matches!(refused, Err(Error::BatchTooLarge { .. })));
}

/// On average, including the leaves that random overwrites leave partly full.
#[test]
fn a_map_takes_at_most_40_bytes_for_an_extent() {
    const EXTENTS: u64 = 100_000;
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(256 << 20));
    Ftl::format(device.clone(), &FormatOptions::default()).unwrap();
    let ftl = open(&device);
    let mut rng = SeededRng::new(11);
    let mut write = |mut numbers: Vec<u64>| {
        numbers.sort_unstable();
        numbers.dedup();
        let mut sector = vec![1; SECTOR];
        rng.fill(&mut sector[..8]);
        let batch: Vec<_> =
            numbers.into_iter().map(|number| Change::Write(number * 2, sector.clone())).collect();
        ftl.write_batch(&ops(&batch), Stream::Data).unwrap();
    };
    for first in (0..EXTENTS).step_by(100) {
        write((first..first + 100).collect());
    }
    let mut numbers = SeededRng::new(12);
    for _ in 0..EXTENTS / 10 {
        write((0..20).map(|_| numbers.below(EXTENTS)).collect());
    }
    let stats = ftl.stats();
    assert_eq!(stats.extents, EXTENTS);
    let each = stats.map_memory_bytes as f64 / stats.extents as f64;
    assert!(each <= 40.0, "{each:.1} bytes each of {} extents", stats.extents);
}

#[test]
fn a_store_is_overwritten_for_ever() {
    let device = mem(8 << 20);
    let ftl = open(&device);
    let mut rng = SeededRng::new(7);
    let page = 16384;
    // Pages of about 5 KB, as many as fill 80% of the limit of live data.
    let stored = 5008 + 112;
    let pages = ftl.stats().live_limit_bytes * 8 / 10 / stored;
    let mut model = Model::new(pages * 32);
    let mut host_bytes = 0;
    let write = |rng: &mut SeededRng, model: &mut Model, number: u64| {
        let mut data = vec![0; page];
        rng.fill(&mut data[..5008]);
        let batch = [Change::Write(number * 32, data)];
        ftl.write_batch(&ops(&batch), stream(rng)).unwrap();
        model.apply(&batch);
    };
    for number in 0..pages {
        write(&mut rng, &mut model, number);
    }
    while host_bytes < 12 * (8 << 20) {
        let number = rng.below(pages);
        write(&mut rng, &mut model, number);
        host_bytes += 5008;
        if rng.chance(2) {
            ftl.flush().unwrap();
        }
    }
    model.assert_same(&ftl);
    assert_sound(&ftl);
    let stats = ftl.stats();
    assert!(stats.gc_segments > 0 && stats.checkpoints > 1, "{stats:?}");
    drop(ftl);
    let ftl = open(&device);
    assert_sound(&ftl);
}

/// Fills a store with single pages until it is full; returns how many fit.
fn fill(ftl: &Ftl, rng: &mut SeededRng, model: &mut Model) -> u64 {
    for number in 0.. {
        let batch = [Change::Write(number * 32, {
            let mut data = vec![0; 16384];
            rng.fill(&mut data);
            data
        })];
        match ftl.write_batch(&ops(&batch), Stream::Data) {
            Ok(_) => model.apply(&batch),
            Err(Error::Full { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

#[test]
fn a_full_store_still_takes_overwrites_and_trims() {
    let device = mem(4 << 20);
    let ftl = open(&device);
    let mut rng = SeededRng::new(3);
    let mut model = Model::new(8192);
    let pages = fill(&ftl, &mut rng, &mut model);
    assert!(pages > 30, "{pages}");
    for round in 0..10 * pages {
        let mut data = vec![0; 16384];
        rng.fill(&mut data);
        let batch = [Change::Write(rng.below(pages) * 32, data)];
        ftl.write_batch(&ops(&batch), Stream::Data).unwrap_or_else(|error| panic!("round {round}: {error}"));
        model.apply(&batch);
    }
    model.assert_same(&ftl);
    let more = [Change::Write(8000, vec![1; 16384])];
    assert!(matches!(ftl.write_batch(&ops(&more), Stream::Data), Err(Error::Full { .. })));
    let trims = [Change::Trim(3 * 32, 64)];
    ftl.write_batch(&ops(&trims), Stream::Data).unwrap();
    model.apply(&trims);
    ftl.write_batch(&ops(&more), Stream::Data).unwrap();
    model.apply(&more);
    model.assert_same(&ftl);
    assert_sound(&ftl);
    drop(ftl);
    let ftl = open(&device);
    assert_sound(&ftl);
}

#[test]
fn a_full_store_takes_overwrites_that_split_extents() {
    let device = mem(4 << 20);
    let ftl = open(&device);
    let mut rng = SeededRng::new(4);
    let mut model = Model::new(8192);
    let pages = fill(&ftl, &mut rng, &mut model);
    let space = ftl.stats().live_limit_bytes - ftl.stats().live_bytes;
    // Each adds two extents of 146 bytes and no data.
    for number in 0..space / 236 + 20 {
        let data = (0..4096).map(|_| 1 + rng.below(255) as u8).collect();
        let batch = [Change::Write(number % pages * 32 + 8 * (1 + number / pages), data)];
        ftl.write_batch(&ops(&batch), Stream::Data).unwrap();
        model.apply(&batch);
    }
    assert!(ftl.stats().live_bytes > ftl.stats().live_limit_bytes);
    model.assert_same(&ftl);
    assert_sound(&ftl);
}

#[test]
fn tiny_extents_fill_a_store_and_leave_again() {
    let device = mem(4 << 20);
    let ftl = open(&device);
    let mut rng = SeededRng::new(5);
    let mut written = 0_u64;
    let full = loop {
        let data: Vec<u8> = payload(&mut rng, 64).iter().map(|byte| byte | 1).collect();
        let ops: Vec<_> = data
            .chunks(SECTOR)
            .enumerate()
            .map(|(sector, data)| Op::Write { lba: Lba((written + sector as u64) * 2), data })
            .collect();
        match ftl.write_batch(&ops, Stream::Data) {
            Ok(_) => written += ops.len() as u64,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full { .. }), "{full}");
    // One trim per extent; each is a record of its own, so the log wraps meanwhile.
    for sector in 0..written {
        ftl.write_batch(&[Op::Trim { lba: Lba(sector * 2), sectors: 1 }], Stream::Log).unwrap();
        if sector % 8 == 0 {
            ftl.flush().unwrap();
        }
    }
    assert_eq!(ftl.stats().extents, 0);
    assert_sound(&ftl);
    let mut model = Model::new(8192);
    assert!(fill(&ftl, &mut rng, &mut model) > 30);
    assert_sound(&ftl);
}
