//! Trims that stock MariaDB implies but does not send.
//!
//! MariaDB 10.11 punches no hole when it rewrites a page-compressed page: a page that shrinks keeps the
//! tail of its older, longer image. The tail is dead: a reader takes the length from the page itself. So
//! a write that *is* such a page implies a trim from its end to the end of the page.
//!
//! This module decides whether a write is such a page; it is pure and does no I/O. Length alone decides nothing: in
//! `KEY_BLOCK_SIZE` tables short pages lie side by side. All of these must hold:
//!
//! - The write starts on a page boundary and ends before the page does. The page's size follows from the
//!   page itself: its number (never 0: a tablespace's first page is not compressed) times the size is the
//!   offset in the file.
//! - The page is marked as page-compressed, in one of two formats: *full_crc32* (default since 10.5): the highest bit
//!   of the page type is set, its low byte counts the payload in 256 bytes, and the CRC-32C over the payload is right;
//!   *older*: page type 34354, the checksum field holds the magic of pages without one, a known algorithm, and a
//!   payload length that makes sense. Only this has no checksum of its own.
//! - The write is the payload rounded up to the file system's block, 4 KiB at most, and its rest is zeros.
//!
//! The layout is that of MariaDB's `fil_page_compress` and `buf_page_full_crc32_size`.

use std::ops::RangeInclusive;

/// Page sizes for which MariaDB asks whether writes are atomic, and so the only ones seen here.
const PAGE_SIZES: RangeInclusive<u64> = 4096..=32768;
/// Largest block to which MariaDB rounds a compressed page up.
const BLOCK_BYTES_MAX: usize = 4096;
/// Smallest block to which MariaDB rounds a compressed page up.
const BLOCK_BYTES_MIN: usize = 512;

/// Offsets in a page; all numbers are big-endian.
mod at {
    /// 4 bytes: checksum of the older format.
    pub(super) const CHECKSUM: usize = 0;
    /// 4 bytes: number of the page in its tablespace.
    pub(super) const PAGE_NO: usize = 4;
    /// 2 bytes.
    pub(super) const PAGE_TYPE: usize = 24;
    /// 8 bytes: algorithm, in the older format.
    pub(super) const ALGORITHM: usize = 26;
    /// 2 bytes: length of the compressed data, in the older format; the data follow.
    pub(super) const COMPRESSED_LEN: usize = 38;
    /// The compressed data of the older format.
    pub(super) const DATA: usize = 40;
}

/// Set in the page type of a page-compressed full_crc32 page.
const FULL_CRC32_MARKER: u16 = 1 << 15;
/// Bits of the page type that are zero beside the marker.
const FULL_CRC32_RESERVED: u16 = 0x7f00;
/// Unit of the payload's length in the page type.
const FULL_CRC32_UNIT: usize = 256;
/// Page type of the older format.
const TYPE_COMPRESSED: u16 = 34354;
/// Page type of the older format, when encrypted as well.
const TYPE_COMPRESSED_ENCRYPTED: u16 = 37401;
/// The value that the older format has in place of a checksum.
const NO_CHECKSUM_MAGIC: u32 = 0xdead_beef;
/// zlib, lz4, lzo, lzma, bzip2, snappy.
const ALGORITHMS: RangeInclusive<u64> = 1..=6;

/// Why a write implies no trim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTrim {
    /// Not of the length of a short page: whole pages, several of them, or odd lengths.
    Length,
    /// It is not marked as a page-compressed page.
    NotCompressed,
    /// It claims to be one, but its number does not belong at this offset, or a length is impossible.
    Malformed,
    /// It claims to be one, but its checksum is wrong.
    Checksum,
    /// Compressed and encrypted in the older format: cannot be identified safely.
    Encrypted,
}

impl NoTrim {
    /// Every reason, in the order of [`NoTrim::index`].
    pub const ALL: [NoTrim; 5] =
        [NoTrim::Length, NoTrim::NotCompressed, NoTrim::Malformed, NoTrim::Checksum, NoTrim::Encrypted];

    /// Position in [`NoTrim::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            NoTrim::Length => "length",
            NoTrim::NotCompressed => "not_compressed",
            NoTrim::Malformed => "malformed",
            NoTrim::Checksum => "checksum",
            NoTrim::Encrypted => "encrypted",
        }
    }
}

/// The end of the page, in bytes of the file, if writing `data` at `offset` implies a trim up to there.
pub fn implied_trim(offset: u64, data: &[u8]) -> Result<u64, NoTrim> {
    let is_short_page = data.len().is_multiple_of(BLOCK_BYTES_MIN)
        && (data.len() as u64) < *PAGE_SIZES.end()
        && offset.is_multiple_of(*PAGE_SIZES.start())
        && !data.is_empty();
    if !is_short_page {
        return Err(NoTrim::Length);
    }
    let page_type = be16(data, at::PAGE_TYPE);
    let payload_bytes = if page_type & FULL_CRC32_MARKER != 0 && page_type & FULL_CRC32_RESERVED == 0 {
        full_crc32_payload(page_type, data)?
    } else if page_type == TYPE_COMPRESSED {
        older_payload(data)?
    } else if page_type == TYPE_COMPRESSED_ENCRYPTED {
        return Err(NoTrim::Encrypted);
    } else {
        return Err(NoTrim::NotCompressed);
    };
    let page_bytes = page_bytes(offset, be32(data, at::PAGE_NO)).ok_or(NoTrim::Malformed)?;
    let rest = data.get(payload_bytes..).ok_or(NoTrim::Malformed)?;
    if data.len() as u64 >= page_bytes {
        return Err(NoTrim::Length);
    }
    if rest.len() >= BLOCK_BYTES_MAX || rest.iter().any(|byte| *byte != 0) {
        return Err(NoTrim::Malformed);
    }
    Ok(offset + page_bytes)
}

/// The size of the pages of a file in which page `page_no` lies at `offset`.
fn page_bytes(offset: u64, page_no: u32) -> Option<u64> {
    let page_no = u64::from(page_no);
    let is_exact = page_no > 0 && offset.is_multiple_of(page_no);
    let page_bytes = is_exact.then(|| offset / page_no)?;
    (PAGE_SIZES.contains(&page_bytes) && page_bytes.is_power_of_two()).then_some(page_bytes)
}

/// Length of the payload of a full_crc32 page, checksum included, once that is found right.
fn full_crc32_payload(page_type: u16, data: &[u8]) -> Result<usize, NoTrim> {
    let payload_bytes = usize::from(page_type & !FULL_CRC32_MARKER) * FULL_CRC32_UNIT;
    let payload = data.get(..payload_bytes).ok_or(NoTrim::Malformed)?;
    let (covered, checksum) = payload.split_last_chunk::<4>().ok_or(NoTrim::Malformed)?;
    if lacuna_crc::crc32c(covered) != u32::from_be_bytes(*checksum) {
        return Err(NoTrim::Checksum);
    }
    Ok(payload_bytes)
}

/// Length of header and compressed data of a page of the older format.
fn older_payload(data: &[u8]) -> Result<usize, NoTrim> {
    if be32(data, at::CHECKSUM) != NO_CHECKSUM_MAGIC {
        return Err(NoTrim::Checksum);
    }
    let algorithm = u64::from(be32(data, at::ALGORITHM)) << 32 | u64::from(be32(data, at::ALGORITHM + 4));
    let compressed_bytes = usize::from(be16(data, at::COMPRESSED_LEN));
    if !ALGORITHMS.contains(&algorithm) || compressed_bytes == 0 {
        return Err(NoTrim::Malformed);
    }
    Ok(at::DATA + compressed_bytes)
}

fn be16(data: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([data[at], data[at + 1]])
}

fn be32(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

#[cfg(test)]
mod tests {
    use lacuna_sim::{SeededRng, for_each_seed};

    use super::*;

    const PAGE: u64 = 16384;

    fn put(data: &mut [u8], at: usize, bytes: &[u8]) {
        data[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A full_crc32 page with `units` times 256 bytes of payload, rounded up to `block`.
    fn full_crc32(page_no: u32, units: u8, block: usize) -> Vec<u8> {
        let payload = usize::from(units) * FULL_CRC32_UNIT;
        let mut data: Vec<u8> = (0..payload).map(|at| (at * 7 % 251) as u8).collect();
        data.resize(payload.next_multiple_of(block), 0);
        put(&mut data, at::PAGE_NO, &page_no.to_be_bytes());
        put(&mut data, at::PAGE_TYPE, &[0x80, units]);
        let checksum = lacuna_crc::crc32c(&data[..payload - 4]);
        put(&mut data, payload - 4, &checksum.to_be_bytes());
        data
    }

    /// A page of the older format with `compressed` bytes of data, rounded up to `block`.
    fn older(page_no: u32, compressed: u16, block: usize) -> Vec<u8> {
        let payload = at::DATA + usize::from(compressed);
        let mut data = vec![0x5a; payload];
        data.resize(payload.next_multiple_of(block), 0);
        put(&mut data, at::CHECKSUM, &NO_CHECKSUM_MAGIC.to_be_bytes());
        put(&mut data, at::PAGE_NO, &page_no.to_be_bytes());
        put(&mut data, at::PAGE_TYPE, &TYPE_COMPRESSED.to_be_bytes());
        put(&mut data, at::ALGORITHM, &2_u64.to_be_bytes());
        put(&mut data, at::COMPRESSED_LEN, &compressed.to_be_bytes());
        data
    }

    #[test]
    fn compressed_pages_are_known_by_their_own_words() {
        for page_bytes in [4096, 8192, 16384, 32768] {
            for (page_no, units) in [(1, 3), (7, 5), (4_000_000, 15)] {
                let offset = u64::from(page_no) * page_bytes;
                let short = full_crc32(page_no, units, 512);
                let expected = if (short.len() as u64) < page_bytes {
                    Ok(offset + page_bytes)
                } else {
                    Err(NoTrim::Length)
                };
                assert_eq!(implied_trim(offset, &short), expected, "{page_bytes} {page_no} {units}");
            }
        }
        assert_eq!(implied_trim(3 * PAGE, &full_crc32(3, 17, 4096)), Ok(4 * PAGE));
        assert_eq!(implied_trim(3 * PAGE, &older(3, 5000, 512)), Ok(4 * PAGE));
        assert_eq!(implied_trim(3 * PAGE, &older(3, 1, 512)), Ok(4 * PAGE));
    }

    #[test]
    fn what_only_looks_like_one_is_refused() {
        let page = full_crc32(3, 17, 512);
        // Another place: the number in the page contradicts the offset.
        assert_eq!(implied_trim(4 * PAGE, &page), Err(NoTrim::Malformed));
        assert_eq!(implied_trim(0, &full_crc32(0, 17, 512)), Err(NoTrim::Malformed));
        // Not on a boundary, not whole sectors, a whole page.
        assert_eq!(implied_trim(3 * PAGE + 512, &page), Err(NoTrim::Length));
        assert_eq!(implied_trim(3 * PAGE, &page[..page.len() - 1]), Err(NoTrim::Length));
        assert_eq!(implied_trim(3 * PAGE, &full_crc32(3, 64, 512)), Err(NoTrim::Length));
        assert_eq!(implied_trim(3 * PAGE, &[]), Err(NoTrim::Length));
        // Cut short, or with something behind the payload.
        assert_eq!(implied_trim(3 * PAGE, &page[..page.len() - 512]), Err(NoTrim::Malformed));
        let mut tail = page.clone();
        *tail.last_mut().expect("not empty") = 1;
        assert_eq!(implied_trim(3 * PAGE, &tail), Err(NoTrim::Malformed));
        let mut longer = page.clone();
        longer.resize(page.len() + BLOCK_BYTES_MAX, 0);
        assert_eq!(implied_trim(3 * PAGE, &longer), Err(NoTrim::Malformed));
        // The older format: each of its fields matters.
        for (at, bytes, refusal) in [
            (at::CHECKSUM, &[0_u8][..], NoTrim::Checksum),
            (at::ALGORITHM + 7, &[7], NoTrim::Malformed),
            (at::ALGORITHM, &[1], NoTrim::Malformed),
            (at::COMPRESSED_LEN, &[0, 0], NoTrim::Malformed),
            (at::COMPRESSED_LEN, &[0xff, 0xff], NoTrim::Malformed),
            (at::PAGE_TYPE, &TYPE_COMPRESSED_ENCRYPTED.to_be_bytes(), NoTrim::Encrypted),
        ] {
            let mut page = older(3, 5000, 512);
            put(&mut page, at, bytes);
            assert_eq!(implied_trim(3 * PAGE, &page), Err(refusal), "byte {at}");
        }
        // An index page of a KEY_BLOCK_SIZE table.
        let mut row = vec![0x11; 8192];
        put(&mut row, at::PAGE_NO, &3_u32.to_be_bytes());
        put(&mut row, at::PAGE_TYPE, &17855_u16.to_be_bytes());
        assert_eq!(implied_trim(3 * 8192, &row), Err(NoTrim::NotCompressed));
    }

    #[test]
    fn a_flipped_bit_of_the_payload_is_never_trimmed_behind() {
        let page = full_crc32(3, 9, 512);
        let payload = 9 * FULL_CRC32_UNIT;
        for bit in 0..payload * 8 {
            let mut damaged = page.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(implied_trim(3 * PAGE, &damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn random_bytes_are_refused_without_a_panic() {
        for_each_seed(64, |seed| {
            let mut rng = SeededRng::new(seed);
            for _ in 0..64 {
                let mut data = vec![0; (rng.below(70) * 512) as usize];
                data.iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
                if data.len() >= 512 && rng.below(2) == 0 {
                    put(&mut data, at::PAGE_TYPE, &[0x80, rng.below(256) as u8]);
                }
                assert!(implied_trim(rng.below(1000) * 4096, &data).is_err());
            }
        });
    }
}
