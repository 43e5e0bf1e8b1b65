//! Decisions that change no content, and that nothing else would notice: which victim, which append point, when a
//! checkpoint is due.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, Mutex},
};

use crate::harness::{self, SEGMENT_BYTES};
use lacuna_device::{BlockDevice, DeviceStats, Geometry, MemDevice, Result};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Stream, Work};
use lacuna_sim::BeforeReads;

/// A store in memory, and where its device was read last.
struct Store {
    ftl: Ftl,
    last_read: Arc<Mutex<Option<Range<u64>>>>,
}

const PAGE: usize = 4096;

fn lba(page: u64) -> Lba {
    Lba(page * (PAGE / 512) as u64)
}

impl Store {
    fn new(segments: u64) -> Store {
        Store::on(segments, harness::open)
    }

    fn on(segments: u64, open: impl FnOnce(&Arc<dyn BlockDevice>) -> Ftl) -> Store {
        let last_read = Arc::new(Mutex::new(None));
        let memory: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(segments * u64::from(SEGMENT_BYTES)));
        let note = Arc::clone(&last_read);
        let device: Arc<dyn BlockDevice> = BeforeReads::new(memory, move |reads| {
            *note.lock().unwrap() = reads.last().cloned();
            Ok(())
        });
        harness::format(&device);
        Store { ftl: open(&device), last_read }
    }

    fn write(&self, page: u64) {
        self.ftl.write_batch(&[Op::Write { lba: lba(page), data: &[7; PAGE] }], Stream::Data).unwrap();
    }

    fn trim(&self, page: u64) {
        let sectors = (PAGE / 512) as u64;
        self.ftl.write_batch(&[Op::Trim { lba: lba(page), sectors }], Stream::Data).unwrap();
    }

    /// The segment that a page is in; none if its bytes are in memory still.
    fn segment(&self, page: u64) -> Option<u64> {
        *self.last_read.lock().unwrap() = None;
        self.ftl.read(lba(page), &mut [0; PAGE]).unwrap();
        Some(self.last_read.lock().unwrap().take()?.start / u64::from(SEGMENT_BYTES))
    }
}

#[test]
fn of_two_victims_the_old_one_is_collected_although_it_is_fuller() {
    const PAGES: u64 = 400;
    let store = Store::new(128);
    (0..PAGES).for_each(|page| store.write(page));
    store.ftl.flush().unwrap();
    let neighbours = |page: u64| -> Vec<u64> {
        let segment = Some(store.segment(page).expect("it is on the device"));
        (0..PAGES).filter(|other| store.segment(*other) == segment).collect()
    };
    let (old, young) = (neighbours(20), neighbours(PAGES - 40));
    assert!(old.len() >= 10 && young.len() >= 10, "{} and {} pages", old.len(), young.len());
    old[..old.len() / 2 - 1].iter().for_each(|page| store.trim(*page));
    young[..young.len() / 2 + 1].iter().for_each(|page| store.trim(*page));
    store.ftl.flush().unwrap();
    let pages = [old, young].map(|pages| *pages.last().unwrap());
    let before = pages.map(|page| store.segment(page));
    let has_moved = || {
        store.ftl.flush().unwrap();
        let now = pages.map(|page| store.segment(page));
        [now[0] != before[0], now[1] != before[1]]
    };
    while has_moved() == [false, false] {
        assert!(store.ftl.step(Work::Gc).unwrap(), "there are victims");
    }
    assert_eq!(has_moved(), [true, false], "the old one, whose data will hardly be overwritten soon");
}

#[test]
fn what_is_overwritten_often_lies_apart_from_what_is_not() {
    const PAGES: u64 = 1400;
    const HOT: u64 = 8;
    let store = Store::new(256);
    (0..PAGES).for_each(|page| store.write(page));
    let cold = |number: u64| HOT + number * 37 % (PAGES - HOT);
    for number in 0..1200 {
        store.write(number % HOT);
        if number % 2 == 0 {
            store.write(cold(number / 2));
        }
    }
    store.ftl.flush().unwrap();
    let hot: BTreeSet<_> = (0..HOT).filter_map(|page| store.segment(page)).collect();
    let cold: BTreeSet<_> = (560..600).filter_map(|number| store.segment(cold(number))).collect();
    assert!(!hot.is_empty() && !cold.is_empty());
    assert!(hot.is_disjoint(&cold), "hot pages in {hot:?}, others in {cold:?}");
}

/// On a full store, where writers take each segment as soon as it is free.
#[test]
fn what_is_overwritten_often_lies_apart_also_where_segments_are_short() {
    const HOT: u64 = 8;
    let store = Store::on(1024, |device| {
        Ftl::open(device.clone(), Options { background: true, ..Options::default() }).unwrap()
    });
    let pages = store.ftl.stats().live_limit_bytes / PAGE as u64 * 9 / 10;
    (0..pages).for_each(|page| store.write(page));
    let cold = |number: u64| HOT + number * 997 % (pages - HOT);
    let mut mixed = 0;
    for round in 0..400 {
        for number in round * 40..(round + 1) * 40 {
            store.write(number % HOT);
            store.write(cold(number));
        }
        store.ftl.flush().unwrap();
        let cold: BTreeSet<_> =
            (0..40).filter_map(|number| store.segment(cold(round * 40 + number))).collect();
        mixed += (0..HOT).filter_map(|page| store.segment(page)).filter(|hot| cold.contains(hot)).count();
    }
    assert_eq!(mixed, 0, "hot pages were written beside cold ones");
}

/// Writers that did not pay would take all that is free, and then each wait for a whole segment.
#[test]
fn writers_pay_before_all_is_taken() {
    let store = Store::new(1024);
    let pages = store.ftl.stats().live_limit_bytes / PAGE as u64 * 9 / 10;
    (0..pages).for_each(|page| store.write(page));
    let mut least = u64::MAX;
    for number in 0..12 * pages {
        store.write(number * 997 % pages);
        if number % 16 == 0 {
            let stats = store.ftl.stats();
            least = least.min(stats.free_segments.saturating_sub(stats.reserved_segments));
        }
    }
    assert!(least > 0, "writers took all that was free");
}

/// A device that keeps only its first MiB: enough for a store of which nothing is read.
struct Forgetful(MemDevice);

const KEPT_BYTES: u64 = 1 << 20;

impl BlockDevice for Forgetful {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        if offset < KEPT_BYTES { self.0.write_at(offset, data) } else { Ok(()) }
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.0.stats()
    }
}

#[test]
fn a_long_log_makes_a_checkpoint_however_much_is_free() {
    const BATCH: usize = 16 << 20;
    let device: Arc<dyn BlockDevice> = Arc::new(Forgetful(MemDevice::new(8 << 30)));
    Ftl::format(device.clone(), &FormatOptions::default()).unwrap();
    let ftl = Ftl::open(device, Options::default()).unwrap();
    let (before, data) = (ftl.stats().checkpoints, vec![7; BATCH]);
    let write = || {
        ftl.write_batch(&[Op::Write { lba: Lba(0), data: &data }], Stream::Data).unwrap();
    };
    let log_bytes = 1 << 30;
    (0..log_bytes / BATCH - 1).for_each(|_| write());
    assert_eq!(ftl.stats().checkpoints, before, "not yet");
    (0..2).for_each(|_| write());
    let after = ftl.stats();
    assert_eq!(after.checkpoints, before + 1, "{after:#?}");
    assert!(after.free_segments > after.segments / 2, "{after:#?}");
}
