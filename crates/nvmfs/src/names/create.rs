//! New inodes and new names.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::SeqCst},
};

use lacuna_device::SECTOR;
use lacuna_ftl::Lba;

use super::{check_name, update::Update};
use crate::{
    Refusal, Result,
    addr::Ino,
    directory::{Bucket, Search},
    format::{Dirent, Inode, LINKS_MAX, TARGET_BYTES_MAX, Timestamp},
    fs::Shared,
    node::{Node, Record, Touch},
    posix::{Caller, FileKind},
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
    pub(crate) caller: Caller,
    /// Of a symbolic link.
    pub(crate) target: &'a [u8],
    pub(crate) is_log: bool,
    /// It is open from the start.
    pub(crate) open: bool,
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
        inode.set_owner(self.caller.uid, if hands_down { parent.owner().1 } else { self.caller.gid });
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
    /// Makes an inode and its name.
    pub(crate) fn create(&self, parent: Ino, name: &[u8], new: &NewInode<'_>) -> Result<Arc<Node>> {
        let kind = new.check()?;
        let dir = self.directory(parent)?;
        if matches!(name, b"." | b"..") {
            return Err(Refusal::Exists.into());
        }
        check_name(name)?;
        self.change_names(
            &[&dir],
            |readers| match readers[0].search(name)? {
                Search::Found { .. } => Err(Refusal::Exists.into()),
                Search::Absent { free } => {
                    let (ino, generation) = self.take_number()?;
                    let node = self.nodes.get_or_insert(ino);
                    Ok(((free, generation, Arc::clone(&node)), vec![node]))
                }
            },
            |locked, (free, generation, node)| {
                let is_free = matches!(locked.record(node), Record::Unloaded);
                if !is_free || self.ftl.is_mapped(node.ino.inode_lba()) {
                    return Ok(None); // somebody else was given the number, 2^28 numbers ago
                }
                let above = locked.inode(&dir)?;
                let mut update = Update::new((self.clock)());
                let (inode, is_outside) = new.inode(node.ino, *generation, &above, update.now);
                update.put_name(self, parent, *free, name, &inode);
                update.put_inode(inode);
                if is_outside {
                    let mut bytes = new.target.to_vec();
                    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
                    update.write(node.ino.lba(0), bytes);
                }
                update.put_parent(above, i64::from(kind == FileKind::Directory))?;
                self.apply(&update, locked)?;
                if new.open {
                    node.opens.store(1, SeqCst); // nobody could see it yet
                }
                Ok(Some(Arc::clone(node)))
            },
        )
    }

    /// Gives an inode one more name.
    pub(crate) fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Arc<Node>> {
        let node = self.node(ino)?;
        if node.kind() == FileKind::Directory {
            return Err(Refusal::NotPermitted.into());
        }
        let dir = self.directory(parent)?;
        if matches!(name, b"." | b"..") {
            return Err(Refusal::Exists.into());
        }
        check_name(name)?;
        self.change_names(
            &[&dir],
            |readers| match readers[0].search(name)? {
                Search::Found { .. } => Err(Refusal::Exists.into()),
                Search::Absent { free } => Ok((free, vec![Arc::clone(&node)])),
            },
            |locked, free| {
                let mut inode = locked.inode(&node)?;
                match inode.nlink() {
                    0 => return Err(Refusal::NotFound.into()),
                    LINKS_MAX => return Err(Refusal::TooManyLinks.into()),
                    nlink => inode.set_nlink(nlink + 1),
                }
                let mut update = Update::new((self.clock)());
                update.put_name(self, parent, *free, name, &inode);
                update.put_changed(inode);
                update.put_parent(locked.inode(&dir)?, 0)?;
                self.apply(&update, locked)?;
                Ok(Some(Arc::clone(&node)))
            },
        )
    }

    /// A number that no inode has, and a generation for it. It is given to nobody else before all
    /// others were.
    fn take_number(&self) -> Result<(Ino, u32)> {
        let mut numbers = self.numbers.lock();
        let ino = self.free_ino(numbers.next_ino)?;
        numbers.next_ino = if ino < Ino::LAST { Ino(ino.0 + 1) } else { Ino::FIRST };
        numbers.next_generation = numbers.next_generation.wrapping_add(1);
        Ok((ino, numbers.next_generation))
    }

    /// The first number at or after `start` that no inode has, starting over at the end (invariant 2).
    fn free_ino(&self, start: Ino) -> Result<Ino> {
        /// Numbers looked at in one go: a run of mapped sectors is walked to its end.
        const WINDOW: u32 = 4096;
        let table =
            |numbers: Range<u32>| Ino::TABLE.lba(numbers.start.into())..Ino::TABLE.lba(numbers.end.into());
        for numbers in [start.0..Ino::LAST.0 + 1, Ino::FIRST.0..start.0] {
            let mut first = numbers.start;
            while first < numbers.end {
                let window = table(first..numbers.end.min(first.saturating_add(WINDOW)));
                match self.ftl.mapped(window.clone()) {
                    Some(used) if used.start == window.start => first = number_at(used.end),
                    _ => return Ok(Ino(first)),
                }
            }
        }
        Err(Refusal::NoRoom.into())
    }
}

/// The inode number of a sector of the inode table.
fn number_at(lba: Lba) -> u32 {
    Ino::of(lba).1 as u32
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
        self.put_entry(directory, bucket, &Dirent::new(name, shared.hash_name(name), inode));
    }

    /// An inode that changed in nothing but names.
    pub(crate) fn put_changed(&mut self, mut inode: Inode) {
        let (accessed, modified, _) = inode.times();
        inode.set_times((accessed, modified, self.now));
        self.put_inode(inode);
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
