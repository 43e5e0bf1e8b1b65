use super::*;

const CAPACITY: u64 = 1 << 20;

fn read(device: &SimDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    device.read_at(offset, &mut buf).unwrap();
    buf
}

/// The distinct outcomes of many crashes of the same run, each as the first bytes of 8 sectors.
fn outcomes(run: impl Fn(&SimDevice)) -> std::collections::BTreeSet<Vec<u8>> {
    (0..400)
        .map(|seed| {
            let device = SimDevice::new(CAPACITY, seed);
            run(&device);
            device.power_cycle();
            read(&device, 0, 8 * SECTOR).into_iter().step_by(SECTOR).collect()
        })
        .collect()
}

#[test]
fn synced_writes_always_survive() {
    let all = outcomes(|device| {
        device.write_at(0, &[1; 8 * SECTOR]).unwrap();
        device.write_at(0, &[2; SECTOR]).unwrap();
        device.sync().unwrap();
    });
    assert_eq!(all.into_iter().collect::<Vec<_>>(), [vec![2, 1, 1, 1, 1, 1, 1, 1]]);
}

#[test]
fn unsynced_writes_are_kept_dropped_torn_and_reordered() {
    let all = outcomes(|device| {
        device.write_at(0, &[1; 8 * SECTOR]).unwrap();
        device.write_at(0, &[2; 8 * SECTOR]).unwrap();
    });
    for whole in [[0; 8], [1; 8], [2; 8]] {
        assert!(all.contains(&whole[..]), "{whole:?} never happened in {} outcomes", all.len());
    }
    assert!(all.iter().any(|sectors| sectors.starts_with(&[2]) && sectors.ends_with(&[1])));
    assert!(all.iter().any(|sectors| sectors.starts_with(&[1]) && sectors.ends_with(&[2])));
    assert!(all.iter().flatten().all(|byte| *byte <= 2));
}

#[test]
fn a_sector_is_never_torn() {
    for seed in 0..200 {
        let device = SimDevice::new(CAPACITY, seed);
        device.write_at(0, &[1; 4 * SECTOR]).unwrap();
        device.power_cycle();
        for sector in read(&device, 0, 4 * SECTOR).chunks(SECTOR) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "seed {seed}");
        }
    }
}

#[test]
fn the_write_in_flight_fails_and_may_be_torn() {
    let all = outcomes(|device| {
        device.set_cut_after(2);
        device.write_at(0, &[1; SECTOR]).unwrap();
        assert!(matches!(device.write_at(0, &[2; 8 * SECTOR]), Err(Error::PowerCut)));
        assert!(device.is_off());
        assert!(matches!(device.sync(), Err(Error::PowerCut)));
        assert!(matches!(device.read_at(0, &mut [0; SECTOR]), Err(Error::PowerCut)));
        assert_eq!(device.ops(), 2);
    });
    assert!(all.contains(&[2; 8][..]) && all.contains(&[0; 8][..]) && all.len() > 4);
}

#[test]
fn a_sync_in_flight_promises_nothing() {
    let all = outcomes(|device| {
        device.write_at(0, &[1; 8 * SECTOR]).unwrap();
        device.set_cut_after(1);
        assert!(matches!(device.sync(), Err(Error::PowerCut)));
    });
    assert!(all.contains(&[1; 8][..]) && all.contains(&[0; 8][..]));
}

#[test]
fn discarded_space_reads_as_anything() {
    let all = outcomes(|device| {
        device.write_at(0, &[1; 8 * SECTOR]).unwrap();
        device.sync().unwrap();
        device.discard(0, 4 * SECTOR as u64).unwrap();
        device.sync().unwrap();
    });
    assert!(all.iter().all(|outcome| outcome[4..] == [1; 4]));
    assert!(all.contains(&[1; 8][..]) && all.contains(&[0, 0, 0, 0, 1, 1, 1, 1][..]) && all.len() > 20);
    // Also in part, although it was synced.
    let mixed = |outcome: &&Vec<u8>| {
        let gone = outcome[..4].iter().filter(|byte| **byte == 0).count();
        let kept = outcome[..4].iter().filter(|byte| **byte == 1).count();
        gone > 0 && kept > 0
    };
    assert!(all.iter().filter(mixed).count() >= 3);
}

#[test]
fn a_failed_sync_is_not_made_good_by_a_later_one() {
    let all = outcomes(|device| {
        device.write_at(0, &[1; 8 * SECTOR]).unwrap();
        device.fail_sync();
        assert!(matches!(device.sync(), Err(Error::Io { .. })));
        device.heal();
        device.sync().unwrap();
        assert_eq!(read(device, 0, 8 * SECTOR), [1; 8 * SECTOR]);
    });
    assert!(all.contains(&[1; 8][..]) && all.contains(&[0; 8][..]));
}

#[test]
fn injected_failures_end_when_healed() {
    let device = SimDevice::new(CAPACITY, 1);
    device.fail_writes_after(2);
    device.write_at(0, &[1; SECTOR]).unwrap();
    assert!(matches!(device.write_at(0, &[1; SECTOR]), Err(Error::Io { .. })));
    assert!(matches!(device.write_at(0, &[1; SECTOR]), Err(Error::Io { .. })));
    device.heal();
    device.enospc();
    assert!(matches!(device.write_at(0, &[1; SECTOR]), Err(Error::Full { .. })));
    device.heal();
    device.write_at(0, &[1; SECTOR]).unwrap();
}

#[test]
fn a_flipped_bit_survives_sync_and_power_cycle() {
    let device = SimDevice::new(CAPACITY, 1);
    device.write_at(0, &[0; SECTOR]).unwrap();
    device.flip_bit(7, 3);
    device.sync().unwrap();
    device.flip_bit(8, 0);
    device.power_cycle();
    let back = read(&device, 0, SECTOR);
    assert_eq!((back[7], back[8]), (8, 1));
}

#[test]
fn the_same_seed_has_the_same_outcome() {
    let run = |seed| {
        let device = SimDevice::new(CAPACITY, seed);
        for round in 0..20_u64 {
            device.write_at(round * 512, &[round as u8 + 1; 4096]).unwrap();
            if round % 7 == 6 {
                device.discard(round * 256 / 512 * 512, 8192).unwrap();
            }
        }
        device.power_cycle();
        read(&device, 0, 1 << 16)
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn forks_are_independent() {
    let device = SimDevice::new(CAPACITY, 1);
    device.write_at(0, &[1; SECTOR]).unwrap();
    let fork = device.fork(2);
    fork.write_at(0, &[2; SECTOR]).unwrap();
    assert_eq!(read(&device, 0, SECTOR)[0], 1);
    assert_eq!(read(&fork, 0, SECTOR)[0], 2);
}

/// A device of sectors that hold 1, synced, and then 2 in its first half, with faults at `rates`.
fn faulty(rates: FaultRates, seed: u64) -> Arc<SimDevice> {
    let device = SimDevice::new(CAPACITY, seed);
    device.write_at(0, &vec![1; CAPACITY as usize]).unwrap();
    device.sync().unwrap();
    device.start_silent_faults(rates, seed);
    for sector in 0..64 {
        device.write_at(sector * 512, &[2; SECTOR]).unwrap();
    }
    device.sync().unwrap();
    device
}

#[test]
fn lost_writes_are_acknowledged_synced_and_gone() {
    let device = faulty(FaultRates { lost_writes: 200, ..FaultRates::default() }, 1);
    assert_eq!(device.stats().writes, 65, "all are acknowledged");
    let faults = device.stop_silent_faults();
    assert!((4..30).contains(&faults.len()), "{}", faults.len());
    device.power_cycle();
    let sectors = read(&device, 0, 64 * SECTOR);
    for (sector, bytes) in sectors.chunks(SECTOR).enumerate() {
        let lost = faults.contains(&Fault::LostWrite { offset: sector as u64 * 512, len: 512 });
        assert!(bytes.iter().all(|byte| *byte == if lost { 1 } else { 2 }), "sector {sector}");
    }
}

#[test]
fn misdirected_writes_hit_another_place() {
    let device = faulty(FaultRates { misdirected_writes: 1000, limit: 1, ..FaultRates::default() }, 1);
    let faults = device.stop_silent_faults();
    let [Fault::MisdirectedWrite { offset, actual, len: 512 }] = faults[..] else { panic!("{faults:?}") };
    assert!(offset < 64 * 512 && actual >= 64 * 512, "by this seed");
    device.power_cycle();
    assert_eq!((read(&device, offset, 512)[0], read(&device, actual, 512)[0]), (1, 2));
}

#[test]
fn stale_reads_show_what_was_there_before() {
    let device = faulty(FaultRates { stale_reads: 500, ..FaultRates::default() }, 3);
    let mut stale = 0;
    for _ in 0..100 {
        let bytes = read(&device, 0, 64 * SECTOR);
        assert!(bytes.iter().all(|byte| [1, 2].contains(byte)));
        stale += usize::from(bytes.contains(&1));
    }
    assert_eq!(stale, device.stop_silent_faults().len());
    assert!((20..80).contains(&stale), "{stale}");
    assert!(!read(&device, 0, 64 * SECTOR).contains(&1), "the medium is right");
}

#[test]
fn discards_land_late_or_in_part() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..200 {
        for (rates, overtake) in [
            (FaultRates { late_discards: 1000, limit: 1, ..FaultRates::default() }, false),
            (FaultRates { late_discards: 1000, limit: 1, ..FaultRates::default() }, true),
            (FaultRates { partial_discards: 1000, limit: 1, ..FaultRates::default() }, false),
        ] {
            let device = faulty(FaultRates { discards_overtake: overtake, ..rates }, seed);
            device.discard(0, 8 * 512).unwrap();
            device.write_at(0, &[3; SECTOR]).unwrap();
            (0..256).for_each(|_| device.sync().unwrap());
            let hit = read(&device, 0, SECTOR) != [3; SECTOR];
            assert!(!hit || overtake, "seed {seed}");
            let [fault] = device.stop_silent_faults()[..] else { panic!("seed {seed}: one fault") };
            let gone = read(&device, 512, 63 * SECTOR).chunks(SECTOR).filter(|s| **s != [2; SECTOR]).count();
            assert!(gone <= 7, "seed {seed}");
            outcomes.insert((matches!(fault, Fault::LateDiscard { .. }), hit, gone > 0));
        }
    }
    for outcome in [(true, true, true), (true, false, true), (false, false, true), (false, false, false)] {
        assert!(outcomes.contains(&outcome), "{outcome:?} never happened: {outcomes:?}");
    }
}

#[test]
fn the_same_faults_for_the_same_seed() {
    let faults = |seed| {
        let rates = FaultRates { lost_writes: 100, misdirected_writes: 100, ..FaultRates::default() };
        faulty(rates, seed).stop_silent_faults()
    };
    assert_eq!(faults(1), faults(1));
    assert_ne!(faults(1), faults(2));
}
