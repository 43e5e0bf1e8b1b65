//! Operations and their latencies.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::random::Random;

/// The requests of LinkBench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    AddLink,
    DeleteLink,
    UpdateLink,
    CountLink,
    GetLink,
    GetLinkList,
    GetNode,
    AddNode,
    UpdateNode,
    DeleteNode,
}

/// Operations in the order of reports, their names, and their share of the requests in percent.
const OPERATIONS: [(Operation, &str, f64); 10] = [
    (Operation::AddLink, "add_link", 8.9886601),
    (Operation::DeleteLink, "delete_link", 2.9907664),
    (Operation::UpdateLink, "update_link", 8.0122125),
    (Operation::CountLink, "count_link", 4.8863567),
    (Operation::GetLink, "get_link", 0.5261142),
    (Operation::GetLinkList, "get_link_list", 50.7119145),
    (Operation::GetNode, "get_node", 12.9326683),
    (Operation::AddNode, "add_node", 2.5732789),
    (Operation::UpdateNode, "update_node", 7.366437),
    (Operation::DeleteNode, "delete_node", 1.0115914),
];

impl Operation {
    /// Draws the next request.
    pub(crate) fn choose(random: &mut Random) -> Operation {
        let mut left = random.unit() * 100.0;
        for (operation, _, percent) in OPERATIONS {
            left -= percent;
            if left < 0.0 {
                return operation;
            }
        }
        // The percentages add up to 100 but for rounding.
        OPERATIONS[0].0
    }
}

/// Latencies of one run, one requester's or merged.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    /// Nanoseconds, by operation.
    histograms: Vec<Histogram<u64>>,
}

impl Latencies {
    pub(crate) fn new() -> Latencies {
        let empty = Histogram::new(3).expect("three digits are supported");
        Latencies { histograms: vec![empty; OPERATIONS.len()] }
    }

    pub(crate) fn record(&mut self, operation: Operation, nanos: u64) {
        self.histograms[operation as usize].record(nanos.max(1)).expect("histograms grow by themselves");
    }

    pub(crate) fn merge(&mut self, other: &Latencies) {
        for (mine, theirs) in self.histograms.iter_mut().zip(&other.histograms) {
            mine.add(theirs).expect("histograms grow by themselves");
        }
    }

    pub(crate) fn requests(&self) -> u64 {
        self.histograms.iter().map(Histogram::len).sum()
    }

    /// Name and summary of every operation.
    pub(crate) fn summaries(&self) -> Vec<(&'static str, Summary)> {
        OPERATIONS.iter().map(|&(op, name, _)| (name, Summary::of(&self.histograms[op as usize]))).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_complete_and_drawn_as_stated() {
        let total: f64 = OPERATIONS.iter().map(|&(_, _, percent)| percent).sum();
        assert!((total - 100.0).abs() < 1e-5);
        for (index, (operation, _, _)) in OPERATIONS.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
        }
        let mut random = Random::new(1, 1);
        let mut counts = [0u32; OPERATIONS.len()];
        for _ in 0..200_000 {
            counts[Operation::choose(&mut random) as usize] += 1;
        }
        for (count, (_, name, percent)) in counts.into_iter().zip(OPERATIONS) {
            let found = f64::from(count) / 2000.0;
            assert!((found - percent).abs() < 0.05 + percent * 0.03, "{name}: {found} not {percent}");
        }
    }

    #[test]
    fn summaries_are_in_microseconds() {
        let (mut a, mut b) = (Latencies::new(), Latencies::new());
        a.record(Operation::GetNode, 1_000);
        b.record(Operation::GetNode, 3_000);
        b.record(Operation::AddNode, 0);
        a.merge(&b);
        assert_eq!(a.requests(), 3);
        let summaries = a.summaries();
        let (name, get_node) = summaries[Operation::GetNode as usize];
        assert_eq!((name, get_node.count), ("get_node", 2));
        assert!((get_node.mean_us - 2.0).abs() < 0.01 && (get_node.max_us - 3.0).abs() < 0.01);
        assert_eq!(summaries[Operation::AddLink as usize].1.count, 0);
        assert_eq!(summaries[Operation::AddLink as usize].1.max_us, 0.0);
    }
}
