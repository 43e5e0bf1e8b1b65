//! The answers of a mounted store on its control socket.

use std::{fmt::Write, sync::Arc};

use lacuna_ftl::{Stats, StreamStats};
use lacuna_fuse::{Service, innodb::NoTrim};
use lacuna_nvmfs::{CheckDepth, Nvmfs};
use serde_json::{Value, json};

use crate::{control::Answerer, grow};

/// Answers `ping`, `info`, `check`, `metrics` and `grow SIZE`.
pub(crate) fn answerer(store: String, service: &Arc<Service>, read_only: bool) -> Arc<Answerer> {
    // Weak, so that a client that asks for long does not keep the store open.
    let service = Arc::downgrade(service);
    Arc::new(move |question| {
        let service = service.upgrade().ok_or("about to close")?;
        match question {
            "ping" => Ok(String::new()),
            "info" => Ok(info(&store, &service, read_only).to_string()),
            "check" => check(service.fs()),
            "metrics" => Ok(metrics(&service)),
            _ => match question.strip_prefix("grow ") {
                Some(size) => grow::answer(service.fs(), size),
                None => Err(format!("no such question: {question}")),
            },
        }
    })
}

/// The output of `lacuna info` for a store, without its tables.
pub(crate) fn store_info(store: &str, fs: &Nvmfs) -> Value {
    let stats = fs.ftl().stats();
    json!({
        "store": store,
        "allocated_bytes": stats.allocated_bytes,
        "store_bytes": stats.store_bytes,
        "capacity_bytes": stats.capacity_bytes,
        // What it has, if the device cannot be measured.
        "capacity_max_bytes": fs.ftl().capacity_max().unwrap_or(stats.capacity_bytes),
        "segment_bytes": stats.segment_bytes,
        "segments": stats.segments,
        "free_segments": stats.free_segments,
        "extents": stats.extents,
        "io": stats.io_engine,
    })
}

fn info(store: &str, service: &Service, read_only: bool) -> Value {
    let mut info = store_info(store, service.fs());
    let counters = service.counters().snapshot();
    let stats = service.fs().ftl().stats();
    let refused: serde_json::Map<String, Value> = NoTrim::ALL
        .iter()
        .map(|reason| (reason.name().to_owned(), counters.no_trim[reason.index()].into()))
        .collect();
    info["mount"] = json!({
        "transport": service.transport(),
        "read_only": read_only,
        "reads": counters.reads,
        "read_bytes": counters.read_bytes,
        "writes": counters.writes,
        "write_bytes": counters.write_bytes,
        "syncs": counters.syncs,
        "io_errors": counters.io_errors,
        "no_space_errors": counters.no_space_errors,
        "atomic_handshakes": counters.atomic_handshakes,
        "trims_inferred": counters.trims_inferred,
        "trim_bytes": counters.trim_bytes,
        "trims_refused": refused,
        "host_bytes": stats.host_bytes,
        "streams": stream_info(&stats),
        "device_written_bytes": stats.log_bytes + stats.gc_bytes + stats.checkpoint_bytes,
        "write_amplification": stats.write_amplification(),
    });
    info
}

/// One line for each thing found wrong; empty for a sound store.
fn check(fs: &Nvmfs) -> Result<String, String> {
    let report = fs.check(CheckDepth::Payload).map_err(|error| error.to_string())?;
    Ok(report.findings.iter().fold(String::new(), |text, finding| text + &finding.message + "\n"))
}

/// Both streams by name.
fn streams(stats: &Stats) -> [(&'static str, StreamStats); 2] {
    [("data", stats.data_stream), ("log", stats.log_stream)]
}

fn stream_info(stats: &Stats) -> Value {
    let info = streams(stats).map(|(stream, stats)| {
        let StreamStats { batches, host_bytes, written_bytes } = stats;
        let counters =
            json!({ "batches": batches, "host_bytes": host_bytes, "written_bytes": written_bytes });
        (stream.to_owned(), counters)
    });
    Value::Object(info.into_iter().collect())
}

/// Name, help and value of each counter of a stream.
type StreamCounter = (&'static str, &'static str, fn(&StreamStats) -> u64);

const STREAM_COUNTERS: [StreamCounter; 3] = [
    ("batches_total", "Batches accepted", |stats| stats.batches),
    ("host_bytes_total", "Bytes handed to the translation layer", |stats| stats.host_bytes),
    ("log_bytes_total", "Bytes written for batches", |stats| stats.written_bytes),
];

/// In the text format of Prometheus.
fn metrics(service: &Service) -> String {
    let counters = service.counters().snapshot();
    let stats = service.fs().ftl().stats();
    let mut text = String::new();
    let mut put = |kind: &str, name: &str, help: &str, value: u64| {
        let _ = writeln!(text, "# HELP lacuna_{name} {help}");
        let _ = writeln!(text, "# TYPE lacuna_{name} {kind}");
        let _ = writeln!(text, "lacuna_{name} {value}");
    };
    for (name, help, value) in [
        ("capacity_bytes", "Size of the store", stats.capacity_bytes),
        ("allocated_bytes", "Bytes stored for files", stats.allocated_bytes),
        ("store_bytes", "All segments in use", stats.store_bytes),
        ("live_bytes", "What counts against the limit", stats.live_bytes),
        ("live_limit_bytes", "Live bytes beyond which the store is full", stats.live_limit_bytes),
        ("segments", "Segments of the store", stats.segments),
        ("free_segments", "Segments that hold nothing", stats.free_segments),
        ("extents", "Extents in the map", stats.extents),
        ("map_memory_bytes", "Memory of the map", stats.map_memory_bytes),
        ("footer_memory_bytes", "Memory of footers kept for collection", stats.summary_memory_bytes),
    ] {
        put("gauge", name, help, value);
    }
    for (name, help, value) in [
        ("reads_total", "Reads answered", counters.reads),
        ("read_bytes_total", "Bytes read", counters.read_bytes),
        ("writes_total", "Writes answered", counters.writes),
        ("write_bytes_total", "Bytes written", counters.write_bytes),
        ("syncs_total", "Syncs of files", counters.syncs),
        ("io_errors_total", "Requests failed with EIO", counters.io_errors),
        ("no_space_errors_total", "Requests failed with ENOSPC", counters.no_space_errors),
        ("atomic_handshakes_total", "Files that asked for atomic writes", counters.atomic_handshakes),
        ("trims_inferred_total", "Writes that implied a trim", counters.trims_inferred),
        ("trim_inferred_bytes_total", "Bytes behind such writes", counters.trim_bytes),
        ("gc_bytes_total", "Bytes written by garbage collection", stats.gc_bytes),
        ("checkpoint_bytes_total", "Bytes written by checkpoints", stats.checkpoint_bytes),
        ("device_flushes_total", "Flushes of the device", stats.flushes),
        ("corrupt_chunks_total", "Chunks found damaged by collection", stats.corrupt_chunks),
    ] {
        put("counter", name, help, value);
    }
    for (name, help, of) in STREAM_COUNTERS {
        let _ = writeln!(text, "# HELP lacuna_{name} {help}");
        let _ = writeln!(text, "# TYPE lacuna_{name} counter");
        for (stream, stats) in streams(&stats) {
            let _ = writeln!(text, "lacuna_{name}{{stream=\"{stream}\"}} {}", of(&stats));
        }
    }
    text += "# HELP lacuna_trims_refused_total Writes that implied no trim\n";
    text += "# TYPE lacuna_trims_refused_total counter\n";
    for reason in NoTrim::ALL {
        let count = counters.no_trim[reason.index()];
        let _ = writeln!(text, "lacuna_trims_refused_total{{reason=\"{}\"}} {count}", reason.name());
    }
    text
}
