//! What is said about the tables of a store.

use std::{collections::BTreeMap, fmt::Write, sync::Arc};

use anyhow::Result;
use lacuna_device::Vfs;
use lacuna_engine::{
    Error as EngineError, Store, StoreOptions, TableImages, TableInfo, TableKind, TableOptions,
};
use serde_json::{Value, json};

use crate::{keys::key_of_tables, look::holds_tables, printable::one_line};

/// Memory for the pages that a look at a mounted store reads.
const LOOK_POOL_BYTES: usize = 4 << 20;

/// The images of tables, by the tables' names.
pub(crate) type Images = BTreeMap<String, TableImages>;

/// What is said about the tables of an open store.
pub(crate) fn add_tables(info: &mut Value, store: &Store, images: &Images) -> Result<(), EngineError> {
    let tables = store.tables()?;
    info["tables"] = tables.iter().map(|table| table_json(table, images.get(&table.name))).collect();
    info["defaults"] = defaults_json(&store.defaults()?);
    Ok(())
}

/// Adds the tables in `vfs`, which others may be using: read only, and only when they were closed.
pub(crate) fn add_closed_tables(info: &mut Value, vfs: Arc<dyn Vfs>) {
    let options =
        StoreOptions { pool_bytes: LOOK_POOL_BYTES, key: key_of_tables(), ..StoreOptions::default() };
    let mut look = || {
        if !holds_tables(&*vfs).map_err(|error| format!("{error:#}"))? {
            info["tables"] = json!([]);
            return Ok(());
        }
        let store = Store::open_read_only(vfs.clone(), options.clone());
        store
            .and_then(|store| add_tables(info, &store, &Images::new()))
            .map_err(|error: EngineError| error.to_string())
    };
    let looked: Result<(), String> = look();
    if let Err(why) = looked {
        info["tables_not_shown"] = why.into();
    }
}

fn compression(kind: TableKind) -> (&'static str, &'static str, i32) {
    match kind {
        TableKind::PageCompressed { algorithm, level } => ("page", algorithm.name(), level),
        TableKind::Adaptive { level } => ("adaptive", "lz4+zstd", level),
        TableKind::RowCompressed { algorithm, level, .. } => ("row", algorithm.name(), level),
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
        "doublewrite": table.options.doublewrite.name(),
        "encrypted": table.options.encrypted,
        "locked": table.is_locked,
        "trims": table.punches,
        "refused_trims": table.refused_punches,
        "splits": table.splits,
    });
    if matches!(table.options.kind, TableKind::Adaptive { .. }) {
        json["rested_pages"] = table.rested_pages.into();
        json["woken_pages"] = table.woken_pages.into();
    }
    if let Some(images) = images.filter(|_| !is_row(table)) {
        let pages =
            images.pages.iter().map(|(algorithm, pages)| (algorithm.name().to_owned(), (*pages).into()));
        json["pages"] = Value::Object(pages.collect());
        json["unwritten_pages"] = images.unwritten.into();
        json["image_bytes"] = images.image_bytes.into();
        json["encrypted_pages"] = images.encrypted.into();
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
    let encrypted = match images.encrypted {
        0 => String::new(),
        pages => format!("; {pages} encrypted"),
    };
    format!("pages: {}; their images take {ratio:.2} of them{encrypted}", parts.join(", "))
}

/// The table of tables.
pub(crate) fn tables_text(tables: &[Value], defaults: &Value, images: &Images) -> String {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\n  {:<20} {:<12} {:>6} {:>12} {:>12} {:>6}",
        "table", "compression", "page", "size MB", "taken MB", "ratio"
    );
    for table in tables {
        let number = |field: &str| table[field].as_u64().unwrap_or(0);
        let name = table["name"].as_str().unwrap_or("?");
        let mut compression = compression_of(table);
        if table["inherits"] == true {
            compression.push('*');
        }
        let page_bytes = number("page_bytes");
        let (file_bytes, allocated_bytes) = (number("file_bytes"), number("allocated_bytes"));
        let _ = writeln!(
            text,
            "  {:<20} {compression:<12} {:>6} {:>12.1} {:>12.1} {:>6.2}",
            one_line(name),
            format!("{}K", page_bytes >> 10),
            mb(file_bytes),
            mb(allocated_bytes),
            allocated_bytes as f64 / file_bytes.max(1) as f64,
        );
        if let Some(images) = images.get(name).filter(|_| table["tables"] != "row") {
            let _ = writeln!(text, "    {}", images_text(images, page_bytes as usize));
        }
        let counted = ["trims", "refused_trims", "splits"].map(number);
        if counted != [0; 3] {
            let [trims, refused, splits] = counted;
            let _ =
                writeln!(text, "    since it was opened: {trims} trims, {refused} refused, {splits} splits");
        }
        if let Some(setting @ ("on" | "off")) = table["doublewrite"].as_str() {
            let _ = writeln!(text, "    doublewrite {setting}");
        }
        if table["encrypted"] == true {
            let locked = if table["locked"] == true { ", and its key is missing or damaged" } else { "" };
            let _ = writeln!(text, "    encrypted{locked}");
        }
    }
    if tables.iter().any(|table| table["inherits"] == true) {
        let _ = writeln!(text, "  * follows the store's defaults, now {}", compression_of(defaults));
    }
    text
}

/// The compression that a table or the defaults have in force.
fn compression_of(settings: &Value) -> String {
    let name = |field: &str| settings[field].as_str().unwrap_or("?");
    compression_text((name("tables"), name("algorithm"), settings["level"].as_i64().unwrap_or(0) as i32))
}

/// How pages of tables of a kind are kept, in a word or two.
pub(crate) fn kind_text(kind: TableKind) -> String {
    let text = compression_text(compression(kind));
    match kind {
        TableKind::RowCompressed { key_block_size, .. } => format!("{text}, blocks of {key_block_size}K"),
        TableKind::Plain | TableKind::PageCompressed { .. } | TableKind::Adaptive { .. } => text,
    }
}

fn compression_text((kind, algorithm, level): (&str, &str, i32)) -> String {
    match (kind, level) {
        ("plain", _) => kind.to_owned(),
        (_, 0) => format!("{kind}/{algorithm}"),
        (_, level) => format!("{kind}/{algorithm} {level}"),
    }
}
