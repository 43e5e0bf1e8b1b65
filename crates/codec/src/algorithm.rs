use std::{fmt, ops::RangeInclusive, str::FromStr};

/// LZ4's level for a page whose last image took more than a share of it, the largest first: the less a page shrinks,
/// the longer LZ4 searches in vain for matches, and the less a shorter search loses.
const HASTY: [((usize, usize), i32); 2] = [((3, 4), -8), ((1, 2), -3)];

/// How the body of a page is transformed. The numbers are on disk and never change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// Not at all.
    #[default]
    None = 0,
    /// LZ4 block format.
    Lz4 = 1,
    /// One zstd frame without content size and checksum.
    Zstd = 2,
    /// One raw deflate stream: zlib's without its header and checksum.
    Zlib = 3,
    /// LZO1X.
    Lzo = 4,
    /// Snappy's raw format.
    Snappy = 5,
    /// One bzip2 stream.
    Bzip2 = 6,
    /// One LZMA stream that ends in a marker, without a header: 3 literal context bits, 2 position bits.
    Lzma = 7,
}

impl Algorithm {
    /// Every algorithm, in the order of their numbers.
    pub const ALL: [Algorithm; 8] = [
        Algorithm::None,
        Algorithm::Lz4,
        Algorithm::Zstd,
        Algorithm::Zlib,
        Algorithm::Lzo,
        Algorithm::Snappy,
        Algorithm::Bzip2,
        Algorithm::Lzma,
    ];

    /// The levels that it knows. Level 0, which all have, is its default here.
    pub fn levels(self) -> RangeInclusive<i32> {
        match self {
            Algorithm::None | Algorithm::Lzo | Algorithm::Snappy | Algorithm::Bzip2 => 0..=0,
            Algorithm::Lz4 => -65_537..=12,
            Algorithm::Zstd => -7..=22,
            Algorithm::Zlib | Algorithm::Lzma => 0..=9,
        }
    }

    /// Whether this program was built with it, by the cargo feature of its name. Others can be neither written, what is
    /// to be compressed is stored plain then, nor read.
    pub const fn is_built_in(self) -> bool {
        match self {
            Algorithm::None => true,
            Algorithm::Lz4 => cfg!(feature = "lz4"),
            Algorithm::Zstd => cfg!(feature = "zstd"),
            Algorithm::Zlib => cfg!(feature = "zlib"),
            Algorithm::Lzo => cfg!(feature = "lzo"),
            Algorithm::Snappy => cfg!(feature = "snappy"),
            Algorithm::Bzip2 => cfg!(feature = "bzip2"),
            Algorithm::Lzma => cfg!(feature = "lzma"),
        }
    }

    /// The name on command lines and in reports, and of the cargo feature.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::None => "none",
            Algorithm::Lz4 => "lz4",
            Algorithm::Zstd => "zstd",
            Algorithm::Zlib => "zlib",
            Algorithm::Lzo => "lzo",
            Algorithm::Snappy => "snappy",
            Algorithm::Bzip2 => "bzip2",
            Algorithm::Lzma => "lzma",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<Algorithm> for u8 {
    fn from(algorithm: Algorithm) -> u8 {
        algorithm as u8
    }
}

/// A name or number that stands for no algorithm of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown compression algorithm {0:?} (known: none, lz4, zstd, zlib, lzo, snappy, bzip2, lzma)")]
pub struct UnknownAlgorithm(pub String);

impl TryFrom<u8> for Algorithm {
    type Error = UnknownAlgorithm;

    fn try_from(number: u8) -> Result<Algorithm, UnknownAlgorithm> {
        let found = Algorithm::ALL.into_iter().find(|&a| u8::from(a) == number);
        found.ok_or_else(|| UnknownAlgorithm(number.to_string()))
    }
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Algorithm, UnknownAlgorithm> {
        let found = Algorithm::ALL.into_iter().find(|a| a.name() == name);
        found.ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

/// An algorithm and how hard it tries.
///
/// Level 0 suits pages that are compressed at every flush: the fast end of each algorithm, and by [`Codec::after`] an
/// even faster level for pages that hardly shrink. `lz4`: 1 is LZ4's default, negative ones trade ratio for speed
/// (`-level` is LZ4's acceleration), 2 to 12 are LZ4HC. `zstd`: -7 to 22 as zstd counts them, but 0 is 1. `zlib`: 1 to
/// 9, 0 is its own default of 6. `lzma`: 0 to 9, its presets. The others have none. Readers need no level. Levels
/// beyond a range are taken as its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codec {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// How hard to try.
    pub level: i32,
}

impl Codec {
    /// Pages as they are.
    pub const PLAIN: Codec = Codec { algorithm: Algorithm::None, level: 0 };

    /// The codec for a page whose last image took `image_bytes`. At level 0, LZ4 searches less for matches where it
    /// found few: there it takes longest and gains least.
    #[must_use]
    pub fn after(self, image_bytes: usize, page_bytes: usize) -> Codec {
        let takes_more = |share: (usize, usize)| image_bytes * share.1 > page_bytes * share.0;
        let hasty = HASTY.into_iter().find(|(share, _)| takes_more(*share));
        match (self, hasty) {
            (Codec { algorithm: Algorithm::Lz4, level: 0 }, Some((_, level))) => Codec { level, ..self },
            _ => self,
        }
    }

    /// `algorithm` at its default level.
    pub fn fast(algorithm: Algorithm) -> Codec {
        Codec { algorithm, level: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_name_the_same_things() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
            assert_eq!(Algorithm::try_from(u8::from(algorithm)), Ok(algorithm));
        }
        assert!("LZ4".parse::<Algorithm>().is_err());
        assert!(Algorithm::try_from(8).is_err());
    }

    #[test]
    fn only_lz4_left_alone_tries_less_hard_and_only_where_little_is_gained() {
        let lz4 = |level| Codec { algorithm: Algorithm::Lz4, level };
        let zstd = Codec::fast(Algorithm::Zstd);
        for (codec, image_bytes, want) in [
            (lz4(0), 0, lz4(0)),
            (lz4(0), 8 << 10, lz4(0)),
            (lz4(0), (8 << 10) + 1, lz4(-3)),
            (lz4(0), 12 << 10, lz4(-3)),
            (lz4(0), (12 << 10) + 1, lz4(-8)),
            (lz4(0), 16 << 10, lz4(-8)),
            (lz4(1), 16 << 10, lz4(1)),
            (lz4(-2), 16 << 10, lz4(-2)),
            (zstd, 16 << 10, zstd),
            (Codec::PLAIN, 16 << 10, Codec::PLAIN),
        ] {
            assert_eq!(codec.after(image_bytes, 16 << 10), want, "{codec:?} {image_bytes}");
        }
    }
}
