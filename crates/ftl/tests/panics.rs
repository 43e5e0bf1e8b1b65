//! A device that panics, or forgets a request, in the middle of a store's work: no thread waits for ever, all get an
//! error, and everything that was flushed is there when the store is opened again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use crate::harness::{assert_sound, format};
use lacuna_device::{BlockDevice, DeviceStats, Filled, Geometry, Result, WriteDone};
use lacuna_ftl::{Error, Ftl, Lba, Op, Options, SECTOR, Stream};
use lacuna_sim::{SeededRng, SimDevice, for_each_seed};

const THREADS: u64 = 3;
const PAGES: u64 = 16;
const PAGE_SECTORS: u64 = 32;
/// How long a stopped store may take to release all threads.
const PATIENCE: Duration = Duration::from_secs(20);

/// A fault in the n-th write or sync, in whichever thread that occurs.
struct Fused {
    inner: Arc<SimDevice>,
    left: AtomicU64,
    forgets: bool,
}

impl Fused {
    fn burns_down(&self) -> bool {
        let burn = |left: u64| left.checked_sub(1);
        self.left.fetch_update(SeqCst, SeqCst, burn) == Ok(1)
    }

    fn burn(&self) {
        assert!(!self.burns_down(), "the test's fuse");
    }
}

impl BlockDevice for Fused {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        "fused device"
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.burn();
        self.inner.write_at(offset, data)
    }

    fn submit_write(&self, offset: u64, data: Filled, done: WriteDone) {
        if self.forgets && self.burns_down() {
            return;
        }
        let outcome = self.write_at(offset, &data);
        done(outcome, data);
    }

    fn sync(&self) -> Result<()> {
        self.burn();
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

fn lba(thread: u64, round: u64) -> Lba {
    Lba((thread * PAGES + round % PAGES) * PAGE_SECTORS)
}

fn page(thread: u64, round: u64) -> Vec<u8> {
    let mut rng = SeededRng::new(thread << 32 | round);
    let mut data = vec![0; (1 + rng.below(PAGE_SECTORS) as usize) * SECTOR];
    rng.fill(&mut data);
    data.resize(PAGE_SECTORS as usize * SECTOR, 0);
    data
}

fn write(ftl: &Ftl, thread: u64, round: u64) -> Result<(), Error> {
    let data = page(thread, round);
    let stream = if thread == 0 { Stream::Log } else { Stream::Data };
    ftl.write_batch(&[Op::Write { lba: lba(thread, round), data: &data }], stream).map(drop)
}

/// Writes, reads back and flushes until the store stops; returns the last round that was flushed.
fn work(ftl: &Ftl, thread: u64) -> u64 {
    let mut flushed = 0;
    let mut back = vec![0; PAGE_SECTORS as usize * SECTOR];
    let mut attempt = |round: u64| {
        write(ftl, thread, round)?;
        ftl.read(lba(thread, round), &mut back)?;
        assert!(back == page(thread, round), "thread {thread} reads what it has not written");
        if round % 4 == thread {
            ftl.flush()?;
            flushed = round;
        }
        Ok(())
    };
    match (1..).find_map(|round| attempt(round).err()) {
        Some(Error::Poisoned { .. } | Error::Device(_)) => flushed,
        other => panic!("not told: {other:?}"),
    }
}

fn run(seed: u64) {
    let mut rng = SeededRng::new(seed);
    let inner = SimDevice::new(8 << 20, seed);
    let device =
        Arc::new(Fused { inner: Arc::clone(&inner), left: AtomicU64::new(0), forgets: rng.chance(30) });
    let shared: Arc<dyn BlockDevice> = device.clone();
    format(&shared);
    let background = rng.chance(50);
    let ftl = Arc::new(Ftl::open(shared, Options { background, ..Options::default() }).unwrap());
    device.left.store(1 + rng.below(900), SeqCst);
    let (ended, all_ended) = mpsc::channel();
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (ftl, ended) = (Arc::clone(&ftl), ended.clone());
            thread::spawn(move || {
                let _ended = ended; // also by a panic
                work(&ftl, thread)
            })
        })
        .collect();
    drop(ended);
    assert_eq!(
        all_ended.recv_timeout(PATIENCE),
        Err::<(), _>(mpsc::RecvTimeoutError::Disconnected),
        "somebody still waits"
    );
    let flushed: Vec<Option<u64>> = threads.into_iter().map(|thread| thread.join().ok()).collect();
    assert!(write(&ftl, 0, 1).is_err()); // with the failure itself, if no call has returned it yet
    assert!(ftl.flush().is_err() && ftl.checkpoint().is_err());
    drop(ftl);

    let again: Arc<dyn BlockDevice> = inner;
    let ftl = Ftl::open(again, Options::default()).unwrap();
    assert_sound(&ftl);
    let mut back = vec![0; PAGE_SECTORS as usize * SECTOR];
    for (thread, flushed) in (0..).zip(flushed) {
        for round in (1..=flushed.unwrap_or(0)).rev().take(PAGES as usize) {
            ftl.read(lba(thread, round), &mut back).unwrap();
            let is_it = (0..).map(|lap| round + lap * PAGES).take(3).any(|later| back == page(thread, later));
            assert!(is_it, "seed {seed}: round {round} of thread {thread} was flushed");
        }
    }
}

#[test]
fn a_panic_stops_the_store_for_everybody() {
    for_each_seed(40, run);
}
