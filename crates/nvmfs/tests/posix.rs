//! What the inode interface promises, one by one.

mod fight;

use std::{
    cell::Cell,
    os::unix::fs::MetadataExt,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use fight::fight;
use lacuna_device::{BlockDevice, MemDevice, Place, StreamHint};
use lacuna_nvmfs::{
    CheckDepth, Error, FormatOptions, Ino, Nvmfs, OpenedPlace, Options, PlaceOptions, Progress, Refusal,
    Timestamp, open_place,
    posix::{
        Allocate, Attr, Caller, FileKind, Posix, Rename, Runs, SetAttr, SetTime, WriteOptions, XattrMode,
    },
};
use lacuna_sim::SimDevice;

const ROOT: Ino = Ino::ROOT;
const NOBODY: Caller = Caller { uid: 65534, gid: 65534 };
const PLAIN: WriteOptions = WriteOptions { trim_to: None, kill_privileges: false, from_cache: false };
const KILL: WriteOptions = WriteOptions { kill_privileges: true, ..PLAIN };

thread_local! {
    static SECONDS: Cell<i64> = const { Cell::new(1000) };
}

/// A clock that stands still until it is set.
fn clock() -> Timestamp {
    Timestamp { seconds: SECONDS.get(), nanoseconds: 5 }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 5 }
}

fn formatted(capacity_bytes: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(capacity_bytes));
    let options = FormatOptions { uuid: Some([7; 16]), clock, ..FormatOptions::default() };
    Nvmfs::format(Arc::clone(&device), &options).unwrap();
    device
}

fn open(device: &Arc<dyn BlockDevice>) -> Nvmfs {
    Nvmfs::open(Arc::clone(device), Options { clock, ..Options::default() }).unwrap()
}

fn new() -> Nvmfs {
    open(&formatted(64 << 20))
}

fn file(fs: &Posix, name: &str) -> Ino {
    fs.mknod(ROOT, name.as_bytes(), 0o100_644, 0, Caller::default()).unwrap().ino
}

fn dir(fs: &Posix, parent: Ino, name: &str) -> Ino {
    fs.mkdir(parent, name.as_bytes(), 0o755, Caller::default()).unwrap().ino
}

#[track_caller]
fn refused<T>(result: Result<T, Error>, expected: Refusal) {
    match result {
        Err(Error::Refused(refusal)) => assert_eq!(refusal, expected),
        Err(error) => panic!("{error}, not {expected}"),
        Ok(_) => panic!("done, not refused: {expected}"),
    }
}

#[track_caller]
fn assert_clean(place: &Nvmfs) {
    let report = place.check(CheckDepth::Payload).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

fn times(attr: &Attr) -> (i64, i64, i64) {
    (attr.accessed.seconds, attr.modified.seconds, attr.changed.seconds)
}

#[test]
fn errors_have_the_numbers_of_posix() {
    let place = new();
    let fs = place.posix();
    let errno = |result: Result<Attr, Error>| result.unwrap_err().errno();
    assert_eq!(errno(fs.lookup(ROOT, b"a")), 2);
    file(&fs, "a");
    assert_eq!(errno(fs.mkdir(ROOT, b"a", 0, NOBODY)), 17);
    let a = fs.lookup(ROOT, b"a").unwrap().ino;
    assert_eq!(errno(fs.lookup(a, b"b")), 20);
    assert_eq!(errno(fs.mkdir(ROOT, &[b'x'; 256], 0, NOBODY)), 36);
    assert_eq!(errno(fs.getattr(Ino::new(12345).unwrap())), 116);
    assert_eq!(fs.getxattr(a, b"user.no").unwrap_err().errno(), 61);
    assert_eq!(fs.getxattr(a, b"system.posix_acl_access").unwrap_err().errno(), 95);
    assert_eq!(fs.seek_data(a, 0).unwrap_err().errno(), 6);
    dir(&fs, ROOT, "d");
    file(&fs, "b");
    fs.rename(ROOT, b"b", fs.lookup(ROOT, b"d").unwrap().ino, b"b", Rename::Replace).unwrap();
    assert_eq!(fs.rmdir(ROOT, b"d").unwrap_err().errno(), 39);
    assert_eq!(fs.unlink(ROOT, b"d").unwrap_err().errno(), 21);
    for number in [0, 1, 3, 15, u64::MAX, (1 << 28) - 1] {
        assert!(Ino::new(number).is_none(), "{number} is no file's");
    }
}

#[test]
fn names_that_cannot_be_are_refused() {
    let place = new();
    let fs = place.posix();
    for name in [&b""[..], b"a/b", b"a\0b"] {
        refused(fs.mkdir(ROOT, name, 0, NOBODY), Refusal::Invalid);
        refused(fs.lookup(ROOT, name), Refusal::Invalid);
    }
    for name in [&b"."[..], b".."] {
        refused(fs.mkdir(ROOT, name, 0, NOBODY), Refusal::Exists);
        refused(fs.unlink(ROOT, name), Refusal::Invalid);
        refused(fs.rename(ROOT, name, ROOT, b"a", Rename::Replace), Refusal::Invalid);
        assert_eq!(fs.lookup(ROOT, name).unwrap().ino, ROOT);
    }
    refused(fs.rmdir(ROOT, b"."), Refusal::Invalid);
    refused(fs.rmdir(ROOT, b".."), Refusal::NotEmpty);
    let long = [b'x'; 255];
    let a = fs.mkdir(ROOT, &long, 0o755, NOBODY).unwrap().ino;
    assert_eq!(fs.lookup(ROOT, &long).unwrap().ino, a);
    refused(fs.symlink(ROOT, b"l", b"", NOBODY), Refusal::Invalid);
    refused(fs.symlink(ROOT, b"l", &[b'x'; 4096], NOBODY), Refusal::NameTooLong);
    for (number, len) in [1, 255, 256, 4095].into_iter().enumerate() {
        let target = vec![b'y'; len];
        let link = fs.symlink(ROOT, format!("{number}").as_bytes(), &target, NOBODY).unwrap();
        assert_eq!((link.size, link.perm, link.uid), (len as u64, 0o777, 65534));
        fs.setxattr(link.ino, b"trusted.t", &[1; 150], XattrMode::Set).unwrap();
        assert_eq!(fs.readlink(link.ino).unwrap(), target);
    }
    assert_clean(&place);
}

#[test]
fn directories_know_their_parents_and_count_their_children() {
    let place = new();
    let fs = place.posix();
    let (a, b) = (dir(&fs, ROOT, "a"), dir(&fs, ROOT, "b"));
    let inner = dir(&fs, a, "inner");
    let nlink = |ino| fs.getattr(ino).unwrap().nlink;
    assert_eq!((nlink(ROOT), nlink(a), nlink(b), nlink(inner)), (4, 3, 2, 2));
    fs.rename(a, b"inner", b, b"moved", Rename::Replace).unwrap();
    assert_eq!((nlink(ROOT), nlink(a), nlink(b)), (4, 2, 3));
    assert_eq!(fs.lookup(inner, b"..").unwrap().ino, b);
    fs.rename(ROOT, b"a", b, b"moved", Rename::Exchange).unwrap();
    assert_eq!((fs.lookup(inner, b"..").unwrap().ino, fs.lookup(a, b"..").unwrap().ino), (ROOT, b));
    assert_eq!((nlink(ROOT), nlink(b)), (4, 3));
    // Not into itself, however deep.
    let deep = dir(&fs, a, "deep");
    refused(fs.rename(ROOT, b"b", deep, b"b", Rename::Replace), Refusal::Invalid);
    refused(fs.rename(ROOT, b"b", b, b"b", Rename::Replace), Refusal::Invalid);
    refused(fs.rename(a, b"deep", ROOT, b"b", Rename::Exchange), Refusal::Invalid);
    refused(fs.rename(a, b"deep", ROOT, b"b", Rename::Replace), Refusal::NotEmpty);
    fs.rename(a, b"deep", ROOT, b"deep", Rename::NoReplace).unwrap();
    refused(fs.rename(ROOT, b"deep", ROOT, b"b", Rename::NoReplace), Refusal::Exists);
    assert_clean(&place);
}

#[test]
fn times_move_and_are_stored_when_they_must() {
    let device = formatted(64 << 20);
    let place = open(&device);
    let fs = place.posix();
    SECONDS.set(2000);
    let a = file(&fs, "a");
    assert_eq!(times(&fs.getattr(a).unwrap()), (2000, 2000, 2000));
    assert_eq!(fs.getattr(a).unwrap().created, at(2000));
    assert_eq!(times(&fs.getattr(ROOT).unwrap()), (1000, 2000, 2000));
    fs.write(a, 0, &[1; 1024], PLAIN).unwrap();

    // A write within the length: its bytes and nothing else.
    SECONDS.set(2001);
    let before = place.ftl().stats().host_bytes;
    fs.write(a, 0, &[2; 1024], PLAIN).unwrap();
    assert_eq!(place.ftl().stats().host_bytes - before, 1024);
    assert_eq!(times(&fs.getattr(a).unwrap()), (2000, 2001, 2001));
    fs.fsync(a, true).unwrap();
    let reopened = |place: Nvmfs| {
        drop(place);
        let place = open(&device);
        (times(&place.posix().getattr(a).unwrap()), place)
    };
    drop(fs);
    let (stored, place) = reopened(place);
    assert_eq!(stored.1, 2000, "fdatasync stores no times");
    let fs = place.posix();
    fs.write(a, 512, &[3; 512], PLAIN).unwrap();
    fs.fsync(a, false).unwrap();
    drop(fs);
    let (stored, place) = reopened(place);
    assert_eq!(stored.1, 2001, "fsync does");
    let fs = place.posix();

    // Reads, as relatime has it.
    SECONDS.set(2002);
    fs.open(a).unwrap();
    fs.read(a, 0, &mut [0; 10]).unwrap();
    SECONDS.set(2003);
    fs.read(a, 0, &mut [0; 10]).unwrap();
    assert_eq!(times(&fs.getattr(a).unwrap()), (2002, 2001, 2001));
    SECONDS.set(2002 + 24 * 3600);
    fs.read(a, 0, &mut [0; 10]).unwrap();
    assert_eq!(fs.getattr(a).unwrap().accessed, clock());
    fs.release(a).unwrap();
    fs.sync().unwrap();
    drop(fs);
    let (stored, place) = reopened(place);
    assert_eq!(stored.0, clock().seconds, "the last release does, too");

    let fs = place.posix();
    SECONDS.set(90_000);
    let set = SetAttr {
        accessed: Some(SetTime::At(at(-5))),
        modified: Some(SetTime::At(at(1 << 33))),
        ..SetAttr::default()
    };
    assert_eq!(times(&fs.setattr(a, &set).unwrap()), (-5, 1 << 33, 90_000));
    SECONDS.set(90_001);
    fs.rename(ROOT, b"a", ROOT, b"b", Rename::Replace).unwrap();
    assert_eq!(times(&fs.getattr(a).unwrap()), (-5, 1 << 33, 90_001));
    SECONDS.set(90_002);
    fs.link(a, ROOT, b"c").unwrap();
    assert_eq!(fs.getattr(a).unwrap().changed, at(90_002));
    SECONDS.set(90_003);
    fs.unlink(ROOT, b"c").unwrap();
    assert_eq!(
        (fs.getattr(a).unwrap().changed, fs.getattr(ROOT).unwrap().modified),
        (at(90_003), at(90_003))
    );
    SECONDS.set(90_004);
    let set = SetAttr { size: Some(100), ..SetAttr::default() };
    assert_eq!(times(&fs.setattr(a, &set).unwrap()), (-5, 90_004, 90_004));
    place.close().unwrap();
    drop(fs);
    let (stored, place) = reopened(place);
    assert_eq!(stored, (-5, 90_004, 90_004));
    assert_eq!(place.posix().getattr(ROOT).unwrap().modified, at(90_003));
    assert_clean(&place);
}

/// What a place makes belongs to whom its directory belongs.
#[test]
fn a_store_belongs_to_who_formats_it() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    let options = FormatOptions { owner: Some(NOBODY), clock, ..FormatOptions::default() };
    Nvmfs::format(device.clone(), &options).unwrap();
    let place = open(&device);
    let fs = place.posix();
    let owner = |attr: Attr| Caller { uid: attr.uid, gid: attr.gid };
    assert_eq!(owner(fs.getattr(ROOT).unwrap()), NOBODY);
    place.create("file", StreamHint::Data).unwrap();
    let inner = place.directory("outer/inner", true).unwrap();
    let outer = fs.lookup(ROOT, b"outer").unwrap();
    let made = [fs.lookup(ROOT, b"file").unwrap(), outer, fs.lookup(outer.ino, b"inner").unwrap()];
    assert_eq!(made.map(owner), [NOBODY; 3]);
    let other = SetAttr { uid: Some(5), gid: Some(6), ..SetAttr::default() };
    fs.setattr(made[2].ino, &other).unwrap();
    inner.create("file", StreamHint::Log).unwrap();
    assert_eq!(owner(fs.lookup(made[2].ino, b"file").unwrap()), Caller { uid: 5, gid: 6 });
    // Who calls by number says for whom.
    assert_eq!(owner(fs.mkdir(ROOT, b"d", 0o755, Caller::default()).unwrap()), Caller::default());
}

#[test]
fn a_store_belongs_to_who_makes_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = PlaceOptions { create_size: Some(64 << 20), ..PlaceOptions::default() };
    let OpenedPlace::Store(place) = open_place(&path, &options).unwrap() else { panic!("a store") };
    let (store, root) = (path.metadata().unwrap(), place.posix().getattr(ROOT).unwrap());
    assert_eq!((root.uid, root.gid), (store.uid(), store.gid()));
}

/// Whether it finds anything to do or not, as on ext4 and XFS.
#[test]
fn fallocate_is_a_change() {
    let place = new();
    let fs = place.posix();
    SECONDS.set(2000);
    let a = file(&fs, "a");
    fs.write(a, 0, &[1; 512], PLAIN).unwrap();
    let mut now = 2000;
    let mut moves = |offset, len, what| {
        now += 1;
        SECONDS.set(now);
        fs.fallocate(a, offset, len, what, false).unwrap();
        let attr = fs.getattr(a).unwrap();
        assert_eq!(times(&attr), (2000, now, now), "{offset} {len} {what:?}");
        attr.size
    };
    let zero_range = Allocate::ZeroRange { keep_size: false };
    for (offset, len, what) in [
        (0, 100, Allocate::KeepSize),
        (8192, 100, Allocate::KeepSize),
        (0, 512, Allocate::Extend),
        (0, 512, Allocate::PunchHole),
        (0, 512, Allocate::PunchHole),
        (100, 300, zero_range),
        (8192, 10, Allocate::PunchHole),
        (8192, 10, Allocate::ZeroRange { keep_size: true }),
    ] {
        assert_eq!(moves(offset, len, what), 512);
    }
    assert_eq!(moves(0, 1000, Allocate::Extend), 1000);
    assert_eq!(moves(900, 200, zero_range), 1100);
}

/// Who has it open sees that it changed.
#[test]
fn to_lose_the_last_name_is_a_change() {
    let place = new();
    let fs = place.posix();
    SECONDS.set(2000);
    let (a, b, d) = (file(&fs, "a"), file(&fs, "b"), dir(&fs, ROOT, "d"));
    [a, b, d].iter().for_each(|ino| fs.open(*ino).unwrap());
    SECONDS.set(2001);
    fs.unlink(ROOT, b"a").unwrap();
    fs.rmdir(ROOT, b"d").unwrap();
    file(&fs, "c");
    fs.rename(ROOT, b"c", ROOT, b"b", Rename::Replace).unwrap();
    for ino in [a, b, d] {
        assert_eq!(times(&fs.getattr(ino).unwrap()), (2000, 2000, 2001));
    }
}

#[test]
fn privileges_go_when_others_write() {
    let place = new();
    let fs = place.posix();
    let (a, b) = (file(&fs, "a"), file(&fs, "b"));
    fs.write(b, 0, &[2; 512], PLAIN).unwrap();
    let set_mode = |mode| {
        fs.setattr(a, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
        fs.setxattr(a, b"security.capability", b"all of them", XattrMode::Set).unwrap();
    };
    let perm = || fs.getattr(a).unwrap().perm;
    let has_capability = || fs.getxattr(a, b"security.capability").is_ok();
    fs.write(a, 0, &[1; 2048], PLAIN).unwrap();
    for mode in [0o6755, 0o4644, 0o2644] {
        let without = if mode & 0o010 != 0 { mode & 0o777 } else { mode & 0o3777 } as u16;
        set_mode(mode);
        // A mapped page from before.
        fs.write(a, 0, &[1; 512], WriteOptions { from_cache: true, ..PLAIN }).unwrap();
        assert_eq!((perm(), has_capability()), (mode as u16, true));
        // Root may keep the bits, nobody a capability.
        fs.write(a, 0, &[1; 512], PLAIN).unwrap();
        assert_eq!((perm(), has_capability()), (mode as u16, false));
        set_mode(mode);
        fs.write(a, 0, &[1; 512], KILL).unwrap();
        assert_eq!((perm(), has_capability()), (without, false));
        set_mode(mode);
        fs.append(a, b"more", KILL).unwrap();
        assert_eq!((perm(), has_capability()), (without, false));
        set_mode(mode);
        let cut = SetAttr { size: Some(1000), ..SetAttr::default() };
        fs.setattr(a, &cut).unwrap();
        assert_eq!((perm(), has_capability()), (mode as u16, false));
        set_mode(mode);
        fs.setattr(a, &SetAttr { kill_privileges: true, ..cut }).unwrap();
        assert_eq!((perm(), has_capability()), (without, false));
        for (what, len) in [
            (Allocate::Extend, 4096),
            (Allocate::Extend, 1),
            (Allocate::KeepSize, 4096),
            (Allocate::PunchHole, 512),
            (Allocate::ZeroRange { keep_size: true }, 4096),
        ] {
            set_mode(mode);
            fs.fallocate(a, 0, len, what, false).unwrap();
            assert_eq!((perm(), has_capability()), (mode as u16, false), "{what:?}");
            set_mode(mode);
            fs.fallocate(a, 0, len, what, true).unwrap();
            assert_eq!((perm(), has_capability()), (without, false), "{what:?}");
        }
        for (offset, len) in [(0, 512), (1, 100), (0, 1)] {
            set_mode(mode);
            let to = 100 * offset;
            assert_eq!(fs.copy_range((b, offset), (a, to), len, false).unwrap(), len);
            assert_eq!((perm(), has_capability()), (mode as u16, false));
            set_mode(mode);
            assert_eq!(fs.copy_range((b, offset), (a, to), len, true).unwrap(), len);
            assert_eq!((perm(), has_capability()), (without, false));
        }
        set_mode(mode);
        fs.setattr(a, &SetAttr { gid: Some(7), ..SetAttr::default() }).unwrap();
        assert_eq!((perm(), has_capability()), (without, false));
    }
    // Directories keep theirs, and hand their group down.
    let d = fs.mkdir(ROOT, b"d", 0o2775, Caller { uid: 1, gid: 2 }).unwrap().ino;
    fs.setattr(d, &SetAttr { gid: Some(9), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.getattr(d).unwrap().perm, 0o2775);
    let inner = fs.mkdir(d, b"inner", 0o700, NOBODY).unwrap();
    assert_eq!((inner.uid, inner.gid, inner.perm), (65534, 9, 0o2700));
    let plain = fs.mknod(d, b"plain", 0o100_600, 0, NOBODY).unwrap();
    assert_eq!((plain.gid, plain.perm), (9, 0o600));
    let device = fs.mknod(d, b"null", 0o020_666, 0x103, NOBODY).unwrap();
    assert_eq!((device.kind, device.rdev), (FileKind::CharDevice, 0x103));
    refused(fs.mknod(d, b"no", 0o040_700, 0, NOBODY), Refusal::Invalid);
    assert_clean(&place);
}

#[test]
fn files_end_at_32_tib() {
    let place = new();
    let fs = place.posix();
    let a = file(&fs, "a");
    let max = 32_u64 << 40;
    refused(fs.setattr(a, &SetAttr { size: Some(max + 1), ..SetAttr::default() }), Refusal::FileTooLarge);
    fs.setattr(a, &SetAttr { size: Some(max), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.write(a, max - 3, b"end", PLAIN).unwrap(), 3);
    refused(fs.write(a, max - 2, b"end", PLAIN), Refusal::FileTooLarge);
    refused(fs.append(a, b"x", PLAIN), Refusal::FileTooLarge);
    let mut back = [0; 10];
    assert_eq!(fs.read(a, max - 3, &mut back).unwrap(), 3);
    assert_eq!(&back[..3], b"end");
    assert_eq!(fs.seek_data(a, 0).unwrap(), max - 512);
    assert_eq!(fs.seek_hole(a, max - 1).unwrap(), max);
    fs.setattr(a, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.getattr(a).unwrap().allocated_bytes, 0);
    assert_clean(&place);
}

#[test]
fn large_writes_and_copies_keep_their_bytes_and_holes() {
    let place = open(&formatted(256 << 20));
    let fs = place.posix();
    let (a, b) = (file(&fs, "a"), file(&fs, "b"));
    let mut data = vec![0; 20 << 20];
    for (index, byte) in data.iter_mut().enumerate() {
        *byte = (index / 1000) as u8 | 1;
    }
    assert_eq!(fs.write(a, 77, &data, PLAIN).unwrap(), data.len());
    let mut back = vec![0; data.len()];
    assert_eq!(fs.read(a, 77, &mut back).unwrap(), data.len());
    assert!(back == data);
    // Written pages with holes behind them, as a page-compressed table has.
    fs.setattr(a, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    for page in 0..256 {
        let options = WriteOptions { trim_to: Some((page + 1) * 16384), ..PLAIN };
        fs.write(a, page * 16384, &data[..16384], PLAIN).unwrap();
        fs.write(a, page * 16384, &data[..5120], options).unwrap();
    }
    let size = fs.getattr(a).unwrap().size;
    assert_eq!((size, fs.getattr(a).unwrap().allocated_bytes), (256 * 16384, 256 * 5120));
    let mut at = 0;
    while at < size {
        at += fs.copy_range((a, at), (b, at), size - at, false).unwrap();
    }
    assert_eq!((fs.getattr(b).unwrap().size, fs.getattr(b).unwrap().allocated_bytes), (size, 256 * 5120));
    let mut copy = vec![1; size as usize];
    fs.read(b, 0, &mut copy).unwrap();
    let mut original = vec![2; size as usize];
    fs.read(a, 0, &mut original).unwrap();
    assert!(copy == original);
    refused(fs.copy_range((a, 0), (a, 100), 1000, false), Refusal::Invalid);
    assert_clean(&place);
}

#[test]
fn runs_are_written_and_read_together() {
    let place = open(&formatted(256 << 20));
    let fs = place.posix();
    let a = file(&fs, "a");
    let bytes_max = place.props().atomic_bytes_max;
    fs.write(a, 0, &[9; 2048], PLAIN).unwrap();
    // Unaligned ends keep what was around them; a long run is cut.
    let long = vec![5; bytes_max as usize + 4096];
    let runs = [(100, &[1; 100][..]), (700, &[2; 1000]), (8192, &[3; 512]), (1 << 20, &long)];
    let batches = place.ftl().stats().batches;
    fs.write_runs(a, &runs).unwrap();
    assert_eq!(place.ftl().stats().batches - batches, 3, "what fits together, and the two pieces");
    let size = (1 << 20) + long.len() as u64;
    assert_eq!(fs.getattr(a).unwrap().size, size);
    let mut expected = vec![0; size as usize];
    expected[..2048].fill(9);
    for (offset, data) in runs {
        expected[offset as usize..offset as usize + data.len()].copy_from_slice(data);
    }
    let (mut at, mut found, mut starts) = (0, vec![0; size as usize], Vec::new());
    while at < size {
        let runs = fs.read_runs(a, at).unwrap();
        assert!(
            runs.end > at && runs.runs.iter().map(|(_, data)| data.len() as u64).sum::<u64>() <= bytes_max
        );
        for (offset, data) in runs.runs {
            found[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
            starts.push(offset);
        }
        at = runs.end;
    }
    assert!(found == expected);
    assert_eq!(starts[..3], [0, 8192, 1 << 20]);
    // To the end of a file and no further.
    fs.setattr(a, &SetAttr { size: Some(8292), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.read_runs(a, 8192).unwrap(), Runs { runs: vec![(8192, vec![3; 100])], end: 8292 });
    assert_eq!(fs.read_runs(a, 1 << 30).unwrap(), Runs { runs: vec![], end: 8292 });
    refused(fs.read_runs(a, 100), Refusal::Invalid);
    refused(fs.write_runs(a, &[(0, &[1; 100]), (511, &[1; 1])]), Refusal::Invalid);
    refused(fs.write_runs(a, &[(512, &[1; 1]), (0, &[1; 1])]), Refusal::Invalid);
    refused(fs.write_runs(a, &[((32 << 40) - 1, &[1; 2])]), Refusal::FileTooLarge);
    assert_clean(&place);
}

#[test]
fn attributes_have_the_limits_of_linux() {
    let device = formatted(64 << 20);
    let place = open(&device);
    let fs = place.posix();
    let a = file(&fs, "a");
    let before = place.ftl().stats().allocated_bytes;
    let set = |name: &[u8], value: &[u8]| fs.setxattr(a, name, value, XattrMode::Set);
    refused(set(b"", b"v"), Refusal::AttributeName);
    refused(set(&[&b"user."[..], &[b'n'; 251]].concat(), b"v"), Refusal::AttributeName);
    refused(set(b"system.posix_acl_access", b"v"), Refusal::NotSupported);
    refused(set(b"user.", b"v"), Refusal::NotSupported);
    refused(set(b"user.a", &vec![1; 65_537]), Refusal::AttributeTooLarge);
    refused(fs.setxattr(a, b"user.a", b"v", XattrMode::Replace), Refusal::NoAttribute);
    let longest = [&b"user."[..], &[b'n'; 250]].concat();
    set(&longest, &vec![7; 65_536]).unwrap();
    set(b"user.empty", b"").unwrap();
    set(b"trusted.t", b"small").unwrap();
    refused(set(b"user.more", &vec![1; 60_000]), Refusal::NoRoom);
    set(b"user.more", &vec![1; 50_000]).unwrap();
    refused(fs.setxattr(a, b"user.more", b"v", XattrMode::Create), Refusal::Exists);
    place.close().unwrap();
    assert_clean(&place);
    drop((fs, place));

    let place = open(&device);
    let fs = place.posix();
    assert!(fs.getxattr(a, &longest).unwrap() == vec![7; 65_536]);
    assert_eq!(fs.getxattr(a, b"user.empty").unwrap(), b"");
    let names = [&b"trusted.t\0user.empty\0user.more\0"[..], &longest, b"\0"].concat();
    assert_eq!(fs.listxattr(a).unwrap(), names);
    assert!(fs.getattr(a).unwrap().allocated_bytes > 115_000);
    fs.removexattr(a, &longest).unwrap();
    fs.removexattr(a, b"user.more").unwrap();
    refused(fs.removexattr(a, b"user.more"), Refusal::NoAttribute);
    assert_eq!(fs.getattr(a).unwrap().allocated_bytes, 0, "what fits is in the inode again");
    fs.removexattr(a, b"user.empty").unwrap();
    fs.removexattr(a, b"trusted.t").unwrap();
    assert_eq!(place.ftl().stats().allocated_bytes, before);
    assert_clean(&place);
}

#[test]
fn a_place_and_its_inodes_are_the_same_files() {
    let place = new();
    let fs = place.posix();
    let by_name = place.create("a", StreamHint::Data).unwrap();
    by_name.write_at(0, &[5; 1024]).unwrap();
    let a = fs.lookup(ROOT, b"a").unwrap();
    assert_eq!((a.size, a.perm), (1024, 0o644));
    fs.write(a.ino, 100, b"hello", PLAIN).unwrap();
    let mut back = [0; 512];
    by_name.read_at(0, &mut back).unwrap();
    assert_eq!(&back[99..106], b"\x05hello\x05");
    dir(&fs, ROOT, "d");
    fs.mknod(ROOT, b"\xff", 0o100_600, 0, NOBODY).unwrap();
    assert_eq!(place.list().unwrap(), ["a"]);
    for result in [place.open("d", StreamHint::Data).map(drop), place.remove("d")] {
        assert!(matches!(result, Err(lacuna_device::Error::Unsupported { .. })), "{result:?}");
    }
    // Open by number: removed by name, it lives until it is released.
    fs.open(a.ino).unwrap();
    place.remove("a").unwrap();
    assert_eq!(by_name.len().unwrap(), 1024);
    fs.release(a.ino).unwrap();
    assert!(by_name.len().is_err());
    refused(fs.getattr(a.ino), Refusal::Stale);
    refused(fs.release(a.ino), Refusal::Stale);
    assert_clean(&place);
}

#[test]
fn a_read_only_store_refuses_changes() {
    let device = formatted(64 << 20);
    let place = open(&device);
    let a = file(&place.posix(), "a");
    place.posix().write(a, 0, b"data", PLAIN).unwrap();
    place.close().unwrap();
    drop(place);
    let mut options = Options::default();
    options.ftl.read_only = true;
    let place = Nvmfs::open(device, options).unwrap();
    let fs = place.posix();
    let mut back = [0; 4];
    fs.open(a).unwrap();
    assert_eq!(fs.read(a, 0, &mut back).unwrap(), 4);
    for result in [
        fs.mkdir(ROOT, b"d", 0, NOBODY).map(drop),
        fs.write(a, 0, b"x", PLAIN).map(drop),
        fs.unlink(ROOT, b"a").map(drop),
        fs.setattr(a, &SetAttr { mode: Some(0), ..SetAttr::default() }).map(drop),
    ] {
        assert_eq!(result.unwrap_err().errno(), 30);
    }
    fs.fsync(a, false).unwrap();
    fs.release(a).unwrap();
    fs.sync().unwrap();
    place.close().unwrap();
}

/// A sync flushes what its inode needs, and nothing if another's sync has done so since.
#[test]
fn a_sync_reaches_up_to_the_last_change_of_its_inode() {
    let mut options = Options { clock, ..Options::default() };
    options.ftl.background = false;
    let place = Nvmfs::open(formatted(64 << 20), options).unwrap();
    let fs = place.posix();
    let (table, log) = (file(&fs, "table"), file(&fs, "log"));
    let write = |ino| fs.write(ino, 0, &[1; 512], PLAIN).unwrap();
    let flushes = |ino, data_only| {
        let before = place.ftl().stats().flushes;
        fs.fsync(ino, data_only).unwrap();
        place.ftl().stats().flushes - before
    };
    write(table);
    write(log);
    assert_eq!(flushes(log, true), 1);
    assert_eq!(flushes(table, true), 0, "the log's sync covered it");
    write(table);
    assert_eq!(flushes(log, true), 0, "nothing was done to it");
    assert_eq!(flushes(table, true), 1);
    assert_eq!(flushes(table, false), 1, "its time was not stored");
    fs.rename(ROOT, b"table", ROOT, b"renamed", Rename::Replace).unwrap();
    assert_eq!(flushes(log, true), 0);
    assert_eq!(flushes(ROOT, true), 1);
    assert_eq!(flushes(table, true), 0, "the directory's sync covered its new name");
    fs.link(log, ROOT, b"second").unwrap();
    assert_eq!(flushes(log, true), 1, "what it is called counts");
}

/// Everything can be read and removed on a full store, and what overwrites its like still works.
#[test]
fn a_full_store_refuses_growth_alone() {
    let device = formatted(32 << 20);
    let place = open(&device);
    let fs = place.posix();
    let mut rng = lacuna_sim::SeededRng::new(1);
    let mut page = vec![0; 100_001];
    rng.fill(&mut page);
    let opened = fs.create(ROOT, b"opened", 0o600, NOBODY).unwrap().ino;
    fs.write(opened, 0, &page, PLAIN).unwrap();
    let d = dir(&fs, ROOT, "d");
    let mut count = 0;
    let error = loop {
        let made = fs.mknod(d, format!("{count}").as_bytes(), 0o100_600, 0, NOBODY);
        match made.and_then(|attr| fs.write(attr.ino, 0, &page, PLAIN)) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), 28, "{error}");
    // The last room goes to names.
    let mut links = 0;
    while fs.link(opened, d, format!("link {links}").as_bytes()).is_ok() {
        links += 1;
    }
    assert!(count > 100 && links > 0, "{count} files, {links} links");
    let full = fs.statfs().unwrap();
    assert!(full.free_bytes < 4096, "{full:?}");

    fs.write(opened, 1000, &page[..5000], PLAIN).unwrap();
    fs.rename(ROOT, b"opened", ROOT, b"moved", Rename::Replace).unwrap();
    fs.setattr(opened, &SetAttr { mode: Some(0o644), uid: Some(5), ..SetAttr::default() }).unwrap();
    fs.fsync(opened, false).unwrap();
    let mut back = vec![0; page.len()];
    for number in 0..count {
        let ino = fs.lookup(d, format!("{number}").as_bytes()).unwrap().ino;
        assert_eq!(fs.read(ino, 0, &mut back).unwrap(), page.len());
        assert!(back == page, "file {number}");
    }
    for number in 0..links {
        fs.unlink(d, format!("link {number}").as_bytes()).unwrap();
    }
    fs.unlink(ROOT, b"moved").unwrap();
    assert_eq!(fs.getattr(opened).unwrap().nlink, 0);
    fs.setattr(opened, &SetAttr { size: Some(777), ..SetAttr::default() }).unwrap();
    fs.release(opened).unwrap();
    assert_clean(&place);
    assert!(fs.statfs().unwrap().free_bytes > full.free_bytes + 90_000);
    for number in 0..count {
        fs.unlink(d, format!("{number}").as_bytes()).unwrap();
    }
    fs.unlink(d, format!("{count}").as_bytes()).unwrap();
    fs.rmdir(ROOT, b"d").unwrap();
    let empty = fs.statfs().unwrap();
    assert_eq!(empty.free_inodes, empty.inodes - 1);
    assert!(empty.total_bytes - empty.free_bytes < 1000, "{empty:?}");
    assert_clean(&place);
}

/// Times that are in memory only do not become too many: the oldest are stored without being asked for.
#[test]
fn unstored_times_are_bounded() {
    let device = formatted(64 << 20);
    let place = open(&device);
    let fs = place.posix();
    let mut files = Vec::new();
    for number in 0..5000 {
        files.push(file(&fs, &format!("{number}")));
        fs.write(files[number], 0, &[1; 512], PLAIN).unwrap();
    }
    SECONDS.set(5000);
    for ino in &files {
        fs.write(*ino, 0, &[2; 512], PLAIN).unwrap();
    }
    place.ftl().flush().unwrap();
    drop((fs, place));
    let fs = open(&device).posix();
    let stored = files.iter().filter(|ino| fs.getattr(**ino).unwrap().modified == at(5000)).count();
    assert!((4000..5000).contains(&stored), "{stored}");
}

/// A listing and a read leave times as a write does, whoever never opens what he looks at.
#[test]
fn unstored_times_of_reads_are_bounded() {
    let device = formatted(64 << 20);
    let place = open(&device);
    let fs = place.posix();
    let looked_at: Vec<_> = (0..5000)
        .map(|number| match number % 2 {
            0 => dir(&fs, ROOT, &format!("{number}")),
            _ => {
                let ino = file(&fs, &format!("{number}"));
                fs.write(ino, 0, &[1; 512], PLAIN).unwrap();
                ino
            }
        })
        .collect();
    SECONDS.set(5000);
    for (number, ino) in looked_at.iter().enumerate() {
        match number % 2 {
            0 => fs.readdir(*ino, 0, &mut |_| true).unwrap(),
            _ => assert_eq!(fs.read_runs(*ino, 0).unwrap().end, 512),
        }
    }
    place.ftl().flush().unwrap();
    drop((fs, place));
    let fs = open(&device).posix();
    let stored = looked_at.iter().filter(|ino| fs.getattr(**ino).unwrap().accessed == at(5000)).count();
    assert!((4000..5000).contains(&stored), "{stored}");
}

/// Once writes fail, times pile up no further, and reads do not try in vain to store all of them each time.
#[test]
fn reads_of_a_stopped_store_go_on_without_times() {
    const FILES: usize = 18_000;
    thread_local! {
        static ASKED: Cell<u64> = const { Cell::new(0) };
    }
    fn counting_clock() -> Timestamp {
        ASKED.set(ASKED.get() + 1);
        clock()
    }
    let device = SimDevice::new(128 << 20, 1);
    Nvmfs::format(device.clone(), &FormatOptions { clock, ..FormatOptions::default() }).unwrap();
    let options = Options { clock: counting_clock, ..Options::default() };
    let place = Nvmfs::open(device.clone(), options).unwrap();
    let fs = place.posix();
    let files: Vec<_> = (0..FILES).map(|number| file(&fs, &format!("{number}"))).collect();
    files.iter().for_each(|ino| assert_eq!(fs.write(*ino, 0, &[1; 512], PLAIN).unwrap(), 512));
    fs.sync().unwrap();
    device.fail_writes_after(1);
    fs.write(files[0], 0, &[2; 512], PLAIN).unwrap();
    assert!(fs.sync().is_err() && fs.write(files[0], 0, &[2; 512], PLAIN).is_err(), "it goes on");
    SECONDS.set(5000);
    ASKED.set(0);
    for ino in &files {
        assert_eq!(fs.read(*ino, 0, &mut [0; 512]).unwrap(), 512);
    }
    // Each read asks once; each try to store times once for each inode, or 64 of them.
    let tries = ASKED.get() - FILES as u64;
    assert!(tries < 1000, "{tries}");
    let moved = files.iter().filter(|ino| fs.getattr(**ino).unwrap().accessed == at(5000)).count();
    assert!((10_000..FILES).contains(&moved), "{moved}");
}

/// Each slot of a file belongs to one thread; slots lie anyhow within sectors. Other threads append.
#[test]
fn unaligned_writes_and_appends_from_many_threads_lose_nothing() {
    const SLOT: usize = 300;
    const SLOTS: usize = 200;
    let place = new();
    let fs = place.posix();
    let (a, log) = (file(&fs, "a"), file(&fs, "log"));
    let next = AtomicI64::new(0);
    std::thread::scope(|scope| {
        for worker in 0..4_usize {
            let (fs, next) = (fs.clone(), &next);
            scope.spawn(move || {
                for round in 0..5_u8 {
                    for slot in (worker..SLOTS).step_by(4) {
                        let byte = round * 40 + slot as u8 % 40 + 1;
                        fs.write(a, (slot * SLOT) as u64, &[byte; SLOT], PLAIN).unwrap();
                    }
                    for _ in 0..20 {
                        let number = next.fetch_add(1, SeqCst);
                        fs.append(log, format!("{number:07}\n").as_bytes(), PLAIN).unwrap();
                    }
                }
            });
        }
    });
    let mut back = vec![0; SLOT * SLOTS];
    assert_eq!(fs.read(a, 0, &mut back).unwrap(), back.len());
    for (slot, bytes) in back.chunks(SLOT).enumerate() {
        assert!(bytes.iter().all(|byte| *byte == 160 + slot as u8 % 40 + 1), "slot {slot}");
    }
    let mut text = vec![0; 4000];
    assert_eq!(fs.read(log, 0, &mut text).unwrap(), 400 * 8);
    let text = String::from_utf8(text[..3200].to_vec()).unwrap();
    let mut numbers: Vec<i64> = text.lines().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..400).collect::<Vec<_>>());
    assert_clean(&place);
}

/// Threads make, move and remove directories and files in each other's way. Whoever loses is told, nobody
/// waits for ever, and what is left is in order.
#[test]
fn names_from_many_threads_stay_in_order() {
    let place = Nvmfs::open(formatted(64 << 20), Options { inodes_kept: 8, ..Options::default() }).unwrap();
    let fs = place.posix();
    for name in ["a", "b", "c"] {
        dir(&fs, ROOT, name);
    }
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let fs = fs.clone();
            scope.spawn(move || {
                let error = fight(&fs, worker, 1500);
                assert!(error.is_none(), "{error:?}");
            });
        }
        for _ in 0..20 {
            assert_clean(&place); // while they are at it
        }
    });
    assert_clean(&place);
}

/// Who changes names or inodes waits for a check that reads them. Nobody waits for him: others read, list, open, and
/// write within lengths meanwhile, in the same files and directories.
#[test]
fn who_waits_for_a_check_keeps_nobody_waiting() {
    let place = new();
    let fs = place.posix();
    let (a, b, d) = (file(&fs, "a"), file(&fs, "b"), dir(&fs, ROOT, "d"));
    fs.write(a, 0, &[1; 8192], PLAIN).unwrap();
    let changes: [fn(&Posix, Ino, Ino); 4] = [
        |fs, a, _| _ = fs.write(a, 8192, &[1; 512], PLAIN).unwrap(),
        |fs, _, d| _ = fs.mknod(d, b"new", 0o100_644, 0, NOBODY).unwrap(),
        |fs, _, d| fs.rename(ROOT, b"b", d, b"b", Rename::Replace).map(drop).unwrap(),
        |fs, a, _| _ = fs.setattr(a, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap(),
    ];
    let (reads, is_reading) = mpsc::channel();
    let (goes_on, may_go_on) = mpsc::channel();
    thread::scope(|scope| {
        let place = &place;
        scope.spawn(move || {
            let told = |progress: Progress| {
                if progress.what == "inodes" && reads.send(()).is_ok() {
                    let _ = may_go_on.recv();
                }
            };
            assert!(place.check_told(CheckDepth::Payload, told).unwrap().is_clean());
        });
        is_reading.recv().unwrap();
        drop(is_reading);
        let waiting = changes.map(|change| {
            let fs = place.posix();
            scope.spawn(move || change(&fs, a, d))
        });
        thread::sleep(Duration::from_millis(300));
        let (done, is_done) = mpsc::channel();
        let others = place.posix();
        scope.spawn(move || {
            others.write(a, 100, &[2; 600], PLAIN).unwrap();
            assert_eq!(others.getattr(a).unwrap().size, 8192);
            others.open(b).unwrap();
            for directory in [ROOT, d] {
                refused(others.lookup(directory, b"absent"), Refusal::NotFound);
                others.readdir(directory, 0, &mut |_| true).unwrap();
            }
            done.send(()).unwrap();
        });
        let went_on = is_done.recv_timeout(Duration::from_secs(20));
        let have_waited = waiting.iter().all(|change| !change.is_finished());
        goes_on.send(()).unwrap();
        went_on.expect("somebody waits for who waits");
        assert!(have_waited, "this test tests nothing");
    });
    assert_eq!(fs.getattr(a).unwrap().size, 8704);
    fs.lookup(d, b"b").unwrap();
    assert_clean(&place);
}

/// Times are no part of what a check looks at: while it reads, those that became too many are stored, and nobody waits
/// for that.
#[test]
fn a_check_keeps_no_times_from_being_stored() {
    let device = formatted(64 << 20);
    let place = open(&device);
    let fs = place.posix();
    let files: Vec<_> = (0..5000).map(|number| file(&fs, &format!("{number}"))).collect();
    files.iter().for_each(|ino| assert_eq!(fs.write(*ino, 0, &[1; 512], PLAIN).unwrap(), 512));
    let (reads, is_reading) = mpsc::channel();
    let (goes_on, may_go_on) = mpsc::channel();
    thread::scope(|scope| {
        let place = &place;
        let check = scope.spawn(move || {
            let told = |progress: Progress| {
                if progress.what == "inodes" && reads.send(()).is_ok() {
                    let _ = may_go_on.recv();
                }
            };
            place.check_told(CheckDepth::Payload, told).unwrap()
        });
        is_reading.recv().unwrap();
        drop(is_reading);
        let (done, is_done) = mpsc::channel();
        let (others, files) = (place.posix(), files.clone());
        scope.spawn(move || {
            SECONDS.set(5000);
            for ino in files {
                others.write(ino, 0, &[2; 512], PLAIN).unwrap();
            }
            done.send(()).unwrap();
        });
        let went_on = is_done.recv_timeout(Duration::from_secs(20));
        goes_on.send(()).unwrap();
        went_on.expect("who writes within lengths waits for a check");
        let report = check.join().unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
    });
    place.ftl().flush().unwrap();
    drop((fs, place));
    let fs = open(&device).posix();
    let stored = files.iter().filter(|ino| fs.getattr(**ino).unwrap().modified == at(5000)).count();
    assert!((4000..5000).contains(&stored), "{stored}");
}
