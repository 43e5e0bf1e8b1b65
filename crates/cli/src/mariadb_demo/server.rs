//! The processes of the demo.

use std::{
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use lacuna_bench::mysql::{Address, Connection, Login};
use rustix::process::{Pid, Signal, getuid, kill_process};

/// Longest wait for a server or a mount to come up or to end.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// MariaDB's programs.
pub(super) struct Programs {
    server: PathBuf,
    install: PathBuf,
}

impl Programs {
    pub(super) fn find() -> Result<Programs> {
        let server = find("mariadbd").context("mariadbd is not installed (Debian: mariadb-server)")?;
        let install = find("mariadb-install-db").context("mariadb-install-db is not installed")?;
        Ok(Programs { server, install })
    }
}

/// Looks in PATH, and where administrators have it but users do not.
fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    env::split_paths(&path).chain(more).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// A process that is terminated and waited for when this is dropped.
struct Process {
    name: &'static str,
    child: Child,
}

impl Process {
    fn start(name: &'static str, command: &mut Command) -> Result<Process> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0).spawn();
        Ok(Process { name, child: child.context(name)? })
    }

    /// Waits until `is_up` returns true.
    fn wait_until(&mut self, mut is_up: impl FnMut() -> bool) -> Result<()> {
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
            eprintln!("lacuna: {}: {error}", self.name);
        }
    }
}

/// A store and its mount.
pub(super) struct Mount {
    pub(super) dir: PathBuf,
    pub(super) store: PathBuf,
    process: Process,
}

impl Mount {
    pub(super) fn start(work: &Path, size_bytes: u64) -> Result<Mount> {
        let (dir, store) = (work.join("mount"), work.join("store"));
        fs::create_dir(&dir)?;
        let lacuna = env::current_exe()?;
        let mut format = Command::new(&lacuna);
        format.arg("format").arg(&store).args(["--size", &size_bytes.to_string()]);
        let format = format.stdout(Stdio::null()).status()?;
        ensure!(format.success(), "{}: no store could be made", store.display());
        let mut command = Command::new(&lacuna);
        command.arg("mount").arg(&store).arg(&dir).args(["--foreground", "--fcta"]);
        let mut process = Process::start("lacuna mount", &mut command)?;
        let below = fs::metadata(work)?;
        let is_up = || fs::metadata(&dir).is_ok_and(|above| dev(&above) != dev(&below));
        process.wait_until(is_up)?;
        Ok(Mount { dir, store, process })
    }

    /// Unmounts and closes the store.
    pub(super) fn stop(mut self) -> Result<()> {
        let status = self.process.stop()?;
        ensure!(status.success(), "{} ended with {status}", self.process.name);
        Ok(())
    }
}

fn dev(metadata: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::dev(metadata)
}

/// A server with a data directory and a socket of its own, that listens to no network.
pub(super) struct Server {
    pub(super) data: PathBuf,
    socket: PathBuf,
    process: Process,
}

impl Server {
    pub(super) fn start(
        programs: &Programs,
        base: &Path,
        work: &Path,
        interrupted: &AtomicBool,
    ) -> Result<Server> {
        let data = base.join("data");
        // A socket's path must be short.
        let socket = env::temp_dir().join(format!("lacuna-demo-{}.sock", std::process::id()));
        let user = getuid().is_root().then_some("--user=root");
        let datadir = format!("--datadir={}", data.display());
        let mut install = Command::new(&programs.install);
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        // Without a look at host names, which the server does not use and a container may not know.
        install.arg("--force").arg(&datadir).args(user).process_group(0);
        let installed = install.stdin(Stdio::null()).output().context("mariadb-install-db")?;
        if !installed.status.success() {
            let text = [installed.stdout, installed.stderr].concat();
            let text = String::from_utf8_lossy(&text).into_owned();
            let cause = text.lines().rev().find(|line| line.contains("ERROR"));
            let cause = cause.or_else(|| text.lines().find(|line| !line.trim().is_empty()));
            bail!("mariadb-install-db: {}", cause.unwrap_or("no reason given"));
        }
        ensure!(!interrupted.load(Relaxed), "interrupted");
        let log = work.join("server.log");
        let mut command = Command::new(&programs.server);
        command.arg("--no-defaults").arg(&datadir).args(user);
        command.args(["--skip-networking", "--skip-log-bin", "--innodb-buffer-pool-size=64M"]);
        command.args(["--innodb-flush-method=O_DIRECT", "--innodb-flush-neighbors=0"]);
        command.args(["--plugin-load-add=provider_lz4", "--plugin-maturity=unknown"]);
        command.arg(format!("--socket={}", socket.display()));
        command.arg(format!("--pid-file={}", work.join("server.pid").display()));
        command.arg(format!("--log-error={}", log.display()));
        let process = Process::start("mariadbd", &mut command)?;
        let mut server = Server { data, socket, process };
        let address = server.address();
        let up = server
            .process
            .wait_until(|| interrupted.load(Relaxed) || Connection::connect(&address, &root()).is_ok());
        ensure!(!interrupted.load(Relaxed), "interrupted");
        up.with_context(|| last_error(&log))?;
        Ok(server)
    }

    fn address(&self) -> Address {
        Address::Socket(self.socket.clone())
    }

    pub(super) fn connect(&self) -> Result<Connection> {
        Ok(Connection::connect(&self.address(), &root())?)
    }

    pub(super) fn stop(mut self) -> Result<()> {
        let status = self.process.stop()?;
        ensure!(status.success(), "{} ended with {status}", self.process.name);
        Ok(())
    }
}

fn root() -> Login {
    Login { user: "root".to_owned(), ..Login::default() }
}

/// The last complaint in a server's log.
fn last_error(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let line = text.lines().rev().find(|line| line.contains("[ERROR]"));
    line.unwrap_or("mariadbd gives no reason").to_owned()
}
