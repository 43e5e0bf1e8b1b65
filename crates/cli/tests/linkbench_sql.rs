//! LinkBench on a real server, if one is installed; otherwise the test prints that it is skipped.

use std::{fs, os::unix::process::ExitStatusExt, process::Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Scratch, lacuna, mariadb::Server, run, succeed, wait_until};
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
            "linkbench {SMALL} --seconds 1 --requests-min 200 --warmup 0 --tables plain,row,page --innodb-algorithm zlib \
             --written-from process --json out.json --ack-log acks"
        ),
    );
    let report: Value = serde_json::from_str(&fs::read_to_string(scratch.path("out.json")).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap();
    let kinds: Vec<&str> = runs.iter().map(|run| run["tables"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["plain", "row", "page"]);
    for (run, facts) in runs.iter().zip(report["servers"].as_array().unwrap()) {
        assert_eq!((&run["counts_match"], &run["nodes"]), (&true.into(), &2000.into()), "{run}");
        assert!(
            run["requests"].as_u64() >= Some(200) && run["device_bytes_written"].as_u64() > Some(0),
            "{run}"
        );
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

/// What a run changes.
const SETTINGS: &str = "SELECT @@GLOBAL.innodb_compression_algorithm, @@GLOBAL.innodb_io_capacity, \
    @@GLOBAL.innodb_io_capacity_max, @@GLOBAL.innodb_max_dirty_pages_pct, @@GLOBAL.innodb_max_dirty_pages_pct_lwm";

#[test]
fn settings_of_a_server_go_back_whatever_ends_a_run() {
    let scratch = Scratch::new();
    scratch.distribution();
    let Some(server) = Server::start(&scratch, "a server's settings after a run") else { return };
    server.query(&scratch, "SET GLOBAL innodb_compression_algorithm = 'none'");
    let before = server.query(&scratch, SETTINGS);
    let one = format!("linkbench {SMALL} --seconds 1 --warmup 0 --tables page --innodb-algorithm zlib");
    let output = run(&scratch, &format!("{one} --database first"));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("innodb_compression_algorithm = zlib (it is none)"), "{told}");
    assert_eq!(server.query(&scratch, SETTINGS), before);
    let violated = run(&scratch, &format!("{one} --database second --written-from /dev/missing"));
    assert_eq!(violated.status.code(), Some(1));
    assert_eq!(server.query(&scratch, SETTINGS), before);

    // A view that stays open keeps 300 changes from being purged, so that the end of the load waits.
    server.query(&scratch, "CREATE DATABASE x; CREATE TABLE x.t (a INT); INSERT INTO x.t VALUES (0)");
    let view = "START TRANSACTION WITH CONSISTENT SNAPSHOT; SELECT * FROM x.t; SELECT SLEEP(600)";
    let mut view = server.client(&scratch, view).stdout(Stdio::null()).spawn().unwrap();
    let open = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO = 'SELECT SLEEP(600)'";
    wait_until(&mut view, || server.query(&scratch, open) == "1\n");
    server.query(&scratch, &"UPDATE x.t SET a = a + 1;".repeat(300));
    let mut waiting = lacuna(&scratch).args(one.split_whitespace()).spawn().unwrap();
    wait_until(&mut waiting, || {
        server.query(&scratch, "SELECT @@GLOBAL.innodb_max_dirty_pages_pct").starts_with('0')
    });
    // Not SIGINT, which who starts the tests in the background has them ignore.
    kill_process(Pid::from_child(&waiting), Signal::TERM).unwrap();
    let status = waiting.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status}");
    assert_eq!(server.query(&scratch, SETTINGS), before);
    view.kill().unwrap();
    view.wait().unwrap();
}

#[test]
fn a_server_that_is_not_mariadb_is_left_alone() {
    let scratch = Scratch::new();
    let options = ["--version=8.0.36"];
    let Some(server) = Server::start_with(&scratch, "MySQL is refused", &options) else { return };
    let output = run(&scratch, "linkbench --mysql data/server.sock");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("the server is 8.0.36") && told.contains("not MariaDB"), "{told}");
    assert_eq!(server.query(&scratch, "SHOW DATABASES LIKE 'linkbench'"), "");
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
