//! The files that `./evaluate` keeps.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, bail};
use lacuna_bench::{
    Estimate,
    proof::{self, LACKS, Proof, RUNS, failed_rounds},
};
use serde_json::Value;

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It has a result.
    Done,
    /// It could not run here.
    NotRun,
    /// It began and failed.
    Failed,
}

/// A step in a round.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name, one of [`RUNS`].
    pub name: &'static str,
    /// From 1.
    pub round: u64,
    /// What became of it.
    pub status: Status,
    /// All that the file says.
    pub json: Value,
}

impl Step {
    /// Why it has no result.
    pub(crate) fn reason(&self) -> &str {
        self.json["reason"].as_str().unwrap_or("no reason is given")
    }
}

/// A figure over rounds.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// Of the rounds that have it.
    pub(crate) estimate: Option<Estimate>,
    /// Why others, or all, have none, where something failed.
    pub(crate) why: Vec<String>,
}

/// All that was measured, and the verdicts on it.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// How much was run.
    pub settings: String,
    /// In the order of rounds, in them that of [`RUNS`].
    pub steps: Vec<Step>,
    /// The verdicts.
    pub proof: Proof,
}

impl Evaluation {
    /// Reads a directory of `./evaluate`.
    ///
    /// # Errors
    /// When it cannot be read or holds no results, and when a file in it is not what `./evaluate` writes; the error
    /// names it.
    pub fn read(directory: &Path) -> Result<Evaluation> {
        // Judging reads and verifies each file before anything of it is used here.
        let proof = proof::judge(directory)?;
        let mut rounds = Vec::new();
        for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
            let name = entry.with_context(|| directory.display().to_string())?.file_name();
            rounds.extend(name.to_str().and_then(|name| name.strip_prefix("round-")?.parse::<u64>().ok()));
        }
        rounds.sort_unstable();
        let mut steps = Vec::new();
        for round in rounds {
            for name in RUNS {
                let path = directory.join(format!("round-{round}/{name}.json"));
                if path.exists() {
                    steps.push(step(&path, name, round)?);
                }
            }
        }
        if steps.is_empty() {
            bail!("{}: no results of ./evaluate", directory.display());
        }
        Ok(Evaluation { settings: proof.settings.clone(), steps, proof })
    }

    /// The results of a step, of each round that has one.
    pub(crate) fn results<'e>(&'e self, name: &'e str) -> impl Iterator<Item = &'e Value> {
        let done = move |step: &&Step| step.name == name && step.status == Status::Done;
        self.steps.iter().filter(done).map(|step| &step.json["result"])
    }

    /// A figure of a step over its rounds.
    pub(crate) fn measure(&self, name: &str, figure: impl Fn(&Value) -> Option<f64>) -> Measured {
        self.measure_or(name, figure, |_| None)
    }

    /// The same where a result without the figure may say why.
    pub(crate) fn measure_or(
        &self,
        name: &str,
        figure: impl Fn(&Value) -> Option<f64>,
        error: impl Fn(&Value) -> Option<String>,
    ) -> Measured {
        let (mut values, mut without, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        for step in self.steps.iter().filter(|step| step.name == name) {
            let result = &step.json["result"];
            match step.status {
                Status::NotRun => {}
                Status::Failed => failures.push((step.round, format!("{name}: {}", step.reason()))),
                Status::Done => match (figure(result), error(result)) {
                    (Some(value), _) => values.push(value),
                    (None, Some(error)) => failures.push((step.round, error)),
                    (None, None) => without.push((step.round, LACKS.to_owned())),
                },
            }
        }
        let is_told = !failures.is_empty();
        if is_told || !values.is_empty() {
            failures.append(&mut without);
            failures.sort();
        }
        let mut why = failed_rounds(failures);
        let is_measured = !values.is_empty();
        let estimate = Estimate::of_ratios(values);
        if is_measured && estimate.is_none() {
            why.push("a round's figure is not above zero".to_owned());
        }
        Measured { estimate, why }
    }

    /// What was found out in different ways about the machine or the versions, by how it looks.
    pub(crate) fn noted(&self, what: &str) -> BTreeMap<String, &Value> {
        let noted = self.steps.iter().map(|step| &step.json[what]).filter(|value| value.is_object());
        noted.map(|value| (value.to_string(), value)).collect()
    }

    /// Everything as one JSON document.
    pub fn json(&self) -> Result<Value> {
        let steps: Vec<&Value> = self.steps.iter().map(|step| &step.json).collect();
        let proof = serde_json::to_value(&self.proof)?;
        Ok(serde_json::json!({ "settings": self.settings, "verdicts": proof, "steps": steps }))
    }
}

fn step(path: &Path, name: &'static str, round: u64) -> Result<Step> {
    let at = || path.display().to_string();
    let text = fs::read_to_string(path).with_context(at)?;
    let json: Value = serde_json::from_str(&text).with_context(at)?;
    let status = match json["status"].as_str() {
        Some("done") => Status::Done,
        Some("not run") => Status::NotRun,
        Some("failed") => Status::Failed,
        _ => bail!("{}: not of ./evaluate, but a bare report: lacuna verdict reads these", at()),
    };
    if json["round"] != round {
        bail!("{}: it is of round {}", at(), json["round"]);
    }
    Ok(Step { name, round, status, json })
}

/// The result of one variant of the engine's tables.
pub(crate) fn variant<'v>(result: &'v Value, name: &str) -> Option<&'v Value> {
    let runs = result["runs"].as_array()?;
    runs.iter().find(|entry| entry["variant"] == name)?.pointer("/report/runs/0")
}

/// A figure of two variants, the first over the second.
pub(crate) fn ratio<'f>(
    first: &'f str,
    second: &'f str,
    pointer: &'f str,
) -> impl Fn(&Value) -> Option<f64> + 'f {
    move |result| {
        let of = |name| variant(result, name)?.pointer(pointer)?.as_f64();
        of(second).filter(|below| *below > 0.0).and_then(|below| Some(of(first)? / below))
    }
}
