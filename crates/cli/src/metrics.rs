use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{control, live, say};

/// Show the counters of a mounted store, as Prometheus wants them
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file or a block device that is mounted, or where it is
    store: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match control::ask(&arguments.store, "metrics")? {
        Some(metrics) => say(&metrics),
        None => {
            // The store must at least be there.
            let name = arguments.store.display().to_string();
            arguments.store.metadata().with_context(|| name.clone())?;
            say(&live::metrics_of_unmounted(&name))?;
            bail!("{name}: not mounted")
        }
    }
}
