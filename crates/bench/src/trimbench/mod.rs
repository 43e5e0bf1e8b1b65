//! The cost of holes: the file system experiment of the NVM Compression papers (Das et al., INFLOW 2014; the slides of
//! FMS 2015), on directories of any mounted file system and on a store in this process.
//!
//! A file is written once in full, then every one of its blocks of 16 KiB once more, in scattered order,
//! and the last 1 to 12 KiB of each are trimmed, as a database does that compresses pages: by a second
//! thread that follows the first, or by the same thread after each write. Run time ends when all is
//! durable. The counters of the device are read again after deferred work was forced by `syncfs`, outside of the run
//! time.
//!
//! Beside it: direct reads and writes of one file by many threads, appends of 4 KiB each made durable, a
//! file with very many holes that is made, copied and dropped, and one that is read from front to back before and after
//! its blocks changed their size many times. Data is random but for runs named `zeros`: trailing zeros cost some file
//! systems nothing.

mod experiment;
mod report;
mod target;
#[cfg(test)]
mod tests;

use std::{fs, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use lacuna_device::Vfs;

pub use experiment::Experiment;
pub use report::{Measured, table};
use target::{DirTarget, StoreTarget, Target};

/// Bytes of a block: the page of InnoDB, and of our engine.
pub const BLOCK_BYTES: u64 = 16 << 10;

/// The content of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Bytes that nothing can compress.
    Random,
    /// Zeros.
    Zeros,
}

impl Data {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Data::Random => "random",
            Data::Zeros => "zeros",
        }
    }
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Experiments, in this order.
    pub experiments: Vec<Experiment>,
    /// Size of the file in bytes, a multiple of [`BLOCK_BYTES`].
    pub file_bytes: u64,
    /// Bytes trimmed off the end of each block, one run each.
    pub trims: Vec<u64>,
    /// Fillings, one run each.
    pub data: Vec<Data>,
    /// Threads of the parallel experiments.
    pub threads: u32,
    /// Length of the parallel experiments and of the appends.
    pub seconds: Duration,
    /// Holes of the file that is made, copied and dropped.
    pub holes: u64,
    /// Whether that file is copied too.
    pub copies: bool,
    /// Seed of order and data.
    pub seed: u64,
    /// Nothing on standard error.
    pub quiet: bool,
}

impl Config {
    /// An error when it makes no sense.
    pub fn check(&self) -> Result<()> {
        if self.file_bytes < BLOCK_BYTES || !self.file_bytes.is_multiple_of(BLOCK_BYTES) {
            bail!("a file of {} bytes: it must be a multiple of 16K", self.file_bytes);
        }
        if let Some(trim) =
            self.trims.iter().find(|trim| !(512..BLOCK_BYTES).contains(trim) || !trim.is_multiple_of(512))
        {
            bail!("a trim of {trim} bytes: it must be a multiple of 512 below 16K");
        }
        Ok(())
    }
}

/// Runs all experiments in a directory. Their files are removed again.
///
/// # Errors
/// Whatever the file system fails with.
pub fn run_directory(config: &Config, directory: &Path) -> Result<Vec<Measured>> {
    let target = DirTarget::new(directory).with_context(|| directory.display().to_string())?;
    run(config, &target)
}

/// Removes the files that experiments of this process have made in a directory, for a run that is interrupted.
pub fn remove_files(directory: &Path) {
    let prefix = target::file_prefix();
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = fs::remove_file(entry.path()); // it may be gone
        }
    }
}

/// Runs all experiments on a store in this process. Their files are removed again.
///
/// # Errors
/// Whatever the store fails with.
pub fn run_store(config: &Config, vfs: Arc<dyn Vfs>) -> Result<Vec<Measured>> {
    run(config, &StoreTarget::new(vfs))
}

fn run(config: &Config, target: &dyn Target) -> Result<Vec<Measured>> {
    config.check()?;
    let mut all = Vec::new();
    for experiment in &config.experiments {
        let measured = experiment::run(config, target, *experiment)
            .with_context(|| format!("{}: {}", target.name(), experiment.name()))?;
        all.extend(measured);
    }
    Ok(all)
}
