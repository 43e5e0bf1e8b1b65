//! Mutation tests: each breaks one rule of src/mutant.rs, and requires that the test named for it fails.
//!
//! `cargo test -p lacuna-fuse --features mutants --test fuse every_broken -- --nocapture`
//!
//! What only a mount shows needs root and /dev/fuse, and one rule the kernel's switch for FUSE over io_uring; where they
//! are missing, that part is SKIPPED.

use std::path::Path;

use lacuna_fuse::{UringTransport, mutant};
use lacuna_sim::mutation::assert_each_is_noticed;
use rustix::process::geteuid;

/// The one test for what happens on rings only. It mounts over fuser elsewhere.
const ON_RINGS: &str = "mount::what_is_written_is_read";

/// Each rule, and the tests that must fail without it.
const RULES: &[(&str, &str)] = &[
    ("writes-synced", "service::writes_are_durable_when_the_file_was_opened_so"),
    ("sync-times", "openings::a_synchronous_write_stores_its_times"),
    ("changes-synced", "service::with_sync_every_change_is_durable_when_it_is_answered"),
    ("trims-asked-for", "service::a_page_that_shrinks_gives_room_back_once_the_file_was_asked_about"),
    ("trims-direct", "service::trims_are_inferred_for_nobody_else"),
    ("writers-ask", "service::only_who_may_write_switches_trims_on"),
    ("look-ups-count", "races::what_was_looked_up_can_be_used_though_it_is_replaced"),
    ("forgotten-awaited", "service::a_user_whose_quota_is_used_up_gets_what_is_about_to_be_forgotten"),
    ("direct-stays-direct", "openings::what_is_open_directly_is_cached_for_nobody"),
    (
        "direct-write-drops-pages",
        "openings::pages_beside_direct_writes_are_dropped_then_and_at_the_next_opening",
    ),
    ("old-pages-dropped", "openings::pages_beside_direct_writes_are_dropped_then_and_at_the_next_opening"),
    ("access-seen", "openings::a_read_that_moves_the_time_of_access_is_not_left_to_the_cache"),
    ("strict-is-direct", "openings::a_read_that_moves_the_time_of_access_is_not_left_to_the_cache"),
    ("kernel-keeps-times", "openings::what_is_written_back_keeps_its_times"),
    ("unwritten-is-no-hole", "openings::what_may_be_in_the_kernel_alone_is_called_no_hole"),
    ("mapped-is-no-hole", "openings::what_may_be_in_the_kernel_alone_is_called_no_hole"),
    ("atomic-is-direct", "openings::writes_are_called_atomic_only_where_they_are_requests"),
    ("space-asked-again", "mount::what_is_written_back_comes_in_few_requests_and_its_space_is_known_soon"),
    ("parallel-direct-writes", "parallel::direct_writes_to_one_file_are_under_way_at_once"),
    ("claims-are-sole", "claims::a_claim_is_good_while_all_who_have_the_file_open_have_one"),
    ("mapped-is-not-claimed", "claims::a_claim_is_good_while_all_who_have_the_file_open_have_one"),
    ("claims-are-awaited", "claims::who_opens_a_file_waits_for_what_is_under_way"),
    ("claims-keep-length", "claims::the_kernel_alone_makes_a_file_longer"),
    ("claimed-asked-again", "mount::what_is_written_past_the_kernel_shows_in_attributes"),
    ("lists-take-set-group-id", "privileges::a_list_of_somebody_outside_of_the_group_takes_set_group_id"),
    ("changes-take-privileges", "privileges::who_is_not_root_takes_set_ids_with_allocations_and_copies"),
    ("set-ids-uncached", "mount::the_kernel_knows_when_set_user_id_is_gone"),
    ("trusted-hidden", "privileges::only_root_sees_that_there_are_attributes_of_roots"),
    ("owners-compress", "privileges::only_the_owner_changes_the_compression"),
    ("ring-copies-payload", ON_RINGS),
];

fn needs_mount(test: &str) -> bool {
    test.starts_with("mount::") || test.starts_with("parallel::")
}

#[test]
fn every_broken_rule_is_noticed() {
    assert_each_is_noticed(mutant::NAMES, RULES, &[], |test| !needs_mount(test));
    if !geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return eprintln!("SKIPPED: mutants of mounts: they need root and /dev/fuse");
    }
    let over = |transport, here: &dyn Fn(&str) -> bool| {
        assert_each_is_noticed(mutant::NAMES, RULES, &[("LACUNA_TRANSPORT", transport)], here);
    };
    over("fuser", &|test| needs_mount(test) && test != ON_RINGS);
    let switch = Path::new("/sys/module/fuse/parameters/enable_uring");
    match UringTransport::is_on() {
        true => over("uring", &needs_mount),
        false if switch.exists() => eprintln!("SKIPPED: mutants over io_uring: .ci/rings switches it on"),
        false => eprintln!("SKIPPED: mutants over io_uring: this kernel has no FUSE over io_uring"),
    }
}
