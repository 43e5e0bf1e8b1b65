//! The answers of a mounted store on its control socket.

use std::{
    fmt::Write,
    fs::{File, Metadata},
    io,
    num::NonZeroU64,
    ops::ControlFlow,
    os::unix::fs::MetadataExt,
    sync::Arc,
};

use lacuna_device::Vfs;
use lacuna_ftl::{Stats, StreamStats};
use lacuna_fuse::{Kind, LATENCY_BOUNDS_US, Service, innodb::NoTrim};
use lacuna_nvmfs::{CheckDepth, Compression, Limits, Nvmfs, UserQuota};
use serde_json::{Value, json};

use crate::{
    control::{Answerer, CLOSING, Tell},
    ended::{self, Ended},
    files, grow,
    printable::one_line,
    progress::{self, Shown},
    quota, scrub,
    table_info::add_closed_tables,
};

/// What is said about a mount that the service does not know.
pub(crate) struct Facts {
    pub(crate) store: String,
    /// What had that name when it was mounted.
    pub(crate) file: File,
    pub(crate) read_only: bool,
    /// What the kernel caches, and whether every change is durable before it returns, as on the command line.
    pub(crate) cache: String,
    pub(crate) sync: bool,
    /// Bytes that the map may take.
    pub(crate) map_memory: u64,
    /// How it ends.
    pub(crate) ended: Arc<Ended>,
    /// Notices at once if the kernel has made it read-only.
    pub(crate) look_at_mount: Box<dyn Fn() + Send + Sync>,
}

/// Answers `ping`, `info`, `check`, `metrics`, `sync`, `grow SIZE`, `ls PATH`, `quota ...` and `scrub RATE`; and, when the
/// store is closed, `ended`.
pub(crate) fn answerer(facts: Facts, service: &Arc<Service>) -> Arc<Answerer> {
    // Weak, so that a client that asks for long does not keep the store open.
    let mounted = Arc::downgrade(service);
    Arc::new(move |question, tell| {
        if question == ended::QUESTION {
            facts.ended.answer(tell);
            return Ok(String::new());
        }
        let service = mounted.upgrade().ok_or(CLOSING)?;
        match question.split_once(' ').unwrap_or((question, "")) {
            ("ping", "") => Ok(String::new()),
            ("info", "") => Ok(info(&facts, &service).to_string()),
            ("check", "") => {
                let fs = Arc::clone(service.fs());
                drop(service);
                check(&fs, &|| mounted.strong_count() > 0, tell)
            }
            ("metrics", "") => Ok(metrics(&facts, &service)),
            ("sync", "") => {
                (facts.look_at_mount)();
                let synced = service.fs().posix().sync();
                synced.map(|()| String::new()).map_err(|error| error.to_string())
            }
            ("grow", size) => grow::answer(service.fs(), size),
            ("quota", change) => quota::answer(service.fs(), change),
            ("ls", path) => files::answer_listing(service.fs(), path),
            ("scrub", rate) => {
                let fs = Arc::clone(service.fs());
                drop(service);
                scrub::answer(&fs, rate, &|| mounted.strong_count() > 0, tell)
            }
            _ => Err(format!("no such question: {question}")),
        }
    })
}

/// The output of `lacuna info` for a store, without its tables.
pub(crate) fn store_info(store: &str, file: io::Result<Metadata>, fs: &Nvmfs) -> Value {
    let stats = fs.ftl().stats();
    // A block device takes no space of a file system.
    let file = file.ok().filter(Metadata::is_file);
    json!({
        "store": store,
        "file_bytes": file.as_ref().map(Metadata::len),
        "file_bytes_taken": file.map(|file| file.blocks() * 512),
        "allocated_bytes": stats.allocated_bytes,
        "store_bytes": stats.store_bytes,
        "capacity_bytes": stats.capacity_bytes,
        // What it has, if the device cannot be measured.
        "capacity_max_bytes": fs.ftl().capacity_max().unwrap_or(stats.capacity_bytes),
        "segment_bytes": stats.segment_bytes,
        "segments": stats.segments,
        "free_segments": stats.free_segments,
        "extents": stats.extents,
        "encrypted": fs.ftl().is_encrypted(),
        "compression": fs.store_compression().or(Compression::None).to_string(),
        "io": stats.io_engine,
        "log_device": log_device_info(&stats),
        "quotas": limited_quotas(fs).map(|quota| quota_info(&quota)).collect::<Vec<_>>(),
    })
}

/// What users with limits have.
fn limited_quotas(fs: &Nvmfs) -> impl Iterator<Item = UserQuota> + use<> {
    fs.known_quotas().into_iter().filter(|quota| quota.limits != Limits::default())
}

/// A limit that there is not is null.
fn quota_info(quota: &UserQuota) -> Value {
    let UserQuota { uid, used, limits } = quota;
    json!({
        "uid": uid,
        "bytes": used.bytes,
        "bytes_max": limits.bytes,
        "files": used.inodes,
        "files_max": limits.inodes,
    })
}

/// Null for a store without one.
fn log_device_info(stats: &Stats) -> Value {
    match stats.log_device_bytes {
        0 => Value::Null,
        bytes => json!({
            "bytes": bytes,
            "used_bytes": stats.log_device_used_bytes,
            "written_bytes": stats.log_device_written_bytes,
            "flushes": stats.log_device_flushes,
            "is_volatile": stats.log_device_is_volatile,
        }),
    }
}

fn info(facts: &Facts, service: &Service) -> Value {
    let mut info = store_info(&facts.store, facts.file.metadata(), service.fs());
    let counters = service.counters().snapshot();
    let stats = service.fs().ftl().stats();
    let refused: serde_json::Map<String, Value> = NoTrim::ALL
        .iter()
        .map(|reason| (reason.name().to_owned(), counters.no_trim[reason.index()].into()))
        .collect();
    info["mount"] = json!({
        "transport": service.transport(),
        "read_only": facts.read_only,
        "cache": facts.cache,
        "sync": facts.sync,
        "compression": service.fs().default_compression().or(Compression::None).to_string(),
        "failure": service.fs().ftl().failure(),
        "waits_for_host": service.fs().ftl().waits_for_space(),
        "map_memory_bytes": stats.map_memory_bytes,
        "map_memory_max_bytes": facts.map_memory,
        "chunk_cache_bytes": stats.chunk_cache_bytes,
        "chunk_cache_hits": stats.chunk_cache_hits,
        "chunk_cache_misses": stats.chunk_cache_misses,
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
    add_closed_tables(&mut info, Arc::clone(service.fs()) as Arc<dyn Vfs>);
    info
}

/// One line for each thing found wrong; empty for a sound store. Changes of names wait for it, so it ends with the mount,
/// and when its client has gone.
fn check(fs: &Nvmfs, is_mounted: &dyn Fn() -> bool, tell: Tell<'_>) -> Result<String, String> {
    let mut shown = Shown::default();
    let report = fs.check_reporting(CheckDepth::Payload, |progress| {
        match is_mounted() && (!shown.is_due() || tell(&progress::text(progress))) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    // Who asks about a store that is being closed asks again, and then reads it itself.
    let report = report.map_err(|error| if is_mounted() { error.to_string() } else { CLOSING.to_owned() })?;
    Ok(report.findings.iter().fold(String::new(), |text, finding| text + &one_line(&finding.message) + "\n"))
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

/// The metrics of a store that is not mounted.
pub(crate) fn metrics_of_unmounted(store: &str) -> String {
    let mut text = Exposition::new(store);
    text.put("gauge", UP.0, UP.1, 0);
    text.text
}

/// Name and help of the metric that says whether a store is mounted.
const UP: (&str, &str) = ("up", "Whether the store is mounted and its process answers");

/// Metrics in the text format of Prometheus, each labelled with the store.
struct Exposition {
    /// The label of the store.
    store: String,
    text: String,
}

impl Exposition {
    fn new(store: &str) -> Exposition {
        let store = format!("store=\"{}\"", label_value(store));
        Exposition { store, text: String::new() }
    }

    fn head(&mut self, kind: &str, name: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP lacuna_{name} {help}");
        let _ = writeln!(self.text, "# TYPE lacuna_{name} {kind}");
    }

    /// A line; `labels` beside the store's, each with a comma before it.
    fn line(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "lacuna_{name}{{{}{labels}}} {value}", self.store);
    }

    fn put(&mut self, kind: &str, name: &str, help: &str, value: u64) {
        self.head(kind, name, help);
        self.line(name, "", value);
    }

    /// Of users with limits.
    fn quotas(&mut self, fs: &Nvmfs) {
        let quotas: Vec<_> = limited_quotas(fs).collect();
        let max = |limit: Option<NonZeroU64>| limit.map_or(f64::INFINITY, |limit| limit.get() as f64);
        type Figure<'a> = &'a dyn Fn(&UserQuota) -> f64;
        let figures: [(&str, &str, Figure<'_>); 4] = [
            ("quota_bytes", "Bytes that a user has stored", &|quota| quota.used.bytes as f64),
            ("quota_bytes_max", "Bytes that a user may store", &|quota| max(quota.limits.bytes)),
            ("quota_files", "Inodes of a user", &|quota| quota.used.inodes as f64),
            ("quota_files_max", "Inodes that a user may have", &|quota| max(quota.limits.inodes)),
        ];
        for (name, help, figure) in figures.iter().filter(|_| !quotas.is_empty()) {
            self.head("gauge", name, help);
            for quota in &quotas {
                let value = figure(quota);
                let value = if value.is_finite() { value.to_string() } else { "+Inf".to_owned() };
                self.line(name, &format!(",user=\"{}\"", quota.uid), value);
            }
        }
    }

    /// The times that requests took, in seconds.
    fn latencies(&mut self, service: &Service) {
        let name = "request_seconds";
        self.head("histogram", name, "Time from a request to its answer");
        for kind in Kind::ALL {
            let snapshot = service.latencies().snapshot(kind);
            let operation = format!(",operation=\"{}\"", kind.name());
            let bounds = LATENCY_BOUNDS_US.iter().map(|bound| (*bound as f64 / 1e6).to_string());
            let mut count = 0;
            for (bound, in_bucket) in bounds.chain(["+Inf".to_owned()]).zip(snapshot.buckets) {
                count += in_bucket;
                self.line(&format!("{name}_bucket"), &format!("{operation},le=\"{bound}\""), count);
            }
            self.line(&format!("{name}_sum"), &operation, snapshot.total.as_secs_f64());
            self.line(&format!("{name}_count"), &operation, count);
        }
    }
}

/// A value between quotation marks, as the format wants it.
fn label_value(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// In the text format of Prometheus.
fn metrics(facts: &Facts, service: &Service) -> String {
    let counters = service.counters().snapshot();
    let stats = service.fs().ftl().stats();
    let compressed = service.fs().compression_stats();
    let mut text = Exposition::new(&facts.store);
    text.put("gauge", UP.0, UP.1, 1);
    let failure = service.fs().ftl().failure();
    text.head(
        "gauge",
        "failed",
        "Whether a failure has stopped the store; nothing is written until it is mounted anew",
    );
    let reason =
        failure.as_deref().map_or(String::new(), |reason| format!(",reason=\"{}\"", label_value(reason)));
    text.line("failed", &reason, u64::from(failure.is_some()));
    let waits = service.fs().ftl().waits_for_space();
    for (name, help, value) in [
        ("waits_for_host", "Whether writes wait for space of the store file's file system", u64::from(waits)),
        ("capacity_bytes", "Size of the store", stats.capacity_bytes),
        ("allocated_bytes", "Bytes stored for files", stats.allocated_bytes),
        ("store_bytes", "All segments in use", stats.store_bytes),
        ("live_bytes", "What counts against the limit", stats.live_bytes),
        ("live_limit_bytes", "Live bytes beyond which the store is full", stats.live_limit_bytes),
        ("segments", "Segments of the store", stats.segments),
        ("free_segments", "Segments that hold nothing", stats.free_segments),
        ("extents", "Extents in the map", stats.extents),
        ("map_memory_bytes", "Memory of the map", stats.map_memory_bytes),
        ("map_memory_max_bytes", "Memory that the map may take", facts.map_memory),
        ("chunk_cache_bytes", "Memory of stored chunks kept for reads", stats.chunk_cache_bytes),
        ("log_device_bytes", "Size of the log device's ring; 0 without one", stats.log_device_bytes),
        ("log_device_used_bytes", "Bytes of it that are not in the store yet", stats.log_device_used_bytes),
        ("footer_memory_bytes", "Memory of footers kept for collection", stats.summary_memory_bytes),
    ] {
        text.put("gauge", name, help, value);
    }
    for (name, help, value) in [
        ("reads_total", "Reads answered", counters.reads),
        ("chunk_cache_hits_total", "Stored chunks found in memory", stats.chunk_cache_hits),
        ("chunk_cache_misses_total", "Stored chunks read from the device", stats.chunk_cache_misses),
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
        ("log_device_flushes_total", "Flushes that ended on the log device", stats.log_device_flushes),
        ("log_device_written_bytes_total", "Bytes of the log written there", stats.log_device_written_bytes),
        ("compressed_bytes_total", "Bytes that compression made shorter", compressed.shortened_bytes),
        ("compressed_stored_bytes_total", "What these became", compressed.stored_bytes),
        ("compressed_in_vain_total", "Chunks that compression made no shorter", compressed.in_vain_chunks),
        (
            "compression_skipped_total",
            "Chunks not tried, because those before them did not shrink",
            compressed.skipped_chunks,
        ),
        (
            "recompressed_bytes_total",
            "Bytes compressed again that nobody had written for long",
            compressed.recompressed_bytes,
        ),
        ("recompressed_stored_bytes_total", "What these became", compressed.recompressed_stored_bytes),
        ("corrupt_chunks_total", "Chunks found damaged by collection", stats.corrupt_chunks),
    ] {
        text.put("counter", name, help, value);
    }
    for (name, help, of) in STREAM_COUNTERS {
        text.head("counter", name, help);
        for (stream, stats) in streams(&stats) {
            text.line(name, &format!(",stream=\"{stream}\""), of(&stats));
        }
    }
    text.head("counter", "trims_refused_total", "Writes that implied no trim");
    for reason in NoTrim::ALL {
        let label = format!(",reason=\"{}\"", reason.name());
        text.line("trims_refused_total", &label, counters.no_trim[reason.index()]);
    }
    text.quotas(service.fs());
    text.latencies(service);
    text.text
}

#[cfg(test)]
mod tests {
    use lacuna_device::{BlockDevice, MemDevice};
    use lacuna_fuse::ServiceOptions;
    use lacuna_nvmfs::{FormatOptions, Options};

    use super::*;

    fn facts() -> Facts {
        Facts {
            store: "/a \"b\\c\"\n".to_owned(),
            file: File::open("/dev/null").expect("opens"),
            read_only: false,
            cache: "auto".to_owned(),
            sync: false,
            map_memory: 77,
            ended: Arc::default(),
            look_at_mount: Box::new(|| ()),
        }
    }

    fn service() -> Service {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
        Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
        let fs = Nvmfs::open(device, Options::default()).expect("opens");
        Service::new(Arc::new(fs), ServiceOptions::default())
    }

    #[test]
    fn every_metric_names_its_store_and_has_a_head() {
        let service = service();
        assert!(service.lookup(1, b"none").is_err());
        let limits = Limits { bytes: NonZeroU64::new(4096), inodes: None };
        service.fs().set_limits(77, limits).expect("sets limits");
        let text = metrics(&facts(), &service);
        let label = r#"{store="/a \"b\\c\"\n""#;
        let mut heads = std::collections::HashSet::new();
        for line in text.lines() {
            if let Some(head) = line.strip_prefix("# TYPE ") {
                assert!(heads.insert(head.split(' ').next().expect("a name")), "twice: {line}");
            } else if !line.starts_with('#') {
                let (name, rest) = line.split_at(line.find('{').expect("labels"));
                assert!(rest.starts_with(label), "{line}");
                let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
                assert!(heads.contains(name) || family.is_some_and(|name| heads.contains(name)), "{line}");
                assert!(rest.rsplit(' ').next().is_some_and(|value| value.parse::<f64>().is_ok()), "{line}");
            }
        }
        for (name, value) in [("quota_bytes_max", "4096"), ("quota_files_max", "+Inf"), ("quota_files", "0")]
        {
            let line = format!("\nlacuna_{name}{label},user=\"77\"}} {value}\n");
            assert!(text.contains(&line), "{name}: {text}");
        }
        for (name, value) in [("up", "1"), ("failed", "0"), ("map_memory_max_bytes", "77")] {
            assert!(text.contains(&format!("\nlacuna_{name}{label}}} {value}\n")), "{name}");
        }
        let looks = format!("lacuna_request_seconds_bucket{label},operation=\"look\",le=\"+Inf\"}} 1\n");
        assert!(text.contains(&looks), "{text}");
        assert!(metrics_of_unmounted("s").ends_with("lacuna_up{store=\"s\"} 0\n"));
    }
}
