//! What a run found, as JSON and as a table for people.

use serde::Serialize;

use super::{load::Loaded, mix::Operation};
use crate::{
    RowCompression, Summary,
    latencies::as_object,
    requesters::Requested,
    side_by_side::{self, SideBySide},
};

/// Result of one run. Its JSON form is part of the command line's contract.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// Kind of the tables: `plain`, `page` or `row`.
    pub tables: String,
    /// Compression in force.
    pub algorithm: String,
    /// Time to load and to write out everything that the load put off.
    pub load_seconds: f64,
    /// Nodes loaded.
    pub nodes: u64,
    /// Links loaded.
    pub links: u64,
    /// Length of the measured request phase.
    pub request_seconds: f64,
    /// Requests completed in it.
    pub requests: u64,
    /// Their rate.
    pub ops_per_second: f64,
    /// Size of the tables without compression and holes at the end.
    pub logical_bytes: u64,
    /// Live bytes of the whole store at the end.
    pub allocated_bytes: u64,
    /// Room that the store takes on the device at the end, garbage and metadata included.
    pub store_bytes: u64,
    /// All that reached the device from the start of the measured phase on until everything it put
    /// off was written: pages, log, metadata, garbage collection, checkpoints.
    pub device_bytes_written: u64,
    /// The same per request.
    pub device_bytes_written_per_op: f64,
    /// Processor time of the whole process over the same, and of a server's on the same machine.
    pub cpu_seconds: f64,
    /// Whether counts and index agree with the links at the end.
    pub counts_match: bool,
    /// Latencies by operation.
    #[serde(serialize_with = "as_object")]
    pub ops: Vec<(&'static str, Summary)>,
    /// What row compression did, from the start of the load on; of row-compressed tables only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_compression: Option<RowCompression>,
    /// Transactions that were run again.
    #[serde(skip)]
    pub retries: u64,
    /// The first violation when counts or index do not agree.
    #[serde(skip)]
    pub violation: Option<String>,
}

impl RunReport {
    pub(crate) fn new(
        tables: &str,
        algorithm: &str,
        load_seconds: f64,
        loaded: Loaded,
        requested: &Requested,
        violation: Option<anyhow::Error>,
    ) -> RunReport {
        let requests = requested.latencies.requests();
        RunReport {
            tables: tables.to_owned(),
            algorithm: algorithm.to_owned(),
            load_seconds,
            nodes: loaded.nodes,
            links: loaded.links,
            request_seconds: requested.seconds,
            requests,
            ops_per_second: requests as f64 / requested.seconds.max(1e-9),
            logical_bytes: requested.footprint.logical_bytes,
            allocated_bytes: requested.footprint.allocated_bytes,
            store_bytes: requested.footprint.store_bytes,
            device_bytes_written: requested.device_bytes_written,
            device_bytes_written_per_op: requested.device_bytes_written as f64 / requests.max(1) as f64,
            cpu_seconds: requested.cpu_seconds,
            counts_match: violation.is_none(),
            ops: requested.latencies.summaries(Operation::names()),
            row_compression: None,
            retries: requested.retries,
            violation: violation.map(|violation| format!("{violation:#}")),
        }
    }
}

/// A table of the runs side by side; with two or more, the last column is last over first.
pub fn comparison(runs: &[RunReport]) -> String {
    let mut table = SideBySide::new(runs, |run| side_by_side::title(&run.tables, &run.algorithm));
    table.row("load, seconds", 1, |run| run.load_seconds);
    table.row("requests per second", 0, |run| run.ops_per_second);
    table.row("tables without compression, MB", 1, |run| run.logical_bytes as f64 / 1e6);
    table.row("live bytes in the store, MB", 1, |run| run.allocated_bytes as f64 / 1e6);
    table.row("room taken on the device, MB", 1, |run| run.store_bytes as f64 / 1e6);
    table.row("written to the device per request, KB", 2, |run| run.device_bytes_written_per_op / 1e3);
    table.row("processor time per request, us", 1, |run| run.cpu_seconds * 1e6 / run.requests.max(1) as f64);
    RowCompression::rows(&mut table, |run| run.row_compression.as_ref());
    table.row("transactions run again", 0, |run| run.retries as f64);
    for (operation, name) in Operation::names().enumerate() {
        table.row(&format!("{name}, p50 us"), 0, |run| run.ops[operation].1.p50_us);
        table.row(&format!("{name}, p99 us"), 0, |run| run.ops[operation].1.p99_us);
    }
    table.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Footprint, latencies::Latencies};

    fn report(allocated_bytes: u64) -> RunReport {
        let requested = Requested {
            latencies: Latencies::new(Operation::COUNT),
            seconds: 2.0,
            cpu_seconds: 1.0,
            device_bytes_written: 10,
            footprint: Footprint { allocated_bytes, ..Footprint::default() },
            retries: 0,
        };
        RunReport::new("page", "lz4", 1.0, Loaded { nodes: 1, links: 2 }, &requested, None)
    }

    /// Tools read these names: they stay.
    #[test]
    fn json_has_the_promised_fields() {
        let json = serde_json::to_value(report(5)).unwrap();
        let mut names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        let mut promised = [
            "tables",
            "algorithm",
            "load_seconds",
            "nodes",
            "links",
            "request_seconds",
            "requests",
            "ops_per_second",
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
