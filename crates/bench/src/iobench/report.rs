//! The patterns' results, as JSON and as a table for people.

use std::fmt::Write;

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::{Config, Pattern, target::Traffic};
use crate::Summary;

/// The measurement of one pattern.
pub(super) struct Measured {
    pub(super) seconds: f64,
    pub(super) requests: u64,
    pub(super) traffic: Traffic,
    pub(super) nanos: Histogram<u64>,
}

impl Measured {
    /// Nothing, so far.
    pub(super) fn none() -> Result<Measured> {
        let (seconds, requests, traffic) = (0.0, 0, Traffic::default());
        Ok(Measured { seconds, requests, traffic, nanos: Histogram::new(3)? })
    }

    /// Adds another measurement of the same pattern.
    pub(super) fn add(&mut self, other: &Measured) -> Result<()> {
        self.seconds += other.seconds;
        self.requests += other.requests;
        self.traffic += other.traffic;
        Ok(self.nanos.add(&other.nanos)?)
    }
}

/// Result of one pattern on one target. Its JSON form is part of the command line's contract.
#[derive(Clone, Debug, Serialize)]
pub struct PatternReport {
    /// Name of the pattern.
    pub pattern: &'static str,
    /// `ftl` or `raw`.
    pub target: &'static str,
    /// Bytes of a request.
    pub request_bytes: u64,
    /// Bytes of the space that was worked on.
    pub span_bytes: u64,
    /// Length of the measured part, making all durable at the end included.
    pub seconds: f64,
    /// Requests completed in it.
    pub requests: u64,
    /// Their rate.
    pub requests_per_second: f64,
    /// Data of the requests in bytes per second.
    pub bytes_per_second: f64,
    /// Data written by the requests.
    pub host_bytes_written: u64,
    /// All bytes that reached the device over the same time.
    pub device_bytes_written: u64,
    /// All bytes that were read from it.
    pub device_bytes_read: u64,
    /// Bytes written to the device per byte of data; 0 for reads.
    pub write_amplification: f64,
    /// Of `device_bytes_written`: batches, with headers and padding. The ftl's alone.
    pub log_bytes: u64,
    /// Of `device_bytes_written`: garbage collection.
    pub gc_bytes: u64,
    /// Of `device_bytes_written`: checkpoints.
    pub checkpoint_bytes: u64,
    /// Of single requests.
    pub latency: Summary,
    /// 99.9th percentile of the same.
    pub p999_us: f64,
}

impl PatternReport {
    pub(super) fn new(
        config: &Config,
        pattern: Pattern,
        target: &'static str,
        capacity_bytes: u64,
        measured: &Measured,
    ) -> PatternReport {
        let Measured { seconds, requests, traffic, nanos } = measured;
        let request_bytes = pattern.request_bytes(config.block_bytes);
        let bytes = requests * request_bytes;
        let host_bytes_written = if pattern.is_read() { 0 } else { bytes };
        let blocks = pattern.span_bytes(capacity_bytes, config.live_percent) / request_bytes;
        PatternReport {
            pattern: pattern.name(),
            target,
            request_bytes,
            span_bytes: blocks * request_bytes,
            seconds: *seconds,
            requests: *requests,
            requests_per_second: *requests as f64 / seconds.max(1e-9),
            bytes_per_second: bytes as f64 / seconds.max(1e-9),
            host_bytes_written,
            device_bytes_written: traffic.written_bytes,
            device_bytes_read: traffic.read_bytes,
            write_amplification: match host_bytes_written {
                0 => 0.0,
                host => traffic.written_bytes as f64 / host as f64,
            },
            log_bytes: traffic.log_bytes,
            gc_bytes: traffic.gc_bytes,
            checkpoint_bytes: traffic.checkpoint_bytes,
            latency: Summary::of(nanos),
            p999_us: nanos.value_at_quantile(0.999) as f64 / 1000.0,
        }
    }
}

/// Stands below every table with ratios.
const NOTE: &str = "\
Writes to the ftl return once they are in memory and reach the device in large pieces; raw ones wait for the
device one by one (but for append, which is durable on both). So a ratio of writes above 1 does not mean
faster than the device: for its bandwidth compare with --pattern seqwrite --block 1M --raw.
";

/// A table of all patterns; where one ran on the bare device too, a line with the ratios ftl : raw.
pub fn comparison(reports: &[PatternReport]) -> String {
    let mut text = String::new();
    let titles = ["requests/s", "MB/s", "p50 us", "p99 us", "p99.9 us", "max us", "written/byte"];
    line(&mut text, "", "", &titles.map(str::to_owned));
    for (index, report) in reports.iter().enumerate() {
        let latency = &report.latency;
        line(
            &mut text,
            report.pattern,
            report.target,
            &[
                format!("{:.0}", report.requests_per_second),
                format!("{:.1}", report.bytes_per_second / 1e6),
                format!("{:.1}", latency.p50_us),
                format!("{:.1}", latency.p99_us),
                format!("{:.1}", report.p999_us),
                format!("{:.0}", latency.max_us),
                written_per_byte(report),
            ],
        );
        let before = index.checked_sub(1).map(|before| &reports[before]);
        if let Some(ftl) = before.filter(|before| before.pattern == report.pattern && report.target == "raw")
        {
            let values = |report: &PatternReport| {
                let Summary { p50_us, p99_us, max_us, .. } = report.latency;
                let rate = report.requests_per_second;
                [rate, report.bytes_per_second, p50_us, p99_us, report.p999_us, max_us]
            };
            let ratios = values(ftl).into_iter().zip(values(report));
            let cells: Vec<String> = ratios
                .map(|(ftl, raw)| if raw > 0.0 { format!("{:.2}", ftl / raw) } else { String::new() })
                .collect();
            line(&mut text, "", "ftl : raw", &cells);
        }
    }
    if reports.iter().any(|report| report.target == "raw") {
        text += NOTE;
    }
    text
}

fn written_per_byte(report: &PatternReport) -> String {
    match report.host_bytes_written {
        0 => String::new(),
        _ => format!("{:.3}", report.write_amplification),
    }
}

fn line(text: &mut String, pattern: &str, target: &str, cells: &[String]) {
    let mut line = format!("{pattern:<10} {target:<9}");
    for cell in cells {
        let _ = write!(line, "{cell:>13}");
    }
    let _ = writeln!(text, "{}", line.trim_end());
}
