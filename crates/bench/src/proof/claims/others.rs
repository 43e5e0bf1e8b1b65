//! Other engines, and databases on a mount.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Ask, Claim, Kind, ask, at, claim, over};
use crate::{
    Bound::{AtLeast, AtMost},
    proof::rounds::{Round, Rounds},
};

/// Our own engine among its peers, with its default tables.
const OURS: &str = "lacuna/lz4";

pub(super) const MARIADB_RATE: &str = "/linkbench/runs/0/ops_per_second";

pub(super) fn claims(rounds: &Rounds) -> Vec<Claim> {
    [peers(rounds), mariadb(), postgres(), log_device()].into_iter().flatten().collect()
}

/// One promise for each peer: it takes more space than we do, or we are 1.5 times as fast. So no peer is better in
/// both, and a peer that takes no more space is clearly slower.
fn peers(rounds: &Rounds) -> Vec<Claim> {
    const RUNS: &[&str] = &["peers"];
    let entries = || rounds.rounds.iter().flat_map(|round| round.entries("peers"));
    let failure = |round: &Round, name: &str| {
        let error = round.entry("peers", "contestant", name)?["error"].as_str()?;
        Some(format!("{name}: {error}"))
    };
    let names: BTreeSet<&str> = entries().filter_map(|entry| entry["contestant"].as_str()).collect();
    let mut names: Vec<&str> = names.into_iter().filter(|name| !name.starts_with("lacuna")).collect();
    if names.is_empty() {
        names.push("every peer");
    }
    let ratio = |peer: &str, figure: &'static str| {
        let peer = peer.to_owned();
        move |round: &Round| {
            let of = |name: &str| at(round.entry("peers", "contestant", name)?, figure);
            over(of(OURS), of(&peer))
        }
    };
    let against = |peer: &str| Claim {
        name: format!("LinkBench, engine ({OURS}) : {peer}"),
        others: "",
        source: "",
        runs: RUNS,
        failure: {
            let peer = peer.to_owned();
            Box::new(move |round| failure(round, &peer).or_else(|| failure(round, OURS)))
        },
        asks: vec![
            Ask { what: "speed", ..ask(Kind::Measured, AtLeast(1.5), ratio(peer, "/run/ops_per_second")) },
            Ask { what: "room", ..ask(Kind::Measured, AtMost(1.0), ratio(peer, "/run/allocated_bytes")) },
        ],
    };
    names.into_iter().map(against).collect()
}

pub(super) fn mariadb_figure(round: &Round, kind: &str, pointer: &str) -> Option<f64> {
    at(round.entry("mariadb", "file_system", kind)?, pointer)
}

/// That of ext4 and XFS on which a rate is greater.
fn faster<'r>(entries: impl Iterator<Item = &'r Value>, rate: &str) -> Option<&'r Value> {
    let others = entries.filter(|entry| entry["file_system"] == "ext4" || entry["file_system"] == "xfs");
    let rated = others.filter_map(|entry| Some((entry, at(entry, rate)?)));
    rated.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(entry, _)| entry)
}

fn mariadb() -> Vec<Claim> {
    const RUNS: &[&str] = &["mariadb"];
    let ratio = |figure: &'static str| {
        move |round: &Round| {
            let other = faster(round.entries("mariadb").iter(), MARIADB_RATE)?;
            over(mariadb_figure(round, "nvmfs", figure), at(other, figure))
        }
    };
    let (before, after) = (ratio("/tables_bytes"), ratio("/shrink/tables_bytes"));
    let shrunk = move |round: &Round| over(after(round), before(round));
    let named = |what: &str| format!("MariaDB page-compressed, {what}, nvmfs : the faster of ext4 and XFS");
    vec![
        claim(RUNS, named("requests/s"), AtLeast(1.05), ratio(MARIADB_RATE)),
        claim(
            RUNS,
            named("bytes written per request"),
            AtMost(0.3),
            ratio("/linkbench/runs/0/device_bytes_written_per_op"),
        ),
        claim(RUNS, named("room"), AtMost(0.8), before),
        claim(RUNS, "the same after updates that shrink pages, over that before them", AtMost(1.0), shrunk),
    ]
}

fn postgres() -> Vec<Claim> {
    const RUNS: &[&str] = &["postgres"];
    const RATE: &str = "/transactions_per_second";
    let ratio = |figure: fn(&Value) -> Option<f64>| {
        move |round: &Round| {
            let frequent = |entry: &&Value| entry["load"] == "update" && entry["checkpoints"] == "frequent";
            let entries = || round.entries("postgres").iter().filter(frequent);
            let ours = entries().find(|entry| entry["file_system"] == "nvmfs-lz4")?;
            over(figure(ours), figure(faster(entries(), RATE)?))
        }
    };
    let named = |what: &str| format!("PostgreSQL, updates, {what}, nvmfs-lz4 : the faster of ext4 and XFS");
    vec![
        claim(RUNS, named("transactions/s"), AtLeast(1.3), ratio(|run| at(run, RATE)))
            .printed("1.1 to 2.8 for full_page_writes alone", ""),
        claim(RUNS, named("room"), AtMost(0.45), ratio(|run| at(run, "/data_bytes"))),
        claim(
            RUNS,
            named("bytes written per transaction"),
            AtMost(0.35),
            ratio(|run| over(at(run, "/device_bytes_written"), at(run, "/transactions"))),
        ),
    ]
}

fn log_device() -> Vec<Claim> {
    let ratio = |what: &'static str, figure: &'static str| {
        move |round: &Round| {
            let of = |kind: &str| {
                let results = round.reports.get("log-device")?["results"].as_array()?;
                results.iter().find(|result| result["kind"] == kind && result["what"] == what)?[figure]
                    .as_f64()
            };
            over(of("logged"), of("alone"))
        }
    };
    let loads = [
        ("MariaDB's inserts", "MariaDB, 1 clients, rows/s"),
        ("LinkBench, inserts", "LinkBench, inserts of 1 clients"),
    ];
    let claims = loads.into_iter().flat_map(|(name, what)| {
        let named = |figure: &str| format!("{name}{figure}, log device in memory : none");
        [
            claim(&["log-device"], named(""), AtLeast(1.8), ratio(what, "rate")).printed("1.8 to 2", "S"),
            claim(&["log-device"], named(", p99"), AtMost(0.5), ratio(what, "p99_us"))
                .printed("0.5 of a latency", "S"),
        ]
    });
    claims.collect()
}
