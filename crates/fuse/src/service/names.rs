//! Answers to requests about names, and about the attributes of what they name.

use lacuna_nvmfs::posix::{Attr, Caller, DirEntry, FileKind, Rename, SetAttr};
use rustix::{fs::OFlags, io::Errno as Os};

use super::{ENTRIES_PER_STEP, FUSE_ROOT, Found, NamedAttr, Result, Service, has, is_stale, unknown};
use crate::latencies::Kind;

/// Names.
impl Service {
    /// Looks up `name` in a directory. A damaged file is found too: the kernel looks a name up before it removes it.
    ///
    /// The name `.` is that of any inode in itself: so the kernel finds an inode again, by the number in a file handle,
    /// that it has forgotten.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Found> {
        let _timer = self.latencies.time(Kind::Look);
        let directory = Self::ino(parent)?;
        let looked_up = self.checked(
            "lookup",
            parent,
            match name {
                b"." => self.posix.lookup_handle(directory),
                _ => self.posix.lookup(directory, name),
            },
        );
        match looked_up {
            Err(errno) if errno == Os::IO.into() => match self.posix.entry(directory, name) {
                Ok((_, FileKind::Directory)) | Err(_) => Err(errno),
                Ok((ino, kind)) => {
                    self.posix.count_unreadable(ino);
                    Ok(Found { attr: unknown(ino, kind), is_damaged: true })
                }
            },
            other => other.map(|attr| Found { attr, is_damaged: false }),
        }
    }

    /// Attributes of an inode.
    pub fn getattr(&self, number: u64) -> Result<Attr> {
        let _timer = self.latencies.time(Kind::Look);
        let ino = Self::ino(number)?;
        self.checked("stat", number, self.posix.getattr(ino))
    }

    /// The kernel has forgotten `lookups` look-ups of an inode (invariant 2).
    pub fn forget(&self, number: u64, lookups: u64) {
        self.forget_many(&[(number, lookups)]);
    }

    /// As [`Service::forget`] for many inodes, each with its look-ups.
    pub fn forget_many(&self, forgotten: &[(u64, u64)]) {
        let inos: Vec<_> = forgotten
            .iter()
            .filter_map(|(number, lookups)| Some((Self::ino(*number).ok()?, *lookups)))
            .collect();
        // The kernel expects no answer, and the next open frees whatever was not freed now.
        let number = forgotten.first().map_or(FUSE_ROOT, |(number, _)| *number);
        let _ = self.checked("forget", number, self.posix.forget_many(inos.iter().copied()));
        inos.iter().for_each(|(ino, _)| self.forget_gone(*ino));
    }

    /// Changes attributes of an inode.
    pub fn setattr(&self, number: u64, changes: &SetAttr) -> Result<Attr> {
        let _timer = self.latencies.time(Kind::Change);
        let ino = Self::ino(number)?;
        self.checked("change", number, self.with_space(|| self.posix.setattr(ino, changes)))
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, number: u64) -> Result<Vec<u8>> {
        let _timer = self.latencies.time(Kind::Look);
        self.checked("readlink", number, self.posix.readlink(Self::ino(number)?))
    }

    /// Makes a file, fifo, socket or device file.
    pub fn mknod(&self, parent: u64, name: &[u8], mode: u32, rdev: u32, caller: Caller) -> Result<Attr> {
        let _timer = self.latencies.time(Kind::Change);
        let parent_ino = Self::ino(parent)?;
        let posix = self.posix_for(caller);
        let made = self.with_space(|| posix.mknod(parent_ino, name, mode, rdev.into(), caller));
        self.checked("mknod", parent, made).inspect(|attr| self.open_files.remove(attr.ino))
    }

    /// Makes a directory.
    pub fn mkdir(&self, parent: u64, name: &[u8], mode: u32, caller: Caller) -> Result<Attr> {
        let _timer = self.latencies.time(Kind::Change);
        let parent_ino = Self::ino(parent)?;
        let posix = self.posix_for(caller);
        self.checked("mkdir", parent, self.with_space(|| posix.mkdir(parent_ino, name, mode, caller)))
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, parent: u64, name: &[u8], target: &[u8], caller: Caller) -> Result<Attr> {
        let _timer = self.latencies.time(Kind::Change);
        let parent_ino = Self::ino(parent)?;
        let posix = self.posix_for(caller);
        let made = self.with_space(|| posix.symlink(parent_ino, name, target, caller));
        self.checked("symlink", parent, made)
    }

    /// Makes a regular file and opens it.
    pub fn create(&self, parent: u64, name: &[u8], mode: u32, caller: Caller) -> Result<Attr> {
        let _timer = self.latencies.time(Kind::Change);
        let parent_ino = Self::ino(parent)?;
        let posix = self.posix_for(caller);
        let made = self.with_space(|| posix.create(parent_ino, name, mode, caller));
        self.checked("create", parent, made).inspect(|attr| self.open_files.remove(attr.ino))
    }

    /// Makes a regular file without a name in a directory, and opens it. It may get a name unless the flags of its
    /// opening say that it must not.
    pub fn create_unnamed(&self, parent: u64, mode: u32, open_flags: i32, caller: Caller) -> Result<Attr> {
        let _timer = self.latencies.time(Kind::Change);
        let parent_ino = Self::ino(parent)?;
        let posix = self.posix_for(caller);
        let is_exclusive = has(open_flags, OFlags::EXCL);
        let made = self.with_space(|| posix.create_unnamed(parent_ino, mode, is_exclusive, caller));
        self.checked("create", parent, made).inspect(|attr| self.open_files.remove(attr.ino))
    }

    /// Gives an inode one more name.
    pub fn link(&self, number: u64, parent: u64, name: &[u8], caller: Caller) -> Result<Attr> {
        let _timer = self.latencies.time(Kind::Change);
        let (ino, parent) = (Self::ino(number)?, Self::ino(parent)?);
        let posix = self.posix_for(caller);
        self.checked("link", number, self.with_space(|| posix.link(ino, parent, name)))
    }

    /// Removes a name.
    pub fn unlink(&self, parent: u64, name: &[u8]) -> Result<()> {
        let _timer = self.latencies.time(Kind::Change);
        let parent_ino = Self::ino(parent)?;
        self.checked("unlink", parent, self.with_space(|| self.posix.unlink(parent_ino, name))).map(drop)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: u64, name: &[u8]) -> Result<()> {
        let _timer = self.latencies.time(Kind::Change);
        let parent_ino = Self::ino(parent)?;
        self.checked("rmdir", parent, self.with_space(|| self.posix.rmdir(parent_ino, name))).map(drop)
    }

    /// Moves a name, and leaves a whiteout under the old one if `whiteout` says for whom.
    pub fn rename(
        &self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        mode: Rename,
        whiteout: Option<Caller>,
    ) -> Result<()> {
        let _timer = self.latencies.time(Kind::Change);
        let number = from.0;
        let (from, to) = ((Self::ino(from.0)?, from.1), (Self::ino(to.0)?, to.1));
        let moved = self.with_space(|| match whiteout {
            Some(caller) => self.posix_for(caller).rename_leaving_whiteout(from, to, mode, caller),
            None => self.posix.rename(from.0, from.1, to.0, to.1, mode),
        });
        self.checked("rename", number, moved).map(drop)
    }

    /// Calls `entry` with numbers and names from `cursor` on until it returns false.
    ///
    /// Entries before damage are listed without an error; the next call, from there on, returns the error.
    pub fn readdir(
        &self,
        number: u64,
        cursor: u64,
        mut entry: impl FnMut(u64, FileKind, &[u8], u64) -> bool,
    ) -> Result<()> {
        let _timer = self.latencies.time(Kind::Look);
        let mut found_any = false;
        let mut each = |found: DirEntry<'_>| {
            found_any = true;
            entry(Self::number(found.ino), found.kind, found.name, found.next)
        };
        match self.posix.readdir(Self::ino(number)?, cursor, &mut each) {
            Err(_) if found_any => Ok(()),
            listed => self.checked("readdir", number, listed),
        }
    }

    /// As [`Service::readdir`], with the attributes of the named inodes. A damaged inode does not hide the others.
    pub fn readdir_with_attributes(
        &self,
        number: u64,
        mut cursor: u64,
        mut entry: impl FnMut(NamedAttr) -> bool,
    ) -> Result<()> {
        let _timer = self.latencies.time(Kind::Look);
        let directory = Self::ino(number)?;
        let mut gave_any = false;
        loop {
            let mut names = Vec::with_capacity(ENTRIES_PER_STEP);
            // Attributes are read after the listing: a directory's walk calls nothing else.
            let listed = self.readdir(number, cursor, |ino, kind, name, next| {
                if names.len() == ENTRIES_PER_STEP {
                    return false;
                }
                names.push((ino, kind, name.to_vec(), next));
                true
            });
            match listed {
                Err(_) if gave_any => return Ok(()),
                listed => listed?,
            }
            if names.is_empty() {
                return Ok(());
            }
            let inos: Vec<_> = names.iter().filter_map(|(number, ..)| Self::ino(*number).ok()).collect();
            self.posix.preload(&inos);
            for (number, kind, name, next) in names {
                cursor = next;
                let is_counted = !matches!(&name[..], b"." | b"..");
                let ino = Self::ino(number)?;
                let looked_up = match is_counted {
                    true => {
                        let by_number = self.posix.lookup_number(directory, ino);
                        let found = by_number.or_else(|error| match kind {
                            // It is gone, or moved; or another directory's, which the name must not lead to.
                            FileKind::Directory if is_stale(&error) => self.posix.lookup(directory, &name),
                            _ => Err(error),
                        });
                        self.checked("lookup", number, found)
                    }
                    false => self.getattr(number),
                };
                let found = match looked_up {
                    Ok(attr) => Found { attr, is_damaged: false },
                    // Removed since.
                    Err(errno) if errno == Os::STALE.into() || errno == Os::NOENT.into() => continue,
                    Err(_) => {
                        if is_counted {
                            self.posix.count_unreadable(ino);
                        }
                        Found { attr: unknown(ino, kind), is_damaged: true }
                    }
                };
                gave_any = true;
                if !entry(NamedAttr { name, found, next }) {
                    if is_counted {
                        self.forget(number, 1); // the kernel does not hear of it now
                    }
                    return Ok(());
                }
            }
        }
    }
}
