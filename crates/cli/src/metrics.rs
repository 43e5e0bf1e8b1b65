use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::{control, say};

/// Show the counters of a mounted store, as Prometheus wants them
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file or a block device that is mounted
    store: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match control::ask(&arguments.store, "metrics")? {
        Some(metrics) => say(&metrics),
        None => bail!("{}: not mounted", arguments.store.display()),
    }
}
