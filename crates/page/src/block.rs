//! Blocks of fixed length, for row-compressed tables: a compressed image of a page, followed by a log of the changes to
//! the page since.
//!
//! ```text
//! 0        64                                                      len - 8   len
//! +--------+----------------------+---------+----------------------+---------+
//! | header | image                | log ... | zeros                | trailer |
//! +--------+----------------------+---------+----------------------+---------+
//! ```
//!
//! The caller defines the content of the log. The image holds a page's body without the gap in its middle: its first
//! `head` and its last `tail` bytes. A block is whole only after [`seal`]; in memory its address, LSN and checksum are
//! not kept up. It ends in a byte that is not zero, so that no layer below shortens it.

use lacuna_codec::Transforms;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use crate::{
    Algorithm, Codec, Error, Meta, Result,
    format::{HEADER_BYTES, TRAILER_BYTES, is_page_bytes, write_meta},
};

const MAGIC: u32 = u32::from_le_bytes(*b"LcRB");
const VERSION: u8 = 1;
const TRAILER: [u8; TRAILER_BYTES] = *b"LcRBTail";
/// The image is not compressed: it would not have become shorter.
const STORED: u8 = 1;
/// The image is compressed by LZ4; without this flag it is a raw deflate stream.
const LZ4: u8 = 2;

/// First bytes of a block.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: U32,
    version: u8,
    kind: u8,
    flags: u8,
    reserved_a: u8,
    table: U32,
    page_bytes: U32,
    page_no: U64,
    lsn: U64,
    /// Bytes of the body's start and end in the image.
    head_bytes: U32,
    tail_bytes: U32,
    /// Length of the image.
    stored_bytes: U32,
    /// Length of the log.
    log_bytes: U32,
    /// CRC32C of the block, this field zero.
    checksum: U32,
    reserved_b: [u8; 12],
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(TRAILER[TRAILER_BYTES - 1] != 0);

/// Bytes of a block that image and log may take together.
pub fn block_capacity(block_bytes: usize) -> usize {
    block_bytes - HEADER_BYTES - TRAILER_BYTES
}

fn header(block: &[u8]) -> Header {
    Header::read_from_prefix(block).expect("a block is longer than its header").0
}

fn put(block: &mut [u8], header: Header) {
    block[..HEADER_BYTES].copy_from_slice(header.as_bytes());
}

/// The log.
pub fn block_log(block: &[u8]) -> &[u8] {
    let header = header(block);
    let start = HEADER_BYTES + header.stored_bytes.get() as usize;
    &block[start..start + header.log_bytes.get() as usize]
}

/// Bytes that the log can still take.
pub fn block_log_space(block: &[u8]) -> usize {
    let header = header(block);
    block_capacity(block.len()) - header.stored_bytes.get() as usize - header.log_bytes.get() as usize
}

/// Appends to the log; false, and no change, when there is no space.
#[must_use]
pub fn append_to_block(block: &mut [u8], bytes: &[u8]) -> bool {
    if bytes.len() > block_log_space(block) {
        return false;
    }
    let mut header = header(block);
    let end = HEADER_BYTES + header.stored_bytes.get() as usize + header.log_bytes.get() as usize;
    block[end..end + bytes.len()].copy_from_slice(bytes);
    header.log_bytes += bytes.len() as u32;
    put(block, header);
    true
}

/// Makes the block one of an empty body with an empty log.
pub fn reset_block(block: &mut [u8]) {
    put(block, Header::zeroed());
}

impl Header {
    fn zeroed() -> Header {
        Header::read_from_bytes(&[0; HEADER_BYTES]).expect("its length")
    }
}

/// Image and log as bytes of their own, for a write-ahead log; [`adopt_block`] takes them back.
pub fn export_block(block: &[u8]) -> Vec<u8> {
    let header = header(block);
    let used = header.stored_bytes.get() as usize + header.log_bytes.get() as usize;
    let mut out = Vec::with_capacity(18 + used);
    out.extend([header.kind, header.flags]);
    for field in [header.head_bytes, header.tail_bytes, header.stored_bytes, header.log_bytes] {
        out.extend_from_slice(field.as_bytes());
    }
    out.extend_from_slice(&block[HEADER_BYTES..HEADER_BYTES + used]);
    out
}

/// Sets the block to the bytes that [`export_block`] returned.
///
/// # Errors
/// [`Error::Length`] when the bytes contradict themselves or do not fit.
pub fn adopt_block(block: &mut [u8], bytes: &[u8]) -> Result<()> {
    let (prefix, rest) = bytes.split_at_checked(18).ok_or(Error::Length)?;
    let field = |i: usize| U32::read_from_bytes(&prefix[2 + 4 * i..6 + 4 * i]).expect("four bytes");
    let mut header = Header::zeroed();
    (header.kind, header.flags) = (prefix[0], prefix[1]);
    (header.head_bytes, header.tail_bytes) = (field(0), field(1));
    (header.stored_bytes, header.log_bytes) = (field(2), field(3));
    let used = u64::from(field(2).get()) + u64::from(field(3).get());
    if rest.len() > block_capacity(block.len()) || used != rest.len() as u64 {
        return Err(Error::Length);
    }
    put(block, header);
    block[HEADER_BYTES..HEADER_BYTES + rest.len()].copy_from_slice(rest);
    Ok(())
}

/// Kind of the page in the image.
pub fn block_kind(block: &[u8]) -> u8 {
    header(block).kind
}

/// Makes the block ready for its device: address, LSN, trailer, checksum, and zeros in the free space.
pub fn seal_block(block: &mut [u8], meta: &Meta, page_bytes: usize) {
    let mut header = header(block);
    header.magic = MAGIC.into();
    header.version = VERSION;
    header.table = meta.table.into();
    header.page_bytes = (page_bytes as u32).into();
    header.page_no = meta.page_no.into();
    header.lsn = meta.lsn.into();
    header.checksum = 0.into();
    put(block, header);
    let end = block.len() - TRAILER_BYTES;
    let free = end - block_log_space(block);
    block[free..end].fill(0);
    block[end..].copy_from_slice(&TRAILER);
    header.checksum = lacuna_crc::crc32c(block).into();
    put(block, header);
}

/// Verifies a sealed block of the page `expect` (table, page number), a page of `page_bytes`.
///
/// # Errors
/// [`Error::Blank`] when the block is all zeros, else the reason why it is not such a block.
pub fn open_block(block: &mut [u8], expect: (u32, u64), page_bytes: usize) -> Result<Meta> {
    let mut header = header(block);
    if header.magic.get() != MAGIC {
        let is_blank = block.iter().all(|byte| *byte == 0);
        return Err(if is_blank { Error::Blank } else { Error::NotAPage });
    }
    if header.version != VERSION {
        return Err(Error::Version(header.version));
    }
    if ![0, STORED, LZ4].contains(&header.flags) {
        return Err(Error::Flags(header.flags));
    }
    let expected = header.checksum.get();
    header.checksum = 0.into();
    put(block, header);
    let found = lacuna_crc::crc32c(block);
    if found != expected {
        return Err(Error::Checksum { expected, found });
    }
    let used = u64::from(header.stored_bytes.get()) + u64::from(header.log_bytes.get());
    let body = u64::from(header.head_bytes.get()) + u64::from(header.tail_bytes.get());
    if header.page_bytes.get() as usize != page_bytes
        || !is_page_bytes(page_bytes)
        || used > block_capacity(block.len()) as u64
        || body > (page_bytes - HEADER_BYTES - TRAILER_BYTES) as u64
    {
        return Err(Error::Length);
    }
    if header.reserved_a != 0
        || header.reserved_b != [0; 12]
        || block[block.len() - TRAILER_BYTES..] != TRAILER
    {
        return Err(Error::Stray);
    }
    let (table, page_no) = (header.table.get(), header.page_no.get());
    if (table, page_no) != expect {
        return Err(Error::Misplaced { table, page_no });
    }
    Ok(Meta { kind: header.kind, table, page_no, lsn: header.lsn.get() })
}

/// Gives a block what its reader expects of every block of a page, a valid checksum too, and leaves lengths and flags as
/// they are.
#[cfg(feature = "fuzzing")]
pub(crate) fn forge_block(block: &mut [u8], meta: &Meta, page_bytes: usize) {
    let mut header = header(block);
    (header.magic, header.version, header.kind) = (MAGIC.into(), VERSION, meta.kind);
    (header.table, header.page_bytes) = (meta.table.into(), (page_bytes as u32).into());
    (header.page_no, header.lsn) = (meta.page_no.into(), meta.lsn.into());
    (header.reserved_a, header.reserved_b, header.checksum) = (0, [0; 12], 0.into());
    put(block, header);
    let end = block.len() - TRAILER_BYTES;
    block[end..].copy_from_slice(&TRAILER);
    header.checksum = lacuna_crc::crc32c(block).into();
    put(block, header);
}

/// The algorithms of blocks; each block says which one made it, so those of a table mix.
pub const BLOCK_ALGORITHMS: [Algorithm; 2] = [Algorithm::Zlib, Algorithm::Lz4];

/// Compresses pages into blocks, and restores them. Holds contexts, so keep one per thread.
#[derive(Default)]
pub struct BlockCodec {
    transforms: Transforms,
    packed: Vec<u8>,
    image: Vec<u8>,
}

impl BlockCodec {
    /// A codec; contexts are made when first used.
    pub fn new() -> BlockCodec {
        BlockCodec::default()
    }

    /// Replaces image and log by an image of the body whose first bytes are `head`, whose last are
    /// `tail`, and that is zero in between, with an empty log. Level 0 is the algorithm's default. False, and no
    /// change, when not at least `log_space_min` bytes would be left for the log. Where the algorithm is not built in
    /// nothing is compressed.
    ///
    /// # Panics
    /// For an algorithm that is not one of [`BLOCK_ALGORITHMS`].
    #[must_use]
    pub fn compress(
        &mut self,
        block: &mut [u8],
        kind: u8,
        (head, tail): (&[u8], &[u8]),
        codec: Codec,
        log_space_min: usize,
    ) -> bool {
        let compressed = match codec.algorithm {
            Algorithm::Zlib => 0,
            Algorithm::Lz4 => LZ4,
            algorithm => panic!("{algorithm} does not make blocks"),
        };
        let Some(space) = block_capacity(block.len()).checked_sub(log_space_min) else { return false };
        self.packed.clear();
        self.packed.extend_from_slice(head);
        self.packed.extend_from_slice(tail);
        let bytes_max = space.min(self.packed.len());
        self.image.resize(bytes_max, 0);
        let transform = self.transforms.of(codec.algorithm);
        let image_bytes = transform.and_then(|it| it.compress(&self.packed, codec.level, &mut self.image));
        let (image, flags) = match image_bytes {
            Some(image_bytes) => (&self.image[..image_bytes], compressed),
            None if self.packed.len() <= space => (&self.packed[..], STORED),
            None => return false,
        };
        let mut header = Header::zeroed();
        (header.kind, header.flags) = (kind, flags);
        header.head_bytes = (head.len() as u32).into();
        header.tail_bytes = (tail.len() as u32).into();
        header.stored_bytes = (image.len() as u32).into();
        put(block, header);
        block[HEADER_BYTES..HEADER_BYTES + image.len()].copy_from_slice(image);
        true
    }

    /// Restores the page that the image holds, without the changes in the log, under `meta`.
    ///
    /// # Errors
    /// [`Error::Length`] when the image does not have the bytes it claims, [`Error::NotBuiltIn`] without the image's
    /// algorithm.
    pub fn restore(&mut self, block: &[u8], meta: &Meta, page: &mut [u8]) -> Result<()> {
        let header = header(block);
        let (head, tail) = (header.head_bytes.get() as usize, header.tail_bytes.get() as usize);
        let end = page.len() - TRAILER_BYTES;
        let body = &mut page[HEADER_BYTES..end];
        let image = block.get(HEADER_BYTES..HEADER_BYTES + header.stored_bytes.get() as usize);
        let image = image.ok_or(Error::Length)?;
        if head.saturating_add(tail) > body.len() {
            return Err(Error::Length);
        }
        let packed = if header.flags & STORED != 0 || image.is_empty() {
            image
        } else {
            self.packed.resize(head + tail, 0);
            let algorithm = if header.flags & LZ4 != 0 { Algorithm::Lz4 } else { Algorithm::Zlib };
            let transform = self.transforms.of(algorithm).ok_or(Error::NotBuiltIn(algorithm))?;
            if transform.decompress(image, &mut self.packed) != Some(head + tail) {
                return Err(Error::Length);
            }
            &self.packed[..]
        };
        if packed.len() != head + tail {
            return Err(Error::Length);
        }
        let tail_at = body.len() - tail;
        body[..head].copy_from_slice(&packed[..head]);
        body[head..tail_at].fill(0);
        body[tail_at..].copy_from_slice(&packed[head..]);
        write_meta(page, meta);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Bytes without pattern, from a seed.
    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..len).map(|_| next()).collect()
    }

    const META: Meta = Meta { kind: 2, table: 16, page_no: 9, lsn: 77 };
    const PAGE: usize = 16 << 10;

    fn page_of(head: &[u8], tail: &[u8]) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        page[HEADER_BYTES..HEADER_BYTES + head.len()].copy_from_slice(head);
        let end = PAGE - TRAILER_BYTES;
        page[end - tail.len()..end].copy_from_slice(tail);
        write_meta(&mut page, &META);
        page
    }

    fn round_trip(algorithm: Algorithm, head: &[u8], tail: &[u8], block_bytes: usize) -> Option<Vec<u8>> {
        let mut codec = BlockCodec::new();
        let mut block = vec![0xEE; block_bytes];
        if !codec.compress(&mut block, META.kind, (head, tail), Codec { algorithm, level: 0 }, 100) {
            return None;
        }
        assert!(append_to_block(&mut block, b"logged"));
        let mut copy = vec![0; block_bytes];
        adopt_block(&mut copy, &export_block(&block)).expect("sound");
        seal_block(&mut copy, &META, PAGE);
        let sealed = copy.clone();
        assert_eq!(open_block(&mut copy, (16, 9), PAGE), Ok(META));
        assert_eq!(block_log(&copy), b"logged");
        let mut page = vec![0x77; PAGE];
        codec.restore(&copy, &META, &mut page).expect("restores");
        assert_eq!(page, page_of(head, tail));
        Some(sealed)
    }

    #[test]
    fn pages_survive_in_blocks() {
        let text: Vec<u8> = (0..12_000).map(|i| b"the same words again "[i % 21]).collect();
        // Noise that fits is stored as it is; noise that does not is refused.
        let noise = noise(1, 12_000);
        for algorithm in BLOCK_ALGORITHMS {
            let round_trip = |head, tail, block_bytes| round_trip(algorithm, head, tail, block_bytes);
            assert!(round_trip(&text, &text[..300], 8 << 10).is_some());
            assert!(round_trip(&[], &[], 4 << 10).is_some());
            assert!(round_trip(&noise[..8000], &noise[8000..8020], 8 << 10).is_some());
            assert!(round_trip(&noise[..8021], &[], 8 << 10).is_none());
            assert!(round_trip(&noise, &[], 8 << 10).is_none());
        }
    }

    /// A compressor that was stopped half way starts afresh.
    #[test]
    fn pages_survive_behind_many_that_do_not_fit() {
        let text: Vec<u8> = (0..12_000).map(|i| b"the same words again "[i % 21]).collect();
        let (mut block, mut page) = (vec![0; 8 << 10], vec![0; PAGE]);
        let both = BLOCK_ALGORITHMS.map(|algorithm| (0..=9).map(move |level| Codec { algorithm, level }));
        for settings in both.into_iter().flatten() {
            let mut codec = BlockCodec::new();
            for seed in 1..40 {
                let noise = noise(seed, 12_000 + seed as usize * 100);
                assert!(!codec.compress(&mut block, META.kind, (&noise, &[]), settings, 100));
            }
            assert!(codec.compress(&mut block, META.kind, (&text, b"tail"), settings, 100));
            codec.restore(&block, &META, &mut page).expect("restores");
            assert_eq!(page, page_of(&text, b"tail"), "{settings:?}");
        }
    }

    #[test]
    fn the_log_fills_up_and_no_more() {
        let mut block = vec![0; 4096];
        reset_block(&mut block);
        assert_eq!(block_log_space(&block), block_capacity(4096));
        assert!(append_to_block(&mut block, &vec![1; block_capacity(4096) - 1]));
        assert!(!append_to_block(&mut block, &[2, 2]));
        assert!(append_to_block(&mut block, &[2]));
        assert_eq!(block_log_space(&block), 0);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let sealed = round_trip(Algorithm::Lz4, &[7; 3000], b"tail", 4096).expect("fits");
        for flags in [STORED | LZ4, 4, 0x80] {
            let mut bad = sealed.clone();
            let changed = Header { flags, ..header(&bad) };
            put(&mut bad, changed);
            assert_eq!(open_block(&mut bad, (16, 9), PAGE), Err(Error::Flags(flags)));
        }
        assert_ne!(sealed.last(), Some(&0));
        for bit in 0..sealed.len() * 8 {
            let mut bad = sealed.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open_block(&mut bad, (16, 9), PAGE).is_err(), "bit {bit}");
        }
        assert!(matches!(open_block(&mut sealed.clone(), (16, 8), PAGE), Err(Error::Misplaced { .. })));
        assert_eq!(open_block(&mut vec![0; 4096], (16, 9), PAGE), Err(Error::Blank));
    }

    #[test]
    fn any_bytes_are_refused_or_restored() {
        let mut codec = BlockCodec::new();
        for seed in 0..500 {
            let bytes = noise(seed, 30 + seed as usize * 3 % 400);
            let mut block = vec![0; 4096];
            let mut page = vec![0; PAGE];
            if adopt_block(&mut block, &bytes).is_ok() {
                let _ = codec.restore(&block, &META, &mut page);
            }
            // Sound lengths, any image.
            let mut export = vec![2, [0, LZ4][seed as usize % 2], 100, 0, 0, 0, 0, 0, 0, 0];
            export.extend((bytes.len() as u32).to_le_bytes());
            export.extend([0; 4]);
            export.extend(&bytes);
            adopt_block(&mut block, &export).expect("lengths agree");
            let _ = codec.restore(&block, &META, &mut page);
        }
    }

    #[test]
    fn format_md_has_these_fields() {
        let document = include_str!("../../../docs/FORMAT.md");
        let section = document.split("\n## ").find(|s| s.starts_with("block\n")).expect("a block section");
        for (offset, bytes, name) in [
            (offset_of!(Header, magic), 4, "magic"),
            (offset_of!(Header, version), 1, "version"),
            (offset_of!(Header, kind), 1, "kind"),
            (offset_of!(Header, flags), 1, "flags"),
            (offset_of!(Header, table), 4, "table"),
            (offset_of!(Header, page_bytes), 4, "page_bytes"),
            (offset_of!(Header, page_no), 8, "page_no"),
            (offset_of!(Header, lsn), 8, "lsn"),
            (offset_of!(Header, head_bytes), 4, "head_bytes"),
            (offset_of!(Header, tail_bytes), 4, "tail_bytes"),
            (offset_of!(Header, stored_bytes), 4, "stored_bytes"),
            (offset_of!(Header, log_bytes), 4, "log_bytes"),
            (offset_of!(Header, checksum), 4, "checksum"),
        ] {
            let row = format!("| {offset} | {bytes} | {name} |");
            assert!(section.contains(&row), "FORMAT.md does not say {row}");
        }
    }
}
