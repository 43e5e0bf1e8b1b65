//! Sectors of the regions of attributes and of orphans.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian::U32};

use super::{Body, Header, SECTOR, is_zero};
use crate::format::Ino;

/// Bytes of attributes in one sector.
pub(crate) const XATTR_SECTOR_BYTES: usize = 472;

/// A sector of the attributes of one inode, where they do not fit into it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct XattrSector {
    pub(super) ino: U32,
    pub(super) generation: U32,
    /// Bytes in this sector: all it has room for, except in the last one.
    pub(super) len: U32,
    pub(super) zero: U32,
    pub(super) bytes: [u8; XATTR_SECTOR_BYTES],
}

/// Says that an inode has no name any more, is still open, and goes with its last release.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Orphan {
    pub(super) ino: U32,
    pub(super) generation: U32,
    pub(super) zero: [u8; 480],
}

const _: () = {
    assert!(size_of::<Header>() + size_of::<XattrSector>() == SECTOR);
    assert!(size_of::<Header>() + size_of::<Orphan>() == SECTOR);
};

impl Body for Orphan {
    const KIND: u8 = 5;

    fn flaw(&self) -> Option<&'static str> {
        (!is_zero(&self.zero)).then_some("reserved bytes are not zero")
    }
}

impl Orphan {
    pub(crate) fn new(ino: Ino, generation: u32) -> Orphan {
        Orphan { ino: ino.0.into(), generation: generation.into(), zero: [0; 480] }
    }

    /// Whether it is about this inode.
    pub(crate) fn is_of(&self, ino: Ino, generation: u32) -> bool {
        self.ino.get() == ino.0 && self.generation.get() == generation
    }
}

impl Body for XattrSector {
    const KIND: u8 = 6;

    fn flaw(&self) -> Option<&'static str> {
        match self.bytes.get(self.len.get() as usize..) {
            None => Some("impossible length"),
            Some(rest) if !is_zero(rest) || self.zero.get() != 0 => Some("reserved bytes are not zero"),
            Some(_) => None,
        }
    }
}

impl XattrSector {
    /// `bytes` are at most [`XATTR_SECTOR_BYTES`].
    pub(crate) fn new(ino: Ino, generation: u32, bytes: &[u8]) -> XattrSector {
        let mut padded = [0; XATTR_SECTOR_BYTES];
        padded[..bytes.len()].copy_from_slice(bytes);
        XattrSector {
            ino: ino.0.into(),
            generation: generation.into(),
            len: (bytes.len() as u32).into(),
            zero: 0.into(),
            bytes: padded,
        }
    }

    /// Its bytes, if it is of this inode.
    pub(crate) fn bytes_of(&self, ino: Ino, generation: u32) -> Option<&[u8]> {
        let is_own = self.ino.get() == ino.0 && self.generation.get() == generation;
        is_own.then(|| &self.bytes[..self.len.get() as usize])
    }
}
