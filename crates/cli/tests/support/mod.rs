//! Running the program.

pub(crate) mod mariadb;
pub(crate) mod postgres;

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

/// A directory of one test's own, removed at its end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("lacuna-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Out-degrees of a small graph, without LinkBench's million-link node.
    pub(crate) fn distribution(&self) -> PathBuf {
        let path = self.path("distribution");
        std::fs::write(&path, "nlinks\n0 45\n1 77\n3 93\n10 99\n60 99.9\n20000 100\n").unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The program, to be run in the scratch directory.
pub(crate) fn lacuna(scratch: &Scratch) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lacuna"));
    command.current_dir(&scratch.0).env("RUST_BACKTRACE", "1");
    command
}

/// Runs the program with arguments separated by blanks.
pub(crate) fn run(scratch: &Scratch, arguments: &str) -> Output {
    lacuna(scratch).args(arguments.split_whitespace()).output().unwrap()
}

/// Waits, however long that takes a busy machine. The program that makes it true must not end meanwhile.
pub(crate) fn wait_until(child: &mut Child, is_true: impl Fn() -> bool) {
    while !is_true() {
        assert_eq!(child.try_wait().unwrap(), None, "ended by itself");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills of runs with an acknowledgement log, and what they hit: one that hits nothing proves nothing.
pub(crate) struct Kills {
    /// Whether a line of the log comes from a request, and not from the load.
    pub(crate) is_request: fn(&str) -> bool,
    all: u64,
    in_work: u64,
    in_requests: u64,
}

impl Kills {
    pub(crate) fn new(is_request: fn(&str) -> bool) -> Kills {
        Kills { is_request, all: 0, in_work: 0, in_requests: 0 }
    }

    /// Kills a run with the acknowledgement log `acks` on the store `store`, and returns its log. Every second run is
    /// killed among its requests, on any machine, and every fourth soon after its load began, or later; the others
    /// whenever the moment comes.
    pub(crate) fn kill(&mut self, seed: u64, child: &mut Child, scratch: &Scratch) -> String {
        let moment = Duration::from_millis(20 + seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 3000);
        let read = || std::fs::read_to_string(scratch.path("acks")).unwrap_or_default();
        let has_requests = |log: &str| log.lines().skip(1).any(self.is_request);
        // More than an empty store has.
        let is_at_work = || std::fs::metadata(scratch.path("store")).is_ok_and(|of| of.blocks() > 2048);
        let moment = match seed % 4 {
            1 | 3 => {
                wait_until(child, || has_requests(&read()));
                moment
            }
            2 => {
                wait_until(child, is_at_work);
                moment / 20
            }
            _ => moment,
        };
        std::thread::sleep(moment);
        assert_eq!(child.try_wait().unwrap(), None, "seed {seed}: ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
        let log = read();
        self.all += 1;
        self.in_work += u64::from(is_at_work());
        self.in_requests += u64::from(has_requests(&log));
        let lines = log.lines().count();
        eprintln!("LACUNA_SEED={seed}: killed {moment:?} later, with {lines} lines of acknowledgements");
        log
    }

    /// # Panics
    /// When too few hit anything.
    pub(crate) fn assert_enough(&self) {
        let Kills { all, in_work, in_requests, .. } = *self;
        eprintln!("{all} kills: {in_work} at work, {in_requests} of them among requests");
        assert!(in_requests >= all / 2, "{in_requests} of {all} runs were killed among their requests");
        assert!(in_work >= all * 3 / 4, "{in_work} of {all} runs were killed at work");
    }
}

/// As [`run`], again and again while the store is in use: on a busy machine the kernel takes a while to end a killed
/// process's requests.
pub(crate) fn run_after_kill(scratch: &Scratch, arguments: &str) -> Output {
    loop {
        let output = run(scratch, arguments);
        if output.status.success() || !String::from_utf8_lossy(&output.stderr).contains("in use") {
            return output;
        }
    }
}

/// Runs the program, which must succeed; its standard output.
pub(crate) fn succeed(scratch: &Scratch, arguments: &str) -> String {
    succeeded(arguments, run(scratch, arguments))
}

/// Standard output of a run that must have succeeded.
pub(crate) fn succeeded(arguments: &str, output: Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "lacuna {arguments}: {:?}: {stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
