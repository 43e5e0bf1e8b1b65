//! The benchmark in the style of TPC-C: on the engine here, on a server in `sql`.

mod sql;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{ArgGroup, Args};
use lacuna_bench::tpcc::{self, AckLog, Config, Database, Db, RunReport, Scale, comparison};
use serde_json::{Value, json};

use crate::{
    note,
    phases::Phases,
    say,
    sql::SqlOptions,
    tables::{EngineOptions, Kind, Tables, Target},
};

/// Run a benchmark in the style of TPC-C: orders, payments and deliveries of a wholesale company
#[derive(Args)]
#[command(group = ArgGroup::new("place").args(["store", "mysql", "postgres"]))]
pub(crate) struct Arguments {
    #[command(flatten)]
    engine: EngineOptions,
    #[command(flatten)]
    sql: SqlOptions,
    /// Warehouses to load; one takes about 100 MB without compression
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    warehouses: u32,
    /// Items; TPC-C has 100000, fewer are for trials
    #[arg(long, default_value_t = Scale::ITEMS, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    items: u32,
    /// Customers and first orders of each district; TPC-C has 3000, fewer are for trials
    #[arg(
        long, default_value_t = Scale::CUSTOMERS,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    customers: u32,
    #[command(flatten)]
    phases: Phases,
    /// Run nothing; prove the consistency conditions in the store or server
    #[arg(long, requires = "place", conflicts_with_all = ["ack_log", "json", "trace"])]
    verify: bool,
    /// The same, and that every commit in this acknowledgement log is in the store or server
    #[arg(
        long, value_name = "FILE", requires = "place",
        conflicts_with_all = ["verify", "ack_log", "json", "trace"]
    )]
    verify_acks: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let server = arguments.sql.server("tpcc")?;
    if arguments.verify || arguments.verify_acks.is_some() {
        let log = arguments.verify_acks.as_deref();
        return match (&arguments.engine.store, &server) {
            (Some(store), _) => verify(arguments, store, log),
            (None, Some(server)) => sql::verify(log, server),
            (None, None) => unreachable!("clap requires one of them"),
        };
    }
    let phases = &arguments.phases;
    phases.check()?;
    arguments.engine.check(phases.json.as_deref())?;
    let Arguments { warehouses, items, customers, .. } = *arguments;
    let config = Config { scale: Scale { warehouses, items, customers }, plan: phases.plan() };
    if let Some(server) = &server {
        return sql::run(arguments, &config, server);
    }
    let log = || phases.ack_log.as_deref().map(AckLog::create).transpose();
    let run = |target: &Target, tables, log: Option<AckLog>| run_one(&config, target, tables, log.as_ref());
    let (target, runs) = arguments.engine.run_each("tpcc", log, run)?;
    let figures = runs.iter().map(|run| &run.figures);
    phases
        .conclude(&target.name(), &comparison(&runs), figures, || report(arguments, &config, &target, &runs))
}

fn run_one(config: &Config, target: &Target, tables: Tables, acks: Option<&AckLog>) -> Result<RunReport> {
    let Tables { vfs, store_options, table_options, kind, algorithm } = tables;
    note(&format!("{}: {} tables, {} warehouses", target.name(), kind.name(), config.scale.warehouses));
    let database = Database::create(vfs, store_options, table_options)?;
    let mut report =
        tpcc::run(&database, config, kind.name(), algorithm, acks).with_context(|| target.name())?;
    if kind == Kind::Row {
        report.figures.row_compression = Some(database.row_compression()?);
    }
    database.close()?;
    Ok(report)
}

fn verify(arguments: &Arguments, store: &Path, log: Option<&Path>) -> Result<()> {
    let opened = arguments.engine.open(store)?;
    let place = arguments.engine.with_wal_device(opened.vfs())?;
    let database = Database::open(place, arguments.engine.store_options())?;
    prove(&database, log, &store.display().to_string())?;
    database.close()?;
    Ok(opened.close()?)
}

/// Proves the conditions, and that every commit of a log is there.
fn prove(database: &impl Db, log: Option<&Path>, storage: &str) -> Result<()> {
    let verified = match log {
        Some(log) => tpcc::verify_acks(database, log),
        None => tpcc::verify(database),
    };
    let verified = verified.with_context(|| storage.to_owned())?;
    let acks = match log {
        Some(_) => format!(", and all {} acknowledged changes are there", verified.acks),
        None => String::new(),
    };
    say(&format!(
        "{storage}: all conditions hold{acks} ({} warehouses, {} orders, {} payments)\n",
        verified.warehouses, verified.orders, verified.payments
    ))
}

fn report(arguments: &Arguments, config: &Config, target: &Target, runs: &[RunReport]) -> Value {
    let mut settings = arguments.engine.as_json(target);
    settings.extend(arguments.phases.as_json());
    settings.extend(scale(config));
    json!({ "benchmark": "tpcc-style", "git": env!("LACUNA_GIT"), "config": settings, "runs": runs })
}

/// Settings that every report of this benchmark names.
fn scale(config: &Config) -> impl Iterator<Item = (String, Value)> {
    let Scale { warehouses, items, customers } = config.scale;
    let settings = [
        ("warehouses", json!(warehouses)),
        ("items", json!(items)),
        ("customers", json!(customers)),
        ("isolation", json!("read committed")),
    ];
    settings.into_iter().map(|(name, value)| (name.to_owned(), value))
}
