//! Results of operations while other threads change the same names and inodes: they must be as if the operations ran
//! one after the other. Threads race for a moment; which wins is the scheduler's choice.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use crate::stores::{assert_clean, formatted};
use lacuna_nvmfs::{
    Error, Ino, Nvmfs, Options, Refusal,
    posix::{Attr, Caller, Posix, Rename, SetAttr, WriteOptions, XattrMode},
};

const ROOT: Ino = Ino::ROOT;
const NOBODY: Caller = Caller { uid: 65534, gid: 65534, umask: 0 };
const FILE: u32 = 0o100_644;
const MOMENT: Duration = Duration::from_millis(400);

fn new() -> Nvmfs {
    Nvmfs::open(formatted(64 << 20), Options { inodes_kept: 8, ..Options::default() }).unwrap()
}

/// Runs `others` and `probe` in loops, for a moment. Returns how often `probe` ran.
fn race(others: &[&(dyn Fn() + Sync)], probe: impl Fn()) -> u64 {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&is_over);
        for other in others {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(SeqCst) {
                    other();
                }
            });
        }
        let end = Instant::now() + MOMENT;
        let mut rounds = 0;
        while Instant::now() < end {
            probe();
            rounds += 1;
        }
        rounds
    })
}

/// Accepts the errors that a racing thread may get, and no others.
#[track_caller]
fn unless<T>(result: Result<T, Error>, expected: &[Refusal]) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(Error::Refused(refusal)) if expected.contains(&refusal) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Repeatedly makes a file and renames it over `name`.
fn replace(fs: &Posix, name: &[u8]) {
    fs.mknod(ROOT, b"new", FILE, 0, NOBODY).unwrap();
    fs.rename(ROOT, b"new", ROOT, name, Rename::Replace).unwrap();
}

#[test]
fn a_name_that_is_replaced_is_always_there() {
    let vfs = new();
    let fs = vfs.posix();
    replace(&fs, b"a");
    let looked = race(&[&|| replace(&fs, b"a")], || assert_eq!(fs.lookup(ROOT, b"a").unwrap().nlink, 1));
    assert!(looked > 100, "{looked}");
    assert_clean(&vfs);
}

#[test]
fn a_directory_that_moves_has_a_parent() {
    let vfs = new();
    let fs = vfs.posix();
    let dir = fs.mkdir(ROOT, b"moves", 0o755, NOBODY).unwrap().ino;
    let carry = || {
        // From the root into a new directory and back; then that directory is removed.
        let above = fs.mkdir(ROOT, b"above", 0o755, NOBODY).unwrap().ino;
        fs.rename(ROOT, b"moves", above, b"moves", Rename::Replace).unwrap();
        fs.rename(above, b"moves", ROOT, b"moves", Rename::Replace).unwrap();
        fs.rmdir(ROOT, b"above").unwrap();
    };
    race(&[&carry], || assert_ne!(fs.lookup(dir, b"..").unwrap().ino, dir));
    assert_clean(&vfs);
}

#[test]
fn who_makes_an_object_is_told_of_it() {
    type Make = fn(&Posix, Ino) -> Result<Attr, Error>;
    let makes: [(&str, Make); 6] = [
        ("mknod", |fs, _| fs.mknod(ROOT, b"x", FILE, 0, NOBODY)),
        ("mkdir", |fs, _| fs.mkdir(ROOT, b"x", 0o755, NOBODY)),
        ("symlink", |fs, _| fs.symlink(ROOT, b"x", b"target", NOBODY)),
        ("long symlink", |fs, _| fs.symlink(ROOT, b"x", &[b't'; 1000], NOBODY)),
        ("link", |fs, file| fs.link(file, ROOT, b"x")),
        ("create", |fs, _| {
            fs.create(ROOT, b"x", 0o644, NOBODY).inspect(|attr| fs.release(attr.ino).unwrap())
        }),
    ];
    for (what, make) in makes {
        let vfs = new();
        let fs = vfs.posix();
        let file = fs.mknod(ROOT, b"file", FILE, 0, NOBODY).unwrap().ino;
        let remove = || {
            unless(fs.unlink(ROOT, b"x"), &[Refusal::NotFound, Refusal::IsADirectory]);
            unless(fs.rmdir(ROOT, b"x"), &[Refusal::NotFound, Refusal::NotADirectory]);
        };
        let made = |result| match result {
            Ok(_) | Err(Error::Refused(Refusal::Exists)) => {}
            Err(error) => panic!("{what}: {error}"),
        };
        race(&[&remove, &remove, &remove], || made(make(&fs, file)));
        assert_clean(&vfs);
    }
}

/// Every operation on an inode by its number.
fn use_inode(fs: &Posix, ino: Ino) -> Result<(), Error> {
    fs.getattr(ino)?;
    fs.write(ino, 0, &[1; 700], WriteOptions::default())?;
    assert_eq!(fs.read(ino, 0, &mut [0; 700])?, 700);
    fs.append(ino, &[2; 10], WriteOptions::default())?;
    fs.setattr(ino, &SetAttr { mode: Some(0o600), size: Some(5000), ..SetAttr::default() })?;
    fs.setxattr(ino, b"user.x", &[3; 2000], XattrMode::Set)?;
    assert_eq!(fs.getxattr(ino, b"user.x")?, [3; 2000]);
    assert_eq!(fs.listxattr(ino)?, b"user.x\0");
    fs.removexattr(ino, b"user.x")?;
    fs.fsync(ino, false)
}

#[test]
fn what_is_open_stays_usable() {
    let vfs = new();
    let fs = vfs.posix();
    replace(&fs, b"a");
    let remove = || _ = unless(fs.unlink(ROOT, b"a"), &[Refusal::NotFound]);
    race(&[&|| replace(&fs, b"a"), &remove], || {
        let Some(made) = unless(fs.create(ROOT, b"a", 0o644, NOBODY), &[Refusal::Exists]) else { return };
        for _ in 0..5 {
            use_inode(&fs, made.ino).unwrap();
        }
        fs.release(made.ino).unwrap();
    });
    assert_clean(&vfs);
}

#[test]
fn what_lost_its_names_is_not_found_for_another() {
    let vfs = new();
    let fs = vfs.posix();
    race(&[&|| _ = unless(fs.unlink(ROOT, b"a"), &[Refusal::NotFound])], || {
        let Some(made) = unless(fs.mknod(ROOT, b"a", FILE, 0, NOBODY), &[Refusal::Exists]) else { return };
        if unless(fs.link(made.ino, ROOT, b"b"), &[Refusal::NotFound]).is_some() {
            fs.unlink(ROOT, b"b").unwrap();
        }
    });
    assert_clean(&vfs);
}
