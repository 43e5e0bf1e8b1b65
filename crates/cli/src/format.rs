use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lacuna_nvmfs::{FormatOptions, format_path};

use crate::{say, size::Size};

/// Make an empty store: a new file, or a block device
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file, made when missing, or a block device
    store: PathBuf,
    /// Size of the store, such as 8G; a block device is used as it is
    #[arg(long)]
    size: Size,
    /// Overwrite whatever is there
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut options = FormatOptions::default();
    options.ftl.force = arguments.force;
    format_path(&arguments.store, Some(arguments.size.0), &options)?;
    say(&format!("{}: formatted\n", arguments.store.display()))
}
