//! New inodes and new names.

use std::{cell::Cell, sync::Arc};

use lacuna_device::SECTOR;
use lacuna_ftl::Lba;

use super::{
    check_name,
    plan::{DirReader, NameUpdate},
};
use crate::{
    error::{Refusal, Result, is_stale},
    format::{
        ACL, Acl, Bucket, Caller, Compression, DEFAULT_ACL, FileKind, Ino, Inode, LINKS_MAX, Marks,
        Privilege, SET_GID, TARGET_BYTES_MAX, Timestamp, XATTR_BYTES_MAX, Xattrs, encode_xattrs,
    },
    inodes::{Inodes, Locked, Node, Update},
    mutant::{Rule, is_broken},
    names::{Names, hash_table::Search},
};

/// An inode to be made.
#[derive(Clone, Copy, Default)]
pub(crate) struct NewInode<'a> {
    /// Type and permissions.
    pub(crate) mode: u32,
    pub(crate) rdev: u64,
    /// `None` for a caller without a user: the inode gets the owner of its directory.
    pub(crate) caller: Option<Caller>,
    pub(crate) privilege: Privilege,
    /// Of a symbolic link.
    pub(crate) target: &'a [u8],
    pub(crate) is_log: bool,
    /// It is open from the start.
    pub(crate) open: bool,
    /// It counts as looked up.
    pub(crate) is_looked_up: bool,
    /// [`Names::link`] may give it its first name, if it is made without one.
    pub(crate) may_be_named: bool,
}

/// The number of an inode to be made: kept when the directory changes meanwhile and the operation is planned again.
#[derive(Default)]
pub(super) struct TakenNumber(Cell<Option<(Ino, u32)>>);

impl TakenNumber {
    /// Its node, and the generation of the inode.
    pub(super) fn node(&self, inodes: &Inodes) -> Result<(Arc<Node>, u32)> {
        let (ino, generation) = self.0.get().map_or_else(|| inodes.take_number(), Ok)?;
        self.0.set(Some((ino, generation)));
        Ok((inodes.node_of_number(ino), generation))
    }

    /// Whether no inode has it, which `update` will make. If one does, because it was given out before, 2^28 numbers
    /// ago, the next plan takes another.
    pub(super) fn is_free(
        &self,
        inodes: &Inodes,
        locked: &mut Locked<'_>,
        update: &mut Update,
        node: &Node,
    ) -> bool {
        let lba = node.ino().inode_lba();
        let is_free = locked.is_unloaded(node) && update.allocated(inodes, lba..Lba(lba.0 + 1)) == 0;
        if !is_free {
            self.0.set(None);
        }
        is_free
    }
}

/// The default access control list of a directory.
#[derive(Default)]
struct HandedDown {
    acl: Option<Acl>,
    /// The number of changes of the directory's inode then; none if it had no list at all.
    read_at: Option<u64>,
}

impl NewInode<'_> {
    fn check(&self) -> Result<FileKind> {
        let kind = FileKind::of_mode(self.mode).ok_or(Refusal::Invalid)?;
        match kind {
            FileKind::Symlink if self.target.is_empty() => Err(Refusal::Invalid.into()),
            FileKind::Symlink if self.target.len() > TARGET_BYTES_MAX => Err(Refusal::NameTooLong.into()),
            _ => Ok(kind),
        }
    }

    /// The mode, and the attributes, in a directory with that default access control list.
    fn mode_and_xattrs(&self, default: Option<&Acl>) -> (u32, Xattrs) {
        let mut xattrs = Xattrs::new();
        let Some(default) = default.filter(|_| !is_broken(Rule::DefaultHandedDown)) else {
            // A symbolic link has all permissions.
            let is_masked = FileKind::of_mode(self.mode) != Some(FileKind::Symlink);
            let umask = self.caller.filter(|_| is_masked).map_or(0, |caller| caller.umask & 0o777);
            return (self.mode & !umask, xattrs);
        };
        let acl = default.clone().for_new(self.mode);
        if !acl.is_mode() {
            xattrs.insert(ACL.to_vec(), acl.to_bytes());
        }
        if FileKind::of_mode(self.mode) == Some(FileKind::Directory) {
            xattrs.insert(DEFAULT_ACL.to_vec(), default.to_bytes());
        }
        (self.mode & !0o777 | acl.mode(), xattrs)
    }

    /// The inode in the directory `parent`; true if its target must be written to its region.
    pub(super) fn inode(
        &self,
        ino: Ino,
        generation: u32,
        mode: u32,
        parent: &Inode,
        now: Timestamp,
    ) -> (Inode, bool) {
        let mut inode = Inode::new(ino, generation, mode & 0o177_777, now);
        let hands_down = parent.permissions() & SET_GID != 0;
        let above = parent.owner();
        let (uid, gid) = self.caller.map_or(above, |caller| (caller.uid, caller.gid));
        inode.set_owner(uid, if hands_down { above.1 } else { gid });
        inode.set_rdev(self.rdev);
        inode.set_log(self.is_log);
        if matches!(inode.kind(), FileKind::File | FileKind::Directory) && parent.ino() != Ino::ROOT {
            let is_inherited = !is_broken(Rule::CompressionInherited);
            inode.set_compression(if is_inherited { parent.compression() } else { Compression::Default });
        }
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

impl Names {
    /// Makes an inode and its name. Returns it as it was made.
    pub(crate) fn create(&self, parent: Ino, name: &[u8], new: &NewInode<'_>) -> Result<(Arc<Node>, Inode)> {
        let kind = new.check()?;
        let dir = self.directory_for(parent, name)?;
        self.make(kind, &dir, Some(name), new)
    }

    /// Makes an inode without a name, as if in the directory `parent`: an orphan from the start, which lives as long as
    /// it is open or counts as looked up, unless [`Names::link`] names it.
    pub(crate) fn create_unnamed(&self, parent: Ino, new: &NewInode<'_>) -> Result<(Arc<Node>, Inode)> {
        assert!(new.open || new.is_looked_up, "nobody would free it");
        let kind = new.check()?;
        let dir = self.directory(parent)?;
        self.make(kind, &dir, None, new)
    }

    fn make(
        &self,
        kind: FileKind,
        dir: &Arc<Node>,
        name: Option<&[u8]>,
        new: &NewInode<'_>,
    ) -> Result<(Arc<Node>, Inode)> {
        let taken = TakenNumber::default();
        self.change_names(
            &[dir],
            |readers| {
                let named = match name {
                    Some(name) => Some((name, free_bucket(&readers[0], name)?)),
                    None => None,
                };
                let (node, generation) = taken.node(&self.inodes)?;
                let handed_down = self.default_acl(dir, kind)?;
                Ok(((named, generation, handed_down, Arc::clone(&node)), vec![node]))
            },
            |locked, (named, generation, handed_down, node)| {
                let mut update = NameUpdate::new(self.inodes.now());
                update.privilege = new.privilege;
                if !taken.is_free(&self.inodes, locked, &mut update, node) {
                    return Ok(None);
                }
                let above = locked.inode(dir)?;
                if (above.marks().acl || handed_down.acl.is_some())
                    && kind != FileKind::Symlink
                    && handed_down.read_at != Some(above.changes())
                {
                    return Ok(None); // it may have another list by now, or none
                }
                let (mode, xattrs) = new.mode_and_xattrs(handed_down.acl.as_ref());
                let xattr_bytes = encode_xattrs(&xattrs);
                if xattr_bytes.len() > XATTR_BYTES_MAX {
                    return Err(Refusal::NoSpace.into());
                }
                let (mut inode, is_outside) = new.inode(node.ino(), *generation, mode, &above, update.now());
                if !xattrs.is_empty() {
                    update.set_xattrs(&mut inode, &xattr_bytes, Marks::of(&xattrs));
                }
                match *named {
                    Some((name, free)) => {
                        update.put_name(self.inodes.volume(), dir.ino(), free, name, &inode);
                        update.put_parent(above, i64::from(kind == FileKind::Directory))?;
                    }
                    None => update.put_orphan(&mut inode),
                }
                update.put_inode(inode);
                if is_outside {
                    let mut bytes = new.target.to_vec();
                    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
                    update.write(node.ino().lba(0), bytes);
                }
                if new.open {
                    update.open(node.ino());
                }
                if new.is_looked_up {
                    update.look_up(node.ino());
                }
                if named.is_none() && new.may_be_named {
                    update.let_be_named(node.ino());
                }
                Ok(Some((update, (Arc::clone(node), inode))))
            },
        )
    }

    /// Gives an inode one more name, which counts as looked up if `is_looked_up` says so; with `replaces`, another inode
    /// may have had it until then. Returns it as it was then.
    pub(crate) fn link(
        &self,
        ino: Ino,
        (parent, name): (Ino, &[u8]),
        replaces: bool,
        is_looked_up: bool,
        privilege: Privilege,
    ) -> Result<(Arc<Node>, Inode)> {
        self.past_damage(|frees| self.link_and(ino, (parent, name), replaces, is_looked_up, privilege, frees))
    }

    fn link_and(
        &self,
        ino: Ino,
        (parent, name): (Ino, &[u8]),
        replaces: bool,
        is_looked_up: bool,
        privilege: Privilege,
        frees: bool,
    ) -> Result<(Arc<Node>, Inode)> {
        // An inode that lost its last name gets no other, whether it still exists or not; one that never had any may.
        let is_gone = |error| if is_stale(&error) { Refusal::NotFound.into() } else { error };
        let node = self.inodes.node(ino).map_err(is_gone)?;
        if node.kind() == FileKind::Directory {
            return Err(Refusal::NotPermitted.into());
        }
        let dir = self.directory_for(parent, name)?;
        self.change_names(
            &[&dir],
            |readers| {
                let (into, other) = match readers[0].search(name)? {
                    Search::Absent { free } => (free, None),
                    Search::Found { .. } if !replaces => return Err(Refusal::Exists.into()),
                    Search::Found { bucket, entry } => (bucket, Some(readers[0].node_of(bucket, &entry)?)),
                };
                if other.as_ref().is_some_and(|other| other.kind() == FileKind::Directory) {
                    return Err(Refusal::IsADirectory.into());
                }
                let nodes = std::iter::once(&node).chain(&other).cloned().collect();
                Ok(((into, other), nodes))
            },
            |locked, (into, other)| {
                let mut inode = locked.inode(&node).map_err(is_gone)?;
                if other.as_ref().is_some_and(|other| other.ino() == ino) {
                    return Ok(Some((NameUpdate::new(self.inodes.now()), (Arc::clone(&node), inode))));
                }
                match inode.nlink() {
                    0 if !node.may_be_named() => return Err(Refusal::NotFound.into()),
                    LINKS_MAX.. => return Err(Refusal::TooManyLinks.into()),
                    nlink => inode.set_nlink(nlink + 1),
                }
                let mut update = NameUpdate::new(self.inodes.now());
                update.privilege = privilege;
                update.put_name(self.inodes.volume(), parent, *into, name, &inode);
                if let Some(other) = other {
                    self.drop_name(&mut update, other, locked.inode(other)?, frees)?;
                }
                if inode.nlink() == 1 {
                    update.name_orphan(&inode);
                }
                let linked = update.put_changed(inode);
                update.put_parent(locked.inode(&dir)?, 0)?;
                if is_looked_up {
                    update.look_up(node.ino());
                }
                Ok(Some((update, (Arc::clone(&node), linked))))
            },
        )
    }

    /// The default access control list of a directory, for an inode of that type that will be made in it.
    fn default_acl(&self, dir: &Node, kind: FileKind) -> Result<HandedDown> {
        if kind == FileKind::Symlink || !dir.live(|inode| inode.marks().acl).unwrap_or(false) {
            return Ok(HandedDown::default());
        }
        let (above, xattrs) = self.inodes.xattrs(dir)?;
        let acl = xattrs.get(DEFAULT_ACL).map(|value| Acl::parse(value).expect("verified when it was read"));
        Ok(HandedDown { acl, read_at: Some(above.changes()) })
    }

    /// The directory `parent`, which will get the entry `name`.
    fn directory_for(&self, parent: Ino, name: &[u8]) -> Result<Arc<Node>> {
        let dir = self.directory(parent)?;
        if matches!(name, b"." | b"..") {
            return Err(Refusal::Exists.into());
        }
        check_name(name)?;
        Ok(dir)
    }
}

/// The bucket for a new entry.
fn free_bucket(reader: &DirReader<'_>, name: &[u8]) -> Result<Bucket> {
    match reader.search(name)? {
        Search::Found { .. } => Err(Refusal::Exists.into()),
        Search::Absent { free } => Ok(free),
    }
}
