use std::sync::Arc;

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options, posix::FileKind};
use rustix::{fs::OFlags, io::Errno as Os};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::*;
use crate::{ServiceOptions, transport::uring::wire::opcode};

const ROOT: u64 = 1;
/// An operation that is not offered.
const FLUSH: u32 = 25;

fn service() -> Service {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
    let fs = Nvmfs::open(device, Options::default()).expect("opens");
    Service::new(Arc::new(fs), ServiceOptions::default())
}

fn ask(
    service: &Service,
    number: u32,
    ino: u64,
    argument: &(impl IntoBytes + Immutable),
    payload: &[u8],
) -> Result<Vec<u8>, Errno> {
    let header = InHeader { opcode: number, nodeid: ino, uid: 11, gid: 12, ..Default::default() };
    let mut out = vec![0; SHORT_REPLY_BYTES_MAX];
    let invalidator = Invalidator::start(|_, _| Ok(())).expect("starts");
    let len = answer((service, &invalidator), &header, argument.as_bytes(), payload, &mut out)?;
    out.truncate(len);
    Ok(out)
}

#[test]
fn a_direct_write_beside_cached_pages_orders_the_kernel_to_drop_them() {
    let service = service();
    let file = create(&service, b"file\0"); // and it is open, with pages
    let open = wire::OpenIn { flags: OFlags::DIRECT.bits() as i32, ..Default::default() };
    ask(&service, opcode::OPEN, file, &open, b"").expect("opens");
    let (sender, orders) = std::sync::mpsc::channel();
    let invalidator = Invalidator::start(move |number, bytes| {
        sender.send((number, bytes)).expect("somebody waits");
        Ok(())
    });
    let invalidator = invalidator.expect("starts");
    let header = InHeader { opcode: opcode::WRITE, nodeid: file, ..Default::default() };
    for (fh, write_flags) in [(0, 0), (1, wire::WRITE_CACHE), (1, 0)] {
        let write = wire::WriteIn { fh, write_flags, offset: 3 + fh, size: 5, ..Default::default() };
        let mut out = [0; 64];
        answer((&service, &invalidator), &header, write.as_bytes(), b"hello", &mut out).expect("writes");
    }
    drop(invalidator);
    assert_eq!(orders.iter().collect::<Vec<_>>(), [(file, Cached::Pages(4..9))], "the last of the three");
}

fn exactly<T: FromBytes>(bytes: &[u8]) -> T {
    T::read_from_bytes(bytes).expect("the length of its structure")
}

/// A new file; its number.
fn create(service: &Service, name: &[u8]) -> u64 {
    let mode = FileKind::File.mode_bits() | 0o640;
    let argument = wire::CreateIn { flags: 2, mode, ..Default::default() };
    let made = ask(service, opcode::CREATE, ROOT, &argument, name).expect("creates");
    let (entry, opened) = made.split_at(size_of::<wire::EntryOut>());
    let entry: wire::EntryOut = exactly(entry);
    let cached = wire::OpenOut { fh: 2, open_flags: wire::FOPEN_KEEP_CACHE, _backing_id: 0 };
    assert_eq!(exactly::<wire::OpenOut>(opened), cached);
    assert_eq!((entry.attr.mode, entry.attr.uid, entry.attr.gid), (mode, 11, 12));
    assert_eq!((entry.nodeid, entry.attr.blksize), (entry.attr.ino, 65536));
    entry.nodeid
}

#[test]
fn openings_tell_the_kernel_what_to_cache() {
    let service = service();
    let file = create(&service, b"file\0");
    let open = |flags: OFlags| {
        let argument = wire::OpenIn { flags: flags.bits() as i32, ..Default::default() };
        let opened: wire::OpenOut =
            exactly(&ask(&service, opcode::OPEN, file, &argument, b"").expect("opens"));
        (opened.fh, opened.open_flags)
    };
    let close = |fh| {
        let argument = wire::ReleaseIn { fh, ..Default::default() };
        ask(&service, opcode::RELEASE, file, &argument, b"").expect("closes");
    };
    let direct = wire::FOPEN_DIRECT_IO | wire::FOPEN_PARALLEL_DIRECT_WRITES;
    close(2);
    assert_eq!(open(OFlags::RDWR), (2, wire::FOPEN_KEEP_CACHE));
    // Nobody has read it since it was made, so a reader's first read must reach us.
    assert_eq!(open(OFlags::RDONLY), (0, 0));
    [0, 2].into_iter().for_each(close);
    assert_eq!(open(OFlags::DIRECT | OFlags::RDWR), (3, direct));
    assert_eq!(open(OFlags::RDONLY), (1, direct));
    [1, 3].into_iter().for_each(close);
    assert_eq!(open(OFlags::WRONLY), (2, wire::FOPEN_KEEP_CACHE));
}

#[test]
fn a_number_is_looked_up_as_the_name_of_itself() {
    let service = service();
    let file = create(&service, b"file\0");
    let look_up = |number, name| ask(&service, opcode::LOOKUP, number, &[0_u8; 0], name);
    let found: wire::EntryOut = exactly(&look_up(file, b".\0").expect("is there"));
    let named: wire::EntryOut = exactly(&look_up(ROOT, b"file\0").expect("is there"));
    assert_eq!(found, named);
    assert!(found.nodeid == file && found.generation != 0);
    let root: wire::EntryOut = exactly(&look_up(ROOT, b".\0").expect("is there"));
    assert_eq!(root.nodeid, ROOT);
    assert_eq!(look_up(file + 1, b".\0"), Err(Os::STALE.into()));
}

#[test]
fn a_file_is_made_written_read_and_found() {
    let service = service();
    let file = create(&service, b"file\0");
    let write = wire::WriteIn { offset: 3, size: 5, ..Default::default() };
    let written = ask(&service, opcode::WRITE, file, &write, b"hello").expect("writes");
    assert_eq!(exactly::<wire::WriteOut>(&written).size, 5);
    let read = wire::ReadIn { offset: 0, size: 100, ..Default::default() };
    assert_eq!(ask(&service, opcode::READ, file, &read, b"").as_deref(), Ok(&b"\0\0\0hello"[..]));
    let found: wire::EntryOut =
        exactly(&ask(&service, opcode::LOOKUP, ROOT, &(), b"file\0").expect("is there"));
    assert_eq!((found.nodeid, found.attr.size, found.attr_valid), (file, 8, 24 * 60 * 60));
    let seek = wire::LseekIn { offset: 0, whence: 4, ..Default::default() };
    let hole: wire::LseekOut = exactly(&ask(&service, opcode::LSEEK, file, &seek, b"").expect("seeks"));
    assert_eq!(hole.offset, 8);
    assert_eq!(ask(&service, opcode::UNLINK, ROOT, &(), b"file\0"), Ok(Vec::new()));
    let absent: wire::EntryOut =
        exactly(&ask(&service, opcode::LOOKUP, ROOT, &(), b"file\0").expect("is answered"));
    assert_eq!((absent.nodeid, absent.entry_valid), (0, 24 * 60 * 60));
    assert_eq!(
        ask(&service, opcode::LOOKUP, ROOT, &(), &[&[b'x'; 256][..], b"\0"].concat()),
        Err(Os::NAMETOOLONG.into())
    );
    assert_eq!(ask(&service, opcode::OPENDIR, ROOT, &wire::OpenIn::default(), b""), Err(Os::NOSYS.into()));
    assert_eq!(ask(&service, FLUSH, file, &(), b""), Err(Os::NOSYS.into()));
    let too_long = wire::ReadIn { size: SHORT_REPLY_BYTES_MAX as u32 + 1, ..read };
    assert_eq!(ask(&service, opcode::READ, file, &too_long, b""), Err(Os::IO.into()));
}

#[test]
fn a_file_without_a_name_is_open_and_tells_when_it_was_made() {
    let service = service();
    let mode = FileKind::File.mode_bits() | 0o640;
    let argument = wire::CreateIn { flags: 2, mode, ..Default::default() };
    let made = ask(&service, opcode::TMPFILE, ROOT, &argument, b"/\0").expect("makes");
    let (entry, opened) = made.split_at(size_of::<wire::EntryOut>());
    let entry: wire::EntryOut = exactly(entry);
    assert_eq!(exactly::<wire::OpenOut>(opened).fh, 2);
    assert_eq!((entry.attr.nlink, entry.attr.mode, entry.attr.uid), (0, mode, 11));
    let told = ask(&service, opcode::STATX, entry.nodeid, &wire::StatxIn::default(), b"").expect("tells");
    let told: wire::StatxOut = exactly(&told);
    assert_eq!((told.mask, told.ino, u32::from(told.mode)), (0xfff, entry.nodeid, mode));
    assert_eq!(told.btime, told.ctime);
    let link = wire::LinkIn { oldnodeid: entry.nodeid };
    let linked: wire::EntryOut =
        exactly(&ask(&service, opcode::LINK, ROOT, &link, b"file\0").expect("links"));
    assert_eq!((linked.nodeid, linked.attr.nlink), (entry.nodeid, 1));
    // Numbers of devices in the kernel's two ways.
    let device = wire::MknodIn { mode: 0o020_600, rdev: 0x1234_5678, ..Default::default() };
    let device: wire::EntryOut =
        exactly(&ask(&service, opcode::MKNOD, ROOT, &device, b"device\0").expect("makes"));
    let told = ask(&service, opcode::STATX, device.nodeid, &wire::StatxIn::default(), b"").expect("tells");
    let told: wire::StatxOut = exactly(&told);
    assert_eq!((told.rdev_major, told.rdev_minor), (0x456, 0x12378));
}

#[test]
fn directories_are_listed_piece_by_piece() {
    let service = service();
    let made: Vec<String> = (0..100).map(|number| format!("file {number}")).collect();
    for name in &made {
        create(&service, format!("{name}\0").as_bytes());
    }
    for (number, before) in [(opcode::READDIR, 0), (opcode::READDIRPLUS, size_of::<wire::EntryOut>())] {
        let (mut names, mut cursor, mut requests) = (Vec::new(), 0, 0);
        loop {
            let argument = wire::ReadIn { offset: cursor, size: 1000, ..Default::default() };
            let listed = ask(&service, number, ROOT, &argument, b"").expect("lists");
            assert!(listed.len() <= 1000);
            let mut rest = &listed[..];
            if rest.is_empty() {
                break;
            }
            requests += 1;
            while !rest.is_empty() {
                let (plus, dirent) = rest.split_at(before);
                let (dirent, name) = wire::Dirent::read_from_prefix(dirent).expect("whole");
                if before > 0 {
                    assert_eq!(exactly::<wire::EntryOut>(plus).nodeid, dirent.ino);
                }
                names.push(String::from_utf8(name[..dirent.namelen as usize].to_vec()).expect("UTF-8"));
                cursor = dirent.off;
                let bytes = before + size_of::<wire::Dirent>() + dirent.namelen as usize;
                rest = &rest[bytes.next_multiple_of(8)..];
            }
        }
        names.retain(|name| name != "." && name != "..");
        names.sort();
        let mut expected = made.clone();
        expected.sort();
        assert_eq!(names, expected);
        assert!(requests >= 4, "{requests}");
    }
}

#[test]
fn attributes_beyond_those_of_stat_go_both_ways() {
    let service = service();
    let file = create(&service, b"file\0");
    let set = wire::SetXattrIn { size: 60_000, flags: 1, ..Default::default() };
    let payload = [&b"user.a\0"[..], &[7; 60_000]].concat();
    assert_eq!(ask(&service, opcode::SETXATTR, file, &set, &payload), Ok(Vec::new()));
    assert_eq!(ask(&service, opcode::SETXATTR, file, &set, &payload), Err(Os::EXIST.into()));
    let sized = |size| wire::GetXattrIn { size, _padding: 0 };
    let told = ask(&service, opcode::GETXATTR, file, &sized(0), b"user.a\0").expect("is there");
    assert_eq!(exactly::<wire::GetXattrOut>(&told).size, 60_000);
    let value = ask(&service, opcode::GETXATTR, file, &sized(65536), b"user.a\0").expect("is there");
    assert_eq!(value, payload[7..]);
    assert_eq!(ask(&service, opcode::GETXATTR, file, &sized(10), b"user.a\0"), Err(Os::RANGE.into()));
    // The caller is not root: it sees nothing of this attribute, not even in the length.
    let set = wire::SetXattrIn { size: 1, ..Default::default() };
    assert_eq!(ask(&service, opcode::SETXATTR, file, &set, b"trusted.b\0v"), Ok(Vec::new()));
    let told = ask(&service, opcode::LISTXATTR, file, &sized(0), b"").expect("is there");
    assert_eq!(exactly::<wire::GetXattrOut>(&told).size, 7);
    assert_eq!(ask(&service, opcode::LISTXATTR, file, &sized(7), b"").as_deref(), Ok(&b"user.a\0"[..]));
}
