use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_engine::{Store, StoreOptions};
use lacuna_nvmfs::{CheckDepth, OpenedPlace, PlaceOptions, open_place};

use crate::say;

/// Prove that a store is sound, from the flash up to its tables; exit code 0 if it is
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file, a block device, or a directory with tables
    store: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let name = arguments.store.display();
    let opened = open_place(&arguments.store, &PlaceOptions::default())?;
    let mut summary = String::new();
    if let OpenedPlace::Store(fs) = &opened {
        let report = fs.check(CheckDepth::Payload)?;
        for finding in &report.findings {
            say(&format!("{name}: {}\n", finding.message))?;
        }
        if !report.findings.is_empty() {
            bail!("{name}: not sound: {} findings", report.findings.len());
        }
    }
    let place = opened.place();
    if !place.list()?.is_empty() {
        let store = Store::open(place, StoreOptions::default()).with_context(|| name.to_string())?;
        for table in store.check().with_context(|| format!("{name}: not sound"))? {
            summary += &format!("{name}: table {}: {} records\n", table.name, table.records);
        }
        store.close()?;
    }
    opened.close()?;
    say(&format!("{summary}{name}: sound\n"))
}
