//! `lacuna report` on results of `./evaluate`, and reports over time.

use std::fs;

use crate::support::{Scratch, run, succeed};
use serde_json::{Value, json};

#[test]
fn a_run_over_time_becomes_a_page() {
    let scratch = Scratch::new();
    let degrees = scratch.distribution();
    succeed(
        &scratch,
        &format!(
            "linkbench --ids 500 --pool 4M --size 256M --tables page --requesters 2 --seconds 3 --warmup 0 --window 1 \
             --distribution {} --json run.json",
            degrees.display()
        ),
    );
    let report: Value = serde_json::from_slice(&fs::read(scratch.path("run.json")).unwrap()).unwrap();
    let run_report = &report["runs"][0];
    let windows = run_report["over_time"]["windows"].as_array().unwrap();
    // On a busy machine a window is longer than asked for, never shorter.
    assert!((1..=4).contains(&windows.len()), "{windows:?}");
    let sum = |name: &str| windows.iter().map(|window| window[name].as_f64().unwrap()).sum::<f64>();
    assert_eq!(sum("requests"), run_report["requests"].as_f64().unwrap());
    assert!(sum("device_bytes_written") <= run_report["device_bytes_written"].as_f64().unwrap());
    assert!(sum("seconds") >= 2.9, "{windows:?}");

    let step = json!({
        "evaluation": 1, "step": "linkbench", "round": 1, "mode": "tiny", "status": "done", "command": "bench/x",
        "date": "2026-11-26", "seconds": 3, "machine": {}, "versions": {},
        "result": {"runs": [{"variant": "page", "report": report}]},
    });
    fs::create_dir_all(scratch.path("out/round-1")).unwrap();
    fs::write(scratch.path("out/settings"), "tiny\n").unwrap();
    fs::write(scratch.path("out/round-1/linkbench.json"), step.to_string()).unwrap();
    succeed(&scratch, "report out -o page.html --json all.json --csv all.csv");
    let page = fs::read_to_string(scratch.path("page.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<polyline"), "no line over time");
    let all: Value = serde_json::from_slice(&fs::read(scratch.path("all.json")).unwrap()).unwrap();
    assert_eq!(all["steps"][0]["result"]["runs"][0]["variant"], "page");
    let csv = fs::read_to_string(scratch.path("all.csv")).unwrap();
    assert!(csv.contains("linkbench,1,/runs/0/report/runs/0/ops_per_second,page,"), "{csv}");
    assert!(succeed(&scratch, "verdict out").contains("0 met, 0 missed"));
}

#[test]
fn what_cannot_be_drawn_is_one_line() {
    let scratch = Scratch::new();
    let refused = |arguments: &str, code: i32, expected: &str| {
        let output = run(&scratch, arguments);
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}");
        assert!(line.starts_with("lacuna: ") && line.trim_end().lines().count() == 1, "{line}");
        assert!(line.contains(expected), "{line}");
    };
    fs::create_dir_all(scratch.path("out/round-1")).unwrap();
    refused("report out", 1, "no settings");
    refused("report none", 1, "no settings");
    fs::write(scratch.path("out/settings"), "quick\n").unwrap();
    refused("report out", 1, "no results of ./evaluate");
    fs::write(scratch.path("out/round-1/trim.json"), "{\"evaluation\": 1, ").unwrap();
    refused("report out", 1, "out/round-1/trim.json");
    assert!(!scratch.path("report.html").exists());
    refused("linkbench --seconds 7200 --window 1 --json x.json", 1, "at most 3600 windows");
    refused("linkbench --window 1", 2, "--json");
    assert!(!scratch.path("x.json").exists());
}
