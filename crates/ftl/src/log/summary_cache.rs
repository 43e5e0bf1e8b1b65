//! Summaries of sealed segments, kept in memory for collection.
//!
//! The live extents of a segment are found from the list of what was written to it, its summary. Reading that takes one
//! or two reads for each collected segment, queued behind everything that writers have sent to the device. Where little
//! is live, these were a quarter of all reads of collection. So summaries are kept when segments are sealed, until
//! their memory is used up ([`crate::Options::summary_memory`]); after that, a new one is kept only when a segment with
//! a kept summary becomes free. The oldest summaries are not dropped for new ones, because old segments are the ones
//! collected. A summary that is not kept is read. `cargo test -p lacuna-ftl summaries::collection_reads` counts the
//! rounds of reads that they save.
//!
//! Invariant: the bytes kept for a segment's life are those that its summary has on the device, or will have: a sealed
//! segment does not change, and its kept summary is dropped when it becomes free. Code that must verify the device
//! (`check`, `scrub`, recovery) reads the device.

use std::{collections::HashMap, sync::Arc};

use crate::{addr::SegNo, format::Life};

/// See the module documentation.
#[derive(Default)]
pub(crate) struct SummaryCache {
    bytes_max: usize,
    bytes: usize,
    kept: HashMap<SegNo, (Life, Arc<[u8]>)>,
}

impl SummaryCache {
    pub(crate) fn new(bytes_max: u64) -> SummaryCache {
        SummaryCache {
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            ..SummaryCache::default()
        }
    }

    /// Keeps the summary, copies included, with which this life was sealed, if there is space for it.
    pub(crate) fn keep(&mut self, life: Life, summary: &[u8]) {
        if self.bytes + summary.len() <= self.bytes_max {
            self.bytes += summary.len();
            let before = self.kept.insert(life.segment, (life, summary.into()));
            assert!(before.is_none(), "segment {} was sealed twice in one life", life.segment.0);
        }
    }

    /// The segment becomes free.
    pub(crate) fn forget(&mut self, segment: SegNo) {
        if let Some((_, summary)) = self.kept.remove(&segment) {
            self.bytes -= summary.len();
        }
    }

    pub(super) fn of(&self, life: Life) -> Option<Arc<[u8]>> {
        self.kept.get(&life.segment).filter(|(kept, _)| *kept == life).map(|(_, summary)| summary.clone())
    }

    /// Bytes of all that are kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use super::*;
    use crate::{Lba, Op, Stream, log::State, media::summaries::read_summary, store::test_store};

    #[test]
    fn what_is_kept_is_what_the_device_has_and_goes_with_its_segment() {
        let store = test_store::store(64 << 20, Some(1 << 20));
        store.journal.lock().summary_cache = SummaryCache::new(4 << 10);
        let write = |page: u64| {
            let (lba, data) = (Lba(page % 500 * 32), [1 + page as u8 % 200; 16384]);
            store.writer.write_batch(&[Op::Write { lba, data: &data }], Stream::Data).unwrap();
        };
        (0..500).for_each(write);
        store.journal.flush_all().unwrap();
        let lives: Vec<Life> = {
            let log = store.journal.lock();
            log.in_state(State::Sealed).map(|segment| log.life(segment)).collect()
        };
        let kept = |life: &&Life| store.journal.lock().summary_cache.of(**life).is_some();
        let (first, rest) = lives.split_first().unwrap();
        assert!(
            kept(&first) && !rest.iter().all(|life| kept(&life)),
            "the space is for some of {}",
            lives.len()
        );
        let reads = store.volume.device().stats().reads;
        let found = store.journal.summaries(&lives).unwrap();
        let not_kept = lives.iter().filter(|life| !kept(life)).count() as u64;
        assert_eq!(store.volume.device().stats().reads - reads, not_kept);
        for (life, records) in lives.iter().zip(found) {
            let on_device = read_summary(&store.volume, *life).unwrap();
            assert!(records.unwrap() == on_device.unwrap());
        }
        let later = Life { generation: first.generation + 1000, ..*first };
        assert!(store.journal.lock().summary_cache.of(later).is_none());

        // Segments become free and are sealed again: the kept summaries stay within their memory.
        (0..20_000).for_each(write);
        let log = store.journal.lock();
        assert!(log.segment(first.segment).generation > first.generation, "it was used again");
        let SummaryCache { bytes, bytes_max, kept } = &log.summary_cache;
        assert_eq!(*bytes, kept.values().map(|(_, summary)| summary.len()).sum::<usize>());
        assert!(*bytes <= *bytes_max && *bytes * 2 > *bytes_max);
        assert!(kept.values().all(|(life, _)| log.life(life.segment) == *life));
    }
}
