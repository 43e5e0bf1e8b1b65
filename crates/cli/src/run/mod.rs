//! `lacuna run`: starts a program that serves the mount of a store itself, so that its reads and writes need no other
//! process.
//!
//! What does that is a library (`crates/preload`) that the dynamic linker loads into the program before all others. It
//! gets the words of a command line `lacuna mount` from a file in memory, whose descriptor the program inherits; beside the
//! program goes a guard, for whatever ends it.

mod guard;
mod program;

pub(crate) use guard::{GuardArguments, guard};

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::File,
    io::Write,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::{
    fs::MemfdFlags,
    io::FdFlags,
    pipe::PipeFlags,
    process::{Resource, geteuid, getrlimit},
};

use crate::{keys, mount};

/// Tells the library what it is to do: the descriptors of the words and of the guard, and which process is meant, by its
/// number and start.
const VARIABLE: &str = "LACUNA_RUN";
/// The library that is put into programs.
const LIBRARY: &str = "liblacuna_preload.so";
/// What the dynamic linker loads before all others.
const PRELOAD: &str = "LD_PRELOAD";

/// Run a program that serves the mount of a store itself: reads and writes of what it alone has open with O_DIRECT then
/// need no other process
#[derive(Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    mount: mount::Arguments,
    /// The program and its arguments, after `--`. The store is closed when it ends; if it is killed, what was not synced is
    /// lost. It must not be a script that starts the program meant as another process
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(crate) fn run(arguments: &RunArguments) -> Result<()> {
    if !geteuid().is_root() {
        bail!("a program that serves a mount is started by root; it may become another user then");
    }
    let program = program::find(&arguments.program[0])?;
    let library = library()?;
    if let Some(most) = getrlimit(Resource::Fsize).current {
        bail!(
            "files are limited to {most} bytes (ulimit -f): writes beyond in the store would end the program"
        );
    }
    if arguments.mount.is_written_back() {
        bail!(
            "cache=writeback leaves times of files to the kernel, which would not know of the program's own writes: choose another"
        );
    }
    let mount = mount::checked(&arguments.mount.clone().hosted())?;
    if crate::is_mounted(&mount.store, &mount.dir) {
        bail!("{}: mounted already; its files can be used there", mount.dir.display());
    }
    keys::ask_ahead(&mount.store)?;
    let key = keys::is_given().then(key_in_memory).transpose()?;
    let words = mount::words_for_host(&mount, key.as_ref().map(AsRawFd::as_raw_fd));
    let words = in_memory("lacuna-run", |to| write_words(to, &words))?;
    let (to_read, to_write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).context("a pipe")?;
    guard::start(&mount.store, to_read)?;
    for descriptor in [Some(&words), Some(&to_write), key.as_ref()].into_iter().flatten() {
        rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
    }
    let own = std::process::id();
    let started = start_of(own as i32).context("/proc/self/stat")?;
    let numbers = format!("{} {} {own} {started}", words.as_raw_fd(), to_write.as_raw_fd());
    let error = Command::new(&program)
        .arg0(&arguments.program[0])
        .args(&arguments.program[1..])
        .env(VARIABLE, numbers)
        .env(PRELOAD, preloaded(&library))
        .exec();
    Err(error).with_context(|| program.display().to_string())
}

/// When a process started, in ticks since the machine did.
pub fn start_of(process: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program before may have anything in it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The library beside this program, or where packages put libraries.
fn library() -> Result<PathBuf> {
    let own = env::current_exe().context("this program's own file")?;
    let dir = own.parent().unwrap_or(Path::new("/"));
    let places =
        [dir.join(LIBRARY), dir.join("../lib").join(LIBRARY), dir.join("../lib/lacuna").join(LIBRARY)];
    let found = places.iter().find(|place| place.is_file());
    let named = found.and_then(|place| place.canonicalize().ok());
    let Some(library) = named else {
        bail!("{LIBRARY} is not in {}, nor in ../lib from there", dir.display());
    };
    // The dynamic linker takes these for the end of the name.
    if library.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        bail!("{}: a path with spaces or colons cannot be preloaded", library.display());
    }
    Ok(library)
}

/// The library before what is preloaded anyway.
fn preloaded(library: &Path) -> OsString {
    let others = env::var_os(PRELOAD).filter(|others| !others.is_empty());
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = others {
        all.push(":");
        all.push(others);
    }
    all
}

/// A file in memory, which is gone with its last descriptor.
fn in_memory(name: &str, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<OwnedFd> {
    let mut file =
        File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).context("a file in memory")?);
    write(&mut file).context("a file in memory")?;
    Ok(file.into())
}

fn key_in_memory() -> Result<OwnedFd> {
    in_memory("lacuna-run-key", keys::pass_on)
}

/// This version, by which the library knows whether it understands the rest, and the words, each with a NUL behind it.
fn write_words(to: &mut File, words: &[OsString]) -> std::io::Result<()> {
    for word in
        [OsStr::new(env!("CARGO_PKG_VERSION"))].into_iter().chain(words.iter().map(OsString::as_os_str))
    {
        to.write_all(word.as_bytes())?;
        to.write_all(b"\0")?;
    }
    Ok(())
}
