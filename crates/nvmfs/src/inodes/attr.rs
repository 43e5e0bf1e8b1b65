//! The attributes that `stat` shows, and changes of them.

use crate::{
    error::{Refusal, Result},
    format::{Caller, FileKind, Ino, Inode, NAME_BYTES_MAX, Timestamp},
    inodes::{Inodes, Node},
};

/// The attributes that `stat` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Number.
    pub ino: Ino,
    /// Differs between files that had this number one after the other.
    pub generation: u32,
    /// Type.
    pub kind: FileKind,
    /// Permissions, the lower 12 bits of the mode.
    pub perm: u16,
    /// Names; of a directory 2 and its subdirectories. 0 once it has none.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device files.
    pub rdev: u64,
    /// Length in bytes; of a directory the space that its entries take.
    pub size: u64,
    /// Space taken on flash in bytes.
    pub allocated_bytes: u64,
    /// Last read; kept with `relatime` semantics.
    pub accessed: Timestamp,
    /// Last change of the data.
    pub modified: Timestamp,
    /// Last change of anything.
    pub changed: Timestamp,
    /// Creation.
    pub created: Timestamp,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// That of the file system's clock.
    Now,
    /// This one.
    At(Timestamp),
}

impl SetTime {
    /// The time that is set at `now`.
    pub fn at(self, now: Timestamp) -> Timestamp {
        match self {
            SetTime::Now => now,
            SetTime::At(time) => time,
        }
    }
}

/// Changes of an inode; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permissions; only the lower 12 bits count.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Time of last access.
    pub accessed: Option<SetTime>,
    /// Time of last modification.
    pub modified: Option<SetTime>,
    /// Time of last change; by default the clock's.
    pub changed: Option<Timestamp>,
    /// A change of length removes set-user-id and set-group-id (`FATTR_KILL_SUIDGID`), on behalf of this caller. A
    /// change of owner always does, and both remove capabilities (`security.capability`).
    pub kill_privileges: Option<Caller>,
}

/// Result of `statfs`. Space is in bytes and without the store's reserve; provisioning is thin, so stored bytes count,
/// not the sizes of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Total space.
    pub total_bytes: u64,
    /// Free space.
    pub free_bytes: u64,
    /// Of this, what is not kept for root.
    pub available_bytes: u64,
    /// Total number of inodes.
    pub inodes: u64,
    /// Of these, how many are free.
    pub free_inodes: u64,
    /// Longest name in bytes.
    pub name_bytes_max: u32,
}

impl Inodes {
    /// Attributes of a loaded inode.
    pub(crate) fn attr(&self, node: &Node) -> Result<Attr> {
        let inode = node.inode()?;
        self.attr_with_space(&inode)
    }

    /// As [`Inodes::attr`], and counts a look-up of the inode.
    pub(crate) fn attr_looked_up(&self, node: &Node) -> Result<Attr> {
        let inode = {
            let record = node.record.read();
            let inode = node.with_times(&record).ok_or(Refusal::Stale)?;
            self.lookups.add(node.ino);
            inode
        };
        let attr = self.attr_with_space(&inode);
        if attr.is_err() {
            // The caller gets the first error; an error in freeing the inode would follow from it.
            let _ = self.forget([(node.ino, 1)]);
        }
        attr
    }

    /// See [`crate::posix::Posix::count_unreadable`].
    pub(crate) fn count_unreadable(&self, ino: Ino) {
        self.nodes.get_or_insert(ino).with_record(|| self.lookups.add(ino));
    }

    /// Attributes of an inode after the change whose result is `changed`. The inode may be gone, or its allocation
    /// unreadable: that is no error of the change, which is done.
    pub(crate) fn attr_after(&self, node: &Node, changed: &Inode) -> Attr {
        self.attr(node).unwrap_or_else(|_| attr_of(changed, 0))
    }

    fn attr_with_space(&self, inode: &Inode) -> Result<Attr> {
        let mut allocated_bytes = self.volume.ftl().allocated(inode.ino().region())?;
        if inode.has_xattrs_outside() {
            allocated_bytes += inode.xattr_bytes() as u64;
        }
        Ok(attr_of(inode, allocated_bytes))
    }

    /// See [`crate::posix::Posix::statfs`].
    pub(crate) fn statfs(&self) -> Result<StatFs> {
        let stats = self.volume.ftl().stats();
        // An inode is written as a sector of its own, so it is an extent of its own.
        let inodes = u64::from(Ino::LAST.0 - Ino::FIRST.0) + 2; // and the root
        let total_bytes = stats.live_limit_bytes;
        let free_bytes = total_bytes.saturating_sub(stats.live_bytes);
        Ok(StatFs {
            total_bytes,
            free_bytes,
            available_bytes: free_bytes.saturating_sub(self.root_reserve.of(total_bytes)),
            inodes,
            free_inodes: inodes.saturating_sub(self.volume.ftl().extents(Ino::TABLE.region())?),
            name_bytes_max: NAME_BYTES_MAX as u32,
        })
    }
}

/// Attributes of an inode that takes `allocated_bytes`.
pub(crate) fn attr_of(inode: &Inode, allocated_bytes: u64) -> Attr {
    let (accessed, modified, changed) = inode.times();
    let (uid, gid) = inode.owner();
    Attr {
        ino: inode.ino(),
        generation: inode.generation(),
        kind: inode.kind(),
        perm: inode.permissions() as u16,
        nlink: inode.nlink(),
        uid,
        gid,
        rdev: inode.rdev(),
        size: if inode.is_directory() { allocated_bytes } else { inode.size() },
        allocated_bytes,
        accessed,
        modified,
        changed,
        created: inode.created(),
    }
}
