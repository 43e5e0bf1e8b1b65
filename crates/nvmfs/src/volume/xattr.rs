//! Reading extended attributes, from inodes or from their region.

use lacuna_device::SECTOR;
use lacuna_ftl::Lba;

use super::Volume;
use crate::{
    error::{Error, Result},
    format::{self, Ino, Inode, Marks, SectorBytes, XattrSector, Xattrs, xattr_sectors},
};

/// The location and length of attributes, according to an inode.
pub(crate) struct StoredXattrs {
    pub(crate) ino: Ino,
    generation: u32,
    len: usize,
    pub(crate) marks: Marks,
    /// Of the inode, with which an access control list must agree.
    pub(crate) permissions: u32,
}

impl StoredXattrs {
    pub(crate) fn of(inode: &Inode) -> StoredXattrs {
        StoredXattrs {
            ino: inode.ino(),
            generation: inode.generation(),
            len: inode.xattr_bytes(),
            marks: inode.marks(),
            permissions: inode.permissions(),
        }
    }

    /// How many sectors they take if they lie outside of the inode.
    pub(crate) fn sectors(&self) -> u64 {
        xattr_sectors(self.len)
    }
}

impl Volume {
    /// The attributes of this version of an inode; nothing if it is no longer the newest.
    pub(crate) fn read_xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        let stored = StoredXattrs::of(inode);
        if let Some(bytes) = inode.inline_xattrs() {
            return self.parse_xattrs(&stored, bytes);
        }
        let mut bytes = vec![0; stored.sectors() as usize * SECTOR];
        self.ftl.read(inode.ino().xattr_lba(), &mut bytes)?;
        self.parse_xattr_sectors(&stored, &bytes)
    }

    pub(crate) fn parse_xattrs(&self, stored: &StoredXattrs, bytes: &[u8]) -> Result<Xattrs> {
        format::parse_xattrs(bytes).map_err(|reason| self.corrupt_xattrs(stored, reason))
    }

    /// The attributes in the sectors that belong to an inode in their region.
    pub(crate) fn parse_xattr_sectors(&self, stored: &StoredXattrs, sectors: &[u8]) -> Result<Xattrs> {
        let corrupt = |reason| self.corrupt_xattrs(stored, reason);
        let start = stored.ino.xattr_lba();
        let mut bytes = Vec::with_capacity(stored.len);
        for (index, sector) in sectors.chunks_exact(SECTOR).enumerate() {
            let sector: &SectorBytes = sector.try_into().expect("whole sectors");
            let lba = Lba(start.0 + index as u64);
            let sector = format::verify::<XattrSector>(sector, lba).map_err(corrupt)?;
            let part = sector.bytes_of(stored.ino, stored.generation).ok_or("they are another inode's");
            bytes.extend(part.map_err(corrupt)?);
        }
        if bytes.len() != stored.len {
            return Err(corrupt("they have another length than the inode says"));
        }
        self.parse_xattrs(stored, &bytes)
    }

    fn corrupt_xattrs(&self, stored: &StoredXattrs, reason: &'static str) -> Error {
        self.corrupt("attributes of inode", stored.ino.number(), reason)
    }
}
