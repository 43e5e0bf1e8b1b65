//! When a segment may be used again.
//!
//! Batches and relocations after the durable checkpoint are replayed, so recovery builds the state of some moment at or
//! after the last flush, with every extent at its newest durable place. A segment of the log may therefore be reused
//! once four things hold, and not while one of them does not:
//!
//! 1. *Dead.* No extent of the map lies in it. It is sealed, so none ever will again.
//! 2. *Covered, or retained.* The durable checkpoint began after the segment was sealed, so none of its records is
//!    replayed. Until then its records may be all that leads from the checkpoint to a later place; or there is a
//!    durable copy of them elsewhere (`retained summary`).
//! 3. *Its death is durable.* A flush of everything that began after it was dead has ended. So every state that
//!    recovery can build has the batches that overwrote its extents and the relocations that moved them, although the
//!    checkpoint's map may still point into it.
//! 4. *Unread.* No reader pins it.
//!
//! A victim of collection that is older than the checkpoint thus becomes free by a flush. One that is
//! younger waits for its retained summary, or for the next checkpoint.

use std::sync::Arc;

use crate::{
    Result,
    addr::SegNo,
    log::{Damaged, Journal, Log, State},
    map::{Map, SharedMap},
    media::Volume,
    mutant::{Rule, is_broken},
    paging::Base,
};

/// The conditions that decide about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) is_dead: bool,
    pub(crate) is_covered: bool,
    pub(crate) death_is_durable: bool,
    pub(crate) is_unread: bool,
}

impl Needs {
    /// The rule; see the module documentation.
    pub(crate) fn is_reusable(self) -> bool {
        self.is_dead && self.is_covered && self.death_is_durable && self.is_unread
    }
}

/// Dead segments that wait, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Those that wait for a reader, and perhaps for more.
    pub(crate) reader: usize,
    /// Those that wait for a retained summary or a checkpoint, and perhaps a flush.
    pub(crate) checkpoint: usize,
    /// Those that wait only for a flush.
    pub(crate) flush: usize,
    /// Those that wait for nothing: reusable.
    pub(crate) ready: usize,
}

/// Decides which segments may be used again, and frees them.
pub(crate) struct Reuse {
    volume: Arc<Volume>,
    map: Arc<SharedMap>,
    journal: Arc<Journal>,
    /// See [`crate::Options::discard`].
    discards: bool,
    /// Segments whose first block could not be read at open, in order.
    lost_headers: Vec<SegNo>,
}

impl Reuse {
    pub(crate) fn new(base: Base, discards: bool, lost_headers: Vec<SegNo>) -> Reuse {
        let Base { volume, map, journal, .. } = base;
        Reuse { volume, map, journal, discards, lost_headers }
    }

    /// Whether the start of a segment was lost when the store was opened (`recovery::lost_headers`).
    pub(crate) fn has_lost_header(&self, segment: SegNo) -> bool {
        self.lost_headers.binary_search(&segment).is_ok()
    }

    fn needs(&self, log: &Log, map: &Map, segment: SegNo) -> Needs {
        let state = log.segment(segment);
        Needs {
            is_dead: state.state == State::Sealed && map.live(segment).extents == 0,
            is_covered: log.checkpoints().covers(segment, state.generation)
                || state.has_retained_summary
                || is_broken(Rule::ReuseCovered),
            death_is_durable: state.death_is_durable || is_broken(Rule::DeathDurable),
            is_unread: self.map.is_unpinned(segment) || is_broken(Rule::PinsCount),
        }
    }

    /// Whether only a flush, or a reader, keeps a segment from being free.
    pub(crate) fn is_pending_free(&self, log: &Log, map: &Map, segment: SegNo) -> bool {
        let Needs { is_dead, is_covered, .. } = self.needs(log, map, segment);
        is_dead && is_covered
    }

    /// What the dead segments wait for.
    pub(crate) fn waiting(&self, log: &Log, map: &Map) -> Waiting {
        let mut waiting = Waiting::default();
        for segment in log.dead(map) {
            let needs = self.needs(log, map, segment);
            match needs {
                _ if needs.is_reusable() => waiting.ready += 1,
                Needs { is_unread: false, .. } => waiting.reader += 1,
                Needs { is_covered: false, .. } => waiting.checkpoint += 1,
                _ => waiting.flush += 1,
            }
        }
        waiting
    }

    /// Dead segments that wait for a retained summary, their deaths being durable.
    pub(crate) fn to_retain(&self, log: &Log, map: &Map) -> Vec<SegNo> {
        let mut waiting = log.dead(map);
        waiting.retain(|segment| {
            let Needs { is_covered, death_is_durable, .. } = self.needs(log, map, *segment);
            !is_covered && death_is_durable
        });
        waiting
    }

    /// Makes everything durable, and frees the segments that are reusable then. The maintenance lock is held.
    pub(crate) fn flush_and_free(&self) -> Result<()> {
        if !is_broken(Rule::DeathDurable) {
            self.journal.flush_all()?;
        }
        self.free_reusable();
        Ok(())
    }

    /// Frees all segments that are reusable. The maintenance lock is held, so no other thread frees segments.
    pub(crate) fn free_reusable(&self) {
        let reusable: Vec<_> = {
            let log = self.journal.lock();
            let map = self.map.read();
            let sealed = log.in_state(State::Sealed);
            sealed.filter(|segment| self.needs(&log, &map, *segment).is_reusable()).collect()
        };
        for segment in reusable {
            self.free_segment(segment);
        }
    }

    /// Puts a segment that is no longer needed on the free list.
    pub(crate) fn free_segment(&self, segment: SegNo) {
        if self.has_lost_header(segment) {
            return self.journal.lock().put_out_of_use(segment, Damaged::Unreadable);
        }
        if self.discards && !self.volume.is_sparse() {
            // Only advice to the device: a refusal does no harm.
            let _ = self
                .volume
                .device()
                .discard(self.volume.offset(segment, 0), self.volume.space().segment_bytes as u64);
        }
        let mut log = self.journal.lock();
        assert_eq!(self.map.read().live(segment).extents, 0, "dead segment {} came to life", segment.0);
        log.give_back(segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_need_keeps_a_segment() {
        let free = Needs { is_dead: true, is_covered: true, death_is_durable: true, is_unread: true };
        assert!(free.is_reusable());
        let kept = [
            Needs { is_dead: false, ..free },
            Needs { is_covered: false, ..free },
            Needs { death_is_durable: false, ..free },
            Needs { is_unread: false, ..free },
        ];
        assert!(kept.iter().all(|needs| !needs.is_reusable()));
    }
}
