//! What claims and steps say, in words that the page and the text share.

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

/// Why there is nothing of a step.
pub(crate) fn why_not(evaluation: &Evaluation, name: &str) -> String {
    let last = evaluation.steps.iter().rfind(|step| step.name == name);
    let reason = last.and_then(|step| step.json["reason"].as_str());
    match last.map(|step| step.status) {
        None => format!("{name} was not asked for"),
        Some(Status::Done) => format!("{name} has no such figure"),
        Some(Status::NotRun) => format!("{name} was not run: {}", reason.unwrap_or("no reason is given")),
        Some(Status::Failed) => format!("{name} failed: {}", reason.unwrap_or("no reason is given")),
    }
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
