//! Requests, latencies and traffic over time: the measured part of a run, cut into windows.
//!
//! The thread that measures moves the window on and reads the traffic; requesters record into a histogram of their own
//! and hand it over when they see that the window has moved on, once for each window. So nobody waits for anybody while
//! requests run. A request counts for the window in which it ended, the last ones, which end after the measured part,
//! for the last window.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::Result;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::Serialize;

/// Most windows of a run.
pub const WINDOWS_MAX: u64 = 3600;

/// The windows that all requesters share.
pub(crate) struct OverTime {
    length: Duration,
    /// Number of the current window.
    current: AtomicUsize,
    latencies: Mutex<Vec<Histogram<u64>>>,
}

/// A requester's view of it.
pub(crate) struct Recorder<'a> {
    shared: &'a OverTime,
    window: usize,
    latencies: Histogram<u64>,
}

/// The measuring thread's view of it.
pub(crate) struct Sampler<'a> {
    shared: &'a OverTime,
    began: Instant,
    /// Device bytes written so far at the start of the current window.
    written: u64,
    windows: Vec<(f64, u64)>,
}

/// A run over time. Its JSON form is part of the command line's contract.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Intended length of a window; each has its own beside it, and the last may be shorter.
    pub window_seconds: f64,
    /// In the order of time.
    pub windows: Vec<Slice>,
}

/// A window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slice {
    /// Its length.
    pub seconds: f64,
    /// Requests that ended in it.
    pub requests: u64,
    /// Their rate.
    pub requests_per_second: f64,
    /// Bytes that reached the device in it. Work that is put off to the end of the run is in no window.
    pub device_bytes_written: u64,
    /// Median of the latencies of all operations; 0 without requests.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Slowest request.
    pub max_us: f64,
}

fn histogram() -> Histogram<u64> {
    Histogram::new(2).expect("two digits are supported")
}

impl OverTime {
    pub(crate) fn new(length: Duration) -> OverTime {
        OverTime { length, current: AtomicUsize::new(0), latencies: Mutex::default() }
    }

    pub(crate) fn recorder(&self) -> Recorder<'_> {
        Recorder { shared: self, window: 0, latencies: histogram() }
    }

    /// The measured part begins, with so many bytes written.
    pub(crate) fn sampler(&self, now: Instant, written: u64) -> Sampler<'_> {
        Sampler { shared: self, began: now, written, windows: Vec::new() }
    }

    fn hand_over(&self, window: usize, latencies: &Histogram<u64>) {
        let mut all = self.latencies.lock();
        if all.len() <= window {
            all.resize(window + 1, histogram());
        }
        all[window].add(latencies).expect("histograms grow by themselves");
    }
}

impl Recorder<'_> {
    pub(crate) fn record(&mut self, nanos: u64) {
        let window = self.shared.current.load(Relaxed);
        if window != self.window {
            self.shared.hand_over(self.window, &self.latencies);
            self.latencies.reset();
            self.window = window;
        }
        self.latencies.record(nanos.max(1)).expect("histograms grow by themselves");
    }

    pub(crate) fn finish(self) {
        self.shared.hand_over(self.window, &self.latencies);
    }
}

impl Sampler<'_> {
    /// Moves on to the next window when this one is over; `written` reads the bytes written so far.
    pub(crate) fn look(&mut self, now: Instant, written: impl FnOnce() -> Result<u64>) -> Result<()> {
        if now.duration_since(self.began) >= self.shared.length {
            self.shared.current.store(self.windows.len() + 1, Relaxed);
            self.close(now, written()?);
        }
        Ok(())
    }

    fn close(&mut self, now: Instant, written: u64) {
        let seconds = now.duration_since(self.began).as_secs_f64();
        self.windows.push((seconds, written.saturating_sub(self.written)));
        (self.began, self.written) = (now, written);
    }

    /// The report, when the last requester is done.
    pub(crate) fn report(mut self, now: Instant, written: u64) -> Series {
        let latencies = self.shared.latencies.lock();
        // Without a request in it, the rest behind the last whole window is none.
        if latencies.len() > self.windows.len() || self.windows.is_empty() {
            self.close(now, written);
        }
        let none = histogram();
        let windows = self.windows.iter().enumerate().map(|(number, (seconds, bytes))| {
            let latencies = latencies.get(number).unwrap_or(&none);
            let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0;
            Slice {
                seconds: *seconds,
                requests: latencies.len(),
                requests_per_second: latencies.len() as f64 / seconds.max(1e-9),
                device_bytes_written: *bytes,
                p50_us: us(0.5),
                p99_us: us(0.99),
                max_us: latencies.max() as f64 / 1000.0,
            }
        });
        Series { window_seconds: self.shared.length.as_secs_f64(), windows: windows.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_where_they_ended_and_bytes_where_they_were_written() {
        let start = Instant::now();
        let at = |tenths: u64| start + Duration::from_millis(100 * tenths);
        let shared = OverTime::new(Duration::from_secs(1));
        let (mut one, mut other) = (shared.recorder(), shared.recorder());
        let mut sampler = shared.sampler(start, 1000);
        let unread = || -> Result<u64> { panic!("the window is not over") };

        one.record(1_000_000);
        sampler.look(at(9), unread).unwrap();
        other.record(3_000_000);
        // Late by two tenths: the window is that long.
        sampler.look(at(12), || Ok(1500)).unwrap();
        one.record(7_000_000);
        sampler.look(at(21), unread).unwrap();
        sampler.look(at(22), || Ok(1500)).unwrap();
        other.record(500_000);
        one.finish();
        other.finish();
        let series = sampler.report(at(26), 1600);

        let figures: Vec<_> =
            series.windows.iter().map(|slice| (slice.requests, slice.device_bytes_written)).collect();
        assert_eq!(figures, [(2, 500), (1, 0), (1, 100)]);
        let [first, second, last] = &series.windows[..] else { panic!("{series:?}") };
        assert!((first.seconds - 1.2).abs() < 1e-9 && (last.seconds - 0.4).abs() < 1e-9, "{series:?}");
        assert!((first.requests_per_second - 2.0 / 1.2).abs() < 1e-9);
        let near = |us: f64, expected: f64| (us / expected - 1.0).abs() < 0.02;
        assert!(near(first.p50_us, 1000.0) && near(first.max_us, 3000.0), "{series:?}");
        assert!(near(second.p99_us, 7000.0) && near(last.p99_us, 500.0), "{series:?}");
    }

    #[test]
    fn a_window_without_requests_is_there_and_an_empty_rest_is_not() {
        let start = Instant::now();
        let shared = OverTime::new(Duration::from_secs(1));
        let mut recorder = shared.recorder();
        let mut sampler = shared.sampler(start, 0);
        sampler.look(start + Duration::from_secs(1), || Ok(1)).unwrap();
        recorder.record(1);
        sampler.look(start + Duration::from_secs(2), || Ok(2)).unwrap();
        recorder.finish();
        let series = sampler.report(start + Duration::from_secs(2), 2);
        let requests: Vec<u64> = series.windows.iter().map(|slice| slice.requests).collect();
        assert_eq!(requests, [0, 1]);
        assert_eq!(series.windows[0].p99_us, 0.0);
        let failed =
            shared.sampler(start, 0).look(start + Duration::from_secs(1), || anyhow::bail!("no counter"));
        assert_eq!(failed.unwrap_err().to_string(), "no counter");
    }

    #[test]
    fn a_run_shorter_than_a_window_is_one_window() {
        let start = Instant::now();
        let shared = OverTime::new(Duration::from_secs(10));
        let series = shared.sampler(start, 5).report(start + Duration::from_secs(1), 6);
        assert_eq!((series.windows.len(), series.windows[0].device_bytes_written), (1, 1));
    }
}
