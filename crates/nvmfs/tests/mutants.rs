//! Mutation tests: each breaks one rule of src/mutant.rs, and requires that the test named for it fails.
//!
//! `cargo test -p lacuna-nvmfs --features mutants --test nvmfs every_broken -- --nocapture`

use lacuna_nvmfs::mutant;
use lacuna_sim::mutation::assert_each_is_noticed;

/// Each rule, and a test that must fail without it.
const RULES: &[(&str, &str)] = &[
    ("sync-flushes", "posix_crash::power_cuts_leave_a_prefix_of_the_operations"),
    ("fsync-flushes", "posix_crash::power_cuts_leave_a_prefix_of_the_operations"),
    ("fsync-stores-times", "posix::times_move_and_are_stored_when_they_must"),
    ("list-follows-mode", "acl::a_list_and_the_mode_agree"),
    ("mode-follows-list", "acl::a_list_and_the_mode_agree"),
    ("default-handed-down", "acl::a_default_list_is_handed_down_instead_of_the_umask"),
    ("chmod-planned-again", "acl_threads::a_change_of_mode_takes_back_no_change_of_attributes"),
    ("xattrs-planned-again", "acl_threads::what_a_thread_sets_no_other_takes_back"),
    (
        "removed-past-damage",
        "unreadable::a_cut_leaves_the_name_of_a_file_whose_map_cannot_be_read_or_takes_it",
    ),
    ("unnamed-is-orphan", "posix_crash::a_crash_gives_the_room_of_orphans_back"),
    ("named-is-no-orphan", "posix_crash::power_cuts_leave_a_prefix_of_the_operations"),
    ("whiteout-in-batch", "posix_crash::power_cuts_leave_a_prefix_of_the_operations"),
    ("known-entries-noted", "posix_crash::power_cuts_leave_a_prefix_of_the_operations"),
    ("compression-inherited", "compression::what_a_directory_says_is_handed_down_and_defaults_are_not"),
    ("compression-named", "compression::the_superblock_names_compression_before_an_inode_has_one"),
    ("incompressible-skipped", "compression::data_that_does_not_shrink_is_hardly_tried"),
    ("rewrite-holds", "compression::rewrite::what_is_written_in_the_middle_of_a_rewrite_stays"),
    (
        "cold-looked-at-again",
        "compression::rewrite::what_is_written_in_the_middle_of_a_walk_over_cold_data_stays",
    ),
    ("cold-takes-less", "compression::rewrite::a_walk_over_cold_data_makes_nothing_longer"),
    ("rewrite-keeps-times", "compression::rewrite::a_rewrite_brings_old_data_under_the_new_compression"),
    ("access-relative", "posix::times_move_and_are_stored_when_they_must"),
    ("generations-go-on", "posix_stores::a_number_that_returns_after_reopening_has_another_generation"),
    ("reserve-is-roots", "posix_stores::users_leave_root_its_reserve"),
    ("allocation-asks", "posix_stores::an_allocation_asks_for_space"),
    ("freed-is-given-back", "quota::usage_follows_each_operation"),
    ("usage-moves-with-owner", "quota::usage_follows_each_operation"),
];

#[test]
fn every_broken_rule_is_noticed() {
    assert_each_is_noticed(mutant::NAMES, RULES, &[], |_| true);
}
