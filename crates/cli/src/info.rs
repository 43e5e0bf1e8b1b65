use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_device::{AtomicWrites, DirVfs};
use lacuna_engine::{Error as EngineError, RecoveryStats};
use lacuna_ftl::LogDeviceUse;
use lacuna_nvmfs::OpenedVfs;
use serde_json::{Value, json};

use crate::{
    control, live, log_device,
    look::{Look, has_no_tables, holds_tables},
    mounts,
    printable::one_line,
    quota::user_name,
    say,
    table_info::{Images, add_tables, tables_text},
};

/// Show what a store holds
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file, a block device, a directory with tables, or where a store is mounted
    store: PathBuf,
    /// Look at every page of its tables too: how many there are by algorithm, and what their images take
    #[arg(long)]
    pages: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let name = arguments.store.display().to_string();
    if let Some(answer) = control::ask(&arguments.store, "info")? {
        if arguments.pages {
            bail!("{name}: mounted, its owner does not look at pages of tables (--pages)");
        }
        let info: Value = serde_json::from_str(&answer).with_context(|| name.clone())?;
        let text = if arguments.json {
            serde_json::to_string_pretty(&info)? + "\n"
        } else {
            text(&info, &Images::new())
        };
        return say(&text);
    }
    let (info, images) = look_at(arguments, &name)?;
    let text =
        if arguments.json { serde_json::to_string_pretty(&info)? + "\n" } else { text(&info, &images) };
    say(&text)
}

/// What is said of a directory in which tables may be made.
fn directory_info(path: &Path, name: &str) -> Result<Value> {
    let mut info = json!({ "store": name, "tables": [] });
    if let Some(writes) = DirVfs::probe_atomic_writes(path)? {
        info["atomic_writes"] = atomic_writes_json(writes);
    }
    if let Some(mount) = mounts::mounted_around(path)? {
        info["within"] =
            json!({ "store": mount.store.display().to_string(), "dir": mount.dir.display().to_string() });
    }
    Ok(info)
}

fn atomic_writes_json(writes: Option<AtomicWrites>) -> Value {
    writes.map(|writes| json!({ "bytes_min": writes.bytes_min, "bytes_max": writes.bytes_max })).into()
}

/// What a store holds that no other process has open.
fn look_at(arguments: &Arguments, name: &str) -> Result<(Value, Images)> {
    if has_no_tables(&arguments.store) {
        return Ok((directory_info(&arguments.store, name)?, Images::new()));
    }
    let look = Look::at(&arguments.store, log_device::vfs_options())?;
    let vfs = look.opened.vfs();
    let mut info = match &look.opened {
        OpenedVfs::Store(fs) => live::store_info(name, arguments.store.metadata(), fs),
        _ => {
            let stats = vfs.stats()?;
            json!({
                "store": name,
                "allocated_bytes": stats.allocated_bytes,
                "store_bytes": stats.store_bytes,
            })
        }
    };
    // Who may only read a directory cannot ask what writes it takes.
    if let (OpenedVfs::Directory(_), false) = (&look.opened, look.is_read_only) {
        info["atomic_writes"] = atomic_writes_json(vfs.props().atomic_writes);
    }
    if info["log_device"].is_null()
        && let LogDeviceUse::Device(device) = log_device::chosen().opened(true)?
    {
        // The store was opened for reading only: what it has logged is seen, and not counted.
        let (bytes, is_volatile) = (device.capacity_bytes(), device.is_volatile());
        info["log_device"] = json!({ "bytes": bytes, "is_volatile": is_volatile });
    }
    let mut images = Images::new();
    let mut kept = None;
    info["tables"] = json!([]);
    if holds_tables(&*vfs)? {
        match look.tables(name) {
            Ok(store) => {
                for table in store.tables()?.iter().filter(|_| arguments.pages) {
                    let found = store.images(&table.name).with_context(|| name.to_owned())?;
                    images.insert(table.name.clone(), found);
                }
                add_tables(&mut info, &store, &images)?;
                info["recovery"] = recovery_json(&store.stats()?.recovery);
                kept = Some(store);
            }
            Err(error) if matches!(error.downcast_ref(), Some(EngineError::NotClosed { .. })) => {
                info["tables_not_shown"] = format!("{:#}", error.root_cause()).into();
            }
            Err(error) => return Err(error),
        }
    }
    look.close(kept)?;
    Ok((info, images))
}

fn mount_text(mount: &Value) -> String {
    let number = |name: &str| mount[name].as_u64().unwrap_or(0);
    let mb = |name: &str| number(name) as f64 / 1e6;
    let transport = mount["transport"].as_str().unwrap_or("?");
    let mut text = String::new();
    if let Some(failure) = mount["failure"].as_str() {
        let _ = writeln!(
            text,
            "  STOPPED after a failure: {failure}\n  What was synced is safe; unmount and mount again once the device is \
             well"
        );
    }
    if mount["waits_for_host"] == true {
        text += "  WAITING: the file system of the store file is full; free space there, and writes go on\n";
    }
    let _ = writeln!(
        text,
        "  map         {:>10.1} MB of at most {:.1} in memory",
        mb("map_memory_bytes"),
        mb("map_memory_max_bytes")
    );
    let [hits, misses] =
        ["chunk_cache_hits", "chunk_cache_misses"].map(|name| mount[name].as_u64().unwrap_or(0));
    if hits + misses > 0 {
        let _ = writeln!(
            text,
            "  chunk cache {:>10.1} MB; {hits} chunks found there, {misses} not",
            mb("chunk_cache_bytes")
        );
    }
    let _ = writeln!(text, "  mounted over {transport}; since then:");
    for (title, count, bytes) in [
        ("reads", "reads", "read_bytes"),
        ("writes", "writes", "write_bytes"),
        ("trims", "trims_inferred", "trim_bytes"),
    ] {
        let _ = writeln!(text, "  {title:<11} {:>10.1} MB in {}", mb(bytes), number(count));
    }
    let _ = writeln!(text, "  device      {:>10.1} MB written", mb("device_written_bytes"));
    let _ = writeln!(
        text,
        "  syncs {}, files that asked for atomic writes {}, EIO {}, ENOSPC {}",
        number("syncs"),
        number("atomic_handshakes"),
        number("io_errors"),
        number("no_space_errors"),
    );
    text
}

/// The work of opening the store.
fn recovery_json(did: &RecoveryStats) -> Value {
    json!({
        "log_bytes": did.log_bytes,
        "records": did.records,
        "pages": did.pages,
        "applied": did.applied,
        "on_device": did.on_device,
        "rolled_back": did.rolled_back,
        "restored_pages": did.restored_pages,
        "replay_seconds": did.replay_time.as_secs_f64(),
    })
}

fn recovery_text(recovery: &Value) -> String {
    let number = |name: &str| recovery[name].as_u64().unwrap_or(0);
    if number("log_bytes") == 0 {
        return String::new();
    }
    format!(
        "  recovered: {:.1} MB of log and {} pages in {:.2} s, {} transactions taken back\n",
        number("log_bytes") as f64 / 1e6,
        number("pages"),
        recovery["replay_seconds"].as_f64().unwrap_or(0.0),
        number("rolled_back"),
    )
}

/// Whether the file system of a directory writes pages atomically, if that is known.
fn atomic_writes_text(writes: Option<&Value>) -> String {
    let Some(writes) = writes else { return String::new() };
    match (writes["bytes_min"].as_u64(), writes["bytes_max"].as_u64()) {
        (Some(min), Some(max)) => format!("  atomic writes (RWF_ATOMIC) of {min} to {max} bytes\n"),
        _ => "  no atomic writes (RWF_ATOMIC): pages are written twice by default\n".to_owned(),
    }
}

/// A line for each user with limits.
fn quotas_text(quotas: &Value) -> String {
    let quotas = quotas.as_array().map(Vec::as_slice).unwrap_or_default();
    quotas.iter().fold(String::new(), |mut text, quota| {
        let mb = |name: &str| quota[name].as_u64().map(|bytes| format!("{:.1} MB", bytes as f64 / 1e6));
        let files = |name: &str| quota[name].as_u64().map(|files| files.to_string());
        let of = |has: Option<String>, max: Option<String>| {
            format!("{} of {}", has.unwrap_or_default(), max.unwrap_or_else(|| "any".to_owned()))
        };
        let user = quota["uid"].as_u64().and_then(|uid| u32::try_from(uid).ok()).map(user_name);
        let _ = writeln!(
            text,
            "  quota       {}: {}, {} files",
            user.unwrap_or_default(),
            of(mb("bytes"), mb("bytes_max")),
            of(files("files"), files("files_max"))
        );
        text
    })
}

fn text(info: &Value, images: &Images) -> String {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let mut text = format!("{}\n", one_line(info["store"].as_str().unwrap_or_default()));
    let number = |name: &str| info[name].as_u64();
    if let (Some(capacity), Some(free), Some(segments)) =
        (number("capacity_bytes"), number("free_segments"), number("segments"))
    {
        let _ = writeln!(text, "  capacity    {:>10.1} MB, {free} of {segments} segments free", mb(capacity));
    }
    if let (Some(capacity), Some(max)) = (number("capacity_bytes"), number("capacity_max_bytes"))
        && max > capacity
    {
        let store = info["store"].as_str().unwrap_or_default();
        let more = mb(max - capacity);
        let _ =
            writeln!(text, "  device      {:>10.1} MB: `lacuna grow {store} max` adds {more:.1} MB", mb(max));
    }
    if let Some(io) = info["io"].as_str() {
        let _ = writeln!(text, "  requests by {io:>10}");
    }
    if info["encrypted"] == true {
        text += "  data is encrypted\n";
    }
    let of_store = info["compression"].as_str().filter(|how| *how != "none");
    let of_mount =
        info["mount"]["compression"].as_str().filter(|how| Some(*how) != info["compression"].as_str());
    if let Some(how) = of_mount {
        let _ = writeln!(text, "  compressed by {how:>8} (the store says {})", of_store.unwrap_or("none"));
    } else if let Some(how) = of_store {
        let _ = writeln!(text, "  compressed by {how:>8}");
    }
    for (title, name) in [("live bytes", "allocated_bytes"), ("space taken", "store_bytes")] {
        if let Some(bytes) = number(name) {
            let _ = writeln!(text, "  {title:<11} {:>10.1} MB", mb(bytes));
        }
    }
    if let Some(bytes) = info["log_device"]["bytes"].as_u64() {
        let used = info["log_device"]["used_bytes"].as_u64();
        let used = used.map_or(String::new(), |used| format!(", {:.1} not in the store yet", mb(used)));
        let kind = if info["log_device"]["is_volatile"] == true { "; GONE WITH THE POWER" } else { "" };
        let _ = writeln!(text, "  log device  {:>10.1} MB{used}{kind}", mb(bytes));
    }
    if let (Some(bytes), Some(taken)) = (number("file_bytes"), number("file_bytes_taken")) {
        let kept = if taken >= bytes { ", preallocated" } else { "" };
        let _ = writeln!(text, "  its file    {:>10.1} MB of its file system{kept}", mb(taken));
    }
    text += &atomic_writes_text(info.get("atomic_writes"));
    if let (Some(store), Some(dir)) = (info["within"]["store"].as_str(), info["within"]["dir"].as_str()) {
        let _ = writeln!(text, "  in the store {}, which is mounted on {}", one_line(store), one_line(dir));
    }
    text += &quotas_text(&info["quotas"]);
    if let Some(mount) = info.get("mount") {
        text += &mount_text(mount);
    }
    if let Some(why) = info["tables_not_shown"].as_str() {
        let _ = writeln!(text, "  tables not shown: {why}");
        return text;
    }
    let tables = info["tables"].as_array().map(Vec::as_slice).unwrap_or_default();
    if tables.is_empty() {
        text += match (info.get("mount"), number("capacity_bytes")) {
            (Some(_), _) => "", // most mounted stores hold files of other programs
            (None, Some(_)) => "  no tables\n",
            (None, None) => "  a directory: no store is mounted there, and it holds no tables\n",
        };
        return text;
    }
    text += &recovery_text(&info["recovery"]);
    text + &tables_text(tables, &info["defaults"], images)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomic_writes_are_told_where_they_are_known() {
        let text = |writes: Value| text(&json!({ "store": "dir", "atomic_writes": writes }), &Images::new());
        assert!(
            text(json!({ "bytes_min": 4096, "bytes_max": 65536 }))
                .contains("  atomic writes (RWF_ATOMIC) of 4096 to 65536 bytes\n")
        );
        assert!(text(Value::Null).contains("  no atomic writes (RWF_ATOMIC): pages are written twice"));
        let unknown = super::text(&json!({ "store": "dir" }), &Images::new());
        assert!(!unknown.contains("atomic"), "{unknown}");
    }
}
