//! Bytes of long values: the reference in a leaf, and the pages of a chain. Pure.
//!
//! ```text
//! 64     72      80      84      88                      end-8
//! | next | first | index | bytes | part of the value ... | trailer |
//! ```

use lacuna_page::{HEADER_BYTES, TRAILER_BYTES};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use crate::types::PageNo;

/// Longest value in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 16 << 20;

/// A reference to a long value, which a leaf holds in its place.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct ReferenceRaw {
    first: U64,
    bytes: U32,
    /// CRC32C of the value: each page has its own checksum, this one verifies that they belong together.
    checksum: U32,
}

/// Length of a reference in bytes.
pub(crate) const REFERENCE_BYTES: usize = size_of::<ReferenceRaw>();

/// Where a long value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The first page of its chain.
    pub(crate) first: PageNo,
    /// Its length.
    pub(crate) bytes: u32,
    pub(crate) checksum: u32,
}

impl Reference {
    /// The reference to `value` in the chain that starts at `first`.
    pub(crate) fn new(first: PageNo, value: &[u8]) -> Reference {
        assert!(value.len() <= VALUE_BYTES_MAX);
        Reference { first, bytes: value.len() as u32, checksum: lacuna_crc::crc32c(value) }
    }

    pub(crate) fn encode(self) -> [u8; REFERENCE_BYTES] {
        let raw = ReferenceRaw {
            first: self.first.0.into(),
            bytes: self.bytes.into(),
            checksum: self.checksum.into(),
        };
        raw.as_bytes().try_into().expect("its length")
    }

    /// Reads a reference; `None` for bytes that cannot be one.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Reference> {
        let raw = ReferenceRaw::read_from_bytes(bytes).ok()?;
        let reference = Reference {
            first: PageNo(raw.first.get()),
            bytes: raw.bytes.get(),
            checksum: raw.checksum.get(),
        };
        let is_sound = reference.first.0 > 1 && (1..=VALUE_BYTES_MAX as u32).contains(&reference.bytes);
        is_sound.then_some(reference)
    }
}

/// Header of a page of a chain, after that of all pages.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct LinkRaw {
    next: U64,
    first: U64,
    index: U32,
    bytes: U32,
}

const PART: usize = HEADER_BYTES + size_of::<LinkRaw>();

const _: () = assert!(REFERENCE_BYTES == 16 && PART == 88);

/// Where `next` lies in a page.
pub(crate) const NEXT: usize = HEADER_BYTES;

/// Bytes of a value that a page takes.
pub(crate) fn part_bytes_max(page_bytes: usize) -> usize {
    page_bytes - TRAILER_BYTES - PART
}

/// A page of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link<'a> {
    /// The next page; 0 at the end.
    pub(crate) next: PageNo,
    /// The first page of the chain.
    pub(crate) first: PageNo,
    /// How many pages the chain had before this one when it was written.
    pub(crate) index: u32,
    pub(crate) part: &'a [u8],
}

impl<'a> Link<'a> {
    /// The bytes after the header of the page.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let raw = LinkRaw {
            next: self.next.0.into(),
            first: self.first.0.into(),
            index: self.index.into(),
            bytes: (self.part.len() as u32).into(),
        };
        [raw.as_bytes(), self.part].concat()
    }

    /// Reads a page; the error says what is wrong with it.
    pub(crate) fn parse(page: &'a [u8]) -> Result<Link<'a>, &'static str> {
        let body = page.get(HEADER_BYTES..page.len().saturating_sub(TRAILER_BYTES));
        let (raw, rest) =
            LinkRaw::read_from_prefix(body.unwrap_or_default()).map_err(|_| "overflow page cut short")?;
        let part = rest.get(..raw.bytes.get() as usize).ok_or("more of a value than a page holds")?;
        if part.is_empty() {
            return Err("overflow page without a part of a value");
        }
        Ok(Link {
            next: PageNo(raw.next.get()),
            first: PageNo(raw.first.get()),
            index: raw.index.get(),
            part,
        })
    }
}

/// Rows of FORMAT.md: structure, offset, bytes, field.
#[cfg(test)]
pub(crate) const LAYOUT: &[(&str, usize, usize, &str)] = &[
    ("reference", std::mem::offset_of!(ReferenceRaw, first), 8, "first"),
    ("reference", std::mem::offset_of!(ReferenceRaw, bytes), 4, "value_bytes"),
    ("reference", std::mem::offset_of!(ReferenceRaw, checksum), 4, "value_checksum"),
    ("overflow", NEXT + std::mem::offset_of!(LinkRaw, next), 8, "next"),
    ("overflow", NEXT + std::mem::offset_of!(LinkRaw, first), 8, "first"),
    ("overflow", NEXT + std::mem::offset_of!(LinkRaw, index), 4, "index"),
    ("overflow", NEXT + std::mem::offset_of!(LinkRaw, bytes), 4, "bytes"),
    ("overflow", PART, 0, "part"),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn references_and_links_survive() {
        let reference = Reference::new(PageNo(1 << 40), &[7; 5000]);
        assert_eq!(Reference::parse(&reference.encode()), Some(reference));
        let link = Link { next: PageNo(9), first: PageNo(3), index: 4, part: &[5; 300] };
        let mut page = vec![0; 4096];
        let body = link.encode();
        page[HEADER_BYTES..HEADER_BYTES + body.len()].copy_from_slice(&body);
        assert_eq!(Link::parse(&page), Ok(link));
    }

    #[test]
    fn odd_references_are_refused() {
        let sound = Reference::new(PageNo(2), b"value");
        for odd in [
            Reference { first: PageNo(1), ..sound },
            Reference { bytes: 0, ..sound },
            Reference { bytes: VALUE_BYTES_MAX as u32 + 1, ..sound },
        ] {
            assert_eq!(Reference::parse(&odd.encode()), None, "{odd:?}");
        }
        assert_eq!(Reference::parse(&sound.encode()[1..]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Reference::parse(&bytes);
            if let Ok(link) = Link::parse(&bytes) {
                prop_assert!(!link.part.is_empty());
            }
        }
    }
}
