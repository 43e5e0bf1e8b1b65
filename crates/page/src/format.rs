//! The bytes of a page image (docs/FORMAT.md, section page).

use std::mem::{offset_of, size_of};

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use crate::Algorithm;

/// Bytes at the start of a page that this crate owns.
pub const HEADER_BYTES: usize = 64;
/// Bytes at the end of a page that this crate owns.
pub const TRAILER_BYTES: usize = 8;
/// Smallest page in bytes.
pub const PAGE_BYTES_MIN: usize = 4 << 10;
/// Largest page in bytes.
pub const PAGE_BYTES_MAX: usize = 64 << 10;

/// Encrypted bytes are whole blocks of so many.
pub(crate) const CIPHER_BLOCK: usize = 16;
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"LcPg");
pub(crate) const VERSION: u8 = 1;
/// Flag: the owner's packed form of the body was compressed.
pub(crate) const PACKED: u8 = 1;
/// The checksum covers the header alone.
pub(crate) const UNCHECKED: u8 = 2;
/// The bytes after the header are encrypted.
pub(crate) const ENCRYPTED: u8 = 4;
/// Ends every page in memory and every plain image. Its last byte must not be zero (invariant 4).
pub(crate) const TRAILER: [u8; TRAILER_BYTES] = *b"LcPgTail";

const _: () = assert!(TRAILER[TRAILER_BYTES - 1] != 0);
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(offset_of!(Header, page_no) == 16);
const _: () = assert!(offset_of!(Header, checksum) == 36);
const _: () =
    assert!(HEADER_BYTES.is_multiple_of(CIPHER_BLOCK) && PAGE_BYTES_MIN.is_multiple_of(CIPHER_BLOCK));

/// First bytes of an image, and of a page in memory (then: algorithm none, checksum zero).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    pub magic: U32,
    pub version: u8,
    pub kind: u8,
    pub algorithm: u8,
    /// Further links of the transform chain, [`PACKED`] and [`ENCRYPTED`]; and [`UNCHECKED`].
    pub flags: u8,
    pub table: U32,
    /// Length of the page in memory.
    pub page_bytes: U32,
    pub page_no: U64,
    pub lsn: U64,
    /// Length of the bytes after the header in the image.
    pub stored_bytes: U32,
    /// CRC32C of the header, this field zero, and the stored bytes.
    pub checksum: U32,
    /// Of an encrypted image: bytes at its end that only fill up the last block of the cipher.
    pub padding: u8,
    pub reserved: [u8; 23],
}

impl Header {
    /// The header of a page of `page_bytes` bytes in memory.
    pub(crate) fn of_frame(meta: &Meta, page_bytes: usize) -> Header {
        assert_page_bytes(page_bytes);
        Header {
            magic: MAGIC.into(),
            version: VERSION,
            kind: meta.kind,
            algorithm: Algorithm::None.into(),
            flags: 0,
            table: meta.table.into(),
            page_bytes: (page_bytes as u32).into(),
            page_no: meta.page_no.into(),
            lsn: meta.lsn.into(),
            stored_bytes: ((page_bytes - HEADER_BYTES) as u32).into(),
            checksum: 0.into(),
            padding: 0,
            reserved: [0; 23],
        }
    }

    pub(crate) fn meta(&self) -> Meta {
        Meta { kind: self.kind, table: self.table.get(), page_no: self.page_no.get(), lsn: self.lsn.get() }
    }

    /// The checksum of this header and, unless it says otherwise, of `stored`, whatever the checksum field holds.
    pub(crate) fn checksum_with(&self, stored: &[u8]) -> u32 {
        let cleared = Header { checksum: 0.into(), ..*self };
        if self.flags & UNCHECKED != 0 {
            return lacuna_crc::crc32c(cleared.as_bytes());
        }
        lacuna_crc::crc32c_append(lacuna_crc::crc32c(cleared.as_bytes()), stored)
    }
}

/// Whether `bytes` is a page size: a power of two from 4 to 64 KiB.
pub(crate) fn is_page_bytes(bytes: usize) -> bool {
    bytes.is_power_of_two() && (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&bytes)
}

pub(crate) fn assert_page_bytes(bytes: usize) {
    assert!(is_page_bytes(bytes), "{bytes} is not a page size");
}

/// The identity of a page, as its header has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The caller's own type of page.
    pub kind: u8,
    /// The table it belongs to.
    pub table: u32,
    /// Its number in the table.
    pub page_no: u64,
    /// Log sequence number of its last change.
    pub lsn: u64,
}

/// Reads the header of `page`, a page in memory. All zeros for a zeroed page.
///
/// # Panics
/// When `page` is shorter than a header.
#[inline]
pub fn read_meta(page: &[u8]) -> Meta {
    let (header, _) = Header::read_from_prefix(page).expect("a page is longer than its header");
    header.meta()
}

/// Writes header and trailer of `page`, a page in memory. The body is left alone.
///
/// # Panics
/// When the length of `page` is not a page size.
#[inline]
pub fn write_meta(page: &mut [u8], meta: &Meta) {
    let header = Header::of_frame(meta, page.len());
    page[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    let tail = page.len() - TRAILER_BYTES;
    page[tail..].copy_from_slice(&TRAILER);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds docs/FORMAT.md against the code: each row `| offset | bytes | field |` of its page table.
    #[test]
    #[cfg_attr(miri, ignore = "a search through a long text takes minutes")]
    fn format_md_is_true() {
        let document = include_str!("../../../docs/FORMAT.md");
        let section = document.split("\n## ").find(|s| s.starts_with("page\n")).expect("a page section");
        let rows: Vec<(usize, usize, &str)> = section
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix("| ")?.split(" | ");
                Some((cells.next()?.parse().ok()?, cells.next()?.parse().ok()?, cells.next()?))
            })
            .collect();
        let fields = [
            (offset_of!(Header, magic), 4, "magic"),
            (offset_of!(Header, version), 1, "version"),
            (offset_of!(Header, kind), 1, "kind"),
            (offset_of!(Header, algorithm), 1, "algorithm"),
            (offset_of!(Header, flags), 1, "flags"),
            (offset_of!(Header, table), 4, "table"),
            (offset_of!(Header, page_bytes), 4, "page_bytes"),
            (offset_of!(Header, page_no), 8, "page_no"),
            (offset_of!(Header, lsn), 8, "lsn"),
            (offset_of!(Header, stored_bytes), 4, "stored_bytes"),
            (offset_of!(Header, checksum), 4, "checksum"),
            (offset_of!(Header, padding), 1, "padding"),
            (offset_of!(Header, reserved), 23, "reserved"),
        ];
        assert_eq!(rows, fields);
    }

    #[test]
    fn meta_survives() {
        let meta = Meta { kind: 3, table: u32::MAX, page_no: 1 << 50, lsn: u64::MAX };
        let mut page = vec![0xA5; PAGE_BYTES_MIN];
        write_meta(&mut page, &meta);
        assert_eq!(read_meta(&page), meta);
        assert_eq!(page[HEADER_BYTES], 0xA5);
        assert_eq!(page[PAGE_BYTES_MIN - TRAILER_BYTES - 1], 0xA5);
    }
}
