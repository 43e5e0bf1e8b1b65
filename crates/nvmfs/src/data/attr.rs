//! Changes of the attributes that `stat` shows, lengths included, and targets of symbolic links.

use std::sync::Arc;

use lacuna_device::SECTOR;

use super::{CHUNK_BYTES, OwnedOp};
use crate::{
    data::Data,
    error::{Refusal, Result},
    format::{Caller, FILE_BYTES_MAX, FileKind, Ino, Inode, Marks, TARGET_BYTES_MAX, encode_xattrs},
    inodes::{Attr, Node, SetAttr, SetTime, Update},
    mutant::{Rule, is_broken},
};

impl Data {
    /// See [`crate::posix::Posix::setattr`].
    pub(crate) fn setattr(&self, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        let node = self.inodes.node(ino)?;
        if let Some(len) = changes.size {
            match node.kind() {
                FileKind::File if len <= FILE_BYTES_MAX => {}
                FileKind::File => return Err(Refusal::FileTooLarge.into()),
                FileKind::Directory => return Err(Refusal::IsADirectory.into()),
                _ => return Err(Refusal::Invalid.into()),
            }
        }
        let is_owner_change = changes.uid.is_some() || changes.gid.is_some();
        let kills = changes.kill_privileges.filter(|_| changes.size.is_some());
        let kills = kills.or(is_owner_change.then(Caller::default));
        if is_owner_change || changes.size.is_some() {
            self.drop_capability(&node)?;
        }
        loop {
            let chmod = changes.mode.map(|mode| self.xattrs_after_chmod(&node, mode)).transpose()?.flatten();
            let changed = self.change_inode(&node, changes.size, |inode, update| {
                let read_at = chmod.as_ref().map(|(changes, _)| *changes);
                let is_newest = read_at == Some(inode.changes()) || is_broken(Rule::ChmodPlannedAgain);
                let (had_list, has_list) = (chmod.is_some(), inode.marks().acl);
                if changes.mode.is_some() && (had_list || has_list) && !is_newest {
                    return false; // it may have another list by now, or none, and other attributes
                }
                if let Some(caller) = kills {
                    inode.drop_privileges(caller);
                }
                if let Some(mode) = changes.mode {
                    inode.set_permissions(mode);
                }
                if let Some((_, xattrs)) = &chmod {
                    update.set_xattrs(inode, &encode_xattrs(xattrs), Marks::of(xattrs));
                }
                let (uid, gid) = inode.owner();
                inode.set_owner(changes.uid.unwrap_or(uid), changes.gid.unwrap_or(gid));
                set_times(inode, changes, update.now());
                true
            })?;
            if let Some(changed) = changed {
                return Ok(self.inodes.attr_after(&node, &changed));
            }
        }
    }

    /// Changes an inode and, if that is given, the length of its file, in one batch. Returns it as it is then; or nothing
    /// if `change` returned false, and nothing has changed.
    pub(crate) fn change_inode(
        &self,
        node: &Arc<Node>,
        len: Option<u64>,
        change: impl Fn(&mut Inode, &mut Update) -> bool,
    ) -> Result<Option<Inode>> {
        let _tail = len.map(|len| self.hold_tail(node, len / CHUNK_BYTES * CHUNK_BYTES));
        let lost = len.map_or(Ok(Vec::new()), |len| self.shorten(node, len))?;
        let mut changed = None;
        self.inodes.change_nodes(std::slice::from_ref(node), |locked| {
            let mut inode = locked.inode(node)?;
            let mut update = Update::new(self.inodes.now());
            inode.set_size(len.unwrap_or(inode.size()));
            if !change(&mut inode, &mut update) {
                return Ok(None);
            }
            for op in &lost {
                match op {
                    OwnedOp::Write(lba, bytes) => update.write(*lba, bytes.clone()),
                    OwnedOp::Encoded(encoded) => update.write_encoded(encoded.clone()),
                    OwnedOp::Trim(lba, sectors) => update.trim(*lba, *sectors),
                }
            }
            update.put_inode(inode);
            changed = Some(inode);
            Ok(Some(update))
        })?;
        Ok(changed)
    }

    /// The target of a symbolic link.
    pub(crate) fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let node = self.inodes.node(ino)?;
        if node.kind() != FileKind::Symlink {
            return Err(Refusal::Invalid.into());
        }
        let inode = node.inode()?;
        self.inodes.touch_accessed(&node);
        if let Some(target) = inode.inline_target() {
            return Ok(target.to_vec());
        }
        let len = inode.size() as usize;
        assert!(len <= TARGET_BYTES_MAX, "checked when the inode was verified");
        let mut bytes = vec![0; len.next_multiple_of(SECTOR)];
        self.inodes.volume().ftl().read(ino.lba(0), &mut bytes)?; // it never changes
        if node.is_removed() {
            return Err(Refusal::Stale.into());
        }
        bytes.truncate(len);
        if bytes.contains(&0) {
            return Err(self.inodes.volume().corrupt(
                &format!("symbolic link {}", ino.0),
                0,
                "its target has a NUL",
            ));
        }
        Ok(bytes)
    }
}

fn set_times(inode: &mut Inode, changes: &SetAttr, now: crate::Timestamp) {
    let (accessed, modified, _) = inode.times();
    let choose = |time: Option<SetTime>, old| time.map_or(old, |time| time.at(now));
    // A new length is a change of the data, unless a time is given for that.
    let modified = if changes.size.is_some() { now } else { modified };
    inode.set_times((
        choose(changes.accessed, accessed),
        choose(changes.modified, modified),
        changes.changed.unwrap_or(now),
    ));
}
