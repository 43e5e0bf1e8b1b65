//! Shared by both crash matrices: tiny stores, recovery under power cuts, and what may survive.

#[path = "../../../ftl/tests/harness/log_device.rs"]
#[allow(dead_code, reason = "shared with the tests of the ftl")]
mod log_device;
#[path = "../../../ftl/tests/harness/watch.rs"]
#[allow(dead_code, reason = "shared with the tests of the ftl")]
pub(crate) mod watch;

use std::sync::Arc;

use lacuna_device::{BlockDevice, LogDevice};
use lacuna_ftl::{self as ftl, LogDeviceUse, Work};
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options, posix::Caller};
use lacuna_sim::{CutTally, SeededRng, SimDevice, for_each_seed};

use log_device::TestLog;
use watch::{Phase, Place, Tally, Watch};

pub(crate) const SEGMENT_BYTES: u32 = 64 << 10;
/// The fewest that the ftl takes are 24. The largest batches of these tests need a few more.
const SEGMENTS: u64 = 28;
/// Enough for four classes of lifetime, and some for superblocks.
const GROUPED_SEGMENTS: u64 = 160;
pub(crate) const CAPACITY: u64 = SEGMENTS * SEGMENT_BYTES as u64;
/// How often each segment of a grouped store was used, on average, when the cuts begin.
const WRAPS: u64 = 3;

/// The states that a file system went through since the oldest that a crash may bring back.
pub(crate) struct History<S> {
    pub(crate) states: Vec<S>,
}

impl<S> History<S> {
    pub(crate) fn now(&self) -> &S {
        self.states.last().expect("a history has a state")
    }

    pub(crate) fn synced(&mut self) {
        self.lost(self.states.len() - 1);
    }

    /// A crash does not bring the oldest `states` back any more.
    pub(crate) fn lost(&mut self, states: usize) {
        self.states.drain(..states);
    }
}

fn device(seed: u64, segments: u64) -> Arc<SimDevice> {
    SimDevice::with_block_bytes(segments * u64::from(SEGMENT_BYTES), [512, 4096][seed as usize % 2], seed)
}

fn format(device: Arc<dyn BlockDevice>, log_device: Option<Arc<dyn LogDevice>>) {
    let mut format =
        FormatOptions { uuid: Some([9; 16]), owner: Some(Caller::default()), ..FormatOptions::default() };
    format.ftl.segment_bytes = Some(SEGMENT_BYTES);
    format.ftl.log_device = log_device;
    Nvmfs::format(device, &format).unwrap();
}

pub(crate) fn formatted(seed: u64) -> Arc<SimDevice> {
    let device = device(seed, SEGMENTS);
    format(device.clone(), None);
    device
}

pub(crate) fn open(device: &Arc<SimDevice>) -> lacuna_nvmfs::Result<Nvmfs> {
    Rig::of(device).open()
}

/// Opens the store after a power cut or the end of the process, with more of these, or failures, during recovery.
pub(crate) fn recover(device: &Arc<SimDevice>, rng: &mut SeededRng) -> Nvmfs {
    Rig::of(device).recover(rng)
}

/// Which stores a matrix has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Small ones, with one class of lifetime.
    Small,
    /// Stores with several, most with a log device beside them. Of one large file a small part is overwritten most often.
    Grouped,
}

/// A store, and what watches over it.
pub(crate) struct Rig {
    pub(crate) watch: Arc<Watch>,
    load: Load,
    log: Option<TestLog>,
    map_memory: Option<u64>,
}

impl Rig {
    fn of(device: &Arc<SimDevice>) -> Rig {
        Rig { watch: Watch::new(Arc::clone(device), false), load: Load::Small, log: None, map_memory: None }
    }

    /// A new store.
    pub(crate) fn new(seed: u64, load: Load) -> Rig {
        let (segments, log_bytes) = match load {
            Load::Small => (SEGMENTS, None),
            Load::Grouped => (GROUPED_SEGMENTS, [None, Some(256 << 10), Some(1 << 20)][(seed % 3) as usize]),
        };
        let device = device(seed, segments);
        let log = log_bytes.map(|bytes| match seed / 3 % 2 {
            0 => TestLog::memory(&device, bytes, seed),
            _ => TestLog::blocks(&device, bytes, 512, seed),
        });
        let map_memory = [None, Some(0)][(seed / 2 % 2) as usize];
        let rig = Rig { log, load, map_memory, ..Rig::of(&device) };
        format(rig.watch.clone(), rig.log.as_ref().map(TestLog::device));
        rig
    }

    pub(crate) fn device(&self) -> &SimDevice {
        self.watch.sim()
    }

    pub(crate) fn is_grouped(&self) -> bool {
        self.load == Load::Grouped
    }

    /// Percent of the space that data may take, which are to be filled before the cuts begin. Nothing is grouped while
    /// little is live.
    pub(crate) fn fill_percent(&self, rng: &mut SeededRng, most: u64) -> u64 {
        if self.is_grouped() { 65 + rng.below(15) } else { rng.below(most) }
    }

    /// Whether more must be overwritten before the cuts begin.
    pub(crate) fn is_fresh(&self) -> bool {
        self.is_grouped() && self.watch.wraps() < WRAPS
    }

    /// How much of a large file, from its beginning, the next change may fall in.
    pub(crate) fn part_of(&self, rng: &mut SeededRng, len: u64) -> u64 {
        if self.is_grouped() && rng.chance(60) { (len / 32).next_multiple_of(512).clamp(1, len) } else { len }
    }

    /// Few inodes stay in memory, so that they are read again and again.
    pub(crate) fn open(&self) -> lacuna_nvmfs::Result<Nvmfs> {
        let log_device =
            self.log.as_ref().map_or(LogDeviceUse::None, |log| LogDeviceUse::Device(log.device()));
        let map_memory = self.map_memory;
        let ftl = ftl::Options { background: false, log_device, map_memory, ..ftl::Options::default() };
        let opened = Nvmfs::open(self.watch.clone(), Options { ftl, inodes_kept: 4, ..Options::default() });
        self.watch.enter(Phase::Work);
        opened
    }

    /// As [`recover`].
    pub(crate) fn recover(&self, rng: &mut SeededRng) -> Nvmfs {
        let device = self.device();
        for cut in 0.. {
            device.heal();
            if self.log.is_some() && device.is_off() {
                self.watch.note_cut();
            }
            if rng.chance(30) {
                device.kill();
            } else {
                device.power_cycle();
                self.log.iter().for_each(TestLog::power_cycle);
            }
            match rng.below(100) {
                0..60 if cut < 3 => device.set_cut_after(1 + rng.below(16)),
                60..65 if cut < 3 => device.fail_writes_after(1 + rng.below(16)),
                65..70 if cut < 3 => device.fail_sync(),
                _ => {}
            }
            self.watch.enter(Phase::Recovery);
            match self.open() {
                Ok(vfs) if !device.is_off() => {
                    // A cut or failure meant for the interrupted recovery must not hit the rest of it.
                    device.set_cut_after(u64::MAX);
                    device.heal();
                    return vfs;
                }
                Ok(_) => {}
                Err(error) => assert!(device.is_off() || device.is_failing(), "recovery failed: {error}"),
            }
        }
        unreachable!("every device opens at last")
    }

    /// Sets the next cut, which falls in what `work` does, unless in a collection before that; returns the call that it fell
    /// in. Few would fall in a collection by themselves: sometimes the cut is close, and collections come first.
    pub(crate) fn cut_in(
        &self,
        vfs: &Nvmfs,
        rng: &mut SeededRng,
        work: impl FnOnce(&mut SeededRng) -> String,
    ) -> String {
        let collects = rng.chance(if self.is_grouped() { 50 } else { 25 });
        let ops_max = if rng.chance(50) { 40 } else { 400 };
        self.device().set_cut_after(1 + rng.below(if collects { 8 } else { ops_max }));
        let collected = (0..20 * u64::from(collects)).try_for_each(|_| vfs.ftl().step(Work::Gc).map(drop));
        if let Err(error) = collected {
            assert!(self.device().is_off(), "{error}");
            return "Gc".into();
        }
        work(rng)
    }

    /// A grouped store must have used several classes.
    pub(crate) fn assert_grouped(&self) {
        let classes = self.watch.classes();
        assert!(!self.is_grouped() || classes >= 3, "{classes} classes of lifetime");
    }
}

/// Runs `case` with each of `all` seeds, and demands, if all were run, so many cuts in each call and in each of `places`.
pub(crate) fn matrix(
    case: fn(u64, Load, &mut CutTally) -> Tally,
    load: Load,
    all: u64,
    calls_min: &[(&str, u64)],
    places_min: u64,
    places: &[Place],
) {
    let (mut calls, mut tally, mut cases) = (CutTally::default(), Tally::default(), 0);
    for_each_seed(all, |seed| {
        tally.add(&case(seed, load, &mut calls));
        cases += 1;
    });
    eprintln!("{load:?}, {cases} cases, cuts in\n{calls}{tally}");
    if cases >= all {
        calls.assert_each(calls_min);
        tally.assert_each(places_min, places);
    }
}
