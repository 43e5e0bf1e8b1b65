//! LinkBench and TPC-C's transactions on a real PostgreSQL, if one is installed; otherwise the tests print that they are
//! skipped.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    process::{Child, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Scratch, lacuna,
    postgres::{Cluster, Server},
    succeeded,
};
use serde_json::Value;

/// How long a program may run, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(300);

/// Ends the program, whatever the test does.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn status(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Runs the program with arguments separated by blanks, for a limited time.
fn run(scratch: &Scratch, arguments: &str) -> Output {
    let [stdout, stderr] = ["stdout", "stderr"].map(|name| scratch.path(name));
    let mut command = lacuna(scratch);
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command.stdout(fs::File::create(&stdout).unwrap()).stderr(fs::File::create(&stderr).unwrap());
    let status = Running(command.spawn().unwrap()).status();
    Output { status, stdout: fs::read(stdout).unwrap(), stderr: fs::read(stderr).unwrap() }
}

/// Runs the program, which must succeed; its standard output.
fn succeed(scratch: &Scratch, arguments: &str) -> String {
    succeeded(arguments, run(scratch, arguments))
}

/// Runs the program and kills the server once `lines` of its acknowledgements begin with one of `kinds`; the program has
/// to notice.
fn kill_under(scratch: &Scratch, server: Server<'_>, arguments: &str, kinds: &[&str], lines: usize) {
    let log = fs::File::create(scratch.path("stderr")).unwrap();
    let mut command = lacuna(scratch);
    command.args(arguments.split_whitespace()).stdout(Stdio::null()).stderr(log);
    let mut program = Running(command.spawn().unwrap());
    let start = Instant::now();
    loop {
        let acks = fs::read_to_string(scratch.path("acks")).unwrap_or_default();
        if acks.lines().filter(|line| kinds.iter().any(|kind| line.starts_with(kind))).count() >= lines {
            break;
        }
        let ended = program.0.try_wait().unwrap();
        let said = || fs::read_to_string(scratch.path("stderr")).unwrap();
        assert!(ended.is_none(), "it ended by itself: {}", said());
        assert!(start.elapsed() < PATIENCE, "it acknowledges too little: {}", said());
        thread::sleep(Duration::from_millis(10));
    }
    server.kill();
    assert_eq!(program.status().code(), Some(1));
}

fn refused(output: &Output, word: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(word) && stderr.lines().count() <= 2, "{stderr}");
}

fn report(scratch: &Scratch) -> Value {
    serde_json::from_slice(&fs::read(scratch.path("out.json")).unwrap()).unwrap()
}

#[test]
fn the_graph_is_loaded_measured_and_survives_the_server() {
    let scratch = Scratch::new();
    scratch.distribution();
    let Some(cluster) = Cluster::new("LinkBench on PostgreSQL") else { return };
    let server = cluster.start(&[]);
    let small = format!(
        "linkbench --postgres {} --ids 2000 --requesters 4 --distribution distribution --seed 1 --warmup 0",
        cluster.address()
    );
    succeed(&scratch, &format!("{small} --seconds 1 --requests-min 200 --json out.json --ack-log acks"));
    let report = report(&scratch);
    let run_of = &report["runs"][0];
    assert_eq!(report["runs"].as_array().unwrap().len(), 1);
    assert_eq!((&run_of["tables"], &run_of["counts_match"]), (&"plain".into(), &true.into()), "{run_of}");
    assert_eq!(run_of["nodes"], 2000);
    for figure in ["requests", "device_bytes_written", "logical_bytes", "allocated_bytes"] {
        assert!(run_of[figure].as_u64() > Some(0), "{figure}: {run_of}");
    }
    assert!(run_of["cpu_seconds"].as_f64() > Some(0.0));
    assert_eq!(report["servers"][0]["block_size"], 8192);
    assert!(report["servers"][0]["wal_bytes"].is_u64());

    // The tables stay: they are not mixed with others, and hold every acknowledged commit.
    refused(&run(&scratch, &small), "holds the table linkbench.");
    let verify = format!("linkbench --postgres {} --verify-acks acks", cluster.address());
    assert!(succeed(&scratch, &verify).contains("sound"));

    // The server dies among requests, and finds all of them when it is back.
    fs::remove_file(scratch.path("acks")).unwrap();
    let again = format!("{small} --database other --seconds 600 --ack-log acks");
    kill_under(&scratch, server, &again, &["N ", "L ", "D "], 300);
    let verify = format!("{verify} --database other");
    refused(&run(&scratch, &verify), ".s.PGSQL.5432");
    let server = cluster.start(&[]);
    assert!(succeed(&scratch, &verify).contains("sound"));

    // Verification notices lost rows, and a count that is not that of its links.
    server.query(
        "other",
        "UPDATE counttable SET count = count + 1 WHERE id = (SELECT min(id) FROM counttable)",
    );
    refused(&run(&scratch, &verify), "visible links");
    server.query(
        "other",
        "UPDATE counttable SET count = count - 1 WHERE id = (SELECT min(id) FROM counttable)",
    );
    server.query(
        "other",
        "DELETE FROM linktable WHERE ctid = (SELECT min(ctid) FROM linktable WHERE version = 0)",
    );
    refused(&run(&scratch, &verify), "is lost");
}

#[test]
fn the_company_stays_consistent_and_survives_the_server() {
    let scratch = Scratch::new();
    let Some(cluster) = Cluster::new("TPC-C style on PostgreSQL") else { return };
    let server = cluster.start(&[]);
    let small = format!(
        "tpcc --postgres {} --warehouses 2 --items 300 --customers 40 --requesters 6 --seed 1 --warmup 0",
        cluster.address()
    );
    let table = succeed(
        &scratch,
        &format!("{small} --seconds 1 --requests-min 400 --written-from status --json out.json"),
    );
    assert!(table.contains("new-orders per minute"), "{table}");
    let report = report(&scratch);
    let run_of = &report["runs"][0];
    assert_eq!(
        (&run_of["consistent"], &report["config"]["algorithm"]),
        (&true.into(), &"none".into()),
        "{run_of}"
    );
    for operation in ["new_order", "payment", "order_status", "delivery", "stock_level"] {
        assert!(run_of["ops"][operation]["count"].as_u64() > Some(0), "{operation}: {run_of}");
    }
    assert!(report["config"]["device_bytes_written_from"].as_str().unwrap().contains("pg_stat_wal"));

    let again = format!("{small} --database other --rate 400 --seconds 600 --ack-log acks");
    kill_under(&scratch, server, &again, &["P ", "O ", "D "], 100);
    let server = cluster.start(&[]);
    let verify = format!("tpcc --postgres {} --database other --verify-acks acks", cluster.address());
    assert!(succeed(&scratch, &verify).contains("acknowledged changes are there (2 warehouses"));

    server.query("other", "UPDATE warehouse SET w_ytd = w_ytd + 1 WHERE w_id = 2");
    refused(&run(&scratch, &verify), "condition 3.3.2.1, warehouse 2");
    server.query("other", "UPDATE warehouse SET w_ytd = w_ytd - 1 WHERE w_id = 2");
    server.query(
        "other",
        "DELETE FROM order_line WHERE ol_w_id = 1 AND ol_d_id = 3 AND ol_o_id = 1 AND ol_number = 1",
    );
    refused(&run(&scratch, &verify), "condition 3.3.2.4");
}

/// Each way in, with the password, with another and with none.
#[test]
fn passwords_are_asked_for_and_sent_as_the_server_wants_them() {
    let scratch = Scratch::new();
    let Some(cluster) = Cluster::new("logins to PostgreSQL") else { return };
    let server = cluster.start(&[]);
    server.query("postgres", "CREATE ROLE plain LOGIN SUPERUSER PASSWORD 'p@ss w%rd'");
    server.query("postgres", "CREATE ROLE proven LOGIN SUPERUSER PASSWORD 'p@ss w%rd'");
    let old = "SET password_encryption = 'md5'; CREATE ROLE hashed LOGIN SUPERUSER PASSWORD 'p@ss w%rd'";
    server.query("postgres", old);
    server.query("postgres", "CREATE DATABASE empty");
    drop(server);
    let rules = cluster.data().join("pg_hba.conf");
    let owner = fs::metadata(&rules).unwrap();
    let lines = "local all postgres trust\nlocal all plain password\nlocal all hashed md5\nlocal all proven scram-sha-256\n";
    fs::write(&rules, lines).unwrap();
    std::os::unix::fs::chown(&rules, Some(owner.uid()), Some(owner.gid())).unwrap();
    let _server = cluster.start(&[]);
    fs::write(scratch.path("acks"), "lacuna-acks 1\n").unwrap();
    for user in ["plain", "hashed", "proven"] {
        let with = |password: &str| {
            let login = if password.is_empty() { user.to_owned() } else { format!("{user}:{password}") };
            let url = format!("postgres://{login}@/empty?host={}", cluster.address());
            run(&scratch, &format!("linkbench --verify-acks acks --postgres {url}"))
        };
        refused(&with("p%40ss%20w%25rd"), "holds no table empty.linktable");
        refused(&with("other"), &format!("password authentication failed for user \"{user}\""));
        refused(&with(""), &format!("asks for a password of user {user}"));
    }
    // By what others do not see.
    fs::write(scratch.path("password"), "p@ss w%rd\n").unwrap();
    let plain =
        format!("linkbench --verify-acks acks --postgres postgres://plain@/empty?host={}", cluster.address());
    refused(&run(&scratch, &format!("{plain} --password-file password")), "holds no table empty.linktable");
    let mut of_environment = lacuna(&scratch);
    of_environment.args(plain.split_whitespace()).env("PGPASSWORD", "p@ss w%rd");
    refused(&of_environment.output().unwrap(), "holds no table empty.linktable");
    let missing = format!("linkbench --verify-acks acks --database none --postgres {}", cluster.address());
    refused(&run(&scratch, &missing), "database \"none\" does not exist (SQLSTATE 3D000)");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let scratch = Scratch::new();
    fs::write(scratch.path("file"), "").unwrap();
    for (arguments, code, word) in [
        ("linkbench --postgres nonsense", 2, "HOST:PORT"),
        ("linkbench --postgres postgres://host/x?ssl=on", 2, "known options"),
        ("linkbench --postgres ./missing", 1, "./missing/.s.PGSQL.5432"),
        ("linkbench --postgres ./file", 1, "./file/.s.PGSQL.5432"),
        ("linkbench --postgres ./missing --store place", 2, "--store"),
        ("linkbench --postgres ./missing --mysql ./missing", 2, "--mysql"),
        ("linkbench --postgres ./missing --database a\"b", 1, "letters"),
        ("linkbench --postgres ./missing --tables page", 1, "PostgreSQL has plain tables only"),
        ("linkbench --postgres ./missing --innodb-algorithm zlib", 2, "--innodb-algorithm"),
        ("tpcc --postgres ./missing --verify", 1, "./missing"),
        ("tpcc --postgres 127.0.0.1:1 --verify", 1, "127.0.0.1:1"),
    ] {
        let output = run(&scratch, arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {stderr}");
        assert!(stderr.contains(word) && stderr.lines().count() <= 4, "{arguments}: {stderr}");
    }
}
