//! The program `lacuna trimbench`.

use std::fs;

use crate::support::{Scratch, run, succeed};
use serde_json::Value;

const SMALL: &str = "--file 256K --trims 512,4K --holes 50 --no-zeros";

#[test]
fn directories_and_stores_stand_in_one_report() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("dir")).unwrap();
    let output = run(&scratch, &format!("trimbench dir --experiment then {SMALL} --json dir.json"));
    if String::from_utf8_lossy(&output.stderr).contains("not supported") {
        eprintln!("not tested: trimbench on a directory (no direct I/O or no holes there)");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let table = succeed(
        &scratch,
        &format!(
            "trimbench --store s --experiment then,holes --size 64M {SMALL} --with dir.json --json all.json"
        ),
    );
    let report: Value = serde_json::from_str(&fs::read_to_string(scratch.path("all.json")).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap();
    // Two trims on each of the two; in the store, which no other process fills meanwhile, also a file that is made,
    // copied and dropped until its space is free.
    assert_eq!(runs.len(), 2 + 2 + 3, "{table}");
    let in_process: Vec<&Value> =
        runs.iter().filter(|run| run["file_system"] == "nvmfs in-process").collect();
    assert_eq!(in_process.len(), 5);
    // Trims need no data of the device.
    assert!(
        in_process.iter().filter(|run| run["experiment"] == "then").all(|run| run["device_read_bytes"] == 0)
    );
    assert!(table.contains("then 4K") && table.contains("holes: drop"), "{table}");
    let quick = format!("trimbench --store s --experiment holes --no-copy --size 64M {SMALL}");
    let table = succeed(&scratch, &quick);
    assert!(table.contains("holes: drop") && !table.contains("holes: copy"), "{table}");
    let mut left: Vec<_> =
        fs::read_dir(scratch.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["all.json", "dir", "dir.json"]);
    assert_eq!(fs::read_dir(scratch.path("dir")).unwrap().count(), 0);
}

#[test]
fn nonsense_is_refused_in_one_line() {
    let scratch = Scratch::new();
    fs::write(scratch.path("file"), "{}").unwrap();
    for (arguments, code, word) in [
        ("trimbench", 2, "DIR"),
        ("trimbench nowhere", 1, "nowhere"),
        ("trimbench file", 1, "file"),
        ("trimbench . --trims 100", 1, "100"),
        ("trimbench . --trims 16K", 1, "16384"),
        ("trimbench . --experiment sideways", 1, "sideways"),
        ("trimbench . --with file", 1, "file"),
        ("trimbench --store .", 1, "directory"),
    ] {
        let output = run(&scratch, arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {stderr}");
        assert!(stderr.contains(word) && stderr.lines().count() == 1, "{arguments}: {stderr}");
    }
}
