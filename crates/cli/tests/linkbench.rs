//! Whole runs of the program, and runs that are killed.

use std::{fs, process::Stdio};

use crate::support::{Kills, Scratch, lacuna, run, run_after_kill, succeed, succeeded};
use serde_json::Value;

const SMALL: &str = "--ids 3000 --seconds 1 --warmup 0 --requesters 4 --pool 16M --distribution distribution";

fn report(scratch: &Scratch) -> Value {
    serde_json::from_slice(&fs::read(scratch.path("out.json")).unwrap()).unwrap()
}

#[test]
fn temporary_stores_leave_nothing_behind() {
    let scratch = Scratch::new();
    scratch.distribution();
    let table =
        succeed(&scratch, &format!("linkbench --size 512M {SMALL} --requests-min 200 --json out.json"));
    assert!(table.contains("page/lz4 : plain"), "{table}");
    let report = report(&scratch);
    assert_eq!(report["benchmark"], "linkbench");
    assert_eq!(report["config"]["ids"], 3000);
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[0]["links"], runs[1]["links"]);
    for run in runs {
        assert_eq!(run["counts_match"], true);
        assert!(run["requests"].as_u64() > Some(0) && run["device_bytes_written"].as_u64() > Some(0));
        let rate = |name: &str| run[name].as_f64().unwrap();
        assert!(rate("settled_ops_per_second") < rate("ops_per_second"), "{run}");
    }
    assert!(runs[1]["allocated_bytes"].as_u64() < runs[0]["allocated_bytes"].as_u64());
    let mut left: Vec<_> =
        fs::read_dir(scratch.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["distribution", "out.json"]);
}

#[test]
fn runs_at_a_rate_tell_lag_and_latencies_over_time() {
    let scratch = Scratch::new();
    scratch.distribution();
    let arguments = format!("linkbench --size 512M {SMALL} --tables page --json out.json");
    let told = succeed(&scratch, &format!("{arguments} --rate 200.5"));
    assert!(
        told.contains("from due to done, p99 us") && told.contains("page/lz4, p99 in ms, each 1 s: "),
        "{told}"
    );
    let first = report(&scratch);
    assert_eq!(first["config"]["rate"], 200.5);
    let (only, open_loop) = (&first["runs"][0], &first["runs"][0]["open_loop"]);
    assert_eq!(open_loop["rate"], 200.5);
    let count = |value: &Value| value.as_u64().unwrap();
    assert_eq!(count(&only["requests"]), count(&open_loop["latency"]["count"]));
    assert_eq!(count(&open_loop["due"]), count(&only["requests"]) + count(&open_loop["not_begun"]));
    // More than any machine does.
    let told = succeed(&scratch, &format!("{arguments} --rate 1000000"));
    assert!(told.contains("page/lz4 could not keep up with 1000000 requests per second: of "), "{told}");
    let second = report(&scratch);
    assert_eq!(second["runs"][0]["open_loop"]["kept_up"], false);
    for bad in ["0", "-1", "many"] {
        let refused = run(&scratch, &format!("{arguments} --rate={bad}"));
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
}

#[test]
fn only_what_the_mix_names_is_requested() {
    let scratch = Scratch::new();
    scratch.distribution();
    let arguments = format!("linkbench --size 512M {SMALL} --tables page --json out.json");
    let table = succeed(&scratch, &format!("{arguments} --requests-min 200 --mix add_node=25,add_link=75"));
    assert!(table.contains("add_link, p99 us") && !table.contains("get_node"), "{table}");
    let told = report(&scratch);
    assert_eq!(told["config"]["mix"], "add_link=75,add_node=25");
    assert_eq!(told["runs"][0]["counts_match"], true);
    for (name, figures) in told["runs"][0]["ops"].as_object().unwrap() {
        let is_requested = ["add_link", "add_node"].contains(&name.as_str());
        assert_eq!(figures["count"].as_u64() > Some(0), is_requested, "{name}");
    }
    let refused = run(&scratch, &format!("{arguments} --mix add_link=75"));
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("add up to 75, not to 100 percent"),
        "{refused:?}"
    );
}

#[test]
fn stores_and_directories_keep_the_last_run() {
    let scratch = Scratch::new();
    scratch.distribution();
    fs::create_dir(scratch.path("dir")).unwrap();
    succeed(&scratch, "format made --size 512M");
    for storage in ["missing", "made", "dir"] {
        succeed(&scratch, &format!("linkbench --store {storage} --size 512M {SMALL} --ack-log acks"));
        succeed(&scratch, &format!("check {storage}"));
        let proof = succeed(&scratch, &format!("linkbench --verify-acks acks --store {storage}"));
        assert!(proof.contains("sound"), "{proof}");
        let info: Value =
            serde_json::from_str(&succeed(&scratch, &format!("info {storage} --json"))).unwrap();
        let tables = info["tables"].as_array().unwrap();
        let link = tables.iter().find(|table| table["name"] == "link").unwrap();
        assert_eq!((&link["tables"], &link["algorithm"]), (&"page".into(), &"lz4".into()));
        // A second benchmark does not mix with the first.
        let again = run(&scratch, &format!("linkbench --store {storage} {SMALL}"));
        assert_eq!(again.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&again.stderr).contains("holds the table"), "{again:?}");
    }
}

/// The baseline beside the others, on the same data.
#[test]
fn row_compressed_tables_run_and_are_counted() {
    let scratch = Scratch::new();
    scratch.distribution();
    fs::create_dir(scratch.path("dir")).unwrap();
    for (storage, algorithm, cache) in [("store", "zlib", "--chunk-cache 25%"), ("dir", "lz4", "")] {
        let table = succeed(
            &scratch,
            &format!(
                "linkbench --store {storage} --size 512M {cache} --tables plain,row --row-algorithm {algorithm} {SMALL} \
                 --json out.json"
            ),
        );
        assert!(table.contains(&format!("row/{algorithm} : plain")), "{table}");
        succeed(&scratch, &format!("check {storage}"));
        let report = report(&scratch);
        let [plain, row] = [&report["runs"][0], &report["runs"][1]];
        assert!(plain["row_compression"].is_null());
        assert_eq!((&plain["links"], &row["counts_match"]), (&row["links"], &true.into()));
        let counters = &row["row_compression"];
        assert!(counters["compressions"].as_u64() > Some(50), "{counters}");
        assert!(row["logical_bytes"].as_u64() < plain["logical_bytes"].as_u64());
    }
}

/// Pages would have less memory for it, and nothing else would have more.
#[test]
fn files_of_a_directory_have_no_chunk_cache() {
    let scratch = Scratch::new();
    scratch.distribution();
    fs::create_dir(scratch.path("dir")).unwrap();
    let refused = run(&scratch, &format!("linkbench --store dir --chunk-cache 25% {SMALL}"));
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(said, "lacuna: dir: a directory, whose files have no chunk cache; leave --chunk-cache out\n");
    assert_eq!(fs::read_dir(scratch.path("dir")).unwrap().count(), 0);
}

/// The log on a device of its own, a file here: for tables of one kind after the other, and verified with it.
#[test]
fn the_log_lies_on_its_device() {
    let scratch = Scratch::new();
    scratch.distribution();
    fs::File::create(scratch.path("wal")).unwrap().set_len(64 << 20).unwrap();
    let log = "--ack-log acks --wal-device wal --store store";
    succeed(&scratch, &format!("linkbench --size 512M --tables plain {SMALL} {log} --json out.json"));
    assert_eq!(report(&scratch)["config"]["wal_device"], "wal");
    let verify = "linkbench --verify-acks acks --store store";
    let refused = run(&scratch, verify);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("its log lies on a log device"), "{said}");
    let verified = succeed(&scratch, &format!("{verify} --wal-device wal"));
    assert!(verified.contains("sound, and all"), "{verified}");
    // What is no log device is not written over.
    let other = vec![b'x'; 2 << 20];
    fs::write(scratch.path("other"), &other).unwrap();
    let refused = run(&scratch, &format!("linkbench --size 512M --tables plain {SMALL} --wal-device other"));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("is not blank"), "{said}");
    assert!(fs::read(scratch.path("other")).unwrap() == other);
    fs::remove_file(scratch.path("wal")).unwrap();
    fs::create_dir(scratch.path("dir")).unwrap();
    succeed(&scratch, &format!("linkbench --store dir --tables plain,page {SMALL} --wal-device wal"));
}

/// The same small run in a store and in a directory, as a drive sees it.
#[test]
fn runs_are_traced_for_the_flash_model() {
    let scratch = Scratch::new();
    scratch.distribution();
    fs::create_dir(scratch.path("dir")).unwrap();
    succeed(&scratch, &format!("linkbench --size 512M {SMALL} --trace store"));
    succeed(&scratch, &format!("linkbench --store dir --tables page {SMALL} --trace files"));
    for (trace, source) in [("store.plain", "device"), ("store.page", "device"), ("files", "files")] {
        let model = |options: &str| -> Value {
            let text = succeed(&scratch, &format!("flash-model {trace} {options} --json"));
            serde_json::from_str(&text).unwrap()
        };
        let report = model("");
        assert_eq!(report["source"], source);
        let [host, programmed] =
            ["host_bytes", "programmed_bytes"].map(|name| report[name].as_u64().unwrap());
        assert!(host > 1 << 20 && programmed > host / 2, "{report}");
        assert!(report["syncs"].as_u64() > Some(0), "{report}");
        // So short a run frees no segment of a store.
        assert!(source == "device" || report["discarded_bytes"].as_u64() > Some(0), "{report}");
        let deaf = model("--no-discards");
        assert_eq!((&deaf["discarded_bytes"], &deaf["host_bytes"]), (&Value::from(0), &report["host_bytes"]));
        let small = model("--page 4K --erase-block 256K --over-provisioning 28");
        assert_eq!(small["host_bytes"], report["host_bytes"]);
        assert!(succeed(&scratch, &format!("flash-model {trace}")).contains("write amplification"));
    }
    let full = run(&scratch, "flash-model files --capacity 64K");
    assert!(String::from_utf8_lossy(&full.stderr).contains("files: flash model: no space left"), "{full:?}");
    let nonsense = run(&scratch, "flash-model files --page 3000");
    assert!(String::from_utf8_lossy(&nonsense.stderr).contains("whole number of pages"), "{nonsense:?}");
    let bytes = fs::read(scratch.path("files")).unwrap();
    fs::write(scratch.path("cut"), &bytes[..bytes.len() - 100]).unwrap();
    let cut = run(&scratch, "flash-model cut");
    assert!(String::from_utf8_lossy(&cut.stderr).contains("truncated"), "{cut:?}");
}

/// `kill -9` at random moments: the store is sound, and every acknowledged commit is in it.
#[test]
fn killed_runs_lose_nothing_that_was_acknowledged() {
    let variable = |name| std::env::var(name).ok().map(|v| v.parse::<u64>().expect(name));
    let first = variable("LACUNA_SEED").unwrap_or(1);
    // A kill takes seconds: nightly runs make some hundred, not thousands.
    let kills = variable("LACUNA_CASES").unwrap_or(20).min(500);
    let scratch = Scratch::new();
    scratch.distribution();
    let mut killed = Kills::new(|line| line.starts_with(['N', 'L', 'd', 'D']));
    for seed in first..first + kills {
        let kind = if seed % 4 == 0 { "plain" } else { "page" };
        let wal = if seed % 3 == 0 { "--wal-device wal" } else { "" };
        fs::File::create(scratch.path("wal")).unwrap().set_len(64 << 20).unwrap();
        let _ = fs::remove_file(scratch.path("store"));
        let _ = fs::remove_file(scratch.path("acks"));
        let arguments = format!(
            "linkbench --store store --size 512M --tables {kind} --ack-log acks --seed {seed} --ids 5000 \
             --requesters 8 --warmup 0 --seconds 600 --pool 8M --distribution distribution {wal}"
        );
        let mut child =
            lacuna(&scratch).args(arguments.split_whitespace()).stderr(Stdio::null()).spawn().unwrap();
        let acks = killed.kill(seed, &mut child, &scratch);
        if acks.lines().count() < 2 {
            continue; // killed before anything was acknowledged, perhaps while the store was made
        }
        let checked = run_after_kill(&scratch, "check store");
        if wal.is_empty() {
            succeeded("check store", checked);
        }
        succeed(&scratch, &format!("linkbench --verify-acks acks --store store {wal}"));
    }
    killed.assert_enough();
}
