//! The log device that the command line names, for whichever command opens a store.
//!
//! It is never taken from the store itself: whoever made that would decide what is opened.

use std::{
    ffi::OsString,
    path::{self, PathBuf},
    sync::OnceLock,
};

use anyhow::{Result, bail};
use clap::Args;
use lacuna_nvmfs::{LogDevicePath, VfsOptions};

/// Options of all commands that open a store.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LogArguments {
    /// The log device of the store: memory (/dev/dax*, a file on a file system with DAX, or, for trials, a file in
    /// /dev/shm), or a device or file that is faster than the store
    #[arg(long, global = true, value_name = "PATH")]
    log_device: Option<PathBuf>,
    /// The store's log device is lost: go on without it, from some moment since the last checkpoint. What was synced
    /// later may be missing. Commands that only look (check, info, scrub, ls, cat, rescue) leave store and log device as they
    /// are; the first that writes (mount, put, grow ...) gives the log device up for good
    #[arg(long, global = true, conflicts_with = "log_device")]
    without_log_device: bool,
    /// Give the store this log device, which must hold nothing. A store that has another one gives that up first: open
    /// it with --log-device, unless that is lost, and then with --without-log-device
    #[arg(long, global = true, value_name = "PATH", conflicts_with_all = ["log_device", "without_log_device"])]
    new_log_device: Option<PathBuf>,
}

/// Set before any command runs.
static CHOSEN: OnceLock<LogDevicePath> = OnceLock::new();

/// The command line's choice, for all that is opened from now on.
///
/// # Errors
/// When there are two: the parser takes options before and after a subcommand for each other's.
pub(crate) fn choose(arguments: &LogArguments) -> Result<()> {
    let LogArguments { log_device, without_log_device, new_log_device } = arguments;
    if usize::from(log_device.is_some())
        + usize::from(*without_log_device)
        + usize::from(new_log_device.is_some())
        > 1
    {
        bail!("--log-device, --without-log-device and --new-log-device cannot be used together");
    }
    // Processes that serve a mount leave the working directory.
    let absolute = |path: &PathBuf| path::absolute(path).unwrap_or_else(|_| path.clone());
    let chosen = match arguments {
        LogArguments { log_device: Some(path), .. } => LogDevicePath::Path(absolute(path)),
        LogArguments { without_log_device: true, .. } => LogDevicePath::Without,
        LogArguments { new_log_device: Some(path), .. } => LogDevicePath::New(absolute(path)),
        _ => LogDevicePath::None,
    };
    CHOSEN.set(chosen).expect("the command line is read once");
    Ok(())
}

pub(crate) fn chosen() -> LogDevicePath {
    CHOSEN.get().cloned().unwrap_or_default()
}

/// Options for opening the store that a command names.
pub(crate) fn vfs_options() -> VfsOptions {
    VfsOptions { log_device: chosen(), ..VfsOptions::default() }
}

/// The choice as words of a command line.
pub(crate) fn words() -> Vec<OsString> {
    let option = |name: &str, path: PathBuf| {
        let mut word = OsString::from(name);
        word.push(path);
        vec![word]
    };
    match chosen() {
        LogDevicePath::None => Vec::new(),
        LogDevicePath::Path(path) => option("--log-device=", path),
        LogDevicePath::Without => vec!["--without-log-device".into()],
        LogDevicePath::New(path) => option("--new-log-device=", path),
    }
}
