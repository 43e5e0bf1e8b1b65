//! The engine's tables beside each other.

use serde_json::Value;

use super::{Claim, at, claim, others, over};
use crate::{
    Bound::{AtLeast, AtMost, Between},
    proof::rounds::Round,
};

const RATE: &str = "/ops_per_second";
const BYTES: &str = "/device_bytes_written_per_op";

pub(super) fn claims() -> Vec<Claim> {
    [linkbench(), space_and_bytes(), regimes(), switches(), tpcc()].into_iter().flatten().collect()
}

/// The result of one variant of the engine's tables in a run.
fn variant<'r>(round: &'r Round, run: &str, variant: &str) -> Option<&'r Value> {
    round.entry(run, "variant", variant)?.pointer("/report/runs/0")
}

/// A figure of two variants in one run, the first over the second.
fn ratio(
    run: &'static str,
    figure: &'static str,
    first: &'static str,
    second: &'static str,
) -> impl Fn(&Round) -> Option<f64> + 'static {
    move |round| {
        let of = |name| at(variant(round, run, name)?, figure);
        over(of(first), of(second))
    }
}

fn linkbench() -> Vec<Claim> {
    const RUNS: &[&str] = &["linkbench"];
    let rate = |first, second| ratio("linkbench", RATE, first, second);
    vec![
        claim(RUNS, "LinkBench, page : plain", AtLeast(1.05), rate("page", "plain"))
            .printed("0.95, 0.94", "I fig. 7; N fig. 6"),
        claim(RUNS, "LinkBench, page : row", AtLeast(1.8), rate("page", "row"))
            .printed("stock MariaDB 1.6", ""),
        claim(
            RUNS,
            "LinkBench, page : row with doublewrite and one flusher",
            AtLeast(2.5),
            rate("page", "row-papers"),
        )
        .printed("2.25, 1.3, 3", "I fig. 7; N fig. 6; O"),
        claim(RUNS, "LinkBench, zlib on both sides, page : row", AtLeast(1.0), rate("page-zlib", "row"))
            .printed("2.25", "I fig. 7"),
        claim(RUNS, "LinkBench, p99 of row : page, least of all operations", AtLeast(2.0), |round| {
            least_ratio_of_p99(variant(round, "linkbench", "row")?, variant(round, "linkbench", "page")?)
        })
        .printed("2.5 to 5.5", "I fig. 9"),
        claim(
            &["linkbench", "mariadb"],
            "LinkBench, row : plain beside InnoDB's own ratio",
            Between(0.8, 1.2),
            move |round| {
                let of = |kind| others::mariadb_figure(round, kind, others::MARIADB_RATE);
                over(rate("row", "plain")(round), over(of("ext4/row"), of("ext4/plain")))
            },
        )
        .printed("0.59", ""),
    ]
}

/// The least of the operations' ratios; none if an operation was not run on both.
fn least_ratio_of_p99(above: &Value, below: &Value) -> Option<f64> {
    let p99 = |run: &Value, operation: &str| run["ops"][operation]["p99_us"].as_f64();
    let operations = above["ops"].as_object()?.keys();
    let ratios: Option<Vec<f64>> = operations.map(|name| over(p99(above, name), p99(below, name))).collect();
    ratios?.into_iter().min_by(f64::total_cmp)
}

fn space_and_bytes() -> Vec<Claim> {
    const RUNS: &[&str] = &["linkbench"];
    vec![
        claim(
            RUNS,
            "room, page : row (zlib, 8K)",
            AtMost(0.75),
            ratio("linkbench", "/allocated_bytes", "page", "row"),
        )
        .printed("0.81, 0.77 to 0.97, 1.015", "I fig. 12; N fig. 5; O"),
        claim(
            RUNS,
            "room, zlib on both sides, page : row",
            AtMost(0.81),
            ratio("linkbench", "/allocated_bytes", "page-zlib", "row"),
        )
        .printed("0.81", "I fig. 12"),
        claim(
            RUNS,
            "bytes written per LinkBench operation, plain with doublewrite : page",
            AtLeast(4.0),
            ratio("linkbench", BYTES, "plain-doublewrite", "page"),
        )
        .printed("up to 4; stock MariaDB 2.6", "I; N; S"),
        claim(
            RUNS,
            "load time, page : plain",
            AtMost(1.0),
            ratio("linkbench", "/load_seconds", "page", "plain"),
        )
        .printed("less than 1", "N fig. 4; O"),
        packed("text", "nouns"),
        packed("numbers", "stars"),
    ]
}

/// Packing is a guess for each page; over a set of data it must not lose.
fn packed(data: &str, set: &'static str) -> Claim {
    let room = move |round: &Round, kind: &str| {
        let run = variant(round, "datasets", &format!("{set}/{kind}"))?;
        at(run, "/overwrite/allocated_bytes")
    };
    claim(
        &["datasets"],
        format!("room of {data} that no generator made, packed : compressed alone"),
        AtMost(1.0),
        move |round| over(room(round, "page"), room(round, "page-no-packing")),
    )
    .counted()
}

/// The same where the device is what is short: nearly full, or slow.
fn regimes() -> Vec<Claim> {
    const FULL: &[&str] = &["full"];
    const VOLUME: &[&str] = &["volume"];
    // What was put off counts. Reports before 2026-11-29 do not tell it.
    let rate = |run: &Value| at(run, "/settled_ops_per_second").or_else(|| at(run, RATE));
    let settled = |step, first, second| {
        move |round: &Round| {
            let of = |name| variant(round, step, name).and_then(rate);
            over(of(first), of(second))
        }
    };
    let flash = |name| move |round: &Round| at(round.entry("flash", "variant", name)?, "/flash_bytes_per_op");
    vec![
        claim(
            FULL,
            "LinkBench on a full device, page : plain",
            AtLeast(1.1),
            settled("full", "page", "plain"),
        ),
        claim(
            FULL,
            "bytes written per LinkBench operation on a full device, plain with doublewrite : page",
            AtLeast(4.0),
            ratio("full", BYTES, "plain-doublewrite", "page"),
        )
        .printed("up to 4", "I; N; S"),
        claim(
            &["flash"],
            "flash per LinkBench operation on a nearly full SSD, plain with doublewrite on XFS : page on nvmfs",
            AtLeast(4.0),
            move |round| over(flash("xfs/plain-doublewrite")(round), flash("page")(round)),
        )
        .counted()
        .printed("about 4", "N"),
        claim(
            VOLUME,
            "LinkBench on a volume of 3,000 IOPS and 125 MB/s, page with chunk cache : plain, equal memory",
            AtLeast(1.3),
            settled("volume", "page-cached", "plain"),
        ),
    ]
}

/// Mechanisms alone.
fn switches() -> Vec<Claim> {
    const RUNS: &[&str] = &["ablations"];
    let rate = |first, second| ratio("ablations", RATE, first, second);
    let rate_99 = |name| {
        move |round: &Round| {
            let run = variant(round, "rate", name).filter(|_| fell_behind(round, name).is_none())?;
            at(run, "/open_loop/latency/p99_us")
        }
    };
    vec![
        claim(
            RUNS,
            "atomic writes : doublewrite, plain tables",
            AtLeast(1.0),
            rate("plain", "plain-doublewrite"),
        )
        .printed("1.13", "N fig. 3"),
        claim(RUNS, "atomic writes : doublewrite, row tables", AtLeast(1.0), rate("row", "row-doublewrite"))
            .printed("1.04", "N fig. 3"),
        claim(
            RUNS,
            "atomic writes : doublewrite, page tables",
            AtLeast(1.0),
            rate("page", "page-doublewrite"),
        )
        .printed("1.03", "N fig. 3"),
        Claim {
            failure: Box::new(|round| {
                fell_behind(round, "plain").or_else(|| fell_behind(round, "plain-doublewrite"))
            }),
            ..claim(
                &["rate"],
                "p99 at a fixed rate, atomic writes : doublewrite",
                AtMost(1.0),
                move |round| over(rate_99("plain")(round), rate_99("plain-doublewrite")(round)),
            )
            .printed("lower, steadier", "S")
        },
    ]
}

/// Whether a run could not keep up with its rate: requests that were not begun have no latency, and are the latest ones.
fn fell_behind(round: &Round, name: &str) -> Option<String> {
    let kept_up = variant(round, "rate", name)?.pointer("/open_loop/kept_up")?.as_bool()?;
    (!kept_up).then(|| format!("{name} did not keep up with the rate, so its latencies lack the longest"))
}

fn tpcc() -> Vec<Claim> {
    const RUNS: &[&str] = &["tpcc"];
    let rate = |first, second| ratio("tpcc", "/new_orders_per_minute", first, second);
    vec![
        claim(RUNS, "TPC-C style, page : row", AtLeast(2.0), rate("page", "row"))
            .printed("1.86, 5 to 7, 5", "I fig. 11; N fig. 9, 10; S"),
        claim(RUNS, "TPC-C style, page : plain", AtLeast(1.0), rate("page", "plain"))
            .printed("0.88, 0.97", "I fig. 11; N fig. 9"),
    ]
}
