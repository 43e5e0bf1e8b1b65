//! Large directories and files with very many holes. `./test --nightly` (`LACUNA_CASES` from 1,000 on)
//! makes them ten times as large.

use std::{collections::HashSet, sync::Arc};

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_nvmfs::{
    CheckDepth, FILE_BYTES_MAX, FormatOptions, Ino, Nvmfs, Options,
    posix::{Allocate, Caller, Posix, SetAttr, WriteOptions},
};
use lacuna_sim::{SeededRng, for_each_seed};

fn is_nightly() -> bool {
    std::env::var("LACUNA_CASES").is_ok_and(|cases| cases.parse::<u64>().is_ok_and(|cases| cases >= 1000))
}

fn open(capacity_bytes: u64) -> Nvmfs {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(capacity_bytes));
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).unwrap();
    Nvmfs::open(device, Options::default()).unwrap()
}

fn list(fs: &Posix, ino: Ino, cursor: u64, count: usize) -> (Vec<Vec<u8>>, u64) {
    let (mut names, mut next) = (Vec::new(), cursor);
    fs.readdir(ino, cursor, &mut |entry| {
        if names.len() == count {
            return false;
        }
        names.push(entry.name.to_vec());
        next = entry.next;
        true
    })
    .unwrap();
    (names, next)
}

#[test]
fn many_names_in_one_directory() {
    let count: u32 = if is_nightly() { 1_000_000 } else { 100_000 };
    let vfs = open(u64::from(count) * 1024 + (64 << 20));
    let fs = vfs.posix();
    let directory = fs.mkdir(Ino::ROOT, b"many", 0o755, Caller::default()).unwrap().ino;
    let name = |number: u32| format!("name of file {number}").into_bytes();
    for number in 0..count {
        fs.mknod(directory, &name(number), 0o100_644, 0, Caller::default()).unwrap();
    }
    for number in (0..count).step_by(997) {
        fs.lookup(directory, &name(number)).unwrap();
    }

    // Listed in pieces, while names are added and removed: names that stay are seen once.
    let mut seen = HashSet::new();
    let (mut cursor, mut removed) = (0, 0);
    loop {
        let (names, next) = list(&fs, directory, cursor, count as usize / 20);
        if names.is_empty() {
            break;
        }
        for name in names {
            assert!(seen.insert(name), "seen twice");
        }
        cursor = next;
        for number in removed..removed + count / 100 {
            fs.unlink(directory, &name(number * 2)).unwrap();
            fs.mknod(directory, &format!("new {number}").into_bytes(), 0o100_644, 0, Caller::default())
                .unwrap();
        }
        removed += count / 100;
    }
    for number in (1..count).step_by(2) {
        assert!(seen.contains(&name(number)), "{number} was not seen");
    }
    let report = vfs.check(CheckDepth::Structure).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!(report.files, u64::from(count));
    let statfs = fs.statfs().unwrap();
    assert_eq!(statfs.inodes - statfs.free_inodes, u64::from(count) + 2);
}

#[test]
fn a_file_with_many_holes_goes_at_once() {
    let holes: u64 = if is_nightly() { 1_024_000 } else { 102_400 };
    let vfs = open(holes * 1536 + (64 << 20));
    let fs = vfs.posix();
    let free_bytes = || fs.statfs().unwrap().free_bytes;
    let before = free_bytes();
    let file = fs.create(Ino::ROOT, b"holes", 0o600, Caller::default()).unwrap().ino;
    let piece = [7; 64 * 1024];
    for offset in (0..holes * 1024).step_by(piece.len()) {
        fs.write(file, offset, &piece, WriteOptions::default()).unwrap();
    }
    for hole in 0..holes {
        fs.fallocate(file, hole * 1024, 512, Allocate::PunchHole, None).unwrap();
    }
    let attr = fs.getattr(file).unwrap();
    assert_eq!((attr.size, attr.allocated_bytes), (holes * 1024, holes * 512));
    assert_eq!((fs.seek_data(file, 0).unwrap(), fs.seek_hole(file, 512).unwrap()), (512, 1024));
    fs.release(file).unwrap();

    let batches = vfs.ftl().stats().batches;
    fs.unlink(Ino::ROOT, b"holes").unwrap();
    assert_eq!(vfs.ftl().stats().batches, batches + 1, "it goes in one batch");
    assert!(before - free_bytes() < 4096, "all of its space is free at once");
    assert!(vfs.check(CheckDepth::Structure).unwrap().is_clean());
}

/// The end of the largest file is the end of its inode's region, which is no sector of it.
#[test]
fn a_file_may_reach_the_end_of_its_region() {
    const LAST: u64 = FILE_BYTES_MAX - 4096;
    let vfs = open(64 << 20);
    let fs = vfs.posix();
    let create = |name: &[u8]| fs.create(Ino::ROOT, name, 0o600, Caller::default()).unwrap().ino;
    let (file, other) = (create(b"file"), create(b"other"));
    let data = [7; 4096];
    fs.write(file, LAST, &data, WriteOptions::default()).unwrap();
    for what in [Allocate::KeepSize, Allocate::ZeroRange { keep_size: false }, Allocate::Extend] {
        for (offset, len) in [(LAST, 4096), (FILE_BYTES_MAX - 1, 1), (FILE_BYTES_MAX - 513, 512)] {
            fs.fallocate(other, offset, len, what, None).unwrap();
            fs.fallocate(file, offset, len, Allocate::Extend, None).unwrap();
        }
    }
    let too_large = fs.fallocate(other, 0, FILE_BYTES_MAX, Allocate::Extend, None);
    assert!(too_large.is_err_and(|error| error.to_string().contains("space")), "more than the store has");
    fs.fallocate(other, LAST, 4096, Allocate::PunchHole, None).unwrap();

    fs.set_compression(file, "zstd:3".parse().unwrap()).unwrap();
    assert!(fs.rewrite(file, 0, FILE_BYTES_MAX).unwrap().read_bytes >= 4096);
    assert_eq!(fs.copy_range((file, LAST), (other, LAST), 4096, None).unwrap(), 4096);
    assert_eq!(fs.copy_range((file, LAST + 1), (other, LAST + 1), 4095, None).unwrap(), 4095);
    for ino in [file, other] {
        let mut read = [0; 4096];
        assert_eq!(fs.read(ino, LAST, &mut read).unwrap(), 4096);
        assert!(read == data);
        assert_eq!(fs.getattr(ino).unwrap().size, FILE_BYTES_MAX);
        assert_eq!((fs.seek_data(ino, 0).unwrap(), fs.seek_hole(ino, LAST).unwrap()), (LAST, FILE_BYTES_MAX));
        let runs = fs.read_runs(ino, LAST).unwrap();
        assert_eq!((runs.runs.len(), runs.end), (1, FILE_BYTES_MAX));
        assert_eq!(vfs.remaining_data(ino, LAST).unwrap().found.end, FILE_BYTES_MAX);
        assert!(vfs.remaining_data(ino, FILE_BYTES_MAX).unwrap().found.runs.is_empty());
    }
    assert!(vfs.check(CheckDepth::Structure).unwrap().is_clean());
}

/// The last bytes of the largest file against the same bytes in memory.
#[test]
fn random_changes_at_the_end_of_a_region_match_the_model() {
    const BYTES: u64 = 24 << 10;
    const BASE: u64 = FILE_BYTES_MAX - BYTES;
    for_each_seed(20, |seed| {
        let mut rng = SeededRng::new(seed);
        let vfs = open(32 << 20);
        let fs = vfs.posix();
        let ino = fs.create(Ino::ROOT, b"file", 0o600, Caller::default()).unwrap().ino;
        let compression = ["none", "lz4", "zstd:3"][rng.below(3) as usize];
        fs.set_compression(ino, compression.parse().unwrap()).unwrap();
        let resize = |len: u64| {
            fs.setattr(ino, &SetAttr { size: Some(BASE + len), ..SetAttr::default() }).unwrap();
        };
        resize(0);
        let mut model: Vec<u8> = Vec::new();
        for step in 0..200 {
            let mut place = |most: u64| {
                let place = rng.below(most + 1);
                if rng.chance(40) { place / 512 * 512 } else { place }
            };
            let start = place(BYTES - 1);
            let end = place(2 * BYTES).clamp(start + 1, BYTES);
            let (offset, len) = (BASE + start, end - start);
            let range = start as usize..end as usize;
            let grow = |model: &mut Vec<u8>| model.resize(model.len().max(range.end), 0);
            match rng.below(9) {
                0 => {
                    resize(end);
                    model.resize(range.end, 0);
                }
                1 => {
                    fs.fallocate(ino, offset, len, Allocate::PunchHole, None).unwrap();
                    let there = range.start.min(model.len())..range.end.min(model.len());
                    model[there].fill(0);
                }
                2 => {
                    fs.fallocate(ino, offset, len, Allocate::ZeroRange { keep_size: false }, None).unwrap();
                    grow(&mut model);
                    model[range].fill(0);
                }
                3 => {
                    fs.fallocate(ino, offset, len, Allocate::Extend, None).unwrap();
                    grow(&mut model);
                }
                4 => fs.fallocate(ino, offset, len, Allocate::KeepSize, None).unwrap(),
                5 => drop(fs.rewrite(ino, offset, len).unwrap()),
                6 => {
                    // Source and target do not overlap.
                    let count = len.min(start).min(model.len() as u64);
                    let mut copied = 0;
                    while copied < count {
                        let (from, to) = ((ino, BASE + copied), (ino, offset + copied));
                        copied += fs.copy_range(from, to, count - copied, None).unwrap();
                    }
                    if count > 0 {
                        model.resize(model.len().max((start + count) as usize), 0);
                        model.copy_within(..count as usize, range.start);
                    }
                }
                _ => {
                    let mut data = vec![7; len as usize];
                    let noise = rng.below(len + 1) as usize;
                    rng.fill(&mut data[..noise]);
                    assert_eq!(fs.write(ino, offset, &data, WriteOptions::default()).unwrap() as u64, len);
                    grow(&mut model);
                    model[range].copy_from_slice(&data);
                }
            }
            let mut read = vec![1; BYTES as usize];
            let count = fs.read(ino, BASE, &mut read).unwrap();
            assert_eq!(fs.getattr(ino).unwrap().size, BASE + model.len() as u64, "step {step}");
            assert!(read[..count] == model[..], "step {step}");
        }
        assert!(vfs.check(CheckDepth::Payload).unwrap().is_clean());
    });
}
