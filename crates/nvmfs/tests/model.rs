//! The file system against a map of names to bytes.

use std::{collections::BTreeMap, sync::Arc};

use crate::history::{Model, apply, random_change, same_kind};
use crate::stores::{assert_clean, formatted};
use lacuna_device::{BatchOp, BlockDevice, Error, StreamHint, Vfs};
use lacuna_nvmfs::{Ino, Nvmfs, Options, posix::Rename};
use lacuna_sim::{SeededRng, for_each_seed};

fn open(device: &Arc<dyn BlockDevice>) -> Nvmfs {
    Nvmfs::open(Arc::clone(device), Options::default()).unwrap()
}

#[test]
fn random_histories_match_the_model() {
    for_each_seed(20, |seed| {
        let mut rng = SeededRng::new(seed);
        let device = formatted(32 << 20);
        // Every other history plays in a directory.
        let path = if seed % 2 == 0 { "" } else { "tables/inner" };
        let mut fs = open(&device);
        let mut vfs = fs.directory(path, true).unwrap();
        let mut model = Model::default();
        for step in 0..300 {
            let change = random_change(&mut rng, &model);
            match (apply(&*vfs, &change), model.after(&change)) {
                (Ok(()), Ok(after)) => model = after,
                (Err(error), Err(expected)) if same_kind(&error, &expected) => {}
                (result, expected) => panic!("step {step}: {change:?}: {result:?}, not {expected:?}"),
            }
            if rng.chance(10) {
                assert!(Model::read(&*vfs).unwrap() == model, "step {step}");
            }
            if rng.chance(2) {
                if rng.chance(50) {
                    fs.close().unwrap()
                } else {
                    vfs.sync().unwrap()
                }
                drop((vfs, fs));
                fs = open(&device);
                vfs = fs.directory(path, false).unwrap();
                assert_eq!(Model::read(&*vfs).unwrap().summary(), model.summary(), "step {step}");
                assert_clean(&fs);
            }
        }
        assert!(Model::read(&*vfs).unwrap() == model);
        assert_clean(&fs);
    });
}

#[test]
fn directories_are_places_that_do_not_meet() {
    let device = formatted(32 << 20);
    let fs = open(&device);
    let missing =
        |result: Result<_, Error>| matches!(result.map(|_: Arc<_>| ()), Err(Error::NotFound { .. }));
    assert!(missing(fs.directory("a", false)));
    let (a, b) = (fs.directory("a", true).unwrap(), fs.directory("/a//b/", true).unwrap());
    let places: [&dyn Vfs; 3] = [&fs, &*a, &*b];
    let files: Vec<_> = places.iter().map(|vfs| vfs.create("table", StreamHint::Data).unwrap()).collect();
    // One batch over all of them, whichever VFS it is given to.
    let data = [[1; 512], [2; 512], [3; 512]];
    let write = |at: usize| BatchOp::Write { file: files[at].id(), offset: 0, data: &data[at] };
    b.write_batch(&[write(0), write(1), write(2)]).unwrap();
    for (vfs, data) in places.iter().zip(&data) {
        assert_eq!(vfs.list().unwrap(), ["table"]);
        let mut found = [0; 512];
        vfs.open("table", StreamHint::Data).unwrap().read_at(0, &mut found).unwrap();
        assert_eq!(&found, data, "{}", vfs.name());
    }
    // A path that is not a directory, and invalid names.
    assert!(matches!(fs.directory("table", true).map(drop), Err(Error::Unsupported { .. })));
    for path in ["..", "a/../a", "a/./b"] {
        assert!(matches!(fs.directory(path, true).map(drop), Err(Error::BadName { .. })), "{path}");
    }
    // Renamed, it stays the same directory; removed, it stays empty, and its number is not given to another inode.
    let posix = fs.posix();
    posix.rename(Ino::ROOT, b"a", Ino::ROOT, b"c", Rename::Replace).unwrap();
    assert_eq!(a.list().unwrap(), ["table"]);
    b.remove("table").unwrap();
    posix.rmdir(posix.lookup(Ino::ROOT, b"c").unwrap().ino, b"b").unwrap();
    assert!(matches!(b.create("again", StreamHint::Data).map(drop), Err(Error::NotFound { .. })));
    assert_eq!(b.list().unwrap(), [""; 0]);
    drop((a, b));
    assert_clean(&fs);
}

#[test]
fn removed_files_leave_nothing_behind() {
    let device = formatted(32 << 20);
    let vfs = open(&device);
    let before = vfs.stats().unwrap().allocated_bytes;
    for round in 0..3 {
        for number in 0..200 {
            let file = vfs.create(&format!("{number}"), StreamHint::Data).unwrap();
            file.write_at(1 << 40, &[round + 1; 4096]).unwrap();
        }
        for number in 0..200 {
            vfs.remove(&format!("{number}")).unwrap();
        }
        assert_eq!(vfs.stats().unwrap().allocated_bytes, before);
        assert!(vfs.list().unwrap().is_empty());
    }
    assert_clean(&vfs);
}

#[test]
fn a_handle_of_a_removed_file_touches_no_other() {
    let device = formatted(32 << 20);
    let vfs = open(&device);
    let stale = vfs.create("a", StreamHint::Data).unwrap();
    let id = stale.id();
    stale.write_at(0, &[1; 512]).unwrap();
    vfs.remove("a").unwrap();
    drop(vfs);
    // After a reopen the search for free numbers starts over, so the number is given out again.
    let vfs = open(&device);
    let fresh = vfs.create("b", StreamHint::Data).unwrap();
    fresh.write_at(0, &[2; 512]).unwrap();
    assert_ne!(fresh.id(), id);
    let write = BatchOp::Write { file: id, offset: 0, data: &[3; 512] };
    assert!(matches!(vfs.write_batch(&[write]), Err(Error::NotFound { .. })));
    for result in [
        stale.write_at(0, &[3; 512]),
        stale.set_len(0),
        stale.punch(0, 512),
        stale.read_at(0, &mut [0; 512]),
        stale.len().map(drop),
        stale.allocated(0, 512).map(drop),
    ] {
        assert!(matches!(result, Err(Error::NotFound { .. })), "{result:?}");
    }
    let mut back = [0; 512];
    fresh.read_at(0, &mut back).unwrap();
    assert_eq!(back, [2; 512]);
}

#[test]
fn names_and_ranges_that_cannot_be_are_refused() {
    let device = formatted(32 << 20);
    let vfs = open(&device);
    for name in ["", ".", "..", "a/b", "a\0b", &"x".repeat(256)] {
        let bad = |result: Result<(), Error>| matches!(result, Err(Error::BadName { .. }));
        assert!(bad(vfs.create(name, StreamHint::Data).map(drop)), "{name:?}");
        assert!(bad(vfs.open(name, StreamHint::Data).map(drop)), "{name:?}");
        assert!(bad(vfs.remove(name)), "{name:?}");
        assert!(bad(vfs.rename("a", name)), "{name:?}");
        assert!(bad(vfs.rename(name, "a")), "{name:?}");
    }
    let file = vfs.create("a", StreamHint::Data).unwrap();
    let end = 32_u64 << 40;
    for (offset, len) in [(1, 512), (0, 511), (end, 512), (end - 512, 1024), (u64::MAX - 511, 512)] {
        let mut buf = vec![0; len];
        let bad = |result: Result<(), Error>| matches!(result, Err(Error::BadRange { .. }));
        assert!(bad(file.write_at(offset, &buf)), "write {offset}+{len}");
        assert!(bad(file.read_at(offset, &mut buf)), "read {offset}+{len}");
        assert!(bad(file.punch(offset, len as u64)), "punch {offset}+{len}");
    }
    assert!(matches!(file.set_len(end + 512), Err(Error::BadRange { .. })));
    file.set_len(end).unwrap();
    file.write_at(end - 512, &[1; 512]).unwrap();
    assert_eq!(file.len().unwrap(), end);
    let too_large = vec![1; vfs.props().atomic_bytes_max as usize + 512];
    assert!(matches!(file.write_at(0, &too_large), Err(Error::BatchTooLarge { .. })));
    assert_clean(&vfs);
}

#[test]
fn the_largest_atomic_batch_is_taken() {
    let device = formatted(256 << 20);
    let vfs = open(&device);
    let sector_count = vfs.props().atomic_bytes_max as usize / 512;
    assert_eq!(vfs.props().atomic_bytes_max, 8 << 20);
    let file = vfs.create("a", StreamHint::Data).unwrap();
    // The most bookkeeping that its bytes can need: single sectors apart from each other.
    let data = [5; 512];
    let write = |number| BatchOp::Write { file: file.id(), offset: number as u64 * 1024, data: &data };
    let ops: Vec<_> = (0..sector_count).map(write).collect();
    vfs.write_batch(&ops).unwrap();
    assert_eq!(file.len().unwrap(), sector_count as u64 * 1024 - 512);
    file.write_at(1 << 30, &vec![6; 8 << 20]).unwrap();
    assert_clean(&vfs);
}

#[test]
fn a_full_store_refuses_whole_operations_and_recovers() {
    let device = formatted(32 << 20);
    let vfs = open(&device);
    let mut rng = SeededRng::new(1);
    let mut page = vec![0; 1 << 16];
    let mut names = Vec::new();
    let error = loop {
        rng.fill(&mut page);
        let name = format!("{}", names.len());
        let written = vfs
            .create(&name, StreamHint::Data)
            .and_then(|file| (0..16).try_for_each(|i| file.write_at(i * (1 << 16), &page)));
        names.push(name);
        if let Err(error) = written {
            break error;
        }
        assert!(names.len() < 64, "64 MiB went into 32 MiB");
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(names.len() > 10, "full after {} MiB of 32", names.len());
    assert_clean(&vfs);
    vfs.open("0", StreamHint::Data).unwrap().write_at(0, &page).unwrap(); // of the same size
    vfs.rename("1", "2").unwrap();
    vfs.remove("0").unwrap();
    vfs.create("again", StreamHint::Data).unwrap().write_at(0, &page).unwrap();
    assert_clean(&vfs);
}

#[test]
fn many_names_from_many_threads() {
    const THREADS: usize = 4;
    let device = formatted(64 << 20);
    let vfs = open(&device);
    let vfs_ref = &vfs;
    let contents: Vec<BTreeMap<String, u8>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS).map(|worker| scope.spawn(move || work(vfs_ref, worker))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let mut names = vfs.list().unwrap();
    names.sort();
    let mut expected: Vec<String> = contents.iter().flat_map(|files| files.keys().cloned()).collect();
    expected.sort();
    assert_eq!(names, expected);
    for (name, byte) in contents.iter().flatten() {
        let mut back = [0; 1024];
        vfs.open(name, StreamHint::Data).unwrap().read_at(1024, &mut back).unwrap();
        assert_eq!(back, [*byte; 1024], "{name}");
    }
    assert_clean(&vfs);
}

/// Creates, writes, renames and removes names of its own; returns those that remain.
fn work(vfs: &Nvmfs, worker: usize) -> BTreeMap<String, u8> {
    let mut rng = SeededRng::new(worker as u64);
    let mut files = BTreeMap::new();
    for _ in 0..300 {
        let name = format!("{worker}-{}", rng.below(20));
        let to = format!("{worker}-{}", rng.below(20));
        let byte = 1 + rng.below(255) as u8;
        match (files.contains_key(&name), rng.below(4)) {
            (false, _) => {
                let file = vfs.create(&name, StreamHint::Data).unwrap();
                file.write_at(1024, &[byte; 1024]).unwrap();
                files.insert(name, byte);
            }
            (true, 0) => {
                vfs.remove(&name).unwrap();
                files.remove(&name);
            }
            (true, 1) => {
                vfs.rename(&name, &to).unwrap();
                let content = files.remove(&name).unwrap();
                files.insert(to, content);
            }
            (true, _) => {
                vfs.open(&name, StreamHint::Data).unwrap().write_at(1024, &[byte; 1024]).unwrap();
                files.insert(name, byte);
            }
        }
    }
    files
}

/// All threads compete for the same three names; a thread that loses must get an error, and nothing must be left.
#[test]
fn the_same_names_from_many_threads() {
    let device = formatted(64 << 20);
    let vfs = open(&device);
    let vfs_ref = &vfs;
    std::thread::scope(|scope| {
        for worker in 0..4 {
            scope.spawn(move || fight(vfs_ref, worker));
        }
    });
    assert_clean(&vfs);
    assert!(vfs.list().unwrap().len() <= 3);
    for name in vfs.list().unwrap() {
        vfs.remove(&name).unwrap();
    }
    assert_clean(&vfs);
}

fn fight(vfs: &Nvmfs, worker: u64) {
    let mut rng = SeededRng::new(worker);
    for _ in 0..1000 {
        let name = format!("{}", rng.below(3));
        let result = match rng.below(4) {
            0 => vfs.create(&name, StreamHint::Data).map(drop),
            1 => vfs.remove(&name),
            2 => vfs.rename(&name, &format!("{}", rng.below(3))),
            _ => vfs.open(&name, StreamHint::Data).and_then(|file| {
                file.write_at(rng.below(8) * 512, &[1; 512])?;
                file.set_len(rng.below(8) * 512)
            }),
        };
        let lost = matches!(result, Err(Error::NotFound { .. } | Error::Exists { .. }));
        assert!(result.is_ok() || lost, "{result:?}");
    }
}
