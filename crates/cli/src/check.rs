use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_ftl::CheckDepth as FlashDepth;
use lacuna_nvmfs::{CheckDepth, OpenedVfs};
use serde_json::Value;

use crate::{
    control, keys,
    look::{Look, has_no_tables, holds_tables, reading_all},
    printable::one_line,
    progress::Shown,
    say,
};

/// Prove that a store is sound, from the flash up to its tables; exit code 0 if it is
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file, a block device, a directory with tables, or where a store is mounted
    store: PathBuf,
    /// Check an encrypted store without its key: the flash only, of which no data is decrypted
    #[arg(long)]
    without_key: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let name = arguments.store.display();
    if let Some(findings) = control::ask(&arguments.store, "check")? {
        let summary = match has_mounted_tables(&arguments.store) {
            true => format!("{name}: it is mounted, so the tables in it were not looked at\n"),
            false => String::new(),
        };
        return report(&name.to_string(), &findings.lines().collect::<Vec<_>>(), &summary);
    }
    if arguments.without_key {
        let found = keys::open_without(&arguments.store)?.check(FlashDepth::Payload)?.findings;
        let findings: Vec<_> = found.iter().map(|finding| finding.message.as_str()).collect();
        return report(&name.to_string(), &findings, "");
    }
    if has_no_tables(&arguments.store) {
        bail!("{name}: there are no tables");
    }
    let look = Look::at(&arguments.store, reading_all())?;
    let opened = &look.opened;
    let mut summary = String::new();
    let mut findings = Vec::new();
    if let OpenedVfs::Store(fs) = opened {
        let report = fs.check_reporting(CheckDepth::Payload, Shown::default().told())?;
        findings = report.findings.into_iter().map(|finding| finding.message).collect();
    }
    let mut tables = None;
    if findings.is_empty() && holds_tables(&*opened.vfs())? {
        let store = look.tables(&name.to_string())?;
        for table in store.check().with_context(|| format!("{name}: not sound"))? {
            summary += &format!("{name}: table {}: {} records\n", one_line(&table.name), table.records);
        }
        tables = Some(store);
    }
    look.close(tables)?;
    let findings: Vec<&str> = findings.iter().map(String::as_str).collect();
    report(&name.to_string(), &findings, &summary)
}

/// Whether a mounted store has tables, which are closed.
fn has_mounted_tables(store: &Path) -> bool {
    let info = control::ask(store, "info").ok().flatten();
    let info = info.and_then(|info| serde_json::from_str::<Value>(&info).ok()).unwrap_or_default();
    info["tables"].as_array().is_some_and(|tables| !tables.is_empty())
}

fn report(name: &str, findings: &[&str], summary: &str) -> Result<()> {
    for finding in findings {
        say(&format!("{}\n", one_line(&format!("{name}: {finding}"))))?;
    }
    if !findings.is_empty() {
        bail!("{name}: not sound: {} findings", findings.len());
    }
    say(&format!("{summary}{name}: sound\n"))
}
