//! LinkBench on a server.

use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;
use lacuna_bench::{
    linkbench::{self, AckLog, Config, Format, RunReport, SqlDb, Written, verify_acks},
    mysql::{Address, Login},
};
use serde_json::{Map, Value, json};

use crate::{
    linkbench::{Arguments, conclude, settings},
    say,
    tables::Kind,
};

/// Options that mean something with --mysql alone.
#[derive(Args)]
pub(crate) struct Options {
    /// With --mysql: user to connect as
    #[arg(long, default_value = "root", requires = "mysql")]
    user: String,
    /// With --mysql: password, if any
    #[arg(long, default_value = "", requires = "mysql", hide_default_value = true)]
    password: String,
    /// With --mysql: database for the tables; made when missing
    #[arg(long, default_value = "linkbench", requires = "mysql")]
    database: String,
    /// With --mysql: compression of page tables: lz4, zlib, lzo, lzma, bzip2 or snappy, as far as the
    /// server has it
    #[arg(long, value_name = "ALGORITHM", default_value = "lz4", requires = "mysql")]
    innodb_algorithm: String,
    /// With --mysql: what bytes written are counted by: a block device, process (the server's
    /// /proc/PID/io), status (the server's own counter), or auto, the first of these that can be had
    #[arg(long, value_name = "COUNTER", default_value = "auto", requires = "mysql")]
    written_from: Written,
}

fn login(options: &Options) -> Login {
    Login {
        user: options.user.clone(),
        password: options.password.clone(),
        database: Some(options.database.clone()),
    }
}

fn format(kind: Kind, options: &Options) -> (Format, &str) {
    match kind {
        Kind::Plain => (Format::Plain, "none"),
        Kind::Row => (Format::Row, "zlib"),
        Kind::Page => (Format::Page(options.innodb_algorithm.clone()), &options.innodb_algorithm),
    }
}

/// Runs the kinds of tables one after the other; those of the last stay.
pub(crate) fn run(arguments: &Arguments, config: &Config, server: &Address) -> Result<()> {
    let mut runs: Vec<RunReport> = Vec::new();
    let mut facts = Vec::new();
    let mut written_from = String::new();
    for (number, kind) in arguments.engine.tables.iter().enumerate() {
        eprintln!("{server}: {} tables, {} ids", kind.name(), config.ids);
        // The log first: a crash in between leaves a log that demands nothing.
        let acks = arguments.phases.ack_log.as_deref().map(AckLog::create).transpose()?;
        let (format, algorithm) = format(*kind, &arguments.sql);
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
pub(crate) fn verify(arguments: &Arguments, log: &Path, server: &Address) -> Result<()> {
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
