use std::collections::BTreeMap;

use lacuna_device::sim::{SeededRng, for_each_seed};

use super::*;
use crate::addr::{CHUNK_SECTORS, GRAIN};

/// Holds a map whose leaves are all in memory against a recount.
fn check_map(map: &Map) {
    let panics = |finding: String| panic!("{finding}");
    map.check(panics);
    let mut recount = Recount::new(map.segments().len());
    for leaf in map.leaves(|_| true) {
        recount.leaf(&leaf.span, leaf.live, &leaf.leaf.unwrap(), panics);
    }
    recount.finish(map.segments(), panics);
    assert_eq!(recount.total, map.total());
}

/// All extents of a range whose leaves are all in memory.
fn all(map: &Map, range: Range<u64>) -> Vec<(Lba, Extent)> {
    map.extents(range).map(Result::unwrap).collect()
}

/// What a sector is mapped to: chunk, sector of the chunk.
type Model = BTreeMap<u64, (PhysAddr, u64)>;

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

fn step(rng: &mut SeededRng, map: &mut Map, model: &mut Model, number: u32) {
    let lba = rng.below(300);
    let part = rng.below(300)..rng.below(300);
    let allocated: u64 = all(map, part.clone()).iter().map(|(_, extent)| extent.bytes() as u64).sum();
    assert_eq!(map.allocated(part).unwrap(), allocated);
    let sectors = 1 + rng.below(CHUNK_SECTORS - lba % CHUNK_SECTORS);
    let before = map.total();
    if rng.below(3) == 0 {
        let sectors = 1 + rng.below(100);
        let (bytes, extents) = map.freed_by(std::slice::from_ref(&(lba..lba + sectors))).unwrap();
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
        check_map(&map);
        for _ in 0..50 {
            let range = rng.below(CHUNKS) * 32..rng.below(CHUNKS) * 32;
            let sum: u64 = match range.is_empty() {
                true => 0,
                false => model.range(range.clone()).map(|(_, stored)| stored).sum(),
            };
            assert_eq!(map.allocated(range).unwrap(), sum);
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
fn relocation_keeps_the_bytes_of_a_fragment() {
    let mut map = Map::new(4);
    map.write(Lba(0), 32, PhysAddr { segment: SegNo(1), grain: 100 }, 5008, 1, Seq(1));
    map.trim(0..4);
    let (lba, fragment) = all(&map, 0..100)[0];
    assert_eq!((lba, fragment.sectors, fragment.skip, fragment.bytes()), (Lba(4), 6, 4, 2960));
    map.relocate(lba, &fragment, PhysAddr { segment: SegNo(2), grain: 200 }, 2);
    let (_, moved) = all(&map, 0..100)[0];
    assert_eq!((moved.stored, moved.skip, moved.sectors, moved.birth), (2960, 0, 6, Seq(1)));
    assert_eq!(map.live(SegNo(1)), Live::default());
    assert_eq!(map.live(SegNo(2)), Live { bytes: 2960, extents: 1 });
    check_map(&map);
}
