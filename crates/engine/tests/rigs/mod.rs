//! Places with a power plug, for the crash matrices.

use std::sync::Arc;

use lacuna_device::{BlockDevice, Place, SimDevice, SimPlace, sim::SeededRng};
use lacuna_engine::Error;
use lacuna_ftl::{self as ftl, Work};
use lacuna_nvmfs::{CheckDepth, FormatOptions, Nvmfs, Options};

/// Something with a power plug on which a store can live.
pub(crate) trait Rig: Sync {
    fn open_place(&self) -> lacuna_device::Result<Arc<dyn Place>>;
    fn set_cut_after(&self, ops: u64);
    fn is_off(&self) -> bool;
    fn power_cycle(&self);
    /// Background work of the layers below; an error only when the power is off.
    fn upkeep(&self, rng: &mut SeededRng);
    /// Whether the layers below are sound.
    fn check(&self);
}

/// Opens the place, and with `open` what is in it, with up to three more power cuts on the way, until it succeeds.
pub(crate) fn recover<T>(
    rig: &dyn Rig,
    rng: &mut SeededRng,
    open: impl Fn(Arc<dyn Place>) -> Result<T, Error>,
) -> T {
    for cut in 0.. {
        rig.power_cycle();
        rig.set_cut_after(if cut < 3 && rng.chance(60) { 1 + rng.below(60) } else { u64::MAX });
        match rig.open_place().map_err(Error::from).and_then(&open) {
            Ok(opened) => {
                // Called off before the look: threads of the layers below may still be writing.
                rig.set_cut_after(u64::MAX);
                if !rig.is_off() {
                    return opened;
                }
            }
            Err(error) => assert!(rig.is_off(), "recovery failed: {error}"),
        }
    }
    unreachable!("every store opens at last")
}

/// The file system on the simulated device.
pub(crate) struct Flash {
    device: Arc<SimDevice>,
    background: bool,
    pub(crate) open: parking_lot::Mutex<Option<Arc<Nvmfs>>>,
}

impl Flash {
    pub(crate) fn new(seed: u64, background: bool) -> Flash {
        let device = SimDevice::new(26 << 20, seed);
        let mut format = FormatOptions::default();
        format.ftl.segment_bytes = Some(256 << 10);
        format.uuid = Some([3; 16]);
        let raw: Arc<dyn BlockDevice> = device.clone();
        Nvmfs::format(raw, &format).expect("format");
        Flash { device, background, open: parking_lot::Mutex::default() }
    }
}

impl Rig for Flash {
    fn open_place(&self) -> lacuna_device::Result<Arc<dyn Place>> {
        let ftl = ftl::Options { background: self.background, ..ftl::Options::default() };
        let raw: Arc<dyn BlockDevice> = self.device.clone();
        *self.open.lock() = None;
        let place = Arc::new(
            Nvmfs::open(raw, Options { ftl, ..Options::default() }).map_err(lacuna_device::Error::from)?,
        );
        *self.open.lock() = Some(place.clone());
        Ok(place)
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

    fn upkeep(&self, rng: &mut SeededRng) {
        let work = [Work::Due, Work::Gc, Work::Checkpoint][rng.below(3) as usize];
        let place = self.open.lock().clone().expect("open");
        assert!(place.ftl().step(work).is_ok() || self.is_off());
    }

    fn check(&self) {
        let place = self.open.lock().clone().expect("open");
        let report = place.check(CheckDepth::Payload).expect("check");
        assert!(report.is_clean(), "{:#?}", report.findings);
    }
}

/// A simulated directory: no atomic writes, no order.
impl Rig for Arc<SimPlace> {
    fn open_place(&self) -> lacuna_device::Result<Arc<dyn Place>> {
        Ok(self.clone())
    }

    fn set_cut_after(&self, ops: u64) {
        SimPlace::set_cut_after(self, ops);
    }

    fn is_off(&self) -> bool {
        SimPlace::is_off(self)
    }

    fn power_cycle(&self) {
        SimPlace::power_cycle(self);
    }

    fn upkeep(&self, _: &mut SeededRng) {}

    fn check(&self) {}
}
