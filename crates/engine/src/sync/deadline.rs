//! Until when a caller waits.

use std::time::{Duration, Instant};

/// Longest wait: a year.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// When a wait that starts now ends. Any timeout will do, [`Duration::MAX`] too.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(WAIT_MAX)
}
