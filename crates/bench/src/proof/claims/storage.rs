//! The ftl and the file system.

use serde_json::Value;

use super::{Claim, at, claim, over};
use crate::{
    Bound::{AtLeast, AtMost},
    iobench::goals::GOALS,
    proof::rounds::Round,
};

const MOUNTED: &str = "fuse.lacuna";
const IN_PROCESS: &str = "nvmfs in-process";

pub(super) fn claims() -> Vec<Claim> {
    [ftl(), holes(), amplification()].into_iter().flatten().collect()
}

/// Those that the ftl's own benchmark names.
fn ftl() -> Vec<Claim> {
    let printed = [("", ""), ("about 1", "S"), ("0.97; XFS 0.36", "S"), ("1; XFS 1.38", "S")];
    let claims = GOALS.iter().zip(printed).enumerate().map(|(number, (goal, (others, source)))| {
        let value = move |round: &Round| {
            let side = |side| round.number("goals", &format!("/goals/{number}/{side}/0"));
            over(side("ftl"), side("raw"))
        };
        claim(&["goals"], format!("ftl, {}", goal.name), goal.bound, value).printed(others, source)
    });
    claims.collect()
}

fn holes() -> Vec<Claim> {
    const TRIM: &[&str] = &["trim"];
    let mut claims = Vec::new();
    for (ours, name, least) in [(IN_PROCESS, "in-process", 4.0), (MOUNTED, "mounted", 1.0)] {
        for other in ["ext4", "xfs"] {
            let what = format!("16K write and trim, nvmfs {name} : {other}, least of all trims");
            let value = move |round: &Round| least_ratio_of_trims(round, ours, other);
            claims.push(claim(TRIM, what, AtLeast(least), value).printed("about 2", "I fig. 14; S"));
        }
        let what = format!("16K write and trim, bytes read per block, nvmfs {name}");
        let value = move |round: &Round| most_read_per_trim(round, ours);
        claims.push(claim(TRIM, what, AtMost(0.0), value).counted().printed("0", "I fig. 14"));
    }
    for (ours, name) in [(IN_PROCESS, "in-process"), (MOUNTED, "mounted")] {
        let what = format!("unlink of a file of very many holes, nvmfs {name}, seconds");
        let value = move |round: &Round| {
            let dropped =
                |entry: &&Value| entry["file_system"] == ours && entry["experiment"] == "holes: drop";
            round.entries("unlink").iter().find(dropped)?["seconds"].as_f64()
        };
        claims.push(claim(&["unlink"], what, AtMost(1.0), value).printed("XFS 62, ext4 6.5 to 27", ""));
    }
    let mount = |round: &Round| round.number("mount", "/value");
    let mount = claim(&["mount"], "open after a crash, seconds", AtMost(2.0), mount);
    claims.push(mount.printed("all of the log", ""));
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
    let name = |pattern| format!("ftl, bytes written per byte, 80% live, {pattern}");
    let (uniform, zipf) = ("amplification-uniform", "amplification-zipf");
    vec![
        claim(&["amplification-uniform"], name("uniform"), AtMost(2.85), of(uniform))
            .counted()
            .printed("greedy 2.7", ""),
        claim(&["amplification-zipf"], name("Zipf 0.99"), AtMost(1.65), of(zipf))
            .counted()
            .printed("oracle 1.45", ""),
    ]
}
