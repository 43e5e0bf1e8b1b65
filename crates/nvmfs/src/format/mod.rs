//! The file system's sectors, byte for byte. `docs/FORMAT.md` is their prose.
//!
//! Each of them is one sector with the header [`Header`] in front and zeros behind. [`seal`] makes the
//! bytes of one; [`verify`] is the only way back from bytes to a value.

use lacuna_ftl::{Lba, SECTOR};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32, U64},
};

mod acl;
mod addr;
mod compression;
mod dirent;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod inode;
mod kind;
mod limits;
mod siphash;
mod time;
mod xattr;

pub(crate) use acl::{ACL, Acl, DEFAULT_ACL};
pub use addr::{FILE_BYTES_MAX, Ino};
pub(crate) use addr::{REGION_SECTORS, XATTR_BYTES_MAX, XATTR_SECTORS};
pub use compression::{Compression, UnknownCompression};
#[cfg(any(test, feature = "fuzzing"))]
use dirent::claims_tombstone;
pub(crate) use dirent::{Bucket, Dirent, NAME_BYTES_MAX, Slot, Tombstone, is_name};
pub(crate) use inode::{Inode, LINKS_MAX, SET_GID, TARGET_BYTES_MAX};
pub(crate) use kind::Privilege;
pub use kind::{Caller, FileKind};
pub use limits::Limits;
pub(crate) use limits::{LimitsSector, can_have_limits};
pub(crate) use siphash::siphash24;
use time::DiskTime;
pub use time::{Timestamp, system_time};

pub(crate) use xattr::{
    CAPABILITY, Marks, Orphan, XATTR_NAME_BYTES_MAX, XATTR_SECTOR_BYTES, XATTR_VALUE_BYTES_MAX, XattrSector,
    Xattrs, encode_xattrs, is_xattr_name, is_xattr_value, parse_xattrs, xattr_sectors,
};

/// Version of the file system's format.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Feature flag: inodes may have a compression.
pub(crate) const FEATURE_COMPRESSION: u64 = 1;
/// Feature flags that this version knows.
pub(crate) const KNOWN_FEATURES: u64 = FEATURE_COMPRESSION;

const MAGIC: [u8; 4] = *b"LNfs";
/// Version of a sector of the file system's own.
pub(crate) const SECTOR_VERSION: u8 = 1;
/// Why a sector of a newer version is refused.
pub(crate) const NEWER_SECTOR: &str = "newer version of a sector";

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
    /// Own address, so that a misdirected write is detected.
    lba: U64,
}

const CRC_AT: usize = std::mem::offset_of!(Header, crc);

/// The content of one kind of sector behind its header.
pub(crate) trait Body: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    const KIND: u8;
    /// The reason why it cannot be what was written, if there is one.
    fn flaw(&self) -> Option<&'static str>;
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

const _: () = {
    assert!(size_of::<Header>() == 24 && CRC_AT == 8);
    assert!(size_of::<Header>() + size_of::<Superblock>() == SECTOR);
};

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
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
            features: 0.into(),
            uuid,
            created: created.into(),
            zero2: [0; 444],
        }
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

/// The version that a sector names.
pub(crate) fn sector_version(bytes: &SectorBytes) -> u32 {
    bytes[std::mem::offset_of!(Header, version)].into()
}

/// The content of the sector read from `lba`, or why it cannot be what was written there.
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
    if header.version > SECTOR_VERSION {
        return Err(NEWER_SECTOR);
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
