use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_bench::{
    iobench::{self, Config, Pattern, PatternReport, Skew, comparison, goals},
    trace::{TraceDevice, TraceWriter},
};
use lacuna_device::{AlignedBuf, BlockDevice, RawDevice, RawOptions, Vfs};
use lacuna_ftl::{Footprint, FormatOptions, Ftl};
use lacuna_nvmfs::{self as nvmfs, Compression, LogDevicePath, Nvmfs};
use serde_json::{Value, json};

use crate::{
    keys, log_device,
    output::{is_same_file, reserve_report, write_json},
    say,
    size::Size,
    trace::must_be_new,
};

/// Measure the flash translation layer under patterns of I/O, and the bare device beside it
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store file (made when missing) or block device; by default a temporary store file in the
    /// current directory
    #[arg(long, value_name = "PLACE")]
    store: Option<PathBuf>,
    /// Size of files that are made; they are written once in full before anything is measured
    #[arg(long, default_value = "1G")]
    size: Size,
    /// Run the same on this device or file; a file that is made for it is removed again
    #[arg(long, value_name = "DEVICE|FILE")]
    raw: Option<PathBuf>,
    /// Overwrite what --store and --raw hold
    #[arg(long)]
    force: bool,
    /// all, or some of seqwrite, seqread, randwrite, randread (blocks, over 30% of the capacity),
    /// append (4 KiB, each made durable), writetrim (a block, then part of it trimmed), overwrite (at
    /// --live and --skew, to the steady state)
    #[arg(long, default_value = "all", value_delimiter = ',')]
    pattern: Vec<String>,
    /// Instead of patterns: what the ftl is meant to reach beside --raw, in rounds that take turns, with
    /// the ratios' medians and 90% intervals
    #[arg(long, requires = "raw", conflicts_with = "pattern")]
    goals: bool,
    /// Compare with --goals what a file that is compressed by it (lz4, zstd or zstd:LEVEL) costs beside a plain file: the
    /// data cannot be compressed
    #[arg(long, value_name = "ALGORITHM", requires = "goals", conflicts_with = "trace")]
    compress: Option<Compression>,
    /// Rounds of --goals; one has no interval, and settles nothing
    #[arg(long, default_value_t = 5, requires = "goals", value_parser = clap::value_parser!(u64).range(1..=10))]
    rounds: u64,
    /// Length of each pattern but overwrite in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=2_592_000))]
    seconds: u64,
    /// Threads, each with one request at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Bytes of a read or write, a multiple of 4K up to 1M
    #[arg(long, default_value = "16K", conflicts_with = "goals")]
    block: Size,
    /// Share of the capacity that is live in the pattern overwrite
    #[arg(long, value_name = "PERCENT", default_value_t = 80,
          value_parser = clap::value_parser!(u64).range(1..=100))]
    live: u64,
    /// Bytes that the pattern overwrite writes, as a multiple of the capacity, after once the capacity
    /// to reach the steady state
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    capacities: u64,
    /// Which blocks random patterns choose: uniform, or zipf:S with S between 0 and 1
    #[arg(long, default_value_t = Skew::Uniform, conflicts_with = "goals")]
    skew: Skew,
    /// Memory for the map of the store; all of it is kept by default
    #[arg(long, value_name = "SIZE")]
    map_memory: Option<Size>,
    /// Seed of places and data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Record all writes to the store into this new file, for flash-model
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let config = Config {
        patterns: patterns(&arguments.pattern)?,
        seconds: Duration::from_secs(arguments.seconds),
        threads: arguments.threads,
        block_bytes: arguments.block.0,
        live_percent: arguments.live,
        overwrite_capacities: arguments.capacities,
        wraps: false,
        map_memory_bytes: arguments.map_memory.map(|size| size.0),
        skew: arguments.skew,
        seed: arguments.seed,
        quiet: false,
    };
    config.check()?;
    if keys::is_given() || log_device::chosen() != LogDevicePath::None {
        bail!("iobench measures a store without a key and without a log device");
    }
    arguments.trace.as_deref().map_or(Ok(()), must_be_new)?;
    if let Some(path) = &arguments.json {
        reserve_report(path)?;
    }
    if let (Some(raw), Some(store)) = (&arguments.raw, &arguments.store)
        && (raw == store || is_same_file(raw, store))
    {
        bail!("{}: --raw and --store name the same place", raw.display());
    }
    // The raw one first: it may be refused, and no file has been made by then.
    let raw = arguments.raw.as_deref().map(|path| open_raw(path, arguments)).transpose()?;
    let store = open_store(arguments)?;
    let trace = match &arguments.trace {
        Some(path) => Some(TraceWriter::create(path, TraceDevice::source(&*store))?),
        None => None,
    };
    let traced = match &trace {
        Some(trace) => Arc::new(TraceDevice::new(store, Arc::clone(trace))),
        None => store,
    };
    let (goals, reports) = match &raw {
        Some(raw) if arguments.goals => match arguments.compress {
            Some(compression) => {
                goals::run_compressed(&config, arguments.rounds, [&traced, raw], &|device, is_compressed| {
                    let compression = if is_compressed { compression } else { Compression::None };
                    file_system(device, compression, arguments.map_memory)
                })?
            }
            None => goals::run(&config, arguments.rounds, &traced, raw)?,
        },
        raw => (Vec::new(), iobench::run(&config, &traced, raw.as_ref())?),
    };
    if let Some(trace) = trace {
        trace.finish()?;
    }
    match (arguments.goals, arguments.compress) {
        (_, Some(_)) => say(&goals::compression_table(&goals))?,
        (true, None) => say(&goals::table(&config, &goals, &reports))?,
        (false, None) => say(&comparison(&reports))?,
    }
    if let Some(path) = &arguments.json {
        let capacity_bytes = traced.geometry().capacity_bytes;
        let mut report = as_json(arguments, &config, capacity_bytes, &reports);
        report["config"]["io"] = traced.io_engine()?.into();
        if arguments.goals {
            report["goals"] = json!(goals);
        }
        write_json(path, &report)?;
    }
    Ok(())
}

fn patterns(names: &[String]) -> Result<Vec<Pattern>> {
    if names == ["all"] {
        return Ok(Pattern::ALL.to_vec());
    }
    let mut patterns = Vec::new();
    for name in names {
        let pattern: Pattern = match name.parse() {
            Ok(pattern) => pattern,
            Err(known) => bail!("--pattern: {name}: {known}, all"),
        };
        if patterns.contains(&pattern) {
            bail!("--pattern: {name} is named twice");
        }
        patterns.push(pattern);
    }
    Ok(patterns)
}

fn is_missing(path: &Path) -> bool {
    matches!(fs::symlink_metadata(path), Err(error) if error.kind() == ErrorKind::NotFound)
}

fn open_store(arguments: &Arguments) -> Result<Arc<dyn BlockDevice>> {
    let options = RawOptions::default();
    let Some(path) = &arguments.store else {
        let path = PathBuf::from(format!("iobench-{}.lacuna", std::process::id()));
        return make(&path, arguments.size.0, options, true);
    };
    if is_missing(path) {
        return make(path, arguments.size.0, options, false);
    }
    let device: Arc<dyn BlockDevice> = Arc::new(RawDevice::open(path, options)?);
    // Refuses storage that holds anything, unless forced.
    let format = FormatOptions { force: arguments.force, ..FormatOptions::default() };
    Ftl::format(Arc::clone(&device), &format).with_context(|| path.display().to_string())?;
    Ok(device)
}

/// A new one on the device, of which all is written beforehand.
fn file_system(
    device: &Arc<dyn BlockDevice>,
    compression: Compression,
    map_memory: Option<Size>,
) -> Result<Arc<dyn Vfs>> {
    let mut format = nvmfs::FormatOptions { compression, ..nvmfs::FormatOptions::default() };
    format.ftl.force = true;
    Nvmfs::format(Arc::clone(device), &format)?;
    let mut options = nvmfs::Options::default();
    options.ftl.background = true;
    options.ftl.map_memory = map_memory.map(|size| size.0);
    options.ftl.footprint = Footprint::Whole;
    Ok(Arc::new(Nvmfs::open(Arc::clone(device), options)?))
}

fn open_raw(path: &Path, arguments: &Arguments) -> Result<Arc<dyn BlockDevice>> {
    // Trimming a file punches holes into it, which measures the file system below.
    let options = RawOptions::default();
    if is_missing(path) {
        return make(path, arguments.size.0, options, true);
    }
    if !arguments.force {
        bail!("{}: exists already; --force is needed to overwrite it", path.display());
    }
    Ok(Arc::new(RawDevice::open(path, options)?))
}

/// Makes a file and writes all of it, so that no run pays for allocating it. One that is `temporary` has
/// no name any more: the system removes it whatever ends the program.
fn make(path: &Path, size_bytes: u64, options: RawOptions, temporary: bool) -> Result<Arc<dyn BlockDevice>> {
    const PIECE_BYTES: u64 = 1 << 20;
    let device = RawDevice::create(path, size_bytes, options)?;
    if temporary {
        fs::remove_file(path).with_context(|| path.display().to_string())?;
    }
    let zeros = AlignedBuf::zeroed(PIECE_BYTES as usize);
    let mut pieces = (0..size_bytes).step_by(PIECE_BYTES as usize);
    let written = pieces
        .try_for_each(|at| device.write_at(at, &zeros[..PIECE_BYTES.min(size_bytes - at) as usize]))
        .and_then(|()| device.sync());
    if let (Err(_), false) = (&written, temporary) {
        // The error that is returned says more than a failure to tidy up would.
        let _ = fs::remove_file(path);
    }
    written?;
    Ok(Arc::new(device))
}

fn as_json(arguments: &Arguments, config: &Config, capacity_bytes: u64, reports: &[PatternReport]) -> Value {
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    json!({
        "benchmark": "iobench",
        "git": env!("LACUNA_GIT"),
        "config": {
            "version": env!("CARGO_PKG_VERSION"),
            "store": path(&arguments.store),
            "temporary": arguments.store.is_none(),
            "raw": path(&arguments.raw),
            "capacity_bytes": capacity_bytes,
            "patterns": config.patterns.iter().map(|pattern| pattern.name()).collect::<Vec<_>>(),
            "seconds": arguments.seconds,
            "threads": config.threads,
            "block_bytes": config.block_bytes,
            "live_percent": config.live_percent,
            "overwrite_capacities": config.overwrite_capacities,
            "map_memory_bytes": config.map_memory_bytes,
            "skew": config.skew.to_string(),
            "seed": config.seed,
            "trace": path(&arguments.trace),
            "compress": arguments.compress.map(|compression| compression.to_string()),
        },
        "runs": reports,
    })
}
