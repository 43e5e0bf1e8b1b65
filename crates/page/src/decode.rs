use lacuna_codec::Transforms;
use zerocopy::FromBytes;

use crate::{
    Algorithm, Error, Meta, PageCipher, Result, cipher,
    format::{
        ENCRYPTED, HEADER_BYTES, Header, MAGIC, PACKED, TRAILER, TRAILER_BYTES, UNCHECKED, VERSION,
        is_page_bytes, write_meta,
    },
    mutant::{Rule, is_broken},
};

/// Makes the body of a page, given whole, of its packed form; the error says why that is none. The input may be any
/// bytes: the checksum does not protect against forged ones.
pub type Unpack = fn(packed: &[u8], page: &mut [u8]) -> Result<(), &'static str>;

/// Verifies images and restores pages. Holds decompression contexts, so keep one per thread.
#[derive(Default)]
pub struct Decoder {
    transforms: Transforms,
    unpack: Option<Unpack>,
    /// A packed body.
    packed: Vec<u8>,
    /// What an image holds, decrypted.
    plain: Vec<u8>,
}

impl Decoder {
    /// A decoder; contexts are made when first used. It refuses packed bodies.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// A decoder for pages whose bodies were packed for [`crate::Encoder::encode_packed`]; `unpack` restores them.
    pub fn unpacking(unpack: Unpack) -> Decoder {
        Decoder { unpack: Some(unpack), ..Decoder::default() }
    }

    /// Restores the page whose image starts `image` (bytes after the image are ignored) and returns its description.
    /// `expect` is the table and page number that must be in it. After an error the content of `page` is undefined.
    ///
    /// # Errors
    /// [`Error::Blank`] when all of `image` is zero, [`Error::Misplaced`] when it is a sound image of another page,
    /// [`Error::NotBuiltIn`] when it is a sound image that cannot be decompressed here, [`Error::Encrypted`] when it is a
    /// sound image that is encrypted, else the reason why it is not an image of a page of this length.
    pub fn decode(&mut self, image: &[u8], expect: (u32, u64), page: &mut [u8]) -> Result<Meta> {
        self.decode_with(None, image, expect, page)
    }

    /// As [`Decoder::decode`], also of images that `cipher` encrypted. With a wrong key the page is not what it was, or
    /// does not decompress: keys are to be verified before they are used.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn decode_with(
        &mut self,
        cipher: Option<&dyn PageCipher>,
        image: &[u8],
        expect: (u32, u64),
        page: &mut [u8],
    ) -> Result<Meta> {
        let header = parse(image)?;
        let stored_bytes = header.stored_bytes.get() as usize;
        if header.page_bytes.get() as usize != page.len() {
            return Err(Error::Length);
        }
        let stored = image.get(HEADER_BYTES..HEADER_BYTES + stored_bytes).ok_or(Error::Length)?;
        let found = header.checksum_with(stored);
        if found != header.checksum.get() && !is_broken(Rule::ChecksumAgrees) {
            return Err(Error::Checksum { expected: header.checksum.get(), found });
        }
        // From here on the bytes are those that an encoder made, where they are checked; a failure now is the encoder's
        // mistake.
        let meta = header.meta();
        if (meta.table, meta.page_no) != expect && !is_broken(Rule::AddressAgrees) {
            return Err(Error::Misplaced { table: meta.table, page_no: meta.page_no });
        }
        if header.flags & ENCRYPTED == 0 {
            self.restore_page(&header, stored, page)?;
        } else {
            let mut plain = std::mem::take(&mut self.plain);
            let decrypted = cipher::decrypt(&header, stored, cipher, &mut plain);
            let restored = decrypted.and_then(|bytes| self.restore_page(&header, &plain[..bytes], page));
            self.plain = plain;
            restored?;
        }
        write_meta(page, &meta);
        Ok(meta)
    }

    /// Restores the body of `page` from what its image holds.
    fn restore_page(&mut self, header: &Header, stored: &[u8], page: &mut [u8]) -> Result<()> {
        let algorithm =
            Algorithm::try_from(header.algorithm).map_err(|_| Error::UnknownAlgorithm(header.algorithm))?;
        if header.flags & PACKED != 0 && !is_broken(Rule::PackedIsNotPlain) {
            return self.unpack(algorithm, stored, page);
        }
        let tail = page.len() - TRAILER_BYTES;
        let body = &mut page[HEADER_BYTES..tail];
        match self.restore(algorithm, stored, body)? == body.len() {
            true => Ok(()),
            false => Err(Error::Undecodable(algorithm)),
        }
    }

    /// Restores the body of `page` from its packed form.
    fn unpack(&mut self, algorithm: Algorithm, stored: &[u8], page: &mut [u8]) -> Result<()> {
        let unpack = self.unpack.ok_or(Error::Flags(PACKED))?;
        if algorithm == Algorithm::None {
            return Err(Error::Flags(PACKED));
        }
        let mut packed = std::mem::take(&mut self.packed);
        packed.resize(page.len(), 0);
        let restored = self.restore(algorithm, stored, &mut packed);
        let unpacked = restored.and_then(|bytes| unpack(&packed[..bytes], page).map_err(Error::Packed));
        self.packed = packed;
        unpacked
    }

    /// Decompresses into `body`, and says how many bytes that gave.
    fn restore(&mut self, algorithm: Algorithm, stored: &[u8], body: &mut [u8]) -> Result<usize> {
        if algorithm == Algorithm::None {
            let (plain, trailer) = stored.split_at_checked(body.len()).ok_or(Error::Length)?;
            if trailer != TRAILER {
                return Err(Error::Stray);
            }
            body.copy_from_slice(plain);
            return Ok(body.len());
        }
        let transform = self.transforms.of(algorithm).ok_or(Error::NotBuiltIn(algorithm))?;
        transform.decompress(stored, body).ok_or(Error::Undecodable(algorithm))
    }
}

/// Length in bytes of the image that starts with `header` (its first [`HEADER_BYTES`] bytes or
/// more). Not verified: only [`Decoder::decode`] does that. At most [`crate::PAGE_BYTES_MAX`].
///
/// # Errors
/// As [`Decoder::decode`], as far as the header alone shows it.
pub fn image_bytes(header: &[u8]) -> Result<usize> {
    Ok(HEADER_BYTES + parse(header)?.stored_bytes.get() as usize)
}

/// The algorithm of the image that starts with `header`, and its length, under the terms of [`image_bytes`].
///
/// # Errors
/// As [`image_bytes`], and [`Error::UnknownAlgorithm`].
pub fn image_form(header: &[u8]) -> Result<(Algorithm, usize)> {
    let header = parse(header)?;
    let algorithm =
        Algorithm::try_from(header.algorithm).map_err(|_| Error::UnknownAlgorithm(header.algorithm))?;
    Ok((algorithm, HEADER_BYTES + header.stored_bytes.get() as usize))
}

/// Whether the image that starts with `header` says that its checksum covers the header alone.
pub fn is_unchecked(header: &[u8]) -> bool {
    parse(header).is_ok_and(|header| header.flags & UNCHECKED != 0)
}

/// Whether the image that starts with `header` says that it is encrypted.
pub fn is_encrypted(header: &[u8]) -> bool {
    parse(header).is_ok_and(|header| header.flags & ENCRYPTED != 0)
}

/// The header at the start of `image`, its fields plausible one by one but not verified.
fn parse(image: &[u8]) -> Result<Header> {
    let Ok((header, _)) = Header::read_from_prefix(image) else { return Err(Error::Length) };
    if header.magic.get() != MAGIC {
        let blank = image.iter().all(|&byte| byte == 0);
        return Err(if blank { Error::Blank } else { Error::NotAPage });
    }
    if header.version != VERSION {
        return Err(Error::Version(header.version));
    }
    if header.flags & !(PACKED | UNCHECKED | ENCRYPTED) != 0 {
        return Err(Error::Flags(header.flags));
    }
    if header.reserved != [0; 23] {
        return Err(Error::Stray);
    }
    let (page_bytes, stored_bytes) = (header.page_bytes.get() as usize, header.stored_bytes.get() as usize);
    if !is_page_bytes(page_bytes) || stored_bytes > page_bytes - HEADER_BYTES {
        return Err(Error::Length);
    }
    if !cipher::is_sound(&header) {
        return Err(Error::Stray);
    }
    Ok(header)
}
