//! The figures common to all benchmarks, as JSON and as a table for people.

use lacuna_engine::RowStats;
use serde::Serialize;

use crate::{
    OpenLoopReport, Series, Summary,
    latencies::as_object,
    loading::Loading,
    page_traffic::PageTraffic,
    requesters::Requested,
    row_compression,
    side_by_side::{self, SideBySide},
};

/// Figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Kind of the tables: `plain`, `page` or `row`.
    pub tables: String,
    /// Compression in force.
    pub algorithm: String,
    /// Time to load and to write out everything that the load deferred.
    pub load_seconds: f64,
    /// Processor time of the whole process over the same, and of a server's on the same machine.
    pub load_cpu_seconds: f64,
    /// Pages that our engine read and wrote over the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_pages: Option<PageTraffic>,
    /// Length of the measured request phase.
    pub request_seconds: f64,
    /// Time after it until everything that it, and the warm-up, deferred was written.
    pub settle_seconds: f64,
    /// Size of the tables without compression and holes at the end.
    pub logical_bytes: u64,
    /// Live bytes of the whole store at the end.
    pub allocated_bytes: u64,
    /// Space that the store takes on the device at the end, garbage and metadata included.
    pub store_bytes: u64,
    /// All bytes that reached the device from the start of the measured phase on until everything it deferred was
    /// written: pages, log, metadata, garbage collection, checkpoints.
    pub device_bytes_written: u64,
    /// The same as of the load, from the start of the measured phase on.
    pub cpu_seconds: f64,
    /// Energy of the machine's processors and memory over the same, in joules, where it is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_joules: Option<f64>,
    /// Temperature of the hottest drive at the end, in degrees Celsius, where one has a sensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drive_celsius: Option<f64>,
    /// The same as of the load, from the start of the measured phase on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<PageTraffic>,
    /// Latencies by operation, retries included.
    #[serde(serialize_with = "as_object")]
    pub ops: Vec<(&'static str, Summary)>,
    /// Lag, and latencies over time, of a run at a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_loop: Option<OpenLoopReport>,
    /// Rate, traffic and latencies in windows, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_time: Option<Series>,
    /// Counters of row compression, from the start of the load on; of row-compressed tables only.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "row_compression::as_object")]
    pub row_compression: Option<RowStats>,
    /// The first violation found by the verification at the end.
    #[serde(skip)]
    pub violation: Option<String>,
}

impl Figures {
    /// Of a run on `tables` compressed by `algorithm`; `names` are those of the operations.
    pub(crate) fn new(
        tables: &str,
        algorithm: &str,
        loading: Loading,
        requested: &Requested,
        names: impl Iterator<Item = &'static str>,
        violation: Option<anyhow::Error>,
    ) -> Figures {
        Figures {
            tables: tables.to_owned(),
            algorithm: algorithm.to_owned(),
            load_seconds: loading.seconds,
            load_cpu_seconds: loading.cpu_seconds,
            load_pages: loading.pages,
            request_seconds: requested.seconds,
            settle_seconds: requested.settle_seconds,
            logical_bytes: requested.footprint.logical_bytes,
            allocated_bytes: requested.footprint.allocated_bytes,
            store_bytes: requested.footprint.store_bytes,
            device_bytes_written: requested.device_bytes_written,
            cpu_seconds: requested.cpu_seconds,
            energy_joules: requested.energy_joules,
            drive_celsius: requested.drive_celsius,
            pages: requested.pages,
            ops: requested.latencies.summaries(names),
            open_loop: requested.open_loop.clone(),
            over_time: requested.over_time.clone(),
            row_compression: None,
            violation: violation.map(|violation| format!("{violation:#}")),
        }
    }

    /// `count` over the length of the measured request phase.
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.request_seconds.max(1e-9)
    }

    /// `count` over the same and the time until what it, and the warm-up, deferred is written.
    pub(crate) fn per_second_settled(&self, count: u64) -> f64 {
        count as f64 / (self.request_seconds + self.settle_seconds).max(1e-9)
    }
}

/// Adds the rows for the load.
pub(crate) fn add_load<R>(table: &mut SideBySide<'_, R>, of: impl Fn(&R) -> &Figures) {
    table.row("load, seconds", 1, |run| of(run).load_seconds);
    table.row("  processor time, seconds", 1, |run| of(run).load_cpu_seconds);
    if table.runs().iter().any(|run| of(run).load_pages.is_some()) {
        let written = |run: &R| of(run).load_pages.unwrap_or_default().written;
        table.row("  pages written, thousands", 1, |run| written(run) as f64 / 1e3);
    }
}

/// Adds the rows for space.
pub(crate) fn add_space<R>(table: &mut SideBySide<'_, R>, of: impl Fn(&R) -> &Figures) {
    table.row("tables without compression, MB", 1, |run| of(run).logical_bytes as f64 / 1e6);
    table.row("live bytes in the store, MB", 1, |run| of(run).allocated_bytes as f64 / 1e6);
    table.row("space taken on the device, MB", 1, |run| of(run).store_bytes as f64 / 1e6);
}

/// Adds the rows for lag, of runs at a rate.
pub(crate) fn add_lag<R>(table: &mut SideBySide<'_, R>, of: impl Fn(&R) -> &Figures) {
    if table.runs().iter().any(|run| of(run).open_loop.is_none()) {
        return;
    }
    let open_loop = |run: &R| of(run).open_loop.clone().expect("each run has it");
    table.row("due per second", 0, |run| open_loop(run).rate);
    table.row("not begun at the end", 0, |run| open_loop(run).not_begun as f64);
    table.row("from due to begun, p50 us", 0, |run| open_loop(run).lag.p50_us);
    table.row("from due to begun, p99 us", 0, |run| open_loop(run).lag.p99_us);
    table.row("from due to done, p50 us", 0, |run| open_loop(run).latency.p50_us);
    table.row("from due to done, p99 us", 0, |run| open_loop(run).latency.p99_us);
}

/// What is said after the table of runs at a rate: which could not keep up with it, and latencies over time.
pub(crate) fn over_time<'f>(figures: impl Iterator<Item = &'f Figures>) -> String {
    let text = |figures: &Figures| {
        let title = side_by_side::title(&figures.tables, &figures.algorithm);
        figures.open_loop.as_ref().map(|open_loop| open_loop.text(&title))
    };
    figures.filter_map(text).collect()
}
