//! Measures whether a store that is 95% full keeps these promises: 10 minutes of mixed load bring no error but `Full`
//! where that is due, and no stall over a second; and beside writers at 70% of their maximum, the p99 of two readers at
//! a fixed rate is at most three times that on an idle store.
//!
//!     cargo run --release -p lacuna-ftl --example stalls -- [SECONDS] [MIB] [SEGMENT_MIB] [FILE]
//!
//! Fills a store of MIB (1,024) in memory, or in FILE, which must not exist, to 95% of its limit of live data, in pages
//! of 16 KiB, and wears it in. A SEGMENT_MIB of 0 means the default; the larger segments are, the longer a collection
//! takes. Then three phases: the readers alone, for SECONDS (10) but not more than 60; with two writers as fast as they
//! can, for SECONDS; with writers at 70% of that, for SECONDS. A writer overwrites random pages, trims a tenth of them,
//! reads as often as that, and flushes now and then. The latency of a read counts from its scheduled start, so that
//! waiting behind a slow read counts too. Another reader reads the bare device below the store at the same rate: its
//! latency is caused by the device. Beside the flushes, a thread repeatedly writes and syncs one block of a second file
//! next to FILE.
//!
//! At the end each promise is reported as met, missed, or indistinguishable from noise: the ratio of the p99s has an
//! interval from twenty parts of each phase, and neither a stall nor a slow read counts if a thread that uses the bare
//! device, or one that does nothing but sleep, was held up about as long. The program exits with an error if a promise
//! is missed.

use std::{
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lacuna_device::{BlockDevice, MemDevice, RawDevice, RawOptions};
use lacuna_ftl::{Error, FormatOptions, Ftl, Lba, Op, Options, Stream};
use lacuna_sim::SeededRng;

const PAGE: usize = 16384;
const PAGE_SECTORS: u64 = 32;
/// About what a page costs of the live limit besides its bytes.
const PAGE_EXTRA: u64 = 128;
const LIVE_PERCENT: u64 = 95;
const TRIMMED_PERCENT: u64 = 10;
const WRITERS: u64 = 2;
const READERS: u64 = 2;
/// Reads per second of each reader.
const READ_RATE: f64 = 500.0;
const FLUSH_EVERY: u64 = 256;
/// Syncs of the bare device per second.
const SYNC_RATE: f64 = 20.0;
/// How often the live data is overwritten before anything is measured.
const WEAR_IN: u64 = 2;
/// Length of the device beside the store's, and of the range written on it.
const BESIDE_BYTES: u64 = 1 << 20;
const BLOCK: usize = 4096;

/// Parts of a phase. The outermost of twenty are left out: 90% of them lie in between.
const PARTS: usize = 20;
const STALL_MS_MAX: f64 = 1000.0;
const RATIO_MAX: f64 = 3.0;
const IDLE_SECONDS_MAX: u64 = 60;

/// Latencies of calls, and their errors.
#[derive(Default)]
struct Times {
    /// In microseconds, by part of the phase.
    parts: [Vec<u32>; PARTS],
    /// The longest call in microseconds, and when in the phase it ended.
    longest: (u32, Duration),
    full: u64,
    errors: Vec<Error>,
}

impl Times {
    /// Notes a call that took until now, in a phase that began with `pace` and takes `duration`.
    fn note(&mut self, since: Instant, pace: &Pace, duration: Duration, result: Result<(), Error>) {
        let (micros, at) = (since.elapsed().as_micros().try_into().unwrap_or(u32::MAX), pace.began.elapsed());
        let part = (at.as_secs_f64() / duration.as_secs_f64() * PARTS as f64) as usize;
        self.parts[part.min(PARTS - 1)].push(micros);
        self.longest = self.longest.max((micros, at));
        match result {
            Ok(()) => {}
            // An error is due where one page more would exceed the limit.
            Err(Error::Full { live_bytes, limit_bytes, .. })
                if live_bytes + PAGE as u64 + 2 * PAGE_EXTRA > limit_bytes =>
            {
                self.full += 1;
            }
            Err(error) => self.errors.push(error),
        }
    }

    fn and(mut self, other: Times) -> Times {
        for (part, more) in self.parts.iter_mut().zip(other.parts) {
            part.extend(more);
        }
        self.errors.extend(other.errors);
        Times { full: self.full + other.full, longest: self.longest.max(other.longest), ..self }
    }

    fn len(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }

    /// Latencies in ms that these shares of the calls do not exceed.
    fn quantiles<const N: usize>(&self, shares: [f64; N]) -> [f64; N] {
        let mut all = self.parts.concat();
        all.sort_unstable();
        shares.map(|share| quantile(&all, share))
    }

    fn longest_ms(&self) -> f64 {
        f64::from(self.longest.0) / 1000.0
    }

    /// The p99 of all parts but the least and the largest one: the least of these, and the largest.
    fn p99_between(&self) -> (f64, f64) {
        let p99 = |part: &Vec<u32>| {
            let mut part = part.clone();
            part.sort_unstable();
            quantile(&part, 0.99)
        };
        let mut all: Vec<_> = self.parts.iter().map(p99).collect();
        all.sort_by(f64::total_cmp);
        (all[1], all[PARTS - 2])
    }

    fn print(&self, name: &str, seconds: f64) {
        let [p50, p99, p999] = self.quantiles([0.5, 0.99, 0.999]);
        let (max, at) = (self.longest_ms(), self.longest.1.as_secs_f64());
        println!(
            "  {name:10} {:9.0}/s  p50 {p50:.3}  p99 {p99:.3}  p99.9 {p999:.3}  max {max:.1} ms at {at:.0} s, {} full, \
             {} errors",
            self.len() as f64 / seconds,
            self.full,
            self.errors.len(),
        );
        self.errors.iter().take(3).for_each(|error| println!("    {error}"));
    }
}

/// In ms, of sorted microseconds.
fn quantile(sorted: &[u32], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share) as usize).map_or(0.0, |micros| f64::from(*micros) / 1000.0)
}

/// A schedule of turns at a fixed rate, or without a pause.
struct Pace {
    began: Instant,
    every: Option<f64>,
    turns: u64,
}

impl Pace {
    fn new(rate: Option<f64>) -> Pace {
        Pace { began: Instant::now(), every: rate.map(|rate| 1.0 / rate), turns: 0 }
    }

    /// Waits for the next turn and returns its scheduled time, which may be long past.
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
    /// The device that the store lies on.
    device: &'a dyn BlockDevice,
    /// A device beside it, to write to.
    beside: &'a dyn BlockDevice,
    pages: u64,
    duration: Duration,
}

/// Latencies of each kind of call in a phase.
#[derive(Default)]
struct Outcome {
    seconds: f64,
    writes: Times,
    flushes: Times,
    reads: Times,
    /// Reads of the bare device meanwhile.
    bare: Times,
    /// Syncs of the bare device meanwhile, each with a block written.
    bare_syncs: Times,
    /// The longest delay, in ms, of a thread that only sleeps.
    held_up_ms: f64,
}

impl Outcome {
    fn kinds(&self) -> [&Times; 3] {
        [&self.writes, &self.flushes, &self.reads]
    }

    fn longest_ms(&self) -> f64 {
        self.kinds().map(Times::longest_ms).into_iter().fold(0.0, f64::max)
    }

    fn print(&self, name: &str) {
        println!("{name}, {:.0} s", self.seconds);
        if self.writes.len() > 0 {
            self.writes.print("writes", self.seconds);
            self.flushes.print("flushes", self.seconds);
        }
        self.reads.print("reads", self.seconds);
        self.bare.print("bare reads", self.seconds);
        self.bare_syncs.print("bare syncs", self.seconds);
    }

    /// The longest delay, in ms, that the device or the machine caused to a thread that does not use the store.
    fn elsewhere_ms(&self) -> f64 {
        self.bare_ms().max(self.held_up_ms)
    }

    fn bare_ms(&self) -> f64 {
        self.bare.longest_ms().max(self.bare_syncs.longest_ms())
    }
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
            writes.note(since, &pace, self.duration, done);
            if rng.chance(TRIMMED_PERCENT)
                && let Err(error) = self.read(rng.below(self.pages), &mut buf)
            {
                writes.errors.push(error);
            }
            if (writes.len() as u64).is_multiple_of(FLUSH_EVERY) {
                let since = Instant::now();
                let done = self.ftl.flush();
                flushes.note(since, &pace, self.duration, done);
            }
        }
        (writes, flushes)
    }

    /// A thread that calls at a fixed rate, until the time is over.
    fn run_open_loop(&self, rate: f64, mut call: impl FnMut() -> Result<(), Error>) -> Times {
        let (mut times, mut pace) = (Times::default(), Pace::new(Some(rate)));
        while pace.began.elapsed() < self.duration {
            let turn = pace.next();
            let done = call();
            times.note(turn, &pace, self.duration, done);
        }
        times
    }

    fn run_store_reader(&self, seed: u64) -> Times {
        let (mut rng, mut buf) = (SeededRng::new(seed), vec![0; PAGE]);
        self.run_open_loop(READ_RATE, || self.read(rng.below(self.pages), &mut buf))
    }

    /// Reads the device at random places, even where the store is writing: the bytes are not looked at.
    fn run_bare_reader(&self, seed: u64) -> Times {
        let (mut rng, mut buf) = (SeededRng::new(seed), vec![0; PAGE]);
        let pages = self.device.geometry().capacity_bytes / PAGE as u64;
        let read = || Ok(self.device.read_at(rng.below(pages) * PAGE as u64, &mut buf)?);
        self.run_open_loop(READ_RATE, read)
    }

    fn run_bare_syncer(&self) -> Times {
        self.run_open_loop(SYNC_RATE, || {
            self.beside.write_at(0, &[1; BLOCK])?;
            Ok(self.beside.sync()?)
        })
    }

    /// The longest delay in ms of a thread that only sleeps.
    fn run_sleeper(&self) -> f64 {
        let (began, mut longest) = (Instant::now(), Duration::ZERO);
        while began.elapsed() < self.duration {
            let (since, nap) = (Instant::now(), Duration::from_millis(5));
            thread::sleep(nap);
            longest = longest.max(since.elapsed().saturating_sub(nap));
        }
        longest.as_secs_f64() * 1000.0
    }

    /// Runs the readers and this many writers, each at `rate` or as fast as it can.
    fn run(&self, writers: u64, rate: Option<f64>) -> Outcome {
        thread::scope(|scope| {
            let writers: Vec<_> =
                (0..writers).map(|seed| scope.spawn(move || self.run_writer(10 + seed, rate))).collect();
            let readers: Vec<_> =
                (0..READERS).map(|seed| scope.spawn(move || self.run_store_reader(seed))).collect();
            let bare = scope.spawn(|| self.run_bare_reader(READERS));
            let bare_syncs = scope.spawn(|| self.run_bare_syncer());
            let sleeper = scope.spawn(|| self.run_sleeper());
            let mut outcome = Outcome { seconds: self.duration.as_secs_f64(), ..Outcome::default() };
            for writer in writers {
                let (writes, flushes) = writer.join().expect("a writer panicked");
                outcome.writes = std::mem::take(&mut outcome.writes).and(writes);
                outcome.flushes = std::mem::take(&mut outcome.flushes).and(flushes);
            }
            for reader in readers {
                outcome.reads =
                    std::mem::take(&mut outcome.reads).and(reader.join().expect("a reader panicked"));
            }
            outcome.bare = bare.join().expect("the reader of the device panicked");
            outcome.bare_syncs = bare_syncs.join().expect("who syncs the device panicked");
            outcome.held_up_ms = sleeper.join().expect("the sleeper panicked");
            outcome
        })
    }
}

/// The verdict on a promise.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Met,
    Missed,
    Unclear,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::Unclear => "not to be told from noise",
        })
    }
}

fn no_error(phases: &[&Outcome]) -> Verdict {
    let kinds: Vec<_> = phases.iter().flat_map(|phase| phase.kinds()).collect();
    let errors: usize = kinds.iter().map(|times| times.errors.len()).sum();
    let full: u64 = kinds.iter().map(|times| times.full).sum();
    let calls: usize = kinds.iter().map(|times| times.len()).sum();
    let verdict = if errors == 0 { Verdict::Met } else { Verdict::Missed };
    println!(
        "no error but Full where due: {verdict} ({calls} calls, {full} full where due, {errors} errors)"
    );
    verdict
}

fn no_stall(phases: &[&Outcome]) -> Verdict {
    let of = |phase: &&Outcome| match phase.longest_ms() {
        longest if longest <= STALL_MS_MAX => Verdict::Met,
        longest if phase.elsewhere_ms() * 2.0 > longest => Verdict::Unclear,
        _ => Verdict::Missed,
    };
    let verdicts: Vec<_> = phases.iter().map(of).collect();
    let worst = [Verdict::Missed, Verdict::Unclear].into_iter().find(|verdict| verdicts.contains(verdict));
    let verdict = worst.unwrap_or(Verdict::Met);
    let longest = phases.iter().map(|phase| phase.longest_ms()).fold(0.0, f64::max);
    let held_up = phases.iter().map(|phase| phase.held_up_ms).fold(0.0, f64::max);
    let bare = phases.iter().map(|phase| phase.bare_ms()).fold(0.0, f64::max);
    println!(
        "no stall over 1 s: {verdict} (longest {longest:.1} ms; the bare device's {bare:.1} ms, who only slept was \
         late by {held_up:.1} ms)"
    );
    verdict
}

/// The p99 of `loaded` as a multiple of that of `idle`, with the least and the most by the parts of the phases.
fn p99_ratio(idle: &Times, loaded: &Times) -> (f64, f64, f64) {
    let (idle_least, idle_most) = idle.p99_between();
    let (least, most) = loaded.p99_between();
    (loaded.quantiles([0.99])[0] / idle.quantiles([0.99])[0], least / idle_most, most / idle_least)
}

fn reads_hardly_slower(idle: &Outcome, loaded: &Outcome) -> Verdict {
    let (ratio, low, high) = p99_ratio(&idle.reads, &loaded.reads);
    let (bare, ..) = p99_ratio(&idle.bare, &loaded.bare);
    let verdict = match () {
        () if high <= RATIO_MAX => Verdict::Met,
        () if low > RATIO_MAX && bare <= RATIO_MAX => Verdict::Missed,
        () => Verdict::Unclear,
    };
    println!(
        "p99 of reads beside writers at 70% at most 3 times that of an idle store: {verdict} \
         ({ratio:.2}; {low:.2} to {high:.2}; of the bare device meanwhile {bare:.2})"
    );
    verdict
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
    let beside_path = path.as_ref().map(|path| format!("{path}.bare"));
    let make = |path: &Option<String>, bytes| -> Result<Arc<dyn BlockDevice>, lacuna_device::Error> {
        Ok(match path {
            Some(path) => Arc::new(RawDevice::create(Path::new(path), bytes, RawOptions::default())?),
            None => Arc::new(MemDevice::new(bytes)),
        })
    };
    let (device, beside) = (make(&path, bytes)?, make(&beside_path, BESIDE_BYTES)?);
    // The first write to a place takes longer.
    beside.write_at(0, &[1; BLOCK])?;
    beside.sync()?;
    let segment_bytes = (segment_mib > 0).then_some((segment_mib as u32) << 20);
    Ftl::format(device.clone(), &FormatOptions { segment_bytes, ..FormatOptions::default() })?;
    let ftl = Ftl::open(device.clone(), Options { background: true, ..Options::default() })?;
    let live_bytes = ftl.stats().live_limit_bytes / 100 * LIVE_PERCENT;
    let pages = live_bytes * 100 / (100 - TRIMMED_PERCENT) / (PAGE as u64 + PAGE_EXTRA);
    let load = |seconds| Load {
        ftl: &ftl,
        device: &*device,
        beside: &*beside,
        pages,
        duration: Duration::from_secs(seconds),
    };
    prepare(&load(seconds))?;

    let idle = load(seconds.min(IDLE_SECONDS_MAX)).run(0, None);
    idle.print("idle");
    let before = ftl.stats();
    let most = load(seconds).run(WRITERS, None);
    most.print("writers as fast as they can");
    let after = ftl.stats();
    println!(
        "  {:.1}% of the limit live, {:.2} bytes moved per byte, {} victims, {} checkpoints",
        after.live_bytes as f64 * 100.0 / after.live_limit_bytes as f64,
        (after.gc_bytes - before.gc_bytes) as f64 / (after.host_bytes - before.host_bytes) as f64,
        after.gc_segments - before.gc_segments,
        after.checkpoints - before.checkpoints,
    );
    let rate = most.writes.len() as f64 / most.seconds / WRITERS as f64 * 0.7;
    let steady = load(seconds).run(WRITERS, Some(rate));
    steady.print("writers at 70% of that");
    drop(ftl);
    for path in [path, beside_path].into_iter().flatten() {
        std::fs::remove_file(path)?;
    }
    let phases = [&idle, &most, &steady];
    let verdicts = [no_error(&phases), no_stall(&phases), reads_hardly_slower(&idle, &steady)];
    if verdicts.contains(&Verdict::Missed) { Err("a sentence is missed".into()) } else { Ok(()) }
}
