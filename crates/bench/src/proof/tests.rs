use std::{env, fs, path::PathBuf};

use serde_json::{Value, json};

use super::{Proof, RUNS, judge, report, rounds::Round, rounds::Rounds};
use crate::Verdict;

/// Reports in which every promise is kept, some by a hair; all rates of a round are `speed` times the same.
fn kept(speed: f64) -> Round {
    let table = |variant: &str, rate: f64, p99: f64, bytes: f64, room: f64, load: f64| {
        let ops = json!({"get_node": {"p99_us": p99}, "add_link": {"p99_us": 3.0 * p99}});
        json!({"variant": variant, "report": {"git": "v1", "runs": [{
            "ops_per_second": rate * speed, "ops": ops, "device_bytes_written_per_op": bytes,
            "allocated_bytes": room, "load_seconds": load / speed, "new_orders_per_minute": rate * speed,
        }]}})
    };
    let trim = |file_system: &str, rate: f64| {
        let of = |experiment: &str, trim_bytes: u64| {
            json!({"file_system": file_system, "experiment": experiment, "trim_bytes": trim_bytes,
                "data": "random", "operations": 1000, "operations_per_second": rate * speed,
                "device_read_bytes": 0})
        };
        [of("beside", 1024), of("then", 4096), of("append 4K", 0)]
    };
    let sql = |kind: &str, rate: f64, written: f64, room: f64, shrunk: f64| {
        json!({"file_system": kind, "tables_bytes": room, "shrink": {"tables_bytes": shrunk},
            "linkbench": {"git": "v1", "runs": [{"ops_per_second": rate * speed,
                "device_bytes_written_per_op": written}]}})
    };
    let peer = |name: &str, rate: f64, room: f64| json!({"contestant": name, "run": {"ops_per_second": rate * speed, "allocated_bytes": room}});
    let goal = |ftl: f64, raw: f64| json!({"ftl": [ftl * speed], "raw": [raw * speed]});
    let drop =
        |file_system: &str| json!({"file_system": file_system, "experiment": "holes: drop", "seconds": 0.1});
    let trims =
        [trim("ext4", 1.0), trim("xfs", 0.5), trim("fuse.lacuna", 2.0), trim("nvmfs in-process", 5.0)];
    let trims = trims.concat();
    let reports = [
        json!({"runs": [
            table("plain", 100.0, 5.0, 10.0, 200.0, 10.0),
            table("page", 110.0, 1.0, 4.0, 70.0, 9.0),
            table("row", 60.0, 2.1, 8.0, 100.0, 30.0),
            table("plain-doublewrite", 90.0, 5.0, 17.0, 200.0, 10.0),
            table("row-papers", 40.0, 5.0, 17.0, 100.0, 30.0),
        ]}),
        json!({"runs": [
            table("plain", 100.0, 1.0, 1.0, 1.0, 1.0),
            table("page", 105.0, 1.0, 1.0, 1.0, 1.0),
            table("row", 50.0, 1.0, 1.0, 1.0, 1.0),
        ]}),
        json!({"git": "v1", "goals": [goal(0.9, 1.0), goal(0.95, 1.0), goal(1.0, 1.0), goal(1.1, 1.0)]}),
        json!({"value": 2.8}),
        json!({"value": 1.6}),
        json!({"value": 0.95}),
        json!({"runs": trims}),
        json!({"runs": [drop("fuse.lacuna"), drop("nvmfs in-process")]}),
        json!({"runs": [peer("lacuna/lz4", 10.0, 100.0), peer("small", 6.0, 90.0), peer("fast", 20.0, 110.0)]}),
        json!({"runs": [sql("ext4", 100.0, 10.0, 100.0, 100.0), sql("nvmfs", 101.0, 3.0, 80.0, 60.0),
            sql("ext4/plain", 100.0, 10.0, 1.0, 1.0), sql("ext4/row", 59.0, 10.0, 1.0, 1.0)]}),
    ];
    Round(RUNS.into_iter().zip(reports).collect())
}

fn rounds() -> Rounds {
    let rounds = [1.0, 1.02, 0.97].map(kept).into();
    Rounds { settings: "full".to_owned(), rounds, ..Rounds::default() }
}

/// Names and verdicts of the promises that are not met.
fn not_met(proof: &Proof) -> Vec<(String, Verdict)> {
    let claims = proof.claims.iter().filter(|claim| claim.verdict != Verdict::Met);
    claims.map(|claim| (claim.name.clone(), claim.verdict)).collect()
}

/// Breaks one thing in every round, and expects these promises, and no others, to be missed.
fn broken(pointer: &str, value: f64, missed: &[&str]) {
    let mut rounds = rounds();
    let (run, inside) = pointer[1..].split_once('/').unwrap();
    for round in &mut rounds.rounds {
        let report = round.0.get_mut(run).unwrap();
        *report.pointer_mut(&format!("/{inside}")).expect(pointer) = json!(value);
    }
    let found = not_met(&report::prove(&rounds));
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.len(), missed.len(), "{pointer}: {found:?}");
    for (name, missed) in names.into_iter().zip(missed) {
        assert!(name.contains(missed), "{pointer}: {name} for {missed}");
    }
    assert!(found.iter().all(|(_, verdict)| *verdict == Verdict::Missed), "{pointer}: {found:?}");
}

#[test]
fn kept_promises_are_met() {
    let proof = report::prove(&rounds());
    assert_eq!(not_met(&proof), []);
    assert_eq!((proof.claims.len(), &proof.git[..]), (31, &["v1".to_owned()][..]));
    assert!(proof.markdown().starts_with("31 met, 0 missed, 0 open, in 3 rounds of full (v1)."));
}

#[test]
fn each_broken_promise_is_missed_and_no_other() {
    let of = |run: &str, entry: usize, figure: &str| format!("/{run}/runs/{entry}/report/runs/0/{figure}");
    broken(&of("linkbench", 0, "ops_per_second"), 120.0, &["page : plain"]);
    broken(&of("linkbench", 2, "ops_per_second"), 66.0, &["page : row"]);
    broken(&of("linkbench", 2, "ops_per_second"), 45.0, &["beside InnoDB"]);
    broken(&of("linkbench", 4, "ops_per_second"), 60.0, &["one flusher"]);
    broken(&of("linkbench", 2, "ops/add_link/p99_us"), 5.9, &["p99"]);
    broken(&of("linkbench", 2, "allocated_bytes"), 93.0, &["room, page : row"]);
    broken(&of("linkbench", 3, "device_bytes_written_per_op"), 15.9, &["bytes written per LinkBench"]);
    broken(&of("linkbench", 1, "load_seconds"), 11.0, &["load time"]);
    broken(&of("tpcc", 2, "new_orders_per_minute"), 60.0, &["TPC-C style, page : row"]);
    broken(&of("tpcc", 0, "new_orders_per_minute"), 120.0, &["TPC-C style, page : plain"]);
    broken("/goals/goals/0/ftl/0", 0.1, &["random 16K writes"]);
    broken("/goals/goals/1/ftl/0", 0.1, &["random 16K reads"]);
    broken("/goals/goals/2/ftl/0", 0.1, &["4K append"]);
    broken("/goals/goals/3/ftl/0", 9.0, &["bytes written"]);
    broken("/amplification-uniform/value", 2.86, &["uniform"]);
    broken("/amplification-zipf/value", 1.66, &["Zipf"]);
    broken("/mount/value", 2.1, &["open after a crash"]);
    // ext4 comes first: blocks beside, then, appends.
    broken("/trim/runs/0/operations_per_second", 3.0, &["in-process : ext4", "mounted : ext4"]);
    broken("/trim/runs/1/operations_per_second", 1.5, &["in-process : ext4"]);
    broken("/trim/runs/2/operations_per_second", 9.0, &[]);
    broken("/trim/runs/4/operations_per_second", 1.5, &["in-process : xfs"]);
    broken("/trim/runs/7/device_read_bytes", 1.0, &["bytes read per block, nvmfs mounted"]);
    broken("/unlink/runs/1/seconds", 1.5, &["unlink of a file of very many holes, nvmfs in-process"]);
    broken("/peers/runs/1/run/ops_per_second", 8.0, &[": small"]);
    broken("/peers/runs/2/run/allocated_bytes", 90.0, &[": fast"]);
    broken("/mariadb/runs/1/linkbench/runs/0/ops_per_second", 90.0, &["requests/s"]);
    broken("/mariadb/runs/1/linkbench/runs/0/device_bytes_written_per_op", 4.1, &["written per request"]);
    broken("/mariadb/runs/1/tables_bytes", 90.0, &["room, nvmfs"]);
    broken("/mariadb/runs/1/shrink/tables_bytes", 85.0, &["after updates"]);
}

#[test]
fn what_is_not_measured_or_not_settled_is_open_with_a_reason() {
    let reason = |rounds: &Rounds, name: &str| {
        let proof = report::prove(rounds);
        let claim = proof.claims.iter().find(|claim| claim.name.contains(name)).unwrap().clone();
        assert_eq!(claim.verdict, Verdict::Open, "{name}");
        let reason = claim.reason.unwrap();
        let text = proof.markdown();
        let line = text.lines().find(|line| line.starts_with(&format!("- OPEN: {reason}: "))).unwrap();
        assert!(line.contains(&claim.name), "{line}");
        reason
    };
    let mut all = rounds();
    all.rounds.iter_mut().for_each(|round| drop(round.0.remove("mariadb")));
    assert_eq!(reason(&all, "requests/s"), "mariadb: not run");
    all.errors.insert("mariadb", "mariadbd is not installed".to_owned());
    assert_eq!(reason(&all, "beside InnoDB"), "mariadb: mariadbd is not installed");
    all.rounds.iter_mut().for_each(|round| drop(round.0.remove("peers")));
    assert_eq!(reason(&all, "every peer"), "peers: not run");

    let mut failed = rounds();
    for round in &mut failed.rounds {
        let entry = &mut round.0.get_mut("peers").unwrap()["runs"][1];
        *entry = json!({"contestant": "small", "error": "not done after 300 s"});
    }
    assert_eq!(reason(&failed, ": small"), "small: not done after 300 s");

    let one = Rounds { rounds: vec![kept(1.0)], ..Rounds::default() };
    assert_eq!(reason(&one, "page : plain"), "one round: no interval");
    // Counts need no second round.
    assert!(!not_met(&report::prove(&one)).iter().any(|(name, _)| name.contains("per byte, 80% live")));

    let mut unclear = rounds();
    let page = "/runs/1/report/runs/0/ops_per_second";
    *unclear.rounds[0].0.get_mut("linkbench").unwrap().pointer_mut(page).unwrap() = json!(95.0);
    assert_eq!(reason(&unclear, "page : plain"), "the interval holds the target");

    let mut lacking = rounds();
    for round in &mut lacking.rounds {
        let entries = round.0.get_mut("linkbench").unwrap()["runs"].as_array_mut().unwrap();
        entries.retain(|entry| entry["variant"] != "row-papers");
    }
    assert_eq!(reason(&lacking, "one flusher"), "no round of linkbench has all figures of it");
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = env::temp_dir().join(format!("lacuna-proof-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn directories_are_read_round_by_round() {
    let scratch = Scratch::new("read");
    let error = format!("{:#}", judge(&scratch.0).unwrap_err());
    assert!(error.contains("no settings"), "{error}");
    scratch.write("settings", "quick\n");
    scratch.write("proof.md", "of an earlier call");
    for (round, value) in [(1, 1.6), (2, 1.7), (10, 1.5)] {
        scratch
            .write(&format!("round-{round}/mount.json"), &json!({"value": value, "git": "v2"}).to_string());
        scratch.write(&format!("round-{round}/mount.command"), &format!("mount {round}\n"));
    }
    scratch.write("round-2/tpcc.error", "no root\n");
    let proof = judge(&scratch.0).unwrap();
    assert_eq!((&proof.settings[..], proof.rounds, &proof.commands["mount"][..]), ("quick", 3, "mount 1"));
    let claim = |name: &str| proof.claims.iter().find(|claim| claim.name.contains(name)).unwrap();
    let mount = claim("open after a crash");
    assert_eq!(mount.figures[0].estimate.as_ref().unwrap().values, [1.6, 1.7, 1.5]);
    assert_eq!(claim("TPC-C").reason.as_deref(), Some("tpcc: no root"));
    let json: Value = serde_json::to_value(&proof).unwrap();
    assert_eq!((&json["benchmark"], &json["git"][0]), (&"proof".into(), &"v2".into()));

    scratch.write("round-10/mount.json", "{");
    let error = format!("{:#}", judge(&scratch.0).unwrap_err());
    assert!(error.contains("round-10/mount.json"), "{error}");
}
