//! Requests that are under way at once, on mounts in this process: direct writes to one file while the device holds a
//! sync up, and many reads from one processor.

mod mounted;

use std::{
    fs::OpenOptions,
    os::unix::fs::{FileExt, OpenOptionsExt},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lacuna_device::{BlockDevice, DeviceStats, Geometry, MemDevice, Result};
use lacuna_fuse::{Transport, UringTransport};
use lacuna_nvmfs::{FormatOptions, Nvmfs};
use mounted::{mounted_of, transports};
use parking_lot::{Condvar, Mutex};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// For what must happen, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);
const PAGE: usize = 4096;

/// Held by each test: one of them looks at all threads of this process.
static ALONE: Mutex<()> = Mutex::new(());
/// How long a read of the device takes.
const READ_TIME: Duration = Duration::from_millis(1);

/// A device in memory whose reads take a while, and whose syncs can be held up.
struct Gated {
    inner: MemDevice,
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Gated {
    fn formatted() -> Arc<Gated> {
        let inner = MemDevice::new(128 << 20);
        let gated = Arc::new(Gated { inner, is_shut: Mutex::new(false), opened: Condvar::new() });
        let device: Arc<dyn BlockDevice> = gated.clone();
        Nvmfs::format(device, &FormatOptions::default()).expect("formats");
        gated
    }

    /// Holds all syncs up until the answer is dropped.
    fn shut(&self) -> Shut<'_> {
        *self.is_shut.lock() = true;
        Shut(self)
    }
}

struct Shut<'a>(&'a Gated);

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        *self.0.is_shut.lock() = false;
        self.0.opened.notify_all();
    }
}

impl BlockDevice for Gated {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        "gated device"
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        thread::sleep(READ_TIME);
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.inner.write_at(offset, data)
    }

    fn sync(&self) -> Result<()> {
        let mut is_shut = self.is_shut.lock();
        self.opened.wait_while(&mut is_shut, |is_shut| *is_shut);
        drop(is_shut);
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

#[test]
fn direct_writes_to_one_file_are_under_way_at_once() {
    const WRITERS: u64 = 3;
    let _alone = ALONE.lock();
    for transport in transports() {
        let gated = Gated::formatted();
        mounted_of(gated.clone(), transport, &|dir, service| {
            let path = dir.join("file");
            std::fs::write(&path, vec![1; WRITERS as usize * PAGE]).expect("writes");
            let flags = libc::O_DIRECT | libc::O_DSYNC;
            let file = OpenOptions::new().write(true).custom_flags(flags).open(&path).expect("opens");
            // Each has come when it begins to wait for its sync.
            let come = || service.counters().snapshot().syncs;
            let before = come();
            let shut = gated.shut();
            let are_together = thread::scope(|scope| {
                for at in 0..WRITERS {
                    let file = &file;
                    scope.spawn(move || file.write_all_at(&[2; PAGE], at * PAGE as u64).expect("writes"));
                }
                let end = Instant::now() + PATIENCE;
                while come() - before < WRITERS && Instant::now() < end {
                    thread::sleep(Duration::from_millis(1));
                }
                let are_together = come() - before == WRITERS;
                drop(shut);
                are_together
            });
            assert!(are_together, "{}: one waits for another", transport.name());
        });
    }
}

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
    let _alone = ALONE.lock();
    let ours = sched_getaffinity(None).expect("has processors");
    let processor = (0..CpuSet::MAX_CPU).find(|processor| ours.is_set(*processor)).expect("one");
    // Over fuser threads belong to no processor.
    if !transports().iter().any(|transport| transport.name() == UringTransport.name()) {
        return;
    }
    if ours.count() == 1 {
        return eprintln!("SKIPPED: one processor alone has none to help it");
    }
    let gated = Gated::formatted();
    mounted_of(gated.clone(), &UringTransport, &|dir, _| {
        std::fs::write(dir.join("file"), vec![1; 8 * PAGE]).expect("writes");
    });
    // The data is not in the store's memory any more, so threads wait for the device.
    mounted_of(gated, &UringTransport, &|dir, _| {
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
