//! Compression per file: what is stored, what it takes, what is handed down, and rewriting it while it is in use.

use std::{
    num::NonZeroU64,
    ops::ControlFlow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use crate::by_inode::{self, NOBODY, PLAIN, ROOT, assert_clean, at, clock, dir, file, refused, times};
use lacuna_device::{BlockDevice, MemDevice, StreamHint, Vfs};
use lacuna_ftl as ftl;
use lacuna_nvmfs::{
    Compression, Error, FormatOptions, Ino, Limits, Nvmfs, Options, Refusal, Room, Seq,
    posix::{Allocate, Caller, Posix, SetAttr, WriteOptions},
};
use lacuna_sim::{BeforeReads, SeededRng, for_each_seed, forge::reseal_sector};

const CHUNK: usize = 16 << 10;

fn named(text: &str) -> Compression {
    text.parse().unwrap()
}

/// A store whose default is that.
fn formatted(capacity_bytes: u64, default: &str) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(capacity_bytes));
    let options = FormatOptions {
        uuid: Some([7; 16]),
        clock,
        owner: Some(Caller::default()),
        compression: named(default),
        ..FormatOptions::default()
    };
    Nvmfs::format(Arc::clone(&device), &options).unwrap();
    device
}

fn open(device: &Arc<dyn BlockDevice>) -> Nvmfs {
    open_with(device, "default")
}

fn open_with(device: &Arc<dyn BlockDevice>, of_mount: &str) -> Nvmfs {
    let options = Options { clock, compression: named(of_mount), ..Options::default() };
    Nvmfs::open(Arc::clone(device), options).unwrap()
}

/// Bytes of which a quarter is noise.
fn shrinking(rng: &mut SeededRng, len: usize) -> Vec<u8> {
    let mut data = vec![7; len];
    for part in data.chunks_mut(512) {
        let noise = part.len().min(128);
        rng.fill(&mut part[..noise]);
    }
    data
}

fn noise(rng: &mut SeededRng, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    rng.fill(&mut data);
    data
}

fn write(fs: &Posix, ino: Ino, offset: u64, data: &[u8]) {
    assert_eq!(fs.write(ino, offset, data, WriteOptions::default()).unwrap(), data.len());
}

fn content(fs: &Posix, ino: Ino) -> Vec<u8> {
    let mut data = vec![0xee; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read(ino, 0, &mut data).unwrap(), data.len());
    data
}

/// The room of a file, which must be what is counted for it.
fn room(fs: &Posix, ino: Ino) -> Room {
    let room = fs.room(ino).unwrap();
    assert_eq!(room.total().stored_bytes, fs.getattr(ino).unwrap().allocated_bytes);
    room
}

#[test]
fn data_is_stored_as_the_file_says() {
    let device = formatted(64 << 20, "default");
    let vfs = open(&device);
    let (fs, mut rng) = (vfs.posix(), SeededRng::new(1));
    let data = shrinking(&mut rng, 8 * CHUNK);
    for text in ["none", "lz4", "zstd:1", "zstd:19"] {
        let ino = file(&fs, text);
        fs.set_compression(ino, named(text)).unwrap();
        assert_eq!(fs.compression(ino).unwrap(), (named(text), named(text)));
        write(&fs, ino, 0, &data);
        let Room { plain, lz4, zstd } = room(&fs, ino);
        let of = match text {
            "none" => plain,
            "lz4" => lz4,
            _ => zstd,
        };
        assert_eq!(of.mapped_bytes, data.len() as u64, "{text}");
        assert_eq!(of.stored_bytes < data.len() as u64 / 2, text != "none", "{text}: {of:?}");
        assert!(content(&fs, ino) == data);
    }
    refused(
        fs.set_compression(fs.symlink(ROOT, b"s", b"x", NOBODY).unwrap().ino, named("lz4")),
        Refusal::Invalid,
    );
    vfs.close().unwrap();
    drop((fs, vfs));
    let vfs = open(&device);
    for text in ["none", "lz4", "zstd:1", "zstd:19"] {
        let ino = vfs.posix().lookup(ROOT, text.as_bytes()).unwrap().ino;
        assert_eq!(vfs.posix().compression(ino).unwrap().0, named(text));
        assert!(content(&vfs.posix(), ino) == data);
    }
    assert_clean(&vfs);
}

#[test]
fn each_way_to_write_compresses() {
    let vfs = open(&formatted(64 << 20, "lz4"));
    let (fs, mut rng) = (vfs.posix(), SeededRng::new(2));
    let data = shrinking(&mut rng, 4 * CHUNK);
    let whole = |ino: Ino| {
        let Room { plain, lz4, .. } = room(&fs, ino);
        assert_eq!((plain.mapped_bytes, lz4.mapped_bytes), (0, data.len() as u64), "{ino:?}");
        assert!(content(&fs, ino) == data);
    };
    let written = file(&fs, "written");
    write(&fs, written, 0, &data);
    whole(written);
    let appended = file(&fs, "appended");
    fs.append(appended, &data, PLAIN).unwrap();
    whole(appended);
    let runs = file(&fs, "runs");
    fs.write_runs(runs, &[(0, &data[..CHUNK]), (CHUNK as u64, &data[CHUNK..])]).unwrap();
    whole(runs);
    let copied = file(&fs, "copied");
    write(&fs, copied, 0, &shrinking(&mut rng, 4 * CHUNK));
    assert_eq!(fs.copy_range((written, 0), (copied, 0), u64::MAX, None).unwrap(), data.len() as u64);
    whole(copied);
    let by_name = vfs.create("by name", StreamHint::Data).unwrap();
    by_name.write_at(0, &data).unwrap();
    whole(fs.lookup(ROOT, b"by name").unwrap().ino);
    // Holes stay holes in a copy, also where there was data.
    fs.fallocate(written, CHUNK as u64, CHUNK as u64, Allocate::PunchHole, None).unwrap();
    fs.copy_range((written, 0), (copied, 0), u64::MAX, None).unwrap();
    assert_eq!(room(&fs, copied).lz4.mapped_bytes, 3 * CHUNK as u64);
    assert!(content(&fs, copied) == content(&fs, written));
    // What has no sector to be saved is left alone.
    let small = file(&fs, "small");
    write(&fs, small, 0, &[1; 512]);
    assert_eq!(room(&fs, small).plain.mapped_bytes, 512);
    assert_clean(&vfs);
}

#[test]
fn what_a_directory_says_is_handed_down_and_defaults_are_not() {
    let device = formatted(64 << 20, "zstd:2");
    let vfs = open(&device);
    let fs = vfs.posix();
    assert_eq!((vfs.store_compression(), vfs.default_compression()), (named("zstd:2"), named("zstd:2")));
    let above = dir(&fs, ROOT, "above");
    assert_eq!(fs.compression(above).unwrap(), (Compression::Default, named("zstd:2")));
    fs.set_compression(above, named("lz4")).unwrap();
    let below = dir(&fs, above, "below");
    let made = fs.mknod(below, b"made", 0o100_644, 0, NOBODY).unwrap().ino;
    let created = fs.create(below, b"created", 0o644, NOBODY).unwrap().ino;
    let unnamed = fs.create_unnamed(below, 0o600, false, NOBODY).unwrap().ino;
    for ino in [below, made, created, unnamed] {
        assert_eq!(fs.compression(ino).unwrap(), (named("lz4"), named("lz4")));
    }
    fs.mknod(below, b"fifo", 0o010_644, 0, NOBODY).unwrap();
    fs.symlink(below, b"link", b"x", NOBODY).unwrap();
    assert_eq!(fs.compression(file(&fs, "at the top")).unwrap().0, Compression::Default);
    // A name says nothing: what moves stays as it is.
    fs.set_compression(below, Compression::None).unwrap();
    assert_eq!(fs.compression(made).unwrap().0, named("lz4"));
    // A new default is at once that of all who say nothing.
    fs.set_compression(ROOT, named("zstd:9")).unwrap();
    let top = fs.lookup(ROOT, b"at the top").unwrap().ino;
    assert_eq!(fs.compression(top).unwrap(), (Compression::Default, named("zstd:9")));
    drop(fs);
    vfs.close().unwrap();
    drop(vfs);
    for (of_mount, expected) in [("default", "zstd:9"), ("none", "none"), ("lz4", "lz4")] {
        let vfs = open_with(&device, of_mount);
        assert_eq!(vfs.posix().compression(top).unwrap().1, named(expected));
        assert_eq!(vfs.posix().compression(made).unwrap().1, named("lz4"), "its own comes first");
        vfs.set_compression(named("zstd:4"));
        assert_eq!(vfs.posix().compression(top).unwrap().1, named("zstd:4"));
        assert_clean(&vfs);
    }
}

/// Programs from before there was compression must refuse the store by name, and open it as long as no inode has one.
#[test]
fn the_superblock_names_compression_before_an_inode_has_one() {
    let features = |vfs: &Nvmfs| {
        let sectors = vfs.ftl().read_sectors(&[ftl::Lba(0)]).unwrap();
        u64::from_le_bytes(sectors[0].1[32..40].try_into().unwrap())
    };
    for default in ["default", "none", "lz4"] {
        let device = formatted(64 << 20, default);
        let vfs = open_with(&device, "lz4");
        assert_eq!(features(&vfs) == 1, default != "default");
        let ino = file(&vfs.posix(), "file");
        vfs.posix().set_compression(ino, Compression::Default).unwrap();
        write(&vfs.posix(), ino, 0, &[1; CHUNK]);
        assert_eq!(room(&vfs.posix(), ino).lz4.mapped_bytes, CHUNK as u64, "by the mount");
        assert_eq!(features(&vfs) == 1, default != "default");
        vfs.posix().set_compression(ino, Compression::None).unwrap();
        assert_eq!(features(&vfs), 1);
        vfs.close().unwrap();
        drop(vfs);
        assert_clean(&open(&device));
    }
}

/// Changes a sector of a file system that nobody has open.
fn forge(device: &Arc<dyn BlockDevice>, lba: ftl::Lba, change: impl FnOnce(&mut [u8; 512])) {
    let store = ftl::Ftl::open(Arc::clone(device), ftl::Options::default()).unwrap();
    let mut sector = store.read_sectors(&[lba]).unwrap()[0].1;
    change(&mut sector);
    reseal_sector(&mut sector);
    store.write_batch(&[ftl::Op::Write { lba, data: &sector }], ftl::Stream::Data).unwrap();
    store.close().unwrap();
}

fn inode_lba(ino: Ino) -> ftl::Lba {
    ftl::Lba((1 << 36) + ino.number())
}

#[test]
fn a_forged_compression_is_an_error_of_its_inode() {
    for (bytes, reason) in [([9, 0], "unknown compression"), ([2, 0], "unknown compression")] {
        let device = formatted(64 << 20, "default");
        let vfs = open(&device);
        let (forged, other) = (file(&vfs.posix(), "forged"), file(&vfs.posix(), "other"));
        vfs.close().unwrap();
        drop(vfs);
        forge(&device, inode_lba(forged), |sector| sector[69..71].copy_from_slice(&bytes));
        let vfs = open(&device);
        let error = vfs.posix().getattr(forged).unwrap_err();
        assert!(matches!(error, Error::Corrupt { reason: found, .. } if found == reason), "{error}");
        vfs.posix().getattr(other).unwrap();
        let report = vfs.check(lacuna_nvmfs::CheckDepth::Payload).unwrap();
        assert!(report.findings.iter().any(|finding| finding.message.contains(reason)), "{report:?}");
    }
}

/// The bit tells other programs; how data is read never depends on it. So such a store is used as its inodes say, `check`
/// says that the bit is missing, and to set a compression sets it.
#[test]
fn a_compression_that_the_superblock_does_not_name_is_obeyed_and_found() {
    let device = formatted(64 << 20, "lz4");
    let vfs = open(&device);
    let (other, zstd) = (file(&vfs.posix(), "other"), file(&vfs.posix(), "zstd"));
    vfs.posix().set_compression(zstd, named("zstd:2")).unwrap();
    write(&vfs.posix(), zstd, 0, &[1; CHUNK]);
    vfs.close().unwrap();
    drop(vfs);
    forge(&device, ftl::Lba(0), |superblock| superblock[32..40].fill(0));
    let vfs = open(&device);
    let findings = || -> Vec<String> {
        let report = vfs.check(lacuna_nvmfs::CheckDepth::Payload).unwrap();
        report.findings.into_iter().map(|finding| finding.message).collect()
    };
    let missing = |ino: Ino| {
        let ino = ino.number();
        format!("invariant 8: inode {ino} has a compression and the superblock does not say that one may")
    };
    assert_eq!(findings(), [Ino::ROOT, zstd].map(missing));
    write(&vfs.posix(), zstd, CHUNK as u64, &[2; CHUNK]);
    assert_eq!(room(&vfs.posix(), zstd).zstd.mapped_bytes, 2 * CHUNK as u64);
    assert_eq!(content(&vfs.posix(), zstd), [[1; CHUNK], [2; CHUNK]].concat());
    vfs.posix().set_compression(other, named("none")).unwrap();
    assert_eq!(findings(), Vec::<String>::new());
}

#[test]
fn data_that_does_not_shrink_is_hardly_tried() {
    for (text, every) in [("lz4", 128), ("zstd:3", 1024)] {
        let vfs = open(&formatted(128 << 20, text));
        let (fs, mut rng) = (vfs.posix(), SeededRng::new(3));
        let ino = file(&fs, "noise");
        let data = noise(&mut rng, 64 * CHUNK);
        for number in 0..34 {
            write(&fs, ino, number * data.len() as u64, &data);
        }
        let stats = vfs.compression_stats();
        let chunks = 34 * 64;
        assert_eq!(stats.in_vain_chunks + stats.skipped_chunks, chunks);
        assert_eq!(stats.in_vain_chunks, chunks.div_ceil(every), "{text}");
        assert_eq!(room(&fs, ino).plain.mapped_bytes, chunks * CHUNK as u64);
        // Another file is another matter, and a rewrite tries each chunk.
        let other = file(&fs, "other");
        write(&fs, other, 0, &shrinking(&mut rng, CHUNK));
        assert_eq!(room(&fs, other).plain.mapped_bytes, 0);
        write(&fs, ino, 0, &shrinking(&mut rng, CHUNK));
        assert_eq!(fs.rewrite(ino, 0, CHUNK as u64).unwrap().written_bytes, CHUNK as u64);
        assert_eq!(room(&fs, ino).plain.mapped_bytes, (chunks - 1) * CHUNK as u64);
        let stats = vfs.compression_stats();
        assert!(stats.shortened_bytes >= 2 * CHUNK as u64 && stats.stored_bytes < stats.shortened_bytes);
    }
}

/// Overwrites of all kinds, and rewrites in between, against the same bytes in memory; and the room that they take.
#[test]
fn random_overwrites_leave_the_bytes_and_the_room_exact() {
    for_each_seed(12, |seed| {
        let device = formatted(32 << 20, "default");
        let mut rng = SeededRng::new(seed);
        let mut vfs = open(&device);
        let ino = file(&vfs.posix(), "file");
        let mut model = Vec::new();
        for _ in 0..150 {
            let fs = vfs.posix();
            let (offset, len) = (rng.below(12 * CHUNK as u64), 1 + rng.below(3 * CHUNK as u64));
            let (offset, len) =
                if rng.chance(50) { (offset / 512 * 512, len.next_multiple_of(512)) } else { (offset, len) };
            let end = (offset + len) as usize;
            match rng.below(10) {
                0 => {
                    fs.set_compression(
                        ino,
                        named(["none", "lz4", "zstd:1", "default"][rng.below(4) as usize]),
                    )
                    .unwrap();
                }
                1 => {
                    fs.rewrite(ino, offset, len).unwrap();
                }
                2 => {
                    fs.fallocate(ino, offset, len, Allocate::PunchHole, None).unwrap();
                    let end = end.min(model.len());
                    model[(offset as usize).min(end)..end].fill(0);
                }
                3 => {
                    fs.setattr(ino, &SetAttr { size: Some(offset), ..SetAttr::default() }).unwrap();
                    model.resize(offset as usize, 0);
                }
                _ => {
                    let data = if rng.chance(70) {
                        shrinking(&mut rng, len as usize)
                    } else {
                        noise(&mut rng, len as usize)
                    };
                    write(&fs, ino, offset, &data);
                    model.resize(model.len().max(end), 0);
                    model[offset as usize..end].copy_from_slice(&data);
                }
            }
            assert!(content(&fs, ino) == model);
            room(&fs, ino);
            if rng.chance(3) {
                drop(fs);
                vfs.close().unwrap();
                drop(vfs);
                vfs = open(&device);
            }
        }
        assert_clean(&vfs);
    });
}

#[test]
fn a_rewrite_brings_old_data_under_the_new_compression() {
    let vfs = open(&formatted(64 << 20, "default"));
    let (fs, mut rng) = (vfs.posix(), SeededRng::new(5));
    let ino = file(&fs, "file");
    let data = shrinking(&mut rng, 100 * CHUNK);
    for (number, part) in data.chunks(4096).enumerate() {
        write(&fs, ino, number as u64 * 4096, part);
    }
    // Far away, behind a hole.
    write(&fs, ino, 1 << 40, &data[..CHUNK]);
    fs.fsync(ino, false).unwrap();
    by_inode::SECONDS.set(2000);
    let before = room(&fs, ino);
    assert_eq!(before.plain.mapped_bytes, 101 * CHUNK as u64);
    assert_eq!(fs.rewrite(ino, 0, u64::MAX >> 20).unwrap().written_bytes, 0, "it stays as it is");
    fs.set_compression(ino, named("zstd:5")).unwrap();
    assert_eq!(room(&fs, ino), before);
    by_inode::SECONDS.set(3000);
    let rewritten = fs.rewrite(ino, 0, (1 << 40) + CHUNK as u64).unwrap();
    assert_eq!((rewritten.read_bytes, rewritten.written_bytes), (101 * CHUNK as u64, 101 * CHUNK as u64));
    let after = room(&fs, ino);
    assert!(
        after.plain.mapped_bytes == 0 && after.zstd.stored_bytes < before.plain.stored_bytes / 2,
        "{after:?}"
    );
    assert!(times(&fs.getattr(ino).unwrap()) == (1000, 1000, 2000), "{:?}", fs.getattr(ino));
    let mut back = vec![0; data.len()];
    fs.read(ino, 0, &mut back).unwrap();
    assert!(back == data);
    // And back, part by part: to whole chunks.
    fs.set_compression(ino, Compression::None).unwrap();
    fs.rewrite(ino, 5 * CHUNK as u64 + 1, 1).unwrap();
    assert_eq!(room(&fs, ino).plain.mapped_bytes, CHUNK as u64);
    fs.rewrite(ino, 0, (1 << 40) + CHUNK as u64).unwrap();
    assert_eq!(room(&fs, ino), before);
    refused(fs.rewrite(dir(&fs, ROOT, "dir"), 0, 1), Refusal::IsADirectory);
    refused(fs.rewrite(ino, u64::MAX, 1), Refusal::FileTooLarge);
    assert_eq!(at(1000).seconds, 1000);
    assert_clean(&vfs);
}

/// What is written after `rewrite` has looked at the data and before it writes them: it stays.
fn assert_write_between_stays(default: &str, rewrite: impl Fn(&Nvmfs, Ino)) {
    type Work = Box<dyn FnOnce() + Send>;
    let device = formatted(64 << 20, default);
    let vfs = open(&device);
    let ino = file(&vfs.posix(), "file");
    write(&vfs.posix(), ino, 0, &shrinking(&mut SeededRng::new(1), 4 * CHUNK));
    vfs.close().unwrap();
    let before_read: Arc<Mutex<Option<Work>>> = Arc::default();
    let of_device = Arc::clone(&before_read);
    let vfs = open(
        &(BeforeReads::new(device, move |_| {
            let work = of_device.lock().unwrap().take();
            work.into_iter().for_each(|work| work());
            Ok(())
        }) as Arc<dyn BlockDevice>),
    );
    let fs = vfs.posix();
    fs.read(ino, 0, &mut [0; 8]).unwrap(); // only the data are read from now on
    let (starts, writer) = mpsc::channel();
    *before_read.lock().unwrap() = Some(Box::new(move || {
        let (done, waits) = mpsc::channel();
        let write_it = std::thread::spawn(move || {
            write(&fs, ino, 1000, &[9; 8]);
            let _ = done.send(());
        });
        // Where the sectors are held, it waits for them, and this not for it.
        let _ = waits.recv_timeout(Duration::from_secs(1));
        starts.send(write_it).unwrap();
    }));
    rewrite(&vfs, ino);
    writer.try_recv().expect("the rewrite read nothing").join().unwrap();
    let mut found = [0; 8];
    vfs.posix().read(ino, 1000, &mut found).unwrap();
    assert_eq!(found, [9; 8]);
    assert_clean(&vfs);
}

#[test]
fn what_is_written_in_the_middle_of_a_rewrite_stays() {
    assert_write_between_stays("zstd:3", |vfs, ino| {
        vfs.posix().rewrite(ino, 0, 4 * CHUNK as u64).unwrap();
    });
}

#[test]
fn what_is_written_in_the_middle_of_a_walk_over_cold_data_stays() {
    assert_write_between_stays("lz4", |vfs, _| {
        let all = Seq(0)..Seq(u64::MAX);
        assert!(vfs.compress_cold(named("zstd:3"), &all, |_| ControlFlow::Continue(())).unwrap());
    });
}

/// Writers that count up, each in sectors of its own, while others rewrite them: no count ever goes back.
#[test]
fn what_is_written_beside_a_rewrite_stays() {
    let vfs = open(&formatted(64 << 20, "zstd:3"));
    assert_counts_stay(&vfs, |ino| vfs.posix().rewrite(ino, 0, 4 * CHUNK as u64).unwrap().written_bytes > 0);
}

#[test]
fn what_is_written_beside_a_walk_over_cold_data_stays() {
    let vfs = open(&formatted(64 << 20, "lz4"));
    assert_counts_stay(&vfs, |_| {
        let all = Seq(0)..Seq(u64::MAX);
        let before = vfs.compression_stats().recompressed_bytes;
        assert!(vfs.compress_cold(named("zstd:3"), &all, |_| ControlFlow::Continue(())).unwrap());
        vfs.compression_stats().recompressed_bytes > before
    });
}

/// `rewrite` returns whether it wrote anything.
fn assert_counts_stay(vfs: &Nvmfs, rewrite: impl Fn(Ino) -> bool + Sync) {
    const WRITERS: u64 = 3;
    const SECTORS: u64 = 24;
    let fs = vfs.posix();
    let ino = file(&fs, "file");
    write(&fs, ino, 0, &[1; 4 * CHUNK]);
    (0..WRITERS * SECTORS).for_each(|sector| write(&fs, ino, sector * 512, &[0; 8]));
    let (ends, rewrites) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (fs, rewrites) = (fs.clone(), &rewrites);
                scope.spawn(move || {
                    let mut rng = SeededRng::new(writer);
                    let mut counts = [0_u64; SECTORS as usize];
                    let mut number = 0;
                    // Until enough was rewritten beside it, for which it may have to leave others time.
                    while number < 200 || rewrites.load(SeqCst) < 20 {
                        number += 1;
                        if number > 200 {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                        let sector = rng.below(SECTORS);
                        let at = (sector * WRITERS + writer) * 512;
                        let mut found = [0; 8];
                        fs.read(ino, at, &mut found).unwrap();
                        let count = &mut counts[sector as usize];
                        assert_eq!(u64::from_le_bytes(found), *count, "writer {writer}, sector {sector}");
                        *count += 1;
                        write(&fs, ino, at, &count.to_le_bytes());
                    }
                })
            })
            .collect();
        let rewriters: Vec<_> = (0..2)
            .map(|_| {
                let (ends, rewrites, rewrite) = (&ends, &rewrites, &rewrite);
                scope.spawn(move || {
                    while !ends.load(SeqCst) {
                        rewrites.fetch_add(u64::from(rewrite(ino)), SeqCst);
                    }
                })
            })
            .collect();
        let written: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        ends.store(true, SeqCst);
        rewriters.into_iter().for_each(|rewriter| rewriter.join().unwrap());
        written.into_iter().for_each(|written| written.unwrap());
    });
    assert_clean(vfs);
}

#[test]
fn quotas_count_what_is_stored() {
    const UID: u32 = 1000;
    let device = formatted(64 << 20, "default");
    let vfs = open(&device);
    let limits = Limits { bytes: NonZeroU64::new(1 << 20), inodes: None };
    vfs.set_limits(UID, limits).unwrap();
    let used = |vfs: &Nvmfs| {
        let quotas = vfs.quotas().unwrap();
        quotas.iter().find(|quota| quota.uid == UID).map_or(0, |quota| quota.used.bytes)
    };
    let (fs, mut rng) = (vfs.posix().for_users(), SeededRng::new(6));
    let caller = Caller { uid: UID, gid: UID, umask: 0 };
    let ino = fs.mknod(ROOT, b"file", 0o100_644, 0, caller).unwrap().ino;
    fs.set_compression(ino, named("lz4")).unwrap();
    let data = shrinking(&mut rng, 120 * CHUNK);
    write(&fs, ino, 0, &data);
    assert_eq!(used(&vfs), room(&fs, ino).total().stored_bytes);
    assert!(used(&vfs) < data.len() as u64 / 2);
    for _ in 0..200 {
        let offset = rng.below(118 * CHUNK as u64);
        let len = 1 + rng.below(2 * CHUNK as u64) as usize;
        let part = shrinking(&mut rng, len);
        match rng.below(4) {
            0 => drop(fs.fallocate(ino, offset, len as u64, Allocate::PunchHole, None)),
            1 => drop(fs.rewrite(ino, offset, len as u64)),
            _ => drop(fs.write(ino, offset, &part, PLAIN)),
        }
        assert_eq!(used(&vfs), room(&fs, ino).total().stored_bytes);
        assert!(used(&vfs) <= 1 << 20);
    }
    assert_clean(&vfs); // which counts again
    // What would be more than the limit when it is not compressed any more is refused, and stays as it is.
    fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    assert_eq!(used(&vfs), 0);
    write(&fs, ino, 0, &data);
    fs.set_compression(ino, Compression::None).unwrap();
    refused(fs.rewrite(ino, 0, data.len() as u64), Refusal::QuotaExceeded);
    assert!(content(&fs, ino) == data && used(&vfs) <= 1 << 20);
    vfs.posix().rewrite(ino, 0, data.len() as u64).unwrap();
    assert_eq!(used(&vfs), data.len() as u64);
    fs.unlink(ROOT, b"file").unwrap();
    assert_eq!(used(&vfs), 0);
    assert_clean(&vfs);
}

/// Which files a walk over cold data takes up, and that it does so once.
#[test]
fn cold_data_is_compressed_harder() {
    let vfs = open(&formatted(64 << 20, "lz4"));
    let (fs, mut rng) = (vfs.posix(), SeededRng::new(9));
    let data = shrinking(&mut rng, 40 * CHUNK);
    let make = |name: &str, text: &str, data: &[u8]| {
        let ino = file(&fs, name);
        fs.set_compression(ino, named(text)).unwrap();
        write(&fs, ino, 0, data);
        ino
    };
    let (cold, own_lz4) = (make("cold", "default", &data), make("lz4", "lz4", &data));
    let (own_none, own_zstd) = (make("none", "none", &data), make("zstd", "zstd:1", &data));
    let in_vain = make("noise", "default", &noise(&mut rng, 20 * CHUNK));
    fs.sync().unwrap();
    let old = Seq(vfs.ftl().last_seq().0 + 1);
    let hot = make("hot", "default", &data);
    write(&fs, cold, 3 * CHUNK as u64 + 512, &[7; 512]); // one chunk of it is hot
    let kinds = |ino| {
        let Room { plain, lz4, zstd } = room(&fs, ino);
        [plain, lz4, zstd].map(|of| of.mapped_bytes / CHUNK as u64)
    };
    let before = (vfs.quotas().unwrap(), times(&fs.getattr(cold).unwrap()));
    let walk = |births| {
        let (mut bytes, mut smaller) = (0, Vec::new());
        let ended = vfs.compress_cold(named("zstd:9"), &births, |piece| {
            bytes += piece.tried_bytes;
            smaller.extend(piece.smaller);
            ControlFlow::Continue(())
        });
        assert!(ended.unwrap());
        smaller.dedup();
        (bytes, smaller)
    };
    assert_eq!(walk(Seq(0)..old), ((39 + 40 + 20) * CHUNK as u64, vec![cold, own_lz4]));
    assert_eq!((kinds(cold)[2], kinds(own_lz4)), (39, [0, 0, 40]));
    assert_eq!((kinds(own_none), kinds(own_zstd)), ([40, 0, 0], [0, 0, 40]));
    assert_eq!((kinds(in_vain), kinds(hot)), ([20, 0, 0], [0, 40, 0]));
    assert_eq!(vfs.compression_stats().recompressed_bytes, 79 * CHUNK as u64);
    let now = Seq(vfs.ftl().last_seq().0 + 1);
    assert_eq!(walk(old..now), (41 * CHUNK as u64, vec![cold, hot]), "the rest, and nothing twice");
    assert_eq!(walk(Seq(0)..old), (20 * CHUNK as u64, vec![]), "what does not shrink is found again");
    let mut expected = data.clone();
    expected[3 * CHUNK + 512..3 * CHUNK + 1024].fill(7);
    assert!(content(&fs, cold) == expected && content(&fs, own_lz4) == data);
    assert_eq!(times(&fs.getattr(cold).unwrap()).1, before.1.1);
    assert!(vfs.quotas().unwrap()[0].used.bytes < before.0[0].used.bytes);
    let stopped = vfs.compress_cold(named("zstd:9"), &(Seq(0)..now), |_| ControlFlow::Break(()));
    assert!(!stopped.unwrap());
    refused(
        vfs.compress_cold(Compression::None, &(Seq(0)..now), |_| ControlFlow::Continue(())),
        Refusal::Invalid,
    );
    assert_clean(&vfs);
}

/// Noise of which parts come again: zstd may need more bytes around it than LZ4.
fn noise_with_repeats(rng: &mut SeededRng) -> Vec<u8> {
    let mut data = noise(rng, CHUNK);
    for _ in 0..2 + rng.below(10) {
        let len = 60 + rng.below(600) as usize;
        let mut any = || rng.below((CHUNK - len) as u64) as usize;
        let (from, to) = (any(), any());
        data.copy_within(from..from + len, to);
    }
    data
}

/// A walk must take no space, or writers of a full store would be refused because of it.
#[test]
fn a_walk_over_cold_data_makes_nothing_longer() {
    const CHUNKS: u64 = 200;
    let vfs = open(&formatted(64 << 20, "none"));
    let (fs, mut rng) = (vfs.posix(), SeededRng::new(4));
    let [lz4, zstd] = ["lz4", "zstd:1"].map(|text| {
        let ino = file(&fs, text);
        fs.set_compression(ino, named(text)).unwrap();
        ino
    });
    for number in 0..CHUNKS {
        let data = noise_with_repeats(&mut rng);
        [lz4, zstd].iter().for_each(|ino| write(&fs, *ino, number * CHUNK as u64, &data));
    }
    for ino in [lz4, zstd] {
        fs.rewrite(ino, 0, CHUNKS * CHUNK as u64).unwrap(); // which tries each chunk
    }
    let of_chunks = |ino: Ino| -> Vec<u64> {
        let chunk = |number| {
            let start = (ino.number() << 36) + number * 32;
            vfs.ftl().allocated(ftl::Lba(start)..ftl::Lba(start + 32)).unwrap()
        };
        (0..CHUNKS).map(chunk).collect()
    };
    let (before, by_zstd) = (of_chunks(lz4), of_chunks(zstd));
    let is_longer = |(by_lz4, by_zstd): (&u64, &u64)| by_lz4 < by_zstd;
    let longer = before.iter().zip(&by_zstd).filter(|both| is_longer(*both)).count();
    assert!((1..CHUNKS as usize).contains(&longer), "zstd makes {longer} longer");
    let all = Seq(0)..Seq(vfs.ftl().last_seq().0 + 1);
    assert!(vfs.compress_cold(named("zstd:1"), &all, |_| ControlFlow::Continue(())).unwrap());
    let after = of_chunks(lz4);
    let least: Vec<_> = before.iter().zip(&by_zstd).map(|(lz4, zstd)| *lz4.min(zstd)).collect();
    assert_eq!(after, least);
    assert!(content(&fs, lz4) == content(&fs, zstd));
    assert_clean(&vfs);
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Ftl(ftl::Error::Full { .. }))
}

/// A store that is filled with compressed data, cut up, rewritten while it is full, and emptied, three times.
#[test]
fn a_full_store_is_rewritten_or_says_that_it_is_full() {
    let device = formatted(24 << 20, "lz4");
    let vfs = open(&device);
    let (fs, mut rng) = (vfs.posix(), SeededRng::new(7));
    let empty_bytes = vfs.ftl().stats().live_bytes;
    for round in 0..3 {
        let ino = file(&fs, "file");
        let (mut model, mut was_full) = (Vec::new(), false);
        while !was_full {
            let data = shrinking(&mut rng, 4 * CHUNK);
            match fs.write(ino, model.len() as u64, &data, PLAIN) {
                Ok(_) => model.extend(data),
                Err(error) => {
                    assert!(is_full(&error), "{error}");
                    was_full = true;
                }
            }
            assert!(model.len() < 200 << 20);
        }
        assert!(model.len() as u64 > vfs.ftl().stats().live_limit_bytes * 3 / 2, "{} bytes", model.len());
        // Decompressed it does not fit: the error is that of a full store, and all data is there.
        fs.set_compression(ino, Compression::None).unwrap();
        let error = fs.rewrite(ino, 0, model.len() as u64).unwrap_err();
        assert!(is_full(&error), "{error}");
        assert!(content(&fs, ino) == model, "round {round}");
        // Harder compressed it takes less, chunk by chunk, though the store is full.
        let before = room(&fs, ino).total().stored_bytes;
        fs.set_compression(ino, named("zstd:9")).unwrap();
        fs.rewrite(ino, 0, model.len() as u64).unwrap();
        assert!(room(&fs, ino).total().stored_bytes < before);
        assert!(content(&fs, ino) == model, "round {round}");
        assert_clean(&vfs);
        fs.unlink(ROOT, b"file").unwrap();
        assert_eq!(vfs.ftl().stats().live_bytes, empty_bytes, "round {round}");
    }
}

/// What is left of a compressed chunk is compressed anew: it must not take more than all of it did.
#[test]
fn a_file_on_a_full_store_is_shortened_within_a_chunk() {
    let vfs = open(&formatted(24 << 20, "lz4"));
    let (fs, mut rng) = (vfs.posix(), SeededRng::new(11));
    let (ballast, mut ballast_bytes) = (file(&fs, "ballast"), 0);
    let files = (0..40).map(|number| {
        let ino = file(&fs, &format!("{number}"));
        let mut data = shrinking(&mut rng, 3 * CHUNK - 700);
        write(&fs, ino, 0, &data);
        if number % 4 == 0 {
            let hole = 2 * CHUNK + 2048;
            fs.fallocate(ino, hole as u64, 1024, Allocate::PunchHole, None).unwrap();
            data[hole..hole + 1024].fill(0);
        }
        (number, ino, data)
    });
    for (number, ino, mut data) in files.collect::<Vec<_>>() {
        for len in [64 << 10, 512] {
            let full = loop {
                match fs.write(ballast, ballast_bytes, &noise(&mut rng, len), PLAIN) {
                    Ok(_) => ballast_bytes += len as u64,
                    Err(error) => break error,
                }
            };
            assert!(is_full(&full), "{full}");
        }
        let before = room(&fs, ino).total();
        let len = 2 * CHUNK + 1 + rng.below(CHUNK as u64 - 701) as usize;
        let to = |len: usize| SetAttr { size: Some(len as u64), ..SetAttr::default() };
        fs.setattr(ino, &to(len)).unwrap_or_else(|error| panic!("{number}, to {len} bytes: {error}"));
        let after = room(&fs, ino).total();
        assert!(after.stored_bytes <= before.stored_bytes, "{number}: {after:?} of {before:?}");
        assert!(after.mapped_bytes <= before.mapped_bytes, "{number}: {after:?} of {before:?}");
        fs.setattr(ino, &to(3 * CHUNK)).unwrap();
        data.truncate(len);
        data.resize(3 * CHUNK, 0);
        assert!(content(&fs, ino) == data, "{number}, to {len} bytes");
    }
    assert_clean(&vfs);
}

/// What lies before the cut in the same chunk, and is stored by itself, need not be read.
#[test]
fn a_file_is_shortened_behind_damage_in_its_chunk() {
    let device = formatted(64 << 20, "lz4");
    let mut rng = SeededRng::new(12);
    let (damaged, behind) = (noise(&mut rng, CHUNK / 2), shrinking(&mut rng, CHUNK));
    let vfs = open(&device);
    let ino = file(&vfs.posix(), "damaged");
    write(&vfs.posix(), ino, 0, &behind);
    write(&vfs.posix(), ino, 0, &damaged);
    vfs.close().unwrap();
    drop(vfs);
    let mut image = vec![0; 64 << 20];
    device.read_at(0, &mut image).unwrap();
    let at = image.windows(64).position(|bytes| *bytes == damaged[..64]).expect("noise stays as it is");
    let sector = at / 512 * 512;
    image[at] ^= 1;
    device.write_at(sector as u64, &image[sector..sector + 512]).unwrap();

    let vfs = open(&device);
    let (fs, damage) =
        (vfs.posix(), |error: Error| assert!(error.to_string().contains("checksum"), "{error}"));
    let cut = |len: usize| fs.setattr(ino, &SetAttr { size: Some(len as u64), ..SetAttr::default() });
    let rest = |len: usize| {
        let mut rest = vec![0xee; len - CHUNK / 2];
        assert_eq!(fs.read(ino, CHUNK as u64 / 2, &mut rest).unwrap(), rest.len());
        rest
    };
    for len in [CHUNK - 100, CHUNK - 4000] {
        assert_eq!(cut(len).unwrap().size, len as u64);
        assert!(rest(len) == behind[CHUNK / 2..len], "{len}");
        damage(fs.read(ino, 0, &mut [0; 512]).unwrap_err());
    }
    let len = CHUNK - 4000;
    damage(cut(100).unwrap_err());
    assert!(
        fs.getattr(ino).unwrap().size == len as u64 && rest(len) == behind[CHUNK / 2..len],
        "all or nothing"
    );
    cut(0).unwrap();
    assert_clean(&vfs);
}

/// With little memory for the map, and with nothing of it in memory at first.
#[test]
fn little_memory_for_the_map_is_enough() {
    let device = formatted(64 << 20, "zstd:1");
    let mut rng = SeededRng::new(8);
    let data = shrinking(&mut rng, 2 << 20);
    let mut expected = data.clone();
    for text in ["default", "lz4", "none"] {
        let mut options = Options { clock, ..Options::default() };
        options.ftl.map_memory = Some(64 << 10);
        let vfs = Nvmfs::open(Arc::clone(&device), options).unwrap();
        let fs = vfs.posix();
        let ino = match fs.lookup(ROOT, b"file") {
            Ok(attr) => attr.ino,
            Err(_) => {
                let ino = file(&fs, "file");
                write(&fs, ino, 0, &data);
                ino
            }
        };
        fs.set_compression(ino, named(text)).unwrap();
        for _ in 0..200 {
            let at = rng.below(data.len() as u64 / 512 - 2) * 512;
            let part = shrinking(&mut rng, 1024);
            write(&fs, ino, at, &part);
            expected[at as usize..at as usize + 1024].copy_from_slice(&part);
        }
        fs.rewrite(ino, 0, data.len() as u64).unwrap();
        assert!(content(&fs, ino) == expected, "{text}");
        room(&fs, ino);
        assert_clean(&vfs);
        vfs.close().unwrap();
    }
}
