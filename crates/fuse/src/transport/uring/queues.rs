//! The number of threads for each of the kernel's queues, and the processors on which they run.

use std::{fs, io};

use rustix::thread::{CpuSet, sched_setaffinity};

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Greatest total number of threads, as a multiple of the number asked for.
const THREADS_FACTOR_MAX: usize = 4;

/// The queue of each thread.
pub(super) fn plan(threads: usize) -> io::Result<Vec<u16>> {
    let read = |path| {
        let list = fs::read_to_string(path)?;
        processors(list.trim()).ok_or_else(|| io::Error::other(format!("{path}: not understood: {list}")))
    };
    Ok(threads_of(&read(POSSIBLE)?, &read(ONLINE)?, threads))
}

/// The kernel has a queue for every possible processor, and requires a thread at each. A program's requests all go to
/// the queue of the one processor that it runs on: so queues of online processors get `threads` each, as long as these
/// are not too many in all.
fn threads_of(possible: &[u16], online: &[u16], threads: usize) -> Vec<u16> {
    let share = (THREADS_FACTOR_MAX * threads).div_ceil(online.len().max(1));
    let of_queue = |queue: &u16| if online.contains(queue) { share.min(threads).max(1) } else { 1 };
    possible.iter().flat_map(|queue| std::iter::repeat_n(*queue, of_queue(queue))).collect()
}

/// Keeps the calling thread on the processor that the queue's requests come from. Then waking it, and waking the
/// caller, needs no interrupt of another processor, and the data that they exchange is in that processor's cache.
pub(super) fn stay_at(queue: u16) {
    let processor = usize::from(queue);
    if processor < CpuSet::MAX_CPU {
        let mut only = CpuSet::new();
        only.set(processor);
        // A processor that is offline, or not available to this process: its requests come late or never, so any other
        // will do.
        let _ = sched_setaffinity(None, &only);
    }
}

/// A list in the kernel's format, such as `0-3,8`.
fn processors(list: &str) -> Option<Vec<u16>> {
    let mut found = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        found.extend(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_understood() {
        for (list, expected) in [
            ("0", Some(vec![0])),
            ("0-1", Some(vec![0, 1])),
            ("0-2,5,7-8", Some(vec![0, 1, 2, 5, 7, 8])),
            ("", None),
            ("0-", None),
            ("a", None),
        ] {
            assert_eq!(processors(list), expected, "{list}");
        }
    }

    #[test]
    fn threads_stay_at_their_queue_and_where_there_is_no_such_processor_go_anywhere() {
        use rustix::thread::sched_getaffinity;
        let ours = sched_getaffinity(None).unwrap();
        let processor = (0..CpuSet::MAX_CPU).find(|processor| ours.is_set(*processor)).unwrap();
        let mut only = CpuSet::new();
        only.set(processor);
        for (queue, expected) in [(processor as u16, only), (u16::MAX, ours)] {
            let stayed = std::thread::spawn(move || {
                stay_at(queue);
                sched_getaffinity(None).unwrap()
            });
            assert!(stayed.join().unwrap() == expected, "{queue}");
        }
    }

    #[test]
    fn every_queue_has_a_thread_and_those_of_real_processors_have_more() {
        for (possible, online, threads, expected) in [
            (&[0][..], &[0][..], 16, vec![0; 16]),
            (&[0, 1], &[0, 1], 3, vec![0, 0, 0, 1, 1, 1]),
            (&[0, 1, 2, 3], &[0, 2], 2, vec![0, 0, 1, 2, 2, 3]),
            (&[0, 1, 2], &[0, 1, 2], 1, vec![0, 1, 2]),
        ] {
            assert_eq!(threads_of(possible, online, threads), expected);
        }
        let many: Vec<u16> = (0..64).collect();
        assert_eq!(threads_of(&many, &many, 4), many);
        assert_eq!(threads_of(&many, &many, 17).len(), 128);
    }
}
