//! The request phase of a benchmark: many requesters at once, first to warm up, then measured.

use std::{
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

use crate::{
    latencies::Latencies,
    open_loop::{Clock, OpenLoop, OpenLoopReport},
    over_time::{OverTime, Recorder, Series},
    page_traffic::PageTraffic,
    plan::Plan,
    progress::Progress,
    sensors::{Energy, drive_celsius},
};

/// Space that a database takes and traffic that it caused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Size of the tables without compression and holes, in bytes.
    pub logical_bytes: u64,
    /// Live bytes of everything the database keeps.
    pub allocated_bytes: u64,
    /// Space taken on the device, garbage and metadata included.
    pub store_bytes: u64,
    /// All bytes that reached the device since the store was opened.
    pub device_written_bytes: u64,
}

/// The measurements of a database beside its latencies.
pub trait Measured: Sync {
    /// Writes out all changes held in memory, as a checkpoint does, so that sizes and traffic are those of the work
    /// done so far.
    fn settle(&self) -> Result<()>;

    /// Sizes and traffic.
    fn footprint(&self) -> Result<Footprint>;

    /// Pages read and written so far, where our engine keeps the data.
    fn page_traffic(&self) -> Result<Option<PageTraffic>> {
        Ok(None)
    }

    /// Processor time in seconds of other processes that do the database's work, since any moment.
    fn server_cpu_seconds(&self) -> f64 {
        0.0
    }
}

/// One of the clients.
pub(crate) trait Requester {
    /// Draws a request and runs it: the number of its operation, and how long the database took in
    /// nanoseconds, retries included.
    fn request(&mut self) -> Result<(usize, u64)>;

    /// Transactions that lost and were run again, so far.
    fn retries(&self) -> u64;
}

/// The results of the request phase.
#[derive(Clone, Debug)]
pub(crate) struct Requested {
    pub latencies: Latencies,
    /// From the end of the warm-up until the last requester is done.
    pub seconds: f64,
    /// Then until the database is settled.
    pub settle_seconds: f64,
    /// Processor time of this process and of servers over the measured part, settling at its end
    /// included.
    pub cpu_seconds: f64,
    /// Energy of the machine over the same, if it counts it.
    pub energy_joules: Option<f64>,
    /// Of the hottest drive at the end, if one has a sensor.
    pub drive_celsius: Option<f64>,
    /// Bytes that reached the device over the same.
    pub device_bytes_written: u64,
    /// Pages read and written over the same.
    pub pages: Option<PageTraffic>,
    /// After settling.
    pub footprint: Footprint,
    /// Transactions that lost and were run again.
    pub retries: u64,
    /// Of a run at a rate.
    pub open_loop: Option<OpenLoopReport>,
    /// Over time, if the plan asks for it.
    pub over_time: Option<Series>,
}

const WARMING: u8 = 0;
const MEASURED: u8 = 1;
const STOPPED: u8 = 2;

/// The time since a moment.
#[derive(Clone, Copy)]
struct Since(Instant);

impl Clock for Since {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// Longest wait between looks at the phase.
const LOOK: Duration = Duration::from_millis(10);

/// Runs the request phase; `requester` makes the one with a number, which draws from so many `operations`. Requests that
/// begin while it is measured count, at a rate those that become due; the last ones are waited for. The database is
/// settled at the end, and traffic and processor time include that, so that deferred work is counted; work that the
/// warm-up deferred is included as well.
pub(crate) fn run<R: Requester>(
    database: &impl Measured,
    plan: Plan,
    operations: usize,
    requester: impl Fn(u64) -> R + Sync,
) -> Result<Requested> {
    let (phase, requests) = (AtomicU8::new(WARMING), AtomicU64::new(0));
    let mut seen = (Instant::now(), 0);
    let progress = Progress::new("requests", plan.quiet, || {
        let now = (Instant::now(), requests.load(Relaxed));
        let per_second = (now.1 - seen.1) as f64 / (now.0 - seen.0).as_secs_f64();
        seen = now;
        let warming = if phase.load(Relaxed) == WARMING { " (warming up)" } else { "" };
        format!("{} done, {per_second:.0} per second{warming}", now.1)
    });
    let clock = Since(Instant::now());
    let arrivals = plan.rate.map(|rate| OpenLoop::new(rate, plan.seed, plan.seconds));
    let over_time = plan.window.map(OverTime::new);
    let work = |number: u64| {
        let requester = requester(number);
        let recorder = over_time.as_ref().map(OverTime::recorder);
        let result = match &arrivals {
            None => run_one(requester, operations, recorder, &phase, &requests),
            Some(arrivals) => {
                run_when_due(requester, operations, recorder, arrivals, &clock, (&phase, &requests))
            }
        };
        if result.is_err() {
            phase.store(STOPPED, Relaxed);
        }
        result
    };
    let work = &work;
    progress.during(|| {
        thread::scope(|scope| {
            let requesters: Vec<_> =
                (0..u64::from(plan.requesters)).map(|number| scope.spawn(move || work(number))).collect();
            wait_unless_stopped(&phase, plan.warmup, || Ok(true))?;
            let before = database.footprint().and_then(|before| Ok((before, database.page_traffic()?)));
            // Else the requesters would go on for ever.
            let (before, pages_before) = before.inspect_err(|_| phase.store(STOPPED, Relaxed))?;
            let (start, cpu_start) = (Instant::now(), cpu_seconds() + database.server_cpu_seconds());
            let energy = Energy::count();
            arrivals.iter().for_each(|arrivals| arrivals.measure_from(clock.now()));
            let mut sampler =
                over_time.as_ref().map(|over_time| over_time.sampler(start, before.device_written_bytes));
            let warm = phase.compare_exchange(WARMING, MEASURED, Relaxed, Relaxed).is_ok();
            let mut looked = Ok(());
            if warm {
                let enough = plan.enough(requests.load(Relaxed));
                let written = || Ok(database.footprint()?.device_written_bytes);
                looked = wait_unless_stopped(&phase, plan.seconds, || {
                    sampler.as_mut().map_or(Ok(()), |sampler| sampler.look(Instant::now(), written))?;
                    Ok(requests.load(Relaxed) >= enough)
                });
            }
            arrivals.iter().for_each(|arrivals| arrivals.end_at(clock.now()));
            phase.store(STOPPED, Relaxed);
            let (mut latencies, mut retries) = (Latencies::new(operations), 0);
            for requester in requesters {
                let (its_latencies, its_retries) = requester.join().expect("a requester panicked")?;
                latencies.merge(&its_latencies);
                retries += its_retries;
            }
            looked?;
            let seconds = start.elapsed().as_secs_f64();
            let over_time = match sampler {
                Some(sampler) => {
                    let written = database.footprint()?.device_written_bytes;
                    Some(sampler.report(Instant::now(), written))
                }
                None => None,
            };
            let settling = Instant::now();
            database.settle()?;
            let settle_seconds = settling.elapsed().as_secs_f64();
            let footprint = database.footprint()?;
            Ok(Requested {
                latencies,
                seconds,
                settle_seconds,
                cpu_seconds: cpu_seconds() + database.server_cpu_seconds() - cpu_start,
                energy_joules: energy.as_ref().and_then(Energy::joules),
                drive_celsius: drive_celsius(),
                device_bytes_written: footprint.device_written_bytes - before.device_written_bytes,
                pages: database.page_traffic()?.zip(pages_before).map(|(after, before)| after - before),
                footprint,
                retries,
                open_loop: arrivals.as_ref().map(OpenLoop::report),
                over_time,
            })
        })
    })
}

/// Latencies and retries of one requester while it was measured.
fn run_one(
    mut requester: impl Requester,
    operations: usize,
    mut over_time: Option<Recorder<'_>>,
    phase: &AtomicU8,
    requests: &AtomicU64,
) -> Result<(Latencies, u64)> {
    let mut latencies = Latencies::new(operations);
    let mut retries_warming = 0;
    loop {
        let phase = phase.load(Relaxed);
        if phase == STOPPED {
            over_time.into_iter().for_each(Recorder::finish);
            return Ok((latencies, requester.retries() - retries_warming));
        }
        let (operation, nanos) = requester.request()?;
        requests.fetch_add(1, Relaxed);
        if phase == MEASURED {
            latencies.record(operation, nanos);
            over_time.iter_mut().for_each(|recorder| recorder.record(nanos));
        } else {
            retries_warming = requester.retries();
        }
    }
}

/// The same at a rate: the requester waits for the next request to be due. Latencies count from then.
fn run_when_due(
    mut requester: impl Requester,
    operations: usize,
    mut over_time: Option<Recorder<'_>>,
    arrivals: &OpenLoop,
    clock: &impl Clock,
    (phase, requests): (&AtomicU8, &AtomicU64),
) -> Result<(Latencies, u64)> {
    let mut latencies = Latencies::new(operations);
    let mut retries_warming = 0;
    loop {
        let due = arrivals.take();
        let began = loop {
            if phase.load(Relaxed) == STOPPED {
                arrivals.give_back(due);
                over_time.into_iter().for_each(Recorder::finish);
                return Ok((latencies, requester.retries() - retries_warming));
            }
            let now = clock.now();
            if now >= due {
                break now;
            }
            clock.sleep((due - now).min(LOOK));
        };
        let (operation, _) = requester.request()?;
        requests.fetch_add(1, Relaxed);
        match arrivals.note(due, began, clock.now()) {
            Some(nanos) => {
                latencies.record(operation, nanos);
                over_time.iter_mut().for_each(|recorder| recorder.record(nanos));
            }
            None if phase.load(Relaxed) == WARMING => retries_warming = requester.retries(),
            None => {}
        }
    }
}

/// Returns when `time` has passed and `is_enough`, which is looked at all the time, or when the phase was stopped; a
/// failure stops it.
fn wait_unless_stopped(
    phase: &AtomicU8,
    time: Duration,
    mut is_enough: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        let left = time.saturating_sub(start.elapsed());
        let enough = is_enough().inspect_err(|_| phase.store(STOPPED, Relaxed))?;
        if phase.load(Relaxed) == STOPPED || (left.is_zero() && enough) {
            return Ok(());
        }
        thread::sleep(left.clamp(Duration::from_millis(1), Duration::from_millis(20)));
    }
}

/// Processor time of this process.
pub(crate) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Requests that take 20 ms of a clock that moves when somebody sleeps, the third one 500 ms; the phase ends with the
    /// tenth.
    struct Fake<'a> {
        now: &'a Cell<Duration>,
        made: u64,
        phase: &'a AtomicU8,
    }

    struct FakeClock<'a>(&'a Cell<Duration>);

    impl Clock for FakeClock<'_> {
        fn now(&self) -> Duration {
            self.0.get()
        }

        fn sleep(&self, time: Duration) {
            assert!(time <= LOOK);
            self.0.set(self.0.get() + time);
        }
    }

    impl Requester for Fake<'_> {
        fn request(&mut self) -> Result<(usize, u64)> {
            self.made += 1;
            let took = Duration::from_millis(if self.made == 3 { 500 } else { 20 });
            self.now.set(self.now.get() + took);
            if self.made == 10 {
                self.phase.store(STOPPED, Relaxed);
            }
            Ok((0, took.as_nanos() as u64))
        }

        fn retries(&self) -> u64 {
            self.made
        }
    }

    #[test]
    fn requests_are_made_when_due_and_late_ones_count_from_then() {
        let (now, phase, requests) = (Cell::new(Duration::ZERO), AtomicU8::new(MEASURED), AtomicU64::new(0));
        let arrivals = OpenLoop::new(20.0, 3, Duration::from_secs(1));
        arrivals.measure_from(Duration::ZERO);
        let requester = Fake { now: &now, made: 0, phase: &phase };
        let clock = FakeClock(&now);
        let done = run_when_due(requester, 1, None, &arrivals, &clock, (&phase, &requests));
        let (latencies, retries) = done.expect("no request fails");
        arrivals.end_at(now.get());
        let report = arrivals.report();
        assert_eq!((latencies.requests(), retries, requests.into_inner()), (10, 10, 10));
        let summary = latencies.summaries(["all"])[0].1;
        // Those behind the slow one waited for it; alone it would have been the only one above 20 ms.
        assert!(summary.p75_us > 100_000.0 && summary.max_us >= 500_000.0, "{summary:?}");
        assert_eq!(report.latency.count, 10);
        assert!(report.lag.max_us > 100_000.0, "{report:?}");
        assert_eq!(report.due, 10 + report.not_begun);
    }
}
