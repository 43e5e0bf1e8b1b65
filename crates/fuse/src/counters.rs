//! Activity of a mount since it was made.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::innodb::NoTrim;

/// Counters that many threads add to.
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    syncs: AtomicU64,
    io_errors: AtomicU64,
    no_space_errors: AtomicU64,
    atomic_handshakes: AtomicU64,
    trims_inferred: AtomicU64,
    trim_bytes: AtomicU64,
    no_trim: [AtomicU64; NoTrim::ALL.len()],
}

/// Values of [`Counters`] at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountersSnapshot {
    /// Reads answered.
    pub reads: u64,
    /// Bytes that they returned.
    pub read_bytes: u64,
    /// Writes answered.
    pub writes: u64,
    /// Bytes that they stored.
    pub write_bytes: u64,
    /// Calls of fsync and fdatasync, and writes that had to be durable at once.
    pub syncs: u64,
    /// Requests that failed with EIO: damage, or a device that fails.
    pub io_errors: u64,
    /// Requests that failed with ENOSPC.
    pub no_space_errors: u64,
    /// Files for which the DirectFS ioctl was answered.
    pub atomic_handshakes: u64,
    /// Writes that implied a trim.
    pub trims_inferred: u64,
    /// Bytes between the ends of these writes and of their pages.
    pub trim_bytes: u64,
    /// Writes to such files that implied none, by reason, as in [`NoTrim::ALL`].
    pub no_trim: [u64; NoTrim::ALL.len()],
}

impl Counters {
    pub(crate) fn read(&self, bytes: usize) {
        add(&self.reads, 1);
        add(&self.read_bytes, bytes as u64);
    }

    pub(crate) fn write(&self, bytes: usize) {
        add(&self.writes, 1);
        add(&self.write_bytes, bytes as u64);
    }

    pub(crate) fn sync(&self) {
        add(&self.syncs, 1);
    }

    pub(crate) fn io_error(&self) {
        add(&self.io_errors, 1);
    }

    pub(crate) fn no_space_error(&self) {
        add(&self.no_space_errors, 1);
    }

    pub(crate) fn atomic_handshake(&self) {
        add(&self.atomic_handshakes, 1);
    }

    pub(crate) fn trim(&self, bytes: u64) {
        add(&self.trims_inferred, 1);
        add(&self.trim_bytes, bytes);
    }

    pub(crate) fn no_trim(&self, reason: NoTrim) {
        add(&self.no_trim[reason.index()], 1);
    }

    /// The values now, each on its own.
    pub fn snapshot(&self) -> CountersSnapshot {
        CountersSnapshot {
            reads: get(&self.reads),
            read_bytes: get(&self.read_bytes),
            writes: get(&self.writes),
            write_bytes: get(&self.write_bytes),
            syncs: get(&self.syncs),
            io_errors: get(&self.io_errors),
            no_space_errors: get(&self.no_space_errors),
            atomic_handshakes: get(&self.atomic_handshakes),
            trims_inferred: get(&self.trims_inferred),
            trim_bytes: get(&self.trim_bytes),
            no_trim: std::array::from_fn(|at| get(&self.no_trim[at])),
        }
    }
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
