//! The benchmark in the style of TPC-C on a real server, if one is installed; otherwise the test prints that it is
//! skipped.

use std::fs;

use crate::support::{Scratch, mariadb::Server, run, succeed};
use serde_json::Value;

const SMALL: &str =
    "--mysql data/server.sock --warehouses 2 --items 300 --customers 40 --requesters 6 --seed 1";

#[test]
fn tables_of_a_server_stay_consistent_and_survive_it() {
    let scratch = Scratch::new();
    let Some(server) = Server::start(&scratch, "TPC-C style through SQL") else { return };
    let table = succeed(
        &scratch,
        &format!(
            "tpcc {SMALL} --seconds 1 --requests-min 400 --warmup 0 --tables plain,row,page --innodb-algorithm zlib \
             --written-from process --json out.json --ack-log acks"
        ),
    );
    assert!(table.contains("page/zlib : plain") && table.contains("new-orders per minute"), "{table}");
    let report: Value = serde_json::from_slice(&fs::read(scratch.path("out.json")).unwrap()).unwrap();
    assert_eq!((&report["benchmark"], &report["config"]["database"]), (&"tpcc-style".into(), &"tpcc".into()));
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    for (run, facts) in runs.iter().zip(report["servers"].as_array().unwrap()) {
        assert_eq!((&run["consistent"], &run["rows"]), (&true.into(), &runs[0]["rows"]), "{run}");
        for operation in ["new_order", "payment", "order_status", "delivery", "stock_level"] {
            assert!(run["ops"][operation]["count"].as_u64() > Some(0), "{operation}: {run}");
        }
        assert!(run["device_bytes_written"].as_u64() > Some(0) && facts["innodb_page_size"] == 16384);
    }

    // The last tables stay: they are not mixed with others, and hold every acknowledged commit.
    let again = run(&scratch, &format!("tpcc {SMALL}"));
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("holds the table"), "{again:?}");
    let verify = "tpcc --mysql data/server.sock --verify-acks acks";
    assert!(succeed(&scratch, verify).contains("acknowledged changes are there (2 warehouses"));
    drop(server);
    let gone = run(&scratch, verify);
    assert_eq!(gone.status.code(), Some(1));
    let server = Server::start(&scratch, "").expect("it was there before");
    assert!(succeed(&scratch, verify).contains("all conditions hold"));

    // At a rate, beside them in a database of its own.
    succeed(
        &scratch,
        &format!(
            "tpcc {SMALL} --database other --rate 50 --seconds 1 --warmup 0 --tables plain --json out.json"
        ),
    );
    let report: Value = serde_json::from_slice(&fs::read(scratch.path("out.json")).unwrap()).unwrap();
    assert_eq!(report["runs"][0]["open_loop"]["rate"], 50.0);

    // What does not fit is found, whichever way it came about.
    let damages = [
        ("UPDATE tpcc.warehouse SET w_ytd = w_ytd + 1 WHERE w_id = 2", "condition 3.3.2.1, warehouse 2"),
        ("UPDATE tpcc.warehouse SET w_ytd = w_ytd - 1 WHERE w_id = 2", ""),
        (
            "UPDATE tpcc.orders SET o_carrier_id = NULL WHERE o_w_id = 1 AND o_d_id = 3 AND o_id = 1",
            "condition 3.3.2.5",
        ),
        ("UPDATE tpcc.orders SET o_carrier_id = 1 WHERE o_w_id = 1 AND o_d_id = 3 AND o_id = 1", ""),
        (
            "DELETE FROM tpcc.order_line WHERE ol_w_id = 1 AND ol_d_id = 3 AND ol_o_id = 1 AND ol_number = 1",
            "condition 3.3.2.4",
        ),
    ];
    for (damage, complaint) in damages {
        server.query(&scratch, damage);
        let found = run(&scratch, "tpcc --mysql data/server.sock --verify");
        let stderr = String::from_utf8_lossy(&found.stderr);
        assert_eq!(found.status.success(), complaint.is_empty(), "{damage}: {stderr}");
        assert!(stderr.contains(complaint), "{damage}: {stderr}");
    }
}

#[test]
fn what_makes_no_sense_on_a_server_is_refused() {
    let scratch = Scratch::new();
    for (arguments, code, word) in [
        ("tpcc --mysql ./missing", 1, "./missing"),
        ("tpcc --mysql ./missing --store place", 2, "--store"),
        ("tpcc --verify", 2, "--store"),
        ("tpcc --database me", 2, "--mysql"),
        ("tpcc --mysql ./missing --verify", 1, "./missing"),
    ] {
        let output = run(&scratch, arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {stderr}");
        assert!(stderr.contains(word), "{arguments}: {stderr}");
    }
}
