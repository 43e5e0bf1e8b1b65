//! `lacuna mount` and `lacuna umount`.
//!
//! Without `--foreground` the program starts itself again as the process that serves the mount, and waits on a pipe
//! until that process reports that the mount is ready, or dies with a reason. So the caller's exit code is reliable,
//! and no process forks with threads running. A program that was started by `lacuna run` serves its mount itself: it hosts
//! the store.

mod daemon;
mod flusher;
mod heap;
mod helper;
mod host;
mod inherited;
mod journal;
mod map_memory;
mod patience;
mod recompress;
mod remount;
mod remounts;
mod reserve;
mod rings;
mod serve;
mod threads;
mod utab;
mod watch;
mod worker;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use lacuna_device as device;
use lacuna_ftl::Footprint;
use lacuna_nvmfs::{Compression, Error};
use rustix::{io::Errno, mount::UnmountFlags, process::geteuid};

use self::reserve::Reserve;
use crate::{
    complain,
    control::{self, Of},
    ended, keys,
    mounts::{self, Mounted},
    size::Size,
};
pub(crate) use helper::{arguments_of_helper, arguments_of_unmounter, is_helper, is_unmounter};
pub use host::Hosting;
pub(crate) use inherited::close_all as close_inherited;
pub(crate) use journal::{detach as log_to_system, install as install_log};
pub(crate) use remount::{RemountArguments, remount};

/// The transport of the kernel's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Carrier {
    /// io_uring where it can be had, else fuser
    Auto,
    /// /dev/fuse
    Fuser,
    /// io_uring; for root only, on Linux 6.14 and later
    Uring,
}

/// A value's name on the command line.
fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().expect("none is hidden").get_name().to_owned()
}

/// What the kernel's page cache keeps of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cache {
    /// Files that are opened without O_DIRECT; what is written reaches the store at once
    Auto,
    /// The same, and what is written until the file is synced or closed, or the kernel writes it back, as on other file
    /// systems: fewer and larger writes, of which none is atomic; a full store shows in fsync and close
    Writeback,
    /// Nothing: each read and write is a request, and each write is atomic
    None,
}

/// When reads update times of last access, in the words of mount(8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Atime {
    /// The first time after a change, and then once a day
    Relatime,
    /// Never
    Noatime,
    /// Each time; files are then read as with --cache=none
    Strictatime,
}

/// Mount a store as a file system
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// A store file or a block device
    pub(crate) store: PathBuf,
    /// The directory to mount it on
    pub(crate) dir: PathBuf,
    /// Serve from this process instead of a background one
    #[arg(long)]
    foreground: bool,
    /// Change nothing
    #[arg(long)]
    read_only: bool,
    /// Let other users in; what they may do is a matter of permissions
    #[arg(long)]
    allow_other: bool,
    /// Threads that serve requests; over io_uring those of each processor. By default as many as keep the processors
    /// busy while the device reads, which is timed: 16 to 64 for each processor
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// What carries the kernel's requests
    #[arg(long, value_enum, default_value_t = Carrier::Auto)]
    transport: Carrier,
    /// Do not turn on FUSE over io_uring where it is off (/sys/module/fuse/parameters/enable_uring)
    #[arg(long)]
    no_enable_uring: bool,
    /// Block size reported to programs; MariaDB takes anything above 4096 for 512
    #[arg(long, default_value_t = 65536, value_parser = block_size)]
    blksize: u32,
    /// What the kernel's page cache keeps
    #[arg(
        long, value_enum, default_value_t = Cache::Auto,
        num_args = 0..=1, require_equals = true, default_missing_value = "auto", overrides_with = "cache"
    )]
    cache: Cache,
    /// When reads update times of last access
    #[arg(long, value_enum, default_value_t = Atime::Relatime, overrides_with = "atime")]
    atime: Atime,
    /// Listing a directory never updates its time of last access
    #[arg(long, overrides_with = "nodiratime")]
    nodiratime: bool,
    /// Do not trim behind InnoDB pages that shrank
    #[arg(long)]
    no_infer_trim: bool,
    /// Make /dev/fcta, by which MariaDB looks for atomic writes
    #[arg(long)]
    fcta: bool,
    /// Allow device nodes on the file system
    #[arg(long)]
    dev: bool,
    /// Honour set-user-id bits on the file system
    #[arg(long)]
    suid: bool,
    /// Allow no programs to be run from the file system
    #[arg(long)]
    noexec: bool,
    /// How much of the store to make use of: whole, percent of what is live, or auto, which is all of a disk and
    /// 200 percent of a file
    #[arg(long, default_value_t = Footprint::Auto)]
    footprint: Footprint,
    /// Memory for the store's map; what does not fit is read when it is needed. By default enough for a full store, but
    /// no more than an eighth of the machine's memory
    #[arg(long, value_name = "SIZE")]
    map_memory: Option<Size>,
    /// Memory for data as it is stored, compressed where it is: a short read of what is there needs no device. None by
    /// default: the page cache of the kernel, or the pool of a database, does more with the same memory as long as data
    /// is read uncompressed
    #[arg(long, value_name = "SIZE")]
    chunk_cache: Option<Size>,
    /// Space that only root may fill: percent, such as 10%, or a size; 0 for none. By default 5% of what other users
    /// are let into
    #[arg(long, value_name = "PERCENT|SIZE")]
    root_reserve: Option<Reserve>,
    /// How files are compressed that say nothing themselves: none, lz4, zstd or zstd:LEVEL, 1 to 22; by default as the
    /// store says
    #[arg(long, value_name = "HOW", default_value_t = Compression::Default, hide_default_value = true)]
    compress: Compression,
    /// In the background, compress with zstd:LEVEL what nobody has written for long and is not compressed with zstd yet;
    /// not files whose own compression is none
    #[arg(long, value_name = "HOW", value_parser = zstd)]
    recompress: Option<Compression>,
    /// How long that is at least
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, requires = "recompress", value_parser = clap::value_parser!(u32).range(1..))]
    recompress_after: u32,
    /// Make every change durable before it returns
    #[arg(long)]
    sync: bool,
    /// End with an error when a failure of the device has stopped the store, so that whoever started this process can
    /// start it again; otherwise it goes on serving reads
    #[arg(long)]
    exit_on_failure: bool,
    /// How long an unmounted store, or one whose process got SIGTERM, waits for space of the file system that it lies
    /// in. Then it is closed as by a power cut: what was not synced is lost
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    close_timeout: u32,
    /// Started by `lacuna mount`: report on standard output when the mount is ready
    #[arg(long, hide = true, conflicts_with = "foreground")]
    background_process: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let arguments = checked(arguments)?;
    if arguments.foreground || arguments.background_process {
        return serve::run(&arguments);
    }
    keys::ask_ahead(&arguments.store)?;
    let hidden = mounts::mounted_on(&arguments.dir);
    daemon::start(&arguments)?;
    if let Ok(Some(hidden)) = hidden {
        let dir = arguments.dir.display();
        complain(&format!(
            "{dir}: {} is mounted there too, and hidden by this mount",
            hidden.store.display()
        ));
    }
    Ok(())
}

/// Mounts and serves from within another program. Returns when the file system is unmounted and its store closed.
pub(crate) fn host(arguments: &Arguments, hosting: &Arc<dyn Hosting>) -> Result<()> {
    serve::serve(&checked(arguments)?, Some(hosting))
}

/// The words of a command line `lacuna mount`, for a program that serves the mount itself; `key` is a descriptor with the
/// key.
pub(crate) fn words_for_host(arguments: &Arguments, key: Option<i32>) -> Vec<OsString> {
    let mut words = vec!["lacuna".into(), "mount".into()];
    words.extend(key.map(|descriptor| format!("--key-fd={descriptor}").into()));
    words.extend(daemon::command_line(arguments));
    words
}

/// The same arguments with absolute paths, if they make sense; switches FUSE over io_uring on if they do not forbid it.
pub(crate) fn checked(arguments: &Arguments) -> Result<Arguments> {
    let mut arguments = arguments.clone();
    if is_dead(&arguments.dir) {
        let dir = arguments.dir.display();
        bail!("{dir}: a dead mount, whose process was killed; clear it with: lacuna umount --dead {dir}");
    }
    if arguments.sync && arguments.cache == Cache::Writeback {
        bail!(
            "sync wants each write to be durable when it returns, cache=writeback keeps it in memory: choose one"
        );
    }
    if arguments.cache == Cache::Writeback && !arguments.allow_other && !geteuid().is_root() {
        bail!(
            "cache=writeback needs --allow-other, or root: the kernel writes back, and tells times, as root, who would \
             be refused"
        );
    }
    // The background process leaves the working directory.
    arguments.store = absolute(&arguments.store)?;
    arguments.dir = absolute(&arguments.dir)?;
    if !arguments.dir.is_dir() {
        bail!("{}: not a directory", arguments.dir.display());
    }
    // Not by the background process, whose messages nobody reads before the mount is ready.
    if !arguments.background_process && !arguments.no_enable_uring && arguments.transport != Carrier::Fuser {
        rings::turn_on();
    }
    Ok(arguments)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize().with_context(|| path.display().to_string())
}

fn is_dead(dir: &Path) -> bool {
    // Attributes may live on in the kernel's cache; this is always asked for.
    matches!(rustix::fs::statfs(dir), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// The way to a store that cannot be opened because it is mounted.
pub(crate) fn hint(error: &anyhow::Error) -> Option<String> {
    let busy = error.chain().find_map(|cause| match cause.downcast_ref()? {
        Error::Device(device::Error::Busy { path }) => Some(path),
        _ => None,
    })?;
    let mount = control::mount_of(&absolute(busy).ok()?).ok()??;
    Some(format!("; it is mounted on {}: use its files there", mount.dir.display()))
}

fn zstd(text: &str) -> Result<Compression, String> {
    match text.parse() {
        Ok(compression @ Compression::Zstd(_)) => Ok(compression),
        _ => Err("old data is compressed with zstd or zstd:LEVEL, 1 to 22".into()),
    }
}

fn block_size(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(bytes) if bytes.is_power_of_two() && (512..=1 << 20).contains(&bytes) => Ok(bytes),
        _ => Err("a block size is a power of two from 512 to 1048576".into()),
    }
}

/// Unmount a file system and wait until its store is closed
#[derive(Args)]
pub(crate) struct UnmountArguments {
    /// The directory it is mounted on
    dir: PathBuf,
    /// Detach it now, even if it is in use; its store is closed with its last file
    #[arg(long)]
    lazy: bool,
    /// Detach it only if its process is gone, and do nothing if nothing is mounted there
    #[arg(long, conflicts_with = "lazy")]
    dead: bool,
}

pub(crate) fn unmount(arguments: &UnmountArguments) -> Result<()> {
    let name = arguments.dir.display();
    let dir = mount_point(&arguments.dir)?;
    let Some(mount) = mounts::mounted_on(&dir)? else {
        if let Some(Mounted { dir, .. }) = control::mount_of(&dir)? {
            bail!("{name}: a store; to unmount it, name the directory: {}", dir.display());
        }
        if arguments.dead {
            return Ok(());
        }
        bail!("{name}: no Lacuna file system is mounted there");
    };
    if arguments.lazy {
        unmount_dir(&dir, true).with_context(|| name.to_string())?;
        utab::forget(&dir);
        return Ok(());
    }
    // A caller that cannot ask can still unmount. A stopped process is another matter: umount(2) would wait for it, and
    // not even a kill ends that.
    let has_owner = match control::ask_owner(Of::Mount(&mount), "ping") {
        Err(error) if error.chain().any(|cause| cause.is::<control::Unanswered>()) => bail!(
            "{name}: {error:#}; not unmounted. Let it go on or kill it, or detach it now: lacuna umount --lazy {name}"
        ),
        answer => answer.is_ok_and(|answer| answer.is_some()),
    };
    if arguments.dead {
        if !is_dead(&dir) {
            bail!("{name}: its process is there; not detached");
        }
        unmount_dir(&dir, true).with_context(|| name.to_string())?;
        utab::forget(&dir);
        complain(&was_not_closed(&arguments.dir));
        return Ok(());
    }
    let was_dead = !has_owner && is_dead(&dir);
    // Asked before the unmount, so that it is known how that ends.
    let asked = control::ask_ahead(&mount, ended::QUESTION).unwrap_or(None);
    unmount_dir(&dir, false).with_context(|| name.to_string())?;
    utab::forget(&dir);
    let store = mount.store.display();
    if !was_dead && let Ok(Some(other)) = mounts::of_device(&mount.device) {
        let other = other.dir.display();
        complain(&format!("{name}: unmounted; {store} is still mounted on {other}, and closed with that"));
        return Ok(());
    }
    let is_slow = || complain(&format!("{name}: unmounted; waiting until {store} is written and closed"));
    match asked.and_then(|asked| asked.wait(CLOSING_IS_SLOW, is_slow)) {
        Some(outcome) if outcome == ended::CLOSED => {}
        Some(outcome) => bail!("{name}: unmounted, but {outcome}"),
        None if was_dead => complain(&was_not_closed(&arguments.dir)),
        // It is another user's or session's.
        None => complain(&format!(
            "{name}: unmounted; whether its process has written and closed {store} is not known"
        )),
    }
    Ok(())
}

fn was_not_closed(dir: &Path) -> String {
    let name = dir.display();
    format!("{name}: its process was gone, so the store was not closed: what was not synced is lost")
}

/// How long closing a store takes before a word about it is due.
const CLOSING_IS_SLOW: Duration = Duration::from_secs(5);

/// `dir` as the kernel's table of mounts names it. Without a request to what is mounted there, which a dead process
/// refuses, and a stopped one never answers.
fn mount_point(dir: &Path) -> Result<PathBuf> {
    let parent =
        dir.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    if let Some((parent, last)) = parent.zip(dir.file_name()) {
        let named = absolute(parent)?.join(last);
        if mounts::mounted_on(&named)?.is_some() {
            return Ok(named);
        }
    }
    absolute(dir) // it may be a symbolic link
}

const IN_USE: &str = "in use by a program (see --lazy)";

fn unmount_dir(dir: &Path, lazy: bool) -> Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, flags) {
        Err(Errno::PERM) => unmount_as_user(dir, lazy),
        Err(Errno::BUSY) => bail!("{IN_USE}"),
        result => Ok(result?),
    }
}

/// Only the set-user-id program of the FUSE package may unmount what a user mounted.
fn unmount_as_user(dir: &Path, lazy: bool) -> Result<()> {
    let output = Command::new("fusermount3")
        .args(if lazy { &["-u", "-z"][..] } else { &["-u"] })
        .arg("--")
        .arg(dir)
        .output()
        .context("fusermount3 (package fuse3)")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    match complaint.trim() {
        _ if output.status.success() => Ok(()),
        busy if busy.ends_with("Device or resource busy") => bail!("{IN_USE}"),
        other => bail!("{other}"),
    }
}

/// Unmounts everywhere the file system of `store` with this number, whose process is to end or has ended: requests that
/// wait for an answer fail.
pub(crate) fn force_unmount(store: &Path, device: &str) {
    let is_it = |mount: &Mounted| mount.device == device && mount.store == store;
    for mount in mounts::all().unwrap_or_default().into_iter().filter(is_it) {
        if rustix::mount::unmount(&mount.dir, UnmountFlags::empty()).is_err() {
            let _ = rustix::mount::unmount(&mount.dir, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
        utab::forget(&mount.dir);
    }
}

/// Detaches `dir` if `store` is what is mounted there: by now that may be another one.
fn detach(dir: &Path, store: &Path) {
    if matches!(mounts::mounted_on(dir), Ok(Some(mount)) if mount.store == store)
        && let Err(error) = unmount_dir(dir, true)
    {
        log::error!("{}: cannot be detached: {error:#}", dir.display());
    }
}
