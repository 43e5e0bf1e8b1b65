//! The compression algorithms of Lacuna's formats behind one interface.
//!
//! Each algorithm is a cargo feature of its name. What is compressed has at most [`BODY_BYTES_MAX`] bytes and its reader
//! knows how many, so no stream says its own length. No input makes a decoder panic or write beyond the space that it is
//! given.

mod algorithm;
mod codecs;

pub use algorithm::{Algorithm, Codec, UnknownAlgorithm};
pub use codecs::{Transform, Transforms};

/// The longest body that is compressed at once.
pub const BODY_BYTES_MAX: usize = 64 << 10;
