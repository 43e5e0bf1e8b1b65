//! Until when a caller waits.

use std::time::{Duration, Instant};

/// Longest wait: a year.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The moment at which a wait of `timeout` that begins now ends.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(WAIT_MAX)
}
