//! B+tree nodes: the layout of one page, and nothing else. Pure.
//!
//! ```text
//! 0        64            96                heap_end        slots          end-8
//! | header | node header | cells, any order | free space ... | u16 offsets | trailer |
//! ```
//!
//! The page header (bytes 0 to 64) and trailer belong to the `page` crate. Slots are sorted by key
//! and grow downwards from the trailer; each holds the byte offset of its cell. A removed cell
//! becomes garbage until the node is compacted.
//!
//! Invariants (checked by [`validate`] whenever a page is read from a device, and kept after):
//!
//! 1. Every slot points at a cell that lies whole within `96 .. heap_end`, and cells do not overlap:
//!    their lengths and `garbage` add up to `heap_end - 96`.
//! 2. Keys strictly ascend by slot.
//! 3. A leaf record with the flag `OVERFLOW` holds a sound reference; there are no flags but the known.
//! 4. In an inner node there is at least one cell and the first key is empty (minus infinity); the
//!    child of cell `i` holds the keys in `key[i] .. key[i+1]`.

mod packed;

use std::cmp::Ordering;

use lacuna_page::{HEADER_BYTES, TRAILER_BYTES};

use crate::{
    page::{delta, overflow::Reference, u32_at, u64_at},
    types::{PageNo, TxnId, UndoPtr},
};

#[cfg(test)]
pub(crate) use packed::LAYOUT as PACKED_LAYOUT;
pub(crate) use packed::{breaks_repeats, pack, unpack};

/// First byte of the node header.
const BASE: usize = HEADER_BYTES;
const LEVEL: usize = BASE;
const COUNT: usize = BASE + 2;
const HEAP_END: usize = BASE + 4;
const GARBAGE: usize = BASE + 8;
const LAST_INSERT: usize = BASE + 12;
const INSERT_RUN: usize = BASE + 14;
/// First byte of the cells.
pub(crate) const CELLS: usize = BASE + 32;

/// Bytes in front of a leaf cell's key: flags, key length, value length, transaction, undo pointer.
pub(crate) const LEAF_CELL_HEADER: usize = 1 + 2 + 2 + 6 + 8;
/// Bytes in front of an inner cell's key: key length, child.
pub(crate) const INNER_CELL_HEADER: usize = 2 + 8;
/// Offsets in a leaf cell.
const CELL_KEY_BYTES: usize = 1;
const CELL_VALUE_BYTES: usize = 3;
const CELL_TXN: usize = 5;
const CELL_UNDO: usize = 11;
/// Bytes of a slot.
pub(crate) const SLOT: usize = 2;

/// Leaf record flag: deleted, kept only until it is purged.
pub(crate) const DELETED: u8 = 1;
/// Leaf record flag: the value is long, and the leaf holds a reference to it.
pub(crate) const OVERFLOW: u8 = 2;

/// Longest key of a table with that page size, in bytes.
pub(crate) fn key_bytes_max(page_bytes: usize) -> usize {
    page_bytes / 8
}

/// Longest value kept in a leaf, in bytes.
pub(crate) fn value_bytes_max(page_bytes: usize) -> usize {
    page_bytes / 4
}

/// Space that an inner node needs to take any separator.
pub(crate) fn inner_cell_bytes_max(page_bytes: usize) -> usize {
    INNER_CELL_HEADER + key_bytes_max(page_bytes) + SLOT
}

/// Bytes for cells and slots in an empty node.
pub(crate) fn capacity(page_bytes: usize) -> usize {
    page_bytes - TRAILER_BYTES - CELLS
}

/// The first bytes of a key: where those of two keys differ, the keys compare the same way. Comparing them costs less
/// than a call.
#[inline]
fn head(key: &[u8]) -> u64 {
    match key.first_chunk() {
        Some(head) => u64::from_be_bytes(*head),
        None => key.iter().rev().fold(0, |head, byte| head >> 8 | u64::from(*byte) << 56),
    }
}

fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(page[at..at + 2].try_into().expect("two bytes"))
}

fn u48_at(page: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..6].copy_from_slice(&page[at..at + 6]);
    u64::from_le_bytes(bytes)
}

/// A record as it lies in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafCell<'a> {
    pub(crate) flags: u8,
    pub(crate) txn: TxnId,
    pub(crate) undo: UndoPtr,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

impl<'a> LeafCell<'a> {
    pub(crate) fn is_deleted(&self) -> bool {
        self.flags & DELETED != 0
    }

    /// The reference in place of a long value.
    pub(crate) fn reference(&self) -> Option<Reference> {
        let is_long = self.flags & OVERFLOW != 0;
        is_long.then(|| Reference::parse(self.value).expect("invariant 3"))
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.flags);
        out.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        out.extend_from_slice(&(self.value.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.txn.0.to_le_bytes()[..6]);
        out.extend_from_slice(&self.undo.0.to_le_bytes());
        out.extend_from_slice(self.key);
        out.extend_from_slice(self.value);
    }

    /// Reads a cell from the start of `bytes`; `None` when it does not fit in there.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<LeafCell<'a>> {
        if bytes.len() < LEAF_CELL_HEADER {
            return None;
        }
        let key_end = LEAF_CELL_HEADER + u16_at(bytes, CELL_KEY_BYTES) as usize;
        let value_end = key_end + u16_at(bytes, CELL_VALUE_BYTES) as usize;
        Some(LeafCell {
            flags: bytes[0],
            txn: TxnId(u48_at(bytes, CELL_TXN)),
            undo: UndoPtr(u64_at(bytes, CELL_UNDO)),
            key: bytes.get(LEAF_CELL_HEADER..key_end)?,
            value: bytes.get(key_end..value_end)?,
        })
    }
}

/// Encodes an inner cell.
pub(crate) fn encode_inner(key: &[u8], child: PageNo, out: &mut Vec<u8>) {
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(&child.0.to_le_bytes());
    out.extend_from_slice(key);
}

/// The key of the inner cell at the start of `bytes`; `None` when it does not fit in there.
fn inner_key(bytes: &[u8]) -> Option<&[u8]> {
    let (header, rest) = bytes.split_at_checked(INNER_CELL_HEADER)?;
    rest.get(..u16_at(header, 0) as usize)
}

/// A node for reading.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    page: &'a [u8],
}

impl<'a> Node<'a> {
    /// The page's number.
    pub(crate) fn number(&self) -> PageNo {
        PageNo(lacuna_page::read_meta(self.page).page_no)
    }

    /// Looks at a page that [`validate`] accepted.
    pub(crate) fn new(page: &'a [u8]) -> Node<'a> {
        Node { page }
    }

    pub(crate) fn level(self) -> u16 {
        u16_at(self.page, LEVEL)
    }

    pub(crate) fn is_leaf(self) -> bool {
        self.level() == 0
    }

    pub(crate) fn count(self) -> usize {
        u16_at(self.page, COUNT) as usize
    }

    fn heap_end(self) -> usize {
        u32_at(self.page, HEAP_END) as usize
    }

    fn garbage(self) -> usize {
        u32_at(self.page, GARBAGE) as usize
    }

    /// Whether keys have lately been inserted one right after the other, and the slot that the
    /// next one of the run would take.
    pub(crate) fn insert_run(self) -> (u16, usize) {
        (u16_at(self.page, INSERT_RUN), u16_at(self.page, LAST_INSERT) as usize + 1)
    }

    fn slot_at(self, slot: usize) -> usize {
        self.page.len() - TRAILER_BYTES - SLOT * (slot + 1)
    }

    fn cell_at(self, slot: usize) -> usize {
        u16_at(self.page, self.slot_at(slot)) as usize
    }

    fn contiguous(self) -> usize {
        self.page.len() - TRAILER_BYTES - SLOT * self.count() - self.heap_end()
    }

    /// Free bytes, garbage included: a cell fits when it and its slot are no longer.
    pub(crate) fn free(self) -> usize {
        self.contiguous() + self.garbage()
    }

    /// Bytes of live cells and slots.
    pub(crate) fn used(self) -> usize {
        capacity(self.page.len()) - self.free()
    }

    /// The cell of that slot, encoded.
    pub(crate) fn cell(self, slot: usize) -> &'a [u8] {
        let at = self.cell_at(slot);
        let bytes = self.cell_bytes(at);
        &self.page[at..at + bytes]
    }

    fn cell_bytes(self, at: usize) -> usize {
        if self.is_leaf() {
            LEAF_CELL_HEADER
                + u16_at(self.page, at + CELL_KEY_BYTES) as usize
                + u16_at(self.page, at + CELL_VALUE_BYTES) as usize
        } else {
            INNER_CELL_HEADER + u16_at(self.page, at) as usize
        }
    }

    #[inline]
    pub(crate) fn key(self, slot: usize) -> &'a [u8] {
        let at = self.cell_at(slot);
        if self.is_leaf() {
            let start = at + LEAF_CELL_HEADER;
            &self.page[start..start + u16_at(self.page, at + CELL_KEY_BYTES) as usize]
        } else {
            let start = at + INNER_CELL_HEADER;
            &self.page[start..start + u16_at(self.page, at) as usize]
        }
    }

    pub(crate) fn leaf_cell(self, slot: usize) -> LeafCell<'a> {
        assert!(self.is_leaf());
        LeafCell::parse(&self.page[self.cell_at(slot)..]).expect("invariant 1")
    }

    pub(crate) fn child(self, slot: usize) -> PageNo {
        assert!(!self.is_leaf());
        PageNo(u64_at(self.page, self.cell_at(slot) + 2))
    }

    /// The slot of `key`, or else the slot it would take.
    pub(crate) fn search(self, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.count());
        let wanted = head(key);
        while low < high {
            let middle = (low + high) / 2;
            let found = self.key(middle);
            match head(found).cmp(&wanted).then_with(|| found.cmp(key)) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// In an inner node: the slot whose child holds `key`.
    pub(crate) fn child_slot(self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(slot) => slot,
            Err(slot) => slot.checked_sub(1).expect("invariant 4"),
        }
    }
}

/// A node for changing.
pub(crate) struct NodeMut<'a> {
    page: &'a mut [u8],
}

impl<'a> NodeMut<'a> {
    /// Takes a page that is a node.
    pub(crate) fn new(page: &'a mut [u8]) -> NodeMut<'a> {
        NodeMut { page }
    }

    /// Makes the page's body an empty node.
    pub(crate) fn init(page: &'a mut [u8], level: u16) -> NodeMut<'a> {
        let end = page.len() - TRAILER_BYTES;
        page[BASE..end].fill(0);
        let mut node = NodeMut { page };
        node.put_u16(LEVEL, level);
        node.put_u32(HEAP_END, CELLS);
        node
    }

    pub(crate) fn view(&self) -> Node<'_> {
        Node { page: self.page }
    }

    fn put_u16(&mut self, at: usize, value: u16) {
        self.page[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn put_u32(&mut self, at: usize, value: usize) {
        self.page[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
    }

    /// Inserts an encoded cell at `slot`; false when it does not fit.
    #[must_use]
    pub(crate) fn insert(&mut self, slot: usize, cell: &[u8]) -> bool {
        let count = self.view().count();
        if slot > count || cell.len() + SLOT > self.view().free() {
            return false;
        }
        if cell.len() + SLOT > self.view().contiguous() {
            self.compact();
        }
        let at = self.append(cell);
        let low = self.page.len() - TRAILER_BYTES - SLOT * (count + 1);
        let end = self.view().slot_at(slot) + SLOT;
        self.page.copy_within(low + SLOT..end, low);
        self.put_u16(end - SLOT, at);
        self.put_u16(COUNT, count as u16 + 1);
        let (run, next) = self.view().insert_run();
        self.put_u16(INSERT_RUN, if slot == next { run.saturating_add(1) } else { 0 });
        self.put_u16(LAST_INSERT, slot as u16);
        true
    }

    /// Puts the cell after the heap, where there is space for it.
    fn append(&mut self, cell: &[u8]) -> u16 {
        let at = self.view().heap_end();
        self.page[at..at + cell.len()].copy_from_slice(cell);
        self.put_u32(HEAP_END, at + cell.len());
        u16::try_from(at).expect("offsets of pages up to 64 KiB fit")
    }

    fn free_cell(&mut self, slot: usize) {
        let at = self.view().cell_at(slot);
        let bytes = self.view().cell_bytes(at);
        let garbage = self.view().garbage() + bytes;
        self.put_u32(GARBAGE, garbage);
    }

    /// Removes the cell at `slot`; false when there is none.
    #[must_use]
    pub(crate) fn remove(&mut self, slot: usize) -> bool {
        let count = self.view().count();
        if slot >= count {
            return false;
        }
        self.free_cell(slot);
        let low = self.view().slot_at(count - 1);
        let at = self.view().slot_at(slot);
        self.page.copy_within(low..at, low + SLOT);
        self.put_u16(COUNT, count as u16 - 1);
        let last = u16_at(self.page, LAST_INSERT);
        if usize::from(last) >= slot {
            self.put_u16(LAST_INSERT, last.saturating_sub(1));
        }
        true
    }

    /// Replaces the cell at `slot` by one with the same key; false when it does not fit.
    #[must_use]
    pub(crate) fn replace(&mut self, slot: usize, cell: &[u8]) -> bool {
        if slot >= self.view().count() {
            return false;
        }
        let at = self.view().cell_at(slot);
        let old_bytes = self.view().cell_bytes(at);
        if old_bytes == cell.len() {
            self.page[at..at + old_bytes].copy_from_slice(cell);
            return true;
        }
        if cell.len() > self.view().free() + old_bytes {
            return false;
        }
        self.free_cell(slot);
        if cell.len() > self.view().contiguous() {
            // The slot's old cell must not be carried over.
            let count = self.view().count();
            let mut kept: Vec<usize> = (0..count).collect();
            kept.remove(slot);
            self.compact_slots(&kept, slot);
        }
        let at = self.append(cell);
        let slot_at = self.view().slot_at(slot);
        self.put_u16(slot_at, at);
        true
    }

    /// Removes all cells from `slot` on.
    pub(crate) fn truncate(&mut self, slot: usize) {
        let count = self.view().count();
        for i in slot..count {
            self.free_cell(i);
        }
        self.put_u16(COUNT, slot.min(count) as u16);
        self.compact();
    }

    /// Applies a delta to the value of a leaf record, and overwrites transaction and undo pointer; false when it is
    /// not of such a value.
    #[must_use]
    pub(crate) fn edit(&mut self, slot: usize, txn: TxnId, undo: UndoPtr, edits: &[u8]) -> bool {
        if slot >= self.view().count() || !self.view().is_leaf() {
            return false;
        }
        let at = self.view().cell_at(slot);
        let end = at + self.view().cell_bytes(at);
        let value = end - u16_at(self.page, at + CELL_VALUE_BYTES) as usize;
        let flags = self.page[at];
        if flags & OVERFLOW != 0 || delta::apply(edits, &mut self.page[value..end]).is_none() {
            return false;
        }
        self.stamp(slot, flags, txn, undo)
    }

    /// Overwrites flags, transaction and undo pointer of a leaf record.
    #[must_use]
    pub(crate) fn stamp(&mut self, slot: usize, flags: u8, txn: TxnId, undo: UndoPtr) -> bool {
        if slot >= self.view().count() || !self.view().is_leaf() {
            return false;
        }
        let at = self.view().cell_at(slot);
        self.page[at] = flags;
        self.page[at + CELL_TXN..at + CELL_UNDO].copy_from_slice(&txn.0.to_le_bytes()[..6]);
        self.page[at + CELL_UNDO..at + LEAF_CELL_HEADER].copy_from_slice(&undo.0.to_le_bytes());
        true
    }

    /// Lays the cells out in key order without garbage, and zeroes all free space.
    pub(crate) fn compact(&mut self) {
        let all: Vec<usize> = (0..self.view().count()).collect();
        self.compact_slots(&all, usize::MAX);
    }

    /// Keeps only the cells of the slots in `kept`; the slot `dropped` stays without a cell.
    fn compact_slots(&mut self, kept: &[usize], dropped: usize) {
        let mut heap = Vec::with_capacity(self.view().heap_end() - CELLS);
        for &slot in kept {
            let at = CELLS + heap.len();
            heap.extend_from_slice(self.view().cell(slot));
            let slot_at = self.view().slot_at(slot);
            self.put_u16(slot_at, at as u16);
        }
        debug_assert!(kept.len() + usize::from(dropped != usize::MAX) == self.view().count());
        let end = CELLS + heap.len();
        self.page[CELLS..end].copy_from_slice(&heap);
        let low = self.page.len() - TRAILER_BYTES - SLOT * self.view().count();
        self.page[end..low].fill(0);
        self.put_u32(HEAP_END, end);
        self.put_u32(GARBAGE, 0);
    }
}

/// Where the zeros between cells and slots of a tidied node start and end.
pub(crate) fn gap(page: &[u8]) -> (usize, usize) {
    let node = Node::new(page);
    (node.heap_end(), page.len() - TRAILER_BYTES - SLOT * node.count())
}

/// Copies a node as [`NodeMut::compact`] would leave it, in one pass, so that an image of it compresses well.
/// Cells that follow each other in the page already, as they do in one that came from a device, are copied
/// together.
pub(crate) fn copy_tidied(page: &[u8], out: &mut [u8]) {
    let node = Node::new(page);
    let low = page.len() - TRAILER_BYTES - SLOT * node.count();
    out[..CELLS].copy_from_slice(&page[..CELLS]);
    out[page.len() - TRAILER_BYTES..].copy_from_slice(&page[page.len() - TRAILER_BYTES..]);
    let mut end = CELLS;
    // Cells that were not copied yet, and will lie before `end`.
    let mut run = CELLS..CELLS;
    for slot in 0..node.count() {
        let at = node.cell_at(slot);
        if at != run.end {
            out[end - run.len()..end].copy_from_slice(&page[run.clone()]);
            run = at..at;
        }
        let slot_at = node.slot_at(slot);
        out[slot_at..slot_at + SLOT].copy_from_slice(&(end as u16).to_le_bytes());
        let bytes = node.cell_bytes(at);
        run.end += bytes;
        end += bytes;
    }
    out[end - run.len()..end].copy_from_slice(&page[run]);
    out[end..low].fill(0);
    let mut copy = NodeMut::new(out);
    copy.put_u32(HEAP_END, end);
    copy.put_u32(GARBAGE, 0);
}

/// Makes the short records of a leaf that are not deleted name no transaction less than `settled`.
pub(crate) fn forget_writers(page: &mut [u8], settled: TxnId) {
    if !Node::new(page).is_leaf() {
        return;
    }
    for slot in 0..Node::new(page).count() {
        let at = Node::new(page).cell_at(slot);
        if page[at] == 0 && u48_at(page, at + CELL_TXN) < settled.0 {
            page[at + CELL_TXN..at + LEAF_CELL_HEADER].fill(0);
        }
    }
}

/// Checks the invariants of a page that claims to be a node. The error says what is wrong.
pub(crate) fn validate(page: &[u8]) -> Result<(), &'static str> {
    let node = Node::new(page);
    let slots_end = page.len() - TRAILER_BYTES;
    let count = node.count();
    if CELLS + SLOT * count > slots_end {
        return Err("more slots than a page holds");
    }
    let slots_low = slots_end - SLOT * count;
    let heap_end = node.heap_end();
    if heap_end < CELLS || heap_end > slots_low {
        return Err("end of cells out of range");
    }
    // Splits count on these.
    let (key_max, value_max) = (key_bytes_max(page.len()), value_bytes_max(page.len()));
    // Every page read comes through here, with hundreds of cells: each cell is visited once.
    let (heap, is_leaf) = (&page[..heap_end], node.is_leaf());
    let (mut bytes, mut last) = (0, None);
    for slot in page[slots_low..slots_end].rchunks_exact(SLOT) {
        let at = u16_at(slot, 0) as usize;
        let cell = heap.get(at..).filter(|_| at >= CELLS).unwrap_or_default();
        let key = if is_leaf {
            let cell = LeafCell::parse(cell).ok_or("cell out of range")?;
            if !has_sound_flags(cell) {
                return Err("record with unknown flags or a bad reference");
            }
            if cell.value.len() > value_max {
                return Err("value longer than a leaf takes");
            }
            bytes += LEAF_CELL_HEADER + cell.key.len() + cell.value.len();
            cell.key
        } else {
            let key = inner_key(cell).ok_or("cell out of range")?;
            bytes += INNER_CELL_HEADER + key.len();
            key
        };
        if key.len() > key_max {
            return Err("key longer than a page takes");
        }
        if last.is_some_and(|last| last >= key) {
            return Err("keys out of order");
        }
        last = Some(key);
    }
    if bytes + node.garbage() != heap_end - CELLS {
        return Err("cells do not add up");
    }
    if !node.is_leaf() && (count == 0 || !node.key(0).is_empty()) {
        return Err("inner node without a first child");
    }
    Ok(())
}

/// Invariant 3.
fn has_sound_flags(cell: LeafCell<'_>) -> bool {
    let is_long = cell.flags & OVERFLOW != 0;
    cell.flags & !(DELETED | OVERFLOW) == 0 && (!is_long || Reference::parse(cell.value).is_some())
}

/// The shortest key `k` with `left < k <= right`, as a prefix of `right`.
pub(crate) fn separator<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    debug_assert!(left < right);
    let common = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    &right[..common + 1]
}

/// Rows of FORMAT.md: structure, offset, bytes, field.
#[cfg(test)]
pub(crate) const LAYOUT: &[(&str, usize, usize, &str)] = &[
    ("node", LEVEL, 2, "level"),
    ("node", COUNT, 2, "count"),
    ("node", HEAP_END, 4, "heap_end"),
    ("node", GARBAGE, 4, "garbage"),
    ("node", LAST_INSERT, 2, "last_insert"),
    ("node", INSERT_RUN, 2, "insert_run"),
    ("node", INSERT_RUN + 2, 16, "reserved"),
    ("leaf cell", 0, 1, "flags"),
    ("leaf cell", CELL_KEY_BYTES, 2, "key_bytes"),
    ("leaf cell", CELL_VALUE_BYTES, 2, "value_bytes"),
    ("leaf cell", CELL_TXN, 6, "transaction"),
    ("leaf cell", CELL_UNDO, 8, "undo"),
    ("leaf cell", LEAF_CELL_HEADER, 0, "key"),
    ("inner cell", 0, 2, "key_bytes"),
    ("inner cell", 2, 8, "child"),
    ("inner cell", INNER_CELL_HEADER, 0, "key"),
];

#[cfg(test)]
mod tests;
