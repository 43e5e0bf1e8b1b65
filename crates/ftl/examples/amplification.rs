//! Write amplification of random 16 KiB overwrites on a store in memory, once it has settled: what is
//! written to the device, checkpoints included, per byte of data.
//!
//!     cargo run --release -p lacuna-ftl --example amplification -- [PERCENT_LIVE] [MIB] [ZIPF]
//!
//! Live are PERCENT_LIVE of all segments. ZIPF is the exponent of the pages' popularity; 0, the
//! default, is uniform. Popular pages lie anywhere.

use std::sync::Arc;

use lacuna_device::{BlockDevice, MemDevice, sim::SeededRng};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Result, Stream};

const PAGE: usize = 16384;

/// Draws pages, popular ones more often.
struct Popularity {
    /// Sums of the weights up to each rank.
    sums: Vec<f64>,
    /// Page of each rank.
    pages: Vec<u64>,
    rng: SeededRng,
}

impl Popularity {
    fn new(pages: u64, exponent: f64) -> Popularity {
        let mut rng = SeededRng::new(2);
        let mut sum = 0.0;
        let mut add = |rank: u64| {
            sum += (rank as f64).powf(-exponent);
            sum
        };
        let sums = (1..=pages).map(&mut add).collect();
        let mut pages: Vec<u64> = (0..pages).collect();
        for index in (1..pages.len()).rev() {
            pages.swap(index, rng.below(index as u64 + 1) as usize);
        }
        Popularity { sums, pages, rng }
    }

    fn draw(&mut self) -> u64 {
        let total = self.sums[self.sums.len() - 1];
        let at = self.rng.below(1 << 52) as f64 / (1_u64 << 52) as f64 * total;
        self.pages[self.sums.partition_point(|sum| *sum <= at).min(self.pages.len() - 1)]
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<f64>().expect("a number"));
    let percent = arguments.next().unwrap_or(80.0);
    let bytes = (arguments.next().unwrap_or(1024.0) as u64) << 20;
    let exponent = arguments.next().unwrap_or(0.0);
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(bytes));
    Ftl::format(device.clone(), &FormatOptions::default())?;
    let ftl = Ftl::open(device, Options { background: true, ..Options::default() })?;
    let pages = (bytes as f64 / 100.0 * percent) as u64 / PAGE as u64;
    let mut rng = SeededRng::new(1);
    let mut page = vec![0; PAGE];
    rng.fill(&mut page);
    let mut write = |number: u64| {
        page[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        ftl.write_batch(&[Op::Write { lba: Lba(number * 32), data: &page }], Stream::Data).map(drop)
    };
    (0..pages).try_for_each(&mut write)?;
    let mut places = Popularity::new(pages, exponent);
    (0..3 * pages).try_for_each(|_| write(places.draw()))?;
    let before = ftl.stats();
    let began = std::time::Instant::now();
    (0..3 * pages).try_for_each(|_| write(places.draw()))?;
    let seconds = began.elapsed().as_secs_f64();
    let after = ftl.stats();
    let host = (after.host_bytes - before.host_bytes) as f64;
    let share = |now: u64, then: u64| (now - then) as f64 / host;
    println!(
        "{percent}% live, zipf {exponent}: {:.2} bytes written per byte (log {:.3}, collection {:.2}, \
         checkpoints {:.3}), {:.0} MB/s",
        share(after.device.written_bytes, before.device.written_bytes),
        share(after.log_bytes, before.log_bytes),
        share(after.gc_bytes, before.gc_bytes),
        share(after.checkpoint_bytes, before.checkpoint_bytes),
        host / 1e6 / seconds,
    );
    Ok(())
}
