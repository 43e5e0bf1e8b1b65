//! Threads on one store under shuttle, which decides at every lock, atomic and request to the device which thread runs
//! next: at random, and by PCT, which finds bugs that take few but unlikely switches. A thread that is never woken is a
//! deadlock, which shuttle reports.
//!
//! `cargo test -p lacuna-ftl --features shuttle --test shuttle`; seeds as everywhere.

mod device;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use device::{ScheduledDevice, ScheduledLog, dice};
use lacuna_device::BlockDevice;
use lacuna_ftl::{
    CheckDepth, Error, FormatOptions, Ftl, Lba, LogDeviceUse, Op, Options, Result, Stream, Work,
};
use lacuna_sim::{SeededRng, SimDevice, SimMemory, for_each_seed};
use shuttle::{
    Config, FailurePersistence, Runner,
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
    thread,
};

const SEGMENT_BYTES: u32 = 64 << 10;
const SEGMENTS: u64 = 26;
/// Schedules of each scheduler for a seed. PCT learns from each how long the next may be.
const SCHEDULES: usize = 20;
/// Switches that PCT places, plus one.
const PCT_DEPTH: usize = 3;

/// Runs `scenario` under many schedules.
fn explore(default_cases: u64, scenario: fn()) {
    fn run(scheduler: impl Scheduler + 'static, scenario: fn()) {
        let mut config = Config::new();
        config.stack_size = 256 << 10;
        config.failure_persistence = FailurePersistence::None;
        config.silence_warnings = true; // That all orderings of atomics count as the strongest.
        Runner::new(scheduler, config).run(scenario);
    }
    for_each_seed(default_cases, |seed| {
        run(RandomScheduler::new_from_seed(seed, SCHEDULES), scenario);
        run(PctScheduler::new_from_seed(seed, PCT_DEPTH, SCHEDULES), scenario);
    });
}

fn store(options: Options) -> (Arc<SimDevice>, Arc<ScheduledDevice>, Ftl) {
    let medium = SimDevice::new(SEGMENTS * u64::from(SEGMENT_BYTES), dice().next_u64());
    let plain: Arc<dyn BlockDevice> = medium.clone();
    let format = FormatOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        force: true,
        uuid: Some([7; 16]),
        ..FormatOptions::default()
    };
    Ftl::format(plain, &format).unwrap();
    let device = ScheduledDevice::new(medium.clone());
    let ftl = Ftl::open(device.clone(), options).unwrap();
    (medium, device, ftl)
}

/// Large enough for all chunks: what another one forgets depends on the machine.
fn with_or_without_chunk_cache() -> Options {
    Options { chunk_cache: if dice().chance(50) { 1 << 20 } else { 0 }, ..Options::default() }
}

fn reopen(medium: Arc<SimDevice>) -> Ftl {
    let ftl = Ftl::open(medium, Options::default()).unwrap();
    let report = ftl.check(CheckDepth::Payload).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
    ftl
}

/// `len` bytes that identify `version` of the data at `lba`.
fn version(lba: Lba, version: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    if version > 0 {
        SeededRng::new(lba.0 << 32 | version).fill(&mut data);
    }
    data
}

fn write(ftl: &Ftl, lba: Lba, number: u64, len: usize) -> Result<()> {
    let data = version(lba, number, len);
    ftl.write_batch(&[Op::Write { lba, data: &data }], Stream::Data).map(drop)
}

/// Which of the versions from `oldest` to `newest` is at `lba`.
fn read_version(ftl: &Ftl, lba: Lba, len: usize, oldest: u64, newest: u64) -> u64 {
    let mut back = vec![0; len];
    ftl.read(lba, &mut back).unwrap();
    let found = (oldest..=newest).find(|number| back == version(lba, *number, len));
    found.unwrap_or_else(|| panic!("sector {}: none of the versions {oldest} to {newest}", lba.0))
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// No thread returns from a flush before its batch is durable, whichever thread led it; and every thread returns, even
/// when writes or syncs begin to fail.
#[test]
fn whoever_flushes_finds_their_batch_after_a_cut() {
    const LEN: usize = 1024;
    explore(15, || {
        let (medium, device, ftl) = store(Options::default());
        match dice().below(4) {
            0 => medium.fail_writes_after(1 + dice().below(4)),
            1 => medium.fail_sync(),
            _ => {}
        }
        let ftl = Arc::new(ftl);
        let threads = (0..3).map(|thread| {
            let (device, ftl) = (Arc::clone(&device), Arc::clone(&ftl));
            thread::spawn(move || {
                let lba = Lba(thread * 100);
                for number in 1..=2 {
                    match write(&ftl, lba, number, LEN).and_then(|()| ftl.flush()) {
                        Ok(()) => {}
                        Err(Error::Device(_) | Error::Poisoned { .. }) => return,
                        Err(error) => panic!("{error}"),
                    }
                    let recovered = reopen(device.after_a_cut());
                    assert_eq!(read_version(&recovered, lba, LEN, 0, 2), number);
                }
            })
        });
        join(threads.collect());
    });
}

fn store_with_log_device(log_bytes: u64) -> (Arc<ScheduledDevice>, Arc<ScheduledLog>, Arc<Ftl>) {
    let medium = SimDevice::new(SEGMENTS * u64::from(SEGMENT_BYTES), dice().next_u64());
    let memory = SimMemory::beside(&medium, log_bytes, dice().next_u64());
    let format = FormatOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        force: true,
        uuid: Some([7; 16]),
        log_device: Some(memory.clone()),
        ..FormatOptions::default()
    };
    Ftl::format(medium.clone(), &format).unwrap();
    let (device, log) = (ScheduledDevice::new(medium), Arc::new(ScheduledLog(memory)));
    let log_device = LogDeviceUse::Device(log.clone());
    let ftl = Ftl::open(device.clone(), Options { log_device, ..Options::default() }).unwrap();
    (device, log, Arc::new(ftl))
}

/// The same with a log device, while another thread settles, fills the ring, or writes more than is worth logging.
#[test]
fn whoever_flushes_into_a_log_device_finds_their_batch_after_a_cut() {
    const LEN: usize = 1024;
    explore(15, || {
        let (device, log, ftl) = store_with_log_device(128 << 10);
        match dice().below(6) {
            0 => log.0.fail_writes_after(1 + dice().below(4)),
            1 => log.0.fail_sync(),
            _ => {}
        }
        let mut threads = Vec::new();
        for thread in 0..2 {
            let (device, log, ftl) = (Arc::clone(&device), Arc::clone(&log), Arc::clone(&ftl));
            threads.push(thread::spawn(move || {
                let lba = Lba(thread * 100);
                for number in 1..=3 {
                    match write(&ftl, lba, number, LEN).and_then(|()| ftl.flush()) {
                        Ok(()) => {}
                        Err(Error::Device(_) | Error::Poisoned { .. }) => return,
                        Err(error) => panic!("{error}"),
                    }
                    let (medium, memory) = log.after_a_cut(&device);
                    memory.heal();
                    let options = Options { log_device: LogDeviceUse::Device(memory), ..Options::default() };
                    let recovered = Ftl::open(medium, options).unwrap();
                    assert_eq!(read_version(&recovered, lba, LEN, 0, 3), number);
                }
            }));
        }
        {
            let ftl = Arc::clone(&ftl);
            threads.push(thread::spawn(move || {
                let settled = match dice().below(3) {
                    0 => ftl.checkpoint(),
                    1 => write(&ftl, Lba(1000), 1, 20 << 10).and_then(|()| ftl.flush()),
                    _ => ftl.step(Work::Gc).map(drop),
                };
                assert!(matches!(settled, Ok(()) | Err(Error::Device(_) | Error::Poisoned { .. })));
            }));
        }
        join(threads);
    });
}

/// A segment that dies before it is durable may be logged beside the flush that makes its death durable. It is not used
/// again while bytes of it lie behind the mark.
#[test]
fn a_dead_segment_that_is_logged_is_not_used_again() {
    const LEN: usize = 15 << 10;
    explore(8, || {
        let (device, log, ftl) = store_with_log_device(1 << 20);
        // One segment and a half; nothing is live in the first one.
        (1..=6).for_each(|number| write(&ftl, Lba(0), number, LEN).unwrap());
        let flusher = Arc::clone(&ftl);
        let flushes = thread::spawn(move || flusher.flush().unwrap());
        let user = Arc::clone(&ftl);
        let uses_again = thread::spawn(move || {
            user.checkpoint().unwrap();
            (7..=22).for_each(|number| write(&user, Lba(0), number, LEN).unwrap());
        });
        join(vec![flushes, uses_again]);
        let (medium, memory) = log.after_a_cut(&device);
        let options = Options { log_device: LogDeviceUse::Device(memory), ..Options::default() };
        let recovered = Ftl::open(medium, options).unwrap();
        read_version(&recovered, Lba(0), LEN, 6, 22);
    });
}

/// Flushes wait in two queues, and a thread that is woken to lead one may have to go to the other: those behind it slept
/// for ever.
#[test]
fn whoever_goes_from_log_device_to_flash_or_back_leaves_nobody_asleep() {
    explore(15, || {
        let (_, _, ftl) = store_with_log_device(128 << 10);
        let mut threads = Vec::new();
        for thread in 0..3 {
            let ftl = Arc::clone(&ftl);
            threads.push(thread::spawn(move || {
                for number in 1..=2 {
                    write(&ftl, Lba(thread * 100), number, 1024).and_then(|()| ftl.flush()).unwrap();
                }
            }));
        }
        {
            let ftl = Arc::clone(&ftl);
            threads.push(thread::spawn(move || {
                // More than is worth logging, so that the next flushes settle.
                write(&ftl, Lba(1000), 1, 20 << 10).unwrap();
                if dice().chance(50) {
                    ftl.checkpoint().unwrap();
                }
            }));
        }
        join(threads);
    });
}

/// Bytes read back whole while their pieces are on the way to the device in any order, or waiting for
/// their turn; and a store that is dropped leaves no write behind.
#[test]
fn pieces_on_their_way_read_as_what_was_written() {
    const LEN: usize = 20 << 10;
    const WRITES: u64 = 5;
    explore(15, || {
        let (_, device, ftl) = store(with_or_without_chunk_cache());
        let ftl = Arc::new(ftl);
        let mut threads = Vec::new();
        for (thread, stream) in [(0, Stream::Data), (1, Stream::Log)] {
            let ftl = Arc::clone(&ftl);
            threads.push(thread::spawn(move || {
                for number in 1..=WRITES {
                    let lba = Lba(thread * 1000 + number % 2 * 100);
                    let data = version(lba, number, LEN);
                    ftl.write_batch(&[Op::Write { lba, data: &data }], stream).unwrap();
                    assert_eq!(read_version(&ftl, lba, LEN, number, number), number);
                }
            }));
        }
        {
            let ftl = Arc::clone(&ftl);
            threads.push(thread::spawn(move || ftl.flush().unwrap()));
        }
        join(threads);
        let is_flushed = dice().chance(50);
        if is_flushed {
            ftl.flush().unwrap();
        }
        drop(Arc::into_inner(ftl).expect("the threads have ended"));
        assert_eq!(device.in_flight(), 0, "the store was dropped before its writes ended");
        let recovered = reopen(device.after_a_cut());
        for lba in [0, 100, 1000, 1100].map(Lba) {
            let newest = if lba.0 % 1000 == 100 { WRITES } else { WRITES - 1 };
            read_version(&recovered, lba, LEN, if is_flushed { newest } else { 0 }, newest);
        }
    });
}

/// A segment that dies, is collected and freed under a reader keeps its contents until the reader is done; and no
/// reader sees a version older than one that it has seen before.
#[test]
fn readers_keep_their_segments() {
    const LEN: usize = 15 << 10;
    const PAGES: u64 = 4;
    const VERSIONS: u64 = 3;
    fn page(number: u64) -> Lba {
        Lba(number * 32)
    }
    explore(15, || {
        let (_, _, ftl) = store(with_or_without_chunk_cache());
        // Fills a segment, and opens the next.
        (0..=PAGES).for_each(|number| write(&ftl, page(number), 1, LEN).unwrap());
        ftl.flush().unwrap();
        let ftl = Arc::new(ftl);
        let newest = Arc::new([const { AtomicU64::new(1) }; PAGES as usize]);
        let mut threads = Vec::new();
        for _ in 0..2 {
            let (ftl, newest) = (Arc::clone(&ftl), Arc::clone(&newest));
            threads.push(thread::spawn(move || {
                for _ in 0..3 {
                    let number = dice().below(PAGES);
                    let oldest = newest[number as usize].load(SeqCst);
                    read_version(&ftl, page(number), LEN, oldest, VERSIONS);
                }
            }));
        }
        {
            let ftl = Arc::clone(&ftl);
            threads.push(thread::spawn(move || {
                for version in 2..=VERSIONS {
                    // All of them, so that the segment dies; or all but one, which collection moves.
                    for number in 0..PAGES - dice().below(2) {
                        write(&ftl, page(number), version, LEN).unwrap();
                        newest[number as usize].store(version, SeqCst);
                    }
                    ftl.flush().unwrap();
                    ftl.step(Work::Gc).unwrap();
                    ftl.checkpoint().unwrap();
                }
            }));
        }
        join(threads);
        let report = ftl.check(CheckDepth::Payload).unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
    });
}

/// Writers that run out of segments, the background thread that frees segments, and the end of both.
#[test]
fn background_work_and_writers_wait_for_each_other() {
    const LEN: usize = 16 << 10;
    const WRITES: u64 = 30;
    explore(4, || {
        let (_, device, ftl) = store(Options { background: true, ..Options::default() });
        let ftl = Arc::new(ftl);
        let threads = (0..2).map(|thread| {
            let ftl = Arc::clone(&ftl);
            thread::spawn(move || {
                for number in 1..=WRITES {
                    write(&ftl, Lba(thread * 1000 + number % 3 * 32), number, LEN).unwrap();
                }
            })
        });
        join(threads.collect());
        let is_closed = dice().chance(50);
        if is_closed {
            ftl.close().unwrap();
        }
        drop(Arc::into_inner(ftl).expect("the threads have ended"));
        let recovered = reopen(device.after_a_cut());
        for thread in 0..2 {
            let oldest = if is_closed { WRITES } else { 0 };
            read_version(&recovered, Lba(thread * 1000 + WRITES % 3 * 32), LEN, oldest, WRITES);
        }
    });
}

/// A store grows beside writers, flushes and checkpoints: everybody finds what they flushed after a cut, in a store of
/// the old size or the new one.
#[test]
fn a_store_grows_beside_writers() {
    const LEN: usize = 10 << 10;
    const OLD: u64 = SEGMENTS * SEGMENT_BYTES as u64;
    const NEW: u64 = OLD + 16 * SEGMENT_BYTES as u64;
    explore(8, || {
        let (_, device, ftl) = store(Options { background: dice().chance(50), ..Options::default() });
        let ftl = Arc::new(ftl);
        let mut threads = Vec::new();
        for thread in 0..2 {
            let (device, ftl) = (Arc::clone(&device), Arc::clone(&ftl));
            threads.push(thread::spawn(move || {
                let lba = Lba(thread * 100);
                for number in 1..=3 {
                    write(&ftl, lba, number, LEN).unwrap();
                    ftl.flush().unwrap();
                    let recovered = reopen(device.after_a_cut());
                    assert_eq!(read_version(&recovered, lba, LEN, 0, 3), number);
                    assert!([OLD, NEW].contains(&recovered.stats().capacity_bytes));
                }
            }));
        }
        {
            let (device, ftl) = (Arc::clone(&device), Arc::clone(&ftl));
            threads.push(thread::spawn(move || {
                assert_eq!(ftl.grow(Some(NEW)).unwrap(), NEW);
                assert_eq!(reopen(device.after_a_cut()).stats().capacity_bytes, NEW);
            }));
        }
        {
            let ftl = Arc::clone(&ftl);
            threads.push(thread::spawn(move || {
                ftl.step(Work::Gc).unwrap();
                ftl.checkpoint().unwrap();
            }));
        }
        join(threads);
        let report = ftl.check(CheckDepth::Payload).unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
    });
}
