//! Tests in a child process that has a copy of all that is open.

#![allow(unsafe_code)] // Nothing else forks.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long the child may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Runs `child` in a process that was forked from this one; returns whether it returned true, in time. No thread may hold
/// a lock of the allocator meanwhile, so the test is a program of its own.
///
/// # Panics
/// When nothing can be forked.
pub fn forked(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: no other thread of this program holds a lock of the allocator: those of the store sleep.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "cannot fork");
    if pid == 0 {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: it takes a number.
        unsafe { libc::_exit(if matches!(ended, Ok(true)) { 0 } else { 1 }) }
    }
    let began = Instant::now();
    let mut status = 0;
    // SAFETY: `status` is ours, and so is the process.
    while unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == 0 {
        if began.elapsed() > LIMIT {
            // SAFETY: it is our child, and was not waited for yet.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        thread::sleep(Duration::from_millis(10));
    }
    status == 0
}
