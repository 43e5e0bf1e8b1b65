//! Flushes under way at the same time, on a device whose syncs end when the test says so.

use std::{sync::Arc, thread, time::Duration};

use crate::harness::format;
use lacuna_device::{BlockDevice, DeviceStats, Error as DeviceError, Geometry, MemDevice, Result};
use lacuna_ftl::{Error, Ftl, Lba, Op, Options, SECTOR, Stream};
use parking_lot::{Condvar, Mutex};

/// How long to wait for an event that must come; only a broken store comes near it.
const PATIENCE: Duration = Duration::from_secs(100);

/// Syncs that have begun, and the outcome of those that the test released, in the order in which they began.
#[derive(Default)]
struct Syncs {
    begun: usize,
    outcomes: Vec<Option<bool>>,
    /// The gate is open: syncs succeed at once.
    is_open: bool,
}

struct Gated {
    inner: MemDevice,
    syncs: Mutex<Syncs>,
    changed: Condvar,
}

impl Gated {
    fn store() -> (Arc<Gated>, Ftl) {
        let syncs = Mutex::new(Syncs { is_open: true, ..Syncs::default() });
        let gated = Arc::new(Gated { inner: MemDevice::new(8 << 20), syncs, changed: Condvar::new() });
        let device: Arc<dyn BlockDevice> = gated.clone();
        format(&device);
        let ftl = Ftl::open(device, Options { background: false, ..Options::default() }).unwrap();
        *gated.syncs.lock() = Syncs::default();
        (gated, ftl)
    }

    /// Returns once `count` syncs have begun.
    fn wait_for(&self, count: usize) {
        let mut syncs = self.syncs.lock();
        while syncs.begun < count {
            assert!(!self.changed.wait_for(&mut syncs, PATIENCE).timed_out(), "sync {count} never began");
        }
    }

    /// The `number`-th sync ends, well or not.
    fn end(&self, number: usize, is_good: bool) {
        let mut syncs = self.syncs.lock();
        let len = syncs.outcomes.len().max(number + 1);
        syncs.outcomes.resize(len, None);
        syncs.outcomes[number] = Some(is_good);
        self.changed.notify_all();
    }
}

impl BlockDevice for Gated {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        "gated device"
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.inner.write_at(offset, data)
    }

    fn sync(&self) -> Result<()> {
        let mut syncs = self.syncs.lock();
        let number = syncs.begun;
        syncs.begun += 1;
        self.changed.notify_all();
        loop {
            match syncs.outcomes.get(number).copied().flatten() {
                Some(false) => return Err(DeviceError::Full { what: "gated device".into() }),
                Some(true) => return Ok(()),
                None if syncs.is_open => return Ok(()),
                None => self.changed.wait(&mut syncs),
            }
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

fn write(ftl: &Ftl, number: u64) {
    let data = [number as u8; SECTOR];
    ftl.write_batch(&[Op::Write { lba: Lba(number), data: &data }], Stream::Log).unwrap();
}

/// Lets all syncs end when the test does, well or not: threads that wait for them would outlive it.
struct Opener<'a>(&'a Gated);

impl Drop for Opener<'_> {
    fn drop(&mut self) {
        self.0.syncs.lock().is_open = true;
        self.0.changed.notify_all();
    }
}

#[test]
fn a_second_flush_begins_while_the_first_syncs() {
    let (device, ftl) = Gated::store();
    let before = ftl.stats().flushes;
    thread::scope(|scope| {
        let _opener = Opener(&device);
        write(&ftl, 1);
        let first = scope.spawn(|| ftl.flush());
        device.wait_for(1);
        write(&ftl, 2);
        let second = scope.spawn(|| ftl.flush());
        device.wait_for(2);
        // The second must wait for the first; if it did not, it would have had time to end.
        device.end(1, true);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(ftl.stats().flushes, before, "the second ended before the first");
        device.end(0, true);
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
    assert_eq!(ftl.stats().flushes, before + 2);
}

#[test]
fn no_flush_succeeds_after_an_older_one_failed() {
    let (device, ftl) = Gated::store();
    let before = ftl.stats().flushes;
    thread::scope(|scope| {
        let _opener = Opener(&device);
        write(&ftl, 1);
        let first = scope.spawn(|| ftl.flush());
        device.wait_for(1);
        write(&ftl, 2);
        let second = scope.spawn(|| ftl.flush());
        device.wait_for(2);
        write(&ftl, 3);
        let waiting = scope.spawn(|| ftl.flush());
        // The device reported the loss to the first sync, and reports nothing to the second.
        device.end(1, true);
        device.end(0, false);
        for flush in [first, second, waiting] {
            let error = flush.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Device(_) | Error::Poisoned { .. }), "{error}");
        }
    });
    assert_eq!(ftl.stats().flushes, before);
    assert!(matches!(ftl.flush(), Err(Error::Poisoned { .. })));
}

/// Writes to the device per flush, each after a write of hot data and one of cold data, with this many KiB live.
fn writes_per_flush(live_kib: u64) -> f64 {
    const FLUSHES: u64 = 40;
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(16 << 20));
    format(&device);
    let ftl = Ftl::open(Arc::clone(&device), Options { background: false, ..Options::default() }).unwrap();
    let write = |number: u64| {
        let data = [number as u8 | 1; 4096];
        ftl.write_batch(&[Op::Write { lba: Lba(number * 8), data: &data }], Stream::Data).unwrap();
    };
    (0..live_kib / 4).for_each(write);
    (0..40).for_each(|_| write(0));
    let before = device.stats().writes;
    for cold in 1..=FLUSHES {
        write(0);
        write(cold);
        ftl.flush().unwrap();
    }
    (device.stats().writes - before) as f64 / FLUSHES as f64
}

#[test]
fn a_flush_of_a_sparse_store_is_one_write() {
    let (sparse, dense) = (writes_per_flush(1 << 10), writes_per_flush(5 << 10));
    assert!((1.0..1.5).contains(&sparse), "beside a segment that was filled now and then: {sparse}");
    assert!(dense > 1.75, "what lives longer lies elsewhere: {dense}");
}
