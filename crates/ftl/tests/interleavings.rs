//! Interleavings that matter, forced: a device whose reads or writes stop at a gate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::harness::{SEGMENT_BYTES, assert_sound};
use lacuna_device::{BlockDevice, DeviceStats, Geometry, MemDevice, Result};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Stream, Work};
use lacuna_sim::SeededRng;
use parking_lot::{Condvar, Mutex};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// The read after this many others stops; meanwhile, and after it, all pass.
    Read(u32),
    /// The same for the next write.
    Write,
    /// One call stands at the gate.
    Holding,
}

/// A device in memory with a gate.
struct GatedDevice {
    inner: MemDevice,
    gate: Mutex<Gate>,
    changed: Condvar,
    syncs: AtomicU64,
}

impl GatedDevice {
    fn with_store(segment_bytes: u32, segments: u64) -> (Arc<GatedDevice>, Ftl) {
        let device = Arc::new(GatedDevice {
            inner: MemDevice::new(segments * u64::from(segment_bytes)),
            gate: Mutex::new(Gate::Open),
            changed: Condvar::new(),
            syncs: AtomicU64::new(0),
        });
        let shared: Arc<dyn BlockDevice> = device.clone();
        let options = FormatOptions { segment_bytes: Some(segment_bytes), ..FormatOptions::default() };
        Ftl::format(shared.clone(), &options).unwrap();
        // So that all reads of collection can be counted: summaries too.
        let options = Options { summary_memory: 0, ..Options::default() };
        (device, Ftl::open(shared, options).unwrap())
    }

    fn set(&self, gate: Gate) {
        *self.gate.lock() = gate;
        self.changed.notify_all();
    }

    /// Stops here if the gate waits for a call of this kind, and `last` is the last one to wait for.
    fn pass(&self, last: Gate) {
        let mut gate = self.gate.lock();
        match *gate {
            Gate::Read(more @ 1..) if last == Gate::Read(0) => *gate = Gate::Read(more - 1),
            now if now == last => {
                *gate = Gate::Holding;
                self.changed.notify_all();
                while *gate == Gate::Holding {
                    self.changed.wait(&mut gate);
                }
            }
            _ => {}
        }
    }

    fn wait_until_held(&self) {
        let mut gate = self.gate.lock();
        while *gate != Gate::Holding {
            self.changed.wait(&mut gate);
        }
    }
}

impl BlockDevice for GatedDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        "gated device"
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.pass(Gate::Read(0));
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.pass(Gate::Write);
        self.inner.write_at(offset, data)
    }

    fn sync(&self) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    SeededRng::new(seed).fill(&mut data);
    data
}

fn write(ftl: &Ftl, lba: u64, data: &[u8]) {
    ftl.write_batch(&[Op::Write { lba: Lba(lba), data }], Stream::Data).unwrap();
}

/// Overwrites sectors far away until the log has wrapped.
fn wrap(ftl: &Ftl) {
    for round in 0..600 {
        write(ftl, 10_000 + round % 8 * 32, &noise(round, 16384));
    }
}

#[test]
fn a_reader_pins_the_segment_that_it_reads() {
    let (device, ftl) = GatedDevice::with_store(SEGMENT_BYTES, 64);
    let old = noise(1, 16384);
    write(&ftl, 0, &old);
    wrap(&ftl);
    thread::scope(|scope| {
        device.set(Gate::Read(0));
        let reader = scope.spawn(|| {
            let mut buf = vec![0; 16384];
            ftl.read(Lba(0), &mut buf).map(|()| buf)
        });
        device.wait_until_held();
        // The data being read dies; its segment is collected, freed and used again.
        write(&ftl, 0, &noise(2, 16384));
        wrap(&ftl);
        device.set(Gate::Open);
        assert_eq!(reader.join().unwrap().expect("the bytes stayed in place"), old);
    });
    wrap(&ftl);
    assert_sound(&ftl);
}

#[test]
fn collection_gives_way_to_overwrites() {
    // A record longer than what collection reads at once: it stops between looking at the map and
    // reading the chunks.
    const PAGES: u64 = 100;
    let (device, ftl) = GatedDevice::with_store(2 << 20, 40);
    write(&ftl, 0, &noise(1, PAGES as usize * 16384));
    // A second one that seals the segment, and is garbage at once.
    write(&ftl, PAGES * 32, &noise(2, PAGES as usize * 16384));
    ftl.write_batch(&[Op::Trim { lba: Lba(PAGES * 32), sectors: PAGES * 32 }], Stream::Data).unwrap();
    ftl.flush().unwrap();
    thread::scope(|scope| {
        device.set(Gate::Read(1));
        let collection = scope.spawn(|| ftl.step(Work::Gc).unwrap());
        device.wait_until_held();
        for page in 0..PAGES {
            // Whole, or a piece in the middle.
            let (skip, len) = if page.is_multiple_of(2) { (0, 16384) } else { (4, 4096) };
            write(&ftl, page * 32 + skip, &noise(100 + page, len));
        }
        device.set(Gate::Open);
        assert!(collection.join().unwrap());
    });
    // The other pieces of the victim also handle extents that were found before the overwrites.
    for _ in 0..8 {
        ftl.step(Work::Gc).unwrap();
    }
    let mut expected = noise(1, PAGES as usize * 16384);
    for (number, page) in (0..).zip(expected.chunks_mut(16384)) {
        let (skip, len) = if number % 2 == 0 { (0, 16384) } else { (2048, 4096) };
        page[skip..skip + len].copy_from_slice(&noise(100 + number, len));
    }
    let mut buf = vec![0; expected.len()];
    ftl.read(Lba(0), &mut buf).unwrap();
    assert!(buf == expected, "an overwrite was lost");
    assert_sound(&ftl);
}

#[test]
fn a_victim_may_die_and_live_again_between_two_pieces() {
    const PAGES: u64 = 100;
    let (_device, ftl) = GatedDevice::with_store(2 << 20, 40);
    let filler = |seed| {
        write(&ftl, PAGES * 32, &noise(seed, PAGES as usize * 16384));
        ftl.write_batch(&[Op::Trim { lba: Lba(PAGES * 32), sectors: PAGES * 32 }], Stream::Data).unwrap();
    };
    write(&ftl, 0, &noise(1, PAGES as usize * 16384));
    filler(2);
    ftl.checkpoint().unwrap();
    assert!(ftl.step(Work::Gc).unwrap(), "there is a victim");
    assert_eq!(ftl.stats().gc_segments, 0, "one piece is not all of it");
    // All of it dies, and after the checkpoint it is free; then all segments are taken once.
    write(&ftl, 0, &noise(3, PAGES as usize * 16384));
    ftl.checkpoint().unwrap();
    (0..80).for_each(|seed| filler(10 + seed));
    for _ in 0..20 {
        ftl.step(Work::Gc).unwrap();
    }
    assert_eq!(ftl.stats().corrupt_chunks, 0, "what lies there now was taken for the victim");
    let mut buf = vec![0; PAGES as usize * 16384];
    ftl.read(Lba(0), &mut buf).unwrap();
    assert!(buf == noise(3, PAGES as usize * 16384));
    assert_sound(&ftl);
}

#[test]
fn a_flush_waits_for_writes_that_others_began() {
    let (device, ftl) = GatedDevice::with_store(SEGMENT_BYTES, 64);
    thread::scope(|scope| {
        device.set(Gate::Write);
        // Large enough to be written without a flush.
        let writer = scope.spawn(|| write(&ftl, 0, &noise(1, 300_032)));
        device.wait_until_held();
        let before = device.syncs.load(Ordering::Relaxed);
        let flush = scope.spawn(|| ftl.flush().unwrap());
        // The pause can only hide a fault, never cause a false one.
        thread::sleep(Duration::from_millis(50));
        assert!(!flush.is_finished());
        assert_eq!(device.syncs.load(Ordering::Relaxed), before, "synced before the write arrived");
        device.set(Gate::Open);
        writer.join().unwrap();
        flush.join().unwrap();
    });
}

#[test]
fn batches_and_reads_go_on_while_a_checkpoint_writes() {
    let (device, ftl) = GatedDevice::with_store(SEGMENT_BYTES, 64);
    for page in 0..20 {
        write(&ftl, page * 32, &noise(page, 16384));
    }
    ftl.flush().unwrap();
    thread::scope(|scope| {
        device.set(Gate::Write);
        let checkpoint = scope.spawn(|| ftl.checkpoint().unwrap());
        device.wait_until_held();
        let mut buf = vec![0; 16384];
        for page in 0..20 {
            write(&ftl, page * 32, &noise(100 + page, 8192));
            ftl.read(Lba(page * 32), &mut buf).unwrap();
            assert_eq!(buf[..8192], noise(100 + page, 8192));
        }
        device.set(Gate::Open);
        checkpoint.join().unwrap();
    });
    assert_sound(&ftl);
}
