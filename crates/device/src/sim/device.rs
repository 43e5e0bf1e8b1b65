//! A simulated raw device.
//!
//! It owns two images of the space and a list:
//!
//! 1. `medium` holds what survives any power cut, except that
//! 2. each entry of `pending`, the writes and discards since the last good sync, oldest first, may
//!    have reached it in whole, in part or not at all;
//! 3. `cache` is what reads see: the medium with all of `pending` applied in order.
//!
//! A failed sync settles `pending` by the dice at once: reads go on showing the cache, but a later
//! good sync brings back nothing of it (the page cache of Linux behaves so).

use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    SeededRng,
    crash::{Kept, plan_crash},
    power::{Power, Verdict, injected},
};
use crate::{BlockDevice, DeviceStats, Error, Geometry, Result, SECTOR, sparse::SparseBytes};

const NAME: &str = "simulated device";

/// A seeded in-memory [`BlockDevice`] whose power can be cut. See the module documentation of the
/// simulator for what may happen then.
pub struct SimDevice {
    geometry: Geometry,
    state: Mutex<State>,
}

#[derive(Clone)]
struct State {
    medium: SparseBytes,
    cache: SparseBytes,
    pending: Vec<Pending>,
    power: Power,
    rng: SeededRng,
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

/// What discarded space reads as.
#[derive(Clone, Copy)]
enum Discarded {
    Old,
    Zeros,
    /// Random bytes of this seed.
    Garbage(u64),
}

impl Discarded {
    fn roll(rng: &mut SeededRng) -> Discarded {
        match rng.below(3) {
            0 => Discarded::Old,
            1 => Discarded::Zeros,
            _ => Discarded::Garbage(rng.next_u64()),
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
                Change::Discard(Discarded::Old) => {}
                Change::Discard(Discarded::Zeros) => image.zero(at, len),
                Change::Discard(Discarded::Garbage(seed)) => write_garbage(image, *seed, at, len),
            }
        }
    }
}

/// Fills a range with random bytes that depend on the seed and the place only.
fn write_garbage(image: &mut SparseBytes, seed: u64, offset: u64, len: u64) {
    let mut sector = [0; SECTOR];
    for at in (offset..offset + len).step_by(SECTOR) {
        SeededRng::new(seed ^ at).fill(&mut sector);
        image.write(at, &sector);
    }
}

impl State {
    /// Lets the dice decide what of `pending` reaches the medium.
    fn settle(&mut self) {
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

    /// Makes a change visible to reads and leaves it to the next sync or crash.
    fn accept(&mut self, change: Pending) {
        change.apply(&mut self.cache, &Kept::All);
        self.pending.push(change);
    }
}

impl SimDevice {
    /// A device of `capacity_bytes` zeros with blocks of one sector, its chance driven by `seed`.
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
            geometry: Geometry { capacity_bytes, block_bytes, erase_bytes: 0 },
            state: Mutex::new(State {
                medium: SparseBytes::default(),
                cache: SparseBytes::default(),
                pending: Vec::new(),
                power: Power::default(),
                rng: SeededRng::new(seed),
                stats: DeviceStats::default(),
            }),
        })
    }

    /// An independent device in the same state, its chance driven by `seed` from here on: one run can
    /// so be crashed in many ways.
    pub fn fork(&self, seed: u64) -> Arc<SimDevice> {
        let mut state = self.state.lock().clone();
        state.rng = SeededRng::new(seed);
        Arc::new(SimDevice { geometry: self.geometry, state: Mutex::new(state) })
    }

    /// Writes, syncs and discards so far.
    pub fn ops(&self) -> u64 {
        self.state.lock().power.ops
    }

    /// Cuts the power in the `ops`-th next write, sync or discard: it may be done in part and fails,
    /// as everything after it does, with [`Error::PowerCut`]. 0 cuts the power now.
    pub fn set_cut_after(&self, ops: u64) {
        self.state.lock().power.set_cut_after(ops);
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.state.lock().power.is_off()
    }

    /// Does to all unsynced writes what a power cut may do, then switches the power on. A cut that
    /// was set and did not happen is cancelled. Injected failures stay.
    pub fn power_cycle(&self) {
        let mut state = self.state.lock();
        state.settle();
        state.cache = state.medium.clone();
        state.power.switch_on();
    }

    /// From the `writes`-th next write on, writes fail with an I/O error and may be done in part,
    /// until [`SimDevice::heal`].
    ///
    /// # Panics
    /// When `writes` is 0.
    pub fn fail_writes_after(&self, writes: u64) {
        self.state.lock().power.set_write_failure_after(writes);
    }

    /// Syncs fail with an I/O error until [`SimDevice::heal`]. What was written before is then kept
    /// or lost for good, whatever later syncs say.
    pub fn fail_sync(&self) {
        self.state.lock().power.sync_fails = true;
    }

    /// Writes fail with [`Error::Full`] until [`SimDevice::heal`].
    pub fn enospc(&self) {
        self.state.lock().power.full = true;
    }

    /// Ends all injected failures.
    pub fn heal(&self) {
        self.state.lock().power.heal();
    }

    /// Flips one bit of what is stored: bit `bit % 8` of byte `offset`, synced or not.
    ///
    /// # Panics
    /// When the offset is beyond the capacity.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        assert!(offset < self.geometry.capacity_bytes, "no byte {offset} to flip");
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
        self.geometry
    }

    fn name(&self) -> &str {
        NAME
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.geometry.check_range(NAME, offset, buf.len() as u64)?;
        let mut state = self.state.lock();
        state.power.check()?;
        state.cache.read(offset, buf);
        state.stats.reads += 1;
        state.stats.read_bytes += buf.len() as u64;
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.geometry.check_range(NAME, offset, data.len() as u64)?;
        let mut state = self.state.lock();
        let verdict = state.power.tick()?;
        let outcome = state.power.check_write(NAME);
        if matches!(outcome, Err(Error::Full { .. })) {
            return outcome;
        }
        state.accept(Pending { offset, len: data.len() as u64, change: Change::Write(data.to_vec()) });
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
        if state.power.sync_fails {
            state.settle();
            return Err(injected(NAME));
        }
        for change in state.pending.drain(..) {
            change.apply(&mut state.medium, &Kept::All);
        }
        state.stats.syncs += 1;
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry.check_range(NAME, offset, len)?;
        let mut state = self.state.lock();
        let verdict = state.power.tick()?;
        let outcome = Discarded::roll(&mut state.rng);
        state.accept(Pending { offset, len, change: Change::Discard(outcome) });
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
mod tests {
    use super::*;

    const CAPACITY: u64 = 1 << 20;

    fn read(device: &SimDevice, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        device.read_at(offset, &mut buf).unwrap();
        buf
    }

    /// The distinct outcomes of many crashes of the same run, each as the first bytes of 8 sectors.
    fn outcomes(run: impl Fn(&SimDevice)) -> std::collections::BTreeSet<Vec<u8>> {
        (0..400)
            .map(|seed| {
                let device = SimDevice::new(CAPACITY, seed);
                run(&device);
                device.power_cycle();
                read(&device, 0, 8 * SECTOR).into_iter().step_by(SECTOR).collect()
            })
            .collect()
    }

    #[test]
    fn synced_writes_always_survive() {
        let all = outcomes(|device| {
            device.write_at(0, &[1; 8 * SECTOR]).unwrap();
            device.write_at(0, &[2; SECTOR]).unwrap();
            device.sync().unwrap();
        });
        assert_eq!(all.into_iter().collect::<Vec<_>>(), [vec![2, 1, 1, 1, 1, 1, 1, 1]]);
    }

    #[test]
    fn unsynced_writes_are_kept_dropped_torn_and_reordered() {
        let all = outcomes(|device| {
            device.write_at(0, &[1; 8 * SECTOR]).unwrap();
            device.write_at(0, &[2; 8 * SECTOR]).unwrap();
        });
        for whole in [[0; 8], [1; 8], [2; 8]] {
            assert!(all.contains(&whole[..]), "{whole:?} never happened in {} outcomes", all.len());
        }
        assert!(all.iter().any(|sectors| sectors.starts_with(&[2]) && sectors.ends_with(&[1])));
        assert!(all.iter().any(|sectors| sectors.starts_with(&[1]) && sectors.ends_with(&[2])));
        assert!(all.iter().flatten().all(|byte| *byte <= 2));
    }

    #[test]
    fn a_sector_is_never_torn() {
        for seed in 0..200 {
            let device = SimDevice::new(CAPACITY, seed);
            device.write_at(0, &[1; 4 * SECTOR]).unwrap();
            device.power_cycle();
            for sector in read(&device, 0, 4 * SECTOR).chunks(SECTOR) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "seed {seed}");
            }
        }
    }

    #[test]
    fn the_write_in_flight_fails_and_may_be_torn() {
        let all = outcomes(|device| {
            device.set_cut_after(2);
            device.write_at(0, &[1; SECTOR]).unwrap();
            assert!(matches!(device.write_at(0, &[2; 8 * SECTOR]), Err(Error::PowerCut)));
            assert!(device.is_off());
            assert!(matches!(device.sync(), Err(Error::PowerCut)));
            assert!(matches!(device.read_at(0, &mut [0; SECTOR]), Err(Error::PowerCut)));
            assert_eq!(device.ops(), 2);
        });
        assert!(all.contains(&[2; 8][..]) && all.contains(&[0; 8][..]) && all.len() > 4);
    }

    #[test]
    fn a_sync_in_flight_promises_nothing() {
        let all = outcomes(|device| {
            device.write_at(0, &[1; 8 * SECTOR]).unwrap();
            device.set_cut_after(1);
            assert!(matches!(device.sync(), Err(Error::PowerCut)));
        });
        assert!(all.contains(&[1; 8][..]) && all.contains(&[0; 8][..]));
    }

    #[test]
    fn discarded_space_reads_as_anything() {
        let all = outcomes(|device| {
            device.write_at(0, &[1; 8 * SECTOR]).unwrap();
            device.sync().unwrap();
            device.discard(0, 4 * SECTOR as u64).unwrap();
            device.sync().unwrap();
        });
        assert!(all.iter().all(|outcome| outcome[4..] == [1; 4]));
        assert!(all.contains(&[1; 8][..]) && all.contains(&[0, 0, 0, 0, 1, 1, 1, 1][..]) && all.len() > 20);
    }

    #[test]
    fn a_failed_sync_is_not_made_good_by_a_later_one() {
        let all = outcomes(|device| {
            device.write_at(0, &[1; 8 * SECTOR]).unwrap();
            device.fail_sync();
            assert!(matches!(device.sync(), Err(Error::Io { .. })));
            device.heal();
            device.sync().unwrap();
            assert_eq!(read(device, 0, 8 * SECTOR), [1; 8 * SECTOR]);
        });
        assert!(all.contains(&[1; 8][..]) && all.contains(&[0; 8][..]));
    }

    #[test]
    fn injected_failures_end_when_healed() {
        let device = SimDevice::new(CAPACITY, 1);
        device.fail_writes_after(2);
        device.write_at(0, &[1; SECTOR]).unwrap();
        assert!(matches!(device.write_at(0, &[1; SECTOR]), Err(Error::Io { .. })));
        assert!(matches!(device.write_at(0, &[1; SECTOR]), Err(Error::Io { .. })));
        device.heal();
        device.enospc();
        assert!(matches!(device.write_at(0, &[1; SECTOR]), Err(Error::Full { .. })));
        device.heal();
        device.write_at(0, &[1; SECTOR]).unwrap();
    }

    #[test]
    fn a_flipped_bit_survives_sync_and_power_cycle() {
        let device = SimDevice::new(CAPACITY, 1);
        device.write_at(0, &[0; SECTOR]).unwrap();
        device.flip_bit(7, 3);
        device.sync().unwrap();
        device.flip_bit(8, 0);
        device.power_cycle();
        let back = read(&device, 0, SECTOR);
        assert_eq!((back[7], back[8]), (8, 1));
    }

    #[test]
    fn the_same_seed_has_the_same_outcome() {
        let run = |seed| {
            let device = SimDevice::new(CAPACITY, seed);
            for round in 0..20_u64 {
                device.write_at(round * 512, &[round as u8 + 1; 4096]).unwrap();
                if round % 7 == 6 {
                    device.discard(round * 256 / 512 * 512, 8192).unwrap();
                }
            }
            device.power_cycle();
            read(&device, 0, 1 << 16)
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }

    #[test]
    fn forks_are_independent() {
        let device = SimDevice::new(CAPACITY, 1);
        device.write_at(0, &[1; SECTOR]).unwrap();
        let fork = device.fork(2);
        fork.write_at(0, &[2; SECTOR]).unwrap();
        assert_eq!(read(&device, 0, SECTOR)[0], 1);
        assert_eq!(read(&fork, 0, SECTOR)[0], 2);
    }
}
