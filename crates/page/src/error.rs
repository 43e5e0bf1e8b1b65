use crate::Algorithm;

/// Why an image is not the requested page. The caller knows the file and offset that it came from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// All zeros: no image was ever written here, or it was trimmed.
    #[error("page was never written")]
    Blank,
    /// The first bytes are not those of a page image.
    #[error("not a page image")]
    NotAPage,
    /// Written by a newer version of the format.
    #[error("page format version {0} is unknown")]
    Version(u8),
    /// Transforms that this version does not know.
    #[error("page flags {0:#04x} are unknown")]
    Flags(u8),
    /// A compression algorithm that this version does not know.
    #[error("compression algorithm {0} is unknown")]
    UnknownAlgorithm(u8),
    /// A compression algorithm that this program was built without ([`Algorithm::is_built_in`]).
    #[error("compressed by {0}, which is not built in (cargo feature `{0}`)")]
    NotBuiltIn(Algorithm),
    /// A sound image that is encrypted, and no key was given.
    #[error("page is encrypted, and its key is missing")]
    Encrypted,
    /// A length in the header contradicts another one, the page size or the bytes at hand.
    #[error("page image lengths are inconsistent")]
    Length,
    /// The checksum does not match the bytes.
    #[error("page checksum is {found:#010x}, header says {expected:#010x}")]
    Checksum {
        /// The checksum in the header.
        expected: u32,
        /// The checksum of the bytes.
        found: u32,
    },
    /// Bytes that must be zero are not, or the trailer is not a trailer.
    #[error("page image has stray bytes")]
    Stray,
    /// A sound image, of another page.
    #[error("found page {page_no} of table {table} in its place")]
    Misplaced {
        /// The table it belongs to.
        table: u32,
        /// Its page number.
        page_no: u64,
    },
    /// The compressed bytes do not decompress to a page body although the checksum holds.
    #[error("page does not decompress ({0})")]
    Undecodable(Algorithm),
    /// The decompressed bytes are not the packed form of a page's body, although the checksum holds.
    #[error("page does not unpack: {0}")]
    Packed(&'static str),
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
