//! Limits of time and memory for tests whose input might make the code run or grow without end.

use std::{
    io::Write,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

/// Ends the process with a message when it still exists after a time that nothing needs.
#[must_use]
pub struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    /// Waits `limit` for its end; `case` says how to replay what goes on for ever.
    pub fn new(case: String, limit: Duration) -> Watchdog {
        let (alive, ended) = channel();
        thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // Not by eprintln, which the test harness keeps until a test has ended.
                let _ = writeln!(std::io::stderr(), "goes on for ever: {case}");
                std::process::abort();
            }
        });
        Watchdog { _alive: alive }
    }
}

/// The most memory that this process ever had, in bytes.
///
/// # Panics
/// Without `/proc`.
pub fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    peak.and_then(|kib| kib.trim().parse::<u64>().ok()).expect("a number of KiB") << 10
}
