//! One case of the crash matrix: work on a store whose log has wrapped, a cut, a kill or a failure, recovery under more
//! of them, and the comparison with the accepted and flushed batches; the same store then continues.

use std::sync::Arc;

use lacuna_device::BlockDevice;
use lacuna_ftl::{
    Error, Footprint, FormatOptions, Ftl, Key, KeyCost, KeyOptions, Lba, LogDeviceUse, NewKey, Op, Options,
    SECTOR, Secret, Stream, Work,
};
use lacuna_sim::{SeededRng, SimDevice};

use super::{
    Change, Model, SEGMENT_BYTES, assert_sound, changes, encode,
    log_device::TestLog,
    ops,
    watch::{Phase, Tally, Watch},
};

/// 40 segments.
const DEVICE_BYTES: u64 = 5 << 19;
/// 160 segments: four classes of lifetime, and some for superblocks.
const GROUPED_BYTES: u64 = 10 << 20;
/// How often each segment was used, on average, when the cuts begin.
const WRAPS: u64 = 3;
const ROUNDS: u64 = 4;
/// How much a store grows at a time, and to what at most.
const GROWTH_BYTES: u64 = 512 << 10;
const GROWN_BYTES_MAX: u64 = DEVICE_BYTES + 6 * GROWTH_BYTES;
/// A sector outside the model, written to learn the number of the last batch.
const PROBE: Lba = Lba(1 << 30);

/// The kind of batches in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Writes and trims of all sizes.
    Mixed,
    /// Writes of one size, and no discards: records of different lives of a segment lie at the same offsets, and stale
    /// bytes stay there.
    Uniform,
    /// The same on a store that is large enough for classes of lifetime, and a small part is overwritten most often.
    Grouped,
}

/// One store, its device, and the expected state.
pub(crate) struct Run {
    pub(crate) device: Arc<Watch>,
    pub(crate) rng: SeededRng,
    /// The space after `flushed`.
    model: Model,
    /// Number of the last batch that is known to be durable.
    flushed: u64,
    /// The batches after it, in order. The last one may have been refused by the cut.
    since: Vec<Vec<Change>>,
    load: Load,
    /// Memory for the map: all, half of it or nothing.
    map_memory: Option<u64>,
    /// Whether the store is on a device with blocks of another size now and then.
    moves: bool,
    /// Memory for summaries of sealed segments: for none, some or all.
    summary_memory: u64,
    chunk_cache: u64,
    footprint: Footprint,
    /// Whether writes are encoded: those of a third of the stores with batches of all sizes.
    encodes: bool,
    /// Half of the stores are encrypted.
    key: Key,
    /// The log device, if the store has one; see [`super::log_device`].
    pub(crate) log: Option<TestLog>,
    /// How many of `since` are flushed: with a log device perhaps only there, so a store that goes on without it need
    /// not have them.
    logged: usize,
}

/// Makes a store, and returns its key.
fn format(device: &Arc<dyn BlockDevice>, is_encrypted: bool, log: Option<&TestLog>) -> Key {
    let secret = Secret::new("any").expect("a key");
    let slot = KeyOptions { cost: KeyCost::MIN, ..KeyOptions::default() };
    let key = is_encrypted.then(|| NewKey { secret: secret.clone(), slot });
    let segment_bytes = Some(SEGMENT_BYTES);
    let log_device = log.map(TestLog::device);
    let options = FormatOptions { segment_bytes, force: true, key, log_device, ..FormatOptions::default() };
    Ftl::format(device.clone(), &options).unwrap();
    if is_encrypted { Key::Secret(secret) } else { Key::None }
}

impl Run {
    pub(crate) fn new(seed: u64, load: Load) -> Run {
        Run::on(seed, load, |_| None)
    }

    /// The same, with the log device that `log` makes beside the device.
    pub(crate) fn on(seed: u64, load: Load, log: impl FnOnce(&SimDevice) -> Option<TestLog>) -> Run {
        let block = if seed.is_multiple_of(4) { 4096 } else { 512 };
        let bytes = if load == Load::Grouped { GROUPED_BYTES } else { DEVICE_BYTES };
        let device =
            Watch::new(SimDevice::with_block_bytes(bytes, block, seed), (seed / 5).is_multiple_of(3));
        let log = log(device.sim());
        let is_encrypted = (seed / 7).is_multiple_of(2);
        let key = format(&(device.clone() as Arc<dyn BlockDevice>), is_encrypted, log.as_ref());
        let mut run = Run {
            device,
            rng: SeededRng::new(seed ^ 0xf71),
            model: Model::new(0),
            flushed: 0,
            since: Vec::new(),
            load,
            map_memory: [None, Some(0), Some(6 << 10)][(seed / 3 % 3) as usize],
            moves: seed % 4 == 1,
            summary_memory: [0, 1 << 10, 8 << 20][(seed / 9 % 3) as usize],
            // All that there is, or nothing: what a small one forgets is not the same on each machine.
            chunk_cache: [0, 32 << 20][(seed / 4 % 2) as usize],
            footprint: Footprint::Live { percent: [133, 200][(seed / 2 % 2) as usize], plus_bytes: 0 },
            encodes: load == Load::Mixed && (seed / 2).is_multiple_of(3),
            key,
            log,
            logged: 0,
        };
        let limit = run.open().expect("a new store").stats().live_limit_bytes;
        // From loosely to well filled; nothing is grouped while little is live.
        let percents = if load == Load::Grouped { [70, 75, 80] } else { [40, 60, 80] };
        let sectors = limit / SECTOR as u64 * percents[(seed % 3) as usize] / 100;
        run.model = Model::new(sectors / 8 * 8);
        run
    }

    /// The same on a copy of the device, with its own random numbers from `seed`.
    pub(crate) fn fork(&self, seed: u64) -> Run {
        let device = self.device.fork(seed);
        Run {
            log: self.log.as_ref().map(|log| log.fork(device.sim(), seed)),
            logged: self.logged,
            device,
            rng: self.rng.clone(),
            model: self.model.clone(),
            flushed: self.flushed,
            since: self.since.clone(),
            load: self.load,
            map_memory: self.map_memory,
            moves: self.moves,
            summary_memory: self.summary_memory,
            chunk_cache: self.chunk_cache,
            footprint: self.footprint,
            encodes: self.encodes,
            key: self.key.clone(),
        }
    }

    pub(crate) fn open(&self) -> Result<Ftl, Error> {
        self.open_with(self.log.as_ref().map_or(LogDeviceUse::None, |log| LogDeviceUse::Device(log.device())))
    }

    fn open_with(&self, log_device: LogDeviceUse) -> Result<Ftl, Error> {
        let discard = self.load != Load::Uniform;
        let Run { map_memory, summary_memory, chunk_cache, .. } = *self;
        let key = self.key.clone();
        // The fewer segments, the fewer classes of lifetime.
        let is_limited = self.device.is_sparse() && self.load != Load::Grouped;
        let footprint = if is_limited { self.footprint } else { Footprint::Whole };
        let log_options = Options { key, log_device, ..Options::default() };
        let options = Options { discard, map_memory, summary_memory, chunk_cache, footprint, ..log_options };
        let ftl = Ftl::open(self.device.clone() as Arc<dyn BlockDevice>, options);
        self.device.enter(Phase::Work);
        ftl
    }

    /// Another device may have been put under the store that is opened next.
    fn change_device(&mut self) {
        if self.moves {
            self.device.set_block_bytes([512, 4096][self.rng.below(2) as usize]);
        }
    }

    /// Makes the store larger, all on the same device.
    fn grow(&mut self, ftl: &Ftl) -> Result<(), Error> {
        let bytes = ftl.stats().capacity_bytes + GROWTH_BYTES;
        if bytes > GROWN_BYTES_MAX || self.device.wraps() < WRAPS {
            return Ok(());
        }
        self.device.enter(Phase::Growth);
        let grown = ftl.grow(Some(bytes)).map(|capacity| assert_eq!(capacity, bytes));
        self.device.enter(Phase::Work);
        grown
    }

    /// All accepted batches are durable.
    fn all_flushed(&mut self) {
        for changes in self.since.drain(..) {
            self.model.apply(&changes);
            self.flushed += 1;
        }
        self.logged = 0;
    }

    /// All accepted batches are durable, perhaps on the log device alone.
    fn all_acknowledged(&mut self) {
        match &self.log {
            Some(_) => self.logged = self.since.len(),
            None => self.all_flushed(),
        }
    }

    fn next_batch(&mut self) -> Vec<Change> {
        if self.load == Load::Mixed {
            return changes(&mut self.rng, self.model.sectors());
        }
        let mut data = vec![0; 4096];
        self.rng.fill(&mut data);
        data[4095] |= 1;
        let pages = self.model.sectors() / 8;
        let is_hot = self.load == Load::Grouped && self.rng.chance(60);
        vec![Change::Write(self.rng.below(if is_hot { pages / 32 } else { pages }) * 8, data)]
    }

    fn batch(&mut self, ftl: &Ftl) -> Result<(), Error> {
        let stream = if self.rng.chance(30) { Stream::Log } else { Stream::Data };
        let batch = self.next_batch();
        let batch = if self.encodes { encode(batch) } else { batch };
        self.since.push(batch.clone());
        match ftl.write_batch(&ops(&batch), stream) {
            Ok(seq) => {
                let expected = self.flushed + self.since.len() as u64;
                assert_eq!(seq.0, expected, "batches are numbered densely");
            }
            Err(Error::Full { .. }) => drop(self.since.pop()),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Works until the power goes, or `steps` are done.
    pub(crate) fn work(&mut self, ftl: &Ftl, steps: u64) -> Result<(), Error> {
        for _ in 0..steps {
            match self.rng.below(100) {
                0..70 => self.batch(ftl)?,
                70..85 => {
                    ftl.flush()?;
                    self.all_acknowledged();
                }
                85..93 => drop(ftl.step(Work::Gc)?),
                93..98 => drop(ftl.step(Work::Due)?),
                98 => self.grow(ftl)?,
                _ => {
                    ftl.checkpoint()?;
                    self.all_flushed();
                }
            }
        }
        Ok(())
    }

    /// Works without a cut until the log has wrapped often enough.
    fn wrap(&mut self, ftl: &Ftl) {
        while self.device.wraps() < WRAPS {
            self.work(ftl, 20).expect("the power is on");
        }
    }

    /// Closes the store and opens it again, sometimes with a cut in between.
    fn reopen(&mut self, ftl: Ftl) -> Result<Ftl, Error> {
        ftl.close()?;
        self.all_flushed();
        drop(ftl);
        self.device.enter(Phase::Open);
        self.change_device();
        self.device.sim().set_cut_after(1 + self.rng.below(8));
        self.open()
    }

    /// Works on a device that begins to fail, until the store is poisoned.
    fn fail(&mut self, ftl: &Ftl) {
        let device = self.device.clone();
        match self.rng.chance(70) {
            _ if self.log.is_some() && self.rng.chance(50) => {
                let (writes, syncs) = (1 + self.rng.below(20), 1 + self.rng.below(10));
                self.log.iter().for_each(|log| log.fail_after(writes, syncs));
            }
            true => device.sim().fail_syncs_after(1 + self.rng.below(6)),
            false => device.sim().fail_writes_after(1 + self.rng.below(20)),
        }
        // Of all syncs, those of checkpoints and retained summaries are few.
        let mut result = match self.rng.chance(40) {
            true => ftl.checkpoint().map(|()| self.all_flushed()),
            false => Ok(()),
        };
        while result.is_ok() {
            result = self.work(ftl, 20);
        }
        device.sim().heal();
        self.log.iter().for_each(TestLog::heal);
    }

    /// Opens the store, with a few cuts, failures and kills during recovery. If the power stayed on, only the process
    /// had ended: the first recovery finds bytes that the device has not made durable yet, and bytes that a failed sync
    /// never will.
    pub(crate) fn recover(&mut self) -> Ftl {
        let mut is_on = !self.device.sim().is_off();
        for _ in 0..self.rng.below(4) {
            let stays_on = is_on && self.rng.chance(70);
            self.restart(stays_on);
            is_on = self.rng.chance(30);
            match is_on {
                true => self.fail_recovery(),
                false => self.cut_recovery(),
            }
        }
        let stays_on = is_on && self.rng.chance(50);
        self.restart(stays_on);
        self.open().unwrap_or_else(|error| panic!("recovery: {error}"))
    }

    /// Ends the process, or cuts the power and turns it on again.
    fn restart(&mut self, stays_on: bool) {
        self.change_device();
        if self.log.is_some() && self.device.sim().is_off() {
            self.device.note_cut();
        }
        match stays_on {
            true => self.device.sim().kill(),
            false => {
                self.device.sim().power_cycle();
                self.log.iter().for_each(TestLog::power_cycle);
            }
        }
    }

    /// Turns both devices on again after a cut.
    pub(crate) fn power_cycle(&mut self) {
        self.restart(false);
    }

    /// The same, and the log device is lost.
    pub(crate) fn lose_log_after_a_cut(&mut self, fresh: impl Fn(&SimDevice) -> TestLog) -> Ftl {
        self.power_cycle();
        self.lose_log(fresh)
    }

    fn cut_recovery(&mut self) {
        self.device.sim().set_cut_after(1 + self.rng.below(16));
        self.device.enter(Phase::Recovery);
        match self.open() {
            Err(Error::Device(lacuna_device::Error::PowerCut)) | Ok(_) => {}
            Err(error) => panic!("recovery under a power cut: {error}"),
        }
    }

    fn fail_recovery(&mut self) {
        self.device.sim().fail_writes_after(1 + self.rng.below(16));
        if self.rng.chance(50) {
            self.device.sim().fail_syncs_after(1 + self.rng.below(5));
        }
        match self.open() {
            Err(Error::Device(lacuna_device::Error::Io { .. })) | Ok(_) => {}
            Err(error) => panic!("recovery on a device that fails: {error}"),
        }
        self.device.sim().heal();
    }

    /// Checks a recovered store against the history.
    pub(crate) fn compare(&mut self, ftl: &Ftl) {
        self.compare_from(ftl, self.logged);
    }

    /// The log device is lost: the store goes on without it from some moment since the last checkpoint, and gets a new
    /// one at its next opening. The old one is refused from then on.
    fn lose_log(&mut self, fresh: impl Fn(&SimDevice) -> TestLog) -> Ftl {
        let refused = self.open_with(LogDeviceUse::None).map(drop);
        assert!(matches!(refused, Err(Error::LogDevice { .. })), "{refused:?}");
        let ftl = self.open_with(LogDeviceUse::Without).unwrap_or_else(|error| panic!("without: {error}"));
        self.compare_from(&ftl, 0);
        drop(ftl);
        let old = self.log.take().expect("a store with a log device");
        let refused = self.open_with(LogDeviceUse::Device(old.device())).map(drop);
        assert!(matches!(refused, Err(Error::LogDevice { .. })), "{refused:?}");
        let new = fresh(self.device.sim());
        let ftl = self.open_with(LogDeviceUse::New(new.device())).unwrap();
        drop(ftl);
        let refused = self.open_with(LogDeviceUse::Device(old.device())).map(drop);
        assert!(matches!(refused, Err(Error::LogDevice { .. })), "{refused:?}");
        self.log = Some(new);
        self.open().unwrap()
    }

    fn compare_from(&mut self, ftl: &Ftl, logged: usize) {
        assert_sound(ftl);
        let probe = [Op::Write { lba: PROBE, data: &[1; SECTOR] }];
        let last = ftl.write_batch(&probe, Stream::Data).expect("space for the probe").0 - 1;
        let accepted = self.flushed + self.since.len() as u64;
        let promised = self.flushed + logged as u64;
        assert!(last >= promised, "flushed batches are lost: {last} of {promised}");
        assert!(last <= accepted, "batches appeared: {last} of {accepted}");
        self.since.truncate((last - self.flushed) as usize);
        self.all_flushed();
        self.model.assert_same(ftl);
        // The probe is a batch too.
        match self.log {
            Some(_) => ftl.checkpoint().expect("the power is on"),
            None => ftl.flush().expect("the power is on"),
        }
        self.flushed += 1;
    }
}

pub(crate) fn assert_cut(result: Result<(), Error>) {
    match result {
        Ok(()) | Err(Error::Device(lacuna_device::Error::PowerCut) | Error::Poisoned { .. }) => {}
        Err(error) => panic!("work under a power cut: {error}"),
    }
}

/// Runs one case. Returns where its cuts fell.
pub(crate) fn case(seed: u64, load: Load) -> Tally {
    run_case(Run::new(seed, load), load)
}

/// The same, of a store that was made already.
pub(crate) fn run_case(mut run: Run, load: Load) -> Tally {
    let mut ftl = run.open().expect("a new store");
    run.wrap(&ftl);
    for _ in 0..ROUNDS {
        if run.rng.chance(30) {
            let steps = run.rng.below(100);
            run.work(&ftl, steps).expect("the power is on");
            run.fail(&ftl);
            drop(ftl);
        } else {
            let ops_max = if run.rng.chance(50) { 60 } else { 300 };
            let collects = run.rng.chance(15);
            run.device.sim().set_cut_after(1 + run.rng.below(if collects { 8 } else { ops_max }));
            let worked = match collects {
                true => (0..20).try_for_each(|_| ftl.step(Work::Gc).map(drop)),
                false => run.work(&ftl, 200),
            };
            let reopened = match worked {
                Ok(()) if run.rng.chance(50) => {
                    drop(ftl);
                    Ok(())
                }
                Ok(()) => run.reopen(ftl).map(drop),
                cut => cut,
            };
            assert_cut(reopened);
        }
        ftl = run.recover();
        run.compare(&ftl);
    }
    assert!(run.device.wraps() >= WRAPS);
    assert!(load != Load::Grouped || run.device.classes() >= 3, "{} classes", run.device.classes());
    run.device.tally()
}
