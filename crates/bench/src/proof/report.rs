//! The verdicts, as JSON and as a table for people.

use std::{collections::BTreeMap, fmt::Write};

use serde::Serialize;

use super::{
    claims::{self, Ask, Claim, Kind},
    rounds::{Round, Rounds},
};
use crate::{Estimate, Verdict};

/// All promises and measurements. Its JSON form is part of the command line's contract.
#[derive(Clone, Debug, Serialize)]
pub struct Proof {
    /// `proof`.
    pub benchmark: &'static str,
    /// How much was run.
    pub settings: String,
    /// Versions of the program in the reports: of more than one the figures are mixed.
    pub git: Vec<String>,
    /// Rounds that were begun.
    pub rounds: usize,
    /// The promises.
    pub claims: Vec<Judged>,
    /// The command of each run, that of its first round.
    pub commands: BTreeMap<&'static str, String>,
}

/// A promise, judged.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// The compared figure.
    pub name: String,
    /// The figures of the papers and of today's best.
    pub others: &'static str,
    /// The runs that it was taken from.
    pub runs: &'static [&'static str],
    /// Figures; one that is met is enough.
    pub figures: Vec<Figure>,
    /// Met if one of the figures is, missed if all of them are.
    pub verdict: Verdict,
    /// Why it is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A figure, and its target.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Its name, where there are several.
    pub what: &'static str,
    /// The target, such as `>= 0.85`.
    pub target: String,
    /// The measurement, if there is one.
    pub estimate: Option<Estimate>,
    /// Whether it meets the target.
    pub verdict: Verdict,
}

pub(super) fn prove(rounds: &Rounds) -> Proof {
    Proof {
        benchmark: "proof",
        settings: rounds.settings.clone(),
        git: rounds.versions().into_iter().collect(),
        rounds: rounds.rounds.len(),
        claims: claims::all(rounds).iter().map(|claim| judge(claim, rounds)).collect(),
        commands: rounds.commands.clone(),
    }
}

fn judge(claim: &Claim, rounds: &Rounds) -> Judged {
    let figures: Vec<Figure> = claim.asks.iter().map(|ask| measure(ask, &rounds.rounds)).collect();
    let are = |verdict| figures.iter().filter(|figure| figure.verdict == verdict).count();
    let verdict = match () {
        () if are(Verdict::Met) > 0 => Verdict::Met,
        () if are(Verdict::Missed) == figures.len() => Verdict::Missed,
        () => Verdict::Open,
    };
    let reason = (verdict == Verdict::Open).then(|| why_open(claim, &figures, rounds));
    Judged { name: claim.name.clone(), others: claim.others, runs: claim.runs, figures, verdict, reason }
}

fn measure(ask: &Ask, rounds: &[Round]) -> Figure {
    let values: Vec<f64> = rounds.iter().filter_map(|round| (ask.value)(round)).collect();
    let estimate = match ask.kind {
        Kind::Measured => Estimate::of_ratios(values),
        Kind::Counted => Estimate::of_counts(values),
    };
    let verdict = estimate.as_ref().map_or(Verdict::Open, |estimate| ask.bound.judge(estimate.interval));
    Figure { what: ask.what, target: ask.bound.to_string(), estimate, verdict }
}

fn why_open(claim: &Claim, figures: &[Figure], rounds: &Rounds) -> String {
    let measured = figures.iter().filter_map(|figure| figure.estimate.as_ref());
    match measured.map(|estimate| estimate.values.len()).max() {
        Some(1) => "one round: no interval".to_owned(),
        Some(_) => "the interval holds the target".to_owned(),
        None => {
            let missing = |run: &&&str| rounds.rounds.iter().all(|round| !round.0.contains_key(**run));
            match claim.runs.iter().find(missing) {
                Some(run) => match rounds.errors.get(run) {
                    Some(error) => format!("{run}: {error}"),
                    None => format!("{run}: not run"),
                },
                None => claim.failure.clone().unwrap_or_else(|| {
                    format!("no round of {} has all figures of it", claim.runs.join(" and "))
                }),
            }
        }
    }
}

impl Proof {
    /// A table in Markdown, why promises are open, and the commands.
    pub fn markdown(&self) -> String {
        let count = |verdict| self.claims.iter().filter(|claim| claim.verdict == verdict).count();
        let mut text = format!(
            "{} met, {} missed, {} open, in {} rounds of {} ({}).\n\n",
            count(Verdict::Met),
            count(Verdict::Missed),
            count(Verdict::Open),
            self.rounds,
            self.settings,
            self.git.join(", "),
        );
        text +=
            "| what | others | target | median | 90% interval | rounds | |\n|---|---|---|---|---|---|---|\n";
        for claim in &self.claims {
            let cells = |cell: &dyn Fn(&Figure) -> String| {
                claim.figures.iter().map(cell).collect::<Vec<_>>().join(" or ")
            };
            let what = |figure: &Figure, cell: String| match figure.what {
                "" => cell,
                what => format!("{what} {cell}"),
            };
            let estimate = |figure: &Figure, cell: &dyn Fn(&Estimate) -> String| {
                figure.estimate.as_ref().map_or_else(|| "-".to_owned(), cell)
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | **{}** |",
                claim.name,
                claim.others,
                cells(&|figure| what(figure, figure.target.clone())),
                cells(&|figure| estimate(figure, &|estimate| digits(estimate.median))),
                cells(&|figure| estimate(figure, &interval)),
                cells(&|figure| estimate(figure, &|estimate| estimate.values.len().to_string())),
                claim.verdict,
            );
        }
        self.add_reasons(&mut text);
        text
    }

    fn add_reasons(&self, text: &mut String) {
        let mut open: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for claim in &self.claims {
            if let Some(reason) = &claim.reason {
                open.entry(reason).or_default().push(&claim.name);
            }
        }
        for (number, (reason, names)) in open.into_iter().enumerate() {
            let _ = writeln!(
                text,
                "{}- OPEN: {reason}: {}",
                if number == 0 { "\n" } else { "" },
                names.join("; ")
            );
        }
        if self.git.len() > 1 {
            let _ = writeln!(text, "\n**Figures of {} versions of the program are mixed.**", self.git.len());
        }
        for (number, (run, command)) in self.commands.iter().enumerate() {
            let _ = writeln!(text, "{}- {run}: `{command}`", if number == 0 { "\n" } else { "" });
        }
    }
}

fn interval(estimate: &Estimate) -> String {
    let [low, high] = estimate.interval;
    if high.is_finite() { format!("{} to {}", digits(low), digits(high)) } else { "-".to_owned() }
}

/// Three significant digits.
fn digits(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 100.0 => format!("{value:.0}"),
        magnitude if magnitude >= 10.0 => format!("{value:.1}"),
        magnitude if magnitude >= 1.0 || magnitude == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
