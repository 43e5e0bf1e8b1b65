//! What the runs of all benchmarks report alike, as JSON and as a table for people.

use lacuna_engine::RowStats;
use serde::Serialize;

use crate::{
    Summary, latencies::as_object, page_traffic::PageTraffic, requesters::Requested, row_compression,
    side_by_side::SideBySide,
};

/// Figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Kind of the tables: `plain`, `page` or `row`.
    pub tables: String,
    /// Compression in force.
    pub algorithm: String,
    /// Time to load and to write out everything that the load put off.
    pub load_seconds: f64,
    /// Length of the measured request phase.
    pub request_seconds: f64,
    /// Size of the tables without compression and holes at the end.
    pub logical_bytes: u64,
    /// Live bytes of the whole store at the end.
    pub allocated_bytes: u64,
    /// Room that the store takes on the device at the end, garbage and metadata included.
    pub store_bytes: u64,
    /// All that reached the device from the start of the measured phase on until everything it put
    /// off was written: pages, log, metadata, garbage collection, checkpoints.
    pub device_bytes_written: u64,
    /// Processor time of the whole process over the same, and of a server's on the same machine.
    pub cpu_seconds: f64,
    /// Pages that our engine read and wrote over the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<PageTraffic>,
    /// Latencies by operation, retries included.
    #[serde(serialize_with = "as_object")]
    pub ops: Vec<(&'static str, Summary)>,
    /// What row compression did, from the start of the load on; of row-compressed tables only.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "row_compression::as_object")]
    pub row_compression: Option<RowStats>,
    /// The first violation when what must hold at the end does not.
    #[serde(skip)]
    pub violation: Option<String>,
}

impl Figures {
    /// Of a run on `tables` compressed by `algorithm`; `names` are those of the operations.
    pub(crate) fn new(
        tables: &str,
        algorithm: &str,
        load_seconds: f64,
        requested: &Requested,
        names: impl Iterator<Item = &'static str>,
        violation: Option<anyhow::Error>,
    ) -> Figures {
        Figures {
            tables: tables.to_owned(),
            algorithm: algorithm.to_owned(),
            load_seconds,
            request_seconds: requested.seconds,
            logical_bytes: requested.footprint.logical_bytes,
            allocated_bytes: requested.footprint.allocated_bytes,
            store_bytes: requested.footprint.store_bytes,
            device_bytes_written: requested.device_bytes_written,
            cpu_seconds: requested.cpu_seconds,
            pages: requested.pages,
            ops: requested.latencies.summaries(names),
            row_compression: None,
            violation: violation.map(|violation| format!("{violation:#}")),
        }
    }

    /// `count` over the length of the measured request phase.
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.request_seconds.max(1e-9)
    }
}

/// Adds the rows for room.
pub(crate) fn add_room<R>(table: &mut SideBySide<'_, R>, of: impl Fn(&R) -> &Figures) {
    table.row("tables without compression, MB", 1, |run| of(run).logical_bytes as f64 / 1e6);
    table.row("live bytes in the store, MB", 1, |run| of(run).allocated_bytes as f64 / 1e6);
    table.row("room taken on the device, MB", 1, |run| of(run).store_bytes as f64 / 1e6);
}
