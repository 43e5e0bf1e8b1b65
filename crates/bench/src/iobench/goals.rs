//! Goals of one target relative to another, measured in one call: rounds in which both take short turns, and the ratio
//! of each round. Halfway through a round the two exchange their devices, and the order in which they are filled: of two
//! equal files on one disk, one may well be read a tenth faster than the other. A goal is met when the ratio's 90%
//! confidence interval clears it ([`crate::Verdict`]).
//!
//! The ftl is compared with the bare device, and a file whose data is to be compressed with one whose data is not, where
//! nothing can be compressed.

use std::{collections::BTreeMap, fmt::Write, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use lacuna_device::{BlockDevice, Vfs};
use serde::Serialize;

use super::{
    Config, Pattern, PatternReport, Skew,
    report::Measured,
    target::{self, Target},
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
    /// Of the target that has the goal, and of the one beside it.
    sides: [Side; 2],
    /// Unit of `value`.
    unit: &'static str,
    value: fn(&PatternReport) -> f64,
    /// The required ratio of the two.
    pub(crate) bound: Bound,
}

const fn side(pattern: Pattern, block_bytes: u64, threads: Option<u32>) -> Side {
    Side { pattern, block_bytes, threads }
}

const PAGE: u64 = 16 << 10;
const APPENDS: [Side; 2] = [side(Pattern::AppendSync, 4096, Some(1)); 2];

fn bytes_rate(report: &PatternReport) -> f64 {
    report.bytes_per_second / 1e6
}

fn rate(report: &PatternReport) -> f64 {
    report.requests_per_second
}

fn amplification(report: &PatternReport) -> f64 {
    report.write_amplification
}

const fn both(pattern: Pattern) -> [Side; 2] {
    [side(pattern, PAGE, None); 2]
}

/// Of the ftl beside the bare device.
pub(crate) const GOALS: [Goal; 4] = [
    Goal {
        name: "random 16K writes : sequential bandwidth",
        sides: [side(Pattern::RandomWrite, PAGE, None), side(Pattern::SequentialWrite, 1 << 20, None)],
        unit: "MB/s",
        value: bytes_rate,
        bound: Bound::AtLeast(0.85),
    },
    Goal {
        name: "random 16K reads",
        sides: both(Pattern::RandomRead),
        unit: "1/s",
        value: rate,
        bound: Bound::AtLeast(0.9),
    },
    Goal {
        name: "4K append + sync : overwrite + sync",
        sides: APPENDS,
        unit: "1/s",
        value: rate,
        bound: Bound::AtLeast(0.95),
    },
    Goal {
        name: SAME_BYTES,
        sides: APPENDS,
        unit: "per byte",
        value: amplification,
        bound: Bound::AtMost(1.15),
    },
];

/// Of what cannot be compressed, in a file that is to be compressed beside one that is not.
const COMPRESSION_GOALS: [Goal; 6] = [
    Goal {
        name: "random 16K writes",
        sides: both(Pattern::RandomWrite),
        unit: "MB/s",
        value: bytes_rate,
        bound: Bound::AtLeast(0.97),
    },
    Goal {
        name: "random 16K reads",
        sides: both(Pattern::RandomRead),
        unit: "1/s",
        value: rate,
        bound: Bound::AtLeast(0.97),
    },
    Goal { name: "4K append + sync", sides: APPENDS, unit: "1/s", value: rate, bound: Bound::AtLeast(0.97) },
    Goal {
        name: SAME_BYTES,
        sides: APPENDS,
        unit: "per byte",
        value: amplification,
        bound: Bound::AtMost(1.03),
    },
    Goal {
        name: "random 16K writes at the live share",
        sides: both(Pattern::Overwrite),
        unit: "MB/s",
        value: bytes_rate,
        bound: Bound::AtLeast(0.97),
    },
    Goal {
        name: SAME_BYTES,
        sides: both(Pattern::Overwrite),
        unit: "per byte",
        value: amplification,
        bound: Bound::AtMost(1.03),
    },
];

/// Of the runs of the goal before.
const SAME_BYTES: &str = "the same, bytes written";

/// Makes a target on a device, whose content is lost.
type Make<'a> = &'a dyn Fn(&Arc<dyn BlockDevice>) -> Result<Box<dyn Target>>;

/// Two targets that are compared.
struct Contest<'a> {
    goals: &'static [Goal],
    /// Their names in reports: that which has the goals first.
    names: [&'static str; 2],
    make: [Make<'a>; 2],
}

/// How a goal was met. Its JSON form is part of the command line's contract.
#[derive(Clone, Debug, Serialize)]
pub struct GoalReport {
    /// The compared figure.
    pub name: &'static str,
    /// Unit of the values.
    pub unit: &'static str,
    /// The values of each round, by target.
    #[serde(flatten)]
    pub values: BTreeMap<&'static str, Vec<f64>>,
    /// Median of the rounds' ratios.
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

/// Runs the ftl's goals in `rounds` rounds. The content of the devices is lost. `config` gives seconds, threads, seed and
/// the live share of the last run, which is overwritten to the steady state once and has no goal. All single results
/// come back too.
///
/// # Errors
/// As [`super::run`], and for numbers of rounds outside [`ROUNDS`].
pub fn run(
    config: &Config,
    rounds: u64,
    device: &Arc<dyn BlockDevice>,
    raw: &Arc<dyn BlockDevice>,
) -> Result<(Vec<GoalReport>, Vec<PatternReport>)> {
    let ftl = |device: &Arc<dyn BlockDevice>| -> Result<Box<dyn Target>> {
        Ok(Box::new(target::FtlTarget::format(Arc::clone(device), config.map_memory_bytes)?))
    };
    let bare = |device: &Arc<dyn BlockDevice>| -> Result<Box<dyn Target>> {
        Ok(Box::new(target::RawTarget::new(Arc::clone(device))))
    };
    let contest = Contest { goals: &GOALS, names: [target::FTL, target::RAW], make: [&ftl, &bare] };
    let (goals, mut all) = contest.run(config, rounds, [device, raw])?;
    let capacity = smaller([device, raw]);
    let config = of_side(config, GOALS[0].sides[0], 0);
    let live = worker::run(&config, Pattern::Overwrite, &*ftl(device)?, capacity);
    all.push(live.with_context(|| device.name().to_owned())?);
    Ok((goals, all))
}

/// Makes a file system on a device, of which the data of files is to be compressed or not.
pub type MakeFileSystem<'a> = &'a dyn Fn(&Arc<dyn BlockDevice>, bool) -> Result<Arc<dyn Vfs>>;

/// What compression costs where it saves nothing: the same data in a file that is to be compressed, and in one that is
/// not, both on new file systems that `make` makes. Else as [`run`].
///
/// # Errors
/// As [`run`].
pub fn run_compressed(
    config: &Config,
    rounds: u64,
    devices: [&Arc<dyn BlockDevice>; 2],
    make: MakeFileSystem<'_>,
) -> Result<(Vec<GoalReport>, Vec<PatternReport>)> {
    let file = |device: &Arc<dyn BlockDevice>, is_compressed| -> Result<Box<dyn Target>> {
        let name = if is_compressed { target::COMPRESSED } else { target::PLAIN };
        Ok(Box::new(target::FileTarget::new(make(device, is_compressed)?, name)?))
    };
    let make: [Make<'_>; 2] = [&|device| file(device, true), &|device| file(device, false)];
    Contest { goals: &COMPRESSION_GOALS, names: [target::COMPRESSED, target::PLAIN], make }
        .run(config, rounds, devices)
}

fn smaller(devices: [&Arc<dyn BlockDevice>; 2]) -> u64 {
    let [one, other] = devices.map(|device| device.geometry().capacity_bytes);
    one.min(other)
}

fn of_side(config: &Config, side: Side, round: u64) -> Config {
    Config {
        block_bytes: side.block_bytes,
        threads: side.threads.unwrap_or(config.threads),
        skew: Skew::Uniform,
        seed: config.seed + round,
        wraps: true,
        ..config.clone()
    }
}

impl Contest<'_> {
    fn run(
        &self,
        config: &Config,
        rounds: u64,
        devices: [&Arc<dyn BlockDevice>; 2],
    ) -> Result<(Vec<GoalReport>, Vec<PatternReport>)> {
        config.check()?;
        if !ROUNDS.contains(&rounds) {
            bail!("{rounds} rounds: {} to {} are possible", ROUNDS.start(), ROUNDS.end());
        }
        let mut all = Vec::new();
        let mut goals = Vec::new();
        for same in self.goals.chunk_by(|_, next| next.name == SAME_BYTES) {
            let mut pairs = Vec::new();
            for round in 0..rounds {
                let Goal { name, sides, .. } = same[0];
                let line = || format!("round {} of {rounds}", round + 1);
                let quietly = |side| Config { quiet: true, ..of_side(config, side, round) };
                let pair = Progress::new(name, config.quiet, line)
                    .during(|| self.measure(sides.map(quietly), sides.map(|side| side.pattern), devices))?;
                all.extend(pair.clone());
                pairs.push(pair);
            }
            for goal in same {
                goals.push(goal.judge(self.names, &pairs)?);
            }
        }
        Ok((goals, all))
    }

    /// One round, by these configurations and patterns. Half of the time each target is on either device, and in the
    /// second half the other one is filled first: the file written last may well be read faster.
    fn measure(
        &self,
        configs: [Config; 2],
        patterns: [Pattern; 2],
        devices: [&Arc<dyn BlockDevice>; 2],
    ) -> Result<[PatternReport; 2]> {
        let capacity = smaller(devices);
        let half = configs[0].seconds / 2;
        let mut sums = [Measured::none()?, Measured::none()?];
        for is_second in [false, true] {
            let mut devices = devices;
            if is_second {
                devices.reverse();
            }
            let targets = [self.make[0](devices[0])?, self.make[1](devices[1])?];
            let prepare = |side: usize| {
                let prepared = Measuring::prepare(&configs[side], patterns[side], &*targets[side], capacity);
                prepared.with_context(|| devices[side].name().to_owned())
            };
            let sides = if is_second {
                let other = prepare(1)?;
                [prepare(0)?, other]
            } else {
                [prepare(0)?, prepare(1)?]
            };
            for (sum, measured) in sums.iter_mut().zip(take_turns(half, sides)?) {
                sum.add(&measured)?;
            }
        }
        Ok([0, 1].map(|side| {
            PatternReport::new(&configs[side], patterns[side], self.names[side], capacity, &sums[side])
        }))
    }
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
    fn judge(&self, names: [&'static str; 2], pairs: &[[PatternReport; 2]]) -> Result<GoalReport> {
        let of_side = |side: usize| pairs.iter().map(|pair| (self.value)(&pair[side])).collect::<Vec<_>>();
        let values = [of_side(0), of_side(1)];
        let ratios = values[0].iter().zip(&values[1]).map(|(one, other)| one / other).collect();
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
            values: names.into_iter().zip(values).collect(),
        })
    }
}

/// A table of all goals, and a line for the run without one.
pub fn table(config: &Config, goals: &[GoalReport], all: &[PatternReport]) -> String {
    let mut text = of_goals([target::FTL, target::RAW], goals);
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

/// A table of the goals of compression.
pub fn compression_table(goals: &[GoalReport]) -> String {
    of_goals([target::COMPRESSED, target::PLAIN], goals)
}

fn of_goals(names: [&str; 2], goals: &[GoalReport]) -> String {
    let mut text = format!(
        "{:<42}{:>12}{:>12} {:<9}{:>7}{:>17}{:>9}\n",
        "medians", names[0], names[1], "", "ratio", "90% interval", "goal"
    );
    for goal in goals {
        let middle = |name: &str| {
            let value = median(&goal.values[name]);
            if value < 100.0 { format!("{value:.3}") } else { format!("{value:.0}") }
        };
        let [low, high] = goal.interval;
        let _ = writeln!(
            text,
            "{:<42}{:>12}{:>12} {:<9}{:>7.3}{:>17}{:>9}  {}",
            goal.name,
            middle(names[0]),
            middle(names[1]),
            goal.unit,
            goal.ratio,
            format!("{low:.3} to {high:.3}"),
            goal.goal,
            goal.verdict,
        );
    }
    text
}
