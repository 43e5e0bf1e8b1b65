//! Whole runs of the benchmark in the style of TPC-C, and runs that are killed.

use std::{fs, process::Stdio};

use crate::support::{Kills, Scratch, lacuna, run, run_after_kill, succeed};
use serde_json::Value;

const SMALL: &str =
    "--warehouses 2 --items 500 --customers 60 --seconds 1 --warmup 0 --requesters 4 --pool 16M --size 512M";

#[test]
fn all_kinds_of_tables_run_side_by_side() {
    let scratch = Scratch::new();
    let table = succeed(
        &scratch,
        &format!("tpcc --tables plain,row,page {SMALL} --requests-min 200 --json out.json"),
    );
    assert!(table.contains("page/lz4 : plain") && table.contains("new-orders per minute"), "{table}");
    let report: Value = serde_json::from_slice(&fs::read(scratch.path("out.json")).unwrap()).unwrap();
    assert_eq!(report["benchmark"], "tpcc-style");
    assert_eq!(report["config"]["warehouses"], 2);
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    for run in runs {
        assert_eq!((&run["consistent"], &run["rows"]), (&true.into(), &runs[0]["rows"]));
        assert!(run["new_orders_per_minute"].as_f64() > Some(0.0));
        assert!(run["device_bytes_written"].as_u64() > Some(0));
    }
    assert!(runs[1]["row_compression"]["compressions"].as_u64() > Some(0));
    assert!(runs[2]["allocated_bytes"].as_u64() < runs[0]["allocated_bytes"].as_u64());
    let left: Vec<_> =
        fs::read_dir(scratch.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["out.json"]);
}

#[test]
fn stores_and_directories_keep_the_last_run() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("dir")).unwrap();
    for storage in ["store", "dir"] {
        succeed(&scratch, &format!("tpcc --store {storage} {SMALL} --ack-log acks"));
        succeed(&scratch, &format!("check {storage}"));
        let proof = succeed(&scratch, &format!("tpcc --store {storage} --verify"));
        assert!(proof.contains("all conditions hold (2 warehouses"), "{proof}");
        let proof = succeed(&scratch, &format!("tpcc --store {storage} --verify-acks acks"));
        assert!(proof.contains("acknowledged changes are there"), "{proof}");
        let again = run(&scratch, &format!("tpcc --store {storage} {SMALL}"));
        assert_eq!(again.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&again.stderr).contains("holds the table"), "{again:?}");
    }
    let acks = fs::read_to_string(scratch.path("acks")).unwrap();
    fs::write(scratch.path("acks"), format!("{acks}D 2 3 1 11\n")).unwrap();
    let lost = run(&scratch, "tpcc --store dir --verify-acks acks");
    assert_eq!(lost.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&lost.stderr).contains("dir: acknowledged Delivery"), "{lost:?}");
}

/// `kill -9` at random moments, in the load too: the conditions hold, and every acknowledged commit is there.
#[test]
fn killed_runs_stay_consistent_and_lose_nothing_that_was_acknowledged() {
    let variable = |name| std::env::var(name).ok().map(|v| v.parse::<u64>().expect(name));
    let first = variable("LACUNA_SEED").unwrap_or(1);
    // A kill takes seconds: nightly runs make some hundred, not thousands.
    let kills = variable("LACUNA_CASES").unwrap_or(15).min(500);
    let scratch = Scratch::new();
    let mut killed = Kills::new(|line| line.starts_with(['O', 'P', 'D']));
    for seed in first..first + kills {
        let kind = ["page", "page", "plain", "row"][(seed % 4) as usize];
        let _ = fs::remove_file(scratch.path("store"));
        let _ = fs::remove_file(scratch.path("acks"));
        let arguments = format!(
            "tpcc --store store --size 512M --tables {kind} --ack-log acks --seed {seed} --warehouses 2 \
             --items 2000 --customers 100 --requesters 8 --warmup 0 --seconds 600 --pool 8M"
        );
        let mut child =
            lacuna(&scratch).args(arguments.split_whitespace()).stderr(Stdio::null()).spawn().unwrap();
        let acks = killed.kill(seed, &mut child, &scratch).lines().count();
        if acks == 0 {
            continue; // killed while the store was made
        }
        let verified = run_after_kill(&scratch, "tpcc --store store --verify-acks acks");
        let stderr = String::from_utf8_lossy(&verified.stderr);
        let is_unmade =
            ["holds no table", "formatting it was not finished"].iter().any(|it| stderr.contains(it));
        if acks == 1 && is_unmade {
            continue; // killed while the store or the tables were made
        }
        assert!(verified.status.success(), "seed {seed}: {stderr}");
        succeed(&scratch, "check store");
    }
    killed.assert_enough();
}
