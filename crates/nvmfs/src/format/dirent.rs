//! A sector of a directory: an entry, or the tombstone of one.

use lacuna_ftl::Lba;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32, U64},
};

use super::{Body, FileKind, Header, Ino, Inode, SECTOR, SectorBytes, is_zero, verify};

/// Longest file name in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// A sector of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bucket(pub(crate) u64);

/// The content of a bucket.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives on the stack, for a moment")]
pub(crate) enum Slot {
    Empty,
    Tombstone,
    Entry(Dirent),
}

/// A sector of a directory that holds a name.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Dirent {
    pub(super) ino: U32,
    pub(super) generation: U32,
    /// Type bits of the inode's mode, shifted right by 12.
    pub(super) file_type: u8,
    pub(super) name_len: u8,
    pub(super) zero: U16,
    pub(super) zero2: U32,
    pub(super) hash: U64,
    pub(super) name: [u8; NAME_BYTES_MAX],
    pub(super) zero3: [u8; 209],
}

/// A sector of a directory that held a name, with names behind it that need it to be found.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Tombstone {
    pub(super) zero: [u8; 488],
}

const _: () = {
    assert!(size_of::<Header>() + size_of::<Dirent>() == SECTOR);
    assert!(size_of::<Header>() + size_of::<Tombstone>() == SECTOR);
};

impl Bucket {
    /// Its address in `directory`.
    pub(crate) fn lba(self, directory: Ino) -> Lba {
        directory.lba(self.0)
    }
}

impl Body for Dirent {
    const KIND: u8 = 3;

    fn flaw(&self) -> Option<&'static str> {
        let (name, rest) = self.name.split_at(self.name_len.into());
        if self.zero.get() != 0 || self.zero2.get() != 0 || !is_zero(&self.zero3) || !is_zero(rest) {
            return Some("reserved bytes are not zero");
        }
        if !(Ino::FIRST..=Ino::LAST).contains(&self.ino()) {
            return Some("impossible inode number");
        }
        if !is_name(name) {
            return Some("impossible name");
        }
        if FileKind::of_type_bits(self.file_type.into()).is_none() {
            return Some("unknown file type");
        }
        None
    }
}

/// Whether these bytes can name an entry.
pub(crate) fn is_name(name: &[u8]) -> bool {
    let is_reserved = matches!(name, b"" | b"." | b"..");
    !is_reserved && name.len() <= NAME_BYTES_MAX && !name.contains(&b'/') && !name.contains(&0)
}

impl Dirent {
    /// The entry of `inode` under a name that was checked.
    pub(crate) fn new(name: &[u8], hash: u64, inode: &Inode) -> Dirent {
        Dirent::of_parts(inode.ino(), inode.generation(), inode.kind(), name, hash)
    }

    /// The entry of an inode with these properties under a name that was checked.
    pub(crate) fn of_parts(ino: Ino, generation: u32, kind: FileKind, name: &[u8], hash: u64) -> Dirent {
        let mut padded = [0; NAME_BYTES_MAX];
        padded[..name.len()].copy_from_slice(name);
        Dirent {
            ino: ino.0.into(),
            generation: generation.into(),
            file_type: (kind.mode_bits() >> 12) as u8,
            name_len: name.len() as u8,
            zero: 0.into(),
            zero2: 0.into(),
            hash: hash.into(),
            name: padded,
            zero3: [0; 209],
        }
    }

    pub(crate) fn ino(&self) -> Ino {
        Ino(self.ino.get())
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation.get()
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.get()
    }

    pub(crate) fn kind(&self) -> FileKind {
        FileKind::of_type_bits(self.file_type.into()).expect("checked when it was made or verified")
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.name[..usize::from(self.name_len)]
    }
}

impl Body for Tombstone {
    const KIND: u8 = 4;

    fn flaw(&self) -> Option<&'static str> {
        (!is_zero(&self.zero)).then_some("reserved bytes are not zero")
    }
}

impl Tombstone {
    pub(crate) fn new() -> Tombstone {
        Tombstone { zero: [0; 488] }
    }
}

impl Slot {
    /// Parses the sector of a bucket that is in use.
    pub(crate) fn parse(directory: Ino, bucket: Bucket, bytes: &SectorBytes) -> Result<Slot, &'static str> {
        let lba = bucket.lba(directory);
        if claims_tombstone(bytes) {
            verify::<Tombstone>(bytes, lba).map(|_| Slot::Tombstone)
        } else {
            verify::<Dirent>(bytes, lba).map(Slot::Entry)
        }
    }
}

/// Whether a bucket holds a tombstone, according to the header's kind, which is not verified yet.
pub(super) fn claims_tombstone(bytes: &SectorBytes) -> bool {
    bytes[std::mem::offset_of!(Header, kind)] == Tombstone::KIND
}
