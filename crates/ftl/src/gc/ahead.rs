//! Choosing victims of collection, and reading ahead of it.
//!
//! Collecting a sparse segment costs little except for the choice, which looks at all segments with the log locked, and
//! for its reads: first the summary, then the live data. If segments are handled one at a time, the thread waits for
//! the device at each, queued behind the writers' requests, and the writers wait for the thread. So one look chooses
//! several segments, and if they are sparse, their summaries are read concurrently, and then their live data: eight
//! segments take two rounds of reads, one where the summaries are in memory (`cargo test -p lacuna-ftl
//! summaries::collection_reads`).
//!
//! Invariants:
//! 1. A choice is valid only as long as the segment is in the life in which it was chosen and collecting it would still
//!    win space. Other segments may pay better by now, which costs little: the chosen one was among the best, and its
//!    live data only shrinks.
//! 2. The bytes kept here for a segment's life equal those on the device, because a sealed segment does not change. So
//!    they may be used as long as the segment is in that life, however late. They are only a hint of what is live: the
//!    collection looks at the map itself. Unreadable data is not kept: the collection gets the error from its own read.

use std::collections::{HashMap, VecDeque};

use super::{
    live::{RECORDS_AT_ONCE, entries_of, moved_bytes},
    mover::Mover,
};
use crate::{
    Lba, Result,
    addr::{PhysAddr, SegNo},
    format::{Extent, Life},
    log::{Log, State},
    map::Map,
    media::scan::Record,
    read::runs,
    space::Space,
};

/// Segments that are chosen together, in a small store and in the largest: a negligible share of its segments.
const SEGMENTS_MIN: usize = 8;
const SEGMENTS_MAX: usize = 32;
const SEGMENTS_SHARE: usize = 128;
/// Live bytes of each of them at most, and share of the segment. Above that, reading is bound by bandwidth and not by
/// latency.
const LIVE_BYTES_MAX: usize = 256 << 10;
const LIVE_SHARE_MAX: usize = 8;

/// The data that was read of one segment.
pub(super) struct Near {
    life: Life,
    pub(super) records: Vec<Record>,
    /// The extents that were live when it was read, in the order in which they lie.
    pub(super) live: Vec<(Lba, Extent)>,
    /// Chunks as they were read, not verified.
    pub(super) chunks: HashMap<PhysAddr, Vec<u8>>,
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Sparse segments, the best one first.
    chosen: VecDeque<Life>,
    near: Vec<Near>,
}

impl Ahead {
    /// The best one of those that were chosen together and are left (invariant 1).
    pub(super) fn chosen(&mut self, mover: &Mover, log: &Log, map: &Map) -> Option<SegNo> {
        while let Some(Life { segment, .. }) = self.chosen.front().copied() {
            let is_in_this_life = log.segment(segment).state == State::Sealed
                && self.chosen.front() == Some(&log.life(segment));
            if is_in_this_life && mover.may_be_victim(log, map, segment) {
                return Some(segment);
            }
            self.chosen.pop_front();
        }
        None
    }

    /// Looks at all segments. Returns the best one, and if it is sparse, remembers it and others.
    pub(super) fn choose(&mut self, mover: &Mover, log: &Log, map: &Map) -> Option<SegNo> {
        let Space { segments, segment_bytes, .. } = mover.volume.space();
        let count = (segments / SEGMENTS_SHARE).clamp(SEGMENTS_MIN, SEGMENTS_MAX);
        let best = mover.best_victims(log, map, count);
        let live_max = LIVE_BYTES_MAX.min(segment_bytes / LIVE_SHARE_MAX) as u64;
        let is_sparse = |segment: &SegNo| Space::moved_bytes(map.live(*segment)) <= live_max;
        let victim = *best.first()?;
        if is_sparse(&victim) {
            self.chosen = best.into_iter().filter(is_sparse).map(|segment| log.life(segment)).collect();
        }
        Some(victim)
    }

    /// Returns what was read of `victim`, for its collection, which now begins. If nothing was read yet, it and the
    /// segments chosen with it are read first. The maintenance lock is held, so none of them is freed meanwhile.
    pub(super) fn take(&mut self, mover: &Mover, victim: Life) -> Option<Near> {
        if self.chosen.front() == Some(&victim) {
            if !self.near.iter().any(|near| near.life == victim) {
                // If reading them together fails, each collection reads its own segment.
                self.near = read(mover, self.chosen.make_contiguous()).unwrap_or_default();
            }
            self.chosen.pop_front();
        }
        let index = self.near.iter().position(|near| near.life == victim)?;
        Some(self.near.swap_remove(index))
    }
}

/// Reads the summaries of `lives`, then their live data.
fn read(mover: &Mover, lives: &[Life]) -> Result<Vec<Near>> {
    let summaries = mover.journal.summaries(lives)?;
    let (mut near, mut all) = (Vec::with_capacity(lives.len()), Vec::new());
    for (life, records) in lives.iter().zip(summaries) {
        let Ok(records) = records else { continue };
        let mut live = live_of(mover, *life, &records)?;
        live.sort_unstable_by_key(|(lba, extent)| (extent.phys.grain, *lba));
        all.extend_from_slice(&live);
        near.push(Near { life: *life, records, live, chunks: HashMap::new() });
    }
    all.sort_unstable_by_key(|(_, extent)| (extent.phys.segment, extent.phys.grain));
    let mut rest = &all[..];
    while !rest.is_empty() {
        let runs = runs(&mut rest, 0);
        for (run, bytes) in runs.iter().zip(mover.reader.read_runs(&runs)?) {
            for (_, extent) in run.extents {
                let chunk = &bytes[extent.phys.offset() - run.offset..][..usize::from(extent.stored)];
                let near = near.iter_mut().find(|near| near.life.segment == extent.phys.segment);
                near.expect("it was found in there").chunks.insert(extent.phys, chunk.to_vec());
            }
        }
    }
    Ok(near)
}

/// Those extents of `records`, all records of a sealed segment's life, that the map still holds. Stops once that is as
/// much as was live before: data in a sealed segment only dies, so nothing else is left.
fn live_of(mover: &Mover, life: Life, records: &[Record]) -> Result<Vec<(Lba, Extent)>> {
    let live_bytes = mover.map.read().live(life.segment).bytes;
    let (mut found, mut found_bytes) = (Vec::new(), 0);
    for records in records.chunks(RECORDS_AT_ONCE) {
        let (more, _) = mover.live_among(&entries_of(records))?;
        found_bytes += more.iter().map(|(_, extent)| moved_bytes(extent) as u64).sum::<u64>();
        found.extend(more);
        if found_bytes == live_bytes {
            break;
        }
    }
    Ok(found)
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use super::*;
    use crate::{Lba, Op, Stream, log::State, store::test_store};

    #[test]
    fn what_was_read_of_a_life_serves_no_other() {
        let store = test_store::store(64 << 20, Some(1 << 20));
        for page in 0..300 {
            let (lba, data) = (Lba(page * 32), [1 + page as u8 % 200; 16384]);
            store.writer.write_batch(&[Op::Write { lba, data: &data }], Stream::Data).unwrap();
        }
        for page in (0..300).filter(|page| page % 16 > 0) {
            store.writer.write_batch(&[Op::Trim { lba: Lba(page * 32), sectors: 32 }], Stream::Data).unwrap();
        }
        store.journal.flush_all().unwrap();
        let lives: Vec<Life> = {
            let log = store.journal.lock();
            log.in_state(State::Sealed).map(|segment| log.life(segment)).collect()
        };
        let mut collecting = store.collector.collecting();
        let chosen: Vec<Life> = {
            let (log, map) = (store.journal.lock(), store.map.read());
            store.collector.victim(&log, &map, &mut collecting).unwrap();
            collecting.ahead.chosen.iter().copied().collect()
        };
        assert!(chosen.len() == lives.len() && chosen.iter().all(|life| lives.contains(life)));
        let ahead = &mut collecting.ahead;
        let near = ahead.take(&store.collector.mover, chosen[0]).unwrap();
        assert!(near.life == chosen[0] && !near.records.is_empty());
        assert!(
            near.chunks.iter().all(|(phys, chunk)| phys.segment == near.life.segment && chunk.len() == 16384)
        );
        assert_eq!((near.chunks.len(), near.live.len(), ahead.near.len()), (4, 4, chosen.len() - 1));
        let later = Life { generation: chosen[1].generation + 1, ..chosen[1] };
        assert!(ahead.take(&store.collector.mover, later).is_none());
        assert!(ahead.take(&store.collector.mover, chosen[1]).is_some_and(|near| near.life == chosen[1]));

        // Dead or in another life, it is passed over.
        let (next, after) = (ahead.chosen[0].segment, ahead.chosen[1].segment);
        let (mut log, map) = (store.journal.lock(), store.map.read());
        assert_eq!(ahead.chosen(&store.collector.mover, &log, &map), Some(next));
        log.segment_mut(next).generation += 1;
        assert_eq!(ahead.chosen(&store.collector.mover, &log, &map), Some(after));
    }
}
