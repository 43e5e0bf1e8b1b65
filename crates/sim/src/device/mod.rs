//! A simulated raw device.
//!
//! It owns two images of the space and a list:
//!
//! 1. `medium` holds the bytes that survive any power cut, except that
//! 2. each entry of `pending`, the writes and discards since the last good sync, oldest first, may
//!    have reached it in whole, in part or not at all;
//! 3. `cache` is the content that reads see: the medium with all of `pending` applied in order.
//!
//! While silent faults are injected (see [`FaultRates`]), `history` holds the content of each sector before its last
//! change. Stale reads come from there.
//!
//! A failed sync decides at once, by chance, which parts of `pending` reach the medium. Reads still return the cache,
//! but no later successful sync brings back the lost parts; the page cache of Linux behaves the same way.

use std::sync::Arc;

use lacuna_device::{
    BlockDevice, DeviceStats, Error, Geometry, GrowingGeometry, Result, SECTOR, mem::SparseBytes,
};
use parking_lot::Mutex;

use crate::{
    Fault, FaultRates, SeededRng,
    crash::{Kept, plan_crash},
    faults::{DiscardFate, Faults, WriteFate},
    power::{Power, Verdict, injected, power_controls},
};

const NAME: &str = "simulated device";

/// A seeded in-memory [`BlockDevice`] whose power can be cut. The module documentation of the simulator states what may
/// happen then.
pub struct SimDevice {
    geometry: GrowingGeometry,
    state: Mutex<State>,
}

#[derive(Clone)]
struct State {
    medium: SparseBytes,
    cache: SparseBytes,
    pending: Vec<Pending>,
    history: SparseBytes,
    power: Power,
    rng: SeededRng,
    faults: Option<Faults>,
    stats: DeviceStats,
}

#[derive(Clone)]
struct Pending {
    offset: u64,
    len: u64,
    change: Change,
}

#[derive(Clone)]
enum Change {
    Write(Vec<u8>),
    Discard(Discarded),
}

/// The content of discarded space.
#[derive(Clone, Copy)]
enum Discarded {
    Old,
    Zeros,
    /// Random bytes of this seed.
    Garbage(u64),
    /// Each sector one of the above, by this seed and its address.
    Mixed(u64),
}

impl Discarded {
    fn roll(rng: &mut SeededRng) -> Discarded {
        match rng.below(4) {
            0 => Discarded::Mixed(rng.next_u64()),
            _ => Discarded::roll_alike(rng),
        }
    }

    fn roll_alike(rng: &mut SeededRng) -> Discarded {
        match rng.below(3) {
            0 => Discarded::Old,
            1 => Discarded::Zeros,
            _ => Discarded::Garbage(rng.next_u64()),
        }
    }

    /// Changes a range of `image`.
    fn apply(self, image: &mut SparseBytes, offset: u64, len: u64) {
        match self {
            Discarded::Old => {}
            Discarded::Zeros => image.zero(offset, len),
            Discarded::Garbage(seed) => write_garbage(image, seed, offset, len),
            Discarded::Mixed(seed) => {
                for at in (offset..offset + len).step_by(SECTOR) {
                    let alike = Discarded::roll_alike(&mut SeededRng::new(seed ^ at));
                    alike.apply(image, at, SECTOR as u64);
                }
            }
        }
    }
}

impl Pending {
    fn sectors(&self) -> u64 {
        self.len / SECTOR as u64
    }

    /// Applies the kept sectors to `image`.
    fn apply(&self, image: &mut SparseBytes, kept: &Kept) {
        for (first, count) in kept.runs(self.sectors()) {
            let start = first * SECTOR as u64;
            let len = count * SECTOR as u64;
            let at = self.offset + start;
            match &self.change {
                Change::Write(data) => image.write(at, &data[start as usize..(start + len) as usize]),
                Change::Discard(outcome) => outcome.apply(image, at, len),
            }
        }
    }
}

/// Fills a range with random bytes that depend on the seed and the offset only.
fn write_garbage(image: &mut SparseBytes, seed: u64, offset: u64, len: u64) {
    let mut sector = [0; SECTOR];
    for at in (offset..offset + len).step_by(SECTOR) {
        SeededRng::new(seed ^ at).fill(&mut sector);
        image.write(at, &sector);
    }
}

impl State {
    /// Decides by chance which parts of `pending` reach the medium, and applies them.
    fn resolve_pending(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let sectors: Vec<u64> = pending.iter().map(Pending::sectors).collect();
        for step in plan_crash(&mut self.rng, &sectors) {
            let mut change = pending[step.index].clone();
            if let Change::Discard(outcome) = &mut change.change {
                // Undefined content may differ after the power is back.
                *outcome = Discarded::roll(&mut self.rng);
            }
            change.apply(&mut self.medium, &step.kept);
        }
    }

    /// Makes a change visible to reads; the next sync or crash decides whether the medium gets it.
    fn accept(&mut self, change: Pending) {
        if self.faults.as_ref().is_some_and(Faults::needs_history) {
            let mut old = vec![0; change.len as usize];
            self.cache.read(change.offset, &mut old);
            self.history.write(change.offset, &old);
        }
        change.apply(&mut self.cache, &Kept::All);
        self.pending.push(change);
    }

    /// Takes a write, which a silent fault may drop or misdirect.
    fn accept_write(&mut self, offset: u64, data: &[u8], geometry: &Geometry) {
        let len = data.len() as u64;
        let mut actual = offset;
        if let Some(faults) = &mut self.faults {
            let block = u64::from(geometry.block_bytes);
            match faults.on_write(offset, len, block, geometry.capacity_bytes) {
                WriteFate::AsAsked => {}
                WriteFate::Lost => return,
                WriteFate::Misdirected(elsewhere) => actual = elsewhere,
            }
            faults.written(&(actual..actual + len));
        }
        self.accept(Pending { offset: actual, len, change: Change::Write(data.to_vec()) });
    }

    fn accept_discard(&mut self, offset: u64, len: u64) {
        let outcome = Discarded::roll(&mut self.rng);
        self.accept(Pending { offset, len, change: Change::Discard(outcome) });
    }

    /// Applies the discards whose delay is over. Every operation that changes something calls it first.
    fn apply_late_discards(&mut self) {
        let due = self.faults.as_mut().map_or_else(Vec::new, Faults::tick);
        due.into_iter().for_each(|range| self.accept_discard(range.start, range.end - range.start));
    }
}

power_controls!(SimDevice);

impl SimDevice {
    /// A device of `capacity_bytes` zeros with blocks of one sector; `seed` drives all chance.
    ///
    /// # Panics
    /// When the capacity is not a multiple of [`SECTOR`].
    pub fn new(capacity_bytes: u64, seed: u64) -> Arc<SimDevice> {
        SimDevice::with_block_bytes(capacity_bytes, SECTOR as u32, seed)
    }

    /// Like [`SimDevice::new`] with larger blocks. Writes are torn at sectors all the same.
    ///
    /// # Panics
    /// When the block is not a power of two of at least a sector, or the capacity not a multiple of it.
    pub fn with_block_bytes(capacity_bytes: u64, block_bytes: u32, seed: u64) -> Arc<SimDevice> {
        assert!(block_bytes.is_power_of_two() && block_bytes as usize >= SECTOR, "bad block size");
        assert!(capacity_bytes.is_multiple_of(u64::from(block_bytes)), "capacity is not whole blocks");
        Arc::new(SimDevice {
            geometry: GrowingGeometry::new(Geometry { capacity_bytes, block_bytes, erase_bytes: 0 }),
            state: Mutex::new(State {
                medium: SparseBytes::default(),
                cache: SparseBytes::default(),
                pending: Vec::new(),
                history: SparseBytes::default(),
                power: Power::default(),
                rng: SeededRng::new(seed),
                faults: None,
                stats: DeviceStats::default(),
            }),
        })
    }

    /// A device beside `other`, on the same power supply: what cuts the power of one cuts that of both, and operations
    /// of both are counted together. To turn it on again, call [`SimDevice::power_cycle`] of each.
    pub fn beside(other: &SimDevice, capacity_bytes: u64, block_bytes: u32, seed: u64) -> Arc<SimDevice> {
        let device = SimDevice::with_block_bytes(capacity_bytes, block_bytes, seed);
        device.state.lock().power = other.power_beside();
        device
    }

    /// The power of a device on the same supply.
    pub(crate) fn power_beside(&self) -> Power {
        self.state.lock().power.beside()
    }

    /// As [`SimDevice::fork`], on the power supply of `other`.
    pub fn fork_beside(&self, other: &SimDevice, seed: u64) -> Arc<SimDevice> {
        let fork = self.fork(seed);
        fork.state.lock().power = other.power_beside();
        fork
    }

    /// An independent device in the same state, driven by `seed` from here on, so that one run can be crashed in many
    /// ways.
    pub fn fork(&self, seed: u64) -> Arc<SimDevice> {
        let mut state = self.state.lock().clone();
        state.rng = SeededRng::new(seed);
        Arc::new(SimDevice { geometry: GrowingGeometry::new(self.geometry.get()), state: Mutex::new(state) })
    }

    /// Decides which unsynced writes survive, as a power cut may, then switches the power on. Cancels a cut that was
    /// set and did not happen. Injected failures stay.
    pub fn power_cycle(&self) {
        let mut state = self.state.lock();
        state.resolve_pending();
        state.cache = state.medium.clone();
        state.power.switch_on();
    }

    /// Simulates the end of the process alone: unsynced writes stay in the cache, where a later power cut may drop
    /// them. Switches the power on if it is off. Cancels a cut that was set and did not happen. Injected failures stay.
    pub fn kill(&self) {
        self.state.lock().power.switch_on();
    }

    /// Injects silent faults at these rates, with `seed`, until [`SimDevice::stop_silent_faults`], and clears the
    /// record of earlier ones. Stale reads return nothing older than this call.
    pub fn start_silent_faults(&self, rates: FaultRates, seed: u64) {
        let mut state = self.state.lock();
        if state.faults.is_none() {
            state.history = state.cache.clone();
        }
        state.faults = Some(Faults::new(rates, seed));
    }

    /// Stops injecting silent faults and returns all that happened, in order. Their effects stay. Discards that are
    /// still delayed never happen, which the contract of discards allows.
    pub fn stop_silent_faults(&self) -> Vec<Fault> {
        self.state.lock().faults.take().map_or_else(Vec::new, |faults| faults.log().to_vec())
    }

    /// The silent faults so far, in order.
    pub fn silent_faults(&self) -> Vec<Fault> {
        self.state.lock().faults.as_ref().map_or_else(Vec::new, |faults| faults.log().to_vec())
    }

    /// Flips one bit of the stored data: bit `bit % 8` of byte `offset`, synced or not.
    ///
    /// # Panics
    /// When the offset is beyond the capacity.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        assert!(offset < self.geometry().capacity_bytes, "no byte {offset} to flip");
        let sector_start = offset / SECTOR as u64 * SECTOR as u64;
        let within = (offset - sector_start) as usize;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        for image in [&mut state.medium, &mut state.cache] {
            let mut sector = [0; SECTOR];
            image.read(sector_start, &mut sector);
            sector[within] ^= 1 << (bit % 8);
            image.write(sector_start, &sector);
        }
        for pending in &mut state.pending {
            if let Change::Write(data) = &mut pending.change
                && (pending.offset..pending.offset + pending.len).contains(&offset)
            {
                data[(offset - pending.offset) as usize] ^= 1 << (bit % 8);
            }
        }
    }
}

impl BlockDevice for SimDevice {
    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    fn name(&self) -> &str {
        NAME
    }

    fn grow(&self, capacity_bytes: u64) -> Result<Geometry> {
        Ok(self.geometry.grow(capacity_bytes))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.geometry().check_range(NAME, offset, buf.len() as u64)?;
        let mut state = self.state.lock();
        state.power.check()?;
        state.cache.read(offset, buf);
        let fault = |faults: &mut Faults| faults.on_read(offset, buf.len() as u64, SECTOR as u64);
        if let Some(stale) = state.faults.as_mut().and_then(fault) {
            let within = (stale.start - offset) as usize..(stale.end - offset) as usize;
            state.history.read(stale.start, &mut buf[within]);
        }
        state.stats.reads += 1;
        state.stats.read_bytes += buf.len() as u64;
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.geometry().check_range(NAME, offset, data.len() as u64)?;
        let mut state = self.state.lock();
        let verdict = state.power.tick()?;
        state.apply_late_discards();
        let outcome = state.power.check_write(NAME);
        if matches!(outcome, Err(Error::Full { .. })) {
            return outcome;
        }
        state.accept_write(offset, data, &self.geometry.get());
        if verdict == Verdict::CutInFlight {
            return Err(Error::PowerCut);
        }
        outcome?;
        state.stats.writes += 1;
        state.stats.written_bytes += data.len() as u64;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.power.tick()? == Verdict::CutInFlight {
            return Err(Error::PowerCut);
        }
        if state.power.fails_sync() {
            state.resolve_pending();
            return Err(injected(NAME));
        }
        state.apply_late_discards();
        for change in state.pending.drain(..) {
            change.apply(&mut state.medium, &Kept::All);
        }
        state.stats.syncs += 1;
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check_range(NAME, offset, len)?;
        let mut state = self.state.lock();
        let verdict = state.power.tick()?;
        state.apply_late_discards();
        let fate = state.faults.as_mut().map(|faults| faults.on_discard(offset, len, SECTOR as u64));
        match fate.unwrap_or(DiscardFate::Now(offset..offset + len)) {
            DiscardFate::Now(part) => state.accept_discard(part.start, part.end - part.start),
            DiscardFate::Later => {}
        }
        if verdict == Verdict::CutInFlight {
            return Err(Error::PowerCut);
        }
        state.stats.discarded_bytes += len;
        Ok(())
    }

    fn stats(&self) -> DeviceStats {
        self.state.lock().stats
    }
}

#[cfg(test)]
mod tests;
