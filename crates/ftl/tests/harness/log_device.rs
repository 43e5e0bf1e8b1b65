//! Simulated log devices beside the device of a store.

use std::sync::Arc;

use lacuna_device::{BlockLog, LogDevice};
use lacuna_sim::{SimDevice, SimMemory};

/// A log device on the power supply of the store's device.
pub(crate) enum TestLog {
    Memory(Arc<SimMemory>),
    Blocks(Arc<SimDevice>),
}

impl TestLog {
    pub(crate) fn memory(beside: &SimDevice, bytes: u64, seed: u64) -> TestLog {
        TestLog::Memory(SimMemory::beside(beside, bytes, seed))
    }

    pub(crate) fn blocks(beside: &SimDevice, bytes: u64, block_bytes: u32, seed: u64) -> TestLog {
        TestLog::Blocks(SimDevice::beside(beside, bytes, block_bytes, seed))
    }

    pub(crate) fn device(&self) -> Arc<dyn LogDevice> {
        match self {
            TestLog::Memory(memory) => memory.clone(),
            TestLog::Blocks(device) => Arc::new(BlockLog::new(device.clone())),
        }
    }

    pub(crate) fn fork(&self, beside: &SimDevice, seed: u64) -> TestLog {
        match self {
            TestLog::Memory(memory) => TestLog::Memory(memory.fork_beside(beside, seed)),
            TestLog::Blocks(device) => TestLog::Blocks(device.fork_beside(beside, seed)),
        }
    }

    pub(crate) fn power_cycle(&self) {
        match self {
            TestLog::Memory(memory) => memory.power_cycle(),
            TestLog::Blocks(device) => device.power_cycle(),
        }
    }

    pub(crate) fn fail_after(&self, writes: u64, syncs: u64) {
        match self {
            TestLog::Memory(memory) => {
                memory.fail_writes_after(writes);
                memory.fail_syncs_after(syncs);
            }
            TestLog::Blocks(device) => {
                device.fail_writes_after(writes);
                device.fail_syncs_after(syncs);
            }
        }
    }

    pub(crate) fn heal(&self) {
        match self {
            TestLog::Memory(memory) => memory.heal(),
            TestLog::Blocks(device) => device.heal(),
        }
    }
}
