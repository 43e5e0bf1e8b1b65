use std::io::Write;

use flate2::{Compress, Compression, FlushCompress, Status};
use lz4::block::CompressionMode;
use lzma_rust2::{LzmaOptions, LzmaWriter};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    Algorithm, Codec,
    format::{HEADER_BYTES, Header, MAGIC, PACKED, PAGE_BYTES_MAX, TRAILER_BYTES, assert_page_bytes},
};

/// What [`Encoder::encode`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Length of the image in bytes, not rounded to sectors.
    pub image_bytes: usize,
    /// The algorithm in the image: [`Algorithm::None`] when the page did not shrink by a sector.
    pub algorithm: Algorithm,
}

/// Puts the header in front of what `out` has from there to `image_bytes`, and zeros behind.
fn seal(
    page: &[u8],
    algorithm: Algorithm,
    flags: u8,
    image_bytes: usize,
    sector: usize,
    out: &mut [u8],
) -> Encoded {
    let (frame_header, _) = Header::read_from_prefix(page).expect("a page is longer than its header");
    assert!(
        frame_header.magic.get() == MAGIC && frame_header.page_bytes.get() as usize == page.len(),
        "page has no header"
    );
    let mut header = Header {
        algorithm: algorithm.into(),
        flags,
        stored_bytes: ((image_bytes - HEADER_BYTES) as u32).into(),
        ..Header::of_frame(&frame_header.meta(), page.len())
    };
    header.checksum = header.checksum_with(&out[HEADER_BYTES..image_bytes]).into();
    out[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    out[image_bytes..image_bytes.next_multiple_of(sector)].fill(0);
    Encoded { image_bytes, algorithm }
}

/// Makes images of pages. Holds compression contexts, so keep one per flushing thread.
#[derive(Default)]
pub struct Encoder {
    zstd: Option<ZstdAtLevel>,
    zlib: Option<(u32, Compress)>,
    lzo: Option<Box<lzokay::compress::Dict>>,
    snappy: Option<snap::raw::Encoder>,
    /// What a library that asks for room for the worst case makes of a page.
    whole: Vec<u8>,
}

struct ZstdAtLevel {
    level: i32,
    compressor: zstd::bulk::Compressor<'static>,
}

impl Encoder {
    /// An encoder; contexts are made when first used.
    pub fn new() -> Encoder {
        Encoder::default()
    }

    /// Writes the image of `page` to the start of `out`, filled with zeros up to the next multiple
    /// of `sector`. An image that would not take at least one sector less than the page is made
    /// plain instead. The header of `page` must come from [`crate::write_meta`].
    ///
    /// # Panics
    /// When `page` has no header of a page, its length is not a page size and a multiple of
    /// `sector`, or `out` is shorter than `page`.
    pub fn encode(&mut self, page: &[u8], codec: Codec, sector: usize, out: &mut [u8]) -> Encoded {
        let body = &page[HEADER_BYTES..page.len() - TRAILER_BYTES];
        self.compressed(page, body, 0, codec, sector, out).unwrap_or_else(|| {
            out[HEADER_BYTES..page.len()].copy_from_slice(&page[HEADER_BYTES..]);
            seal(page, Algorithm::None, 0, page.len(), sector, out)
        })
    }

    /// As [`Encoder::encode`], but what is compressed is `packed`, which stands for the page's body: the
    /// page's owner makes the body of it ([`crate::Decoder::unpacking`]). Of `page` only the header counts. `None`,
    /// and nothing of use in `out`, when the image would not take at least one sector less than the page.
    ///
    /// # Panics
    /// As [`Encoder::encode`], and when `packed` is longer than the body.
    pub fn encode_packed(
        &mut self,
        page: &[u8],
        packed: &[u8],
        codec: Codec,
        sector: usize,
        out: &mut [u8],
    ) -> Option<Encoded> {
        assert!(packed.len() <= page.len() - HEADER_BYTES - TRAILER_BYTES, "packed and longer");
        self.compressed(page, packed, PACKED, codec, sector, out)
    }

    /// The image of `page` with `body` compressed; `None` when it would not save a sector.
    fn compressed(
        &mut self,
        page: &[u8],
        body: &[u8],
        flags: u8,
        codec: Codec,
        sector: usize,
        out: &mut [u8],
    ) -> Option<Encoded> {
        assert_page_bytes(page.len());
        assert!(sector > 0 && page.len().is_multiple_of(sector), "sector of {sector} bytes");
        assert!(out.len() >= page.len(), "image buffer is shorter than the page");
        // Where the longest image that still saves a sector ends.
        let limit = page.len() - sector;
        let room = out.get_mut(HEADER_BYTES..limit).unwrap_or_default();
        let bytes = self.compress(body, codec, room)?;
        Some(seal(page, codec.algorithm, flags, HEADER_BYTES + bytes, sector, out))
    }

    /// Compresses `body` into `room`; `None` when it does not fit or is not to be compressed. Any
    /// failure of a library counts as "does not fit": the page is then written plain.
    fn compress(&mut self, body: &[u8], codec: Codec, room: &mut [u8]) -> Option<usize> {
        if room.is_empty() {
            return None;
        }
        match codec.algorithm {
            Algorithm::None => None,
            Algorithm::Lz4 => {
                let mode = match codec.level {
                    2.. => CompressionMode::HIGHCOMPRESSION(codec.level.min(12)),
                    0 | 1 => CompressionMode::DEFAULT,
                    _ => CompressionMode::FAST(codec.level.saturating_neg()),
                };
                lz4::block::compress_to_buffer(body, Some(mode), false, room).ok()
            }
            Algorithm::Zstd => self.zstd(codec.level)?.compress_to_buffer(body, room).ok(),
            Algorithm::Zlib => self.deflate(body, codec.level, room),
            Algorithm::Lzo => {
                let dict = self.lzo.get_or_insert_with(lzokay::compress::Dict::new);
                let bytes_max = lzokay::compress::compress_worst_size(body.len());
                by_way_of(&mut self.whole, bytes_max, room, |whole| {
                    lzokay::compress::compress_no_alloc(body, whole, dict).ok()
                })
            }
            Algorithm::Snappy => {
                let snappy = self.snappy.get_or_insert_with(snap::raw::Encoder::new);
                let bytes_max = snap::raw::max_compress_len(body.len());
                by_way_of(&mut self.whole, bytes_max, room, |whole| snappy.compress(body, whole).ok())
            }
            Algorithm::Bzip2 => bzip2(body, room),
            Algorithm::Lzma => lzma(body, codec.level, room),
        }
    }

    fn deflate(&mut self, body: &[u8], level: i32, room: &mut [u8]) -> Option<usize> {
        let level = if level == 0 { 6 } else { level.clamp(1, 9) as u32 };
        if self.zlib.as_ref().is_none_or(|(at, _)| *at != level) {
            self.zlib = Some((level, Compress::new(Compression::new(level), false)));
        }
        let (_, zlib) = self.zlib.as_mut().expect("just made");
        zlib.reset();
        // As in `BlockCodec::compress`: a stream that was cut off spoils the next.
        by_way_of(&mut self.whole, 2 * body.len() + 64, room, |whole| {
            let outcome = zlib.compress(body, whole, FlushCompress::Finish);
            assert!(matches!(outcome, Ok(Status::StreamEnd)), "no page grows to twice its length");
            Some(zlib.total_out() as usize)
        })
    }

    fn zstd(&mut self, level: i32) -> Option<&mut zstd::bulk::Compressor<'static>> {
        // zstd itself takes 0 as 3, a quarter slower for no smaller pages of a database.
        let level = if level == 0 { 1 } else { level.clamp(-7, 22) };
        if self.zstd.as_ref().is_none_or(|z| z.level != level) {
            let mut compressor = zstd::bulk::Compressor::new(level).ok()?;
            // The header knows both already: eight bytes a page saved.
            compressor.include_contentsize(false).ok()?;
            compressor.include_checksum(false).ok()?;
            self.zstd = Some(ZstdAtLevel { level, compressor });
        }
        self.zstd.as_mut().map(|z| &mut z.compressor)
    }
}

/// Compresses by way of `whole`, which has room for the `bytes_max` that may come out.
fn by_way_of(
    whole: &mut Vec<u8>,
    bytes_max: usize,
    room: &mut [u8],
    compress: impl FnOnce(&mut [u8]) -> Option<usize>,
) -> Option<usize> {
    whole.resize(bytes_max, 0);
    let bytes = compress(whole)?;
    room.get_mut(..bytes)?.copy_from_slice(&whole[..bytes]);
    Some(bytes)
}

fn bzip2(body: &[u8], room: &mut [u8]) -> Option<usize> {
    // Its smallest blocks, 100,000 bytes, are longer than any page.
    let mut bzip2 = bzip2::Compress::new(bzip2::Compression::fast(), 0);
    let outcome = bzip2.compress(body, room, bzip2::Action::Finish);
    matches!(outcome, Ok(bzip2::Status::StreamEnd)).then_some(bzip2.total_out() as usize)
}

fn lzma(body: &[u8], level: i32, room: &mut [u8]) -> Option<usize> {
    let mut options = LzmaOptions::with_preset(level.clamp(0, 9) as u32);
    options.dict_size = PAGE_BYTES_MAX as u32;
    let room_bytes = room.len();
    let mut lzma = LzmaWriter::new_no_header(room, &options, true).ok()?;
    lzma.write_all(body).ok()?;
    let left = lzma.finish().ok()?;
    Some(room_bytes - left.len())
}
