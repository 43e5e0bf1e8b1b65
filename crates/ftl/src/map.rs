//! The map: which sectors are stored, and where.
//!
//! It owns the extents and everything counted over them. Nothing outside this file knows how they
//! are kept, so that a paged map can replace it.
//!
//! Invariants:
//! 1. Extents do not overlap.
//! 2. Every extent has payload in each of its sectors; zero tails are not in the map.
//! 3. The counters of each segment, and the totals, are the sums over the extents.

use std::{collections::BTreeMap, ops::Range};

use crate::{
    Lba, SECTOR, Seq,
    addr::{PhysAddr, SegNo},
    format::{Extent, MapEntryRaw},
};

/// What is mapped in one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Live {
    /// Stored bytes.
    pub(crate) bytes: u64,
    /// Extents.
    pub(crate) extents: u64,
}

impl Live {
    fn add(&mut self, extent: &Extent) {
        self.bytes += extent.bytes() as u64;
        self.extents += 1;
    }

    fn sub(&mut self, extent: &Extent) {
        self.bytes = self.bytes.checked_sub(extent.bytes() as u64).expect("invariant 3: bytes below zero");
        self.extents = self.extents.checked_sub(1).expect("invariant 3: extents below zero");
    }
}

/// See the module documentation.
pub(crate) struct Map {
    extents: BTreeMap<u64, Extent>,
    segments: Vec<Live>,
    total: Live,
}

/// The part of `extent`, which starts at `lba`, that lies in `range`.
fn clip(lba: u64, extent: &Extent, range: &Range<u64>) -> Option<(u64, Extent)> {
    let start = lba.max(range.start);
    let end = (lba + u64::from(extent.sectors)).min(range.end);
    (start < end).then(|| {
        let skipped = (start - lba) as u8;
        (start, Extent { sectors: (end - start) as u8, skip: extent.skip + skipped, ..*extent })
    })
}

impl Map {
    /// An empty map of a device with `segments` segments.
    pub(crate) fn new(segments: u32) -> Map {
        Map {
            extents: BTreeMap::new(),
            segments: vec![Live::default(); segments as usize],
            total: Live::default(),
        }
    }

    fn link(&mut self, lba: u64, extent: Extent) {
        assert_eq!(extent.bytes().div_ceil(SECTOR), usize::from(extent.sectors), "invariant 2");
        self.segments[extent.phys.segment.0 as usize].add(&extent);
        self.total.add(&extent);
        let before = self.extents.insert(lba, extent);
        assert!(before.is_none(), "invariant 1: two extents at sector {lba}");
    }

    fn unlink(&mut self, lba: u64) -> Extent {
        let extent = self.extents.remove(&lba).expect("extent that was just found");
        self.segments[extent.phys.segment.0 as usize].sub(&extent);
        self.total.sub(&extent);
        extent
    }

    /// Start of the first extent that reaches beyond `lba`, or `lba` itself.
    fn reach(&self, lba: u64) -> u64 {
        match self.extents.range(..lba).next_back() {
            Some((start, extent)) if start + u64::from(extent.sectors) > lba => *start,
            _ => lba,
        }
    }

    /// Unmaps `range`.
    pub(crate) fn trim(&mut self, range: Range<u64>) {
        let mut from = self.reach(range.start);
        while from < range.end
            && let Some(lba) = self.extents.range(from..range.end).next().map(|(lba, _)| *lba)
        {
            let extent = self.unlink(lba);
            let end = lba + u64::from(extent.sectors);
            if let Some((left, extent)) = clip(lba, &extent, &(0..range.start)) {
                self.link(left, extent);
            }
            if let Some((right, extent)) = clip(lba, &extent, &(range.end..u64::MAX)) {
                self.link(right, extent);
            }
            from = end;
        }
    }

    /// Maps `sectors` sectors at `lba` to a chunk of `stored` bytes; what it lacks is zeros.
    pub(crate) fn write(
        &mut self,
        lba: Lba,
        sectors: u64,
        phys: PhysAddr,
        stored: u16,
        crc: u32,
        birth: Seq,
    ) {
        self.trim(lba.0..lba.0 + sectors);
        let sectors = usize::from(stored).div_ceil(SECTOR) as u8;
        self.link(lba.0, Extent { phys, stored, crc, birth, sectors, skip: 0 });
    }

    /// Whether exactly `extent` is mapped at `lba`.
    pub(crate) fn holds(&self, lba: Lba, extent: &Extent) -> bool {
        self.extents.get(&lba.0) == Some(extent)
    }

    /// Replaces `extent` at `lba`, which the map must hold, by a chunk with the same bytes.
    pub(crate) fn relocate(&mut self, lba: Lba, extent: &Extent, phys: PhysAddr, crc: u32) {
        let old = self.unlink(lba.0);
        assert_eq!(old, *extent, "relocation of an extent that is not mapped");
        let stored = u16::try_from(old.bytes()).expect("an extent is at most a chunk");
        self.link(lba.0, Extent { phys, stored, crc, birth: old.birth, sectors: old.sectors, skip: 0 });
    }

    /// Maps an extent as a checkpoint holds it, over whatever is there.
    pub(crate) fn restore(&mut self, lba: Lba, extent: Extent) {
        self.trim(lba.0..lba.0 + u64::from(extent.sectors));
        self.link(lba.0, extent);
    }

    /// All extents in `range`, cut to it, in order.
    pub(crate) fn extents(&self, range: Range<u64>) -> impl Iterator<Item = (Lba, Extent)> + '_ {
        let from = if range.is_empty() { range.end } else { self.reach(range.start) };
        self.extents
            .range(from..range.end.max(from))
            .filter_map(move |(lba, extent)| clip(*lba, extent, &range))
            .map(|(lba, extent)| (Lba(lba), extent))
    }

    /// Up to `entries_max` extents from `cursor` on as a checkpoint stores them, appended to `out`;
    /// returns where to go on, and nothing at the end.
    pub(crate) fn walk(&self, cursor: u64, entries_max: usize, out: &mut Vec<MapEntryRaw>) -> Option<u64> {
        let mut next = None;
        for (lba, extent) in self.extents.range(self.reach(cursor)..).take(entries_max) {
            out.push(extent.to_raw(Lba(*lba)));
            next = Some(lba + u64::from(extent.sectors));
        }
        next.filter(|_| out.len() >= entries_max)
    }

    /// What unmapping `ranges` (sorted, without overlap) would free: bytes, and how many extents
    /// fewer there would be (negative when more are split than removed).
    pub(crate) fn freed_by(&self, ranges: &[Range<u64>]) -> (u64, i64) {
        let (mut bytes, mut extents) = (0, 0);
        for range in ranges {
            let from = self.reach(range.start);
            for (lba, extent) in self.extents.range(from..range.end.max(from)) {
                let end = lba + u64::from(extent.sectors);
                let Some((_, inner)) = clip(*lba, extent, range) else { continue };
                bytes += inner.bytes() as u64;
                extents += 1 - i64::from(*lba < range.start) - i64::from(end > range.end);
            }
        }
        (bytes, extents)
    }

    /// Counters of one segment.
    pub(crate) fn live(&self, segment: SegNo) -> Live {
        self.segments[segment.0 as usize]
    }

    /// Totals.
    pub(crate) fn total(&self) -> Live {
        self.total
    }

    /// Estimated memory in bytes: key and extent, and a tree whose nodes are two thirds full.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.total.extents * (size_of::<(u64, Extent)>() as u64) * 3 / 2
    }

    /// Holds the invariants against a recount; calls `found` for each breach.
    pub(crate) fn check(&self, mut found: impl FnMut(String)) {
        let mut segments = vec![Live::default(); self.segments.len()];
        let mut total = Live::default();
        let mut last_end = 0;
        for (lba, extent) in &self.extents {
            if *lba < last_end {
                found(format!("sector {lba}: extent overlaps the one before it"));
            }
            if extent.sectors == 0 || extent.bytes().div_ceil(SECTOR) != usize::from(extent.sectors) {
                found(format!("sector {lba}: extent has sectors without payload"));
            }
            last_end = lba + u64::from(extent.sectors);
            segments[extent.phys.segment.0 as usize].add(extent);
            total.add(extent);
        }
        if total != self.total {
            found(format!("map totals are {:?}, the extents' sum is {total:?}", self.total));
        }
        for (segment, (counted, sum)) in self.segments.iter().zip(&segments).enumerate() {
            if counted != sum {
                found(format!("segment {segment}: counted {counted:?}, the extents' sum is {sum:?}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lacuna_device::sim::{SeededRng, for_each_seed};

    use super::*;
    use crate::addr::{CHUNK_SECTORS, GRAIN};

    /// What a sector is mapped to: chunk, sector of the chunk.
    type Model = BTreeMap<u64, (PhysAddr, u64)>;

    fn check(map: &Map, model: &Model) {
        map.check(|finding| panic!("{finding}"));
        let mut sectors = Model::new();
        for (lba, extent) in map.extents(0..u64::MAX) {
            for sector in 0..u64::from(extent.sectors) {
                sectors.insert(lba.0 + sector, (extent.phys, u64::from(extent.skip) + sector));
            }
        }
        assert_eq!(&sectors, model);
    }

    fn step(rng: &mut SeededRng, map: &mut Map, model: &mut Model, number: u32) {
        let lba = rng.below(300);
        let sectors = 1 + rng.below(CHUNK_SECTORS - lba % CHUNK_SECTORS);
        let before = map.total();
        if rng.below(3) == 0 {
            let sectors = 1 + rng.below(100);
            let (bytes, extents) = map.freed_by(std::slice::from_ref(&(lba..lba + sectors)));
            map.trim(lba..lba + sectors);
            model.retain(|sector, _| !(lba..lba + sectors).contains(sector));
            assert_eq!(map.total().bytes, before.bytes - bytes);
            assert_eq!(map.total().extents as i64, before.extents as i64 - extents);
            return;
        }
        let stored = (1 + rng.below(sectors * (SECTOR / GRAIN) as u64)) * GRAIN as u64;
        let phys = PhysAddr { segment: SegNo(1 + number % 7), grain: number };
        map.write(Lba(lba), sectors, phys, stored as u16, 0, Seq(u64::from(number)));
        model.retain(|sector, _| !(lba..lba + sectors).contains(sector));
        for sector in 0..stored.div_ceil(SECTOR as u64) {
            model.insert(lba + sector, (phys, sector));
        }
    }

    #[test]
    fn agrees_with_a_map_of_sectors() {
        for_each_seed(30, |seed| {
            let mut rng = SeededRng::new(seed);
            let (mut map, mut model) = (Map::new(8), Model::new());
            for number in 0..300 {
                step(&mut rng, &mut map, &mut model, number);
                check(&map, &model);
            }
            let mut walked = Vec::new();
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                let mut out = Vec::new();
                cursor = map.walk(from, 7, &mut out);
                walked.extend(out.iter().map(|raw| raw.verify(8, 1 << 20)));
            }
            assert_eq!(walked.len() as u64, map.total().extents);
        });
    }

    #[test]
    fn relocation_keeps_the_bytes_of_a_fragment() {
        let mut map = Map::new(4);
        map.write(Lba(0), 32, PhysAddr { segment: SegNo(1), grain: 100 }, 5008, 1, Seq(1));
        map.trim(0..4);
        let (lba, fragment) = map.extents(0..100).next().unwrap();
        assert_eq!((lba, fragment.sectors, fragment.skip, fragment.bytes()), (Lba(4), 6, 4, 2960));
        map.relocate(lba, &fragment, PhysAddr { segment: SegNo(2), grain: 200 }, 2);
        let (_, moved) = map.extents(0..100).next().unwrap();
        assert_eq!((moved.stored, moved.skip, moved.sectors, moved.birth), (2960, 0, 6, Seq(1)));
        assert_eq!(map.live(SegNo(1)), Live::default());
        assert_eq!(map.live(SegNo(2)), Live { bytes: 2960, extents: 1 });
        map.check(|finding| panic!("{finding}"));
    }
}
