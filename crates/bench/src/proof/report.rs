//! The verdicts, as JSON and as a table for people.

use std::{collections::BTreeMap, fmt::Write};

use serde::Serialize;

use super::{
    claims::{self, Ask, Claim, Kind},
    rounds::{Round, Rounds},
};
use crate::{
    Estimate, Verdict,
    significance::{self, Evidence},
};

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
    /// Where they are printed, by the tags of docs/SOURCES.md.
    pub source: &'static str,
    /// The runs that it was taken from.
    pub runs: &'static [&'static str],
    /// Figures; one that is met is enough.
    pub figures: Vec<Figure>,
    /// Met or missed if the figures decide that among all promises: [`crate::judge`]. Not met if a round of it failed.
    pub verdict: Verdict,
    /// Probability of such figures by chance, corrected for the number of promises; none of counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p: Option<f64>,
    /// Why it is open, failed or not run, and which rounds have no figure because of a failure.
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
    /// How many rounds have a value. Without an estimate one of these is not above zero.
    #[serde(skip)]
    rounds: usize,
    /// Whether it meets the target, by its own interval.
    pub verdict: Verdict,
}

pub(super) fn prove(rounds: &Rounds) -> Proof {
    let measured: Vec<(Claim, Vec<Figure>)> = claims::all(rounds)
        .into_iter()
        .map(|claim| {
            let figures = claim.asks.iter().map(|ask| measure(ask, &rounds.rounds)).collect();
            (claim, figures)
        })
        .collect();
    let evidence: Vec<Option<Evidence>> =
        measured.iter().map(|(claim, figures)| evidence(claim, figures)).collect();
    let tests = evidence.iter().flatten().count();
    let judged = significance::judge(&evidence);
    let claims = measured.into_iter().zip(judged);
    Proof {
        benchmark: "proof",
        settings: rounds.settings.clone(),
        git: rounds.versions().into_iter().collect(),
        rounds: rounds.rounds.len(),
        claims: claims
            .map(|((claim, figures), judged)| judge(claim, figures, judged, tests, rounds))
            .collect(),
        commands: rounds.commands.clone(),
    }
}

/// What the measured figures say; none if there are none, or counts, which need no test.
fn evidence(claim: &Claim, figures: &[Figure]) -> Option<Evidence> {
    let of = |(ask, figure): (&Ask, &Figure)| match ask.kind {
        Kind::Measured => Evidence::of(&figure.estimate.as_ref()?.values, ask.bound),
        Kind::Counted => None,
    };
    Evidence::of_alternatives(&claim.asks.iter().zip(figures).map(of).collect::<Vec<_>>())
}

fn judge(
    claim: Claim,
    figures: Vec<Figure>,
    (among_all, p): (Verdict, Option<f64>),
    tests: usize,
    rounds: &Rounds,
) -> Judged {
    let are = |verdict| figures.iter().filter(|figure| figure.verdict == verdict).count();
    let alone = match () {
        () if are(Verdict::Met) > 0 => Verdict::Met,
        () if are(Verdict::Missed) == figures.len() => Verdict::Missed,
        () => Verdict::Open,
    };
    let is_counted = claim.asks.iter().all(|ask| ask.kind == Kind::Counted);
    let failures = failures(&claim, &rounds.rounds);
    let began = |run: &&str| {
        let mut rounds = rounds.rounds.iter();
        rounds.any(|round| round.reports.contains_key(run) || round.failures.contains_key(run))
    };
    let has_failed = !failures.is_empty() && claim.runs.iter().all(began);
    let mut verdict = match p {
        _ if figures.iter().all(|figure| figure.rounds == 0) => {
            if has_failed {
                Verdict::Failed
            } else {
                Verdict::NotRun
            }
        }
        Some(_) => among_all,
        None if is_counted => alone,
        None => Verdict::Open,
    };
    let mut reasons = Vec::new();
    match (verdict, p) {
        (Verdict::Met | Verdict::Missed | Verdict::Failed, _) => {}
        (Verdict::Open, Some(_)) if alone != Verdict::Open => {
            reasons.push(format!("its interval decides alone, but not as one of {tests} promises"));
        }
        _ => reasons.push(why_open(&claim, &figures, rounds)),
    }
    if verdict == Verdict::Met && !failures.is_empty() {
        verdict = Verdict::Open;
        reasons.push("the other rounds would keep it".to_owned());
    }
    reasons.extend(failures);
    let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
    let Claim { name, others, source, runs, .. } = claim;
    Judged { name, others, source, runs, figures, verdict, p, reason }
}

/// Why rounds have no figure of the claim where something failed, or where others have it.
fn failures(claim: &Claim, rounds: &[Round]) -> Vec<String> {
    let has = |round: &Round| claim.asks.iter().all(|ask| (ask.value)(round).is_some());
    let any_has = rounds.iter().any(has);
    let reason = |round: &Round| {
        let of_run = |run: &&str| Some(format!("{run}: {}", round.failures.get(run)?));
        let is_whole = || claim.runs.iter().all(|run| round.reports.contains_key(run));
        let lacks = || (any_has && is_whole()).then(|| LACKS.to_owned());
        claim.runs.iter().find_map(of_run).or_else(|| (claim.failure)(round)).or_else(lacks)
    };
    let lacking = rounds.iter().filter(|round| !has(round));
    failed_rounds(lacking.filter_map(|round| Some((round.number, reason(round)?))))
}

/// What is said of a round whose report lacks what others have.
pub const LACKS: &str = "its report lacks the figure";

/// Rounds that failed, in words: each reason once, with its rounds.
pub fn failed_rounds(failures: impl IntoIterator<Item = (u64, String)>) -> Vec<String> {
    let mut by_reason: Vec<(String, Vec<String>)> = Vec::new();
    for (round, reason) in failures {
        match by_reason.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, rounds)) => rounds.push(round.to_string()),
            None => by_reason.push((reason, vec![round.to_string()])),
        }
    }
    let told = |(reason, rounds): (String, Vec<String>)| {
        let word = if rounds.len() == 1 { "round" } else { "rounds" };
        format!("{word} {} failed: {reason}", rounds.join(", "))
    };
    by_reason.into_iter().map(told).collect()
}

fn measure(ask: &Ask, rounds: &[Round]) -> Figure {
    let values: Vec<f64> = rounds.iter().filter_map(|round| (ask.value)(round)).collect();
    let count = values.len();
    let estimate = match ask.kind {
        Kind::Measured => Estimate::of_ratios(values),
        Kind::Counted => Estimate::of_counts(values),
    };
    let verdict = estimate.as_ref().map_or(Verdict::Open, |estimate| ask.bound.judge(estimate.interval));
    Figure { what: ask.what, target: ask.bound.to_string(), estimate, rounds: count, verdict }
}

fn why_open(claim: &Claim, figures: &[Figure], rounds: &Rounds) -> String {
    if figures.iter().any(|figure| figure.rounds > 0 && figure.estimate.is_none()) {
        return "a round's figure is not above zero, which no ratio may be".to_owned();
    }
    let measured = figures.iter().filter_map(|figure| figure.estimate.as_ref());
    match measured.map(|estimate| estimate.values.len()).max() {
        Some(1) => "one round: no interval".to_owned(),
        Some(_) => "the interval holds the target".to_owned(),
        None => {
            let missing = |run: &&&str| rounds.rounds.iter().all(|round| !round.reports.contains_key(**run));
            match claim.runs.iter().find(missing) {
                Some(run) => match rounds.not_run.get(run) {
                    Some(error) => format!("{run}: {error}"),
                    None => format!("{run}: not run"),
                },
                None => format!("no round of {} has all figures of it", claim.runs.join(" and ")),
            }
        }
    }
}

impl Proof {
    /// A table in Markdown, why promises are open, and the commands.
    pub fn markdown(&self) -> String {
        let count = |verdict| self.claims.iter().filter(|claim| claim.verdict == verdict).count();
        let mut text = format!(
            "{} met, {} missed, {} open, {} failed, {} not run, in {} rounds of {} ({}).\n\n",
            count(Verdict::Met),
            count(Verdict::Missed),
            count(Verdict::Open),
            count(Verdict::Failed),
            count(Verdict::NotRun),
            self.rounds,
            self.settings,
            self.git.join(", "),
        );
        text += "| what | others | target | median | 90% interval | rounds | p | |\n|---|---|---|---|---|---|---|---|\n";
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
                "| {} | {} | {} | {} | {} | {} | {} | **{}** |",
                claim.name,
                claim.others,
                cells(&|figure| what(figure, figure.target.clone())),
                cells(&|figure| estimate(figure, &|estimate| digits(estimate.median))),
                cells(&|figure| estimate(figure, &interval)),
                cells(&|figure| estimate(figure, &|estimate| estimate.values.len().to_string())),
                claim.p.map_or_else(|| "-".to_owned(), digits),
                claim.verdict,
            );
        }
        self.add_reasons(&mut text);
        text
    }

    fn add_reasons(&self, text: &mut String) {
        let mut open: BTreeMap<(String, &str), Vec<&str>> = BTreeMap::new();
        for claim in &self.claims {
            if let Some(reason) = &claim.reason {
                let verdict = claim.verdict.to_string().to_uppercase();
                open.entry((verdict, reason)).or_default().push(&claim.name);
            }
        }
        for (number, ((verdict, reason), names)) in open.into_iter().enumerate() {
            let _ = writeln!(
                text,
                "{}- {verdict}: {reason}: {}",
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
