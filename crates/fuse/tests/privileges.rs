//! What the kernel leaves to a file system of the rules about users, without a mount.

use std::sync::Arc;

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_fuse::{Errno, Opening, Service, ServiceOptions, SetGroupId, WriteRequest};
use lacuna_nvmfs::{
    FormatOptions, Nvmfs, Options,
    posix::{Caller, SetAttr, XattrMode},
};
use rustix::io::Errno as Os;

const ROOT: u64 = 1;
const FILE_MODE: u32 = 0o100_644;
const ACL: &[u8] = b"system.posix_acl_access";

fn service() -> Service {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
    let fs = Nvmfs::open(device, Options::default()).expect("opens");
    Service::new(Arc::new(fs), ServiceOptions::default())
}

fn by(uid: u32, gid: u32) -> Caller {
    Caller { uid, gid, umask: 0 }
}

/// Owner, group and others with the permissions of the mode 640, and a named user who may read, by the mask.
const LIST: [(u16, u16, u32); 5] =
    [(1, 6, u32::MAX), (2, 4, 5), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    value
}

#[test]
fn a_list_of_somebody_outside_of_the_group_takes_set_group_id() {
    use SetGroupId::{ByFirstGroup, Goes, Stays};
    let service = service();
    let file = service.create(ROOT, b"file", FILE_MODE, by(5, 6)).expect("makes").ino.number();
    let dir = service.mkdir(ROOT, b"d", 0o2755, by(5, 6)).expect("makes").ino.number();
    let set_up = SetAttr { mode: Some(0o2755), ..SetAttr::default() };
    for (number, name, caller, set_group_id, expected) in [
        (file, &b"user.x"[..], by(5, 7), ByFirstGroup, 0o2755),
        (file, b"user.x", by(5, 7), Goes, 0o2755),
        (file, ACL, by(0, 0), ByFirstGroup, 0o2640),
        (file, ACL, by(5, 6), ByFirstGroup, 0o2640),
        (file, ACL, by(5, 7), ByFirstGroup, 0o640),
        (dir, ACL, by(5, 7), ByFirstGroup, 0o2640),
        (file, ACL, by(5, 7), Stays, 0o2640),
        (file, ACL, by(5, 7), Goes, 0o640),
        (dir, ACL, by(5, 7), Stays, 0o2640),
        (dir, ACL, by(5, 7), Goes, 0o640),
    ] {
        service.setattr(number, &set_up).expect("changes");
        service.setxattr(number, name, &acl(&LIST), XattrMode::Set, caller, set_group_id).expect("sets");
        assert_eq!(service.getattr(number).map(|attr| attr.perm), Ok(expected), "{set_group_id:?}");
    }
    assert_eq!(service.getxattr(file, ACL), Ok(acl(&LIST)), "a mode and a list agree");
    // What is refused changes nothing.
    service.setattr(file, &set_up).expect("changes");
    let refused = service.setxattr(file, ACL, &acl(&LIST), XattrMode::Create, by(5, 7), Goes);
    assert_eq!(refused, Err(errno(Os::EXIST)));
    assert_eq!(service.getattr(file).map(|attr| attr.perm & 0o7000), Ok(0o2000));
}

#[test]
fn the_umask_gives_way_to_a_default_list() {
    let service = service();
    let caller = Caller { uid: 5, gid: 6, umask: 0o077 };
    let dir = service.mkdir(ROOT, b"d", 0o777, caller).expect("makes");
    assert_eq!(dir.perm, 0o700);
    let dir = dir.ino.number();
    let made = |name| service.create(dir, name, 0o100_666, caller).expect("makes").perm;
    assert_eq!(made(b"masked"), 0o600);
    let default = b"system.posix_acl_default";
    service.setxattr(dir, default, &acl(&LIST), XattrMode::Set, by(0, 0), SetGroupId::Stays).expect("sets");
    assert_eq!(made(b"listed"), 0o640);
    let fifo = service.mknod(dir, b"fifo", 0o010_666, 0, caller).expect("makes");
    assert_eq!(fifo.perm, 0o640);
    assert_eq!(service.mkdir(dir, b"inner", 0o777, caller).expect("makes").perm, 0o640);
}

#[test]
fn who_is_not_root_takes_set_ids_with_allocations_and_copies() {
    const PUNCH: i32 = 3;
    const ZERO: i32 = 16;
    let service = service();
    let file = service.create(ROOT, b"file", FILE_MODE, by(5, 6)).expect("makes").ino.number();
    let other = service.create(ROOT, b"other", FILE_MODE, by(5, 6)).expect("makes").ino.number();
    type Change<'a> = &'a dyn Fn(Caller);
    let changes: [(&str, Change<'_>); 4] = [
        ("fallocate", &|caller| service.fallocate(file, 0, 8192, 0, caller).expect("allocates")),
        ("punch", &|caller| service.fallocate(file, 0, 512, PUNCH, caller).expect("punches")),
        ("zero", &|caller| service.fallocate(file, 0, 512, ZERO, caller).expect("zeroes")),
        ("copy", &|caller| {
            service.fallocate(other, 0, 4096, 0, by(0, 0)).expect("allocates");
            assert_eq!(service.copy_range((other, 0), (file, 0), 4096, caller), Ok(4096));
        }),
    ];
    for (what, change) in changes {
        for (caller, expected) in [(by(0, 0), 0o6755), (by(5, 7), 0o755)] {
            let set_up = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
            service.setattr(file, &set_up).expect("changes");
            change(caller);
            assert_eq!(service.getattr(file).map(|attr| attr.perm), Ok(expected), "{what} by {caller:?}");
        }
    }
}

#[test]
fn only_root_sees_that_there_are_attributes_of_roots() {
    let service = service();
    let file = service.create(ROOT, b"file", FILE_MODE, by(5, 6)).expect("makes").ino.number();
    for name in [&b"trusted.a"[..], b"user.b", b"trusted.c"] {
        service.setxattr(file, name, b"value", XattrMode::Set, by(0, 0), SetGroupId::Stays).expect("sets");
    }
    assert_eq!(service.listxattr(file, by(0, 0)).as_deref(), Ok(&b"trusted.a\0trusted.c\0user.b\0"[..]));
    assert_eq!(service.listxattr(file, by(5, 6)).as_deref(), Ok(&b"user.b\0"[..]));
}

fn errno(errno: Os) -> Errno {
    Errno(errno.raw_os_error())
}

const COMPRESSION: &[u8] = b"user.lacuna.compression";
const ROOM: &[u8] = b"user.lacuna.room";
const REWRITE: &[u8] = b"user.lacuna.rewrite";
const GETFLAGS: u32 = 0x8008_6601;
const SETFLAGS: u32 = 0x4008_6602;

#[test]
fn only_the_owner_changes_the_compression() {
    let service = service();
    let file = service.create(ROOT, b"file", FILE_MODE, by(5, 6)).expect("makes").ino.number();
    let set = |value: &[u8], caller| {
        service.setxattr(file, COMPRESSION, value, XattrMode::Set, caller, SetGroupId::Stays)
    };
    let get = || String::from_utf8(service.getxattr(file, COMPRESSION).expect("is there")).expect("a text");
    let flags = || {
        let answer =
            service.ioctl(file, Opening::Cached.handle(0), GETFLAGS, &[], by(7, 6)).expect("answers");
        u32::from_le_bytes(answer.try_into().expect("four bytes"))
    };
    let set_flags = |flags: u32, caller| {
        service.ioctl(file, Opening::Cached.handle(0), SETFLAGS, &flags.to_le_bytes(), caller)
    };
    assert_eq!((get().as_str(), flags()), ("default none", 0));
    assert_eq!(set(b"lz4", by(7, 6)), Err(errno(Os::PERM)));
    assert_eq!(set_flags(4, by(7, 6)), Err(errno(Os::PERM)));
    assert_eq!(get(), "default none");
    set(b"zstd:7", by(5, 9)).expect("the owner");
    assert_eq!((get().as_str(), flags()), ("zstd:7", 4));
    assert_eq!(set_flags(4, by(5, 6)), Ok(Vec::new()));
    assert_eq!(get(), "zstd:7", "it was compressed already");
    for (wanted, text) in [(0, "none"), (4, "lz4")] {
        assert_eq!(set_flags(wanted, by(0, 0)), Ok(Vec::new()));
        assert_eq!(get(), text);
    }
    service.fs().set_compression("zstd:2".parse().expect("a known one"));
    set(b"none", by(0, 0)).expect("root");
    assert_eq!(set_flags(4, by(5, 6)), Ok(Vec::new()));
    assert_eq!(get(), "default zstd:2");
    assert_eq!(set_flags(0x10 | 4, by(0, 0)), Err(errno(Os::OPNOTSUPP)));
    assert_eq!(
        service.ioctl(file, Opening::Cached.handle(0), SETFLAGS, &[4], by(0, 0)),
        Err(errno(Os::INVAL))
    );
    for wrong in [&b"zstd:23"[..], b"", b"\xff", b"lz4 "] {
        assert_eq!(set(wrong, by(0, 0)), Err(errno(Os::INVAL)), "{wrong:?}");
    }
    let link = service.symlink(ROOT, b"link", b"x", by(0, 0)).expect("makes").ino.number();
    let set = service.setxattr(link, COMPRESSION, b"lz4", XattrMode::Set, by(0, 0), SetGroupId::Stays);
    assert_eq!(set, Err(errno(Os::INVAL)));
}

#[test]
fn room_and_rewrites_are_attributes_that_are_not_listed() {
    let service = service();
    let file = service.create(ROOT, b"file", FILE_MODE, by(5, 6)).expect("makes").ino.number();
    let data = vec![1; 100_000];
    let request = WriteRequest {
        offset: 0,
        data: &data,
        open_flags: 0,
        kill_privileges: None,
        is_direct: false,
        from_cache: false,
        caller: by(5, 6),
    };
    service.write(file, request).expect("writes");
    let room = || String::from_utf8(service.getxattr(file, ROOM).expect("is there")).expect("a text");
    assert_eq!(room(), "plain 100352 100352 lz4 0 0 zstd 0 0".replace("100352 100352", "100352 100000"));
    let set = |name, value: &[u8], caller| {
        service.setxattr(file, name, value, XattrMode::Set, caller, SetGroupId::Stays)
    };
    set(COMPRESSION, b"zstd:1", by(5, 6)).expect("sets");
    set(REWRITE, b"0 100000", by(7, 8)).expect("the kernel has checked that it may write");
    assert!(room().starts_with("plain 0 0 lz4 0 0 zstd 100352 "), "{}", room());
    for wrong in [&b"0"[..], b"0 16777217", b"0 x", b"-1 5", b"1 2 3", b""] {
        assert_eq!(set(REWRITE, wrong, by(0, 0)), Err(errno(Os::INVAL)), "{wrong:?}");
    }
    assert_eq!(set(REWRITE, b"18446744073709551615 5", by(0, 0)), Err(errno(Os::FBIG)));
    assert_eq!(set(ROOM, b"1", by(0, 0)), Err(errno(Os::OPNOTSUPP)));
    assert_eq!(service.getxattr(file, REWRITE), Err(errno(Os::NODATA)));
    assert_eq!(service.removexattr(file, COMPRESSION), Err(errno(Os::OPNOTSUPP)));
    assert_eq!(service.listxattr(file, by(0, 0)).as_deref(), Ok(&b""[..]));
}
