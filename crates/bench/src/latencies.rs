//! Latencies of requests, by operation.

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

/// Latencies of one run, one requester's or merged.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    /// Nanoseconds, by operation.
    histograms: Vec<Histogram<u64>>,
}

impl Latencies {
    /// For operations 0 to `operations`.
    pub(crate) fn new(operations: usize) -> Latencies {
        let empty = Histogram::new(3).expect("three digits are supported");
        Latencies { histograms: vec![empty; operations] }
    }

    pub(crate) fn record(&mut self, operation: usize, nanos: u64) {
        self.histograms[operation].record(nanos.max(1)).expect("histograms grow by themselves");
    }

    pub(crate) fn merge(&mut self, other: &Latencies) {
        for (mine, theirs) in self.histograms.iter_mut().zip(&other.histograms) {
            mine.add(theirs).expect("histograms grow by themselves");
        }
    }

    pub(crate) fn requests(&self) -> u64 {
        self.histograms.iter().map(Histogram::len).sum()
    }

    /// Name and summary of every operation; `names` are in the order of their numbers.
    pub(crate) fn summaries(
        &self,
        names: impl IntoIterator<Item = &'static str>,
    ) -> Vec<(&'static str, Summary)> {
        names.into_iter().zip(self.histograms.iter().map(Summary::of)).collect()
    }
}

/// Latencies of one operation in microseconds; all zero when it never ran.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Completed requests.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// 25th percentile.
    pub p25_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 75th percentile.
    pub p75_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Slowest request.
    pub max_us: f64,
}

impl Summary {
    pub(crate) fn of(nanos: &Histogram<u64>) -> Summary {
        let quantile = |q: f64| nanos.value_at_quantile(q) as f64 / 1000.0;
        Summary {
            count: nanos.len(),
            mean_us: nanos.mean() / 1000.0,
            p25_us: quantile(0.25),
            p50_us: quantile(0.5),
            p75_us: quantile(0.75),
            p95_us: quantile(0.95),
            p99_us: quantile(0.99),
            max_us: nanos.max() as f64 / 1000.0,
        }
    }
}

/// Summaries by name as one object.
pub(crate) fn as_object<S: Serializer>(
    ops: &[(&'static str, Summary)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(ops.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_in_microseconds() {
        let (mut a, mut b) = (Latencies::new(3), Latencies::new(3));
        a.record(1, 1_000);
        b.record(1, 3_000);
        b.record(2, 0);
        a.merge(&b);
        assert_eq!(a.requests(), 3);
        let summaries = a.summaries(["none", "two", "one"]);
        let (name, two) = summaries[1];
        assert_eq!((name, two.count), ("two", 2));
        assert!((two.mean_us - 2.0).abs() < 0.01 && (two.max_us - 3.0).abs() < 0.01);
        assert_eq!((summaries[0].1.count, summaries[2].1.count), (0, 1));
        assert_eq!(summaries[0].1.max_us, 0.0);
    }
}
