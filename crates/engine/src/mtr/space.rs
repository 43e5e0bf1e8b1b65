//! Space for operations on a page beside the page itself: row-compressed tables log them in the page's block (`row`).
//! Pages of all other tables have it always.

use super::{Mtr, Pager};
use crate::{page::node::Node, pool::WriteGuard, row::RESERVE, types::Result};

/// Most that an operation takes there beside its cell.
pub(crate) use crate::row::LOGGED_OP_BYTES;

/// Ensures that operations of `bytes` fit into the log of the page's block, compressing it again if necessary. False
/// when the page does not fit then: it has to be split. The caller has changed nothing yet.
pub(crate) fn make_space(pager: &Pager, page: &mut WriteGuard, bytes: usize) -> Result<bool> {
    if !page.has_block() || lacuna_page::block_log_space(page.block()) >= bytes + RESERVE {
        return Ok(true);
    }
    let mut mtr = Mtr::new();
    if !mtr.recompress(page, bytes + RESERVE) {
        page.note_unfit();
        return Ok(false);
    }
    mtr.commit(pager, &mut [page])?;
    Ok(true)
}

/// Like [`make_space`], but does not repeat a compression that failed before on the same page.
pub(crate) fn try_make_space(pager: &Pager, page: &mut WriteGuard, bytes: usize) -> Result<bool> {
    let is_unfit = page.is_unfit();
    let has_space = !page.has_block() || lacuna_page::block_log_space(page.block()) >= bytes + RESERVE;
    if is_unfit && !has_space && Node::new(page).count() > 2 {
        return Ok(false);
    }
    make_space(pager, page, bytes)
}
