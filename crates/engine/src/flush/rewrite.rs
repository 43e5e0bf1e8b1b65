//! Rewriting unchanged pages, so that they take the form that their table's settings now ask for.
//!
//! A page whose new image would equal the one on the device is left alone. Any other page gets a log record that
//! changes nothing, and is written like the rest: log before page, doublewrite, sync, hole. So its new image is newer
//! than the previous one and than the checkpoint; otherwise a torn one would not be restored from the doublewrite file.
//! A crash leaves each page in the old form or in the new one, with the same content.
//!
//! Blocks of row-compressed tables are part of the log's history (`row`): they are compressed anew by logged
//! changes.

use std::{ops::Range, sync::Arc};

use lacuna_page::HEADER_BYTES;

use super::{Due, JOB_PAGES, stats::Cause, write::Writer};
use crate::{
    flush::Flusher,
    mtr::Mtr,
    page::{
        node::Node,
        ops::{self, PageKind, PageOp},
    },
    pool::Frame,
    row,
    space::Space,
    types::{Lsn, PageNo, Result},
};

/// Pages of a table that are to be rewritten if their image would differ. The caller pins the table until it has ended.
pub(crate) struct Rewrite {
    pub(crate) space: Arc<Space>,
    pub(crate) pages: Range<u64>,
}

impl Rewrite {
    /// Pages of one, at most.
    pub(crate) const PAGES_MAX: u64 = JOB_PAGES as u64;
}

impl Writer {
    /// Rewrites those of the pages whose image would differ; returns how many. Pages that are dirty or being changed
    /// are left to the next flush.
    pub(super) fn rewrite(&mut self, flusher: &Flusher, Rewrite { space, pages }: Rewrite) -> Result<u64> {
        let mut outdated = Vec::new();
        let mut recompressed = 0;
        for page in pages.map(PageNo) {
            if space.blocks().is_some() {
                recompressed += u64::from(recompress(flusher, &space, page)?);
            } else {
                outdated.extend(self.renew_if_outdated(flusher, &space, page, Cause::Rest)?);
            }
        }
        let count = outdated.len() as u64;
        self.write(flusher, &Due { frames: outdated, before: Lsn(u64::MAX), cause: Cause::Rest })?;
        Ok(count + recompressed)
    }

    /// Logs a change that changes nothing, if the page's new image, for this cause, would differ from the one on the
    /// device.
    pub(super) fn renew_if_outdated(
        &mut self,
        flusher: &Flusher,
        space: &Arc<Space>,
        page: PageNo,
        cause: Cause,
    ) -> Result<Option<Arc<Frame>>> {
        match self.is_outdated(flusher, space, page, cause)? {
            true => renew(flusher, space, page),
            false => Ok(None),
        }
    }

    /// Whether the page has no changes to be flushed, and its new image would differ from the one on the device.
    fn is_outdated(
        &mut self,
        flusher: &Flusher,
        space: &Arc<Space>,
        page: PageNo,
        cause: Cause,
    ) -> Result<bool> {
        let Some(page) = flusher.pager.read_if_written(space, page)? else { return Ok(false) };
        if page.frame().has_changes() || ops::kind(&page) == Some(PageKind::Hole) {
            return Ok(false);
        }
        // An image in flight may have been made before the table was altered. While the page is latched no other write
        // of it can start, so without one in flight its image on the device does not change.
        Ok(page.frame().is_in_flight() || self.would_change(flusher, &page, space, cause)?)
    }
}

/// Logs a change of the page that changes nothing; none if it was changed, or freed, since it was looked at: of what has
/// no image, replay could make nothing.
fn renew(flusher: &Flusher, space: &Arc<Space>, page: PageNo) -> Result<Option<Arc<Frame>>> {
    let mut page = flusher.pager.write(space, page)?;
    if page.frame().has_changes() || ops::kind(&page) == Some(PageKind::Hole) {
        return Ok(None);
    }
    let op = match ops::kind(&page) {
        Some(PageKind::Node) => PageOp::Truncate { slot: Node::new(&page).count() as u16 },
        _ => PageOp::Bytes { offset: HEADER_BYTES as u16, data: &[] },
    };
    let mut mtr = Mtr::new();
    mtr.apply(&mut page, op);
    mtr.commit(&flusher.pager, &mut [&mut page])?;
    Ok(Some(page.frame().clone()))
}

/// Makes a new block of the page; false when it does not fit into one.
fn recompress(flusher: &Flusher, space: &Arc<Space>, page: PageNo) -> Result<bool> {
    if flusher.pager.read_if_written(space, page)?.is_none_or(|page| ops::kind(&page) == Some(PageKind::Hole))
    {
        return Ok(false);
    }
    let mut page = flusher.pager.write(space, page)?;
    let mut mtr = Mtr::new();
    let fits = mtr.recompress(&mut page, row::RESERVE);
    if fits {
        mtr.commit(&flusher.pager, &mut [&mut page])?;
    }
    Ok(fits)
}
