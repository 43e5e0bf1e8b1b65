//! LinkBench of the crate `lacuna-bench`, the same requests on the same rows, on other storage engines and on ours.
//! `compare/run` runs it for each and makes a table of the results.

mod contestant;
mod on_device;
mod peer;
mod peers;
#[cfg(test)]
mod tests;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use lacuna_bench::{
    DeviceTraffic, Plan,
    engine::EngineDb,
    linkbench::{self, AckLog, Config, Db, RunReport, comparison},
    now_ms,
};
use lacuna_engine::{StoreOptions, TableKind, TableOptions};
use lacuna_nvmfs::{FormatOptions, VfsOptions, format_path, open_vfs};
use lacuna_page::Algorithm;
use serde_json::json;

use crate::{
    contestant::{Contestant, Name},
    on_device::OnDevice,
    peer::{Compression, Peer, PeerDb, Settings},
    peers::{Fjall, Lmdb, Redb, Sqlite},
};

/// Threads that load, as many as `lacuna linkbench` has.
const LOADERS: u32 = 8;

/// Run LinkBench on one storage engine
#[derive(Parser)]
#[command(name = "lacuna-compare", version, max_term_width = 100)]
struct Arguments {
    /// lacuna, rocksdb, lmdb, redb, fjall or sqlite, with /none, /lz4, /zstd or /lz4-blobs where it offers that
    contestant: Contestant,
    /// An empty directory; for lacuna a block device too
    #[arg(long)]
    storage: PathBuf,
    /// Make a store on the block device, over whatever is on it
    #[arg(long)]
    format: bool,
    /// The block device below the directory, whose counters measure the bytes written; by default the engine's own
    /// count, or that of the system for this process
    #[arg(long, value_name = "DEVICE")]
    device: Option<PathBuf>,
    /// Number of nodes to load
    #[arg(long, default_value_t = 1_000_000)]
    ids: u64,
    /// Bytes of memory for the engine's own caches and buffers
    #[arg(long, default_value_t = 256 << 20)]
    pool_bytes: u64,
    /// Most bytes that a peer's files may grow to, for peers that need to know it
    #[arg(long, default_value_t = 16 << 30)]
    size_bytes: u64,
    /// Threads that make requests
    #[arg(long, default_value_t = 16)]
    requesters: u32,
    /// Length of the measured request phase in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Requests before that, in seconds
    #[arg(long, default_value_t = 10)]
    warmup: u64,
    /// Seed of data and requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use the out-degrees of a file like LinkBench's Distribution.dat
    #[arg(long, value_name = "FILE")]
    distribution: Option<PathBuf>,
    /// Write the result to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lacuna-compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let Contestant { name, compression } = arguments.contestant;
    eprintln!("{}: {}, {} ids", arguments.storage.display(), arguments.contestant, arguments.ids);
    let (report, traffic) = match name {
        Name::Lacuna => run_ours(arguments, compression)?,
        #[cfg(feature = "rocksdb")]
        Name::RocksDb => run_peer::<peers::RocksDb>(arguments)?,
        Name::Lmdb => run_peer::<Lmdb>(arguments)?,
        Name::Redb => run_peer::<Redb>(arguments)?,
        Name::Fjall => run_peer::<Fjall>(arguments)?,
        Name::Sqlite => run_peer::<Sqlite>(arguments)?,
    };
    print!("{}", comparison(std::slice::from_ref(&report)));
    if let Some(path) = &arguments.json {
        let report = json!({
            "benchmark": "compare",
            "contestant": arguments.contestant.to_string(),
            "config": {
                "ids": arguments.ids,
                "pool_bytes": arguments.pool_bytes,
                "loaders": LOADERS,
                "requesters": arguments.requesters,
                "warmup_seconds": arguments.warmup,
                "seconds": arguments.seconds,
                "seed": arguments.seed,
                "distribution": arguments.distribution.as_ref().map(|path| path.display().to_string()),
                "durability": "sync",
            },
            "device_flushes": traffic.map(|traffic| traffic.flushes),
            "device_bytes_read": traffic.map(|traffic| traffic.read_bytes),
            "retries": report.retries,
            "run": report,
        });
        let text = format!("{}\n", serde_json::to_string_pretty(&report)?);
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    match report.figures.violation {
        Some(violation) => bail!("{}: {violation}", arguments.contestant),
        None => Ok(()),
    }
}

/// Runs on a peer, in a directory that must be empty.
fn run_peer<P: Peer>(arguments: &Arguments) -> Result<(RunReport, Option<DeviceTraffic>)> {
    let storage = &arguments.storage;
    let mut names = fs::read_dir(storage).with_context(|| storage.display().to_string())?;
    if names.any(|name| name.is_ok_and(|name| name.file_name() != "lost+found")) {
        bail!("{}: not empty", storage.display());
    }
    let settings = Settings {
        pool_bytes: arguments.pool_bytes,
        size_bytes: arguments.size_bytes,
        clients: arguments.requesters.max(LOADERS),
        compression: arguments.contestant.compression,
    };
    let db = PeerDb::<P>::open(storage, &settings)?;
    db.begin_load();
    measure(arguments, db).map(|(_, report, traffic)| (report, traffic))
}

/// Runs on our own engine, in a store on a block device or in a directory.
fn run_ours(
    arguments: &Arguments,
    compression: Option<Compression>,
) -> Result<(RunReport, Option<DeviceTraffic>)> {
    let storage = &arguments.storage;
    if arguments.format {
        format_device(storage)?;
    }
    let kind = match compression {
        Some(Compression::None) => TableKind::Plain,
        None | Some(Compression::Lz4) => TableKind::PageCompressed { algorithm: Algorithm::Lz4, level: 0 },
        Some(Compression::Zstd) => TableKind::PageCompressed { algorithm: Algorithm::Zstd, level: 0 },
        Some(Compression::Lz4Blobs) => unreachable!("it is not offered"),
    };
    let opened = open_vfs(storage, &VfsOptions::default())?;
    let pool_bytes = arguments.pool_bytes as usize;
    let store_options = StoreOptions { pool_bytes, ..StoreOptions::default() };
    let table_options = TableOptions { kind, ..TableOptions::default() };
    let (db, report, traffic) =
        measure(arguments, EngineDb::create(opened.vfs(), store_options, table_options)?)?;
    db.close()?;
    opened.close()?;
    Ok((report, traffic))
}

fn format_device(device: &Path) -> Result<()> {
    let mut options = FormatOptions::default();
    options.ftl.force = true;
    // A block device is used as it is.
    Ok(format_path(device, None, &options)?)
}

fn measure<D: Db>(arguments: &Arguments, db: D) -> Result<(D, RunReport, Option<DeviceTraffic>)> {
    let config = Config {
        ids: arguments.ids,
        distribution: arguments.distribution.clone(),
        plan: Plan {
            loaders: LOADERS,
            requesters: arguments.requesters,
            warmup: Duration::from_secs(arguments.warmup),
            seconds: Duration::from_secs(arguments.seconds),
            requests_min: 0,
            rate: None,
            window: None,
            seed: arguments.seed,
            epoch_ms: now_ms(),
            quiet: false,
        },
    };
    let (name, compression) = (arguments.contestant.name.as_str(), arguments.contestant.compression());
    let db = OnDevice::new(db, arguments.device.clone());
    let report = linkbench::run(&db, &config, name, compression, None::<&AckLog>)
        .with_context(|| arguments.storage.display().to_string())?;
    let traffic = db.traffic();
    Ok((db.db, report, traffic))
}
