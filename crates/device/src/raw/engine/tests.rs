//! The same behaviour of both engines.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
};

use lacuna_sim::{SeededRng, for_each_seed};
use rustix::fs::OFlags;

use super::*;
use crate::{
    AlignedBuf, BlockDevice, Filled, RawDevice, RawOptions,
    raw::{
        request::Memory,
        together::{IN_FLIGHT_MAX, Transfer, carry_out},
    },
};

const BLOCK: usize = 4096;

/// Runs `test` with each engine that the system has.
fn with_each(test: impl Fn(BlockIo)) {
    test(BlockIo::Threads);
    match Engine::start(BlockIo::Uring, &open("/dev/null", OFlags::RDWR)) {
        Ok(_) => test(BlockIo::Uring),
        Err(error) => eprintln!("skipped: {error}"),
    }
}

fn open(path: impl AsRef<Path>, flags: OFlags) -> Arc<PositionalFile> {
    Arc::new(PositionalFile::open(path.as_ref(), flags).unwrap())
}

fn store(io: BlockIo, blocks: usize) -> (tempfile::TempDir, RawDevice) {
    let directory = tempfile::tempdir().unwrap();
    let options = RawOptions { io, ..RawOptions::default() };
    let device =
        RawDevice::create(&directory.path().join("store"), (blocks * BLOCK) as u64, options).unwrap();
    (directory, device)
}

fn filled(byte: u8, len: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    buf.fill(byte);
    buf
}

/// One request, waited for.
fn request(io: BlockIo, file: &Arc<PositionalFile>, memory: Memory) -> Result<()> {
    let (sender, ended) = mpsc::channel();
    let done = Box::new(move |outcome, _| sender.send(outcome).unwrap());
    Engine::start(io, file).unwrap().submit(vec![Request { offset: 0, memory, done }]);
    ended.recv().unwrap()
}

#[test]
fn many_writes_and_reads_are_in_flight() {
    with_each(|io| {
        for_each_seed(4, |seed| {
            let mut rng = SeededRng::new(seed);
            // More than a ring has entries.
            let blocks = 300;
            let (_directory, device) = store(io, blocks);
            let mut expected = vec![0; blocks * BLOCK];
            rng.fill(&mut expected);
            let (sender, ended) = mpsc::channel();
            std::thread::scope(|scope| {
                for part in 0..3 {
                    let (device, expected, sender) = (&device, &expected, sender.clone());
                    scope.spawn(move || {
                        for block in (part..blocks).step_by(3) {
                            let mut data = AlignedBuf::zeroed(2 * BLOCK);
                            data[BLOCK..].copy_from_slice(&expected[block * BLOCK..][..BLOCK]);
                            let sender = sender.clone();
                            let done = Box::new(move |outcome: Result<()>, data: Filled| {
                                assert_eq!(data.len(), BLOCK);
                                sender.send(outcome).unwrap();
                            });
                            let data = Filled::from(data).slice(BLOCK..2 * BLOCK);
                            device.submit_write((block * BLOCK) as u64, data, done);
                        }
                    });
                }
            });
            drop(sender);
            assert_eq!(ended.iter().map(Result::unwrap).count(), blocks);
            let mut reads: Vec<_> = (0..blocks)
                .map(|_| {
                    let first = rng.below(blocks as u64 - 3);
                    (first * BLOCK as u64, AlignedBuf::zeroed((1 + rng.below(3) as usize) * BLOCK))
                })
                .collect();
            device.read_many(&mut reads).unwrap();
            for (offset, buf) in &reads {
                assert!(expected[*offset as usize..][..buf.len()] == buf[..], "at {offset}");
            }
            let stats = device.stats();
            assert_eq!((stats.writes, stats.reads), (blocks as u64, blocks as u64));
            assert_eq!(stats.written_bytes, (blocks * BLOCK) as u64);
        });
    });
}

/// As many as are in flight at a time, and more; from threads that have rings of their own and end.
#[test]
fn writes_and_reads_are_waited_for_together() {
    const COUNTS: [usize; 5] = [1, 2, IN_FLIGHT_MAX, IN_FLIGHT_MAX + 1, 3 * IN_FLIGHT_MAX + 1];
    with_each(|io| {
        for_each_seed(4, |seed| {
            let blocks = 3 * (3 * IN_FLIGHT_MAX + 1);
            let (_directory, device) = store(io, blocks);
            let mut expected = vec![0; blocks * BLOCK];
            SeededRng::new(seed).fill(&mut expected);
            std::thread::scope(|scope| {
                for part in 0..3 {
                    let (device, expected) = (&device, &expected);
                    scope.spawn(move || {
                        let own: Vec<usize> = (part..blocks).step_by(3).collect();
                        for count in COUNTS {
                            let writes: Vec<(u64, Filled)> = own[..count]
                                .iter()
                                .map(|block| {
                                    let mut data = AlignedBuf::zeroed(BLOCK);
                                    data.copy_from_slice(&expected[block * BLOCK..][..BLOCK]);
                                    ((block * BLOCK) as u64, data.into())
                                })
                                .collect();
                            device.write_many(&writes).unwrap();
                            let mut reads: Vec<_> =
                                writes.iter().map(|(at, _)| (*at, AlignedBuf::zeroed(BLOCK))).collect();
                            device.read_many(&mut reads).unwrap();
                            for ((_, written), (at, read)) in writes.iter().zip(&reads) {
                                assert!(written[..] == read[..], "{count} at a time, at {at}");
                            }
                        }
                    });
                }
            });
            let each = COUNTS.iter().sum::<usize>() as u64;
            let stats = device.stats();
            assert_eq!((stats.writes, stats.reads), (3 * each, 3 * each));
            assert_eq!(stats.written_bytes, 3 * each * BLOCK as u64);
        });
    });
}

/// The other requests are still done, and memory that direct I/O cannot use is copied.
#[test]
fn one_failure_of_several_is_told() {
    with_each(|io| {
        let (directory, device) = store(io, 4);
        let whole: Filled = filled(7, 2 * BLOCK).into();
        let odd = whole.slice(1..BLOCK + 1);
        device.write_many(&[(0, odd), (BLOCK as u64, whole.slice(0..BLOCK))]).unwrap();
        assert!(std::fs::read(directory.path().join("store")).unwrap()[..2 * BLOCK] == whole[..]);

        let beyond = [(0, whole.clone()), (4 * BLOCK as u64, whole.clone())];
        assert!(matches!(device.write_many(&beyond), Err(Error::BadRange { .. })));
        let read_only = RawOptions { read_only: true, io };
        drop(device);
        let device = RawDevice::open(&directory.path().join("store"), read_only).unwrap();
        let writes = [(0, whole.clone()), (2 * BLOCK as u64, whole.clone())];
        assert!(matches!(device.write_many(&writes), Err(Error::Unsupported { .. })));
        assert_eq!(device.stats().writes, 0);
    });
    // Nothing can be written there, and nothing is mapped there.
    let (full, memory) = (open("/dev/full", OFlags::RDWR), open("/proc/self/mem", OFlags::RDONLY));
    let (data, mut bufs) = (filled(1, BLOCK), [filled(1, BLOCK), filled(1, BLOCK)]);
    let writes = vec![Transfer::write(0, &data), Transfer::write(BLOCK as u64, &data)];
    let Some(outcome) = carry_out(&full, writes) else {
        return eprintln!("skipped: no io_uring");
    };
    assert!(matches!(outcome, Err(Error::Full { .. })), "{outcome:?}");
    let reads = bufs.iter_mut().map(|buf| Transfer::read(0, buf)).collect();
    let Some(Err(Error::Io { what, .. })) = carry_out(&memory, reads) else { panic!("it was read") };
    assert_eq!(what, "/proc/self/mem: read at byte 0");
}

#[test]
fn dropping_the_device_waits_for_all_writes() {
    with_each(|io| {
        let (directory, device) = store(io, 400);
        let ended = Arc::new(AtomicUsize::new(0));
        for block in 0..400 {
            let ended = Arc::clone(&ended);
            let done = Box::new(move |outcome: Result<()>, _| {
                outcome.unwrap();
                ended.fetch_add(1, Relaxed);
            });
            device.submit_write(block * BLOCK as u64, filled(block as u8, BLOCK).into(), done);
        }
        drop(device);
        assert_eq!(ended.load(Relaxed), 400);
        let bytes = std::fs::read(directory.path().join("store")).unwrap();
        assert!(bytes.chunks(BLOCK).zip(0..400).all(|(block, number)| block == [number as u8; BLOCK]));
    });
}

#[test]
fn a_dropped_store_is_free_at_once() {
    with_each(|io| {
        let (directory, device) = store(io, 4);
        let path = directory.path().join("store");
        drop(device);
        for _ in 0..50 {
            let device = RawDevice::open(&path, RawOptions { io, ..RawOptions::default() }).unwrap();
            let mut reads = [(0, AlignedBuf::zeroed(BLOCK)), (0, AlignedBuf::zeroed(BLOCK))];
            device.read_many(&mut reads).unwrap();
        }
    });
}

#[test]
fn failures_are_those_of_ordinary_calls() {
    with_each(|io| {
        let full = open("/dev/full", OFlags::RDWR);
        let outcome = request(io, &full, Memory::Write(filled(1, BLOCK).into()));
        assert!(matches!(outcome, Err(Error::Full { .. })), "{outcome:?}");
        // Nothing is mapped there.
        let memory = open("/proc/self/mem", OFlags::RDONLY);
        let outcome = request(io, &memory, Memory::Read(filled(1, BLOCK)));
        let Err(Error::Io { what, source }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(what, "/proc/self/mem: read at byte 0");
        assert_eq!(source.raw_os_error(), Some(5), "EIO");
        let outcome = request(io, &open("/dev/null", OFlags::RDONLY), Memory::Write(filled(1, BLOCK).into()));
        assert!(matches!(outcome, Err(Error::Io { .. })), "{outcome:?}");
    });
}

#[test]
fn a_store_that_shrank_is_an_error_with_its_place() {
    with_each(|io| {
        let (directory, device) = store(io, 4);
        let path = directory.path().join("store");
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(2 * BLOCK as u64).unwrap();
        let mut reads = [(0, AlignedBuf::zeroed(BLOCK)), (BLOCK as u64, AlignedBuf::zeroed(3 * BLOCK))];
        let outcome = device.read_many(&mut reads);
        assert!(matches!(outcome, Err(Error::Corrupt { at: 8192, .. })), "{outcome:?}");
        assert_eq!(reads.map(|(_, buf)| buf.len()), [BLOCK, 3 * BLOCK], "memory comes back");
    });
}

#[test]
fn what_is_off_the_grid_or_beyond_the_end_is_refused() {
    with_each(|io| {
        let (_directory, device) = store(io, 4);
        for (offset, len) in [(100, BLOCK), (0, 100), (4 * BLOCK as u64, BLOCK), (u64::MAX - 4095, BLOCK)] {
            let (sender, ended) = mpsc::channel();
            let done = Box::new(move |outcome, _| sender.send(outcome).unwrap());
            device.submit_write(offset, AlignedBuf::zeroed(len).into(), done);
            assert!(matches!(ended.recv().unwrap(), Err(Error::BadRange { .. })), "{offset} + {len}");
            let mut reads = [(0, AlignedBuf::zeroed(BLOCK)), (offset, AlignedBuf::zeroed(len))];
            assert!(matches!(device.read_many(&mut reads), Err(Error::BadRange { .. })));
        }
        assert_eq!((device.stats().writes, device.stats().reads), (0, 0));
    });
}

/// The rest of a transfer that ended early is done by ordinary calls, from the last whole block on.
#[test]
fn short_transfers_are_finished() {
    let (_directory, device) = store(BlockIo::Threads, 4);
    let finish = |memory, bytes_done| {
        let (sender, ended) = mpsc::channel();
        let done = Box::new(move |outcome: Result<()>, memory: Memory| {
            outcome.unwrap();
            sender.send(memory).unwrap();
        });
        Request { offset: 0, memory, done }.finish(&device.file, bytes_done);
        ended.recv().unwrap()
    };
    let read = |bytes_done| finish(Memory::Read(filled(9, 2 * BLOCK)), bytes_done).into_read();
    let grid = device.geometry().block_bytes as usize;
    for bytes_done in [0, 100, grid, grid + 1, 2 * BLOCK - 1, 2 * BLOCK] {
        device.write_at(0, &filled(7, 2 * BLOCK)).unwrap();
        let kept = bytes_done / grid * grid;
        finish(Memory::Write(filled(8, 2 * BLOCK).into()), bytes_done);
        let back = read(0);
        assert!(back[..kept].iter().all(|byte| *byte == 7) && back[kept..].iter().all(|byte| *byte == 8));
        let rest = read(bytes_done);
        assert!(rest[..kept].iter().all(|byte| *byte == 9) && rest[kept..] == back[kept..]);
    }
}

#[test]
fn the_environment_decides_what_is_left_open() {
    for (variable, io) in [
        (None, BlockIo::Auto),
        (Some(""), BlockIo::Auto),
        (Some("auto"), BlockIo::Auto),
        (Some("uring"), BlockIo::Uring),
        (Some("threads"), BlockIo::Threads),
    ] {
        assert_eq!(wanted(BlockIo::Auto, variable).unwrap(), io);
        assert_eq!(wanted(BlockIo::Threads, variable).unwrap(), BlockIo::Threads);
    }
    assert!(matches!(wanted(BlockIo::Auto, Some("aio")), Err(Error::Unsupported { .. })));
    with_each(|io| {
        let (_directory, device) = store(io, 1);
        let name = if io == BlockIo::Uring { "io_uring" } else { "threads" };
        assert_eq!(device.io_engine().unwrap(), name);
    });
}
