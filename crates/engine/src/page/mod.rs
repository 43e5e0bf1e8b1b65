//! The bytes of pages: their layout, and the operations that change them. Nothing here does I/O or locks.

pub(crate) mod delta;
pub(crate) mod kind;
pub(crate) mod node;
pub(crate) mod ops;
pub(crate) mod overflow;
pub(crate) mod scratch;
pub(crate) mod undo;
pub(crate) mod varint;

#[inline]
pub(crate) fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"))
}

#[inline]
pub(crate) fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"))
}
