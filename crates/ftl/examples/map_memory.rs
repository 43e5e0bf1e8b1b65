//! A store whose map is many times the memory that it may take: random writes and reads at a given budget, their speed,
//! and how long the next open takes.
//!
//!     cargo run --release -p lacuna-ftl --example map_memory -- [EXTENTS] [BUDGET_KIB] [FILE]
//!
//! By default 4,000,000 extents, whose map takes about 57 MB, in 8 MiB, on a store in memory. With FILE, the store lies
//! in a sparse file, which is created. Each extent is a sector with 16 bytes that are not zero, so that the map
//! dominates.

use std::{path::Path, sync::Arc, time::Instant};

use lacuna_device::{BlockDevice, MemDevice, RawDevice, RawOptions};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Result, Stream};
use lacuna_sim::SeededRng;

/// Writes of one batch.
const BATCH: u64 = 64;
const OPERATIONS: u64 = 100_000;

fn lba(extent: u64) -> Lba {
    Lba(extent * 32)
}

fn write(ftl: &Ftl, extents: impl Iterator<Item = u64>, tag: u8) -> Result<()> {
    let sector: [u8; 512] = std::array::from_fn(|at| if at < 16 { tag } else { 0 });
    let ops: Vec<_> = extents.map(|extent| Op::Write { lba: lba(extent), data: &sector }).collect();
    ftl.write_batch(&ops, Stream::Data).map(drop)
}

fn report(what: &str, operations: u64, began: Instant, ftl: &Ftl) {
    let stats = ftl.stats();
    println!(
        "{what}: {:.0} per second; map {:.1} MB in memory, {} of {} leaves, {} read, {} evicted, \
         {} segments of the map, {:.1} MB written for it",
        operations as f64 / began.elapsed().as_secs_f64(),
        stats.map_memory_bytes as f64 / 1e6,
        stats.map_leaves_resident,
        stats.map_leaves,
        stats.map_faults,
        stats.map_evictions,
        stats.map_segments,
        stats.checkpoint_bytes as f64 / 1e6,
    );
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(default, |it| it.parse().expect("a number"));
    let (extents, budget) = (number(4_000_000_u64), number(8192) << 10);
    let bytes = (extents * 300).next_power_of_two().max(64 << 20);
    let device: Arc<dyn BlockDevice> = match arguments.next() {
        Some(path) => RawDevice::create(Path::new(&path), bytes, RawOptions::default()).map(Arc::new)?,
        None => Arc::new(MemDevice::new(bytes)),
    };
    Ftl::format(device.clone(), &FormatOptions { force: true, ..FormatOptions::default() })?;
    let options = Options { background: true, map_memory: Some(budget), ..Options::default() };
    let open = || {
        let began = Instant::now();
        let ftl = Ftl::open(device.clone(), options.clone())?;
        println!("open took {:?}, {} batches replayed", began.elapsed(), ftl.stats().replayed_batches);
        Ok::<_, lacuna_ftl::Error>(ftl)
    };
    let ftl = open()?;
    let mut rng = SeededRng::new(1);
    let began = Instant::now();
    for first in (0..extents).step_by(BATCH as usize) {
        write(&ftl, first..(first + BATCH).min(extents), 1)?;
    }
    report("extents written in order", extents, began, &ftl);
    let began = Instant::now();
    for _ in 0..OPERATIONS {
        write(&ftl, [rng.below(extents)].into_iter(), 2)?;
    }
    report("random overwrites", OPERATIONS, began, &ftl);
    let began = Instant::now();
    let mut sector = [0; 512];
    for _ in 0..OPERATIONS {
        ftl.read(lba(rng.below(extents)), &mut sector)?;
        assert!(matches!(sector[0], 1 | 2), "a sector was lost");
    }
    report("random reads", OPERATIONS, began, &ftl);
    let began = Instant::now();
    ftl.checkpoint()?;
    println!("a checkpoint took {:?}", began.elapsed());
    for _ in 0..OPERATIONS / 10 {
        write(&ftl, [rng.below(extents)].into_iter(), 3)?;
    }
    ftl.flush()?;
    drop(ftl);
    let ftl = open()?;
    let began = Instant::now();
    ftl.write_batch(&[Op::Trim { lba: Lba(0), sectors: extents * 32 }], Stream::Data)?;
    println!("trim of all took {:?}; {} extents left", began.elapsed(), ftl.stats().extents);
    Ok(())
}
