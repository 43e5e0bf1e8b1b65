//! Mutation tests: each breaks one rule of src/mutant.rs, and requires that the test named for it fails.
//!
//! `cargo test -p lacuna-device --features mutants --test device every_broken -- --nocapture`

use lacuna_device::mutant;
use lacuna_sim::mutation::assert_each_is_noticed;

const STORE_FILE: &str = "syscalls::a_store_file_is_synced_before_it_is_said_to_be";
const BLOCK_DEVICE: &str = "syscalls::a_block_device_is_synced_before_it_is_said_to_be";
const DIRECTORY: &str = "syscalls::files_and_names_of_a_directory_are_synced_before_they_are_said_to_be";

const ATOMIC: &str = "syscalls::an_atomic_write_is_one_request_that_asks_for_it";

/// Each rule, and the tests that must fail without it.
const RULES: &[(&str, &str)] = &[
    ("files-synced", STORE_FILE),
    ("files-synced", BLOCK_DEVICE),
    ("files-synced", DIRECTORY),
    ("names-synced", STORE_FILE),
    ("names-synced", DIRECTORY),
    ("lengths-synced", STORE_FILE),
    ("closed-files-kept", DIRECTORY),
    ("atomic-asked", ATOMIC),
];

#[test]
fn every_broken_rule_is_noticed() {
    assert_each_is_noticed(mutant::NAMES, RULES, &[], |_| true);
}
