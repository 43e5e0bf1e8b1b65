//! The map: which sectors are stored, and where.
//!
//! It owns the extents and everything counted over them. They lie in a B+tree with packed leaves
//! (`leaf`) and sums in its inner nodes (`tree`). Nothing outside this folder knows how they are
//! kept, so that a paged map can replace it.
//!
//! Invariants:
//! 1. Extents do not overlap, and none crosses a chunk boundary of the space.
//! 2. Every extent has payload in each of its sectors; zero tails are not in the map.
//! 3. The counters of each segment, and the totals, are the sums over the extents.
//!
//! Every change is one [`Edit`]: what lies in a range goes, and perhaps one extent takes its place.
//! It goes down the tree once. Whole nodes in the range are dropped; each of their extents is read
//! a single time, for the counters of its segment.

mod leaf;
mod tree;

use std::ops::Range;

use crate::{
    Lba, SECTOR, Seq,
    addr::{CHUNK_SECTORS, PhysAddr, SegNo},
    format::{Extent, MapEntryRaw},
    map::{
        leaf::{Leaf, Row},
        tree::{Edit, Node},
    },
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

/// What is counted beside the tree's own sums.
struct Tally {
    segments: Vec<Live>,
    leaves: u64,
    /// Data of all leaves.
    leaf_bytes: u64,
}

impl Tally {
    fn add(&mut self, extent: &Extent) {
        self.segments[extent.phys.segment.0 as usize].add(extent);
    }

    fn sub(&mut self, extent: &Extent) {
        self.segments[extent.phys.segment.0 as usize].sub(extent);
    }

    fn forget_leaf(&mut self, leaf: &Leaf) {
        self.leaves -= 1;
        self.leaf_bytes -= leaf.bytes() as u64;
    }
}

/// See the module documentation.
pub(crate) struct Map {
    root: Node,
    total: Live,
    tally: Tally,
}

/// The sectors that a root is responsible for.
const SPACE: Range<u64> = 0..u64::MAX;

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
        let segments = vec![Live::default(); segments as usize];
        let tally = Tally { segments, leaves: 1, leaf_bytes: 0 };
        Map { root: Node::Leaf(Leaf::default()), total: Live::default(), tally }
    }

    fn edit(&mut self, edit: &Edit) {
        if edit.range.is_empty() {
            return;
        }
        self.root.edit(SPACE, edit, &mut self.tally).apply(&mut self.total);
        self.root.settle_root(self.total, edit.range.start, &mut self.tally);
    }

    /// Puts `extent` in the place of whatever is there.
    fn put(&mut self, range: Range<u64>, extent: Extent) {
        let lba = range.start;
        assert_eq!(extent.bytes().div_ceil(SECTOR), usize::from(extent.sectors), "invariant 2");
        assert!(lba % CHUNK_SECTORS + (range.end - lba) <= CHUNK_SECTORS, "invariant 1: sectors {range:?}");
        self.edit(&Edit { range, put: Some((lba, extent)) });
    }

    /// Unmaps `range`.
    pub(crate) fn trim(&mut self, range: Range<u64>) {
        self.edit(&Edit { range, put: None });
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
        let payload_sectors = usize::from(stored).div_ceil(SECTOR) as u8;
        let extent = Extent { phys, stored, crc, birth, sectors: payload_sectors, skip: 0 };
        self.put(lba.0..lba.0 + sectors, extent);
    }

    /// Whether exactly `extent` is mapped at `lba`.
    pub(crate) fn holds(&self, lba: Lba, extent: &Extent) -> bool {
        let (leaf, _) = self.root.leaf_at(lba.0);
        let index = leaf.search(lba.0);
        index < leaf.len() && leaf.get(index) == (lba.0, *extent)
    }

    /// Replaces `extent` at `lba`, which the map must hold, by a chunk with the same bytes.
    pub(crate) fn relocate(&mut self, lba: Lba, extent: &Extent, phys: PhysAddr, crc: u32) {
        assert!(self.holds(lba, extent), "relocation of an extent that is not mapped");
        let stored = u16::try_from(extent.bytes()).expect("an extent is at most a chunk");
        self.restore(lba, Extent { phys, stored, crc, skip: 0, ..*extent });
    }

    /// Maps an extent as a checkpoint holds it, over whatever is there.
    pub(crate) fn restore(&mut self, lba: Lba, extent: Extent) {
        self.put(lba.0..lba.0 + u64::from(extent.sectors), extent);
    }

    /// All rows that end after `lba`, in order.
    fn rows_from(&self, lba: u64) -> Rows<'_> {
        let (leaf, end) = self.root.leaf_at(lba);
        Rows { root: &self.root, index: leaf.reach(lba), leaf, end }
    }

    /// All extents in `range`, cut to it, in order.
    pub(crate) fn extents(&self, range: Range<u64>) -> impl Iterator<Item = (Lba, Extent)> + '_ {
        self.rows_from(range.start)
            .map_while(move |(lba, extent)| clip(lba, &extent, &range))
            .map(|(lba, extent)| (Lba(lba), extent))
    }

    /// Up to `entries_max` extents from `cursor` on as a checkpoint stores them, appended to `out`;
    /// returns where to go on, and nothing at the end.
    pub(crate) fn walk(&self, cursor: u64, entries_max: usize, out: &mut Vec<MapEntryRaw>) -> Option<u64> {
        let mut next = None;
        for (lba, extent) in self.rows_from(cursor).take(entries_max) {
            out.push(extent.to_raw(Lba(lba)));
            next = Some(lba + u64::from(extent.sectors));
        }
        next.filter(|_| out.len() >= entries_max)
    }

    /// What unmapping `ranges` (sorted, without overlap) would free: bytes, and how many extents
    /// fewer there would be (negative when more are split than removed).
    pub(crate) fn freed_by(&self, ranges: &[Range<u64>]) -> (u64, i64) {
        let (mut bytes, mut extents) = (0, 0);
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            let freed = self.root.freed_by(SPACE, self.total, range);
            bytes += freed.0;
            extents += freed.1;
        }
        (bytes, extents)
    }

    /// Stored bytes of `range`, from the tree's sums.
    pub(crate) fn allocated(&self, range: Range<u64>) -> u64 {
        self.freed_by(&[range]).0
    }

    /// Counters of one segment.
    pub(crate) fn live(&self, segment: SegNo) -> Live {
        self.tally.segments[segment.0 as usize]
    }

    /// Totals.
    pub(crate) fn total(&self) -> Live {
        self.total
    }

    /// Memory in bytes: the leaves' data, and for each leaf its place in an inner node, twice,
    /// because those are half to wholly full.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let place = size_of::<Node>() + size_of::<Live>() + size_of::<u64>();
        self.tally.leaf_bytes + self.tally.leaves * 2 * place as u64
    }

    /// Holds the invariants against a recount; calls `found` for each breach.
    pub(crate) fn check(&self, mut found: impl FnMut(String)) {
        self.root.check(SPACE, &mut found);
        let mut segments = vec![Live::default(); self.tally.segments.len()];
        let mut total = Live::default();
        let mut last_end = 0;
        for (lba, extent) in self.rows_from(0) {
            if lba < last_end {
                found(format!("sector {lba}: extent overlaps the one before it"));
            }
            if extent.sectors == 0 || extent.bytes().div_ceil(SECTOR) != usize::from(extent.sectors) {
                found(format!("sector {lba}: extent has sectors without payload"));
            }
            last_end = lba + u64::from(extent.sectors);
            if lba / CHUNK_SECTORS != (last_end - 1) / CHUNK_SECTORS {
                found(format!("sector {lba}: extent crosses a chunk boundary"));
            }
            segments[extent.phys.segment.0 as usize].add(&extent);
            total.add(&extent);
        }
        if total != self.total {
            found(format!("map totals are {:?}, the extents' sum is {total:?}", self.total));
        }
        for (segment, (counted, sum)) in self.tally.segments.iter().zip(&segments).enumerate() {
            if counted != sum {
                found(format!("segment {segment}: counted {counted:?}, the extents' sum is {sum:?}"));
            }
        }
    }
}

/// Rows from one on, leaf by leaf.
struct Rows<'a> {
    root: &'a Node,
    leaf: &'a Leaf,
    /// The next row in `leaf`.
    index: usize,
    /// End of the leaf's span.
    end: u64,
}

impl Iterator for Rows<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        while self.index == self.leaf.len() {
            if self.end == SPACE.end {
                return None;
            }
            (self.leaf, self.end) = self.root.leaf_at(self.end);
            self.index = 0;
        }
        self.index += 1;
        Some(self.leaf.get(self.index - 1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
        let part = rng.below(300)..rng.below(300);
        let allocated: u64 = map.extents(part.clone()).map(|(_, extent)| extent.bytes() as u64).sum();
        assert_eq!(map.allocated(part), allocated);
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

    /// Enough for a tree of three levels; `key` scatters the order in which it grows and shrinks.
    fn grow_and_shrink(rng: &mut SeededRng, key: impl Fn(u64) -> u64) {
        const CHUNKS: u64 = 40_000;
        let (mut map, mut model) = (Map::new(8), BTreeMap::new());
        let put = |map: &mut Map, model: &mut BTreeMap<u64, u64>, number: u64, stored: u64| {
            let lba = key(number) % CHUNKS * 32;
            let phys = PhysAddr { segment: SegNo(1 + (number % 7) as u32), grain: number as u32 };
            map.write(Lba(lba), 32, phys, stored as u16, number as u32, Seq(number));
            model.insert(lba, stored);
        };
        (0..CHUNKS).for_each(|number| put(&mut map, &mut model, number, 16 + number % 1024 * 16));
        while !model.is_empty() {
            map.check(|finding| panic!("{finding}"));
            for _ in 0..50 {
                let range = rng.below(CHUNKS) * 32..rng.below(CHUNKS) * 32;
                let sum: u64 = match range.is_empty() {
                    true => 0,
                    false => model.range(range.clone()).map(|(_, stored)| stored).sum(),
                };
                assert_eq!(map.allocated(range), sum);
            }
            let start = rng.below(CHUNKS + 500).saturating_sub(500);
            let end = start + rng.below(CHUNKS / 4) + 1;
            map.trim(start * 32..end * 32);
            model.retain(|lba, _| !(start * 32..end * 32).contains(lba));
            (0..200).for_each(|_| put(&mut map, &mut model, rng.below(CHUNKS), 512));
            (0..rng.below(8000)).for_each(|_| {
                let lba = rng.below(CHUNKS) * 32;
                map.trim(lba..lba + 32);
                model.remove(&lba);
            });
            if rng.below(12) == 0 {
                map.trim(0..u64::MAX);
                model.clear();
            }
            let left = map.extents(0..u64::MAX).map(|(lba, extent)| (lba.0, extent.bytes() as u64));
            assert!(left.eq(model.iter().map(|(lba, stored)| (*lba, *stored))));
        }
        map.check(|finding| panic!("{finding}"));
        assert_eq!(map.total(), Live::default());
        assert_eq!((map.tally.leaves, map.tally.leaf_bytes), (1, 0));
    }

    #[test]
    fn a_deep_tree_agrees_with_a_map_of_chunks() {
        for_each_seed(4, |seed| {
            let mut rng = SeededRng::new(seed);
            let odd = rng.next_u64() >> 32 | 1;
            match seed % 3 {
                0 => grow_and_shrink(&mut rng, |number| number),
                1 => grow_and_shrink(&mut rng, |number| 1_000_000_000_000 - number),
                _ => grow_and_shrink(&mut rng, |number| number.wrapping_mul(odd) >> 7),
            }
        });
    }

    #[test]
    fn sectors_of_their_own_and_whole_spaces() {
        let (mut map, mut model) = (Map::new(8), Model::new());
        for lba in (0..9_000).rev() {
            let phys = PhysAddr { segment: SegNo(3), grain: lba as u32 };
            map.write(Lba(lba), 1, phys, 512, 0, Seq(1));
            model.insert(lba, (phys, 0));
        }
        check(&map, &model);
        map.trim(100..8_900);
        model.retain(|sector, _| !(100..8_900).contains(sector));
        check(&map, &model);
        map.trim(0..u64::MAX);
        check(&map, &Model::new());
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
