use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::AlignedBuf;

fn vfs() -> (tempfile::TempDir, Arc<DirVfs>) {
    let directory = tempfile::tempdir().unwrap();
    let vfs = DirVfs::open(directory.path(), DirOptions::default()).unwrap();
    (directory, vfs)
}

fn filled(len: usize, byte: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    buf.fill(byte);
    buf
}

#[test]
fn files_have_names_and_content() {
    let (directory, vfs) = vfs();
    let file = vfs.create("a", StreamHint::Data).unwrap();
    assert!(matches!(vfs.create("a", StreamHint::Data), Err(Error::Exists { .. })));
    assert!(matches!(vfs.open("b", StreamHint::Data), Err(Error::NotFound { .. })));
    assert!(matches!(vfs.rename("b", "c"), Err(Error::NotFound { .. })));
    assert!(matches!(vfs.remove("b"), Err(Error::NotFound { .. })));
    file.write_at(4096, &filled(8192, 7)).unwrap();
    assert_eq!(file.len().unwrap(), 12288);
    file.set_len(16384).unwrap();
    file.sync().unwrap();

    vfs.create("b", StreamHint::Log).unwrap().write_at(0, &vec![3; 4096]).unwrap();
    vfs.rename("a", "b").unwrap();
    vfs.sync().unwrap();
    assert_eq!(vfs.list().unwrap(), ["b"]);
    drop((file, vfs));

    let vfs = DirVfs::open(directory.path(), DirOptions { read_only: true }).unwrap();
    let file = vfs.open("b", StreamHint::Data).unwrap();
    let mut back = vec![9; 32768];
    file.read_at(0, &mut back).unwrap();
    assert!(back[..4096].iter().chain(&back[12288..]).all(|byte| *byte == 0));
    assert!(back[4096..12288].iter().all(|byte| *byte == 7));
    assert!(matches!(file.set_len(0), Err(Error::Unsupported { .. })));
    assert!(matches!(vfs.remove("b"), Err(Error::Unsupported { .. })));
}

#[test]
fn holes_give_room_back() {
    let (_directory, vfs) = vfs();
    let unit = u64::from(vfs.props().hole_unit);
    if unit == 0 {
        return;
    }
    let file = vfs.create("a", StreamHint::Data).unwrap();
    file.write_at(0, &filled(16 * unit as usize, 1)).unwrap();
    vfs.sync().unwrap();
    assert_eq!(file.allocated(0, u64::MAX).unwrap(), 16 * unit);
    let punch = BatchOp::Punch { file: file.id(), offset: 4 * unit, len: 4 * unit };
    vfs.write_batch(&[punch]).unwrap();
    vfs.sync().unwrap();
    assert_eq!(file.allocated(0, u64::MAX).unwrap(), 12 * unit);
    assert_eq!(file.allocated(3 * unit, 2 * unit).unwrap(), unit);
    assert_eq!(file.len().unwrap(), 16 * unit);
    assert_eq!(vfs.stats().unwrap().allocated_bytes, 12 * unit);
}

#[test]
fn a_closed_file_is_kept_until_it_is_synced() {
    let (_directory, vfs) = vfs();
    vfs.create("a", StreamHint::Data).unwrap().write_at(0, &filled(4096, 1)).unwrap();
    vfs.create("b", StreamHint::Data).unwrap();
    assert_eq!(vfs.files.lock().by_id.len(), 2, "invariant 1");
    vfs.sync().unwrap();
    vfs.open("b", StreamHint::Data).unwrap();
    assert_eq!(vfs.files.lock().by_id.len(), 1);
}

#[test]
fn a_second_opener_is_told_who_is_busy() {
    let (directory, _vfs) = vfs();
    let error = DirVfs::open(directory.path(), DirOptions::default()).err().unwrap();
    assert_eq!(error.to_string(), format!("{}: in use by another process", directory.path().display()));
}

#[test]
fn the_lock_is_no_file_of_the_place() {
    let (directory, vfs) = vfs();
    fs::create_dir(directory.path().join("sub")).unwrap();
    assert!(vfs.list().unwrap().is_empty());
    assert!(matches!(vfs.open(LOCK_NAME, StreamHint::Data), Err(Error::BadName { .. })));
    assert!(matches!(vfs.create("x/y", StreamHint::Data), Err(Error::BadName { .. })));
    assert!(vfs.open("sub", StreamHint::Data).is_err());
}

#[test]
fn bad_directories_and_ranges_are_named() {
    for path in ["/no/such/directory", "/proc", "/dev/null"] {
        let error = DirVfs::open(Path::new(path), DirOptions::default()).err().unwrap();
        assert!(error.to_string().starts_with(&format!("{path}: ")), "{error}");
    }
    let (_directory, vfs) = vfs();
    let file = vfs.create("a", StreamHint::Data).unwrap();
    assert!(matches!(file.write_at(100, &[0; 512]), Err(Error::BadRange { .. })));
    assert!(matches!(file.punch(0, 100), Err(Error::BadRange { .. })));
    assert!(matches!(file.set_len(100), Err(Error::BadRange { .. })));
    let gone = BatchOp::Punch { file: FileId(77), offset: 0, len: 512 };
    assert!(matches!(vfs.write_batch(&[gone]), Err(Error::NotFound { .. } | Error::BadRange { .. })));
}

#[test]
fn who_makes_nothing_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let lock = directory.path().join(LOCK_NAME);
    for read_only in [false, true] {
        let vfs = DirVfs::open(directory.path(), DirOptions { read_only }).unwrap();
        assert!(lock.exists() && DirVfs::open(directory.path(), DirOptions { read_only }).is_err());
        drop(vfs);
        assert!(!lock.exists());
    }
    // Many come and go: at no time do two of them have it.
    let holders = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let Ok(vfs) = DirVfs::open(directory.path(), DirOptions::default()) else { continue };
                    assert_eq!(holders.fetch_add(1, Relaxed), 0);
                    std::thread::yield_now();
                    holders.fetch_sub(1, Relaxed);
                    drop(vfs);
                }
            });
        }
    });
    let vfs = DirVfs::open(directory.path(), DirOptions::default()).unwrap();
    vfs.create("a", StreamHint::Data).unwrap();
    drop(vfs);
    assert!(lock.exists());
}

#[test]
fn nobody_gets_in_whose_lock_file_is_removed() {
    for mode in [0o700, 0o755] {
        let (directory, vfs) = vfs();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
        fs::remove_file(directory.path().join(LOCK_NAME)).unwrap();
        for read_only in [false, true, false] {
            let second = DirVfs::open(directory.path(), DirOptions { read_only });
            assert!(matches!(second, Err(Error::Busy { .. })), "{mode:o} {read_only}");
        }
        vfs.create("a", StreamHint::Data).unwrap();
        drop(vfs);
        drop(DirVfs::open(directory.path(), DirOptions::default()).unwrap());
    }
}

/// As tar and rsync restore: new files are renamed over the old ones (invariant 4).
#[test]
fn nothing_is_changed_where_the_lock_file_was_replaced() {
    for mode in [0o700, 0o755] {
        for everything in [false, true] {
            let (directory, first) = vfs();
            let at = |name: &str| directory.path().join(name);
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
            let file = first.create("a", StreamHint::Data).unwrap();
            file.write_at(0, &filled(4096, 1)).unwrap();
            first.sync().unwrap();
            for name in ["a", LOCK_NAME].iter().filter(|name| everything || **name == LOCK_NAME) {
                fs::copy(at(name), at("restored")).unwrap();
                fs::rename(at("restored"), at(name)).unwrap();
            }
            let second = DirVfs::open(directory.path(), DirOptions::default());
            assert_eq!(second.is_ok(), mode == 0o755, "the directory itself is locked as well");
            if let Ok(second) = &second {
                second.create("b", StreamHint::Data).unwrap();
            }
            let names =
                || Vec::from_iter(fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().path()));
            let names_before = names();

            let opened = first.open("a", StreamHint::Data).unwrap();
            for (what, refused) in [
                ("create", first.create("c", StreamHint::Data).map(drop)),
                ("remove", first.remove("a")),
                ("rename", first.rename("a", "b")),
                ("write", file.write_at(0, &filled(4096, 2))),
                ("write of what is opened now", opened.write_at(0, &filled(4096, 2))),
                ("set length", file.set_len(0)),
                ("punch", file.punch(0, 4096)),
            ] {
                let error = refused.expect_err(what).to_string();
                assert!(
                    error.contains(".lacuna-lock: was replaced while the store was open"),
                    "{what}: {error}"
                );
            }
            assert!(fs::read(at("a")).unwrap() == [1; 4096]);
            drop(first);
            assert_eq!(names(), names_before);
        }
    }
}

/// Nor by who made nothing, and would take the lock's name along.
#[test]
fn another_ones_lock_file_stays() {
    let (directory, first) = vfs();
    let lock = directory.path().join(LOCK_NAME);
    fs::remove_file(&lock).unwrap();
    fs::write(&lock, []).unwrap();
    drop(first);
    assert!(lock.exists());
}

/// Whoever may read a directory can lock it (`flock DIR sleep 1h`).
#[test]
fn only_who_may_open_the_lock_file_keeps_others_out() {
    let (directory, vfs) = vfs();
    vfs.create("a", StreamHint::Data).unwrap();
    drop(vfs);
    let stranger = fs::File::open(directory.path()).unwrap();
    rustix::fs::flock(&stranger, FlockOperation::LockExclusive).unwrap();
    for (mode, gets_in) in [(0o755, true), (0o750, true), (0o704, true), (0o711, false), (0o700, false)] {
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
        for read_only in [false, true] {
            let opened = DirVfs::open(directory.path(), DirOptions { read_only });
            assert_eq!(opened.is_ok(), gets_in, "{mode:o} {read_only}");
            let second = DirVfs::open(directory.path(), DirOptions { read_only });
            assert!(opened.is_err() || matches!(second, Err(Error::Busy { .. })), "{mode:o} {read_only}");
        }
    }
}

/// In the directory of a stranger names of files are taken by links, FIFOs and the like (invariant 2).
#[test]
fn only_regular_files_are_opened() {
    let (directory, vfs) = vfs();
    let victim = tempfile::NamedTempFile::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::os::unix::fs::symlink(victim.path(), at("link")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    fs::create_dir(at("directory")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
    drop(vfs);
    for read_only in [false, true] {
        let vfs = DirVfs::open(directory.path(), DirOptions { read_only }).unwrap();
        for name in ["link", "fifo", "directory", "socket"] {
            let error = vfs.open(name, StreamHint::Data).err().unwrap_or_else(|| panic!("{name} was opened"));
            assert!(error.to_string().contains(name), "{error}");
        }
        assert!(vfs.list().unwrap().is_empty());
    }
}

/// The lock is probed for holes: the start of what has its name would become zeros.
#[test]
fn only_an_empty_file_is_the_lock() {
    let (directory, vfs) = vfs();
    drop(vfs);
    let lock = directory.path().join(LOCK_NAME);
    fs::write(&lock, [7; 9000]).unwrap();
    let open =
        || DirVfs::open(directory.path(), DirOptions::default()).err().expect("it is no lock").to_string();
    assert!(open().contains("not an empty regular file"), "{}", open());
    assert!(fs::read(&lock).unwrap() == [7; 9000]);
    fs::remove_file(&lock).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &lock, FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert!(open().contains("not an empty regular file"), "{}", open());
}
