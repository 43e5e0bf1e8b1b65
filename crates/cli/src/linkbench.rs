use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{ArgGroup, Args};
use lacuna_bench::{
    engine::EngineDb,
    linkbench::{self, AckLog, Config, RunReport, comparison, verify_acks},
    mysql::Address,
};
use serde_json::{Map, Value, json};

use crate::{
    linkbench_sql,
    phases::{LOADERS, Phases, now_ms},
    say,
    tables::{EngineOptions, Kind, Tables, Target},
};

/// Run the LinkBench social graph benchmark
#[derive(Args)]
#[command(group = ArgGroup::new("place").args(["store", "mysql"]))]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) engine: EngineOptions,
    /// Use the tables of a MySQL or MariaDB server, at its socket or HOST:PORT, not our engine
    #[arg(long, value_name = "SERVER", conflicts_with_all = ["store", "size", "pool", "trace", "algorithm"])]
    pub(crate) mysql: Option<Address>,
    #[command(flatten)]
    pub(crate) sql: linkbench_sql::Options,
    /// Number of nodes to load; LinkBench's own standard is 10000000
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 36))]
    ids: u64,
    #[command(flatten)]
    pub(crate) phases: Phases,
    /// Use the out-degrees of a file like LinkBench's Distribution.dat, not the built-in fit to them
    #[arg(long, value_name = "FILE")]
    distribution: Option<PathBuf>,
    /// Run nothing; prove that every commit in this acknowledgement log is in the store or server
    #[arg(long, value_name = "FILE", requires = "place", conflicts_with_all = ["ack_log", "json", "trace"])]
    pub(crate) verify_acks: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match (&arguments.verify_acks, &arguments.engine.store, &arguments.mysql) {
        (Some(log), Some(store), _) => return verify(arguments, log, store),
        (Some(log), None, Some(server)) => return linkbench_sql::verify(arguments, log, server),
        _ => {}
    }
    let phases = &arguments.phases;
    arguments.engine.check(phases.json.as_deref())?;
    let config = Config {
        ids: arguments.ids,
        loaders: LOADERS,
        requesters: phases.requesters,
        warmup: phases.warmup(),
        seconds: phases.seconds(),
        requests_min: 0,
        seed: phases.seed,
        epoch_ms: now_ms(),
        distribution: arguments.distribution.clone(),
        quiet: false,
    };
    if let Some(server) = &arguments.mysql {
        return linkbench_sql::run(arguments, &config, server);
    }
    let log = || phases.ack_log.as_deref().map(AckLog::create).transpose();
    let run = |target: &Target, tables, log: Option<AckLog>| run_one(&config, target, tables, log.as_ref());
    let (target, runs) = arguments.engine.run_each("linkbench", log, run)?;
    conclude(arguments, &target.name(), &runs, || report(arguments, &config, &target, &runs))
}

/// Prints and writes the results of the runs; an error when one of them left a graph that is not sound.
pub(crate) fn conclude(
    arguments: &Arguments,
    vfs: &str,
    runs: &[RunReport],
    report: impl FnOnce() -> Value,
) -> Result<()> {
    arguments.phases.conclude(vfs, &comparison(runs), runs.iter().map(|run| &run.figures), report)
}

fn run_one(config: &Config, target: &Target, tables: Tables, acks: Option<&AckLog>) -> Result<RunReport> {
    let Tables { vfs, store_options, table_options, kind, algorithm } = tables;
    eprintln!("{}: {} tables, {} ids", target.name(), kind.name(), config.ids);
    let db = EngineDb::create(vfs, store_options, table_options)?;
    let mut report =
        linkbench::run(&db, config, kind.name(), algorithm, acks).with_context(|| target.name())?;
    if kind == Kind::Row {
        report.figures.row_compression = Some(db.row_compression()?);
    }
    db.close()?;
    Ok(report)
}

fn verify(arguments: &Arguments, log: &Path, store: &Path) -> Result<()> {
    let opened = arguments.engine.open(store)?;
    let db = EngineDb::open(opened.vfs(), arguments.engine.store_options())?;
    let verified = verify_acks(&db, log).with_context(|| store.display().to_string())?;
    db.close()?;
    opened.close()?;
    say(&format!(
        "{}: sound, and all {} acknowledged changes are there ({} nodes, {} links)\n",
        store.display(),
        verified.acks,
        verified.nodes,
        verified.links
    ))
}

fn report(arguments: &Arguments, config: &Config, target: &Target, runs: &[RunReport]) -> Value {
    let mut all = arguments.engine.as_json(target);
    all.extend(arguments.phases.as_json());
    all.extend(settings(config));
    json!({ "benchmark": "linkbench", "git": env!("LACUNA_GIT"), "config": all, "runs": runs })
}

/// Settings that every report of this benchmark names.
pub(crate) fn settings(config: &Config) -> Map<String, Value> {
    let distribution = config.distribution.as_ref().map(|path| path.display().to_string());
    let settings = [
        ("ids", json!(config.ids)),
        ("node_data_bytes_max", json!(linkbench::NODE_DATA_BYTES_MAX)),
        ("distribution", json!(distribution)),
    ];
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
