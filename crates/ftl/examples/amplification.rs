//! Write amplification of random 16 KiB overwrites on a store in memory, once it has settled: what is
//! written to the device, checkpoints included, per byte of data.
//!
//!     cargo run --release -p lacuna-ftl --example amplification -- [PERCENT_LIVE] [MIB] [ZIPF]
//!
//! Live are PERCENT_LIVE of all segments. ZIPF is the exponent of the pages' popularity; 0 is uniform;
//! by default 0 and 0.99 are run. Popular pages lie anywhere. A second line tells what stood idle, which
//! is room that garbage cannot use: with a tenth of the segments idle, uniform overwrites cost a third more.

use std::sync::Arc;

use lacuna_device::{BlockDevice, MemDevice, sim::SeededRng};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Result, Stats, Stream};

const PAGE: usize = 16384;
/// How often the live data is overwritten before measuring, and then.
const SETTLE: u64 = 3;
const MEASURE: u64 = 3;

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

/// What idle segments there were, on average.
#[derive(Default)]
struct Idle {
    free: u64,
    waiting_for_flush: u64,
    waiting_for_checkpoint: u64,
    samples: u64,
}

impl Idle {
    fn note(&mut self, stats: &Stats) {
        self.free += stats.free_segments;
        self.waiting_for_flush += stats.waiting_for_flush;
        self.waiting_for_checkpoint += stats.waiting_for_checkpoint;
        self.samples += 1;
    }
}

impl std::fmt::Display for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mean = |sum: u64| sum as f64 / self.samples as f64;
        let (flush, checkpoint) = (mean(self.waiting_for_flush), mean(self.waiting_for_checkpoint));
        write!(
            f,
            "{:.1} free, {flush:.1} dead before a flush, {checkpoint:.1} before a checkpoint",
            mean(self.free)
        )
    }
}

fn run(percent: f64, bytes: u64, exponent: f64) -> Result<()> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(bytes));
    Ftl::format(device.clone(), &FormatOptions::default())?;
    // Without the thread: the same figures each time.
    let ftl = Ftl::open(device, Options { background: false, ..Options::default() })?;
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
    (0..SETTLE * pages).try_for_each(|_| write(places.draw()))?;
    let before = ftl.stats();
    let began = std::time::Instant::now();
    let mut idle = Idle::default();
    for number in 0..MEASURE * pages {
        write(places.draw())?;
        if number % (pages / 100) == 0 {
            idle.note(&ftl.stats());
        }
    }
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
    println!(
        "    of {} segments: {idle}; {} reserved; {} checkpoints, {} victims",
        after.segments,
        after.reserved_segments,
        after.checkpoints - before.checkpoints,
        after.gc_segments - before.gc_segments,
    );
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<f64>().expect("a number"));
    let percent = arguments.next().unwrap_or(80.0);
    let bytes = (arguments.next().unwrap_or(1024.0) as u64) << 20;
    match arguments.next() {
        Some(exponent) => run(percent, bytes, exponent),
        None => [0.0, 0.99].into_iter().try_for_each(|exponent| run(percent, bytes, exponent)),
    }
}
