//! The promises: each a figure of one round, and its target.

use std::collections::BTreeSet;

use serde_json::Value;

use super::rounds::{Round, Rounds};
use crate::{Bound, iobench::goals::GOALS};
use Bound::{AtLeast, AtMost, Between};

/// Our own engine among its peers, with its default tables.
const OURS: &str = "lacuna/lz4";

/// The kind of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A ratio of two measured sides, a time: judged by its interval over rounds.
    Measured,
    /// A count that depends on no clock: judged by the worst.
    Counted,
}

/// A figure of a round; none if the round lacks its inputs.
type Reading = Box<dyn Fn(&Round) -> Option<f64>>;

/// A figure, and its target.
pub(super) struct Ask {
    /// Its name, where a promise has several figures.
    pub(super) what: &'static str,
    pub(super) kind: Kind,
    pub(super) bound: Bound,
    pub(super) value: Reading,
}

/// A promise: kept if one of its asks is met.
pub(super) struct Claim {
    pub(super) name: String,
    /// The figures of the papers and of today's best.
    pub(super) others: &'static str,
    /// The runs that it needs.
    pub(super) runs: &'static [&'static str],
    /// The failure, where a report lacks the figure.
    pub(super) failure: Option<String>,
    pub(super) asks: Vec<Ask>,
}

/// All of them, in the order of the design.
pub(super) fn all(rounds: &Rounds) -> Vec<Claim> {
    let fixed = [linkbench(), tpcc(), space_and_bytes(), ftl(), holes(), amplification()];
    fixed.into_iter().flatten().chain(peers(rounds)).chain(mariadb()).collect()
}

fn ask(kind: Kind, bound: Bound, value: impl Fn(&Round) -> Option<f64> + 'static) -> Ask {
    Ask { what: "", kind, bound, value: Box::new(value) }
}

/// A promise with one figure.
fn claim(
    runs: &'static [&'static str],
    name: impl Into<String>,
    others: &'static str,
    bound: Bound,
    value: impl Fn(&Round) -> Option<f64> + 'static,
) -> Claim {
    let asks = vec![ask(Kind::Measured, bound, value)];
    Claim { name: name.into(), others, runs, failure: None, asks }
}

fn over(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    below.filter(|below| *below > 0.0).and_then(|below| Some(above? / below))
}

fn at(value: &Value, pointer: &str) -> Option<f64> {
    value.pointer(pointer)?.as_f64()
}

/// The result of one variant of the engine's tables in a benchmark.
fn variant<'r>(round: &'r Round, benchmark: &str, variant: &str) -> Option<&'r Value> {
    round.entry(benchmark, "variant", variant)?.pointer("/report/runs/0")
}

/// A figure of two variants in one benchmark, the first over the second.
fn variants(
    benchmark: &'static str,
    figure: &'static str,
    [first, second]: [&'static str; 2],
) -> impl Fn(&Round) -> Option<f64> + 'static {
    move |round| {
        let of = |name| at(variant(round, benchmark, name)?, figure);
        over(of(first), of(second))
    }
}

fn linkbench() -> Vec<Claim> {
    const RUNS: &[&str] = &["linkbench"];
    let rate = |sides| variants("linkbench", "/ops_per_second", sides);
    vec![
        claim(RUNS, "LinkBench, page : plain", "0.95", AtLeast(1.05), rate(["page", "plain"])),
        claim(RUNS, "LinkBench, page : row", "stock MariaDB 1.6", AtLeast(1.8), rate(["page", "row"])),
        claim(
            RUNS,
            "LinkBench, page : row with doublewrite and one flusher",
            "1.3, 2.25, 3",
            AtLeast(2.5),
            rate(["page", "row-papers"]),
        ),
        claim(RUNS, "LinkBench, p99 of row : page, least of all operations", "", AtLeast(2.0), |round| {
            least_ratio_of_p99(variant(round, "linkbench", "row")?, variant(round, "linkbench", "page")?)
        }),
        claim(
            &["linkbench", "mariadb"],
            "LinkBench, row : plain beside InnoDB's own ratio",
            "0.59",
            Between(0.8, 1.2),
            move |round| {
                let of = |kind| mariadb_figure(round, kind, RATE);
                over(rate(["row", "plain"])(round), over(of("ext4/row"), of("ext4/plain")))
            },
        ),
    ]
}

/// The least of the operations' ratios; none if an operation was not run on both.
fn least_ratio_of_p99(above: &Value, below: &Value) -> Option<f64> {
    let p99 = |run: &Value, operation: &str| run["ops"][operation]["p99_us"].as_f64();
    let operations = above["ops"].as_object()?.keys();
    let ratios: Option<Vec<f64>> = operations.map(|name| over(p99(above, name), p99(below, name))).collect();
    ratios?.into_iter().min_by(f64::total_cmp)
}

fn tpcc() -> Vec<Claim> {
    const RUNS: &[&str] = &["tpcc"];
    let rate = |sides| variants("tpcc", "/new_orders_per_minute", sides);
    vec![
        claim(RUNS, "TPC-C style, page : row", "1.9, 5 to 7", AtLeast(2.0), rate(["page", "row"])),
        claim(RUNS, "TPC-C style, page : plain", "0.88 to 0.97", AtLeast(1.0), rate(["page", "plain"])),
    ]
}

fn space_and_bytes() -> Vec<Claim> {
    const RUNS: &[&str] = &["linkbench"];
    let ratio = |figure, sides| variants("linkbench", figure, sides);
    vec![
        claim(
            RUNS,
            "room, page : row (zlib, 8K)",
            "0.81, 0.985",
            AtMost(0.75),
            ratio("/allocated_bytes", ["page", "row"]),
        ),
        claim(
            RUNS,
            "bytes written per LinkBench operation, plain with doublewrite : page",
            "4; stock MariaDB 2.6",
            AtLeast(4.0),
            ratio("/device_bytes_written_per_op", ["plain-doublewrite", "page"]),
        ),
        claim(
            RUNS,
            "load time, page : plain",
            "up to 1.1 times faster",
            AtMost(1.0),
            ratio("/load_seconds", ["page", "plain"]),
        ),
    ]
}

/// Those that the ftl's own benchmark names.
fn ftl() -> Vec<Claim> {
    let claims = GOALS.iter().enumerate().map(|(number, goal)| {
        let value = move |round: &Round| {
            let side = |side| round.number("goals", &format!("/goals/{number}/{side}/0"));
            over(side("ftl"), side("raw"))
        };
        claim(&["goals"], format!("ftl, {}", goal.name), "", goal.bound, value)
    });
    claims.collect()
}

const MOUNTED: &str = "fuse.lacuna";
const IN_PROCESS: &str = "nvmfs in-process";

fn holes() -> Vec<Claim> {
    const TRIM: &[&str] = &["trim"];
    let mut claims = Vec::new();
    for (ours, name, least) in [(IN_PROCESS, "in-process", 4.0), (MOUNTED, "mounted", 1.0)] {
        for other in ["ext4", "xfs"] {
            let what = format!("16K write and trim, nvmfs {name} : {other}, least of all trims");
            claims.push(claim(TRIM, what, "about 2", AtLeast(least), move |round| {
                least_ratio_of_trims(round, ours, other)
            }));
        }
        let what = format!("16K write and trim, bytes read per block, nvmfs {name}");
        let value = move |round: &Round| most_read_per_trim(round, ours);
        let asks = vec![ask(Kind::Counted, AtMost(0.0), value)];
        claims.push(Claim { name: what, others: "", runs: TRIM, failure: None, asks });
    }
    for (ours, name) in [(IN_PROCESS, "in-process"), (MOUNTED, "mounted")] {
        let what = format!("unlink of a file of very many holes, nvmfs {name}, seconds");
        claims.push(claim(&["unlink"], what, "XFS 62, ext4 6.5 to 27", AtMost(1.0), move |round| {
            let dropped =
                |entry: &&Value| entry["file_system"] == ours && entry["experiment"] == "holes: drop";
            round.entries("unlink").iter().find(dropped)?["seconds"].as_f64()
        }));
    }
    let mount = |round: &Round| round.number("mount", "/value");
    claims.push(claim(&["mount"], "open after a crash, seconds", "all of the log", AtMost(2.0), mount));
    claims
}

/// The runs that write and trim on one file system.
fn trims<'r>(round: &'r Round, file_system: &str) -> impl Iterator<Item = &'r Value> {
    let is_one = move |entry: &&Value| entry["file_system"] == file_system && entry["trim_bytes"] != 0;
    round.entries("trim").iter().filter(is_one)
}

fn least_ratio_of_trims(round: &Round, ours: &str, other: &str) -> Option<f64> {
    let ratios: Option<Vec<f64>> = trims(round, ours)
        .map(|our| {
            let is_same = |entry: &&Value| {
                ["experiment", "trim_bytes", "data"].iter().all(|key| entry[key] == our[key])
            };
            let rate = |entry: &Value| entry["operations_per_second"].as_f64();
            over(rate(our), trims(round, other).find(is_same).and_then(rate))
        })
        .collect();
    ratios?.into_iter().min_by(f64::total_cmp)
}

fn most_read_per_trim(round: &Round, ours: &str) -> Option<f64> {
    let read = |entry: &Value| over(at(entry, "/device_read_bytes"), at(entry, "/operations"));
    let all: Option<Vec<f64>> = trims(round, ours).map(read).collect();
    all?.into_iter().max_by(f64::total_cmp)
}

fn amplification() -> Vec<Claim> {
    let of = |run: &'static str| move |round: &Round| round.number(run, "/value");
    let counted = |runs, name: &str, others, most, run| Claim {
        name: format!("ftl, bytes written per byte, 80% live, {name}"),
        others,
        runs,
        failure: None,
        asks: vec![ask(Kind::Counted, AtMost(most), of(run))],
    };
    vec![
        counted(&["amplification-uniform"], "uniform", "greedy 2.7", 2.85, "amplification-uniform"),
        counted(&["amplification-zipf"], "Zipf 0.99", "oracle 1.45", 1.65, "amplification-zipf"),
    ]
}

/// One promise for each peer: it takes more space than we do, or we are 1.5 times as fast. So no peer is better in
/// both, and a peer that takes no more space is clearly slower.
fn peers(rounds: &Rounds) -> Vec<Claim> {
    const RUNS: &[&str] = &["peers"];
    let entries = || rounds.rounds.iter().flat_map(|round| round.entries("peers"));
    let failure = |name: &str| {
        let failed = entries().find(|entry| entry["contestant"] == name && entry["error"].is_string());
        failed.and_then(|entry| Some(format!("{name}: {}", entry["error"].as_str()?)))
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
        runs: RUNS,
        failure: failure(peer).or_else(|| failure(OURS)),
        asks: vec![
            Ask { what: "speed", ..ask(Kind::Measured, AtLeast(1.5), ratio(peer, "/run/ops_per_second")) },
            Ask { what: "room", ..ask(Kind::Measured, AtMost(1.0), ratio(peer, "/run/allocated_bytes")) },
        ],
    };
    names.into_iter().map(against).collect()
}

const RATE: &str = "/linkbench/runs/0/ops_per_second";

fn mariadb_figure(round: &Round, kind: &str, pointer: &str) -> Option<f64> {
    at(round.entry("mariadb", "file_system", kind)?, pointer)
}

fn mariadb() -> Vec<Claim> {
    const RUNS: &[&str] = &["mariadb"];
    let ratio = |figure: &'static str| {
        move |round: &Round| {
            over(mariadb_figure(round, "nvmfs", figure), mariadb_figure(round, "ext4", figure))
        }
    };
    let (before, after) = (ratio("/tables_bytes"), ratio("/shrink/tables_bytes"));
    let shrunk = move |round: &Round| over(after(round), before(round));
    vec![
        claim(RUNS, "MariaDB page-compressed, requests/s, nvmfs : ext4", "", AtLeast(1.0), ratio(RATE)),
        claim(
            RUNS,
            "MariaDB page-compressed, bytes written per request, nvmfs : ext4",
            "",
            AtMost(0.4),
            ratio("/linkbench/runs/0/device_bytes_written_per_op"),
        ),
        claim(RUNS, "MariaDB page-compressed, room, nvmfs : ext4", "", AtMost(0.85), before),
        claim(
            RUNS,
            "the same after updates that shrink pages, over that before them",
            "",
            AtMost(1.0),
            shrunk,
        ),
    ]
}
