use std::{env, fs, path::PathBuf};

use serde_json::{Value, json};

use super::{Proof, judge, report, rounds::Round, rounds::Rounds};
use crate::Verdict;

/// Reports in which every promise is kept, some by a hair; all rates of a round are `speed` times the same.
fn kept(speed: f64) -> Round {
    let table = |variant: &str, rate: f64, p99: f64, bytes: f64, room: f64, load: f64| {
        let ops = json!({"get_node": {"p99_us": p99}, "add_link": {"p99_us": 3.0 * p99}});
        json!({"variant": variant, "report": {"git": "v1", "runs": [{
            "ops_per_second": rate * speed, "settled_ops_per_second": rate * speed, "ops": ops, "open_loop": {"latency": {"p99_us": p99}}, "device_bytes_written_per_op": bytes,
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
    let fast = |variant: &str, rate: f64, bytes: f64| table(variant, rate, 10.0, bytes, 1.0, 1.0);
    let postgres = |file_system: &str, rate: f64, written: f64, room: f64| {
        json!({"file_system": file_system, "load": "update", "checkpoints": "frequent",
            "transactions_per_second": rate * speed, "transactions": 1000,
            "device_bytes_written": written, "data_bytes": room})
    };
    let inserts = |kind: &str, what: &str, rate: f64, p99: f64| json!({"kind": kind, "what": what, "rate": rate * speed, "p99_us": p99 / speed});
    let logged = ["MariaDB, 1 clients, rows/s", "LinkBench, inserts of 1 clients"]
        .map(|what| [inserts("alone", what, 10.0, 9.0), inserts("logged", what, 18.5, 4.0)])
        .concat();
    let flash = |variant: &str, bytes: f64| json!({"variant": variant, "flash_bytes_per_op": bytes});
    let data = |variant: &str, room: f64| {
        let run = json!({"overwrite": {"allocated_bytes": room}});
        json!({"variant": variant, "report": {"git": "v1", "runs": [run]}})
    };
    let reports = [
        (
            "linkbench",
            json!({"runs": [
                table("plain", 100.0, 5.0, 10.0, 200.0, 10.0),
                table("page", 110.0, 1.0, 4.0, 70.0, 9.0),
                table("row", 60.0, 2.1, 8.0, 100.0, 30.0),
                table("plain-doublewrite", 90.0, 5.0, 17.0, 200.0, 10.0),
                table("row-papers", 40.0, 5.0, 17.0, 100.0, 30.0),
                table("page-zlib", 80.0, 1.0, 4.0, 80.0, 9.0),
            ]}),
        ),
        (
            "full",
            json!({"runs": [fast("plain", 100.0, 10.0), fast("page", 110.0, 4.0), fast("plain-doublewrite", 90.0, 16.0)]}),
        ),
        ("flash", json!({"runs": [flash("xfs/plain-doublewrite", 41.0), flash("page", 10.0)]})),
        (
            "datasets",
            json!({"runs": [data("nouns/page", 90.0), data("nouns/page-no-packing", 100.0), data("stars/page", 80.0),
            data("stars/page-no-packing", 100.0)]}),
        ),
        ("volume", json!({"runs": [fast("plain", 100.0, 10.0), fast("page-cached", 130.0, 4.0)]})),
        (
            "ablations",
            json!({"runs": [
                fast("plain", 113.0, 1.0), fast("plain-doublewrite", 100.0, 1.0), fast("row", 52.0, 1.0),
                fast("row-doublewrite", 50.0, 1.0), fast("page", 103.0, 1.0), fast("page-doublewrite", 100.0, 1.0),
            ]}),
        ),
        (
            "rate",
            json!({"runs": [table("plain", 1.0, 9.0, 1.0, 1.0, 1.0), table("plain-doublewrite", 1.0, 10.0, 1.0, 1.0, 1.0)]}),
        ),
        (
            "tpcc",
            json!({"runs": [
                table("plain", 100.0, 1.0, 1.0, 1.0, 1.0),
                table("page", 105.0, 1.0, 1.0, 1.0, 1.0),
                table("row", 50.0, 1.0, 1.0, 1.0, 1.0),
            ]}),
        ),
        (
            "goals",
            json!({"git": "v1", "goals": [goal(0.9, 1.0), goal(0.95, 1.0), goal(1.0, 1.0), goal(1.1, 1.0)]}),
        ),
        ("amplification-uniform", json!({"value": 2.8})),
        ("amplification-zipf", json!({"value": 1.6})),
        ("mount", json!({"value": 0.95})),
        ("trim", json!({"runs": trims})),
        ("unlink", json!({"runs": [drop("fuse.lacuna"), drop("nvmfs in-process")]})),
        (
            "peers",
            json!({"runs": [peer("lacuna/lz4", 10.0, 100.0), peer("small", 6.0, 90.0), peer("fast", 20.0, 110.0)]}),
        ),
        (
            "mariadb",
            json!({"runs": [sql("ext4", 100.0, 10.0, 100.0, 100.0), sql("nvmfs", 116.0, 2.9, 80.0, 60.0),
            sql("ext4/plain", 100.0, 10.0, 1.0, 1.0), sql("ext4/row", 59.0, 10.0, 1.0, 1.0),
            sql("xfs", 110.0, 10.0, 101.0, 101.0)]}),
        ),
        (
            "postgres",
            json!({"runs": [postgres("ext4", 90.0, 10.0, 100.0), postgres("xfs", 100.0, 10.0, 100.0),
            postgres("nvmfs-lz4", 131.0, 3.4, 44.0)]}),
        ),
        ("log-device", json!({"results": logged})),
    ];
    Round { reports: reports.into_iter().collect(), ..Round::default() }
}

/// How many promises there are.
const CLAIMS: usize = 50;
/// How many of them are counts.
const COUNTS: usize = 7;

fn rounds() -> Rounds {
    let rounds = [1.0, 1.002, 0.997].map(kept).into();
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
        let report = round.reports.get_mut(run).unwrap();
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
    assert_eq!((proof.claims.len(), &proof.git[..]), (CLAIMS, &["v1".to_owned()][..]));
    let summary = format!("{CLAIMS} met, 0 missed, 0 open, 0 failed, 0 not run, in 3 rounds of full (v1).");
    assert!(proof.markdown().starts_with(&summary), "{}", proof.markdown());
    // All that is no count is a test.
    assert_eq!(proof.claims.iter().filter(|claim| claim.p.is_none()).count(), COUNTS);
}

#[test]
fn each_broken_promise_is_missed_and_no_other() {
    let of = |run: &str, entry: usize, figure: &str| format!("/{run}/runs/{entry}/report/runs/0/{figure}");
    broken(&of("linkbench", 0, "ops_per_second"), 120.0, &["page : plain"]);
    broken(&of("linkbench", 2, "ops_per_second"), 66.0, &["page : row"]);
    broken(&of("linkbench", 2, "ops_per_second"), 45.0, &["beside InnoDB"]);
    broken(&of("linkbench", 5, "ops_per_second"), 59.0, &["zlib on both sides, page : row"]);
    broken(&of("linkbench", 5, "allocated_bytes"), 82.0, &["room, zlib on both sides"]);
    broken(&of("full", 1, "settled_ops_per_second"), 109.0, &["on a full device, page : plain"]);
    broken(
        &of("full", 2, "device_bytes_written_per_op"),
        15.0,
        &["bytes written per LinkBench operation on a full"],
    );
    broken("/flash/runs/1/flash_bytes_per_op", 10.3, &["flash per LinkBench operation"]);
    broken(&of("datasets", 0, "overwrite/allocated_bytes"), 100.1, &["room of text"]);
    broken(&of("datasets", 2, "overwrite/allocated_bytes"), 100.1, &["room of numbers"]);
    broken(&of("volume", 1, "settled_ops_per_second"), 129.0, &["on a volume"]);
    broken(&of("ablations", 1, "ops_per_second"), 114.0, &["doublewrite, plain"]);
    broken(&of("ablations", 3, "ops_per_second"), 53.0, &["doublewrite, row"]);
    broken(&of("ablations", 5, "ops_per_second"), 104.0, &["doublewrite, page"]);
    broken(&of("rate", 1, "open_loop/latency/p99_us"), 8.0, &["fixed rate"]);
    broken("/postgres/runs/1/transactions_per_second", 102.0, &["transactions/s"]);
    broken("/postgres/runs/2/data_bytes", 46.0, &["PostgreSQL, updates, room"]);
    broken("/postgres/runs/2/device_bytes_written", 3.6, &["bytes written per transaction"]);
    broken("/log-device/results/1/rate", 17.0, &["MariaDB's inserts, log"]);
    broken("/log-device/results/1/p99_us", 4.6, &["MariaDB's inserts, p99"]);
    broken("/log-device/results/3/rate", 17.0, &["LinkBench, inserts, log"]);
    broken("/log-device/results/3/p99_us", 4.6, &["LinkBench, inserts, p99"]);
    broken(&of("linkbench", 4, "ops_per_second"), 60.0, &["one flusher"]);
    broken(&of("linkbench", 2, "ops/add_link/p99_us"), 5.9, &["p99"]);
    broken(&of("linkbench", 2, "allocated_bytes"), 93.0, &["room, page : row", "room, zlib on both sides"]);
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
    broken("/mariadb/runs/1/linkbench/runs/0/ops_per_second", 112.0, &["requests/s"]);
    broken("/mariadb/runs/1/linkbench/runs/0/device_bytes_written_per_op", 4.1, &["written per request"]);
    broken("/mariadb/runs/4/linkbench/runs/0/ops_per_second", 112.0, &["requests/s"]);
    broken("/mariadb/runs/1/tables_bytes", 90.0, &["room, nvmfs"]);
    broken("/mariadb/runs/1/shrink/tables_bytes", 85.0, &["after updates"]);
}

#[test]
fn what_is_not_measured_or_not_settled_has_a_reason() {
    let reason_of = |rounds: &Rounds, name: &str, verdict: Verdict| {
        let proof = report::prove(rounds);
        let claim = proof.claims.iter().find(|claim| claim.name.contains(name)).unwrap().clone();
        assert_eq!(claim.verdict, verdict, "{name}");
        let reason = claim.reason.unwrap();
        let text = proof.markdown();
        let line = text
            .lines()
            .find(|line| line.contains(&format!("{}: {reason}: ", verdict.to_string().to_uppercase())))
            .unwrap();
        assert!(line.contains(&claim.name), "{line}");
        reason
    };
    let reason = |rounds: &Rounds, name: &str| reason_of(rounds, name, Verdict::NotRun);
    let mut all = rounds();
    all.rounds.iter_mut().for_each(|round| drop(round.reports.remove("mariadb")));
    assert_eq!(reason(&all, "requests/s"), "mariadb: not run");
    all.not_run.insert("mariadb", "mariadbd is not installed".to_owned());
    assert_eq!(reason(&all, "beside InnoDB"), "mariadb: mariadbd is not installed");
    all.rounds.iter_mut().for_each(|round| drop(round.reports.remove("peers")));
    assert_eq!(reason(&all, "every peer"), "peers: not run");

    let reason = |rounds: &Rounds, name: &str| reason_of(rounds, name, Verdict::Open);
    let one = Rounds { rounds: vec![kept(1.0)], ..Rounds::default() };
    assert_eq!(reason(&one, "page : plain"), "one round: no interval");
    // Counts need no second round.
    assert!(!not_met(&report::prove(&one)).iter().any(|(name, _)| name.contains("per byte, 80% live")));

    let mut unclear = rounds();
    let page = "/runs/1/report/runs/0/ops_per_second";
    *unclear.rounds[0].reports.get_mut("linkbench").unwrap().pointer_mut(page).unwrap() = json!(95.0);
    assert_eq!(reason(&unclear, "page : plain"), "the interval holds the target");

    // By itself, a mean of 1.004 with an error of 0.001 would do.
    let mut narrow = rounds();
    for (round, rate) in narrow.rounds.iter_mut().zip([105.3, 105.6, 105.7]) {
        *round
            .reports
            .get_mut("tpcc")
            .unwrap()
            .pointer_mut("/runs/0/report/runs/0/new_orders_per_minute")
            .unwrap() = json!(rate / 1.06);
        *round
            .reports
            .get_mut("tpcc")
            .unwrap()
            .pointer_mut(&page.replace("ops_per_second", "new_orders_per_minute"))
            .unwrap() = json!(100.0);
    }
    let claim = "TPC-C style, page : plain";
    assert_eq!(
        reason(&narrow, claim),
        format!("its interval decides alone, but not as one of {} promises", CLAIMS - COUNTS)
    );

    let reason = |rounds: &Rounds, name: &str| reason_of(rounds, name, Verdict::NotRun);
    let mut lacking = rounds();
    for round in &mut lacking.rounds {
        let entries = round.reports.get_mut("linkbench").unwrap()["runs"].as_array_mut().unwrap();
        entries.retain(|entry| entry["variant"] != "row-papers");
    }
    assert_eq!(reason(&lacking, "one flusher"), "no round of linkbench has all figures of it");
}

/// Fails a peer in so many rounds.
fn fail_small(rounds: &mut Rounds, count: usize) {
    for (round, number) in rounds.rounds.iter_mut().zip(1..) {
        round.number = number;
    }
    for round in rounds.rounds.iter_mut().take(count) {
        let entry = &mut round.reports.get_mut("peers").unwrap()["runs"][1];
        *entry = json!({"contestant": "small", "error": "not done after 300 s"});
    }
}

#[test]
fn what_fails_in_a_round_keeps_no_promise_and_is_told() {
    let judged = |rounds: &Rounds, name: &str| {
        let proof = report::prove(rounds);
        let claim = proof.claims.iter().find(|claim| claim.name.contains(name)).unwrap().clone();
        let reason = claim.reason.unwrap();
        assert!(proof.markdown().contains(&reason), "{}", proof.markdown());
        (claim.verdict, reason)
    };
    let mut some = rounds();
    fail_small(&mut some, 3);
    let failed = "rounds 1, 2, 3 failed: small: not done after 300 s";
    assert_eq!(judged(&some, ": small"), (Verdict::Failed, failed.to_owned()));
    // One round less than was run would keep it.
    let mut some = rounds();
    fail_small(&mut some, 1);
    let open = "the other rounds would keep it; round 1 failed: small: not done after 300 s";
    assert_eq!(judged(&some, ": small"), (Verdict::Open, open.to_owned()));
    assert_eq!(not_met(&report::prove(&some)).len(), 1);
    // A step that failed as a whole, beside figures that break the promise all the same.
    some.rounds[2].reports.remove("tpcc");
    some.rounds[2].failures.insert("tpcc", "no space left".to_owned());
    for round in &mut some.rounds[..2] {
        let tpcc = round.reports.get_mut("tpcc").unwrap();
        *tpcc.pointer_mut("/runs/0/report/runs/0/new_orders_per_minute").unwrap() = json!(1e9);
    }
    let missed = (Verdict::Missed, "round 3 failed: tpcc: no space left".to_owned());
    assert_eq!(judged(&some, "TPC-C style, page : plain"), missed);
    // A peer that is not there at all, and one that answers nothing.
    some.rounds[1].reports.get_mut("peers").unwrap()["runs"].as_array_mut().unwrap().pop();
    let (verdict, reason) = judged(&some, ": fast");
    assert_eq!(verdict, Verdict::Open);
    assert!(reason.ends_with("round 2 failed: its report lacks the figure"), "{reason}");
    let mut some = rounds();
    let open_loop = "/runs/0/report/runs/0/open_loop";
    for round in &mut some.rounds {
        round.reports.get_mut("rate").unwrap().pointer_mut(open_loop).unwrap()["kept_up"] = json!(false);
    }
    let (verdict, reason) = judged(&some, "p99 at a fixed rate");
    assert_eq!(verdict, Verdict::Failed);
    assert!(reason.contains("failed: plain did not keep up with the rate"), "{reason}");
    let mut some = rounds();
    let rate = "/runs/1/report/runs/0/settled_ops_per_second";
    *some.rounds[0].reports.get_mut("full").unwrap().pointer_mut(rate).unwrap() = json!(0);
    let stalled = "a round's figure is not above zero, which no ratio may be";
    assert_eq!(judged(&some, "on a full device, page : plain"), (Verdict::Open, stalled.to_owned()));
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
    assert_eq!(claim("TPC-C").reason.as_deref(), Some("round 2 failed: tpcc: no root"));
    let json: Value = serde_json::to_value(&proof).unwrap();
    assert_eq!((&json["benchmark"], &json["git"][0]), (&"proof".into(), &"v2".into()));

    scratch.write("round-10/mount.json", "{");
    let error = format!("{:#}", judge(&scratch.0).unwrap_err());
    assert!(error.contains("round-10/mount.json"), "{error}");
}

/// Files of `./evaluate`, which note beside a report what it is.
#[test]
fn steps_of_an_evaluation_are_read() {
    let scratch = Scratch::new("steps");
    scratch.write("settings", "quick\n");
    let step = |name: &str, status: &str, more: Value| {
        let mut step = json!({"evaluation": 1, "step": name, "status": status, "command": "bench/x FILE"});
        step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        step.to_string()
    };
    scratch
        .write("round-1/mount.json", &step("mount", "done", json!({"result": {"value": 1.5, "git": "v3"}})));
    scratch.write("round-1/volume.json", &step("volume", "not run", json!({"reason": "needs root"})));
    scratch.write("round-1/tpcc.json", &step("tpcc", "failed", json!({"reason": "no space left"})));
    let proof = judge(&scratch.0).unwrap();
    let claim = |name: &str| proof.claims.iter().find(|claim| claim.name.contains(name)).unwrap();
    assert_eq!(claim("open after a crash").figures[0].estimate.as_ref().unwrap().values, [1.5]);
    assert_eq!(claim("on a volume").reason.as_deref(), Some("volume: needs root"));
    assert_eq!(claim("TPC-C").reason.as_deref(), Some("round 1 failed: tpcc: no space left"));
    assert_eq!((claim("on a volume").verdict, claim("TPC-C").verdict), (Verdict::NotRun, Verdict::Failed));
    assert_eq!((&proof.commands["mount"][..], &proof.git[..]), ("bench/x FILE", &["v3".to_owned()][..]));

    let refused = |text: &str, expected: &str| {
        scratch.write("round-1/mount.json", text);
        let error = format!("{:#}", judge(&scratch.0).unwrap_err());
        assert!(error.contains("round-1/mount.json") && error.contains(expected), "{error}");
    };
    refused(&step("tpcc", "done", json!({"result": {}})), "it is of the step \"tpcc\"");
    refused(&step("mount", "done", json!({"result": 5})), "neither done with a result");
    refused(&step("mount", "done", json!({"evaluation": 2, "result": {}})), "its format is 2");
    refused(&step("mount", "lost", json!({})), "neither done with a result");
    refused("[1]", "not a report");
    refused(&"[".repeat(100_000), "recursion limit");
    refused("{\"value\": 1e999}", "number out of range");
}
