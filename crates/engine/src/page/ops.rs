//! Page operations: the only way in which a page changes, forwards and in recovery alike. Pure.
//!
//! The write-ahead log is a sequence of these. An operation names a position *within* a page by slot or offset
//! (physiological logging), so it may be replayed only on the very page version it was made for; the page's LSN decides
//! that.

use super::kind::set_kind;
pub(crate) use super::kind::{PageKind, kind, lsn};
use crate::{
    page::{
        node::{self, NodeMut},
        overflow, undo, varint,
    },
    types::{PageId, PageNo, TableId, TxnId, UndoPtr},
};
use lacuna_page::{HEADER_BYTES, TRAILER_BYTES};

/// A change to one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageOp<'a> {
    /// Makes the page an empty node.
    Init { level: u16 },
    /// Makes the page one of `kind` with a body of zeros.
    Blank { kind: PageKind },
    /// Inserts a cell.
    Insert { slot: u16, cell: &'a [u8] },
    /// Removes a cell.
    Remove { slot: u16 },
    /// Replaces a cell by one of the same key.
    Replace { slot: u16, cell: &'a [u8] },
    /// Applies a delta to a leaf record's short value, and overwrites transaction and undo pointer.
    Edit { slot: u16, txn: TxnId, undo: UndoPtr, delta: &'a [u8] },
    /// Overwrites a leaf record's flags, transaction and undo pointer.
    Stamp { slot: u16, flags: u8, txn: TxnId, undo: UndoPtr },
    /// Removes all cells from a slot on.
    Truncate { slot: u16 },
    /// Overwrites bytes of the body of a page that is no node.
    Bytes { offset: u16, data: &'a [u8] },
    /// Appends records to a page of them, which also points at their first as the newest of its log if that
    /// `is_newest`.
    Append { is_newest: bool, data: &'a [u8] },
    /// Replaces the page by the content of a block. Only in tables with blocks, whose guards apply it (see `row`).
    Block { data: &'a [u8] },
}

/// An operation that does not fit the page it is applied to, or does not parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadOp(pub(crate) &'static str);

impl PageOp<'_> {
    /// Whether it initialises the page, whatever that held before.
    pub(crate) fn is_making(&self) -> bool {
        matches!(self, PageOp::Init { .. } | PageOp::Blank { .. } | PageOp::Block { .. })
    }

    /// Applies the operation. Sets the header's kind where it changes it; never its LSN.
    pub(crate) fn apply(&self, page: &mut [u8]) -> Result<(), BadOp> {
        let fits = |ok: bool, what| if ok { Ok(()) } else { Err(BadOp(what)) };
        match *self {
            PageOp::Init { level } => {
                NodeMut::init(page, level);
                set_kind(page, PageKind::Node);
                return Ok(());
            }
            PageOp::Blank { kind } => {
                let end = page.len() - TRAILER_BYTES;
                page[HEADER_BYTES..end].fill(0);
                set_kind(page, kind);
                return Ok(());
            }
            PageOp::Bytes { offset, data } => {
                let start = offset as usize;
                let body = HEADER_BYTES..page.len() - TRAILER_BYTES;
                if kind(page) == Some(PageKind::Node) || start < body.start || start + data.len() > body.end {
                    return Err(BadOp("bytes out of the page's body"));
                }
                page[start..start + data.len()].copy_from_slice(data);
                return Ok(());
            }
            PageOp::Append { is_newest, data } => {
                return fits(undo::append(page, is_newest, data), "records do not fit");
            }
            PageOp::Block { .. } => return Err(BadOp("block of a page in a table without blocks")),
            _ => {}
        }
        if kind(page) != Some(PageKind::Node) {
            return Err(BadOp("cell operation on a page that is no node"));
        }
        let mut node = NodeMut::new(page);
        match *self {
            PageOp::Insert { slot, cell } => fits(node.insert(slot as usize, cell), "insert does not fit"),
            PageOp::Remove { slot } => fits(node.remove(slot as usize), "remove of no cell"),
            PageOp::Replace { slot, cell } => fits(node.replace(slot as usize, cell), "replace does not fit"),
            PageOp::Edit { slot, txn, undo, delta } => {
                fits(node.edit(slot as usize, txn, undo, delta), "edit of no such value")
            }
            PageOp::Stamp { slot, flags, txn, undo } => {
                fits(node.stamp(slot as usize, flags, txn, undo), "stamp of no record")
            }
            PageOp::Truncate { slot } => {
                node.truncate(slot as usize);
                Ok(())
            }
            PageOp::Init { .. }
            | PageOp::Blank { .. }
            | PageOp::Bytes { .. }
            | PageOp::Append { .. }
            | PageOp::Block { .. } => {
                unreachable!("handled above")
            }
        }
    }

    /// Appends the operation on `page` to a log record.
    pub(crate) fn encode(&self, page: PageId, out: &mut Vec<u8>) {
        self.encode_with(Some(page), out);
    }

    /// Appends the operation to the log of its page's own block.
    pub(crate) fn encode_in_block(&self, out: &mut Vec<u8>) {
        self.encode_with(None, out);
    }

    fn encode_with(&self, page: Option<PageId>, out: &mut Vec<u8>) {
        let (tag, slot): (u8, Option<u16>) = match *self {
            PageOp::Init { .. } => (1, None),
            PageOp::Blank { .. } => (2, None),
            PageOp::Insert { slot, .. } => (3, Some(slot)),
            PageOp::Remove { slot } => (4, Some(slot)),
            PageOp::Replace { slot, .. } => (5, Some(slot)),
            PageOp::Stamp { slot, .. } => (6, Some(slot)),
            PageOp::Truncate { slot } => (7, Some(slot)),
            PageOp::Bytes { offset, .. } => (8, Some(offset)),
            PageOp::Block { .. } => (9, None),
            PageOp::Edit { slot, .. } => (10, Some(slot)),
            PageOp::Append { .. } => (11, None),
        };
        out.push(tag);
        if let Some(page) = page {
            varint::put(u64::from(page.table.0), out);
            varint::put(page.page.0, out);
        }
        if let Some(slot) = slot {
            out.extend_from_slice(&slot.to_le_bytes());
        }
        match *self {
            PageOp::Init { level } => out.extend_from_slice(&level.to_le_bytes()),
            PageOp::Blank { kind } => out.push(kind as u8),
            PageOp::Insert { cell: data, .. }
            | PageOp::Replace { cell: data, .. }
            | PageOp::Bytes { data, .. }
            | PageOp::Block { data } => {
                varint::put(data.len() as u64, out);
                out.extend_from_slice(data);
            }
            PageOp::Append { is_newest, data } => {
                out.push(u8::from(is_newest));
                varint::put(data.len() as u64, out);
                out.extend_from_slice(data);
            }
            PageOp::Edit { txn, undo, delta, .. } => {
                out.extend_from_slice(&txn.0.to_le_bytes()[..6]);
                out.extend_from_slice(&undo.0.to_le_bytes());
                varint::put(delta.len() as u64, out);
                out.extend_from_slice(delta);
            }
            PageOp::Stamp { flags, txn, undo, .. } => {
                out.push(flags);
                out.extend_from_slice(&txn.0.to_le_bytes()[..6]);
                out.extend_from_slice(&undo.0.to_le_bytes());
            }
            PageOp::Remove { .. } | PageOp::Truncate { .. } => {}
        }
    }
}

/// Checks a page just read from a device against the invariants of its kind.
pub(crate) fn validate(page: &[u8]) -> Result<(), &'static str> {
    match kind(page) {
        Some(PageKind::Node) => node::validate(page),
        Some(PageKind::Overflow) => overflow::Link::parse(page).map(|_| ()),
        Some(PageKind::Undo) => undo::validate(page),
        Some(PageKind::Space | PageKind::Free | PageKind::Hole) => Ok(()),
        None => Err("unknown page kind"),
    }
}

/// Reads operations one after the other out of a log record.
pub(crate) struct OpReader<'a> {
    bytes: &'a [u8],
}

impl<'a> OpReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> OpReader<'a> {
        OpReader { bytes }
    }

    /// The next operation's page, and the operation as it is encoded.
    pub(crate) fn next_encoded(&mut self) -> Option<Result<(PageId, &'a [u8]), BadOp>> {
        let before = self.bytes;
        let item = self.next()?;
        Some(item.map(|(page, _)| (page, &before[..before.len() - self.bytes.len()])))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], BadOp> {
        let (head, rest) = self.bytes.split_at_checked(count).ok_or(BadOp("log record cut short"))?;
        self.bytes = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadOp> {
        Ok(self.take(N)?.try_into().expect("took N bytes"))
    }

    fn varint(&mut self) -> Result<u64, BadOp> {
        varint::take(&mut self.bytes).ok_or(BadOp("number cut short or too long"))
    }

    fn txn(&mut self) -> Result<TxnId, BadOp> {
        let mut txn = [0; 8];
        txn[..6].copy_from_slice(self.take(6)?);
        Ok(TxnId(u64::from_le_bytes(txn)))
    }

    fn data(&mut self) -> Result<&'a [u8], BadOp> {
        let len = usize::try_from(self.varint()?).map_err(|_| BadOp("length too long"))?;
        self.take(len)
    }

    fn next_op(&mut self) -> Result<(PageId, PageOp<'a>), BadOp> {
        let [tag] = self.array()?;
        let table = TableId(u32::try_from(self.varint()?).map_err(|_| BadOp("table number too long"))?);
        let page = PageId { table, page: PageNo(self.varint()?) };
        Ok((page, self.rest(tag)?))
    }

    /// The fields after tag and page.
    fn rest(&mut self, tag: u8) -> Result<PageOp<'a>, BadOp> {
        if tag == 1 {
            return Ok(PageOp::Init { level: u16::from_le_bytes(self.array()?) });
        }
        if tag == 9 {
            return Ok(PageOp::Block { data: self.data()? });
        }
        if tag == 2 {
            let [kind] = self.array()?;
            // A blank page is no node: that takes `Init`.
            let kind = PageKind::from_u8(kind).filter(|kind| *kind != PageKind::Node);
            let kind = kind.ok_or(BadOp("blank page of an impossible kind"))?;
            return Ok(PageOp::Blank { kind });
        }
        if tag == 11 {
            let [flags] = self.array()?;
            let is_newest = matches!(flags, 0 | 1).then_some(flags == 1).ok_or(BadOp("unknown flags"))?;
            return Ok(PageOp::Append { is_newest, data: self.data()? });
        }
        let slot = u16::from_le_bytes(self.array()?);
        Ok(match tag {
            3 => PageOp::Insert { slot, cell: self.data()? },
            4 => PageOp::Remove { slot },
            5 => PageOp::Replace { slot, cell: self.data()? },
            6 => {
                let [flags] = self.array()?;
                let txn = self.txn()?;
                PageOp::Stamp { slot, flags, txn, undo: UndoPtr(u64::from_le_bytes(self.array()?)) }
            }
            7 => PageOp::Truncate { slot },
            8 => PageOp::Bytes { offset: slot, data: self.data()? },
            10 => {
                let txn = self.txn()?;
                let undo = UndoPtr(u64::from_le_bytes(self.array()?));
                PageOp::Edit { slot, txn, undo, delta: self.data()? }
            }
            _ => return Err(BadOp("unknown operation")),
        })
    }
}

/// Reads operations out of the log of a block.
pub(crate) struct BlockOps<'a>(OpReader<'a>);

impl<'a> BlockOps<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> BlockOps<'a> {
        BlockOps(OpReader::new(bytes))
    }
}

impl<'a> Iterator for BlockOps<'a> {
    type Item = Result<PageOp<'a>, BadOp>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.bytes.is_empty() {
            return None;
        }
        let item = self.0.array().and_then(|[tag]| self.0.rest(tag));
        if item.is_err() {
            self.0.bytes = &[];
        }
        Some(item)
    }
}

impl<'a> Iterator for OpReader<'a> {
    type Item = Result<(PageId, PageOp<'a>), BadOp>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let item = self.next_op();
        if item.is_err() {
            self.bytes = &[];
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn operations_survive_the_log() {
        let page = PageId { table: TableId(300), page: PageNo(1 << 40) };
        let ops = [
            PageOp::Init { level: 3 },
            PageOp::Blank { kind: PageKind::Undo },
            PageOp::Insert { slot: 7, cell: b"cell" },
            PageOp::Remove { slot: 1 },
            PageOp::Replace { slot: 2, cell: &[0; 300] },
            PageOp::Stamp { slot: 3, flags: 1, txn: TxnId(TxnId::MAX), undo: UndoPtr(u64::MAX) },
            PageOp::Truncate { slot: 9 },
            PageOp::Bytes { offset: 64, data: b"bytes" },
            PageOp::Block { data: b"block" },
            PageOp::Edit { slot: 5, txn: TxnId(1 << 40), undo: UndoPtr(7), delta: &[1; 200] },
            PageOp::Append { is_newest: true, data: b"records" },
            PageOp::Append { is_newest: false, data: b"" },
        ];
        let mut log = Vec::new();
        for op in &ops {
            op.encode(page, &mut log);
        }
        let got: Vec<_> = OpReader::new(&log).map(|r| r.expect("parses")).collect();
        assert_eq!(got, ops.map(|op| (page, op)));
        log.clear();
        ops.iter().for_each(|op| op.encode_in_block(&mut log));
        let got: Vec<_> = BlockOps::new(&log).map(|r| r.expect("parses")).collect();
        assert_eq!(got, ops);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut page = vec![0; 4096];
            PageOp::Init { level: 0 }.apply(&mut page).expect("fits");
            for item in OpReader::new(&bytes) {
                let Ok((_, op)) = item else { break };
                // Cells are covered by the group's checksum and not checked here: only well-formed ones count.
                if !matches!(op, PageOp::Insert { .. } | PageOp::Replace { .. }) {
                    let _ = op.apply(&mut page);
                }
            }
        }
    }
}
