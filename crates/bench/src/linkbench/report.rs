//! A run's results, as JSON and as a table for people.

use serde::Serialize;

use super::{load::Loaded, mix::Operation};
use crate::{
    figures::{self, Figures},
    loading::Loading,
    page_traffic,
    requesters::Requested,
    row_compression,
    side_by_side::{self, SideBySide},
};

/// Result of one run. Its JSON form is part of the command line's contract.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The figures common to all benchmarks.
    #[serde(flatten)]
    pub figures: Figures,
    /// Nodes loaded.
    pub nodes: u64,
    /// Links loaded.
    pub links: u64,
    /// Requests completed in it.
    pub requests: u64,
    /// Their rate.
    pub ops_per_second: f64,
    /// The same per request.
    pub device_bytes_written_per_op: f64,
    /// Requests over the measured phase and the time until all is written.
    pub settled_ops_per_second: f64,
    /// Whether counts and index agree with the links at the end.
    pub counts_match: bool,
    /// Transactions that were run again.
    #[serde(skip)]
    pub retries: u64,
}

impl RunReport {
    pub(crate) fn new(
        tables: &str,
        algorithm: &str,
        loading: Loading,
        loaded: Loaded,
        requested: &Requested,
        violation: Option<anyhow::Error>,
    ) -> RunReport {
        let requests = requested.latencies.requests();
        let counts_match = violation.is_none();
        let names = Operation::names();
        let figures = Figures::new(tables, algorithm, loading, requested, names, violation);
        RunReport {
            nodes: loaded.nodes,
            links: loaded.links,
            requests,
            ops_per_second: figures.per_second(requests),
            settled_ops_per_second: figures.per_second_settled(requests),
            device_bytes_written_per_op: requested.device_bytes_written as f64 / requests.max(1) as f64,
            counts_match,
            retries: requested.retries,
            figures,
        }
    }
}

/// A table of the runs side by side; with two or more, the last column is last over first.
pub fn comparison(runs: &[RunReport]) -> String {
    let mut table =
        SideBySide::new(runs, |run| side_by_side::title(&run.figures.tables, &run.figures.algorithm));
    let per_request = |run: &RunReport| run.figures.cpu_seconds * 1e6 / run.requests.max(1) as f64;
    figures::add_load(&mut table, |run| &run.figures);
    table.row("requests per second", 0, |run| run.ops_per_second);
    table.row("  until all is written", 0, |run| run.settled_ops_per_second);
    figures::add_lag(&mut table, |run| &run.figures);
    figures::add_space(&mut table, |run| &run.figures);
    table.row("written to the device per request, KB", 2, |run| run.device_bytes_written_per_op / 1e3);
    table.row("processor time per request, us", 1, per_request);
    page_traffic::add_rows(&mut table, |run| run.requests, |run| run.figures.pages);
    row_compression::add_rows(&mut table, |run| run.figures.row_compression);
    table.row("transactions run again", 0, |run| run.retries as f64);
    // Not all are in every mix.
    let is_requested =
        |(operation, _): &(usize, &str)| runs.iter().any(|run| run.figures.ops[*operation].1.count > 0);
    for (operation, name) in Operation::names().enumerate().filter(is_requested) {
        table.row(&format!("{name}, p50 us"), 0, |run| run.figures.ops[operation].1.p50_us);
        table.row(&format!("{name}, p99 us"), 0, |run| run.figures.ops[operation].1.p99_us);
    }
    table.finish() + &figures::over_time(runs.iter().map(|run| &run.figures))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Footprint, latencies::Latencies};

    fn report(allocated_bytes: u64) -> RunReport {
        let requested = Requested {
            latencies: Latencies::new(Operation::COUNT),
            seconds: 2.0,
            settle_seconds: 1.0,
            cpu_seconds: 1.0,
            energy_joules: None,
            drive_celsius: None,
            pages: None,
            open_loop: None,
            over_time: None,
            device_bytes_written: 10,
            footprint: Footprint { allocated_bytes, ..Footprint::default() },
            retries: 0,
        };
        RunReport::new("page", "lz4", Loading::default(), Loaded { nodes: 1, links: 2 }, &requested, None)
    }

    /// Tools read these names, so they must not change.
    #[test]
    fn json_has_the_promised_fields() {
        let json = serde_json::to_value(report(5)).unwrap();
        let mut names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        let mut promised = [
            "tables",
            "algorithm",
            "load_seconds",
            "load_cpu_seconds",
            "nodes",
            "links",
            "request_seconds",
            "settle_seconds",
            "requests",
            "ops_per_second",
            "settled_ops_per_second",
            "logical_bytes",
            "allocated_bytes",
            "store_bytes",
            "device_bytes_written",
            "device_bytes_written_per_op",
            "cpu_seconds",
            "counts_match",
            "ops",
        ];
        promised.sort_unstable();
        assert_eq!(names, promised);
        let get_node = json["ops"]["get_node"].as_object().unwrap();
        for name in ["count", "mean_us", "p25_us", "p50_us", "p75_us", "p95_us", "p99_us", "max_us"] {
            assert!(get_node[name].is_number(), "{name}");
        }
        assert_eq!((get_node.len(), json["ops"].as_object().unwrap().len()), (8, 10));
    }

    #[test]
    fn the_comparison_ends_in_a_ratio() {
        let text = comparison(&[report(2_000_000), report(1_000_000)]);
        let line = text.lines().find(|line| line.starts_with("live bytes")).unwrap();
        assert!(line.ends_with("0.50"), "{line:?}");
        assert!(!comparison(&[report(1)]).contains(':'));
    }
}
