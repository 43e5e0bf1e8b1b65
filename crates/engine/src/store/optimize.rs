//! Rewriting all pages of a table as its settings ask.

use std::{ops::ControlFlow, sync::Arc};

use super::Store;
use crate::{
    alloc::Allocator,
    flush::{Rewrite, Work},
    types::{Error, Result},
};

/// How far [`Store::optimize`] has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OptimizeProgress {
    /// Pages of the table when it began.
    pub pages: u64,
    /// Pages looked at so far.
    pub done: u64,
    /// Pages among them that were rewritten: the others had the required form, or changes that are flushed at the end.
    pub rewritten: u64,
}

impl Store {
    /// Writes all pages of a table as its settings ask now, so that after [`Store::alter_table`] the table takes the
    /// space that these settings promise; and frees the log up to now. Others read and write meanwhile. Pages whose
    /// image would not change are not written.
    ///
    /// `each` is called after every few pages. When it breaks, or the process crashes, finished pages stay as they are
    /// and the next call checks all pages again.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::Full`] where larger images would take the space that deletes need: finished pages
    /// stay as they are.
    pub fn optimize(
        &self,
        name: &str,
        mut each: impl FnMut(OptimizeProgress) -> ControlFlow<()>,
    ) -> Result<OptimizeProgress> {
        let engine = self.engine()?;
        engine.poison().check()?;
        let table = self.table(name)?.ok_or_else(|| Error::NoSuchTable { name: name.into() })?;
        let space = table.pin_newest()?;
        // Pages that are made from now on are written as the settings ask anyway.
        let pages = Allocator::latch(engine.pager(), &space)?.used();
        let mut progress = OptimizeProgress { pages, ..OptimizeProgress::default() };
        // So that a next call finds no more writers to leave out than this one.
        engine.flusher().advance_horizon()?;
        while progress.done < pages {
            // Not around `each`: a panic in it is the caller's.
            let call = engine.poison().call();
            engine.flusher().throttle()?;
            let page_bytes = space.page_bytes() as u64;
            let round = (engine.flusher().rewrite_bytes() / page_bytes).max(1);
            let round = round.min(Rewrite::PAGES_MAX * engine.flush_threads() as u64);
            engine.flusher().must_have_space_to_rewrite(round * page_bytes)?;
            let end = pages.min(progress.done + round);
            let starts = (progress.done..end).step_by(Rewrite::PAGES_MAX as usize);
            progress.rewritten += engine.flusher().carry_out(starts.map(|start| {
                let pages = start..end.min(start + Rewrite::PAGES_MAX);
                Work::Rewrite(Rewrite { space: Arc::clone(&space), pages })
            }))?;
            drop(call);
            progress.done = end;
            if each(progress).is_break() {
                return Ok(progress);
            }
        }
        let _call = engine.poison().call();
        engine.flusher().truncate(&space)?;
        engine.flusher().flush_all()?;
        Ok(progress)
    }
}
