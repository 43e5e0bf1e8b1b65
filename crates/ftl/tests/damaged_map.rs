//! Random work on stores whose map has leaves that cannot be read: stores that were used for long and are nearly full,
//! with little memory for the map, with a thread in the background or without, and with power cuts. Whatever can be read
//! is what the batches left there, and once the leaves can be read again, nothing is missing.
//!
//! `LACUNA_CASES=n cargo test -p lacuna-ftl --test ftl damaged_map:: -- --nocapture` runs n cases.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use crate::harness::{Change, Model, assert_sound, changes, format, ops};
use lacuna_device::{BlockDevice, DeviceStats, Error as DeviceError, Geometry, Result};
use lacuna_ftl::{Error, Ftl, Lba, Op, Options, SECTOR, Stream, Work};
use lacuna_sim::{SeededRng, SimDevice, for_each_seed};

const CASES: u64 = 40;
const BYTES: u64 = 5 << 20;
const ROUNDS: u64 = 5;
/// Bytes that cannot be read together.
const BAD: u64 = 4096;
/// A sector outside the model, written to learn the number of the last batch.
const PROBE: Lba = Lba(1 << 30);

/// A device of which some blocks cannot be read until they are written.
struct BadBlocks {
    sim: Arc<SimDevice>,
    bad: Mutex<BTreeSet<u64>>,
    read: Mutex<BTreeSet<u64>>,
}

impl BadBlocks {
    fn bad(&self) -> usize {
        self.bad.lock().unwrap().len()
    }

    fn heal(&self) {
        self.bad.lock().unwrap().clear();
    }

    /// Makes some of the blocks bad in which the leaves of the map lie that are not in memory.
    fn spoil(&self, ftl: &Ftl, sectors: u64, rng: &mut SeededRng, many: u64) {
        self.read.lock().unwrap().clear();
        (0..sectors).step_by(32).for_each(|lba| drop(ftl.is_mapped(Lba(lba))));
        let leaves: Vec<u64> = std::mem::take(&mut *self.read.lock().unwrap()).into_iter().collect();
        for _ in 0..if leaves.is_empty() { 0 } else { many } {
            self.bad.lock().unwrap().insert(leaves[rng.below(leaves.len() as u64) as usize]);
        }
    }
}

impl BlockDevice for BadBlocks {
    fn geometry(&self) -> Geometry {
        self.sim.geometry()
    }

    fn name(&self) -> &str {
        self.sim.name()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let blocks = offset / BAD..(offset + buf.len() as u64).div_ceil(BAD);
        self.read.lock().unwrap().extend(blocks.clone());
        if let Some(block) = self.bad.lock().unwrap().range(blocks).next() {
            let error = std::io::Error::other("a bad block");
            return Err(DeviceError::io(format!("read at byte {}", block * BAD), error));
        }
        self.sim.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let blocks = offset / BAD..(offset + data.len() as u64).div_ceil(BAD);
        self.bad.lock().unwrap().retain(|block| !blocks.contains(block));
        self.sim.write_at(offset, data)
    }

    fn sync(&self) -> Result<()> {
        self.sim.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.sim.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.sim.stats()
    }
}

#[derive(Debug, Default)]
struct Seen {
    refused_batches: u64,
    full: u64,
    refused_openings: u64,
    unreadable_sectors: u64,
    batches: u64,
}

struct Case {
    device: Arc<BadBlocks>,
    map_memory: Option<u64>,
    background: bool,
    rng: SeededRng,
    /// After all batches up to the one with number `flushed`.
    model: Model,
    flushed: u64,
    /// The batches since.
    since: Vec<Vec<Change>>,
    seen: Seen,
}

impl Case {
    fn open(&mut self) -> Ftl {
        let Case { map_memory, background, .. } = *self;
        let options = || Options { map_memory, background, ..Options::default() };
        let open = |case: &Case| Ftl::open(case.device.clone() as Arc<dyn BlockDevice>, options());
        match open(self) {
            Ok(ftl) => ftl,
            Err(Error::Corrupt { .. } | Error::Device(DeviceError::Io { .. })) if self.device.bad() > 0 => {
                self.seen.refused_openings += 1;
                self.device.heal();
                open(self).unwrap_or_else(|error| panic!("once all can be read: {error}"))
            }
            Err(error) => panic!("opening: {error}"),
        }
    }

    fn all_flushed(&mut self) {
        for changes in self.since.drain(..) {
            self.model.apply(&changes);
            self.flushed += 1;
        }
    }

    fn batch(&mut self, ftl: &Ftl) -> Result<(), Error> {
        let mut batch = changes(&mut self.rng, self.model.sectors());
        if self.rng.chance(60) {
            let lbas = (0..1 + self.rng.below(20)).map(|_| self.rng.below(self.model.sectors() - 1));
            batch = lbas.map(|lba| Change::Write(lba, vec![0; SECTOR])).collect();
            for change in &mut batch {
                let Change::Write(_, data) = change else { continue };
                self.rng.fill(data);
            }
        }
        if self.rng.chance(3) {
            let len = 1 + self.rng.below(self.model.sectors() / 3);
            batch.insert(0, Change::Trim(self.rng.below(self.model.sectors() - len), len));
        }
        self.since.push(batch.clone());
        match ftl.write_batch(&ops(&batch), Stream::Data) {
            Ok(seq) => assert_eq!(seq.0, self.flushed + self.since.len() as u64, "numbered densely"),
            Err(Error::Full { .. }) => {
                self.seen.full += 1;
                self.since.pop();
            }
            Err(Error::Corrupt { .. } | Error::Device(DeviceError::Io { .. })) if self.device.bad() > 0 => {
                self.seen.refused_batches += 1;
                self.since.pop();
            }
            Err(error) => return Err(error),
        }
        self.seen.batches += 1;
        Ok(())
    }

    fn work(&mut self, ftl: &Ftl, steps: u64) -> Result<(), Error> {
        for _ in 0..steps {
            match self.rng.below(100) {
                0..80 => self.batch(ftl)?,
                80..86 => {
                    ftl.flush()?;
                    self.all_flushed();
                }
                86..92 => drop(ftl.step(Work::Gc)?),
                92..98 => drop(ftl.step(Work::Due)?),
                _ => match ftl.checkpoint() {
                    Err(Error::Full { .. }) if self.device.bad() > 0 => self.seen.full += 1,
                    result => {
                        result?;
                        self.all_flushed();
                    }
                },
            }
        }
        Ok(())
    }

    /// Whatever can be read is as it was left; `last` is the last batch.
    fn compare(&mut self, ftl: &Ftl) {
        let probe = [Op::Write { lba: PROBE, data: &[1; SECTOR] }];
        let last = match ftl.write_batch(&probe, Stream::Data) {
            Ok(seq) => seq.0 - 1,
            Err(_) => ftl.last_seq().0,
        };
        let probes = ftl.last_seq().0 - last;
        assert!(last >= self.flushed, "flushed batches are lost: {last} of {}", self.flushed);
        assert!(last <= self.flushed + self.since.len() as u64, "batches appeared");
        self.since.truncate((last - self.flushed) as usize);
        self.all_flushed();
        ftl.flush().unwrap();
        self.flushed += probes;
        let is_sound = self.device.bad() == 0;
        for lba in 0..self.model.sectors() {
            let mut sector = [0xee; SECTOR];
            match ftl.read(Lba(lba), &mut sector) {
                Ok(()) => assert!(sector == self.model.sector(lba), "sector {lba} differs"),
                Err(Error::Corrupt { .. } | Error::Device(DeviceError::Io { .. })) if !is_sound => {
                    self.seen.unreadable_sectors += 1;
                }
                Err(error) => panic!("sector {lba}: {error}"),
            }
        }
        if is_sound {
            assert_sound(ftl);
        }
    }

    fn end(&mut self, ftl: Ftl, worked: Result<(), Error>) {
        match worked {
            Ok(()) | Err(Error::Device(DeviceError::PowerCut) | Error::Poisoned { .. }) => {}
            Err(error) => panic!("work: {error}"),
        }
        drop(ftl);
        match self.rng.chance(50) && !self.device.sim.is_off() {
            true => self.device.sim.kill(),
            false => self.device.sim.power_cycle(),
        }
    }
}

fn case(seed: u64) -> Seen {
    let sim = SimDevice::with_block_bytes(BYTES, [512, 4096][seed as usize % 2], seed);
    let device = Arc::new(BadBlocks { sim, bad: Mutex::default(), read: Mutex::default() });
    format(&(device.clone() as Arc<dyn BlockDevice>));
    let mut case = Case {
        device,
        map_memory: [Some(0), Some(6 << 10), None][seed as usize % 3],
        background: seed % 4 < 2,
        rng: SeededRng::new(seed),
        model: Model::new(0),
        flushed: 0,
        since: Vec::new(),
        seen: Seen::default(),
    };
    let ftl = case.open();
    let sectors =
        ftl.stats().live_limit_bytes / SECTOR as u64 * [60, 100, 140][(seed / 2 % 3) as usize] / 100;
    case.model = Model::new(sectors);
    case.work(&ftl, 1500).unwrap();
    case.all_flushed();
    ftl.close().unwrap();
    drop(ftl);
    for _ in 0..ROUNDS {
        let many = 1 + case.rng.below(12);
        let mut ftl = case.open();
        let sectors = case.model.sectors();
        let Case { device, rng, .. } = &mut case;
        device.spoil(&ftl, sectors, rng, many);
        if case.rng.chance(60) {
            drop(ftl);
            ftl = case.open();
        }
        let steps = 20 + case.rng.below(300);
        if case.rng.chance(60) {
            case.device.sim.set_cut_after(1 + case.rng.below(600));
        }
        let worked = case.work(&ftl, steps);
        case.end(ftl, worked);
        let ftl = case.open();
        case.compare(&ftl);
        drop(ftl);
        if case.rng.chance(50) {
            case.device.heal();
            let ftl = case.open();
            case.compare(&ftl);
        }
    }
    case.device.heal();
    let ftl = case.open();
    case.compare(&ftl);
    case.seen
}

#[test]
fn what_can_be_read_is_right_and_comes_back_whole() {
    let (mut seen, mut cases) = (Seen::default(), 0);
    for_each_seed(CASES, |seed| {
        let Seen { refused_batches, full, refused_openings, unreadable_sectors, batches } = case(seed);
        seen.refused_batches += refused_batches;
        seen.full += full;
        seen.refused_openings += refused_openings;
        seen.unreadable_sectors += unreadable_sectors;
        seen.batches += batches;
        cases += 1;
    });
    eprintln!("{cases} cases: {seen:?}");
    let is_enough = seen.refused_batches > 5000 && seen.full > 10 && seen.unreadable_sectors > 100_000;
    assert!(is_enough || cases < CASES, "{seen:?}");
}
