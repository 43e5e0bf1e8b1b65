//! Rows that no generator of ours made: the lines of a file.
//!
//! They are inserted in order under their numbers, then rows are overwritten in random order, each by another of the
//! same file, which leaves the kind of the data as it was. One thread does both, in transactions of 100 rows: what
//! is measured is room, traffic and the codecs' time. Then every row is read and compared.

use std::{
    fs,
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use anyhow::{Context, Result, bail, ensure};
use lacuna_device::Vfs;
use lacuna_engine::{Store, StoreOptions, Table, TableOptions, TransactionOptions};
use serde::Serialize;

use crate::{
    Measured, PageTraffic,
    engine::create_tables,
    loading::{self, Loading},
    page_traffic,
    progress::Progress,
    random::Random,
    side_by_side::{SideBySide, title},
};

/// Rows of a transaction.
const BATCH: u64 = 100;
/// The only table.
const NAME: &str = "rows";

/// The rows of a file.
pub struct Rows {
    bytes: Vec<u8>,
    rows: Vec<Range<usize>>,
}

impl Rows {
    /// The lines of the file without their ends; empty ones are left out.
    ///
    /// # Errors
    /// When the file cannot be read or has no such line.
    pub fn read(path: &Path) -> Result<Rows> {
        let named = || path.display().to_string();
        let bytes = fs::read(path).with_context(named)?;
        let mut rows = Vec::new();
        let mut start = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let row = line.strip_suffix(b"\n").unwrap_or(line);
            let row = row.strip_suffix(b"\r").unwrap_or(row);
            if !row.is_empty() {
                rows.push(start..start + row.len());
            }
            start += line.len();
        }
        if rows.is_empty() {
            bail!("{}: has no line that is not empty", path.display());
        }
        Ok(Rows { bytes, rows })
    }

    /// Number of rows, at least one.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.rows.len() as u64
    }

    fn row(&self, number: u64) -> &[u8] {
        &self.bytes[self.rows[number as usize].clone()]
    }
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Rows to overwrite, drawn with replacement.
    pub overwrites: u64,
    /// Seed of which row is overwritten by which.
    pub seed: u64,
    /// No progress on standard error.
    pub quiet: bool,
}

/// Figures of one run. A phase includes writing out everything that it deferred.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// Kind of the tables.
    pub tables: String,
    /// Compression in force.
    pub algorithm: String,
    /// Rows of the file.
    pub rows: u64,
    /// Bytes of all rows, keys not counted.
    pub row_bytes: u64,
    /// The rows in their order.
    pub load: Phase,
    /// Rows overwritten.
    pub overwrites: u64,
    /// Overwriting them.
    pub overwrite: Phase,
}

/// Figures of one phase.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Phase {
    /// How long it took.
    pub seconds: f64,
    /// Processor time of the process.
    pub cpu_seconds: f64,
    /// All bytes that reached the device.
    pub device_bytes_written: u64,
    /// Pages read and written.
    pub pages: Option<PageTraffic>,
    /// Size of the table without compression and holes at its end.
    pub logical_bytes: u64,
    /// Live bytes of the whole store at its end.
    pub allocated_bytes: u64,
    /// Space that the store takes on the device at its end.
    pub store_bytes: u64,
}

struct Database {
    store: Store,
    table: Table,
}

impl Database {
    /// Puts `count` rows: `next` gives the number and the content of each.
    fn put<'r>(
        &self,
        count: u64,
        done: &AtomicU64,
        mut next: impl FnMut(u64) -> (u64, &'r [u8]),
    ) -> Result<()> {
        for first in (0..count).step_by(BATCH as usize) {
            let mut txn = self.store.begin_with(TransactionOptions::READ_COMMITTED);
            for index in first..count.min(first + BATCH) {
                let (number, row) = next(index);
                txn.put(&self.table, &number.to_be_bytes(), row)?;
            }
            txn.commit()?;
            done.store(count.min(first + BATCH), Relaxed);
        }
        Ok(())
    }

    /// Runs `work`, which counts rows up to `count`, and settles.
    fn phase(
        &self,
        name: &str,
        count: u64,
        quiet: bool,
        work: impl FnOnce(&AtomicU64) -> Result<()>,
    ) -> Result<Phase> {
        let before = self.store.footprint()?;
        let done = AtomicU64::new(0);
        let line = || format!("{} of {count} rows", done.load(Relaxed));
        let run = || loading::during(&self.store, || work(&done));
        let ((), Loading { seconds, cpu_seconds, pages }) = Progress::new(name, quiet, line).during(run)?;
        let after = self.store.footprint()?;
        Ok(Phase {
            seconds,
            cpu_seconds,
            device_bytes_written: after.device_written_bytes - before.device_written_bytes,
            pages,
            logical_bytes: after.logical_bytes,
            allocated_bytes: after.allocated_bytes,
            store_bytes: after.store_bytes,
        })
    }

    /// Compares every row with that of the file which `holds` names for it.
    fn verify(&self, rows: &Rows, holds: &[u64]) -> Result<()> {
        let txn = self.store.begin_with(TransactionOptions::READ_COMMITTED);
        for (number, of) in (0..).zip(holds) {
            let found = txn.get(&self.table, &u64::to_be_bytes(number))?;
            ensure!(found.as_deref() == Some(rows.row(*of)), "row {number} is not row {of} of the file");
        }
        Ok(())
    }
}

/// Runs the phases on a new table in `vfs` and proves that it holds what was put.
///
/// # Errors
/// When the table is there already, when a row is not what it should be, and whatever the engine fails with.
pub fn run(
    rows: &Rows,
    config: Config,
    vfs: Arc<dyn Vfs>,
    store_options: StoreOptions,
    table_options: TableOptions,
    (tables, algorithm): (&str, &str),
) -> Result<RunReport> {
    let (store, mut made) = create_tables(vfs, store_options, &[NAME], table_options)?;
    let database = Database { store, table: made.remove(0) };
    let count = rows.count();
    let load = database.phase("load", count, config.quiet, |done| {
        database.put(count, done, |number| (number, rows.row(number)))
    })?;
    let mut holds: Vec<u64> = (0..count).collect();
    let mut random = Random::new(config.seed, 0);
    let overwrite = database.phase("overwrite", config.overwrites, config.quiet, |done| {
        database.put(config.overwrites, done, |_| {
            let (number, by) = (random.below(count), random.below(count));
            holds[number as usize] = by;
            (number, rows.row(by))
        })
    })?;
    database.verify(rows, &holds)?;
    database.store.close()?;
    Ok(RunReport {
        tables: tables.to_owned(),
        algorithm: algorithm.to_owned(),
        rows: count,
        row_bytes: rows.rows.iter().map(|row| row.len() as u64).sum(),
        load,
        overwrites: config.overwrites,
        overwrite,
    })
}

/// The runs beside each other, for people.
#[must_use]
pub fn comparison(runs: &[RunReport]) -> String {
    let mut table = SideBySide::new(runs, |run: &RunReport| title(&run.tables, &run.algorithm));
    table.row("rows, MB", 1, |run| run.row_bytes as f64 / 1e6);
    for (name, phase) in [
        ("load", (|run| &run.load) as fn(&RunReport) -> &Phase),
        ("overwrite", |run: &RunReport| &run.overwrite),
    ] {
        table.row(&format!("{name}, seconds"), 1, |run| phase(run).seconds);
        table.row("  processor time, seconds", 1, |run| phase(run).cpu_seconds);
        table.row("  written to the device, MB", 1, |run| phase(run).device_bytes_written as f64 / 1e6);
        table.row("  live bytes in the store, MB", 2, |run| phase(run).allocated_bytes as f64 / 1e6);
    }
    table.row("table without compression, MB", 1, |run| run.overwrite.logical_bytes as f64 / 1e6);
    table.row("space taken on the device, MB", 1, |run| run.overwrite.store_bytes as f64 / 1e6);
    page_traffic::add_rows(&mut table, |run| run.overwrites, |run| run.overwrite.pages);
    table.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_rows() {
        let path = std::env::temp_dir().join(format!("lacuna-dataset-{}", std::process::id()));
        for (text, expected) in [
            ("a\nbc\n", vec!["a", "bc"]),
            ("\n\na\r\n\nb", vec!["a", "b"]),
            ("a \n", vec!["a "]),
            ("\n\r\n", vec![]),
            ("", vec![]),
        ] {
            fs::write(&path, text).unwrap();
            let rows = Rows::read(&path);
            match expected.is_empty() {
                true => assert!(rows.is_err(), "{text:?}"),
                false => {
                    let rows = rows.unwrap();
                    let found: Vec<&[u8]> = (0..rows.count()).map(|number| rows.row(number)).collect();
                    assert_eq!(
                        found,
                        expected.iter().map(|row| row.as_bytes()).collect::<Vec<_>>(),
                        "{text:?}"
                    );
                }
            }
        }
        fs::remove_file(&path).unwrap();
    }
}
