//! The threads of one pattern.

use std::{
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
use crate::{linkbench::Zipf, progress::Progress, random::Random, shuffle::Shuffle};

/// Random bytes that writes take their data from.
const POOL_BYTES: usize = 8 << 20;
/// Bytes of one write of the fill.
const FILL_BYTES: u64 = 1 << 20;
/// Capacities that are written before the measured part, to get to the steady state.
const SETTLE_CAPACITIES: u64 = 1;

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
    let request_bytes = pattern.request_bytes(config.block_bytes);
    let blocks = pattern.span_bytes(capacity_bytes, config.live_percent) / request_bytes;
    if blocks < u64::from(config.threads) {
        bail!("{capacity_bytes} bytes are too few for {} threads", config.threads);
    }
    let load = Load::new(config, pattern, target, blocks);
    let title = format!("{} on {}", pattern.name(), target.name());
    if pattern.is_filled() {
        load.watch(&format!("{title}, fill"), || load.fill())?;
    }
    let capacity_requests = capacity_bytes.div_ceil(request_bytes);
    if pattern == Pattern::Overwrite || (pattern == Pattern::RandomWrite && config.wraps) {
        let settle = Until::Requests(SETTLE_CAPACITIES * capacity_requests);
        load.watch(&format!("{title}, settle"), || load.phase(settle, 1))?;
    }
    let until = match pattern {
        Pattern::Overwrite => Until::Requests(config.overwrite_capacities * capacity_requests),
        _ => Until::Passed(config.seconds),
    };
    let before = target.traffic();
    let start = Instant::now();
    let nanos = load.watch(&title, || load.phase(until, 2))?;
    if !pattern.is_read() {
        target.sync()?;
    }
    let measured = Measured {
        seconds: start.elapsed().as_secs_f64(),
        requests: nanos.len(),
        traffic: target.traffic().since(before),
        nanos,
    };
    Ok(PatternReport::new(config, pattern, target.name(), capacity_bytes, &measured))
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

    fn watch<T>(&self, title: &str, work: impl FnOnce() -> T) -> T {
        let line = || format!("{} requests", self.requests.load(Relaxed));
        Progress::new(title.to_owned(), self.config.quiet, line).during(work)
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

    /// Lets all threads make requests; their latencies.
    fn phase(&self, until: Until, number: u64) -> Result<Histogram<u64>> {
        self.requests.store(0, Relaxed);
        let start = Instant::now();
        let merged = Mutex::new(Histogram::new(3)?);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..u64::from(self.config.threads))
                .map(|thread| {
                    let merged = &merged;
                    scope.spawn(move || -> Result<()> {
                        let random = Random::new(self.config.seed, 1000 * number + thread + 10);
                        let nanos = self.requests_of(thread, random, until, start);
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

    fn requests_of(
        &self,
        thread: u64,
        mut random: Random,
        until: Until,
        start: Instant,
    ) -> Result<Histogram<u64>> {
        let mut nanos = Histogram::new(3)?;
        let mut buf = AlignedBuf::zeroed(self.request_bytes as usize);
        // Each thread has a part of the span of its own for sequential patterns.
        let threads = u64::from(self.config.threads);
        let part = self.blocks * thread / threads..self.blocks * (thread + 1) / threads;
        let mut next = part.start;
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
                    let block = next;
                    next = if next + 1 == part.end { part.start } else { next + 1 };
                    block
                }
                _ => self.choose(&mut random),
            };
            now = Instant::now();
            self.request(block * self.request_bytes, &mut random, &mut buf)?;
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

    fn request(&self, offset: u64, random: &mut Random, buf: &mut [u8]) -> Result<()> {
        let len = self.request_bytes;
        match self.pattern {
            Pattern::SequentialRead | Pattern::RandomRead => self.target.read(offset, buf),
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
