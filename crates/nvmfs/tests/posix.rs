//! The guarantees of the inode interface, one by one.

use std::{os::unix::fs::MetadataExt, sync::Arc};

use crate::by_inode::{
    NOBODY, PLAIN, ROOT, SECONDS, assert_clean, at, clock, dir, file, formatted, new, open, refused, times,
};
use lacuna_device::{BlockDevice, MemDevice, StreamHint, Vfs};
use lacuna_nvmfs::{
    Error, FormatOptions, Ino, Nvmfs, OpenedVfs, Options, Refusal, VfsOptions, open_vfs,
    posix::{
        AccessTimes, Allocate, Attr, Caller, FileKind, Rename, Runs, SetAttr, SetTime, WriteOptions,
        XattrMode,
    },
};

#[test]
fn errors_have_the_numbers_of_posix() {
    let vfs = new();
    let fs = vfs.posix();
    let errno = |result: Result<Attr, Error>| result.unwrap_err().errno();
    assert_eq!(errno(fs.lookup(ROOT, b"a")), 2);
    file(&fs, "a");
    assert_eq!(errno(fs.mkdir(ROOT, b"a", 0, NOBODY)), 17);
    let a = fs.lookup(ROOT, b"a").unwrap().ino;
    assert_eq!(errno(fs.lookup(a, b"b")), 20);
    assert_eq!(errno(fs.mkdir(ROOT, &[b'x'; 256], 0, NOBODY)), 36);
    assert_eq!(errno(fs.getattr(Ino::new(12345).unwrap())), 116);
    assert_eq!(fs.getxattr(a, b"user.no").unwrap_err().errno(), 61);
    assert_eq!(fs.getxattr(a, b"system.other").unwrap_err().errno(), 95);
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
    let vfs = new();
    let fs = vfs.posix();
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
    assert_clean(&vfs);
}

#[test]
fn directories_know_their_parents_and_count_their_children() {
    let vfs = new();
    let fs = vfs.posix();
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
    assert_clean(&vfs);
}

#[test]
fn a_file_without_a_name_lives_while_it_is_held_and_may_get_one() {
    let vfs = new();
    let fs = vfs.posix();
    let d = dir(&fs, ROOT, "d");
    fs.setattr(d, &SetAttr { gid: Some(7), ..SetAttr::default() }).unwrap();
    fs.setattr(d, &SetAttr { mode: Some(0o2755), ..SetAttr::default() }).unwrap();
    let before = times(&fs.getattr(d).unwrap());
    SECONDS.set(3000);
    let made = fs.create_unnamed(d, 0o640, false, Caller { umask: 0o40, ..NOBODY }).unwrap();
    assert_eq!((made.kind, made.nlink, made.perm), (FileKind::File, 0, 0o600));
    assert_eq!((made.uid, made.gid), (65534, 7));
    assert_eq!(times(&fs.getattr(d).unwrap()), before, "nothing of the directory changes");
    fs.write(made.ino, 0, b"data", PLAIN).unwrap();
    assert_clean(&vfs);
    assert_eq!(fs.link(made.ino, ROOT, b"a").unwrap().nlink, 1);
    assert_eq!(fs.link(made.ino, d, b"b").unwrap().nlink, 2);
    assert_clean(&vfs);
    fs.unlink(ROOT, b"a").unwrap();
    fs.unlink(d, b"b").unwrap();
    refused(fs.link(made.ino, ROOT, b"c"), Refusal::NotFound);
    fs.release(made.ino).unwrap();
    refused(fs.getattr(made.ino), Refusal::Stale);

    let exclusive = fs.create_unnamed(ROOT, 0o600, true, NOBODY).unwrap().ino;
    refused(fs.link(exclusive, ROOT, b"a"), Refusal::NotFound);
    fs.release(exclusive).unwrap();
    refused(fs.getattr(exclusive), Refusal::Stale);

    // A kernel knows it, and nobody has it open.
    let kernel = vfs.posix().counting_lookups();
    let known = kernel.create_unnamed(ROOT, 0o600, false, NOBODY).unwrap().ino;
    kernel.release(known).unwrap();
    assert_eq!(kernel.link(known, ROOT, b"known").unwrap().nlink, 1);
    kernel.forget(known, 2).unwrap();
    assert_eq!(fs.lookup(ROOT, b"known").unwrap().ino, known);
    let file = file(&fs, "file");
    refused(fs.create_unnamed(file, 0o600, false, NOBODY), Refusal::NotADirectory);
    assert_clean(&vfs);
}

#[test]
fn a_whiteout_takes_the_place_of_a_name_that_moves() {
    let vfs = new();
    let fs = vfs.posix();
    let (a, d) = (file(&fs, "a"), dir(&fs, ROOT, "d"));
    let away = |from: &'static [u8], to, mode| fs.rename_leaving_whiteout((ROOT, from), to, mode, NOBODY);
    assert_eq!(away(b"a", (d, b"b"), Rename::Replace).unwrap(), None);
    let whiteout = fs.lookup(ROOT, b"a").unwrap();
    assert_eq!((whiteout.kind, whiteout.rdev, whiteout.perm), (FileKind::CharDevice, 0, 0));
    assert_eq!((whiteout.nlink, whiteout.uid, whiteout.gid), (1, 65534, 65534));
    assert_eq!(fs.lookup(d, b"b").unwrap().ino, a);
    assert_clean(&vfs);
    file(&fs, "c");
    refused(away(b"c", (d, b"b"), Rename::Exchange), Refusal::Invalid);
    refused(away(b"c", (d, b"b"), Rename::NoReplace), Refusal::Exists);
    refused(away(b"none", (d, b"b"), Rename::Replace), Refusal::NotFound);
    // Back over it, as overlayfs does.
    let gone = fs.rename(d, b"b", ROOT, b"a", Rename::Replace).unwrap();
    assert_eq!(gone.map(|gone| gone.ino), Some(whiteout.ino));
    // A directory's place is taken by something that is none.
    assert_eq!(fs.getattr(ROOT).unwrap().nlink, 3);
    let e = dir(&fs, ROOT, "e");
    away(b"d", (e, b"d"), Rename::Replace).unwrap();
    assert_eq!((fs.getattr(ROOT).unwrap().nlink, fs.getattr(e).unwrap().nlink), (3, 3));
    // Onto itself: nothing happens.
    assert_eq!(away(b"c", (ROOT, b"c"), Rename::Replace).unwrap(), None);
    assert_eq!(fs.lookup(ROOT, b"c").unwrap().kind, FileKind::File);
    assert_clean(&vfs);
}

#[test]
fn times_move_and_are_stored_when_they_must() {
    let device = formatted(64 << 20);
    let vfs = open(&device);
    let fs = vfs.posix();
    SECONDS.set(2000);
    let a = file(&fs, "a");
    assert_eq!(times(&fs.getattr(a).unwrap()), (2000, 2000, 2000));
    assert_eq!(fs.getattr(a).unwrap().created, at(2000));
    assert_eq!(times(&fs.getattr(ROOT).unwrap()), (1000, 2000, 2000));
    fs.write(a, 0, &[1; 1024], PLAIN).unwrap();

    // A write within the length: its bytes and nothing else.
    SECONDS.set(2001);
    let before = vfs.ftl().stats().host_bytes;
    fs.write(a, 0, &[2; 1024], PLAIN).unwrap();
    assert_eq!(vfs.ftl().stats().host_bytes - before, 1024);
    assert_eq!(times(&fs.getattr(a).unwrap()), (2000, 2001, 2001));
    fs.fsync(a, true).unwrap();
    let reopened = |vfs: Nvmfs| {
        drop(vfs);
        let vfs = open(&device);
        (times(&vfs.posix().getattr(a).unwrap()), vfs)
    };
    drop(fs);
    let (stored, vfs) = reopened(vfs);
    assert_eq!(stored.1, 2000, "fdatasync stores no times");
    let fs = vfs.posix();
    fs.write(a, 512, &[3; 512], PLAIN).unwrap();
    fs.fsync(a, false).unwrap();
    drop(fs);
    let (stored, vfs) = reopened(vfs);
    assert_eq!(stored.1, 2001, "fsync does");
    let fs = vfs.posix();

    // Reads, with relatime semantics.
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
    let (stored, vfs) = reopened(vfs);
    assert_eq!(stored.0, clock().seconds, "the last release does, too");

    let fs = vfs.posix();
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
    vfs.close().unwrap();
    drop(fs);
    let (stored, vfs) = reopened(vfs);
    assert_eq!(stored, (-5, 90_004, 90_004));
    assert_eq!(vfs.posix().getattr(ROOT).unwrap().modified, at(90_003));
    assert_clean(&vfs);
}

/// A file made through a VFS gets the owner of its directory.
#[test]
fn a_store_belongs_to_who_formats_it() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    let options = FormatOptions { owner: Some(NOBODY), clock, ..FormatOptions::default() };
    Nvmfs::format(device.clone(), &options).unwrap();
    let vfs = open(&device);
    let fs = vfs.posix();
    let owner = |attr: Attr| Caller { uid: attr.uid, gid: attr.gid, umask: 0 };
    assert_eq!(owner(fs.getattr(ROOT).unwrap()), NOBODY);
    vfs.create("file", StreamHint::Data).unwrap();
    let inner = vfs.directory("outer/inner", true).unwrap();
    let outer = fs.lookup(ROOT, b"outer").unwrap();
    let made = [fs.lookup(ROOT, b"file").unwrap(), outer, fs.lookup(outer.ino, b"inner").unwrap()];
    assert_eq!(made.map(owner), [NOBODY; 3]);
    let other = SetAttr { uid: Some(5), gid: Some(6), ..SetAttr::default() };
    fs.setattr(made[2].ino, &other).unwrap();
    inner.create("file", StreamHint::Log).unwrap();
    assert_eq!(owner(fs.lookup(made[2].ino, b"file").unwrap()), Caller { uid: 5, gid: 6, umask: 0 });
    // A caller by inode number passes the owner.
    assert_eq!(owner(fs.mkdir(ROOT, b"d", 0o755, Caller::default()).unwrap()), Caller::default());
}

#[test]
fn a_store_belongs_to_who_makes_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = VfsOptions { create_size: Some(64 << 20), ..VfsOptions::default() };
    let OpenedVfs::Store(vfs) = open_vfs(&path, &options).unwrap() else { panic!("a store") };
    let (store, root) = (path.metadata().unwrap(), vfs.posix().getattr(ROOT).unwrap());
    assert_eq!((root.uid, root.gid), (store.uid(), store.gid()));
}

/// Whether it finds anything to do or not, as on ext4 and XFS.
#[test]
fn fallocate_is_a_change() {
    let vfs = new();
    let fs = vfs.posix();
    SECONDS.set(2000);
    let a = file(&fs, "a");
    fs.write(a, 0, &[1; 512], PLAIN).unwrap();
    let mut now = 2000;
    let mut moves = |offset, len, what| {
        now += 1;
        SECONDS.set(now);
        fs.fallocate(a, offset, len, what, None).unwrap();
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

/// The kernel says itself when it changed a page that it writes back.
#[test]
fn times_stay_when_somebody_else_keeps_them() {
    let vfs = new();
    let fs = vfs.posix();
    SECONDS.set(2000);
    let a = file(&fs, "a");
    let kept = WriteOptions { from_cache: true, keeps_times: true, ..PLAIN };
    for (seconds, offset, size) in [(2001, 0, 700), (2002, 0, 700), (2003, 5000, 5700)] {
        SECONDS.set(seconds);
        fs.write(a, offset, &[1; 700], kept).unwrap();
        let attr = fs.getattr(a).unwrap();
        assert_eq!((attr.size, times(&attr)), (size, (2000, 2000, 2000)));
    }
    let said =
        SetAttr { modified: Some(SetTime::At(at(1999))), changed: Some(at(2002)), ..SetAttr::default() };
    fs.setattr(a, &said).unwrap();
    fs.write(a, 9000, &[1; 700], kept).unwrap();
    assert_eq!(times(&fs.getattr(a).unwrap()), (2000, 1999, 2002));
}

#[test]
fn times_of_access_are_kept_as_asked_for() {
    for (access_times, nodiratime, expected) in [
        (AccessTimes::Never, false, [1000; 6]),
        (AccessTimes::Relative, false, [1001; 6]),
        (AccessTimes::Relative, true, [1001, 1001, 1001, 1001, 1000, 1000]),
        (AccessTimes::Always, false, [1001, 1002, 1001, 1002, 1001, 1002]),
        (AccessTimes::Always, true, [1001, 1002, 1001, 1002, 1000, 1000]),
    ] {
        SECONDS.set(1000);
        let options = Options { clock, access_times, nodiratime, ..Options::default() };
        let vfs = Nvmfs::open(formatted(64 << 20), options).unwrap();
        let fs = vfs.posix();
        let (a, d) = (file(&fs, "a"), dir(&fs, ROOT, "d"));
        let l = fs.symlink(ROOT, b"l", b"target", Caller::default()).unwrap().ino;
        fs.write(a, 0, b"data", PLAIN).unwrap();
        let mut seen = [[0; 2]; 3];
        for at in 0..2 {
            SECONDS.set(1001 + at as i64);
            let is_due = [a, l, d].map(|ino| fs.is_access_due(ino));
            fs.read(a, 0, &mut [0; 4]).unwrap();
            fs.readlink(l).unwrap();
            fs.readdir(d, 0, &mut |_| true).unwrap();
            for ((ino, seen), is_due) in [a, l, d].into_iter().zip(&mut seen).zip(is_due) {
                seen[at] = fs.getattr(ino).unwrap().accessed.seconds;
                assert_eq!(is_due, seen[at] == SECONDS.get(), "{access_times:?} {nodiratime} {at}");
            }
        }
        assert_eq!(seen.as_flattened(), expected, "{access_times:?} {nodiratime}");
        // A day later, on a mount that has become read-only, and is so no longer.
        SECONDS.set(100_000);
        let was_due = fs.is_access_due(a);
        fs.note_access(false);
        fs.read(a, 0, &mut [0; 4]).unwrap();
        assert!(!fs.is_access_due(a) && fs.getattr(a).unwrap().accessed.seconds == seen[0][1]);
        fs.note_access(true);
        assert_eq!(fs.is_access_due(a), was_due);
    }
}

/// A program that has it open sees that it changed.
#[test]
fn to_lose_the_last_name_is_a_change() {
    let vfs = new();
    let fs = vfs.posix();
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
    let vfs = new();
    let fs = vfs.posix();
    let (a, b) = (file(&fs, "a"), file(&fs, "b"));
    fs.write(b, 0, &[2; 512], PLAIN).unwrap();
    let set_mode = |mode| {
        fs.setattr(a, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
        fs.setxattr(a, b"security.capability", b"all of them", XattrMode::Set).unwrap();
    };
    let perm = || fs.getattr(a).unwrap().perm;
    let has_capability = || fs.getxattr(a, b"security.capability").is_ok();
    fs.write(a, 0, &[1; 2048], PLAIN).unwrap();
    // By a member of the group, by others, and by root without the privilege to keep the bits.
    for (mode, gid, caller, without) in [
        (0o6755, NOBODY.gid, NOBODY, 0o755),
        (0o4644, NOBODY.gid, NOBODY, 0o644),
        (0o2644, NOBODY.gid, NOBODY, 0o2644),
        (0o6644, 5, NOBODY, 0o644),
        (0o2654, 5, NOBODY, 0o654),
        (0o6644, 5, Caller::default(), 0o2644),
    ] {
        let kill = WriteOptions { kill_privileges: Some(caller), ..PLAIN };
        fs.setattr(a, &SetAttr { gid: Some(gid), ..SetAttr::default() }).unwrap();
        set_mode(mode);
        // A mapped page from before.
        fs.write(a, 0, &[1; 512], WriteOptions { from_cache: true, ..PLAIN }).unwrap();
        assert_eq!((perm(), has_capability()), (mode as u16, true));
        // Root may keep the bits, but no caller keeps a capability.
        fs.write(a, 0, &[1; 512], PLAIN).unwrap();
        assert_eq!((perm(), has_capability()), (mode as u16, false));
        set_mode(mode);
        fs.write(a, 0, &[1; 512], kill).unwrap();
        assert_eq!((perm(), has_capability()), (without, false));
        set_mode(mode);
        fs.append(a, b"more", kill).unwrap();
        assert_eq!((perm(), has_capability()), (without, false));
        set_mode(mode);
        let cut = SetAttr { size: Some(1000), ..SetAttr::default() };
        fs.setattr(a, &cut).unwrap();
        assert_eq!((perm(), has_capability()), (mode as u16, false));
        set_mode(mode);
        fs.setattr(a, &SetAttr { kill_privileges: Some(caller), ..cut }).unwrap();
        assert_eq!((perm(), has_capability()), (without, false));
        for (what, len) in [
            (Allocate::Extend, 4096),
            (Allocate::Extend, 1),
            (Allocate::KeepSize, 4096),
            (Allocate::PunchHole, 512),
            (Allocate::ZeroRange { keep_size: true }, 4096),
        ] {
            set_mode(mode);
            fs.fallocate(a, 0, len, what, None).unwrap();
            assert_eq!((perm(), has_capability()), (mode as u16, false), "{what:?}");
            set_mode(mode);
            fs.fallocate(a, 0, len, what, Some(caller)).unwrap();
            assert_eq!((perm(), has_capability()), (without, false), "{what:?}");
        }
        for (offset, len) in [(0, 512), (1, 100), (0, 1)] {
            set_mode(mode);
            let to = 100 * offset;
            assert_eq!(fs.copy_range((b, offset), (a, to), len, None).unwrap(), len);
            assert_eq!((perm(), has_capability()), (mode as u16, false));
            set_mode(mode);
            assert_eq!(fs.copy_range((b, offset), (a, to), len, Some(caller)).unwrap(), len);
            assert_eq!((perm(), has_capability()), (without, false));
        }
        set_mode(mode);
        fs.setattr(a, &SetAttr { gid: Some(7), ..SetAttr::default() }).unwrap();
        let without = if mode & 0o010 != 0 { mode & 0o777 } else { mode & 0o3777 } as u16;
        assert_eq!((perm(), has_capability()), (without, false));
    }
}

#[test]
fn directories_keep_their_bits_and_pass_on_their_group() {
    let vfs = new();
    let fs = vfs.posix();
    let d = fs.mkdir(ROOT, b"d", 0o2775, Caller { uid: 1, gid: 2, umask: 0 }).unwrap().ino;
    fs.setattr(d, &SetAttr { gid: Some(9), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.getattr(d).unwrap().perm, 0o2775);
    let inner = fs.mkdir(d, b"inner", 0o700, NOBODY).unwrap();
    assert_eq!((inner.uid, inner.gid, inner.perm), (65534, 9, 0o2700));
    let plain = fs.mknod(d, b"plain", 0o100_600, 0, NOBODY).unwrap();
    assert_eq!((plain.gid, plain.perm), (9, 0o600));
    let device = fs.mknod(d, b"null", 0o020_666, 0x103, NOBODY).unwrap();
    assert_eq!((device.kind, device.rdev), (FileKind::CharDevice, 0x103));
    refused(fs.mknod(d, b"no", 0o040_700, 0, NOBODY), Refusal::Invalid);
    assert_clean(&vfs);
}

#[test]
fn files_end_at_32_tib() {
    let vfs = new();
    let fs = vfs.posix();
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
    assert_clean(&vfs);
}

#[test]
fn large_writes_and_copies_keep_their_bytes_and_holes() {
    let vfs = open(&formatted(256 << 20));
    let fs = vfs.posix();
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
        at += fs.copy_range((a, at), (b, at), size - at, None).unwrap();
    }
    assert_eq!((fs.getattr(b).unwrap().size, fs.getattr(b).unwrap().allocated_bytes), (size, 256 * 5120));
    let mut copy = vec![1; size as usize];
    fs.read(b, 0, &mut copy).unwrap();
    let mut original = vec![2; size as usize];
    fs.read(a, 0, &mut original).unwrap();
    assert!(copy == original);
    refused(fs.copy_range((a, 0), (a, 100), 1000, None), Refusal::Invalid);
    assert_clean(&vfs);
}

#[test]
fn runs_are_written_and_read_together() {
    let vfs = open(&formatted(256 << 20));
    let fs = vfs.posix();
    let a = file(&fs, "a");
    let bytes_max = vfs.props().atomic_bytes_max;
    fs.write(a, 0, &[9; 2048], PLAIN).unwrap();
    // Unaligned ends keep what was around them; a long run is cut.
    let long = vec![5; bytes_max as usize + 4096];
    let runs = [(100, &[1; 100][..]), (700, &[2; 1000]), (8192, &[3; 512]), (1 << 20, &long)];
    let batches = vfs.ftl().stats().batches;
    fs.write_runs(a, &runs).unwrap();
    assert_eq!(vfs.ftl().stats().batches - batches, 3, "what fits together, and the two pieces");
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
    assert_clean(&vfs);
}

#[test]
fn attributes_have_the_limits_of_linux() {
    let device = formatted(64 << 20);
    let vfs = open(&device);
    let fs = vfs.posix();
    let a = file(&fs, "a");
    let before = vfs.ftl().stats().allocated_bytes;
    let set = |name: &[u8], value: &[u8]| fs.setxattr(a, name, value, XattrMode::Set);
    refused(set(b"", b"v"), Refusal::AttributeName);
    refused(set(&[&b"user."[..], &[b'n'; 251]].concat(), b"v"), Refusal::AttributeName);
    refused(set(b"system.other", b"v"), Refusal::NotSupported);
    refused(set(b"user.", b"v"), Refusal::NotSupported);
    refused(set(b"user.a", &vec![1; 65_537]), Refusal::AttributeTooLarge);
    refused(fs.setxattr(a, b"user.a", b"v", XattrMode::Replace), Refusal::NoAttribute);
    let longest = [&b"user."[..], &[b'n'; 250]].concat();
    set(&longest, &vec![7; 65_536]).unwrap();
    set(b"user.empty", b"").unwrap();
    set(b"trusted.t", b"small").unwrap();
    refused(set(b"user.more", &vec![1; 60_000]), Refusal::NoSpace);
    set(b"user.more", &vec![1; 50_000]).unwrap();
    refused(fs.setxattr(a, b"user.more", b"v", XattrMode::Create), Refusal::Exists);
    vfs.close().unwrap();
    assert_clean(&vfs);
    drop((fs, vfs));

    let vfs = open(&device);
    let fs = vfs.posix();
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
    assert_eq!(vfs.ftl().stats().allocated_bytes, before);
    assert_clean(&vfs);
}

#[test]
fn a_place_and_its_inodes_are_the_same_files() {
    let vfs = new();
    let fs = vfs.posix();
    let by_name = vfs.create("a", StreamHint::Data).unwrap();
    by_name.write_at(0, &[5; 1024]).unwrap();
    let a = fs.lookup(ROOT, b"a").unwrap();
    assert_eq!((a.size, a.perm), (1024, 0o600));
    fs.write(a.ino, 100, b"hello", PLAIN).unwrap();
    let mut back = [0; 512];
    by_name.read_at(0, &mut back).unwrap();
    assert_eq!(&back[99..106], b"\x05hello\x05");
    dir(&fs, ROOT, "d");
    fs.mknod(ROOT, b"\xff", 0o100_600, 0, NOBODY).unwrap();
    assert_eq!(vfs.list().unwrap(), ["a"]);
    for result in [vfs.open("d", StreamHint::Data).map(drop), vfs.remove("d")] {
        assert!(matches!(result, Err(lacuna_device::Error::Unsupported { .. })), "{result:?}");
    }
    // Open by number: removed by name, it lives until it is released.
    fs.open(a.ino).unwrap();
    vfs.remove("a").unwrap();
    assert_eq!(by_name.len().unwrap(), 1024);
    fs.release(a.ino).unwrap();
    assert!(by_name.len().is_err());
    refused(fs.getattr(a.ino), Refusal::Stale);
    refused(fs.release(a.ino), Refusal::Stale);
    assert_clean(&vfs);
}
