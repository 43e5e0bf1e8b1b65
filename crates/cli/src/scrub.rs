//! Reading and verifying all data of a store, by whoever has it open: this process, or the one that serves its mount.
//!
//! Beside a mount it must not be felt: without a rate it reads for a quarter of the time, however fast the device is.
//! It ends when its client has gone or the store is about to be closed.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_ftl::{Damage, Ftl, Scrub};
use lacuna_nvmfs::{Nvmfs, OpenedVfs};
use serde_json::{Value, json};

use crate::{
    control::{self, Tell, UNFINISHED},
    keys,
    look::{Look, reading_all},
    note,
    printable::one_line,
    progress::Shown,
    say,
    size::Size,
};

/// Longest pause in one piece: afterwards it is seen whether anybody still waits for the result.
const NAP: Duration = Duration::from_millis(50);

/// Read and verify everything that a store holds, mounted or not; exit code 0 if all is what was written
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file or a block device
    store: PathBuf,
    /// Bytes to read per second at most, such as 50M. By default a store that is not mounted is read as fast as
    /// possible, and a mounted one in a quarter of the time
    #[arg(long)]
    rate: Option<Size>,
    /// The result as JSON on standard output
    #[arg(long)]
    json: bool,
    /// Scrub an encrypted store without its key: data is verified, and not decrypted
    #[arg(long)]
    without_key: bool,
}

/// How fast to read.
#[derive(Clone, Copy)]
enum Pace {
    Full,
    BytesPerSecond(u64),
    /// As long as reading takes, times three, is waited.
    Quarter,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let name = arguments.store.display().to_string();
    let rate = arguments.rate.map(|rate| rate.0);
    let question = rate.map_or("scrub".to_owned(), |rate| format!("scrub {rate}"));
    let pace = rate.map_or(Pace::Full, Pace::BytesPerSecond);
    let mut tell = |line: &str| {
        note(line);
        true
    };
    if arguments.without_key {
        let ftl = keys::open_without(&arguments.store)?;
        let result = scrub(&ftl, &owned_by_unknown, pace, &|| true, &mut tell)?;
        return report(&name, &result, arguments.json);
    }
    let result: Value = match control::ask(&arguments.store, &question)? {
        Some(answer) => serde_json::from_str(&answer).with_context(|| name.clone())?,
        None => {
            let look = Look::at(&arguments.store, reading_all())?;
            let OpenedVfs::Store(fs) = &look.opened else {
                bail!("{name}: a directory has no checksums to verify; `lacuna check` looks at its tables");
            };
            let result = scrub(fs.ftl(), &|damage| owners(fs, damage), pace, &|| true, &mut tell)?;
            look.close(None)?;
            result
        }
    };
    report(&name, &result, arguments.json)
}

/// Answers the question `scrub RATE` about a store as long as it is mounted.
pub(crate) fn answer(
    fs: &Nvmfs,
    rate: &str,
    is_mounted: &dyn Fn() -> bool,
    tell: Tell<'_>,
) -> Result<String, String> {
    let pace = match rate {
        "" => Pace::Quarter,
        rate => Pace::BytesPerSecond(rate.parse().map_err(|_| format!("scrub {rate}: not a rate"))?),
    };
    // From here on it is this mount that is scrubbed, and nothing else if that ends.
    tell("reading and verifying all data beside the mount");
    let result = scrub(fs.ftl(), &|damage| owners(fs, damage), pace, is_mounted, tell)
        .map_err(|error| format!("{error:#}"))?;
    Ok(result.to_string())
}

/// Reads everything as long as it `is_open` and its progress is heard; the result as in `--json`.
fn scrub(
    ftl: &Ftl,
    owners: &dyn Fn(&[Damage]) -> Vec<String>,
    pace: Pace,
    is_open: &dyn Fn() -> bool,
    tell: Tell<'_>,
) -> Result<Value> {
    let mut pauses = Pauses::new(pace);
    let mut shown = Shown::default();
    let scrub = ftl.scrub(|so_far| {
        pauses.note_read(so_far.verified_bytes);
        loop {
            if !is_open() || (shown.is_due() && !tell(&progress(so_far))) {
                return ControlFlow::Break(());
            }
            match pauses.rest() {
                Duration::ZERO => break,
                rest => std::thread::sleep(rest.min(NAP)),
            }
        }
        pauses.end();
        ControlFlow::Continue(())
    })?;
    if !scrub.is_complete {
        bail!(UNFINISHED);
    }
    let damage = scrub.damage.iter().zip(owners(&scrub.damage)).map(|(damage, owner)| {
        let sectors = damage.sectors.as_ref().map(|sectors| json!([sectors.start.0, sectors.end.0]));
        json!({ "in": owner, "sectors": sectors, "message": damage.message })
    });
    Ok(json!({
        "verified_bytes": scrub.verified_bytes,
        "seconds": pauses.started.elapsed().as_secs_f64(),
        "damage": damage.collect::<Vec<_>>(),
    }))
}

fn progress(so_far: &Scrub) -> String {
    let Scrub { verified_bytes, expected_bytes, damage, .. } = so_far;
    let percent = verified_bytes.min(expected_bytes) * 100 / (*expected_bytes).max(1);
    format!("{percent}% of {:.1} MB, {} places damaged", *expected_bytes as f64 / 1e6, damage.len())
}

/// What each damage belongs to, as far as it can be said without the key.
fn owned_by_unknown(damage: &[Damage]) -> Vec<String> {
    let owner = |damage: &Damage| match damage.sectors {
        Some(_) => "something encrypted".into(),
        None => "the store itself".into(),
    };
    damage.iter().map(owner).collect()
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

/// Shows a result, and fails if there is damage.
fn report(name: &str, result: &Value, as_json: bool) -> Result<()> {
    let damage = result["damage"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    if as_json {
        let mut result = result.clone();
        result["store"] = name.into();
        say(&(serde_json::to_string_pretty(&result)? + "\n"))?;
    } else {
        for damage in damage {
            let (owner, message) = (text(&damage["in"]), text(&damage["message"]));
            say(&format!("{}\n", one_line(&format!("{name}: {owner}: {message}"))))?;
        }
    }
    if !damage.is_empty() {
        bail!("{name}: damaged in {} places", damage.len());
    }
    if !as_json {
        let bytes = result["verified_bytes"].as_u64().unwrap_or(0);
        say(&format!("{name}: {:.1} MB read, all sound\n", bytes as f64 / 1e6))?;
    }
    Ok(())
}

/// The pauses between reads that keep a pace.
struct Pauses {
    pace: Pace,
    started: Instant,
    /// When the latest reads began and ended, and how much had been read then.
    begun: Instant,
    ended: Instant,
    bytes: u64,
}

impl Pauses {
    fn new(pace: Pace) -> Pauses {
        let now = Instant::now();
        Pauses { pace, started: now, begun: now, ended: now, bytes: 0 }
    }

    /// Reads have ended, with which `bytes` have been read in all.
    fn note_read(&mut self, bytes: u64) {
        (self.ended, self.bytes) = (Instant::now(), bytes);
    }

    /// How much longer to wait before the next reads.
    fn rest(&self) -> Duration {
        match self.pace {
            Pace::Full => Duration::ZERO,
            Pace::BytesPerSecond(rate) => {
                let due = Duration::try_from_secs_f64(self.bytes as f64 / rate as f64);
                due.unwrap_or(Duration::MAX).saturating_sub(self.started.elapsed())
            }
            Pace::Quarter => (3 * (self.ended - self.begun)).saturating_sub(self.ended.elapsed()),
        }
    }

    /// The next reads begin.
    fn end(&mut self) {
        self.begun = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_follow_the_pace() {
        let second = Duration::from_secs(1);
        let now = Instant::now();
        let started = now.checked_sub(10 * second).expect("the machine has run for ten seconds");
        let rest = |pace, bytes| {
            let begun = now.checked_sub(2 * second).expect("it has run for longer");
            Pauses { pace, started, begun, ended: now, bytes }.rest()
        };
        assert_eq!(rest(Pace::Full, 1 << 40), Duration::ZERO);
        // Reading took two seconds, and has ended just now.
        assert!(rest(Pace::Quarter, 1) <= 6 * second && rest(Pace::Quarter, 1) > Duration::ZERO);
        assert_eq!(rest(Pace::BytesPerSecond(100), 900), Duration::ZERO);
        assert!(rest(Pace::BytesPerSecond(100), 1_000_000) > 9000 * second);
        assert!(rest(Pace::BytesPerSecond(0), 1) > 9000 * second, "a rate from elsewhere");
    }
}
