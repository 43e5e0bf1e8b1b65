//! Silent faults: failures that are not reported as errors, decided by a seed. This module decides and records them;
//! the simulated device carries them out.

use crate::SeededRng;

/// Rates of silent faults, in 1000 operations of each kind. The device acknowledges all of these operations as if
/// nothing were wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// Writes that are dropped, synced or not.
    pub lost_writes: u32,
    /// Writes that go to another address, over whatever is there.
    pub misdirected_writes: u32,
    /// Reads of which some sectors return their content before the last write.
    pub stale_reads: u32,
    /// Discards that happen some operations later. They spare sectors written in between, unless
    /// [`FaultRates::discards_overtake`] is set.
    pub late_discards: u32,
    /// Discards that happen in part.
    pub partial_discards: u32,
    /// Late discards hit data written after them, as some drives did with queued trims.
    pub discards_overtake: bool,
    /// Faults in all, after which none happens; 0 for no limit.
    pub limit: u64,
}

/// A silent fault that happened. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A write was dropped.
    LostWrite {
        /// Where it should be.
        offset: u64,
        /// Its length.
        len: u64,
    },
    /// A write went to another address.
    MisdirectedWrite {
        /// Where it should be.
        offset: u64,
        /// Where it is.
        actual: u64,
        /// Its length.
        len: u64,
    },
    /// A read returned older data for these sectors, where there is any.
    StaleRead {
        /// First of these sectors.
        offset: u64,
        /// Their length.
        len: u64,
    },
    /// A discard was delayed.
    LateDiscard {
        /// Its beginning.
        offset: u64,
        /// Its length.
        len: u64,
    },
    /// Only this part of a discard was done.
    PartialDiscard {
        /// Beginning of the part.
        offset: u64,
        /// Length of the part.
        len: u64,
    },
}

/// Most operations by which a discard is delayed.
const LATE_OPS_MAX: u64 = 256;

/// A part of the device, in bytes.
pub(crate) type Range = std::ops::Range<u64>;

/// The fate of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteFate {
    AsAsked,
    Lost,
    Misdirected(u64),
}

/// The fate of a discard: the part that happens now, or a delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiscardFate {
    Now(Range),
    Later,
}

/// The silent faults of one device.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    rates: FaultRates,
    rng: SeededRng,
    log: Vec<Fault>,
    /// Delayed discards, each with the number of operations left.
    late: Vec<(u64, Range)>,
}

impl Faults {
    pub(crate) fn new(rates: FaultRates, seed: u64) -> Faults {
        Faults { rates, rng: SeededRng::new(seed), log: Vec::new(), late: Vec::new() }
    }

    /// Whether the device must remember what was overwritten.
    pub(crate) fn needs_history(&self) -> bool {
        self.rates.stale_reads > 0
    }

    pub(crate) fn log(&self) -> &[Fault] {
        &self.log
    }

    fn strikes(&mut self, per_1000: u32) -> bool {
        let spent = self.rates.limit > 0 && self.log.len() as u64 >= self.rates.limit;
        per_1000 > 0 && !spent && self.rng.below(1000) < u64::from(per_1000)
    }

    /// Decides about a write of whole blocks on a device of `capacity` bytes.
    pub(crate) fn on_write(&mut self, offset: u64, len: u64, block: u64, capacity: u64) -> WriteFate {
        if self.strikes(self.rates.lost_writes) {
            self.log.push(Fault::LostWrite { offset, len });
            return WriteFate::Lost;
        }
        if self.strikes(self.rates.misdirected_writes) {
            let actual = self.rng.below((capacity - len) / block + 1) * block;
            if actual != offset {
                self.log.push(Fault::MisdirectedWrite { offset, actual, len });
                return WriteFate::Misdirected(actual);
            }
        }
        WriteFate::AsAsked
    }

    /// The part of a read that is to be stale, in whole sectors.
    pub(crate) fn on_read(&mut self, offset: u64, len: u64, sector: u64) -> Option<Range> {
        if len == 0 || !self.strikes(self.rates.stale_reads) {
            return None;
        }
        let part = self.part(offset, len, sector);
        self.log.push(Fault::StaleRead { offset: part.start, len: part.end - part.start });
        Some(part)
    }

    pub(crate) fn on_discard(&mut self, offset: u64, len: u64, sector: u64) -> DiscardFate {
        if len > 0 && self.strikes(self.rates.late_discards) {
            self.log.push(Fault::LateDiscard { offset, len });
            // Often soon, sometimes much later.
            let ops_max = 1 + self.rng.below(LATE_OPS_MAX);
            self.late.push((1 + self.rng.below(ops_max), offset..offset + len));
            return DiscardFate::Later;
        }
        if len > 0 && self.strikes(self.rates.partial_discards) {
            let part = self.part(offset, len, sector);
            self.log.push(Fault::PartialDiscard { offset: part.start, len: part.end - part.start });
            return DiscardFate::Now(part);
        }
        DiscardFate::Now(offset..offset + len)
    }

    /// All of a range, one sector of it, or anything between.
    fn part(&mut self, offset: u64, len: u64, sector: u64) -> Range {
        let sectors = len / sector;
        let first = if self.rng.chance(30) { 0 } else { self.rng.below(sectors) };
        let count = if self.rng.chance(30) { sectors - first } else { 1 + self.rng.below(sectors - first) };
        let start = offset + first * sector;
        start..start + count * sector
    }

    /// Spares what was just written from late discards, unless they overtake.
    pub(crate) fn written(&mut self, written: &Range) {
        if self.rates.discards_overtake {
            return;
        }
        let late = std::mem::take(&mut self.late);
        for (left, range) in late {
            let before = range.start..range.end.min(written.start);
            let after = range.start.max(written.end)..range.end;
            let parts = [before, after].into_iter().filter(|part| !part.is_empty());
            self.late.extend(parts.map(|part| (left, part)));
        }
    }

    /// Counts one operation and returns the discards that happen now.
    pub(crate) fn tick(&mut self) -> Vec<Range> {
        self.late.iter_mut().for_each(|(left, _)| *left -= 1);
        let due = self.late.extract_if(.., |(left, _)| *left == 0);
        due.map(|(_, range)| range).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_discards_spare_what_was_written_since() {
        let rates = FaultRates { late_discards: 1000, ..FaultRates::default() };
        let due = |overtake, written: Range| {
            let mut faults = Faults::new(FaultRates { discards_overtake: overtake, ..rates }, 1);
            assert_eq!(faults.on_discard(4096, 4096, 512), DiscardFate::Later);
            faults.written(&written);
            let due = (0..LATE_OPS_MAX).flat_map(|_| faults.tick());
            due.map(|range| (range.start, range.end)).collect::<Vec<_>>()
        };
        assert_eq!(due(false, 0..4096), [(4096, 8192)]);
        assert_eq!(due(false, 5120..5632), [(4096, 5120), (5632, 8192)]);
        assert_eq!(due(false, 0..8192), []);
        assert_eq!(due(true, 0..8192), [(4096, 8192)]);
    }

    #[test]
    fn a_limit_ends_the_faults() {
        let rates = FaultRates { lost_writes: 1000, limit: 2, ..FaultRates::default() };
        let mut faults = Faults::new(rates, 1);
        let fates: Vec<_> = (0..4).map(|_| faults.on_write(0, 512, 512, 4096)).collect();
        assert_eq!(fates, [WriteFate::Lost, WriteFate::Lost, WriteFate::AsAsked, WriteFate::AsAsked]);
        assert_eq!(faults.log().len(), 2);
    }
}
