//! Waits of operations: never for a read with a lock held (`lib.rs`), and for few rounds of reads where many reads are
//! needed.

use std::{
    num::NonZeroU64,
    ops::Range,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_sim::BeforeReads;

use crate::{
    data::{Allocate, WriteOptions, XattrMode},
    format::{Caller, Compression, Ino, Limits},
    inodes::SetAttr,
    names::Rename,
    posix::{AccessTimes, Layers, Posix},
    vfs::{Nvmfs, Options},
    volume::FormatOptions,
};

/// A store that can be opened repeatedly, each time with nothing of it in memory.
struct Cold {
    device: Arc<MemDevice>,
    map_memory: Option<u64>,
}

const NAMES: u64 = 3000;

fn name(number: u64) -> Vec<u8> {
    format!("file {number}").into_bytes()
}

impl Cold {
    fn empty(capacity_bytes: u64, map_memory: Option<u64>) -> Cold {
        let device = Arc::new(MemDevice::new(capacity_bytes));
        Nvmfs::format(device.clone(), &FormatOptions::default()).unwrap();
        Cold { device, map_memory }
    }

    /// With `names` files of some kilobytes, each in the directory `many`; so that hardly any two objects share a leaf
    /// of the map.
    fn new(names: u64, map_memory: Option<u64>) -> Cold {
        let cold = Cold::empty(names * 8192 + (64 << 20), map_memory);
        cold.with(|fs, _| {
            let many = fs.mkdir(Ino::ROOT, b"many", 0o755, Caller::default()).unwrap().ino;
            for number in 0..names {
                let ino = fs.create(many, &name(number), 0o644, Caller::default()).unwrap().ino;
                fs.write(ino, 0, &[7; 2048], WriteOptions::default()).unwrap();
                fs.release(ino).unwrap();
                if number % 10 == 0 {
                    fs.mkdir(many, format!("dir {number}").as_bytes(), 0o755, Caller::default()).unwrap();
                }
            }
        });
        cold
    }

    fn with<T>(&self, body: impl FnOnce(&Posix, &dyn Fn() -> u64) -> T) -> T {
        self.opened(true, body)
    }

    /// Only one thread can be watched: the check could not distinguish another thread's locks from its own.
    fn opened<T>(&self, is_watched: bool, body: impl FnOnce(&Posix, &dyn Fn() -> u64) -> T) -> T {
        let above = Arc::new(OnceLock::<Weak<Layers>>::new());
        let waits = Arc::new(AtomicU64::new(0)); // number of waits for the device
        let before = {
            let (above, waits) = (Arc::clone(&above), Arc::clone(&waits));
            move |_: &[Range<u64>]| {
                waits.fetch_add(1, SeqCst);
                above
                    .get()
                    .and_then(Weak::upgrade)
                    .iter()
                    .for_each(|layers| layers.inodes().assert_unlocked());
                Ok(())
            }
        };
        let watched = BeforeReads::new(self.device.clone(), before);
        let mut options = Options { access_times: AccessTimes::Never, ..Options::default() };
        options.ftl.background = false;
        options.ftl.map_memory = self.map_memory;
        let vfs = Nvmfs::open(watched, options).unwrap();
        if is_watched {
            above.set(Arc::downgrade(&vfs.layers)).expect("set once");
        }
        let result = body(&vfs.posix(), &|| waits.load(SeqCst));
        vfs.close().unwrap();
        result
    }
}

type Operation = fn(&Posix, Ino, u64);

fn ino_of(fs: &Posix, many: Ino, number: u64) -> Ino {
    fs.lookup(many, &name(number)).unwrap().ino
}

/// Everything that changes anything, on the file or directory of a number (a multiple of ten).
const OPERATIONS: &[(&str, Operation)] = &[
    ("create", |fs, many, number| {
        let ino = fs.create(many, format!("new {number}").as_bytes(), 0o644, Caller::default()).unwrap().ino;
        fs.release(ino).unwrap();
    }),
    ("symlink", |fs, many, number| {
        let name = format!("symlink {number}");
        fs.symlink(many, name.as_bytes(), &[b'x'; 700], Caller::default()).unwrap();
    }),
    ("link", |fs, many, number| {
        fs.link(ino_of(fs, many, number), many, format!("link {number}").as_bytes()).map(drop).unwrap();
    }),
    ("unlink", |fs, many, number| fs.unlink(many, &name(number)).map(drop).unwrap()),
    ("unlink while open", |fs, many, number| {
        let ino = ino_of(fs, many, number);
        fs.open(ino).unwrap();
        fs.unlink(many, &name(number)).unwrap();
        fs.release(ino).unwrap();
    }),
    ("rmdir", |fs, many, number| fs.rmdir(many, format!("dir {number}").as_bytes()).map(drop).unwrap()),
    ("rmdir of what is not empty", |fs, _, _| assert!(fs.rmdir(Ino::ROOT, b"many").is_err())),
    ("rename", |fs, many, number| {
        fs.rename(many, &name(number), Ino::ROOT, &name(number), Rename::Replace).unwrap();
    }),
    ("rename over another", |fs, many, number| {
        fs.rename(many, &name(number), many, &name(number + 1), Rename::Replace).unwrap();
    }),
    ("rename over a directory", |fs, many, number| {
        let (from, to) = (format!("dir {number}"), format!("dir {}", number + 10));
        fs.rename(many, from.as_bytes(), many, to.as_bytes(), Rename::Replace).unwrap();
    }),
    ("write", |fs, many, number| {
        fs.write(ino_of(fs, many, number), 100, &[1; 100], WriteOptions::default()).map(drop).unwrap();
    }),
    ("append", |fs, many, number| {
        fs.append(ino_of(fs, many, number), &[1; 9000], WriteOptions::default()).map(drop).unwrap();
    }),
    ("copy", |fs, many, number| {
        let (from, to) = (ino_of(fs, many, number), ino_of(fs, many, number + 1));
        assert_eq!(fs.copy_range((from, 0), (to, 4096), 2048, Some(Caller::default())).unwrap(), 2048);
    }),
    ("write of runs", |fs, many, number| {
        let runs = [(100, &[1; 100][..]), (4096, &[2; 512])];
        fs.write_runs(ino_of(fs, many, number), &runs).unwrap();
    }),
    ("punch", |fs, many, number| {
        fs.fallocate(ino_of(fs, many, number), 700, 1000, Allocate::PunchHole, Some(Caller::default()))
            .unwrap();
    }),
    ("truncate", |fs, many, number| {
        let shorter = SetAttr { size: Some(700), ..SetAttr::default() };
        fs.setattr(ino_of(fs, many, number), &shorter).map(drop).unwrap();
    }),
    ("setxattr", |fs, many, number| {
        fs.setxattr(ino_of(fs, many, number), b"user.x", &[1; 3000], XattrMode::Set).unwrap();
    }),
    ("set compression", |fs, many, number| {
        fs.set_compression(ino_of(fs, many, number), Compression::Lz4).unwrap();
    }),
    ("set that of a directory, and write below it", |fs, _, number| {
        let dir = fs.lookup(Ino::ROOT, b"many").unwrap().ino;
        fs.set_compression(dir, Compression::Lz4).unwrap();
        let ino = fs.create(dir, format!("below {number}").as_bytes(), 0o644, Caller::default()).unwrap().ino;
        fs.write(ino, 100, &[1; 20_000], WriteOptions::default()).unwrap();
        fs.release(ino).unwrap();
    }),
    ("rewrite", |fs, many, number| {
        let ino = ino_of(fs, many, number);
        fs.set_compression(ino, "zstd:3".parse().unwrap()).unwrap();
        assert_eq!(fs.rewrite(ino, 0, 4096).unwrap().written_bytes, 2048);
        assert_eq!(fs.room(ino).unwrap().zstd.mapped_bytes, 2048);
    }),
    ("walk over cold data", |fs, many, number| {
        fs.compress_all_harder();
        assert_eq!(fs.room(ino_of(fs, many, number)).unwrap().zstd.mapped_bytes, 2048);
    }),
    ("fsync", |fs, many, number| {
        let ino = ino_of(fs, many, number);
        fs.write(ino, 0, &[1; 512], WriteOptions::default()).unwrap();
        fs.fsync(ino, false).unwrap();
    }),
];

fn hold_against_locks(map_memory: Option<u64>, has_limits: bool) {
    let cold = Cold::new(NAMES, map_memory);
    if has_limits {
        let limits = Limits { bytes: NonZeroU64::new(1 << 40), inodes: None };
        let vfs = Nvmfs::open(cold.device.clone(), Options::default()).unwrap();
        vfs.set_limits(1000, limits).unwrap();
        vfs.close().unwrap();
    }
    for (index, (what, operation)) in OPERATIONS.iter().enumerate() {
        let waits = cold.with(|fs, waits| {
            // In files and directories that were not used since the store was opened.
            let many = fs.lookup(Ino::ROOT, b"many").unwrap().ino;
            fs.read_names_again();
            let before = waits();
            operation(fs, many, index as u64 * 130);
            waits() - before
        });
        assert!(waits > 0, "{what}: nothing was read, so nothing was shown");
    }
}

#[test]
fn no_lock_is_held_while_anything_is_read() {
    hold_against_locks(None, false);
}

#[test]
fn nor_with_little_memory_for_the_map() {
    hold_against_locks(Some(64 << 10), false);
}

#[test]
fn nor_where_usage_is_counted() {
    hold_against_locks(Some(64 << 10), true);
}

/// Right after an open all threads search for a free number behind the same used ones.
#[test]
fn threads_find_numbers_of_their_own() {
    const THREADS: u64 = 4;
    const FILES: u64 = 200;
    let cold = Cold::new(NAMES, None);
    cold.with(|fs, _| {
        for number in (0..NAMES).step_by(7) {
            fs.unlink(fs.lookup(Ino::ROOT, b"many").unwrap().ino, &name(number)).unwrap();
        }
    });
    let mut inos: Vec<Ino> = cold.opened(false, |fs, _| {
        std::thread::scope(|scope| {
            let make = |thread| {
                move || -> Vec<Ino> {
                    let new = |number| format!("thread {thread}, file {number}").into_bytes();
                    let made = (0..FILES).map(|number| {
                        fs.mknod(Ino::ROOT, &new(number), 0o100_644, 0, Caller::default()).unwrap().ino
                    });
                    made.collect()
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(make(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        })
    });
    inos.sort_unstable();
    inos.dedup();
    assert_eq!(inos.len() as u64, THREADS * FILES);
    // All gaps are used before new numbers: there were files, directories and the one above.
    let used = Ino::FIRST.number() + NAMES + NAMES / 10 + 1;
    assert_eq!(inos.iter().filter(|ino| ino.number() < used).count() as u64, NAMES.div_ceil(7));
}

#[test]
fn a_cold_listing_waits_for_few_reads() {
    const MANY: u64 = 20_000;
    let cold = Cold::new(MANY, None);
    let (listed, plain, reads) = cold.with(|fs, waits| {
        let many = fs.lookup(Ino::ROOT, b"many").unwrap().ino;
        let reads = || cold.device.stats().reads;
        let (before, reads_before) = (waits(), reads());
        let mut inos = Vec::new();
        fs.readdir(many, 0, &mut |entry| {
            inos.push(entry.ino);
            true
        })
        .unwrap();
        (inos, waits() - before, reads() - reads_before)
    });
    assert_eq!(listed.len() as u64, MANY + MANY / 10 + 2);
    assert!(plain <= MANY / 200, "{plain} waits for {MANY} names");
    assert!(reads <= MANY / 2, "{reads} reads for {MANY} names");
    let with_inodes = cold.with(|fs, waits| {
        let before = waits();
        for inos in listed.chunks(512) {
            fs.preload(inos);
            inos.iter().for_each(|ino| assert_eq!(fs.getattr(*ino).unwrap().ino, *ino));
        }
        waits() - before
    });
    println!("{MANY} names: {reads} reads and {plain} waits for the listing, {with_inodes} for the inodes");
    assert!(with_inodes <= MANY / 20, "{with_inodes} waits for {MANY} inodes");
}

/// A file has many pieces, in no order on the device.
#[test]
fn a_copy_of_many_pieces_waits_for_few_reads() {
    const PIECES: u64 = 10_000;
    const PIECE: u64 = 4096;
    let cold = Cold::empty(256 << 20, None);
    let [from, to] = cold.with(|fs, _| {
        let [from, to] = [b"from", b"copy"].map(|name| {
            let ino = fs.create(Ino::ROOT, name, 0o644, Caller::default()).unwrap().ino;
            fs.release(ino).unwrap();
            ino
        });
        for number in 0..PIECES {
            let piece = number * 7919 % PIECES;
            let data = vec![piece as u8 | 1; PIECE as usize];
            fs.write(from, piece * 2 * PIECE, &data, WriteOptions::default()).unwrap();
        }
        [from, to]
    });
    let size = (PIECES * 2 - 1) * PIECE;
    let (copies, waits_for_copy) = cold.with(|fs, waits| {
        let (before, mut at, mut copies) = (waits(), 0, 0);
        while at < size {
            at += fs.copy_range((from, at), (to, at), u64::MAX, Some(Caller::default())).unwrap();
            copies += 1;
        }
        (copies, waits() - before)
    });
    let waits_for_runs = cold.with(|fs, waits| {
        let (before, mut at, mut found) = (waits(), 0, 0);
        while at < size {
            let runs = fs.read_runs(to, at).unwrap();
            for (offset, data) in &runs.runs {
                let piece = offset / PIECE / 2;
                assert_eq!((offset % (2 * PIECE), data.len() as u64), (0, PIECE));
                assert!(data.iter().all(|byte| *byte == piece as u8 | 1), "piece {piece}");
            }
            (at, found) = (runs.end, found + runs.runs.len() as u64);
        }
        assert_eq!((at, found), (size, PIECES));
        waits() - before
    });
    println!("{PIECES} pieces: {copies} copies, {waits_for_copy} waits; {waits_for_runs} to read the runs");
    assert!(copies <= PIECES / 1000, "{copies} copies of {PIECES} pieces");
    assert!(waits_for_copy.max(waits_for_runs) <= PIECES / 100, "{waits_for_copy}, {waits_for_runs} waits");
}
