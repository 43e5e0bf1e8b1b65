//! How long a store that is 95% full makes writers and readers wait.
//!
//!     cargo run --release -p lacuna-ftl --example stalls -- [SECONDS] [MIB] [SEGMENT_MIB] [FILE]
//!
//! Fills a store of MIB (1,024) in memory, or in FILE, which must not exist, to 95% of what may be live, in
//! pages of 16 KiB, and wears it in. SEGMENT_MIB stands for the default if it is 0; the larger segments are, the
//! longer a collection takes. Then three phases of SECONDS (10) each: two readers that ask at a fixed
//! rate, whatever the answers take, alone; with two writers as fast as they can; with writers at 70% of that.
//! A writer overwrites random pages, trims a tenth of them, reads as often as that, and flushes now and then.
//! A reader's time counts from when its turn came, so that who waits behind a slow read counts too. The program
//! ends in an error when a call failed with anything but `Full`.

use std::{
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lacuna_device::{BlockDevice, MemDevice, RawDevice, RawOptions, sim::SeededRng};
use lacuna_ftl::{Error, FormatOptions, Ftl, Lba, Op, Options, Stream};

const PAGE: usize = 16384;
const PAGE_SECTORS: u64 = 32;
/// What a page costs of the live limit besides its bytes, about.
const PAGE_EXTRA: u64 = 128;
const LIVE_PERCENT: u64 = 95;
const TRIMMED_PERCENT: u64 = 10;
const WRITERS: u64 = 2;
const READERS: u64 = 2;
/// Reads per second of each reader.
const READ_RATE: f64 = 500.0;
const FLUSH_EVERY: u64 = 256;
/// How often the live data is overwritten before anything is measured.
const WEAR_IN: u64 = 2;

/// Latencies of calls, and what went wrong.
#[derive(Default)]
struct Times {
    micros: Vec<u32>,
    full: u64,
    errors: Vec<Error>,
}

impl Times {
    fn note(&mut self, since: Instant, result: Result<(), Error>) {
        self.micros.push(since.elapsed().as_micros().try_into().unwrap_or(u32::MAX));
        match result {
            Ok(()) => {}
            Err(Error::Full { .. }) => self.full += 1,
            Err(error) => self.errors.push(error),
        }
    }

    fn and(mut self, other: Times) -> Times {
        self.micros.extend(other.micros);
        self.errors.extend(other.errors);
        Times { full: self.full + other.full, ..self }
    }

    /// Latency in ms that `share` of the calls do not exceed.
    fn quantile(&mut self, share: f64) -> f64 {
        self.micros.sort_unstable();
        let last = self.micros.len().saturating_sub(1);
        self.micros.get((last as f64 * share) as usize).map_or(0.0, |micros| f64::from(*micros) / 1000.0)
    }

    fn print(&mut self, name: &str, seconds: f64) {
        let [p50, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(|share| self.quantile(share));
        println!(
            "  {name:8} {:9.0}/s  p50 {p50:.3}  p99 {p99:.3}  p99.9 {p999:.3}  max {max:.1} ms, {} full, {} errors",
            self.micros.len() as f64 / seconds,
            self.full,
            self.errors.len(),
        );
        self.errors.iter().take(3).for_each(|error| println!("    {error}"));
    }
}

/// A turn every so often, or at once.
struct Pace {
    began: Instant,
    every: Option<f64>,
    turns: u64,
}

impl Pace {
    fn new(rate: Option<f64>) -> Pace {
        Pace { began: Instant::now(), every: rate.map(|rate| 1.0 / rate), turns: 0 }
    }

    /// Waits for the next turn and returns when it came, which may be long ago.
    fn next(&mut self) -> Instant {
        let Some(every) = self.every else { return Instant::now() };
        let turn = self.began + Duration::from_secs_f64(every * self.turns as f64);
        self.turns += 1;
        thread::sleep(turn.saturating_duration_since(Instant::now()));
        turn
    }
}

struct Load<'a> {
    ftl: &'a Ftl,
    pages: u64,
    duration: Duration,
}

/// What each kind of call took.
#[derive(Default)]
struct Outcome {
    writes: Times,
    flushes: Times,
    reads: Times,
}

impl Load<'_> {
    fn read(&self, page: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.ftl.read(Lba(page * PAGE_SECTORS), buf)
    }

    fn write(&self, page: u64, data: &mut [u8], rng: &mut SeededRng) -> Result<(), Error> {
        let lba = Lba(page * PAGE_SECTORS);
        data[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        let op = match rng.chance(TRIMMED_PERCENT) {
            true => Op::Trim { lba, sectors: PAGE_SECTORS },
            false => Op::Write { lba, data },
        };
        self.ftl.write_batch(&[op], Stream::Data).map(drop)
    }

    /// One writer, until the time is over.
    fn run_writer(&self, seed: u64, rate: Option<f64>) -> (Times, Times) {
        let (mut rng, mut pace) = (SeededRng::new(seed), Pace::new(rate));
        let (mut writes, mut flushes) = (Times::default(), Times::default());
        let (mut data, mut buf) = (vec![0; PAGE], vec![0; PAGE]);
        rng.fill(&mut data);
        while pace.began.elapsed() < self.duration {
            let turn = pace.next();
            // The writer's own time, not its turn's: the pace only sets the load.
            let since = turn.max(Instant::now());
            let done = self.write(rng.below(self.pages), &mut data, &mut rng);
            writes.note(since, done);
            if rng.chance(TRIMMED_PERCENT)
                && let Err(error) = self.read(rng.below(self.pages), &mut buf)
            {
                writes.errors.push(error);
            }
            if (writes.micros.len() as u64).is_multiple_of(FLUSH_EVERY) {
                flushes.note(Instant::now(), self.ftl.flush());
            }
        }
        (writes, flushes)
    }

    fn run_reader(&self, seed: u64) -> Times {
        let (mut rng, mut pace) = (SeededRng::new(seed), Pace::new(Some(READ_RATE)));
        let (mut reads, mut buf) = (Times::default(), vec![0; PAGE]);
        while pace.began.elapsed() < self.duration {
            let turn = pace.next();
            let done = self.read(rng.below(self.pages), &mut buf);
            reads.note(turn, done);
        }
        reads
    }

    /// Readers and so many writers, each at `rate` or as fast as it can.
    fn run(&self, writers: u64, rate: Option<f64>) -> Outcome {
        thread::scope(|scope| {
            let writers: Vec<_> =
                (0..writers).map(|seed| scope.spawn(move || self.run_writer(10 + seed, rate))).collect();
            let readers: Vec<_> =
                (0..READERS).map(|seed| scope.spawn(move || self.run_reader(seed))).collect();
            let mut outcome = Outcome::default();
            for writer in writers {
                let (writes, flushes) = writer.join().expect("a writer panicked");
                outcome.writes = std::mem::take(&mut outcome.writes).and(writes);
                outcome.flushes = std::mem::take(&mut outcome.flushes).and(flushes);
            }
            for reader in readers {
                outcome.reads =
                    std::mem::take(&mut outcome.reads).and(reader.join().expect("a reader panicked"));
            }
            outcome
        })
    }
}

fn print(name: &str, outcome: &mut Outcome, seconds: f64) -> bool {
    println!("{name}");
    if !outcome.writes.micros.is_empty() {
        outcome.writes.print("writes", seconds);
        outcome.flushes.print("flushes", seconds);
    }
    outcome.reads.print("reads", seconds);
    [&outcome.writes, &outcome.flushes, &outcome.reads].iter().all(|times| times.errors.is_empty())
}

/// Fills the store, then overwrites at random.
fn prepare(load: &Load<'_>) -> Result<(), Error> {
    let (mut rng, mut data) = (SeededRng::new(1), vec![0; PAGE]);
    rng.fill(&mut data);
    for page in 0..load.pages {
        if !rng.chance(TRIMMED_PERCENT) {
            load.ftl
                .write_batch(&[Op::Write { lba: Lba(page * PAGE_SECTORS), data: &data }], Stream::Data)?;
        }
    }
    for _ in 0..WEAR_IN * load.pages {
        match load.write(rng.below(load.pages), &mut data, &mut rng) {
            Ok(()) | Err(Error::Full { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |argument| argument.parse());
    let (seconds, bytes, segment_mib) = (number(10)?, number(1024)? << 20, number(0)?);
    let path = arguments.next();
    let device: Arc<dyn BlockDevice> = match &path {
        Some(path) => Arc::new(RawDevice::create(Path::new(path), bytes, RawOptions::default())?),
        None => Arc::new(MemDevice::new(bytes)),
    };
    let segment_bytes = (segment_mib > 0).then_some((segment_mib as u32) << 20);
    Ftl::format(device.clone(), &FormatOptions { segment_bytes, ..FormatOptions::default() })?;
    let ftl = Ftl::open(device, Options { background: true, ..Options::default() })?;
    let live_bytes = ftl.stats().live_limit_bytes / 100 * LIVE_PERCENT;
    let pages = live_bytes * 100 / (100 - TRIMMED_PERCENT) / (PAGE as u64 + PAGE_EXTRA);
    let load = Load { ftl: &ftl, pages, duration: Duration::from_secs(seconds) };
    prepare(&load)?;

    let seconds = seconds as f64;
    let mut idle = load.run(0, None);
    let mut is_sound = print("idle", &mut idle, seconds);
    let before = ftl.stats();
    let mut most = load.run(WRITERS, None);
    is_sound &= print("writers as fast as they can", &mut most, seconds);
    let after = ftl.stats();
    println!(
        "  {:.1}% of the limit live, {:.2} bytes moved per byte, {} victims, {} checkpoints",
        after.live_bytes as f64 * 100.0 / after.live_limit_bytes as f64,
        (after.gc_bytes - before.gc_bytes) as f64 / (after.host_bytes - before.host_bytes) as f64,
        after.gc_segments - before.gc_segments,
        after.checkpoints - before.checkpoints,
    );
    let rate = most.writes.micros.len() as f64 / seconds / WRITERS as f64 * 0.7;
    let mut steady = load.run(WRITERS, Some(rate));
    is_sound &= print("writers at 70% of that", &mut steady, seconds);
    println!(
        "p99 of reads: {:.2} times that of an idle store",
        steady.reads.quantile(0.99) / idle.reads.quantile(0.99)
    );
    drop(ftl);
    if let Some(path) = path {
        std::fs::remove_file(path)?;
    }
    if is_sound { Ok(()) } else { Err("calls failed with other errors than Full".into()) }
}
