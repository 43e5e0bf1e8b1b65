//! The options common to benchmarks of databases, beside their tables: number of requesters and duration, and the files
//! for acknowledgements and results.

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, bail};
use clap::Args;
use lacuna_bench::{Figures, Plan, WINDOWS_MAX, now_ms};
use serde_json::{Map, Value, json};

use crate::{output::write_json, say};

/// Threads that load, whatever runs afterwards.
const LOADERS: u32 = 8;

/// Phases and results.
#[derive(Args)]
pub(crate) struct Phases {
    /// Threads that make requests
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    requesters: u32,
    /// Make so many requests per second due, whether those before are done or not, and count latencies from then; by
    /// default each requester makes its next request when the last one is done
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// Length of the measured request phase in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=2_592_000))]
    seconds: u64,
    /// The measured phase goes on until so many requests were measured, however long that takes; for tests
    #[arg(long, hide = true, default_value_t = 0)]
    requests_min: u64,
    /// Requests before that, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=2_592_000))]
    warmup: u64,
    /// Report requests, latencies and bytes written of each so many seconds, too, in the file of --json
    #[arg(long, value_name = "SECONDS", requires = "json", value_parser = clap::value_parser!(u64).range(1..=2_592_000))]
    window: Option<u64>,
    /// Seed of data and requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write every acknowledged commit to this file, outside the store
    #[arg(long, value_name = "FILE")]
    pub(crate) ack_log: Option<PathBuf>,
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Requests per second.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().map_err(|e| e.to_string())?;
    let is_sound = (0.001..=1e6).contains(&rate);
    if is_sound { Ok(rate) } else { Err("a rate is 0.001 to 1000000 requests per second".into()) }
}

impl Phases {
    /// Refuses, before the run, what would fail later.
    pub(crate) fn check(&self) -> Result<()> {
        match self.window {
            Some(window) if self.seconds.div_ceil(window) > WINDOWS_MAX => {
                bail!("--window {window}: at most {WINDOWS_MAX} windows fit into a run")
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn plan(&self) -> Plan {
        Plan {
            loaders: LOADERS,
            requesters: self.requesters,
            warmup: Duration::from_secs(self.warmup),
            seconds: Duration::from_secs(self.seconds),
            requests_min: self.requests_min,
            rate: self.rate,
            window: self.window.map(Duration::from_secs),
            seed: self.seed,
            epoch_ms: now_ms(),
            quiet: false,
        }
    }

    /// Settings that every report names.
    pub(crate) fn as_json(&self) -> Map<String, Value> {
        let settings = [
            ("loaders", json!(LOADERS)),
            ("requesters", json!(self.requesters)),
            ("rate", json!(self.rate)),
            ("window_seconds", json!(self.window)),
            ("warmup_seconds", json!(self.warmup)),
            ("seconds", json!(self.seconds)),
            ("seed", json!(self.seed)),
            ("ack_log", json!(self.ack_log.as_ref().map(|path| path.display().to_string()))),
        ];
        settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Prints `comparison` and writes the report, if asked for; an error when one of the runs at `storage` left
    /// tables that fail verification.
    pub(crate) fn conclude<'a>(
        &self,
        storage: &str,
        comparison: &str,
        figures: impl IntoIterator<Item = &'a Figures>,
        report: impl FnOnce() -> Value,
    ) -> Result<()> {
        say(comparison)?;
        if let Some(path) = &self.json {
            write_json(path, &report())?;
        }
        for Figures { tables, violation, .. } in figures {
            if let Some(violation) = violation {
                bail!("{storage}: {tables} tables: {violation}");
            }
        }
        Ok(())
    }
}
