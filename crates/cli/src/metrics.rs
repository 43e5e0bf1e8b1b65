use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{control, live, mounts, say};

/// Show the counters of a mounted store, as Prometheus wants them
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file or a block device that is mounted, or where it is
    store: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let asked = control::ask(&arguments.store, "metrics");
    if let Ok(Some(metrics)) = asked {
        return say(&metrics);
    }
    let name = arguments.store.display().to_string();
    // The label that it has while it answers.
    let mounted = mounts::mounted_at(&arguments.store);
    if mounted.is_none() {
        // The store must at least be there.
        arguments.store.metadata().with_context(|| name.clone())?;
    }
    let store = mounted.map_or_else(|| name.clone(), |mount| mount.store.display().to_string());
    say(&live::metrics_of_unmounted(&store))?;
    asked?;
    bail!("{name}: not mounted")
}
