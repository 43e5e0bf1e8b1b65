//! Sweeping over ranges in several windows, while the store is in use: each sector is visited exactly once.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use crate::harness::{changes, format, ops};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, SECTOR, Stream, Work};
use lacuna_sim::{SeededRng, SimDevice, for_each_seed};

const BYTES: u64 = 4 << 20;
/// Sectors that batches of all kinds change.
const SECTORS: u64 = 1600;

/// Sectors written one by one, with their contents: three ranges, of which the first is swept in part.
struct World {
    device: Arc<SimDevice>,
    ftl: Ftl,
    held: BTreeMap<u64, u64>,
}

const RANGES: [Range<u64>; 3] = [10_000..10_700, 1 << 30..(1 << 30) + 5, (1 << 40) + 7..u64::MAX];

fn range_behind(at: Lba) -> Option<Range<Lba>> {
    let range = RANGES.into_iter().find(|range| range.end > at.0)?;
    Some(Lba(range.start)..Lba(range.end))
}

fn sector(version: u64) -> [u8; SECTOR] {
    let mut rng = SeededRng::new(version);
    let mut sector = [0; SECTOR];
    rng.fill(&mut sector[..100 + (version % 200) as usize]);
    sector
}

impl World {
    fn new(seed: u64) -> World {
        let device = SimDevice::new(BYTES, seed);
        let shared: Arc<dyn BlockDevice> = device.clone();
        format(&shared);
        let map_memory = [None, Some(0), Some(6 << 10)][(seed % 3) as usize];
        let ftl = Ftl::open(shared, Options { map_memory, ..Options::default() }).unwrap();
        let mut world = World { device, ftl, held: BTreeMap::new() };
        let mut rng = SeededRng::new(seed);
        // Scattered over addresses and device: neighbours in the space are not neighbours on the device.
        for version in 1..800 {
            let start = [10_000, 10_700 - 2, 1 << 30, (1 << 40) + 5][rng.below(4) as usize];
            world.write(start + rng.below(900), version);
            if version % 3 == 0 {
                world.stir(&mut rng);
            }
        }
        world
    }

    fn write(&mut self, lba: u64, version: u64) {
        let op = Op::Write { lba: Lba(lba), data: &sector(version) };
        self.ftl.write_batch(&[op], Stream::Data).unwrap();
        self.held.insert(lba, version);
    }

    /// Writes elsewhere, and moves extents by collection.
    fn stir(&self, rng: &mut SeededRng) {
        self.ftl.write_batch(&ops(&changes(rng, SECTORS)), Stream::Data).unwrap();
        let work = [Work::Gc, Work::Due, Work::Checkpoint, Work::Gc][rng.below(4) as usize];
        self.ftl.step(work).unwrap();
    }

    fn swept(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let is_swept = |lba: u64| RANGES.iter().any(|range| range.contains(&lba));
        self.held.iter().map(|(lba, version)| (*lba, *version)).filter(move |(lba, _)| is_swept(*lba))
    }
}

#[test]
fn each_sector_is_met_once_wherever_it_is_moved() {
    for_each_seed(6, |seed| {
        let world = World::new(seed);
        let mut rng = SeededRng::new(seed);
        for plan_extents in [1, 40, 300, 100_000] {
            let (mut met, mut calls) = (BTreeMap::new(), 0);
            let swept = world.ftl.sweep_sectors(range_behind, plan_extents, |lba, bytes| {
                let before = met.insert(lba.0, *bytes.unwrap());
                assert!(before.is_none(), "sector {} again", lba.0);
                calls += 1;
                if calls % 8 == 0 {
                    world.stir(&mut rng);
                }
            });
            swept.unwrap();
            let held: BTreeMap<_, _> = world.swept().map(|(lba, version)| (lba, sector(version))).collect();
            assert!(met == held, "{} of {} met, plans of {plan_extents}", met.len(), held.len());
        }
    });
}

#[test]
fn what_is_mapped_all_the_time_is_met_whatever_comes_and_goes() {
    for_each_seed(6, |seed| {
        let mut world = World::new(seed);
        let all: Vec<_> = world.swept().collect();
        let mut rng = SeededRng::new(seed);
        // Half of it goes and comes, or is new; the other half stays.
        let (stays, comes): (Vec<_>, Vec<_>) = all.iter().partition(|_| rng.chance(50));
        let ftl = &world.ftl;
        let mut met = BTreeMap::new();
        let swept = ftl.sweep_sectors(range_behind, 200, |lba, bytes| {
            *met.entry(lba.0).or_insert(0) += 1;
            let bytes = bytes.unwrap();
            if let Some(version) = world.held.get(&lba.0)
                && stays.contains(&(lba.0, *version))
            {
                assert!(*bytes == sector(*version), "sector {}", lba.0);
            }
            let lba = comes[rng.below(comes.len() as u64) as usize].0;
            let op = match rng.below(3) {
                0 => Op::Trim { lba: Lba(lba), sectors: 1 },
                _ => Op::Write { lba: Lba(lba), data: &[7; SECTOR] },
            };
            ftl.write_batch(&[op], Stream::Data).unwrap();
            if rng.chance(10) {
                world.stir(&mut rng);
            }
        });
        swept.unwrap();
        for (lba, _) in stays {
            assert!(met.contains_key(&lba), "sector {lba} was not met");
        }
        world.held.clear();
    });
}

/// An unreadable sector is passed with its error, and the sweep continues.
#[test]
fn damage_is_passed_on() {
    for_each_seed(6, |seed| {
        let world = World::new(seed);
        world.ftl.checkpoint().unwrap();
        let mut rng = SeededRng::new(seed);
        for _ in 0..40 {
            world.device.flip_bit((64 << 10) + rng.below(BYTES - (64 << 10)), rng.below(8) as u8);
        }
        let mut met = BTreeMap::new();
        let swept = world.ftl.sweep_sectors(range_behind, 200, |lba, bytes| {
            let bytes = bytes.copied().map_err(|error| error.to_string());
            assert!(met.insert(lba.0, bytes).is_none(), "sector {} again", lba.0);
        });
        if swept.is_err() {
            return; // a leaf of the map
        }
        for (lba, version) in world.swept() {
            let mut alone = [0; SECTOR];
            let read = world.ftl.read(Lba(lba), &mut alone).map_err(|error| error.to_string());
            assert_eq!(met.remove(&lba).expect("met"), read.map(|()| sector(version)), "sector {lba}");
        }
        assert!(met.is_empty());
    });
}

/// Each segment is read about once, not once for each window.
#[test]
fn many_windows_read_little_more_than_one() {
    const EXTENTS: u64 = 20_000;
    let device = Arc::new(MemDevice::new(64 << 20));
    let shared: Arc<dyn BlockDevice> = device.clone();
    Ftl::format(shared.clone(), &FormatOptions::default()).unwrap();
    let ftl = Ftl::open(shared.clone(), Options::default()).unwrap();
    for number in 0..EXTENTS {
        let lba = Lba(number * 7919 % EXTENTS * 1000);
        ftl.write_batch(&[Op::Write { lba, data: &sector(number) }], Stream::Data).unwrap();
    }
    ftl.checkpoint().unwrap();
    let read_bytes = |plan_extents| {
        let before = device.stats().read_bytes;
        let mut met = 0;
        let all = |at: Lba| (at.0 < u64::MAX).then_some(at..Lba(u64::MAX));
        ftl.sweep_sectors(all, plan_extents, |_, _| met += 1).unwrap();
        assert_eq!(met, EXTENTS);
        device.stats().read_bytes - before
    };
    let (one, twenty) = (read_bytes(EXTENTS as usize), read_bytes(EXTENTS as usize / 20));
    assert!(twenty <= one + one / 4, "{twenty} bytes in twenty windows, {one} in one");
}

/// It was asked with the map locked, and waited for itself.
#[test]
fn who_names_the_ranges_may_use_the_store() {
    let World { ftl, .. } = World::new(1);
    let (ended, has_ended) = mpsc::channel();
    thread::spawn(move || {
        let names = |at: Lba| {
            let stamp = Op::Write { lba: Lba(5), data: &[7; SECTOR] };
            ftl.write_batch(&[stamp], Stream::Data).unwrap();
            range_behind(at)
        };
        let mut visited = 0;
        ftl.sweep_sectors(names, 1 << 20, |_, read| visited += usize::from(read.is_ok())).unwrap();
        ended.send(visited).unwrap();
    });
    let visited = has_ended.recv_timeout(Duration::from_secs(120)).expect("it waits for ever");
    assert!(visited > 300, "{visited}");
}
