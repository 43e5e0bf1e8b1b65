//! The ftl under patterns of I/O, and the bare device beside it.
//!
//! Every pattern starts on a new store: fragments or garbage of one do not affect the figures of the next. Data is
//! random, so nothing below can compress it. Latencies are those of whole calls, throughput includes making everything
//! durable at the end, and filling before the measured part is in none of the figures.

pub mod goals;
mod pattern;
mod report;
mod target;
#[cfg(test)]
mod tests;
mod worker;

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use lacuna_device::BlockDevice;

pub use pattern::Pattern;
pub use report::{PatternReport, comparison};

/// Largest block in bytes: the most that a batch of any store takes.
pub const BLOCK_BYTES_MAX: u64 = 1 << 20;

/// Which blocks are overwritten how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skew {
    /// All alike.
    Uniform,
    /// By Zipf's law with this exponent, between 0 and 1. The hot ones lie scattered.
    Zipf(f64),
}

impl FromStr for Skew {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Skew, &'static str> {
        let exponent = text.strip_prefix("zipf:").and_then(|number| number.parse().ok());
        match (text, exponent) {
            ("uniform", _) => Ok(Skew::Uniform),
            (_, Some(exponent)) if exponent > 0.0 && exponent < 1.0 => Ok(Skew::Zipf(exponent)),
            _ => Err("a skew is uniform, or zipf:S with S between 0 and 1, such as zipf:0.99"),
        }
    }
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Skew::Uniform => write!(f, "uniform"),
            Skew::Zipf(exponent) => write!(f, "zipf:{exponent}"),
        }
    }
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Patterns, in this order.
    pub patterns: Vec<Pattern>,
    /// Length of each pattern but [`Pattern::Overwrite`].
    pub seconds: Duration,
    /// Threads that issue requests, each one at a time.
    pub threads: u32,
    /// Size of reads and writes in bytes, a multiple of 4096.
    pub block_bytes: u64,
    /// For [`Pattern::Overwrite`]: share of the capacity that is live, in percent.
    pub live_percent: u64,
    /// For [`Pattern::Overwrite`]: bytes written in the measured part, as a multiple of the capacity.
    pub overwrite_capacities: u64,
    /// For [`Pattern::RandomWrite`] on the ftl: before the measured part the capacity is written once, so
    /// that the log has wrapped.
    pub wraps: bool,
    /// Memory for the map of the store in bytes; all of it is kept if none.
    pub map_memory_bytes: Option<u64>,
    /// For all patterns that choose blocks at random.
    pub skew: Skew,
    /// Seed of offsets and data.
    pub seed: u64,
    /// Nothing on standard error.
    pub quiet: bool,
}

/// Runs the patterns on a store on `device`, and each of them on `raw` as well, if there is one.
/// The content of the devices is lost.
///
/// # Errors
/// When the configuration makes no sense, and whatever the devices and the ftl fail with.
pub fn run(
    config: &Config,
    device: &Arc<dyn BlockDevice>,
    raw: Option<&Arc<dyn BlockDevice>>,
) -> Result<Vec<PatternReport>> {
    config.check()?;
    let mut reports = Vec::new();
    for pattern in &config.patterns {
        let name = device.name();
        let report = target::FtlTarget::format(Arc::clone(device), config.map_memory_bytes)
            .and_then(|target| worker::run(config, *pattern, &target, device.geometry().capacity_bytes))
            .with_context(|| name.to_owned())?;
        let capacity = device.geometry().capacity_bytes;
        reports.push(report);
        if let Some(raw) = raw {
            // The same bytes, so that both have the same work.
            let capacity = capacity.min(raw.geometry().capacity_bytes);
            let target = target::RawTarget::new(Arc::clone(raw));
            let report = worker::run(config, *pattern, &target, capacity);
            reports.push(report.with_context(|| raw.name().to_owned())?);
        }
    }
    Ok(reports)
}

impl Config {
    /// An error when it makes no sense.
    pub fn check(&self) -> Result<()> {
        let block = self.block_bytes;
        if block == 0 || block > BLOCK_BYTES_MAX || !block.is_multiple_of(4096) {
            bail!("a block of {block} bytes: it must be a multiple of 4096, at most 1M");
        }
        if !(1..=100).contains(&self.live_percent) {
            bail!("{}% live: it must be 1 to 100", self.live_percent);
        }
        Ok(())
    }
}
