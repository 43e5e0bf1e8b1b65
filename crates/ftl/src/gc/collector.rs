//! Choosing segments to collect, and collecting them piece by piece.

use std::sync::Arc;

use super::ahead::Ahead;
use super::collection::Collection;
use crate::{
    Error, Result,
    addr::SegNo,
    checkpoint::Checkpointer,
    log::{AppendPoint, Journal, Log, State},
    map::{Map, SharedMap},
    media::Volume,
    paging::{Base, PagedMap},
    read::Reader,
    reuse::Reuse,
    space::Space,
    sync::{Mutex, MutexGuard},
};

/// Collects segments.
pub(crate) struct Collector {
    pub(super) volume: Arc<Volume>,
    pub(super) map: Arc<SharedMap>,
    pub(super) journal: Arc<Journal>,
    pub(super) pages: Arc<PagedMap>,
    pub(super) reader: Arc<Reader>,
    pub(super) reuse: Arc<Reuse>,
    pub(super) checkpointer: Arc<Checkpointer>,
    /// Locked after the maintenance lock.
    pub(super) collecting: Mutex<Collecting>,
}

impl Collector {
    pub(crate) fn new(
        base: Base,
        reader: Arc<Reader>,
        reuse: Arc<Reuse>,
        checkpointer: Arc<Checkpointer>,
    ) -> Collector {
        let Base { volume, map, journal, pages } = base;
        Collector { volume, map, journal, pages, reader, reuse, checkpointer, collecting: Mutex::default() }
    }

    /// The state that the last piece of maintenance has left to the next one. The maintenance lock is held.
    pub(crate) fn collecting(&self) -> MutexGuard<'_, Collecting> {
        self.collecting.lock()
    }

    /// The segment that is being collected, or else the best one to collect, if collecting one yields space
    /// and has space to work in.
    pub(crate) fn victim(&self, log: &Log, map: &Map, collecting: &mut Collecting) -> Option<SegNo> {
        if log.victim().is_some() {
            return log.victim();
        }
        let victim =
            collecting.ahead.chosen(self, log, map).or_else(|| collecting.ahead.choose(self, log, map))?;
        self.has_space_to_collect(log, map, victim).then_some(victim)
    }

    /// The next of the victims that were chosen together, if none is being collected and one is left.
    pub(crate) fn chosen_victim(&self, log: &Log, map: &Map, collecting: &mut Collecting) -> Option<SegNo> {
        let chosen = collecting.ahead.chosen(self, log, map).filter(|_| log.victim().is_none());
        chosen.filter(|victim| self.has_space_to_collect(log, map, *victim))
    }

    fn has_space_to_collect(&self, log: &Log, map: &Map, victim: SegNo) -> bool {
        let moved = Space::moved_bytes(map.live(victim)) as usize;
        let waste = self.volume.space().segment_bytes - self.volume.space().usable_bytes();
        let fits = AppendPoint::gc().any(|point| moved + waste <= log.bytes_left(point));
        fits || log.spare_for_gc() > 0
    }

    /// The `count` segments that it pays best to collect, the best one first.
    pub(super) fn best_victims(&self, log: &Log, map: &Map, count: usize) -> Vec<SegNo> {
        let candidates = log.in_state(State::Sealed).filter(|segment| self.may_be_victim(log, map, *segment));
        let worth = |segment: SegNo| {
            let age = log.last_seq().0.saturating_sub(log.segment(segment).opened_seq.0) + 1;
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
    pub(crate) fn may_be_victim(&self, log: &Log, map: &Map, segment: SegNo) -> bool {
        let live = map.live(segment);
        live.extents > 0 && log.is_written(segment) && self.volume.space().worth_moving(live)
    }

    /// Moves a piece of the live data out of `victim`; the rest is left to the next turn.
    pub(crate) fn collect(&self, victim: SegNo, collecting: &mut Collecting) -> Result<()> {
        let under_way = collecting.under_way.take().filter(|collection| collection.goes_on(self, victim));
        let mut collection =
            under_way.unwrap_or_else(|| Collection::begin(self, victim, &mut collecting.ahead));
        let corrupt = match collection.piece(self) {
            Ok(false) => {
                collecting.under_way = Some(collection);
                return Ok(());
            }
            Ok(true) => collection.corrupt,
            // The map grew meanwhile and its checkpoint needs the space; the rest stays in place.
            Err(Error::Full { .. }) => 0,
            // A leaf of the map is damaged, and the extents in this segment that it maps must stay.
            Err(Error::Corrupt { .. }) => 1,
            // So must unreadable data. A failed write, however, has poisoned the store.
            Err(Error::Device(_)) if !self.journal.lock().is_poisoned() => 1,
            Err(error) => return Err(error),
        };
        let mut log = self.journal.lock();
        log.set_victim(None);
        log.counters_mut().gc_segments += 1;
        let pending_free =
            log.pending_free() + usize::from(self.reuse.is_pending_free(&log, &self.map.read(), victim));
        log.set_pending_free(pending_free);
        if corrupt > 0 {
            log.counters_mut().corrupt_chunks += corrupt;
            log.put_out_of_use(victim);
        }
        Ok(())
    }
}

/// State that one holder of the maintenance lock leaves to the next. In memory only.
#[derive(Default)]
pub(crate) struct Collecting {
    pub(super) under_way: Option<Collection>,
    pub(super) ahead: Ahead,
}
