//! The file system's sectors, byte for byte. `docs/FORMAT.md` is their prose.
//!
//! Each of them is one sector with the header [`Header`] in front and zeros behind. [`seal`] makes the
//! bytes of one; [`verify`] is the only way back from bytes to a value.

use lacuna_ftl::{Lba, SECTOR};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{I64, U16, U32, U64},
};

use crate::posix::FileKind;

mod addr;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod inode;
mod siphash;
mod xattr;

pub use addr::{FILE_BYTES_MAX, Ino};
pub(crate) use addr::{REGION_SECTORS, XATTR_BYTES_MAX, XATTR_SECTORS};
pub(crate) use inode::{Inode, LINKS_MAX, TARGET_BYTES_MAX};
pub(crate) use siphash::siphash24;
pub(crate) use xattr::{Orphan, XATTR_SECTOR_BYTES, XattrSector};

/// Version of the file system's format.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Feature flags that this version knows.
pub(crate) const KNOWN_FEATURES: u64 = 0;

const MAGIC: [u8; 4] = *b"LNfs";
const SECTOR_VERSION: u8 = 1;
/// Longest file name in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// The bytes of one sector.
pub(crate) type SectorBytes = [u8; SECTOR];

/// First bytes of each sector of the file system's own.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    kind: u8,
    version: u8,
    zero: U16,
    /// CRC-32C of the whole sector with zeros in this place.
    crc: U32,
    zero2: U32,
    /// Own address, so that a misdirected write is noticed.
    lba: U64,
}

const CRC_AT: usize = std::mem::offset_of!(Header, crc);

/// What one kind of sector holds behind its header.
pub(crate) trait Body: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    const KIND: u8;
    /// The reason why it cannot be what was written, if there is one.
    fn flaw(&self) -> Option<&'static str>;
}

/// Time since the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds of the second, below 10^9.
    pub nanoseconds: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DiskTime {
    seconds: I64,
    nanoseconds: U32,
}

impl From<Timestamp> for DiskTime {
    fn from(time: Timestamp) -> DiskTime {
        DiskTime { seconds: time.seconds.into(), nanoseconds: time.nanoseconds.into() }
    }
}

impl From<DiskTime> for Timestamp {
    fn from(time: DiskTime) -> Timestamp {
        Timestamp { seconds: time.seconds.get(), nanoseconds: time.nanoseconds.get() }
    }
}

/// Sector 0 of inode 0.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Superblock {
    pub(crate) format_version: U32,
    zero: U32,
    pub(crate) features: U64,
    /// Identity of the file system, and the key of its directory hashes.
    pub(crate) uuid: [u8; 16],
    created: DiskTime,
    zero2: [u8; 444],
}

/// A sector of a directory that holds a name.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Dirent {
    ino: U32,
    generation: U32,
    /// Type bits of the inode's mode, shifted right by 12.
    file_type: u8,
    name_len: u8,
    zero: U16,
    zero2: U32,
    hash: U64,
    name: [u8; NAME_BYTES_MAX],
    zero3: [u8; 209],
}

/// A sector of a directory that held a name, with names behind it that need it to be found.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Tombstone {
    zero: [u8; 488],
}

const _: () = {
    assert!(size_of::<Header>() == 24 && CRC_AT == 8);
    assert!(size_of::<Header>() + size_of::<Superblock>() == SECTOR);
    assert!(size_of::<Header>() + size_of::<Dirent>() == SECTOR);
    assert!(size_of::<Header>() + size_of::<Tombstone>() == SECTOR);
};

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

impl DiskTime {
    fn is_sound(self) -> bool {
        self.nanoseconds.get() < 1_000_000_000
    }
}

impl Body for Superblock {
    const KIND: u8 = 1;

    fn flaw(&self) -> Option<&'static str> {
        // A newer version may use the reserved bytes; it is refused by its version.
        let reserved = self.zero.as_bytes().iter().chain(&self.zero2).any(|byte| *byte != 0);
        (self.format_version.get() == FORMAT_VERSION && reserved).then_some("reserved bytes are not zero")
    }
}

impl Superblock {
    pub(crate) fn new(uuid: [u8; 16], created: Timestamp) -> Superblock {
        Superblock {
            format_version: FORMAT_VERSION.into(),
            zero: 0.into(),
            features: KNOWN_FEATURES.into(),
            uuid,
            created: created.into(),
            zero2: [0; 444],
        }
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
        let mut padded = [0; NAME_BYTES_MAX];
        padded[..name.len()].copy_from_slice(name);
        Dirent {
            ino: inode.ino().0.into(),
            generation: inode.generation().into(),
            file_type: (inode.kind().mode_bits() >> 12) as u8,
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

fn checksum(bytes: &SectorBytes) -> u32 {
    let crc = lacuna_crc::crc32c(&bytes[..CRC_AT]);
    let crc = lacuna_crc::crc32c_append(crc, &[0; 4]);
    lacuna_crc::crc32c_append(crc, &bytes[CRC_AT + 4..])
}

/// The bytes of the sector at `lba`.
pub(crate) fn seal<B: Body>(body: &B, lba: Lba) -> SectorBytes {
    assert!(body.flaw().is_none(), "sealing a flawed sector: {:?}", body.flaw());
    let header = Header {
        magic: MAGIC,
        kind: B::KIND,
        version: SECTOR_VERSION,
        zero: 0.into(),
        crc: 0.into(),
        zero2: 0.into(),
        lba: lba.0.into(),
    };
    let mut bytes = [0; SECTOR];
    bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    bytes[size_of::<Header>()..].copy_from_slice(body.as_bytes());
    let crc = checksum(&bytes);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The kind of a sector, not verified; for choosing what to verify it as.
pub(crate) fn claims_tombstone(bytes: &SectorBytes) -> bool {
    bytes[std::mem::offset_of!(Header, kind)] == Tombstone::KIND
}

/// What the sector read from `lba` holds, or why it cannot be what was written there.
pub(crate) fn verify<B: Body>(bytes: &SectorBytes, lba: Lba) -> Result<B, &'static str> {
    let (header_bytes, body_bytes) = bytes.split_at(size_of::<Header>());
    let header = Header::read_from_bytes(header_bytes).expect("the header has its size");
    if header.magic != MAGIC {
        return Err("no magic");
    }
    if header.crc.get() != checksum(bytes) {
        return Err("bad checksum");
    }
    if header.kind != B::KIND {
        return Err("wrong kind of sector");
    }
    if header.version != SECTOR_VERSION {
        return Err("unknown version of a sector");
    }
    if header.lba.get() != lba.0 {
        return Err("it belongs elsewhere");
    }
    if header.zero.get() != 0 || header.zero2.get() != 0 {
        return Err("reserved bytes are not zero");
    }
    let body = B::read_from_bytes(body_bytes).expect("a body fills its sector");
    body.flaw().map_or(Ok(body), Err)
}

#[cfg(test)]
mod tests;
