//! Whole runs of `lacuna iobench`, small ones.

use std::fs;

use crate::support::{Scratch, run, succeed};
use serde_json::Value;

const SMALL: &str = "--size 64M --seconds 1 --threads 2 --capacities 1 --live 50";

fn complaint(scratch: &Scratch, arguments: &str) -> String {
    let output = run(scratch, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && !stderr.contains("panicked"), "{arguments}: {stderr}");
    let line = stderr.lines().last().unwrap_or_default().to_owned();
    assert!(line.starts_with("lacuna: "), "{stderr}");
    line
}

fn names(scratch: &Scratch) -> Vec<String> {
    let entries = fs::read_dir(scratch.path(".")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_temporary_store_beside_a_bare_file() {
    let scratch = Scratch::new();
    let table = succeed(&scratch, &format!("iobench {SMALL} --raw bare --json out.json --trace trace"));
    assert_eq!(table.lines().filter(|line| line.contains("ftl : raw")).count(), 7, "{table}");
    let report: Value = serde_json::from_slice(&fs::read(scratch.path("out.json")).unwrap()).unwrap();
    assert_eq!((&report["benchmark"], &report["config"]["raw"]), (&"iobench".into(), &"bare".into()));
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 14);
    for run in runs {
        assert!(run["requests"].as_u64() > Some(0) && run["latency"]["p99_us"].is_number(), "{run}");
    }
    assert_eq!(names(&scratch), ["out.json", "trace"], "stores are gone");
    let model: Value =
        serde_json::from_str(&succeed(&scratch, "flash-model trace --erase-block 1M --json")).unwrap();
    assert_eq!(model["capacity_bytes"], 64 << 20);
    assert!(model["write_amplification"].as_f64() > Some(0.5), "{model}");
}

#[test]
fn goals_beside_a_bare_file() {
    let scratch = Scratch::new();
    let table = succeed(
        &scratch,
        "iobench --goals --rounds 2 --size 64M --seconds 1 --threads 2 --capacities 1 --live 50 --raw bare \
         --json out.json",
    );
    assert!(table.contains("random 16K reads") && table.contains("50% live"), "{table}");
    let report: Value = serde_json::from_slice(&fs::read(scratch.path("out.json")).unwrap()).unwrap();
    assert_eq!(report["goals"].as_array().unwrap().len(), 4);
    assert!(["io_uring", "threads"].contains(&report["config"]["io"].as_str().unwrap()), "{report}");
    assert!(complaint(&scratch, "iobench --goals").contains("--raw"));
}

#[test]
fn what_compression_costs_where_it_saves_nothing() {
    let scratch = Scratch::new();
    let table = succeed(
        &scratch,
        "iobench --goals --compress lz4 --rounds 1 --size 128M --seconds 1 --threads 2 --live 50 --raw bare --json out.json",
    );
    assert!(table.contains("compressed") && table.contains("plain"), "{table}");
    let report: Value = serde_json::from_slice(&fs::read(scratch.path("out.json")).unwrap()).unwrap();
    let goals = report["goals"].as_array().unwrap();
    assert_eq!(goals.len(), 6);
    for goal in goals {
        assert!(
            goal["compressed"][0].as_f64() > Some(0.0) && goal["plain"][0].as_f64() > Some(0.0),
            "{goal}"
        );
    }
    assert_eq!(report["config"]["compress"], "lz4");
    for run in report["runs"].as_array().unwrap() {
        let written =
            [&run["device_bytes_written"], &run["host_bytes_written"]].map(|bytes| bytes.as_u64().unwrap());
        assert!(written[0] >= written[1], "what cannot be compressed takes all it has: {run}");
    }
}

#[test]
fn nothing_is_overwritten_that_was_there() {
    let scratch = Scratch::new();
    let small = "--size 64M --seconds 1 --pattern seqwrite";
    succeed(&scratch, &format!("iobench {small} --store kept"));
    assert_eq!(names(&scratch), ["kept"]);
    assert!(complaint(&scratch, &format!("iobench {small} --store kept")).contains("kept: not empty"));
    assert!(complaint(&scratch, &format!("iobench {small} --raw kept")).contains("kept: exists already"));
    succeed(&scratch, &format!("iobench {small} --store kept --force"));
    let diary = "dear diary\n".repeat(100_000);
    fs::write(scratch.path("diary"), &diary).unwrap();
    for option in ["--store", "--raw", "--trace"] {
        assert!(complaint(&scratch, &format!("iobench {small} {option} diary")).contains("diary"));
    }
    assert!(fs::read_to_string(scratch.path("diary")).unwrap() == diary);
    assert!(complaint(&scratch, "iobench --store kept --raw kept --force").contains("the same place"));
    assert_eq!(names(&scratch), ["diary", "kept"]);
}

#[test]
fn nonsense_is_one_line() {
    let scratch = Scratch::new();
    for (arguments, word) in [
        ("--pattern sideways", "sideways"),
        ("--pattern append,append", "twice"),
        ("--block 1000", "4096"),
        ("--block 2M", "1M"),
        ("--live 0", "--live"),
        ("--live 101", "--live"),
        ("--skew zipf:2", "zipf"),
        ("--threads 0", "--threads"),
        ("--seconds 0", "--seconds"),
        ("--size 1000", "4096"),
        ("--raw no/where", "no/where"),
        ("--store no/where", "no/where"),
        ("--json no/where", "no/where"),
        ("--trace no/where", "no"),
        ("--size 64M --live 99 --pattern overwrite", "no space left"),
        ("--size 64K --pattern append", "lacuna"),
    ] {
        let line = complaint(&scratch, &format!("iobench {arguments}"));
        assert!(line.contains(word), "{arguments}: {line}");
    }
    assert_eq!(names(&scratch).len(), 0, "nothing is left behind: {:?}", names(&scratch));
}
