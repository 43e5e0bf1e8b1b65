//! Whole stores that somebody forged, checksums included: an error or some data; never a panic, never without end,
//! never memory by what the store says. What `check` calls sound stays sound when it is used.

mod forged_store;

use forged_store::{Outcome, kinds, try_store};
use lacuna_sim::{SeededRng, for_each_seed, forge::Structure, peak_memory_bytes};

/// Memory that any of these stores of some megabytes may take.
const MEMORY_BYTES_MAX: u64 = 512 << 20;

#[test]
fn every_kind_of_structure_is_forged() {
    let records = (1..=7).map(Structure::Record);
    let all = records.chain([Structure::Superblock, Structure::Segment, Structure::Summary]);
    assert_eq!(kinds(), all.collect());
}

#[test]
fn forged_images_are_errors_or_harmless() {
    let mut all = Outcome::default();
    for_each_seed(60, |seed| {
        all.add(&try_store(SeededRng::new(seed), format!("LACUNA_SEED={seed}")));
        assert!(peak_memory_bytes() < MEMORY_BYTES_MAX, "seed {seed} took {} bytes", peak_memory_bytes());
    });
    println!("{all:?}");
    if all.cases >= 60 {
        assert!(all.opened > 0 && all.refused > 0 && all.called_sound > 0 && all.findings > 0, "{all:?}");
    }
}

/// Seeds that once ended in a panic, in no end, or in a store that was not as sound as `check` said.
#[test]
fn what_was_found_stays_mended() {
    for seed in [1309, 16740, 58964, 61850, 64254, 81532, 300_023] {
        try_store(SeededRng::new(seed), format!("LACUNA_SEED={seed}"));
    }
}
