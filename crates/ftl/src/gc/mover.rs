//! The parts of a store that collection needs, and what a segment is worth to it.

use std::sync::Arc;

use crate::{
    addr::SegNo,
    checkpoint::Checkpointer,
    log::{Journal, Log, State},
    map::{Map, SharedMap},
    media::Volume,
    mutant::{Rule, is_broken},
    paging::{Base, PagedMap},
    read::Reader,
};

/// Moves live extents: see `live`, `moving`.
pub(crate) struct Mover {
    pub(super) volume: Arc<Volume>,
    pub(super) map: Arc<SharedMap>,
    pub(super) journal: Arc<Journal>,
    pub(super) pages: Arc<PagedMap>,
    pub(super) reader: Arc<Reader>,
    pub(super) checkpointer: Arc<Checkpointer>,
}

impl Mover {
    pub(super) fn new(base: Base, reader: Arc<Reader>, checkpointer: Arc<Checkpointer>) -> Mover {
        let Base { volume, map, journal, pages } = base;
        Mover { volume, map, journal, pages, reader, checkpointer }
    }

    /// The `count` segments that it pays best to collect, the best one first.
    pub(super) fn best_victims(&self, log: &Log, map: &Map, count: usize) -> Vec<SegNo> {
        let candidates = log.in_state(State::Sealed).filter(|segment| self.may_be_victim(log, map, *segment));
        let worth = |segment: SegNo| {
            let age = log.last_seq().0.saturating_sub(log.segment(segment).opened_seq.0) + 1;
            let age = if is_broken(Rule::AgeCounts) { 1 } else { age };
            (segment, self.volume.space().worth(map.live(segment), age))
        };
        let mut candidates: Vec<_> = candidates.map(worth).collect();
        let by_worth = |left: &(SegNo, f64), right: &(SegNo, f64)| right.1.total_cmp(&left.1);
        if count < candidates.len() {
            candidates.select_nth_unstable_by(count, by_worth);
            candidates.truncate(count);
        }
        candidates.sort_unstable_by(by_worth);
        candidates.into_iter().map(|(segment, _)| segment).collect()
    }

    /// Whether it would win space to collect a sealed segment.
    pub(super) fn may_be_victim(&self, log: &Log, map: &Map, segment: SegNo) -> bool {
        let live = map.live(segment);
        live.extents > 0 && log.is_written(segment) && self.volume.space().worth_moving(live)
    }
}
