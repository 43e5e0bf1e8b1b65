//! The kind and the LSN of a page, by its header.

use zerocopy::TryFromBytes;

use crate::types::Lsn;

/// The kind of a page, as its header names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub(crate) enum PageKind {
    /// Page 0 of every table file: page allocation.
    Space = 1,
    /// A B+tree node.
    Node = 2,
    /// Undo records.
    Undo = 3,
    /// Free; lists other free pages, and holds the number of the next such page.
    Free = 4,
    /// Part of a long value.
    Overflow = 5,
    /// Free, and listed in a free page. Its image is a hole.
    Hole = 6,
}

impl PageKind {
    pub(crate) fn from_u8(kind: u8) -> Option<PageKind> {
        PageKind::try_read_from_bytes(&[kind]).ok()
    }
}

/// Kind of a page, by its header.
pub(crate) fn kind(page: &[u8]) -> Option<PageKind> {
    PageKind::from_u8(lacuna_page::read_meta(page).kind)
}

pub(super) fn set_kind(page: &mut [u8], kind: PageKind) {
    let mut meta = lacuna_page::read_meta(page);
    meta.kind = kind as u8;
    lacuna_page::write_meta(page, &meta);
}

/// LSN of a page, by its header.
pub(crate) fn lsn(page: &[u8]) -> Lsn {
    Lsn(lacuna_page::read_meta(page).lsn)
}
