//! The catalog: which tables there are, in a table of its own (table 0).
//!
//! A row: the table's name to its number, page size, kind, algorithm and level. Rows are written by
//! ordinary transactions. A table's file is made before its row is committed and a file without a row
//! is removed when the store is opened, so a crash leaves a table whole or not at all.

use lacuna_page::{Algorithm, Codec};

use crate::{
    error::{Error, Result},
    ids::TableId,
    options::{TableKind, TableOptions},
};

/// The catalog's own file.
pub(crate) const CATALOG_TABLE: TableId = TableId(0);
/// Its page size.
pub(crate) const CATALOG_PAGE_BYTES: usize = 16 << 10;
/// Number of the first table that a user makes.
pub(crate) const FIRST_TABLE: TableId = TableId(16);
/// Longest name in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Catalog and undo pages are always compressed: they are the store's, not the user's to choose.
pub(crate) const SYSTEM_CODEC: Codec = Codec { algorithm: Algorithm::Lz4, level: 0 };

const VERSION: u8 = 1;
const ROW_BYTES: usize = 16;
const PLAIN: u8 = 0;
const PAGE_COMPRESSED: u8 = 1;
const ROW_COMPRESSED: u8 = 2;

/// A table as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: TableId,
    pub(crate) options: TableOptions,
}

impl Row {
    pub(crate) fn encode(&self) -> [u8; ROW_BYTES] {
        let (kind, codec) = match self.options.kind {
            TableKind::Plain => (PLAIN, Codec::PLAIN),
            TableKind::PageCompressed { algorithm, level } => (PAGE_COMPRESSED, Codec { algorithm, level }),
            TableKind::RowCompressed { level, .. } => (ROW_COMPRESSED, Codec { level, ..Codec::PLAIN }),
        };
        let mut row = [0; ROW_BYTES];
        row[0] = VERSION;
        row[1] = kind;
        row[2] = codec.algorithm as u8;
        row[3] = self.options.page_bytes.ilog2() as u8;
        row[4..8].copy_from_slice(&self.id.0.to_le_bytes());
        row[8..12].copy_from_slice(&codec.level.to_le_bytes());
        if let Some(block_bytes) = self.options.layout().block_bytes {
            row[12] = block_bytes.ilog2() as u8;
        }
        row
    }

    pub(crate) fn decode(name: &str, row: &[u8]) -> Result<Row> {
        let bad = |reason: &str| Error::Corrupt {
            what: "catalog".into(),
            at: format!("table {name}"),
            reason: reason.into(),
        };
        let row: &[u8; ROW_BYTES] = row.try_into().map_err(|_| bad("row has a wrong length"))?;
        if row[0] != VERSION || row[13..] != [0; 3] || (row[1] != ROW_COMPRESSED && row[12] != 0) {
            return Err(bad("row of an unknown version"));
        }
        let algorithm = Algorithm::try_from(row[2]).map_err(|_| bad("unknown algorithm"))?;
        let level = i32::from_le_bytes(row[8..12].try_into().expect("four bytes"));
        let kind = match row[1] {
            PLAIN => TableKind::Plain,
            PAGE_COMPRESSED => TableKind::PageCompressed { algorithm, level },
            ROW_COMPRESSED if (12..=16).contains(&row[12]) => {
                TableKind::RowCompressed { key_block_size: 1 << (row[12] - 10), level }
            }
            _ => return Err(bad("unknown kind of table")),
        };
        if row[3] > 16 {
            return Err(bad("page size out of range"));
        }
        let options = TableOptions { kind, page_bytes: 1 << row[3] };
        options.check().map_err(|_| bad("page size out of range"))?;
        let decoded =
            Row { id: TableId(u32::from_le_bytes(row[4..8].try_into().expect("four bytes"))), options };
        // A plain table has no algorithm and no level.
        if decoded.encode() != *row {
            return Err(bad("stray bytes"));
        }
        Ok(decoded)
    }
}

/// Refuses names that the catalog cannot hold.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let reason = match name.len() {
        0 => "is empty",
        1..=NAME_BYTES_MAX if name.bytes().all(|byte| byte != 0) => return Ok(()),
        1..=NAME_BYTES_MAX => "holds a NUL",
        _ => "is longer than 255 bytes",
    };
    Err(Error::BadOption { what: "table name", reason: reason.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_and_odd_ones_are_refused() {
        let options = TableOptions::compressed(Algorithm::Zstd).page_bytes(64 << 10);
        for options in [options, TableOptions::default(), TableOptions::row_compressed(8)] {
            let row = Row { id: TableId(77), options };
            assert_eq!(Row::decode("t", &row.encode()).expect("sound"), row);
            for at in [0, 1, 2, 3, 12, 13] {
                let mut bytes = row.encode();
                bytes[at] = 200;
                assert!(Row::decode("t", &bytes).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn names_are_checked() {
        assert!(check_name("linktable").is_ok());
        for bad in ["", "a\0b", &"x".repeat(256)] {
            assert!(check_name(bad).is_err());
        }
    }
}
