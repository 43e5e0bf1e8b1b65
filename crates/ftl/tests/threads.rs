//! Many threads on one store, with the background thread.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use crate::harness::{self, Change, SEGMENT_BYTES, assert_sound, payload};
use lacuna_device::{BlockDevice, DeviceStats, Geometry, MemDevice, Result};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, SECTOR, Stream, Work};
use lacuna_sim::{SeededRng, for_each_seed};

const THREADS: u64 = 4;
/// Sectors of each thread's own region.
const REGION: u64 = 1000;

/// Writes, reads, flushes, collects and takes checkpoints in the region of `thread`; returns its expected content.
fn work(ftl: &Ftl, thread: u64, seed: u64) -> Vec<u8> {
    let mut rng = SeededRng::new(seed * 100 + thread);
    let base = thread * REGION;
    let mut model = vec![0; REGION as usize * SECTOR];
    for _ in 0..400 {
        let len = 1 + rng.below(64);
        let lba = rng.below(REGION - len);
        let place = lba as usize * SECTOR..(lba + len) as usize * SECTOR;
        match rng.below(10) {
            0..6 => {
                let data = payload(&mut rng, len);
                let stream = if thread.is_multiple_of(2) { Stream::Data } else { Stream::Log };
                ftl.write_batch(&[Change::Write(base + lba, data.clone()).op()], stream).unwrap();
                model[place].copy_from_slice(&data);
            }
            6 => {
                ftl.write_batch(&[Op::Trim { lba: Lba(base + lba), sectors: len }], Stream::Data).unwrap();
                model[place].fill(0);
            }
            7 if rng.chance(10) => ftl.checkpoint().unwrap(),
            // The thread alone may find enough of them empty, or be late.
            7 if rng.chance(20) => {
                ftl.step(Work::Gc).unwrap();
            }
            7 => ftl.flush().unwrap(),
            _ => {
                let mut buf = vec![0; place.len()];
                ftl.read(Lba(base + lba), &mut buf).unwrap();
                assert!(buf == model[place], "thread {thread}: sectors {lba} + {len} differ");
            }
        }
    }
    ftl.flush().unwrap();
    model
}

#[test]
fn threads_see_their_own_writes_while_segments_are_collected() {
    for_each_seed(6, |seed| {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(10 << 19));
        let options = FormatOptions { segment_bytes: Some(SEGMENT_BYTES), ..FormatOptions::default() };
        Ftl::format(device.clone(), &options).unwrap();
        let map_memory = (seed % 3 > 0).then_some(seed % 3 * 2000);
        let chunk_cache = [0, 40 << 10, 8 << 20][seed as usize % 3];
        let options = Options { background: seed % 2 == 0, map_memory, chunk_cache, ..Options::default() };
        let ftl = Ftl::open(device.clone(), options).unwrap();
        let models: Vec<_> = std::thread::scope(|scope| {
            let ftl = &ftl;
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || work(ftl, thread, seed))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let assert_same = |ftl: &Ftl| {
            for (thread, model) in models.iter().enumerate() {
                let mut buf = vec![0; model.len()];
                ftl.read(Lba(thread as u64 * REGION), &mut buf).unwrap();
                assert!(buf == *model, "region {thread} differs");
            }
        };
        let stats = ftl.stats();
        assert!(stats.gc_segments > 0 && stats.checkpoints > 1, "{stats:?}");
        assert_same(&ftl);
        assert_sound(&ftl);
        drop(ftl);
        let ftl = harness::open(&device);
        assert_same(&ftl);
        assert_sound(&ftl);
    });
}

/// A device whose syncs wait, while it is held, until `batches` batches are written beside them.
struct HeldSyncs {
    device: MemDevice,
    is_held: AtomicBool,
    is_syncing: AtomicBool,
    written: AtomicU64,
    batches: u64,
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Whether `condition` came true.
fn comes_true(condition: impl Fn() -> bool) -> bool {
    let since = Instant::now();
    while !condition() && since.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    condition()
}

impl BlockDevice for HeldSyncs {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn name(&self) -> &str {
        self.device.name()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.device.write_at(offset, data)
    }

    fn sync(&self) -> Result<()> {
        if self.is_held.load(SeqCst) {
            self.is_syncing.store(true, SeqCst);
            let is_written = comes_true(|| self.written.load(SeqCst) >= self.batches);
            assert!(is_written, "writers wait for a flush");
        }
        self.device.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.device.stats()
    }
}

/// While a flush waits for the device, others write and flush: the next flush, or the one after it, covers them all.
#[test]
fn concurrent_flushes_share_syncs() {
    const OTHERS: u64 = 8;
    let device = Arc::new(HeldSyncs {
        device: MemDevice::new(64 << 20),
        is_held: AtomicBool::new(false),
        is_syncing: AtomicBool::new(false),
        written: AtomicU64::new(0),
        batches: OTHERS,
    });
    Ftl::format(device.clone(), &FormatOptions::default()).unwrap();
    let ftl = Ftl::open(device.clone(), Options::default()).unwrap();
    let write = |number: u64| {
        let batch = [Op::Write { lba: Lba(number * 8), data: &[1; 4096] }];
        ftl.write_batch(&batch, Stream::Log).unwrap();
    };
    let (flushes, syncs) = (ftl.stats().flushes, device.stats().syncs);
    write(0);
    device.is_held.store(true, SeqCst);
    std::thread::scope(|scope| {
        let (ftl, device, write) = (&ftl, &device, &write);
        scope.spawn(move || ftl.flush().unwrap());
        assert!(comes_true(|| device.is_syncing.load(SeqCst)), "a flush syncs");
        for number in 1..=OTHERS {
            scope.spawn(move || {
                write(number);
                device.written.fetch_add(1, SeqCst);
                ftl.flush().unwrap();
            });
        }
    });
    let (flushes, syncs) = (ftl.stats().flushes - flushes, device.stats().syncs - syncs);
    assert!((2..=3).contains(&flushes), "{flushes} flushes for {} callers", OTHERS + 1);
    assert!((2..=3).contains(&syncs), "{syncs} syncs for {} callers", OTHERS + 1);
    // A flush with nothing new costs nothing.
    let syncs = device.stats().syncs;
    ftl.flush().unwrap();
    assert_eq!(device.stats().syncs, syncs);
}
