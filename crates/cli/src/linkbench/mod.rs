//! LinkBench: on the engine here, on a server in `sql`.

mod options;
mod sql;

use std::path::Path;

use anyhow::{Context, Result};
use lacuna_bench::{
    engine::EngineDb,
    linkbench::{self, AckLog, Config, RunReport, verify_acks},
};
use serde_json::{Value, json};

use crate::{
    note, say,
    tables::{Kind, Tables, Target},
};
pub(crate) use options::Arguments;
use options::{conclude, settings};

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let server = arguments.sql.server("linkbench")?;
    match (&arguments.verify_acks, &arguments.engine.store, &server) {
        (Some(log), Some(store), _) => return verify(arguments, log, store),
        (Some(log), None, Some(server)) => return sql::verify(log, server),
        _ => {}
    }
    let phases = &arguments.phases;
    phases.check()?;
    arguments.engine.check(phases.json.as_deref())?;
    let config = Config {
        ids: arguments.ids,
        distribution: arguments.distribution.clone(),
        mix: arguments.mix.clone().unwrap_or_default(),
        plan: phases.plan(),
    };
    if let Some(server) = &server {
        return sql::run(arguments, &config, server);
    }
    let log = || phases.ack_log.as_deref().map(AckLog::create).transpose();
    let run = |target: &Target, tables, log: Option<AckLog>| run_one(&config, target, tables, log.as_ref());
    let (target, runs) = arguments.engine.run_each("linkbench", log, run)?;
    conclude(arguments, &target.name(), &runs, || report(arguments, &config, &target, &runs))
}

fn run_one(config: &Config, target: &Target, tables: Tables, acks: Option<&AckLog>) -> Result<RunReport> {
    let Tables { vfs, store_options, table_options, kind, algorithm } = tables;
    note(&format!("{}: {} tables, {} ids", target.name(), kind.name(), config.ids));
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
    let place = arguments.engine.with_wal_device(opened.vfs())?;
    let db = EngineDb::open(place, arguments.engine.store_options())?;
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
