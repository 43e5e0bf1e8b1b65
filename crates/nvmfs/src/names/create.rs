//! New inodes and new names.

use std::{cell::Cell, sync::Arc};

use lacuna_device::SECTOR;
use lacuna_ftl::Lba;

use super::{
    check_name,
    update::{DirReader, Update},
};
use crate::{
    error::{Refusal, Result, is_stale},
    format::{Bucket, Caller, Dirent, FileKind, Ino, Inode, LINKS_MAX, TARGET_BYTES_MAX, Timestamp},
    inodes::{Node, Record, Touch},
    names::hash_table::Search,
    vfs::Shared,
};

/// Where new inodes get their numbers from.
pub(crate) struct Numbers {
    /// Where the search for a free number starts.
    next_ino: Ino,
    /// Generation of the next new inode.
    next_generation: u32,
}

impl Numbers {
    /// `now` keeps generations from repeating after the file system was opened anew.
    pub(crate) fn new(now: Timestamp) -> Numbers {
        let next_generation = (now.seconds as u32).wrapping_mul(1 << 12) ^ now.nanoseconds;
        Numbers { next_ino: Ino::FIRST, next_generation }
    }
}

/// An inode to be made.
#[derive(Clone, Copy, Default)]
pub(crate) struct NewInode<'a> {
    /// Type and permissions.
    pub(crate) mode: u32,
    pub(crate) rdev: u64,
    /// None for who has no user: it belongs to whom the directory belongs.
    pub(crate) caller: Option<Caller>,
    /// Of a symbolic link.
    pub(crate) target: &'a [u8],
    pub(crate) is_log: bool,
    /// It is open from the start.
    pub(crate) open: bool,
    /// Its name counts as looked up.
    pub(crate) is_looked_up: bool,
}

const SET_GID: u32 = 0o2000;

impl NewInode<'_> {
    fn check(&self) -> Result<FileKind> {
        let kind = FileKind::of_mode(self.mode).ok_or(Refusal::Invalid)?;
        match kind {
            FileKind::Symlink if self.target.is_empty() => Err(Refusal::Invalid.into()),
            FileKind::Symlink if self.target.len() > TARGET_BYTES_MAX => Err(Refusal::NameTooLong.into()),
            _ => Ok(kind),
        }
    }

    /// The inode in the directory `parent`; true if its target is to be written to its region.
    fn inode(&self, ino: Ino, generation: u32, parent: &Inode, now: Timestamp) -> (Inode, bool) {
        let mut inode = Inode::new(ino, generation, self.mode & 0o177_777, now);
        let hands_down = parent.permissions() & SET_GID != 0;
        let above = parent.owner();
        let (uid, gid) = self.caller.map_or(above, |caller| (caller.uid, caller.gid));
        inode.set_owner(uid, if hands_down { above.1 } else { gid });
        inode.set_rdev(self.rdev);
        inode.set_log(self.is_log);
        if inode.is_directory() {
            inode.set_parent(parent.ino());
            if hands_down {
                inode.set_permissions(inode.permissions() | SET_GID);
            }
        }
        let is_outside = !self.target.is_empty() && inode.set_target(self.target);
        (inode, is_outside)
    }
}

impl Shared {
    /// Makes an inode and its name. Returns it as it was made.
    pub(crate) fn create(&self, parent: Ino, name: &[u8], new: &NewInode<'_>) -> Result<(Arc<Node>, Inode)> {
        let kind = new.check()?;
        let dir = self.directory_for(parent, name)?;
        // Kept when the directory changes meanwhile and all is planned anew.
        let taken = Cell::new(None);
        self.change_names(
            &[&dir],
            |readers| {
                let free = free_bucket(&readers[0], name)?;
                let (ino, generation) = taken.get().map_or_else(|| self.take_number(), Ok)?;
                taken.set(Some((ino, generation)));
                let node = self.nodes.get_or_insert(ino);
                Ok(((free, generation, Arc::clone(&node)), vec![node]))
            },
            |locked, (free, generation, node)| {
                let mut update = Update::new((self.clock)());
                let is_free = matches!(locked.record(node), Record::Unloaded);
                let lba = node.ino.inode_lba();
                if !is_free || update.allocated(self, lba..Lba(lba.0 + 1)) > 0 {
                    taken.set(None);
                    return Ok(None); // somebody else was given the number, 2^28 numbers ago
                }
                let above = locked.inode(&dir)?;
                let (inode, is_outside) = new.inode(node.ino, *generation, &above, update.now);
                update.put_name(self, parent, *free, name, &inode);
                update.put_inode(inode);
                if is_outside {
                    let mut bytes = new.target.to_vec();
                    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
                    update.write(node.ino.lba(0), bytes);
                }
                update.put_parent(above, i64::from(kind == FileKind::Directory))?;
                if new.open {
                    update.open(node.ino);
                }
                if new.is_looked_up {
                    update.look_up(node.ino);
                }
                Ok(Some((update, (Arc::clone(node), inode))))
            },
        )
    }

    /// Gives an inode one more name, which counts as looked up if `is_looked_up` says so. Returns it as it was then.
    pub(crate) fn link(
        &self,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        is_looked_up: bool,
    ) -> Result<(Arc<Node>, Inode)> {
        // What lost its last name gets no other, be it there or not.
        let is_gone = |error| if is_stale(&error) { Refusal::NotFound.into() } else { error };
        let node = self.node(ino).map_err(is_gone)?;
        if node.kind() == FileKind::Directory {
            return Err(Refusal::NotPermitted.into());
        }
        let dir = self.directory_for(parent, name)?;
        self.change_names(
            &[&dir],
            |readers| Ok((free_bucket(&readers[0], name)?, vec![Arc::clone(&node)])),
            |locked, free| {
                let mut inode = locked.inode(&node).map_err(is_gone)?;
                match inode.nlink() {
                    0 => return Err(Refusal::NotFound.into()),
                    LINKS_MAX => return Err(Refusal::TooManyLinks.into()),
                    nlink => inode.set_nlink(nlink + 1),
                }
                let mut update = Update::new((self.clock)());
                update.put_name(self, parent, *free, name, &inode);
                let linked = update.put_changed(inode);
                update.put_parent(locked.inode(&dir)?, 0)?;
                if is_looked_up {
                    update.look_up(node.ino);
                }
                Ok(Some((update, (Arc::clone(&node), linked))))
            },
        )
    }

    /// The directory `parent`, which is to get the entry `name`.
    fn directory_for(&self, parent: Ino, name: &[u8]) -> Result<Arc<Node>> {
        let dir = self.directory(parent)?;
        if matches!(name, b"." | b"..") {
            return Err(Refusal::Exists.into());
        }
        check_name(name)?;
        Ok(dir)
    }

    /// A number that no inode has, and a generation for it. It is given to nobody else before all
    /// others were. The search may read the device, so the lock is given back meanwhile.
    fn take_number(&self) -> Result<(Ino, u32)> {
        loop {
            let (start, generation) = {
                let mut numbers = self.numbers.lock();
                numbers.next_generation = numbers.next_generation.wrapping_add(1);
                let start = numbers.next_ino;
                numbers.next_ino = after(start);
                (start, numbers.next_generation)
            };
            let free = self.free_ino(start)?;
            if free == start {
                return Ok((free, generation));
            }
            let mut numbers = self.numbers.lock();
            if ahead(start, numbers.next_ino) <= ahead(start, free) {
                numbers.next_ino = after(free);
                return Ok((free, generation));
            }
            // Others were given that number by now.
        }
    }

    /// The first number at or after `start` that no inode has, starting over at the end (invariant 2).
    fn free_ino(&self, start: Ino) -> Result<Ino> {
        for numbers in [start.0..Ino::LAST.0 + 1, Ino::FIRST.0..start.0] {
            let (mut first, mut step) = (numbers.start, 1);
            while first < numbers.end {
                let len = step.min(numbers.end - first);
                let range = Ino::TABLE.lba(first.into())..Ino::TABLE.lba((first + len).into());
                // Each inode is an extent: the map's sums tell whether one is missing.
                if self.volume.ftl().extents(range)? == u64::from(len) {
                    (first, step) = (first + len, len * 2);
                } else if len == 1 {
                    return Ok(Ino(first));
                } else {
                    step = len / 2;
                }
            }
        }
        Err(Refusal::NoRoom.into())
    }
}

/// The number to be looked at after `ino`.
fn after(ino: Ino) -> Ino {
    if ino < Ino::LAST { Ino(ino.0 + 1) } else { Ino::FIRST }
}

/// How many numbers later than `start` `ino` is looked at.
fn ahead(start: Ino, ino: Ino) -> u32 {
    let numbers = Ino::LAST.0 - Ino::FIRST.0 + 1;
    (ino.0 + numbers - start.0) % numbers
}

/// The bucket for a new entry.
fn free_bucket(reader: &DirReader<'_>, name: &[u8]) -> Result<Bucket> {
    match reader.search(name)? {
        Search::Found { .. } => Err(Refusal::Exists.into()),
        Search::Absent { free } => Ok(free),
    }
}

impl Update {
    /// A name for `inode`.
    pub(super) fn put_name(
        &mut self,
        shared: &Shared,
        directory: Ino,
        bucket: Bucket,
        name: &[u8],
        inode: &Inode,
    ) {
        self.put_entry(directory, bucket, &Dirent::new(name, shared.volume.hash_name(name), inode));
    }

    /// An inode that changed in nothing but names. Returns it with its new time.
    pub(crate) fn put_changed(&mut self, mut inode: Inode) -> Inode {
        let (accessed, modified, _) = inode.times();
        inode.set_times((accessed, modified, self.now));
        self.put_inode(inode);
        inode
    }

    /// A directory whose entries change, and which gets so many more subdirectories.
    pub(super) fn put_parent(&mut self, mut inode: Inode, subdirectories: i64) -> Result<()> {
        if subdirectories == 0 {
            self.touch(inode.ino(), Touch::Modified);
            return Ok(());
        }
        // A count that is too small on the device is damage, which the check reports; not a reason to stop.
        let nlink = (i64::from(inode.nlink()) + subdirectories).max(2);
        if nlink > i64::from(LINKS_MAX) {
            return Err(Refusal::TooManyLinks.into());
        }
        inode.set_nlink(nlink as u32);
        let (accessed, ..) = inode.times();
        inode.set_times((accessed, self.now, self.now));
        self.put_inode(inode);
        Ok(())
    }
}
