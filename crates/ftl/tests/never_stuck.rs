//! The reserve (src/log/reserve.rs) under everything that may happen to a full store between two openings: all short
//! histories of tiny stores, as far as they lead to new states, and random ones of stores of all shapes.
//!
//! `LACUNA_CASES=n` examines n states, and walks n walks. A failure prints the history of the store.

use std::{
    collections::{BTreeSet, VecDeque},
    env,
};

use crate::harness::full::{Deed, End, Full, Shape, Use};
use lacuna_ftl::Stats;
use lacuna_sim::{SeededRng, for_each_seed};

/// States of which all successors are examined.
const STATES: u64 = 10;
const WALKS: u64 = 12;
/// Uses of a store in a walk.
const WALK_USES: u64 = 12;
/// Stores that are never left to finish a collection.
const ENDLESS: u64 = 2;
/// Reopenings of stores that live long, of each.
const LIFE_USES: u64 = 300;

fn variable(name: &str) -> Option<u64> {
    env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// The properties of a store just opened on which the reserve depends.
fn signature(stats: &Stats) -> impl Ord + use<> {
    [
        stats.free_segments,
        stats.reserved_segments,
        stats.map_segments,
        stats.waiting_for_flush,
        stats.waiting_for_checkpoint,
        stats.extents / 32,
        stats.live_bytes / 8192,
    ]
}

/// Short uses of a store, each deed with each end.
fn uses() -> Vec<Use> {
    let deeds = [
        vec![],
        vec![Deed::Collect(1)],
        vec![Deed::Collect(1), Deed::Checkpoint],
        vec![Deed::Overwrite(100), Deed::Collect(1), Deed::Checkpoint],
        vec![Deed::Overwrite(40)],
        vec![Deed::Cut(12), Deed::Flush, Deed::Collect(1)],
        vec![Deed::Cut(60)],
        vec![Deed::Trim(1), Deed::Log(4)],
        vec![Deed::Refill(4), Deed::Patch(20)],
        vec![Deed::Due(2), Deed::Checkpoint, Deed::Collect(1)],
    ];
    let ends = [
        End::Close,
        End::Kill,
        End::Cut(3),
        End::CutLast(1),
        End::CutLast(3),
        End::CutLast(5),
        End::CutClose(2),
        End::CutOpen(4),
        End::CutOpen(14),
    ];
    let each = |deeds: &Vec<Deed>| ends.map(|end| Use { deeds: deeds.clone(), end });
    deeds.iter().flat_map(each).collect()
}

/// Explores the states that a store may reach, breadth first; every other time it takes the state with the least spare
/// space.
fn search(roots: Vec<Full>, states: u64, rng: &mut SeededRng) -> u64 {
    let spare = |stats: &Stats| stats.free_segments as i64 - stats.reserved_segments as i64;
    let (mut seen, mut open, mut openings) = (BTreeSet::new(), VecDeque::new(), 0);
    for root in roots {
        let stats = root.assert_goes_on(rng.next_u64());
        seen.insert(signature(&stats));
        open.push_back((spare(&stats), root));
    }
    for number in 0..states {
        let least = (0..open.len()).min_by_key(|at| open[*at].0).filter(|_| number % 2 == 1);
        let Some((_, state)) = open.remove(least.unwrap_or(0)) else { break };
        for one_use in uses() {
            let next = state.after(&one_use, rng.next_u64());
            let stats = next.assert_goes_on(rng.next_u64());
            openings += 2;
            if seen.insert(signature(&stats)) {
                open.push_back((spare(&stats), next));
            }
        }
    }
    println!("{openings} openings, {} different states", seen.len());
    openings
}

#[test]
fn tiny_stores_never_get_stuck() {
    let states = variable("LACUNA_CASES").unwrap_or(STATES);
    let seed = variable("LACUNA_SEED").unwrap_or(1);
    let shapes = [Shape::tiny(0, 16 << 10), Shape::tiny(1, 1536), Shape::tiny(2, 5120)];
    let roots = shapes.into_iter().flat_map(|shape| [Full::new(shape, seed), Full::cut_up(shape, seed)]);
    search(roots.collect(), states, &mut SeededRng::new(seed));
}

#[test]
fn stores_of_all_shapes_never_get_stuck() {
    for_each_seed(WALKS, |seed| {
        let mut rng = SeededRng::new(seed);
        let shape = Shape::random(&mut rng);
        let mut full = match rng.chance(50) {
            true => Full::new(shape, seed),
            false => Full::cut_up(shape, seed),
        };
        for number in 0..WALK_USES {
            full = full.after(&Use::random(&mut rng), rng.next_u64());
            if number % 2 == 1 {
                full.assert_goes_on(rng.next_u64());
            }
        }
    });
}

/// Each use of the store ends within a collection, and the repair during opening is cut as well: segments are large
/// enough that one is collected in pieces.
#[test]
fn collections_that_never_end() {
    for_each_seed(ENDLESS, |seed| {
        let mut rng = SeededRng::new(seed);
        let shape = Shape { segment_bytes: 2 << 20, ..Shape::tiny(seed % 3, 16 << 10) };
        let full = Full::new(shape, seed);
        for number in 0..40 {
            let many = if number < 12 || rng.chance(10) { rng.below(400) } else { 0 };
            let deeds = vec![Deed::Overwrite(many), Deed::Collect(2), Deed::Checkpoint];
            let end = if rng.chance(33) { End::CutLast(1 + rng.below(8)) } else { End::Kill };
            full.go_on(&Use { deeds, end }, rng.next_u64());
            while rng.chance(50) {
                let end = End::CutOpen(1 + rng.below(30));
                full.go_on(&Use { deeds: Vec::new(), end }, rng.next_u64());
            }
        }
        full.assert_goes_on(rng.next_u64());
    });
}

/// Always near full, overwritten again and again: `LACUNA_CASES` times each of three stores is opened.
#[test]
fn stores_live_long() {
    let uses = variable("LACUNA_CASES").unwrap_or(LIFE_USES);
    let rng = &mut SeededRng::new(variable("LACUNA_SEED").unwrap_or(1));
    for shape in [Shape::tiny(0, 16 << 10), Shape::tiny(2, 1536), Shape::tiny(16, 5120)] {
        let full = Full::new(shape, rng.next_u64());
        for number in 0..uses {
            let mut one_use = Use::random(rng);
            one_use.deeds.push(Deed::Overwrite(rng.below(100)));
            if number % 8 == 0 {
                one_use.deeds.push(Deed::Refill(100));
            }
            full.go_on(&one_use, rng.next_u64());
            if number % 50 == 0 {
                full.assert_goes_on(rng.next_u64());
            }
        }
        full.assert_goes_on(rng.next_u64());
        println!("{shape:?}: written {} times", full.times_written());
    }
}
