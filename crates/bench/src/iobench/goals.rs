//! The ftl's goals relative to the bare device, measured in one call: rounds in which both take short turns, and the
//! ratio of each round. Halfway through a round the two exchange their devices, and the order in which they are filled:
//! of two equal files on one disk, one may well be read a tenth faster than the other. A goal is met when the ratio's
//! 90% confidence interval clears it ([`crate::Verdict`]).

use std::{fmt::Write, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use lacuna_device::BlockDevice;
use serde::Serialize;

use super::{
    Config, Pattern, PatternReport, Skew,
    report::Measured,
    target,
    worker::{self, Measuring},
};
use crate::{
    progress::Progress,
    verdict::{Bound, Estimate, Verdict, median},
};

/// Allowed numbers of rounds. A single round has no interval: it is for callers that combine the rounds of several
/// calls.
pub const ROUNDS: std::ops::RangeInclusive<u64> = 1..=10;
/// How long one works before the other does, or less. A disk's speed changes within seconds.
const TURN: Duration = Duration::from_millis(500);

/// The work of one side.
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
    /// The required ratio ftl : raw.
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
    /// The compared figure.
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
    /// The goal, such as `>= 0.85`.
    pub goal: String,
    /// Whether the whole interval is on the right side of it.
    pub is_met: bool,
    /// Met if it is, missed if no part of it is, else open.
    pub verdict: Verdict,
}

/// Runs all goals in `rounds` rounds. The content of the devices is lost. `config` gives seconds, threads, seed and the
/// live share of the last run, which is overwritten to the steady state once and has no goal. All single results come
/// back too.
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
    let mut all = Vec::new();
    // The last two goals use the same runs.
    let [writes, reads, appends, bytes] = &GOALS;
    let mut goals = Vec::new();
    for same in [&[writes][..], &[reads], &[appends, bytes]] {
        let mut pairs = Vec::new();
        for round in 0..rounds {
            let Goal { name, ftl, raw: bare, .. } = same[0];
            let line = || format!("round {} of {rounds}", round + 1);
            let (ftl, raw) = Progress::new(*name, config.quiet, line).during(|| {
                let quietly = |side| Config { quiet: true, ..with(side, round) };
                measure([quietly(*ftl), quietly(*bare)], [ftl.pattern, bare.pattern], [device, raw], capacity)
            })?;
            all.extend([ftl.clone(), raw.clone()]);
            pairs.push((ftl, raw));
        }
        for goal in same {
            goals.push(goal.judge(&pairs)?);
        }
    }
    let store = target::FtlTarget::format(Arc::clone(device), config.map_memory_bytes)?;
    let live = worker::run(&with(writes.ftl, 0), Pattern::Overwrite, &store, capacity);
    all.push(live.with_context(|| device.name().to_owned())?);
    Ok((goals, all))
}

/// One round: the ftl and the bare device, by these configurations and patterns. Half of the time each is on either
/// device, and in the second half the bare device is filled first: the file written last may well be read faster.
fn measure(
    [ftl, bare]: [Config; 2],
    [on_ftl, on_bare]: [Pattern; 2],
    [one, other]: [&Arc<dyn BlockDevice>; 2],
    capacity: u64,
) -> Result<(PatternReport, PatternReport)> {
    let half = ftl.seconds / 2;
    let (mut store_sum, mut bare_sum) = (Measured::none()?, Measured::none()?);
    for (device, raw, is_store_first) in [(one, other, true), (other, one, false)] {
        let store = target::FtlTarget::format(Arc::clone(device), ftl.map_memory_bytes)?;
        let space = target::RawTarget::new(Arc::clone(raw));
        let prepare_store = || {
            let prepared = Measuring::prepare(&ftl, on_ftl, &store, capacity);
            prepared.with_context(|| device.name().to_owned())
        };
        let prepare_bare = || {
            let prepared = Measuring::prepare(&bare, on_bare, &space, capacity);
            prepared.with_context(|| raw.name().to_owned())
        };
        let sides = if is_store_first {
            [prepare_store()?, prepare_bare()?]
        } else {
            let bare_side = prepare_bare()?;
            [prepare_store()?, bare_side]
        };
        let [of_store, of_bare] = take_turns(half, sides)?;
        store_sum.add(&of_store)?;
        bare_sum.add(&of_bare)?;
    }
    Ok((
        PatternReport::new(&ftl, on_ftl, target::FTL, capacity, &store_sum),
        PatternReport::new(&bare, on_bare, target::RAW, capacity, &bare_sum),
    ))
}

/// Measures both for so long each, [`TURN`] by turn: other load on the machine affects both, and each runs before the
/// other as often as after it.
fn take_turns(seconds: Duration, mut sides: [Measuring<'_>; 2]) -> Result<[Measured; 2]> {
    let turns = seconds.div_duration_f64(TURN).ceil().max(1.0) as u32;
    for turn in 0..turns {
        let first = turn as usize % 2;
        for side in [first, 1 - first] {
            sides[side].turn_and_rest(seconds / turns)?;
        }
    }
    Ok(sides.map(Measuring::into_measured))
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
