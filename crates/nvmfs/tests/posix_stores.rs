//! The guarantees of the inode interface about whole stores, one by one: read-only, full and stopped ones, times that
//! wait in memory, threads, and a check beside them.

use std::{
    cell::Cell,
    ops::ControlFlow,
    sync::{
        atomic::{AtomicI64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use crate::by_inode::{
    NOBODY, PLAIN, ROOT, SECONDS, assert_clean, at, clock, dir, file, formatted, new, open, refused,
};
use crate::fight::fight;
use lacuna_nvmfs::{
    CheckDepth, FormatOptions, Ino, Nvmfs, Options, Progress, Refusal, Spare, Timestamp,
    posix::{Allocate, Caller, Posix, Rename, SetAttr, WriteOptions, XattrMode},
};
use lacuna_sim::SimDevice;

#[test]
fn a_read_only_store_refuses_changes() {
    let device = formatted(64 << 20);
    let vfs = open(&device);
    let a = file(&vfs.posix(), "a");
    vfs.posix().write(a, 0, b"data", PLAIN).unwrap();
    vfs.close().unwrap();
    drop(vfs);
    let mut options = Options::default();
    options.ftl.read_only = true;
    let vfs = Nvmfs::open(device, options).unwrap();
    let fs = vfs.posix();
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
    vfs.close().unwrap();
}

/// A sync flushes what its inode needs, and nothing if the sync of another inode has done so since.
#[test]
fn a_sync_reaches_up_to_the_last_change_of_its_inode() {
    let mut options = Options { clock, ..Options::default() };
    options.ftl.background = false;
    let vfs = Nvmfs::open(formatted(64 << 20), options).unwrap();
    let fs = vfs.posix();
    let (table, log) = (file(&fs, "table"), file(&fs, "log"));
    let write = |ino| fs.write(ino, 0, &[1; 512], PLAIN).unwrap();
    let flushes = |ino, data_only| {
        let before = vfs.ftl().stats().flushes;
        fs.fsync(ino, data_only).unwrap();
        vfs.ftl().stats().flushes - before
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

/// Everything can be read and removed on a full store, and overwrites of the same kind still work.
#[test]
fn a_full_store_refuses_growth_alone() {
    let device = formatted(32 << 20);
    let vfs = open(&device);
    let fs = vfs.posix();
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
    // The last space is filled with names.
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
    assert_clean(&vfs);
    assert!(fs.statfs().unwrap().free_bytes > full.free_bytes + 90_000);
    for number in 0..count {
        fs.unlink(d, format!("{number}").as_bytes()).unwrap();
    }
    fs.unlink(d, format!("{count}").as_bytes()).unwrap();
    fs.rmdir(ROOT, b"d").unwrap();
    let empty = fs.statfs().unwrap();
    assert_eq!(empty.free_inodes, empty.inodes - 1);
    assert!(empty.total_bytes - empty.free_bytes < 1000, "{empty:?}");
    assert_clean(&vfs);
}

/// What users fill up to the reserve, root fills up; users go on with what adds nothing.
#[test]
fn users_leave_root_its_reserve() {
    let options = Options { clock, root_reserve: Spare::Percent(10), ..Options::default() };
    let vfs = Nvmfs::open(formatted(64 << 20), options).unwrap();
    let (root, users) = (vfs.posix(), vfs.posix().for_users());
    let user = Caller { uid: 1000, gid: 1000, umask: 0 };
    let empty = root.statfs().unwrap();
    let reserve = empty.free_bytes - empty.available_bytes;
    assert_eq!(reserve, empty.total_bytes / 100 * 10);
    let mut data = vec![0; 50_000];
    lacuna_sim::SeededRng::new(3).fill(&mut data);
    let fill = |fs: &Posix, name: &str| {
        let mut count = 0;
        loop {
            let name = format!("{name} {count}");
            let made = fs.create(ROOT, name.as_bytes(), 0o600, user);
            match made.and_then(|attr| fs.write(attr.ino, 0, &data, PLAIN)) {
                Ok(_) => count += 1,
                Err(error) => break assert_eq!(error.errno(), 28, "{error}"),
            }
        }
        // The last space goes to names.
        let first = fs.lookup(ROOT, format!("{name} 0").as_bytes()).unwrap().ino;
        (0..).take_while(|link| fs.link(first, ROOT, format!("{name}, {link}").as_bytes()).is_ok()).count();
    };
    fill(&users, "user's");
    let full = root.statfs().unwrap();
    assert!(full.available_bytes < 4096 && full.free_bytes >= reserve, "{full:?}");
    let file = users.lookup(ROOT, b"user's 0").unwrap().ino;
    let from_cache = WriteOptions { from_cache: true, ..PLAIN };
    for (what, refused) in [
        ("a write", users.write(file, 1 << 20, &data, PLAIN).map(drop)),
        ("a write from a user's page", users.write(file, 1 << 20, &data, from_cache).map(drop)),
        ("an append", users.append(file, &data, PLAIN).map(drop)),
        ("a copy", users.copy_range((file, 0), (file, 1 << 20), 40_960, None).map(drop)),
        ("a file", users.mknod(ROOT, b"new", 0o100_600, 0, user).map(drop)),
        ("a directory", users.mkdir(ROOT, b"new", 0o700, user).map(drop)),
        ("a link", users.symlink(ROOT, b"new", b"target", user).map(drop)),
        ("an attribute", users.setxattr(file, b"user.x", &data, XattrMode::Set)),
    ] {
        assert_eq!(refused.expect_err(what).errno(), 28, "{what}");
    }
    users.write(file, 0, &data, PLAIN).expect("an overwrite");
    users.rename(ROOT, b"user's 0", ROOT, b"moved", Rename::Replace).expect("a rename");
    users.setattr(file, &SetAttr { size: Some(40_000), ..SetAttr::default() }).expect("a truncation");
    let roots = root.create(ROOT, b"root's", 0o600, Caller::default()).expect("root makes a file").ino;
    root.write(roots, 0, &data, PLAIN).expect("root writes");
    users.write(roots, 1 << 20, &data, from_cache).expect("a page of root's file");
    users.write(roots, 2 << 20, &data, PLAIN).expect_err("a user in root's file");
    fill(&root, "root's");
    assert!(root.statfs().unwrap().free_bytes < 4096);
    for name in [&b"moved"[..], b"user's 1"] {
        users.unlink(ROOT, name).expect("a user removes a file");
    }
    users.release(file).unwrap();
    assert_clean(&vfs);
}

/// An allocation takes nothing, and still fails where there is less space than its range lacks.
#[test]
fn an_allocation_asks_for_space() {
    let options = Options { clock, root_reserve: Spare::Percent(10), ..Options::default() };
    let vfs = Nvmfs::open(formatted(64 << 20), options).unwrap();
    let (root, users) = (vfs.posix(), vfs.posix().for_users());
    let ino = file(&root, "a");
    let mut data = vec![0; 8 << 20];
    lacuna_sim::SeededRng::new(5).fill(&mut data);
    for at in (0..data.len()).step_by(1 << 20) {
        root.write(ino, at as u64, &data[at..][..1 << 20], PLAIN).unwrap();
    }
    let space = root.statfs().unwrap();
    let stored = data.len() as u64;
    for (fs, free) in [(&root, space.free_bytes), (&users, space.available_bytes)] {
        let free = free / 512 * 512 - 4096; // times are stored meanwhile
        for (offset, len, fits) in [
            (0, free, true),
            (0, free + stored, true), // the beginning is there
            (0, free + stored + 8192, false),
            (stored, free + 8192, false),
            (1 << 30, free + 8192, false),
            (0, 1 << 40, false),
        ] {
            for what in [Allocate::KeepSize, Allocate::Extend] {
                let allocated = fs.fallocate(ino, offset, len, what, None);
                let errno = allocated.as_ref().err().map_or(0, |error| error.errno());
                assert_eq!(errno, if fits { 0 } else { 28 }, "{what:?} of {len} bytes at {offset}");
            }
        }
        assert_eq!(fs.getattr(ino).unwrap().size, free + stored, "nothing that failed made it longer");
        fs.setattr(ino, &SetAttr { size: Some(stored), ..SetAttr::default() }).unwrap();
    }
    assert_eq!(root.getattr(ino).unwrap().allocated_bytes, stored);
    root.fallocate(ino, 1 << 41, 1 << 20, Allocate::PunchHole, None).expect("a hole needs none");
    assert_clean(&vfs);
}

/// Times that are in memory only do not become too many: the oldest are stored without a sync.
#[test]
fn unstored_times_are_bounded() {
    let device = formatted(64 << 20);
    let vfs = open(&device);
    let fs = vfs.posix();
    let mut files = Vec::new();
    for number in 0..5000 {
        files.push(file(&fs, &format!("{number}")));
        fs.write(files[number], 0, &[1; 512], PLAIN).unwrap();
    }
    SECONDS.set(5000);
    for ino in &files {
        fs.write(*ino, 0, &[2; 512], PLAIN).unwrap();
    }
    vfs.ftl().flush().unwrap();
    drop((fs, vfs));
    let fs = open(&device).posix();
    let stored = files.iter().filter(|ino| fs.getattr(**ino).unwrap().modified == at(5000)).count();
    assert!((4000..5000).contains(&stored), "{stored}");
}

/// A listing and a read leave times as a write does, even without an open.
#[test]
fn unstored_times_of_reads_are_bounded() {
    let device = formatted(64 << 20);
    let vfs = open(&device);
    let fs = vfs.posix();
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
    vfs.ftl().flush().unwrap();
    drop((fs, vfs));
    let fs = open(&device).posix();
    let stored = looked_at.iter().filter(|ino| fs.getattr(**ino).unwrap().accessed == at(5000)).count();
    assert!((4000..5000).contains(&stored), "{stored}");
}

/// Once writes fail, times do not accumulate further, and not every read tries in vain to store all of them.
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
    let vfs = Nvmfs::open(device.clone(), options).unwrap();
    let fs = vfs.posix();
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

/// Each slot of a file belongs to one thread; slots are not aligned to sectors. Other threads append.
#[test]
fn unaligned_writes_and_appends_from_many_threads_lose_nothing() {
    const SLOT: usize = 300;
    const SLOTS: usize = 200;
    let vfs = new();
    let fs = vfs.posix();
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
    assert_clean(&vfs);
}

/// Threads that conflict make, move and remove directories and files. A thread that loses gets an error, no thread
/// waits for ever, and the result is consistent.
#[test]
fn names_from_many_threads_stay_in_order() {
    let vfs = Nvmfs::open(formatted(64 << 20), Options { inodes_kept: 8, ..Options::default() }).unwrap();
    let fs = vfs.posix();
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
            assert_clean(&vfs); // while they are at it
        }
    });
    assert_clean(&vfs);
}

/// An operation that changes names or inodes waits for a check that reads them. No other operation waits for it: reads,
/// listings, opens, and writes within lengths continue, in the same files and directories.
#[test]
fn who_waits_for_a_check_keeps_nobody_waiting() {
    let vfs = new();
    let fs = vfs.posix();
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
        let vfs = &vfs;
        scope.spawn(move || {
            let told = |progress: Progress| {
                if progress.what == "inodes" && reads.send(()).is_ok() {
                    let _ = may_go_on.recv();
                }
                ControlFlow::Continue(())
            };
            assert!(vfs.check_reporting(CheckDepth::Payload, told).unwrap().is_clean());
        });
        is_reading.recv().unwrap();
        drop(is_reading);
        let waiting = changes.map(|change| {
            let fs = vfs.posix();
            scope.spawn(move || change(&fs, a, d))
        });
        thread::sleep(Duration::from_millis(300));
        let (done, is_done) = mpsc::channel();
        let others = vfs.posix();
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
        went_on.expect("an operation waits for one that waits for the check");
        assert!(have_waited, "this test tests nothing");
    });
    assert_eq!(fs.getattr(a).unwrap().size, 8704);
    fs.lookup(d, b"b").unwrap();
    assert_clean(&vfs);
}

/// A check does not look at times: while it reads, times that became too many are stored, and no operation waits for
/// that.
#[test]
fn a_check_keeps_no_times_from_being_stored() {
    let device = formatted(64 << 20);
    let vfs = open(&device);
    let fs = vfs.posix();
    let files: Vec<_> = (0..5000).map(|number| file(&fs, &format!("{number}"))).collect();
    files.iter().for_each(|ino| assert_eq!(fs.write(*ino, 0, &[1; 512], PLAIN).unwrap(), 512));
    let (reads, is_reading) = mpsc::channel();
    let (goes_on, may_go_on) = mpsc::channel();
    thread::scope(|scope| {
        let vfs = &vfs;
        let check = scope.spawn(move || {
            let told = |progress: Progress| {
                if progress.what == "inodes" && reads.send(()).is_ok() {
                    let _ = may_go_on.recv();
                }
                ControlFlow::Continue(())
            };
            vfs.check_reporting(CheckDepth::Payload, told).unwrap()
        });
        is_reading.recv().unwrap();
        drop(is_reading);
        let (done, is_done) = mpsc::channel();
        let (others, files) = (vfs.posix(), files.clone());
        scope.spawn(move || {
            SECONDS.set(5000);
            for ino in files {
                others.write(ino, 0, &[2; 512], PLAIN).unwrap();
            }
            done.send(()).unwrap();
        });
        let went_on = is_done.recv_timeout(Duration::from_secs(20));
        goes_on.send(()).unwrap();
        went_on.expect("a write that does not extend a file waits for a check");
        let report = check.join().unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
    });
    vfs.ftl().flush().unwrap();
    drop((fs, vfs));
    let fs = open(&device).posix();
    let stored = files.iter().filter(|ino| fs.getattr(**ino).unwrap().modified == at(5000)).count();
    assert!((4000..5000).contains(&stored), "{stored}");
}

/// Who holds number and generation of a removed file, such as an NFS client, must not get another one for it.
#[test]
fn a_number_that_returns_after_reopening_has_another_generation() {
    let device = formatted(64 << 20);
    let mut seen = Vec::new();
    for start in [1000, 2000, 3000] {
        SECONDS.set(start);
        let vfs = open(&device);
        let fs = vfs.posix();
        let ino = file(&fs, "a");
        let attr = fs.getattr(ino).unwrap();
        seen.push((attr.ino, attr.generation));
        fs.unlink(ROOT, b"a").unwrap();
        vfs.close().unwrap();
    }
    assert!(seen.iter().all(|(ino, _)| *ino == seen[0].0), "the number returns: {seen:?}");
    let generations: std::collections::BTreeSet<_> = seen.iter().map(|(_, generation)| generation).collect();
    assert_eq!(generations.len(), 3, "{seen:?}");
}
