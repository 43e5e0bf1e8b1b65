//! Files of stores that somebody forged, checksums included: an error or some records; never a panic, never without
//! end, never memory by what a file says. What `check` calls sound stays sound when it is used.

mod forged_files;

use forged_files::{Outcome, try_files};
use lacuna_sim::{SeededRng, for_each_seed, peak_memory_bytes};

/// Memory that a store of a megabyte with a pool of one may take.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

#[test]
fn forged_files_are_errors_or_harmless() {
    let mut all = Outcome::default();
    for_each_seed(60, |seed| {
        all.add(&try_files(SeededRng::new(seed), format!("LACUNA_SEED={seed}")));
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
    for seed in [11335, 15504, 15689, 17851, 19980, 21459, 28965] {
        try_files(SeededRng::new(seed), format!("LACUNA_SEED={seed}"));
    }
}
