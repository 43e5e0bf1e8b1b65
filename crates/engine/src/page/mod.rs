//! The bytes of pages: what is in them, and the operations that change them. Nothing here does I/O or locks.

pub(crate) mod delta;
pub(crate) mod node;
pub(crate) mod ops;
pub(crate) mod overflow;
pub(crate) mod scratch;
pub(crate) mod varint;
