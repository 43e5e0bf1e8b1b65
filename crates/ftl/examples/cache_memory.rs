//! What a cache of stored chunks takes in memory beside what it was given, and what its puts cost: threads overwrite
//! pages of random stored lengths, and read some of them.
//!
//!     cargo run --release -p lacuna-ftl --example cache_memory -- [CACHE_MIB] [THREADS] [FILE]
//!
//! By default 64 MiB and 8 threads, on a store file in /dev/shm, which must not exist and is removed. The process's own
//! memory is compared with that of the same work without a cache.

use std::{path::Path, sync::Arc, time::Instant};

use lacuna_device::{BlockDevice, RawDevice, RawOptions};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Result, SECTOR, Stream};
use lacuna_sim::SeededRng;

/// Sectors of a page; its stored length is random.
const PAGE_SECTORS: u64 = 16;
const PAGES: u64 = 60_000;
const PAGES_PER_THREAD: u64 = 100_000;

/// Private memory of this process, in bytes.
fn memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse().ok());
    kib.map_or(0, |kib: u64| kib << 10)
}

/// Overwrites pages and reads others; returns pages a second.
fn work(ftl: &Ftl, threads: u64, round: u64) -> Result<f64> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || -> Result<()> {
                    let mut rng = SeededRng::new(round << 8 | thread);
                    let mut page = vec![0; PAGE_SECTORS as usize * SECTOR];
                    for _ in 0..PAGES_PER_THREAD {
                        let lba = Lba(rng.below(PAGES) * PAGE_SECTORS);
                        let stored = 512 + rng.below(3 << 10) as usize;
                        page[..stored].fill(1 + rng.below(255) as u8);
                        page[stored..].fill(0);
                        ftl.write_batch(&[Op::Write { lba, data: &page }], Stream::Data)?;
                        ftl.read(Lba(rng.below(PAGES) * PAGE_SECTORS), &mut page)?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("it does not panic"))
    })?;
    Ok((threads * PAGES_PER_THREAD) as f64 / began.elapsed().as_secs_f64())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(default, |it| it.parse().expect("a number"));
    let (cache, threads) = (number(64_u64) << 20, number(8_u64));
    let path = arguments.next().unwrap_or_else(|| format!("/dev/shm/cache_memory.{}", std::process::id()));
    let device: Arc<dyn BlockDevice> =
        Arc::new(RawDevice::create(Path::new(&path), 512 << 20, RawOptions::default())?);
    std::fs::remove_file(&path).expect("made just now");
    Ftl::format(device.clone(), &FormatOptions { force: true, ..FormatOptions::default() })?;
    let mut without = 0;
    for chunk_cache in [0, cache] {
        let options = Options { background: true, chunk_cache, ..Options::default() };
        let ftl = Ftl::open(device.clone(), options)?;
        for round in 0..3 {
            let rate = work(&ftl, threads, round)?;
            let stats = ftl.stats();
            println!(
                "cache {:.1} MB: {rate:.0} pages/s, {:.0}% found, counted {:.1} MB, process {:.1} MB more",
                chunk_cache as f64 / 1e6,
                100.0 * stats.chunk_cache_hits as f64
                    / (stats.chunk_cache_hits + stats.chunk_cache_misses).max(1) as f64,
                stats.chunk_cache_bytes as f64 / 1e6,
                memory_bytes().saturating_sub(without) as f64 / 1e6,
            );
        }
        without = memory_bytes();
        ftl.close()?;
    }
    Ok(())
}
