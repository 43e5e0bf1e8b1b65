//! The program `lacuna dataset`.

use std::fs;

use serde_json::Value;

use crate::support::{Scratch, run, succeed};

/// A thousand lines of a text that compresses, and empty ones.
fn lines() -> String {
    (0..1000)
        .map(|n| format!("{n:05}\t{:>9}\tthe quick brown fox jumps over dog {}\n\n", n * n, n % 7))
        .collect()
}

#[test]
fn lines_are_loaded_and_overwritten() {
    let scratch = Scratch::new();
    fs::write(scratch.path("lines"), lines()).unwrap();
    let options = "--size 256M --pool 1M --tables plain,page,row,adaptive --json out.json";
    for (place, more) in [("--store store", ""), ("", "--packing off --overwrites 1"), ("", "--overwrites 0")]
    {
        let table = succeed(&scratch, &format!("dataset lines {place} {options} {more}"));
        assert!(table.contains("page/lz4") && table.contains("live bytes in the store, MB"), "{table}");
        let report: Value =
            serde_json::from_str(&fs::read_to_string(scratch.path("out.json")).unwrap()).unwrap();
        let runs = report["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 4);
        assert!(runs.iter().all(|run| run["rows"] == 1000 && run["row_bytes"] == runs[0]["row_bytes"]));
        let live = |run: &Value| run["load"]["allocated_bytes"].as_u64().unwrap();
        assert!(live(&runs[1]) < live(&runs[0]), "{table}");
    }
    let report: Value = serde_json::from_str(&fs::read_to_string(scratch.path("out.json")).unwrap()).unwrap();
    assert_eq!(report["runs"][1]["overwrites"], 0);
    succeed(&scratch, "check store");
    for (file, text, word) in [("empty", "\n\n", "empty"), ("nowhere", "", "nowhere")] {
        if !text.is_empty() {
            fs::write(scratch.path(file), text).unwrap();
        }
        let refused = run(&scratch, &format!("dataset {file} {options}"));
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.lines().count() == 1 && said.contains(word), "{said}");
    }
}
