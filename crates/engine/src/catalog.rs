//! The catalog: which tables there are, in a table of its own (table 0).
//!
//! A row: the table's name to its number, page size, kind, algorithm and level, whether it follows the
//! store's defaults, whether its pages are written twice, and whether they are encrypted. These have a row of their own, under the empty name. Rows are written by
//! ordinary transactions. A table's file is made before its row is committed, and removed after the row's
//! removal is durable; a file without a row is removed when the store is opened. So a crash leaves a table
//! whole or not at all.

use std::borrow::Cow;

use lacuna_page::{Algorithm, Codec};

use crate::types::{Doublewrite, Error, Result, TableId, TableKind, TableOptions};

/// Its page size.
pub(crate) const CATALOG_PAGE_BYTES: usize = 16 << 10;
/// Number of the first table that a user makes.
pub(crate) const FIRST_TABLE: TableId = TableId(16);
/// Longest name in bytes.
const NAME_BYTES_MAX: usize = 255;

const VERSION: u8 = 1;
const ROW_BYTES: usize = 16;
const PLAIN: u8 = 0;
const PAGE_COMPRESSED: u8 = 1;
const ROW_COMPRESSED: u8 = 2;
const ADAPTIVE: u8 = 3;
/// Key of the row that holds the store's defaults; no table has this name.
pub(crate) const DEFAULTS: &str = "";

/// A table as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: TableId,
    /// In force, whether its own or the store's.
    pub(crate) options: TableOptions,
    /// It follows the store's defaults.
    pub(crate) inherits: bool,
}

impl Row {
    pub(crate) fn encode(&self) -> [u8; ROW_BYTES] {
        let (kind, codec) = match self.options.kind {
            TableKind::Plain => (PLAIN, Codec::PLAIN),
            TableKind::PageCompressed { algorithm, level } => (PAGE_COMPRESSED, Codec { algorithm, level }),
            TableKind::Adaptive { level } => (ADAPTIVE, Codec { level, ..Codec::PLAIN }),
            // Rows of before there was another algorithm name none.
            TableKind::RowCompressed { algorithm: Algorithm::Zlib, level, .. } => {
                (ROW_COMPRESSED, Codec { level, ..Codec::PLAIN })
            }
            TableKind::RowCompressed { algorithm, level, .. } => (ROW_COMPRESSED, Codec { algorithm, level }),
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
        row[13] = self.inherits.into();
        row[14] = self.options.doublewrite as u8;
        row[15] = self.options.encrypted.into();
        row
    }

    /// Takes over the default kind, unless the table follows none or was made in another layout. Returns whether it
    /// did.
    pub(crate) fn follow(&mut self, kind: TableKind) -> bool {
        let options = TableOptions { kind, ..self.options };
        let follows =
            self.inherits && options.check_stored().is_ok() && options.layout() == self.options.layout();
        if follows {
            self.options = options;
        }
        follows
    }

    pub(crate) fn decode(name: &str, row: &[u8]) -> Result<Row> {
        let bad = |reason: &str| bad_row(name, reason);
        let row: &[u8; ROW_BYTES] = row.try_into().map_err(|_| bad("row has a wrong length"))?;
        if row[0] != VERSION || row[13] > 1 || row[15] > 1 || (row[1] != ROW_COMPRESSED && row[12] != 0) {
            return Err(bad("row of an unknown version"));
        }
        let algorithm = Algorithm::try_from(row[2]).map_err(|_| bad("unknown algorithm"))?;
        let level = i32::from_le_bytes(row[8..12].try_into().expect("four bytes"));
        let kind = match row[1] {
            PLAIN => TableKind::Plain,
            PAGE_COMPRESSED => TableKind::PageCompressed { algorithm, level },
            ADAPTIVE => TableKind::Adaptive { level },
            ROW_COMPRESSED if (10..=16).contains(&row[12]) => {
                let algorithm = if algorithm == Algorithm::None { Algorithm::Zlib } else { algorithm };
                TableKind::RowCompressed { key_block_size: 1 << (row[12] - 10), algorithm, level }
            }
            _ => return Err(bad("unknown kind of table")),
        };
        if row[3] > 16 {
            return Err(bad("page size out of range"));
        }
        let doublewrite =
            Doublewrite::from_byte(row[14]).ok_or_else(|| bad("unknown doublewrite setting"))?;
        let options = TableOptions { kind, page_bytes: 1 << row[3], doublewrite, encrypted: row[15] == 1 };
        options.check_stored().map_err(|_| bad("options out of range"))?;
        let id = TableId(u32::from_le_bytes(row[4..8].try_into().expect("four bytes")));
        let decoded = Row { id, options, inherits: row[13] == 1 };
        // A plain table has no algorithm and no level.
        if decoded.encode() != *row {
            return Err(bad("stray bytes"));
        }
        let is_named = if name == DEFAULTS { id == TableId::CATALOG } else { id >= FIRST_TABLE };
        is_named.then_some(decoded).ok_or_else(|| bad(&format!("number {} is not for tables", id.0)))
    }
}

/// A row that no version writes.
pub(crate) fn bad_row(name: &str, reason: impl Into<String>) -> Error {
    Error::Corrupt { what: "catalog".into(), at: format!("table {name}"), reason: reason.into() }
}

/// The name under which a row is stored, [`DEFAULTS`] included.
pub(crate) fn decode_name(key: &[u8]) -> Result<String> {
    let name = String::from_utf8_lossy(key);
    let is_a_name = matches!(name, Cow::Borrowed(DEFAULTS)) || check_name(&name).is_ok();
    match name {
        Cow::Borrowed(name) if is_a_name => Ok(name.into()),
        name => Err(bad_row(&name, "not a name that a table can have")),
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
    use lacuna_sim::SimVfs;

    use super::*;
    use crate::{Store, StoreOptions};

    #[test]
    fn rows_survive_and_odd_ones_are_refused() {
        let options = TableOptions::compressed(Algorithm::Zstd).page_bytes(64 << 10);
        let twice = TableOptions { doublewrite: Doublewrite::On, ..TableOptions::default() };
        let row_compressed = TableOptions::row_compressed(8);
        let row_lz4 = TableKind::RowCompressed { key_block_size: 4, algorithm: Algorithm::Lz4, level: -7 };
        for options in [
            options,
            TableOptions::default(),
            row_compressed,
            TableOptions { kind: row_lz4, ..row_compressed },
            twice,
            options.encrypted(),
            TableOptions { kind: TableKind::Adaptive { level: 9 }, ..twice },
        ] {
            let row = Row { id: TableId(77), options, inherits: options == TableOptions::default() };
            assert_eq!(Row::decode("t", &row.encode()).expect("sound"), row);
            for at in [0, 1, 2, 3, 12, 13, 14, 15] {
                let mut bytes = row.encode();
                bytes[at] = 200;
                assert!(Row::decode("t", &bytes).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn a_table_follows_what_its_layout_allows() {
        let [lz4, row_8, row_4] = [
            TableOptions::compressed(Algorithm::Lz4),
            TableOptions::row_compressed(8),
            TableOptions::row_compressed(4),
        ];
        let row_9 = TableKind::RowCompressed { key_block_size: 8, algorithm: Algorithm::Lz4, level: 9 };
        for (options, kind, follows) in [
            (TableOptions::default(), lz4.kind, true),
            (lz4, TableKind::Plain, true),
            (lz4, row_8.kind, false),
            (row_8, TableKind::Plain, false),
            (row_8, row_9, true),
            (row_8, row_4.kind, false),
            (lz4.page_bytes(4096), row_8.kind, false),
        ] {
            for inherits in [false, true] {
                let mut row = Row { id: TableId(77), options, inherits };
                assert_eq!(row.follow(kind), follows && inherits, "{options:?}, {kind:?}");
                assert_eq!(row.options.kind == kind, follows && inherits);
                assert_eq!(row.options.layout(), options.layout());
            }
        }
    }

    /// Else the checkpoint could pass them, and a file that a crash brings back would lack its base.
    #[test]
    fn pages_of_a_table_stay_dirty_until_its_file_is_gone_for_good() {
        for cut in 1..4 {
            let vfs = SimVfs::new(cut);
            let options = StoreOptions { background: false, ..StoreOptions::default() };
            let store = Store::open(vfs.clone(), options).expect("open");
            let table = store.create_table("t", TableOptions::default()).expect("create");
            let engine = table.engine();
            store.checkpoint().expect("checkpoint");
            let mut txn = store.begin();
            txn.put(&table, b"k", b"v").expect("put");
            txn.commit().expect("commit");
            let before = engine.pager().pool().dirty().dirty_bytes();
            // In the removal, in the sync, and in the step that frees the space of an open file.
            vfs.set_cut_after(cut);
            let outcome = engine.remove_file(table.space());
            assert_eq!(outcome.is_ok(), cut == 3);
            assert_eq!(engine.pager().pool().dirty().dirty_bytes() < before, cut == 3, "cut {cut}");
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
