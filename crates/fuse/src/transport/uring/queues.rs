//! How many threads each of the kernel's queues gets.

use std::{fs, io};

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Times the threads asked for that there may be in all.
const THREADS_FACTOR_MAX: usize = 4;

/// The queue of each thread.
pub(super) fn plan(threads: usize) -> io::Result<Vec<u16>> {
    let read = |path| {
        let list = fs::read_to_string(path)?;
        processors(list.trim()).ok_or_else(|| io::Error::other(format!("{path}: not understood: {list}")))
    };
    Ok(threads_of(&read(POSSIBLE)?, &read(ONLINE)?, threads))
}

/// The kernel has a queue for every processor that there may ever be, and wants a thread at each. A program's
/// requests all go to the queue of the one processor that it runs on: so those that there are get `threads`
/// each, as long as these are not too many in all.
fn threads_of(possible: &[u16], online: &[u16], threads: usize) -> Vec<u16> {
    let share = (THREADS_FACTOR_MAX * threads).div_ceil(online.len().max(1));
    let of_queue = |queue: &u16| if online.contains(queue) { share.min(threads).max(1) } else { 1 };
    possible.iter().flat_map(|queue| std::iter::repeat_n(*queue, of_queue(queue))).collect()
}

/// A list of the kernel's, such as `0-3,8`.
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
