//! A store whose log lies in persistent memory, beside flash, on one power supply.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use lacuna_device::{LogDevice, Vfs};
use lacuna_engine::{Error, LogDeviceVfs};
use lacuna_sim::{SeededRng, SimMemory};

use super::{Flash, Rig, fail_some};

/// The file system on the simulated device, and the log in simulated memory on the same power.
pub(crate) struct FlashAndMemory {
    flash: Flash,
    memory: Arc<SimMemory>,
    /// Whether the store was made: its parts are paired.
    is_made: AtomicBool,
}

impl FlashAndMemory {
    pub(crate) fn new(seed: u64) -> FlashAndMemory {
        let flash = Flash::new(seed, false);
        let memory = SimMemory::beside(&flash.device, 2 << 20, !seed);
        FlashAndMemory { flash, memory, is_made: AtomicBool::new(false) }
    }
}

impl Rig for FlashAndMemory {
    fn open_vfs(&self) -> lacuna_device::Result<Arc<dyn Vfs>> {
        let vfs = self.flash.open_vfs()?;
        let device: Arc<dyn LogDevice> = self.memory.clone();
        let is_made = self.is_made.load(SeqCst) && vfs.list()?.iter().any(|name| name == "log-device");
        let opened = match is_made {
            true => LogDeviceVfs::open(vfs, device),
            // A cut may have come between the two parts.
            false => {
                let left = vfs.list()?;
                left.iter().try_for_each(|name| vfs.remove(name))?;
                LogDeviceVfs::format(vfs, device, true)
            }
        };
        match opened {
            Ok(vfs) => {
                self.is_made.store(true, SeqCst);
                Ok(vfs)
            }
            Err(Error::Device(_)) if self.may_fail() => Err(lacuna_device::Error::PowerCut),
            Err(error) => panic!("{error}"),
        }
    }

    fn set_cut_after(&self, ops: u64) {
        self.flash.set_cut_after(ops);
    }

    fn is_off(&self) -> bool {
        self.flash.is_off()
    }

    fn power_cycle(&self) {
        self.flash.power_cycle();
        self.memory.power_cycle();
    }

    /// What was not fenced stays in the processors' caches, and a power cut may take it later.
    fn kill(&self) {
        self.flash.kill();
    }

    fn fail(&self, rng: &mut SeededRng) {
        match rng.chance(50) {
            true => {
                fail_some(rng, |writes| self.memory.fail_writes_after(writes), || self.memory.fail_sync())
            }
            false => self.flash.fail(rng),
        }
    }

    fn heal(&self) {
        self.flash.heal();
        self.memory.heal();
    }

    fn may_fail(&self) -> bool {
        self.flash.may_fail() || self.memory.is_failing()
    }

    fn upkeep(&self, rng: &mut SeededRng) {
        self.flash.upkeep(rng);
    }

    fn check(&self) {
        self.flash.check();
    }
}
