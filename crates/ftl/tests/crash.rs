//! The crash matrix: seeded work, a power cut in any write, sync or discard, more cuts during
//! recovery, then the comparison with what was accepted and flushed, and on with the same store.

mod harness;

use std::sync::Arc;

use harness::{Change, Model, assert_sound, changes, format, ops};
use lacuna_device::{
    BlockDevice,
    sim::{SeededRng, SimDevice, for_each_seed},
};
use lacuna_ftl::{Error, Ftl, Lba, Op, Options, Stream, Work};

const DEVICE_BYTES: u64 = 3 << 20;
/// A sector outside the model, written to learn the number of the last batch.
const PROBE: Lba = Lba(1 << 30);

/// One store, its device, and what is known of it.
struct Run {
    device: Arc<SimDevice>,
    rng: SeededRng,
    /// The space after `flushed`.
    model: Model,
    /// Number of the last batch that is known to be durable.
    flushed: u64,
    /// The batches after it, in order. The last one may have been refused by the cut.
    since: Vec<Vec<Change>>,
    /// All batches have the same size, so that records of different lives of a segment lie at the
    /// same offsets, and discards are off, so that they stay there.
    uniform: bool,
}

impl Run {
    fn new(seed: u64) -> Run {
        let block = if seed.is_multiple_of(4) { 4096 } else { 512 };
        let device = SimDevice::with_block_bytes(DEVICE_BYTES, block, seed);
        format(&(device.clone() as Arc<dyn BlockDevice>));
        let rng = SeededRng::new(seed ^ 0xf71);
        // From loosely to well filled.
        let sectors = [800, 1400, 1800][(seed % 3) as usize];
        Run { device, rng, model: Model::new(sectors), flushed: 0, since: Vec::new(), uniform: seed % 5 < 2 }
    }

    fn open(&self) -> Result<Ftl, Error> {
        let options = Options { discard: !self.uniform, ..Options::default() };
        Ftl::open(self.device.clone() as Arc<dyn BlockDevice>, options)
    }

    /// All accepted batches are durable.
    fn all_flushed(&mut self) {
        for changes in self.since.drain(..) {
            self.model.apply(&changes);
            self.flushed += 1;
        }
    }

    fn next_batch(&mut self) -> Vec<Change> {
        if !self.uniform {
            return changes(&mut self.rng, self.model.sectors());
        }
        let mut data = vec![0; 4096];
        self.rng.fill(&mut data);
        data[4095] |= 1;
        vec![Change::Write(self.rng.below(self.model.sectors() / 8) * 8, data)]
    }

    /// Works until the power goes, or `steps` are done.
    fn work(&mut self, ftl: &Ftl, steps: u64) -> Result<(), Error> {
        for _ in 0..steps {
            match self.rng.below(100) {
                0..70 => {
                    let stream = if self.rng.chance(30) { Stream::Log } else { Stream::Data };
                    let batch = self.next_batch();
                    self.since.push(batch.clone());
                    let seq = ftl.write_batch(&ops(&batch), stream)?;
                    assert_eq!(seq.0, self.flushed + self.since.len() as u64, "batches are numbered densely");
                }
                70..85 => {
                    ftl.flush()?;
                    self.all_flushed();
                }
                85..96 => drop(ftl.step(Work::Gc)?),
                96..98 => drop(ftl.step(Work::Due)?),
                _ => {
                    ftl.checkpoint()?;
                    self.all_flushed();
                }
            }
        }
        Ok(())
    }

    /// Turns the power on and opens the store, with a few cuts during recovery.
    fn recover(&mut self) -> Ftl {
        for _ in 0..self.rng.below(4) {
            self.device.power_cycle();
            self.device.set_cut_after(1 + self.rng.below(8));
            match self.open() {
                Err(Error::Device(lacuna_device::Error::PowerCut)) => {}
                Err(error) => panic!("recovery under a power cut: {error}"),
                Ok(_) => self.device.set_cut_after(0),
            }
        }
        self.device.power_cycle();
        self.open().unwrap_or_else(|error| panic!("recovery: {error}"))
    }

    /// Holds a recovered store against the history.
    fn compare(&mut self, ftl: &Ftl) {
        assert_sound(ftl);
        let probe = [Op::Write { lba: PROBE, data: &[1; 512] }];
        let last = ftl.write_batch(&probe, Stream::Data).unwrap().0 - 1;
        let accepted = self.flushed + self.since.len() as u64;
        assert!(last >= self.flushed, "flushed batches are lost: {last} of {}", self.flushed);
        assert!(last <= accepted, "batches appeared: {last} of {accepted}");
        self.since.truncate((last - self.flushed) as usize);
        self.all_flushed();
        self.model.assert_same(ftl);
        // The probe is a batch too.
        ftl.flush().unwrap();
        self.flushed += 1;
    }
}

fn assert_cut(result: Result<(), Error>) {
    match result {
        Ok(()) | Err(Error::Device(lacuna_device::Error::PowerCut) | Error::Poisoned { .. }) => {}
        Err(error) => panic!("work under a power cut: {error}"),
    }
}

#[test]
fn any_cut_leaves_a_prefix_that_holds_all_flushed_batches() {
    for_each_seed(240, |seed| {
        let mut run = Run::new(seed);
        let mut ftl = run.open().unwrap();
        for _ in 0..4 {
            let ops_max = if run.rng.chance(50) { 60 } else { 500 };
            run.device.set_cut_after(1 + run.rng.below(ops_max));
            let result = run.work(&ftl, 300);
            assert_cut(result);
            drop(ftl);
            ftl = run.recover();
            run.compare(&ftl);
        }
    });
}

/// The same short run, cut in each of its operations in turn.
#[test]
fn every_operation_of_a_run_may_be_the_last() {
    for_each_seed(2, |seed| {
        for cut in 1.. {
            let mut run = Run::new(seed);
            let ftl = run.open().unwrap();
            run.device.set_cut_after(cut);
            let result = run.work(&ftl, 60);
            let finished = result.is_ok();
            assert_cut(result);
            drop(ftl);
            run.device.set_cut_after(0);
            let ftl = run.recover();
            run.compare(&ftl);
            if finished {
                break;
            }
        }
    });
}

/// Recovery itself, cut in each of its operations in turn, on many outcomes of the same crash.
#[test]
fn every_operation_of_recovery_may_be_the_last() {
    for_each_seed(6, |seed| {
        let mut run = Run::new(seed);
        let ftl = run.open().unwrap();
        run.work(&ftl, 80).unwrap();
        drop(ftl);
        run.device.set_cut_after(0);
        for cut in 1.. {
            let device = run.device.fork(seed * 1000 + cut);
            device.power_cycle();
            device.set_cut_after(cut);
            let mut fork = Run {
                device,
                rng: run.rng.clone(),
                model: run.model.clone(),
                flushed: run.flushed,
                since: run.since.clone(),
                uniform: run.uniform,
            };
            let finished = fork.open().is_ok();
            fork.device.power_cycle();
            let ftl = fork.open().unwrap();
            fork.compare(&ftl);
            if finished {
                break;
            }
        }
    });
}

/// Crash after crash with hardly any work between: no room may leak.
#[test]
fn crash_loops_do_not_eat_the_store() {
    for_each_seed(4, |seed| {
        let mut run = Run::new(seed);
        for _ in 0..150 {
            let ftl = run.open().unwrap();
            let result = run.work(&ftl, 1 + seed % 4);
            result.unwrap();
            run.device.set_cut_after(1 + run.rng.below(6));
            let cut = ftl.step(Work::Gc).map(drop);
            assert_cut(cut);
            drop(ftl);
            let ftl = run.recover();
            run.compare(&ftl);
        }
    });
}

/// Stores full of tiny extents, whose checkpoints are large, and an unflushed trim of all of them that
/// the cut may undo: recovery must find room for its checkpoint all the same.
#[test]
fn recovery_has_room_for_the_largest_map() {
    for_each_seed(20, |seed| {
        let device = SimDevice::new(DEVICE_BYTES, seed);
        let shared: Arc<dyn BlockDevice> = device.clone();
        format(&shared);
        let mut rng = SeededRng::new(seed);
        let mut ftl = harness::open(&shared);
        for round in 0..6 {
            let mut sector = [0; 512];
            let mut next = 0;
            loop {
                sector[..16].fill(1 + round);
                let writes = (0..200).map(|index| Op::Write { lba: Lba((next + index) * 2), data: &sector });
                match ftl.write_batch(&writes.collect::<Vec<_>>(), Stream::Data) {
                    Ok(_) => next += 200,
                    Err(Error::Full { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            ftl.flush().unwrap();
            ftl.write_batch(&[Op::Trim { lba: Lba(0), sectors: 1 << 40 }], Stream::Log).unwrap();
            device.set_cut_after(1 + rng.below(60));
            let data = [7; 16384];
            let cut = loop {
                let write = [Op::Write { lba: Lba(rng.below(20) * 32), data: &data }];
                if let Err(error) = ftl.write_batch(&write, Stream::Data) {
                    break error;
                }
            };
            assert_cut(Err(cut));
            drop(ftl);
            device.power_cycle();
            ftl = harness::open(&shared);
            assert_sound(&ftl);
            ftl.write_batch(&[Op::Trim { lba: Lba(0), sectors: 1 << 40 }], Stream::Log).unwrap();
        }
    });
}
