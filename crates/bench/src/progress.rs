use std::{
    io::{Write, stderr},
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

/// A line on standard error every few seconds while something works.
pub(crate) struct Progress<F> {
    phase: String,
    quiet: bool,
    line: F,
}

impl<F: FnMut() -> String + Send> Progress<F> {
    const EVERY: Duration = Duration::from_secs(5);

    pub(crate) fn new(phase: impl Into<String>, quiet: bool, line: F) -> Progress<F> {
        Progress { phase: phase.into(), quiet, line }
    }

    /// Runs `work` in this thread and reports from another one until it is done.
    pub(crate) fn during<T>(mut self, work: impl FnOnce() -> T) -> T {
        if self.quiet {
            return work();
        }
        let start = Instant::now();
        thread::scope(|scope| {
            let (done, waiting) = channel::<()>();
            scope.spawn(move || {
                while waiting.recv_timeout(Self::EVERY) == Err(RecvTimeoutError::Timeout) {
                    // Whoever read it may have gone.
                    let seconds = start.elapsed().as_secs_f64();
                    let _ = writeln!(stderr(), "{seconds:>7.0}s  {}: {}", self.phase, (self.line)());
                }
            });
            let result = work();
            drop(done);
            result
        })
    }
}
