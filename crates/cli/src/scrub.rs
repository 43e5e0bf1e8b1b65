use std::{
    ops::ControlFlow,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Args;
use lacuna_ftl::Damage;
use lacuna_nvmfs::{Nvmfs, OpenedVfs, VfsOptions, open_vfs};
use serde_json::json;

use crate::{check::MAP_MEMORY, printable::one_line, progress::Shown, say, size::Size};

/// Read and verify everything that a store holds; exit code 0 if all is what was written
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file or a block device
    store: PathBuf,
    /// Bytes to read per second at most, such as 50M
    #[arg(long)]
    rate: Option<Size>,
    /// The result as JSON on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let name = arguments.store.display().to_string();
    let mut options = VfsOptions::default();
    options.options.ftl.map_memory = Some(MAP_MEMORY);
    let opened = open_vfs(&arguments.store, &options)?;
    let OpenedVfs::Store(fs) = &opened else {
        bail!("{name}: a directory has no checksums to verify; `lacuna check` looks at its tables");
    };
    let mut pace =
        Pace { started: Instant::now(), shown: Shown::default(), rate: arguments.rate.map(|r| r.0) };
    let scrub = fs.ftl().scrub(|so_far| {
        pace.keep(so_far.verified_bytes, so_far.expected_bytes, so_far.damage.len());
        ControlFlow::Continue(())
    })?;
    let owners = owners(fs, &scrub.damage);
    let described = || owners.iter().zip(&scrub.damage);
    if arguments.json {
        let damage = described().map(|(owner, damage)| {
            let sectors = damage.sectors.as_ref().map(|sectors| json!([sectors.start.0, sectors.end.0]));
            json!({ "in": owner, "sectors": sectors, "message": damage.message })
        });
        let result = json!({
            "store": name,
            "verified_bytes": scrub.verified_bytes,
            "seconds": pace.started.elapsed().as_secs_f64(),
            "damage": damage.collect::<Vec<_>>(),
        });
        say(&(serde_json::to_string_pretty(&result)? + "\n"))?;
    } else {
        for (owner, damage) in described() {
            say(&format!("{}\n", one_line(&format!("{name}: {owner}: {}", damage.message))))?;
        }
    }
    if !scrub.damage.is_empty() {
        bail!("{name}: damaged in {} places", scrub.damage.len());
    }
    opened.close()?;
    if !arguments.json {
        say(&format!("{name}: {:.1} MB read, all sound\n", scrub.verified_bytes as f64 / 1e6))?;
    }
    Ok(())
}

/// The file or structure that each damage belongs to.
fn owners(fs: &Nvmfs, damage: &[Damage]) -> Vec<String> {
    let sectors = damage.iter().filter_map(|damage| Some(damage.sectors.as_ref()?.start));
    let mut owners = fs.owners_of(&sectors.collect::<Vec<_>>()).into_iter();
    let owner = |damage: &Damage| match damage.sectors {
        Some(_) => owners.next().expect("one for each that has sectors"),
        None => "the store itself".into(),
    };
    damage.iter().map(owner).collect()
}

/// Shows progress once a second and keeps below a rate.
struct Pace {
    started: Instant,
    shown: Shown,
    rate: Option<u64>,
}

impl Pace {
    fn keep(&mut self, done: u64, expected: u64, damaged: usize) {
        if let Some(rate) = self.rate {
            let due = Duration::from_secs_f64(done as f64 / rate.max(1) as f64);
            std::thread::sleep(due.saturating_sub(self.started.elapsed()));
        }
        if self.shown.is_due() {
            let percent = done as f64 * 100.0 / expected.max(1) as f64;
            eprintln!("{percent:.0}% of {:.1} MB, {damaged} places damaged", expected as f64 / 1e6);
        }
    }
}
