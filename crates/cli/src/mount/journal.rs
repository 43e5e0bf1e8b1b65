//! Where messages of the program's parts go: to standard error, of a mounted store in the background to the system's
//! log.

use std::{
    io::Write,
    os::unix::net::UnixDatagram,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::printable::one_line;
use log::{Level, LevelFilter, Log, Metadata, Record};

/// The socket on which syslog, or systemd's journal instead of it, listens.
const SYSLOG: &str = "/dev/log";
/// The kernel's own log.
const KERNEL_LOG: &str = "/dev/kmsg";
/// Facility `daemon` of syslog.
const FACILITY: u8 = 3 << 3;

/// The program's logger.
struct Journal {
    /// Whether standard error is gone and the system's log takes its place.
    detached: AtomicBool,
}

static JOURNAL: Journal = Journal { detached: AtomicBool::new(false) };

/// Installs the logger. Messages go to standard error until [`detach`].
pub(crate) fn install() {
    if log::set_logger(&JOURNAL).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// Sends all further messages to the system's log.
pub(crate) fn detach() {
    JOURNAL.detached.store(true, Ordering::Relaxed);
}

/// Whether [`detach`] was called.
pub(super) fn is_detached() -> bool {
    JOURNAL.detached.load(Ordering::Relaxed)
}

/// Says something to the kernel's log as well, where it is with what the kernel says of mounts and devices. Only root
/// may; for others nothing happens.
pub(super) fn tell_kernel(message: &str) {
    let line = format!("<3>lacuna[{}]: {}\n", std::process::id(), one_line(message));
    let _ = std::fs::write(KERNEL_LOG, line);
}

/// Whether the transport complains about an answer that no process waits for any more: its request was interrupted, or
/// the file system unmounted (`ENOENT`); or about unmounting when it ends, which it tries whether or not the mount
/// still exists: we remove what is left of a mount ourselves.
fn is_too_late(record: &Record<'_>) -> bool {
    match record.target() {
        "fuser::reply" => record.args().to_string().ends_with("(os error 2)"),
        "fuser::session" => record.args().to_string().starts_with("Failed to umount"),
        _ => false,
    }
}

impl Log for Journal {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The transport's own messages are useful to its developers only.
        metadata.level() <= if metadata.target().starts_with("lacuna") { Level::Info } else { Level::Warn }
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) || is_too_late(record) {
            return;
        }
        let message = record.args().to_string();
        let message = one_line(&message);
        if is_detached() {
            let severity = match record.level() {
                Level::Error => 3,
                Level::Warn => 4,
                _ => 6,
            };
            let line = format!("<{}>lacuna[{}]: {}", FACILITY | severity, std::process::id(), message);
            // A machine without a log is no reason to stop serving files.
            let _ = UnixDatagram::unbound().and_then(|socket| socket.send_to(line.as_bytes(), SYSLOG));
        } else {
            let _ = writeln!(std::io::stderr(), "lacuna: {message}");
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_comes_too_late_is_left_out() {
        for (target, what, errno, left_out) in [
            ("fuser::reply", "Failed to send FUSE reply", 2, true),
            ("fuser::reply", "Failed to send FUSE reply", 22, false),
            ("fuser::session", "Failed to umount filesystem", 16, true),
            ("fuser::session", "Received non-init FUSE operation", 16, false),
            ("lacuna_fuse::service", "Failed to umount filesystem", 2, false),
        ] {
            let error = std::io::Error::from_raw_os_error(errno);
            let found =
                is_too_late(&Record::builder().target(target).args(format_args!("{what}: {error}")).build());
            assert_eq!(found, left_out, "{target}, {what}, {errno}");
        }
    }
}
