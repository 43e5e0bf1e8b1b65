//! Requests at a rate: an *open loop*.
//!
//! In a closed loop each requester makes its next request when the last one is done. A system that stalls then gets
//! fewer requests, and those that it delays are not measured (*coordinated omission*: Tene, "How NOT to measure
//! latency"). In an open loop requests become due at times of their own, as from users who do not know of each other:
//! with exponential gaps, as sysbench's `--rate` does. A free requester takes the next one that is due. Latency counts
//! from when a request was due; *lag* is the part of it before a requester began.
//!
//! So the requesters bound how many requests are under way, and the others wait in line. Those that are still in line
//! when the measured part ends have no latency. The report has their number and the age of the oldest.
//!
//! Times are since the start of the loop. The clock is passed in.

use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::Serialize;

use crate::{Summary, random::Random};

/// Most windows of the time line.
const WINDOWS_MAX: u32 = 60;
/// So many seconds' requests may be in line at the end of a run that keeps up.
const IN_LINE_SECONDS: f64 = 0.1;
/// Purpose of the random stream.
const GAPS: u64 = 0x6170_7321;

/// A source of time.
pub(crate) trait Clock {
    /// Time since the start of the loop.
    fn now(&self) -> Duration;

    /// Waits.
    fn sleep(&self, time: Duration);
}

/// The loop that all requesters share.
pub(crate) struct OpenLoop(Mutex<State>);

struct State {
    rate: f64,
    random: Random,
    /// When the next request is due, in seconds.
    next: f64,
    measured_from: Option<Duration>,
    until: Option<Duration>,
    latency: Histogram<u64>,
    lag: Histogram<u64>,
    window: Duration,
    windows: Vec<Recorded>,
    /// Requests that were due in the measured part and not begun at its end, and when the first was due.
    not_begun: u64,
    oldest: Option<Duration>,
}

#[derive(Clone)]
struct Recorded {
    latency: Histogram<u64>,
    lag_max: u64,
    not_begun: u64,
}

/// How a run at a rate went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpenLoopReport {
    /// Requests per second that were asked for.
    pub rate: f64,
    /// Requests that were due in the measured part.
    pub due: u64,
    /// Those among them that were not begun when it ended.
    pub not_begun: u64,
    /// How long the oldest of these had been due then.
    pub behind_seconds: f64,
    /// Whether at most the requests of a tenth of a second were not begun.
    pub kept_up: bool,
    /// Time from when requests were due until they were done.
    pub latency: Summary,
    /// The part of it before they were begun.
    pub lag: Summary,
    /// Length of a window.
    pub window_seconds: f64,
    /// The same over time, by when requests were due.
    pub windows: Vec<Window>,
}

/// The requests that were due in a part of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Window {
    /// Those that were done.
    pub completed: u64,
    /// Those that were not begun at the end of the run, and have no latency.
    pub not_begun: u64,
    /// Median of the latencies.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Slowest request.
    pub max_us: f64,
    /// Longest lag.
    pub lag_max_us: f64,
}

fn histogram(digits: u8) -> Histogram<u64> {
    Histogram::new(digits).expect("so many digits are supported")
}

fn record(histogram: &mut Histogram<u64>, time: Duration) -> u64 {
    let nanos = time.as_nanos() as u64;
    histogram.record(nanos.max(1)).expect("histograms grow by themselves");
    nanos
}

impl OpenLoop {
    /// A loop of `rate` requests per second whose measured part takes about `seconds`.
    pub(crate) fn new(rate: f64, seed: u64, seconds: Duration) -> OpenLoop {
        let window = Duration::from_secs(seconds.as_secs().div_ceil(u64::from(WINDOWS_MAX)).max(1));
        let mut state = State {
            rate,
            random: Random::new(seed, GAPS),
            next: 0.0,
            measured_from: None,
            until: None,
            latency: histogram(3),
            lag: histogram(3),
            window,
            windows: Vec::new(),
            not_begun: 0,
            oldest: None,
        };
        state.step();
        OpenLoop(Mutex::new(state))
    }

    /// When the next request is due. The caller makes it, or gives it back.
    pub(crate) fn take(&self) -> Duration {
        self.0.lock().step()
    }

    /// Notes a request that the run ended before.
    pub(crate) fn give_back(&self, due: Duration) {
        self.0.lock().not_begun(due);
    }

    /// Requests that are due from `now` on count.
    pub(crate) fn measure_from(&self, now: Duration) {
        self.0.lock().measured_from = Some(now);
    }

    /// Requests that are due from `now` on do not count any more.
    pub(crate) fn end_at(&self, now: Duration) {
        self.0.lock().until = Some(now);
    }

    /// Notes a request that is done; returns its latency in nanoseconds if it counts.
    pub(crate) fn note(&self, due: Duration, began: Duration, ended: Duration) -> Option<u64> {
        let mut state = self.0.lock();
        let at = state.window_of(due)?;
        let lag = record(&mut state.lag, began.saturating_sub(due));
        let latency = ended.saturating_sub(due);
        let nanos = record(&mut state.latency, latency);
        let window = &mut state.windows[at];
        record(&mut window.latency, latency);
        window.lag_max = window.lag_max.max(lag);
        Some(nanos)
    }

    /// The report, after the end and all requests that were begun.
    pub(crate) fn report(&self) -> OpenLoopReport {
        let mut state = self.0.lock();
        let until = state.until.expect("it has ended");
        while Duration::from_secs_f64(state.next) < until {
            let due = state.step();
            state.not_begun(due);
        }
        let us = |nanos: u64| nanos as f64 / 1000.0;
        let windows = state.windows.iter().map(|window| Window {
            completed: window.latency.len(),
            not_begun: window.not_begun,
            p50_us: us(window.latency.value_at_quantile(0.5)),
            p99_us: us(window.latency.value_at_quantile(0.99)),
            max_us: us(window.latency.max()),
            lag_max_us: us(window.lag_max),
        });
        OpenLoopReport {
            rate: state.rate,
            due: state.latency.len() + state.not_begun,
            not_begun: state.not_begun,
            behind_seconds: state.oldest.map_or(0.0, |oldest| (until - oldest).as_secs_f64()),
            kept_up: state.not_begun as f64 <= (state.rate * IN_LINE_SECONDS).max(1.0),
            latency: Summary::of(&state.latency),
            lag: Summary::of(&state.lag),
            window_seconds: state.window.as_secs_f64(),
            windows: windows.collect(),
        }
    }
}

impl State {
    fn step(&mut self) -> Duration {
        let due = self.next;
        self.next += -(1.0 - self.random.unit()).ln() / self.rate;
        Duration::from_secs_f64(due)
    }

    /// The window of a request that counts.
    fn window_of(&mut self, due: Duration) -> Option<usize> {
        let since = due.checked_sub(self.measured_from?)?;
        if self.until.is_some_and(|until| due >= until) {
            return None;
        }
        let at = (since.as_nanos() / self.window.as_nanos()) as usize;
        if self.windows.len() <= at {
            self.windows.resize(at + 1, Recorded { latency: histogram(2), lag_max: 0, not_begun: 0 });
        }
        Some(at)
    }

    fn not_begun(&mut self, due: Duration) {
        if let Some(at) = self.window_of(due) {
            self.windows[at].not_begun += 1;
            self.not_begun += 1;
            self.oldest = Some(self.oldest.map_or(due, |oldest| oldest.min(due)));
        }
    }
}

impl OpenLoopReport {
    /// What people read besides the table: whether the rate was kept up with, and p99 over time.
    pub(crate) fn text(&self, title: &str) -> String {
        let mut text = String::new();
        if !self.kept_up {
            text += &format!(
                "{title} could not keep up with {} requests per second: of {} that were due {} were not begun at the \
                 end, the oldest {:.1} s late\n",
                self.rate, self.due, self.not_begun, self.behind_seconds
            );
        }
        let each = self.windows.iter().map(|window| format!("{:.1}", window.p99_us / 1e3));
        text += &format!(
            "{title}, p99 in ms, each {} s: {}\n",
            self.window_seconds,
            each.collect::<Vec<_>>().join(" ")
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// One server that takes `service` for each request, over ten seconds of which the first is not measured; and the
    /// latencies that it returns to its requester.
    fn serve(rate: f64, service: impl Fn(Duration) -> Duration) -> (OpenLoopReport, Vec<u64>) {
        let arrivals = OpenLoop::new(rate, 1, Duration::from_secs(9));
        arrivals.measure_from(Duration::from_secs(1));
        let end = Duration::from_secs(10);
        let (mut now, mut returned) = (Duration::ZERO, Vec::new());
        loop {
            let due = arrivals.take();
            let began = now.max(due);
            if began >= end {
                arrivals.end_at(end);
                arrivals.give_back(due);
                return (arrivals.report(), returned);
            }
            now = began + service(began);
            returned.extend(arrivals.note(due, began, now));
        }
    }

    #[test]
    fn a_server_with_time_left_lags_little() {
        let (report, returned) = serve(100.0, |_| MS);
        assert!(report.kept_up && report.not_begun <= 1, "{report:?}");
        assert!((800..1000).contains(&report.due), "{report:?}");
        assert_eq!(returned.len() as u64, report.due - report.not_begun);
        assert!(report.latency.p50_us >= 999.0 && report.latency.p99_us < 6000.0, "{report:?}");
        assert_eq!(report.windows.len(), 9);
        assert_eq!(report.windows.iter().map(|window| window.completed).sum::<u64>(), returned.len() as u64);
        assert!(!report.text("page").contains("keep up"));
    }

    /// A closed loop would measure one slow request in a hundred.
    #[test]
    fn a_stall_counts_for_all_that_were_due_in_it() {
        let is_stalled =
            |now: Duration| (Duration::from_secs(5)..Duration::from_secs(5) + 12 * MS).contains(&now);
        let stall = |now| if is_stalled(now) { Duration::from_secs(1) } else { MS };
        let (report, returned) = serve(100.0, stall);
        let slow = returned.iter().filter(|nanos| **nanos > 100_000_000).count();
        assert!(slow > 70, "{slow} were late");
        assert!(report.kept_up && report.latency.p95_us > 100_000.0, "{report:?}");
        let p99: Vec<f64> = report.windows.iter().map(|window| window.p99_us).collect();
        assert!(p99[0] < 10_000.0 && p99[8] < 10_000.0, "{p99:?}");
        assert!(p99[3].max(p99[4]) > 900_000.0, "{p99:?}");
        assert!(report.lag.max_us > 900_000.0 && report.lag.p50_us < 10_000.0);
    }

    #[test]
    fn what_cannot_be_kept_up_with_is_told() {
        let (report, returned) = serve(1000.0, |_| 2 * MS);
        assert!(!report.kept_up && report.due > 8000, "{report:?}");
        // Of ten seconds' requests half are served, and those that were due before the measured part wait, too.
        assert!(report.not_begun > 4500 && report.behind_seconds > 4.0, "{report:?}");
        assert_eq!(returned.len() as u64 + report.not_begun, report.due);
        let by_window: u64 = report.windows.iter().map(|window| window.not_begun).sum();
        assert!(by_window == report.not_begun && report.windows[8].completed == 0, "{report:?}");
        assert!(report.text("row").starts_with("row could not keep up with 1000 requests per second"));
        // Latency grows with the line, though each request takes 2 ms.
        assert!(report.latency.max_us > 4e6, "{report:?}");
    }

    #[test]
    fn gaps_are_those_of_strangers_and_of_the_seed() {
        let due = |seed| {
            let arrivals = OpenLoop::new(1000.0, seed, Duration::from_secs(1));
            (0..100_000).map(|_| arrivals.take()).collect::<Vec<_>>()
        };
        let (mine, other) = (due(7), due(8));
        assert!(mine == due(7) && mine != other);
        let gaps =
            |due: &[Duration]| due.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).collect::<Vec<_>>();
        let gaps = gaps(&mine);
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let long = gaps.iter().filter(|gap| **gap > 2.0 * mean).count() as f64 / gaps.len() as f64;
        assert!((mean * 1000.0 - 1.0).abs() < 0.02, "{mean}");
        assert!((long - (-2.0_f64).exp()).abs() < 0.01, "{long}");
    }
}
