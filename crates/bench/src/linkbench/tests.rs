//! Whole runs against the database in memory, and the verification of damaged graphs.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use super::{
    AckLog, Config, RunReport, Table,
    memory::MemoryDb,
    run,
    schema::{CountRow, LinkRow},
    verify::verify_graph,
    verify_acks,
};
use crate::Plan;

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("lacuna-linkbench-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    /// Out-degrees without LinkBench's million-link node, which small graphs would consist of.
    fn distribution(&self) -> PathBuf {
        let path = self.0.join("distribution");
        fs::write(&path, "nlinks\n0 45\n1 77\n3 93\n10 99\n60 99.9\n20000 100\n").unwrap();
        path
    }

    fn config(&self) -> Config {
        Config {
            ids: 2000,
            distribution: Some(self.distribution()),
            mix: super::Mix::default(),
            plan: Plan {
                loaders: 3,
                requesters: 4,
                warmup: Duration::from_millis(20),
                seconds: Duration::from_millis(20),
                // Each operation comes up, on rows that are there, many times.
                requests_min: 3000,
                rate: None,
                window: None,
                seed: 1,
                epoch_ms: 1_700_000_000_000,
                quiet: true,
            },
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run_in_memory(db: &MemoryDb, scratch: &Scratch, acks: &AckLog) -> RunReport {
    run(db, &scratch.config(), "plain", "none", Some(acks)).unwrap()
}

#[test]
fn a_run_is_sound_and_proves_its_acknowledgements() {
    let scratch = Scratch::new();
    let log = scratch.0.join("acks");
    let db = MemoryDb { lose_every: 10_007, ..MemoryDb::default() };
    let report = run_in_memory(&db, &scratch, &AckLog::create(&log).unwrap());
    assert_eq!(report.figures.violation, None);
    assert_eq!(report.nodes, 2000);
    assert!(report.links > 20_000 && report.requests >= 3000);
    // The load alone makes enough calls for some to lose, however slow the machine is.
    assert!(db.calls.load(Relaxed) > db.lose_every);
    assert!(report.figures.ops.iter().map(|(_, summary)| summary.count).sum::<u64>() == report.requests);
    let verified = verify_acks(&db, &log).unwrap();
    assert!(verified.acks > 0 && verified.links >= report.links);
}

#[test]
fn the_same_seed_loads_the_same_rows() {
    let scratch = Scratch::new();
    let load_only = |seed, loaders| {
        let db = MemoryDb::default();
        let mut config = scratch.config();
        config.plan = Plan { seed, loaders, requesters: 0, requests_min: 0, ..config.plan };
        run(&db, &config, "plain", "none", None).unwrap();
        db.tables.into_inner().unwrap()
    };
    let rows = load_only(1, 1);
    let other_loaders = load_only(1, 3);
    // Times and versions of counts depend on the order of threads; nothing else does.
    for table in [Table::Node, Table::Link, Table::LinkByTime] {
        assert!(rows[table as usize] == other_loaders[table as usize], "{table:?}");
    }
    assert!(rows[Table::Node as usize] != load_only(2, 1)[Table::Node as usize]);
}

#[test]
fn a_failing_database_ends_the_run_with_its_error() {
    let scratch = Scratch::new();
    for fail_from in [1, 1000, 60_000, 110_000, 200_000] {
        let db = MemoryDb { fail_from, ..MemoryDb::default() };
        let mut long = scratch.config();
        long.plan.seconds = Duration::from_secs(600);
        let error = run(&db, &long, "plain", "none", None).unwrap_err();
        assert!(error.to_string().contains("on fire"), "{error:#}");
    }
}

/// Changes one table of a sound graph and expects verification to say `complaint`.
fn damaged(
    table: Table,
    complaint: &str,
    damage: impl Fn(&mut std::collections::BTreeMap<Vec<u8>, Vec<u8>>),
) {
    let scratch = Scratch::new();
    let log = scratch.0.join("acks");
    let db = MemoryDb::default();
    run_in_memory(&db, &scratch, &AckLog::create(&log).unwrap());
    verify_graph(&db).unwrap();
    damage(&mut db.tables.lock().unwrap()[table as usize]);
    let error = verify_acks(&db, &log).unwrap_err().to_string();
    assert!(error.contains(complaint), "{error:?} does not say {complaint:?}");
}

#[test]
fn a_lost_index_entry_is_found() {
    // As a wrong count when it was a visible link's, else as a link without an entry.
    damaged(Table::LinkByTime, "", |index| drop(index.pop_first()));
}

#[test]
fn a_wrong_index_entry_is_found() {
    damaged(Table::LinkByTime, "differs from its entry", |index| {
        index.values_mut().next().unwrap().push(7);
    });
}

#[test]
fn a_wrong_count_is_found() {
    damaged(Table::Count, "visible links", |counts| {
        let value = counts.values_mut().next_back().unwrap();
        let row = CountRow::of_value(value).unwrap();
        *value = CountRow { count: row.count + 1, ..row }.value().to_vec();
    });
}

#[test]
fn a_lost_count_is_found() {
    damaged(Table::Count, "and no count", |counts| {
        let (key, value) = counts.pop_first().unwrap();
        if CountRow::of_value(&value).unwrap().count == 0 {
            counts.insert(key, value);
            counts.retain(|_, value| CountRow::of_value(value).unwrap().count == 0);
        }
    });
}

#[test]
fn a_lost_node_is_found() {
    damaged(Table::Node, " is lost", |nodes| {
        // The last id is one that a request added or the load; either is demanded.
        nodes.pop_last();
    });
}

#[test]
fn a_lost_link_is_found() {
    damaged(Table::Link, " is lost", |links| drop(links.pop_first()));
}

#[test]
fn an_old_version_of_a_link_is_found() {
    damaged(Table::Link, "at version", |links| {
        let updated = links.values_mut().find(|value| LinkRow::of_value(value).unwrap().version > 0).unwrap();
        let old = LinkRow::of_value(updated).unwrap();
        let mut value = Vec::new();
        LinkRow { version: old.version - 1, ..old }.value(&mut value);
        *updated = value;
    });
}

#[test]
fn wrong_content_at_the_right_version_is_found() {
    damaged(Table::Node, "is not what was acknowledged", |nodes| {
        let updated = nodes.values_mut().find(|value| value[4] > 1).unwrap();
        updated.push(1);
    });
}
