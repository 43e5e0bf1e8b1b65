//! Root, index and counters of a checkpoint exist once. Where they cannot be read, the store does not open; salvage puts
//! them together from the rest of the map, and says what that may lack.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use crate::harness::{self, SEGMENT_BYTES};
use lacuna_device::BlockDevice;
use lacuna_ftl::{Ftl, Lba, Op, Options, SECTOR, Stream, Work};
use lacuna_sim::{SimDevice, unreadable};

const BYTES: u64 = 64 << 20;
const EXTENTS: u64 = 40_000;
/// Written, and trimmed between two checkpoints: all of some leaves of the map, none of their neighbours.
const TRIMMED: Range<u64> = 10_112..10_624;

/// Kinds of records: docs/FORMAT.md.
const LEAVES: u8 = 3;
const ROOT: u8 = 4;
const INDEX: u8 = 5;
const COUNTERS: u8 = 6;

fn lba(number: u64) -> Lba {
    Lba(2 * number)
}

/// A sector that says of which extent and which write it is.
fn sector(number: u64, value: u8) -> [u8; SECTOR] {
    let mut sector = [value; SECTOR];
    sector[..8].copy_from_slice(&number.to_le_bytes());
    sector
}

/// A store whose map has changed between checkpoints and since the last one, closed or not; with the last write of each
/// extent, 0 where it is trimmed.
fn store(map_memory: Option<u64>, is_closed: bool) -> (Arc<SimDevice>, Vec<u8>) {
    let device = SimDevice::with_block_bytes(BYTES, 4096, 1);
    let shared: Arc<dyn BlockDevice> = device.clone();
    harness::format(&shared);
    let options = || Options { map_memory, ..Options::default() };
    let mut values = vec![0; EXTENTS as usize];
    let write = |ftl: &Ftl, values: &mut Vec<u8>, numbers: &mut dyn Iterator<Item = u64>, value| {
        for number in numbers {
            let data = sector(number, value);
            ftl.write_batch(&[Op::Write { lba: lba(number), data: &data }], Stream::Data).unwrap();
            values[number as usize] = value;
        }
    };
    let ftl = Ftl::open(shared.clone(), options()).unwrap();
    write(&ftl, &mut values, &mut (0..EXTENTS), 1);
    ftl.checkpoint().unwrap();
    write(&ftl, &mut values, &mut (0..5_000), 2);
    ftl.close().unwrap();
    drop(ftl);

    let ftl = Ftl::open(shared.clone(), options()).unwrap();
    write(&ftl, &mut values, &mut (0..9_000).step_by(3), 3);
    ftl.checkpoint().unwrap();
    write(&ftl, &mut values, &mut (20_000..40_000).step_by(2), 4);
    for _ in 0..20 {
        ftl.step(Work::Gc).unwrap();
    }
    ftl.checkpoint().unwrap();
    let sectors = 2 * (TRIMMED.end - TRIMMED.start);
    ftl.write_batch(&[Op::Trim { lba: lba(TRIMMED.start), sectors }], Stream::Data).unwrap();
    values[TRIMMED.start as usize..TRIMMED.end as usize].fill(0);
    ftl.checkpoint().unwrap();
    // Less than makes a checkpoint due: this is replayed.
    write(&ftl, &mut values, &mut (30_000..31_000), 5);
    for _ in 0..3 {
        ftl.step(Work::Gc).unwrap();
    }
    write(&ftl, &mut values, &mut (3_000..3_200), 6);
    match is_closed {
        true => ftl.close().unwrap(),
        false => ftl.flush().unwrap(),
    }
    drop(ftl);
    device.power_cycle();
    (device, values)
}

/// The blocks of the records of the map on `device`, each record by its kind.
fn records(device: &SimDevice) -> Vec<(u8, Range<u64>)> {
    let mut image = vec![0; BYTES as usize];
    device.read_at(0, &mut image).unwrap();
    let mut found = Vec::new();
    for at in (SEGMENT_BYTES as usize..image.len()).step_by(4096) {
        let head = &image[at..at + 64];
        let bytes = u64::from(u32::from_le_bytes(head[60..].try_into().unwrap()));
        if head.starts_with(b"LREC") && (LEAVES..=COUNTERS).contains(&head[8]) {
            found.push((head[8], at as u64..(at as u64 + bytes).next_multiple_of(4096)));
        }
    }
    found
}

/// What was read wrong.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wrong {
    /// Extents with data that reads as never written, or not at all.
    missing: u64,
    /// Trimmed extents that can be read.
    back: u64,
    /// All else.
    wrong: u64,
}

fn compare(ftl: &Ftl, values: &[u8]) -> Wrong {
    let mut wrong = Wrong::default();
    for (number, value) in (0..).zip(values) {
        let mut found = [0xee; SECTOR];
        let is_read = ftl.read(lba(number), &mut found).is_ok();
        let counter = match value {
            0 if !is_read || found == [0; SECTOR] => continue,
            0 if TRIMMED.contains(&number) && found == sector(number, 1) => &mut wrong.back,
            value if is_read && found == sector(number, *value) => continue,
            _ if !is_read || found == [0; SECTOR] => &mut wrong.missing,
            _ => &mut wrong.wrong,
        };
        *counter += 1;
    }
    wrong
}

/// Salvages the store without the bytes `lost`: none if it can be opened without them.
fn salvage(device: &SimDevice, lost: Vec<Range<u64>>, values: &[u8]) -> Option<(Wrong, Vec<String>)> {
    let fork: Arc<dyn BlockDevice> = device.fork(1);
    let device = unreadable(fork, lost);
    let options = || Options { map_memory: Some(64 << 10), ..Options::default() };
    let (ftl, damage) = Ftl::salvage(device.clone(), options()).unwrap();
    let is_sound = damage.is_empty();
    assert_eq!(is_sound, Ftl::open(device, options()).is_ok(), "{damage:?}");
    (!is_sound).then(|| (compare(&ftl, values), damage))
}

/// The records of the newest checkpoint, by kind: those without which the store does not open.
fn needed(device: &SimDevice, values: &[u8]) -> BTreeMap<u8, Vec<Range<u64>>> {
    let mut needed = BTreeMap::<u8, Vec<Range<u64>>>::new();
    for (kind, range) in records(device).into_iter().filter(|(kind, _)| *kind > LEAVES) {
        let Some((wrong, damage)) = salvage(device, vec![range.clone()], values) else { continue };
        assert_eq!(Wrong { back: 0, ..wrong }, Wrong::default(), "kind {kind} at {range:?}: {damage:?}");
        if kind != INDEX {
            assert_eq!(wrong.back, 0, "kind {kind} at {range:?}: {damage:?}");
            assert!(damage[1].contains("nothing of it is missing"), "{damage:?}");
        }
        needed.entry(kind).or_default().push(range);
    }
    needed
}

fn assert_salvaged(map_memory: Option<u64>, is_closed: bool) {
    let (device, values) = store(map_memory, is_closed);
    let mut needed = needed(&device, &values);
    let counts: Vec<_> = needed.iter().map(|(kind, ranges)| (*kind, ranges.len())).collect();
    let [(ROOT, 1), (INDEX, 1..), (COUNTERS, 1..)] = counts[..] else { panic!("{counts:?}") };

    // Kinds together, up to all.
    for kinds in
        [&[ROOT, INDEX][..], &[INDEX, COUNTERS], &[ROOT, COUNTERS], &[INDEX], &[ROOT, INDEX, COUNTERS]]
    {
        let lost = kinds.iter().flat_map(|kind| needed[kind].clone()).collect();
        let (wrong, damage) = salvage(&device, lost, &values).unwrap();
        eprintln!("without {kinds:?}: {wrong:?}, {:?}", &damage[1..]);
        assert_eq!(Wrong { back: 0, ..wrong }, Wrong::default(), "{kinds:?}: {damage:?}");
        assert!(kinds.contains(&INDEX) || wrong.back == 0, "{kinds:?}: {damage:?}");
        let says = match kinds {
            _ if !kinds.contains(&INDEX) => "nothing of it is missing",
            [ROOT, INDEX, COUNTERS] => "not known",
            _ if wrong.back > 0 => "may be back",
            _ => "",
        };
        assert!(damage[1].contains(says), "{kinds:?}: {damage:?}");
    }

    // Of a leaf without an index nothing is known but that it is missing.
    let (mut missing, index) = (0, needed.remove(&INDEX).unwrap());
    for (_, leaves) in records(&device).into_iter().filter(|(kind, _)| *kind == LEAVES).step_by(3) {
        let lost = index.iter().cloned().chain([leaves]).collect();
        let (wrong, damage) = salvage(&device, lost, &values).unwrap();
        missing += wrong.missing;
        assert!(
            wrong.missing == 0 || damage.iter().any(|line| line.contains("missing") || line.contains("back")),
            "{damage:?}"
        );
    }
    assert!(missing > 0);
}

#[test]
fn what_a_checkpoint_has_once_is_put_together_again() {
    assert_salvaged(None, true);
}

#[test]
fn so_is_that_of_a_store_that_was_not_closed() {
    assert_salvaged(None, false);
}

#[test]
fn so_is_that_of_a_store_with_little_memory_for_its_map() {
    assert_salvaged(Some(64 << 10), false);
}

/// The only checkpoint of a young store is empty: all is in the log.
#[test]
fn a_young_store_is_salvaged_from_its_log() {
    let device = SimDevice::with_block_bytes(BYTES, 4096, 1);
    let shared: Arc<dyn BlockDevice> = device.clone();
    harness::format(&shared);
    let ftl = harness::open(&shared);
    let mut values = vec![0; 300];
    for number in 0..300 {
        let data = sector(number, 1);
        ftl.write_batch(&[Op::Write { lba: lba(number), data: &data }], Stream::Data).unwrap();
        values[number as usize] = 1;
    }
    ftl.flush().unwrap();
    drop(ftl);
    device.power_cycle();
    let all: Vec<_> = records(&device).into_iter().map(|(_, range)| range).collect();
    let (wrong, damage) = salvage(&device, all, &values).unwrap();
    assert_eq!(wrong, Wrong::default(), "{damage:?}");
}
