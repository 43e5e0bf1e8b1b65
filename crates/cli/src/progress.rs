//! Progress of long work, on standard error.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use lacuna_nvmfs::Progress;

use crate::note;

/// How often it is shown.
const EVERY: Duration = Duration::from_secs(1);

/// Decides when progress is shown.
pub(crate) struct Shown {
    last: Instant,
}

impl Default for Shown {
    fn default() -> Shown {
        Shown { last: Instant::now() }
    }
}

impl Shown {
    /// True once a second at most.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.last.elapsed() >= EVERY;
        if is_due {
            self.last = Instant::now();
        }
        is_due
    }

    /// Returns a callback that shows the progress passed to it.
    pub(crate) fn told(mut self) -> impl FnMut(Progress) -> ControlFlow<()> {
        move |progress| {
            if self.is_due() {
                note(&text(progress));
            }
            ControlFlow::Continue(())
        }
    }
}

pub(crate) fn text(Progress { what, done, expected }: Progress) -> String {
    let percent = done.min(expected) as f64 * 100.0 / expected.max(1) as f64;
    format!("{what}: {percent:.0}% of {expected}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_exceeds_a_hundred_percent() {
        let text = |done, expected| text(Progress { what: "names", done, expected });
        assert_eq!(text(1, 3), "names: 33% of 3");
        assert_eq!(text(4, 3), "names: 100% of 3");
        assert_eq!(text(0, 0), "names: 0% of 0");
    }
}
