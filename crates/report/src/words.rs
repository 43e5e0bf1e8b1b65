//! What claims and steps say, in words that the page and the text share.

use std::collections::BTreeSet;

use lacuna_bench::proof::{Figure, Judged};

use crate::{
    evaluation::{Evaluation, Status},
    svg,
};

/// Each figure of a claim; one that is met is enough.
fn each(claim: &Judged, cell: impl Fn(&Figure) -> String) -> String {
    let cells = claim.figures.iter().map(|figure| match figure.what {
        "" => cell(figure),
        what => format!("{what} {}", cell(figure)),
    });
    cells.collect::<Vec<_>>().join(" or ")
}

pub(crate) fn ours(claim: &Judged) -> String {
    each(claim, |figure| figure.estimate.as_ref().map_or_else(|| "-".to_owned(), svg::measured))
}

pub(crate) fn target(claim: &Judged) -> String {
    each(claim, |figure| figure.target.clone())
}

/// What others printed, and where.
pub(crate) fn printed(claim: &Judged) -> String {
    match (claim.others, claim.source) {
        ("", "") => "-".to_owned(),
        (others, "") => others.to_owned(),
        (others, source) => format!("{others} ({source})"),
    }
}

/// Why there is nothing of a figure: what failed, or why its steps were not run.
pub(crate) fn why_nothing(evaluation: &Evaluation, steps: &[&str], failures: &BTreeSet<&str>) -> String {
    let steps: Vec<String> = steps.iter().map(|step| why_not(evaluation, step)).collect();
    let failures: Vec<String> = failures.iter().copied().map(str::to_owned).collect();
    if failures.is_empty() { steps.join("; ") } else { failures.join("; ") }
}

fn why_not(evaluation: &Evaluation, name: &str) -> String {
    let all = || evaluation.steps.iter().filter(|step| step.name == name);
    let last = all().rfind(|step| step.status == Status::Failed).or_else(|| all().next_back());
    match last.map(|step| (step.status, step.reason())) {
        None => format!("{name} was not asked for"),
        Some((Status::Done, _)) => format!("{name} has no such figure"),
        Some((Status::NotRun, reason)) => format!("{name} was not run: {reason}"),
        Some((Status::Failed, reason)) => format!("{name} failed: {reason}"),
    }
}

/// A sentence on steps that failed, if there are any.
pub(crate) fn failed_steps(evaluation: &Evaluation) -> Option<String> {
    let failed = evaluation.steps.iter().filter(|step| step.status == Status::Failed).count();
    let all = evaluation.steps.len();
    (failed > 0).then(|| format!("{failed} of {all} steps failed: the list of steps says why."))
}

/// What a value says, by names that lead to it.
pub(crate) fn leaves(value: &serde_json::Value, name: &str, tell: &mut impl FnMut(&str, &str)) {
    use serde_json::Value;
    match value {
        Value::Object(members) => {
            for (member, value) in members {
                let name = if name.is_empty() { member.clone() } else { format!("{name}, {member}") };
                leaves(value, &name, tell);
            }
        }
        Value::String(leaf) => tell(name, leaf),
        Value::Null => tell(name, "unknown"),
        other => tell(name, &other.to_string()),
    }
}
