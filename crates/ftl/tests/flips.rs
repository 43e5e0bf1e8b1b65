//! A flipped bit anywhere on the device is harmless or reported with its place: never wrong data, never a panic. The
//! one exception is that of tests/silent_faults.rs: damage to batches that only the very last flush covered looks like
//! a power cut before it.

use std::collections::BTreeMap;

use crate::harness;
use lacuna_sim::for_each_seed;

const CASES: u64 = 60;

#[test]
fn a_flipped_bit_anywhere_is_harmless_or_reported() {
    let (mut outcomes, mut cases) = (BTreeMap::new(), 0);
    for_each_seed(CASES, |seed| {
        harness::flips::case(seed, &mut outcomes);
        cases += 1;
    });
    for (kind, outcome) in &outcomes {
        eprintln!("{kind:>20}: {outcome:?}");
    }
    if cases < CASES {
        return;
    }
    // Each kind occurred, and damage was detected wherever it must be.
    let reported = |kind| {
        let outcome = outcomes.get(kind).unwrap_or_else(|| panic!("no {kind} was hit"));
        outcome.at_open + outcome.by_reads
    };
    for kind in
        ["segment header", "batch header", "batch entries", "payload", "map leaves", "checkpoint body"]
    {
        assert!(reported(kind) > 0, "damage to a {kind} was never reported");
    }
    for kind in ["relocation header", "relocation entries", "moved payload", "summary"] {
        reported(kind);
    }
    assert_eq!(reported("superblock"), 0, "the other slot is whole");
}

#[cfg(feature = "mutants")]
#[test]
#[ignore = "run by mutants.rs"]
fn some_flips() {
    for_each_seed(80, |seed| harness::flips::case(seed, &mut BTreeMap::new()));
}
