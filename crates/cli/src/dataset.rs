use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_bench::dataset::{self, Config, Rows, RunReport};
use serde_json::{Value, json};

use crate::{
    note,
    output::{is_same_file, write_json},
    say,
    tables::{EngineOptions, Tables, Target},
};

/// Load the lines of a file as rows, overwrite rows by others of it, and show room and traffic
#[derive(Args)]
pub(crate) struct Arguments {
    /// File of rows, a line each; empty lines are left out
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    engine: EngineOptions,
    /// Rows to overwrite; by default as many as there are
    #[arg(long, value_name = "N")]
    overwrites: Option<u64>,
    /// Seed of which row is overwritten by which
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { engine, seed, json, .. } = arguments;
    if let Some(json) = json
        && is_same_file(json, &arguments.file)
    {
        bail!("{}: the rows are read from there", json.display());
    }
    engine.check(json.as_deref())?;
    let rows = Rows::read(&arguments.file)?;
    let overwrites = arguments.overwrites.unwrap_or(rows.count());
    let config = Config { overwrites, seed: *seed, quiet: false };
    let run = |target: &Target, tables: Tables, ()| {
        let Tables { vfs, store_options, table_options, kind, algorithm } = tables;
        note(&format!("{}: {} tables, {} rows", target.name(), kind.name(), rows.count()));
        let named = (kind.name(), algorithm);
        dataset::run(&rows, config, vfs, store_options, table_options, named).with_context(|| target.name())
    };
    let (target, runs) = engine.run_each("dataset", || Ok(()), run)?;
    say(&dataset::comparison(&runs))?;
    if let Some(path) = json {
        write_json(path, &report(arguments, &target, &runs))?;
    }
    Ok(())
}

fn report(arguments: &Arguments, target: &Target, runs: &[RunReport]) -> Value {
    let mut settings = arguments.engine.as_json(target);
    settings.insert("file".to_owned(), json!(arguments.file.display().to_string()));
    settings.insert("seed".to_owned(), json!(arguments.seed));
    json!({ "benchmark": "dataset", "git": env!("LACUNA_GIT"), "config": settings, "runs": runs })
}
