//! `mount -o remount,ro` and back, as mount(8) asks its helper for it.
//!
//! The kernel does all of it: it sends no changes to a read-only mount. The store stays open as it was, so a store that
//! was opened for reading cannot become writable. The kernel does not ask for a sync, though, as it asks other file
//! systems: that is asked for here, so that it is done when this returns (see `remounts`).

use std::{path::PathBuf, thread, time::Duration};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::{fs::StatVfsMountFlags, mount::MountFlags};
use serde_json::Value;

use super::{Cache, absolute, name_of};
use crate::{
    complain,
    control::{self, Of},
    mounts,
};

/// Make a mounted file system read-only, or writable again
#[derive(Args)]
pub(crate) struct RemountArguments {
    /// The directory it is mounted on
    dir: PathBuf,
    /// Change nothing from now on
    #[arg(long)]
    read_only: bool,
    /// What the kernel's page cache keeps, which a remount cannot change
    #[arg(
        long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "auto",
        overrides_with = "cache"
    )]
    cache: Option<Cache>,
    /// Every change is durable before it returns, which a remount cannot change
    #[arg(long)]
    sync: bool,
    #[command(flatten)]
    protection: Protection,
}

/// What is to change of the protection from the files; the rest stays.
#[derive(Args, Default)]
struct Protection {
    /// Allow device nodes
    #[arg(long, overrides_with = "nodev")]
    dev: bool,
    /// Allow no device nodes
    #[arg(long)]
    nodev: bool,
    /// Honour set-user-id bits
    #[arg(long, overrides_with = "nosuid")]
    suid: bool,
    /// Do not honour set-user-id bits
    #[arg(long)]
    nosuid: bool,
    /// Allow programs to be run
    #[arg(long, overrides_with = "noexec")]
    exec: bool,
    /// Allow no programs to be run
    #[arg(long)]
    noexec: bool,
}

pub(crate) fn remount(arguments: &RemountArguments) -> Result<()> {
    let name = arguments.dir.display();
    let dir = absolute(&arguments.dir)?;
    let Some(mount) = mounts::mounted_on(&dir)? else {
        bail!("{name}: no Lacuna file system is mounted there");
    };
    // To protect the data is refused for nothing, and waits for nobody before it is done: when the machine goes down, for
    // instance.
    if !arguments.read_only {
        let info = control::ask_owner(Of::Mount(&mount), "info")?.context("nobody serves the store")?;
        let info: Value = serde_json::from_str(&info).context("what the mounted store tells")?;
        check(&info["mount"], arguments).with_context(|| name.to_string())?;
    }
    let present = rustix::fs::statvfs(&dir).with_context(|| name.to_string())?.f_flag;
    rustix::mount::mount_remount(&dir, flags(present, arguments), "").with_context(|| name.to_string())?;
    if !arguments.read_only {
        return Ok(());
    }
    let waiting = format!("{name}: read-only; waiting until what was changed before is synced");
    // Ends with the process.
    let _ = thread::Builder::new().spawn(move || {
        thread::sleep(SYNC_IS_SLOW);
        complain(&waiting);
    });
    let synced = control::ask_owner(Of::Mount(&mount), "sync")
        .and_then(|answer| answer.context("nobody serves the store"));
    if let Err(error) = synced {
        complain(&format!(
            "{name}: read-only, and what was changed before is not known to be synced: {error:#}"
        ));
    }
    Ok(())
}

/// How long a sync may take without a word.
const SYNC_IS_SLOW: Duration = Duration::from_secs(5);

/// Refuses what only a new mount can change. What an earlier version does not tell is left out.
fn check(mount: &Value, arguments: &RemountArguments) -> Result<()> {
    if mount["read_only"] == true {
        bail!("the store is open for reading only; unmount it and mount it again");
    }
    let cache =
        arguments.cache.map(name_of).filter(|cache| mount["cache"].as_str().is_some_and(|is| is != cache));
    let sync = (arguments.sync && mount["sync"] == false).then(|| "sync".to_owned());
    match cache.map(|cache| format!("cache={cache}")).or(sync) {
        Some(option) => bail!("a remount cannot change it to {option}; unmount it and mount it again"),
        None => Ok(()),
    }
}

/// Flags that the kernel would clear if they were not passed again. It leaves the time flags as they are.
fn flags(present: StatVfsMountFlags, arguments: &RemountArguments) -> MountFlags {
    let Protection { dev, nodev, suid, nosuid, exec, noexec } = arguments.protection;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, arguments.read_only);
    for (is_set, again, set, clear) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID, nosuid, suid),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV, nodev, dev),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC, noexec, exec),
    ] {
        flags.set(again, set || present.contains(is_set) && !clear);
    }
    flags
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        remount: RemountArguments,
    }

    #[test]
    fn what_a_remount_cannot_change_is_refused() {
        let mounted = |cache: &str, sync| json!({ "read_only": false, "cache": cache, "sync": sync });
        for (mount, words, refused) in [
            (mounted("auto", false), "", ""),
            (mounted("auto", false), "--cache=auto", ""),
            (mounted("auto", false), "--cache=none", "cache=none"),
            (mounted("none", true), "--cache=none --sync", ""),
            (mounted("none", false), "--cache=none --sync", "sync"),
            (mounted("none", true), "", ""),
            (json!({ "read_only": true }), "", "for reading only"),
            (Value::Null, "--sync", ""),
        ] {
            let line = ["lacuna", "/d"].into_iter().chain(words.split_whitespace());
            let outcome = check(&mount, &CommandLine::parse_from(line).remount);
            let said = outcome.map_or_else(|error| error.to_string(), |()| String::new());
            assert!(said.contains(refused) && said.is_empty() == refused.is_empty(), "{words}: {said}");
        }
    }

    #[test]
    fn a_remount_keeps_what_protects_unless_it_is_told() {
        let (suid, dev, exec) = (MountFlags::NOSUID, MountFlags::NODEV, MountFlags::NOEXEC);
        let protected = StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV | StatVfsMountFlags::RDONLY;
        for (present, words, expected) in [
            (protected, "", suid | dev),
            (StatVfsMountFlags::NOEXEC, "--read-only", exec | MountFlags::RDONLY),
            (protected, "--noexec", suid | dev | exec),
            (protected, "--suid --nodev", dev),
            (protected, "--dev --exec", suid),
            (StatVfsMountFlags::empty(), "--nosuid --nodev --noexec", suid | dev | exec),
        ] {
            let line = ["lacuna", "/d"].into_iter().chain(words.split_whitespace());
            let arguments = CommandLine::parse_from(line).remount;
            assert_eq!(flags(present, &arguments), expected, "{words}");
        }
    }
}
