//! A simulated device for shuttle: each request is a point at which any thread may be scheduled, and writes are carried
//! out by threads of their own, in any order.
//!
//! It promises as little as a device may: a write is durable only by a sync that begins after it ended.

use std::sync::Arc;

use lacuna_device::{BlockDevice, DeviceStats, Filled, Geometry, LogDevice, Result, WriteDone};
use lacuna_sim::{SeededRng, SimDevice, SimMemory};
use shuttle::{
    rand::RngCore,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
};

pub(crate) struct ScheduledDevice {
    medium: Arc<SimDevice>,
    in_flight: Arc<AtomicUsize>,
}

/// Random numbers that the schedule decides.
pub(crate) fn dice() -> SeededRng {
    SeededRng::new(shuttle::rand::thread_rng().next_u64())
}

/// Time passes: other threads may run once or, in one request of eight, so often that much happens meanwhile.
fn pass_time(in_flight: &AtomicUsize) {
    let mut dice = dice();
    match dice.below(8) {
        0 => (0..dice.below(100)).for_each(|_| thread::yield_now()),
        1..4 => thread::yield_now(),
        _ => drop(in_flight.load(SeqCst)),
    }
}

impl ScheduledDevice {
    pub(crate) fn new(medium: Arc<SimDevice>) -> Arc<ScheduledDevice> {
        Arc::new(ScheduledDevice { medium, in_flight: Arc::default() })
    }

    /// Submitted writes that have not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(SeqCst)
    }

    /// A state that a power cut now might leave, with the power back on.
    pub(crate) fn after_a_cut(&self) -> Arc<SimDevice> {
        let fork = self.medium.fork(dice().next_u64());
        fork.heal();
        fork.power_cycle();
        fork
    }
}

/// Persistent memory beside the device; each call is a point at which any thread may be scheduled.
pub(crate) struct ScheduledLog(pub(crate) Arc<SimMemory>);

impl ScheduledLog {
    /// A state of both devices that a power cut now might leave, with the power back on.
    pub(crate) fn after_a_cut(&self, device: &ScheduledDevice) -> (Arc<SimDevice>, Arc<SimMemory>) {
        let fork = device.medium.fork(dice().next_u64());
        let memory = self.0.fork_beside(&fork, dice().next_u64());
        fork.heal();
        fork.power_cycle();
        memory.power_cycle();
        (fork, memory)
    }
}

impl LogDevice for ScheduledLog {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn capacity_bytes(&self) -> u64 {
        self.0.capacity_bytes()
    }

    fn unit_bytes(&self) -> u32 {
        1
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        pass_time(&AtomicUsize::new(0));
        self.0.write_at(offset, data)
    }

    fn write_back(&self, offset: u64, len: u64) -> Result<()> {
        self.0.write_back(offset, len)
    }

    fn fence(&self) -> Result<()> {
        pass_time(&AtomicUsize::new(0));
        self.0.fence()
    }
}

impl BlockDevice for ScheduledDevice {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn name(&self) -> &str {
        "scheduled device"
    }

    fn grow(&self, capacity_bytes: u64) -> Result<Geometry> {
        pass_time(&self.in_flight);
        self.medium.grow(capacity_bytes)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        pass_time(&self.in_flight);
        self.medium.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        pass_time(&self.in_flight);
        self.medium.write_at(offset, data)
    }

    fn submit_write(&self, offset: u64, data: Filled, done: WriteDone) {
        let (medium, in_flight) = (Arc::clone(&self.medium), Arc::clone(&self.in_flight));
        in_flight.fetch_add(1, SeqCst);
        thread::spawn(move || {
            pass_time(&in_flight);
            let outcome = medium.write_at(offset, &data);
            in_flight.fetch_sub(1, SeqCst);
            done(outcome, data);
        });
    }

    /// Several in any order.
    fn write_many(&self, writes: &[(u64, Filled)]) -> Result<()> {
        if let [(offset, data)] = writes {
            return self.write_at(*offset, data);
        }
        let begin = |(offset, data): &(u64, Filled)| {
            let (medium, in_flight) = (Arc::clone(&self.medium), Arc::clone(&self.in_flight));
            let (offset, data) = (*offset, data.clone());
            in_flight.fetch_add(1, SeqCst);
            thread::spawn(move || {
                pass_time(&in_flight);
                let outcome = medium.write_at(offset, &data);
                in_flight.fetch_sub(1, SeqCst);
                outcome
            })
        };
        let begun: Vec<_> = writes.iter().map(begin).collect();
        let outcomes: Vec<Result<()>> = begun.into_iter().map(|write| write.join().unwrap()).collect();
        outcomes.into_iter().collect()
    }

    fn sync(&self) -> Result<()> {
        let outcome = self.medium.sync();
        pass_time(&self.in_flight);
        outcome
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.medium.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.medium.stats()
    }
}
