//! LinkBench on a server.

use std::path::Path;

use anyhow::{Context, Result};
use lacuna_bench::{
    linkbench::{self, AckLog, Config, SqlDb, verify_acks},
    sql::Written,
};
use serde_json::json;

use super::options::{Arguments, conclude, settings};
use crate::{note, say, sql::SqlServer};

/// Runs the kinds of tables one after the other; those of the last stay.
pub(super) fn run(arguments: &Arguments, config: &Config, server: &SqlServer) -> Result<()> {
    let Arguments { engine, sql, phases, .. } = arguments;
    let SqlServer { brand, address, login } = server;
    let runs = sql.run_each(
        server,
        &engine.tables,
        || phases.ack_log.as_deref().map(AckLog::create).transpose(),
        |making| {
            note(&format!("{address}: {} tables, {} ids", making.kind.name(), config.ids));
            SqlDb::create(*brand, address, login, &making.format, making.written.clone())
        },
        |db, making, acks| {
            linkbench::run(db, config, making.kind.name(), &making.algorithm, acks.as_ref())
                .with_context(|| address.to_string())
        },
    )?;
    conclude(arguments, &address.to_string(), &runs.runs, || {
        let mut all = phases.as_json();
        all.extend(settings(config));
        all.extend(sql.as_json(server, &engine.tables, &runs));
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
pub(super) fn verify(log: &Path, server: &SqlServer) -> Result<()> {
    let SqlServer { brand, address, login } = server;
    let db = SqlDb::open(*brand, address, login, Written::Status)?;
    let verified = verify_acks(&db, log).with_context(|| address.to_string())?;
    say(&format!(
        "{address}: sound, and all {} acknowledged changes are there ({} nodes, {} links)\n",
        verified.acks, verified.nodes, verified.links
    ))
}
