//! How long the first open after a crash takes.
//!
//!     cargo run --release -p lacuna-ftl --example mount -- FILE [EXTENTS] [GIB] [LOG_MIB]
//!     cargo run --release -p lacuna-ftl --example mount -- --make FILE [EXTENTS] [GIB] [LOG_MIB]
//!     cargo run --release -p lacuna-ftl --example mount -- --open FILE
//!
//! Makes a sparse store file of GIB (64) that maps EXTENTS (4,000,000) extents of one sector each, checkpoints
//! it, overwrites LOG_MIB (1,024) in pages of 16 KiB with a flush each 16 MiB, and ends without closing, as
//! a killed process does.
//! Then it opens the store and times that. FILE must not exist; it is removed in the end.
//!
//! `--make` does the first half and keeps FILE, `--open` does the second half. Opening recovers the store, so to
//! measure again, or under a profiler, open copies: `cp --sparse=always FILE COPY`.
//!
//! Reads come from the page cache unless FILE lies where direct I/O works; the program reports which.

use std::{path::Path, sync::Arc, time::Instant};

use lacuna_device::{BlockDevice, RawDevice, RawOptions};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Stream};
use lacuna_sim::SeededRng;

const PAGE: usize = 16384;
/// Extents written by one batch.
const AT_ONCE: u64 = 4000;

fn open(path: &Path) -> Result<(Arc<RawDevice>, Ftl), Box<dyn std::error::Error>> {
    let device = Arc::new(RawDevice::open(path, RawOptions::default())?);
    let ftl = Ftl::open(device.clone(), Options { background: true, ..Options::default() })?;
    Ok((device, ftl))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let only = arguments.next_if(|argument| argument.starts_with("--"));
    let path = arguments.next().ok_or("name a file to make")?;
    let path = Path::new(&path);
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |argument| argument.parse());
    let (extents, bytes, log_bytes) = (number(4_000_000)?, number(64)? << 30, number(1024)? << 20);
    match only.as_deref() {
        Some("--make") => make(path, extents, bytes, log_bytes),
        Some("--open") => time_open(path),
        Some(other) => Err(format!("no such option: {other}").into()),
        None => {
            make(path, extents, bytes, log_bytes)?;
            time_open(path)?;
            Ok(std::fs::remove_file(path)?)
        }
    }
}

/// A store at `path` that needs recovery.
fn make(path: &Path, extents: u64, bytes: u64, log_bytes: u64) -> Result<(), Box<dyn std::error::Error>> {
    let device: Arc<dyn BlockDevice> = Arc::new(RawDevice::create(path, bytes, RawOptions::default())?);
    Ftl::format(device.clone(), &FormatOptions::default())?;
    drop(device);
    let (device, ftl) = open(path)?;
    let sector = [1; 512];
    for first in (0..extents).step_by(AT_ONCE as usize) {
        let lbas = (first..extents.min(first + AT_ONCE)).map(|number| Lba(number * 2));
        let ops: Vec<_> = lbas.map(|lba| Op::Write { lba, data: &sector }).collect();
        ftl.write_batch(&ops, Stream::Data)?;
    }
    ftl.checkpoint()?;
    let (mut rng, mut page) = (SeededRng::new(1), vec![0; PAGE]);
    rng.fill(&mut page);
    for number in 0..log_bytes / PAGE as u64 {
        let lba = Lba(rng.below(extents / 32 + 1) * 64);
        ftl.write_batch(&[Op::Write { lba, data: &page }], Stream::Data)?;
        if number % 1024 == 0 {
            ftl.flush()?;
        }
    }
    ftl.flush()?;
    println!("{} extents; direct I/O: {}", ftl.stats().extents, device.is_direct());
    Ok(())
}

fn time_open(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let (_device, ftl) = open(path)?;
    let seconds = began.elapsed().as_secs_f64();
    let stats = ftl.stats();
    println!(
        "opened in {seconds:.2} s: {} extents, {} batches replayed, {} MB read, {} MB written",
        stats.extents,
        stats.replayed_batches,
        stats.device.read_bytes / 1_000_000,
        stats.device.written_bytes / 1_000_000,
    );
    Ok(())
}
