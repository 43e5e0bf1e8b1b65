//! Any single unreadable block: either the store opens, only the data in that block is lost, and reading it is an
//! error; or the store refuses to open and names the place. `check` finds what reads find.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use crate::harness::{
    self, SEGMENT_BYTES, flips,
    flips::{BYTES, SECTORS},
    history::{Found, History, Salvages, first_wrong, has_errors},
};
use lacuna_device::{BlockDevice, Error as DeviceError};
use lacuna_ftl::{CheckDepth, Error, Ftl, Lba, Op, Options, SECTOR, Stream, Work};
use lacuna_sim::{BeforeReads, SeededRng, SimDevice, for_each_seed, unreadable};

const CASES: u64 = 6;
/// Blocks of each case beside the starts of all segments.
const BLOCKS: u64 = 100;

/// Outcomes.
#[derive(Debug, Default)]
struct Outcome {
    refused: u64,
    opened: u64,
    with_errors: u64,
    salvages: Salvages,
    /// Of `opened`, those whose segment is out of use.
    out_of_use: u64,
    /// Those of them that lack batches that only the very last flush covered.
    last_flush_lost: u64,
}

/// On some devices the first records of a segment lie in the block of its header.
fn block_bytes(seed: u64) -> u32 {
    if seed.is_multiple_of(2) { 4096 } else { 512 }
}

fn open(device: &Arc<dyn BlockDevice>, at: u64) -> Option<Ftl> {
    match Ftl::open(device.clone(), Options::default()) {
        Ok(ftl) => Some(ftl),
        Err(Error::Corrupt { at: found, reason, .. }) => {
            assert_eq!(found, at, "{reason}");
            None
        }
        Err(Error::Device(error)) => {
            assert!(error.to_string().contains(&format!("at byte {at}")), "{error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn read_all(ftl: &Ftl, at: u64) -> Found {
    let read = |lba| {
        let mut sector = [0xee; SECTOR];
        match ftl.read(Lba(lba), &mut sector) {
            Ok(()) => Some(sector),
            Err(Error::Device(error)) => {
                assert!(error.to_string().contains(&format!("at byte {at}")), "{error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    };
    (0..SECTORS).map(read).collect()
}

/// Whether `check` says that the segment at `at` is out of use. Only if blocks are so large that the first one of a
/// segment `holds_records`, that block may have held everything that the very last flush covered.
fn judge(ftl: &Ftl, at: u64, holds_records: bool, history: &History, outcome: &mut Outcome) -> bool {
    let found = read_all(ftl, at);
    let report = ftl.check(CheckDepth::Payload).expect("it can look");
    let named = format!("segment {} at byte {at}: its start", at / u64::from(SEGMENT_BYTES));
    let is_out_of_use = report.findings.iter().any(|finding| finding.message.contains(&named));
    if first_wrong(&found, &history.model).is_some() {
        assert!(is_out_of_use && holds_records && history.is_late_prefix(&found), "block {at}");
        outcome.last_flush_lost += 1;
    }
    assert!(!has_errors(&found) || !report.is_clean(), "block {at}: check finds what reads find");
    outcome.opened += 1;
    outcome.with_errors += u64::from(has_errors(&found));
    outcome.out_of_use += u64::from(is_out_of_use);
    is_out_of_use
}

fn case(seed: u64, outcome: &mut Outcome) {
    let block = u64::from(block_bytes(seed));
    let (device, mut history) = flips::store(seed, block as u32);
    let mut rng = SeededRng::new(seed);
    let starts = (1..BYTES / u64::from(SEGMENT_BYTES)).map(|segment| segment * u64::from(SEGMENT_BYTES));
    let others: Vec<u64> = (0..BLOCKS).map(|_| rng.below(BYTES / block) * block).collect();
    for at in starts.chain(others) {
        let lost = std::iter::once(at..at + block).collect();
        let device = unreadable(device.fork(rng.next_u64()), lost);
        let is_sound = outcome.salvages.judge(&device, &history, &format!("block {at}"));
        let ftl = open(&device, at);
        assert_eq!(is_sound, ftl.is_some(), "block {at}");
        let Some(ftl) = ftl else {
            outcome.refused += 1;
            continue;
        };
        if !judge(&ftl, at, block > 512, &history, outcome) {
            continue;
        }
        // It stays out of use, and known, when the map no longer leads to it.
        let model = history.model.clone();
        for lba in (0..SECTORS).step_by(8) {
            let data = [lba as u8 | 1; 4096];
            ftl.write_batch(&[Op::Write { lba: Lba(lba), data: &data }], Stream::Data).unwrap();
            history.model.apply(&[harness::Change::Write(lba, data.to_vec())]);
            ftl.step(Work::Gc).unwrap();
        }
        ftl.flush().unwrap();
        for _ in 0..2 {
            drop(open(&device, at).expect("it was known"));
        }
        let ftl = open(&device, at).expect("it was known");
        assert!(judge(&ftl, at, false, &history, outcome), "still out of use");
        history.model = model;
    }
}

#[test]
fn any_block_that_cannot_be_read_is_named() {
    let mut outcome = Outcome::default();
    let mut cases = 0;
    for_each_seed(CASES, |seed| {
        case(seed, &mut outcome);
        cases += 1;
    });
    eprintln!("{outcome:?}");
    if cases >= CASES {
        assert!(outcome.out_of_use > 250 && outcome.with_errors > 5 && outcome.refused > 0, "{outcome:?}");
        assert!(outcome.salvages.salvaged > 0 && outcome.salvages.newest > 0, "{outcome:?}");
        assert_eq!(outcome.salvages.hopeless, 0, "{outcome:?}");
    }
}

/// An unreadable segment, not just its first block: without other evidence, it is not assumed to be free. (Seen to fail
/// when a segment with unreadable blocks behind the first one is.)
#[test]
fn any_segment_that_cannot_be_read_is_missed_or_not_needed() {
    let (mut refused, mut opened, mut cases) = (0, 0, 0);
    let mut salvages = Salvages::default();
    for_each_seed(CASES, |seed| {
        cases += 1;
        let (device, history) = flips::store(seed, block_bytes(seed));
        for segment in 1..BYTES / u64::from(SEGMENT_BYTES) {
            let start = segment * u64::from(SEGMENT_BYTES);
            let lost = std::iter::once(start..start + u64::from(SEGMENT_BYTES)).collect();
            let device = unreadable(device.fork(segment), lost);
            let is_sound = salvages.judge(&device, &history, &format!("segment {segment}"));
            let ftl = Ftl::open(device, Options::default());
            assert_eq!(is_sound, ftl.is_ok(), "segment {segment}");
            let Ok(ftl) = ftl else {
                refused += 1;
                continue;
            };
            opened += 1;
            let read = |lba| {
                let mut sector = [0; SECTOR];
                ftl.read(Lba(lba), &mut sector).ok().map(|()| sector)
            };
            let found: Found = (0..SECTORS).map(read).collect();
            assert_eq!(first_wrong(&found, &history.model), None, "segment {segment}");
        }
    });
    eprintln!("{refused} refused, {opened} opened, {salvages:?}");
    assert!((refused > 0 && opened > 0) || cases < CASES, "{refused} refused, {opened} opened");
    assert_eq!(salvages.hopeless, 0, "{salvages:?}");
}

/// The cut itself may be why a block cannot be read. If it held nothing flushed, it must not keep the store from
/// opening; in any case, only batches that the very last flush covered, and later ones, are lost.
#[test]
fn a_block_that_a_cut_left_unreadable_costs_the_last_flush_at_most() {
    let (mut refused, mut opened, mut cases) = (0, 0, 0);
    for_each_seed(CASES, |seed| {
        cases += 1;
        let block = block_bytes(seed);
        let (device, history) = flips::cut_store(seed, block);
        for start in (1..BYTES / u64::from(SEGMENT_BYTES)).map(|segment| segment * u64::from(SEGMENT_BYTES)) {
            let lost = std::iter::once(start..start + u64::from(block)).collect();
            let Some(ftl) = open(&unreadable(device.fork(start), lost), start) else {
                refused += 1;
                continue;
            };
            opened += 1;
            assert!(history.is_late_prefix(&read_all(&ftl, start)), "segment at byte {start}");
        }
    });
    eprintln!("{refused} refused, {opened} opened");
    assert!((refused > 0 && opened > 100) || cases < CASES, "{refused} refused, {opened} opened");
}

/// The batches that [`lost_first_block`] writes after the first flush.
enum Behind {
    Nothing,
    /// A batch elsewhere.
    Another,
    /// A batch in the same segment.
    InSegment,
}

/// Opens a store on blocks of 4 KiB whose last segment has lost its first block, and with that a flushed batch.
fn lost_first_block(behind: Behind) -> lacuna_ftl::Result<Ftl> {
    const CAPACITY: u64 = 4 << 20;
    let device = SimDevice::with_block_bytes(CAPACITY, 4096, 1);
    let shared: Arc<dyn BlockDevice> = device.clone();
    harness::format(&shared);
    let ftl = harness::open(&shared);
    let write = |lba, value, stream| {
        ftl.write_batch(&[Op::Write { lba: Lba(lba), data: &[value; SECTOR] }], stream).unwrap();
    };
    write(0, 1, Stream::Data);
    ftl.checkpoint().unwrap();
    // The log stream has no segment yet: this batch opens one.
    write(0, 2, Stream::Log);
    ftl.flush().unwrap();
    match behind {
        Behind::Nothing => {}
        Behind::Another => write(9, 3, Stream::Data),
        Behind::InSegment => write(9, 3, Stream::Log),
    }
    ftl.flush().unwrap();
    drop(ftl);
    let mut image = vec![0; CAPACITY as usize];
    device.read_at(0, &mut image).unwrap();
    // The segments of the log: FORMAT.md.
    let is_log = |at: &usize| image[*at..].starts_with(b"LSEG") && image[*at + 10] == 2;
    let starts: Vec<_> = (0..image.len()).step_by(SEGMENT_BYTES as usize).filter(is_log).collect();
    assert_eq!(starts.len(), 1, "{starts:?}");
    let start = starts[0] as u64;
    assert!(image[starts[0] + 512..].starts_with(b"LREC"), "its first record lies in the same block");
    let lost = std::iter::once(start..start + 4096).collect();
    Ftl::open(unreadable(shared, lost), Options::default())
}

/// A segment that seems free held a flushed batch: recovery detects the loss as soon as any record follows.
#[test]
fn a_lost_first_block_is_missed_once_anything_follows_its_flush() {
    for behind in [Behind::Another, Behind::InSegment] {
        let Err(Error::Corrupt { what, reason, .. }) = lost_first_block(behind) else { panic!("opened") };
        assert!(what.contains("segment header") && reason.contains("cannot be read"), "{what}: {reason}");
    }
    let ftl = lost_first_block(Behind::Nothing).unwrap();
    let mut sector = [0; SECTOR];
    ftl.read(Lba(0), &mut sector).unwrap();
    assert_eq!(sector, [1; SECTOR], "as before the very last flush");
    let findings = ftl.check(CheckDepth::Payload).unwrap().findings;
    assert!(findings.iter().any(|found| found.message.contains("its start cannot be read")), "{findings:?}");
}

/// Without a retained summary, replay lacks the records of a segment that is itself intact: here one that was open at
/// the checkpoint and used again since. The error names the segment that holds the retained summary.
#[test]
fn a_lost_segment_of_retained_summaries_is_named_itself() {
    case(1002, &mut Outcome::default());
}

/// A checkpoint rewrites leaves of the map that lie in sparse segments. Leaves that cannot be read stay where they are:
/// a bad block among them must not make all checkpoints fail.
#[test]
fn leaves_that_cannot_be_read_keep_no_checkpoint_from_being_written() {
    const EXTENTS: u64 = 40_000;
    /// A region with this many extents, of which one or two leaves are not changed any more.
    const REGION: u64 = 5_000;
    let fails = Arc::new(AtomicBool::new(false));
    let may_be_read = {
        let fails = Arc::clone(&fails);
        move |_: &[Range<u64>]| match fails.load(SeqCst) {
            true => Err(DeviceError::io("device", std::io::Error::other("unreadable for now"))),
            false => Ok(()),
        }
    };
    let device: Arc<dyn BlockDevice> = BeforeReads::new(SimDevice::new(64 << 20, 1), may_be_read);
    harness::format(&device);
    let write = |ftl: &Ftl, number: u64, value| {
        ftl.write_batch(&[Op::Write { lba: Lba(2 * number), data: &[value; SECTOR] }], Stream::Data).unwrap();
    };
    let is_old = |number: u64| number % REGION < 200;
    let ftl = harness::open(&device);
    (0..EXTENTS).for_each(|number| write(&ftl, number, 1));
    ftl.close().unwrap();
    drop(ftl);
    let ftl = harness::open(&device);
    (0..EXTENTS).filter(|number| !is_old(*number)).for_each(|number| write(&ftl, number, 2));
    fails.store(true, SeqCst);
    let checkpoints = [ftl.checkpoint(), ftl.checkpoint()];
    fails.store(false, SeqCst);
    checkpoints.into_iter().for_each(|written| written.unwrap());
    let assert_whole = |ftl: &Ftl| {
        harness::assert_sound(ftl);
        for number in 0..EXTENTS {
            let mut back = [0; SECTOR];
            ftl.read(Lba(2 * number), &mut back).unwrap();
            assert_eq!(back[0], if is_old(number) { 1 } else { 2 }, "extent {number}");
        }
    };
    assert_whole(&ftl);
    drop(ftl);
    assert_whole(&harness::open(&device));
}

/// A change that leaves its leaf of the map small looks for a neighbour to merge it with. Where that cannot be read, the
/// leaf stays small; the change was refused, and so was opening, if it was replayed.
#[test]
fn leaves_that_cannot_be_read_keep_no_neighbour_from_being_changed() {
    const EXTENTS: u64 = 9_000;
    const BLOCK: u64 = 4096;
    let medium = SimDevice::new(16 << 20, 1);
    let shared: Arc<dyn BlockDevice> = medium.clone();
    harness::format(&shared);
    let ftl = harness::open(&shared);
    let lba = |number| Lba(2 * number);
    let write = |ftl: &Ftl, number, value| {
        ftl.write_batch(&[Op::Write { lba: lba(number), data: &[value; SECTOR] }], Stream::Data)
    };
    (0..EXTENTS).for_each(|number| assert!(write(&ftl, number, 1).is_ok()));
    // As few are left in each leaf as may be without a merge.
    for number in (0..EXTENTS).filter(|number| number % 3 > 0) {
        ftl.write_batch(&[Op::Trim { lba: lba(number), sectors: 1 }], Stream::Data).unwrap();
    }
    ftl.close().unwrap();
    drop(ftl);
    let left = || (0..EXTENTS).step_by(3);
    let options = || Options { map_memory: Some(0), ..Options::default() };

    let reads = Arc::new(Mutex::new(BTreeSet::new()));
    let note = {
        let reads = Arc::clone(&reads);
        move |ranges: &[Range<u64>]| {
            let blocks = |range: &Range<u64>| range.start / BLOCK..range.end.div_ceil(BLOCK);
            reads.lock().unwrap().extend(ranges.iter().flat_map(blocks));
            Ok(())
        }
    };
    let ftl = Ftl::open(BeforeReads::new(medium.fork(0), note), options()).unwrap();
    reads.lock().unwrap().clear();
    left().for_each(|number| assert!(ftl.is_mapped(lba(number)).unwrap()));
    drop(ftl);
    let of_leaves = std::mem::take(&mut *reads.lock().unwrap());
    assert!(of_leaves.len() > 5, "{of_leaves:?}");

    let (mut changed, mut lost) = (0, 0);
    for block in of_leaves.into_iter().map(|block| block * BLOCK) {
        let fork: Arc<dyn BlockDevice> = medium.fork(block);
        let device = unreadable(fork, std::iter::once(block..block + BLOCK).collect());
        // The index of the map lies in the last of them too.
        let Ok(ftl) = Ftl::open(device.clone(), options()) else { continue };
        let readable: Vec<_> = left().filter(|number| ftl.is_mapped(lba(*number)).is_ok()).collect();
        for number in readable.iter().step_by(20) {
            write(&ftl, *number, 2).unwrap_or_else(|error| panic!("extent {number}: {error}"));
            changed += 1;
        }
        lost += left().count() - readable.len();
        ftl.flush().unwrap();
        drop(ftl);
        let ftl = Ftl::open(device, options()).unwrap();
        for number in readable.iter().step_by(20) {
            let mut back = [0; SECTOR];
            ftl.read(lba(*number), &mut back).unwrap();
            assert_eq!(back[0], 2, "extent {number}");
        }
    }
    assert!(changed > 400 && lost > 1000, "{changed} {lost}");
}
