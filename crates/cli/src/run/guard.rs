//! The guard of a program that serves a mount itself.
//!
//! When such a program is killed while one of its own threads waits for an answer of the mount, that thread waits for
//! ever: nobody is left to answer, and the kernel ends the connection only when the process is gone. So a process of its
//! own watches one thread of the program, which does nothing else than to be there. When that thread has ended, it
//! unmounts, by which the kernel ends the connection. It also unmounts for a program that is about to end and may
//! have become another user meanwhile.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::mount;

/// How often the thread is looked for.
const INTERVAL: Duration = Duration::from_millis(100);

/// Watch a program that serves a mount; what it says comes through standard input
#[derive(Args)]
pub(crate) struct GuardArguments {
    /// The store that is mounted
    store: PathBuf,
    /// The process
    program: i32,
    /// Stay, and not start another process that does
    #[arg(long)]
    stay: bool,
}

/// Starts the guard of this process, which is no child of it: the program may wait for any child.
pub(super) fn start(store: &Path, messages: OwnedFd) -> Result<()> {
    let own = std::env::current_exe().context("this program's own file")?;
    let mut command = Command::new(own);
    command.arg("run-guard").arg(store).arg(std::process::id().to_string());
    let status = command.stdin(messages).stdout(Stdio::null()).status().context("starting the guard")?;
    if !status.success() {
        bail!("the guard did not start: {status}");
    }
    Ok(())
}

pub(crate) fn guard(arguments: &GuardArguments) -> Result<()> {
    let GuardArguments { store, program, stay } = arguments;
    if !stay {
        let own = std::env::current_exe().context("this program's own file")?;
        let mut command = Command::new(own);
        command.arg("run-guard").arg("--stay").arg(store).arg(program.to_string());
        command.stdin(Stdio::inherit()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().context("starting the guard")?;
        return Ok(());
    }
    mount::close_inherited()?;
    mount::log_to_system();
    rustix::process::setsid().context("leaving the session")?;
    std::env::set_current_dir("/")?;
    // Whoever ends a group of processes means the program, with which the guard ends.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    watch(store, *program)
}

/// Until the process has ended.
fn watch(store: &Path, program: i32) -> Result<()> {
    let pid = Pid::from_raw(program).context("no number of a process")?;
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
    let (sender, messages) = channel();
    let input = BufReader::new(File::from(rustix::io::dup(rustix::stdio::stdin())?));
    thread::Builder::new().name("messages".into()).spawn(move || {
        for line in input.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    })?;
    // What is mounted: the thread that lives as long as it is served, and the file system's number.
    let mut mounted: Option<(PathBuf, String)> = None;
    let force_unmount = |mounted: Option<(PathBuf, String)>| {
        if let Some((_, device)) = mounted {
            mount::force_unmount(store, &device);
        }
    };
    loop {
        match messages.recv_timeout(INTERVAL) {
            Ok(message) => match message.split(' ').collect::<Vec<_>>()[..] {
                ["mounted", thread, device] => {
                    force_unmount(mounted.take());
                    let task = Path::new("/proc").join(program.to_string()).join("task").join(thread);
                    mounted = Some((task, device.to_owned()));
                }
                ["unmount"] => force_unmount(mounted.take()),
                ["unmounted"] => mounted = None,
                _ => log::warn!("{}: not understood: {message}", store.display()),
            },
            Err(RecvTimeoutError::Timeout) => {}
            // Nobody has the other end of the pipe.
            Err(RecvTimeoutError::Disconnected) => thread::sleep(INTERVAL),
        }
        if mounted.as_ref().is_some_and(|(task, _)| !task.exists()) {
            force_unmount(mounted.take());
        }
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        if poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ended| ended > 0) {
            force_unmount(mounted.take());
            return Ok(());
        }
    }
}
