//! Opening a store in which collection has no space left.
//!
//! However the last use of the store ended, a collection may have been under way. Opening seals the segment that it had
//! opened; part of the victim lies in there, and neither segment is free. If that repeats often enough, no segment is
//! left beyond those for checkpoints, and no append point has space. Then segments are emptied in *steps*, each of
//! which takes effect whole or not at all, so that no number of power cuts can make it worse:
//!
//! 1. Before a step at least `F + 1` segments are free (`reserve`): where the map is spread over more than `F`, a
//!    checkpoint writes all of it anew, by invariant 1 of `reserve`.
//! 2. A step moves the live extents of the sparsest segments into the space that the step before has left, and then
//!    into at most one segment more. That is opened under a *new epoch*, so its records are void until the superblock
//!    names that epoch (`media::scan`): a power cut leaves it free, and all else as it was.
//! 3. A checkpoint under that epoch ends the step. Its map leads to the new places, and the victims become free,
//!    at least one: as many segments as were taken, or more.
//!
//! No other thread uses the store meanwhile. No segment that is open when the epoch changes is appended to afterwards:
//! only one is ever open, and it was filled up by then.
//!
//! It terminates, because each step fills the open segment, so that garbage accumulates elsewhere; by invariant 6 of
//! `reserve` it amounts to a whole segment.

use crate::{
    Result,
    addr::SegNo,
    checkpoint::Rewrite,
    gc::{Collecting, Collector},
    log::{Claim, Log, Restoring, State},
    map::Map,
    mutant::{Rule, is_broken},
    space::{GC_SEGMENTS_MIN, Space},
};

impl Collector {
    /// Ensures that collection can begin, before the store is used. Calls `announce` with an epoch before the superblock
    /// may name it.
    pub(crate) fn restore(&self, mut announce: impl FnMut(u64) -> Result<()>) -> Result<()> {
        if is_broken(Rule::OpeningRestores) {
            return Ok(());
        }
        let _turn = self.mover.journal.turn();
        let mut collecting = self.collecting();
        // Each segment is filled once, and once more when it was the target of a step.
        for _ in 0..2 * self.mover.volume.space().segments {
            if !self.restore_some(&mut collecting, &mut announce)? {
                break;
            }
        }
        Ok(())
    }

    /// One step; false if none is needed or possible.
    fn restore_some(
        &self,
        collecting: &mut Collecting,
        announce: &mut impl FnMut(u64) -> Result<()>,
    ) -> Result<bool> {
        let lacks = |log: &Log| log.spare_for_gc() < GC_SEGMENTS_MIN;
        if !lacks(&self.mover.journal.lock()) || self.next_to_restore().is_none() {
            return Ok(false);
        }
        let has_space = |log: &Log| log.free().len() > log.left_by(Claim::Regain);
        if !has_space(&self.mover.journal.lock()) {
            self.mover.checkpointer.checkpoint_in_turn(Rewrite::All)?;
        }
        let next = self.mover.journal.lock().epoch() + 1;
        announce(next)?;
        {
            let mut log = self.mover.journal.lock();
            if !has_space(&log) {
                return Ok(false);
            }
            log.set_restoring(Restoring::MayOpen);
        }
        let mut victims = 0;
        let moved = loop {
            let Some(victim) = self.next_to_restore() else { break Ok(()) };
            if let Err(error) = self.move_out(victim, collecting) {
                break Err(error);
            }
            victims += 1;
        };
        self.mover.journal.lock().set_restoring(Restoring::No);
        moved?;
        self.mover.checkpointer.checkpoint_in_turn(Rewrite::Sparse)?;
        Ok(victims > 0)
    }

    /// The sparsest segment, if its live data fits into the space that this step may fill.
    fn next_to_restore(&self) -> Option<SegNo> {
        let log = self.mover.journal.lock();
        let map = self.mover.map.read();
        let sealed =
            log.in_state(State::Sealed).filter(|segment| self.mover.may_be_victim(&log, &map, *segment));
        let victim = sealed.min_by_key(|segment| Space::moved_bytes(map.live(*segment)))?;
        (log.restoring() != Restoring::HasOpened || self.fits_open(&log, &map, victim)).then_some(victim)
    }

    fn fits_open(&self, log: &Log, map: &Map, victim: SegNo) -> bool {
        let waste = self.mover.volume.space().segment_bytes - self.mover.volume.space().usable_bytes();
        let moved = Space::moved_bytes(map.live(victim)) as usize;
        moved + waste <= log.bytes_left(self.mover.restore_target())
    }

    fn move_out(&self, victim: SegNo, collecting: &mut Collecting) -> Result<()> {
        loop {
            self.collect(victim, collecting)?;
            if collecting.victim(&self.mover.journal.lock()) != Some(victim) {
                return Ok(());
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use std::sync::Arc;

    use lacuna_device::BlockDevice;
    use lacuna_sim::{SimDevice, SimMemory};

    use super::*;
    use crate::{
        CheckDepth, Error, FormatOptions, Ftl, Lba, LogDeviceUse, Op, Options, Stream,
        map::Live,
        media::creation,
        store::test_store::{self, Parts},
    };

    fn overwrite(page: u64, byte: u8) -> (Lba, Vec<u8>) {
        (Lba(page * 32), vec![byte | 1; 16384])
    }

    /// The state that the store reaches without this step: each process ends within a collection.
    fn end_while_collecting(store: &Parts) {
        let mut collecting = store.collector.collecting();
        let victim = {
            let (log, map) = (store.journal.lock(), store.map.read());
            let sealed = log
                .in_state(State::Sealed)
                .filter(|segment| store.collector.mover.may_be_victim(&log, &map, *segment));
            sealed.max_by_key(|segment| map.live(*segment).bytes).unwrap()
        };
        // The second piece is the one that moves what both have read.
        store.collector.collect(victim, &mut collecting).unwrap();
        store.collector.collect(victim, &mut collecting).unwrap();
        store.journal.flush_all().unwrap();
    }

    /// A new log device is part of the store as soon as the superblock names it, whatever comes next.
    fn open_logged(sim: &Arc<SimDevice>, memory: &mut Arc<SimMemory>) -> crate::Result<Ftl> {
        let open = |log_device| Ftl::open(sim.clone(), Options { log_device, ..Options::default() });
        match open(LogDeviceUse::Device(memory.clone())) {
            Err(Error::LogDevice { reason, .. }) if reason == "the store has none" => {
                *memory = SimMemory::beside(sim, 8 << 20, 1);
                open(LogDeviceUse::New(memory.clone()))
            }
            Err(Error::LogDevice { reason, .. }) => panic!("its own log device is refused: {reason}"),
            opened => opened,
        }
    }

    #[test]
    fn a_stuck_store_is_freed_by_opening_it_whatever_cuts_that() {
        [false, true].into_iter().for_each(free_stuck);
    }

    /// It was chosen again and again, because what it counts would have fitted.
    #[test]
    fn a_segment_that_holds_more_than_it_counts_stops_the_store() {
        let device: Arc<dyn BlockDevice> = SimDevice::new(40 << 20, 1);
        let options = FormatOptions { segment_bytes: Some(1 << 20), ..FormatOptions::default() };
        creation::format(&*device, &options).unwrap();
        let store = test_store::open(&device);
        for page in 0..600 {
            let (lba, data) = overwrite(page, 7);
            store.writer.write_batch(&[Op::Write { lba, data: &data }], Stream::Data).unwrap();
        }
        let segment = |page: u64| {
            let map = store.map.read();
            map.extents(page * 32..page * 32 + 32).next().map(|found| found.ok().unwrap().1.phys.segment)
        };
        let (first, forged) = (segment(100).unwrap(), segment(300).unwrap());
        for page in (0..600).filter(|page| segment(*page) == Some(first)).take(20).collect::<Vec<_>>() {
            store.writer.write_batch(&[Op::Trim { lba: Lba(page * 32), sectors: 32 }], Stream::Data).unwrap();
        }
        store.journal.flush_all().unwrap();
        drop(store);
        let store = test_store::open(&device);
        store.journal.lock().set_restoring(Restoring::MayOpen);
        let mut collecting = store.collector.collecting();
        store.collector.move_out(first, &mut collecting).unwrap();
        store.map.write().forge_live(forged, Live { bytes: 16 << 10, extents: 1 });
        assert_eq!(store.collector.next_to_restore(), Some(forged));
        store.collector.move_out(forged, &mut collecting).unwrap();
        let again = store.collector.move_out(forged, &mut collecting).unwrap_err();
        assert!(again.to_string().contains("holds more than the checkpoint counts there"), "{again}");
    }

    fn free_stuck(is_logged: bool) {
        let sim = SimDevice::with_block_bytes(40 << 20, 4096, 1);
        let device: Arc<dyn BlockDevice> = sim.clone();
        let options = FormatOptions { segment_bytes: Some(1 << 20), ..FormatOptions::default() };
        creation::format(&*device, &options).unwrap();
        let store = test_store::open(&device);
        let write = |store: &Parts, page, byte| {
            let (lba, data) = overwrite(page, byte);
            store.writer.write_batch(&[Op::Write { lba, data: &data }], Stream::Data)
        };
        let pages = (0..).find(|page| matches!(write(&store, *page, 7), Err(Error::Full { .. }))).unwrap();
        for page in (0..pages).step_by(8) {
            store.writer.write_batch(&[Op::Trim { lba: Lba(page * 32), sectors: 32 }], Stream::Data).unwrap();
        }
        store.journal.flush_all().unwrap();
        drop(store);
        let is_stuck = (0..100).any(|_| {
            let store = test_store::open(&device);
            let has_space = store.journal.lock().spare_for_gc() > 0;
            if has_space {
                end_while_collecting(&store);
            }
            !has_space
        });
        assert!(is_stuck);
        let stuck = test_store::open(&device);
        assert!(matches!(write(&stuck, 1, 11), Err(Error::Full { .. })));
        drop(stuck);

        let mut memory = SimMemory::beside(&sim, 8 << 20, 1);
        let open = |memory: &mut Arc<SimMemory>| match is_logged {
            true => open_logged(&sim, memory),
            false => Ftl::open(device.clone(), Options::default()),
        };
        for cut in 1..40 {
            sim.set_cut_after(3 * cut);
            drop(open(&mut memory));
            sim.power_cycle();
            memory.power_cycle();
        }
        let ftl = open(&mut memory).unwrap();
        assert!(test_store::journal(&ftl).lock().spare_for_gc() >= GC_SEGMENTS_MIN);
        for page in 0..2 * pages {
            let (lba, data) = overwrite(page % pages, 13);
            ftl.write_batch(&[Op::Write { lba, data: &data }], Stream::Data).unwrap();
        }
        ftl.write_batch(&[Op::Trim { lba: Lba(0), sectors: 1 << 40 }], Stream::Data).unwrap();
        assert!(ftl.check(CheckDepth::Payload).unwrap().is_clean());
    }
}
