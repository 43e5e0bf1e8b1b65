//! Tables of a store: dropping, altering and optimizing them, and what new ones are like.
//!
//! Storage without tables is an error: the engine would make a store in it. Each command is done as a whole or not at
//! all across a crash, except `optimize`, which goes page by page, may end anywhere and can be repeated. Ctrl-C ends
//! `alter` as long as the table is as it was.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use lacuna_device::Vfs;
use lacuna_engine::{
    AlterProgress, Doublewrite, OptimizeProgress, Store, StoreOptions, TableInfo, TableKind, TableOptions,
};
use lacuna_page::Algorithm;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{
    keys::{open_tables, open_vfs},
    log_device,
    look::holds_tables,
    note, say, say_done,
    size::Size,
    table_info::kind_text,
    tables::{Kind, Switch},
};

/// Length of the blocks of new row tables in KiB, unless the command line has one.
const KEY_BLOCK_SIZE: u32 = 8;

/// Drop, alter and optimize tables, and say what new ones are like; `lacuna info` lists them
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: TableCommand,
}

#[derive(Subcommand)]
enum TableCommand {
    /// Remove a table with all its records, and free its space
    Drop(Named),
    /// Change how a table's pages are kept. Between plain and page that is how they are written from now on, and
    /// `optimize` writes those that are there; to or from row, and to other blocks, the table is copied: it needs space
    /// for both, and is as it was after Ctrl-C
    Alter(AlterArguments),
    /// Say whether a table's pages are written twice from now on
    Doublewrite(DoublewriteArguments),
    /// Say whether a table's pages are encrypted from now on; `optimize` writes those that are there. Needs keys (`lacuna
    /// key --tables create`)
    Encrypt(EncryptArguments),
    /// Let a table follow the store's defaults, now and whenever they change
    Inherit(Named),
    /// Rewrite pages that do not have the form that their table's settings ask for; after Ctrl-C the same command goes
    /// on
    Optimize(OptimizeArguments),
    /// Show or set what tables are made like, and what those that inherit follow
    Defaults(DefaultsArguments),
}

#[derive(Args)]
struct Named {
    /// A store file, a block device, or a directory with tables
    store: PathBuf,
    /// Name of the table
    table: String,
}

#[derive(Args)]
struct AlterArguments {
    #[command(flatten)]
    named: Named,
    /// plain, page (compressed when they are flushed), adaptive (by lz4 while they are written often, by zstd once they
    /// rest) or row (compressed row by row)
    kind: Kind,
    #[command(flatten)]
    compression: Compression,
}

#[derive(Args)]
struct DoublewriteArguments {
    #[command(flatten)]
    named: Named,
    /// auto (as the store's setting says), on, or off
    setting: Doublewrite,
}

#[derive(Args)]
struct EncryptArguments {
    #[command(flatten)]
    named: Named,
    /// on or off
    setting: Switch,
}

#[derive(Args)]
struct OptimizeArguments {
    /// A store file, a block device, or a directory with tables
    store: PathBuf,
    /// Names of tables; by default all
    tables: Vec<String>,
}

#[derive(Args)]
struct DefaultsArguments {
    /// A store file, a block device, or a directory with tables
    store: PathBuf,
    /// plain, page (compressed when they are flushed), adaptive or row (compressed row by row); shown by default
    kind: Option<Kind>,
    #[command(flatten)]
    compression: Compression,
    /// Length of the pages of tables made from now on: 4K to 64K; by default as it is
    #[arg(long, value_name = "SIZE", requires = "kind")]
    page: Option<Size>,
}

/// The settings of a kind of tables.
#[derive(Args)]
struct Compression {
    /// Compression of page tables: none, lz4, zstd, zlib, lzo, snappy, bzip2 or lzma, by default lz4; of row tables: zlib,
    /// which is their default, or lz4
    #[arg(long, requires = "kind")]
    algorithm: Option<Algorithm>,
    /// Level of the compression; 0, the default, is the algorithm's own
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, requires = "kind",
          value_parser = clap::value_parser!(i32).range(-64..=22))]
    level: i32,
    /// Length of the blocks of row tables in KiB: 1, 2, 4, 8 or 16, at most a page, of at most 16K; by default as it is,
    /// or 8
    #[arg(long, requires = "kind", value_parser = clap::value_parser!(u32).range(1..=16))]
    key_block_size: Option<u32>,
}

impl Compression {
    /// The settings of `kind`, by default with blocks of `block` KiB; an error for those that it does not have.
    fn of(&self, kind: Kind, block: u32) -> Result<TableKind> {
        let Compression { algorithm, level, key_block_size } = *self;
        let foreign = match kind {
            Kind::Plain => algorithm.map(|_| "--algorithm").or((level != 0).then_some("--level")),
            Kind::Page | Kind::Row => None,
            Kind::Adaptive => algorithm.map(|_| "--algorithm"),
        };
        let foreign = foreign.or(key_block_size.filter(|_| kind != Kind::Row).map(|_| "--key-block-size"));
        if let Some(option) = foreign {
            bail!("{option}: {} tables have none", kind.name());
        }
        Ok(match kind {
            Kind::Plain => TableKind::Plain,
            Kind::Page => TableKind::PageCompressed { algorithm: algorithm.unwrap_or(Algorithm::Lz4), level },
            Kind::Adaptive => TableKind::Adaptive { level },
            Kind::Row => {
                let algorithm = algorithm.unwrap_or(Algorithm::Zlib);
                TableKind::RowCompressed { key_block_size: key_block_size.unwrap_or(block), algorithm, level }
            }
        })
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        TableCommand::Drop(Named { store, table }) => on(store, |open| {
            open.drop_table(table)?;
            Ok(format!("{table}: dropped"))
        }),
        TableCommand::Alter(AlterArguments { named: Named { store, table }, kind, compression }) => {
            let interrupted = interruption()?;
            on(store, |open| alter(open, table, (*kind, compression), &interrupted))
        }
        TableCommand::Doublewrite(DoublewriteArguments { named: Named { store, table }, setting }) => {
            on(store, |open| {
                open.set_doublewrite(table, *setting)?;
                Ok(format!("{table}: doublewrite {} from now on", setting.name()))
            })
        }
        TableCommand::Encrypt(EncryptArguments { named: Named { store, table }, setting }) => {
            on(store, |open| {
                open.set_encrypted(table, setting.0)?;
                let not = if setting.0 { "" } else { "not " };
                Ok(format!("{table}: {not}encrypted from now on"))
            })
        }
        TableCommand::Inherit(Named { store, table }) => on(store, |open| {
            open.inherit_defaults(table)?;
            let kind = info(open, table)?.options.kind;
            Ok(format!("{table}: follows the defaults, {} from now on", kind_text(kind)))
        }),
        TableCommand::Optimize(OptimizeArguments { store, tables }) => {
            let interrupted = interruption()?;
            on(store, |open| optimize(open, tables, &interrupted))
        }
        TableCommand::Defaults(arguments) => {
            let work = |open: &Store| {
                if let Some(kind) = arguments.kind {
                    let kind = arguments.compression.of(kind, KEY_BLOCK_SIZE)?;
                    open.set_defaults(with_kind(open.defaults()?, kind, arguments.page))?;
                }
                let TableOptions { kind, page_bytes, .. } = open.defaults()?;
                Ok(format!("tables are {} by default, in pages of {}K", kind_text(kind), page_bytes >> 10))
            };
            match arguments.kind {
                Some(_) => on(&arguments.store, work),
                None => say_of(&arguments.store, work, say),
            }
        }
    }
}

fn with_kind(before: TableOptions, kind: TableKind, page: Option<Size>) -> TableOptions {
    let page_bytes = page.map_or(before.page_bytes, |page| usize::try_from(page.0).unwrap_or(usize::MAX));
    TableOptions { kind, page_bytes, ..before }
}

/// Opens the tables at `path` for `work`, closes them also after an error, and says what was done: the lines that it
/// returns.
fn on(path: &Path, work: impl FnOnce(&Store) -> Result<String>) -> Result<()> {
    say_of(path, work, say_done)
}

/// The same, said by `say`.
fn say_of(
    path: &Path,
    work: impl FnOnce(&Store) -> Result<String>,
    say: impl Fn(&str) -> Result<()>,
) -> Result<()> {
    let name = path.display().to_string();
    let opened = open_vfs(path, &log_device::vfs_options())?;
    let vfs = opened.vfs();
    if !holds_tables(&*vfs)? {
        bail!("{name}: there are no tables");
    }
    let done = worked_on(path, vfs, work).with_context(|| name.clone());
    opened.close()?;
    done?.lines().try_for_each(|line| say(&format!("{name}: {line}\n")))
}

fn worked_on(path: &Path, vfs: Arc<dyn Vfs>, work: impl FnOnce(&Store) -> Result<String>) -> Result<String> {
    let options = StoreOptions::default();
    let store = open_tables(path, &options, |options| Store::open(vfs.clone(), options))?;
    let done = work(&store);
    let closed = store.close();
    let done = done?;
    closed?;
    Ok(done)
}

fn info(store: &Store, table: &str) -> Result<TableInfo> {
    let found = store.tables()?.into_iter().find(|info| info.name == table);
    found.with_context(|| format!("table {table}: there is none"))
}

/// A flag that the first signal raises; the second one ends the program, which is as harmless as a crash.
fn interruption() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&interrupted))?;
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

/// Alters a table; returns a summary.
fn alter(
    store: &Store,
    name: &str,
    (kind, compression): (Kind, &Compression),
    interrupted: &AtomicBool,
) -> Result<String> {
    let before = info(store, name)?;
    // A row table's blocks keep their length unless another one is asked for.
    let block = match before.options.kind {
        TableKind::RowCompressed { key_block_size, .. } => key_block_size,
        _ => KEY_BLOCK_SIZE.min(before.options.page_bytes as u32 >> 10),
    };
    let kind = compression.of(kind, block)?;
    let mut shown = Instant::now();
    let progress = store.alter_table_with(name, kind, |progress| {
        if shown.elapsed() >= Duration::from_secs(1) {
            shown = Instant::now();
            note(&format!("{name}: {}", copied_text(progress)));
        }
        if interrupted.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if !progress.is_done {
        bail!("{name}: interrupted: {}; the table is as it was", copied_text(progress));
    }
    if progress.copied == 0 {
        return Ok(format!("{name}: {} from now on", kind_text(kind)));
    }
    store.checkpoint()?;
    let mb = |info: &TableInfo| info.allocated_bytes as f64 / 1e6;
    let (old, new) = (mb(&before), mb(&info(store, name)?));
    let records = progress.copied;
    Ok(format!("{name}: {} now, {records} records copied, {old:.1} MB are now {new:.1} MB", kind_text(kind)))
}

fn copied_text(progress: AlterProgress) -> String {
    let AlterProgress { records, copied, .. } = progress;
    // How many there are is an estimate.
    let percent = copied.saturating_mul(100) / records.max(copied).max(1);
    format!("{copied} records copied, about {percent}%")
}

/// Optimizes these tables, or all; returns a summary.
fn optimize(store: &Store, tables: &[String], interrupted: &AtomicBool) -> Result<String> {
    let all = store.tables()?;
    // A mistake in the last name is reported before work on the first table begins.
    tables.iter().try_for_each(|table| info(store, table).map(drop))?;
    let mut lines = Vec::new();
    for before in all.iter().filter(|info| tables.is_empty() || tables.contains(&info.name)) {
        let name = &before.name;
        let mut shown = Instant::now();
        let progress = store.optimize(name, |progress| {
            if shown.elapsed() >= Duration::from_secs(1) {
                shown = Instant::now();
                note(&format!("{name}: {}", progress_text(progress)));
            }
            if interrupted.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if interrupted.load(Relaxed) {
            bail!("{name}: interrupted: {}; the same command goes on", progress_text(progress));
        }
        let mb = |info: &TableInfo| info.allocated_bytes as f64 / 1e6;
        let (old, new) = (mb(before), mb(&info(store, name)?));
        let OptimizeProgress { pages, rewritten, .. } = progress;
        lines
            .push(format!("{name}: {rewritten} of {pages} pages rewritten, {old:.1} MB are now {new:.1} MB"));
    }
    Ok(lines.join("\n"))
}

fn progress_text(progress: OptimizeProgress) -> String {
    let percent = progress.done as f64 * 100.0 / progress.pages.max(1) as f64;
    format!("{percent:.0}% of {} pages, {} rewritten", progress.pages, progress.rewritten)
}

#[cfg(test)]
mod tests {
    use lacuna_device::MemVfs;

    use super::*;

    #[test]
    fn an_interruption_stops_at_the_next_pages_and_the_next_call_goes_on() {
        let options = StoreOptions { flush_threads: 1, ..StoreOptions::default() };
        let store = Store::open(MemVfs::new(), options).unwrap();
        let table = store.create_table("t", TableOptions::default().page_bytes(4096)).unwrap();
        let mut txn = store.begin();
        (0..4000_u32).for_each(|key| txn.put(&table, &key.to_be_bytes(), &[7; 100]).unwrap());
        txn.commit().unwrap();
        store.checkpoint().unwrap();
        store.alter_table("t", TableKind::PageCompressed { algorithm: Algorithm::Lz4, level: 0 }).unwrap();
        let error = optimize(&store, &[], &AtomicBool::new(true)).unwrap_err().to_string();
        assert!(error.contains("t: interrupted") && !error.contains(" 0 rewritten"), "{error}");
        assert!(!error.contains("100%"), "{error}");
        let rest = optimize(&store, &["t".into()], &AtomicBool::new(false)).unwrap();
        assert!(!rest.contains(" 0 of"), "{rest}");
        let nothing = optimize(&store, &[], &AtomicBool::new(false)).unwrap();
        assert!(nothing.contains(" 0 of"), "{nothing}");
        store.check().unwrap();
    }

    #[test]
    fn an_interrupted_alteration_leaves_the_table() {
        let store = Store::open(MemVfs::new(), StoreOptions::default()).unwrap();
        let table = store.create_table("t", TableOptions::default().page_bytes(4096)).unwrap();
        let mut txn = store.begin();
        (0..4000_u32).for_each(|key| txn.put(&table, &key.to_be_bytes(), &[7; 100]).unwrap());
        txn.commit().unwrap();
        let asked = Compression { algorithm: None, level: 0, key_block_size: None };
        let error = alter(&store, "t", (Kind::Row, &asked), &AtomicBool::new(true)).unwrap_err().to_string();
        assert!(error.contains("t: interrupted: ") && error.ends_with("the table is as it was"), "{error}");
        assert!(!error.contains("100%"), "{error}");
        assert_eq!(info(&store, "t").unwrap().options.kind, TableKind::Plain);
        let told = alter(&store, "t", (Kind::Row, &asked), &AtomicBool::new(false)).unwrap();
        assert!(told.contains("4000 records copied"), "{told}");
        let kind = TableKind::RowCompressed { key_block_size: 4, algorithm: Algorithm::Zlib, level: 0 };
        assert_eq!(info(&store, "t").unwrap().options.kind, kind);
        store.check().unwrap();
    }
}
