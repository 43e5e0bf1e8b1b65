//! Many reads from one processor, on a mount in this process. A program of its own: the test looks at all threads of its
//! process, and mounts of others would be among them.

#[allow(dead_code)] // The other program uses all of it.
mod mounted;

use std::{
    fs::OpenOptions,
    os::unix::fs::{FileExt, OpenOptionsExt},
    thread,
    time::{Duration, Instant},
};

use lacuna_fuse::{Transport, UringTransport};
use lacuna_sim::BeforeReads;
use mounted::{formatted, mounted_of, transports};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// For what must happen, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);
const PAGE: usize = 4096;
/// How long a read of the device takes.
const READ_TIME: Duration = Duration::from_millis(1);

/// The processors of each thread of this process that serves the queue.
fn places_of(queue: usize) -> Vec<CpuSet> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("lists threads");
    let threads = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    let serves = |thread: &i32| {
        let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
        name.is_ok_and(|name| name.trim() == format!("fuse-{queue}"))
    };
    let place = |thread| sched_getaffinity(rustix::process::Pid::from_raw(thread)).ok();
    threads.filter(serves).filter_map(place).collect()
}

fn only(processor: usize) -> CpuSet {
    let mut only = CpuSet::new();
    only.set(processor);
    only
}

/// Reads from one processor, by so many threads at once, until the places of its queue's threads are as `expected` says.
fn read_until(
    file: &std::fs::File,
    processor: usize,
    threads: u64,
    expected: impl Fn(&[CpuSet]) -> bool,
) -> bool {
    let end = Instant::now() + PATIENCE;
    while !expected(&places_of(processor)) && Instant::now() < end {
        thread::scope(|scope| {
            for at in 0..threads {
                scope.spawn(move || {
                    sched_setaffinity(None, &only(processor)).expect("one of ours");
                    for _ in 0..50 {
                        file.read_exact_at(&mut [0; PAGE], at * PAGE as u64).expect("reads");
                    }
                });
            }
        });
    }
    expected(&places_of(processor))
}

#[test]
fn idle_processors_help_with_the_requests_of_a_loaded_one() {
    let ours = sched_getaffinity(None).expect("has processors");
    let processor = (0..CpuSet::MAX_CPU).find(|processor| ours.is_set(*processor)).expect("one");
    // Over fuser threads belong to no processor.
    if !transports().iter().any(|transport| transport.name() == UringTransport.name()) {
        return;
    }
    if ours.count() == 1 {
        return eprintln!("SKIPPED: one processor alone has none to help it");
    }
    let slow = BeforeReads::new(formatted(), |_| {
        thread::sleep(READ_TIME);
        Ok(())
    });
    mounted_of(slow.clone(), &UringTransport, &|dir, _| {
        std::fs::write(dir.join("file"), vec![1; 8 * PAGE]).expect("writes");
    });
    // The data is not in the store's memory any more, so threads wait for the device.
    mounted_of(slow, &UringTransport, &|dir, _| {
        let path = dir.join("file");
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).expect("opens");
        let all_go = |places: &[CpuSet]| places.iter().all(|place| *place == ours);
        assert!(read_until(&file, processor, 8, all_go), "some stay: {:?}", places_of(processor));
        // One at a time: the thread that answered last answers the next one.
        let one_is_back = |places: &[CpuSet]| places.contains(&only(processor));
        assert!(
            read_until(&file, processor, 1, one_is_back),
            "nobody comes back: {:?}",
            places_of(processor)
        );
    });
}
