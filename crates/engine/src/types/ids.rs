//! Addresses and numbers, a type for each.

use std::fmt;

/// A table's number, unique for the life of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u32);

impl TableId {
    /// The catalog's own table.
    pub(crate) const CATALOG: TableId = TableId(0);
}

/// A page's number within its table's file; its byte offset is this times the table's page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageNo(pub(crate) u64);

/// A page of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageId {
    /// The table it belongs to.
    pub(crate) table: TableId,
    /// Its number in that table's file.
    pub(crate) page: PageNo,
}

/// Log sequence number: a byte offset in the write-ahead log, which only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lsn(pub(crate) u64);

/// A transaction's number: 48 bits, in the order of first writes or locks. 0 is no transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TxnId(pub(crate) u64);

impl TxnId {
    pub(crate) const NONE: TxnId = TxnId(0);
    pub(crate) const MAX: u64 = (1 << 48) - 1;
    /// Greatest number that is taken for one that was counted up to.
    pub(crate) const COUNTED_MAX: u64 = Self::MAX / 2;
}

/// Where an undo record lies: page number times 65,536 plus the offset in the page. 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct UndoPtr(pub(crate) u64);

impl UndoPtr {
    pub(crate) const NONE: UndoPtr = UndoPtr(0);

    pub(crate) fn new(page: PageNo, offset: usize) -> UndoPtr {
        assert!(offset < 1 << 16 && page.0 < 1 << 48);
        UndoPtr(page.0 << 16 | offset as u64)
    }

    pub(crate) fn page(self) -> PageNo {
        PageNo(self.0 >> 16)
    }

    pub(crate) fn offset(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}", self.0)
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} page {}", self.table, self.page.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lsn {}", self.0)
    }
}
