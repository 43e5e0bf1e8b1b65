//! The cost of a recovery: the log that it reads, and the pages that are dirty when the store ends.
//!
//! The figures stand for a slow device. They bound how much may be dirty (`flush::capacity`), so that a recovery ends
//! in the time that the options allow.

use std::time::Duration;

/// Log that is replayed in a second, in bytes, whatever the machine: it is read twice, in large pieces, and the page of
/// each operation is looked up.
const LOG_BYTES_PER_SECOND: u64 = 128 << 20;
/// Reads of 16 KiB that are answered in a second, many at a time and in order of address, by a modest SSD or a small
/// cloud volume. A good drive answers a hundred times as many.
const READS_PER_SECOND: u64 = 5_000;
/// Such a read, in bytes.
const READ_BYTES: usize = 16 << 10;
/// Reads that replay may make in any case: with fewer no page would stay in memory to be changed twice.
const READS_MIN: u64 = 256;

/// The work of a recovery if the store ended now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayEstimate {
    /// Log to be read, in bytes.
    pub log_bytes: u64,
    /// Pages to be read, at most, in units of 16 KiB; smaller ones count as one.
    pub reads: u64,
    /// The most that is allowed. Concurrent writers may exceed it by a few pages each.
    pub reads_max: u64,
    /// How long it would take on a slow device: 128 MiB of log and 5,000 reads a second.
    pub time: Duration,
}

impl ReplayEstimate {
    pub(crate) fn new(log_bytes: u64, reads: u64, reads_max: u64) -> ReplayEstimate {
        let time = log_time(log_bytes) + Duration::from_secs(reads) / READS_PER_SECOND as u32;
        ReplayEstimate { log_bytes, reads, reads_max, time }
    }
}

/// Reads that a page of this length counts for.
pub(crate) fn reads(page_bytes: usize) -> usize {
    page_bytes.div_ceil(READ_BYTES)
}

/// Reads for which there is time in `time` besides `log_bytes` of log.
pub(crate) fn reads_max(time: Duration, log_bytes: u64) -> u64 {
    let left = time.saturating_sub(log_time(log_bytes)).as_millis();
    let reads = left.saturating_mul(READS_PER_SECOND.into()) / 1000;
    u64::try_from(reads).unwrap_or(u64::MAX).clamp(READS_MIN, u64::MAX / 32)
}

fn log_time(log_bytes: u64) -> Duration {
    Duration::from_millis(log_bytes.saturating_mul(1000) / LOG_BYTES_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_fill_the_time_that_the_log_leaves() {
        let (second, gib) = (Duration::from_secs(1), 1 << 30);
        for (time, log_bytes, want) in [
            (10 * second, 256 << 20, 40_000),
            (10 * second, 0, 50_000),
            (10 * second, gib, 10_000),
            (10 * second, 4 * gib, READS_MIN),
            (Duration::MAX, gib, u64::MAX / 32),
        ] {
            assert_eq!(reads_max(time, log_bytes), want, "{time:?}, {log_bytes}");
        }
        let estimate = ReplayEstimate::new(256 << 20, 40_000, 40_000);
        assert_eq!(estimate.time, 10 * second);
        assert_eq!([4, 16, 32, 64].map(|kib| reads(kib << 10)), [1, 1, 2, 4]);
    }
}
