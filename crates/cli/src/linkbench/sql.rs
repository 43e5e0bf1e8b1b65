//! LinkBench on a server.

use std::path::Path;

use anyhow::{Context, Result};
use lacuna_bench::{
    linkbench::{self, AckLog, Config, SqlDb, verify_acks},
    sql::{Address, Brand, Written},
};
use serde_json::json;

use super::options::{Arguments, conclude, settings};
use crate::say;

/// Name of the database unless another is given.
const DATABASE: &str = "linkbench";

/// Runs the kinds of tables one after the other; those of the last stay.
pub(super) fn run(arguments: &Arguments, config: &Config, server: &Address) -> Result<()> {
    let Arguments { engine, sql, phases, .. } = arguments;
    let login = sql.login(DATABASE);
    let runs = sql.run_each(
        &login,
        &engine.tables,
        || phases.ack_log.as_deref().map(AckLog::create).transpose(),
        |making| {
            eprintln!("{server}: {} tables, {} ids", making.kind.name(), config.ids);
            SqlDb::create(Brand::Mysql, server, making.login, &making.format, making.written.clone())
        },
        |db, making, acks| {
            linkbench::run(db, config, making.kind.name(), making.algorithm, acks.as_ref())
                .with_context(|| server.to_string())
        },
    )?;
    conclude(arguments, &server.to_string(), &runs.runs, || {
        let mut all = phases.as_json();
        all.extend(settings(config));
        all.extend(sql.as_json(server, &login, &engine.tables, &runs));
        json!({
            "benchmark": "linkbench",
            "git": env!("LACUNA_GIT"),
            "config": all,
            "runs": runs.runs,
            "servers": runs.servers(),
        })
    })
}

/// Verifies that a server has every commit of a log.
pub(super) fn verify(arguments: &Arguments, log: &Path, server: &Address) -> Result<()> {
    let db = SqlDb::open(Brand::Mysql, server, &arguments.sql.login(DATABASE), Written::Status)?;
    let verified = verify_acks(&db, log).with_context(|| server.to_string())?;
    say(&format!(
        "{server}: sound, and all {} acknowledged changes are there ({} nodes, {} links)\n",
        verified.acks, verified.nodes, verified.links
    ))
}
