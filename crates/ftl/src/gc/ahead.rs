//! Reading ahead for collection.
//!
//! A segment of which little is live is collected in no time but for its reads: of its footer, then of what
//! is live. One segment after the other, the thread waits for the device at each, behind whatever writers have
//! handed it, and they wait for the thread. So the footers of several segments that are the best to collect
//! are read at the same time, and so is what is live in them.
//!
//! Invariant: what is kept here of a segment's life is what its bytes on the device are, because a sealed
//! segment does not change. So it may be used as long as the segment is in that life, however late; and it says
//! nothing of what is live: the collection looks at the map itself. What cannot be read is not kept: the
//! collection meets the error on its own.

use std::collections::HashMap;

use crate::{
    Result,
    addr::PhysAddr,
    format::Life,
    read::runs,
    scan::{Record, read_footers},
    space::Space,
    store::Store,
};

/// Segments that are read together.
const SEGMENTS_MAX: usize = 8;
/// Live bytes of each of them at most, and share of the segment. With more, the bytes and not the wait are what
/// reading costs.
const LIVE_BYTES_MAX: usize = 256 << 10;
const LIVE_SHARE_MAX: usize = 8;

/// What was read of one segment.
pub(super) struct Near {
    life: Life,
    pub(super) records: Vec<Record>,
    /// Chunks as they were read, not verified.
    pub(super) chunks: HashMap<PhysAddr, Vec<u8>>,
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Ahead(Vec<Near>);

impl Ahead {
    /// What was read of `victim`, for its collection, and reads it and others first if it was not yet.
    /// `maintenance` is held, so none of them is freed meanwhile.
    pub(super) fn take(&mut self, store: &Store, victim: Life) -> Option<Near> {
        if !self.0.iter().any(|near| near.life == victim) {
            // What cannot be read together is read alone, by who needs it.
            self.0 = read(store, victim).unwrap_or_default();
        }
        let index = self.0.iter().position(|near| near.life == victim)?;
        Some(self.0.swap_remove(index))
    }
}

/// Of `victim` and the segments that will be collected next, if they are sparse.
fn read(store: &Store, victim: Life) -> Result<Vec<Near>> {
    let (salt, lives) = {
        let log = store.log.lock();
        let map = store.map.read();
        let live_max = LIVE_BYTES_MAX.min(store.space.segment_bytes / LIVE_SHARE_MAX) as u64;
        let is_sparse = |life: &Life| Space::moved_bytes(map.live(life.segment)) <= live_max;
        if !is_sparse(&victim) {
            return Ok(Vec::new());
        }
        let mut candidates = store.candidates(&log, &map);
        candidates.sort_unstable_by(|(_, left), (_, right)| right.total_cmp(left));
        let others = candidates.into_iter().map(|(segment, _)| log.life(segment));
        let others = others.filter(|life| *life != victim && is_sparse(life)).take(SEGMENTS_MAX - 1);
        (log.salt, [victim].into_iter().chain(others).collect::<Vec<_>>())
    };
    let footers = read_footers(&*store.device, store.space, salt, &lives)?;
    let mut near = Vec::new();
    let mut live = Vec::new();
    for (life, records) in lives.into_iter().zip(footers) {
        let Ok(records) = records else { continue };
        for record in &records {
            live.extend(store.live_among(&record.entries().unwrap_or_default())?);
        }
        near.push(Near { life, records, chunks: HashMap::new() });
    }
    live.sort_unstable_by_key(|(_, extent)| (extent.phys.segment, extent.phys.grain));
    let mut rest = &live[..];
    while !rest.is_empty() {
        let runs = runs(&mut rest, 0);
        for (run, bytes) in runs.iter().zip(store.read_runs(&runs)?) {
            for (_, extent) in run.extents {
                let chunk = &bytes[extent.phys.offset() - run.offset..][..usize::from(extent.stored)];
                let near = near.iter_mut().find(|near| near.life.segment == extent.phys.segment);
                near.expect("it was found in there").chunks.insert(extent.phys, chunk.to_vec());
            }
        }
    }
    Ok(near)
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use std::sync::Arc;

    use lacuna_device::{BlockDevice, MemDevice};

    use super::*;
    use crate::{FormatOptions, Lba, Op, Options, Stream, log::State, recovery, superblock};

    #[test]
    fn what_was_read_of_a_life_serves_no_other() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
        let options = FormatOptions { segment_bytes: Some(1 << 20), ..FormatOptions::default() };
        superblock::format(&*device, &options).unwrap();
        let store = recovery::open(device, Options::default()).unwrap();
        store.checkpoint().unwrap();
        for page in 0..300 {
            let (lba, data) = (Lba(page * 32), [1 + page as u8 % 200; 16384]);
            store.write_batch(&[Op::Write { lba, data: &data }], Stream::Data).unwrap();
        }
        for page in (0..300).filter(|page| page % 16 > 0) {
            store.write_batch(&[Op::Trim { lba: Lba(page * 32), sectors: 32 }], Stream::Data).unwrap();
        }
        store.flush_all().unwrap();
        let lives: Vec<Life> = {
            let log = store.log.lock();
            log.in_state(State::Sealed).map(|segment| log.life(segment)).collect()
        };
        let mut ahead = Ahead::default();
        let near = ahead.take(&store, lives[0]).unwrap();
        assert!(near.life == lives[0] && !near.records.is_empty());
        assert!(
            near.chunks.iter().all(|(phys, chunk)| phys.segment == near.life.segment && chunk.len() == 16384)
        );
        assert_eq!((near.chunks.len(), ahead.0.len()), (4, 3), "the other sealed ones are there too");
        let kept = ahead.0[0].life;
        let later = Life { generation: kept.generation + 1, ..kept };
        assert!(ahead.take(&store, later).is_none());
        assert!(ahead.take(&store, kept).is_some_and(|near| near.life == kept));
    }
}
