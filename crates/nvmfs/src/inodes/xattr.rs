//! Extended attributes of an inode: reading them without a lock, and storing them with it.

use lacuna_device::SECTOR;
use lacuna_ftl::Lba;

use super::{Inodes, Node, Update};
use crate::{
    error::Result,
    format::{self, Inode, Marks, XATTR_SECTOR_BYTES, XattrSector, Xattrs, xattr_sectors},
};

impl Inodes {
    /// The attributes of a node, with the version of the inode that they belong to.
    pub(crate) fn xattrs(&self, node: &Node) -> Result<(Inode, Xattrs)> {
        let inode = || node.inode();
        loop {
            let before = inode()?;
            let read = self.volume.read_xattrs(&before);
            // They are read without a lock: a mix of two versions may look like damage.
            if inode()?.changes() == before.changes() {
                return Ok((before, read.map_err(|error| self.volume.found_damage(error))?));
            }
        }
    }
}

impl Update {
    /// Replaces all attributes of `inode`, which the caller then puts: inside of it where they fit.
    pub(crate) fn set_xattrs(&mut self, inode: &mut Inode, bytes: &[u8], marks: Marks) {
        let before = *inode;
        let outside = if inode.set_xattrs(bytes, marks) { bytes } else { &[] };
        let (ino, start) = (before.ino(), before.ino().xattr_lba());
        let mut stored = Vec::with_capacity(xattr_sectors(outside.len()) as usize * SECTOR);
        for (index, part) in outside.chunks(XATTR_SECTOR_BYTES).enumerate() {
            let lba = Lba(start.0 + index as u64);
            stored.extend(format::seal(&XattrSector::new(ino, before.generation(), part), lba));
        }
        let written = xattr_sectors(outside.len());
        let old = if before.has_xattrs_outside() { xattr_sectors(before.xattr_bytes()) } else { 0 };
        if written > 0 {
            self.write(start, stored);
        }
        if old > written {
            self.trim(Lba(start.0 + written), old - written);
        }
    }
}
