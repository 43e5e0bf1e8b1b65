//! A device whose writes end late, in any order, in another thread: the worst case of io_uring.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::harness::{assert_sound, format};
use lacuna_device::{BlockDevice, DeviceStats, Filled, Geometry, Result, WriteDone};
use lacuna_ftl::{Error, Ftl, Lba, Op, Options, SECTOR, Stream};
use lacuna_sim::{SeededRng, SimDevice, for_each_seed};
use parking_lot::{Condvar, Mutex};

struct Late {
    offset: u64,
    data: Filled,
    done: WriteDone,
}

/// Writes wait in `waiting`; a thread carries them out in random order.
struct LateDevice {
    inner: Arc<SimDevice>,
    waiting: Mutex<(Vec<Late>, bool)>,
    changed: Condvar,
    in_flight: AtomicUsize,
    in_flight_peak: AtomicUsize,
}

impl LateDevice {
    fn start(inner: Arc<SimDevice>, seed: u64) -> (Arc<LateDevice>, JoinHandle<()>) {
        let device = Arc::new(LateDevice {
            inner,
            waiting: Mutex::default(),
            changed: Condvar::new(),
            in_flight: AtomicUsize::new(0),
            in_flight_peak: AtomicUsize::new(0),
        });
        let thread = {
            let device = Arc::clone(&device);
            thread::spawn(move || device.carry_out(SeededRng::new(seed)))
        };
        (device, thread)
    }

    fn carry_out(&self, mut rng: SeededRng) {
        loop {
            let late = {
                let mut waiting = self.waiting.lock();
                while waiting.0.is_empty() {
                    if waiting.1 {
                        return;
                    }
                    self.changed.wait(&mut waiting);
                }
                let index = rng.below(waiting.0.len() as u64) as usize;
                waiting.0.swap_remove(index)
            };
            (0..rng.below(20)).for_each(|_| thread::yield_now());
            let outcome = self.inner.write_at(late.offset, &late.data);
            self.in_flight.fetch_sub(1, SeqCst);
            (late.done)(outcome, late.data);
        }
    }

    fn stop(&self, thread: JoinHandle<()>) {
        self.waiting.lock().1 = true;
        self.changed.notify_all();
        thread.join().unwrap();
    }
}

impl BlockDevice for LateDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        "late device"
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.inner.write_at(offset, data)
    }

    fn submit_write(&self, offset: u64, data: Filled, done: WriteDone) {
        let in_flight = self.in_flight.fetch_add(1, SeqCst) + 1;
        self.in_flight_peak.fetch_max(in_flight, SeqCst);
        self.waiting.lock().0.push(Late { offset, data, done });
        self.changed.notify_all();
    }

    /// Several end late and in any order, too.
    fn write_many(&self, writes: &[(u64, Filled)]) -> Result<()> {
        if let [(offset, data)] = writes {
            return self.write_at(*offset, data);
        }
        let (sender, ended) = mpsc::channel();
        for (offset, data) in writes {
            let sender = sender.clone();
            self.submit_write(
                *offset,
                data.clone(),
                Box::new(move |outcome, _| sender.send(outcome).unwrap()),
            );
        }
        drop(sender);
        let outcomes: Vec<Result<()>> = ended.iter().collect();
        outcomes.into_iter().collect()
    }

    fn sync(&self) -> Result<()> {
        // Long enough for other writes to arrive meanwhile.
        thread::sleep(Duration::from_micros(100));
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

/// Sectors of one thread's chunk; all of them hold the number of the write.
const SECTORS: u64 = 20;
const CHUNKS: u64 = 8;
const THREADS: u64 = 3;

fn chunk(thread: u64, number: u64) -> Lba {
    Lba((thread * CHUNKS + number % CHUNKS) * 32)
}

/// Bytes of the `number`-th write of a thread.
fn version(thread: u64, number: u64) -> Vec<u8> {
    let mut data = vec![0; SECTORS as usize * SECTOR];
    SeededRng::new(thread << 32 | number).fill(&mut data);
    data
}

/// A thread's own progress: numbers of its last write, and of the last one that was flushed.
#[derive(Default)]
struct Progress {
    begun: AtomicU64,
    flushed: AtomicU64,
}

/// Writes, reads back and flushes until something fails.
fn work(ftl: &Ftl, thread: u64, writes: u64, progress: &Progress, mut rng: SeededRng) -> Result<(), Error> {
    let mut back = vec![0; SECTORS as usize * SECTOR];
    for number in 1..=writes {
        progress.begun.store(number, SeqCst);
        let data = version(thread, number);
        let stream = if thread == 0 { Stream::Log } else { Stream::Data };
        ftl.write_batch(&[Op::Write { lba: chunk(thread, number), data: &data }], stream)?;
        let older = number - rng.below(CHUNKS.min(number));
        ftl.read(chunk(thread, older), &mut back)?;
        assert!(back == version(thread, older), "thread {thread} reads write {older} behind {number}");
        if rng.chance(15) {
            ftl.flush()?;
            progress.flushed.store(number, SeqCst);
        }
    }
    Ok(())
}

/// The newest write of a thread that is present; all older ones must be present too.
fn newest(ftl: &Ftl, thread: u64, progress: &Progress) -> u64 {
    let mut back = vec![0; SECTORS as usize * SECTOR];
    let held: Vec<u64> = (0..CHUNKS)
        .map(|slot| {
            ftl.read(chunk(thread, slot), &mut back).unwrap();
            let numbers = (1..=progress.begun.load(SeqCst)).rev().filter(|number| number % CHUNKS == slot);
            let mut found = numbers.filter(|number| back == version(thread, *number));
            found.next().unwrap_or_else(|| {
                assert!(back.iter().all(|byte| *byte == 0), "thread {thread}, chunk {slot}: foreign bytes");
                0
            })
        })
        .collect();
    let newest = held.iter().copied().max().unwrap_or(0);
    for number in newest.saturating_sub(CHUNKS - 1).max(1)..=newest {
        assert_eq!(held[(number % CHUNKS) as usize], number, "thread {thread}: {newest} without {number}");
    }
    newest
}

#[test]
fn flushed_means_durable_whatever_ends_when() {
    for_each_seed(12, |seed| {
        let mut rng = SeededRng::new(seed);
        let sim = SimDevice::new(8 << 20, seed);
        let raw: Arc<dyn BlockDevice> = sim.clone();
        format(&raw);
        let (late, pump) = LateDevice::start(Arc::clone(&sim), seed);
        let ftl =
            Ftl::open(late.clone(), Options { background: seed % 2 == 0, ..Options::default() }).unwrap();
        let progress: Vec<Progress> = (0..THREADS).map(|_| Progress::default()).collect();
        sim.set_cut_after(1 + rng.below(400));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (ftl, progress) = (&ftl, &progress[thread as usize]);
                let rng = SeededRng::new(seed * 10 + thread);
                scope.spawn(move || work(ftl, thread, 1500, progress, rng));
            }
        });
        drop(ftl);
        assert_eq!(late.in_flight.load(SeqCst), 0, "nothing is on its way from a store that was dropped");
        assert!(late.in_flight_peak.load(SeqCst) <= 32);
        late.stop(pump);
        sim.power_cycle();
        let ftl = Ftl::open(raw, Options::default()).unwrap();
        for (thread, progress) in (0..).zip(&progress) {
            let (newest, flushed) = (newest(&ftl, thread, progress), progress.flushed.load(SeqCst));
            assert!(newest >= flushed, "thread {thread}: {flushed} was flushed, {newest} is there");
        }
        assert_sound(&ftl);
    });
}

#[test]
fn a_write_that_fails_late_stops_everybody() {
    for_each_seed(6, |seed| {
        let sim = SimDevice::new(8 << 20, seed);
        let raw: Arc<dyn BlockDevice> = sim.clone();
        format(&raw);
        let (late, pump) = LateDevice::start(Arc::clone(&sim), seed);
        let ftl = Ftl::open(late.clone(), Options::default()).unwrap();
        sim.fail_writes_after(1 + seed * 3);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let ftl = &ftl;
                let rng = SeededRng::new(seed * 10 + thread);
                scope.spawn(move || {
                    let error = work(ftl, thread, u64::MAX, &Progress::default(), rng).unwrap_err();
                    assert!(matches!(error, Error::Device(_) | Error::Poisoned { .. }), "{error}");
                });
            }
        });
        assert!(matches!(ftl.flush(), Err(Error::Device(_) | Error::Poisoned { .. })));
        drop(ftl);
        late.stop(pump);
        sim.heal();
        assert_sound(&Ftl::open(raw, Options::default()).unwrap());
    });
}

#[test]
fn many_flush_at_once_beside_the_background_thread() {
    for_each_seed(4, |seed| {
        let sim = SimDevice::new(8 << 20, seed);
        let raw: Arc<dyn BlockDevice> = sim.clone();
        format(&raw);
        let (late, pump) = LateDevice::start(sim, seed);
        let ftl = Ftl::open(late.clone(), Options { background: true, ..Options::default() }).unwrap();
        thread::scope(|scope| {
            for thread in 0..8 {
                let ftl = &ftl;
                scope.spawn(move || {
                    for number in 0..400 {
                        let data = version(thread, number);
                        let op = Op::Write { lba: chunk(thread, number), data: &data };
                        ftl.write_batch(&[op], Stream::Log).unwrap();
                        ftl.flush().unwrap();
                    }
                });
            }
        });
        let stats = ftl.stats();
        assert!(stats.flushes < stats.batches, "flushes are shared: {} for {}", stats.flushes, stats.batches);
        assert_sound(&ftl);
        drop(ftl);
        late.stop(pump);
    });
}
