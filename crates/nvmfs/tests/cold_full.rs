//! Walks over cold data on stores that are nearly full and were overwritten many times: they take no space, so no writer
//! is refused who would not be refused without them, and a power cut in one changes nothing. `LACUNA_CASES=n`: n stores.

use std::{ops::ControlFlow, sync::Arc};

use crate::power::{open, recover};
use lacuna_device::BlockDevice;
use lacuna_ftl::{self as ftl, Work};
use lacuna_nvmfs::{
    CheckDepth, Compression, Error, FormatOptions, Ino, Nvmfs, Result, Seq,
    posix::{Allocate, Caller, Posix, WriteOptions},
};
use lacuna_sim::{SeededRng, SimDevice, for_each_seed};

const CHUNK: u64 = 16 << 10;
const CAPACITY: u64 = 6 << 20;
const FILES: u64 = 8;
/// Changes of a store's life.
const CHANGES: u64 = 400;

fn named(text: &str) -> Compression {
    text.parse().unwrap()
}

fn formatted(seed: u64) -> Arc<SimDevice> {
    let device = SimDevice::with_block_bytes(CAPACITY, [512, 4096][seed as usize % 2], seed);
    let mut format = FormatOptions {
        uuid: Some([9; 16]),
        owner: Some(Caller::default()),
        compression: named("lz4"),
        ..FormatOptions::default()
    };
    format.ftl.segment_bytes = Some(64 << 10);
    let raw: Arc<dyn BlockDevice> = device.clone();
    Nvmfs::format(raw, &format).unwrap();
    device
}

/// Text, of which zstd makes more than LZ4; noise with words that come again, of which LZ4 may make more; noise.
fn content(rng: &mut SeededRng, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    match rng.below(4) {
        0 => rng.fill(&mut data),
        1 => {
            rng.fill(&mut data);
            for _ in 0..len / 1600 {
                let repeated = 60 + rng.below(600) as usize;
                let mut any = || rng.below((len - repeated) as u64) as usize;
                let (from, to) = (any(), any());
                data.copy_within(from..from + repeated, to);
            }
        }
        _ => {
            for part in data.chunks_mut(6) {
                part.copy_from_slice(&format!("{:05} ", rng.below(3000)).as_bytes()[..part.len()]);
            }
        }
    }
    data
}

/// A change of one file.
enum Change {
    Write { file: u64, offset: u64, data: Vec<u8> },
    Punch { file: u64, offset: u64, len: u64 },
}

impl Change {
    /// Overwrites whole chunks for the most part.
    fn random(rng: &mut SeededRng, file_bytes: u64) -> Change {
        let file = rng.below(FILES);
        let unit = if rng.chance(60) { CHUNK } else { 512 };
        let offset = rng.below(file_bytes / unit) * unit;
        let len = (1 + rng.below(3)) * unit;
        match rng.below(12) {
            0 => Change::Punch { file, offset, len },
            _ => Change::Write { file, offset, data: content(rng, len as usize) },
        }
    }

    fn apply(&self, fs: &Posix) -> Result<()> {
        match self {
            Change::Write { file, offset, data } => {
                fs.write(at(fs, *file), *offset, data, WriteOptions::default()).map(drop)
            }
            Change::Punch { file, offset, len } => {
                fs.fallocate(at(fs, *file), *offset, *len, Allocate::PunchHole, None)
            }
        }
    }
}

fn at(fs: &Posix, file: u64) -> Ino {
    fs.lookup(Ino::ROOT, format!("{file}").as_bytes()).unwrap().ino
}

fn bytes(fs: &Posix, file: u64) -> Vec<u8> {
    let ino = at(fs, file);
    let mut data = vec![0xee; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read(ino, 0, &mut data).unwrap(), data.len());
    data
}

fn all_bytes(fs: &Posix) -> Vec<Vec<u8>> {
    (0..FILES).map(|file| bytes(fs, file)).collect()
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Ftl(ftl::Error::Full { .. }))
}

/// Makes the files, of so many bytes each, and fills them until that part of what may live is taken.
fn fill(vfs: &Nvmfs, rng: &mut SeededRng, percent: u64) -> u64 {
    let fs = vfs.posix();
    for file in 0..FILES {
        fs.mknod(Ino::ROOT, format!("{file}").as_bytes(), 0o100_644, 0, Caller::default()).unwrap();
    }
    for chunk in 0.. {
        for file in 0..FILES {
            let data = content(rng, CHUNK as usize);
            fs.write(at(&fs, file), chunk * CHUNK, &data, WriteOptions::default()).unwrap();
        }
        let stats = vfs.ftl().stats();
        if stats.live_bytes >= stats.live_limit_bytes * percent / 100 {
            return (chunk + 1) * CHUNK;
        }
    }
    unreachable!("every store is full at last")
}

/// Compresses what was last written by one of these batches.
fn walk(vfs: &Nvmfs, rng: &mut SeededRng) -> Result<bool> {
    let last = vfs.ftl().last_seq().0 + 1;
    let from = if rng.chance(50) { 0 } else { rng.below(last) };
    let level = named(["zstd:1", "zstd:3", "zstd:9"][rng.below(3) as usize]);
    vfs.compress_cold(level, &(Seq(from)..Seq(last)), |_| ControlFlow::Continue(()))
}

/// Sound, and everything that counts space agrees with a recount.
fn assert_exact(vfs: &Nvmfs) {
    let report = vfs.check(CheckDepth::Payload).unwrap(); // recounts usage and live bytes
    assert!(report.is_clean(), "{:#?}", report.findings);
    let fs = vfs.posix();
    for file in 0..FILES {
        let ino = at(&fs, file);
        let room = fs.room(ino).unwrap().total();
        assert_eq!(room.stored_bytes, fs.getattr(ino).unwrap().allocated_bytes, "file {file}");
    }
}

/// Two stores live the same life, one of them with walks.
#[test]
fn no_writer_is_refused_because_of_a_walk() {
    let (mut refused, mut saved) = (0, 0);
    for_each_seed(8, |seed| {
        let rng = &mut SeededRng::new(seed);
        let percent = 70 + rng.below(29);
        let [without, with] = [formatted(seed), formatted(seed)];
        let mut twins = [open(&without).unwrap(), open(&with).unwrap()];
        let file_bytes = fill(&twins[0], &mut SeededRng::new(seed), percent);
        assert_eq!(fill(&twins[1], &mut SeededRng::new(seed), percent), file_bytes);
        for number in 0..CHANGES {
            let change = Change::random(rng, file_bytes);
            match change.apply(&twins[0].posix()) {
                Ok(()) => change
                    .apply(&twins[1].posix())
                    .unwrap_or_else(|error| panic!("change {number}, only with walks: {error}")),
                Err(error) => {
                    assert!(is_full(&error), "{error}");
                    refused += 1;
                }
            }
            if rng.chance(10) {
                let before = twins[1].ftl().stats().live_bytes;
                assert!(walk(&twins[1], rng).unwrap());
                let after = twins[1].ftl().stats().live_bytes;
                assert!(after <= before, "a walk took {} bytes", after - before);
                saved += before - after;
                assert!(after <= twins[0].ftl().stats().live_bytes);
            }
            if rng.chance(5) {
                twins.iter().for_each(|vfs| assert!(vfs.ftl().step(Work::Gc).is_ok()));
            }
            if rng.chance(2) {
                twins.iter().for_each(|vfs| vfs.close().unwrap());
                twins = [open(&without).unwrap(), open(&with).unwrap()];
            }
        }
        assert!(all_bytes(&twins[0].posix()) == all_bytes(&twins[1].posix()));
        twins.iter().for_each(assert_exact);
    });
    println!("{refused} changes refused, {saved} bytes saved");
    assert!(saved > 0, "no walk did anything");
}

#[test]
fn a_power_cut_in_a_walk_over_a_full_store_changes_nothing() {
    let (mut cuts, mut rounds) = (0, 0);
    for_each_seed(8, |seed| {
        let rng = &mut SeededRng::new(seed);
        let device = formatted(seed);
        let mut vfs = open(&device).unwrap();
        let percent = 70 + rng.below(21);
        let file_bytes = fill(&vfs, rng, percent);
        for _ in 0..6 {
            for _ in 0..60 {
                let done = Change::random(rng, file_bytes).apply(&vfs.posix());
                done.unwrap_or_else(|error| assert!(is_full(&error), "{error}"));
            }
            vfs.posix().sync().unwrap();
            let (before, live_bytes) = (all_bytes(&vfs.posix()), vfs.ftl().stats().live_bytes);
            device.set_cut_after(1 + rng.below(40));
            let walked = walk(&vfs, rng).and_then(|_| vfs.posix().sync());
            assert!(walked.is_ok() || device.is_off(), "{walked:?}");
            cuts += u64::from(device.is_off());
            rounds += 1;
            drop(vfs);
            vfs = recover(&device, rng);
            assert!(all_bytes(&vfs.posix()) == before);
            assert!(vfs.ftl().stats().live_bytes <= live_bytes);
            assert_exact(&vfs);
            // The rest of it, and writers go on.
            assert!(walk(&vfs, rng).unwrap());
            for (file, data) in (0..).zip(&before) {
                Change::Write { file, offset: 0, data: data[..4 * CHUNK as usize].to_vec() }
                    .apply(&vfs.posix())
                    .unwrap_or_else(|error| assert!(is_full(&error), "{error}"));
            }
        }
    });
    println!("{cuts} cuts in {rounds} walks");
    assert!(cuts > rounds / 4, "hardly a cut: {cuts} in {rounds}");
}
