use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use lacuna_bench::proof;

use crate::say;

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
        let text = format!("{}\n", serde_json::to_string_pretty(&proof)?);
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    say(&proof.markdown())
}
