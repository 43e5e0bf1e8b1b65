//! Power cuts and injected failures, shared by the simulated device and the simulated VFS.

use std::{io, sync::Arc};

use lacuna_device::{Error, Result};
use parking_lot::Mutex;

/// Counts operations that change the medium and decides which of them fail.
#[derive(Debug, Default)]
pub(crate) struct Power {
    /// Shared by the devices that one power cut hits.
    supply: Arc<Mutex<Supply>>,
    /// Writes left until they fail with EIO.
    write_failure_in: Option<u64>,
    /// The same of syncs.
    sync_failure_in: Option<u64>,
    pub(crate) full: bool,
}

#[derive(Clone, Debug, Default)]
struct Supply {
    /// Operations so far: writes, syncs, discards and whatever else changes the medium.
    ops: u64,
    /// Operations left until the one during which the power is cut.
    cut_in: Option<u64>,
    off: bool,
}

/// A clone has a supply of its own, in the same state.
impl Clone for Power {
    fn clone(&self) -> Power {
        let supply = Arc::new(Mutex::new(self.supply.lock().clone()));
        let Power { write_failure_in, sync_failure_in, full, .. } = *self;
        Power { supply, write_failure_in, sync_failure_in, full }
    }
}

/// How an admitted operation proceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Go,
    /// The power is cut during the operation: it may be done in part, and fails.
    CutInFlight,
}

impl Power {
    /// The power of another device on the same supply; failures are injected for each by itself.
    pub(crate) fn beside(&self) -> Power {
        Power { supply: Arc::clone(&self.supply), ..Power::default() }
    }

    pub(crate) fn ops(&self) -> u64 {
        self.supply.lock().ops
    }

    pub(crate) fn set_cut_after(&self, ops: u64) {
        let mut supply = self.supply.lock();
        supply.cut_in = Some(ops);
        supply.off |= ops == 0;
    }

    pub(crate) fn switch_on(&self) {
        let mut supply = self.supply.lock();
        supply.cut_in = None;
        supply.off = false;
    }

    pub(crate) fn is_off(&self) -> bool {
        self.supply.lock().off
    }

    /// Operations that do not change the medium call this first.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_off() { Err(Error::PowerCut) } else { Ok(()) }
    }

    /// Operations that change the medium call this first.
    pub(crate) fn tick(&self) -> Result<Verdict> {
        let mut supply = self.supply.lock();
        if supply.off {
            return Err(Error::PowerCut);
        }
        supply.ops += 1;
        if let Some(left) = &mut supply.cut_in {
            *left -= 1;
            if *left == 0 {
                supply.off = true;
                return Ok(Verdict::CutInFlight);
            }
        }
        Ok(Verdict::Go)
    }

    pub(crate) fn set_write_failure_after(&mut self, writes: u64) {
        assert!(writes > 0, "the next write is number 1");
        self.write_failure_in = Some(writes);
    }

    pub(crate) fn set_sync_failure_after(&mut self, syncs: u64) {
        assert!(syncs > 0, "the next sync is number 1");
        self.sync_failure_in = Some(syncs);
    }

    /// Whether this sync fails. Syncs call it after `tick`.
    pub(crate) fn fails_sync(&mut self) -> bool {
        is_due(&mut self.sync_failure_in)
    }

    /// The injected failure of this write, if any. Writes call it after `tick`.
    pub(crate) fn check_write(&mut self, what: &str) -> Result<()> {
        if self.full {
            return Err(Error::Full { what: what.to_owned() });
        }
        if is_due(&mut self.write_failure_in) { Err(injected(what)) } else { Ok(()) }
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.write_failure_in.is_some() || self.sync_failure_in.is_some() || self.full
    }

    pub(crate) fn heal(&mut self) {
        self.write_failure_in = None;
        self.sync_failure_in = None;
        self.full = false;
    }
}

/// Whether the countdown has reached its operation, or passed it.
fn is_due(left: &mut Option<u64>) -> bool {
    match left {
        Some(left @ 2..) => {
            *left -= 1;
            false
        }
        Some(_) => true,
        None => false,
    }
}

/// The error of an injected failure.
pub(crate) fn injected(what: &str) -> Error {
    Error::io(what, io::Error::other("injected failure"))
}

/// Gives a simulator, which keeps its [`Power`] in `state`, the calls that cut the power and inject failures.
macro_rules! power_controls {
    ($simulator:ident) => {
        impl $simulator {
            /// Operations so far that changed something, syncs included.
            pub fn ops(&self) -> u64 {
                self.state.lock().power.ops()
            }

            /// Cuts the power in the `ops`-th next operation that changes something: it may be done in part and
            /// fails, as everything after it does, with [`Error::PowerCut`]. 0 cuts the power now.
            pub fn set_cut_after(&self, ops: u64) {
                self.state.lock().power.set_cut_after(ops);
            }

            /// Whether the power is off.
            pub fn is_off(&self) -> bool {
                self.state.lock().power.is_off()
            }

            /// Whether failures are injected now, or will be.
            pub fn is_failing(&self) -> bool {
                self.state.lock().power.is_failing()
            }

            /// From the `writes`-th next write on, writes fail with an I/O error and may be done in part, until
            /// [`Self::heal`].
            ///
            /// # Panics
            /// When `writes` is 0.
            pub fn fail_writes_after(&self, writes: u64) {
                self.state.lock().power.set_write_failure_after(writes);
            }

            /// Syncs fail with an I/O error until [`Self::heal`]. Each failed sync finally keeps or loses the writes
            /// before it, to any file, whatever later syncs return.
            pub fn fail_sync(&self) {
                self.fail_syncs_after(1);
            }

            /// Like `fail_sync` from the `syncs`-th next sync on.
            ///
            /// # Panics
            /// When `syncs` is 0.
            pub fn fail_syncs_after(&self, syncs: u64) {
                self.state.lock().power.set_sync_failure_after(syncs);
            }

            /// Writes fail with [`Error::Full`] until [`Self::heal`].
            pub fn enospc(&self) {
                self.state.lock().power.full = true;
            }

            /// Ends all injected failures.
            pub fn heal(&self) {
                self.state.lock().power.heal();
            }
        }
    };
}
pub(crate) use power_controls;
