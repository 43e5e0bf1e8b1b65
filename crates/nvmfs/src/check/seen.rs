//! The memory of the check: 20 bytes for an inode, 16 more for a directory, and the damaged inodes.

use std::collections::BTreeMap;

use lacuna_ftl::Lba;

use crate::{
    error::Error,
    format::{FileKind, Ino, Inode},
};

/// The facts kept about an inode.
pub(super) struct Seen {
    pub(super) ino: Ino,
    pub(super) generation: u32,
    pub(super) nlink: u32,
    /// Entries that name it.
    pub(super) entries: u32,
    pub(super) kind: FileKind,
    pub(super) is_orphan: bool,
}

/// The additional facts kept about a directory.
pub(super) struct SeenDirectory {
    pub(super) ino: Ino,
    /// The directory that it names as its parent.
    pub(super) parent: Ino,
    /// Directories in it.
    pub(super) subdirectories: u32,
    hangs: Hangs,
}

const _: () = assert!(size_of::<Seen>() == 20 && size_of::<SeenDirectory>() == 16);

/// Whether the parents of a directory lead to the root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hangs {
    Unknown,
    /// Its parents are being followed.
    Asked,
    Yes,
    No,
}

/// The facts kept about an inode that cannot be read.
pub(super) struct Damaged {
    pub(super) error: Error,
    /// The first of its names, and where that lies.
    pub(super) name: Option<(Lba, String)>,
    /// According to that name it is a directory.
    is_directory: bool,
    /// Its region was read as that of a directory.
    is_read: bool,
}

impl Damaged {
    pub(super) fn new(error: Error) -> Damaged {
        Damaged { error, name: None, is_directory: false, is_read: false }
    }

    /// Notes a name that lies at `lba`.
    pub(super) fn named(&mut self, lba: Lba, name: &[u8], kind: FileKind) {
        if self.name.as_ref().is_none_or(|(first, _)| lba < *first) {
            self.name = Some((lba, String::from_utf8_lossy(name).into_owned()));
            self.is_directory = kind == FileKind::Directory;
        }
    }
}

impl Seen {
    pub(super) fn new(inode: &Inode) -> Seen {
        Seen {
            ino: inode.ino(),
            generation: inode.generation(),
            nlink: inode.nlink(),
            entries: 0,
            kind: inode.kind(),
            is_orphan: false,
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// The flaw in its link count, if any.
    fn link_flaw(&self, directory: Option<&SeenDirectory>) -> Option<String> {
        let Seen { ino, nlink, entries, .. } = self;
        if (*nlink == 0) != self.is_orphan {
            let what = if self.is_orphan { "is an orphan" } else { "is no orphan" };
            return Some(format!("invariant 3: inode {} has {nlink} links and {what}", ino.0));
        }
        let expected_entries = match self.kind {
            FileKind::Directory => u32::from(*ino != Ino::ROOT && *nlink > 0),
            _ => *nlink,
        };
        if *entries != expected_entries {
            return Some(format!("invariant 1: inode {} has {entries} names and {nlink} links", ino.0));
        }
        let inside = directory.filter(|_| *nlink > 0).map(|directory| directory.subdirectories)?;
        if u64::from(*nlink) != 2 + u64::from(inside) {
            return Some(format!("invariant 1: directory {} has {inside} in it and {nlink} links", ino.0));
        }
        None
    }
}

/// The inodes seen, in the order of their numbers.
#[derive(Default)]
pub(super) struct SeenInodes {
    pub(super) sound: Vec<Seen>,
    pub(super) directories: Vec<SeenDirectory>,
    pub(super) damaged: BTreeMap<Ino, Damaged>,
}

impl SeenInodes {
    /// Adds an inode, the one with the greatest number so far; a directory comes with its parent.
    pub(super) fn push(&mut self, seen: Seen, parent: Option<Ino>) {
        assert!(self.sound.last().is_none_or(|last| last.ino < seen.ino), "inodes out of order");
        if let Some(parent) = parent {
            let hangs = if seen.ino == Ino::ROOT { Hangs::Yes } else { Hangs::Unknown };
            self.directories.push(SeenDirectory { ino: seen.ino, parent, subdirectories: 0, hangs });
        }
        self.sound.push(seen);
    }

    fn index(&self, ino: Ino) -> Option<usize> {
        self.sound.binary_search_by_key(&ino, |seen| seen.ino).ok()
    }

    pub(super) fn get(&self, ino: Ino) -> Option<&Seen> {
        self.index(ino).map(|index| &self.sound[index])
    }

    pub(super) fn get_mut(&mut self, ino: Ino) -> Option<&mut Seen> {
        self.index(ino).map(|index| &mut self.sound[index])
    }

    fn directory_index(&self, ino: Ino) -> Option<usize> {
        self.directories.binary_search_by_key(&ino, |directory| directory.ino).ok()
    }

    pub(super) fn directory_mut(&mut self, ino: Ino) -> Option<&mut SeenDirectory> {
        self.directory_index(ino).map(|index| &mut self.directories[index])
    }

    /// Damaged inodes that are directories according to their names, each once: their entries still exist.
    pub(super) fn take_damaged_directories(&mut self) -> Vec<Ino> {
        let unread = self.damaged.iter_mut().filter(|(_, damaged)| damaged.is_directory && !damaged.is_read);
        let take = |(ino, damaged): (&Ino, &mut Damaged)| {
            damaged.is_read = true;
            *ino
        };
        unread.map(take).collect()
    }

    /// The expected number of names; the root has none.
    pub(super) fn names_expected(&self) -> u64 {
        let names = |seen: &Seen| if seen.is_directory() { 1 } else { u64::from(seen.nlink) };
        self.sound.iter().map(names).sum()
    }

    /// The flaws in link counts.
    pub(super) fn link_flaws(&self) -> impl Iterator<Item = String> + '_ {
        self.sound.iter().filter_map(|seen| {
            let directory = seen.is_directory().then(|| self.directory_index(seen.ino));
            seen.link_flaw(directory.flatten().map(|index| &self.directories[index]))
        })
    }

    /// Finds the directories that are reachable from the root, and returns those that are not. The contents of a
    /// damaged directory are reachable if it is.
    pub(super) fn loose_directories(&mut self) -> Vec<Ino> {
        let mut loose = Vec::new();
        for index in 0..self.directories.len() {
            if self.get(self.directories[index].ino).is_none_or(|seen| seen.nlink == 0) {
                continue;
            }
            let (mut path, mut at) = (Vec::new(), index);
            let hangs = loop {
                match self.directories[at].hangs {
                    Hangs::Unknown => self.directories[at].hangs = Hangs::Asked,
                    // The walk returns to it: a cycle.
                    Hangs::Asked => break Hangs::No,
                    known => break known,
                }
                path.push(at);
                let parent = self.directories[at].parent;
                match self.directory_index(parent) {
                    Some(above) => at = above,
                    None if self.damaged.contains_key(&parent) => break Hangs::Yes,
                    None => break Hangs::No,
                }
            };
            path.iter().for_each(|index| self.directories[*index].hangs = hangs);
            if self.directories[index].hangs == Hangs::No {
                loose.push(self.directories[index].ino);
            }
        }
        loose
    }
}
