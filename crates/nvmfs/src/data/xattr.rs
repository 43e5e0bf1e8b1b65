//! Extended attributes: one list of names and values for an inode, in the inode if it fits, else in the
//! inode's part of the region of attributes. It is read and written whole.

use std::sync::Arc;

use lacuna_device::SECTOR;

use crate::{
    data::Data,
    error::{Refusal, Result},
    format::{
        self, CAPABILITY, Ino, Inode, XATTR_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_SECTOR_BYTES,
        XATTR_VALUE_BYTES_MAX, XattrSector, Xattrs, encode_xattrs, xattr_sectors,
    },
    inodes::{Node, Update},
};

/// The condition that [`setxattr`](crate::posix::Posix::setxattr) checks first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Nothing.
    #[default]
    Set,
    /// That it does not exist (`XATTR_CREATE`).
    Create,
    /// That it exists (`XATTR_REPLACE`).
    Replace,
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Refusal::AttributeName.into());
    }
    if format::is_xattr_name(name) { Ok(()) } else { Err(Refusal::NotSupported.into()) }
}

impl Data {
    /// The attributes of a node, with the version of the inode that they belong to.
    fn xattrs(&self, node: &Node) -> Result<(Inode, Xattrs)> {
        let inode = || node.inode();
        loop {
            let before = inode()?;
            let read = self.inodes.volume().read_xattrs(&before);
            // They are read without a lock: a mix of two versions may look like damage.
            if inode()?.changes() == before.changes() {
                return Ok((before, read?));
            }
        }
    }

    /// Changes the attributes of a node in one batch.
    fn change_xattrs(&self, node: &Arc<Node>, change: impl Fn(&mut Xattrs) -> Result<()>) -> Result<()> {
        loop {
            let (before, mut xattrs) = self.xattrs(node)?;
            change(&mut xattrs)?;
            let bytes = encode_xattrs(&xattrs);
            if bytes.len() > XATTR_BYTES_MAX {
                return Err(Refusal::NoRoom.into());
            }
            let mut is_newest = false;
            self.inodes.change_nodes(std::slice::from_ref(node), |locked| {
                let mut inode = locked.inode(node)?;
                is_newest = inode.changes() == before.changes();
                if !is_newest {
                    return Ok(None);
                }
                let mut update = Update::new(self.inodes.now());
                let is_outside = inode.set_xattrs(&bytes, xattrs.contains_key(CAPABILITY));
                put_outside(&mut update, &before, if is_outside { &bytes } else { &[] });
                update.put_changed(inode);
                Ok(Some(update))
            })?;
            if is_newest {
                return Ok(());
            }
        }
    }

    /// Removes `security.capability`, as any change of the data or the owner does.
    pub(crate) fn drop_capability(&self, node: &Arc<Node>) -> Result<()> {
        if !node.live(Inode::has_capability).unwrap_or(false) {
            return Ok(());
        }
        self.change_xattrs(node, |xattrs| {
            xattrs.remove(CAPABILITY);
            Ok(())
        })
    }

    pub(crate) fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let (_, mut xattrs) = self.xattrs(&*self.inodes.node(ino)?)?;
        xattrs.remove(name).ok_or(Refusal::NoAttribute.into())
    }

    pub(crate) fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        let (_, xattrs) = self.xattrs(&*self.inodes.node(ino)?)?;
        let mut names = Vec::new();
        for name in xattrs.keys() {
            names.extend(name);
            names.push(0);
        }
        Ok(names)
    }

    pub(crate) fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        check_name(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Refusal::AttributeTooLarge.into());
        }
        let node = self.inodes.node(ino)?;
        self.change_xattrs(&node, |xattrs| {
            let is_there = xattrs.insert(name.to_vec(), value.to_vec()).is_some();
            match mode {
                XattrMode::Create if is_there => Err(Refusal::Exists.into()),
                XattrMode::Replace if !is_there => Err(Refusal::NoAttribute.into()),
                _ => Ok(()),
            }
        })
    }

    pub(crate) fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let node = self.inodes.node(ino)?;
        self.change_xattrs(&node, |xattrs| match xattrs.remove(name) {
            Some(_) => Ok(()),
            None => Err(Refusal::NoAttribute.into()),
        })
    }
}

/// Writes attributes to their region, where those of `before` may lie.
fn put_outside(update: &mut Update, before: &Inode, bytes: &[u8]) {
    let (ino, start) = (before.ino(), before.ino().xattr_lba());
    let mut stored = Vec::with_capacity(xattr_sectors(bytes.len()) as usize * SECTOR);
    for (index, part) in bytes.chunks(XATTR_SECTOR_BYTES).enumerate() {
        let lba = lacuna_ftl::Lba(start.0 + index as u64);
        stored.extend(format::seal(&XattrSector::new(ino, before.generation(), part), lba));
    }
    let written = xattr_sectors(bytes.len());
    let old = if before.has_xattrs_outside() { xattr_sectors(before.xattr_bytes()) } else { 0 };
    if written > 0 {
        update.write(start, stored);
    }
    if old > written {
        update.trim(lacuna_ftl::Lba(start.0 + written), old - written);
    }
}
