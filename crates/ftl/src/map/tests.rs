use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use lacuna_sim::{SeededRng, for_each_seed};

use super::{extents::Snapshot, row::SPACE, *};
use crate::{
    Algorithm, Lba, SECTOR, Seq,
    addr::{CHUNK_SECTORS, GRAIN, PhysAddr, SegNo},
    format::{Extent, IndexEntry, LeafAddr},
    space::LEAF_WEIGHT,
};

/// Checks a map whose leaves are all in memory against a recount.
fn check_map(map: &Map) {
    let panics = |finding: String| panic!("{finding}");
    map.check(panics);
    let mut recount = Recount::new(map.segments().len());
    for leaf in map.snapshot().leaves(|_| true) {
        recount.leaf(&leaf.span, leaf.live, &leaf.leaf.unwrap(), panics);
    }
    recount.finish(map.segments(), panics);
    assert_eq!(recount.total, map.total());
}

/// All extents of a range whose leaves are all in memory.
fn all(map: &Map, range: Range<u64>) -> Vec<(Lba, Extent)> {
    map.extents(range).map(Result::unwrap).collect()
}

/// Look-ups of many ranges at a time find what each finds alone, up to where the callback stops them.
fn check_groups(rng: &mut SeededRng, map: &Map, sectors: u64) {
    let found = |found: Result<(Lba, Extent), Absent>| found.map_err(|absent| absent.span);
    let count = rng.below(60);
    let mut range = |_| {
        let start = rng.below(sectors);
        start..start + rng.below(4) * rng.below(4) * rng.below(100)
    };
    let ranges: Vec<Range<u64>> = (0..count).map(&mut range).collect();
    let mut alone: Vec<_> = Vec::new();
    for (index, range) in ranges.iter().enumerate() {
        alone.extend(map.extents(range.clone()).map(|next| (index, found(next))));
    }
    let many = 1 + rng.below(4) as usize * ranges.len() / 2;
    alone.truncate(many);
    map.load_ahead(ranges.iter().cloned());
    let mut together = Vec::new();
    map.extents_of_each(&ranges, |index, next| {
        together.push((index, found(next)));
        together.len() < many
    });
    assert_eq!(together, alone);
}

/// What a sector is mapped to: chunk, sector of the chunk.
type Model = BTreeMap<u64, (PhysAddr, u64)>;

/// Payload bytes of each encoded chunk that a test wrote.
type Encoded = BTreeMap<PhysAddr, u16>;

/// What `range` of the model counts: of an encoded chunk all, with the first sector that is left of it.
fn live_bytes(map: &Map, model: &Model, encoded: &Encoded, range: Range<u64>) -> u64 {
    let mut bytes = 0;
    let mut met = BTreeSet::new();
    for (lba, (phys, _)) in model.range(..range.end) {
        let Some(stored) = encoded.get(phys) else { continue };
        if met.insert(*phys) && *lba >= range.start {
            bytes += u64::from(*stored);
        }
    }
    let plain = all(map, range).into_iter().filter(|(_, extent)| !extent.is_encoded());
    bytes + plain.map(|(_, extent)| extent.bytes() as u64).sum::<u64>()
}

fn check(map: &Map, model: &Model) {
    check_map(map);
    let mut sectors = Model::new();
    for (lba, extent) in all(map, 0..u64::MAX) {
        for sector in 0..u64::from(extent.sectors) {
            sectors.insert(lba.0 + sector, (extent.phys, u64::from(extent.skip) + sector));
        }
    }
    assert_eq!(&sectors, model);
}

fn step(rng: &mut SeededRng, map: &mut Map, model: &mut Model, encoded: &mut Encoded, number: u32) {
    let lba = rng.below(300);
    let part = rng.below(300)..rng.below(300);
    if !part.is_empty() {
        let extents = all(map, part.clone()).len() as u64;
        let live = Live { bytes: live_bytes(map, model, encoded, part.clone()), extents };
        assert_eq!(map.live_in(part).unwrap(), live);
    }
    let sectors = 1 + rng.below(CHUNK_SECTORS - lba % CHUNK_SECTORS);
    let before = map.total();
    if rng.below(3) == 0 {
        // Up to three ranges that free together what each of them alone does not.
        let mut ranges = Vec::new();
        let mut end = lba;
        for _ in 0..1 + rng.below(3) {
            let start = end + 1 + rng.below(10);
            let most = if rng.chance(30) { 100 } else { 20 };
            end = start + 1 + rng.below(most);
            ranges.push(start..end);
        }
        let (bytes, extents) = map.freed_by(&ranges).unwrap();
        for range in ranges {
            map.trim(range.clone());
            model.retain(|sector, _| !range.contains(sector));
        }
        assert_eq!(map.total().bytes, before.bytes - bytes);
        assert_eq!(map.total().extents as i64, before.extents as i64 - extents);
        return;
    }
    let stored = (1 + rng.below(sectors * (SECTOR / GRAIN) as u64)) * GRAIN as u64;
    let phys = PhysAddr { segment: SegNo(1 + number % 7), grain: number };
    if sectors > 1 && rng.chance(50) {
        model.retain(|sector, _| !(lba..lba + sectors).contains(sector));
        let stored = stored.clamp(sectors * GRAIN as u64, sectors * 512 - 512) as u16;
        map.write_part(Lba(lba), lba..lba + sectors, encoded_extent(phys, sectors, stored, number.into()));
        encoded.insert(phys, stored);
        model.extend((0..sectors).map(|sector| (lba + sector, (phys, sector))));
        return;
    }
    // Now and then an encoded chunk goes to another place.
    let found = all(map, lba..lba + 1).first().filter(|(_, extent)| extent.is_encoded()).copied();
    if let Some((lba, extent)) = found
        && rng.chance(50)
    {
        let (lba, whole) = extent.whole_encoded(lba.0);
        map.relocate_encoded(Lba(lba), &whole, phys);
        encoded.insert(phys, whole.stored);
        model.values_mut().filter(|(old, _)| *old == whole.phys).for_each(|(old, _)| *old = phys);
        return;
    }
    model.retain(|sector, _| !(lba..lba + sectors).contains(sector));
    map.write(Lba(lba), sectors, phys, stored as u16, 0, Seq(u64::from(number)));
    for sector in 0..stored.div_ceil(SECTOR as u64) {
        model.insert(lba + sector, (phys, sector));
    }
}

#[test]
fn agrees_with_a_map_of_sectors() {
    for_each_seed(30, |seed| {
        let mut rng = SeededRng::new(seed);
        let (mut map, mut model, mut encoded) = (Map::new(8), Model::new(), Encoded::new());
        for number in 0..300 {
            step(&mut rng, &mut map, &mut model, &mut encoded, number);
            check(&map, &model);
            assert_eq!(map.total().bytes, live_bytes(&map, &model, &encoded, 0..u64::MAX));
            check_groups(&mut rng, &map, 400);
        }
    });
}

/// An encoded chunk.
fn encoded_extent(phys: PhysAddr, sectors: u64, stored: u16, birth: u64) -> Extent {
    let (sectors, encoding) = (sectors as u8, Algorithm::Lz4);
    Extent { phys, stored, crc: 0, birth: Seq(birth), sectors, skip: 0, encoding, chunk_sectors: sectors }
}

#[test]
fn an_encoded_chunk_counts_until_its_last_part_goes() {
    let mut map = Map::new(4);
    let place = PhysAddr { segment: SegNo(1), grain: 100 };
    map.write_part(Lba(64), 64..96, encoded_extent(place, 32, 5008, 1));
    let live = |map: &Map| map.live(SegNo(1));
    assert_eq!(live(&map), Live { bytes: 5008, extents: 1 });
    map.trim(70..80);
    assert_eq!(map.freed_by(std::slice::from_ref(&(64..70))).unwrap(), (0, 1));
    assert_eq!(map.freed_by(&[64..70, 80..95]).unwrap(), (0, 1));
    assert_eq!(map.freed_by(&[64..70, 80..96]).unwrap(), (5008, 2));
    assert_eq!(map.freed_by(&[64..70, 80..90, 90..96]).unwrap(), (5008, 1));
    map.trim(64..70);
    assert_eq!(live(&map), Live { bytes: 5008, extents: 1 });
    assert_eq!((map.live_in(64..81).unwrap().bytes, map.live_in(81..96).unwrap().bytes), (5008, 0));
    map.write_part(Lba(80), 80..95, encoded_extent(PhysAddr { segment: SegNo(2), ..place }, 15, 512, 2));
    assert_eq!(live(&map), Live { bytes: 5008, extents: 1 });
    map.trim(0..u64::MAX);
    assert_eq!(map.total(), Live::default());
    check_map(&map);
}

/// A copy of everything that a snapshot contains.
fn contents(snapshot: &Snapshot) -> Vec<(Range<u64>, Live, Vec<u8>)> {
    let leaves = snapshot.leaves(|_| true).into_iter();
    leaves.map(|leaf| (leaf.span, leaf.live, leaf.leaf.unwrap().bytes().to_vec())).collect()
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
        check_map(&map);
        check_groups(rng, &map, CHUNKS * 33);
        let snapshot = rng.chance(50).then(|| map.snapshot());
        let before = snapshot.as_ref().map(contents);
        for _ in 0..50 {
            let range = rng.below(CHUNKS) * 32..rng.below(CHUNKS) * 32;
            let sum: u64 = match range.is_empty() {
                true => 0,
                false => model.range(range.clone()).map(|(_, stored)| stored).sum(),
            };
            assert_eq!(map.live_in(range).unwrap().bytes, sum);
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
        let left = all(&map, 0..u64::MAX).into_iter().map(|(lba, extent)| (lba.0, extent.bytes() as u64));
        assert!(left.eq(model.iter().map(|(lba, stored)| (*lba, *stored))));
        assert!(snapshot.as_ref().map(contents) == before, "a snapshot has changed");
    }
    check_map(&map);
    assert_eq!(map.total(), Live::default());
    assert_eq!(map.residence().leaves, 1);
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
fn relocation_in_parts_keeps_the_bytes() {
    let mut map = Map::new(4);
    map.write(Lba(0), 32, PhysAddr { segment: SegNo(1), grain: 100 }, 16384, 1, Seq(1));
    let (lba, whole) = all(&map, 0..100)[0];
    let places = [(2, 200), (3, 300)].map(|(segment, grain)| PhysAddr { segment: SegNo(segment), grain });
    map.relocate(lba, &whole, 0..20, places[0], 2);
    map.relocate(lba, &whole, 20..32, places[1], 3);
    let part = |phys, sectors: u8, crc| Extent {
        phys,
        stored: u16::from(sectors) * 512,
        crc,
        birth: Seq(1),
        sectors,
        ..Extent::default()
    };
    let parts = [(Lba(0), part(places[0], 20, 2)), (Lba(20), part(places[1], 12, 3))];
    assert_eq!(all(&map, 0..100), parts);
    assert_eq!(map.live(SegNo(1)), Live::default());
    check_map(&map);
}

#[test]
fn relocation_keeps_the_bytes_of_a_fragment() {
    let mut map = Map::new(4);
    map.write(Lba(0), 32, PhysAddr { segment: SegNo(1), grain: 100 }, 5008, 1, Seq(1));
    map.trim(0..4);
    let (lba, fragment) = all(&map, 0..100)[0];
    assert_eq!((lba, fragment.sectors, fragment.skip, fragment.bytes()), (Lba(4), 6, 4, 2960));
    map.relocate(lba, &fragment, 4..10, PhysAddr { segment: SegNo(2), grain: 200 }, 2);
    let (_, moved) = all(&map, 0..100)[0];
    assert_eq!((moved.stored, moved.skip, moved.sectors, moved.birth), (2960, 0, 6, Seq(1)));
    assert_eq!(map.live(SegNo(1)), Live::default());
    assert_eq!(map.live(SegNo(2)), Live { bytes: 2960, extents: 1 });
    check_map(&map);
}

/// A device for leaves: what was written where, and the map's evicted leaves read back from there.
#[derive(Default)]
struct Shelf(Vec<Vec<u8>>);

impl Shelf {
    /// Writes some dirty leaves, and sometimes all.
    fn write_back(&mut self, map: &mut Map, leaves_max: usize) {
        for leaf in map.dirty_leaves(leaves_max) {
            let bytes = leaf.leaf.as_ref().unwrap().bytes();
            let place = LeafAddr::of(bytes, SegNo(7), self.0.len() * GRAIN);
            self.0.push(bytes.to_vec());
            map.put_at(leaf.span.start, &leaf, place);
        }
    }

    fn install(&self, map: &mut Map, absent: &Absent) {
        let bytes = &self.0[absent.place.grain as usize];
        let leaf = Leaf::verify(bytes, &absent.span, absent.live, 8, 1 << 30).unwrap();
        assert!(map.install(absent, leaf.clone()));
        assert!(!map.install(absent, leaf), "twice");
    }

    /// Brings in what a change of `range` needs.
    fn fault_in(&self, map: &mut Map, range: Range<u64>) {
        self.fault_in_all(map, &[range]);
    }

    /// Brings in what changes of `ranges`, one after the other, need.
    fn fault_in_all(&self, map: &mut Map, ranges: &[Range<u64>]) {
        loop {
            match &map.absent(ranges)[..] {
                [] => return,
                absent => absent.iter().for_each(|absent| self.install(map, absent)),
            }
        }
    }

    /// All extents, leaf by leaf, with next to nothing in memory.
    fn extents(&self, map: &mut Map, range: Range<u64>) -> Vec<(u64, u64)> {
        let (mut cursor, mut found) = (range.start, Vec::new());
        loop {
            let mut missing = None;
            for next in map.extents(cursor..range.end) {
                match next {
                    Ok((lba, extent)) => {
                        found.push((lba.0, extent.bytes() as u64));
                        cursor = lba.0 + u64::from(extent.sectors);
                    }
                    Err(absent) => missing = Some(absent),
                }
            }
            let Some(absent) = missing else { return found };
            self.install(map, &absent);
        }
    }
}

#[test]
fn a_map_that_is_mostly_elsewhere_agrees_with_a_map_of_chunks() {
    const CHUNKS: u64 = 6_000;
    for_each_seed(6, |seed| {
        let mut rng = SeededRng::new(seed);
        let (mut map, mut shelf, mut model) = (Map::new(8), Shelf::default(), BTreeMap::new());
        let mut evicted = 0;
        for number in 1..12_000_u64 {
            let chunk = rng.below(CHUNKS);
            if number < 6_000 || rng.chance(40) {
                let stored = (1 + rng.below(1024)) * 16;
                shelf.fault_in(&mut map, chunk * 32..chunk * 32 + 32);
                let phys = PhysAddr { segment: SegNo(1 + (number % 6) as u32), grain: 36 + number as u32 };
                map.write(Lba(chunk * 32), 32, phys, stored as u16, number as u32, Seq(number));
                model.insert(chunk * 32, stored);
            } else {
                let end = chunk + 1 + if rng.chance(2) { rng.below(600) } else { rng.below(3) };
                shelf.fault_in(&mut map, chunk * 32..end * 32);
                map.trim(chunk * 32..end * 32);
                model.retain(|lba, _| !(chunk * 32..end * 32).contains(lba));
            }
            if rng.chance(4) {
                let leaves_max = 1 + rng.below(20) as usize;
                shelf.write_back(&mut map, leaves_max);
                evicted += map.evict(rng.below(20_000), rng.below(200));
            }
            if rng.chance(1) {
                map.check(|finding| panic!("{finding}"));
                check_groups(&mut rng, &map, CHUNKS * 32);
                let start = rng.below(CHUNKS) * 32;
                let range = start..start + 1 + rng.below(10_000);
                let found: Vec<u64> =
                    shelf.extents(&mut map, range.clone()).iter().map(|found| found.0).collect();
                let first = range.start;
                assert_eq!(
                    found,
                    model.range(range).map(|(lba, _)| *lba).collect::<Vec<_>>(),
                    "from {first}"
                );
            }
        }
        assert!(evicted > 500, "only {evicted} leaves were evicted");
        // Loaded from its index the map is the same, and small leaves were merged all the same.
        shelf.fault_in(&mut map, SPACE);
        check_map(&map);
        let leaves = map.residence().leaves;
        assert!(leaves <= map.total().extents / LEAF_WEIGHT + 2, "{leaves} leaves for {:?}", map.total());
        while map.residence().dirty > 0 {
            shelf.write_back(&mut map, 1000);
        }
        let entry = |leaf: LeafRef| IndexEntry {
            start: leaf.span.start,
            live: leaf.live,
            place: leaf.place.unwrap(),
        };
        let index: Vec<_> = map.snapshot().leaves(|_| false).into_iter().map(entry).collect();
        let mut loaded = Map::load(index, map.segments().to_vec());
        assert_eq!((loaded.residence().resident, loaded.total()), (0, map.total()));
        shelf.fault_in(&mut loaded, SPACE);
        check_map(&loaded);
        assert_eq!(all(&loaded, SPACE), all(&map, SPACE));
    });
}

/// Later items of the batch are written into the leaf that took over the span of one that became empty.
#[test]
fn a_batch_may_write_where_it_has_trimmed() {
    const CHUNKS: u64 = 30_000;
    for_each_seed(6, |seed| {
        let mut rng = SeededRng::new(seed);
        let (mut map, mut shelf) = (Map::new(8), Shelf::default());
        let write = |map: &mut Map, chunk: u64| {
            let phys = PhysAddr { segment: SegNo(1), grain: 36 + chunk as u32 };
            map.write(Lba(chunk * 32), 32, phys, 512, 1, Seq(1));
        };
        let numbers = |rng: &mut SeededRng| match seed % 2 {
            0 => rng.below(CHUNKS),
            _ => rng.below(CHUNKS).pow(2) / CHUNKS,
        };
        (0..CHUNKS).for_each(|_| write(&mut map, numbers(&mut rng)));
        (0..CHUNKS).step_by(1 + seed as usize).for_each(|chunk| write(&mut map, chunk));
        for round in 0..300 {
            while map.residence().dirty > 0 {
                shelf.write_back(&mut map, 1000);
            }
            map.evict(0, u64::MAX);
            let most = [200, 2000, CHUNKS][round % 3];
            let starts = [(); 2].map(|()| numbers(&mut rng));
            let mut ranges = starts.map(|start| start..(start + 1 + rng.below(most)).min(CHUNKS));
            ranges.sort_unstable_by_key(|range| range.start);
            ranges[0].end = ranges[0].end.min(ranges[1].start);
            let sectors = ranges.clone().map(|range| range.start * 32..range.end * 32);
            let sectors: Vec<_> = sectors.into_iter().filter(|range| !range.is_empty()).collect();
            shelf.fault_in_all(&mut map, &sectors);
            sectors.iter().for_each(|range| map.trim(range.clone()));
            for range in ranges.into_iter().rev().filter(|range| !range.is_empty()) {
                let within = range.start + rng.below(range.end - range.start);
                for chunk in [within, range.end - 1, range.start] {
                    write(&mut map, chunk);
                }
            }
        }
        shelf.fault_in(&mut map, SPACE);
        check_map(&map);
    });
}

fn write_chunk(map: &mut Map, chunk: u64) {
    let phys = PhysAddr { segment: SegNo(1), grain: 36 + chunk as u32 };
    map.write(Lba(chunk * 32), 32, phys, 512, 1, Seq(1));
}

/// A map of every other chunk, evicted; a leaf has 128 extents, but for the last one.
fn evicted_map(extents: u64) -> (Map, Shelf) {
    let (mut map, mut shelf) = (Map::new(8), Shelf::default());
    (0..extents).for_each(|number| write_chunk(&mut map, 2 * number));
    while map.residence().dirty > 0 {
        shelf.write_back(&mut map, 1000);
    }
    map.evict(0, u64::MAX);
    (map, shelf)
}

/// A part of a leaf that a batch splits may become empty, although something of the leaf is left.
#[test]
fn a_batch_may_write_where_it_has_split_a_leaf_and_trimmed() {
    let (mut map, shelf) = evicted_map(228);
    // The second leaf is split before chunk 326, and the first one was not asked for.
    shelf.fault_in(&mut map, 256 * 32..326 * 32);
    (0..30).for_each(|number| write_chunk(&mut map, 257 + 2 * number));
    map.trim(256 * 32..326 * 32);
    write_chunk(&mut map, 257);
    map.check(|finding| panic!("{finding}"));
    assert_eq!(map.residence().resident, map.residence().leaves - 1);
    shelf.fault_in(&mut map, SPACE);
    check_map(&map);
    assert_eq!(map.total().extents, 228 - 35 + 1);
}

/// Neighbours of leaves that cannot be read are emptied, and written again.
#[test]
fn a_leaf_may_become_empty_beside_leaves_that_cannot_be_read() {
    const LEAVES: u64 = 300;
    for_each_seed(6, |seed| {
        let mut rng = SeededRng::new(seed);
        let (mut map, mut shelf) = evicted_map(LEAVES * 128);
        let most = [2, 50, 200][seed as usize % 3];
        let mut lost = vec![false; LEAVES as usize];
        for _ in 0..1 + rng.below(most) {
            lost[rng.below(LEAVES) as usize] = true;
        }
        let lost_leaves = (0..LEAVES).filter(|leaf| lost[*leaf as usize]);
        let mut absent = map.absent_of(lost_leaves.map(|leaf| leaf * 256 * 32));
        absent.iter().for_each(|absent| map.note_unreadable(absent));
        let mut expected: BTreeSet<u64> = (0..LEAVES * 128).map(|number| 2 * number).collect();
        for round in 0..400 {
            // As many leaves as lie between two that cannot be read, or fewer.
            let from = rng.below(LEAVES);
            let until = (from..LEAVES).take(1 + rng.below(150) as usize).find(|leaf| lost[*leaf as usize]);
            let until = until.unwrap_or((from + 2).min(LEAVES));
            if lost[from as usize] || from == until {
                continue;
            }
            let mut chunks = from * 256..until * 256;
            if (from..until).any(|leaf| lost[leaf as usize]) {
                continue;
            }
            chunks.start += [0, 0, 1, 255][rng.below(4) as usize];
            chunks.end -= [0, 0, 1, 100][rng.below(4) as usize];
            if chunks.is_empty() {
                continue;
            }
            shelf.fault_in(&mut map, chunks.start * 32..chunks.end * 32);
            map.trim(chunks.start * 32..chunks.end * 32);
            expected.retain(|chunk| !chunks.contains(chunk));
            for _ in 0..rng.below(4) {
                let chunk = chunks.start + rng.below(chunks.end - chunks.start);
                write_chunk(&mut map, chunk);
                expected.insert(chunk);
            }
            map.check(|finding| panic!("{finding}"));
            if round % 20 == 0 {
                while map.residence().dirty > 0 {
                    shelf.write_back(&mut map, 1000);
                }
                map.evict(0, u64::MAX);
            }
        }
        // They can be read again.
        absent = map.absent_of(absent.iter().map(|absent| absent.span.start));
        absent.iter().for_each(|absent| shelf.install(&mut map, absent));
        shelf.fault_in(&mut map, SPACE);
        check_map(&map);
        let found: Vec<_> = all(&map, SPACE).iter().map(|(lba, _)| lba.0 / 32).collect();
        assert!(found.into_iter().eq(expected));
    });
}

#[test]
fn a_leaf_that_changes_while_it_is_written_stays_dirty() {
    let mut map = Map::new(8);
    let phys = PhysAddr { segment: SegNo(1), grain: 100 };
    map.write(Lba(0), 32, phys, 16384, 1, Seq(1));
    let before = map.dirty_leaves(1).pop().or_else(|| map.dirty_leaves(1).pop()).unwrap();
    map.write(Lba(32), 32, phys, 16384, 1, Seq(2));
    let leaf = before.leaf.as_ref().unwrap();
    assert_eq!(leaf.rows().count(), 1, "the reference is to the leaf as it was");
    map.put_at(0, &before, LeafAddr::of(leaf.bytes(), SegNo(7), 0));
    assert_eq!(map.residence().dirty, 1);
    assert_eq!(map.evict(0, 100), 0, "what is dirty is not evicted");
}
