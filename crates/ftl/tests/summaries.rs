//! Summaries of sealed segments: the reads that they save; that a lost or damaged summary does no harm, and that check
//! finds it. Also the other reads of recovery.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::harness::{self, Model, SEGMENT_BYTES, assert_sound, changes, format, ops};
use lacuna_device::{AlignedBuf, BlockDevice, MemDevice};
use lacuna_ftl::{CheckDepth, FormatOptions, Ftl, Lba, Op, Options, Stream, Work};
use lacuna_sim::{BeforeReads, SeededRng, SimDevice, for_each_seed, unreadable};

const PAGE: u64 = 32;

fn write_page(ftl: &Ftl, page: u64, value: u8) {
    let op = Op::Write { lba: Lba(page * PAGE), data: &[value; 16384] };
    ftl.write_batch(&[op], Stream::Data).unwrap();
}

fn read_bytes(device: &Arc<dyn BlockDevice>) -> u64 {
    device.stats().read_bytes
}

/// A store with segments of 1 MiB.
fn large() -> (Arc<dyn BlockDevice>, Ftl) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    let ftl = large_on(&device, 0);
    (device, ftl)
}

fn large_on(device: &Arc<dyn BlockDevice>, summary_memory: u64) -> Ftl {
    let options = FormatOptions { segment_bytes: Some(1 << 20), force: true, ..FormatOptions::default() };
    Ftl::format(device.clone(), &options).unwrap();
    Ftl::open(device.clone(), Options { summary_memory, ..Options::default() }).unwrap()
}

/// Collection reads the extents that it moves, and little else.
#[test]
fn collection_reads_what_is_live() {
    let (device, ftl) = large();
    (0..1000).for_each(|page| write_page(&ftl, page, 1));
    // Every fourth page stays.
    for page in (0..1000).filter(|page| page % 4 != 0) {
        ftl.write_batch(&[Op::Trim { lba: Lba(page * PAGE), sectors: PAGE }], Stream::Data).unwrap();
    }
    ftl.checkpoint().unwrap();
    let (before, read_before) = (ftl.stats(), read_bytes(&device));
    while ftl.stats().gc_segments < before.gc_segments + 8 {
        assert!(ftl.step(Work::Gc).unwrap());
    }
    let moved = ftl.stats().gc_bytes - before.gc_bytes;
    let read = read_bytes(&device) - read_before;
    // Blocks around each page, and a summary of a block or two for each segment.
    assert!(moved > 1 << 20 && read < moved + moved / 4, "{read} bytes read to move {moved}");
    for page in 0..1000 {
        let mut buf = [9; 16384];
        ftl.read(Lba(page * PAGE), &mut buf).unwrap();
        assert_eq!(buf, [u8::from(page % 4 == 0); 16384]);
    }
    assert_sound(&ftl);
}

/// Sparse segments are read several at a time, and only once.
#[test]
fn collection_reads_sparse_segments_together() {
    assert_eq!(rounds_of_reads(0), 2, "summaries, then what is live");
}

/// Where the summaries are in memory, finding the live extents needs no reads.
#[test]
fn collection_reads_no_summaries_that_are_kept() {
    assert_eq!(rounds_of_reads(1 << 20), 1, "what is live");
}

/// How often collection of sparse segments waits for reads.
fn rounds_of_reads(summary_memory: u64) -> u64 {
    let rounds = Arc::new(AtomicU64::new(0));
    let count = {
        let rounds = rounds.clone();
        move |_: &[Range<u64>]| {
            rounds.fetch_add(1, Relaxed);
            Ok(())
        }
    };
    let device: Arc<dyn BlockDevice> = BeforeReads::new(Arc::new(MemDevice::new(64 << 20)), count);
    let ftl = large_on(&device, summary_memory);
    (0..1000).for_each(|page| write_page(&ftl, page, 1));
    for page in (0..1000).filter(|page| page % 16 != 0) {
        ftl.write_batch(&[Op::Trim { lba: Lba(page * PAGE), sectors: PAGE }], Stream::Data).unwrap();
    }
    ftl.checkpoint().unwrap();
    let (before, read_before) = (ftl.stats(), read_bytes(&device));
    rounds.store(0, Relaxed);
    while ftl.stats().gc_segments < before.gc_segments + 8 {
        assert!(ftl.step(Work::Gc).unwrap());
    }
    let moved = ftl.stats().gc_bytes - before.gc_bytes;
    let read = read_bytes(&device) - read_before;
    let rounds = rounds.load(Relaxed);
    assert!(read < 8 * (16384 + 5 * 20_480), "{read} bytes read to move {moved}");
    for page in (0..1000).step_by(16) {
        let mut buf = [9; 16384];
        ftl.read(Lba(page * PAGE), &mut buf).unwrap();
        assert_eq!(buf, [1; 16384]);
    }
    assert_sound(&ftl);
    rounds
}

/// Recovery reads the summaries of flushed segments, not the log.
#[test]
fn recovery_reads_summaries() {
    let (device, ftl) = large();
    ftl.checkpoint().unwrap();
    (0..1000).for_each(|page| write_page(&ftl, page, 1));
    ftl.flush().unwrap();
    write_page(&ftl, 0, 2);
    ftl.flush().unwrap();
    drop(ftl);
    let before = read_bytes(&device);
    let ftl = Ftl::open(device.clone(), Options::default()).unwrap();
    assert_eq!(ftl.stats().replayed_batches, 1001);
    let read = read_bytes(&device) - before;
    // The two segments that were open are scanned, and searched for marks behind the end.
    assert!(read < 6 << 20, "{read} bytes read to replay 16 MB of log");
    assert_sound(&ftl);
}

/// Leaves that the log changes are read together, not one by one as replay reaches them.
#[test]
fn recovery_reads_leaves_together() {
    let (device, ftl) = large();
    for first in (0..40_000).step_by(2000) {
        let lbas = (first..first + 2000).map(|number| Lba(number * 2));
        let ops: Vec<_> = lbas.map(|lba| Op::Write { lba, data: &[1; 512] }).collect();
        ftl.write_batch(&ops, Stream::Data).unwrap();
    }
    ftl.checkpoint().unwrap();
    for number in 0..2000 {
        let op = Op::Write { lba: Lba(number * 7919 % 40_000 * 2), data: &[2; 512] };
        ftl.write_batch(&[op], Stream::Data).unwrap();
    }
    ftl.flush().unwrap();
    drop(ftl);
    let before = device.stats().reads;
    let ftl = Ftl::open(device.clone(), Options::default()).unwrap();
    assert_eq!(ftl.stats().replayed_batches, 2000);
    let (reads, leaves) = (device.stats().reads - before, ftl.stats().map_leaves_resident);
    // Starts of segments, and a few for all leaves.
    assert!(leaves > 300 && reads < 200, "{reads} reads for {leaves} leaves");
    assert_sound(&ftl);
}

/// The last blocks of segments of 1 MiB that have a summary.
fn summaries(device: &dyn BlockDevice) -> Vec<Range<u64>> {
    let mut last = AlignedBuf::zeroed(512);
    let mut is_summary = |end: &u64| {
        device.read_at(end - 512, &mut last).unwrap();
        &last[448..452] == b"LFOP"
    };
    (2..=64).map(|number| number << 20).filter(&mut is_summary).map(|end| end - 512..end).collect()
}

/// After a crash: a summary that was durable before cannot be one that the crash tore.
#[test]
fn damage_to_a_durable_summary_is_told_from_a_cut() {
    let read_only = || Options { read_only: true, ..Options::default() };
    let (device, ftl) = large();
    ftl.checkpoint().unwrap();
    for page in 0..1000 {
        write_page(&ftl, page, 1);
        if page % 100 == 99 {
            ftl.flush().unwrap();
        }
    }
    drop(ftl);
    let summaries = summaries(&*device);
    assert!(summaries.len() > 10, "{} summaries", summaries.len());
    assert_sound(&Ftl::open(device.clone(), read_only()).unwrap());
    for (number, bytes) in summaries.iter().enumerate() {
        let mut block = AlignedBuf::zeroed(512);
        device.read_at(bytes.start, &mut block).unwrap();
        let sound = block.to_vec();
        // In the copies or in the magic number.
        block[if number % 2 == 0 { 440 } else { 448 }] ^= 1;
        device.write_at(bytes.start, &block).unwrap();
        let ftl = Ftl::open(device.clone(), read_only()).unwrap();
        let findings = ftl.check(CheckDepth::Payload).unwrap().findings;
        let place = format!("at byte {}: ", bytes.end);
        // Only the last flush covers the last summaries, and no record carries its mark yet.
        assert!(findings.len() == 1 || number + 8 > summaries.len(), "summary {number}: {findings:?}");
        assert!(findings.iter().all(|found| found.message.contains(&place)), "{findings:?}");
        device.write_at(bytes.start, &sound).unwrap();
    }
}

/// A cut lost the block in which one record lies, and spared the record behind it and the summary that lists both.
/// Nothing of that is damage, wherever in its block a record ends.
#[test]
fn records_that_a_cut_took_from_between_others_are_no_damage() {
    const TRIMMED: u64 = 0x5ca1_ab1e_0000;
    // A trim at this many sectors, times two, in seven bits each: as docs/FORMAT.md says.
    const NUMBER: u64 = 2 * TRIMMED;
    let byte = |index: u32| (NUMBER >> (7 * index)) as u8 & 0x7f | if index < 6 { 0x80 } else { 0 };
    let entry: Vec<u8> = [2].into_iter().chain((0..7).map(byte)).collect();
    assert_eq!(NUMBER.next_power_of_two().ilog2(), 48, "seven bytes");
    for stored in (512..1536).step_by(16) {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(4 << 20));
        format(&device);
        let open = |read_only| {
            let options = Options { background: false, read_only, ..Options::default() };
            Ftl::open(device.clone(), options).unwrap()
        };
        let ftl = open(false);
        ftl.checkpoint().unwrap();
        let mut data = [0; 1536];
        data[..stored].fill(1);
        ftl.write_batch(&[Op::Write { lba: Lba(0), data: &data }], Stream::Data).unwrap();
        ftl.write_batch(&[Op::Trim { lba: Lba(TRIMMED), sectors: 1 }], Stream::Data).unwrap();
        (1..9).for_each(|page| write_page(&ftl, page, 1));
        drop(ftl);
        let mut block = AlignedBuf::zeroed(512);
        let mut holds_it = |at: &u64| {
            device.read_at(*at, &mut block).unwrap();
            block.windows(8).any(|bytes| bytes == entry)
        };
        let taken = (0..4 << 20).step_by(512).find(&mut holds_it).expect("the batch is in the log");
        device.write_at(taken, &[0; 512]).unwrap();
        let ftl = open(true);
        assert!(ftl.stats().replayed_batches <= 1, "what is behind the block that is gone is void");
        assert_sound(&ftl);
    }
}

/// An unreadable summary is treated as absent: recovery scans for the records that it lists.
#[test]
fn an_unreadable_summary_does_no_harm() {
    let (device, ftl) = large();
    ftl.checkpoint().unwrap();
    (0..1000).for_each(|page| write_page(&ftl, page, (page % 251) as u8));
    ftl.flush().unwrap();
    drop(ftl);
    let bytes = summaries(&*device);
    assert!(bytes.len() > 10, "{} summaries", bytes.len());
    let device = unreadable(device, bytes);
    let ftl = Ftl::open(device, Options { read_only: true, ..Options::default() }).unwrap();
    assert_eq!(ftl.stats().replayed_batches, 1000);
    for page in 0..1000 {
        let mut buf = [9; 16384];
        ftl.read(Lba(page * PAGE), &mut buf).unwrap();
        assert_eq!(buf, [(page % 251) as u8; 16384]);
    }
}

/// Nor does collection need a summary: extents that it cannot find from records, it looks up in the map.
#[test]
fn a_victim_with_an_unreadable_summary_is_collected() {
    let (device, ftl) = large();
    (0..1000).for_each(|page| write_page(&ftl, page, (page % 251) as u8));
    ftl.flush().unwrap();
    ftl.close().unwrap();
    let bytes = summaries(&*device);
    let device = unreadable(device, bytes);
    let ftl = Ftl::open(device, Options { background: false, ..Options::default() }).unwrap();
    (0..1000).step_by(2).for_each(|page| write_page(&ftl, page, 7));
    while ftl.step(Work::Gc).unwrap() {}
    assert!(ftl.stats().gc_segments > 4, "{:?}", ftl.stats());
    for page in 0..1000 {
        let mut buf = [9; 16384];
        ftl.read(Lba(page * PAGE), &mut buf).unwrap();
        assert_eq!(buf, [if page % 2 == 0 { 7 } else { (page % 251) as u8 }; 16384]);
    }
}

fn small(seed: u64) -> (Arc<SimDevice>, Arc<dyn BlockDevice>, Ftl, Model, SeededRng) {
    let device = SimDevice::new(4 << 20, seed);
    let shared: Arc<dyn BlockDevice> = device.clone();
    format(&shared);
    // Collection reads summaries, as of segments that were sealed before the store was opened.
    let ftl = Ftl::open(shared.clone(), Options { summary_memory: 0, ..Options::default() }).unwrap();
    (device, shared, ftl, Model::new(1600), SeededRng::new(seed))
}

fn write_some(ftl: &Ftl, model: &mut Model, rng: &mut SeededRng, batches: u64) {
    for _ in 0..batches {
        let changes = changes(rng, model.sectors());
        ftl.write_batch(&ops(&changes), Stream::Data).unwrap();
        model.apply(&changes);
    }
}

/// A flip of any bit of any summary: check finds it while the store is open; collection and recovery get the same
/// result without the summary.
#[test]
fn a_damaged_summary_is_found_and_does_no_harm() {
    for_each_seed(30, |seed| {
        let (device, shared, ftl, mut model, mut rng) = small(seed);
        write_some(&ftl, &mut model, &mut rng, 60);
        ftl.flush().unwrap();
        assert_sound(&ftl);
        let mut summaries = 0;
        for segment in 1..shared.geometry().capacity_bytes / u64::from(SEGMENT_BYTES) {
            let trailer = (segment + 1) * u64::from(SEGMENT_BYTES) - 64;
            let mut block = AlignedBuf::zeroed(512);
            shared.read_at(trailer + 64 - 512, &mut block).unwrap();
            if &block[448..452] == b"LFOP" {
                let back = if seed % 2 == 0 { 0 } else { rng.below(64) };
                device.flip_bit(trailer + rng.below(36) - back, rng.below(8) as u8);
                summaries += 1;
            }
        }
        assert!(summaries > 4, "{summaries} summaries");
        let findings = ftl.check(CheckDepth::Payload).unwrap().findings;
        let named = findings.iter().filter(|finding| finding.message.contains("summary"));
        assert!(named.count() > 0, "{findings:?}");
        assert!(findings.len() <= summaries);

        if seed % 3 == 0 {
            // Collection falls back to a scan.
            let before = ftl.stats().gc_segments;
            while ftl.step(Work::Gc).unwrap() {}
            assert!(ftl.stats().gc_segments > before);
            model.assert_same(&ftl);
        } else {
            // So does recovery.
            drop(ftl);
            let ftl = harness::open(&shared);
            assert!(ftl.stats().replayed_batches > 0);
            model.assert_same(&ftl);
            assert_sound(&ftl);
        }
    });
}
