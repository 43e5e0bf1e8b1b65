//! What the demos of databases share: programs, processes, mounts and directories.
//!
//! They are held by values that stop or remove them when dropped, in the order server, mount, directory, however a demo
//! ends. Processes have process groups of their own, so that Ctrl-C reaches this program alone.

use std::{
    env, fs,
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::complain;

/// Longest wait for a server or a mount to come up or to end.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Becomes true when the demo is to end.
pub(crate) fn interruption() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

/// Looks in PATH, where administrators have it but users do not, and in `more` directories.
pub(crate) fn find(program: &str, more: &[PathBuf]) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(usual)
        .chain(more.iter().cloned())
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
}

/// A process that is terminated and waited for when this is dropped.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
}

impl Process {
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Result<Process> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0).spawn();
        Ok(Process { name, child: child.context(name)? })
    }

    /// Waits until `is_up` returns true.
    pub(crate) fn wait_until(&mut self, mut is_up: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        while !is_up() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended at once ({status})", self.name);
            }
            ensure!(start.elapsed() < WAIT_MAX, "{} does not come up", self.name);
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Ends it in order.
    pub(crate) fn end(mut self) -> Result<()> {
        let status = self.stop()?;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }

    fn stop(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > WAIT_MAX {
                self.child.kill()?;
                self.child.wait()?;
                bail!("{} had to be killed", self.name);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            complain(&format!("{}: {error}", self.name));
        }
    }
}

/// A store and its mount.
pub(crate) struct Mount {
    pub(crate) dir: PathBuf,
    pub(crate) store: PathBuf,
    process: Process,
}

impl Mount {
    /// Makes a store in `work` and mounts it on `dir`, which it makes.
    pub(crate) fn start(work: &Path, dir: &Path, size_bytes: u64, options: &[&str]) -> Result<Mount> {
        let (dir, store) = (dir.to_owned(), work.join("store"));
        fs::create_dir(&dir)?;
        let lacuna = env::current_exe()?;
        let mut format = Command::new(&lacuna);
        format.arg("format").arg(&store).args(["--size", &size_bytes.to_string()]);
        let format = format.stdout(Stdio::null()).status()?;
        ensure!(format.success(), "{}: no store could be made", store.display());
        let mut command = Command::new(&lacuna);
        command.arg("mount").arg(&store).arg(&dir).arg("--foreground").args(options);
        let mut process = Process::start("lacuna mount", &mut command)?;
        let below = fs::metadata(&dir)?;
        let is_up = || fs::metadata(&dir).is_ok_and(|above| dev(&above) != dev(&below));
        process.wait_until(is_up)?;
        Ok(Mount { dir, store, process })
    }

    /// Unmounts and closes the store.
    pub(crate) fn stop(self) -> Result<()> {
        self.process.end()
    }

    /// What the mount has counted.
    pub(crate) fn counters(&self) -> Result<Value> {
        let mut info = Command::new(env::current_exe()?);
        let info = info.arg("info").arg(&self.store).arg("--json").output()?;
        let mut info: Value = serde_json::from_slice(&info.stdout).context("lacuna info of the mount")?;
        Ok(info["mount"].take())
    }
}

fn dev(metadata: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::dev(metadata)
}

/// The demo's own directory.
pub(crate) struct Work(pub(crate) PathBuf);

impl Work {
    pub(crate) fn make(base: &Path, name: &str) -> Result<Work> {
        let named = || base.display().to_string();
        let path = fs::canonicalize(base).with_context(named)?;
        let path = path.join(format!("{name}-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path).with_context(|| path.display().to_string())?;
        Ok(Work(path))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            complain(&format!("{}: {error}", self.0.display()));
        }
    }
}
