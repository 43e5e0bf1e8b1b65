//! Quotas: usage is exact whatever happened, and no user gets past its limits.

use std::{
    collections::BTreeMap,
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use crate::by_inode::{PLAIN, ROOT, dir, file, open};
use crate::logged::logged;
use crate::power;
use crate::stores::{assert_clean, formatted};
use crate::world::{Driver, World, random_change, refusal};
use lacuna_device::{BatchOp, SECTOR, StreamHint, Vfs};
use lacuna_ftl::{Lba, Op, Stream};
use lacuna_nvmfs::{
    CheckDepth, Compression, Ino, Limits, Nvmfs, Options, Refusal, Usage,
    posix::{Allocate, Caller, Posix, SetAttr, WriteOptions, XattrMode},
};
use lacuna_sim::{SeededRng, for_each_seed};

const USER: u32 = 1000;
const DQUOT: i32 = 122;

fn caller(uid: u32) -> Caller {
    Caller { uid, gid: uid, umask: 0 }
}

fn limits(bytes: u64, inodes: u64) -> Limits {
    Limits { bytes: NonZeroU64::new(bytes), inodes: NonZeroU64::new(inodes) }
}

fn used(vfs: &Nvmfs, uid: u32) -> Usage {
    let quotas = vfs.quotas().unwrap();
    quotas.into_iter().find(|quota| quota.uid == uid).map(|quota| quota.used).unwrap_or_default()
}

fn usage(bytes: u64, inodes: u64) -> Usage {
    Usage { bytes, inodes }
}

/// Runs `body` in that many threads.
fn threads(count: usize, body: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        (0..count).for_each(|thread| {
            drop(scope.spawn({
                let body = &body;
                move || body(thread)
            }))
        })
    });
}

fn chown(fs: &Posix, ino: Ino, uid: u32) {
    fs.setattr(ino, &SetAttr { uid: Some(uid), ..SetAttr::default() }).unwrap();
}

/// Each operation that changes what is stored, by itself.
#[test]
fn usage_follows_each_operation() {
    let vfs = open(&formatted(64 << 20));
    let fs = vfs.posix();
    vfs.set_limits(USER, limits(1 << 40, 1 << 20)).unwrap();
    assert_eq!(used(&vfs, USER), usage(0, 0));
    let users = fs.mkdir(ROOT, b"home", 0o755, caller(USER)).unwrap().ino;
    let ino = fs.create(users, b"file", 0o600, caller(USER)).unwrap().ino;
    let entry = used(&vfs, USER).bytes;
    assert!((1..=512).contains(&entry) && used(&vfs, USER).inodes == 2, "{:?}", used(&vfs, USER));
    let takes = |bytes: u64, inodes: u64, what: &str| {
        assert_eq!(used(&vfs, USER), usage(bytes + entry, inodes), "{what}");
        assert_clean(&vfs);
    };
    fs.write(ino, 0, &[1; 10_240], PLAIN).unwrap();
    takes(10_240, 2, "a write");
    fs.write(ino, 100, &[2; 5_000], PLAIN).unwrap();
    takes(10_240, 2, "an overwrite");
    fs.write(ino, 1 << 30, &[3; 512], PLAIN).unwrap();
    takes(10_752, 2, "a hole takes nothing");
    fs.fallocate(ino, 0, 4096, Allocate::PunchHole, None).unwrap();
    takes(6_656, 2, "a punched hole");
    fs.setattr(ino, &SetAttr { size: Some(8192), ..SetAttr::default() }).unwrap();
    takes(4_096, 2, "a truncation");
    fs.setxattr(ino, b"user.x", &[7; 2000], XattrMode::Set).unwrap();
    let with = used(&vfs, USER).bytes - entry;
    assert!((4_096 + 2_000..4_096 + 5 * 512 + 1).contains(&with), "{with}");
    fs.removexattr(ino, b"user.x").unwrap();
    takes(4_096, 2, "attributes come and go");
    let copy = fs.mknod(ROOT, b"copy", 0o100_600, 0, caller(USER)).unwrap().ino;
    fs.copy_range((ino, 0), (copy, 0), 8192, None).unwrap();
    takes(8_192, 3, "a copy");
    fs.symlink(ROOT, b"link", &[b'x'; 1024], caller(USER)).unwrap();
    takes(9_216, 4, "a link with a long target");
    chown(&fs, copy, 7);
    takes(5_120, 3, "another's");
    assert_eq!(used(&vfs, 7), usage(4_096, 1));
    chown(&fs, copy, USER);
    takes(9_216, 4, "and back");
    fs.unlink(ROOT, b"copy").unwrap();
    fs.unlink(ROOT, b"link").unwrap();
    takes(4_096, 2, "removed");
    fs.rename(users, b"file", ROOT, b"moved", lacuna_nvmfs::posix::Rename::Replace).unwrap();
    fs.unlink(ROOT, b"moved").unwrap();
    assert_eq!(used(&vfs, USER), usage(4_096, 2), "open still; the entry is root's, and gone");
    fs.release(ino).unwrap();
    assert_eq!(used(&vfs, USER), usage(0, 1));
    fs.rmdir(ROOT, b"home").unwrap();
    assert_eq!(used(&vfs, USER), usage(0, 0));
    assert_eq!(used(&vfs, 7), usage(0, 0));
    assert_clean(&vfs);
}

/// What adds to the usage of a user above its limit is refused; root is not, and the rest is not.
#[test]
fn nobody_gets_past_a_limit() {
    let vfs = open(&formatted(64 << 20));
    let (root, users) = (vfs.posix(), vfs.posix().for_users());
    let file = users.create(ROOT, b"file", 0o600, caller(USER)).unwrap().ino;
    let page = vec![5; 4096];
    users.write(file, 0, &page, PLAIN).unwrap();
    vfs.set_limits(USER, limits(20_480, 3)).unwrap();
    let denied = |result: Result<(), lacuna_nvmfs::Error>, what: &str| {
        let error = result.expect_err(what);
        assert_eq!((error.errno(), refusal(error).unwrap()), (DQUOT, Refusal::QuotaExceeded), "{what}");
    };
    let write = |fs: &Posix, offset: u64| fs.write(file, offset, &page, PLAIN).map(drop);
    (1..5).for_each(|at| write(&users, at * 4096).unwrap());
    assert_eq!(used(&vfs, USER), usage(20_480, 1));
    denied(write(&users, 5 * 4096), "a write");
    denied(
        users.write(file, 5 * 4096, &page, WriteOptions { from_cache: true, ..PLAIN }).map(drop),
        "a page",
    );
    denied(users.append(file, b"x", PLAIN).map(drop), "an append");
    denied(users.copy_range((file, 0), (file, 1 << 20), 4096, None).map(drop), "a copy");
    denied(users.setxattr(file, b"user.x", &[1; 600], XattrMode::Set), "an attribute outside of the inode");
    users.setxattr(file, b"user.x", b"small", XattrMode::Set).expect("one that fits");
    write(&users, 4096).expect("an overwrite");
    users.fallocate(file, 0, 1 << 20, Allocate::Extend, None).expect("it reserves nothing");
    // Zeros that are not stored take nothing, before or after.
    let mut tail = vec![0; 16_384];
    tail[..4096].fill(9);
    users.write(file, 0, &tail, PLAIN).expect("less than before");
    assert_eq!(used(&vfs, USER), usage(8_192, 1));
    users.write(file, 0, &tail, PLAIN).expect("the same again");
    (1..4).for_each(|at| write(&users, at * 4096).unwrap());
    // Bytes count for the file's owner, not for the writer.
    root.write(file, 8 << 20, &page, PLAIN).expect("root");
    assert_eq!(used(&vfs, USER), usage(24_576, 1));
    denied(write(&users, 9 << 20), "above the limit");
    write(&users, 8 << 20).expect("an overwrite above the limit");
    users.fallocate(file, 8 << 20, 4096, Allocate::PunchHole, None).expect("a hole");
    users.mknod(ROOT, b"2", 0o100_600, 0, caller(USER)).unwrap();
    users.mkdir(ROOT, b"3", 0o700, caller(USER)).unwrap();
    denied(users.mknod(ROOT, b"4", 0o100_600, 0, caller(USER)).map(drop), "a fourth inode");
    denied(users.symlink(ROOT, b"4", b"target", caller(USER)).map(drop), "a fourth inode");
    let three = users.lookup(ROOT, b"3").unwrap().ino;
    denied(users.link(file, three, b"name").map(drop), "an entry in the user's directory");
    users.link(file, ROOT, b"name").expect("an entry in root's");
    users.mknod(ROOT, b"another's", 0o100_600, 0, caller(USER + 1)).expect("another user");
    users.setattr(file, &SetAttr { size: Some(0), ..SetAttr::default() }).expect("a truncation");
    users.unlink(ROOT, b"2").expect("a removal");
    users.mknod(ROOT, b"4", 0o100_600, 0, caller(USER)).expect("what was given back");
    vfs.set_limits(USER, Limits::default()).unwrap();
    users.mknod(ROOT, b"5", 0o100_600, 0, caller(USER)).expect("no limits");
    for uid in [0, u32::MAX] {
        assert_eq!(refusal(vfs.set_limits(uid, limits(1, 1)).unwrap_err()).unwrap(), Refusal::Invalid);
    }
    assert_clean(&vfs);
}

/// Limits outlast the file system's uses; usage is counted anew.
#[test]
fn limits_are_stored_and_usage_is_not() {
    let device = formatted(64 << 20);
    let vfs = open(&device);
    let fs = vfs.posix();
    let ino = fs.create(ROOT, b"file", 0o600, caller(USER)).unwrap().ino;
    fs.write(ino, 0, &[1; 2048], PLAIN).unwrap();
    fs.unlink(ROOT, b"file").unwrap();
    let kept = fs.mknod(ROOT, b"kept", 0o100_600, 0, caller(USER)).unwrap().ino;
    fs.write(kept, 0, &[1; 1024], PLAIN).unwrap();
    for uid in [USER, 1, u32::MAX - 1] {
        vfs.set_limits(uid, limits(1024, 2)).unwrap();
    }
    vfs.set_limits(1, Limits::default()).unwrap();
    vfs.set_limits(USER, limits(2048, 0)).unwrap();
    assert_eq!(used(&vfs, USER), usage(3072, 2), "one has no name");
    drop((fs, vfs)); // without a close
    let vfs = open(&device);
    let found: Vec<_> =
        vfs.quotas().unwrap().iter().map(|quota| (quota.uid, quota.used, quota.limits)).collect();
    let roots = found[0].1;
    let expected = [
        (0, roots, Limits::default()),
        (USER, usage(1024, 1), limits(2048, 0)),
        (u32::MAX - 1, usage(0, 0), limits(1024, 2)),
    ];
    assert_eq!(found, expected);
    assert!(vfs.posix().for_users().write(kept, 1024, &[1; 1536], PLAIN).is_err());
    assert_clean(&vfs);
    vfs.close().unwrap();
    drop(vfs);
    let mut options = Options::default();
    options.ftl.read_only = true;
    let vfs = Nvmfs::open(device, options).unwrap();
    assert_eq!(used(&vfs, USER), usage(1024, 1));
    assert!(vfs.set_limits(USER, limits(1, 1)).is_err());
    assert_clean(&vfs);
}

/// What a model of the world says that each user has: inodes, and no more bytes than their lengths in sectors.
fn assert_counts(vfs: &Nvmfs, driver: &Driver, step: usize) {
    let snapshot = driver.snapshot().unwrap();
    let named: BTreeMap<_, _> = snapshot.values().map(|seen| (&seen.first, seen.owner.0)).collect();
    let mut inodes = BTreeMap::<u32, u64>::new();
    named.values().for_each(|uid| *inodes.entry(*uid).or_default() += 1);
    *inodes.entry(0).or_default() += 1; // the root directory
    let quotas = vfs.quotas().unwrap();
    let all: u64 = quotas.iter().map(|quota| quota.used.inodes).sum();
    assert!(all >= inodes.values().sum(), "step {step}");
    if driver.handles.is_empty() {
        let counted =
            quotas.iter().map(|quota| (quota.uid, quota.used.inodes)).filter(|(_, count)| *count > 0);
        assert!(counted.eq(inodes), "step {step}: {quotas:?}");
    }
}

/// Random operations; after each few, a recount agrees with what was posted, to the byte (`check`).
#[test]
fn random_histories_count_right() {
    for_each_seed(20, |seed| {
        let mut rng = SeededRng::new(seed);
        let device = formatted(32 << 20);
        // Few inodes, and now and then little of the map, stay in memory.
        let mut options = Options { inodes_kept: 4, ..Options::default() };
        options.ftl.map_memory = (seed % 3 == 0).then_some(6 << 10);
        let open = || Nvmfs::open(Arc::clone(&device), options.clone()).unwrap();
        let mut vfs = open();
        vfs.set_limits(77, limits(1 << 30, 0)).unwrap();
        let mut driver = Driver::new(vfs.posix());
        let mut world = World::default();
        for step in 0..300 {
            let change = random_change(&mut rng, &world);
            match (driver.apply(&change), world.apply(&change)) {
                (Ok(_), Ok(())) => {}
                (Err(error), Err(expected)) => assert_eq!(refusal(error).unwrap(), expected),
                (result, expected) => panic!("step {step}: {change:?}: {result:?}, not {expected:?}"),
            }
            if rng.chance(10) {
                assert_clean(&vfs);
                assert_counts(&vfs, &driver, step);
            }
            if rng.chance(2) {
                driver.fs.sync().unwrap();
                let before = driver.handles.is_empty().then(|| vfs.quotas().unwrap());
                drop((driver, vfs));
                vfs = open();
                assert!(before.is_none_or(|before| before == vfs.quotas().unwrap()), "step {step}, reopened");
                driver = Driver::new(vfs.posix());
                world.close_all();
            }
        }
        while let Some(ino) = driver.handles.pop() {
            driver.fs.release(ino).unwrap();
        }
        assert_clean(&vfs);
        assert_counts(&vfs, &driver, 300);
    });
}

/// Batches of programs in this process, whose parts may overlap, are counted too, and never refused.
#[test]
fn batches_by_name_are_counted() {
    let vfs = open(&formatted(64 << 20));
    vfs.set_limits(USER, limits(512, 1)).unwrap();
    let names = ["a", "b"];
    let files = names.map(|name| vfs.create(name, StreamHint::Data).unwrap());
    for name in names {
        chown(&vfs.posix(), vfs.posix().lookup(ROOT, name.as_bytes()).unwrap().ino, USER);
    }
    let mut rng = SeededRng::new(9);
    for _ in 0..300 {
        let parts: Vec<(usize, u64, Vec<u8>)> = (0..1 + rng.below(4))
            .map(|_| {
                let mut data = vec![1; (1 + rng.below(70)) as usize * SECTOR];
                let zeros = rng.below(data.len() as u64 * 2).min(data.len() as u64) as usize;
                data[zeros..].fill(0);
                (rng.below(2) as usize, rng.below(100) * SECTOR as u64, data)
            })
            .collect();
        let ops: Vec<_> = parts
            .iter()
            .map(|(at, offset, data)| match data[0] {
                0 => BatchOp::Punch { file: files[*at].id(), offset: *offset, len: data.len() as u64 },
                _ => BatchOp::Write { file: files[*at].id(), offset: *offset, data },
            })
            .collect();
        vfs.write_batch(&ops).unwrap();
        let stored: u64 = files.iter().map(|file| file.allocated(0, 1 << 30).unwrap()).sum();
        assert_eq!(used(&vfs, USER), usage(stored, 2));
    }
    assert_clean(&vfs);
}

/// Threads of one user, that write, remove, make and give away: together they stay within the limit at all times, and
/// the count is right at the end, and while it is checked.
#[test]
fn threads_of_a_user_stay_within_its_limit() {
    const LIMIT: u64 = 300_000;
    let vfs = open(&formatted(64 << 20));
    vfs.posix().mkdir(ROOT, b"d", 0o777, caller(0)).unwrap();
    let directory = vfs.posix().lookup(ROOT, b"d").unwrap().ino;
    let shared = file(&vfs.posix(), "shared");
    chown(&vfs.posix(), shared, USER);
    vfs.set_limits(USER, limits(LIMIT, 12)).unwrap();
    let refused = AtomicU64::new(0);
    threads(5, |thread| {
        let mut rng = SeededRng::new(thread as u64);
        let fs = vfs.posix().for_users();
        if thread == 4 {
            for _ in 0..15 {
                assert_clean(&vfs);
                let used = used(&vfs, USER);
                assert!(used.bytes <= LIMIT && used.inodes <= 12, "{used:?}");
            }
            return;
        }
        for round in 0..400 {
            let name = format!("{thread} {}", round % 4).into_bytes();
            let data = vec![thread as u8 + 1; (1 + rng.below(60_000)) as usize];
            let done = match rng.below(6) {
                0 => fs.mknod(directory, &name, 0o100_600, 0, caller(USER)).map(drop),
                1 => fs.unlink(directory, &name).map(drop),
                2 => fs.write(shared, rng.below(1 << 20), &data, PLAIN).map(drop),
                3 => fs.fallocate(shared, rng.below(1 << 20), 20_000, Allocate::PunchHole, None),
                4 if rng.chance(10) => fs.lookup(directory, &name).and_then(|attr| {
                    let gift = SetAttr { uid: Some(5), ..SetAttr::default() };
                    fs.setattr(attr.ino, &gift).map(drop)
                }),
                _ => {
                    let wrote = fs.lookup(directory, &name).map(|attr| attr.ino);
                    wrote.and_then(|ino| fs.write(ino, rng.below(1 << 18), &data, PLAIN)).map(drop)
                }
            };
            if let Err(error) = done {
                match refusal(error).unwrap() {
                    Refusal::QuotaExceeded => drop(refused.fetch_add(1, SeqCst)),
                    Refusal::Exists | Refusal::NotFound | Refusal::Stale => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    });
    assert!(refused.into_inner() > 50, "this test tests little");
    let used = used(&vfs, USER);
    assert!(used.bytes <= LIMIT && used.inodes <= 12 && used.inodes > 0, "{used:?}");
    assert_clean(&vfs);
}

/// Usage is counted for the first time while threads change everything.
#[test]
fn the_first_count_may_be_at_any_time() {
    for_each_seed(6, |seed| {
        let vfs = open(&formatted(64 << 20));
        let fs = vfs.posix();
        let directory = dir(&fs, ROOT, "d");
        for number in 0..300 {
            fs.mknod(directory, format!("old {number}").as_bytes(), 0o100_600, 0, caller(number % 7))
                .unwrap();
        }
        let shared = file(&fs, "shared");
        fs.write(shared, 2 << 20, b"end", PLAIN).unwrap();
        threads(4, |thread| {
            let mut rng = SeededRng::new(seed * 10 + thread as u64);
            if thread == 3 {
                (0..rng.below(300)).for_each(|_| thread::yield_now());
                vfs.set_limits(USER, limits(1 << 40, 0)).unwrap();
                return (0..5).for_each(|_| assert_clean(&vfs));
            }
            for round in 0..250 {
                let old = format!("old {}", rng.below(100) * 3 + thread as u64);
                let found = fs.lookup(directory, old.as_bytes()).map(|attr| attr.ino);
                match (rng.below(6), found) {
                    (0, Ok(ino)) => drop(fs.write(ino, rng.below(9_000), &[1; 5_000], PLAIN).unwrap()),
                    (1, Ok(ino)) => chown(&fs, ino, rng.below(7) as u32),
                    (2, Ok(_)) => drop(fs.unlink(directory, old.as_bytes()).unwrap()),
                    (3, _) => {
                        assert_eq!(fs.write(shared, rng.below(2 << 20), &[2; 700], PLAIN).unwrap(), 700)
                    }
                    (4, _) => {
                        fs.fallocate(shared, rng.below(1 << 20), 9_000, Allocate::PunchHole, None).unwrap()
                    }
                    _ => {
                        let name = format!("new {thread} {round}");
                        fs.mknod(directory, name.as_bytes(), 0o100_600, 0, caller(1)).unwrap();
                    }
                }
            }
        });
        assert_clean(&vfs);
    });
}

/// What stays of an encoded chunk is stored beside it, so a hole may take space: it took what its user may not have.
#[test]
fn holes_in_encoded_chunks_stay_within_a_limit() {
    const LEN: usize = 1 << 20;
    let vfs = open(&formatted(64 << 20));
    let (fs, users) = (vfs.posix(), vfs.posix().for_users());
    vfs.set_limits(USER, limits(300_000, 0)).unwrap();
    let ino = users.create(ROOT, b"file", 0o600, caller(USER)).unwrap().ino;
    fs.set_compression(ino, Compression::Lz4).unwrap();
    users.write(ino, 0, &[b'A'; LEN], PLAIN).unwrap();
    assert!(used(&vfs, USER).bytes < 100_000, "{:?}", used(&vfs, USER));
    let punch =
        |at: usize, len| users.fallocate(ino, at as u64, len, Allocate::PunchHole, Some(caller(USER)));
    let refused =
        (0..LEN).step_by(SECTOR).filter(|at| punch(*at, 1).is_err_and(|e| e.errno() == DQUOT)).count();
    assert!(refused > 500, "{refused}");
    assert!(used(&vfs, USER).bytes <= 300_000, "{:?}", used(&vfs, USER));
    assert_clean(&vfs);
    // What gives more back than it takes is never refused, nor what adds nothing.
    punch(100, LEN as u64 / 2).unwrap();
    fs.set_compression(ino, Compression::None).unwrap();
    fs.write(ino, 0, &[7; 400_000], PLAIN).unwrap();
    assert!(used(&vfs, USER).bytes > 300_000);
    punch(1000, 1).unwrap();
    assert_clean(&vfs);
}

/// Batches that the store refuses leave no trace in the counts.
#[test]
fn a_full_store_counts_right() {
    let vfs = open(&formatted(32 << 20));
    let users = vfs.posix().for_users();
    vfs.set_limits(USER, limits(1 << 40, 0)).unwrap();
    let mut rng = SeededRng::new(4);
    let mut full = 0;
    for number in 0..2_000 {
        let name = format!("{}", number % 400).into_bytes();
        let mut data = vec![0; 1 + rng.below(150_000) as usize];
        rng.fill(&mut data);
        let done = match users.lookup(ROOT, &name) {
            Err(_) => users.mknod(ROOT, &name, 0o100_600, 0, caller(USER)).map(drop),
            Ok(_) if rng.chance(10) => users.unlink(ROOT, &name).map(drop),
            Ok(attr) => users.write(attr.ino, rng.below(50_000), &data, PLAIN).map(drop),
        };
        full += u32::from(done.is_err_and(|error| error.errno() == 28));
    }
    assert!(full > 100, "{full}");
    assert_clean(&vfs);
    assert_eq!(vfs.quotas().unwrap().len(), 2);
}

/// A power cut leaves the old limits or the new ones, and what is counted after it is what is there.
#[test]
fn power_cuts_leave_old_or_new_limits() {
    for_each_seed(60, |seed| {
        let rng = &mut SeededRng::new(seed);
        let device = power::formatted(seed);
        let vfs = power::open(&device).expect("a new store");
        let of = |number: u64| if number == 0 { Limits::default() } else { limits(number << 30, number) };
        vfs.set_limits(USER, of(1)).expect("sets limits");
        let fs = vfs.posix();
        device.set_cut_after(1 + rng.below(60));
        let (mut durable, mut tried) = (1, 1);
        for number in 2..40 {
            let name = format!("{number}").into_bytes();
            let made = fs.mknod(ROOT, &name, 0o100_600, 0, caller(USER));
            let _ = made.and_then(|attr| fs.write(attr.ino, 0, &[1; 3000], PLAIN));
            tried = if number % 5 == 0 { 0 } else { number };
            match vfs.set_limits(USER, of(tried)) {
                Ok(()) => durable = tried,
                Err(_) => break,
            }
        }
        drop((fs, vfs));
        let vfs = power::recover(&device, rng);
        let quotas = vfs.quotas().expect("counts");
        let found =
            quotas.iter().find(|quota| quota.uid == USER).map(|quota| quota.limits).unwrap_or_default();
        assert!([durable, tried].map(of).contains(&found), "{found:?}, not {durable} or {tried}");
        assert!(vfs.check(CheckDepth::Payload).expect("checks").is_clean());
    });
}

/// Limits that nobody can have set: found by the check, and no limits.
#[test]
fn forged_limits_bind_nobody() {
    let device = formatted(64 << 20);
    let vfs = open(&device);
    vfs.set_limits(USER, limits(4096, 1)).unwrap();
    let lba = |uid: u64| Lba((5 << 36) + uid);
    let mut sound = [0; SECTOR];
    vfs.ftl().read(lba(u64::from(USER)), &mut sound).unwrap();
    let forged = |at: u64, offset: usize, bytes: &[u8]| {
        let mut sector = sound;
        sector[16..24].copy_from_slice(&lba(at).0.to_le_bytes());
        sector[24..28].copy_from_slice(&(at as u32).to_le_bytes());
        sector[offset..offset + bytes.len()].copy_from_slice(bytes);
        sector[8..12].fill(0);
        let crc = lacuna_crc::crc32c(&sector);
        sector[8..12].copy_from_slice(&crc.to_le_bytes());
        vfs.ftl().write_batch(&[Op::Write { lba: lba(at), data: &sector }], Stream::Data).unwrap();
    };
    let mine = vfs.posix().create(ROOT, b"file", 0o600, caller(2)).unwrap().ino;
    forged(0, 32, &[1]); // root's
    forged(1, 24, &2_u32.to_le_bytes()); // another user's
    forged(3, 32, &[0; 16]); // none at all
    forged(4, 500, &[1]); // reserved bytes
    forged(u64::from(u32::MAX), 32, &[1]); // nobody's
    forged(1 << 33, 32, &[1]); // behind all users
    forged(5, 32, &[0xff; 16]); // as large as can be: a limit like any other
    let garbage = [Op::Write { lba: lba(6), data: &[0xa5; SECTOR] }];
    vfs.ftl().write_batch(&garbage, Stream::Data).unwrap();
    vfs.close().unwrap();
    drop(vfs);
    let (vfs, lines) = logged(|| open(&device));
    assert!(
        matches!(&lines[..], [line] if line.contains(": 7 limits of users, or parts of them, cannot be read")),
        "{lines:?}"
    );
    let users = vfs.posix().for_users();
    let bound: Vec<u32> = vfs
        .quotas()
        .unwrap()
        .iter()
        .filter(|quota| quota.limits != Limits::default())
        .map(|quota| quota.uid)
        .collect();
    assert_eq!(bound, [5, USER]);
    users.write(mine, 0, &[1; 50_000], PLAIN).expect("is not bound");
    let fifth = users.mknod(ROOT, b"fifth", 0o100_600, 0, caller(5)).expect("is not refused").ino;
    users.write(fifth, 0, &[1; 50_000], PLAIN).expect("is not refused");
    let report = vfs.check(CheckDepth::Payload).unwrap();
    let findings: Vec<_> = report.findings.iter().map(|finding| &finding.message).collect();
    assert!(
        findings.len() == 7 && findings.iter().all(|line| line.contains("limits of users")),
        "{findings:?}"
    );
    // Setting limits, or taking them away, mends what is damaged.
    for uid in [1, 3, 4, 6] {
        vfs.set_limits(uid, if uid % 2 == 0 { limits(1, 1) } else { Limits::default() }).unwrap();
    }
    assert_eq!(vfs.check(CheckDepth::Payload).unwrap().findings.len(), 3);
}

/// An inode that cannot be read when usage is counted is in no count, and changes none if it can be read later.
#[test]
fn what_cannot_be_read_is_left_out() {
    let device = formatted(64 << 20);
    let vfs = open(&device);
    let fs = vfs.posix();
    let files = ["a", "b"].map(|name| {
        let ino = fs.mknod(ROOT, name.as_bytes(), 0o100_600, 0, caller(USER)).unwrap().ino;
        fs.write(ino, 0, &[1; 4096], PLAIN).unwrap();
        ino
    });
    vfs.close().unwrap();
    drop((fs, vfs));
    let vfs = open(&device);
    let lba = Lba((1 << 36) + files[0].number());
    let mut sound = [0; SECTOR];
    vfs.ftl().read(lba, &mut sound).unwrap();
    let put =
        |data: &[u8]| vfs.ftl().write_batch(&[Op::Write { lba, data }], Stream::Data).map(drop).unwrap();
    put(&[0xa5; SECTOR]);
    vfs.set_limits(USER, limits(1 << 40, 0)).unwrap();
    assert_eq!(used(&vfs, USER), usage(4096, 1));
    put(&sound);
    let fs = vfs.posix();
    fs.write(files[0], 8192, &[1; 8192], PLAIN).unwrap();
    assert_eq!(used(&vfs, USER), usage(4096, 1));
    fs.unlink(ROOT, b"a").unwrap();
    fs.write(files[1], 4096, &[1; 4096], PLAIN).unwrap();
    assert_eq!(used(&vfs, USER), usage(8192, 1));
    assert_clean(&vfs);
}
