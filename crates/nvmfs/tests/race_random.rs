//! All operations on a few names from many threads at a time, as a kernel would call them: a thread uses an inode that
//! it looked up, whatever others do to its name. An operation may refuse only what it would refuse if all ran one after
//! the other, in some order; and afterwards nothing is left of removed files.

use std::{num::NonZeroU64, sync::Barrier, thread};

use crate::stores::{assert_clean, formatted};
use lacuna_nvmfs::{
    Error, Ino, Limits, Nvmfs, Options, Refusal,
    posix::{Attr, Caller, FileKind, Posix, Rename, SetAttr, WriteOptions, XattrMode},
};
use lacuna_sim::{SeededRng, for_each_seed};

const THREADS: u64 = 4;
const STEPS: u64 = 500;
const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
const MODE: u32 = 0o100_644;

/// Accepts the permitted refusals, and no other error.
#[track_caller]
fn unless<T>(result: Result<T, Error>, expected: &[Refusal]) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(Error::Refused(refusal)) if expected.contains(&refusal) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A thread acts as one client, which forgets its look-ups when a step is done.
struct Client<'a> {
    fs: &'a Posix,
    rng: SeededRng,
    known: Vec<Ino>,
}

impl Client<'_> {
    fn name(&mut self) -> &'static [u8] {
        NAMES[self.rng.below(NAMES.len() as u64) as usize]
    }

    /// Notes the inode that a reply has named.
    fn knows(&mut self, found: Option<Attr>) -> Option<Attr> {
        self.known.extend(found.map(|attr| attr.ino));
        found
    }

    fn lookup(&mut self, parent: Ino, name: &[u8]) -> Option<Attr> {
        let found = unless(self.fs.lookup(parent, name), &[Refusal::NotFound]);
        self.knows(found)
    }

    /// A directory at most two levels below the root. Others may remove it at any time.
    fn directory(&mut self) -> Ino {
        let mut directory = Ino::ROOT;
        for _ in 0..self.rng.below(3) {
            let name = self.name();
            match self.lookup(directory, name) {
                Some(found) if found.kind == FileKind::Directory => directory = found.ino,
                _ => {}
            }
        }
        directory
    }

    fn step(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        match self.rng.below(20) {
            0..=5 => self.make(parent, name),
            6..=8 => self.remove(parent, name),
            9..=13 => self.rename(parent, name),
            14 => self.list(parent),
            15 => self.climb(parent),
            _ => self.use_inode(parent, name),
        }
        for ino in self.known.drain(..) {
            self.fs.forget(ino, 1).unwrap();
        }
    }

    fn make(&mut self, parent: Ino, name: &[u8]) {
        const REFUSED: &[Refusal] = &[Refusal::Exists, Refusal::NotFound];
        let (fs, caller) = (self.fs, Caller::default());
        let which = self.rng.below(6);
        let is_open = which == 3;
        let (made, kind) = match which {
            0 => (fs.mknod(parent, name, MODE, 0, caller), FileKind::File),
            1 => (fs.symlink(parent, name, b"short", caller), FileKind::Symlink),
            2 => (fs.symlink(parent, name, &[b'l'; 900], caller), FileKind::Symlink),
            3 => (fs.create(parent, name, MODE, caller), FileKind::File),
            _ => (fs.mkdir(parent, name, 0o755, caller), FileKind::Directory),
        };
        let made = unless(made, REFUSED);
        let Some(made) = self.knows(made) else { return };
        assert_eq!(made.kind, kind);
        if is_open {
            fs.release(made.ino).unwrap();
        }
        let now = self.fs.getattr(made.ino).unwrap();
        assert_eq!((now.generation, now.kind), (made.generation, kind));
    }

    fn remove(&mut self, parent: Ino, name: &[u8]) {
        match self.rng.below(2) {
            0 => drop(unless(
                self.fs.unlink(parent, name).map(Box::new),
                &[Refusal::NotFound, Refusal::IsADirectory],
            )),
            _ => {
                let refused = [Refusal::NotFound, Refusal::NotADirectory, Refusal::NotEmpty];
                drop(unless(self.fs.rmdir(parent, name).map(Box::new), &refused));
            }
        }
    }

    fn rename(&mut self, parent: Ino, name: &[u8]) {
        use Refusal::{Exists, Invalid, IsADirectory, NotADirectory, NotEmpty, NotFound, NotPermitted};
        let (to, to_name) = (self.directory(), self.name());
        let (mode, refused): (_, &[Refusal]) = match self.rng.below(5) {
            0 => (Rename::Exchange, &[NotFound, Invalid]),
            1 => (Rename::NoReplace, &[NotFound, Invalid, Exists]),
            2 => {
                let Some(found) = self.lookup(parent, name) else { return };
                let linked = self.fs.link(found.ino, to, to_name);
                let refused: &[Refusal] = match found.kind {
                    FileKind::Directory => &[NotPermitted],
                    _ => &[NotFound, Exists],
                };
                let linked = unless(linked, refused);
                self.knows(linked);
                return;
            }
            _ => (Rename::Replace, &[NotFound, Invalid, NotADirectory, IsADirectory, NotEmpty]),
        };
        drop(unless(self.fs.rename(parent, name, to, to_name, mode).map(Box::new), refused));
    }

    /// A listing has each name at most once, and its numbers lead to inodes.
    fn list(&mut self, directory: Ino) {
        let mut listed = Vec::new();
        self.fs
            .readdir(directory, 0, &mut |entry| {
                listed.push((entry.name.to_vec(), entry.ino));
                true
            })
            .unwrap();
        assert_eq!((&listed[0].0[..], &listed[1].0[..]), (&b"."[..], &b".."[..]));
        let mut names: Vec<_> = listed.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), listed.len(), "a name is listed twice");
        for (_, ino) in &listed[2..] {
            // Only this call uses a number whose inode was not kept.
            let found = unless(self.fs.lookup_number(directory, *ino), &[Refusal::Stale]);
            self.knows(found);
        }
    }

    fn climb(&mut self, directory: Ino) {
        let itself = unless(self.fs.lookup(directory, b"."), &[]);
        assert_eq!(self.knows(itself).map(|attr| attr.ino), Some(directory));
        let above = self.lookup(directory, b"..");
        assert!(above.is_none_or(|above| above.kind == FileKind::Directory));
    }

    /// Every operation on a looked-up inode, whatever happens to its name.
    fn use_inode(&mut self, parent: Ino, name: &[u8]) {
        let Some(found) = self.lookup(parent, name) else { return };
        let (fs, ino) = (self.fs, found.ino);
        let is_opened = self.rng.below(2) == 0;
        if is_opened {
            fs.open(ino).unwrap();
        }
        assert_eq!(fs.getattr(ino).unwrap().generation, found.generation);
        fs.setattr(ino, &SetAttr { mode: Some(0o700), ..SetAttr::default() }).unwrap();
        fs.setxattr(ino, b"user.x", &[1; 600], XattrMode::Set).unwrap();
        unless(fs.getxattr(ino, b"user.x"), &[Refusal::NoAttribute]);
        unless(fs.removexattr(ino, b"user.x"), &[Refusal::NoAttribute]);
        match found.kind {
            FileKind::File => {
                let at = self.rng.below(2000);
                fs.write(ino, at, &[2; 700], WriteOptions::default()).unwrap();
                fs.read(ino, at, &mut [0; 700]).unwrap();
                fs.setattr(ino, &SetAttr { size: Some(at), ..SetAttr::default() }).unwrap();
            }
            FileKind::Symlink => assert!(matches!(fs.readlink(ino).unwrap().len(), 5 | 900)),
            _ => {}
        }
        fs.fsync(ino, false).unwrap();
        if is_opened {
            fs.release(ino).unwrap();
        }
    }
}

/// Removes everything, with no other thread running.
fn clear(fs: &Posix, directory: Ino) {
    let mut names = Vec::new();
    fs.readdir(directory, 0, &mut |entry| {
        names.push((entry.ino, entry.kind, entry.name.to_vec()));
        true
    })
    .unwrap();
    for (ino, kind, name) in names.drain(2..) {
        match kind {
            FileKind::Directory => {
                clear(fs, ino);
                fs.rmdir(directory, &name).unwrap();
            }
            _ => drop(fs.unlink(directory, &name).map(Box::new).unwrap()),
        }
    }
}

fn inodes(vfs: &Nvmfs) -> u64 {
    let stat = vfs.posix().statfs().unwrap();
    stat.inodes - stat.free_inodes
}

#[test]
fn operations_of_many_threads_have_an_order() {
    for_each_seed(6, |seed| {
        let options = Options { inodes_kept: 4, ..Options::default() };
        let vfs = Nvmfs::open(formatted(64 << 20), options).unwrap();
        if seed % 2 == 0 {
            // Checks count again what users have.
            vfs.set_limits(5, Limits { bytes: NonZeroU64::new(1 << 40), inodes: None }).unwrap();
        }
        let fs = vfs.posix().counting_lookups();
        let start = Barrier::new(THREADS as usize);
        thread::scope(|scope| {
            for client in 0..THREADS {
                let (fs, start) = (&fs, &start);
                scope.spawn(move || {
                    let rng = SeededRng::new(seed * THREADS + client);
                    let mut client = Client { fs, rng, known: Vec::new() };
                    start.wait();
                    (0..STEPS).for_each(|_| client.step());
                });
            }
            assert_clean(&vfs); // while they are at it
        });
        assert_clean(&vfs);
        clear(&vfs.posix(), Ino::ROOT);
        assert_eq!(inodes(&vfs), 1, "something was removed and not freed");
        assert_clean(&vfs);
    });
}
