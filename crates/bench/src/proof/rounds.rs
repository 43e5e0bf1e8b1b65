//! The reports of all rounds.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::ErrorKind,
    path::Path,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The format of `./evaluate`'s files that this program reads.
const FORMAT: u64 = 1;
/// Most bytes of a file that is read: reports are far below.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The runs of each round, those of `./evaluate` among them that `bench/proof` does not have.
pub const RUNS: [&str; 20] = [
    "linkbench",
    "full",
    "flash",
    "volume",
    "ablations",
    "algorithms",
    "datasets",
    "tpcc",
    "clients",
    "rate",
    "goals",
    "amplification-uniform",
    "amplification-zipf",
    "mount",
    "trim",
    "unlink",
    "peers",
    "mariadb",
    "postgres",
    "log-device",
];

/// One round.
#[derive(Default)]
pub(super) struct Round {
    pub(super) number: u64,
    /// Reports by the names of runs.
    pub(super) reports: BTreeMap<&'static str, Value>,
    /// Why runs failed that began.
    pub(super) failures: BTreeMap<&'static str, String>,
}

impl Round {
    /// The number at `pointer` in the report of a run.
    pub(super) fn number(&self, run: &str, pointer: &str) -> Option<f64> {
        self.reports.get(run)?.pointer(pointer)?.as_f64()
    }

    /// The entries of a report's array `runs`.
    pub(super) fn entries(&self, run: &str) -> &[Value] {
        let entries = self.reports.get(run).and_then(|report| report["runs"].as_array());
        entries.map_or(&[], Vec::as_slice)
    }

    /// The first of them whose `key` has this value.
    pub(super) fn entry(&self, run: &str, key: &str, value: &str) -> Option<&Value> {
        self.entries(run).iter().find(|entry| entry[key] == value)
    }
}

/// All measurements.
#[derive(Default)]
pub(super) struct Rounds {
    pub(super) settings: String,
    pub(super) rounds: Vec<Round>,
    /// The command of each run; that of its first round.
    pub(super) commands: BTreeMap<&'static str, String>,
    /// Why a run could not begin, of its last round in which it could not.
    pub(super) not_run: BTreeMap<&'static str, String>,
}

impl Rounds {
    pub(super) fn read(directory: &Path) -> Result<Rounds> {
        let named = || directory.display().to_string();
        let settings = text_of(&directory.join("settings"))?.with_context(|| {
            format!("{}: no settings, so nothing that ./evaluate or bench/proof made", directory.display())
        })?;
        let mut all = Rounds { settings, ..Rounds::default() };
        let mut numbers = BTreeSet::new();
        for entry in fs::read_dir(directory).with_context(named)? {
            let name = entry.with_context(named)?.file_name();
            numbers.extend(name.to_str().and_then(|name| name.strip_prefix("round-")?.parse::<u64>().ok()));
        }
        for number in numbers {
            all.read_round(number, &directory.join(format!("round-{number}")))?;
        }
        Ok(all)
    }

    fn read_round(&mut self, number: u64, directory: &Path) -> Result<()> {
        let mut round = Round { number, ..Round::default() };
        for run in RUNS {
            let file = |kind| directory.join(format!("{run}.{kind}"));
            if let Some(error) = text_of(&file("error"))? {
                round.failures.insert(run, error);
            }
            match report_of(&file("json"), run)? {
                Some(Kept::Report(report)) => drop(round.reports.insert(run, report)),
                Some(Kept::Step(step)) => self.keep(run, step, &mut round),
                None => {}
            }
            if let Some(command) = text_of(&file("command"))? {
                self.commands.entry(run).or_insert(command);
            }
        }
        self.rounds.push(round);
        Ok(())
    }

    /// What `./evaluate` kept of a step.
    fn keep(&mut self, run: &'static str, mut step: Value, round: &mut Round) {
        if let Some(command) = step["command"].as_str() {
            self.commands.entry(run).or_insert_with(|| command.to_owned());
        }
        match step["status"].as_str() {
            Some("done") => drop(round.reports.insert(run, step["result"].take())),
            status => {
                let reason = step["reason"].as_str().unwrap_or("no reason is given").to_owned();
                let those = if status == Some("failed") { &mut round.failures } else { &mut self.not_run };
                those.insert(run, reason);
            }
        }
    }

    /// The versions of the program in all reports. More than one, and figures of different programs are mixed.
    pub(super) fn versions(&self) -> BTreeSet<String> {
        let mut versions = BTreeSet::new();
        for report in self.rounds.iter().flat_map(|round| round.reports.values()) {
            let entries = report["runs"].as_array().into_iter().flatten();
            let found = std::iter::once(report).chain(entries.map(|entry| &entry["report"]));
            versions.extend(found.filter_map(|report| report["git"].as_str().map(str::to_owned)));
        }
        versions
    }
}

/// A file without the end of its last line; none when there is no such file.
fn text_of(path: &Path) -> Result<Option<String>> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > FILE_BYTES_MAX) {
        bail!("{}: more than {FILE_BYTES_MAX} bytes: no report", path.display());
    }
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim_end().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// A file of a run.
enum Kept {
    /// The report alone, from `bench/proof`.
    Report(Value),
    /// The report with what `./evaluate` notes beside it, its status verified.
    Step(Value),
}

fn report_of(path: &Path, run: &str) -> Result<Option<Kept>> {
    let Some(text) = text_of(path)? else { return Ok(None) };
    let report: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    if !report.is_object() {
        bail!("{}: not a report", path.display());
    }
    if report.get("evaluation").is_none() {
        return Ok(Some(Kept::Report(report)));
    }
    let at = path.display();
    if report["evaluation"] != FORMAT {
        bail!("{at}: its format is {}, and this program reads {FORMAT}", report["evaluation"]);
    }
    if report["step"] != run {
        bail!("{at}: it is of the step {}", report["step"]);
    }
    match report["status"].as_str() {
        Some("done") if report["result"].is_object() => {}
        Some("not run" | "failed") => {}
        _ => bail!("{at}: neither done with a result, nor failed, nor not run"),
    }
    Ok(Some(Kept::Step(report)))
}
