//! Opening a store in which collection has no room left.
//!
//! Whatever ended the last use of the store, a collection may have been under way: what it had opened is sealed
//! by opening, part of its victim lies in there, and neither is free. Often enough repeated, no segment is left
//! beyond those for checkpoints, and no append point has room. Then segments are emptied in *steps*, each of which
//! counts whole or not at all, so that no number of cuts can make it worse:
//!
//! 1. Before a step at least `F + 1` segments are free (`reserve`): where the map is spread over more than `F`, a
//!    checkpoint writes all of it anew, by invariant 1 of `reserve`.
//! 2. A step moves what is live in the sparsest segments into the room that the step before has left, and then into at
//!    most one segment more. That is opened under a *new epoch*, so its records are void until
//!    the superblock names that epoch (`scan`): a cut leaves it free, and all else as it was.
//! 3. A checkpoint under that epoch ends the step. Its map leads to the new places, and the victims become free,
//!    at least one: as many segments as were taken, or more.
//!
//! Nobody else uses the store meanwhile. No segment that is open when the epoch changes is appended to
//! afterwards: only one is ever open, and it was filled up by then.
//!
//! It ends, because each step fills the open segment, so that garbage comes together; by invariant 6 of `reserve` it comes
//! to a whole segment.

use crate::{
    Result,
    addr::SegNo,
    checkpoint::Rewrite,
    gc::Turn,
    log::{AppendPoint, Log, Regaining, State},
    map::Map,
    mutant::{Rule, is_broken},
    reserve::{Claim, GC_SEGMENTS_MIN},
    space::Space,
    store::Store,
};

impl Store {
    /// Sees to it that collection can begin, before the store is used.
    pub(crate) fn regain(&self) -> Result<()> {
        if is_broken(Rule::OpeningRegains) {
            return Ok(());
        }
        let mut turn = self.turn();
        // Each segment is filled once, and once more when it was the target of a step.
        for _ in 0..2 * self.space().segments {
            if !self.regain_some(&mut turn)? {
                break;
            }
        }
        Ok(())
    }

    /// One step; false if none is needed or possible.
    fn regain_some(&self, turn: &mut Turn) -> Result<bool> {
        let lacks = |log: &Log| log.spare_for_gc() < GC_SEGMENTS_MIN;
        if !lacks(&self.log.lock()) || self.next_to_regain().is_none() {
            return Ok(false);
        }
        let has_room = |log: &Log| log.free.len() > log.left_by(Claim::Regain);
        if !has_room(&self.log.lock()) {
            self.checkpoint_in_turn(Rewrite::All)?;
        }
        {
            let mut log = self.log.lock();
            if !has_room(&log) {
                return Ok(false);
            }
            log.regaining = Regaining::MayOpen;
        }
        let mut victims = 0;
        let moved = loop {
            let Some(victim) = self.next_to_regain() else { break Ok(()) };
            if let Err(error) = self.move_out(victim, turn) {
                break Err(error);
            }
            victims += 1;
        };
        self.log.lock().regaining = Regaining::No;
        moved?;
        self.checkpoint_in_turn(Rewrite::Sparse)?;
        Ok(victims > 0)
    }

    /// The sparsest segment, if what is live in it fits into what this step may fill.
    fn next_to_regain(&self) -> Option<SegNo> {
        let log = self.log.lock();
        let map = self.map.read();
        let sealed = log.in_state(State::Sealed).filter(|segment| self.may_be_victim(&log, &map, *segment));
        let victim = sealed.min_by_key(|segment| Space::moved_bytes(map.live(*segment)))?;
        (log.regaining != Regaining::HasOpened || self.fits_open(&log, &map, victim)).then_some(victim)
    }

    fn fits_open(&self, log: &Log, map: &Map, victim: SegNo) -> bool {
        let waste = self.space().segment_bytes - self.space().usable_bytes();
        let moved = Space::moved_bytes(map.live(victim)) as usize;
        moved + waste <= log.room(self.regain_point())
    }

    /// Where extents are moved to.
    pub(crate) fn regain_point(&self) -> AppendPoint {
        AppendPoint::Gc(self.space().classes() as u8 - 1)
    }

    fn move_out(&self, victim: SegNo, turn: &mut Turn) -> Result<()> {
        self.collect(victim, turn)?;
        while self.log.lock().victim == Some(victim) {
            self.collect(victim, turn)?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use std::sync::Arc;

    use lacuna_device::BlockDevice;
    use lacuna_sim::SimDevice;

    use super::*;
    use crate::{
        CheckDepth, Error, FormatOptions, Ftl, Lba, Op, Options, Stream, recovery, salvage::Losses,
        superblock,
    };

    fn open(device: &Arc<dyn BlockDevice>) -> Store {
        let store = recovery::open(device.clone(), Options::default(), &Losses::REFUSED).unwrap();
        store.checkpoint().unwrap();
        store
    }

    fn overwrite(page: u64, byte: u8) -> (Lba, Vec<u8>) {
        (Lba(page * 32), vec![byte | 1; 16384])
    }

    /// The state that versions came to which did not regain: each process ends within a collection.
    fn end_while_collecting(store: &Store) {
        let mut turn = store.maintenance.lock();
        let victim = {
            let (log, map) = (store.log.lock(), store.map.read());
            let sealed =
                log.in_state(State::Sealed).filter(|segment| store.may_be_victim(&log, &map, *segment));
            sealed.max_by_key(|segment| map.live(*segment).bytes).unwrap()
        };
        // The second piece is the one that moves what both have read.
        store.collect(victim, &mut turn).unwrap();
        store.collect(victim, &mut turn).unwrap();
        store.flush_all().unwrap();
    }

    #[test]
    fn a_stuck_store_is_freed_by_opening_it_whatever_cuts_that() {
        let sim = SimDevice::with_block_bytes(40 << 20, 4096, 1);
        let device: Arc<dyn BlockDevice> = sim.clone();
        let options = FormatOptions { segment_bytes: Some(1 << 20), ..FormatOptions::default() };
        superblock::format(&*device, &options).unwrap();
        let store = open(&device);
        let write = |store: &Store, page, byte| {
            let (lba, data) = overwrite(page, byte);
            store.write_batch(&[Op::Write { lba, data: &data }], Stream::Data)
        };
        let pages = (0..).find(|page| matches!(write(&store, *page, 7), Err(Error::Full { .. }))).unwrap();
        for page in (0..pages).step_by(8) {
            store.write_batch(&[Op::Trim { lba: Lba(page * 32), sectors: 32 }], Stream::Data).unwrap();
        }
        store.flush_all().unwrap();
        drop(store);
        let is_stuck = (0..100).any(|_| {
            let store = open(&device);
            let has_room = store.log.lock().spare_for_gc() > 0;
            if has_room {
                end_while_collecting(&store);
            }
            !has_room
        });
        assert!(is_stuck);
        let stuck = open(&device);
        assert!(matches!(write(&stuck, 1, 11), Err(Error::Full { .. })));
        drop(stuck);

        for cut in 1..40 {
            sim.set_cut_after(3 * cut);
            drop(Ftl::open(device.clone(), Options::default()));
            sim.power_cycle();
        }
        let ftl = Ftl::open(device.clone(), Options::default()).unwrap();
        assert!(ftl.store.log.lock().spare_for_gc() >= GC_SEGMENTS_MIN);
        for page in 0..2 * pages {
            let (lba, data) = overwrite(page % pages, 13);
            ftl.write_batch(&[Op::Write { lba, data: &data }], Stream::Data).unwrap();
        }
        ftl.write_batch(&[Op::Trim { lba: Lba(0), sectors: 1 << 40 }], Stream::Data).unwrap();
        assert!(ftl.check(CheckDepth::Payload).unwrap().is_clean());
    }
}
