//! A PostgreSQL server.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown},
        net::UnixStream,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, getuid, kill_process};

/// How long one of its programs may take, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(300);

/// A cluster of a test's own in /var/tmp, where the server's user gets to; removed at its end.
pub(crate) struct Cluster {
    pub(crate) dir: PathBuf,
    programs: PathBuf,
    /// Whom the programs run as, where root is.
    account: Option<(u32, u32)>,
}

/// A running server of a [`Cluster`].
pub(crate) struct Server<'a> {
    cluster: &'a Cluster,
    process: Child,
}

/// User and group of a name.
fn account(name: &str) -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let user = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut numbers = user.split(':').skip(2).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// The directory of the newest version's programs.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, bin)| bin.join("initdb").exists() && bin.join("postgres").exists())
        .collect();
    found.sort_unstable();
    found.pop().map(|(_, bin)| bin)
}

impl Cluster {
    /// `None` where PostgreSQL, or its user, is missing, so that `what` is not tested.
    pub(crate) fn new(what: &str) -> Option<Cluster> {
        let is_root = getuid().is_root();
        let account = account("postgres").filter(|_| is_root);
        let Some(programs) = programs() else {
            eprintln!("not tested: {what} (PostgreSQL is not installed)");
            return None;
        };
        if is_root && account.is_none() {
            eprintln!("not tested: {what} (there is no user postgres)");
            return None;
        }
        // A short path: that of a socket has at most 107 bytes.
        let dir = tempfile::Builder::new().prefix("lacuna-pg").tempdir_in("/var/tmp").unwrap().keep();
        let cluster = Cluster { dir, programs, account };
        if let Some((user, group)) = account {
            chown(&cluster.dir, Some(user), Some(group)).unwrap();
        }
        fs::set_permissions(&cluster.dir, fs::Permissions::from_mode(0o755)).unwrap();
        let mut initdb = cluster.command("initdb");
        initdb.args(["--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "-D"]);
        cluster.must_end(initdb.arg(cluster.data()));
        Some(cluster)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// What `--postgres` takes.
    pub(crate) fn address(&self) -> String {
        self.dir.display().to_string()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        if let Some((user, group)) = self.account {
            command.uid(user).gid(group);
        }
        command.current_dir("/").env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn must_end(&self, command: &mut Command) {
        let log = self.dir.join("output");
        let mut child = command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "{command:?}: {}", fs::read_to_string(&log).unwrap_or_default());
                return;
            }
            if start.elapsed() > PATIENCE {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{command:?} does not end");
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts its server, with these settings beside its own.
    pub(crate) fn start(&self, settings: &[&str]) -> Server<'_> {
        let mut command = self.command("postgres");
        command
            .arg("-D")
            .arg(self.data())
            .arg("-c")
            .arg(format!("unix_socket_directories={}", self.address()));
        for setting in ["listen_addresses=", "shared_buffers=32MB", "dynamic_shared_memory_type=mmap"] {
            command.args(["-c", setting]);
        }
        settings.iter().for_each(|setting| {
            command.args(["-c", setting]);
        });
        let log = self.dir.join("log");
        let process = command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        let mut server = Server { cluster: self, process };
        let start = Instant::now();
        while !server.answers() {
            let said = || fs::read_to_string(&log).unwrap_or_default();
            assert!(start.elapsed() < PATIENCE, "the server does not come up: {}", said());
            assert_eq!(server.process.try_wait().unwrap(), None, "the server ended: {}", said());
            thread::sleep(Duration::from_millis(50));
        }
        server
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Server<'_> {
    /// Runs a statement in a database as the user postgres.
    pub(crate) fn query(&self, database: &str, sql: &str) {
        let mut psql = self.cluster.command("psql");
        psql.args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database, "-c", sql, "-h"]);
        self.cluster.must_end(psql.arg(&self.cluster.dir));
    }

    /// It accepts connections: while it recovers it refuses them.
    fn answers(&self) -> bool {
        if UnixStream::connect(self.cluster.dir.join(".s.PGSQL.5432")).is_err() {
            return false;
        }
        let mut ready = self.cluster.command("pg_isready");
        ready.args(["-q", "-t", "10", "-h"]).arg(&self.cluster.dir).stderr(Stdio::null());
        ready.status().is_ok_and(|status| status.success())
    }

    /// Kills it with its processes, as in a power cut of the server.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

/// It has no time to write anything.
impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // Its processes notice at some time, and until then the server refuses to start again. All of them, and nothing
        // else, work in the directory of the data.
        let data = self.cluster.data();
        let start = Instant::now();
        loop {
            let left = processes_in(&data);
            if left.is_empty() || start.elapsed() > PATIENCE {
                return;
            }
            for process in left {
                let _ = kill_process(process, Signal::KILL);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The processes whose working directory this is.
fn processes_in(directory: &Path) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let inside =
        entries.filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == directory));
    inside.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
}
