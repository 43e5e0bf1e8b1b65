//! What the ftl is meant to reach beside the bare device, measured in one call: rounds in which both
//! take short turns, and the ratio of each round. A goal is met when the interval in which the ratio lies with
//! a confidence of 90% clears it ([`crate::Verdict`]).

use std::{fmt::Write, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use lacuna_device::BlockDevice;
use serde::Serialize;

use super::{
    Config, Pattern, PatternReport, Skew, target,
    worker::{self, Measuring},
};
use crate::{
    progress::Progress,
    verdict::{Bound, Estimate, Verdict, median},
};

/// Rounds that are possible. One is for those who gather the rounds of several calls: it has no interval.
pub const ROUNDS: std::ops::RangeInclusive<u64> = 1..=10;
/// How long one works before the other does, or less. A disk's speed changes within seconds.
const TURN: Duration = Duration::from_millis(500);

/// What one side does.
#[derive(Clone, Copy)]
struct Side {
    pattern: Pattern,
    block_bytes: u64,
    /// Threads; none for those of the command line.
    threads: Option<u32>,
}

pub(crate) struct Goal {
    pub(crate) name: &'static str,
    ftl: Side,
    raw: Side,
    /// Unit of `value`.
    unit: &'static str,
    value: fn(&PatternReport) -> f64,
    /// The ratio ftl : raw that is asked for.
    pub(crate) bound: Bound,
}

const fn side(pattern: Pattern, block_bytes: u64, threads: Option<u32>) -> Side {
    Side { pattern, block_bytes, threads }
}

const PAGE: u64 = 16 << 10;
const APPEND: Side = side(Pattern::AppendSync, 4096, Some(1));

pub(crate) const GOALS: [Goal; 4] = [
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
    /// Whether it is, none of it is, or neither.
    pub verdict: Verdict,
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
    let format = || target::FtlTarget::format(Arc::clone(device), config.map_memory_bytes);
    let mut all = Vec::new();
    // The last two goals look at the same runs.
    let [writes, reads, appends, bytes] = &GOALS;
    let mut goals = Vec::new();
    for same in [&[writes][..], &[reads], &[appends, bytes]] {
        let mut pairs = Vec::new();
        for round in 0..rounds {
            let Goal { name, ftl, raw: bare, .. } = same[0];
            let line = || format!("round {} of {rounds}", round + 1);
            let (ftl, raw) = Progress::new(*name, config.quiet, line).during(|| {
                let quietly = |side| Config { quiet: true, ..with(side, round) };
                let (ftl_config, raw_config) = (quietly(*ftl), quietly(*bare));
                let (ftl_target, raw_target) = (format()?, target::RawTarget::new(Arc::clone(raw)));
                let prepared = Measuring::prepare(&ftl_config, ftl.pattern, &ftl_target, capacity);
                let on_ftl = prepared.with_context(|| device.name().to_owned())?;
                let prepared = Measuring::prepare(&raw_config, bare.pattern, &raw_target, capacity);
                let on_raw = prepared.with_context(|| raw.name().to_owned())?;
                take_turns(config.seconds, on_ftl, on_raw)
            })?;
            all.extend([ftl.clone(), raw.clone()]);
            pairs.push((ftl, raw));
        }
        for goal in same {
            goals.push(goal.judge(&pairs)?);
        }
    }
    let live = worker::run(&with(writes.ftl, 0), Pattern::Overwrite, &format()?, capacity);
    all.push(live.with_context(|| device.name().to_owned())?);
    Ok((goals, all))
}

/// Measures both for so long each, [`TURN`] by turn: what the machine does meanwhile comes to both, and each follows
/// upon the other as often as it goes before it.
fn take_turns<'a>(
    seconds: Duration,
    mut ftl: Measuring<'a>,
    mut raw: Measuring<'a>,
) -> Result<(PatternReport, PatternReport)> {
    let turns = seconds.div_duration_f64(TURN).ceil().max(1.0) as u32;
    for turn in 0..turns {
        let mut sides = [&mut ftl, &mut raw];
        if turn % 2 == 1 {
            sides.reverse();
        }
        sides.into_iter().try_for_each(|side| side.turn_and_rest(seconds / turns))?;
    }
    Ok((ftl.report(), raw.report()))
}

impl Goal {
    fn judge(&self, pairs: &[(PatternReport, PatternReport)]) -> Result<GoalReport> {
        let (ftl, raw): (Vec<f64>, Vec<f64>) =
            pairs.iter().map(|(ftl, raw)| ((self.value)(ftl), (self.value)(raw))).unzip();
        let ratios = ftl.iter().zip(&raw).map(|(ftl, raw)| ftl / raw).collect();
        let Estimate { median, interval, .. } =
            Estimate::of_ratios(ratios).with_context(|| format!("{}: nothing was done", self.name))?;
        let verdict = self.bound.judge(interval);
        Ok(GoalReport {
            name: self.name,
            unit: self.unit,
            ratio: median,
            interval,
            goal: self.bound.to_string(),
            is_met: verdict == Verdict::Met,
            verdict,
            ftl,
            raw,
        })
    }
}

/// A table of all goals, and a line for the run without one.
pub fn table(config: &Config, goals: &[GoalReport], all: &[PatternReport]) -> String {
    let mut text = format!(
        "{:<42}{:>12}{:>12} {:<9}{:>7}{:>17}{:>9}\n",
        "medians", "ftl", "bare", "", "ratio", "90% interval", "goal"
    );
    for goal in goals {
        let middle = |values: &[f64]| {
            let value = median(values);
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
            goal.verdict,
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
