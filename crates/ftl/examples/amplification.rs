//! Write amplification of random 16 KiB overwrites on a store in memory, in the steady state: bytes written to the
//! device, checkpoints included, per byte of data.
//!
//!     cargo run --release -p lacuna-ftl --example amplification -- [PERCENT_LIVE] [MIB] [LOAD] [SEED] [SEGMENT_KIB]
//!
//! THREAD=1 in the environment lets the maintenance thread collect, as in a store that is used.
//!
//! PERCENT_LIVE of all segments are live. LOAD is the Zipf exponent of the pages' popularity, where 0 is uniform; or
//! `hot`: nine of ten writes go to a tenth of the pages; or `moving`: that tenth moves on by a page every ten writes,
//! so a page is hot for as long as it takes to write as much as is live. By default 0 and 0.99 are run. Popular pages
//! lie anywhere. Then it reports which segments were idle on average, which is space that garbage cannot use: one
//! percent of idle segments costs uniform overwrites 0.15 bytes per byte.

use std::sync::Arc;

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Result, Stats, Stream};
use lacuna_sim::SeededRng;

const PAGE: usize = 16384;
/// How often the live data is overwritten before measuring, and again while measuring.
const SETTLE: u64 = 3;
const MEASURE: u64 = 3;

/// How popular pages are.
#[derive(Clone, Copy)]
enum Load {
    Zipf(f64),
    Hot,
    Moving,
}

impl Load {
    fn parse(name: &str) -> Load {
        match name {
            "hot" => Load::Hot,
            "moving" => Load::Moving,
            exponent => Load::Zipf(exponent.parse().expect("an exponent, hot or moving")),
        }
    }

    /// Of the page with this rank, from 1 to `pages`.
    fn weight(self, rank: u64, pages: u64) -> f64 {
        match self {
            Load::Zipf(exponent) => (rank as f64).powf(-exponent),
            Load::Hot | Load::Moving if rank <= pages / 10 => 81.0,
            Load::Hot | Load::Moving => 1.0,
        }
    }
}

impl std::fmt::Display for Load {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Load::Zipf(exponent) => write!(formatter, "zipf {exponent}"),
            Load::Hot => formatter.write_str("hot"),
            Load::Moving => formatter.write_str("moving"),
        }
    }
}

/// Draws pages, popular ones more often.
struct Popularity {
    /// Sums of the weights up to each rank.
    sums: Vec<f64>,
    /// Page of each rank.
    pages: Vec<u64>,
    load: Load,
    drawn: usize,
    rng: SeededRng,
}

impl Popularity {
    fn new(pages: u64, load: Load, seed: u64) -> Popularity {
        let mut rng = SeededRng::new(2 * seed);
        let mut sum = 0.0;
        let mut add = |rank: u64| {
            sum += load.weight(rank, pages);
            sum
        };
        let sums = (1..=pages).map(&mut add).collect();
        let mut pages: Vec<u64> = (0..pages).collect();
        for index in (1..pages.len()).rev() {
            pages.swap(index, rng.below(index as u64 + 1) as usize);
        }
        Popularity { sums, pages, load, drawn: 0, rng }
    }

    fn draw(&mut self) -> u64 {
        let total = self.sums[self.sums.len() - 1];
        let at = self.rng.below(1 << 52) as f64 / (1_u64 << 52) as f64 * total;
        let rank = self.sums.partition_point(|sum| *sum <= at).min(self.pages.len() - 1);
        self.drawn += 1;
        match self.load {
            Load::Moving => self.pages[(rank + self.drawn / 10) % self.pages.len()],
            Load::Zipf(_) | Load::Hot => self.pages[rank],
        }
    }
}

/// The states, on average, of the segments that held neither live data nor garbage.
#[derive(Default)]
struct Idle {
    samples: u64,
    kept: u64,
    free: u64,
    map: u64,
    open: f64,
    waiting_for_flush: u64,
    waiting_for_checkpoint: u64,
}

impl Idle {
    fn note(&mut self, stats: &Stats) {
        self.samples += 1;
        self.kept += stats.reserved_segments.min(stats.free_segments);
        self.free += stats.free_segments.saturating_sub(stats.reserved_segments);
        self.map += stats.map_segments;
        self.open += stats.open_free_bytes as f64 / stats.segment_bytes as f64;
        self.waiting_for_flush += stats.waiting_for_flush;
        self.waiting_for_checkpoint += stats.waiting_for_checkpoint;
    }

    /// Prints the means as parts of `now.segments`, and how full the others were.
    fn print(&self, now: &Stats) {
        let mean = |sum: u64| sum as f64 / self.samples as f64;
        let parts = [
            ("superblocks", 1.0),
            ("kept for checkpoints and collection", mean(self.kept)),
            ("free beyond that", mean(self.free)),
            ("map and checkpoints", mean(self.map)),
            ("space in open segments", self.open / self.samples as f64),
            ("dead, before a flush", mean(self.waiting_for_flush)),
            ("dead, before a checkpoint", mean(self.waiting_for_checkpoint)),
        ];
        let segments = now.segments as f64;
        let idle: f64 = parts.iter().map(|(_, part)| part).sum();
        for (name, part) in parts.into_iter().chain([("all of these", idle)]) {
            println!("    {part:6.1} segments, {:5.2}%: {name}", part / segments * 100.0);
        }
        let others = (segments - idle) * now.segment_bytes as f64;
        println!("    {:.2}% of the others live", now.allocated_bytes as f64 / others * 100.0);
    }
}

fn run(percent: f64, bytes: u64, load: Load, seed: u64, segment_bytes: Option<u32>) -> Result<()> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(bytes));
    Ftl::format(device.clone(), &FormatOptions { segment_bytes, ..FormatOptions::default() })?;
    // Without the thread: the same figures each time. With it: what users have.
    let background = std::env::var_os("THREAD").is_some();
    let ftl = Ftl::open(device, Options { background, ..Options::default() })?;
    let pages = (bytes as f64 / 100.0 * percent) as u64 / PAGE as u64;
    let mut rng = SeededRng::new(2 * seed - 1);
    let mut page = vec![0; PAGE];
    rng.fill(&mut page);
    let mut write = |number: u64| {
        page[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        ftl.write_batch(&[Op::Write { lba: Lba(number * 32), data: &page }], Stream::Data).map(drop)
    };
    (0..pages).try_for_each(&mut write)?;
    let mut places = Popularity::new(pages, load, seed);
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
        "{percent}% live, {load}: {:.3} bytes written per byte (log {:.3}, collection {:.3}, \
         checkpoints {:.3}), {:.0} MB/s",
        share(after.device.written_bytes, before.device.written_bytes),
        share(after.log_bytes, before.log_bytes),
        share(after.gc_bytes, before.gc_bytes),
        share(after.checkpoint_bytes, before.checkpoint_bytes),
        host / 1e6 / seconds,
    );
    println!(
        "    {} segments; {} checkpoints, {} victims; {:.1}% more extents than pages",
        after.segments,
        after.checkpoints - before.checkpoints,
        after.gc_segments - before.gc_segments,
        (after.extents as f64 / pages as f64 - 1.0) * 100.0,
    );
    idle.print(&after);
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let number = |default: f64, argument: Option<String>| {
        argument.map_or(default, |argument| argument.parse().expect("a number"))
    };
    let percent = number(80.0, arguments.next());
    let bytes = (number(1024.0, arguments.next()) as u64) << 20;
    let load = arguments.next().map(|name| Load::parse(&name));
    let seed = number(1.0, arguments.next()).max(1.0) as u64;
    let segment_bytes = arguments.next().map(|kib| number(0.0, Some(kib)) as u32 * 1024);
    let loads = load.map_or(vec![Load::Zipf(0.0), Load::Zipf(0.99)], |load| vec![load]);
    loads.into_iter().try_for_each(|load| run(percent, bytes, load, seed, segment_bytes))
}
