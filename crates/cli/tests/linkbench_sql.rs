//! LinkBench on a real server, if one is installed; otherwise the test prints that it is skipped.

use std::fs;

use crate::support::{Scratch, mariadb::Server, run, succeed};
use serde_json::Value;

const SMALL: &str = "--mysql data/server.sock --ids 2000 --requesters 4 --distribution distribution --seed 1";

#[test]
fn tables_of_a_server_are_loaded_measured_and_survive_it() {
    let scratch = Scratch::new();
    scratch.distribution();
    let Some(server) = Server::start(&scratch, "LinkBench through SQL") else { return };
    succeed(
        &scratch,
        &format!(
            "linkbench {SMALL} --seconds 1 --warmup 0 --tables plain,row,page --innodb-algorithm zlib \
             --written-from process --json out.json --ack-log acks"
        ),
    );
    let report: Value = serde_json::from_str(&fs::read_to_string(scratch.path("out.json")).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap();
    let kinds: Vec<&str> = runs.iter().map(|run| run["tables"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["plain", "row", "page"]);
    for (run, facts) in runs.iter().zip(report["servers"].as_array().unwrap()) {
        assert_eq!((&run["counts_match"], &run["nodes"]), (&true.into(), &2000.into()), "{run}");
        assert!(run["requests"].as_u64() > Some(0) && run["device_bytes_written"].as_u64() > Some(0));
        assert!(facts["innodb_page_size"] == 16384 && facts["innodb_dblwr_pages_written"].is_u64());
    }
    let bytes = |run: usize| runs[run]["allocated_bytes"].as_u64().unwrap();
    assert!(bytes(1) < bytes(0) && bytes(2) < bytes(0), "{} {} {}", bytes(0), bytes(1), bytes(2));
    assert!(report["config"]["device_bytes_written_from"].as_str().unwrap().contains("/proc/"));

    // The last tables stay: they are not mixed with others, and hold every acknowledged commit.
    let again = run(&scratch, &format!("linkbench {SMALL}"));
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("holds the table"), "{again:?}");
    let verify = "linkbench --mysql data/server.sock --verify-acks acks";
    assert!(succeed(&scratch, verify).contains("sound"));

    // As after a power cut of the server: it recovers, and nothing is lost.
    drop(server);
    let gone = run(&scratch, verify);
    assert_eq!(gone.status.code(), Some(1));
    let server = Server::start(&scratch, "").expect("it was there before");
    assert!(succeed(&scratch, verify).contains("sound"));

    // Verification notices lost rows.
    server.query(&scratch, "DELETE FROM linkbench.nodetable WHERE id = 7");
    let lost = run(&scratch, verify);
    assert_eq!(lost.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&lost.stderr).contains("node 7 is lost"), "{lost:?}");
}

#[test]
fn servers_that_are_none_are_refused() {
    let scratch = Scratch::new();
    fs::write(scratch.path("file"), "").unwrap();
    for (arguments, code, word) in [
        ("linkbench --mysql nonsense", 2, "HOST:PORT"),
        ("linkbench --mysql ./file", 1, "./file"),
        ("linkbench --mysql ./missing", 1, "./missing"),
        ("linkbench --mysql ./missing --store place", 2, "--store"),
        ("linkbench --mysql ./missing --database a`b", 1, "a`b"),
        ("linkbench --user me", 2, "--mysql"),
        ("linkbench --mysql ./missing --written-from loop0", 2, "--written-from"),
    ] {
        let output = run(&scratch, arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {stderr}");
        assert!(stderr.contains(word) && stderr.lines().count() <= 2, "{arguments}: {stderr}");
    }
}
