//! LinkBench on a server.

use std::path::Path;

use anyhow::{Context, Result, bail};
use lacuna_bench::{
    linkbench::{self, AckLog, Config, Format, RunReport, SqlDb, Written, verify_acks},
    mysql::{Address, Login},
};
use serde_json::{Map, Value, json};

use super::options::{Arguments, SqlOptions, conclude, settings};
use crate::{say, tables::Kind};

fn login(options: &SqlOptions) -> Login {
    Login {
        user: options.user.clone(),
        password: options.password.clone(),
        database: Some(options.database.clone()),
    }
}

fn format(kind: Kind, options: &SqlOptions) -> Result<(Format, &str)> {
    Ok(match kind {
        Kind::Plain => (Format::Plain, "none"),
        Kind::Row => (Format::Row, "zlib"),
        Kind::Page => (Format::Page(options.innodb_algorithm.clone()), &options.innodb_algorithm),
        Kind::Adaptive => bail!("--tables: a server has no adaptive tables"),
    })
}

/// Runs the kinds of tables one after the other; those of the last stay.
pub(super) fn run(arguments: &Arguments, config: &Config, server: &Address) -> Result<()> {
    let mut runs: Vec<RunReport> = Vec::new();
    let mut facts = Vec::new();
    let mut written_from = String::new();
    for (number, kind) in arguments.engine.tables.iter().enumerate() {
        eprintln!("{server}: {} tables, {} ids", kind.name(), config.ids);
        // The log first: a crash in between leaves a log that demands nothing.
        let acks = arguments.phases.ack_log.as_deref().map(AckLog::create).transpose()?;
        let (format, algorithm) = format(*kind, &arguments.sql)?;
        let db = SqlDb::create(server, &login(&arguments.sql), &format, arguments.sql.written_from.clone())?;
        let report = linkbench::run(&db, config, kind.name(), algorithm, acks.as_ref())
            .with_context(|| server.to_string())?;
        runs.push(report);
        facts.push(db.server_facts()?);
        written_from = db.written_from();
        if number + 1 < arguments.engine.tables.len() {
            db.drop_tables()?;
        }
    }
    conclude(arguments, &server.to_string(), &runs, || {
        json!({
            "benchmark": "linkbench",
            "git": env!("LACUNA_GIT"),
            "config": as_json(arguments, config, server, &written_from),
            "runs": runs,
            "servers": facts.into_iter().map(as_object).collect::<Vec<_>>(),
        })
    })
}

/// Verifies that a server has every commit of a log.
pub(super) fn verify(arguments: &Arguments, log: &Path, server: &Address) -> Result<()> {
    let db = SqlDb::open(server, &login(&arguments.sql), Written::Status)?;
    let verified = verify_acks(&db, log).with_context(|| server.to_string())?;
    say(&format!(
        "{server}: sound, and all {} acknowledged changes are there ({} nodes, {} links)\n",
        verified.acks, verified.nodes, verified.links
    ))
}

fn as_json(arguments: &Arguments, config: &Config, server: &Address, written_from: &str) -> Value {
    let mut all = arguments.phases.as_json();
    all.extend(settings(config));
    let own = [
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("server", json!(server.to_string())),
        ("database", json!(arguments.sql.database)),
        ("device_bytes_written_from", json!(written_from)),
        ("tables", arguments.engine.tables.iter().map(|kind| kind.name()).collect()),
        ("algorithm", json!(arguments.sql.innodb_algorithm)),
        ("isolation", json!("read committed")),
    ];
    all.extend(own.map(|(name, value)| (name.to_owned(), value)));
    all.into()
}

/// Settings and counters of a server; numbers as numbers.
fn as_object(facts: Vec<(String, String)>) -> Map<String, Value> {
    let value = |text: String| text.parse::<u64>().map_or(Value::String(text), Value::from);
    facts.into_iter().map(|(name, text)| (name, value(text))).collect()
}
