//! What is put right before a signal ends the process.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
    iterator::Signals,
    low_level::emulate_default_handler,
};

/// Calls `work` before a signal ends the process; a second one ends it at once, unless it is SIGHUP, which comes twice when a
/// terminal closes. Without a thread nothing is put right.
/// What `work` leaves locked stays so until the end. Of several calls only one is sure to be heeded.
pub(crate) fn before_the_end(work: impl Fn() + Send + 'static) {
    let ignored = ignored_signals();
    let heeded: Vec<i32> =
        [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect();
    let is_second = Arc::new(AtomicBool::new(false));
    for signal in heeded.iter().filter(|signal| **signal != SIGHUP) {
        let _ = flag::register_conditional_default(*signal, Arc::clone(&is_second));
    }
    let Ok(mut signals) = Signals::new(heeded) else { return is_second.store(true, Relaxed) };
    let without_a_thread = Arc::clone(&is_second);
    let watch = move || {
        for signal in signals.forever() {
            is_second.store(true, Relaxed);
            work();
            let _ = emulate_default_handler(signal); // ends the process
        }
    };
    if thread::Builder::new().name("signals".into()).spawn(watch).is_err() {
        without_a_thread.store(true, Relaxed);
    }
}

/// A bit for each signal that the caller wants to be ignored (nohup).
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
