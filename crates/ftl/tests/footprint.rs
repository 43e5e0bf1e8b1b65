//! A store uses no more of its device than its footprint, gives back the rest, and can still hold as much as before.

use std::{ops::Range, sync::Arc};

use crate::harness::assert_sound;
use lacuna_device::{AlignedBuf, BlockDevice, DeviceStats, Geometry, MemDevice, Result};
use lacuna_ftl::{Error, Footprint, FormatOptions, Ftl, Lba, Op, Options, Stats, Stream, Work};
use lacuna_sim::SeededRng;
use parking_lot::Mutex;

const PAGE: usize = 16 << 10;
const SEGMENT_BYTES: u32 = 256 << 10;
const FOOTPRINT: Footprint = Footprint::Live { percent: 200, plus_bytes: 2 << 20 };

/// A store file: it knows which 64 KiB of it have space allocated.
struct SparseDevice {
    device: MemDevice,
    has_space: Mutex<Vec<bool>>,
    /// Writes of bytes other than zeros to places without allocated space.
    unprepared: Mutex<u64>,
}

impl SparseDevice {
    fn new(bytes: u64) -> Arc<SparseDevice> {
        let has_space = Mutex::new(vec![false; (bytes >> 16) as usize]);
        Arc::new(SparseDevice { device: MemDevice::new(bytes), has_space, unprepared: Mutex::default() })
    }

    fn parts(offset: u64, len: u64) -> Range<usize> {
        (offset >> 16) as usize..((offset + len - 1) >> 16) as usize + 1
    }

    fn bytes(&self) -> u64 {
        (self.has_space.lock().iter().filter(|has_space| **has_space).count() as u64) << 16
    }
}

impl BlockDevice for SparseDevice {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn name(&self) -> &str {
        self.device.name()
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read_at(offset, buf)
    }

    fn read_many(&self, reads: &mut [(u64, AlignedBuf)]) -> Result<()> {
        self.device.read_many(reads)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut has_space = self.has_space.lock();
        let parts = &mut has_space[SparseDevice::parts(offset, data.len() as u64)];
        if parts.contains(&false) && data.iter().any(|byte| *byte != 0) {
            *self.unprepared.lock() += 1;
        }
        parts.fill(true);
        self.device.write_at(offset, data)
    }

    fn sync(&self) -> Result<()> {
        self.device.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.has_space.lock()[SparseDevice::parts(offset, len)].fill(false);
        self.device.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.device.stats()
    }
}

fn open(device: &Arc<SparseDevice>, footprint: Footprint) -> Ftl {
    Ftl::open(device.clone(), Options { footprint, ..Options::default() }).unwrap()
}

fn store(bytes: u64, footprint: Footprint) -> (Arc<SparseDevice>, Ftl) {
    let device = SparseDevice::new(bytes);
    let options = FormatOptions { segment_bytes: Some(SEGMENT_BYTES), ..FormatOptions::default() };
    Ftl::format(device.clone(), &options).unwrap();
    let ftl = open(&device, footprint);
    (device, ftl)
}

fn write(ftl: &Ftl, page: u64, byte: u8) -> std::result::Result<(), Error> {
    ftl.write_batch(&[Op::Write { lba: Lba(page * 32), data: &vec![byte | 1; PAGE] }], Stream::Data).map(drop)
}

fn settle(ftl: &Ftl) {
    ftl.flush().unwrap();
    while ftl.step(Work::Due).unwrap() {}
}

/// Space for twice the live data, the fixed part, the segments that must be free, and an eighth more before any is
/// given back.
fn bound(stats: &Stats) -> u64 {
    let kept = (stats.reserved_segments + 4) * stats.segment_bytes;
    // A segment is assumed to hold a tenth less than it can.
    (22 * stats.live_bytes / 10 + (4 << 20) + kept) * 9 / 8
}

#[test]
fn a_store_uses_again_what_it_used_before() {
    let (device, ftl) = store(256 << 20, FOOTPRINT);
    let mut rng = SeededRng::new(1);
    let pages = (8 << 20) / PAGE as u64;
    for number in 0..12 * pages {
        write(&ftl, if number < pages { number } else { rng.below(pages) }, number as u8).unwrap();
        if number % 16 == 0 {
            ftl.flush().unwrap();
            ftl.step(Work::Due).unwrap();
        }
    }
    settle(&ftl);
    let stats = ftl.stats();
    assert!(stats.store_bytes <= bound(&stats), "{stats:#?}");
    assert!(device.bytes() <= bound(&stats), "{} bytes of the host; {stats:#?}", device.bytes());
    assert!(stats.write_amplification() < 1.3, "{stats:#?}");
    assert_sound(&ftl);
}

#[test]
fn what_was_deleted_goes_back_to_the_host() {
    let (device, ftl) = store(128 << 20, FOOTPRINT);
    let pages = (60 << 20) / PAGE as u64;
    (0..pages).for_each(|page| write(&ftl, page, 7).unwrap());
    settle(&ftl);
    let before = device.bytes();
    assert!(before > 60 << 20);
    // One page of eight stays in every segment.
    for page in (0..pages).filter(|page| page % 8 != 0) {
        ftl.write_batch(&[Op::Trim { lba: Lba(page * 32), sectors: 32 }], Stream::Data).unwrap();
    }
    settle(&ftl);
    let stats = ftl.stats();
    assert!(stats.store_bytes <= bound(&stats), "{stats:#?}");
    let swing = 12 << 20;
    assert!(device.bytes() <= bound(&stats) + swing, "{} of {before} bytes; {stats:#?}", device.bytes());
    assert!(device.bytes() <= stats.touched_bytes, "{} bytes, {stats:#?}", device.bytes());
    assert_sound(&ftl);
    ftl.close().unwrap();
    assert!(device.bytes() <= bound(&stats), "{} bytes once it is closed; {stats:#?}", device.bytes());
    drop(ftl);
    let ftl = open(&device, FOOTPRINT);
    assert!(ftl.stats().touched_bytes <= bound(&ftl.stats()));
    for page in 0..pages {
        let mut back = vec![0; PAGE];
        ftl.read(Lba(page * 32), &mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == if page % 8 == 0 { 7 } else { 0 }), "page {page}");
    }
}

/// The footprint is a wish: it refuses nothing.
#[test]
fn a_store_holds_as_much_whatever_its_footprint() {
    let filled =
        [Footprint::Whole, FOOTPRINT, Footprint::Live { percent: 133, plus_bytes: 0 }].map(|footprint| {
            let (_, ftl) = store(24 << 20, footprint);
            let pages = (0..).find(|page| matches!(write(&ftl, *page, 3), Err(Error::Full { .. }))).unwrap();
            (0..pages).for_each(|page| write(&ftl, page, 5).unwrap());
            assert_sound(&ftl);
            pages
        });
    assert_eq!(filled, [filled[0]; 3]);
}

#[test]
fn untouched_segments_are_made_ready_before_they_are_used() {
    let (device, ftl) = store(64 << 20, FOOTPRINT);
    settle(&ftl);
    let before = *device.unprepared.lock();
    for page in 0..(16 << 20) / PAGE as u64 {
        write(&ftl, page, 7).unwrap();
        while ftl.step(Work::Due).unwrap() {}
    }
    settle(&ftl);
    assert_eq!(*device.unprepared.lock(), before);
    assert!(ftl.stats().prepared_bytes >= 16 << 20);
    let whole = store(64 << 20, Footprint::Whole).1;
    settle(&whole);
    assert!(whole.stats().prepared_bytes > 0, "all of a store file is made ready in the end");
}

#[test]
fn a_device_of_its_own_is_used_as_a_whole() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    Ftl::format(device.clone(), &FormatOptions::default()).unwrap();
    let ftl = Ftl::open(device, Options::default()).unwrap();
    for number in 0..(48 << 20) / PAGE as u64 {
        write(&ftl, number % 64, number as u8).unwrap();
    }
    settle(&ftl);
    let stats = ftl.stats();
    // But for the end, which is kept clear.
    let segments_bytes = stats.capacity_bytes - stats.segment_bytes;
    assert_eq!((stats.target_bytes, stats.prepared_bytes), (segments_bytes, 0));
    assert!(stats.gc_bytes < 1 << 20, "{stats:#?}");
}
