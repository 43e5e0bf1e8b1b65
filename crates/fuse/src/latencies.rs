//! How long requests take, by kind: histograms that many threads add to.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Upper bounds of the buckets in microseconds, each four times the one before; one more bucket has no bound.
pub const LATENCY_BOUNDS_US: [u64; 10] =
    [16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304];

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Look-ups, attributes, links, listings: what changes nothing.
    Look,
    /// Names and attributes that are made, changed and removed, and space that is allocated.
    Change,
    /// Reads of data.
    Read,
    /// Writes of data, with the sync of those that must be durable at once.
    Write,
    /// Syncs of files.
    Sync,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::Look, Kind::Change, Kind::Read, Kind::Write, Kind::Sync];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Look => "look",
            Kind::Change => "change",
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Sync => "sync",
        }
    }
}

/// The histograms of all kinds.
#[derive(Debug, Default)]
pub struct Latencies([Histogram; Kind::ALL.len()]);

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; LATENCY_BOUNDS_US.len() + 1],
    nanoseconds: AtomicU64,
}

/// A histogram at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencySnapshot {
    /// Requests in each bucket of [`LATENCY_BOUNDS_US`], and those beyond the last bound.
    pub buckets: [u64; LATENCY_BOUNDS_US.len() + 1],
    /// The time that all of them took.
    pub total: Duration,
}

impl Latencies {
    /// Counts a request of this kind when the result is dropped.
    pub(crate) fn time(&self, kind: Kind) -> Timer<'_> {
        Timer { histogram: &self.0[kind as usize], began: Instant::now() }
    }

    /// The requests so far.
    pub fn snapshot(&self, kind: Kind) -> LatencySnapshot {
        let Histogram { buckets, nanoseconds } = &self.0[kind as usize];
        LatencySnapshot {
            buckets: std::array::from_fn(|at| buckets[at].load(Ordering::Relaxed)),
            total: Duration::from_nanos(nanoseconds.load(Ordering::Relaxed)),
        }
    }
}

impl Histogram {
    fn note(&self, took: Duration) {
        let bucket = LATENCY_BOUNDS_US.iter().position(|bound| took <= Duration::from_micros(*bound));
        self.buckets[bucket.unwrap_or(LATENCY_BOUNDS_US.len())].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// A request that is being answered.
pub(crate) struct Timer<'a> {
    histogram: &'a Histogram,
    began: Instant,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.histogram.note(self.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::default();
        for (microseconds, bucket) in [(0, 0), (16, 0), (17, 1), (4096, 4), (4_194_304, 9), (5_000_000, 10)] {
            let before = histogram.buckets[bucket].load(Ordering::Relaxed);
            histogram.note(Duration::from_micros(microseconds));
            assert_eq!(histogram.buckets[bucket].load(Ordering::Relaxed), before + 1, "{microseconds} us");
        }
        assert_eq!(histogram.nanoseconds.load(Ordering::Relaxed), 9_198_433_000);
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
        }
    }
}
