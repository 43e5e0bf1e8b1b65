//! VFSs with a power plug, for the crash matrices.

pub(crate) mod beside;
pub(crate) mod edited;
pub(crate) mod log_device;

use std::sync::Arc;

use lacuna_device::{BlockDevice, StreamHint, Vfs};
use lacuna_engine::Error;
use lacuna_ftl::{self as ftl, Work};
use lacuna_nvmfs::{CheckDepth, FormatOptions, Nvmfs, Options};
use lacuna_sim::{SeededRng, SimDevice, SimVfs};

/// A VFS with a power plug for a store.
pub(crate) trait Rig: Sync {
    fn open_vfs(&self) -> lacuna_device::Result<Arc<dyn Vfs>>;
    fn set_cut_after(&self, ops: u64);
    fn is_off(&self) -> bool;
    fn power_cycle(&self);
    /// Ends the process instead: what is not synced is still there, and may be lost later.
    fn kill(&self);
    /// Lets writes fail soon, or syncs at once, until [`Rig::heal`].
    fn fail(&self, rng: &mut SeededRng);
    fn heal(&self);
    /// Whether errors are expected.
    fn may_fail(&self) -> bool;
    /// Background work of the layers below; fails only when errors are expected.
    fn upkeep(&self, rng: &mut SeededRng);
    /// Whether the layers below are sound.
    fn check(&self);
}

/// Opens the VFS, and its content with `open`, after a power cut or the end of the process, with up to three more of
/// these or of failures on the way, until it succeeds.
pub(crate) fn recover<T>(
    rig: &dyn Rig,
    rng: &mut SeededRng,
    open: impl Fn(Arc<dyn Vfs>) -> Result<T, Error>,
) -> T {
    for cut in 0.. {
        rig.heal();
        if rng.chance(30) {
            rig.kill();
        } else {
            rig.power_cycle();
        }
        match rng.below(100) {
            0..60 if cut < 3 => rig.set_cut_after(1 + rng.below(60)),
            60..70 if cut < 3 => rig.fail(rng),
            _ => rig.set_cut_after(u64::MAX),
        }
        match rig.open_vfs().map_err(Error::from).and_then(&open) {
            Ok(opened) => {
                // Disarmed before reading: threads of the layers below may still be writing.
                rig.set_cut_after(u64::MAX);
                rig.heal();
                if !rig.is_off() {
                    return opened;
                }
            }
            Err(error) => assert!(rig.may_fail(), "recovery failed: {error}"),
        }
    }
    unreachable!("every store opens at last")
}

/// One failure or the other.
pub(crate) fn fail_some(rng: &mut SeededRng, writes: impl FnOnce(u64), sync: impl FnOnce()) {
    if rng.chance(50) { writes(1 + rng.below(60)) } else { sync() }
}

/// The file system on the simulated device.
pub(crate) struct Flash {
    pub(crate) device: Arc<SimDevice>,
    background: bool,
    /// The store lies in a directory of it.
    in_directory: bool,
    pub(crate) open: parking_lot::Mutex<Option<Arc<Nvmfs>>>,
}

impl Flash {
    pub(crate) fn new(seed: u64, background: bool) -> Flash {
        let device = SimDevice::with_block_bytes(26 << 20, [512, 4096][seed as usize % 2], seed);
        let mut format = FormatOptions::default();
        format.ftl.segment_bytes = Some(256 << 10);
        format.uuid = Some([3; 16]);
        let raw: Arc<dyn BlockDevice> = device.clone();
        Nvmfs::format(raw, &format).expect("format");
        let in_directory = seed.is_multiple_of(3);
        Flash { device, background, in_directory, open: parking_lot::Mutex::default() }
    }

    /// Fills all of it but `free_bytes`.
    #[allow(dead_code, reason = "not every test wants it full")]
    pub(crate) fn fill_up_to(&self, free_bytes: u64) {
        let raw: Arc<dyn BlockDevice> = self.device.clone();
        let vfs = Nvmfs::open(raw, Options::default()).expect("open");
        let stats = vfs.ftl().stats();
        let ballast = vfs.create("ballast", StreamHint::Data).expect("create");
        let pieces = (stats.live_limit_bytes - stats.live_bytes).saturating_sub(free_bytes) / PIECE as u64;
        (0..pieces).for_each(|i| ballast.write_at(i * PIECE as u64, &[7; PIECE]).expect("space for it"));
        vfs.close().expect("close");
    }
}

/// Bytes of a write that fills a store.
#[allow(dead_code, reason = "as above")]
const PIECE: usize = 64 << 10;

impl Rig for Flash {
    fn open_vfs(&self) -> lacuna_device::Result<Arc<dyn Vfs>> {
        let ftl = ftl::Options { background: self.background, ..ftl::Options::default() };
        let raw: Arc<dyn BlockDevice> = self.device.clone();
        *self.open.lock() = None;
        let vfs = Arc::new(
            Nvmfs::open(raw, Options { ftl, ..Options::default() }).map_err(lacuna_device::Error::from)?,
        );
        *self.open.lock() = Some(vfs.clone());
        if self.in_directory {
            return Ok(vfs.directory("a/store", true)?);
        }
        Ok(vfs)
    }

    fn set_cut_after(&self, ops: u64) {
        self.device.set_cut_after(ops);
    }

    fn is_off(&self) -> bool {
        self.device.is_off()
    }

    fn power_cycle(&self) {
        *self.open.lock() = None;
        self.device.power_cycle();
    }

    fn kill(&self) {
        *self.open.lock() = None;
        self.device.kill();
    }

    fn fail(&self, rng: &mut SeededRng) {
        // A background thread could fail without being noticed in time.
        if !self.background {
            fail_some(rng, |writes| self.device.fail_writes_after(writes), || self.device.fail_sync());
        }
    }

    fn heal(&self) {
        self.device.heal();
    }

    fn may_fail(&self) -> bool {
        self.device.is_off() || self.device.is_failing()
    }

    fn upkeep(&self, rng: &mut SeededRng) {
        let work = [Work::Due, Work::Gc, Work::Checkpoint][rng.below(3) as usize];
        let vfs = self.open.lock().clone().expect("open");
        assert!(vfs.ftl().step(work).is_ok() || self.may_fail());
    }

    fn check(&self) {
        let vfs = self.open.lock().clone().expect("open");
        let report = vfs.check(CheckDepth::Payload).expect("check");
        assert!(report.is_clean(), "{:#?}", report.findings);
    }
}

/// A simulated directory: no atomic writes, no order.
impl Rig for Arc<SimVfs> {
    fn open_vfs(&self) -> lacuna_device::Result<Arc<dyn Vfs>> {
        Ok(self.clone())
    }

    fn set_cut_after(&self, ops: u64) {
        SimVfs::set_cut_after(self, ops);
    }

    fn is_off(&self) -> bool {
        SimVfs::is_off(self)
    }

    fn power_cycle(&self) {
        SimVfs::power_cycle(self);
    }

    fn kill(&self) {
        SimVfs::kill(self);
    }

    fn fail(&self, rng: &mut SeededRng) {
        fail_some(rng, |writes| self.fail_writes_after(writes), || self.fail_sync());
    }

    fn heal(&self) {
        SimVfs::heal(self);
    }

    fn may_fail(&self) -> bool {
        SimVfs::is_off(self) || self.is_failing()
    }

    fn upkeep(&self, _: &mut SeededRng) {}

    fn check(&self) {}
}
