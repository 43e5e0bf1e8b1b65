//! Simulated persistent memory.
//!
//! It owns two images and the stores between them:
//!
//! 1. `medium` holds the bytes that survive any power cut;
//! 2. `stores` are those that may not have reached it, by line: each line's are in the order in which they were made,
//!    because a line reaches the medium as it is in the cache at some moment;
//! 3. `cache` is what reads see: the medium with all of `stores`.
//!
//! Writing a line back notes how many of its stores a fence will make durable. Stores reach the medium, by chance, at
//! other times as well; only a power cut shows that, so it is decided then. A store that was on its way may have reached
//! the medium in some of its aligned words of 8 bytes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lacuna_device::{Error, LogDevice, Result, log_device::LINE, mem::SparseBytes};
use parking_lot::Mutex;

use crate::{
    SeededRng, SimDevice,
    power::{Power, Verdict, injected, power_controls},
};

const NAME: &str = "simulated memory";
/// Bytes of a line that are stored at once.
const WORD: usize = 8;
/// Bytes of a sector of the images.
const SECTOR: usize = lacuna_device::SECTOR;

/// A seeded persistent memory, on the power supply of a [`SimDevice`].
pub struct SimMemory {
    capacity_bytes: u64,
    state: Mutex<State>,
}

#[derive(Clone)]
struct State {
    medium: SparseBytes,
    cache: SparseBytes,
    /// By the line's number.
    stores: BTreeMap<u64, Vec<Store>>,
    /// How many of a line's stores the next fence makes durable.
    written_back: BTreeMap<u64, usize>,
    /// Calls of [`LogDevice::write_at`].
    writes: u64,
    power: Power,
    rng: SeededRng,
}

/// A part of a write, in one line.
#[derive(Clone)]
struct Store {
    /// The write that it is a part of.
    write: u64,
    /// Offset in the line.
    at: usize,
    bytes: Vec<u8>,
}

/// The kind of a whole crash; see `crash`.
#[derive(Clone, Copy)]
enum Crash {
    KeepAll,
    DropAll,
    /// The first writes are kept.
    Prefix,
    /// All but one line are kept.
    AllButOneLine,
    /// Each line by itself.
    Scramble,
}

fn write(image: &mut SparseBytes, offset: u64, data: &[u8]) {
    let start = offset / SECTOR as u64 * SECTOR as u64;
    let end = (offset + data.len() as u64).next_multiple_of(SECTOR as u64);
    let mut sectors = vec![0; (end - start) as usize];
    image.read(start, &mut sectors);
    sectors[(offset - start) as usize..][..data.len()].copy_from_slice(data);
    image.write(start, &sectors);
}

fn read(image: &SparseBytes, offset: u64, buf: &mut [u8]) {
    let start = offset / SECTOR as u64 * SECTOR as u64;
    let end = (offset + buf.len() as u64).next_multiple_of(SECTOR as u64);
    let mut sectors = vec![0; (end - start) as usize];
    image.read(start, &mut sectors);
    buf.copy_from_slice(&sectors[(offset - start) as usize..][..buf.len()]);
}

impl State {
    /// Splits a write into stores, in the cache at once.
    fn store(&mut self, offset: u64, data: &[u8]) {
        write(&mut self.cache, offset, data);
        self.writes += 1;
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let within = (at % LINE as u64) as usize;
            let (now, later) = rest.split_at((LINE - within).min(rest.len()));
            let store = Store { write: self.writes, at: within, bytes: now.to_vec() };
            self.stores.entry(at / LINE as u64).or_default().push(store);
            at += now.len() as u64;
            rest = later;
        }
    }

    /// The first `count` stores of a line reach the medium.
    fn reach(&mut self, line: u64, count: usize) {
        let Some(stores) = self.stores.get_mut(&line) else { return };
        for store in stores.drain(..count) {
            write(&mut self.medium, line * LINE as u64 + store.at as u64, &store.bytes);
        }
        if stores.is_empty() {
            self.stores.remove(&line);
        }
    }

    /// Some words of the oldest store of a line reach the medium.
    fn tear(&mut self, line: u64) {
        let Some(store) = self.stores.get(&line).and_then(|stores| stores.first()).cloned() else { return };
        let words = (store.at..store.at + store.bytes.len()).collect::<Vec<_>>();
        for word in words.chunk_by(|a, b| a / WORD == b / WORD) {
            if self.rng.chance(50) {
                let (first, at) = (word[0], line * LINE as u64);
                let bytes = &store.bytes[first - store.at..][..word.len()];
                write(&mut self.medium, at + first as u64, bytes);
            }
        }
    }

    /// Decides which stores have reached the medium; the others are lost.
    fn resolve(&mut self) {
        let lines: Vec<u64> = self.stores.keys().copied().collect();
        if !lines.is_empty() {
            let kind = match self.rng.below(10) {
                0 => Crash::KeepAll,
                1 => Crash::DropAll,
                2..=3 => Crash::Prefix,
                4..=5 => Crash::AllButOneLine,
                _ => Crash::Scramble,
            };
            let writes: BTreeSet<u64> = self.stores.values().flatten().map(|store| store.write).collect();
            let writes: Vec<u64> = writes.into_iter().collect();
            let first_lost = writes[self.rng.below(writes.len() as u64) as usize];
            let lost_line = lines[self.rng.below(lines.len() as u64) as usize];
            let kept_percent = 20 + self.rng.below(70);
            for line in lines {
                let count = self.stores[&line].len();
                let before = self.stores[&line].partition_point(|store| store.write < first_lost);
                let kept = match kind {
                    Crash::KeepAll => count,
                    Crash::DropAll => 0,
                    Crash::Prefix => before,
                    Crash::AllButOneLine if line != lost_line => count,
                    Crash::AllButOneLine => self.rng.below(count as u64) as usize,
                    Crash::Scramble if self.rng.chance(kept_percent) => count,
                    Crash::Scramble => self.rng.below(count as u64 + 1) as usize,
                };
                self.reach(line, kept);
                if !matches!(kind, Crash::DropAll) && self.rng.chance(30) {
                    self.tear(line);
                }
            }
        }
        self.stores.clear();
        self.written_back.clear();
        self.cache = self.medium.clone();
    }
}

power_controls!(SimMemory);

impl SimMemory {
    /// `capacity_bytes` of zeros, on the power supply of `device`; `seed` drives all chance.
    ///
    /// # Panics
    /// When the capacity is not a multiple of 512.
    pub fn beside(device: &SimDevice, capacity_bytes: u64, seed: u64) -> Arc<SimMemory> {
        assert!(capacity_bytes.is_multiple_of(SECTOR as u64), "capacity is not whole sectors");
        Arc::new(SimMemory {
            capacity_bytes,
            state: Mutex::new(State {
                medium: SparseBytes::default(),
                cache: SparseBytes::default(),
                stores: BTreeMap::new(),
                written_back: BTreeMap::new(),
                writes: 0,
                power: device.power_beside(),
                rng: SeededRng::new(seed),
            }),
        })
    }

    /// An independent memory in the same state on the power supply of `device`, driven by `seed` from here on.
    pub fn fork_beside(&self, device: &SimDevice, seed: u64) -> Arc<SimMemory> {
        let mut state = self.state.lock().clone();
        (state.rng, state.power) = (SeededRng::new(seed), device.power_beside());
        Arc::new(SimMemory { capacity_bytes: self.capacity_bytes, state: Mutex::new(state) })
    }

    /// Decides which stores survive, as a power cut may, then switches the power on. The device beside it has a
    /// [`SimDevice::power_cycle`] of its own.
    pub fn power_cycle(&self) {
        let mut state = self.state.lock();
        state.resolve();
        state.power.switch_on();
    }

    /// Flips one bit: bit `bit % 8` of byte `offset`, durable or not.
    ///
    /// # Panics
    /// When the offset is beyond the capacity.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        assert!(offset < self.capacity_bytes, "no byte {offset} to flip");
        let mut guard = self.state.lock();
        let state = &mut *guard;
        for image in [&mut state.medium, &mut state.cache] {
            let mut byte = [0];
            read(image, offset, &mut byte);
            write(image, offset, &[byte[0] ^ (1 << (bit % 8))]);
        }
        let within = (offset % LINE as u64) as usize;
        for store in state.stores.get_mut(&(offset / LINE as u64)).into_iter().flatten() {
            if (store.at..store.at + store.bytes.len()).contains(&within) {
                store.bytes[within - store.at] ^= 1 << (bit % 8);
            }
        }
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.capacity_bytes => Ok(()),
            _ => Err(Error::BadRange { what: NAME.into(), offset, len }),
        }
    }
}

impl LogDevice for SimMemory {
    fn name(&self) -> &str {
        NAME
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn unit_bytes(&self) -> u32 {
        1
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.check_range(offset, buf.len() as u64)?;
        let state = self.state.lock();
        state.power.check()?;
        read(&state.cache, offset, buf);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_range(offset, data.len() as u64)?;
        let mut state = self.state.lock();
        let verdict = state.power.tick()?;
        let outcome = state.power.check_write(NAME);
        // Cut in flight: some of the stores were made.
        let made = match verdict {
            Verdict::Go => data.len(),
            Verdict::CutInFlight => state.rng.below(data.len() as u64 + 1) as usize,
        };
        state.store(offset, &data[..made]);
        match verdict {
            Verdict::Go => outcome,
            Verdict::CutInFlight => Err(Error::PowerCut),
        }
    }

    fn write_back(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)?;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.power.check()?;
        let lines = offset / LINE as u64..(offset + len).div_ceil(LINE as u64);
        for (line, stores) in state.stores.range(lines) {
            state.written_back.insert(*line, stores.len());
        }
        Ok(())
    }

    fn fence(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.power.tick()? == Verdict::CutInFlight {
            return Err(Error::PowerCut);
        }
        if state.power.fails_sync() {
            state.written_back.clear(); // and no later fence covers it
            return Err(injected(NAME));
        }
        for (line, count) in std::mem::take(&mut state.written_back) {
            state.reach(line, count);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 1 << 16;

    /// The distinct outcomes of many power cuts after the same run: the first byte of each of the first 4 words.
    fn outcomes(run: impl Fn(&SimMemory)) -> BTreeSet<[u8; 4]> {
        (0..400)
            .map(|seed| {
                let device = SimDevice::new(CAPACITY, seed);
                let memory = SimMemory::beside(&device, CAPACITY, seed);
                run(&memory);
                device.set_cut_after(0);
                assert!(matches!(memory.read_at(0, &mut [0]), Err(Error::PowerCut)), "one supply");
                device.power_cycle();
                memory.power_cycle();
                let mut bytes = [0; 4 * WORD];
                memory.read_at(0, &mut bytes).unwrap();
                [0, 8, 16, 24].map(|at| bytes[at])
            })
            .collect()
    }

    #[test]
    fn what_is_written_back_and_fenced_survives() {
        let all = outcomes(|memory| {
            memory.persist(0, &[1; 32]).unwrap();
            memory.persist(8, &[2; 8]).unwrap();
        });
        assert_eq!(all.into_iter().collect::<Vec<_>>(), [[1, 2, 1, 1]]);
    }

    #[test]
    fn without_a_fence_or_without_writing_back_anything_may_be_lost() {
        let runs: [&dyn Fn(&SimMemory); 2] = [
            &|memory| {
                memory.write_at(0, &[1; 32]).unwrap();
                memory.write_back(0, 32).unwrap();
            },
            &|memory| {
                memory.write_at(0, &[1; 32]).unwrap();
                memory.fence().unwrap();
            },
        ];
        for run in runs {
            let all = outcomes(run);
            for outcome in [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0]] {
                assert!(all.contains(&outcome), "{outcome:?} never happened: {all:?}");
            }
        }
    }

    /// A store after the line was written back is not covered by the fence; one before it is.
    #[test]
    fn a_fence_covers_what_was_written_back_before() {
        let all = outcomes(|memory| {
            memory.write_at(0, &[1; 16]).unwrap();
            memory.write_back(0, 16).unwrap();
            memory.write_at(8, &[2; 16]).unwrap();
            memory.fence().unwrap();
        });
        assert!(all.iter().all(|words| words[0] == 1 && words[1] != 0), "{all:?}");
        for outcome in [[1, 1, 0, 0], [1, 2, 2, 0], [1, 1, 2, 0], [1, 2, 0, 0]] {
            assert!(all.contains(&outcome), "{outcome:?} never happened: {all:?}");
        }
    }

    /// Contract 3: stores to one line keep their order; those to different lines do not.
    #[test]
    fn lines_reach_the_medium_in_any_order_and_words_are_whole() {
        let (mut later_alone, mut torn) = (0, 0);
        for seed in 0..400 {
            let device = SimDevice::new(CAPACITY, seed);
            let memory = SimMemory::beside(&device, CAPACITY, seed);
            for round in 1..=3 {
                memory.write_at(0, &[round; 16]).unwrap();
                memory.write_at(256, &[round; 16]).unwrap();
            }
            memory.power_cycle();
            let mut words = [0; 272];
            memory.read_at(0, &mut words).unwrap();
            for word in [&words[..8], &words[8..16], &words[256..264], &words[264..]] {
                assert!(word.iter().all(|byte| *byte == word[0]), "a torn word");
            }
            let (first, second) = (words[0].max(words[8]), words[256].min(words[264]));
            later_alone += usize::from(first < second);
            torn += usize::from(words[0] != words[8]);
            assert!(words[0].abs_diff(words[8]) <= 1, "stores to one line in another order");
        }
        assert!(later_alone > 20 && torn > 20, "{later_alone} {torn}");
    }

    #[test]
    fn a_cut_falls_into_any_write_or_fence_of_either_device() {
        let device = SimDevice::new(CAPACITY, 1);
        let memory = SimMemory::beside(&device, CAPACITY, 1);
        device.set_cut_after(3);
        memory.write_at(0, &[1; 100]).unwrap();
        lacuna_device::BlockDevice::write_at(&*device, 0, &[1; 512]).unwrap();
        assert!(matches!(memory.fence(), Err(Error::PowerCut)));
        assert!(device.is_off() && memory.is_off() && memory.ops() == 3);
        let fork = device.fork(2);
        let other = memory.fork_beside(&fork, 2);
        fork.power_cycle();
        other.power_cycle();
        other.persist(0, &[1]).unwrap();
        assert!(memory.is_off() && !other.is_off(), "a fork has a supply of its own");
    }
}
