//! Root, index and counters of a checkpoint exist once. Where they cannot be read, the store does not open; salvage puts
//! them together from the rest of the map, and says what that may lack.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use crate::harness::SEGMENT_BYTES;
use lacuna_device::{BlockDevice, LogDevice};
use lacuna_ftl::{
    FormatOptions, Ftl, Key, KeyCost, KeyOptions, Lba, LogDeviceUse, NewKey, Op, Options, SECTOR, Secret,
    Stream, Work,
};
use lacuna_sim::{SimDevice, SimMemory, unreadable};

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

/// What a store has, and how it is left.
#[derive(Clone, Copy, Default)]
struct Kind {
    map_memory: Option<u64>,
    is_closed: bool,
    is_encrypted: bool,
    /// The last flush went to a log device.
    is_logged: bool,
}

struct Store {
    device: Arc<SimDevice>,
    log: Option<Arc<SimMemory>>,
    key: Key,
}

impl Store {
    fn options(&self, map_memory: Option<u64>, log: Option<&Arc<SimMemory>>) -> Options {
        let log_device = log.map_or(LogDeviceUse::None, |log| LogDeviceUse::Device(log.clone()));
        Options { map_memory, log_device, key: self.key.clone(), ..Options::default() }
    }
}

fn formatted(kind: Kind) -> Store {
    let device = SimDevice::with_block_bytes(BYTES, 4096, 1);
    let log = kind.is_logged.then(|| SimMemory::beside(&device, 16 << 20, 1));
    let secret = || Secret::new("one").unwrap();
    let slot = KeyOptions { cost: KeyCost::MIN, ..KeyOptions::default() };
    let options = FormatOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        key: kind.is_encrypted.then(|| NewKey { secret: secret(), slot }),
        log_device: log.clone().map(|log| log as Arc<dyn LogDevice>),
        ..FormatOptions::default()
    };
    Ftl::format(device.clone(), &options).unwrap();
    let key = if kind.is_encrypted { Key::Secret(secret()) } else { Key::default() };
    Store { device, log, key }
}

/// A store whose map has changed between checkpoints and since the last one; with the last write of each extent, 0 where
/// it is trimmed.
fn store(kind: Kind) -> (Store, Vec<u8>) {
    let store = formatted(kind);
    let open =
        || Ftl::open(store.device.clone(), store.options(kind.map_memory, store.log.as_ref())).unwrap();
    let mut values = vec![0; EXTENTS as usize];
    let write = |ftl: &Ftl, values: &mut Vec<u8>, numbers: &mut dyn Iterator<Item = u64>, value| {
        for number in numbers {
            let data = sector(number, value);
            ftl.write_batch(&[Op::Write { lba: lba(number), data: &data }], Stream::Data).unwrap();
            values[number as usize] = value;
        }
    };
    let ftl = open();
    write(&ftl, &mut values, &mut (0..EXTENTS), 1);
    ftl.checkpoint().unwrap();
    write(&ftl, &mut values, &mut (0..5_000), 2);
    ftl.close().unwrap();
    drop(ftl);

    let ftl = open();
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
    match kind.is_closed {
        true => ftl.close().unwrap(),
        false => ftl.flush().unwrap(),
    }
    assert!(!kind.is_logged || ftl.stats().log_device_flushes > 0);
    drop(ftl);
    store.device.power_cycle();
    store.log.iter().for_each(|log| log.power_cycle());
    (store, values)
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
fn salvage(store: &Store, lost: Vec<Range<u64>>, values: &[u8]) -> Option<(Wrong, Vec<String>)> {
    let fork = store.device.fork(1);
    let log = store.log.as_ref().map(|log| log.fork_beside(&fork, 1));
    let device = unreadable(fork, lost);
    let options = || store.options(Some(64 << 10), log.as_ref());
    let (ftl, damage) = Ftl::salvage(device.clone(), options()).unwrap();
    let is_sound = damage.is_empty();
    assert_eq!(is_sound, Ftl::open(device, options()).is_ok(), "{damage:?}");
    (!is_sound).then(|| (compare(&ftl, values), damage))
}

/// The records of the newest checkpoint, by kind: those without which the store does not open.
fn needed(store: &Store, values: &[u8]) -> BTreeMap<u8, Vec<Range<u64>>> {
    let mut needed = BTreeMap::<u8, Vec<Range<u64>>>::new();
    for (kind, range) in records(&store.device).into_iter().filter(|(kind, _)| *kind > LEAVES) {
        let Some((wrong, damage)) = salvage(store, vec![range.clone()], values) else { continue };
        assert_eq!(Wrong { back: 0, ..wrong }, Wrong::default(), "kind {kind} at {range:?}: {damage:?}");
        if kind != INDEX {
            assert_eq!(wrong.back, 0, "kind {kind} at {range:?}: {damage:?}");
            assert!(damage[1].contains("nothing of it is missing"), "{damage:?}");
        }
        needed.entry(kind).or_default().push(range);
    }
    needed
}

fn assert_salvaged(kind: Kind) {
    let (store, values) = store(kind);
    let mut needed = needed(&store, &values);
    let counts: Vec<_> = needed.iter().map(|(kind, ranges)| (*kind, ranges.len())).collect();
    let [(ROOT, 1), (INDEX, 1..), (COUNTERS, 1..)] = counts[..] else { panic!("{counts:?}") };

    // Kinds together, up to all.
    for kinds in
        [&[ROOT, INDEX][..], &[INDEX, COUNTERS], &[ROOT, COUNTERS], &[INDEX], &[ROOT, INDEX, COUNTERS]]
    {
        let lost = kinds.iter().flat_map(|kind| needed[kind].clone()).collect();
        let (wrong, damage) = salvage(&store, lost, &values).unwrap();
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
    for (_, leaves) in records(&store.device).into_iter().filter(|(kind, _)| *kind == LEAVES).step_by(3) {
        let lost = index.iter().cloned().chain([leaves]).collect();
        let (wrong, damage) = salvage(&store, lost, &values).unwrap();
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
    assert_salvaged(Kind { is_closed: true, ..Kind::default() });
}

#[test]
fn so_is_that_of_a_store_that_was_not_closed() {
    assert_salvaged(Kind::default());
}

#[test]
fn so_is_that_of_a_store_with_little_memory_for_its_map() {
    assert_salvaged(Kind { map_memory: Some(64 << 10), ..Kind::default() });
}

#[test]
fn so_is_that_of_an_encrypted_store() {
    assert_salvaged(Kind { is_encrypted: true, ..Kind::default() });
}

#[test]
fn so_is_that_of_a_store_with_a_log_device() {
    assert_salvaged(Kind { is_logged: true, is_encrypted: true, ..Kind::default() });
}

/// The only checkpoint of a young store is empty: all is in the log.
#[test]
fn a_young_store_is_salvaged_from_its_log() {
    let store = formatted(Kind::default());
    let ftl = Ftl::open(store.device.clone(), store.options(None, None)).unwrap();
    let mut values = vec![0; 300];
    for number in 0..300 {
        let data = sector(number, 1);
        ftl.write_batch(&[Op::Write { lba: lba(number), data: &data }], Stream::Data).unwrap();
        values[number as usize] = 1;
    }
    ftl.flush().unwrap();
    drop(ftl);
    store.device.power_cycle();
    let all: Vec<_> = records(&store.device).into_iter().map(|(_, range)| range).collect();
    let (wrong, damage) = salvage(&store, all, &values).unwrap();
    assert_eq!(wrong, Wrong::default(), "{damage:?}");
}
