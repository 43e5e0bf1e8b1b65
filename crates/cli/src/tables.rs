//! The options common to benchmarks of the engine: the storage, and the kinds of tables in it.

use std::{
    collections::HashSet,
    fs,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use clap::{Args, builder::ArgPredicate};
use lacuna_device::{Vfs, create_log_device, open_log_device};
use lacuna_engine::{
    Doublewrite, EngineKey, KeyCost, KeyOptions, LogDeviceVfs, Secret, StoreOptions, TableKind, TableOptions,
};
use lacuna_ftl::Footprint;
use lacuna_nvmfs::{OpenedVfs, VfsOptions};
use lacuna_page::Algorithm;
use serde_json::{Map, Value, json};

use crate::{
    keys::{key_of_tables, open_vfs},
    log_device, note,
    output::reserve_report,
    size::Size,
    trace::{TracedVfs, must_be_new, with_suffix},
};

/// Size of a log device that is made.
const WAL_DEVICE_BYTES: u64 = 1 << 30;

/// Memory for chunks as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheSize {
    Beside(Size),
    /// Percent of the pool's memory, which pages then do not have.
    Within(u64),
}

impl CacheSize {
    /// Bytes for pages and bytes for chunks, with `pool` for the pages.
    fn beside(self, Size(pool): Size) -> (u64, u64) {
        match self {
            CacheSize::Beside(Size(chunks)) => (pool, chunks),
            CacheSize::Within(percent) => {
                let chunks = (u128::from(pool) * u128::from(percent) / 100) as u64; // less than the pool's
                (pool - chunks, chunks)
            }
        }
    }
}

impl FromStr for CacheSize {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<CacheSize, &'static str> {
        let Some(percent) = text.strip_suffix('%') else { return text.parse().map(CacheSize::Beside) };
        let percent = percent.parse().ok().filter(|percent| *percent < 100);
        percent.map(CacheSize::Within).ok_or("a share of the pool's memory is 0% to 99%")
    }
}

/// Place and tables.
#[derive(Args)]
pub(crate) struct EngineOptions {
    /// Where the tables are: a store file (made when missing), a block device, or a directory, where
    /// tables are plain files; by default a temporary store file in the current directory
    #[arg(long, value_name = "PLACE")]
    pub(crate) store: Option<PathBuf>,
    /// Size of a store file that is made
    #[arg(long, default_value = "8G")]
    size: Size,
    /// Kinds of tables to run, one after the other on the same data: plain, row (ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8),
    /// page, adaptive (page by page: lz4 while it is written often, zstd once it rests)
    #[arg(
        long,
        default_value = "plain,page",
        value_delimiter = ',',
        default_value_if("postgres", ArgPredicate::IsPresent, "plain")
    )]
    pub(crate) tables: Vec<Kind>,
    /// Compression of page tables: none, lz4, zstd, zlib, lzo, snappy, bzip2 or lzma
    #[arg(long, default_value_t = Algorithm::Lz4)]
    algorithm: Algorithm,
    /// Level of the compression; 0 is the algorithm's default
    #[arg(long, default_value_t = 0, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-64..=22))]
    level: i32,
    /// Length of the blocks of row tables in KiB: 1, 2, 4, 8 or 16
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=16))]
    key_block_size: u32,
    /// Compression of row tables: zlib, as in InnoDB, or lz4
    #[arg(long, default_value_t = Algorithm::Zlib)]
    row_algorithm: Algorithm,
    /// Level of the compression of row tables; 0 is the algorithm's default, zlib's 6
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..=12))]
    row_level: i32,
    /// Whether pages are written twice, through a doublewrite file: auto, on or off
    #[arg(long, default_value = "auto")]
    doublewrite: Doublewrite,
    /// Whether pages are written atomically where the storage can do that: on or off
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    atomic_writes: Switch,
    /// Whether the space behind a page that became shorter is given back: on or off
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    trim: Switch,
    /// Whether a store leaves out the trailing zeros of what is written: on or off
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    elide_zero_tails: Switch,
    /// Whether leaves are packed before they are compressed: on or off
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    packing: Switch,
    /// Whether pages have a checksum of all their bytes, also where the storage never tears them: on or off
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    checksums: Switch,
    /// Threads that compress and write pages; by default one for each processor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    flush_threads: Option<u32>,
    /// Put the engine's log on a device of its own, blank or of an earlier run: persistent memory, a file in /dev/shm
    /// for trials, or a block device; a file of 1 GiB is made where there is none
    #[arg(long, value_name = "PATH")]
    wal_device: Option<PathBuf>,
    /// Encrypt the tables, log and undo; with a random key, unless there is one (--tables-key-file and the like)
    #[arg(long)]
    encrypt_tables: bool,
    /// Memory for pages
    #[arg(long, default_value = "256M")]
    pool: Size,
    /// Memory for the map of a store file or device; all of it is kept by default
    #[arg(long, value_name = "SIZE")]
    map_memory: Option<Size>,
    /// Memory for pages as a store file or device holds them, beside the pool, or so many percent of the pool's: where
    /// pages are compressed, the same memory holds more of them; none by default, and none in a directory
    #[arg(long, value_name = "SIZE|PERCENT%", default_value = "0%")]
    chunk_cache: CacheSize,
    /// How much of the store to make use of: whole, percent of what is live, or auto, which is all of a disk and
    /// 200 percent of a file
    #[arg(long, default_value_t = Footprint::Auto)]
    footprint: Footprint,
    /// Record all writes into this new file, for flash-model; with several kinds of tables one file for
    /// each: FILE.plain and so on
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Plain,
    Row,
    Page,
    Adaptive,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Plain => "plain",
            Kind::Row => "row",
            Kind::Page => "page",
            Kind::Adaptive => "adaptive",
        }
    }
}

impl FromStr for Kind {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Kind, &'static str> {
        let kind =
            [Kind::Plain, Kind::Page, Kind::Row, Kind::Adaptive].into_iter().find(|kind| kind.name() == name);
        kind.ok_or("known kinds of tables: plain, page, row, adaptive")
    }
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switch(pub(crate) bool);

impl FromStr for Switch {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Switch, &'static str> {
        match name {
            "on" => Ok(Switch(true)),
            "off" => Ok(Switch(false)),
            _ => Err("on or off"),
        }
    }
}

/// The settings of a run on one kind of tables.
pub(crate) struct Tables {
    pub vfs: Arc<dyn Vfs>,
    pub store_options: StoreOptions,
    pub table_options: TableOptions,
    pub kind: Kind,
    /// Name of the compression in force.
    pub algorithm: &'static str,
}

impl EngineOptions {
    /// Refuses, before hours of benchmark, options that would fail at the end.
    pub(crate) fn check(&self, json: Option<&Path>) -> Result<()> {
        let mut seen = HashSet::new();
        if let Some(twice) = self.tables.iter().find(|kind| !seen.insert(**kind)) {
            bail!("--tables: {} is named twice", twice.name());
        }
        if self.encrypt_tables && self.tables.contains(&Kind::Row) {
            bail!("--encrypt-tables: row-compressed tables cannot be encrypted");
        }
        if self.encrypt_tables && self.store.is_some() && key_of_tables().is_none() {
            bail!("--encrypt-tables: tables that stay need a key that is known (--tables-key-file)");
        }
        if let Some(path) = json {
            reserve_report(path)?;
        }
        self.tables.iter().filter_map(|kind| self.trace_of(*kind)).try_for_each(|trace| must_be_new(&trace))
    }

    /// Runs `run` on each kind of tables; each starts on empty storage, or on its state before the first run, and the
    /// tables of the last run stay. `begin` comes first: an acknowledgement log must be new before its store is, or a
    /// crash in between leaves a log that demands rows that never existed. `temporary` names a store in the current
    /// directory for a run without --store.
    pub(crate) fn run_each<L, R>(
        &self,
        temporary: &str,
        begin: impl Fn() -> Result<L>,
        mut run: impl FnMut(&Target, Tables, L) -> Result<R>,
    ) -> Result<(Target, Vec<R>)> {
        let target = Target::choose(self, temporary)?;
        let mut runs = Vec::new();
        for (number, kind) in self.tables.iter().enumerate() {
            let log = begin()?;
            let opened = target.open(self, self.trace_of(*kind).as_deref())?;
            let vfs = opened.vfs();
            let names_before: HashSet<String> = vfs.list()?.into_iter().collect();
            let place = self.with_new_wal_device(Arc::clone(&vfs))?;
            runs.push(run(&target, self.tables(*kind, place)?, log)?);
            if number + 1 < self.tables.len() {
                target.clear(&*vfs, &names_before)?;
            }
            drop(vfs);
            opened.close()?;
        }
        Ok((target, runs))
    }

    fn tables(&self, kind: Kind, vfs: Arc<dyn Vfs>) -> Result<Tables> {
        let EngineOptions { algorithm, level, key_block_size, row_algorithm, row_level, .. } = *self;
        let (table_kind, algorithm) = match kind {
            Kind::Plain => (TableKind::Plain, Algorithm::None.name()),
            Kind::Page => (TableKind::PageCompressed { algorithm, level }, algorithm.name()),
            Kind::Adaptive => (TableKind::Adaptive { level }, "lz4+zstd"),
            Kind::Row => {
                let kind =
                    TableKind::RowCompressed { key_block_size, algorithm: row_algorithm, level: row_level };
                (kind, row_algorithm.name())
            }
        };
        let encrypted = self.encrypt_tables;
        let table_options = TableOptions { kind: table_kind, encrypted, ..TableOptions::default() };
        let mut store_options = self.store_options();
        if encrypted && store_options.key.is_none() {
            store_options.key = Some(random_key()?);
        }
        Ok(Tables { vfs, store_options, table_options, kind, algorithm })
    }

    /// The trace file of the run with `kind` of tables.
    fn trace_of(&self, kind: Kind) -> Option<PathBuf> {
        let trace = self.trace.as_ref()?;
        Some(if self.tables.len() == 1 { trace.clone() } else { with_suffix(trace, kind.name()) })
    }

    /// Opens existing storage, to verify its tables.
    pub(crate) fn open(&self, store: &Path) -> Result<OpenedVfs> {
        open_vfs(store, &self.vfs_options()).map_err(Into::into)
    }

    /// The files of an empty store, those of the log on their device if there is one.
    fn with_new_wal_device(&self, vfs: Arc<dyn Vfs>) -> Result<Arc<dyn Vfs>> {
        let Some(path) = &self.wal_device else { return Ok(vfs) };
        let device = match path.exists() {
            true => open_log_device(path, false)?,
            false => create_log_device(path, WAL_DEVICE_BYTES)?,
        };
        if device.is_volatile() {
            note(&format!("{}: memory, which is gone with the power: for trials", path.display()));
        }
        // That of an earlier run may go, and nothing else.
        let was_log_device = LogDeviceVfs::is_log_device(&*device)?;
        Ok(LogDeviceVfs::format(vfs, device, was_log_device)?)
    }

    /// The files of a store that was made with these options.
    pub(crate) fn with_wal_device(&self, vfs: Arc<dyn Vfs>) -> Result<Arc<dyn Vfs>> {
        Ok(match &self.wal_device {
            Some(path) => LogDeviceVfs::open(vfs, open_log_device(path, false)?)?,
            None => vfs,
        })
    }

    fn vfs_options(&self) -> VfsOptions {
        let mut options = log_device::vfs_options();
        options.options.ftl.map_memory = self.map_memory.map(|size| size.0);
        options.options.ftl.chunk_cache = self.chunk_cache.beside(self.pool).1;
        options.options.ftl.footprint = self.footprint;
        options.options.ftl.elide_zero_tails = self.elide_zero_tails.0;
        options
    }

    pub(crate) fn store_options(&self) -> StoreOptions {
        let pool_bytes = usize::try_from(self.chunk_cache.beside(self.pool).0).unwrap_or(usize::MAX);
        let flush_threads = self.flush_threads.map(|threads| threads as usize);
        let defaults = StoreOptions::default();
        let flush_threads = flush_threads.unwrap_or(defaults.flush_threads);
        StoreOptions {
            pool_bytes,
            flush_threads,
            doublewrite: self.doublewrite,
            atomic_writes: self.atomic_writes.0,
            trim: self.trim.0,
            packing: self.packing.0,
            checksums: self.checksums.0,
            key: key_of_tables(),
            ..defaults
        }
    }

    /// Settings that every report names.
    pub(crate) fn as_json(&self, target: &Target) -> Map<String, Value> {
        let options = self.store_options();
        let settings = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "store": target.name(),
            "temporary": matches!(target, Target::Temporary(_)),
            "size_bytes": self.size.0,
            "tables": self.tables.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
            "algorithm": self.algorithm.name(),
            "level": self.level,
            "key_block_size": self.key_block_size,
            "row_algorithm": self.row_algorithm.name(),
            "row_level": self.row_level,
            "doublewrite": self.doublewrite.name(),
            "atomic_writes": self.atomic_writes.0,
            "trim": self.trim.0,
            "elide_zero_tails": self.elide_zero_tails.0,
            "packing": self.packing.0,
            "checksums": self.checksums.0,
            "encrypted": self.encrypt_tables,
            "page_bytes": TableOptions::default().page_bytes,
            "pool_bytes": self.chunk_cache.beside(self.pool).0,
            "map_memory_bytes": self.map_memory.map(|size| size.0),
            "chunk_cache_bytes": self.chunk_cache.beside(self.pool).1,
            "footprint": self.footprint.to_string(),
            "log_bytes": options.log_bytes,
            "wal_device": self.wal_device.as_ref().map(|path| path.display().to_string()),
            "flush_threads": options.flush_threads,
            "durability": "sync",
            "trace": self.trace.as_ref().map(|path| path.display().to_string()),
        });
        match settings {
            Value::Object(settings) => settings,
            other => unreachable!("json! made {other} of braces"),
        }
    }
}

/// A key that nobody knows and that guards tables which are gone with the run: guesses need not be dear.
fn random_key() -> Result<EngineKey> {
    let mut secret = [0; 32];
    fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut secret))?;
    let slot = KeyOptions { cost: KeyCost::MIN, ..KeyOptions::default() };
    Ok(EngineKey { secret: Secret::new(secret)?, slot })
}

/// The storage of the runs. Each run gets it empty, or in its state before the first run.
pub(crate) enum Target {
    /// A store file in the current directory that is unlinked as soon as it is open: the system removes it however the
    /// program ends.
    Temporary(PathBuf),
    /// A store file that the runs make.
    New(PathBuf),
    /// A store, device or directory that was there.
    Existing(PathBuf),
}

impl Target {
    fn choose(options: &EngineOptions, temporary: &str) -> Result<Target> {
        let Some(path) = &options.store else {
            return Ok(Target::Temporary(format!("{temporary}-{}.lacuna", std::process::id()).into()));
        };
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() && options.chunk_cache.beside(options.pool).1 > 0 => {
                bail!(
                    "{}: a directory, whose files have no chunk cache; leave --chunk-cache out",
                    path.display()
                )
            }
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

    pub(crate) fn name(&self) -> String {
        self.path().display().to_string()
    }

    fn open(&self, given: &EngineOptions, trace: Option<&Path>) -> Result<TracedVfs> {
        let create_size = match self {
            Target::Existing(_) => None,
            Target::Temporary(_) | Target::New(_) => Some(given.size.0),
        };
        let options = VfsOptions { create_size, ..given.vfs_options() };
        let opened = TracedVfs::open(self.path(), &options, trace)?;
        if let Target::Temporary(path) = self {
            fs::remove_file(path).with_context(|| self.name())?;
        }
        Ok(opened)
    }

    /// Clears the storage for the next run.
    fn clear(&self, vfs: &dyn Vfs, names_before: &HashSet<String>) -> Result<()> {
        match self {
            Target::Temporary(_) => Ok(()),
            Target::New(path) => fs::remove_file(path).with_context(|| self.name()),
            Target::Existing(_) => {
                for name in vfs.list()?.into_iter().filter(|name| !names_before.contains(name)) {
                    vfs.remove(&name)?;
                }
                Ok(vfs.sync()?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_cache_lies_beside_the_pool_or_takes_a_share_of_it() {
        let pool = Size(96 << 20);
        for (text, bytes) in [
            ("64M", Ok((96 << 20, 64 << 20))),
            ("0%", Ok((96 << 20, 0))),
            ("25%", Ok((72 << 20, 24 << 20))),
            ("100%", Err("a share of the pool's memory is 0% to 99%")),
            ("%", Err("a share of the pool's memory is 0% to 99%")),
            ("-1%", Err("a share of the pool's memory is 0% to 99%")),
        ] {
            assert_eq!(text.parse().map(|size: CacheSize| size.beside(pool)), bytes, "{text}");
        }
        assert!("64X".parse::<CacheSize>().is_err());
    }
}
