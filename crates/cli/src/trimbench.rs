use std::{
    fs,
    path::{Path, PathBuf},
    process, thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_bench::trimbench::{self, Config, Data, Experiment, Measured};
use lacuna_nvmfs::{OpenedVfs, VfsOptions};
use serde_json::{Value, json};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator::Signals,
};

use crate::{
    keys::open_vfs,
    output::{reserve_report, write_json},
    say,
    size::Size,
};

/// Measure what holes cost on file systems, as the NVM Compression papers did
#[derive(Args)]
pub(crate) struct Arguments {
    /// Directories, each on a file system to be measured; best on devices that are equal, written once in full and not
    /// used otherwise (bench/trimbench-all makes such)
    #[arg(value_name = "DIR", required_unless_present = "store")]
    dirs: Vec<PathBuf>,
    /// Measure a store in this process too: a store file (made when missing) or a block device
    #[arg(long, value_name = "PLACE")]
    store: Option<PathBuf>,
    /// Size of a store file that is made; it is removed again
    #[arg(long, default_value = "4G")]
    size: Size,
    /// all, or some of beside (a thread writes 16 KiB blocks, another follows and trims them), then (one
    /// thread writes a block, then trims it), parallel (direct I/O on one file), append (4 KiB, each made
    /// durable), holes (a file with very many is made, copied, dropped), scan (a file is read from front to back, before and
    /// after its blocks changed their size many times)
    #[arg(long, default_value = "all", value_delimiter = ',')]
    experiment: Vec<String>,
    /// Size of the file that blocks are trimmed in
    #[arg(long, default_value = "1G")]
    file: Size,
    /// Bytes trimmed off the end of each block, one run each
    #[arg(long, value_name = "BYTES", default_value = "1K,2K,4K,8K,12K", value_delimiter = ',')]
    trims: Vec<Size>,
    /// Leave out the runs on zeros, which some file systems do not store
    #[arg(long)]
    no_zeros: bool,
    /// Threads of the parallel experiment
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Length of each parallel run, and of the appends
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Number of holes; the file takes 4 KiB for each
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    holes: u64,
    /// Do not copy the file with holes, which takes longest
    #[arg(long)]
    no_copy: bool,
    /// Seed of order and data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Show the runs of this earlier report too, and write them with the new ones
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let config = Config {
        experiments: experiments(&arguments.experiment)?,
        file_bytes: arguments.file.0,
        trims: arguments.trims.iter().map(|trim| trim.0).collect(),
        data: if arguments.no_zeros { vec![Data::Random] } else { vec![Data::Random, Data::Zeros] },
        threads: arguments.threads,
        seconds: Duration::from_secs(arguments.seconds),
        holes: arguments.holes,
        copies: !arguments.no_copy,
        seed: arguments.seed,
        quiet: false,
    };
    config.check()?;
    if let Some(path) = &arguments.json {
        reserve_report(path)?;
    }
    remove_files_on_signals(&arguments.dirs)?;
    let mut all = arguments.with.as_deref().map_or(Ok(Vec::new()), earlier)?;
    for dir in &arguments.dirs {
        all.extend(trimbench::run_directory(&config, dir)?);
    }
    if arguments.store.is_some() {
        all.extend(run_store(arguments, &config)?);
    }
    say(&trimbench::table(&all))?;
    if let Some(path) = &arguments.json {
        write_json(path, &as_json(arguments, &config, &all))?;
    }
    Ok(())
}

/// An interruption leaves none of the files behind that experiments make in `dirs`.
fn remove_files_on_signals(dirs: &[PathBuf]) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
    let dirs = dirs.to_vec();
    thread::Builder::new().name("signals".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            dirs.iter().for_each(|dir| trimbench::remove_files(dir));
            process::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// The runs in a report.
fn earlier(path: &Path) -> Result<Vec<Measured>> {
    let named = || path.display().to_string();
    let text = fs::read_to_string(path).with_context(named)?;
    let mut report: Value = serde_json::from_str(&text).with_context(named)?;
    if report["benchmark"] != "trimbench" {
        bail!("{}: not a report of trimbench", path.display());
    }
    serde_json::from_value(report["runs"].take()).with_context(named)
}

fn experiments(names: &[String]) -> Result<Vec<Experiment>> {
    if names == ["all"] {
        return Ok(Experiment::ALL.to_vec());
    }
    let named = |name: &String| {
        let found = Experiment::ALL.into_iter().find(|experiment| experiment.name() == name);
        found.with_context(|| {
            if name == "all" {
                return "--experiment: all is all of them, and stands alone".to_owned();
            }
            let known: Vec<&str> = Experiment::ALL.iter().map(|experiment| experiment.name()).collect();
            format!("--experiment: {name}: known are {}, all", known.join(", "))
        })
    };
    names.iter().map(named).collect()
}

fn run_store(arguments: &Arguments, config: &Config) -> Result<Vec<Measured>> {
    let Some(path) = &arguments.store else { return Ok(Vec::new()) };
    let is_new = !path.exists();
    let create_size = is_new.then_some(arguments.size.0);
    let opened = open_vfs(path, &VfsOptions { create_size, ..VfsOptions::default() })?;
    if matches!(opened, OpenedVfs::Directory(_)) {
        bail!("{}: a directory: give it without --store", path.display());
    }
    if is_new {
        // It has no name while it is used, so that an interruption leaves none behind.
        fs::remove_file(path).with_context(|| path.display().to_string())?;
    }
    let measured = trimbench::run_store(config, opened.vfs());
    let closed = opened.close();
    let measured = measured?;
    closed?;
    Ok(measured)
}

fn as_json(arguments: &Arguments, config: &Config, all: &[Measured]) -> Value {
    json!({
        "benchmark": "trimbench",
        "git": env!("LACUNA_GIT"),
        "config": {
            "version": env!("CARGO_PKG_VERSION"),
            "block_bytes": trimbench::BLOCK_BYTES,
            "file_bytes": config.file_bytes,
            "trims": config.trims,
            "threads": config.threads,
            "seconds": arguments.seconds,
            "holes": config.holes,
            "seed": config.seed,
        },
        "runs": all,
    })
}
