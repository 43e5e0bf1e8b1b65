//! Recovery of so much log that several readers share it, after power cuts and with damage. The matrix has stores of a
//! few MiB, which one reader replays.

use std::sync::Arc;

use crate::harness::history::assert_names_the_place;
use lacuna_device::BlockDevice;
use lacuna_ftl::{CheckDepth, Error, FormatOptions, Ftl, Lba, Op, Options, Stream};
use lacuna_sim::{SeededRng, SimDevice, for_each_seed};

const BYTES: u64 = 192 << 20;
const SEGMENT_BYTES: u32 = 4 << 20;
const PIECE: usize = 1 << 20;
/// Batches that fill more segments than one reader replays (64 MiB).
const BATCHES: u64 = 66;
/// Each batch replaces the one so many before it.
const SLOTS: u64 = 40;

fn lba(number: u64) -> Lba {
    Lba(number % SLOTS * (PIECE / 512) as u64)
}

fn payload(number: u64) -> Vec<u8> {
    (number + 1).to_le_bytes().iter().map(|byte| byte ^ 0x5a).collect::<Vec<_>>().repeat(PIECE / 8)
}

fn write(ftl: &Ftl, number: u64, stream: Stream) -> Result<(), Error> {
    ftl.write_batch(&[Op::Write { lba: lba(number), data: &payload(number) }], stream).map(drop)
}

/// A store with [`BATCHES`] batches since its checkpoint, all flushed.
fn store(seed: u64) -> (Arc<SimDevice>, Ftl) {
    let device = SimDevice::with_block_bytes(BYTES, 4096, seed);
    let options = FormatOptions { segment_bytes: Some(SEGMENT_BYTES), ..FormatOptions::default() };
    Ftl::format(device.clone(), &options).unwrap();
    let ftl = open(&device).unwrap();
    for number in 0..BATCHES {
        write(&ftl, number, Stream::Data).unwrap();
        if number % 20 == 19 {
            ftl.flush().unwrap();
        }
    }
    ftl.flush().unwrap();
    (device, ftl)
}

fn open(device: &Arc<SimDevice>) -> Result<Ftl, Error> {
    Ftl::open(device.clone(), Options::default())
}

/// The number of batches whose result this is, at least `least`.
fn assert_prefix(ftl: &Ftl, least: u64, most: u64) -> u64 {
    let mut slots = vec![0; PIECE * SLOTS as usize];
    ftl.read(Lba(0), &mut slots).unwrap();
    let holds = |number: u64| slots[(number % SLOTS) as usize * PIECE..][..PIECE] == payload(number)[..];
    let is_prefix = |count: &u64| (count.saturating_sub(SLOTS)..*count).all(holds);
    (least..=most).find(is_prefix).unwrap_or_else(|| panic!("not the first {least} to {most} batches"))
}

#[test]
fn power_cuts_leave_a_prefix_of_a_long_log() {
    for_each_seed(8, |seed| {
        let (device, ftl) = store(seed);
        let mut rng = SeededRng::new(seed);
        device.set_cut_after(1 + rng.below(12));
        let (mut flushed, mut number) = (BATCHES, BATCHES);
        loop {
            let stream = if rng.chance(30) { Stream::Log } else { Stream::Data };
            number += 1;
            if write(&ftl, number - 1, stream).is_err() {
                break;
            }
            if rng.chance(20) {
                if ftl.flush().is_err() {
                    break;
                }
                flushed = number;
            }
        }
        assert!(device.is_off());
        drop(ftl);
        for cut in [1 + rng.below(4), 1 + rng.below(40)] {
            device.power_cycle();
            device.set_cut_after(cut);
            drop(open(&device));
        }
        device.power_cycle();
        let ftl = open(&device).unwrap();
        assert_prefix(&ftl, flushed, number);
        assert!(ftl.check(CheckDepth::Payload).unwrap().is_clean());
    });
}

/// The places of the headers of records that hold batches, with their numbers and lengths.
fn batches(device: &SimDevice) -> Vec<(u64, u64, u64)> {
    let mut image = vec![0; BYTES as usize];
    device.read_at(0, &mut image).unwrap();
    let word = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&image[at..at + len]);
        u64::from_le_bytes(bytes)
    };
    let places = (SEGMENT_BYTES as usize..image.len()).step_by(16);
    let is_batch = |at: &usize| image[*at..].starts_with(b"LREC") && image[at + 8] == 1;
    places.filter(is_batch).map(|at| (at as u64, word(at + 32, 8), word(at + 60, 4))).collect()
}

/// What says that the lost batch was flushed is in a record that perhaps another reader found.
#[test]
fn a_flushed_batch_that_is_gone_from_a_long_log_is_reported() {
    let (device, ftl) = store(1);
    // Neither header nor summary of a segment says so: no segment is opened or sealed any more.
    write(&ftl, BATCHES, Stream::Log).unwrap();
    write(&ftl, BATCHES + 1, Stream::Data).unwrap();
    ftl.flush().unwrap();
    write(&ftl, BATCHES + 2, Stream::Log).unwrap();
    ftl.flush().unwrap();
    drop(ftl);
    device.power_cycle();
    assert_eq!(assert_prefix(&open(&device.fork(1)).unwrap(), BATCHES + 3, BATCHES + 3), BATCHES + 3);
    let lost = batches(&device).into_iter().filter(|(_, number, _)| *number == BATCHES + 2);
    for (at, ..) in lost {
        device.flip_bit(at + 33, 0);
    }
    let error = open(&device).expect_err("a flushed batch is gone");
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert_names_the_place(&error, BYTES);
}

/// One flipped bit in a long log: reported with its place, or harmless.
#[test]
fn damage_in_a_long_log_is_reported() {
    let (device, ftl) = store(2);
    // It says what was flushed before; of the last flush alone the loss may look like a power cut.
    write(&ftl, BATCHES, Stream::Data).unwrap();
    ftl.flush().unwrap();
    drop(ftl);
    device.power_cycle();
    let mut records = batches(&device);
    records.retain(|(_, number, _)| *number <= BATCHES);
    records.sort_unstable_by_key(|(_, number, _)| *number);
    assert!(records.len() as u64 >= BATCHES, "{} records", records.len());
    let mut rng = SeededRng::new(2);
    let (mut at_open, mut at_read) = (0, 0);
    for number in 0..24 {
        // The summaries of sealed segments stand for the headers of their records: every third damage is at the end.
        let among = if number % 3 == 0 { 1 } else { records.len() as u64 };
        let (at, _, bytes) = records[records.len() - 1 - rng.below(among) as usize];
        let flipped = device.fork(number);
        flipped.flip_bit(
            at + if number % 3 == 2 { rng.below(bytes) } else { rng.below(64) },
            rng.below(8) as u8,
        );
        let ftl = match open(&flipped) {
            Ok(ftl) => ftl,
            Err(error) => {
                assert_names_the_place(&error, BYTES);
                at_open += 1;
                continue;
            }
        };
        let mut page = vec![0; PIECE];
        for slot in BATCHES + 1 - SLOTS..BATCHES {
            match ftl.read(lba(slot), &mut page) {
                Ok(()) => assert!(page == payload(slot), "bit {at}: slot {slot} differs"),
                Err(_) => at_read += 1,
            }
        }
    }
    assert!(at_open > 0 && at_read > 0, "{at_open} at open, {at_read} when read");
}
