//! The server of the demo.

use std::{
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use anyhow::{Context, Result, bail, ensure};
use lacuna_bench::sql::{Address, Login, mysql::Connection};
use rustix::process::getuid;

use crate::demo::{Process, Work, find};

/// MariaDB's programs.
pub(super) struct Programs {
    server: PathBuf,
    install: PathBuf,
}

impl Programs {
    pub(super) fn find() -> Result<Programs> {
        let server = find("mariadbd", &[]).context("mariadbd is not installed (Debian: mariadb-server)")?;
        let install = find("mariadb-install-db", &[]).context("mariadb-install-db is not installed")?;
        Ok(Programs { server, install })
    }
}

/// A server with a data directory and a socket of its own, that listens to no network.
pub(super) struct Server {
    pub(super) data: PathBuf,
    socket: PathBuf,
    process: Process,
    /// Removed after the process has ended.
    _sockets: Work,
}

impl Server {
    pub(super) fn start(
        programs: &Programs,
        base: &Path,
        work: &Path,
        interrupted: &AtomicBool,
    ) -> Result<Server> {
        let data = base.join("data");
        // A socket's path must be short. Nobody else may reach it: whoever does is the server's root, and this user.
        let sockets = Work::make(&env::temp_dir(), "lacuna-demo")?;
        let socket = sockets.0.join("sock");
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
        let mut server = Server { data, socket, process, _sockets: sockets };
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

    pub(super) fn stop(self) -> Result<()> {
        self.process.end()
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
