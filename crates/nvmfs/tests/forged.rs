//! Whole stores that somebody forged, checksums included: an error or some data; never a panic, never without end,
//! never memory by what the store says. What `check` calls sound stays sound when it is used.

use crate::forged_store::{Limited, kinds, try_store};
use lacuna_sim::forge::{Structure, try_seed, try_seeds};

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
    try_seeds(60, MEMORY_BYTES_MAX, |rng, case| try_store(Limited::Nobody, rng, case));
}

#[test]
fn forged_images_of_users_with_limits_are_errors_or_harmless() {
    try_seeds(40, MEMORY_BYTES_MAX, |rng, case| try_store(Limited::Users, rng, case));
}

/// Seeds that once ended in a panic, in no end, or in a store that was not as sound as `check` said.
#[test]
fn what_was_found_stays_mended() {
    for seed in [1309, 16740, 58964, 61850, 64254, 81532, 300_023] {
        try_seed(seed, |rng, case| try_store(Limited::Nobody, rng, case));
    }
}
