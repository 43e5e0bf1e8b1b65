//! A MariaDB server.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::Scratch;

/// A MariaDB server of this test's own: its data, its socket, nothing of the system's.
pub(crate) struct Server {
    process: Child,
}

impl Server {
    /// `None` where MariaDB is missing, so that `what` is not tested.
    pub(crate) fn start(scratch: &Scratch, what: &str) -> Option<Server> {
        Server::start_with(scratch, what, &[])
    }

    /// The same, with further options.
    pub(crate) fn start_with(scratch: &Scratch, what: &str, options: &[&str]) -> Option<Server> {
        let data = scratch.path("data");
        if !data.exists() {
            let mut install = Command::new("mariadb-install-db");
            install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
            install.arg(format!("--datadir={}", data.display())).args(as_root());
            let Ok(output) = install.output() else {
                eprintln!("not tested: {what} (mariadb-install-db is not installed)");
                return None;
            };
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let mut command = Command::new("mariadbd");
        command.args(["--no-defaults", "--skip-networking", "--innodb-buffer-pool-size=32M"]);
        command.arg(format!("--datadir={}", data.display())).args(as_root());
        command.args(["--socket=server.sock", "--pid-file=server.pid", "--skip-log-bin"]).args(options);
        let process = command.current_dir(scratch.path(".")).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Server { process };
        let start = Instant::now();
        while !server.answers(scratch) {
            assert!(start.elapsed() < Duration::from_secs(600), "the server does not come up");
            assert_eq!(server.process.try_wait().unwrap(), None, "the server ended");
            thread::sleep(Duration::from_millis(100));
        }
        Some(server)
    }

    /// Runs statements as root, and returns what they say.
    pub(crate) fn query(&self, scratch: &Scratch, sql: &str) -> String {
        let output = self.client(scratch, sql).output().unwrap();
        assert!(output.status.success(), "{sql}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A client that runs statements as root.
    pub(crate) fn client(&self, scratch: &Scratch, sql: &str) -> Command {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--user=root", "--batch", "--skip-column-names"]);
        client.arg(format!("--socket={}", scratch.path("data/server.sock").display()));
        client.arg(format!("--execute={sql}"));
        client
    }

    fn answers(&self, scratch: &Scratch) -> bool {
        std::os::unix::net::UnixStream::connect(scratch.path("data/server.sock")).is_ok()
    }
}

/// As in a power cut of the server: it has no time to write anything.
impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The server refuses to run as root without this option.
fn as_root() -> Option<&'static str> {
    let metadata = fs::metadata("/proc/self").unwrap();
    (std::os::unix::fs::MetadataExt::uid(&metadata) == 0).then_some("--user=root")
}
