//! The threads of one pattern.

use std::{
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use lacuna_device::AlignedBuf;

use super::{Config, Pattern, PatternReport, Skew, report::Measured, target::Target};
use crate::{progress::Progress, random::Random, shuffle::Shuffle, zipf::Zipf};

/// Random bytes that writes take their data from.
const POOL_BYTES: usize = 8 << 20;
/// Each thread reads into so many bytes of memory, one block after the other, as pages go into the frames of a pool. A
/// single block would stay in the cache of the processor that copies into it, until a thread reads the data: the ftl
/// does, for its checksum, and the bare device's reader does not. On a virtual disk that alone made reads 5 to 9%
/// slower, those of the bare device too when their data was added up; with 32 MiB, 1% at most.
const FRAMES_BYTES: usize = 32 << 20;
/// Bytes of one write of the fill.
const FILL_BYTES: u64 = 1 << 20;
/// Capacities that are written before the measured part, to get to the steady state.
const SETTLE_CAPACITIES: u64 = 1;
/// A target that moved no byte for this long is at rest.
const REST: Duration = Duration::from_millis(1);
/// One that never rests is not waited for any longer.
const REST_MAX: Duration = Duration::from_secs(1);

/// When a phase ends.
#[derive(Clone, Copy)]
enum Until {
    Passed(Duration),
    Requests(u64),
}

/// Fills, settles, and measures `pattern` on `target`, whose first `capacity_bytes` it may use.
pub(super) fn run(
    config: &Config,
    pattern: Pattern,
    target: &dyn Target,
    capacity_bytes: u64,
) -> Result<PatternReport> {
    let mut measuring = Measuring::prepare(config, pattern, target, capacity_bytes)?;
    let until = match pattern {
        Pattern::Overwrite => {
            Until::Requests(config.overwrite_capacities * measuring.load.requests_of(capacity_bytes))
        }
        _ => Until::Passed(config.seconds),
    };
    measuring.turn(until)?;
    let measured = measuring.into_measured();
    Ok(PatternReport::new(config, pattern, target.name(), capacity_bytes, &measured))
}

/// A pattern on a target that was filled and settled for it. It is measured in any number of turns: the time between
/// them is in no figure.
pub(super) struct Measuring<'a> {
    load: Load<'a>,
    workers: Vec<Worker>,
    measured: Measured,
}

impl<'a> Measuring<'a> {
    pub(super) fn prepare(
        config: &'a Config,
        pattern: Pattern,
        target: &'a dyn Target,
        capacity_bytes: u64,
    ) -> Result<Measuring<'a>> {
        let blocks = pattern.span_bytes(capacity_bytes, config.live_percent)
            / pattern.request_bytes(config.block_bytes);
        if blocks < u64::from(config.threads) {
            bail!("{capacity_bytes} bytes are too few for {} threads", config.threads);
        }
        let load = Load::new(config, pattern, target, blocks);
        if pattern.is_filled() {
            load.watch("fill", || load.fill())?;
        }
        if pattern == Pattern::Overwrite || (pattern == Pattern::RandomWrite && config.wraps) {
            let settle = Until::Requests(SETTLE_CAPACITIES * load.requests_of(capacity_bytes));
            load.watch("settle", || load.phase(settle, &mut load.workers(1)))?;
        }
        let workers = load.workers(2);
        Ok(Measuring { load, workers, measured: Measured::none()? })
    }

    /// Makes requests until then, and makes their writes durable.
    fn turn(&mut self, until: Until) -> Result<()> {
        let Measuring { load, workers, measured, .. } = self;
        let before = load.target.traffic();
        let start = Instant::now();
        let nanos = load.watch("measured", || load.phase(until, workers))?;
        if !load.pattern.is_read() {
            load.target.sync()?;
        }
        measured.seconds += start.elapsed().as_secs_f64();
        measured.requests += nanos.len();
        measured.traffic += load.target.traffic().since(before);
        measured.nanos.add(&nanos)?;
        Ok(())
    }

    /// A turn of such a time, and the wait until the target has no more to do in the background, which counts.
    pub(super) fn turn_and_rest(&mut self, time: Duration) -> Result<()> {
        self.turn(Until::Passed(time))?;
        let start = Instant::now();
        let mut before = self.load.target.traffic();
        let first = before;
        while start.elapsed() < REST_MAX {
            thread::sleep(REST);
            let now = self.load.target.traffic();
            if (now.written_bytes, now.read_bytes) == (before.written_bytes, before.read_bytes) {
                break;
            }
            before = now;
        }
        self.measured.seconds += start.elapsed().as_secs_f64();
        self.measured.traffic += before.since(first);
        Ok(())
    }

    pub(super) fn into_measured(self) -> Measured {
        self.measured
    }
}

/// A thread's own, from turn to turn.
struct Worker {
    random: Random,
    /// Blocks that are its own, for sequential patterns, and the next of them.
    part: Range<u64>,
    next: u64,
    /// Where the data of reads goes; the block that is next.
    frames: AlignedBuf,
    frame: usize,
}

impl Worker {
    /// The next block of its part, round and round.
    fn next_block(&mut self) -> u64 {
        let block = self.next;
        self.next = if block + 1 == self.part.end { self.part.start } else { block + 1 };
        block
    }

    /// The next `len` bytes of the frames, round and round.
    fn next_frame(&mut self, len: usize) -> &mut [u8] {
        let start = self.frame;
        self.frame = (start + len) % self.frames.len();
        &mut self.frames[start..start + len]
    }
}

/// One pattern on one target.
struct Load<'a> {
    config: &'a Config,
    pattern: Pattern,
    target: &'a dyn Target,
    request_bytes: u64,
    blocks: u64,
    zipf: Option<Zipf>,
    scatter: Shuffle,
    pool: AlignedBuf,
    requests: AtomicU64,
    failed: AtomicBool,
}

impl<'a> Load<'a> {
    fn new(config: &'a Config, pattern: Pattern, target: &'a dyn Target, blocks: u64) -> Load<'a> {
        let mut pool = AlignedBuf::zeroed(POOL_BYTES);
        let mut random = Random::new(config.seed, 0);
        pool.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
        let zipf = match config.skew {
            Skew::Uniform => None,
            Skew::Zipf(exponent) => Some(Zipf::new(blocks, exponent)),
        };
        let request_bytes = pattern.request_bytes(config.block_bytes);
        let scatter = Shuffle::new(blocks, config.seed, 1);
        let (requests, failed) = (AtomicU64::new(0), AtomicBool::new(false));
        Load { config, pattern, target, request_bytes, blocks, zipf, scatter, pool, requests, failed }
    }

    /// Requests that make up so many bytes.
    fn requests_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.request_bytes)
    }

    fn watch<T>(&self, what: &str, work: impl FnOnce() -> T) -> T {
        let title = format!("{} on {}, {what}", self.pattern.name(), self.target.name());
        let line = || format!("{} requests", self.requests.load(Relaxed));
        Progress::new(title, self.config.quiet, line).during(work)
    }

    /// Some `len` random bytes, aligned for direct I/O.
    fn data(&self, random: &mut Random, len: u64) -> &[u8] {
        let starts = (POOL_BYTES as u64 - len) / AlignedBuf::ALIGN as u64 + 1;
        let start = random.below(starts) as usize * AlignedBuf::ALIGN;
        &self.pool[start..start + len as usize]
    }

    /// Writes all of the span, front to back.
    fn fill(&self) -> Result<()> {
        let mut random = Random::new(self.config.seed, 2);
        let end = self.blocks * self.request_bytes;
        let mut at = 0;
        while at < end {
            let len = FILL_BYTES.min(end - at);
            self.target.write(at, self.data(&mut random, len), false)?;
            at += len;
        }
        self.target.sync()
    }

    /// As many as there are threads, with random numbers that no other `phase` has.
    fn workers(&self, phase: u64) -> Vec<Worker> {
        let threads = u64::from(self.config.threads);
        let block = self.request_bytes as usize;
        let frames_bytes = if self.pattern.is_read() { FRAMES_BYTES / block * block } else { 0 };
        (0..threads)
            .map(|thread| {
                // Each thread has a part of the span of its own for sequential patterns.
                let part = self.blocks * thread / threads..self.blocks * (thread + 1) / threads;
                let mut frames = AlignedBuf::zeroed(frames_bytes);
                // Page faults are in no figure.
                frames.fill(1);
                Worker {
                    random: Random::new(self.config.seed, 1000 * phase + thread + 10),
                    next: part.start,
                    part,
                    frames,
                    frame: 0,
                }
            })
            .collect()
    }

    /// Lets all workers make requests; their latencies.
    fn phase(&self, until: Until, workers: &mut [Worker]) -> Result<Histogram<u64>> {
        self.requests.store(0, Relaxed);
        let start = Instant::now();
        let merged = Mutex::new(Histogram::new(3)?);
        thread::scope(|scope| {
            let threads: Vec<_> = workers
                .iter_mut()
                .map(|worker| {
                    let merged = &merged;
                    scope.spawn(move || -> Result<()> {
                        let nanos = self.work(worker, until, start);
                        let nanos = nanos.inspect_err(|_| self.failed.store(true, Relaxed))?;
                        merged.lock().expect("no panic while it is held").add(&nanos)?;
                        Ok(())
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a worker panicked"))
        })?;
        Ok(merged.into_inner().expect("no panic while it was held"))
    }

    fn work(&self, worker: &mut Worker, until: Until, start: Instant) -> Result<Histogram<u64>> {
        let mut nanos = Histogram::new(3)?;
        let mut now = Instant::now();
        loop {
            let is_over = match until {
                // One request at least: there is no rate without.
                Until::Passed(time) => !nanos.is_empty() && now.duration_since(start) >= time,
                Until::Requests(requests) => self.requests.fetch_add(1, Relaxed) >= requests,
            };
            if is_over || self.failed.load(Relaxed) {
                return Ok(nanos);
            }
            let block = match self.pattern {
                Pattern::SequentialWrite | Pattern::SequentialRead | Pattern::AppendSync => {
                    worker.next_block()
                }
                _ => self.choose(&mut worker.random),
            };
            now = Instant::now();
            self.request(block * self.request_bytes, worker)?;
            let done = Instant::now();
            nanos.record((done.duration_since(now).as_nanos() as u64).max(1))?;
            now = done;
            if matches!(until, Until::Passed(_)) {
                self.requests.fetch_add(1, Relaxed);
            }
        }
    }

    fn choose(&self, random: &mut Random) -> u64 {
        match &self.zipf {
            None => random.below(self.blocks),
            Some(zipf) => self.scatter.permute(zipf.rank(random)),
        }
    }

    fn request(&self, offset: u64, worker: &mut Worker) -> Result<()> {
        let len = self.request_bytes;
        let random = &mut worker.random;
        match self.pattern {
            Pattern::SequentialRead | Pattern::RandomRead => {
                self.target.read(offset, worker.next_frame(len as usize))
            }
            Pattern::SequentialWrite | Pattern::RandomWrite | Pattern::Overwrite => {
                self.target.write(offset, self.data(random, len), false)
            }
            Pattern::AppendSync => {
                self.target.write(offset, self.data(random, len), true)?;
                self.target.sync()
            }
            Pattern::WriteTrim => {
                self.target.write(offset, self.data(random, len), false)?;
                // 1 KiB to 3/4 of the block, in sectors: 1 to 12 KiB of 16.
                let sectors = 2 + random.below(len / 512 * 3 / 4 - 1);
                self.target.trim(offset + len - sectors * 512, sectors * 512)
            }
        }
    }
}
