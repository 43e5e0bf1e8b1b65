//! Keeps a damaged store from flooding the log: repeated attempts of a program give no new information.
//!
//! The first [`LINES`] errors of an [`INTERVAL`] are worth a line each; the rest are counted, and the next line reports
//! how many they were. Pure: the caller passes the time.

use std::time::{Duration, Instant};

/// Lines logged in an interval; if more places are damaged, a scrub is the right tool, not a log.
const LINES: u32 = 20;
/// From its first line on.
const INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Complaints {
    began: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Complaints {
    /// Whether to log an error at `now`; if so, how many were left out since the last one that was logged.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= INTERVAL) {
            self.began = Some(now);
            self.lines = 0;
        }
        if self.lines == LINES {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(self.take_left_out())
    }

    /// How many were left out and not reported; they count as reported from now on.
    pub(crate) fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_becomes_a_few_lines_and_a_count() {
        let start = Instant::now();
        let mut complaints = Complaints::default();
        for _ in 0..LINES {
            assert_eq!(complaints.admit(start), Some(0));
        }
        let just_before = start + INTERVAL - Duration::from_nanos(1);
        for _ in 0..1000 {
            assert_eq!(complaints.admit(just_before), None);
        }
        assert_eq!(complaints.admit(start + INTERVAL), Some(1000));
        for _ in 1..LINES {
            assert_eq!(complaints.admit(just_before + INTERVAL), Some(0));
        }
        assert_eq!(complaints.admit(just_before + INTERVAL), None);
        assert_eq!((complaints.take_left_out(), complaints.take_left_out()), (1, 0));
        // A clock read before another's lock was taken may be a little behind.
        assert_eq!(complaints.admit(start), None);
    }
}
