//! The benchmark on a server.

use std::path::Path;

use anyhow::{Context, Result};
use lacuna_bench::{
    sql::{Address, Brand, Written},
    tpcc::{self, AckLog, Config, SqlDb, comparison},
};
use serde_json::json;

use super::{Arguments, prove, scale};

/// Name of the database unless another is given.
const DATABASE: &str = "tpcc";

/// Runs the kinds of tables one after the other; those of the last stay.
pub(super) fn run(arguments: &Arguments, config: &Config, server: &Address) -> Result<()> {
    let Arguments { engine, sql, phases, .. } = arguments;
    let login = sql.login(DATABASE);
    let runs = sql.run_each(
        &login,
        &engine.tables,
        || phases.ack_log.as_deref().map(AckLog::create).transpose(),
        |making| {
            eprintln!("{server}: {} tables, {} warehouses", making.kind.name(), config.scale.warehouses);
            SqlDb::create(Brand::Mysql, server, making.login, &making.format, making.written.clone())
        },
        |db, making, acks| {
            tpcc::run(db, config, making.kind.name(), making.algorithm, acks.as_ref())
                .with_context(|| server.to_string())
        },
    )?;
    let figures = runs.runs.iter().map(|run| &run.figures);
    phases.conclude(&server.to_string(), &comparison(&runs.runs), figures, || {
        let mut settings = phases.as_json();
        settings.extend(scale(config));
        settings.extend(sql.as_json(server, &login, &engine.tables, &runs));
        json!({
            "benchmark": "tpcc-style",
            "git": env!("LACUNA_GIT"),
            "config": settings,
            "runs": runs.runs,
            "servers": runs.servers(),
        })
    })
}

/// Verifies the conditions on a server, and that it has every commit of a log.
pub(super) fn verify(arguments: &Arguments, log: Option<&Path>, server: &Address) -> Result<()> {
    let db = SqlDb::open(Brand::Mysql, server, &arguments.sql.login(DATABASE), Written::Status)?;
    prove(&db, log, &server.to_string())
}
