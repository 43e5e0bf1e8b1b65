//! Segments that are used again before a checkpoint covers them: replay uses their retained summaries.

use std::sync::Arc;

use crate::harness::{assert_sound, format, open};
use lacuna_device::BlockDevice;
use lacuna_ftl::{Error, Ftl, Lba, Op, Options, Stream};
use lacuna_sim::SimDevice;

const BYTES: u64 = 8 << 20;
const HOT: u64 = 8;
const COLD: u64 = 180;

fn write(ftl: &Ftl, page: u64, value: u64) {
    let mut data = [1; 16384];
    data[..8].copy_from_slice(&value.to_le_bytes());
    ftl.write_batch(&[Op::Write { lba: Lba(page * 32), data: &data }], Stream::Data).unwrap();
}

fn read(ftl: &Ftl, page: u64) -> u64 {
    let mut data = [0; 16384];
    ftl.read(Lba(page * 32), &mut data).unwrap();
    u64::from_le_bytes(data[..8].try_into().unwrap())
}

/// A store that was filled by half and whose hot pages were then overwritten `count` times, each time flushed.
fn worn(count: u64) -> (Arc<SimDevice>, Ftl) {
    let device = SimDevice::new(BYTES, 1);
    let shared: Arc<dyn BlockDevice> = device.clone();
    format(&shared);
    let ftl = open(&shared);
    (0..COLD).for_each(|page| write(&ftl, 100 + page, page));
    ftl.checkpoint().unwrap();
    for number in 0..count {
        write(&ftl, number % HOT, number);
        ftl.flush().unwrap();
    }
    (device, ftl)
}

#[test]
fn what_died_young_is_replayed_after_its_segment_was_used_again() {
    let (device, ftl) = worn(400);
    let stats = ftl.stats();
    assert!(stats.retained > 20, "{stats:?}");
    drop(ftl);
    device.power_cycle();
    let shared: Arc<dyn BlockDevice> = device.clone();
    for read_only in [true, false] {
        let ftl = Ftl::open(shared.clone(), Options { read_only, ..Options::default() }).unwrap();
        assert!(ftl.stats().replayed_batches > 200, "{:?}", ftl.stats());
        (400 - HOT..400).for_each(|number| assert_eq!(read(&ftl, number % HOT), number));
        (0..COLD).for_each(|page| assert_eq!(read(&ftl, 100 + page), page));
        assert_sound(&ftl);
    }
}

#[test]
fn a_retained_summary_that_is_damaged_is_missed() {
    let (device, ftl) = worn(400);
    drop(ftl);
    device.power_cycle();
    let mut image = vec![0; BYTES as usize];
    device.read_at(0, &mut image).unwrap();
    let retained: Vec<_> = (512..image.len())
        .step_by(512)
        .filter(|at| image[*at..].starts_with(b"LREC") && image[at + 8] == 7)
        .collect();
    assert!(retained.len() > 10);
    let mut missed = 0;
    for at in retained {
        let damaged = device.fork(at as u64);
        damaged.flip_bit(at as u64 + 80, 1);
        match Ftl::open(damaged as Arc<dyn BlockDevice>, Options::default()) {
            // A retained summary that an earlier checkpoint has made superfluous.
            Ok(ftl) => (400 - HOT..400).for_each(|number| assert_eq!(read(&ftl, number % HOT), number)),
            Err(Error::Corrupt { reason, .. }) => {
                assert!(reason.contains("was flushed and is not there"), "{reason}");
                missed += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(missed > 0);
}
