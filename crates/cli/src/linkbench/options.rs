//! What the program is asked for, and what every report of the benchmark says.

use std::path::PathBuf;

use anyhow::Result;
use clap::{ArgGroup, Args};
use lacuna_bench::linkbench::{self, Config, Mix, RunReport, comparison};
use serde_json::{Map, Value, json};

use crate::{phases::Phases, sql::SqlOptions, tables::EngineOptions};

/// Run the LinkBench social graph benchmark
#[derive(Args)]
#[command(group = ArgGroup::new("place").args(["store", "mysql", "postgres"]))]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(super) engine: EngineOptions,
    #[command(flatten)]
    pub(super) sql: SqlOptions,
    /// Number of nodes to load; LinkBench's own standard is 10000000
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 36))]
    pub(super) ids: u64,
    #[command(flatten)]
    pub(super) phases: Phases,
    /// Use the out-degrees of a file like LinkBench's Distribution.dat, not the built-in fit to them
    #[arg(long, value_name = "FILE")]
    pub(super) distribution: Option<PathBuf>,
    /// Request these operations, in percent, such as add_link=75,add_node=25; by default LinkBench's own ten
    #[arg(long, value_name = "OPERATION=PERCENT,...")]
    pub(super) mix: Option<Mix>,
    /// Run nothing; prove that every commit in this acknowledgement log is in the store or server
    #[arg(long, value_name = "FILE", requires = "place", conflicts_with_all = ["ack_log", "json", "trace"])]
    pub(super) verify_acks: Option<PathBuf>,
}

/// Prints and writes the results of the runs; an error when one of them left a graph that is not sound.
pub(super) fn conclude(
    arguments: &Arguments,
    storage: &str,
    runs: &[RunReport],
    report: impl FnOnce() -> Value,
) -> Result<()> {
    arguments.phases.conclude(storage, &comparison(runs), runs.iter().map(|run| &run.figures), report)
}

/// Settings that every report of this benchmark names.
pub(super) fn settings(config: &Config) -> Map<String, Value> {
    let distribution = config.distribution.as_ref().map(|path| path.display().to_string());
    let settings = [
        ("ids", json!(config.ids)),
        ("node_data_bytes_max", json!(linkbench::NODE_DATA_BYTES_MAX)),
        ("distribution", json!(distribution)),
        ("mix", json!(config.mix.to_string())),
    ];
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
