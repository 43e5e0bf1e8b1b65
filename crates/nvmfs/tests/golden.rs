//! Format version 1, as it was when this image was made. Every later version must read it.
//!
//! `images/version-1` is the device after [`history`], as [`pack_image`] writes it: all types of inodes, attributes and
//! access control lists in and outside of inodes, limits of users, files that are not compressed, by LZ4 and by zstd,
//! and one that was removed while it was open; behind a checkpoint, collected, and not closed. [`make_an_image`] wrote it.
//! A later version gets an image of its own; this one stays, and so does [`history`], which says what it must hold.

use std::{collections::BTreeMap, num::NonZeroU64, ops::ControlFlow, path::Path, sync::Arc};

use crate::by_inode::{ROOT, SECONDS, assert_clean, clock};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{self as ftl, Lba, Work};
use lacuna_nvmfs::{
    Compression, FormatOptions, Ino, Limits, Nvmfs, Options, Room, Seq, Timestamp,
    posix::{AccessTimes, Allocate, Caller, FileKind, Posix, SetAttr, WriteOptions, XattrMode},
};
use lacuna_sim::{pack_image, unpack_image};

const IMAGE: &[u8] = include_bytes!("images/version-1");
const BYTES: u64 = 4 << 20;
/// The owner of some files, and its limits.
const USER: u32 = 1000;
const LIMITS: Limits = Limits { bytes: NonZeroU64::new(1 << 20), inodes: NonZeroU64::new(50) };
/// Who has limits and nothing else.
const OTHER: u32 = 3;
const OF_OTHER: Limits = Limits { bytes: None, inodes: NonZeroU64::new(5) };
/// Orphans lie in region 3 of the space.
const ORPHANS: std::ops::Range<Lba> = Lba(3 << 36)..Lba(4 << 36);

fn named(text: &str) -> Compression {
    text.parse().unwrap()
}

/// Bytes that are stored whole where they are not compressed, but take almost nothing in the image.
fn data(len: usize, value: u64) -> Vec<u8> {
    let is_set = |at: usize| at % 2048 == 2047 || at + 1 == len;
    (0..len).map(|at| if is_set(at) { (at / 700 * (1 + value as usize % 50)) as u8 | 1 } else { 0 }).collect()
}

/// An access control list that names a user: owner, user, group, mask, others. Owner, group and others have these
/// permissions.
fn acl(user: u32, permissions: [u8; 3]) -> Vec<u8> {
    let [owner, group, others] = permissions;
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [
        (1, owner, u32::MAX),
        (2, 4, user),
        (4, group, u32::MAX),
        (16, group, u32::MAX),
        (32, others, u32::MAX),
    ] {
        list.extend([tag, 0, permissions, 0]);
        list.extend(u32::to_le_bytes(id));
    }
    list
}

fn options(read_only: bool) -> Options {
    let ftl = ftl::Options { read_only, background: false, ..ftl::Options::default() };
    Options { ftl, clock, access_times: AccessTimes::Never, ..Options::default() }
}

fn open(device: &Arc<dyn BlockDevice>, read_only: bool) -> Nvmfs {
    Nvmfs::open(Arc::clone(device), options(read_only)).unwrap()
}

fn write(fs: &Posix, ino: Ino, offset: u64, data: &[u8]) {
    assert_eq!(fs.write(ino, offset, data, WriteOptions::default()).unwrap(), data.len());
}

/// A file system as the current code leaves it. It lies still with all these in it, and one orphan.
fn history() -> Arc<dyn BlockDevice> {
    SECONDS.set(1000);
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(BYTES));
    let mut format = FormatOptions {
        uuid: Some([7; 16]),
        owner: Some(Caller::default()),
        clock,
        compression: named("lz4"),
        ..FormatOptions::default()
    };
    format.ftl.segment_bytes = Some(64 << 10);
    format.ftl.uuid = Some([9; 16]);
    Nvmfs::format(Arc::clone(&device), &format).unwrap();
    let vfs = open(&device, false);
    let (fs, root) = (vfs.posix(), Caller::default());
    vfs.set_limits(USER, LIMITS).unwrap();
    vfs.set_limits(OTHER, OF_OTHER).unwrap();

    let user = Caller { uid: USER, gid: 100, umask: 0o022 };
    let mut files = Vec::new();
    for (number, text) in ["default", "none", "lz4", "zstd:9"].into_iter().enumerate() {
        SECONDS.set(1100 + number as i64);
        let directory = fs.mkdir(ROOT, text.replace(':', "-").as_bytes(), 0o755, root).unwrap().ino;
        fs.set_compression(directory, named(text)).unwrap();
        let deep = fs.mkdir(directory, b"deep", 0o2775, user).unwrap().ino;
        for (parent, caller) in [(directory, root), (deep, user)] {
            let made = fs.create(parent, b"file", 0o640, caller).unwrap().ino;
            for part in 0..3 {
                write(&fs, made, part * 16384, &data(16384, part + number as u64));
            }
            files.push(made);
        }
        fs.setxattr(directory, b"system.posix_acl_default", &acl(USER, [7, 5, 0]), XattrMode::Set).unwrap();
        let with_acl = fs.create(directory, b"with acl", 0o666, root).unwrap().ino;
        fs.append(with_acl, b"a line\n", WriteOptions::default()).unwrap();
        fs.release(with_acl).unwrap();
    }
    SECONDS.set(1200);
    fs.setxattr(files[0], b"user.small", b"value", XattrMode::Set).unwrap();
    fs.setxattr(files[1], b"user.large", &data(3000, 8), XattrMode::Set).unwrap();
    fs.setxattr(files[1], b"security.capability", &[1; 20], XattrMode::Set).unwrap();
    fs.setxattr(files[2], b"system.posix_acl_access", &acl(OTHER, [6, 4, 0]), XattrMode::Set).unwrap();
    fs.setattr(files[3], &SetAttr { uid: Some(OTHER), ..SetAttr::default() }).unwrap();
    fs.link(files[0], ROOT, b"another name").unwrap();
    fs.symlink(ROOT, b"short", b"lz4/deep/file", root).unwrap();
    fs.symlink(ROOT, b"long", &[b'x'; 600], user).unwrap();
    for (name, mode, rdev) in [("fifo", 0o010_600, 0), ("null", 0o020_666, 0x103), ("socket", 0o140_700, 0)] {
        fs.mknod(ROOT, name.as_bytes(), mode, rdev, root).unwrap();
    }
    vfs.ftl().checkpoint().unwrap();

    for (number, ino) in (0_u64..).zip(&files) {
        SECONDS.set(1300 + number as i64);
        write(&fs, *ino, 20_000, &data(5000, number + 20));
        fs.fallocate(*ino, 40_960, 4096, Allocate::PunchHole, None).unwrap();
        write(&fs, *ino, 1 << 30, &data(700, number));
        fs.fsync(*ino, false).unwrap();
    }
    // What is written now was there before, so segments die and others are collected.
    for number in 0..40 {
        let ino = files[number as usize % 8];
        write(&fs, ino, 0, &data(16384, number + 1));
        fs.fsync(ino, true).unwrap();
        if number % 8 == 0 {
            vfs.ftl().step(Work::Gc).unwrap();
        }
    }
    for name in [&b"gone"[..], b"orphan"] {
        let made = fs.create(ROOT, name, 0o600, user).unwrap().ino;
        write(&fs, made, 0, &data(20_000, 3));
        if name == b"gone" {
            fs.release(made).unwrap();
        }
        fs.unlink(ROOT, name).unwrap();
    }
    fs.sync().unwrap();
    device
}

/// What there is of an object, without what compressors decide.
#[derive(Clone, Debug, PartialEq)]
struct Object {
    kind: FileKind,
    perm: u16,
    nlink: u32,
    owner: (u32, u32),
    rdev: u64,
    times: [Timestamp; 4],
    compression: Option<(Compression, Compression)>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of files: the runs of bytes that are not a hole. Of links: the target.
    size: u64,
    content: Vec<(u64, Vec<u8>)>,
}

fn object(fs: &Posix, ino: Ino) -> Object {
    let attr = fs.getattr(ino).unwrap();
    let names = fs.listxattr(ino).unwrap();
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let xattrs = names.map(|name| (name.to_vec(), fs.getxattr(ino, name).unwrap())).collect();
    let (mut compression, mut size, mut content) = (None, 0, Vec::new());
    match attr.kind {
        FileKind::File => {
            (compression, size) = (Some(fs.compression(ino).unwrap()), attr.size);
            let mut at = 0;
            while at < size {
                let runs = fs.read_runs(ino, at).unwrap();
                content.extend(runs.runs);
                at = runs.end;
            }
        }
        FileKind::Directory => compression = Some(fs.compression(ino).unwrap()),
        FileKind::Symlink => content.push((0, fs.readlink(ino).unwrap())),
        _ => {}
    }
    Object {
        kind: attr.kind,
        perm: attr.perm,
        nlink: attr.nlink,
        owner: (attr.uid, attr.gid),
        rdev: attr.rdev,
        times: [attr.accessed, attr.modified, attr.changed, attr.created],
        compression,
        xattrs,
        size,
        content,
    }
}

/// All objects that have a name, by their paths.
fn tree(fs: &Posix) -> BTreeMap<String, Object> {
    let mut found = BTreeMap::from([("/".to_owned(), object(fs, ROOT))]);
    let mut rest = vec![(ROOT, String::new())];
    while let Some((directory, path)) = rest.pop() {
        let mut entries = Vec::new();
        fs.readdir(directory, 2, &mut |entry| {
            entries.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.ino));
            true
        })
        .unwrap();
        for (name, ino) in entries.into_iter().filter(|(name, _)| name != "." && name != "..") {
            let path = format!("{path}/{name}");
            let object = object(fs, ino);
            if object.kind == FileKind::Directory {
                rest.push((ino, path.clone()));
            }
            found.insert(path, object);
        }
    }
    found
}

fn at_path(fs: &Posix, path: &str) -> Ino {
    path.split('/').fold(ROOT, |parent, name| fs.lookup(parent, name.as_bytes()).unwrap().ino)
}

fn room(fs: &Posix, path: &str) -> Room {
    fs.room(at_path(fs, path)).unwrap()
}

fn limits(vfs: &Nvmfs) -> Vec<(u32, Limits)> {
    let all = vfs.quotas().unwrap().into_iter();
    all.filter(|quota| quota.limits != Limits::default()).map(|quota| (quota.uid, quota.limits)).collect()
}

fn features(vfs: &Nvmfs) -> u64 {
    let sectors = vfs.ftl().read_sectors(&[Lba(0)]).unwrap();
    u64::from_le_bytes(sectors[0].1[32..40].try_into().unwrap())
}

#[test]
#[ignore = "writes an image of the format of today"]
fn make_an_image() {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images");
    std::fs::write(images.join("version-new"), pack_image(&*history())).unwrap();
}

#[test]
fn a_file_system_of_version_1_is_read() {
    let device = unpack_image(IMAGE, BYTES);
    let vfs = open(&device, true);
    assert!(vfs.ftl().stats().replayed_batches > 50, "{:?}", vfs.ftl().stats());
    assert_eq!(features(&vfs), 1, "inodes may have a compression");
    let fs = vfs.posix();
    let today = history();
    let (found, expected) = (tree(&fs), tree(&open(&today, true).posix()));
    assert!(expected.len() > 20, "{:?}", expected.keys());
    for (path, object) in &expected {
        assert_eq!(found.get(path), Some(object), "{path}");
    }
    assert_eq!(found.len(), expected.len());
    assert_eq!(at_path(&fs, "another name"), at_path(&fs, "default/file"));
    assert_eq!(limits(&vfs), [(OTHER, OF_OTHER), (USER, LIMITS)]);
    for (directory, of) in [("default", 1), ("none", 0), ("lz4", 1), ("zstd-9", 2)] {
        for file in ["file", "deep/file"] {
            let room = room(&fs, &format!("{directory}/{file}"));
            let mapped = [room.plain, room.lz4, room.zstd].map(|of| of.mapped_bytes);
            assert!(mapped[of] > 3 * 8192, "{directory}/{file}: {room:?}");
            assert!(of == 0 || room.total().stored_bytes < room.total().mapped_bytes / 2, "{room:?}");
        }
    }
    assert_eq!(vfs.ftl().mapped_sectors(ORPHANS, 9).unwrap().len(), 1);
    assert_clean(&vfs);
    drop((fs, vfs));
    assert!(pack_image(&*device) == IMAGE, "who only reads changes nothing");
}

#[test]
fn a_file_system_of_version_1_is_changed() {
    let device = unpack_image(IMAGE, BYTES);
    let mut expected = tree(&open(&device, true).posix());
    let vfs = open(&device, false);
    assert!(vfs.ftl().mapped_sectors(ORPHANS, 9).unwrap().is_empty(), "orphans are freed");
    assert_clean(&vfs);
    let fs = vfs.posix();
    assert_eq!(tree(&fs), expected);
    for number in 0..200_u64 {
        let directory = ["default", "none", "lz4", "zstd-9"][number as usize % 4];
        let ino = at_path(&fs, &format!("{directory}/file"));
        write(&fs, ino, number % 3 * 16384, &data(9000, number));
        if number % 10 == 0 {
            vfs.ftl().step(Work::Gc).unwrap();
        }
        if number == 100 {
            let all = Seq(0)..Seq(u64::MAX);
            assert!(vfs.compress_cold(named("zstd:3"), &all, |_| ControlFlow::Continue(())).unwrap());
            assert!(room(&fs, "lz4/deep/file").zstd.mapped_bytes > 0);
        }
    }
    // Half of them go, with names, attributes and data.
    for path in ["none", "zstd-9"] {
        let directory = at_path(&fs, path);
        let deep = at_path(&fs, &format!("{path}/deep"));
        fs.unlink(deep, b"file").unwrap();
        fs.rmdir(directory, b"deep").unwrap();
        fs.unlink(directory, b"file").unwrap();
        fs.unlink(directory, b"with acl").unwrap();
        fs.rmdir(ROOT, path.as_bytes()).unwrap();
    }
    assert_clean(&vfs);
    expected = tree(&fs);
    vfs.close().unwrap();
    drop((fs, vfs));
    let vfs = open(&device, false);
    assert_eq!(tree(&vfs.posix()), expected);
    assert_eq!(limits(&vfs), [(OTHER, OF_OTHER), (USER, LIMITS)]);
    assert_clean(&vfs);
}
