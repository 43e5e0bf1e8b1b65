use std::{
    collections::HashSet,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args};
use lacuna_bench::{
    engine::EngineDb,
    linkbench::{self, AckLog, Config, RunReport, comparison, verify_acks},
    mysql::Address,
};
use lacuna_device::Place;
use lacuna_engine::{Doublewrite, StoreOptions, TableKind, TableOptions};
use lacuna_nvmfs::{PlaceOptions, open_place};
use lacuna_page::Algorithm;
use serde_json::{Value, json};

use crate::{
    linkbench_sql, say,
    size::Size,
    trace::{TracedPlace, must_be_new, with_suffix},
};

/// Run the LinkBench social graph benchmark
#[derive(Args)]
#[command(group = ArgGroup::new("place").args(["store", "mysql"]))]
pub(crate) struct Arguments {
    /// Where the tables are: a store file (made when missing), a block device, or a directory, where
    /// tables are plain files; by default a temporary store file in the current directory
    #[arg(long, value_name = "PLACE")]
    store: Option<PathBuf>,
    /// Size of a store file that is made
    #[arg(long, default_value = "8G")]
    size: Size,
    /// Use the tables of a MySQL or MariaDB server, at its socket or HOST:PORT, not our engine
    #[arg(long, value_name = "SERVER", conflicts_with_all = ["store", "size", "pool", "trace", "algorithm"])]
    pub(crate) mysql: Option<Address>,
    #[command(flatten)]
    pub(crate) sql: linkbench_sql::Options,
    /// Number of nodes to load; LinkBench's own standard is 10000000
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 36))]
    ids: u64,
    /// Threads that make requests
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    requesters: u32,
    /// Length of the measured request phase in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=2_592_000))]
    pub(crate) seconds: u64,
    /// Requests before that, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=2_592_000))]
    pub(crate) warmup: u64,
    /// Kinds of tables to run, one after the other on the same data: plain, row, page
    /// (ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8)
    #[arg(long, default_value = "plain,page", value_delimiter = ',')]
    pub(crate) tables: Vec<Kind>,
    /// Compression of page tables: none, lz4 or zstd
    #[arg(long, default_value_t = Algorithm::Lz4)]
    algorithm: Algorithm,
    /// Level of the compression; 0 is the algorithm's default
    #[arg(long, default_value_t = 0, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-64..=22))]
    level: i32,
    /// Length of the blocks of row tables in KiB: 4 or 8
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(4..=8))]
    key_block_size: u32,
    /// zlib's level in row tables
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(i32).range(1..=9))]
    row_level: i32,
    /// Whether pages are written twice, through a doublewrite file: auto, on or off
    #[arg(long, default_value = "auto")]
    doublewrite: Doublewrite,
    /// Memory for pages
    #[arg(long, default_value = "256M")]
    pool: Size,
    /// Memory for the map of a store file or device; all of it is kept by default
    #[arg(long, value_name = "SIZE")]
    map_memory: Option<Size>,
    /// Seed of data and requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use the out-degrees of a file like LinkBench's Distribution.dat, not the built-in fit to them
    #[arg(long, value_name = "FILE")]
    distribution: Option<PathBuf>,
    /// Write every acknowledged commit to this file, outside the store
    #[arg(long, value_name = "FILE")]
    pub(crate) ack_log: Option<PathBuf>,
    /// Record all writes into this new file, for flash-model; with several kinds of tables one file for
    /// each: FILE.plain and so on
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run nothing; prove that every commit in this acknowledgement log is in the store or server
    #[arg(long, value_name = "FILE", requires = "place", conflicts_with_all = ["ack_log", "json", "trace"])]
    pub(crate) verify_acks: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Plain,
    Row,
    Page,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Plain => "plain",
            Kind::Row => "row",
            Kind::Page => "page",
        }
    }
}

impl FromStr for Kind {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Kind, &'static str> {
        let kind = [Kind::Plain, Kind::Page, Kind::Row].into_iter().find(|kind| kind.name() == name);
        kind.ok_or("known kinds of tables: plain, page, row")
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match (&arguments.verify_acks, &arguments.store, &arguments.mysql) {
        (Some(log), Some(store), _) => return verify(arguments, log, store),
        (Some(log), None, Some(server)) => return linkbench_sql::verify(arguments, log, server),
        _ => {}
    }
    let mut seen = HashSet::new();
    if let Some(twice) = arguments.tables.iter().find(|kind| !seen.insert(**kind)) {
        bail!("--tables: {} is named twice", twice.name());
    }
    if let Some(path) = &arguments.json {
        // Hours of benchmark must not end in a report that cannot be written.
        fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| path.display().to_string())?;
    }
    for trace in arguments.tables.iter().filter_map(|kind| trace_of(arguments, *kind)) {
        must_be_new(&trace)?;
    }
    let config = Config {
        ids: arguments.ids,
        loaders: 8,
        requesters: arguments.requesters,
        warmup: Duration::from_secs(arguments.warmup),
        seconds: Duration::from_secs(arguments.seconds),
        seed: arguments.seed,
        epoch_ms: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
        distribution: arguments.distribution.clone(),
        quiet: false,
    };
    if let Some(server) = &arguments.mysql {
        return linkbench_sql::run(arguments, &config, server);
    }
    let target = Target::choose(arguments)?;
    let mut runs = Vec::new();
    for (number, kind) in arguments.tables.iter().enumerate() {
        let is_last = number + 1 == arguments.tables.len();
        let run = run_one(arguments, &config, &target, *kind, is_last)?;
        runs.push(run);
    }
    conclude(arguments, &target.name(), &runs, || report(arguments, &config, &target, &runs))
}

/// Prints and writes what the runs found; an error when one of them left a graph that is not sound.
pub(crate) fn conclude(
    arguments: &Arguments,
    place: &str,
    runs: &[RunReport],
    report: impl FnOnce() -> Value,
) -> Result<()> {
    say(&comparison(runs))?;
    if let Some(path) = &arguments.json {
        let text = format!("{}\n", serde_json::to_string_pretty(&report())?);
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    match runs.iter().find_map(|run| run.violation.as_ref().map(|violation| (run, violation))) {
        Some((run, violation)) => bail!("{place}: {} tables: {violation}", run.tables),
        None => Ok(()),
    }
}

/// Where the writes of the run with `kind` of tables are recorded.
fn trace_of(arguments: &Arguments, kind: Kind) -> Option<PathBuf> {
    let trace = arguments.trace.as_ref()?;
    Some(if arguments.tables.len() == 1 { trace.clone() } else { with_suffix(trace, kind.name()) })
}

fn place_options(arguments: &Arguments) -> PlaceOptions {
    let mut options = PlaceOptions::default();
    options.options.ftl.map_memory = arguments.map_memory.map(|size| size.0);
    options
}

fn store_options(arguments: &Arguments) -> StoreOptions {
    let pool_bytes = usize::try_from(arguments.pool.0).unwrap_or(usize::MAX);
    StoreOptions { pool_bytes, doublewrite: arguments.doublewrite, ..StoreOptions::default() }
}

fn run_one(
    arguments: &Arguments,
    config: &Config,
    target: &Target,
    kind: Kind,
    is_last: bool,
) -> Result<RunReport> {
    eprintln!("{}: {} tables, {} ids", target.name(), kind.name(), config.ids);
    // The log first: a crash in between leaves a log that demands nothing.
    let acks = arguments.ack_log.as_deref().map(AckLog::create).transpose()?;
    let opened = target.open(arguments, trace_of(arguments, kind).as_deref())?;
    let place = opened.place();
    let names_before: HashSet<String> = place.list()?.into_iter().collect();
    let (table_kind, algorithm) = match kind {
        Kind::Plain => (TableKind::Plain, Algorithm::None.name()),
        Kind::Page => {
            let Arguments { algorithm, level, .. } = *arguments;
            (TableKind::PageCompressed { algorithm, level }, algorithm.name())
        }
        Kind::Row => {
            let Arguments { key_block_size, row_level, .. } = *arguments;
            (TableKind::RowCompressed { key_block_size, level: row_level }, "zlib")
        }
    };
    let table_options = TableOptions { kind: table_kind, ..TableOptions::default() };
    let db = EngineDb::create(Arc::clone(&place), store_options(arguments), table_options)?;
    let mut report =
        linkbench::run(&db, config, kind.name(), algorithm, acks.as_ref()).with_context(|| target.name())?;
    if kind == Kind::Row {
        report.row_compression = Some(db.row_compression()?);
    }
    db.close()?;
    if !is_last {
        target.clear(&*place, &names_before)?;
    }
    drop(place);
    opened.close()?;
    Ok(report)
}

/// The place of the runs. Each run gets it empty, or as it was before the first.
enum Target {
    /// A store file in the current directory that is unlinked as soon as it is open: the system
    /// removes it whatever ends the program.
    Temporary(PathBuf),
    /// A store file that the runs make.
    New(PathBuf),
    /// A store, device or directory that was there.
    Existing(PathBuf),
}

impl Target {
    fn choose(arguments: &Arguments) -> Result<Target> {
        let Some(path) = &arguments.store else {
            return Ok(Target::Temporary(format!("linkbench-{}.lacuna", std::process::id()).into()));
        };
        match fs::metadata(path) {
            Ok(_) => Ok(Target::Existing(path.clone())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Target::New(path.clone())),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Target::Temporary(path) | Target::New(path) | Target::Existing(path) => path,
        }
    }

    fn name(&self) -> String {
        self.path().display().to_string()
    }

    fn open(&self, arguments: &Arguments, trace: Option<&Path>) -> Result<TracedPlace> {
        let create_size = match self {
            Target::Existing(_) => None,
            Target::Temporary(_) | Target::New(_) => Some(arguments.size.0),
        };
        let options = PlaceOptions { create_size, ..place_options(arguments) };
        let opened = TracedPlace::open(self.path(), &options, trace)?;
        if let Target::Temporary(path) = self {
            fs::remove_file(path).with_context(|| self.name())?;
        }
        Ok(opened)
    }

    /// Makes room for the next run.
    fn clear(&self, place: &dyn Place, names_before: &HashSet<String>) -> Result<()> {
        match self {
            Target::Temporary(_) => Ok(()),
            Target::New(path) => fs::remove_file(path).with_context(|| self.name()),
            Target::Existing(_) => {
                for name in place.list()?.into_iter().filter(|name| !names_before.contains(name)) {
                    place.remove(&name)?;
                }
                Ok(place.sync()?)
            }
        }
    }
}

fn verify(arguments: &Arguments, log: &Path, store: &Path) -> Result<()> {
    let opened = open_place(store, &place_options(arguments))?;
    let db = EngineDb::open(opened.place(), store_options(arguments))?;
    let verified = verify_acks(&db, log).with_context(|| store.display().to_string())?;
    db.close()?;
    opened.close()?;
    say(&format!(
        "{}: sound, and all {} acknowledged changes are there ({} nodes, {} links)\n",
        store.display(),
        verified.acks,
        verified.nodes,
        verified.links
    ))
}

fn report(arguments: &Arguments, config: &Config, target: &Target, runs: &[RunReport]) -> Value {
    let options = store_options(arguments);
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    json!({
        "benchmark": "linkbench",
        "git": env!("LACUNA_GIT"),
        "config": {
            "version": env!("CARGO_PKG_VERSION"),
            "store": target.name(),
            "temporary": matches!(target, Target::Temporary(_)),
            "size_bytes": arguments.size.0,
            "ids": config.ids,
            "loaders": config.loaders,
            "requesters": config.requesters,
            "warmup_seconds": arguments.warmup,
            "seconds": arguments.seconds,
            "tables": arguments.tables.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
            "algorithm": arguments.algorithm.name(),
            "level": arguments.level,
            "key_block_size": arguments.key_block_size,
            "row_level": arguments.row_level,
            "doublewrite": format!("{:?}", arguments.doublewrite).to_lowercase(),
            "page_bytes": TableOptions::default().page_bytes,
            "pool_bytes": arguments.pool.0,
            "map_memory_bytes": arguments.map_memory.map(|size| size.0),
            "log_bytes": options.log_bytes,
            "flush_threads": options.flush_threads,
            "durability": "sync",
            "seed": config.seed,
            "node_data_bytes_max": linkbench::NODE_DATA_BYTES_MAX,
            "distribution": path(&config.distribution),
            "ack_log": path(&arguments.ack_log),
            "trace": path(&arguments.trace),
        },
        "runs": runs,
    })
}
