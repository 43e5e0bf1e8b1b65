//! The cost of flushing into parts of a store file that were never used: one thread repeatedly writes 8 KiB to new
//! addresses and flushes.
//!
//!     cargo run --release -p lacuna-ftl --example untouched -- FILE SECONDS

use std::{
    env,
    error::Error,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use lacuna_device::{BlockDevice, RawDevice, RawOptions};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Stream};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [path, seconds] = &arguments[..] else { return Err("untouched FILE SECONDS".into()) };
    let device: Arc<dyn BlockDevice> =
        Arc::new(RawDevice::create(Path::new(path), 8 << 30, RawOptions::default())?);
    Ftl::format(device.clone(), &FormatOptions::default())?;
    let ftl = Ftl::open(device, Options { background: true, ..Options::default() })?;
    let data: Vec<u8> = (0..8192).map(|at| at as u8 | 1).collect();
    let (start, run) = (Instant::now(), Duration::from_secs(seconds.parse()?));
    let mut waited = Vec::new();
    while start.elapsed() < run {
        let lba = Lba(16 * waited.len() as u64);
        let begun = Instant::now();
        ftl.write_batch(&[Op::Write { lba, data: &data }], Stream::Data)?;
        ftl.flush()?;
        waited.push(begun.elapsed());
    }
    waited.sort_unstable();
    let of = |share: usize| waited[(waited.len() - 1) * share / 1000].as_micros();
    println!(
        "{} flushes/s, half within {} us, 99% within {} us, 99.9% within {} us; {} MB made ready",
        waited.len() as u64 / run.as_secs(),
        of(500),
        of(990),
        of(999),
        ftl.stats().prepared_bytes / 1_000_000
    );
    drop(ftl);
    Ok(fs::remove_file(path)?)
}
