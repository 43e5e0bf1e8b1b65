//! Scrubbing finds all damage and nothing else, while the store is in use, and stops on request.

use std::{ops::ControlFlow, sync::Arc};

use crate::harness::{SEGMENT_BYTES, changes, format, ops};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{CheckDepth, FormatOptions, Ftl, Lba, Op, Options, SECTOR, Scrub, Stream, Work};
use lacuna_sim::{SeededRng, SimDevice, for_each_seed};

const BYTES: u64 = 4 << 20;
const SECTORS: u64 = 1600;
/// Flips, of which some must hit live data.
const CASES: u64 = 60;

fn store(seed: u64) -> (Arc<SimDevice>, Ftl, SeededRng) {
    let device = SimDevice::new(BYTES, seed);
    let shared: Arc<dyn BlockDevice> = device.clone();
    format(&shared);
    let map_memory = [None, Some(0), Some(6 << 10)][(seed % 3) as usize];
    let ftl = Ftl::open(shared, Options { map_memory, ..Options::default() }).unwrap();
    let mut rng = SeededRng::new(seed);
    for _ in 0..100 {
        write(&ftl, &mut rng);
    }
    (device, ftl, rng)
}

fn write(ftl: &Ftl, rng: &mut SeededRng) {
    ftl.write_batch(&ops(&changes(rng, SECTORS)), Stream::Data).unwrap();
}

fn scrub(ftl: &Ftl) -> Scrub {
    ftl.scrub(|_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_sound_store_is_read_to_its_end() {
    for_each_seed(6, |seed| {
        let (_, ftl, _) = store(seed);
        let found = scrub(&ftl);
        assert!(found.is_complete && found.damage.is_empty(), "{found:?}");
        assert_eq!(found.verified_bytes, ftl.stats().allocated_bytes);
        assert_eq!(found.verified_bytes, found.expected_bytes);
    });
}

#[test]
fn it_stops_when_told() {
    let (_, ftl, _) = store(1);
    for lba in 0..500 {
        let op = Op::Write { lba: Lba(10_000 + 2 * lba), data: &[7; SECTOR] };
        ftl.write_batch(&[op], Stream::Data).unwrap();
    }
    let mut calls = 0;
    let found = ftl.scrub(|_| {
        calls += 1;
        if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let found = found.unwrap();
    assert!(!found.is_complete && found.verified_bytes < found.expected_bytes && calls == 3, "{found:?}");
}

#[test]
fn all_else_goes_on_beside_it() {
    for_each_seed(6, |seed| {
        let (_, ftl, mut rng) = store(seed);
        let found = ftl.scrub(|_| {
            // Often so many that segments of the plan are used again.
            for _ in 0..[3, 300][rng.below(2) as usize] {
                write(&ftl, &mut rng);
            }
            ftl.step([Work::Gc, Work::Due, Work::Checkpoint][rng.below(3) as usize]).unwrap();
            ControlFlow::Continue(())
        });
        let found = found.unwrap();
        assert!(found.is_complete && found.damage.is_empty(), "{found:?}");
    });
}

/// Extents that lie in another order than their addresses are read many at a time.
#[test]
fn scattered_extents_take_few_reads() {
    const EXTENTS: u64 = 10_000;
    let device = Arc::new(MemDevice::new(64 << 20));
    let shared: Arc<dyn BlockDevice> = device.clone();
    Ftl::format(shared.clone(), &FormatOptions::default()).unwrap();
    let open = || Ftl::open(shared.clone(), Options::default()).unwrap();
    let ftl = open();
    for number in 0..EXTENTS {
        let lba = Lba(number * 7919 % EXTENTS * 1000);
        ftl.write_batch(&[Op::Write { lba, data: &[7; 512] }], Stream::Data).unwrap();
    }
    ftl.close().unwrap();
    drop(ftl);
    type Look = fn(&Ftl);
    let looks: [Look; 2] = [
        |ftl| assert!(ftl.check(CheckDepth::Payload).unwrap().is_clean()),
        |ftl| assert!(scrub(ftl).damage.is_empty()),
    ];
    for look in looks {
        let ftl = open(); // with nothing of it in memory
        let before = device.stats().reads;
        look(&ftl);
        let reads = device.stats().reads - before;
        assert!(reads < EXTENTS / 20, "{reads} reads");
    }
}

/// Flips anywhere: scrubbing finds the same damage in the data as `check`, with the sectors.
#[test]
fn damage_is_found_and_named() {
    let (mut hits, mut cases) = (0, 0);
    for_each_seed(CASES, |seed| {
        cases += 1;
        let (device, ftl, mut rng) = store(seed);
        ftl.checkpoint().unwrap();
        let segments = BYTES / u64::from(SEGMENT_BYTES);
        let at = (1 + rng.below(segments - 1)) * u64::from(SEGMENT_BYTES) + rng.below(SEGMENT_BYTES.into());
        device.flip_bit(at, rng.below(8) as u8);
        let found = scrub(&ftl);
        // Only check reads dead data.
        let findings = ftl.check(CheckDepth::Payload).unwrap().findings;
        let is_sound = findings.iter().all(|finding| finding.message.contains("summary"));
        assert!(is_sound || !found.damage.is_empty(), "byte {at}: check finds more");
        for damage in found.damage {
            hits += 1;
            assert!(damage.message.contains("at byte"), "{damage:?}");
            let Some(sectors) = &damage.sectors else { continue };
            let first_bad = (sectors.start.0..sectors.end.0.min(SECTORS))
                .any(|sector| ftl.read(Lba(sector), &mut [0; SECTOR]).is_err());
            // A leaf that is in memory as well is still good for reading.
            assert!(first_bad || damage.message.contains("map leaf"), "{damage:?}");
        }
    });
    assert!(hits > 0 || cases < CASES, "no flip hit anything live");
}

#[test]
fn a_damaged_superblock_slot_is_found() {
    for slot in [0, 32 << 10] {
        let (device, ftl, _) = store(1);
        device.flip_bit(slot + 70, 1);
        let found = scrub(&ftl);
        assert_eq!(found.damage.len(), 1, "{found:?}");
        assert!(found.damage[0].message.contains("superblock") && found.damage[0].sectors.is_none());
    }
}
