//! Garbage collection: moving what is live out of a segment, so that all of it becomes garbage.
//!
//! The victim is the sealed segment that pays best: much room won for few bytes moved, and old. Its
//! footer, or else its records, tell which sectors were written to it, the map tells what of that is live.
//! Each live extent is read, verified, cut down to what is left of it, and appended as a chunk of its own to the
//! collection's append point for extents of its age; the map is switched to the new place if it still
//! holds exactly that extent.
//!
//! Extents are moved to the append point of their class (`lifetime`). Where segments are scarce, classes
//! share one.
//!
//! Crash argument: a moved extent is the same bytes at another place. Recovery replays relocations
//! after the batches, where the map still holds what they moved (`replay`). One that a power cut took
//! is missed by nobody: the old place stays intact until the relocation is durable (`reuse`).
//!
//! A live chunk whose checksum does not match is left where it is. Its segment is counted as damaged
//! and neither collected again nor reused, so that the error stays an error and collection goes on.

use std::{collections::HashMap, ops::Range, sync::Arc};

use crc32c::crc32c;

use crate::{
    Error, Lba, Result, SECTOR, Seq,
    addr::{PhysAddr, SegNo},
    background::DIRTY_SHARE,
    batch::Item,
    format::{Entry, EntryKind, Extent, RECORDS_START, RecordKind},
    lifetime::{CLASSES_MAX, Classes},
    log::{AppendPoint, Log, State},
    map::Map,
    read::runs,
    scan::{Record, Scan, SegmentReader, read_footer},
    space::Space,
    store::Store,
};

/// Live bytes that are moved under one hold of the log's lock.
const MOVE_BYTES: usize = 512 << 10;
/// Live extents that are gathered before they are read in the order in which they lie.
const GATHER_EXTENTS: usize = 4096;

/// An extent and its bytes, on their way.
struct Moving {
    lba: Lba,
    extent: Extent,
    bytes: Arc<Vec<u8>>,
    crc: u32,
}

impl Store {
    /// The best segment to collect, if collecting one yields room and has room to work in.
    pub(crate) fn victim(&self, log: &Log, map: &Map) -> Option<SegNo> {
        let candidates = log.in_state(State::Sealed).filter(|segment| {
            let live = map.live(*segment);
            live.extents > 0 && log.is_written(*segment) && self.space.worth_moving(live)
        });
        let worth = |segment: SegNo| {
            let age = log.last_seq.0.saturating_sub(log.segment(segment).opened_seq.0) + 1;
            self.space.worth(map.live(segment), age)
        };
        let victim = candidates.map(|segment| (segment, worth(segment)));
        let (victim, _) = victim.max_by(|left, right| left.1.total_cmp(&right.1))?;
        let moved = Space::moved_bytes(map.live(victim)) as usize;
        let waste = self.space.segment_bytes - self.space.usable_bytes();
        let fits = AppendPoint::gc().any(|point| moved + waste <= log.room(point));
        (fits || self.spare_for_gc(log) > 0).then_some(victim)
    }

    /// Segments that collection may open.
    fn spare_for_gc(&self, log: &Log) -> usize {
        log.free.len().saturating_sub(self.checkpoint_reserve(log, log.peak.weight()))
    }

    /// Moves what is live out of `victim`. `maintenance` is held, so the segment stays what it is.
    pub(crate) fn collect(&self, victim: SegNo) -> Result<()> {
        let corrupt = match self.move_live(victim) {
            // The map grew meanwhile and its checkpoint needs the room; the rest stays in place.
            Err(Error::Full { .. }) => return Ok(()),
            // A leaf of the map is damaged, and what it leads to in here must stay.
            Err(Error::Corrupt { .. }) => 1,
            moved => moved?,
        };
        let mut log = self.log.lock();
        log.counters.gc_segments += 1;
        if corrupt > 0 {
            log.counters.corrupt_chunks += corrupt;
            log.damaged += 1;
            log.set_state(victim, State::Damaged);
        }
        Ok(())
    }

    /// Returns how many extents could not be moved because their chunk is corrupt.
    fn move_live(&self, victim: SegNo) -> Result<u64> {
        let (life, salt, mut mover) = {
            let log = self.log.lock();
            (log.life(victim), log.salt, Mover::new(self, &log, victim))
        };
        if let Ok(records) = read_footer(&*self.device, self.space, salt, life)? {
            records.iter().try_for_each(|record| mover.take_live(record))?;
        } else {
            let reader = SegmentReader::new(&*self.device, self.space, victim);
            let mut scan = Scan::new(reader, salt, life, RECORDS_START);
            while let Some(record) = scan.next_record()? {
                mover.take_live(&record)?;
            }
        }
        mover.finish()?;
        if self.map.read().live(victim).extents <= mover.corrupt {
            return Ok(mover.corrupt);
        }
        // Some record cannot be read any more: look for what it held in the whole map.
        mover.corrupt = 0;
        mover.gathered = self.live_in(victim)?;
        mover.finish()?;
        Ok(mover.corrupt)
    }

    /// What of `entries` the map still holds at the place that each names.
    fn live_among(&self, entries: &[Entry]) -> Result<Vec<(Lba, Extent)>> {
        let mut found = Vec::new();
        for entry in entries {
            self.visit_extents(entry.lba.0..entry.lba.0 + entry.sectors, |lba, extent| {
                if extent.phys == entry.phys {
                    found.push((lba, extent));
                }
                true
            })?;
        }
        Ok(found)
    }

    /// All extents in `segment`, found in the map.
    fn live_in(&self, segment: SegNo) -> Result<Vec<(Lba, Extent)>> {
        let (mut cursor, mut found) = (0, Vec::new());
        while cursor < u64::MAX {
            let end = self.map.read().leaf_end(cursor);
            self.visit_extents(cursor..end, |lba, extent| {
                if extent.phys.segment == segment {
                    found.push((lba, extent));
                }
                true
            })?;
            cursor = end;
        }
        Ok(found)
    }

    /// Appends those of `moving` that the map still holds, and points the map to them.
    fn switch(&self, class: u8, moving: &[Moving]) -> Result<()> {
        let mut ranges: Vec<_> = moving.iter().map(Moving::range).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        loop {
            let leaves = self.fault_in(&ranges)?;
            let mut log = self.log.lock();
            self.check_poison(&log)?;
            let mut map = self.map.write();
            if !map.absent(&ranges).is_empty() {
                continue;
            }
            drop(leaves);
            let moving: Vec<_> =
                moving.iter().filter(|moving| map.holds(moving.lba, &moving.extent)).collect();
            let items: Vec<_> = moving.iter().map(|moving| moving.item()).collect();
            let point = self.gc_point(&log, class, &items).ok_or_else(|| self.full(&log, &map))?;
            let (placed, copies) = log.append(point, RecordKind::Relocation, &items, &self.written);
            for (moving, phys) in moving.iter().zip(placed) {
                log.peak.note_moved(&moving.extent);
                map.relocate(moving.lba, &moving.extent, phys, moving.crc);
            }
            drop((map, log));
            self.copy(&items, copies);
            break;
        }
        self.begin_writes()?;
        if self.is_write_back_due(&self.map.read(), DIRTY_SHARE) {
            match self.write_back_into_spare() {
                // A checkpoint must wait until this victim is done; so must memory.
                Err(Error::Full { .. }) => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Where to append `items` of `class`: at its own append point, unless that takes the last segment
    /// that collection has, and another one has room. What is live in a victim fits into one segment, so
    /// with one to take a collection that has begun ends.
    fn gc_point(&self, log: &Log, class: u8, items: &[Item<'_>]) -> Option<AppendPoint> {
        let own = AppendPoint::Gc(class);
        let spare = self.spare_for_gc(log);
        let fresh = log.segments_needed(own, items);
        if fresh == 0 || spare > fresh {
            return Some(own);
        }
        let with_room = AppendPoint::gc().find(|point| log.segments_needed(*point, items) == 0);
        with_room.or((fresh <= 1 && spare >= fresh).then_some(own))
    }
}

/// Moves the extents of one victim, class by class.
struct Mover<'a> {
    store: &'a Store,
    classes: Classes,
    /// The victim's class.
    class: u8,
    now: Seq,
    /// Live extents that were not read yet.
    gathered: Vec<(Lba, Extent)>,
    /// What waits to be moved, and its bytes, by class.
    moving: [(Vec<Moving>, usize); CLASSES_MAX],
    verified: HashMap<PhysAddr, bool>,
    /// Extents left in place because their chunk is corrupt.
    corrupt: u64,
}

impl<'a> Mover<'a> {
    fn new(store: &'a Store, log: &Log, victim: SegNo) -> Mover<'a> {
        let live_bytes = store.map.read().total().bytes;
        Mover {
            store,
            classes: log.classes(live_bytes),
            class: log.segment(victim).class,
            now: log.last_seq,
            gathered: Vec::new(),
            moving: Default::default(),
            verified: HashMap::new(),
            corrupt: 0,
        }
    }

    /// Gathers what is live of a record.
    fn take_live(&mut self, record: &Record) -> Result<()> {
        // Entries that do not parse were never mapped.
        let entries = record.entries().unwrap_or_default();
        self.gathered.extend(self.store.live_among(&entries)?);
        match self.gathered.len() >= GATHER_EXTENTS {
            true => self.read_gathered(),
            false => Ok(()),
        }
    }

    /// Reads what was gathered: live chunks only, neighbours at once.
    fn read_gathered(&mut self) -> Result<()> {
        let mut gathered = std::mem::take(&mut self.gathered);
        gathered.sort_unstable_by_key(|(lba, extent)| (extent.phys.grain, *lba));
        let mut rest = &gathered[..];
        while !rest.is_empty() {
            let runs = runs(&mut rest);
            for (run, chunks) in runs.iter().zip(self.store.read_runs(&runs)?) {
                for (lba, extent) in run.extents {
                    let offset = extent.phys.offset() - run.offset;
                    self.take(*lba, *extent, &chunks[offset..][..usize::from(extent.stored)])?;
                }
            }
        }
        Ok(())
    }

    /// Moves an extent, whose chunk was read.
    fn take(&mut self, lba: Lba, extent: Extent, chunk: &[u8]) -> Result<()> {
        if !*self.verified.entry(extent.phys).or_insert_with(|| crc32c(chunk) == extent.crc) {
            self.corrupt += 1;
            return Ok(());
        }
        let piece = chunk[usize::from(extent.skip) * SECTOR..][..extent.bytes()].to_vec();
        let age = self.now.0.saturating_sub(extent.birth.0);
        let class = usize::from(self.classes.moved(self.class, age));
        let (moving, bytes) = &mut self.moving[class];
        *bytes += piece.len();
        moving.push(Moving { lba, extent, crc: crc32c(&piece), bytes: Arc::new(piece) });
        match *bytes >= MOVE_BYTES.min(self.store.space.segment_bytes / 2) {
            true => self.switch(class),
            false => Ok(()),
        }
    }

    fn switch(&mut self, class: usize) -> Result<()> {
        let (moving, _) = std::mem::take(&mut self.moving[class]);
        match moving.is_empty() {
            true => Ok(()),
            false => self.store.switch(class as u8, &moving),
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.read_gathered()?;
        (0..CLASSES_MAX).try_for_each(|class| self.switch(class))
    }
}

impl Moving {
    fn range(&self) -> Range<u64> {
        self.lba.0..self.lba.0 + u64::from(self.extent.sectors)
    }

    fn item(&self) -> Item<'_> {
        Item {
            kind: EntryKind::Relocate,
            lba: self.lba,
            sectors: u64::from(self.extent.sectors),
            payload: &self.bytes,
            crc: self.crc,
            birth: self.extent.birth,
        }
    }
}
