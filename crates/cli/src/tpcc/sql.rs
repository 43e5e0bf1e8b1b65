//! The benchmark on a server.

use std::path::Path;

use anyhow::{Context, Result};
use lacuna_bench::{
    sql::Written,
    tpcc::{self, AckLog, Config, SqlDb, comparison},
};
use serde_json::json;

use super::{Arguments, prove, scale};
use crate::{note, sql::SqlServer};

/// Runs the kinds of tables one after the other; those of the last stay.
pub(super) fn run(arguments: &Arguments, config: &Config, server: &SqlServer) -> Result<()> {
    let Arguments { engine, sql, phases, .. } = arguments;
    let SqlServer { brand, address, login } = server;
    let runs = sql.run_each(
        server,
        &engine.tables,
        || phases.ack_log.as_deref().map(AckLog::create).transpose(),
        |making| {
            note(&format!(
                "{address}: {} tables, {} warehouses",
                making.kind.name(),
                config.scale.warehouses
            ));
            SqlDb::create(*brand, address, login, &making.format, making.written.clone())
        },
        |db, making, acks| {
            tpcc::run(db, config, making.kind.name(), &making.algorithm, acks.as_ref())
                .with_context(|| address.to_string())
        },
    )?;
    let figures = runs.runs.iter().map(|run| &run.figures);
    phases.conclude(&address.to_string(), &comparison(&runs.runs), figures, || {
        let mut settings = phases.as_json();
        settings.extend(scale(config));
        settings.extend(sql.as_json(server, &engine.tables, &runs));
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
pub(super) fn verify(log: Option<&Path>, server: &SqlServer) -> Result<()> {
    let SqlServer { brand, address, login } = server;
    let db = SqlDb::open(*brand, address, login, Written::Status)?;
    prove(&db, log, &address.to_string())
}
