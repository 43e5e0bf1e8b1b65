//! A simple POSIX file system in memory, random operations, and how to do them on a real one.

pub(crate) mod acl;
mod model;
mod random;

use std::{collections::BTreeMap, sync::Arc};

use lacuna_nvmfs::{
    Compression, Error, Ino, Refusal,
    posix::{Allocate, Caller, FileKind, Posix, Rename, SetAttr, WriteOptions, XattrMode},
};
pub(crate) use model::World;
pub(crate) use random::random_change;

pub(crate) type Path = Vec<Vec<u8>>;

/// One operation, whole or not at all.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Make {
        path: Path,
        mode: u32,
        caller: Caller,
    },
    Create {
        path: Path,
        mode: u32,
        caller: Caller,
    },
    CreateUnnamed {
        dir: Path,
        mode: u32,
        is_exclusive: bool,
        caller: Caller,
    },
    Symlink {
        path: Path,
        target: Vec<u8>,
    },
    Link {
        from: Path,
        to: Path,
        replaces: bool,
    },
    Unlink(Path),
    Rmdir(Path),
    Rename {
        from: Path,
        to: Path,
        mode: Rename,
        /// For whom the old name becomes a whiteout.
        whiteout: Option<Caller>,
    },
    Write {
        path: Path,
        offset: u64,
        data: Arc<Vec<u8>>,
        trim_to: Option<u64>,
    },
    Append {
        path: Path,
        data: Arc<Vec<u8>>,
    },
    SetLen {
        path: Path,
        len: u64,
    },
    Allocate {
        path: Path,
        offset: u64,
        len: u64,
        what: Allocate,
    },
    Copy {
        from: Path,
        from_offset: u64,
        to: Path,
        to_offset: u64,
        len: u64,
    },
    Chmod {
        path: Path,
        mode: u32,
    },
    Chown {
        path: Path,
        uid: u32,
        gid: u32,
    },
    SetXattr {
        path: Path,
        name: Vec<u8>,
        value: Vec<u8>,
        mode: XattrMode,
    },
    RemoveXattr {
        path: Path,
        name: Vec<u8>,
    },
    SetCompression {
        path: Path,
        compression: Compression,
    },
    Rewrite {
        path: Path,
        offset: u64,
        len: u64,
    },
    Open(Path),
    /// Release of the handle with this index.
    Release(usize),
    WriteOpen {
        handle: usize,
        offset: u64,
        data: Arc<Vec<u8>>,
    },
    LinkOpen {
        handle: usize,
        to: Path,
        replaces: bool,
    },
}

/// Everything visible under one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) kind: FileKind,
    pub(crate) perm: u16,
    pub(crate) owner: (u32, u32),
    pub(crate) nlink: u32,
    /// What the inode says, without defaults.
    pub(crate) compression: Compression,
    /// Content of a file, target of a symbolic link.
    pub(crate) content: Arc<Vec<u8>>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path, in order, of the same inode.
    pub(crate) first: Path,
}

/// All names.
pub(crate) type Snapshot = BTreeMap<Path, Seen>;

/// In short, for messages.
pub(crate) fn summary(snapshot: &Snapshot) -> String {
    let name = |path: &Path| {
        let names: Vec<_> = path.iter().map(|name| format!("{:.3}", String::from_utf8_lossy(name))).collect();
        names.join("/")
    };
    let files = snapshot.iter().map(|(path, seen)| format!("{}:{}", name(path), seen.content.len()));
    files.collect::<Vec<_>>().join(" ")
}

/// The refusal in an error; any other error is returned as it is.
pub(crate) fn refusal(error: Error) -> Result<Refusal, Error> {
    match error {
        Error::Refused(refusal) => Ok(refusal),
        other => Err(other),
    }
}

/// A file system and the handles that a history has open on it.
pub(crate) struct Driver {
    pub(crate) fs: Posix,
    pub(crate) handles: Vec<Ino>,
}

impl Driver {
    pub(crate) fn new(fs: Posix) -> Driver {
        Driver { fs, handles: Vec::new() }
    }

    fn walk(&self, path: &[Vec<u8>]) -> Result<Ino, Error> {
        path.iter().try_fold(Ino::ROOT, |ino, name| Ok(self.fs.lookup(ino, name)?.ino))
    }

    /// The directory of a path, and the last name.
    fn parent_and_name<'a>(&self, path: &'a Path) -> Result<(Ino, &'a [u8]), Error> {
        let (name, parents) = path.split_last().expect("paths have a name");
        Ok((self.walk(parents)?, name))
    }

    fn link(&self, ino: Ino, to: &Path, replaces: bool) -> Result<(), Error> {
        let (parent, name) = self.parent_and_name(to)?;
        match replaces {
            true => self.fs.link_over(ino, parent, name).map(drop),
            false => self.fs.link(ino, parent, name).map(drop),
        }
    }

    pub(crate) fn fsync(&self, path: &Path, data_only: bool) -> Result<(), Error> {
        self.fs.fsync(self.walk(path)?, data_only)
    }

    /// Applies a change; returns the copied length, where there is one.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<u64, Error> {
        let fs = self.fs.clone();
        match change {
            Change::Make { path, mode, caller } => {
                let (parent, name) = self.parent_and_name(path)?;
                match FileKind::of_mode(*mode) {
                    Some(FileKind::Directory) => fs.mkdir(parent, name, *mode, *caller)?,
                    _ => fs.mknod(parent, name, *mode, 77, *caller)?,
                };
            }
            Change::Create { path, mode, caller } => {
                let (parent, name) = self.parent_and_name(path)?;
                self.handles.push(fs.create(parent, name, *mode, *caller)?.ino);
            }
            Change::CreateUnnamed { dir, mode, is_exclusive, caller } => {
                let parent = self.walk(dir)?;
                self.handles.push(fs.create_unnamed(parent, *mode, *is_exclusive, *caller)?.ino);
            }
            Change::Symlink { path, target } => {
                let (parent, name) = self.parent_and_name(path)?;
                fs.symlink(parent, name, target, Caller::default())?;
            }
            Change::Link { from, to, replaces } => {
                let ino = self.walk(from)?;
                self.link(ino, to, *replaces)?;
            }
            Change::Unlink(path) => {
                let (parent, name) = self.parent_and_name(path)?;
                fs.unlink(parent, name)?;
            }
            Change::Rmdir(path) => {
                let (parent, name) = self.parent_and_name(path)?;
                fs.rmdir(parent, name)?;
            }
            Change::Rename { from, to, mode, whiteout } => {
                let (from, to) = (self.parent_and_name(from)?, self.parent_and_name(to)?);
                match whiteout {
                    Some(caller) => fs.rename_leaving_whiteout(from, to, *mode, *caller)?,
                    None => fs.rename(from.0, from.1, to.0, to.1, *mode)?,
                };
            }
            Change::Write { path, offset, data, trim_to } => {
                let kill_privileges = Some(Caller::default());
                let options = WriteOptions { trim_to: *trim_to, kill_privileges, ..WriteOptions::default() };
                let written = fs.write(self.walk(path)?, *offset, data, options)?;
                assert_eq!(written, data.len());
            }
            Change::Append { path, data } => {
                fs.append(self.walk(path)?, data, WriteOptions::default())?;
            }
            Change::SetLen { path, len } => {
                let changes = SetAttr { size: Some(*len), ..SetAttr::default() };
                fs.setattr(self.walk(path)?, &changes)?;
            }
            Change::Allocate { path, offset, len, what } => {
                fs.fallocate(self.walk(path)?, *offset, *len, *what, None)?;
            }
            Change::Copy { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.walk(from)?, self.walk(to)?);
                return fs.copy_range((from, *from_offset), (to, *to_offset), *len, Some(Caller::default()));
            }
            Change::Chmod { path, mode } => {
                fs.setattr(self.walk(path)?, &SetAttr { mode: Some(*mode), ..SetAttr::default() })?;
            }
            Change::Chown { path, uid, gid } => {
                let changes = SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() };
                fs.setattr(self.walk(path)?, &changes)?;
            }
            Change::SetXattr { path, name, value, mode } => {
                fs.setxattr(self.walk(path)?, name, value, *mode)?;
            }
            Change::RemoveXattr { path, name } => fs.removexattr(self.walk(path)?, name)?,
            Change::SetCompression { path, compression } => {
                fs.set_compression(self.walk(path)?, *compression)?;
            }
            Change::Rewrite { path, offset, len } => drop(fs.rewrite(self.walk(path)?, *offset, *len)?),
            Change::Open(_) | Change::Release(_) | Change::WriteOpen { .. } | Change::LinkOpen { .. } => {
                self.apply_to_open(change)?;
            }
        }
        Ok(0)
    }

    /// A change by an open file.
    fn apply_to_open(&mut self, change: &Change) -> Result<(), Error> {
        let fs = self.fs.clone();
        match change {
            Change::Open(path) => {
                let ino = self.walk(path)?;
                fs.open(ino)?;
                self.handles.push(ino);
            }
            Change::Release(handle) => {
                let ino = self.handles[*handle];
                fs.release(ino)?;
                self.handles.swap_remove(*handle);
            }
            Change::WriteOpen { handle, offset, data } => {
                fs.write(self.handles[*handle], *offset, data, WriteOptions::default())?;
            }
            Change::LinkOpen { handle, to, replaces } => self.link(self.handles[*handle], to, *replaces)?,
            _ => unreachable!("of names and paths"),
        }
        Ok(())
    }

    /// All names, each read in every possible way.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, Error> {
        let mut snapshot = Snapshot::new();
        let mut firsts = BTreeMap::new();
        let mut directories = vec![(Vec::new(), Ino::ROOT, Ino::ROOT)];
        while let Some((path, ino, parent)) = directories.pop() {
            for (name, entry_ino, kind) in self.list(ino, parent)? {
                let attr = self.fs.lookup(ino, &name)?;
                assert_eq!((attr.ino, attr.kind), (entry_ino, kind));
                let mut path: Path = path.clone();
                path.push(name);
                let seen = self.see(attr.ino)?;
                if kind == FileKind::Directory {
                    directories.push((path.clone(), attr.ino, ino));
                }
                let first = firsts.entry(attr.ino).or_insert_with(|| path.clone());
                if path < *first {
                    *first = path.clone();
                }
                assert!(snapshot.insert(path, seen).is_none(), "a name is listed twice");
            }
        }
        // Directories are not visited in order of their paths.
        for (path, seen) in &mut snapshot {
            seen.first = firsts[&self.walk(path)?].clone();
        }
        Ok(snapshot)
    }

    fn list(&self, ino: Ino, parent: Ino) -> Result<Vec<(Vec<u8>, Ino, FileKind)>, Error> {
        let mut entries = Vec::new();
        self.fs.readdir(ino, 0, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.ino, entry.kind));
            true
        })?;
        let directory = FileKind::Directory;
        let dots = [(b".".to_vec(), ino, directory), (b"..".to_vec(), parent, directory)];
        assert_eq!(entries[..2], dots);
        entries.drain(..2);
        Ok(entries)
    }

    fn see(&self, ino: Ino) -> Result<Seen, Error> {
        let attr = self.fs.getattr(ino)?;
        let content = match attr.kind {
            FileKind::File => self.read_file(ino, attr.size)?,
            FileKind::Symlink => self.fs.readlink(ino)?,
            _ => Vec::new(),
        };
        let names = self.fs.listxattr(ino)?;
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let xattrs = names.map(|name| Ok((name.to_vec(), self.fs.getxattr(ino, name)?)));
        Ok(Seen {
            kind: attr.kind,
            perm: attr.perm,
            owner: (attr.uid, attr.gid),
            nlink: attr.nlink,
            compression: self.fs.compression(ino)?.0,
            content: Arc::new(content),
            xattrs: xattrs.collect::<Result<_, Error>>()?,
            first: Path::new(),
        })
    }

    /// A file, read whole, in odd pieces, and by its holes.
    fn read_file(&self, ino: Ino, size: u64) -> Result<Vec<u8>, Error> {
        let mut content = vec![1; size as usize + 1000];
        let len = self.fs.read(ino, 0, &mut content)?;
        assert_eq!(len as u64, size);
        content.truncate(len);
        let mut piece = [0; 777];
        for (index, expected) in content.chunks(777).enumerate() {
            let len = self.fs.read(ino, index as u64 * 777, &mut piece)?;
            assert_eq!(piece[..len], *expected);
        }
        let mut at = 0;
        while at < size {
            let data = match self.fs.seek_data(ino, at) {
                Ok(data) => data,
                Err(error) => {
                    assert_eq!(refusal(error)?, Refusal::NoSuchOffset);
                    size
                }
            };
            assert!(content[at as usize..data as usize].iter().all(|byte| *byte == 0), "data in a hole");
            if data == size {
                break;
            }
            assert_eq!(
                self.fs.seek_hole(ino, at)?,
                if data == at { self.fs.seek_hole(ino, data)? } else { at }
            );
            at = self.fs.seek_hole(ino, data)?;
            assert!(at > data, "no progress");
        }
        Ok(content)
    }
}
