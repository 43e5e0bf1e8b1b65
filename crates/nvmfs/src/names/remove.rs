//! Removing names, and inodes without names.
//!
//! **Damage.** Where the inode of a file cannot be read, or is not the one that its name stands for, the name can be
//! removed, but only the name: only the inode records how many other names there are, and what must be freed with the
//! last one. So the inode stays, its number is not given to another (invariant 2 of `lib.rs`: its sector is mapped),
//! and the file's space is kept for a repair; `check` reports it. The name of a damaged directory stays: it is the only
//! way to its contents. A name also stays if a rename would replace it.
//!
//! Where the map of a file's data cannot be read, nobody knows what to free. Then the inode becomes an orphan although
//! nothing refers to it, and each open tries to free it. Its space is kept until the map can be read.
//!
//! An operation that removes such a name holds the `record` of its number's node, and finds it not loaded, or belonging
//! to another inode: no other operation has read the inode meanwhile.

use std::sync::Arc;

use super::{
    check_name,
    plan::{DirReader, NameUpdate, is_named_by},
};
use crate::{
    error::{Error, Refusal, Result},
    format::{Dirent, FileKind, Ino, Inode},
    inodes::{Attr, Node, attr_of},
    mutant::{Rule, is_broken},
    names::{
        Names,
        hash_table::{self, Removal, Search},
    },
};

impl Names {
    /// Removes a name of anything but a directory; see [`Names::drop_name`].
    pub(crate) fn unlink(&self, parent: Ino, name: &[u8]) -> Result<Option<Attr>> {
        self.past_damage(|frees| self.unlink_and(parent, name, frees))
    }

    /// The result of `change`. Its argument says whether it frees an inode that loses its last name. If that fails because
    /// of damage, it is called again, and then once more without freeing.
    pub(super) fn past_damage<T>(&self, change: impl Fn(bool) -> Result<T>) -> Result<T> {
        let is_lost = |changed: &Result<T>| {
            changed.as_ref().is_err_and(Error::is_damage) && self.inodes.volume().ftl().failure().is_none()
        };
        let mut changed = change(true);
        // Once more, since what could not be read may be read now: space that is kept is kept until the next open.
        for frees in [true, false] {
            if is_lost(&changed) && !is_broken(Rule::RemovedPastDamage) {
                changed = change(frees);
            }
        }
        changed
    }

    fn unlink_and(&self, parent: Ino, name: &[u8], frees: bool) -> Result<Option<Attr>> {
        let dir = self.directory(parent)?;
        check_name(name)?;
        self.change_names(
            &[&dir],
            |readers| plan_removal(&readers[0], name),
            |locked, doomed| {
                let node = &doomed.node;
                if doomed.entry.kind() == FileKind::Directory {
                    return Err(Refusal::IsADirectory.into());
                }
                let mut update = NameUpdate::new(self.inodes.now());
                update.remove_entry(parent, doomed.removal);
                let mut gone = None;
                if !doomed.is_damaged {
                    gone = self.drop_name(&mut update, node, locked.inode(node)?, frees)?;
                } else if is_named_by(node, &doomed.entry) {
                    return Ok(None); // another operation has read it after all
                }
                update.put_parent(locked.inode(&dir)?, 0)?;
                Ok(Some((update, gone)))
            },
        )
    }

    /// Removes an empty directory; see [`Names::drop_name`].
    pub(crate) fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<Option<Attr>> {
        let dir = self.directory(parent)?;
        if name == b".." {
            return Err(Refusal::NotEmpty.into());
        }
        check_name(name)?;
        self.change_names(
            &[&dir],
            |readers| plan_removal(&readers[0], name),
            |locked, doomed| {
                if doomed.entry.kind() != FileKind::Directory {
                    return Err(Refusal::NotADirectory.into());
                }
                let mut update = NameUpdate::new(self.inodes.now());
                update.remove_entry(parent, doomed.removal);
                let gone = self.drop_name(&mut update, &doomed.node, locked.inode(&doomed.node)?, true)?;
                update.put_parent(locked.inode(&dir)?, -1)?;
                Ok(Some((update, gone)))
            },
        )
    }

    /// Removes one name of an inode, and the inode if that was the last one and it `frees` it; then returns its last
    /// attributes.
    pub(super) fn drop_name(
        &self,
        update: &mut NameUpdate,
        node: &Node,
        mut inode: Inode,
        frees: bool,
    ) -> Result<Option<Attr>> {
        let last = Attr { nlink: 0, changed: update.now(), ..attr_of(&inode, 0) };
        match inode.kind() {
            // By invariant 3 of `names/hash_table.rs` an empty directory has no sector.
            FileKind::Directory if update.allocated(&self.inodes, node.ino().region()) > 0 => {
                return Err(Refusal::NotEmpty.into());
            }
            FileKind::Directory => update.orphan(node, inode, &self.inodes, frees),
            _ if inode.nlink() > 1 => {
                inode.set_nlink(inode.nlink() - 1);
                update.put_changed(inode);
                return Ok(None);
            }
            _ => update.orphan(node, inode, &self.inodes, frees),
        }
        Ok(Some(last))
    }
}

/// A name that is to be removed.
struct Doomed {
    entry: Dirent,
    removal: Removal,
    /// Loaded, unless it is damaged.
    node: Arc<Node>,
    /// It is not a directory, and only its name can be removed.
    is_damaged: bool,
}

/// How to remove a name, and the node to be locked for it.
fn plan_removal(reader: &DirReader<'_>, name: &[u8]) -> Result<(Doomed, Vec<Arc<Node>>)> {
    let Search::Found { bucket, entry } = reader.search(name)? else {
        return Err(Refusal::NotFound.into());
    };
    let (node, is_damaged) = match reader.node_of(bucket, &entry) {
        Err(error) if error.is_damage() && entry.kind() != FileKind::Directory => {
            (reader.names.inodes.node_of_number(entry.ino()), true)
        }
        node => (node?, false),
    };
    let removal = hash_table::plan_removal(reader, bucket, None)?;
    Ok((Doomed { entry, removal, node: Arc::clone(&node), is_damaged }, vec![node]))
}
