//! Compression per file: what is stored, what it takes, what is handed down, and rewriting it while it is in use.

mod rewrite;

use std::{num::NonZeroU64, sync::Arc};

use crate::by_inode::{NOBODY, PLAIN, ROOT, assert_clean, clock, dir, file, refused};
use lacuna_device::{BlockDevice, MemDevice, StreamHint, Vfs};
use lacuna_ftl as ftl;
use lacuna_nvmfs::{
    Compression, Error, FormatOptions, Ino, Limits, Nvmfs, Options, Refusal, Room,
    posix::{Allocate, Caller, Posix, SetAttr, WriteOptions},
};
use lacuna_sim::{SeededRng, for_each_seed, forge::reseal_sector};

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
