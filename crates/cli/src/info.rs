use std::{collections::BTreeMap, fmt::Write, path::PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_device::{Error, StreamHint, Vfs};
use lacuna_engine::{Error as EngineError, RecoveryStats, TableImages, TableInfo, TableKind, TableOptions};
use lacuna_nvmfs::OpenedVfs;
use serde_json::{Value, json};

use crate::{control, live, log_device, look::Look, printable::one_line, say};

/// Show what a store holds
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file, a block device, or a directory with tables
    store: PathBuf,
    /// Look at every page of its tables too: how many there are by algorithm, and what their images take
    #[arg(long)]
    pages: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// The images of tables, by the tables' names.
type Images = BTreeMap<String, TableImages>;

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
            text(&info, &[], &Images::new())
        };
        return say(&text);
    }
    let (info, tables, images) = look_at(arguments, &name)?;
    let text = if arguments.json {
        serde_json::to_string_pretty(&info)? + "\n"
    } else {
        text(&info, &tables, &images)
    };
    say(&text)
}

/// What a store holds that no other process has open.
fn look_at(arguments: &Arguments, name: &str) -> Result<(Value, Vec<TableInfo>, Images)> {
    let look = Look::at(&arguments.store, log_device::vfs_options())?;
    let vfs = look.opened.vfs();
    let mut info = match &look.opened {
        OpenedVfs::Store(fs) => live::store_info(name, fs),
        _ => {
            let stats = vfs.stats()?;
            json!({
                "store": name,
                "allocated_bytes": stats.allocated_bytes,
                "store_bytes": stats.store_bytes,
            })
        }
    };
    let (mut tables, mut images) = (Vec::new(), Images::new());
    let mut kept = None;
    if holds_tables(&*vfs)? {
        match look.tables(name) {
            Ok(store) => {
                tables = store.tables()?;
                for table in tables.iter().filter(|_| arguments.pages) {
                    let found = store.images(&table.name).with_context(|| name.to_owned())?;
                    images.insert(table.name.clone(), found);
                }
                info["defaults"] = defaults_json(&store.defaults()?);
                info["recovery"] = recovery_json(&store.stats()?.recovery);
                kept = Some(store);
            }
            Err(error) if matches!(error.downcast_ref(), Some(EngineError::NotClosed { .. })) => {
                info["tables_not_shown"] = format!("{:#}", error.root_cause()).into();
            }
            Err(error) => return Err(error),
        }
    }
    info["tables"] = tables.iter().map(|table| table_json(table, images.get(&table.name))).collect();
    look.close(kept)?;
    Ok((info, tables, images))
}

/// Whether the engine keeps tables in `vfs`: its first file is there.
pub(crate) fn holds_tables(vfs: &dyn Vfs) -> Result<bool> {
    match vfs.open("control", StreamHint::Data) {
        Ok(_) => Ok(true),
        Err(Error::NotFound { .. }) => Ok(false),
        // It may be the name of no file.
        Err(_) => Ok(vfs.list()?.iter().any(|name| name == "control")),
    }
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

fn compression(kind: TableKind) -> (&'static str, &'static str, i32) {
    match kind {
        TableKind::PageCompressed { algorithm, level } => ("page", algorithm.name(), level),
        TableKind::RowCompressed { level, .. } => ("row", "zlib", level),
        _ => ("plain", "none", 0),
    }
}

/// Its pages are blocks.
fn is_row(table: &TableInfo) -> bool {
    matches!(table.options.kind, TableKind::RowCompressed { .. })
}

fn defaults_json(defaults: &TableOptions) -> Value {
    let (kind, algorithm, level) = compression(defaults.kind);
    json!({ "tables": kind, "algorithm": algorithm, "level": level, "page_bytes": defaults.page_bytes })
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

fn table_json(table: &TableInfo, images: Option<&TableImages>) -> Value {
    let (kind, algorithm, level) = compression(table.options.kind);
    let mut json = json!({
        "name": table.name,
        "tables": kind,
        "algorithm": algorithm,
        "level": level,
        "inherits": table.inherits,
        "page_bytes": table.options.page_bytes,
        "file_bytes": table.file_bytes,
        "allocated_bytes": table.allocated_bytes,
        "hole_unit": table.hole_unit,
    });
    if let Some(images) = images.filter(|_| !is_row(table)) {
        let pages =
            images.pages.iter().map(|(algorithm, pages)| (algorithm.name().to_owned(), (*pages).into()));
        json["pages"] = Value::Object(pages.collect());
        json["unwritten_pages"] = images.unwritten.into();
        json["image_bytes"] = images.image_bytes.into();
    }
    json
}

/// Pages by algorithm, and the space of their images compared with that of pages.
fn images_text(images: &TableImages, page_bytes: usize) -> String {
    let mut parts: Vec<String> =
        images.pages.iter().map(|(algorithm, pages)| format!("{pages} {algorithm}")).collect();
    if images.unwritten > 0 {
        parts.push(format!("{} not written yet", images.unwritten));
    }
    let written: u64 = images.pages.values().sum();
    let ratio = images.image_bytes as f64 / (written.max(1) * page_bytes as u64) as f64;
    format!("pages: {}; their images take {ratio:.2} of them", parts.join(", "))
}

fn text(info: &Value, tables: &[TableInfo], images: &Images) -> String {
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
    for (title, name) in [("live bytes", "allocated_bytes"), ("space taken", "store_bytes")] {
        let _ = writeln!(text, "  {title:<11} {:>10.1} MB", mb(number(name).unwrap_or(0)));
    }
    if let Some(bytes) = info["log_device"]["bytes"].as_u64() {
        let used = info["log_device"]["used_bytes"].as_u64().unwrap_or(0);
        let kind = if info["log_device"]["is_volatile"] == true { "; GONE WITH THE POWER" } else { "" };
        let _ = writeln!(
            text,
            "  log device  {:>10.1} MB, {:.1} not in the store yet{kind}",
            mb(bytes),
            mb(used)
        );
    }
    if let (Some(bytes), Some(taken)) = (number("file_bytes"), number("file_bytes_taken")) {
        let kept = if taken >= bytes { ", preallocated" } else { "" };
        let _ = writeln!(text, "  its file    {:>10.1} MB of its file system{kept}", mb(taken));
    }
    if let Some(mount) = info.get("mount") {
        text += &mount_text(mount);
        return text;
    }
    if let Some(why) = info["tables_not_shown"].as_str() {
        let _ = writeln!(text, "  tables not shown: {why}");
        return text;
    }
    if tables.is_empty() {
        text += "  no tables\n";
        return text;
    }
    text += &recovery_text(&info["recovery"]);
    let _ = writeln!(
        text,
        "\n  {:<20} {:<12} {:>6} {:>12} {:>12} {:>6}",
        "table", "compression", "page", "size MB", "taken MB", "ratio"
    );
    for table in tables {
        let mut compression = kind_text(table.options.kind);
        if table.inherits {
            compression.push('*');
        }
        let _ = writeln!(
            text,
            "  {:<20} {compression:<12} {:>6} {:>12.1} {:>12.1} {:>6.2}",
            one_line(&table.name),
            format!("{}K", table.options.page_bytes >> 10),
            mb(table.file_bytes),
            mb(table.allocated_bytes),
            table.allocated_bytes as f64 / table.file_bytes.max(1) as f64,
        );
        if let Some(images) = images.get(&table.name).filter(|_| !is_row(table)) {
            let _ = writeln!(text, "    {}", images_text(images, table.options.page_bytes));
        }
    }
    if tables.iter().any(|table| table.inherits) {
        let defaults = &info["defaults"];
        let name = |field: &str| defaults[field].as_str().unwrap_or("?");
        let level = defaults["level"].as_i64().unwrap_or(0) as i32;
        let compression = compression_text((name("tables"), name("algorithm"), level));
        let _ = writeln!(text, "  * follows the store's defaults, now {compression}");
    }
    text
}

/// How pages of tables of a kind are kept, in a word or two.
pub(crate) fn kind_text(kind: TableKind) -> String {
    compression_text(compression(kind))
}

fn compression_text((kind, algorithm, level): (&str, &str, i32)) -> String {
    match (kind, level) {
        ("plain", _) => kind.to_owned(),
        (_, 0) => format!("{kind}/{algorithm}"),
        (_, level) => format!("{kind}/{algorithm} {level}"),
    }
}
