//! Garbage collection: moving what is live out of a segment, so that all of it becomes garbage.
//!
//! The victim is the sealed segment with the least to move (greedy). Its records tell which sectors
//! were written to it, the map tells what of that is live. Each live extent is read, verified, cut
//! down to what is left of it, and appended as a chunk of its own to the collection's append point;
//! the map is switched to the new place if it still holds exactly that extent.
//!
//! Crash argument: a moved extent is the same bytes at another place. The old place stays intact
//! until a checkpoint is durable that began after the segment was dead, which is after the moved
//! extents were durable (`checkpoint`, step 2). Before that, recovery finds the old place.
//!
//! A live chunk whose checksum does not match is left where it is. Its segment is counted as damaged
//! and neither collected again nor reused, so that the error stays an error and collection goes on.

use std::collections::HashMap;

use crc32c::crc32c;

use crate::{
    Error, Lba, Result, SECTOR,
    addr::{PhysAddr, SegNo},
    batch::Item,
    format::{EntryKind, Extent, RECORDS_START, RecordKind},
    log::{AppendPoint, Log, State},
    map::Map,
    scan::{Scan, SegmentReader},
    space::Space,
    store::Store,
};

/// Live bytes that are moved under one hold of the log's lock.
const MOVE_BYTES: usize = 512 << 10;

/// An extent and its bytes, on their way.
struct Moving {
    lba: Lba,
    extent: Extent,
    bytes: Vec<u8>,
    crc: u32,
}

impl Store {
    /// The best segment to collect, if collecting one yields room and has room to work in.
    pub(crate) fn victim(&self, log: &Log, map: &Map) -> Option<SegNo> {
        let candidates = log.in_state(State::Sealed).filter(|segment| {
            let live = map.live(*segment);
            live.extents > 0 && log.is_written(*segment) && self.space.worth_moving(live)
        });
        let victim = candidates.min_by_key(|segment| Space::moved_bytes(map.live(*segment)))?;
        let moved = Space::moved_bytes(map.live(victim)) as usize;
        let waste = self.space.segment_bytes - self.space.usable_bytes();
        let fits = moved + waste <= log.room(AppendPoint::Gc) || self.may_open_for_gc(log);
        fits.then_some(victim)
    }

    fn may_open_for_gc(&self, log: &Log) -> bool {
        log.free.len() > self.checkpoint_reserve(log, log.peak.extents())
    }

    /// Moves what is live out of `victim`. `maintenance` is held, so the segment stays what it is.
    pub(crate) fn collect(&self, victim: SegNo) -> Result<()> {
        let corrupt = match self.move_live(victim) {
            // The map grew meanwhile and its checkpoint needs the room; the rest stays in place.
            Err(Error::Full { .. }) => return Ok(()),
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
        let (life, salt) = {
            let log = self.log.lock();
            (log.life(victim), log.salt)
        };
        let reader = SegmentReader::new(&*self.device, self.space, victim);
        let mut scan = Scan::new(reader, salt, life, RECORDS_START);
        let mut corrupt = 0;
        while let Some(record) = scan.next_record()? {
            // Entries that do not parse were never mapped.
            let entries = record.entries().unwrap_or_default();
            let extents = self.live_among(entries.iter().map(|entry| (entry.lba, entry.sectors, entry.phys)));
            corrupt += self.move_extents(extents, &mut scan.reader)?;
        }
        if self.map.read().live(victim).extents <= corrupt {
            return Ok(corrupt);
        }
        // Some record cannot be read any more: look for what it held in the whole map.
        let all: Vec<_> = {
            let map = self.map.read();
            map.extents(0..u64::MAX).filter(|(_, extent)| extent.phys.segment == victim).collect()
        };
        self.move_extents(all, &mut scan.reader)
    }

    /// What of `entries` the map still holds at the place that each names.
    fn live_among(&self, entries: impl Iterator<Item = (Lba, u64, PhysAddr)>) -> Vec<(Lba, Extent)> {
        let map = self.map.read();
        let mut found = Vec::new();
        for (lba, sectors, phys) in entries {
            found.extend(map.extents(lba.0..lba.0 + sectors).filter(|(_, extent)| extent.phys == phys));
        }
        found
    }

    /// Moves `extents`; returns how many could not be, because their chunk is corrupt.
    fn move_extents(&self, extents: Vec<(Lba, Extent)>, reader: &mut SegmentReader<'_>) -> Result<u64> {
        let mut corrupt = 0;
        let mut verified: HashMap<PhysAddr, bool> = HashMap::new();
        let (mut moving, mut bytes) = (Vec::new(), 0);
        for (lba, extent) in extents {
            let chunk = reader.bytes(extent.phys.offset(), usize::from(extent.stored))?;
            if !*verified.entry(extent.phys).or_insert_with(|| crc32c(chunk) == extent.crc) {
                corrupt += 1;
                continue;
            }
            let piece = chunk[usize::from(extent.skip) * SECTOR..][..extent.bytes()].to_vec();
            bytes += piece.len();
            moving.push(Moving { lba, extent, crc: crc32c(&piece), bytes: piece });
            if bytes >= MOVE_BYTES.min(self.space.segment_bytes / 4) {
                self.switch(&std::mem::take(&mut moving))?;
                bytes = 0;
            }
        }
        self.switch(&moving)?;
        Ok(corrupt)
    }

    /// Appends those of `moving` that the map still holds, and points the map to them.
    fn switch(&self, moving: &[Moving]) -> Result<()> {
        {
            let mut log = self.log.lock();
            self.check_poison(&log)?;
            let mut map = self.map.write();
            let moving: Vec<_> =
                moving.iter().filter(|moving| map.holds(moving.lba, &moving.extent)).collect();
            let items: Vec<_> = moving.iter().map(|moving| moving.item()).collect();
            let fresh = log.segments_needed(AppendPoint::Gc, &items);
            if fresh > 1 || (fresh == 1 && !self.may_open_for_gc(&log)) {
                return Err(self.full(&log, &map));
            }
            let seq = log.last_seq;
            let placed = log.append(AppendPoint::Gc, RecordKind::Relocation, seq, &items, &self.written);
            for (moving, phys) in moving.iter().zip(placed) {
                map.relocate(moving.lba, &moving.extent, phys, moving.crc);
            }
        }
        self.drain_writes()
    }
}

impl Moving {
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
