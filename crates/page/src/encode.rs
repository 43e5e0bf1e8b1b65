use std::sync::Arc;

use lacuna_codec::Transforms;
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    Algorithm, Codec, PageCipher,
    cipher::Link,
    format::{HEADER_BYTES, Header, MAGIC, PACKED, TRAILER_BYTES, UNCHECKED, assert_page_bytes},
    mutant::{Rule, is_broken},
};

/// The result of [`Encoder::encode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Length of the image in bytes, not rounded to sectors.
    pub image_bytes: usize,
    /// The algorithm in the image: [`Algorithm::None`] when the page did not shrink by a sector.
    pub algorithm: Algorithm,
}

/// Puts the header before the bytes that `out` has from there to `image_bytes`, and zeros after them.
fn seal(
    page: &[u8],
    algorithm: Algorithm,
    (flags, cipher): (u8, &Link),
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
    cipher.encrypt(&mut header, out);
    let image_bytes = HEADER_BYTES + header.stored_bytes.get() as usize;
    header.checksum = header.checksum_with(&out[HEADER_BYTES..image_bytes]).into();
    out[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    out[image_bytes..image_bytes.next_multiple_of(sector)].fill(0);
    Encoded { image_bytes, algorithm }
}

/// Gives an image without a checksum of its bytes ([`Encoder::set_checksums`]) one, for a write that may be torn after
/// all. One that has it stays as it is.
///
/// # Panics
/// When `image` is not what an encoder made.
pub fn add_checksum(image: &mut [u8]) {
    let (mut header, _) = Header::read_from_prefix(image).expect("an image is longer than its header");
    assert!(header.magic.get() == MAGIC, "not an image");
    if header.flags & UNCHECKED == 0 {
        return;
    }
    header.flags &= !UNCHECKED;
    let stored_bytes = header.stored_bytes.get() as usize;
    header.checksum = header.checksum_with(&image[HEADER_BYTES..HEADER_BYTES + stored_bytes]).into();
    image[..HEADER_BYTES].copy_from_slice(header.as_bytes());
}

/// Makes images of pages. Holds compression contexts, so keep one per flushing thread.
#[derive(Default)]
pub struct Encoder {
    transforms: Transforms,
    /// Flags that all images get.
    flags: u8,
    cipher: Link,
}

impl Encoder {
    /// An encoder; contexts are made when first used.
    pub fn new() -> Encoder {
        Encoder::default()
    }

    /// Whether the images made from now on have a checksum of all their bytes, as they have by default. Otherwise it
    /// covers the header alone: for storage that neither tears nor changes what was written, or checks it by itself.
    pub fn set_checksums(&mut self, is_on: bool) {
        self.flags = if is_on { 0 } else { UNCHECKED };
    }

    /// What the images made from now on are encrypted with; by default nothing.
    pub fn set_cipher(&mut self, cipher: Option<Arc<dyn PageCipher>>) {
        self.cipher = Link(cipher);
    }

    /// Writes the image of `page` to the start of `out`, filled with zeros up to the next multiple of `sector`. An
    /// image that would not take at least one sector less than the page is stored plain instead, and so is one of an
    /// algorithm that is not built in. The header of `page` must come from [`crate::write_meta`].
    ///
    /// # Panics
    /// When `page` has no header of a page, its length is not a page size and a multiple of
    /// `sector`, or `out` is shorter than `page`.
    pub fn encode(&mut self, page: &[u8], codec: Codec, sector: usize, out: &mut [u8]) -> Encoded {
        let body = &page[HEADER_BYTES..page.len() - TRAILER_BYTES];
        self.compressed(page, body, 0, codec, sector, out).unwrap_or_else(|| {
            out[HEADER_BYTES..page.len()].copy_from_slice(&page[HEADER_BYTES..]);
            seal(page, Algorithm::None, (self.flags, &self.cipher), page.len(), sector, out)
        })
    }

    /// As [`Encoder::encode`], but compresses `packed`, which stands for the page's body: the decoder's owner unpacks
    /// it ([`crate::Decoder::unpacking`]). Of `page` only the header is used. `None`, and undefined bytes in `out`,
    /// when the image would not take at least one sector less than the page.
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
        assert!(page.len().is_multiple_of(sector), "sector of {sector} bytes");
        assert!(out.len() >= page.len(), "image buffer is shorter than the page");
        // Where the longest image that still saves a sector ends.
        let limit = page.len() - if is_broken(Rule::ImagesSaveSectors) { 0 } else { sector };
        let space = out.get_mut(HEADER_BYTES..limit).unwrap_or_default();
        if space.is_empty() {
            return None;
        }
        let bytes = self.transforms.of(codec.algorithm)?.compress(body, codec.level, space)?;
        let links = (flags | self.flags, &self.cipher);
        Some(seal(page, codec.algorithm, links, HEADER_BYTES + bytes, sector, out))
    }
}
