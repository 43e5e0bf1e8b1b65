//! Starting the process that serves a mount in the background.

use std::{
    ffi::OsString,
    io::Read,
    mem,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::{Arguments, name_of};
use crate::{keys, log_device, signals::before_the_end};

/// The line that the background process writes to standard output when the mount is ready.
pub(super) const READY: &str = "mounted\n";

/// Starts the background process and returns when its mount is ready.
pub(super) fn start(arguments: &Arguments) -> Result<()> {
    let program = std::env::current_exe().context("this program's own file")?;
    let mut child = Command::new(program)
        .args(["mount", "--background-process"])
        .args(keys::is_given().then_some("--key-fd=0"))
        .args(command_line(arguments))
        .stdin(if keys::is_given() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting the background process")?;
    if let Some(mut stdin) = child.stdin.take() {
        // If it ended before it could read this, it has a reason, which is reported below.
        let _ = keys::pass_on(&mut stdin);
    }
    let mut stdout = child.stdout.take().expect("piped");
    let mut stderr = child.stderr.take().expect("piped");
    let child = Arc::new(Mutex::new(Some(child)));
    end_with_this(Arc::clone(&child));
    let mut ready = vec![0; READY.len()];
    let is_ready = stdout.read_exact(&mut ready).is_ok() && ready == READY.as_bytes();
    let child = child.lock().expect("nobody panics with it").take();
    if is_ready {
        return Ok(());
    }
    let mut complaint = String::new();
    stderr.read_to_string(&mut complaint)?;
    let status = child.expect("put there").wait()?;
    match complaint.trim().trim_start_matches("lacuna: ") {
        "" => bail!("{}: the background process ended: {status}", arguments.store.display()),
        complaint => bail!("{complaint}"),
    }
}

/// A signal that ends this process before it has reported the mount ends the background process first, and so the mount,
/// if there is one already. After that the mount stays, and what this process returns says so.
fn end_with_this(background: Arc<Mutex<Option<Child>>>) {
    before_the_end(move || {
        let mut child = background.lock().expect("nobody panics with it");
        match child.as_mut() {
            Some(child) => {
                let _ = kill_process(Pid::from_child(child), Signal::TERM);
                let _ = child.wait();
            }
            None => loop {
                thread::park();
            },
        }
        mem::forget(child);
    });
}

/// The arguments again, for the process that serves the mount.
pub(super) fn command_line(arguments: &Arguments) -> Vec<OsString> {
    let mut line: Vec<OsString> = Vec::new();
    let Arguments {
        read_only,
        allow_other,
        nodiratime,
        no_infer_trim,
        no_enable_uring,
        fcta,
        dev,
        suid,
        noexec,
        sync,
        exit_on_failure,
        ..
    } = *arguments;
    for (is_set, flag) in [
        (read_only, "--read-only"),
        (allow_other, "--allow-other"),
        (nodiratime, "--nodiratime"),
        (no_infer_trim, "--no-infer-trim"),
        (no_enable_uring, "--no-enable-uring"),
        (fcta, "--fcta"),
        (dev, "--dev"),
        (suid, "--suid"),
        (noexec, "--noexec"),
        (sync, "--sync"),
        (exit_on_failure, "--exit-on-failure"),
    ] {
        if is_set {
            line.push(flag.into());
        }
    }
    line.extend(arguments.threads.map(|threads| format!("--threads={threads}").into()));
    line.push(format!("--transport={}", name_of(arguments.transport)).into());
    line.push(format!("--cache={}", name_of(arguments.cache)).into());
    line.push(format!("--atime={}", name_of(arguments.atime)).into());
    line.push(format!("--blksize={}", arguments.blksize).into());
    line.push(format!("--compress={}", arguments.compress).into());
    if let Some(how) = arguments.recompress {
        line.push(format!("--recompress={how}").into());
        line.push(format!("--recompress-after={}", arguments.recompress_after).into());
    }
    line.push(format!("--footprint={}", arguments.footprint).into());
    line.extend(arguments.map_memory.map(|size| format!("--map-memory={}", size.0).into()));
    line.extend(arguments.chunk_cache.map(|size| format!("--chunk-cache={}", size.0).into()));
    line.push(format!("--close-timeout={}", arguments.close_timeout).into());
    line.extend(arguments.root_reserve.map(|reserve| format!("--root-reserve={reserve}").into()));
    line.extend(log_device::words());
    line.push("--".into());
    line.push(arguments.store.clone().into());
    line.push(arguments.dir.clone().into());
    line
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        mount: Arguments,
    }

    #[test]
    fn the_background_process_gets_every_argument() {
        for given in [
            &["lacuna", "a", "b"][..],
            &["lacuna", "--cache=writeback", "a", "b"],
            &[
                "lacuna",
                "--read-only",
                "--allow-other",
                "--cache=none",
                "--atime=strictatime",
                "--nodiratime",
                "--no-infer-trim",
                "--no-enable-uring",
                "--fcta",
                "--dev",
                "--suid",
                "--noexec",
                "--sync",
                "--exit-on-failure",
                "--map-memory=1048576",
                "--root-reserve=7%",
                "--compress=zstd:7",
                "--recompress=zstd:19",
                "--recompress-after=60",
                "--threads=7",
                "--close-timeout=5",
                "--transport=uring",
                "--blksize=4096",
                "--footprint=150",
                "-a",
                "--b",
            ],
        ] {
            let given = given.iter().enumerate().map(|(at, text)| match *text {
                // The names come last, and may look like options.
                text if text.starts_with('-') && at + 2 >= given.len() => format!("./{text}"),
                text => text.to_owned(),
            });
            let arguments = CommandLine::parse_from(given).mount;
            let again = CommandLine::parse_from(
                std::iter::once(OsString::from("lacuna")).chain(command_line(&arguments)),
            );
            assert_eq!(again.mount, arguments);
        }
    }
}
