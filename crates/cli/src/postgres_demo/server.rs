//! The cluster of the demo, and statements on it by psql.

use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::User;
use rustix::process::getuid;

use crate::demo::{Process, find};

/// PostgreSQL's programs, and whom they run as.
pub(super) struct Programs {
    server: PathBuf,
    initdb: PathBuf,
    psql: PathBuf,
    /// User and group, where root is: the server refuses to run as root.
    account: Option<(u32, u32)>,
}

impl Programs {
    pub(super) fn find() -> Result<Programs> {
        // Debian has the programs of each version in a directory of its own; the newest comes first.
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let mut versions: Vec<(u32, PathBuf)> = versions
            .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
            .collect();
        versions.sort_unstable_by(|a, b| b.cmp(a));
        let more: Vec<PathBuf> = versions.into_iter().map(|(_, path)| path).collect();
        let program = |name: &str| {
            let path = find(name, &more);
            path.with_context(|| format!("{name} is not installed (Debian: postgresql)"))
        };
        let account = match getuid().is_root() {
            true => {
                let user = User::from_name("postgres")?;
                let user = user.context("PostgreSQL does not run as root, and there is no user postgres")?;
                Some((user.uid.as_raw(), user.gid.as_raw()))
            }
            false => None,
        };
        let (server, initdb) = (program("postgres")?, program("initdb")?);
        Ok(Programs { server, initdb, psql: program("psql")?, account })
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some((user, group)) = self.account {
            command.uid(user).gid(group);
        }
        // Somewhere that any user may be.
        command
            .current_dir("/")
            .env_remove("PGOPTIONS")
            .env("LC_ALL", "C")
            .process_group(0)
            .stdin(Stdio::null());
        command
    }

    /// Whether they run as somebody else.
    pub(super) fn is_for_another_user(&self) -> bool {
        self.account.is_some()
    }

    /// Gives a directory to the user that the programs run as.
    pub(super) fn own(&self, directory: &Path) -> Result<()> {
        let Some((user, group)) = self.account else { return Ok(()) };
        chown(directory, Some(user), Some(group)).with_context(|| directory.display().to_string())
    }
}

/// A server with a cluster of its own, that listens to no network.
pub(super) struct Server<'a> {
    programs: &'a Programs,
    pub(super) data: PathBuf,
    sockets: PathBuf,
    process: Process,
}

impl<'a> Server<'a> {
    /// Makes the cluster `data` in a directory that the server's user may write; `sockets` is another, and the file `log`
    /// lies in none of them.
    pub(super) fn start(
        programs: &'a Programs,
        data: PathBuf,
        (sockets, log): (&Path, &Path),
        settings: &[&str],
        interrupted: &AtomicBool,
    ) -> Result<Server<'a>> {
        let mut initdb = programs.command(&programs.initdb);
        initdb.args(["--data-checksums", "--auth=trust", "--username=postgres", "--no-sync"]);
        let made = initdb.arg("-D").arg(&data).output().context("initdb")?;
        if !made.status.success() {
            let text = String::from_utf8_lossy(&made.stderr).into_owned();
            let cause = text.lines().find(|line| line.contains("error:"));
            let cause = cause.or_else(|| text.lines().find(|line| !line.trim().is_empty()));
            let cause = cause.unwrap_or("no reason given");
            bail!("initdb: {}", cause.trim_start_matches("initdb: ").trim_start_matches("error: "));
        }
        ensure!(!interrupted.load(Relaxed), "interrupted");
        let mut command = programs.command(&programs.server);
        command.arg("-D").arg(&data).args(["-c", "listen_addresses=", "-c", "shared_buffers=64MB"]);
        command.args(["-c", "dynamic_shared_memory_type=mmap", "-c", "autovacuum=off"]);
        command.arg("-c").arg(format!("unix_socket_directories={}", sockets.display()));
        settings.iter().for_each(|setting| {
            command.args(["-c", setting]);
        });
        command.stderr(fs::File::create_new(log).with_context(|| log.display().to_string())?);
        let process = Process::start("postgres", &mut command)?;
        let mut server = Server { programs, data, sockets: sockets.to_owned(), process };
        let mut probe = server.psql("SELECT 1");
        probe.stdout(Stdio::null()).stderr(Stdio::null());
        let up = server
            .process
            .wait_until(|| interrupted.load(Relaxed) || probe.status().is_ok_and(|status| status.success()));
        ensure!(!interrupted.load(Relaxed), "interrupted");
        up.with_context(|| last_error(log))?;
        Ok(server)
    }

    fn psql(&self, sql: &str) -> Command {
        let mut command = self.programs.command(&self.programs.psql);
        command.args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", "postgres", "-h"]);
        command.arg(&self.sockets).arg("-c").arg(sql);
        command
    }

    /// Runs a statement and returns what it prints.
    pub(super) fn query(&self, sql: &str) -> Result<String> {
        let output = self.psql(sql).output().context("psql")?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "psql: {}", text.lines().next().unwrap_or("no reason given"));
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Runs a statement that returns one number.
    pub(super) fn number(&self, sql: &str) -> Result<u64> {
        let text = self.query(sql)?;
        text.parse().with_context(|| format!("{sql}: {text:?} is no number"))
    }

    pub(super) fn stop(self) -> Result<()> {
        self.process.end()
    }
}

/// The last complaint in a server's log.
fn last_error(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let line = text.lines().rev().find(|line| line.contains("FATAL") || line.contains("ERROR"));
    line.unwrap_or("postgres gives no reason").to_owned()
}
