//! `lacuna verdict` on the files of `bench/proof`.

use std::fs;

use crate::support::{Scratch, run, succeed};
use serde_json::Value;

#[test]
fn rounds_are_judged() {
    let scratch = Scratch::new();
    for (round, seconds) in [(1, 0.9), (2, 1.0)] {
        let directory = scratch.path(&format!("proof/round-{round}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("mount.json"), format!("{{\"value\": {seconds}}}")).unwrap();
        fs::write(directory.join("mount.command"), "example mount FILE\n").unwrap();
        fs::write(directory.join("tpcc.error"), "needs root for loop devices\n").unwrap();
    }
    let refused = run(&scratch, "verdict proof");
    let line = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && line.contains("no settings"), "{line}");

    fs::write(scratch.path("proof/settings"), "full\n").unwrap();
    let table = succeed(&scratch, "verdict proof --json out.json");
    assert!(table.contains("open after a crash, seconds | all of the log | <= 2 | 0.950 |"), "{table}");
    assert!(
        table.contains(
            "FAILED: rounds 1, 2 failed: tpcc: needs root for loop devices: TPC-C style, page : row; TPC-C"
        ),
        "{table}"
    );
    assert!(table.contains("- mount: `example mount FILE`"), "{table}");
    let report: Value = serde_json::from_slice(&fs::read(scratch.path("out.json")).unwrap()).unwrap();
    let claims = report["claims"].as_array().unwrap();
    let met: Vec<_> = claims.iter().filter(|claim| claim["verdict"] == "met").collect();
    assert_eq!(met.len(), 1);
    assert_eq!(met[0]["figures"][0]["estimate"]["values"], serde_json::json!([0.9, 1.0]));
}
