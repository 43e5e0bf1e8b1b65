//! Verifies that the crash matrix catches each broken rule: breaks one rule of src/mutant.rs at a time, in a process of
//! its own, and demands that the test named for it fails; and that it passes while no rule is broken.
//!
//! `cargo test -p lacuna-engine --features mutants --test engine every_broken -- --nocapture`, and with `--features
//! mutants,shuttle --test shuttle` those rules that only a scheduler of threads can find broken.

use std::{
    env,
    io::Read,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use lacuna_engine::mutant;
use lacuna_sim::mutation::{Outcome, assert_each_is_noticed, run};

const FLASH: &str = "crash::power_cuts_on_flash_lose_no_commit";
const DIRECTORY: &str = "crash::power_cuts_on_a_directory_lose_no_commit";
const ATOMIC: &str = "crash::power_cuts_on_a_directory_with_atomic_writes_lose_no_commit";
const SHORTER: &str = "switches::a_page_that_becomes_shorter_is_whole_after_any_cut";
const UNCHECKED: &str = "switches::a_page_without_a_checksum_that_is_written_twice_is_whole_after_any_cut";
const BESIDE: &str = "crash::power_cuts_beside_another_writer_lose_no_commit";
const DROPS: &str = "tables::power_cuts_during_a_drop_on_a_directory_leave_a_whole_table_or_none";
const UNFINISHED: &str = "crash::pages_never_overtake_the_log";
const CACHED: &str = "crash::pages_never_overtake_a_log_that_only_a_cache_held";
const FORGOTTEN: &str = "crash::images_name_writers_whose_end_may_be_lost";
const SCHEDULES: &str = "snapshot::random_schedules_on_plain_pages";
const TOO_OLD: &str = "snapshot::too_much_history_costs_the_oldest_snapshot";
const INSERTED: &str = "leaves::a_record_is_inserted_where_it_belongs_although_the_leaf_was_split";
const PANICS: &str = "panics::a_panic_that_is_caught_stops_the_store";
const WAITERS: &str = "regressions::who_waits_for_a_key_goes_on_when_its_writer_takes_it_back";
const RELAXED: &str = "regressions::relaxed_commits_are_synced_in_time_without_threads_and_not_before";
const SLOTS: &str = "scheduled::purge_leaves_the_pages_of_the_next_owner_alone";
const ROLLED_BACK: &str = "rolled_back::transactions_that_are_rolled_back_beside_a_snapshot_take_no_undo";
const LATE_VIEW: &str = "scheduled::a_view_opened_while_purge_begins_keeps_its_history";
const QUEUE: &str = "shapes::a_queue_has_the_leaves_of_what_is_live";
const DELETED: &str = "full::what_was_deleted_makes_space_at_once";
const CLOSED: &str = "snapshots_at_limit::deletes_go_on_once_a_snapshot_is_closed";
const SETTLED: &str = "at_limit::nothing_is_reserved_once_no_transaction_runs";
const ROLLED_BACK_FULL: &str =
    "snapshots_at_limit::a_transaction_that_deletes_until_it_is_refused_rolls_back";
const LONGER: &str = "at_limit::a_rollback_makes_records_as_long_as_they_were";
const COMPRESSED_LESS: &str = "at_limit::a_rollback_brings_back_what_does_not_compress";
const FORMS: &str = "at_limit::a_rollback_writes_no_page_longer_than_before_while_space_is_short";
const HOLES: &str = "shapes::power_cuts_among_holes_and_cut_files_on_a_directory";
const CUT: &str = "shapes::files_are_cut_only_once_the_log_says_that_their_end_is_free";
const THINNED: &str = "shapes::leaves_are_merged_however_records_are_deleted";
const MERGES: &str = "scheduled::leaves::nothing_is_missed_while_leaves_merge";
const REFUSED: &str = "scheduled::leaves::a_record_that_is_refused_leaves_no_empty_leaf";
const CUT_BESIDE: &str = "scheduled::leaves::holes_and_cuts_spare_what_is_allocated_meanwhile";
const IN_PARTS: &str = "little_space::power_cuts_while_parts_are_flushed_on_flash_lose_nothing";
const UNDO_CUT: &str = "little_space::the_undo_file_is_cut_before_a_record_is_refused";
const COPIES: &str = "little_space::a_flush_of_what_fits_has_space_for_its_copies";
const SHARE_OF_PLACE: &str = "little_space::history_takes_a_share_of_a_small_place";
const PARTS_BESIDE: &str = "scheduled::full::flushes_in_parts_share_what_is_free";
const PANIC_BESIDE: &str = "scheduled::a_panic_wakes_everybody";
const CURSORS: &str = "cursors::cursors_and_ranges_agree_with_a_map_on_plain_tables";
const WALKS: &str = "cursors::walks_of_a_snapshot_that_was_given_up_are_told";
const LOCKED_LOADS: &str = "bulk::a_load_waits_for_locks_in_its_way";
const LOADS: &str = "bulk::loads_agree_with_a_map_on_all_kinds_of_tables";
const FAILED_LOADS: &str = "bulk::a_load_that_fails_leaves_none_of_its_records_and_the_transaction_goes_on";
const IN_MEMORY: &str = "crash::power_cuts_with_the_log_in_memory_lose_no_commit";
const ROUND: &str = "log_device::a_log_goes_round_and_round";
const CHANGED_BESIDE: &str = "alter::changes_beside_the_copying_are_in_the_copy";
const OLD_SNAPSHOTS: &str = "alter::snapshots_see_what_they_saw_and_do_not_write";
const LATE_SNAPSHOT: &str = "alter::a_snapshot_that_comes_late_finds_the_old_file";
const WRITERS: &str = "alter::writers_that_do_not_end_are_waited_for_and_others_go_on";
const ALTERED: &str =
    "alter::power_cuts_during_an_alteration_on_a_directory_leave_the_old_table_or_the_new_one";
const LONG_BESIDE: &str = "alter::a_long_value_that_changes_while_it_is_copied_is_copied_again";
const PLAINTEXT: &str = "encrypted::nothing_of_a_marked_workload_lies_in_the_files";
const KEYS: &str = "encrypted::power_cuts_while_secrets_change_leave_the_old_or_the_new_one";
const UNKNOWN_KEY: &str = "encrypted::replay_writes_nothing_of_a_table_without_its_key";
const BEHIND: &str = "encrypted::what_a_crash_left_behind_an_encrypted_image_goes_with_the_next_one";
const READ_OFTEN: &str = "adaptive::pages_that_are_read_often_keep_the_codec_that_decodes_faster";
const RESTS: &str = "adaptive::pages_that_rest_change_their_codec_and_those_written_often_do_not";
/// Seeds of each test; of schedules of threads more, since few of them meet in the place that matters.
const CASES: &str = if cfg!(feature = "shuttle") { "150" } else { "40" };

/// Each rule, and a test of the matrix that must fail without it.
const RULES: &[(&str, &str)] = &[
    ("log-before-pages", UNFINISHED),
    ("log-before-pages", DIRECTORY),
    ("data-encrypted", PLAINTEXT),
    ("pages-encrypted", PLAINTEXT),
    ("keys-known", UNKNOWN_KEY),
    ("tails-covered", BEHIND),
    ("keys-synced", KEYS),
    ("rests-wait", RESTS),
    ("reads-noted", READ_OFTEN),
    ("reads-age", READ_OFTEN),
    ("pages-synced", DIRECTORY),
    ("pages-synced", ATOMIC),
    ("pages-whole", ATOMIC),
    ("old-ends-kept", SHORTER),
    ("unchecked-suspected", UNCHECKED),
    ("notes-follow-images", BESIDE),
    ("survey-synced", CACHED),
    ("flights-count", BESIDE),
    ("checkpoints-synced", DIRECTORY),
    ("commit-syncs", FLASH),
    ("freed-log-is-zero", ROUND),
    ("found-log-settled", "log_device::what_was_found_survives_a_power_cut"),
    ("log-written-back", IN_MEMORY),
    ("log-fenced", IN_MEMORY),
    ("checkpoints-synced", IN_MEMORY),
    ("log-before-pages", IN_MEMORY),
    ("relaxed-syncs", RELAXED),
    ("relaxed-waits", RELAXED),
    ("history-kept", FLASH),
    ("history-kept", SCHEDULES),
    ("later-logs-kept", SCHEDULES),
    ("deletions-restored", SCHEDULES),
    ("snapshots-fail", TOO_OLD),
    ("history-bounded", TOO_OLD),
    ("history-fits", SHARE_OF_PLACE),
    ("undo-file-cut", UNDO_CUT),
    ("history-purged", FLASH),
    ("edits-lead-back", FLASH),
    ("edits-lead-back", SCHEDULES),
    ("ends-logged", FORGOTTEN),
    ("row-before-file", DROPS),
    ("leaf-has-key", LOADS),
    ("bounds-noted", INSERTED),
    ("panics-stop", PANICS),
    ("panics-stop", PANIC_BESIDE),
    ("releases-wake", WAITERS),
    ("horizon-under-lock", LATE_VIEW),
    ("one-gives-pages-back", SLOTS),
    ("undone-undo-freed", ROLLED_BACK),
    ("empty-leaves-go", QUEUE),
    ("cuts-follow-log", CUT),
    ("holes-replayed", HOLES),
    ("refused-after-purge", DELETED),
    ("refused-after-purge", CLOSED),
    ("parts-flushed", CLOSED),
    ("parts-flushed", IN_PARTS),
    ("flights-take-space", PARTS_BESIDE),
    ("rollbacks-have-space", LONGER),
    ("rollbacks-have-space", COMPRESSED_LESS),
    ("debts-settled", SETTLED),
    ("reserve-kept", ROLLED_BACK_FULL),
    ("copies-have-space", COPIES),
    ("images-stay-short", FORMS),
    ("separators-move", THINNED),
    ("refused-leaves-go", REFUSED),
    ("descents-couple", MERGES),
    ("cuts-latch-header", CUT_BESIDE),
    ("cursors-look-again", CURSORS),
    ("walks-ask-the-view", WALKS),
    ("loads-ask-for-locks", LOCKED_LOADS),
    ("loads-stay-in-leaf", LOADS),
    ("loads-whole", FAILED_LOADS),
    ("writers-drain", WRITERS),
    ("old-views-read-old-file", OLD_SNAPSHOTS),
    ("old-views-write-nothing", OLD_SNAPSHOTS),
    ("changes-repeated", CHANGED_BESIDE),
    ("rollbacks-repeated", CHANGED_BESIDE),
    ("frontier-first", CHANGED_BESIDE),
    ("copies-current", LONG_BESIDE),
    ("old-files-kept", LATE_SNAPSHOT),
    ("old-file-last", ALTERED),
];

const MEMORY: &str = "history::histories_in_memory_are_sound";
const CUTS: &str = "history::histories_across_cuts_on_a_directory_are_sound";
/// One of so many seeds must show the anomaly: it also depends on how threads interleave.
const SEEDS: u64 = 400;

/// Each rule, a test that records histories, and an anomaly that it must find in one of a seed without the rule.
const ANOMALIES: &[(&str, &str, &str)] = &[
    ("writers-lock", MEMORY, "G0"),
    ("writers-lock", MEMORY, "TwoOwners"),
    ("versions-followed", MEMORY, "G1a"),
    ("versions-followed", MEMORY, "G1b"),
    ("versions-followed", MEMORY, "G1c"),
    ("versions-followed", MEMORY, "Uncommitted"),
    ("rollbacks-whole", MEMORY, "G1a"),
    ("locks-hold", MEMORY, "TwoOwners"),
    ("first-updater-wins", MEMORY, "LostUpdate"),
    ("first-updater-wins", MEMORY, "ListOrder"),
    ("views-hold", MEMORY, "GSingle"),
    ("views-hold", MEMORY, "NonRepeatable"),
    ("views-hold", MEMORY, "Fractured"),
    ("reads-fresh", MEMORY, "Stale"),
    ("own-changes-seen", MEMORY, "Internal"),
    ("edits-lead-back", MEMORY, "Garbage"),
    ("views-hold", MEMORY, "Miscount"),
    ("reads-fresh", MEMORY, "Miscount"),
    ("swaps-lock", MEMORY, "TwoOwners"),
    ("cursors-look-again", MEMORY, "Internal"),
    ("loads-whole", MEMORY, "Garbage"),
    ("commit-syncs", CUTS, "LostCommit"),
    ("rollbacks-whole", CUTS, "PartOfTransaction"),
];

/// A broken rule may let threads wait for ever.
const PATIENCE: Duration = Duration::from_secs(10);

/// The seed in whose history `test` finds `anomaly` without the rule.
fn seed_that_shows(rule: &str, test: &str, anomaly: &str) -> Option<u64> {
    (1..=SEEDS).find(|seed| {
        let mut child = Command::new(env::current_exe().expect("the path of this test"));
        child.args(["--exact", test]).env("LACUNA_SEED", seed.to_string()).env("LACUNA_CASES", "1");
        child.env("LACUNA_MUTANT", rule).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = child.spawn().expect("this test runs");
        let mut stdout = child.stdout.take().expect("piped");
        let reader = thread::spawn(move || {
            let mut said = Vec::new();
            stdout.read_to_end(&mut said).map(|_| said)
        });
        let since = Instant::now();
        while child.try_wait().expect("a child").is_none() && since.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(2));
        }
        // It may have ended.
        let _ = child.kill();
        child.wait().expect("a child");
        let said = reader.join().expect("thread").expect("read");
        String::from_utf8_lossy(&said).contains(&format!("anomaly {anomaly}:"))
    })
}

/// Under the scheduler nothing else runs, and without it those tests are not there.
fn is_here(test: &str) -> bool {
    test.starts_with("scheduled::") == cfg!(feature = "shuttle")
}

#[test]
fn every_broken_rule_is_noticed() {
    // Some rules are noticed only by their anomaly, below.
    let noticed_here = |rule: &&str| RULES.iter().any(|(named, _)| named == rule);
    let (here, others): (Vec<_>, Vec<_>) = mutant::NAMES.iter().copied().partition(noticed_here);
    assert_each_is_noticed(&here, RULES, &[("LACUNA_CASES", CASES)], is_here);
    for rule in others {
        assert!(ANOMALIES.iter().any(|(named, ..)| *named == rule), "{rule} has no test");
    }
}

#[test]
fn every_broken_rule_is_noticed_by_its_anomaly() {
    if cfg!(feature = "shuttle") {
        return; // Histories are of real threads.
    }
    for test in [MEMORY, CUTS] {
        assert_eq!(
            run(test, None, &[("LACUNA_CASES", CASES)]),
            Outcome::Passed,
            "{test} with all rules kept"
        );
    }
    let mut unseen = Vec::new();
    for (rule, test, anomaly) in ANOMALIES {
        match seed_that_shows(rule, test, anomaly) {
            Some(seed) => println!("{rule}: {anomaly} at seed {seed}"),
            None => unseen.push((rule, anomaly)),
        }
    }
    assert!(unseen.is_empty(), "broken and not seen: {unseen:?}");
}
