//! Leaves packed for their images: bytes that are equal in all cells are stored once. Pure.
//!
//! Cells begin with a header and a key, often followed by columns of fixed length; so byte by byte their beginnings,
//! here their *heads*, differ little. They are laid out by column: of a column that is the same in all cells the first
//! cell's byte alone is kept, of others the difference from cell to cell as well. The rest of each cell after its head
//! follows, cell after cell. Slots, free space and cell offsets are derived from that. The compressor's input is then
//! about half as long, and compresses better.
//!
//! ```text
//! 0                               16           16 + head
//! | header: cells, head, columns  | first head | column | column ... | behind the heads ... |
//! ```
//!
//! Invariants:
//!
//! 1. [`unpack`] turns the output of [`pack`] into a page that is byte for byte that of [`super::copy_tidied`].
//! 2. [`unpack`] refuses input that is not exactly as long as its header and its cells say, and cells that do not fit
//!    into a page. A page that it accepts keeps invariant 1 of nodes; the order and the flags of cells are for
//!    [`super::validate`].

use lacuna_page::TRAILER_BYTES;

use super::{
    BASE, CELL_KEY_BYTES, CELL_TXN, CELL_VALUE_BYTES, CELLS, COUNT, HEAP_END, INSERT_RUN, LAST_INSERT,
    LEAF_CELL_HEADER, Node, NodeMut, SLOT, u16_at, u64_at,
};

const PACKED_COUNT: usize = 0;
const PACKED_LAST_INSERT: usize = 2;
const PACKED_INSERT_RUN: usize = 4;
const PACKED_HEAD: usize = 6;
const PACKED_COLUMNS: usize = 8;
/// Bytes in front of the first head.
const HEADER: usize = 16;

/// Longest head in bytes: as many as there are bits for columns.
const HEAD_MAX: usize = u64::BITS as usize;
/// Bytes of a word.
const WORD: usize = 8;
/// So many columns are cheaper to transpose word by word than to go through one by one.
const TRANSPOSED_MIN: u32 = 3;
/// The rest of a cell after its head is copied as one piece of this many bytes where it is shorter: that takes no loop.
const PIECE: usize = 32;

/// Packs a leaf into `out`, which is as long as the page. `None` when it has no cells, or is no leaf.
pub(crate) fn pack<'a>(page: &[u8], out: &'a mut [u8]) -> Option<&'a [u8]> {
    let node = Node::new(page);
    let is_reserved_zero = page[INSERT_RUN + 2..CELLS].iter().all(|byte| *byte == 0);
    if !node.is_leaf() || node.count() == 0 || !is_reserved_zero {
        return None;
    }
    let slots_end = page.len() - TRAILER_BYTES;
    let slots = page[slots_end - SLOT * node.count()..slots_end].as_chunks().0;
    let Heads { first, bytes: head, varying } = Heads::of(page, slots);
    for (at, from) in
        [(PACKED_COUNT, COUNT), (PACKED_LAST_INSERT, LAST_INSERT), (PACKED_INSERT_RUN, INSERT_RUN)]
    {
        out[at..at + 2].copy_from_slice(&page[from..from + 2]);
    }
    out[PACKED_HEAD..PACKED_COLUMNS].copy_from_slice(&(head as u16).to_le_bytes());
    out[PACKED_COLUMNS..HEADER].copy_from_slice(&varying.to_le_bytes());
    out[HEADER..HEADER + head].copy_from_slice(&first[..head]);
    let (columns, rests) = out[HEADER + head..].split_at_mut(columns_bytes(node.count(), varying));
    let others = &slots[..slots.len() - 1];
    for window in Window::all(varying, head) {
        window.put_columns(page, others, &first, columns);
    }
    let mut end = 0;
    for at in offsets(slots) {
        let bytes = node.cell_bytes(at) - head;
        copy::<PIECE>(&page[at + head..], bytes, &mut rests[end..]);
        end += bytes;
    }
    let bytes = HEADER + head + columns.len() + end;
    Some(&out[..bytes])
}

/// Whether the columns of a page's leaf, as [`pack`] made them, break up what its cells have in common as it is: values
/// that repeat in no order, which a compressor finds in the page alone. Then the page may compress better as it is.
/// Looks at each word of the values in the heads by itself.
pub(crate) fn breaks_repeats(page: &[u8], packed: &[u8]) -> bool {
    /// Varying bytes in common from which on a match is shorter: LZ4 stores it in three, and what is before it.
    const BYTES_MIN: u32 = 8;
    /// One of so many cells repeats a word that the cell before it does not have.
    const SHARE: usize = 4;
    // A word begins within its cell, for values are in the heads, and ends at most a word behind it, before the page does.
    const { assert!(SLOT + TRAILER_BYTES >= WORD) };
    let first = &packed[HEADER..];
    let key_end = LEAF_CELL_HEADER + u16_at(first, CELL_KEY_BYTES) as usize;
    let values = u64_at(packed, PACKED_COLUMNS) & !ones(key_end.min(HEAD_MAX));
    if values.count_ones() < BYTES_MIN {
        return false;
    }
    let slots_end = page.len() - TRAILER_BYTES;
    let slots = page[slots_end - SLOT * Node::new(page).count()..slots_end].as_chunks().0;
    let mut common = 0;
    for start in (0..HEAD_MAX).step_by(WORD) {
        let lanes = values >> start & 0xff;
        if lanes == 0 {
            continue;
        }
        let mask = bits(lanes).fold(0, |mask, lane| mask | 0xff << (8 * lane));
        let (mut seen, mut last) = ([0u16; 256], 0);
        let is_repeated = |at: &usize| {
            let hash = (u64_at(page, at + start) & mask).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let tag = (hash >> 40) as u16;
            let is_another = std::mem::replace(&mut last, hash) != hash;
            std::mem::replace(&mut seen[(hash >> 56) as usize], tag) == tag && is_another
        };
        if offsets(slots).filter(is_repeated).count() * SHARE >= slots.len() {
            common += lanes.count_ones();
        }
    }
    common >= BYTES_MIN
}

/// Makes the body of `page` the leaf that was packed. The error says why it cannot be one; the page is undefined then.
pub(crate) fn unpack(packed: &[u8], page: &mut [u8]) -> Result<(), &'static str> {
    let (header, rest) = packed.split_at_checked(HEADER).ok_or("packed leaf without a header")?;
    let (count, head) = (u16_at(header, PACKED_COUNT) as usize, u16_at(header, PACKED_HEAD) as usize);
    let varying = u64_at(header, PACKED_COLUMNS);
    let slots_end = page.len() - TRAILER_BYTES;
    if count == 0 || CELLS + SLOT * count > slots_end {
        return Err("packed leaf with a bad count");
    }
    if !(LEAF_CELL_HEADER..=HEAD_MAX).contains(&head) || varying & !ones(head) != 0 {
        return Err("packed leaf with bad heads");
    }
    let cut = "packed leaf cut short";
    let mut first = [0; HEAD_MAX];
    let (first_head, rest) = rest.split_at_checked(head).ok_or(cut)?;
    first[..head].copy_from_slice(first_head);
    let (columns, rests) = rest.split_at_checked(columns_bytes(count, varying)).ok_or(cut)?;
    let (cells, slots) = page[..slots_end].split_at_mut(slots_end - SLOT * count);
    let slots = slots.as_chunks_mut().0;
    let end = lay_out(&first, head, Columns { varying, count, bytes: columns }, rests, cells, slots)?;
    for window in Window::all(varying, head) {
        window.take_columns(columns, &slots[..count - 1], &first, cells);
    }
    cells[BASE..CELLS].fill(0);
    cells[end..].fill(0);
    for (at, from) in
        [(COUNT, PACKED_COUNT), (LAST_INSERT, PACKED_LAST_INSERT), (INSERT_RUN, PACKED_INSERT_RUN)]
    {
        cells[at..at + 2].copy_from_slice(&header[from..from + 2]);
    }
    NodeMut::new(page).put_u32(HEAP_END, end);
    Ok(())
}

/// Lays out cells that all have the first one's head, and their slots; returns where they end.
fn lay_out(
    first: &[u8; HEAD_MAX],
    head: usize,
    columns: Columns<'_>,
    mut rests: &[u8],
    cells: &mut [u8],
    slots: &mut [[u8; SLOT]],
) -> Result<usize, &'static str> {
    const LENGTHS: std::ops::Range<usize> = CELL_KEY_BYTES..CELL_TXN;
    const { assert!(CELL_VALUE_BYTES == CELL_KEY_BYTES + 2 && LENGTHS.end == CELL_VALUE_BYTES + 2) };
    let mut lengths: [u8; 4] = first[LENGTHS].try_into().expect("four bytes");
    let varying = [0, 1, 2, 3].map(|i| columns.get(LENGTHS.start + i));
    let mut end = CELLS;
    for (i, slot) in slots.iter_mut().rev().enumerate() {
        if i > 0 {
            for (byte, column) in lengths.iter_mut().zip(varying) {
                *byte = byte.wrapping_add(column.get(i - 1).copied().unwrap_or(0));
            }
        }
        let bytes = LEAF_CELL_HEADER + u16_at(&lengths, 0) as usize + u16_at(&lengths, 2) as usize;
        let rest_bytes = bytes.checked_sub(head).ok_or("cell shorter than its head")?;
        if bytes > cells.len() - end {
            return Err("more cells than a page holds");
        }
        if rest_bytes > rests.len() {
            return Err("packed leaf cut short");
        }
        *slot = (end as u16).to_le_bytes();
        copy::<HEAD_MAX>(first, head, &mut cells[end..]);
        copy::<PIECE>(rests, rest_bytes, &mut cells[end + head..]);
        rests = &rests[rest_bytes..];
        end += bytes;
    }
    if rests.is_empty() { Ok(end) } else { Err("packed leaf with bytes behind its last cell") }
}

/// How the heads of a leaf are laid out.
struct Heads {
    /// The head of the first cell, and the bytes after it.
    first: [u8; HEAD_MAX],
    bytes: usize,
    /// A bit for each column that is not the same in all cells.
    varying: u64,
}

impl Heads {
    /// Heads end after the last column that is the same in all cells, but not before the end of the shortest key. They
    /// end with the shortest cell, and where keys are of several lengths with the shortest key: after that, columns
    /// would not line up.
    fn of(page: &[u8], slots: &[[u8; SLOT]]) -> Heads {
        let first = head_at(page, offsets(slots).next().expect("a leaf with cells"));
        let first_words = words(&first);
        let mut differ = [0; HEAD_MAX / WORD];
        let (mut shortest_key, mut shortest) = (usize::MAX, usize::MAX);
        for at in offsets(slots) {
            let cell = head_at(page, at);
            for (differ, (word, first)) in differ.iter_mut().zip(words(&cell).iter().zip(&first_words)) {
                *differ |= word ^ first;
            }
            let key = LEAF_CELL_HEADER + u16_at(&cell, CELL_KEY_BYTES) as usize;
            shortest_key = shortest_key.min(key);
            shortest = shortest.min(key + u16_at(&cell, CELL_VALUE_BYTES) as usize);
        }
        let differ = differ.map(u64::to_le_bytes);
        let differ = differ.as_flattened();
        let are_keys_alike = differ[CELL_KEY_BYTES] | differ[CELL_KEY_BYTES + 1] == 0;
        let limit = if are_keys_alike { shortest } else { shortest_key }.min(HEAD_MAX);
        let varying = (0..HEAD_MAX).fold(0, |bits, i| bits | u64::from(differ[i] != 0) << i);
        let alike_end = HEAD_MAX - (!varying & ones(limit)).leading_zeros() as usize;
        let bytes = alike_end.max(shortest_key.min(limit));
        Heads { first, bytes, varying: varying & ones(bytes) }
    }
}

/// The columns that are not the same in all cells.
#[derive(Clone, Copy)]
struct Columns<'a> {
    varying: u64,
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Columns<'a> {
    /// Empty where all cells have the first one's byte.
    fn get(self, column: usize) -> &'a [u8] {
        if self.varying >> column & 1 == 0 {
            return &[];
        }
        let cells = self.count - 1;
        &self.bytes[columns_before(self.varying, column) * cells..][..cells]
    }
}

/// Bytes of all columns of a leaf with `count` cells.
fn columns_bytes(count: usize, varying: u64) -> usize {
    (count - 1) * varying.count_ones() as usize
}

/// How many columns there are before that of byte `column`.
fn columns_before(varying: u64, column: usize) -> usize {
    (varying & ((1 << column) - 1)).count_ones() as usize
}

/// Up to eight bytes side by side that are the same in all heads or have a column.
struct Window {
    start: usize,
    /// The bytes that have one.
    lanes: Lanes,
    /// Columns of bytes before the window.
    before: usize,
}

/// A bit for each byte of a word.
type Lanes = u64;

impl Window {
    /// Windows over all columns. They may overlap, for none reaches beyond the heads.
    fn all(varying: u64, head: usize) -> impl Iterator<Item = Window> {
        let mut left = varying;
        std::iter::from_fn(move || {
            let lowest = (left != 0).then(|| left.trailing_zeros() as usize)?;
            let start = lowest.min(head - WORD);
            left &= !(0xff << start);
            let lanes = varying >> start & 0xff;
            Some(Window { start, lanes, before: columns_before(varying, start) })
        })
    }

    /// Makes its columns from the cells after the first.
    fn put_columns(&self, page: &[u8], slots: &[[u8; SLOT]], first: &[u8; HEAD_MAX], columns: &mut [u8]) {
        let cells = slots.len();
        let columns = &mut columns[self.before * cells..];
        if self.lanes.count_ones() < TRANSPOSED_MIN {
            for (i, lane) in bits(self.lanes).enumerate() {
                let mut last = first[self.start + lane];
                for (out, at) in columns[i * cells..].iter_mut().zip(offsets(slots)) {
                    let byte = page[at + self.start + lane];
                    *out = byte.wrapping_sub(last);
                    last = byte;
                }
            }
            return;
        }
        let mut last = u64_at(first, self.start);
        for (group, slots) in slots.rchunks(WORD).enumerate() {
            let mut words = [0; WORD];
            for (word, at) in words.iter_mut().zip(offsets(slots)) {
                let head = u64_at(page, at + self.start);
                *word = subtract_bytes(head, last);
                last = head;
            }
            let words = transposed(words);
            for (i, lane) in bits(self.lanes).enumerate() {
                let out = &mut columns[i * cells + group * WORD..];
                let bytes = words[lane].to_le_bytes();
                match out.first_chunk_mut() {
                    Some(out) if slots.len() == WORD => *out = bytes,
                    _ => out[..slots.len()].copy_from_slice(&bytes[..slots.len()]),
                }
            }
        }
    }

    /// The reverse.
    fn take_columns(&self, columns: &[u8], slots: &[[u8; SLOT]], first: &[u8; HEAD_MAX], cells: &mut [u8]) {
        let count = slots.len();
        let columns = &columns[self.before * count..];
        if self.lanes.count_ones() < TRANSPOSED_MIN {
            for (i, lane) in bits(self.lanes).enumerate() {
                let mut byte = first[self.start + lane];
                for (difference, at) in columns[i * count..].iter().zip(offsets(slots)) {
                    byte = byte.wrapping_add(*difference);
                    cells[at + self.start + lane] = byte;
                }
            }
            return;
        }
        let mut head = u64_at(first, self.start);
        for (group, slots) in slots.rchunks(WORD).enumerate() {
            let mut words = [0; WORD];
            for (i, lane) in bits(self.lanes).enumerate() {
                let column = &columns[i * count + group * WORD..];
                words[lane] = match column.first_chunk() {
                    Some(bytes) => u64::from_le_bytes(*bytes),
                    None => column.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
                };
            }
            for (difference, at) in transposed(words).into_iter().zip(offsets(slots)) {
                head = add_bytes(head, difference);
                cells[at + self.start..][..WORD].copy_from_slice(&head.to_le_bytes());
            }
        }
    }
}

/// Transposes: byte `j` of word `i` becomes byte `i` of word `j`, by halves, quarters and eighths.
fn transposed(mut words: [u64; WORD]) -> [u64; WORD] {
    const STEPS: [(usize, u64); 3] =
        [(1, 0x00ff_00ff_00ff_00ff), (2, 0x0000_ffff_0000_ffff), (4, 0x0000_0000_ffff_ffff)];
    for (apart, mask) in STEPS {
        for i in (0..WORD).filter(|i| i & apart == 0) {
            let exchanged = (words[i] >> (8 * apart) ^ words[i + apart]) & mask;
            words[i] ^= exchanged << (8 * apart);
            words[i + apart] ^= exchanged;
        }
    }
    words
}

/// The highest bit of each byte.
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The sums of bytes at the same position, modulo 256.
fn add_bytes(a: u64, b: u64) -> u64 {
    ((a & !HIGH) + (b & !HIGH)) ^ ((a ^ b) & HIGH)
}

/// The differences of bytes at the same position, modulo 256.
fn subtract_bytes(a: u64, b: u64) -> u64 {
    ((a | HIGH) - (b & !HIGH)) ^ ((a ^ !b) & HIGH)
}

/// Where cells lie, by slot.
fn offsets(slots: &[[u8; SLOT]]) -> impl Iterator<Item = usize> {
    slots.iter().rev().map(|offset| u16::from_le_bytes(*offset) as usize)
}

/// The bytes from `at` on, as many as a head may have; zeros after the page's end.
#[inline]
fn head_at(page: &[u8], at: usize) -> [u8; HEAD_MAX] {
    match page[at..].first_chunk() {
        Some(head) => *head,
        None => {
            let mut head = [0; HEAD_MAX];
            head[..page.len() - at].copy_from_slice(&page[at..]);
            head
        }
    }
}

fn words(head: &[u8; HEAD_MAX]) -> [u64; HEAD_MAX / WORD] {
    std::array::from_fn(|i| u64_at(head, WORD * i))
}

/// Copies the first `len` bytes; `to` may change up to `STRIDE`, as that takes no call where both are so long.
#[inline]
fn copy<const STRIDE: usize>(from: &[u8], len: usize, to: &mut [u8]) {
    match (from.first_chunk::<STRIDE>(), to.first_chunk_mut::<STRIDE>()) {
        (Some(from), Some(to)) if len <= STRIDE => *to = *from,
        _ => to[..len].copy_from_slice(&from[..len]),
    }
}

/// The lowest `count` bits, 1 to 64 of them.
fn ones(count: usize) -> u64 {
    u64::MAX >> (u64::BITS as usize - count)
}

/// The numbers of the bits that are set.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(lowest)
    })
}

/// Rows of FORMAT.md: structure, offset, bytes, field.
#[cfg(test)]
pub(crate) const LAYOUT: &[(&str, usize, usize, &str)] = &[
    ("packed leaf", PACKED_COUNT, 2, "count"),
    ("packed leaf", PACKED_LAST_INSERT, 2, "last_insert"),
    ("packed leaf", PACKED_INSERT_RUN, 2, "insert_run"),
    ("packed leaf", PACKED_HEAD, 2, "head_bytes"),
    ("packed leaf", PACKED_COLUMNS, 8, "varying"),
    ("packed leaf", HEADER, 0, "first head"),
];

#[cfg(test)]
mod tests;
