//! Running the program.

#![allow(dead_code)] // Each test file uses a part of it.

use std::{
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

/// Waits until `file` has more than so many lines, however long that takes a busy machine: the program that
/// writes it must not end meanwhile.
pub(crate) fn wait_for_lines(child: &mut Child, file: &Path, lines: usize) {
    let count = || std::fs::read_to_string(file).unwrap_or_default().lines().count();
    while count() <= lines {
        assert_eq!(child.try_wait().unwrap(), None, "ended by itself");
        std::thread::sleep(Duration::from_millis(20));
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
