//! Each single call of the device, or of the log device, fails once, in turn: with an error, for want of space, or when
//! half of a write was made. The store reports the error or works on. What was acknowledged is there at the next opening,
//! after a power cut too.
//!
//! An ordinary run tries every eighth call; `LACUNA_CASES=32 cargo test -p lacuna-ftl --test ftl nth_fault` tries all.

use std::{
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use crate::harness::{Change, Model, SEGMENT_BYTES, assert_sound, changes, ops};
use lacuna_device::{
    BlockDevice, DeviceStats, Error as DeviceError, Filled, Geometry, LogDevice, Result, WriteDone,
};
use lacuna_ftl::{Error, FormatOptions, Ftl, Lba, LogDeviceUse, Options, SECTOR, Stream, Work};
use lacuna_sim::{SeededRng, SimDevice, SimMemory, for_each_seed};

const DEVICE_BYTES: u64 = 4 << 20;
const STORE_BYTES: u64 = 3 << 20;
const SECTORS: u64 = 1000;
const HISTORIES: u64 = 4;
/// One of so many calls fails in a case.
const STEP: usize = 8;

/// What fails is the call after `left` others, of device and log device together.
#[derive(Default)]
struct Faults {
    left: AtomicU64,
    kind: AtomicU64,
}

impl Faults {
    fn call(&self) -> Result<()> {
        if self.left.fetch_sub(1, SeqCst) != 1 {
            return Ok(());
        }
        let kind = if self.kind.load(SeqCst) == 1 { ErrorKind::StorageFull } else { ErrorKind::Other };
        Err(DeviceError::io("the test's", kind.into()))
    }

    /// As [`Faults::call`], for a write of `data` in blocks.
    fn write(&self, data: &[u8], block_bytes: u32, write: impl Fn(&[u8]) -> Result<()>) -> Result<()> {
        let called = self.call();
        if called.is_err() && self.kind.load(SeqCst) == 2 {
            write(&data[..data.len() / 2 / block_bytes as usize * block_bytes as usize])?;
        }
        called.and_then(|()| write(data))
    }
}

struct FailsOnce<D: ?Sized> {
    inner: Arc<D>,
    faults: Arc<Faults>,
}

impl BlockDevice for FailsOnce<SimDevice> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.faults.call()?;
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let block_bytes = self.geometry().block_bytes;
        self.faults.write(data, block_bytes, |data| self.inner.write_at(offset, data))
    }

    fn submit_write(&self, offset: u64, data: Filled, done: WriteDone) {
        let outcome = self.write_at(offset, &data);
        done(outcome, data);
    }

    fn sync(&self) -> Result<()> {
        self.faults.call()?;
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.faults.call()?;
        self.inner.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

impl LogDevice for FailsOnce<SimMemory> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }

    fn unit_bytes(&self) -> u32 {
        self.inner.unit_bytes()
    }

    fn is_volatile(&self) -> bool {
        self.inner.is_volatile()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.faults.call()?;
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.faults.write(data, self.unit_bytes(), |data| self.inner.write_at(offset, data))
    }

    fn write_back(&self, offset: u64, len: u64) -> Result<()> {
        self.faults.call()?;
        self.inner.write_back(offset, len)
    }

    fn fence(&self) -> Result<()> {
        self.faults.call()?;
        self.inner.fence()
    }
}

struct Case {
    faults: Arc<Faults>,
    device: Arc<FailsOnce<SimDevice>>,
    log: Option<Arc<FailsOnce<SimMemory>>>,
    batches: Vec<Vec<Change>>,
    /// Of the batches, as many were acknowledged, and as many tried.
    acknowledged: usize,
    tried: usize,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut rng = SeededRng::new(seed);
        let inner = SimDevice::with_block_bytes(DEVICE_BYTES, [512, 4096][seed as usize / 2 % 2], seed);
        let faults = Arc::<Faults>::default();
        let log = seed.is_multiple_of(2).then(|| SimMemory::beside(&inner, 256 << 10, seed));
        let log = log.map(|inner| Arc::new(FailsOnce { inner, faults: faults.clone() }));
        let format = FormatOptions {
            segment_bytes: Some(SEGMENT_BYTES),
            capacity_bytes: Some(STORE_BYTES),
            log_device: log.clone().map(|log| log as _),
            ..FormatOptions::default()
        };
        Ftl::format(inner.clone(), &format).unwrap();
        let batches = (0..400).map(|_| changes(&mut rng, SECTORS)).collect();
        let device = Arc::new(FailsOnce { inner, faults: faults.clone() });
        Case { faults, device, log, batches, acknowledged: 0, tried: 0 }
    }

    fn options(&self) -> Options {
        let log_device = self.log.clone().map_or(LogDeviceUse::None, |log| LogDeviceUse::Device(log));
        // No leaf stays in memory longer than it must.
        Options { log_device, map_memory: Some(0), summary_memory: 0, chunk_cache: 0, ..Options::default() }
    }

    fn open(&self) -> Result<Ftl, Error> {
        Ftl::open(self.device.clone(), self.options())
    }

    fn write(&mut self, ftl: &Ftl, batches: usize) -> Result<(), Error> {
        for _ in 0..batches {
            self.tried += 1;
            ftl.write_batch(&ops(&self.batches[self.tried - 1]), Stream::Data)?;
        }
        Ok(())
    }

    fn acknowledge(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        result.map(|()| self.acknowledged = self.tried)
    }

    /// Each kind of work. A call that fails ends it, but what the store says after that must hold too.
    fn work(&mut self) -> Result<(), Error> {
        let ftl = self.open()?;
        self.write(&ftl, 60)?;
        self.acknowledge(ftl.flush())?;
        let worked = self.use_store(&ftl);
        if worked.is_err() {
            // The batch that failed may be there or not.
            let tried = self.tried;
            let accepted = if ftl.flush().is_ok() { tried - 1 } else { 0 };
            self.acknowledged = self.acknowledged.max(accepted);
            return worked;
        }
        drop(ftl); // not closed
        let (salvaged, losses) = Ftl::salvage(self.device.clone(), self.options())?;
        assert!(!losses.is_empty() || self.state(&salvaged)?.is_some(), "salvage left something out");
        drop(salvaged);
        let ftl = self.open()?;
        let state = self.state(&ftl)?.expect("what was acknowledged");
        self.batches.drain(state..self.tried); // lost with the process
        self.tried = state;
        self.write(&ftl, 20)?;
        self.acknowledge(ftl.close())
    }

    fn use_store(&mut self, ftl: &Ftl) -> Result<(), Error> {
        for _ in 0..4 {
            self.write(ftl, 25)?;
            ftl.step(Work::Gc)?;
            self.acknowledge(ftl.flush())?;
            ftl.step(Work::Due)?;
        }
        self.acknowledge(ftl.checkpoint())?;
        ftl.grow(Some(DEVICE_BYTES))?;
        self.write(ftl, 10)?;
        self.acknowledge(ftl.flush())?;
        self.write(ftl, 3)
    }

    /// How many of the batches are there; none if it is not all that were acknowledged, and maybe some more.
    fn state(&self, ftl: &Ftl) -> Result<Option<usize>, Error> {
        let mut found = vec![0; SECTORS as usize * SECTOR];
        ftl.read(Lba(0), &mut found)?;
        let mut model = Model::new(SECTORS);
        let mut is_state = |batches: &usize| {
            if *batches > 0 {
                model.apply(&self.batches[batches - 1]);
            }
            let mut sectors = (0..SECTORS).zip(found.chunks(SECTOR));
            *batches >= self.acknowledged && sectors.all(|(lba, found)| found == model.sector(lba))
        };
        Ok((0..=self.tried).find(|batches| is_state(batches)))
    }
}

#[test]
fn no_single_fault_loses_what_was_acknowledged() {
    for_each_seed(HISTORIES, |case| {
        let (seed, first) = (case % HISTORIES, (case / HISTORIES + case) % STEP as u64);
        let mut counted = Case::new(seed);
        counted.faults.left.store(u64::MAX, SeqCst);
        counted.work().unwrap();
        let calls = u64::MAX - counted.faults.left.load(SeqCst);
        let (mut told, mut tried) = (0, 0);
        for n in (1 + first..=calls).step_by(STEP) {
            tried += 1;
            let mut case = Case::new(seed);
            case.faults.left.store(n, SeqCst);
            case.faults.kind.store(n % 3, SeqCst);
            told += u64::from(case.work().is_err());
            case.faults.left.store(0, SeqCst);
            match n / STEP as u64 % 2 {
                0 => case.device.inner.kill(),
                _ => {
                    case.device.inner.power_cycle();
                    case.log.iter().for_each(|log| log.inner.power_cycle());
                }
            }
            let at = format!("call {n} of {calls}");
            let ftl = case.open().unwrap_or_else(|error| panic!("{at}: {error}"));
            assert!(case.state(&ftl).unwrap().is_some(), "{at}: {} acknowledged", case.acknowledged);
            assert_sound(&ftl);
            ftl.close().unwrap();
        }
        assert!(told > tried / 4, "{told} of {tried} told");
    });
}
