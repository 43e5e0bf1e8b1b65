use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use lacuna_bench::tpcc::{self, AckLog, Config, Database, RunReport, Scale, comparison};
use serde_json::{Value, json};

use crate::{
    phases::Phases,
    say,
    tables::{EngineOptions, Kind, Tables, Target},
};

/// Run a benchmark in the style of TPC-C: orders, payments and deliveries of a wholesale company
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    engine: EngineOptions,
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
    /// Run nothing; prove the consistency conditions in the store
    #[arg(long, requires = "store", conflicts_with_all = ["ack_log", "json", "trace"])]
    verify: bool,
    /// The same, and that every commit in this acknowledgement log is in the store
    #[arg(
        long, value_name = "FILE", requires = "store",
        conflicts_with_all = ["verify", "ack_log", "json", "trace"]
    )]
    verify_acks: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match (&arguments.engine.store, &arguments.verify_acks) {
        (Some(store), log) if arguments.verify || log.is_some() => {
            return verify(arguments, store, log.as_deref());
        }
        _ => {}
    }
    let phases = &arguments.phases;
    arguments.engine.check(phases.json.as_deref())?;
    let Arguments { warehouses, items, customers, .. } = *arguments;
    let config = Config { scale: Scale { warehouses, items, customers }, plan: phases.plan() };
    let log = || phases.ack_log.as_deref().map(AckLog::create).transpose();
    let run = |target: &Target, tables, log: Option<AckLog>| run_one(&config, target, tables, log.as_ref());
    let (target, runs) = arguments.engine.run_each("tpcc", log, run)?;
    let figures = runs.iter().map(|run| &run.figures);
    phases
        .conclude(&target.name(), &comparison(&runs), figures, || report(arguments, &config, &target, &runs))
}

fn run_one(config: &Config, target: &Target, tables: Tables, acks: Option<&AckLog>) -> Result<RunReport> {
    let Tables { vfs, store_options, table_options, kind, algorithm } = tables;
    eprintln!("{}: {} tables, {} warehouses", target.name(), kind.name(), config.scale.warehouses);
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
    let verified = match log {
        Some(log) => tpcc::verify_acks(&database, log),
        None => tpcc::verify(&database),
    };
    let verified = verified.with_context(|| store.display().to_string())?;
    database.close()?;
    opened.close()?;
    let acks = match log {
        Some(_) => format!(", and all {} acknowledged changes are there", verified.acks),
        None => String::new(),
    };
    say(&format!(
        "{}: all conditions hold{acks} ({} warehouses, {} orders, {} payments)\n",
        store.display(),
        verified.warehouses,
        verified.orders,
        verified.payments
    ))
}

fn report(arguments: &Arguments, config: &Config, target: &Target, runs: &[RunReport]) -> Value {
    let mut settings = arguments.engine.as_json(target);
    settings.extend(arguments.phases.as_json());
    let own = [
        ("warehouses", json!(config.scale.warehouses)),
        ("items", json!(config.scale.items)),
        ("customers", json!(config.scale.customers)),
        ("isolation", json!("read committed")),
    ];
    settings.extend(own.map(|(name, value)| (name.to_owned(), value)));
    json!({ "benchmark": "tpcc-style", "git": env!("LACUNA_GIT"), "config": settings, "runs": runs })
}
