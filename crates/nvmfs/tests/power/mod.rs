//! Shared by both crash matrices: tiny stores, recovery under power cuts, and what may survive.

use std::sync::Arc;

use lacuna_device::BlockDevice;
use lacuna_ftl as ftl;
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options, posix::Caller};
use lacuna_sim::{CutTally, SeededRng, SimDevice};

pub(crate) const SEGMENT_BYTES: u32 = 64 << 10;
/// The fewest that the ftl takes are 24. The largest batches of these tests need a few more.
const SEGMENTS: u64 = 28;
pub(crate) const CAPACITY: u64 = SEGMENTS * SEGMENT_BYTES as u64;

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

pub(crate) fn formatted(seed: u64) -> Arc<SimDevice> {
    let device = SimDevice::with_block_bytes(CAPACITY, [512, 4096][seed as usize % 2], seed);
    let mut format =
        FormatOptions { uuid: Some([9; 16]), owner: Some(Caller::default()), ..FormatOptions::default() };
    format.ftl.segment_bytes = Some(SEGMENT_BYTES);
    let raw: Arc<dyn BlockDevice> = device.clone();
    Nvmfs::format(raw, &format).unwrap();
    device
}

/// Few inodes stay in memory, so that they are read again and again.
pub(crate) fn open(device: &Arc<SimDevice>) -> lacuna_nvmfs::Result<Nvmfs> {
    let ftl = ftl::Options { background: false, ..ftl::Options::default() };
    let device: Arc<dyn BlockDevice> = device.clone();
    Nvmfs::open(device, Options { ftl, inodes_kept: 4, ..Options::default() })
}

/// Opens the store after a power cut or the end of the process, with more of these, or failures, during recovery.
pub(crate) fn recover(device: &Arc<SimDevice>, rng: &mut SeededRng) -> Nvmfs {
    recover_noting(device, rng, &mut CutTally::default())
}

/// The same; notes each cut during recovery.
pub(crate) fn recover_noting(device: &Arc<SimDevice>, rng: &mut SeededRng, tally: &mut CutTally) -> Nvmfs {
    for cut in 0.. {
        device.heal();
        if rng.chance(30) {
            device.kill();
        } else {
            device.power_cycle();
        }
        match rng.below(100) {
            0..60 if cut < 3 => device.set_cut_after(1 + rng.below(16)),
            60..65 if cut < 3 => device.fail_writes_after(1 + rng.below(16)),
            65..70 if cut < 3 => device.fail_sync(),
            _ => {}
        }
        match open(device) {
            Ok(vfs) if !device.is_off() => {
                // A cut or failure meant for the interrupted recovery must not hit the rest of it.
                device.set_cut_after(u64::MAX);
                device.heal();
                return vfs;
            }
            Ok(_) => {}
            Err(error) => assert!(device.is_off() || device.is_failing(), "recovery failed: {error}"),
        }
        if device.is_off() {
            tally.note("recovery");
        }
    }
    unreachable!("every device opens at last")
}
