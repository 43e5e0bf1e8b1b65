//! A store grows with its device, while it is in use and under power cuts; old bytes in the added part are never taken
//! for records.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::harness::{assert_sound, format};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{Error, Ftl, Lba, Op, Options, Stream, Work};
use lacuna_sim::{SeededRng, SimDevice, for_each_seed};

const PAGE: usize = 16 << 10;
const SMALL: u64 = 4 << 20;

fn open(device: Arc<dyn BlockDevice>) -> Ftl {
    Ftl::open(device, Options::default()).unwrap()
}

fn page_of(page: u64, byte: u8) -> Vec<u8> {
    (0..PAGE).map(|at| (at as u64 ^ page) as u8 ^ byte | 1).collect()
}

fn write(ftl: &Ftl, page: u64, byte: u8) -> Result<(), Error> {
    let data = page_of(page, byte);
    ftl.write_batch(&[Op::Write { lba: Lba(page * 32), data: &data }], Stream::Data).map(drop)
}

fn assert_holds(ftl: &Ftl, pages: impl IntoIterator<Item = u64>, byte: u8) {
    let mut back = vec![0; PAGE];
    for page in pages {
        ftl.read(Lba(page * 32), &mut back).unwrap();
        assert!(back == page_of(page, byte), "page {page}");
    }
}

/// Writes pages from `first` on until the store is full; returns where the next would go.
fn fill(ftl: &Ftl, first: u64, byte: u8) -> u64 {
    (first..).find(|page| matches!(write(ftl, *page, byte), Err(Error::Full { .. }))).unwrap()
}

#[test]
fn a_full_store_takes_more_once_its_device_has_grown() {
    let device = Arc::new(MemDevice::new(SMALL));
    format(&(device.clone() as Arc<dyn BlockDevice>));
    let ftl = open(device.clone());
    assert_eq!(ftl.grow(None).unwrap(), SMALL, "the device is as it was");
    let mut end = fill(&ftl, 0, 2);
    for capacity in [2 * SMALL, 2 * SMALL + (1 << 20), 8 * SMALL] {
        assert_eq!(ftl.grow(Some(capacity)).unwrap(), capacity);
        assert_sound(&ftl);
        let next = fill(&ftl, end, 2);
        let gained = (next - end) * PAGE as u64;
        assert!(next > end, "{gained} bytes more");
        end = next;
        (0..end).step_by(3).for_each(|page| write(&ftl, page, 2).unwrap());
        assert_sound(&ftl);
    }
    assert_eq!(ftl.stats().capacity_bytes, 8 * SMALL);
    ftl.flush().unwrap();
    drop(ftl);
    let ftl = open(device);
    assert_eq!(ftl.stats().capacity_bytes, 8 * SMALL);
    assert_holds(&ftl, 0..end, 2);
    assert_sound(&ftl);
}

#[test]
fn growth_that_gives_nothing_is_refused() {
    let device = Arc::new(MemDevice::new(SMALL));
    format(&(device.clone() as Arc<dyn BlockDevice>));
    let ftl = open(device.clone());
    let error = ftl.grow(Some(SMALL + (64 << 10))).unwrap_err().to_string();
    assert!(error.contains("grown by too little"), "{error}");
    assert_eq!(device.geometry().capacity_bytes, SMALL, "nor is the device any larger");
    for (bytes, why) in [
        (0, "does not become smaller"),
        (SMALL - 4096, "does not become smaller"),
        (2 * SMALL + 512, "not a multiple of 4096"),
        (u64::MAX, "not a multiple of 4096"),
        (u64::MAX / 4096 * 4096, "too many segments"),
        (SMALL << 22, "too many segments"),
    ] {
        let error = ftl.grow(Some(bytes)).unwrap_err().to_string();
        assert!(error.contains(why), "{bytes}: {error}");
    }
    assert_eq!(ftl.grow(Some(SMALL)).unwrap(), SMALL);
    assert_eq!(device.geometry().capacity_bytes, SMALL);
    ftl.grow(Some(SMALL + (1 << 20))).unwrap();
    // What it says to be possible is.
    let error = ftl.grow(Some(SMALL << 22)).unwrap_err().to_string();
    let most = error.split_once("it can have ").unwrap().1.split_once(' ').unwrap().0.parse().unwrap();
    ftl.grow(Some(most + SMALL)).unwrap_err();
    assert_eq!(ftl.grow(Some(most)).unwrap(), most);
    assert_sound(&ftl);
}

/// Cuts at every operation of the growth, and some after it.
#[test]
fn a_cut_leaves_the_store_as_it_was_or_as_large_as_it_became() {
    for_each_seed(300, |seed| {
        let device = SimDevice::new(SMALL, seed);
        format(&(device.clone() as Arc<dyn BlockDevice>));
        let ftl = open(device.clone());
        (0..80).for_each(|page| write(&ftl, page, 4).unwrap());
        ftl.flush().unwrap();
        device.set_cut_after(1 + seed % 60);
        let grown = ftl.grow(Some(3 * SMALL));
        let end = (80..).find(|page| write(&ftl, *page, 4).is_err() || ftl.flush().is_err()).unwrap();
        drop(ftl);
        device.power_cycle();
        let ftl = open(device.clone());
        let capacity = ftl.stats().capacity_bytes;
        assert!(capacity == 3 * SMALL || capacity == SMALL && grown.is_err(), "{capacity} bytes, {grown:?}");
        assert_holds(&ftl, 0..end, 4);
        assert_eq!(ftl.grow(Some(3 * SMALL)).unwrap(), 3 * SMALL);
        fill(&ftl, end, 4);
        assert_sound(&ftl);
        assert_holds(&ftl, 0..end, 4);
    });
}

/// A store is copied back over the start of a device on which it had grown before.
#[test]
fn what_an_older_copy_left_behind_the_end_does_not_count() {
    for_each_seed(20, |seed| {
        let mut rng = SeededRng::new(seed);
        let device = Arc::new(MemDevice::new(SMALL));
        format(&(device.clone() as Arc<dyn BlockDevice>));
        let ftl = open(device.clone());
        (0..40).for_each(|page| write(&ftl, page, 6).unwrap());
        ftl.close().unwrap();
        drop(ftl);
        let mut copy = vec![0; SMALL as usize];
        device.read_at(0, &mut copy).unwrap();

        // Batches that never existed for the store that continues from the copy.
        let ftl = open(device.clone());
        ftl.grow(Some(4 * SMALL)).unwrap();
        for number in 0..200 + rng.below(400) {
            write(&ftl, rng.below(300), 8 + (number % 8) as u8 * 2).unwrap();
            if rng.chance(10) {
                ftl.flush().unwrap();
            }
        }
        drop(ftl);

        device.write_at(0, &copy).unwrap();
        let ftl = open(device.clone());
        assert_eq!(ftl.grow(None).unwrap(), 4 * SMALL, "the device is that large still");
        let written = rng.below(30);
        (0..written).for_each(|page| write(&ftl, 40 + page, 6).unwrap());
        ftl.flush().unwrap();
        drop(ftl);
        let ftl = open(device);
        assert_holds(&ftl, 0..40 + written, 6);
        assert_eq!(ftl.mapped(Lba((40 + written) * 32)..Lba(1 << 30)).unwrap(), None);
        assert_sound(&ftl);
    });
}

#[test]
fn a_store_grows_beside_everything_else() {
    for background in [false, true] {
        let device = Arc::new(MemDevice::new(SMALL));
        format(&(device.clone() as Arc<dyn BlockDevice>));
        let ftl = Ftl::open(device.clone(), Options { background, ..Options::default() }).unwrap();
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let loads: Vec<_> = (0..3)
                .map(|thread| {
                    let (ftl, ended) = (&ftl, &ended);
                    scope.spawn(move || {
                        let mut rng = SeededRng::new(thread);
                        while !ended.load(Ordering::Relaxed) {
                            let page = thread + 3 * rng.below(25); // all fit before the first growth
                            write(ftl, page, 2).unwrap();
                            assert_holds(ftl, [page], 2);
                            match rng.below(40) {
                                0 => ftl.flush().unwrap(),
                                1 => ftl.checkpoint().unwrap(),
                                2 => drop(ftl.step(Work::Gc).unwrap()),
                                3 => assert_sound(ftl),
                                _ => {}
                            }
                        }
                    })
                })
                .collect();
            for number in 1..40 {
                ftl.grow(Some(SMALL + number * (1 << 20))).unwrap();
                thread::yield_now();
            }
            ended.store(true, Ordering::Relaxed);
            loads.into_iter().for_each(|load| load.join().unwrap());
        });
        assert_sound(&ftl);
        assert_eq!(ftl.stats().capacity_bytes, SMALL + 39 * (1 << 20));
    }
}
