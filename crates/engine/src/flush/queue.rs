//! The queue of work between the producer, or callers that wait, and the consumers.

use std::{collections::VecDeque, mem, sync::Arc, time::Duration};

use super::{Flusher, Rewrite, stats::Cause, write::Writer};
use crate::{
    pool::Frame,
    space::Space,
    sync::mpsc,
    types::{Lsn, Result},
};

/// Flushes after which a waiting rewrite gets its turn, or optimizing would not end beside writers that never pause.
const FLUSHES_IN_A_ROW: usize = 8;

#[derive(Default)]
pub(super) struct Queue {
    pub(super) flushes: VecDeque<Job>,
    /// Space in the log and memory depend on flushes; only a caller that optimizes waits for rewrites. So these mostly
    /// come last.
    pub(super) rewrites: VecDeque<Job>,
    /// Flushes taken since the last rewrite was.
    pub(super) flushes_taken: usize,
    /// Increased by each finished job and checkpoint.
    pub(super) progress: u64,
    pub(super) stop: bool,
}

impl Queue {
    /// The jobs among which this one waits, in the order in which they came.
    pub(super) fn of(&mut self, work: &Work) -> &mut VecDeque<Job> {
        match work {
            Work::Flush(_) => &mut self.flushes,
            Work::Rewrite(_) | Work::Rest(_) => &mut self.rewrites,
        }
    }

    pub(super) fn next(&mut self) -> Option<Job> {
        let is_turn = self.flushes.is_empty() || self.flushes_taken >= FLUSHES_IN_A_ROW;
        if is_turn && let Some(rewrite) = self.rewrites.pop_front() {
            self.flushes_taken = 0;
            return Some(rewrite);
        }
        let flush = self.flushes.pop_front();
        self.flushes_taken += usize::from(flush.is_some());
        flush
    }
}

/// Pages that are to be written if they still are dirty since before `before`: one that was written meanwhile, and
/// changed again, is not due any more.
pub(crate) struct Due {
    pub(super) frames: Vec<Arc<Frame>>,
    pub(super) before: Lsn,
    pub(super) cause: Cause,
}

/// Pages of an adaptive table that rest. The consumer pins the table.
pub(crate) struct RestJob {
    pub(super) space: Arc<Space>,
    pub(super) pages: Vec<u64>,
    /// Every page rests.
    pub(super) is_quiet: bool,
}

/// A unit of a consumer's work.
pub(crate) enum Work {
    /// Writes pages that are due.
    Flush(Due),
    /// Rewrites pages that did not change.
    Rewrite(Rewrite),
    /// Encodes pages anew that rest.
    Rest(RestJob),
}

impl Work {
    /// Returns the number of rewritten pages. A failure has poisoned the store.
    pub(super) fn carry_out(self, flusher: &Flusher, writer: &mut Writer) -> Result<u64> {
        let writing = flusher.poison.begin_to_write();
        match self {
            Work::Flush(due) => {
                let written = writing.and_then(|_writing| writer.write(flusher, &due));
                flusher.pager.pool().take_back(due.frames);
                written.map(|()| 0)
            }
            Work::Rewrite(rewrite) => writing.and_then(|_writing| writer.rewrite(flusher, rewrite)),
            Work::Rest(job) => match writing {
                Ok(_writing) => writer.rest(flusher, job),
                Err(error) => {
                    flusher.end_rest(0, Duration::ZERO);
                    Err(error)
                }
            },
        }
    }
}

/// Work in the queue.
pub(super) struct Job {
    pub(super) work: Work,
    /// Where its outcome is sent, if a caller waits for it. Otherwise it is not needed: a failure poisons the store.
    pub(super) ended: Option<mpsc::Sender<Result<u64>>>,
}

pub(super) fn into_work(
    mut frames: Vec<Arc<Frame>>,
    before: Lsn,
    cause: Cause,
    job_pages: usize,
) -> Vec<Work> {
    frames.sort_by_key(|frame| frame.id());
    let mut all = Vec::new();
    while !frames.is_empty() {
        let rest = frames.split_off(frames.len().min(job_pages));
        all.push(Work::Flush(Due { frames: mem::replace(&mut frames, rest), before, cause }));
    }
    all
}

#[cfg(test)]
mod tests {
    use lacuna_device::{MemVfs, StreamHint, Vfs};

    use super::*;
    use crate::{
        space::Space,
        types::{Layout, TableId},
    };

    #[test]
    fn flushes_go_before_rewrites_each_in_turn() {
        let file = MemVfs::new().create("t", StreamHint::Data).expect("create");
        let space = Arc::new(Space::new(TableId(16), file, Layout::of_pages(4096)).expect("space"));
        let rewrite = |pages| Work::Rewrite(Rewrite { space: Arc::clone(&space), pages });
        let due = Due { frames: Vec::new(), before: Lsn(0), cause: Cause::Asked };
        let mut queue = Queue::default();
        for work in [rewrite(0..1), rewrite(1..2), Work::Flush(due)] {
            queue.of(&work).push_back(Job { work, ended: None });
        }
        let order = std::iter::from_fn(|| queue.next()).map(|job| match job.work {
            Work::Flush(_) => None,
            Work::Rewrite(rewrite) => Some(rewrite.pages.start),
            Work::Rest(_) => unreachable!("none was queued"),
        });
        assert_eq!(order.collect::<Vec<_>>(), [None, Some(0), Some(1)]);
    }

    #[test]
    fn a_rewrite_has_its_turn_beside_flushes_without_end() {
        let file = MemVfs::new().create("t", StreamHint::Data).expect("create");
        let space = Arc::new(Space::new(TableId(16), file, Layout::of_pages(4096)).expect("space"));
        let rewrite = || Work::Rewrite(Rewrite { space: Arc::clone(&space), pages: 0..1 });
        let flush = || Work::Flush(Due { frames: Vec::new(), before: Lsn(0), cause: Cause::Log });
        let push = |queue: &mut Queue, work: Work| queue.of(&work).push_back(Job { work, ended: None });
        let mut queue = Queue::default();
        push(&mut queue, rewrite());
        push(&mut queue, rewrite());
        let order: String = (0..24)
            .map(|_| {
                push(&mut queue, flush());
                match queue.next().expect("there is work").work {
                    Work::Flush(_) => 'f',
                    Work::Rewrite(_) | Work::Rest(_) => 'R',
                }
            })
            .collect();
        assert_eq!(order, "ffffffffRffffffffRffffff");
    }
}
