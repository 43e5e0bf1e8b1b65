//! Mutation tests: each breaks one rule of src/mutant.rs, and requires that the test named for it fails.
//!
//! `cargo test -p lacuna-page --features mutants --test page every_broken -- --nocapture`

use lacuna_page::mutant;
use lacuna_sim::mutation::assert_each_is_noticed;

/// Each rule, and a test that must fail without it.
const RULES: &[(&str, &str)] = &[
    ("checksum-agrees", "images::flipped_bits_are_noticed"),
    ("address-agrees", "images::blank_foreign_and_misplaced_are_told_apart"),
    ("images-save-sectors", "images::a_page_that_does_not_shrink_by_a_sector_is_plain"),
    ("packed-is-not-plain", "images::packed_bodies_come_back_to_their_owner_alone"),
];

#[test]
fn every_broken_rule_is_noticed() {
    assert_each_is_noticed(mutant::NAMES, RULES, &[], |_| true);
}
