//! The engine under test, as the command line names it.

use std::{fmt, str::FromStr};

use crate::peer::Compression;

/// A storage engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Lacuna,
    #[cfg(feature = "rocksdb")]
    RocksDb,
    Lmdb,
    Redb,
    Fjall,
    Sqlite,
}

impl Name {
    const ALL: &[Name] = &[
        Name::Lacuna,
        #[cfg(feature = "rocksdb")]
        Name::RocksDb,
        Name::Lmdb,
        Name::Redb,
        Name::Fjall,
        Name::Sqlite,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Name::Lacuna => "lacuna",
            #[cfg(feature = "rocksdb")]
            Name::RocksDb => "rocksdb",
            Name::Lmdb => "lmdb",
            Name::Redb => "redb",
            Name::Fjall => "fjall",
            Name::Sqlite => "sqlite",
        }
    }

    /// The compressions that it offers beside its default.
    fn offers(self) -> &'static [Compression] {
        match self {
            Name::Lacuna => &[Compression::None, Compression::Lz4, Compression::Zstd],
            #[cfg(feature = "rocksdb")]
            Name::RocksDb => &[Compression::None, Compression::Lz4, Compression::Zstd, Compression::Lz4Blobs],
            Name::Fjall => &[Compression::None, Compression::Lz4],
            Name::Lmdb | Name::Redb | Name::Sqlite => &[],
        }
    }
}

/// A storage engine and the compression of its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contestant {
    pub(crate) name: Name,
    /// `None` is the engine's default.
    pub(crate) compression: Option<Compression>,
}

const COMPRESSIONS: [(Compression, &str); 4] = [
    (Compression::None, "none"),
    (Compression::Lz4, "lz4"),
    (Compression::Zstd, "zstd"),
    (Compression::Lz4Blobs, "lz4-blobs"),
];

impl Contestant {
    /// Its compression for people.
    pub(crate) fn compression(self) -> &'static str {
        let named = COMPRESSIONS.into_iter().find(|(known, _)| Some(*known) == self.compression);
        named.map_or("default", |(_, name)| name)
    }
}

impl FromStr for Contestant {
    type Err = String;

    fn from_str(text: &str) -> Result<Contestant, String> {
        let (name, compression) = text.split_once('/').map_or((text, None), |(name, c)| (name, Some(c)));
        let known = || Name::ALL.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
        let found = Name::ALL.iter().find(|known| known.as_str() == name).copied();
        let name = found.ok_or_else(|| format!("known are {}", known()))?;
        let Some(wanted) = compression else { return Ok(Contestant { name, compression: None }) };
        let found =
            COMPRESSIONS.into_iter().find(|(known, text)| *text == wanted && name.offers().contains(known));
        let (compression, _) = found.ok_or_else(|| format!("{} does not offer {wanted:?}", name.as_str()))?;
        Ok(Contestant { name, compression: Some(compression) })
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name.as_str())?;
        if self.compression.is_some() { write!(f, "/{}", self.compression()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_what_is_not_offered_is_refused() {
        for text in ["lacuna", "lacuna/zstd", "fjall/none", "lmdb"] {
            assert_eq!(text.parse::<Contestant>().unwrap().to_string(), text);
        }
        for text in
            ["", "lacuna/", "lacuna/zlib", "lacuna/lz4-blobs", "fjall/zstd", "lmdb/lz4", "Redb", "redb/none"]
        {
            assert!(text.parse::<Contestant>().is_err(), "{text:?}");
        }
    }
}
