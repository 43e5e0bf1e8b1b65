//! The kernel's queues: the number of threads for each, and the processors on which they run.
//!
//! A program's requests go to the queue of the processor that it runs on. While its threads stay there, waking them, and
//! waking the program, needs no interrupt of another processor, and the data that they exchange is in that processor's
//! cache. But a program that has many requests under way at once would have all of them answered by the one processor
//! that it needs itself, beside idle ones. So threads count how many requests of each queue are being answered, and
//! those of a queue with many more than the others run on any processor until that has changed ([`Place`]).

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Threads in all, unless some queue had fewer than [`QUEUE_THREADS_MIN`] then.
const THREADS_MAX: usize = 256;
/// Threads of a processor's queue: while one of two syncs, the other one answers.
const QUEUE_THREADS_MIN: usize = 2;

/// Requests of a thread between two looks at the load of the queues.
const LOOK_INTERVAL: u32 = 8;
/// Weight of a look in the mean of all, as a fraction.
const LOOK_WEIGHT: f32 = 0.25;

/// The queue of each thread.
pub(super) fn plan(threads: usize) -> io::Result<Vec<u16>> {
    Ok(threads_of(&list(POSSIBLE)?, &list(ONLINE)?, threads))
}

/// The processors in a file of the kernel.
fn list(path: &str) -> io::Result<Vec<u16>> {
    let list = fs::read_to_string(path)?;
    processors(list.trim()).ok_or_else(|| io::Error::other(format!("{path}: not understood: {list}")))
}

/// The kernel has a queue for every possible processor, and requires a thread at each. Queues of online processors get
/// `threads` each, as long as these are not too many in all.
fn threads_of(possible: &[u16], online: &[u16], threads: usize) -> Vec<u16> {
    let share = (THREADS_MAX / online.len().max(1)).max(QUEUE_THREADS_MIN);
    let of_queue = |queue: &u16| if online.contains(queue) { share.min(threads).max(1) } else { 1 };
    possible.iter().flat_map(|queue| std::iter::repeat_n(*queue, of_queue(queue))).collect()
}

/// How many requests of each queue are being answered.
pub(super) struct Loads(Vec<Load>);

/// Has a cache line of its own: other processors change their loads all the time.
#[repr(align(64))]
struct Load {
    queue: u16,
    requests: AtomicU32,
}

impl Loads {
    /// Those of the online processors.
    pub(super) fn new() -> io::Result<Loads> {
        Ok(Loads::of(&list(ONLINE)?))
    }

    fn of(queues: &[u16]) -> Loads {
        Loads(queues.iter().map(|queue| Load { queue: *queue, requests: AtomicU32::new(0) }).collect())
    }

    /// The load of a queue, and the mean of all others. None where there is no other.
    fn look(&self, own: usize) -> Option<(f32, f32)> {
        let others = self.0.len().checked_sub(1).filter(|others| *others > 0)?;
        let here = self.0[own].requests.load(Relaxed);
        let all: u32 = self.0.iter().map(|load| load.requests.load(Relaxed)).sum();
        // Others go on counting meanwhile.
        Some((here as f32, all.saturating_sub(here) as f32 / others as f32))
    }
}

/// Whether a thread should run on any processor. It goes when its queue has many requests under way, and others have
/// few; and comes back a while after that, so that it does not go to and fro.
fn roams(is_roaming: bool, here: f32, elsewhere: f32) -> bool {
    let (requests, times) = if is_roaming { (1.5, 1.5) } else { (2.5, 2.0) };
    here > requests && here > times * elsewhere
}

/// Where a thread of a queue runs. Used by that thread alone.
pub(super) struct Place {
    loads: Arc<Loads>,
    /// The position of its queue in `loads`; none for a processor that is offline.
    own: Option<usize>,
    home: CpuSet,
    anywhere: Option<CpuSet>,
    is_roaming: bool,
    requests: u32,
    /// Means of the loads that it has seen.
    here: f32,
    elsewhere: f32,
}

impl Place {
    /// Takes the calling thread to the processor of the queue.
    pub(super) fn take(queue: u16, loads: Arc<Loads>) -> Place {
        let mut home = CpuSet::new();
        let processor = usize::from(queue);
        let own = loads.0.iter().position(|load| load.queue == queue && processor < CpuSet::MAX_CPU);
        // Asked for before it changes.
        let anywhere = sched_getaffinity(None).ok();
        if own.is_some() {
            home.set(processor);
        }
        let place =
            Place { loads, own, home, anywhere, is_roaming: false, requests: 0, here: 0.0, elsewhere: 0.0 };
        place.go();
        place
    }

    /// A processor that is offline, or not available to this process: its requests come late or never, so any other
    /// will do.
    fn go(&self) {
        let target = if self.is_roaming { self.anywhere.as_ref() } else { self.own.map(|_| &self.home) };
        if let Some(target) = target {
            let _ = sched_setaffinity(None, target);
        }
    }

    /// A request has come.
    pub(super) fn begins(&mut self) {
        let Some(own) = self.own else { return };
        self.loads.0[own].requests.fetch_add(1, Relaxed);
        self.requests = self.requests.wrapping_add(1);
        if self.requests.is_multiple_of(LOOK_INTERVAL)
            && let Some((here, elsewhere)) = self.loads.look(own)
        {
            self.here += LOOK_WEIGHT * (here - self.here);
            self.elsewhere += LOOK_WEIGHT * (elsewhere - self.elsewhere);
            let was_roaming = self.is_roaming;
            self.is_roaming = roams(was_roaming, self.here, self.elsewhere);
            if self.is_roaming != was_roaming {
                self.go();
            }
        }
    }

    /// It is answered.
    pub(super) fn ends(&self) {
        if let Some(own) = self.own {
            self.loads.0[own].requests.fetch_sub(1, Relaxed);
        }
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

    fn processor_of_ours() -> usize {
        let ours = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).find(|processor| ours.is_set(*processor)).unwrap()
    }

    fn only(processor: usize) -> CpuSet {
        let mut only = CpuSet::new();
        only.set(processor);
        only
    }

    #[test]
    fn threads_stay_at_their_queue_and_where_there_is_no_such_processor_go_anywhere() {
        let ours = sched_getaffinity(None).unwrap();
        let processor = processor_of_ours();
        for (queue, expected) in [(processor as u16, only(processor)), (u16::MAX, ours)] {
            let stayed = std::thread::spawn(move || {
                Place::take(queue, Arc::new(Loads::of(&[processor as u16])));
                sched_getaffinity(None).unwrap()
            });
            assert!(stayed.join().unwrap() == expected, "{queue}");
        }
    }

    #[test]
    fn threads_leave_a_loaded_queue_while_others_are_idle_and_come_back() {
        let ours = sched_getaffinity(None).unwrap();
        let processor = processor_of_ours();
        let other = processor as u16 + 1;
        let loads = Arc::new(Loads::of(&[processor as u16, other]));
        let ran = std::thread::spawn(move || {
            let mut place = Place::take(processor as u16, Arc::clone(&loads));
            let mut after = |here: u32, elsewhere: u32| {
                loads.0[0].requests.store(here - 1, Relaxed);
                loads.0[1].requests.store(elsewhere, Relaxed);
                for _ in 0..30 * LOOK_INTERVAL {
                    place.begins();
                    place.ends();
                }
                sched_getaffinity(None).unwrap()
            };
            [(1, 0), (4, 4), (4, 0), (4, 2), (4, 4), (16, 1), (1, 0)]
                .map(|(here, elsewhere)| after(here, elsewhere))
        });
        let home = only(processor);
        let expected = [home, home, ours, ours, home, ours, home];
        assert!(ran.join().unwrap() == expected);
    }

    #[test]
    fn one_request_at_a_time_never_leaves() {
        for is_roaming in [false, true] {
            for (here, elsewhere) in [(0.0, 0.0), (1.0, 0.0), (1.5, 0.0), (4.0, 4.0), (8.0, 6.0)] {
                assert!(!roams(is_roaming, here, elsewhere), "{is_roaming} {here} {elsewhere}");
            }
        }
        assert!(roams(false, 3.0, 1.0) && !roams(false, 2.4, 0.0) && roams(true, 2.4, 0.0));
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
        assert_eq!(threads_of(&many, &many, 3).len(), 192);
        assert_eq!(threads_of(&many, &many, 16).len(), 256);
        let very_many: Vec<u16> = (0..300).collect();
        assert_eq!(threads_of(&very_many, &very_many, 16).len(), 600);
    }
}
