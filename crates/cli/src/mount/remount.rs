//! `mount -o remount,ro` and back, as mount(8) asks its helper for it.
//!
//! The kernel does all of it: it sends no changes to a read-only mount. The store stays open as it was, so a store that
//! was opened for reading cannot become writable.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::{fs::StatVfsMountFlags, mount::MountFlags};
use serde_json::Value;

use super::{absolute, serve};
use crate::control;

/// Make a mounted file system read-only, or writable again
#[derive(Args)]
pub(crate) struct RemountArguments {
    /// The directory it is mounted on
    dir: PathBuf,
    /// Change nothing from now on
    #[arg(long)]
    read_only: bool,
}

pub(crate) fn remount(arguments: &RemountArguments) -> Result<()> {
    let name = arguments.dir.display();
    let dir = absolute(&arguments.dir)?;
    let Some(store) = serve::store_mounted_on(&dir)? else {
        bail!("{name}: no Lacuna file system is mounted there");
    };
    if !arguments.read_only {
        let info = control::ask(&store, "info")?.context("nobody serves the store")?;
        let info: Value = serde_json::from_str(&info).context("what the mounted store tells")?;
        if info["mount"]["read_only"] == true {
            bail!("{name}: the store is open for reading only; unmount it and mount it again");
        }
    }
    let present = rustix::fs::statvfs(&dir).with_context(|| name.to_string())?.f_flag;
    rustix::mount::mount_remount(&dir, flags(present, arguments.read_only), "")
        .with_context(|| name.to_string())
}

/// Flags that the kernel would clear if they were not passed again. It leaves the time flags as they are.
fn flags(present: StatVfsMountFlags, read_only: bool) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, read_only);
    for (is_set, again) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    ] {
        flags.set(again, present.contains(is_set));
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remount_keeps_what_protects() {
        let present = StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV | StatVfsMountFlags::RDONLY;
        assert_eq!(flags(present, false), MountFlags::NOSUID | MountFlags::NODEV);
        assert_eq!(flags(StatVfsMountFlags::NOEXEC, true), MountFlags::NOEXEC | MountFlags::RDONLY);
    }
}
