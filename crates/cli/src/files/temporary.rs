//! Hidden names outside of what is not in its place yet, which do not outlive a copy, nor a signal that ends it.

use std::{
    fs,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, Once},
    thread,
};

use rustix::fs::{AtFlags, unlinkat};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
    low_level::emulate_default_handler,
};

use super::contents::temporary_name;

/// All that there are.
static NAMES: Mutex<Vec<Arc<Name>>> = Mutex::new(Vec::new());

fn names() -> MutexGuard<'static, Vec<Arc<Name>>> {
    NAMES.lock().expect("nobody panics and goes on")
}

struct Name {
    directory: OwnedFd,
    name: Vec<u8>,
}

impl Name {
    /// It may have become another one, or was never used.
    fn remove(&self) {
        let _ = unlinkat(&self.directory, &self.name[..], AtFlags::empty());
    }
}

/// A hidden name in a directory. What has it when this is dropped, or a signal ends the process, is removed.
pub(super) struct Temporary(Arc<Name>);

impl Temporary {
    pub(super) fn new(directory: &OwnedFd) -> std::io::Result<Temporary> {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(watch_signals);
        let name = Arc::new(Name { directory: directory.try_clone()?, name: temporary_name() });
        names().push(Arc::clone(&name));
        Ok(Temporary(name))
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.0.name
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        self.0.remove();
        names().retain(|name| !Arc::ptr_eq(name, &self.0));
    }
}

/// Removes the names before a signal ends the process. Without a thread they stay then, which harms nothing.
fn watch_signals() {
    let ignored = ignored_signals();
    let heeded = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let Ok(mut signals) = Signals::new(heeded) else { return };
    let watch = move || {
        for signal in signals.forever() {
            let names = names();
            names.iter().for_each(|name| name.remove());
            let _ = emulate_default_handler(signal); // ends the process, so that no name is added
        }
    };
    drop(thread::Builder::new().name("signals".into()).spawn(watch));
}

/// A bit for each signal that the caller wants to be ignored (nohup).
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
