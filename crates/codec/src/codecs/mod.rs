//! The compression algorithms, a file for each, built in by the cargo feature of its name.
//!
//! To add one: its number, name and levels in [`Algorithm`]; a feature in `Cargo.toml` of this crate and of page, engine
//! and lacuna above it; a file here that implements [`Transform`], and its line in [`transform`]; a golden image in
//! `crates/page/tests/images.rs`; and its stream's format in docs/FORMAT.md.

#[cfg(feature = "bzip2")]
mod bzip2;
#[cfg(feature = "lz4")]
mod lz4;
#[cfg(feature = "lzma")]
mod lzma;
#[cfg(feature = "lzo")]
mod lzo;
#[cfg(feature = "snappy")]
mod snappy;
#[cfg(feature = "zlib")]
mod zlib;
#[cfg(feature = "zstd")]
mod zstd;

use crate::Algorithm;

/// An algorithm, with the contexts that its library works in.
pub trait Transform: Send {
    /// Compresses `body` into the start of `out` and returns the length; `None` when it does not fit. Any failure
    /// of a library counts as "does not fit": the body is then stored plain.
    fn compress(&mut self, body: &[u8], level: i32, out: &mut [u8]) -> Option<usize>;

    /// Decompresses `stored` into the start of `body` and returns the length; `None` when `stored` is not exactly
    /// one stream, or holds more than fits.
    fn decompress(&mut self, stored: &[u8], body: &mut [u8]) -> Option<usize>;
}

/// The transform of `algorithm`; none for [`Algorithm::None`] and for algorithms that are not built in.
fn transform(algorithm: Algorithm) -> Option<Box<dyn Transform>> {
    match algorithm {
        #[cfg(feature = "lz4")]
        Algorithm::Lz4 => Some(Box::new(lz4::Lz4)),
        #[cfg(feature = "zstd")]
        Algorithm::Zstd => Some(Box::<zstd::Zstd>::default()),
        #[cfg(feature = "zlib")]
        Algorithm::Zlib => Some(Box::<zlib::Zlib>::default()),
        #[cfg(feature = "lzo")]
        Algorithm::Lzo => Some(Box::<lzo::Lzo>::default()),
        #[cfg(feature = "snappy")]
        Algorithm::Snappy => Some(Box::<snappy::Snappy>::default()),
        #[cfg(feature = "bzip2")]
        Algorithm::Bzip2 => Some(Box::new(bzip2::Bzip2)),
        #[cfg(feature = "lzma")]
        Algorithm::Lzma => Some(Box::new(lzma::Lzma)),
        #[allow(unreachable_patterns, reason = "without one of the features it is reached")]
        _ => None,
    }
}

/// Transforms that are made when they are first used.
#[derive(Default)]
pub struct Transforms {
    made: [Option<Box<dyn Transform>>; Algorithm::ALL.len()],
}

impl Transforms {
    /// The transform of `algorithm`; none for [`Algorithm::None`] and for algorithms that are not built in.
    pub fn of(&mut self, algorithm: Algorithm) -> Option<&mut (dyn Transform + 'static)> {
        let made = &mut self.made[usize::from(u8::from(algorithm))];
        if made.is_none() {
            *made = transform(algorithm);
        }
        made.as_deref_mut()
    }
}

/// Compresses by way of `whole`, which is given the `bytes_max` that may come out: for libraries that demand space
/// for the worst case.
#[cfg(any(feature = "zlib", feature = "lzo", feature = "snappy"))]
fn by_way_of(
    whole: &mut Vec<u8>,
    bytes_max: usize,
    out: &mut [u8],
    compress: impl FnOnce(&mut [u8]) -> Option<usize>,
) -> Option<usize> {
    whole.resize(bytes_max, 0);
    let bytes = compress(whole)?;
    out.get_mut(..bytes)?.copy_from_slice(&whole[..bytes]);
    Some(bytes)
}
