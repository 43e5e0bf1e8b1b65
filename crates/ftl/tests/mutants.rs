//! Mutation tests: verify that each broken invariant is caught. Each breaks one rule of src/mutant.rs, in a process of
//! its own, and requires that the test named for it fails, and that the test passes while no rule is broken.
//!
//! `cargo test -p lacuna-ftl --features mutants --test ftl every_broken -- --nocapture`, and with `--features
//! mutants,shuttle --test shuttle` those rules whose violation only a scheduler of threads can find.

use lacuna_ftl::mutant;
use lacuna_sim::mutation::assert_each_is_noticed;

/// Each rule, and the test that must fail without it.
const RULES: &[(&str, &str)] = &[
    ("flush-syncs", "crash::mixed"),
    ("stop-at-gap", "crash::mixed"),
    ("all-parts", "crash::mixed"),
    ("replay-verifies", "crash::mixed"),
    ("resync-done", "crash::mixed"),
    ("epoch-counts", "epochs::a_generation_given_out_twice_brings_nothing_back"),
    ("marks-count", "flips::some_flips"),
    ("trims-logged", "crash::mixed"),
    ("read-verifies", "flips::some_flips"),
    ("cached-by-batch", "chunk_cache::no_read_is_out_of_date"),
    ("failed-read-cleared", "in_place::bytes_that_were_not_verified_are_not_seen"),
    ("pins-count", "interleavings::a_reader_pins_the_segment_that_it_reads"),
    ("reuse-covered", "crash::mixed"),
    ("death-durable", "crash::mixed"),
    ("summaries-retained", "crash::mixed_long"),
    ("map-reuse-waits", "crash::mixed"),
    ("leaves-verified", "flips::some_flips"),
    ("later-leaf-counts", "lost_checkpoint::what_a_checkpoint_has_once_is_put_together_again"),
    ("birth-counts", "crash::mixed"),
    ("move-marks-count", "flips::some_flips"),
    ("summary-verified", "flips::some_flips"),
    ("summary-of-this-life", "crash::mixed"),
    ("data-encrypted", "encryption::nothing_of_a_marked_workload_lies_on_the_device"),
    ("keys-in-turn", "encryption::some_copy_of_the_keys_is_whole_at_any_time"),
    ("opening-restores", "never_stuck::collections_that_never_end"),
    ("growth-leaves-collection", "reserve::a_full_store_is_reopened_for_ever"),
    ("flush-planned", "reserve::whoever_misses_segments_for_what_is_unflushed_plans_a_flush"),
    ("filled-then-counted", "scheduled::whoever_flushes_finds_their_batch_after_a_cut"),
    ("encoded-once", "encoded::what_a_batch_writes_twice_comes_back_as_it_was_written_last"),
    ("encodings-named", "encoded::the_superblock_names_encodings_before_there_is_one"),
    ("encoded-counted", "encoded::a_chunk_takes_its_payload_until_its_last_sector_goes"),
    ("failed-writes-stop", "nth_fault::no_single_fault_loses_what_was_acknowledged"),
    ("panics-stop", "panics::a_panic_stops_the_store_for_everybody"),
    ("records-raise-durable", "large_replay::a_flushed_batch_that_is_gone_from_a_long_log_is_reported"),
    ("readers-raise-durable", "large_replay::a_flushed_batch_that_is_gone_from_a_long_log_is_reported"),
    ("log-makes-checkpoint", "policies::a_long_log_makes_a_checkpoint_however_much_is_free"),
    ("age-counts", "policies::of_two_victims_the_old_one_is_collected_although_it_is_fuller"),
    ("lifetimes-group", "policies::what_is_overwritten_often_lies_apart_from_what_is_not"),
    ("writers-pay", "policies::writers_pay_before_all_is_taken"),
    ("classes-wait", "policies::what_is_overwritten_often_lies_apart_also_where_segments_are_short"),
    ("growth-wipes", "grow::what_an_older_copy_left_behind_the_end_does_not_count"),
    ("wake-ups-passed-on", "scheduled::whoever_goes_from_log_device_to_flash_or_back_leaves_nobody_asleep"),
    ("log-written-back", "log_crash::some_cuts"),
    ("log-fenced", "log_crash::some_cuts"),
    ("log-mark-durable", "log_crash::some_cuts"),
    ("log-header-renewed", "log_crash::a_header_that_is_not_durable_yet_is_not_leaned_on"),
    ("log-opening-announced", "log_crash::every_operation_of_recovery_may_be_the_last"),
    ("log-epoch-counts", "log_crash::some_cuts"),
    ("log-list-dropped", "log_device::a_flush_of_more_than_is_worth_logging_goes_to_the_flash"),
    (
        "listed-not-dead",
        "log_device::a_dead_segment_that_is_logged_beside_a_flush_that_settles_is_not_used_again",
    ),
    ("log-acknowledged-counts", "log_device::an_older_copy_of_the_flash_is_noticed_by_the_mark"),
    ("old-end-wiped", "superblocks::no_copy_stays_where_a_store_ended"),
];

#[test]
fn every_broken_rule_is_noticed() {
    // Under the scheduler no other tests run, and without it the scheduled tests do not exist.
    let here = |test: &str| test.starts_with("scheduled::") == cfg!(feature = "shuttle");
    assert_each_is_noticed(mutant::NAMES, RULES, &[], here);
}
