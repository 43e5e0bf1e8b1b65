//! How the data of a file is compressed: two bytes of its inode.

use std::{fmt, num::NonZeroU8, str::FromStr};

use lacuna_ftl::{Algorithm, Codec};

/// Greatest level of zstd.
const ZSTD_LEVEL_MAX: u8 = 22;
/// The level of zstd where none is named.
const ZSTD_LEVEL: u8 = 3;

/// How data that will be written to a file is compressed; of a directory, to the files that will be made in it.
///
/// As text: `default`, `none`, `lz4`, `zstd:LEVEL`, or `zstd`, which is level 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// As the mount says, or else the store: what its root directory has.
    #[default]
    Default,
    /// Not.
    None,
    /// With LZ4.
    Lz4,
    /// With zstd at a level from 1 to 22.
    Zstd(NonZeroU8),
}

impl Compression {
    /// The two bytes of an inode: which, and the level.
    pub(crate) fn to_bytes(self) -> [u8; 2] {
        match self {
            Compression::Default => [0, 0],
            Compression::Lz4 => [1, 0],
            Compression::Zstd(level) => [2, level.get()],
            Compression::None => [3, 0],
        }
    }

    /// What two bytes say; nothing if no program of this version wrote them.
    pub(crate) fn of_bytes(bytes: [u8; 2]) -> Option<Compression> {
        match bytes {
            [0, 0] => Some(Compression::Default),
            [1, 0] => Some(Compression::Lz4),
            [2, level @ ..=ZSTD_LEVEL_MAX] => NonZeroU8::new(level).map(Compression::Zstd),
            [3, 0] => Some(Compression::None),
            _ => None,
        }
    }

    /// The codec for it; nothing if data stays as it is.
    pub(crate) fn codec(self) -> Option<Codec> {
        match self {
            Compression::Default | Compression::None => None,
            Compression::Lz4 => Some(Codec { algorithm: Algorithm::Lz4, level: 0 }),
            Compression::Zstd(level) => {
                Some(Codec { algorithm: Algorithm::Zstd, level: i32::from(level.get()) })
            }
        }
    }

    /// This one, or `other` where it says nothing itself.
    #[must_use]
    pub fn or(self, other: Compression) -> Compression {
        if self == Compression::Default { other } else { self }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::Default => f.pad("default"),
            Compression::None => f.pad("none"),
            Compression::Lz4 => f.pad("lz4"),
            Compression::Zstd(level) => f.pad(&format!("zstd:{level}")),
        }
    }
}

/// A text that names no compression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown compression {0:?} (known: none, lz4, zstd, zstd:1 to zstd:22)")]
pub struct UnknownCompression(pub String);

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> Result<Compression, UnknownCompression> {
        let zstd = |level: u8| NonZeroU8::new(level).filter(|level| level.get() <= ZSTD_LEVEL_MAX);
        let found = match text {
            "default" => Some(Compression::Default),
            "none" => Some(Compression::None),
            "lz4" => Some(Compression::Lz4),
            "zstd" => zstd(ZSTD_LEVEL).map(Compression::Zstd),
            _ => {
                let level = text.strip_prefix("zstd:").filter(|level| !level.starts_with('+'));
                level.and_then(|level| level.parse().ok()).and_then(zstd).map(Compression::Zstd)
            }
        };
        found.ok_or_else(|| UnknownCompression(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_texts_mean_the_same() {
        let mut known = 0;
        for bytes in (0..=u16::MAX).map(u16::to_le_bytes) {
            let Some(compression) = Compression::of_bytes(bytes) else { continue };
            known += 1;
            assert_eq!(compression.to_bytes(), bytes);
            assert_eq!(compression.to_string().parse(), Ok(compression));
        }
        assert_eq!(known, 3 + 22);
        assert_eq!("zstd".parse::<Compression>(), "zstd:3".parse());
        for text in ["", "LZ4", "lz4:1", "zstd:0", "zstd:23", "zstd:", "zstd:+3", "zstd:-1", "zlib", "none "]
        {
            let error = text.parse::<Compression>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
