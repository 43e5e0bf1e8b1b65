//! Database page images: how a page in memory becomes the bytes that go to flash, and back.
//!
//! Pure: no I/O, no threads, no clock. A page in memory is a *frame* of 4 to 64 KiB:
//!
//! ```text
//! 0             64                                    len - 8   len
//! +-------------+-------------------------------------+---------+
//! | header      | body, the caller's                  | trailer |
//! +-------------+-------------------------------------+---------+
//! ```
//!
//! [`write_meta`] makes header and trailer, [`Encoder`] turns the frame into an *image* (a header
//! and the compressed body, or the frame itself when that saves no sector), [`Decoder`] verifies an
//! image and restores the frame byte for byte. The bytes are laid down in `docs/FORMAT.md`.
//!
//! Invariants:
//!
//! 1. The algorithm is a property of the image, not of the table: images of all algorithms mix.
//! 2. `decode(encode(frame)) == frame` for every frame whose header [`write_meta`] made.
//! 3. An image is returned as data only when its checksum, its lengths, its reserved bytes and its
//!    own address agree. No input makes this crate panic or return another page's bytes.
//! 4. A plain image ends in a byte that is not zero, so a layer below that drops trailing zeros stores it whole; unless
//!    it is encrypted.
//! 5. The compressed bytes may be a packed body, which its owner makes and unpacks ([`Encoder::encode_packed`],
//!    [`Decoder::unpacking`]). A packed body is never taken for a plain one, nor the reverse.
//! 6. Encryption is the last link, and the header is not encrypted ([`PageCipher`]). So invariant 3 needs no key, except
//!    that the bytes decompress.
//!
//! Each algorithm is a cargo feature of its name: `lz4` and `zstd` by default, `zlib`, `lzo`, `snappy`, `bzip2`,
//! `lzma`, or `all-codecs`. Images of the others are verified, but not decompressed ([`Error::NotBuiltIn`]). Only
//! `lz4` and `zstd` need a C compiler; row-compressed blocks need `zlib` or `lz4`.
//!
//! ```
//! use lacuna_page::{Algorithm, Codec, Decoder, Encoder, HEADER_BYTES, Meta, write_meta};
//!
//! let mut page = vec![0; 16384];
//! page[HEADER_BYTES..HEADER_BYTES + 5].copy_from_slice(b"hello");
//! write_meta(&mut page, &Meta { kind: 1, table: 7, page_no: 42, lsn: 1000 });
//!
//! let mut image = vec![0; page.len()];
//! let codec = Codec { algorithm: Algorithm::Lz4, level: 1 };
//! let encoded = Encoder::new().encode(&page, codec, 512, &mut image);
//! assert!(encoded.image_bytes < 512);
//!
//! let mut back = vec![0; page.len()];
//! let meta = Decoder::new().decode(&image[..512], (7, 42), &mut back)?;
//! assert_eq!((meta.lsn, back == page), (1000, true));
//! # Ok::<(), lacuna_page::Error>(())
//! ```

mod block;
mod cipher;
mod decode;
mod encode;
mod error;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub mod mutant;

pub use block::{
    BLOCK_ALGORITHMS, BlockCodec, adopt_block, append_to_block, block_capacity, block_kind, block_log,
    block_log_space, export_block, open_block, reset_block, seal_block,
};
pub use cipher::PageCipher;
pub use decode::{Decoder, Unpack, image_bytes, image_form, is_encrypted, is_unchecked};
pub use encode::{Encoded, Encoder, add_checksum};
pub use error::{Error, Result};
pub use format::{HEADER_BYTES, Meta, PAGE_BYTES_MAX, PAGE_BYTES_MIN, TRAILER_BYTES, read_meta, write_meta};
pub use lacuna_codec::{Algorithm, Codec, UnknownAlgorithm};
