//! Where things lie in the sparse space of the ftl: the upper 28 bits of a sector address are an inode
//! number, the lower 36 a sector of that file.

use std::ops::Range;

use lacuna_ftl::{Lba, SECTOR};

use super::XATTR_SECTOR_BYTES;

const SECTOR_BITS: u32 = 36;

/// Sectors of the region of one inode.
pub(crate) const REGION_SECTORS: u64 = 1 << SECTOR_BITS;

/// Sectors for the attributes of one inode in the region of attributes.
pub(crate) const XATTR_SECTORS: u64 = 1 << 8;

/// Capacity for them in bytes.
pub(crate) const XATTR_BYTES_MAX: usize = XATTR_SECTORS as usize * XATTR_SECTOR_BYTES;

/// Largest file in bytes: 32 TiB.
pub const FILE_BYTES_MAX: u64 = REGION_SECTORS * SECTOR as u64;

/// Number of an inode, and of the region of the space that holds its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub(crate) u32);

impl Ino {
    /// The superblock is sector 0 of this region.
    pub(crate) const SUPERBLOCK: Ino = Ino(0);
    /// Sector n of this region is inode n.
    pub(crate) const TABLE: Ino = Ino(1);
    /// The root directory.
    pub const ROOT: Ino = Ino(2);
    /// Sector n of this region marks inode n as nameless and still open.
    pub(crate) const ORPHANS: Ino = Ino(3);
    /// Extended attributes that do not fit into inodes.
    pub(crate) const XATTRS: Ino = Ino(4);
    /// Sector n of this region holds the limits of user n.
    pub(crate) const LIMITS: Ino = Ino(5);
    /// First number for files; those below are kept for the file system's own tables.
    pub(crate) const FIRST: Ino = Ino(16);
    /// Last number. One less than 28 bits can hold, so that the end of its region is an address too.
    pub(crate) const LAST: Ino = Ino((1 << 28) - 2);

    /// The inode number `number`, if a file or directory can have it.
    pub fn new(number: u64) -> Option<Ino> {
        let ino = Ino(u32::try_from(number).ok()?);
        (ino == Ino::ROOT || (Ino::FIRST..=Ino::LAST).contains(&ino)).then_some(ino)
    }

    /// The number.
    pub fn number(self) -> u64 {
        self.0.into()
    }

    /// Address of a sector of this inode's region.
    pub(crate) fn lba(self, sector: u64) -> Lba {
        assert!(self <= Ino::LAST && sector < REGION_SECTORS, "no sector {sector} in {self:?}");
        Lba(u64::from(self.0) << SECTOR_BITS | sector)
    }

    /// Addresses of sectors of this inode's region. They may end where the region does, which is no sector of it.
    pub(crate) fn range(self, sectors: Range<u64>) -> Range<Lba> {
        assert!(sectors.end <= REGION_SECTORS, "no sectors {sectors:?} in {self:?}");
        let start = self.lba(0).0;
        Lba(start + sectors.start)..Lba(start + sectors.end)
    }

    /// The whole region.
    pub(crate) fn region(self) -> Range<Lba> {
        self.range(0..REGION_SECTORS)
    }

    /// Address of this inode's own sector in the inode table.
    pub(crate) fn inode_lba(self) -> Lba {
        Ino::TABLE.lba(u64::from(self.0))
    }

    /// Address of the mark that this inode is nameless and still open.
    pub(crate) fn orphan_lba(self) -> Lba {
        Ino::ORPHANS.lba(u64::from(self.0))
    }

    /// Address of this inode's attributes if they do not fit into it.
    pub(crate) fn xattr_lba(self) -> Lba {
        Ino::XATTRS.lba(u64::from(self.0) * XATTR_SECTORS)
    }

    /// The inode whose region an address lies in, and the sector there.
    pub(crate) fn of(lba: Lba) -> (Ino, u64) {
        (Ino((lba.0 >> SECTOR_BITS) as u32), lba.0 % REGION_SECTORS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_tile_the_space() {
        for ino in [Ino::SUPERBLOCK, Ino::TABLE, Ino::ROOT, Ino::FIRST, Ino(12345), Ino::LAST] {
            let region = ino.region();
            assert_eq!(region.end.0 - region.start.0, REGION_SECTORS);
            assert_eq!(Ino::of(region.start), (ino, 0));
            assert_eq!(Ino::of(Lba(region.end.0 - 1)), (ino, REGION_SECTORS - 1));
            assert_eq!(Ino::of(ino.inode_lba()), (Ino::TABLE, u64::from(ino.0)));
        }
        assert_eq!(FILE_BYTES_MAX, 32 << 40);
    }
}
