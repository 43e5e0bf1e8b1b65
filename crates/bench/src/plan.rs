//! The plan of a run: what is the same for every benchmark of a database, and for every kind of table.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How a run goes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Threads of the load phase.
    pub loaders: u32,
    /// Threads of the request phase.
    pub requesters: u32,
    /// Requests before the measured ones.
    pub warmup: Duration,
    /// Length of the measured request phase.
    pub seconds: Duration,
    /// The phase goes on until so many requests were measured, however long that takes: for tests, which must
    /// not depend on time. 0 for no such limit.
    pub requests_min: u64,
    /// Requests per second that become due, whether the ones before are done or not. Without, each requester makes its
    /// next one when the last one is done.
    pub rate: Option<f64>,
    /// Length of the windows in which the measured phase is reported over time, if it is.
    pub window: Option<Duration>,
    /// Seed of data and requests.
    pub seed: u64,
    /// Time that the loaded rows are dated by, in milliseconds since 1970.
    pub epoch_ms: u64,
    /// No progress on standard error.
    pub quiet: bool,
}

impl Plan {
    /// Requests after which at least `requests_min` were measured, when the measured part begins after `done`.
    pub(crate) fn enough(self, done: u64) -> u64 {
        match self.requests_min {
            0 => 0,
            // Each requester may still end one that began before.
            measured => done + u64::from(self.requesters) + measured,
        }
    }
}

/// Now, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
