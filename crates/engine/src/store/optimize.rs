//! Bringing all pages of a table into the form that its settings ask for.

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
    /// Pages among them that were written anew: the others had the form asked for, or changes that are flushed
    /// at the end.
    pub rewritten: u64,
}

impl Store {
    /// Writes all pages of a table as its settings ask now, so that after [`Store::alter_table`] the table
    /// takes the space that they promise; and gives the log up to now back. Others read and write meanwhile.
    /// Pages that would come out as they are on the device are not written.
    ///
    /// `each` is called after every few pages. When it breaks, or a crash does, what is done is done and the
    /// next call looks at all pages again.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn optimize(
        &self,
        name: &str,
        mut each: impl FnMut(OptimizeProgress) -> ControlFlow<()>,
    ) -> Result<OptimizeProgress> {
        let engine = self.engine()?;
        engine.poison().check()?;
        let table = self.table(name)?.ok_or_else(|| Error::NoSuchTable { name: name.into() })?;
        // Like a transaction: the table is not dropped under it.
        let space = table.space().pin()?;
        // Pages that are made from now on are written as the settings ask anyway.
        let pages = Allocator::latch(engine.pager(), &space)?.used();
        let mut progress = OptimizeProgress { pages, ..OptimizeProgress::default() };
        // So that the next call finds no more to forget than this one.
        engine.flusher().advance_horizon()?;
        while progress.done < pages {
            engine.flusher().throttle()?;
            let end = pages.min(progress.done + Rewrite::PAGES_MAX * engine.flush_threads() as u64);
            let starts = (progress.done..end).step_by(Rewrite::PAGES_MAX as usize);
            progress.rewritten += engine.flusher().carry_out(starts.map(|start| {
                let pages = start..end.min(start + Rewrite::PAGES_MAX);
                Work::Rewrite(Rewrite { space: Arc::clone(&space), pages })
            }))?;
            progress.done = end;
            if each(progress).is_break() {
                return Ok(progress);
            }
        }
        engine.flusher().truncate(&space)?;
        engine.flusher().flush_all()?;
        Ok(progress)
    }
}
