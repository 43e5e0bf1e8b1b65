//! What the ftl is meant to reach beside the bare device, measured in one call: rounds in which both
//! take turns, and the ratio of each round. A goal is met when the interval in which the ratio lies with
//! a confidence of 90% clears it.

use std::{fmt::Write, sync::Arc};

use anyhow::{Context, Result, bail};
use lacuna_device::BlockDevice;
use serde::Serialize;

use super::{Config, Pattern, PatternReport, Skew, target, worker};

/// Rounds that are possible: an interval needs two, and more than ten say little more.
pub const ROUNDS: std::ops::RangeInclusive<u64> = 2..=10;

/// Quantiles 0.95 of Student's distribution, for 1 to 9 degrees of freedom.
const STUDENT: [f64; 9] = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833];

/// What one side does.
#[derive(Clone, Copy)]
struct Side {
    pattern: Pattern,
    block_bytes: u64,
    /// Threads; none for those of the command line.
    threads: Option<u32>,
}

struct Goal {
    name: &'static str,
    ftl: Side,
    raw: Side,
    /// Unit of `value`.
    unit: &'static str,
    value: fn(&PatternReport) -> f64,
    /// The ratio ftl : raw that is asked for.
    bound: Bound,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

const fn side(pattern: Pattern, block_bytes: u64, threads: Option<u32>) -> Side {
    Side { pattern, block_bytes, threads }
}

const PAGE: u64 = 16 << 10;
const APPEND: Side = side(Pattern::AppendSync, 4096, Some(1));

const GOALS: [Goal; 4] = [
    Goal {
        name: "random 16K writes : sequential bandwidth",
        ftl: side(Pattern::RandomWrite, PAGE, None),
        raw: side(Pattern::SequentialWrite, 1 << 20, None),
        unit: "MB/s",
        value: |report| report.bytes_per_second / 1e6,
        bound: Bound::AtLeast(0.85),
    },
    Goal {
        name: "random 16K reads",
        ftl: side(Pattern::RandomRead, PAGE, None),
        raw: side(Pattern::RandomRead, PAGE, None),
        unit: "1/s",
        value: |report| report.requests_per_second,
        bound: Bound::AtLeast(0.9),
    },
    Goal {
        name: "4K append + sync : overwrite + sync",
        ftl: APPEND,
        raw: APPEND,
        unit: "1/s",
        value: |report| report.requests_per_second,
        bound: Bound::AtLeast(0.95),
    },
    Goal {
        name: "the same, bytes written",
        ftl: APPEND,
        raw: APPEND,
        unit: "per byte",
        value: |report| report.write_amplification,
        bound: Bound::AtMost(1.15),
    },
];

/// How a goal was met. Its JSON form is part of the command line's contract.
#[derive(Clone, Debug, Serialize)]
pub struct GoalReport {
    /// What is compared.
    pub name: &'static str,
    /// Unit of the values.
    pub unit: &'static str,
    /// Of each round.
    pub ftl: Vec<f64>,
    /// Of each round.
    pub raw: Vec<f64>,
    /// Median of the rounds' ratios ftl : raw.
    pub ratio: f64,
    /// Ends of the interval of the ratio's geometric mean, at a confidence of 90%.
    pub interval: [f64; 2],
    /// What is asked for, such as `>= 0.85`.
    pub goal: String,
    /// Whether the whole interval is on the right side of it.
    pub is_met: bool,
}

/// Runs all goals in `rounds` rounds. Whatever the devices hold is lost. `config` gives seconds,
/// threads, seed and the live share of the last run, which is overwritten to the steady state once and has
/// no goal. All single results come back too.
///
/// # Errors
/// As [`super::run`], and for numbers of rounds outside [`ROUNDS`].
pub fn run(
    config: &Config,
    rounds: u64,
    device: &Arc<dyn BlockDevice>,
    raw: &Arc<dyn BlockDevice>,
) -> Result<(Vec<GoalReport>, Vec<PatternReport>)> {
    config.check()?;
    if !ROUNDS.contains(&rounds) {
        bail!("{rounds} rounds: {} to {} are possible", ROUNDS.start(), ROUNDS.end());
    }
    let capacity = device.geometry().capacity_bytes.min(raw.geometry().capacity_bytes);
    let with = |side: Side, round: u64| Config {
        block_bytes: side.block_bytes,
        threads: side.threads.unwrap_or(config.threads),
        skew: Skew::Uniform,
        seed: config.seed + round,
        wraps: true,
        ..config.clone()
    };
    let on_ftl = |side: Side, round| {
        let target = target::FtlTarget::format(Arc::clone(device), None)?;
        worker::run(&with(side, round), side.pattern, &target, capacity)
            .with_context(|| device.name().to_owned())
    };
    let on_raw = |side: Side, round| {
        let target = target::RawTarget::new(Arc::clone(raw));
        worker::run(&with(side, round), side.pattern, &target, capacity)
            .with_context(|| raw.name().to_owned())
    };
    let mut all = Vec::new();
    // The last two goals look at the same runs.
    let [writes, reads, appends, bytes] = &GOALS;
    let mut goals = Vec::new();
    for same in [&[writes][..], &[reads], &[appends, bytes]] {
        let mut pairs = Vec::new();
        for round in 0..rounds {
            let (ftl, raw) = (on_ftl(same[0].ftl, round)?, on_raw(same[0].raw, round)?);
            all.extend([ftl.clone(), raw.clone()]);
            pairs.push((ftl, raw));
        }
        goals.extend(same.iter().map(|goal| goal.judge(&pairs)));
    }
    all.push(on_ftl(Side { pattern: Pattern::Overwrite, ..writes.ftl }, 0)?);
    Ok((goals, all))
}

impl Goal {
    fn judge(&self, pairs: &[(PatternReport, PatternReport)]) -> GoalReport {
        let (ftl, raw): (Vec<f64>, Vec<f64>) =
            pairs.iter().map(|(ftl, raw)| ((self.value)(ftl), (self.value)(raw))).unzip();
        let mut ratios: Vec<f64> = ftl.iter().zip(&raw).map(|(ftl, raw)| ftl / raw).collect();
        ratios.sort_by(f64::total_cmp);
        let interval = interval(&ratios);
        let (goal, is_met) = match self.bound {
            Bound::AtLeast(least) => (format!(">= {least}"), interval[0] >= least),
            Bound::AtMost(most) => (format!("<= {most}"), interval[1] <= most),
        };
        GoalReport {
            name: self.name,
            unit: self.unit,
            ratio: median(&ratios),
            interval,
            goal,
            is_met,
            ftl,
            raw,
        }
    }
}

/// Of sorted numbers.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] }
}

/// Where the geometric mean of such ratios lies, at a confidence of 90%.
fn interval(ratios: &[f64]) -> [f64; 2] {
    let count = ratios.len() as f64;
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let margin = STUDENT[ratios.len() - 2] * (variance / count).sqrt();
    [(mean - margin).exp(), (mean + margin).exp()]
}

/// A table of all goals, and a line for the run without one.
pub fn table(config: &Config, goals: &[GoalReport], all: &[PatternReport]) -> String {
    let mut text = format!(
        "{:<42}{:>12}{:>12} {:<9}{:>7}{:>17}{:>9}\n",
        "medians", "ftl", "bare", "", "ratio", "90% interval", "goal"
    );
    for goal in goals {
        let middle = |values: &[f64]| {
            let mut sorted = values.to_vec();
            sorted.sort_by(f64::total_cmp);
            let value = median(&sorted);
            if value < 100.0 { format!("{value:.3}") } else { format!("{value:.0}") }
        };
        let [low, high] = goal.interval;
        let _ = writeln!(
            text,
            "{:<42}{:>12}{:>12} {:<9}{:>7.3}{:>17}{:>9}  {}",
            goal.name,
            middle(&goal.ftl),
            middle(&goal.raw),
            goal.unit,
            goal.ratio,
            format!("{low:.3} to {high:.3}"),
            goal.goal,
            if goal.is_met { "met" } else { "missed" },
        );
    }
    if let Some(live) = all.last() {
        let _ = writeln!(
            text,
            "random 16K writes at {}% live: {:.0} MB/s, {:.2} bytes written per byte",
            config.live_percent,
            live.bytes_per_second / 1e6,
            live.write_amplification,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_student() {
        let [low, high] = interval(&[1.0, 1.0, 1.0]);
        assert!((low - 1.0).abs() < 1e-9 && (high - 1.0).abs() < 1e-9);
        // Logarithms -0.1, 0, 0.1: deviation 0.1, margin 2.92 * 0.1 / sqrt(3).
        let [low, high] = interval(&[(-0.1_f64).exp(), 1.0, 0.1_f64.exp()]);
        assert!((low.ln() + 0.16859).abs() < 1e-4 && (high.ln() - 0.16859).abs() < 1e-4, "{low} {high}");
        assert_eq!((median(&[1.0, 2.0, 4.0]), median(&[1.0, 2.0])), (2.0, 1.5));
    }
}
