//! Mutation tests: verify that each broken invariant is caught. Each breaks one rule of src/mutant.rs, in a process of
//! its own, and requires that the test named for it fails, and that the test passes while no rule is broken.
//!
//! `cargo test -p lacuna-ftl --features mutants --test mutants -- --nocapture`, and with the feature `shuttle` too for
//! those rules whose violation only a scheduler of threads can find.

#![allow(clippy::duplicate_mod)] // Each file of tests declares the harness.

#[path = "epochs.rs"]
mod epochs;
#[path = "grow.rs"]
mod grow;
mod harness;
#[path = "in_place.rs"]
mod in_place;
#[path = "interleavings.rs"]
mod interleavings;
#[path = "never_stuck.rs"]
mod never_stuck;
#[path = "panics.rs"]
mod panics;
#[path = "reserve.rs"]
mod reserve;
#[cfg(feature = "shuttle")]
#[path = "shuttle/main.rs"]
mod scheduled;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    process::Command,
};

use harness::matrix::{self, Load};
use lacuna_ftl::mutant;
use lacuna_sim::for_each_seed;

/// Each rule, and the test of this file that must fail without it.
const RULES: &[(&str, &str)] = &[
    ("flush-syncs", "mixed"),
    ("stop-at-gap", "mixed"),
    ("all-parts", "mixed"),
    ("replay-verifies", "mixed"),
    ("resync-done", "mixed"),
    ("epoch-counts", "epochs::a_generation_given_out_twice_brings_nothing_back"),
    ("marks-count", "flips"),
    ("trims-logged", "mixed"),
    ("read-verifies", "flips"),
    ("failed-read-cleared", "in_place::bytes_that_were_not_verified_are_not_seen"),
    ("pins-count", "interleavings::a_reader_pins_the_segment_that_it_reads"),
    ("reuse-covered", "mixed"),
    ("death-durable", "mixed"),
    ("summaries-retained", "mixed"),
    ("map-reuse-waits", "mixed"),
    ("leaves-verified", "flips"),
    ("birth-counts", "mixed"),
    ("move-marks-count", "flips"),
    ("summary-verified", "flips"),
    ("summary-of-this-life", "mixed"),
    ("opening-restores", "never_stuck::collections_that_never_end"),
    ("growth-leaves-collection", "reserve::a_full_store_is_reopened_for_ever"),
    ("flush-planned", "reserve::whoever_misses_segments_for_what_is_unflushed_plans_a_flush"),
    ("filled-then-counted", "scheduled::whoever_flushes_finds_their_batch_after_a_cut"),
    ("panics-stop", "panics::a_panic_stops_the_store_for_everybody"),
    ("growth-wipes", "grow::what_an_older_copy_left_behind_the_end_does_not_count"),
];

#[test]
#[ignore = "run by the test below"]
fn mixed() {
    for_each_seed(60, |seed| {
        matrix::case(seed, Load::Mixed);
    });
}

#[test]
#[ignore = "run by the test below"]
fn flips() {
    for_each_seed(60, |seed| harness::flips::case(seed, &mut BTreeMap::new()));
}

/// Runs `test` in a process of its own. None when it passes, else the first lines of its panic message.
fn failure(test: &str, broken: Option<&str>) -> Option<String> {
    let this = env::current_exe().expect("the path of this test");
    let mut child = Command::new(this);
    child.args(["--exact", test, "--include-ignored", "--test-threads=1", "--nocapture"]);
    child.env_remove("LACUNA_CASES").env_remove("LACUNA_SEED").env_remove("LACUNA_MUTANT");
    child.envs(broken.map(|rule| ("LACUNA_MUTANT", rule)));
    let output = child.output().expect("this test runs");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("running 1 test"), "{test} does not exist");
    let first = said.lines().skip_while(|line| !line.contains("panicked at")).take(2).collect::<Vec<_>>();
    (!output.status.success()).then(|| first.join(" "))
}

#[test]
fn every_broken_rule_is_noticed() {
    let named: BTreeSet<_> = RULES.iter().map(|(rule, _)| *rule).collect();
    assert_eq!(named, mutant::NAMES.iter().copied().collect(), "each rule has its test");
    // Under the scheduler no other tests run, and without it the scheduled tests do not exist.
    let here = |(_, test): &&(&str, &str)| test.starts_with("scheduled::") == cfg!(feature = "shuttle");
    for test in RULES.iter().filter(here).map(|(_, test)| *test).collect::<BTreeSet<_>>() {
        assert_eq!(failure(test, None), None, "{test} with all rules kept");
    }
    let mut unnoticed = Vec::new();
    for (rule, test) in RULES.iter().filter(here) {
        match failure(test, Some(rule)) {
            Some(first) => eprintln!("{rule}: noticed by {test}: {first}"),
            None => unnoticed.push((rule, test)),
        }
    }
    assert!(unnoticed.is_empty(), "broken and not noticed: {unnoticed:?}");
}
