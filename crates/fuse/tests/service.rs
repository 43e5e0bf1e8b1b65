//! The features that a mount adds to the file system, tested without a mount.

use std::{cell::Cell, num::NonZeroU64, sync::Arc, thread, time::Duration};

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{Lba, Op, Stream};
use lacuna_fuse::{
    Errno, Kind, NamedAttr, Opening, PageCache, Service, ServiceOptions, SetGroupId, WriteRequest,
    innodb::NoTrim,
};
use lacuna_nvmfs::{
    CheckDepth, FormatOptions, Ino, Limits, Nvmfs, Options, Spare,
    posix::{Caller, FileKind, Rename, XattrMode},
};
use rustix::{fs::OFlags, io::Errno as Os};

const ROOT: u64 = 1;
const DIRECTFS: u32 = 0x4004_9502;
const PAGE: u64 = 16384;
/// The handle of a file that is open for writing.
const WRITABLE: u64 = 2;

fn service(options: ServiceOptions) -> Service {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
    let fs = Nvmfs::open(device, Options::default()).expect("opens");
    Service::new(Arc::new(fs), options)
}

fn create(service: &Service, name: &str) -> u64 {
    let mode = FileKind::File.mode_bits() | 0o644;
    Service::number(service.create(ROOT, name.as_bytes(), mode, Caller::default()).expect("creates").ino)
}

fn direct(offset: u64, data: &[u8]) -> WriteRequest<'_> {
    let open_flags = OFlags::DIRECT.bits() as i32;
    WriteRequest {
        offset,
        data,
        open_flags,
        kill_privileges: None,
        is_direct: true,
        from_cache: false,
        caller: Caller::default(),
    }
}

/// A page-compressed page number 1 with `units` times 256 bytes.
fn page(units: u8) -> Vec<u8> {
    let bytes = usize::from(units) * 256;
    let mut data = vec![0x77; bytes];
    data[4..8].copy_from_slice(&1_u32.to_be_bytes());
    data[24..26].copy_from_slice(&[0x80, units]);
    let checksum = lacuna_crc::crc32c(&data[..bytes - 4]);
    data[bytes - 4..].copy_from_slice(&checksum.to_be_bytes());
    data.resize(bytes.next_multiple_of(512), 0);
    data
}

/// Writes a long page and then a short one in its place; returns the bytes they take then.
fn shrink(service: &Service, file: u64) -> u64 {
    service.write(file, direct(0, &[1; 512])).expect("writes");
    service.write(file, direct(2 * PAGE, &[2; 512])).expect("writes");
    service.write(file, direct(PAGE, &page(40))).expect("writes");
    service.write(file, direct(PAGE, &page(4))).expect("writes");
    service.getattr(file).expect("is there").allocated_bytes
}

#[test]
fn a_page_that_shrinks_gives_room_back_once_the_file_was_asked_about() {
    let service = service(ServiceOptions::default());
    let file = create(&service, "table.ibd");
    let without = shrink(&service, file);
    assert_eq!(service.counters().snapshot().trims_inferred, 0, "nobody asked yet");
    service.ioctl(file, WRITABLE, DIRECTFS, &[], Caller::default()).expect("answers");
    service.ioctl(file, WRITABLE, DIRECTFS, &[], Caller::default()).expect("answers again");
    let with = shrink(&service, file);
    assert_eq!(without - with, 36 * 256);
    let counters = service.counters().snapshot();
    assert_eq!((counters.atomic_handshakes, counters.trims_inferred), (1, 2));
    assert_eq!(counters.trim_bytes, (64 - 40) * 256 + (64 - 4) * 256);
    assert_eq!(counters.no_trim[NoTrim::NotCompressed.index()], 2);

    // The page reads back, zeros behind it, and its neighbours are untouched.
    let mut found = vec![0xff; 3 * PAGE as usize];
    assert_eq!(service.read(file, 0, &mut found), Ok(2 * PAGE as usize + 512));
    let short = page(4);
    assert_eq!(&found[..512], [1; 512]);
    assert_eq!(&found[PAGE as usize..][..short.len()], short);
    assert!(found[PAGE as usize + short.len()..2 * PAGE as usize].iter().all(|byte| *byte == 0));
    assert_eq!(&found[2 * PAGE as usize..][..512], [2; 512]);
    let report = service.fs().check(CheckDepth::Payload).expect("checks");
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn trims_are_inferred_for_nobody_else() {
    // Switched off; cached by the kernel; from a mapping.
    let off = service(ServiceOptions { infer_trim: false, ..ServiceOptions::default() });
    let cached = service(ServiceOptions::default());
    let direct_only = service(ServiceOptions { cache: PageCache::Off, ..ServiceOptions::default() });
    for (service, open_flags, from_cache, expected) in [
        (&off, OFlags::DIRECT, false, 0),
        (&cached, OFlags::empty(), false, 0),
        (&cached, OFlags::DIRECT, true, 0),
        (&cached, OFlags::DIRECT, false, 1),
        (&direct_only, OFlags::empty(), false, 1),
    ] {
        let file = create(service, &format!("{open_flags:?} {from_cache}"));
        service.ioctl(file, WRITABLE, DIRECTFS, &[], Caller::default()).expect("answers");
        let data = page(4);
        let open_flags = open_flags.bits() as i32;
        let is_direct = service.opening(file, open_flags) == Opening::Direct;
        let request = WriteRequest { open_flags, is_direct, from_cache, ..direct(PAGE, &data) };
        service.write(file, request).expect("writes");
        assert_eq!(service.counters().snapshot().trims_inferred, expected);
    }
}

#[test]
fn writes_are_durable_when_the_file_was_opened_so() {
    let service = service(ServiceOptions::default());
    let file = create(&service, "log");
    let flushes = || service.fs().ftl().stats().flushes;
    let before = flushes();
    service.write(file, direct(0, &[1; 512])).expect("writes");
    assert_eq!(flushes(), before);
    for open_flags in [libc::O_DSYNC, libc::O_SYNC] {
        let before = flushes();
        service.write(file, WriteRequest { open_flags, ..direct(0, &[2; 512]) }).expect("writes");
        assert!(flushes() > before, "{open_flags:o}");
    }
}

#[test]
fn a_user_who_fills_the_mount_leaves_root_its_reserve() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
    let options = Options { root_reserve: Spare::Percent(5), ..Options::default() };
    let service =
        Service::new(Arc::new(Nvmfs::open(device, options).expect("opens")), ServiceOptions::default());
    let [root, user] = [0, 1000].map(|uid| Caller { uid, gid: uid, umask: 0 });
    let mode = FileKind::File.mode_bits() | 0o644;
    let create = |name: &str, caller| {
        service.create(ROOT, name.as_bytes(), mode, caller).map(|made| Service::number(made.ino))
    };
    let (mine, roots) = (create("user's", user).expect("creates"), create("root's", root).expect("creates"));
    let data = vec![0x5a; 1 << 16];
    let write =
        |file, offset: u64, caller| service.write(file, WriteRequest { caller, ..direct(offset, &data) });
    let full = Err(Errno(Os::NOSPC.raw_os_error()));
    let taken = (0..).take_while(|at| write(mine, at << 16, user).is_ok()).count() as u64;
    let stat = service.statfs().expect("tells");
    assert!(stat.available_bytes < 1 << 17 && stat.free_bytes > stat.total_bytes / 20, "{stat:?}");
    assert_eq!(write(roots, 0, user), full, "whose file it is does not matter");
    let from_page = |file, offset: u64| {
        // The kernel does not say who changed the page.
        service.write(file, WriteRequest { from_cache: true, caller: root, ..direct(offset, &data) })
    };
    assert_eq!(from_page(mine, taken << 16), full);
    assert_eq!(from_page(roots, 0), Ok(data.len()));
    assert_eq!(write(mine, 0, user), Ok(data.len()), "nothing is added");
    assert_eq!(write(mine, taken << 16, root), Ok(data.len()));
    assert_eq!(write(roots, 1 << 16, root), Ok(data.len()));
    service.unlink(ROOT, b"user's").expect("a user removes what it has");
    service.release(mine).expect("closes");
    service.forget(mine, 1);
    let stat = service.statfs().expect("tells");
    assert!(stat.available_bytes > stat.total_bytes / 2, "{stat:?}");
}

#[test]
fn a_user_whose_quota_is_used_up_gets_what_is_about_to_be_forgotten() {
    let service = service(ServiceOptions::default());
    let limits = Limits { bytes: NonZeroU64::new(100 << 10), inodes: None };
    service.fs().set_limits(1000, limits).expect("sets limits");
    let caller = Caller { uid: 1000, gid: 1000, umask: 0 };
    let create = |name: &str| {
        let made = service.create(ROOT, name.as_bytes(), 0o100_644, caller).expect("creates");
        Service::number(made.ino)
    };
    let data = vec![0x5a; 64 << 10];
    let write = |file| service.write(file, WriteRequest { caller, ..direct(0, &data) });
    let (first, second) = (create("first"), create("second"));
    assert_eq!(write(first), Ok(data.len()));
    assert_eq!(write(second), Err(Errno(Os::DQUOT.raw_os_error())));
    service.unlink(ROOT, b"first").expect("removes");
    service.release(first).expect("closes");
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20)); // as a kernel does, after it got its answer
            service.forget(first, 1);
        });
        assert_eq!(write(second), Ok(data.len()));
    });
}

#[test]
fn only_who_may_write_switches_trims_on() {
    let service = service(ServiceOptions::default());
    let file = create(&service, "table.ibd");
    for (flags, is_allowed) in [
        (OFlags::RDONLY, false),
        (OFlags::RDONLY | OFlags::DIRECT, false),
        (OFlags::RDWR, true),
        (OFlags::WRONLY | OFlags::DIRECT, true),
    ] {
        let before = service.counters().snapshot().atomic_handshakes;
        let answered = service.ioctl(
            file,
            Opening::Cached.handle(flags.bits() as i32),
            DIRECTFS,
            &[],
            Caller::default(),
        );
        let expected = if is_allowed { Ok(Vec::new()) } else { Err(Errno(Os::BADF.raw_os_error())) };
        assert_eq!(answered, expected, "{flags:?}");
        assert!(is_allowed || service.counters().snapshot().atomic_handshakes == before, "{flags:?}");
    }
}

#[test]
fn with_sync_every_change_is_durable_when_it_is_answered() {
    let service = service(ServiceOptions { sync: true, ..ServiceOptions::default() });
    let caller = Caller::default();
    let file = create(&service, "file");
    type Change<'a> = &'a dyn Fn() -> Result<(), Errno>;
    let changes: [(&str, Change<'_>); 9] = [
        ("write", &|| service.write(file, direct(0, &[1; 512])).map(drop)),
        ("mkdir", &|| service.mkdir(ROOT, b"d", 0o755, caller).map(drop)),
        ("link", &|| service.link(file, ROOT, b"other", caller).map(drop)),
        ("rename", &|| service.rename((ROOT, b"other"), (ROOT, b"moved"), Rename::Replace, None)),
        ("unlink", &|| service.unlink(ROOT, b"moved")),
        ("rmdir", &|| service.rmdir(ROOT, b"d")),
        ("fallocate", &|| service.fallocate(file, 0, 512, 3, caller)),
        ("setxattr", &|| {
            service.setxattr(file, b"user.a", b"b", XattrMode::Set, Caller::default(), SetGroupId::Stays)
        }),
        ("removexattr", &|| service.removexattr(file, b"user.a")),
    ];
    for (what, change) in changes {
        let before = service.fs().ftl().stats().flushes;
        change().expect(what);
        assert!(service.fs().ftl().stats().flushes > before, "{what}");
    }
}

#[test]
fn each_request_is_in_one_histogram() {
    let service = service(ServiceOptions::default());
    let requests =
        || Kind::ALL.map(|kind| service.latencies().snapshot(kind).buckets.into_iter().sum::<u64>());
    let file = create(&service, "file");
    assert_eq!(requests(), [0, 1, 0, 0, 0]);
    service.write(file, direct(0, &[1; 512])).expect("writes");
    service.read(file, 0, &mut [0; 512]).expect("reads");
    service.fsync(file, true).expect("syncs");
    service.lookup(ROOT, b"file").expect("is there");
    assert_eq!(service.lookup(ROOT, b"none").err(), Some(Errno(Os::NOENT.raw_os_error())));
    assert_eq!(requests(), [2, 1, 1, 1, 1], "a failed one counts too");
    assert!(Kind::ALL.iter().all(|kind| !service.latencies().snapshot(*kind).total.is_zero()));
}

#[test]
fn long_directories_are_listed_whole() {
    let service = service(ServiceOptions::default());
    let mut expected: Vec<Vec<u8>> = vec![b".".to_vec(), b"..".to_vec()];
    for at in 0..300 {
        let name = format!("file {at}");
        create(&service, &name);
        expected.push(name.into_bytes());
    }
    expected.sort();
    // As the kernel does: a buffer that holds this many, then on from where it ended.
    for entries_max in [1, 63, 64, 65, 1000] {
        let (mut names, mut cursor) = (Vec::new(), 0);
        loop {
            let mut taken = 0;
            service
                .readdir_with_attributes(ROOT, cursor, |found| {
                    if taken == entries_max {
                        return false;
                    }
                    taken += 1;
                    cursor = found.next;
                    names.push(found.name);
                    true
                })
                .expect("lists");
            if taken == 0 {
                break;
            }
        }
        names.sort();
        assert_eq!(names, expected, "{entries_max} at a time");
    }
}

/// The entries listed from the start on, a buffer of `entries_max` at a time, and the error that ends the listing.
fn listed(service: &Service, entries_max: usize) -> (Vec<NamedAttr>, Option<Errno>) {
    let (mut all, mut cursor) = (Vec::new(), 0);
    loop {
        let before = all.len();
        let end = service.readdir_with_attributes(ROOT, cursor, |found| {
            let is_full = all.len() - before == entries_max;
            if !is_full {
                cursor = found.next;
                all.push(found);
            }
            !is_full
        });
        assert!(end.is_ok() || all.len() == before, "an error takes what is listed along");
        if all.len() == before {
            return (all, end.err());
        }
    }
}

/// A service of a store with 300 files in which sectors that `choose` finds hold garbage.
fn damaged(choose: impl Fn(&Nvmfs) -> Lba) -> Service {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
    let open = || Arc::new(Nvmfs::open(Arc::clone(&device), Options::default()).expect("opens"));
    let fs = open();
    let service = Service::new(Arc::clone(&fs), ServiceOptions::default());
    for at in 0..300 {
        create(&service, &format!("file {at}"));
    }
    let garbage = [Op::Write { lba: choose(&fs), data: &[0xa5; 512] }];
    fs.ftl().write_batch(&garbage, Stream::Data).expect("writes");
    fs.close().expect("closes");
    drop((service, fs)); // with what they have in memory
    Service::new(open(), ServiceOptions::default())
}

#[test]
fn a_damaged_inode_keeps_its_name_and_hides_no_other() {
    let ino = |fs: &Nvmfs| fs.posix().lookup(Ino::ROOT, b"file 150").expect("is there").ino.number();
    // Inode n is sector n of region 1 of the space.
    let service = damaged(|fs| Lba((1 << 36) + ino(fs)));
    for entries_max in [1, 64, 1000] {
        let (all, error) = listed(&service, entries_max);
        assert_eq!((all.len(), error), (302, None));
        let mut damaged = all.iter().filter(|named| named.found.is_damaged);
        let NamedAttr { name, found, .. } = damaged.next().expect("it is seen");
        assert_eq!((&name[..], found.attr.kind), (&b"file 150"[..], FileKind::File));
        assert_eq!(service.getattr(Service::number(found.attr.ino)), Err(Os::IO.into()));
        assert!(damaged.next().is_none());
    }
}

#[test]
fn a_damaged_file_is_found_and_can_be_removed_and_a_directory_cannot() {
    let ino = |fs: &Nvmfs| fs.posix().lookup(Ino::ROOT, b"file 150").expect("is there").ino.number();
    let service = damaged(|fs| Lba((1 << 36) + ino(fs)));
    let found = service.lookup(ROOT, b"file 150").expect("is found");
    assert!(found.is_damaged && found.attr.kind == FileKind::File);
    assert_eq!(service.counters().snapshot().io_errors, 1, "whoever looks at the log is told");
    assert_eq!(service.open(Service::number(found.attr.ino)), Err(Os::IO.into()));
    assert_eq!(service.unlink(ROOT, b"file 150"), Ok(()));
    assert_eq!(service.lookup(ROOT, b"file 150"), Err(Os::NOENT.into()));
    assert_eq!(listed(&service, 1000).0.len(), 301);

    let service = damaged(|fs| {
        let made = fs.posix().mkdir(Ino::ROOT, b"directory", 0o755, Caller::default());
        Lba((1 << 36) + made.expect("makes").ino.number())
    });
    assert_eq!(service.lookup(ROOT, b"directory"), Err(Os::IO.into()));
    assert_eq!(service.rmdir(ROOT, b"directory"), Err(Os::IO.into()));
}

/// The kernel counts an inode as looked up, whether it could be read or not.
#[test]
fn a_file_that_could_not_be_read_for_a_while_stays_until_it_is_forgotten() {
    let good = Cell::new([0; 512]);
    let at = Cell::new(Lba(0));
    let service = damaged(|fs| {
        at.set(Lba((1 << 36) + fs.posix().lookup(Ino::ROOT, b"file 150").expect("is there").ino.number()));
        let mut bytes = [0; 512];
        fs.ftl().read(at.get(), &mut bytes).expect("reads");
        good.set(bytes);
        at.get()
    });
    let found = service.lookup(ROOT, b"file 150").expect("is found");
    let (all, _) = listed(&service, 1000);
    assert!(found.is_damaged && all.iter().filter(|named| named.found.is_damaged).count() == 1);
    let sector = good.get();
    let again = [Op::Write { lba: at.get(), data: &sector }];
    service.fs().ftl().write_batch(&again, Stream::Data).expect("writes");
    let number = Service::number(found.attr.ino);
    assert!(!service.lookup(ROOT, b"file 150").expect("is found").is_damaged);
    service.unlink(ROOT, b"file 150").expect("removes");
    service.forget(number, 2);
    assert!(service.getattr(number).is_ok(), "it was looked up three times");
    service.forget(number, 1);
    assert_eq!(service.getattr(number), Err(Os::STALE.into()));
}

#[test]
fn names_before_damage_are_listed_and_then_comes_the_error() {
    // The 100th entry of the root, whose region is 2.
    let entry = |fs: &Nvmfs| fs.ftl().mapped_sectors(Lba(2 << 36)..Lba(3 << 36), 100).expect("finds")[99];
    let service = damaged(entry);
    for entries_max in [1, 64, 1000] {
        let (all, error) = listed(&service, entries_max);
        assert_eq!((all.len(), error), (2 + 99, Some(Os::IO.into())), "{entries_max} at a time");
    }
    let mut names = 0;
    let mut list = |cursor: u64| {
        let mut behind = cursor;
        let end = service.readdir(ROOT, cursor, |_, _, _, next| {
            (names, behind) = (names + 1, next);
            true
        });
        (behind, end)
    };
    let (behind, end) = list(0);
    assert_eq!(end, Ok(()));
    assert_eq!(list(behind), (behind, Err(Os::IO.into())));
    assert_eq!(names, 2 + 99);
}

#[test]
fn refusals_have_the_numbers_of_posix() {
    let service = service(ServiceOptions::default());
    let file = create(&service, "file");
    let errno = |errno: Os| Errno(errno.raw_os_error());
    assert_eq!(service.lookup(ROOT, b"none").err(), Some(errno(Os::NOENT)));
    assert_eq!(service.lookup(file, b"x").err(), Some(errno(Os::NOTDIR)));
    for number in [0, 2, 3, 15, 1 << 28, u64::MAX, 999] {
        assert_eq!(service.getattr(number).err(), Some(errno(Os::STALE)), "{number}");
    }
    assert_eq!(service.ioctl(file, WRITABLE, 0x8008_6603, &[], Caller::default()), Err(errno(Os::NOTTY)));
    assert_eq!(service.fallocate(file, 0, 1, 0x40, Caller::default()), Err(errno(Os::OPNOTSUPP)));
    assert_eq!(service.seek(file, 0, -1, 3), Err(errno(Os::NXIO)));
    assert_eq!(service.seek(file, 0, 0, 0), Err(errno(Os::INVAL)));
    let onto_itself = service.rename((ROOT, b"none"), (ROOT, b"file"), Rename::Exchange, None);
    assert_eq!(onto_itself, Err(errno(Os::NOENT)));
    assert_eq!(service.counters().snapshot().io_errors, 0);
}

#[test]
fn files_of_a_mount_have_no_labels_of_their_own() {
    let service = service(ServiceOptions::default());
    let file = create(&service, "file");
    let label = b"security.selinux";
    assert_eq!(service.getxattr(file, label), Err(Os::OPNOTSUPP.into()));
    let set =
        service.setxattr(file, label, b"system_u", XattrMode::Set, Caller::default(), SetGroupId::Stays);
    assert_eq!(set, Err(Os::OPNOTSUPP.into()));
    assert_eq!(service.getxattr(file, b"security.other"), Err(Os::NODATA.into()));
}
