//! A mount in this process: checks that the transport carries the service's answers. The scripts in tests/mount check
//! everything that programs see.

use std::{
    fs::{self, Permissions},
    io::{ErrorKind, Read, Seek, SeekFrom, Write},
    os::fd::AsRawFd,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use crate::mounted::{Mounted, formatted, mounted, serve, transports};
use lacuna_device::{BatchOp, DirOptions, DirVfs, StreamHint, Vfs};
use lacuna_ftl::{Lba, Op, Stream};
use lacuna_fuse::{PageCache, ServiceOptions, Transport};
use lacuna_nvmfs::{CheckDepth, Ino, Nvmfs, Options, posix::Caller};
use lacuna_sim::BeforeReads;
use rustix::{
    fs::{
        AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, StatxFlags, XattrFlags, fgetxattr, flistxattr,
        flistxattr_query, fremovexattr, fsetxattr, fstat, linkat, openat, renameat_with, setxattr, statx,
    },
    io::Errno,
    process::{Uid, geteuid},
    thread::{CapabilitySet, capabilities, set_capabilities, set_thread_res_uid},
};

#[test]
fn a_damaged_file_is_an_error_and_can_be_removed() {
    for transport in transports() {
        let device = formatted();
        let before = Nvmfs::open(Arc::clone(&device), Options::default()).expect("opens");
        before.create("damaged", StreamHint::Data).expect("creates").write_at(0, &[1; 4096]).expect("writes");
        let ino = before.posix().lookup(Ino::ROOT, b"damaged").expect("is there").ino.number();
        let garbage = Op::Write { lba: Lba((1 << 36) + ino), data: &[0xa5; 512] };
        before.ftl().write_batch(&[garbage], Stream::Data).expect("writes");
        before.close().expect("closes");
        drop(before); // with what it has in memory
        let Some(mounted) = Mounted::of(device, transport) else { continue };
        let nvmfs = Arc::clone(&mounted.fs);
        serve(mounted, &|dir, _| {
            let path = dir.join("damaged");
            for error in [fs::metadata(&path).map(drop), fs::File::open(&path).map(drop)] {
                assert_eq!(error.unwrap_err().raw_os_error(), Some(5));
            }
            fs::remove_file(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
        });
        let report = nvmfs.check(CheckDepth::Payload).expect("checks");
        assert!(report.findings.len() == 1, "{:?}", report.findings);
    }
}

/// A store of tables works on a mount as in any directory, and trims the ends of its pages, whatever request size the
/// mount prefers.
#[test]
fn a_directory_of_a_mount_takes_sectors_and_has_fine_holes() {
    mounted(|dir, _| {
        let vfs = DirVfs::open(dir, DirOptions::default()).unwrap();
        assert_eq!((vfs.props().io_align, vfs.props().hole_unit), (512, 4096));
        let file = vfs.create("pages", StreamHint::Data).unwrap();
        file.write_at(0, &[7; 16384]).unwrap();
        file.write_at(512, &[8; 512]).unwrap();
        vfs.write_batch(&[BatchOp::Punch { file: file.id(), offset: 4096, len: 12288 }]).unwrap();
        vfs.sync().unwrap();
        assert_eq!(file.allocated(0, 16384).unwrap(), 4096);
        let mut buf = [0; 1536];
        file.read_at(512, &mut buf).unwrap();
        assert!(buf[..512] == [8; 512] && buf[512..] == [7; 1024]);
    });
}

#[test]
fn what_is_written_is_read() {
    mounted(|dir, service| {
        let path = dir.join("file");
        let mut file =
            fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        let data: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        file.write_all(&data).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut found = Vec::new();
        file.read_to_end(&mut found).unwrap();
        assert!(found == data);
        let metadata = file.metadata().unwrap();
        assert_eq!((metadata.len(), metadata.blksize()), (3_000_000, 65536));
        assert_eq!(metadata.ino(), fs::metadata(&path).unwrap().ino());
        let writes = service.counters().snapshot().writes;
        assert!((3..=6).contains(&writes), "{writes} writes for 3 MB: requests are not of 1 MiB");
        assert_eq!(fs::metadata(dir).unwrap().ino(), 1);
    });
}

#[test]
fn what_is_written_back_comes_in_few_requests_and_its_space_is_known_soon() {
    for transport in transports() {
        let Some(mounted) = Mounted::caching(formatted(), transport, PageCache::WriteBack) else { continue };
        let nvmfs = Arc::clone(&mounted.fs);
        serve(mounted, &|dir, service| {
            let path = dir.join("file");
            let mut file = fs::File::create_new(&path).unwrap();
            for _ in 0..1000 {
                file.write_all(&[1; 8192]).unwrap();
            }
            assert_eq!(file.metadata().unwrap().len(), 8_192_000);
            file.sync_all().unwrap();
            let writes = service.counters().snapshot().writes;
            assert!(writes <= 50, "{writes} requests for 1,000 writes");
            let deadline = Instant::now() + Duration::from_secs(10);
            while file.metadata().unwrap().blocks() < 16_000 {
                assert!(Instant::now() < deadline, "{} blocks", file.metadata().unwrap().blocks());
                thread::sleep(Duration::from_millis(50));
            }
            drop(file);
            assert!(fs::read(&path).unwrap() == [1; 8_192_000]);
        });
        assert!(nvmfs.check(CheckDepth::Payload).expect("checks").is_clean());
    }
}

/// To this process, which claims it, and to whoever asks by name.
#[test]
fn what_is_written_past_the_kernel_shows_in_attributes() {
    for transport in transports() {
        let options = ServiceOptions { claims: true, ..ServiceOptions::default() };
        let Some(mounted) = Mounted::serving(formatted(), transport, options) else { continue };
        let claimer = Arc::clone(&mounted.service);
        serve(mounted, &|dir, service| {
            let path = dir.join("file");
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT;
            let file = fs::File::from(openat(CWD, &path, flags, Mode::from_raw_mode(0o600)).unwrap());
            file.set_len(65536).unwrap();
            let found = file.metadata().unwrap();
            assert_eq!((found.len(), found.blocks()), (65536, 0));
            let claim =
                claimer.claim(found.ino(), flags.bits() as i32, Caller::default()).expect("it is open");
            let requests = service.counters().snapshot().writes;
            assert_eq!(claim.write(16384, &[7; 16384]), Some(Ok(16384)));
            assert_eq!(service.counters().snapshot().writes, requests + 1, "the kernel wrote as well");
            for now in [file.metadata().unwrap(), fs::metadata(&path).unwrap()] {
                assert!(now.modified().unwrap() > found.modified().unwrap());
                assert_eq!((now.len(), now.blocks()), (65536, 32));
            }
            // Through the kernel there is nothing else to be seen.
            let mut page = [0; 16384];
            file.read_exact_at(&mut page, 16384).unwrap();
            assert_eq!(page, [7; 16384]);
            drop(claim);
        });
    }
}

#[test]
fn an_open_file_outlives_its_name() {
    mounted(|dir, _| {
        let path = dir.join("file");
        let file =
            fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"alive", 0).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"another").unwrap();
        let mut found = [0; 5];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"alive");
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        assert_eq!(fs::read(&path).unwrap(), b"another");
    });
}

/// Over fuser, whose version 0.18 does not know the request, the kernel says that there are none.
#[test]
fn a_file_without_a_name_may_get_one() {
    mounted(|dir, service| {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let opened = openat(CWD, dir, flags, Mode::RUSR | Mode::WUSR);
        if service.transport() == Some("fuser") {
            return assert_eq!(opened.unwrap_err(), Errno::OPNOTSUPP);
        }
        let file = fs::File::from(opened.expect("makes"));
        file.write_all_at(b"data", 0).expect("writes");
        assert_eq!(file.metadata().expect("is there").nlink(), 0);
        assert_eq!(fs::read_dir(dir).expect("lists").count(), 0);
        let by_number = |file: &fs::File| format!("/proc/self/fd/{}", file.as_raw_fd());
        let link = |file: &fs::File, name| {
            linkat(CWD, by_number(file), CWD, dir.join(name), AtFlags::SYMLINK_FOLLOW)
        };
        link(&file, "named").expect("names it");
        assert_eq!(file.metadata().expect("is there").nlink(), 1);
        drop(file);
        assert_eq!(fs::read(dir.join("named")).expect("is there"), b"data");
        let exclusive = openat(CWD, dir, flags | OFlags::EXCL, Mode::RUSR).expect("makes");
        assert_eq!(link(&fs::File::from(exclusive), "other"), Err(Errno::NOENT));
        fs::remove_file(dir.join("named")).expect("removes");
        // The kernel forgets what it knows in its own time.
        let inodes = || service.statfs().map(|stat| stat.inodes - stat.free_inodes).expect("tells");
        let deadline = Instant::now() + Duration::from_secs(20);
        while inodes() > 1 {
            assert!(Instant::now() < deadline, "{} inodes stay", inodes() - 1);
            thread::sleep(Duration::from_millis(10));
        }
    });
}

/// Over fuser, whose version 0.18 does not know the request, there is no time of creation.
#[test]
fn the_time_of_creation_is_told() {
    mounted(|dir, service| {
        let path = dir.join("file");
        fs::write(&path, "data").expect("writes");
        let told = |flags| statx(CWD, &path, AtFlags::empty(), flags).expect("is there");
        let all = told(StatxFlags::BASIC_STATS | StatxFlags::BTIME);
        let created = service.lookup(1, b"file").expect("is there").attr.created;
        service.forget(all.stx_ino, 1);
        assert_eq!((all.stx_size, all.stx_nlink, u32::from(all.stx_mode) & 0o170_000), (4, 1, 0o100_000));
        if service.transport() == Some("fuser") {
            return assert_eq!(all.stx_mask & StatxFlags::BTIME.bits(), 0);
        }
        assert_eq!((all.stx_btime.tv_sec, all.stx_btime.tv_nsec), (created.seconds, created.nanoseconds));
        fs::write(&path, "other").expect("writes");
        assert_eq!(told(StatxFlags::BTIME).stx_btime.tv_nsec, created.nanoseconds);
    });
}

/// What the kernel keeps of names and listings is what it changed itself.
#[test]
fn the_kernel_asks_once_about_names_and_listings() {
    mounted(|dir, service| {
        let looks = || service.latencies().snapshot(lacuna_fuse::Kind::Look).buckets.iter().sum::<u64>();
        let list = || {
            let mut names: Vec<_> =
                fs::read_dir(dir).expect("lists").map(|entry| entry.expect("is there").file_name()).collect();
            names.sort();
            names
        };
        let absent = || assert_eq!(fs::metadata(dir.join("b")).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(dir.join("a"), "data").expect("writes");
        absent();
        assert_eq!(list(), ["a"]);
        let before = looks();
        (0..9).for_each(|_| {
            absent();
            assert_eq!(list(), ["a"]);
        });
        // The file was closed, which the kernel tells in its own time.
        assert!(looks() - before < 9, "{} requests", looks() - before);
        renameat_with(CWD, dir.join("a"), CWD, dir.join("b"), RenameFlags::WHITEOUT).expect("moves");
        assert_eq!(list(), ["a", "b"]);
        assert_eq!(fs::read(dir.join("b")).expect("is there"), b"data");
        let whiteout = fs::metadata(dir.join("a")).expect("is there");
        assert_eq!((whiteout.mode(), whiteout.rdev()), (0o020_000, 0));
        fs::remove_file(dir.join("a")).expect("removes");
        fs::rename(dir.join("b"), dir.join("c")).expect("moves");
        absent();
        assert_eq!(list(), ["c"]);
    });
}

#[test]
fn a_removed_directory_can_be_looked_at_by_who_is_in_it() {
    mounted(|dir, _| {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        fs::create_dir(dir.join("d")).expect("makes");
        // As a working directory, it is held without being open.
        let held = openat(CWD, dir.join("d"), flags, Mode::empty()).expect("opens");
        fs::remove_dir(dir.join("d")).expect("removes");
        let stat = fstat(&held).expect("is told of");
        assert_eq!((stat.st_nlink, stat.st_mode & 0o170_000), (0, 0o040_000));
        let opened = openat(&held, ".", OFlags::RDONLY, Mode::empty()).expect("opens");
        let listed = Dir::read_from(&opened).expect("can be listed").next();
        assert!(listed.is_none_or(|entry| entry.is_err_and(|error| error == Errno::NOENT)));
        let made = openat(&held, "new", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU);
        assert_eq!(made.unwrap_err(), Errno::NOENT);
        assert_eq!(openat(&held, "old", OFlags::RDONLY, Mode::empty()).unwrap_err(), Errno::NOENT);
        assert!(openat(&held, "..", OFlags::RDONLY, Mode::empty()).is_ok());
    });
}

/// Held by a handle of `O_PATH`, but not open, as a working directory is.
#[test]
fn what_is_held_without_a_name_can_be_looked_at_and_changed() {
    mounted(|dir, _| {
        let hold = |name| openat(CWD, dir.join(name), OFlags::PATH, Mode::empty()).expect("opens");
        fs::create_dir(dir.join("removed")).expect("makes");
        fs::create_dir(dir.join("replaced")).expect("makes");
        fs::create_dir(dir.join("moved")).expect("makes");
        fs::write(dir.join("file"), "data").expect("writes");
        let held = ["removed", "replaced", "file"].map(hold);
        fs::remove_dir(dir.join("removed")).expect("removes");
        fs::rename(dir.join("moved"), dir.join("replaced")).expect("moves");
        fs::remove_file(dir.join("file")).expect("removes");
        for handle in held {
            let stat = fstat(&handle).expect("is told of");
            let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
            fs::set_permissions(&path, Permissions::from_mode(0o711)).expect("changes");
            let changed = fstat(&handle).expect("is told of");
            assert_eq!((stat.st_nlink, changed.st_mode & 0o7777), (0, 0o711));
            assert_eq!((changed.st_ino, changed.st_size), (stat.st_ino, stat.st_size));
        }
    });
}

/// The kernel walks a path and then uses the inode at its end, which has been replaced meanwhile.
#[test]
fn a_name_that_is_replaced_can_always_be_opened() {
    mounted(|dir, service| {
        let (name, new) = (dir.join("name"), dir.join("new"));
        let replace = || {
            fs::write(&new, [1; 1000]).expect("writes");
            fs::rename(&new, &name).expect("moves");
        };
        replace();
        let is_over = AtomicBool::new(false);
        let opened = thread::scope(|scope| {
            let opener = scope.spawn(|| {
                let _over = SetOnDrop(&is_over);
                let (end, mut opened) = (Instant::now() + Duration::from_secs(1), 0);
                while Instant::now() < end {
                    assert_eq!(fs::metadata(&name).expect("is there").len(), 1000);
                    assert_eq!(fs::read(&name).expect("is there"), [1; 1000]);
                    let held = openat(CWD, &name, OFlags::PATH, Mode::empty()).expect("is there");
                    let again = format!("/proc/self/fd/{}", held.as_raw_fd());
                    setxattr(&again, "user.x", b"value", XattrFlags::empty()).expect("sets");
                    assert_eq!(fs::read(&again).expect("is held"), [1; 1000]);
                    opened += 1;
                }
                opened
            });
            while !is_over.load(SeqCst) {
                replace();
            }
            opener.join().expect("finds no error")
        });
        assert!(opened > 10, "{opened}");
        fs::remove_file(&name).expect("removes");
        // The kernel forgets what it knows in its own time.
        let inodes = || service.statfs().map(|stat| stat.inodes - stat.free_inodes).expect("tells");
        let deadline = Instant::now() + Duration::from_secs(20);
        while inodes() > 1 {
            assert!(Instant::now() < deadline, "{} inodes were removed and not freed", inodes() - 1);
            thread::sleep(Duration::from_millis(10));
        }
    });
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// The kernel uses the cached mode when it runs a program.
#[test]
fn the_kernel_knows_when_set_user_id_is_gone() {
    mounted(|dir, _| {
        let path = dir.join("program");
        fs::write(&path, [1; 1000]).expect("writes");
        fs::set_permissions(&path, Permissions::from_mode(0o6755)).expect("changes");
        let mode = || {
            // Only the mode is asked for; otherwise the kernel would ask us.
            let stat = statx(CWD, &path, AtFlags::empty(), StatxFlags::MODE).expect("is there");
            stat.stx_mode & 0o7777
        };
        assert_eq!(mode(), 0o6755);
        let file = fs::OpenOptions::new().write(true).open(&path).expect("opens");
        file.write_all_at(&[2], 0).expect("writes");
        assert_eq!(mode(), 0o6755, "root may keep them");
        let as_others = || {
            let mut capabilities = capabilities(None).expect("has some");
            capabilities.effective.remove(CapabilitySet::FSETID);
            set_capabilities(None, capabilities).expect("gives one up");
            file.write_all_at(&[3], 0).expect("writes");
        };
        thread::scope(|scope| scope.spawn(as_others).join().expect("writes"));
        assert_eq!(mode(), 0o755);
    });
}

/// A write by any user removes capabilities: a changed program is not the one that was trusted.
#[test]
fn a_write_takes_capabilities_away() {
    if !geteuid().is_root() {
        return eprintln!("SKIPPED: only root can give them");
    }
    mounted(|dir, _| {
        const NAME: &str = "security.capability";
        let file = fs::File::create(dir.join("program")).expect("makes");
        file.write_all_at(&[1; 1000], 0).expect("writes");
        // Version 2 of the kernel's `vfs_cap_data`, in effect: CAP_NET_RAW.
        let mut net_raw = [0; 20];
        net_raw[..8].copy_from_slice(&[1, 0, 0, 2, 0, 0x20, 0, 0]);
        let has = || fgetxattr(&file, NAME, &mut [0; 20]).is_ok();
        for change in [(|file| file.write_all_at(&[2], 0)) as fn(&fs::File) -> std::io::Result<()>, |file| {
            file.set_len(10)
        }] {
            fsetxattr(&file, NAME, &net_raw, XattrFlags::empty()).expect("gives");
            assert!(has());
            change(&file).expect("changes");
            assert!(!has());
        }
    });
}

/// As on any file system of Linux. Except for the list, the kernel does all of it.
#[test]
fn only_root_knows_of_trusted_attributes() {
    if !geteuid().is_root() {
        return eprintln!("SKIPPED: only root can set them");
    }
    mounted(|dir, _| {
        let file = fs::File::create(dir.join("file")).expect("makes");
        let set = |name: &str| fsetxattr(&file, name, b"value", XattrFlags::empty());
        for name in ["trusted.a", "user.b", "trusted.c"] {
            set(name).expect("sets");
        }
        let list = || {
            let mut names = [0; 100];
            let len = flistxattr(&file, &mut names).expect("lists");
            assert_eq!(flistxattr_query(&file), Ok(len));
            assert_eq!(flistxattr(&file, &mut names[..len - 1]), Err(Errno::RANGE));
            String::from_utf8(names[..len].to_vec()).expect("UTF-8")
        };
        assert_eq!(list(), "trusted.a\0trusted.c\0user.b\0");
        let as_another = || {
            let nobody = Uid::from_raw(65534);
            set_thread_res_uid(nobody, nobody, nobody).expect("gives itself up");
            assert_eq!(list(), "user.b\0");
            assert_eq!(fgetxattr(&file, "trusted.a", &mut [0; 9]), Err(Errno::NODATA));
            assert_eq!(set("trusted.d"), Err(Errno::PERM));
            assert_eq!(fremovexattr(&file, "trusted.a"), Err(Errno::PERM));
        };
        thread::scope(|scope| scope.spawn(as_another).join().expect("is another's"));
        assert_eq!(fgetxattr(&file, "trusted.a", &mut [0; 9]), Ok(5));
    });
}

#[test]
fn synchronous_writes_reach_the_device() {
    mounted(|dir, service| {
        let flushes = || service.fs().ftl().stats().flushes;
        // The kernel syncs what is cached, and leaves that to us where it is not.
        for flags in
            [libc::O_DSYNC, libc::O_SYNC, libc::O_DIRECT | libc::O_DSYNC, libc::O_DIRECT | libc::O_SYNC]
        {
            let file = fs::File::options()
                .create(true)
                .truncate(true)
                .write(true)
                .custom_flags(flags)
                .open(dir.join("log"))
                .unwrap();
            let before = flushes();
            file.write_all_at(&[1; 512], 0).unwrap();
            assert!(flushes() > before, "{flags:o}");
        }
    });
}

#[test]
fn many_threads_share_files_and_directories() {
    mounted(|dir, _| {
        let shared = fs::File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(dir.join("shared"))
            .unwrap();
        thread::scope(|scope| {
            for client in 0..8_u8 {
                let shared = &shared;
                scope.spawn(move || {
                    for turn in 0..50_u64 {
                        let at = (turn * 8 + u64::from(client)) * 4096;
                        shared.write_all_at(&[client + 1; 4096], at).unwrap();
                        let name = dir.join(format!("{client} {turn}"));
                        fs::write(&name, [client; 100]).unwrap();
                        fs::rename(&name, dir.join(format!("{client} {turn} moved"))).unwrap();
                    }
                });
            }
        });
        for page in 0..400_u64 {
            let mut found = [0; 4096];
            shared.read_exact_at(&mut found, page * 4096).unwrap();
            assert_eq!(found, [(page % 8) as u8 + 1; 4096], "page {page}");
        }
        assert_eq!(fs::read_dir(dir).unwrap().count(), 401);
    });
}

/// Where root ends connections.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Ends the connection of the mount on `dir`; false where that cannot be done.
fn abort(dir: &Path) -> bool {
    let device = fs::metadata(dir).unwrap().dev();
    let control = Path::new(CONNECTIONS).join(rustix::fs::minor(device).to_string()).join("abort");
    if !control.exists() {
        let flags = rustix::mount::MountFlags::empty();
        let _ = rustix::mount::mount("none", CONNECTIONS, "fusectl", flags, None);
    }
    fs::write(control, "1").is_ok()
}

#[test]
fn an_aborted_connection_ends_in_an_error_and_loses_nothing_synced() {
    transports().into_iter().for_each(aborted_over);
}

/// Those that are left would serve on, and one after the other end in the same way, until nobody answers.
#[test]
fn a_thread_that_ends_takes_the_mount_with_it() {
    for transport in transports() {
        let device = formatted();
        let before = Nvmfs::open(Arc::clone(&device), Options::default()).expect("opens");
        before.create("file", StreamHint::Data).expect("creates").write_at(0, &[1; 4096]).expect("writes");
        before.close().expect("closes");
        drop(before); // with what it has in memory
        let is_armed = Arc::new(AtomicBool::new(false));
        let panics = Arc::clone(&is_armed);
        let device = BeforeReads::new(device, move |_| {
            assert!(!panics.swap(false, SeqCst), "on purpose");
            Ok(())
        });
        let Some(mounted) = Mounted::of(device, transport) else { continue };
        let Mounted { dir, mut session, .. } = mounted;
        let mut unmount = session.unmounter();
        let serving = thread::spawn(move || session.serve());
        is_armed.store(true, SeqCst);
        fs::read(dir.path().join("file")).expect_err("nobody answers it");
        let deadline = Instant::now() + Duration::from_secs(20);
        while !serving.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        let has_ended = serving.is_finished();
        unmount().expect("is unmounted, or was");
        let served = serving.join().expect("serves");
        assert!(has_ended && served.is_err(), "{}: {has_ended} {served:?}", transport.name());
    }
}

fn aborted_over(transport: &dyn Transport) {
    let Some(Mounted { device, fs: nvmfs, service, dir, mut session }) = Mounted::over(transport) else {
        return;
    };
    let mut unmount = session.unmounter();
    let serving = thread::spawn(move || session.serve());
    let mut synced = fs::File::create(dir.path().join("synced")).unwrap();
    synced.write_all(&[7; 1 << 20]).unwrap();
    synced.sync_all().unwrap();
    let (written, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let is_aborted = thread::scope(|scope| {
        for writer in 0..4 {
            let file = fs::File::create(dir.path().join(format!("writer {writer}"))).unwrap();
            let (written, stop) = (&written, &stop);
            scope.spawn(move || {
                while !stop.load(SeqCst) && file.write_all_at(&[1; 65536], 0).is_ok() {
                    written.fetch_add(1, SeqCst);
                }
            });
        }
        while written.load(SeqCst) < 100 {
            thread::yield_now();
        }
        let is_aborted = abort(dir.path());
        stop.store(!is_aborted, SeqCst); // aborted, they end by themselves
        is_aborted
    });
    drop(synced);
    if !is_aborted {
        unmount().expect("unmounts");
        return eprintln!("SKIPPED: {CONNECTIONS} is not to be had");
    }
    let error = serving.join().expect("serves").expect_err("it does not end as if unmounted");
    // The transport may have done so.
    let _ = rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH);
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{}: {error}", transport.name());
    let report = nvmfs.check(CheckDepth::Payload).expect("checks");
    assert!(report.is_clean(), "{:?}", report.findings);
    // As if the process had been killed: only the bytes on the device remain.
    drop((service, nvmfs));
    let nvmfs = Nvmfs::open(device, Options::default()).expect("opens again");
    let posix = nvmfs.posix();
    let attr = posix.lookup(Ino::ROOT, b"synced").expect("is there");
    let mut found = vec![0; 1 << 20];
    assert_eq!(posix.read(attr.ino, 0, &mut found).expect("reads"), 1 << 20);
    assert!(found.iter().all(|byte| *byte == 7));
}
