use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lacuna_bench::proof;
use serde_json::json;

use crate::{output::write_json, say};

/// Judge what ./evaluate or bench/proof measured against what the design promises
#[derive(Args)]
pub(crate) struct Arguments {
    /// Directory that it keeps its rounds in
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Write the verdicts to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let proof = proof::judge(&arguments.directory)?;
    if let Some(path) = &arguments.json {
        write_json(path, &json!(proof))?;
    }
    say(&proof.markdown())
}
