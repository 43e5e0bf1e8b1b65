//! How many threads serve a mount by default.
//!
//! A thread sleeps while its request waits for the device. So a processor has enough to do with as many threads as the
//! device's time for a read is longer than the processor's for a request, and one more. Beside other work a processor
//! needs more, because a thread also waits for its turn: of one client's reads of 16 KiB at depth 16, 16 threads served
//! 1.6 times as many as 8 on a busy machine, for as much processor time each (`docs/layers/fuse.md`).

use std::{path::Path, thread, time::Duration};

/// What a processor needs for a request of 16 KiB, with the share of the device's driver.
const REQUEST_TIME: Duration = Duration::from_micros(25);
const LEAST: u16 = 16;
/// Enough for devices that take 1.6 ms, and for most of what slower ones can do.
const MOST: u16 = 64;

/// Threads of a processor for a store on a device that takes this long for a read; `None` if it is unknown.
fn of_processor(read: Option<Duration>) -> u16 {
    let waiting = read.unwrap_or_default().as_micros() / REQUEST_TIME.as_micros();
    u16::try_from(waiting + 1).unwrap_or(MOST).clamp(LEAST, MOST)
}

/// Threads of a processor for this store.
pub(super) fn default_for(store: &Path) -> u16 {
    of_processor(lacuna_device::read_time(store))
}

/// Threads in all, for a transport whose threads belong to no processor: half as many, because each of them serves any
/// processor.
pub(super) fn in_all(of_processor: u16) -> u16 {
    let processors = thread::available_parallelism().map_or(1, |processors| processors.get());
    (u16::try_from(processors).unwrap_or(MOST).saturating_mul(of_processor) / 2).clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slower_devices_get_more_threads_within_limits() {
        for (micros, expected) in [(0, 16), (80, 16), (400, 17), (1_000, 41), (1_575, 64), (10_000_000, 64)] {
            assert_eq!(of_processor(Some(Duration::from_micros(micros))), expected, "{micros} us");
        }
        assert_eq!(of_processor(None), LEAST);
        assert_eq!(of_processor(Some(Duration::MAX)), MOST);
    }

    #[test]
    fn threads_of_no_processor_follow_the_machine_within_limits() {
        assert!((LEAST..=MOST).contains(&in_all(LEAST)) && in_all(MOST) >= in_all(LEAST));
    }
}
