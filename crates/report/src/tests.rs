use std::{fs, path::Path};

use lacuna_bench::Verdict;
use serde_json::{Value, json};

use crate::{
    Evaluation, Status, csv, html as page,
    html::{digits, escape},
    markdown,
};

/// A file of `./evaluate`.
fn step(name: &str, round: u64, status: &str, more: &Value) -> Value {
    let mut step = json!({
        "evaluation": 1, "step": name, "round": round, "mode": "quick", "status": status,
        "command": format!("bench/{name} --json FILE"), "date": "2026-11-26T12:00:00+00:00", "seconds": 12,
        "machine": {"processor": "AMD EPYC", "cores": 2, "disk": {"model": "fast", "file_system": "ext4"}},
        "versions": {"lacuna": "lacuna 0.1.0"},
    });
    step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    step
}

fn write(directory: &Path, round: u64, name: &str, step: &Value) {
    let directory = directory.join(format!("round-{round}"));
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join(format!("{name}.json")), step.to_string()).unwrap();
}

fn table(variant: &str, rate: f64, live: f64) -> Value {
    let windows = [(1.0, 100.0, 5000.0, 900.0), (1.0, 110.0, 4400.0, 800.0)].map(|(seconds, requests, bytes, p99)| {
        json!({"seconds": seconds, "requests": requests, "device_bytes_written": bytes, "p99_us": p99})
    });
    json!({"variant": variant, "report": {"git": "v1", "runs": [{
        "ops_per_second": rate, "allocated_bytes": live, "device_bytes_written_per_op": live / 10.0,
        "load_seconds": 1.0, "ops": {"get_node": {"p99_us": 1e6 / rate, "mean_us": 1e5 / rate}},
        "new_orders_per_minute": rate, "over_time": {"window_seconds": 1.0, "windows": windows},
    }]}})
}

/// Three rounds, in which page tables are twice as fast as row tables, and as fast as plain ones by 0.99.
fn small() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("settings"), "quick\n").unwrap();
    for (round, noise) in [(1, 1.0), (2, 1.001), (3, 0.999)] {
        let runs =
            [table("plain", 100.0, 100.0), table("page", 99.0 * noise, 30.0), table("row", 49.0, 60.0)];
        let result = json!({"result": {"runs": runs}});
        write(directory.path(), round, "linkbench", &step("linkbench", round, "done", &result));
        let clients =
            [table("page@4", 10.0, 1.0), table("page@32", 40.0 * noise, 1.0), table("plain@4", 11.0, 1.0)];
        let result = json!({"result": {"runs": clients}});
        write(directory.path(), round, "clients", &step("clients", round, "done", &result));
        let reason = json!({"reason": "no control group limits devices here"});
        write(directory.path(), round, "volume", &step("volume", round, "not run", &reason));
        let reason = json!({"reason": "no space left (exit code 1)"});
        write(directory.path(), round, "full", &step("full", round, "failed", &reason));
    }
    directory
}

#[test]
fn claims_have_their_verdicts() {
    let directory = small();
    let evaluation = Evaluation::read(directory.path()).unwrap();
    let verdict = |name: &str| {
        let claims = &evaluation.proof.claims;
        claims.iter().find(|claim| claim.name == name).unwrap_or_else(|| panic!("{name}")).verdict
    };
    assert_eq!(verdict("LinkBench, page : row"), Verdict::Met);
    assert_eq!(verdict("LinkBench, page : plain"), Verdict::Missed);
    assert_eq!(verdict("room, page : row (zlib, 8K)"), Verdict::Met);
    assert_eq!(
        verdict(
            "LinkBench on a volume of 3,000 IOPS and 125 MB/s, page with chunk cache : plain, equal memory"
        ),
        Verdict::NotRun
    );
    assert_eq!(verdict("TPC-C style, page : row"), Verdict::NotRun);
    assert_eq!(evaluation.steps.iter().filter(|step| step.status == Status::Done).count(), 6);

    let html = page(&evaluation);
    let row = |name: &str| {
        let start =
            html.find(&format!("<td data-label=\"claim\">{name}</td>")).unwrap_or_else(|| panic!("{name}"));
        &html[start..start + html[start..].find("</tr>").unwrap()]
    };
    let plain = row("LinkBench, page : plain");
    for expected in [
        "0.95, 0.94 (I fig. 7; N fig. 6)",
        "&gt;= 1.05",
        "0.990 (0.988 to 0.992)",
        ">missed<",
        "<summary>linkbench</summary><code>bench/linkbench --json FILE</code>",
    ] {
        assert!(plain.contains(expected), "{expected}: {plain}");
    }
    let volume =
        row("LinkBench on a volume of 3,000 IOPS and 125 MB/s, page with chunk cache : plain, equal memory");
    assert!(
        volume.contains(">not run<") && volume.contains("volume: no control group limits devices here"),
        "{volume}"
    );
    let full = row("LinkBench on a full device, page : plain");
    assert!(full.contains("full: no space left (exit code 1)"), "{full}");
}

#[test]
fn figures_show_what_is_printed_and_measured_and_say_what_is_not() {
    let directory = small();
    let html = page(&Evaluation::read(directory.path()).unwrap());
    let figure = |title: &str| {
        let start = html.find(&format!("<h3>{title}</h3>")).unwrap_or_else(|| panic!("{title}"));
        &html[start..start + html[start..].find("</figure>").unwrap()]
    };
    let rate = figure("LinkBench, requests per second");
    assert!(rate.contains("<svg") && rate.contains("role=\"img\"") && rate.contains("<desc"), "{rate}");
    assert!(
        rate.contains("page : row, N; lz4, equal terms: printed 1.3, ours 2.02 (2.02 to 2.02)"),
        "{rate}"
    );
    // The run as in the papers is not among the variants.
    assert!(rate.contains("page : row, O; lz4, as the papers ran it: printed 3, ours not run"), "{rate}");
    let time = figure("Written to the device over time, KB per request");
    assert!(time.contains("<polyline") && time.contains("page: from 0.050 to 0.040"), "{time}");
    assert!(figure("TPC-C style by number of clients").contains("page: from 10.0 to 40.0"));
    let missing = figure("99th percentile over time at a fixed rate, ms");
    assert!(
        !missing.contains("<svg") && missing.contains("Not measured here: rate was not asked for"),
        "{missing}"
    );
    let short = figure("LinkBench where the device is short, page : plain");
    let failed = "rounds 1, 2, 3 failed: full: no space left (exit code 1)";
    assert!(short.contains(&format!("full device: ours {failed}")) && short.contains(failed), "{short}");
    assert!(short.contains(">failed: see the numbers<") && short.contains("volume: ours not run"), "{short}");
    let short = figure("TPC-C style, new-orders per minute");
    assert!(short.contains("Not measured here: tpcc was not asked for"), "{short}");
}

/// A peer that fails in one round of three, and one that fails in all.
#[test]
fn failures_are_told_as_such() {
    let directory = small();
    let peer = |name: &str, rate: f64| json!({"contestant": name, "run": {"ops_per_second": rate, "allocated_bytes": 1e6}});
    for round in 1..=3 {
        let failed = json!({"contestant": "rocksdb", "error": "ended by signal 9"});
        let rocksdb = if round == 2 { failed } else { peer("rocksdb", 100.0) };
        let lmdb = json!({"contestant": "lmdb", "error": "not done after 300 s"});
        let runs = json!({"result": {"runs": [peer("lacuna/lz4", 200.0), rocksdb, lmdb]}});
        write(directory.path(), round, "peers", &step("peers", round, "done", &runs));
    }
    let evaluation = Evaluation::read(directory.path()).unwrap();
    let judged = |peer: &str| {
        let claim = evaluation.proof.claims.iter().find(|claim| claim.name.ends_with(peer)).unwrap();
        (claim.verdict, claim.reason.clone().unwrap())
    };
    let open = "the other rounds would keep it; round 2 failed: rocksdb: ended by signal 9";
    assert_eq!(judged(": rocksdb"), (Verdict::Open, open.to_owned()));
    let failed = "rounds 1, 2, 3 failed: lmdb: not done after 300 s";
    assert_eq!(judged(": lmdb"), (Verdict::Failed, failed.to_owned()));
    let (html, text) = (page(&evaluation), markdown(&evaluation));
    assert!(html.contains("rocksdb: ours 100 (100 to 100); round 2 failed: ended by signal 9"), "{html}");
    assert!(html.contains("lmdb: ours rounds 1, 2, 3 failed: not done after 300 s"), "{html}");
    assert!(html.contains("<li class=\"failed\"><b>3</b>failed</li>"), "{html}");
    assert!(text.contains("| rocksdb | - | 100 (100 to 100); round 2 failed: ended by signal 9 |"), "{text}");
    for told in [&html, &text] {
        assert!(told.contains("3 of 15 steps failed"), "{told}");
    }
}

#[test]
fn the_page_loads_nothing_and_says_what_it_was_measured_on() {
    let directory = small();
    let html = page(&Evaluation::read(directory.path()).unwrap());
    for foreign in ["http:", "https:", "src=", "<script", "<link", "@import", "url("] {
        assert!(!html.contains(foreign), "{foreign}");
    }
    for said in
        ["AMD EPYC", "disk, file_system", "lacuna 0.1.0", "prefers-color-scheme:dark", "width=device-width"]
    {
        assert!(html.contains(said), "{said}");
    }
}

#[test]
fn texts_from_files_stay_texts() {
    let directory = small();
    let evil = "</td></details><script>alert(1)</script><img src=x onerror='x'>\u{0}\u{1b}";
    let mut step = step("linkbench", 1, "done", &json!({"result": {"runs": [table(evil, 1.0, 1.0)]}}));
    for place in ["command", "date", "mode"] {
        step[place] = evil.into();
    }
    step["machine"][evil] = evil.into();
    step["versions"] = json!({"lacuna": evil});
    step["result"]["runs"][0]["report"]["git"] = evil.into();
    write(directory.path(), 1, "linkbench", &step);
    fs::write(directory.path().join("settings"), evil.replace('\u{0}', "")).unwrap();
    let failed = self::step("full", 1, "failed", &json!({"reason": evil}));
    write(directory.path(), 1, "full", &failed);

    let html = page(&Evaluation::read(directory.path()).unwrap());
    for markup in ["<script", "<img", "onerror='", "\u{0}", "\u{1b}"] {
        assert!(!html.contains(markup), "{markup:?}");
    }
    assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert_eq!(escape("<a href=\"x\">'&'\u{7}\n"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;\u{fffd}\n");
}

#[test]
fn what_is_no_evaluation_is_one_line() {
    let error = |directory: &Path| {
        let line = format!("{:#}", Evaluation::read(directory).unwrap_err());
        assert!(!line.contains('\n'), "{line}");
        line
    };
    let empty = tempfile::tempdir().unwrap();
    assert!(error(empty.path()).contains("no settings"));
    assert!(error(&empty.path().join("none")).contains("no settings"));
    fs::write(empty.path().join("settings"), "quick").unwrap();
    assert!(error(empty.path()).contains("no results of ./evaluate"));

    let directory = small();
    let file = directory.path().join("round-2/linkbench.json");
    let broken = |text: &str, expected: &str| {
        fs::write(&file, text).unwrap();
        let line = error(directory.path());
        assert!(line.contains("round-2/linkbench.json") && line.contains(expected), "{line}");
    };
    broken("", "EOF");
    broken("\u{feff}{}", "expected value");
    broken(
        "{\"evaluation\": 1, \"step\": \"linkbench\", \"status\": \"done\"}",
        "neither done with a result",
    );
    broken("{\"value\": 3}", "a bare report");
    broken(&step("linkbench", 7, "done", &json!({"result": {}})).to_string(), "it is of round 7");
    broken(&"{\"a\":".repeat(10_000), "recursion limit");
    broken("\"text\"", "not a report");
    fs::write(&file, [0xff, 0xfe]).unwrap();
    assert!(error(directory.path()).contains("valid UTF-8"));
}

/// Numbers that make no chart: none of them ends in an endless or broken drawing.
#[test]
fn odd_numbers_are_drawn_or_left_out() {
    for odd in [json!(0), json!(-5), json!(1e308), json!(1e-308), json!("12"), json!(null), json!([1])] {
        let directory = small();
        for round in 1..=3 {
            let mut runs = json!([table("plain", 1.0, 1.0), table("page", 2.0, 1.0), table("row", 1.0, 1.0)]);
            for pointer in [
                "/1/report/runs/0/ops_per_second",
                "/0/report/runs/0/over_time/windows/0/seconds",
                "/0/report/runs/0/over_time/windows/1/requests",
                "/2/report/runs/0/allocated_bytes",
            ] {
                *runs.pointer_mut(pointer).unwrap() = odd.clone();
            }
            let result = json!({"result": {"runs": runs}});
            write(directory.path(), round, "linkbench", &step("linkbench", round, "done", &result));
        }
        let html = page(&Evaluation::read(directory.path()).unwrap());
        assert!(!html.contains("NaN") && !html.contains("inf"), "{odd}");
    }
}

#[test]
fn the_text_has_claims_and_figures() {
    let directory = small();
    let reason = json!({"reason": "a | b\n<script> [x](y) `z`"});
    write(directory.path(), 3, "volume", &step("volume", 3, "not run", &reason));
    let text = markdown(&Evaluation::read(directory.path()).unwrap());
    assert!(text.contains("| LinkBench, page : row | stock MariaDB 1.6 | >= 1.8 | 2.02"), "{text}");
    assert!(text.contains("| page : plain, lz4 | - | 0.300 (0.300 to 0.300) |"), "{text}");
    assert!(text.contains("Not measured: rate was not asked for."), "{text}");
    assert!(text.contains("a \\| b &lt;script> \\[x\\](y) \\`z\\`"), "{text}");
    // No line of a table has another number of cells than its head.
    let (mut head, mut tables) = (None, 0);
    for line in text.lines() {
        let cells = line.starts_with('|').then(|| line.replace("\\|", "").matches('|').count());
        tables += u32::from(head.is_none() && cells.is_some());
        assert!(cells.is_none() || head.is_none_or(|head| Some(head) == cells), "{line}");
        head = cells;
    }
    assert!(tables >= 8, "{tables} tables");
}

/// The results that are published are what their files say: `lacuna report DIR --markdown DIR/README.md`.
#[test]
fn published_results_are_those_of_their_files() {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let mut found = 0;
    for entry in fs::read_dir(&all).unwrap() {
        let directory = entry.unwrap().path();
        let evaluation = Evaluation::read(&directory).unwrap();
        for (name, expected) in [("README.md", markdown(&evaluation)), ("results.csv", csv(&evaluation))] {
            let kept = fs::read_to_string(directory.join(name)).unwrap();
            assert!(kept == expected, "{}/{name} is not what its files say", directory.display());
        }
        found += 1;
    }
    assert!(found > 0, "nothing is published in {}", all.display());
}

#[test]
fn all_numbers_are_in_the_csv() {
    let directory = small();
    let evaluation = Evaluation::read(directory.path()).unwrap();
    let text = csv(&evaluation);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("step,round,place,of,value"));
    assert!(text.contains("\nlinkbench,1,/runs/1/report/runs/0/ops_per_second,page,99.0\n"), "{text}");
    assert!(lines.all(|line| line.split(',').count() == 5));
    let result = json!({"result": {"runs": [{"variant": "=1+1,\"x\"", "a/b": 3}]}});
    write(directory.path(), 1, "linkbench", &step("linkbench", 1, "done", &result));
    let text = csv(&Evaluation::read(directory.path()).unwrap());
    assert!(text.contains("linkbench,1,/runs/0/a~1b,\"'=1+1,\"\"x\"\"\",3\n"), "{text}");
    let json = evaluation.json().unwrap();
    assert_eq!((&json["settings"], json["steps"].as_array().unwrap().len()), (&"quick".into(), 12));
}

#[test]
fn numbers_have_three_digits() {
    let table = [
        (0.0, "0.00"),
        (0.98765, "0.988"),
        (1.2345, "1.23"),
        (12.345, "12.3"),
        (1234.5, "1234"),
        (36_830.2, "36,830"),
        (1_234_567.0, "1,234,567"),
        (2.5e9, "2.50e9"),
        (-36_830.0, "-36,830"),
        (1e-5, "1.0e-5"),
        (f64::INFINITY, "-"),
    ];
    for (value, text) in table {
        assert_eq!(digits(value), text);
    }
}
