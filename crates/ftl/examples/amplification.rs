//! Write amplification of uniform random 16 KiB overwrites on a store in memory.
//!
//!     cargo run --release -p lacuna-ftl --example amplification -- [PERCENT_LIVE] [MIB]

use std::sync::Arc;

use lacuna_device::{BlockDevice, MemDevice, sim::SeededRng};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Result, Stream};

const PAGE: usize = 16384;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().expect("a number"));
    let percent = arguments.next().unwrap_or(80);
    let bytes = arguments.next().unwrap_or(1024) << 20;
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(bytes));
    Ftl::format(device.clone(), &FormatOptions::default())?;
    let ftl = Ftl::open(device, Options { background: true, ..Options::default() })?;
    let pages = bytes / 100 * percent / PAGE as u64;
    let mut rng = SeededRng::new(1);
    let mut page = vec![0; PAGE];
    rng.fill(&mut page);
    let mut write = |number: u64| {
        page[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        ftl.write_batch(&[Op::Write { lba: Lba(number * 32), data: &page }], Stream::Data).map(drop)
    };
    (0..pages).try_for_each(&mut write)?;
    let mut places = SeededRng::new(2);
    (0..2 * pages).try_for_each(|_| write(places.below(pages)))?;
    let before = ftl.stats();
    let began = std::time::Instant::now();
    (0..2 * pages).try_for_each(|_| write(places.below(pages)))?;
    let seconds = began.elapsed().as_secs_f64();
    let after = ftl.stats();
    let host = (after.host_bytes - before.host_bytes) as f64;
    let share = |now: u64, then: u64| (now - then) as f64 / host;
    println!(
        "{percent}% live: {:.2} bytes written per byte (log {:.2}, collection {:.2}, checkpoints {:.3}), {:.0} MB/s",
        share(after.device.written_bytes, before.device.written_bytes),
        share(after.log_bytes, before.log_bytes),
        share(after.gc_bytes, before.gc_bytes),
        share(after.checkpoint_bytes, before.checkpoint_bytes),
        host / 1e6 / seconds,
    );
    Ok(())
}
