//! Choosing segments to collect, and collecting them piece by piece.

use std::sync::Arc;

use super::ahead::Ahead;
use super::collection::Collection;
use super::mover::Mover;
use crate::{
    Error, Result,
    addr::SegNo,
    checkpoint::Checkpointer,
    log::{AppendPoint, Log},
    map::Map,
    paging::Base,
    read::Reader,
    reuse::Reuse,
    space::Space,
    sync::{Mutex, MutexGuard},
};

/// Collects segments.
pub(crate) struct Collector {
    pub(super) mover: Mover,
    reuse: Arc<Reuse>,
    /// Locked after the maintenance lock.
    collecting: Mutex<Collecting>,
}

impl Collector {
    pub(crate) fn new(
        base: Base,
        reader: Arc<Reader>,
        reuse: Arc<Reuse>,
        checkpointer: Arc<Checkpointer>,
    ) -> Collector {
        Collector { mover: Mover::new(base, reader, checkpointer), reuse, collecting: Mutex::default() }
    }

    /// The state that the last piece of maintenance has left to the next one. The maintenance lock is held.
    pub(crate) fn collecting(&self) -> MutexGuard<'_, Collecting> {
        self.collecting.lock()
    }

    /// The segment that is being collected, or else the best one to collect, if collecting one yields space
    /// and has space to work in.
    pub(crate) fn victim(&self, log: &Log, map: &Map, collecting: &mut Collecting) -> Option<SegNo> {
        if let Some(victim) = collecting.victim(log) {
            return Some(victim);
        }
        let victim = collecting
            .ahead
            .chosen(&self.mover, log, map)
            .or_else(|| collecting.ahead.choose(&self.mover, log, map))?;
        self.has_space_to_collect(log, map, victim).then_some(victim)
    }

    /// The next of the victims that were chosen together, if none is being collected and one is left.
    pub(crate) fn chosen_victim(&self, log: &Log, map: &Map, collecting: &mut Collecting) -> Option<SegNo> {
        let chosen =
            collecting.ahead.chosen(&self.mover, log, map).filter(|_| collecting.victim(log).is_none());
        chosen.filter(|victim| self.has_space_to_collect(log, map, *victim))
    }

    fn has_space_to_collect(&self, log: &Log, map: &Map, victim: SegNo) -> bool {
        let moved = Space::moved_bytes(map.live(victim)) as usize;
        let waste = self.mover.volume.space().segment_bytes - self.mover.volume.space().usable_bytes();
        let fits = AppendPoint::gc().any(|point| moved + waste <= log.bytes_left(point));
        fits || log.spare_for_gc() > 0
    }

    /// Moves a piece of the live data out of `victim`; the rest is left to the next turn.
    pub(crate) fn collect(&self, victim: SegNo, collecting: &mut Collecting) -> Result<()> {
        let goes_on = collecting.victim(&self.mover.journal.lock()) == Some(victim);
        let under_way = collecting.under_way.take().filter(|_| goes_on);
        let mut collection =
            under_way.unwrap_or_else(|| Collection::begin(&self.mover, victim, &mut collecting.ahead));
        let corrupt = match collection.piece(&self.mover) {
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
            Err(Error::Device(_)) if !self.mover.journal.lock().is_poisoned() => 1,
            Err(error) => return Err(error),
        };
        let mut log = self.mover.journal.lock();
        log.counters_mut().gc_segments += 1;
        let pending_free = log.pending_free()
            + usize::from(self.reuse.is_pending_free(&log, &self.mover.map.read(), victim));
        log.set_pending_free(pending_free);
        log.counters_mut().corrupt_chunks += corrupt;
        // What could not be moved may be gone by now.
        if corrupt > 0 && self.mover.map.read().live(victim).extents > 0 {
            log.put_out_of_use(victim, collection.damaged);
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

impl Collecting {
    /// The segment that is being collected.
    pub(super) fn victim(&self, log: &Log) -> Option<SegNo> {
        self.under_way.as_ref()?.victim(log)
    }
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use crate::{Lba, Op, Stream, addr::CHUNK_SECTORS, log::State, store::test_store};

    /// It was put out of use, with nothing live in it.
    #[test]
    fn a_victim_whose_damaged_chunk_is_trimmed_meanwhile_is_freed() {
        const PAGE: usize = 16384;
        let store = test_store::store(64 << 20, Some(1 << 20));
        let trim = |lba, sectors| {
            store.writer.write_batch(&[Op::Trim { lba: Lba(lba), sectors }], Stream::Data).unwrap();
        };
        let page = |number: u64| number * CHUNK_SECTORS;
        for number in 0..70 {
            let write = Op::Write { lba: Lba(page(number)), data: &[7; PAGE] };
            store.writer.write_batch(&[write], Stream::Data).unwrap();
        }
        (30..50).for_each(|number| trim(page(number), CHUNK_SECTORS));
        store.journal.flush_all().unwrap();
        let mut collecting = store.collector.collecting();
        let victim =
            store.collector.victim(&store.journal.lock(), &store.map.read(), &mut collecting).unwrap();
        // Its first page, which the first piece of the collection meets.
        let (_, extent) = store.map.read().extents(page(0)..page(1)).next().unwrap().ok().unwrap();
        assert_eq!(extent.phys.segment, victim);
        let block = (store.volume.offset(victim, extent.phys.offset()) + 4096) / 4096 * 4096;
        store.volume.device().write_at(block, &[0xee; 4096]).unwrap();
        store.collector.collect(victim, &mut collecting).unwrap();
        assert!(collecting.under_way.as_ref().is_some_and(|collection| collection.corrupt == 1));
        trim(page(0), CHUNK_SECTORS);
        while collecting.under_way.is_some() {
            store.collector.collect(victim, &mut collecting).unwrap();
        }
        let log = store.journal.lock();
        assert_eq!((log.segment(victim).state, log.damaged_segments()), (State::Sealed, 0));
        assert!(log.dead(&store.map.read()).contains(&victim));
    }
}
