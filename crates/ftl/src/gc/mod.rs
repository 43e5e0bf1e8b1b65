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
//! A segment is collected in pieces ([`PIECE_BYTES`]), so that who does a piece in passing is not held up by the
//! rest. What is left of a victim waits in a [`Collection`] under `maintenance`; between two pieces all else may
//! happen. Invariants:
//! 1. The victim of a collection is sealed and in the life in which it was chosen, or the collection is
//!    dropped before it does another piece. So what it reads is what was there when it was chosen.
//! 2. Nothing that a collection remembers counts unless the map still holds it when it is moved.
//! 3. Until a collection has ended no other begins: the room that it was found to fit into stays its own,
//!    because neither writers nor leaves written back take the segments kept for collection.
//!
//! Crash argument: a moved extent is the same bytes at another place. Recovery replays relocations
//! after the batches, where the map still holds what they moved (`replay`). One that a power cut took
//! is missed by nobody: the old place stays intact until the relocation is durable (`reuse`).
//!
//! A chunk that does not fit into the rest of a segment may be moved in two parts. They are two relocations like
//! any others: where a power cut leaves one of them, the other part is found at its old place, which nobody uses
//! again before both are durable (`reuse`). The extent more that recovery then comes to is counted (`log::Peak`).
//!
//! A live chunk whose checksum does not match, or that the device does not give back, is left where it is. Its
//! segment is counted as damaged and neither collected again nor reused until the collector is opened anew, so that
//! the error stays an error and collection goes on.

mod ahead;
mod regain;

use std::{collections::HashMap, ops::Range, sync::Arc, vec};

use lacuna_crc::crc32c;

use crate::{
    Error, Lba, Result, SECTOR, Seq,
    addr::{PhysAddr, SegNo},
    checkpoint::Checkpointer,
    format::{Entry, EntryKind, Extent, Life, RECORDS_START},
    log::batch::Item,
    log::lifetime::{Classes, Expected},
    log::{AppendPoint, Journal, Log, Regaining, State},
    map::{Map, SharedMap},
    media::{
        Volume,
        scan::{Record, Scan},
    },
    paging::{Base, DIRTY_SHARE, PagedMap},
    read::{Reader, runs},
    reuse::Reuse,
    space::{CLASSES_MAX, Space},
    sync::{Mutex, MutexGuard},
};
use ahead::{Ahead, Near};

/// Live bytes that are moved under one hold of the log's lock.
const MOVE_BYTES: usize = 512 << 10;
/// Live extents that are gathered, at least, before they are read in the order in which they lie.
const GATHER_EXTENTS: usize = 4096;
/// Records of which the entries are looked up together: most have one, and look-ups that need not wait for each other
/// take half the time.
const RECORDS_AT_ONCE: usize = 16;
/// Live bytes after which a piece of collection ends.
const PIECE_BYTES: usize = 256 << 10;

/// An extent and its bytes, on their way.
struct Moving {
    lba: Lba,
    extent: Extent,
    bytes: Arc<Vec<u8>>,
    crc: u32,
    expected: Expected,
}

/// Collects segments.
pub(crate) struct Collector {
    volume: Arc<Volume>,
    map: Arc<SharedMap>,
    journal: Arc<Journal>,
    pages: Arc<PagedMap>,
    reader: Arc<Reader>,
    reuse: Arc<Reuse>,
    checkpointer: Arc<Checkpointer>,
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
        let Base { volume, map, journal, pages } = base;
        Collector { volume, map, journal, pages, reader, reuse, checkpointer, collecting: Mutex::default() }
    }

    /// What the last piece of maintenance has left to the next one. The maintenance lock is held.
    pub(crate) fn collecting(&self) -> MutexGuard<'_, Collecting> {
        self.collecting.lock()
    }

    /// The segment that is being collected, or else the best one to collect, if collecting one yields room
    /// and has room to work in.
    pub(crate) fn victim(&self, log: &Log, map: &Map, collecting: &mut Collecting) -> Option<SegNo> {
        if log.victim().is_some() {
            return log.victim();
        }
        let victim =
            collecting.ahead.chosen(self, log, map).or_else(|| collecting.ahead.choose(self, log, map))?;
        self.has_room_to_collect(log, map, victim).then_some(victim)
    }

    /// The next one of the victims that were chosen together, if none is being collected and one is left.
    pub(crate) fn chosen_victim(&self, log: &Log, map: &Map, collecting: &mut Collecting) -> Option<SegNo> {
        let chosen = collecting.ahead.chosen(self, log, map).filter(|_| log.victim().is_none());
        chosen.filter(|victim| self.has_room_to_collect(log, map, *victim))
    }

    fn has_room_to_collect(&self, log: &Log, map: &Map, victim: SegNo) -> bool {
        let moved = Space::moved_bytes(map.live(victim)) as usize;
        let waste = self.volume.space().segment_bytes - self.volume.space().usable_bytes();
        let fits = AppendPoint::gc().any(|point| moved + waste <= log.room(point));
        fits || log.spare_for_gc() > 0
    }

    /// The `count` segments that it pays best to collect, the best one first.
    fn best_victims(&self, log: &Log, map: &Map, count: usize) -> Vec<SegNo> {
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

    /// Whether it would win room to collect a sealed segment.
    pub(crate) fn may_be_victim(&self, log: &Log, map: &Map, segment: SegNo) -> bool {
        let live = map.live(segment);
        live.extents > 0 && log.is_written(segment) && self.volume.space().worth_moving(live)
    }

    /// Moves a piece of what is live out of `victim`; the rest is left to the next turn.
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
            // The map grew meanwhile and its checkpoint needs the room; the rest stays in place.
            Err(Error::Full { .. }) => 0,
            // A leaf of the map is damaged, and what it leads to in here must stay.
            Err(Error::Corrupt { .. }) => 1,
            // So must what the device does not give back. A failed write has poisoned the collector.
            Err(Error::Device(_)) if !self.journal.lock().is_poisoned() => 1,
            Err(error) => return Err(error),
        };
        let mut log = self.journal.lock();
        log.set_victim(None);
        log.counters_mut().gc_segments += 1;
        let coming = log.coming() + usize::from(self.reuse.is_coming(&log, &self.map.read(), victim));
        log.set_coming(coming);
        if corrupt > 0 {
            log.counters_mut().corrupt_chunks += corrupt;
            log.put_out_of_use(victim);
        }
        Ok(())
    }

    /// What of `entries` the map still holds at the place that each names.
    fn live_among(&self, entries: &[Entry]) -> Result<Vec<(Lba, Extent)>> {
        let mut found = Vec::new();
        let entries: Vec<_> = entries.iter().filter(|entry| entry.kind != EntryKind::Trim).collect();
        let ranges = entries.iter().map(|entry| entry.range()).collect();
        self.pages.visit_extents_of_each(ranges, |index, lba, extent| {
            if extent.phys == entries[index].phys {
                found.push((lba, extent));
            }
        })?;
        Ok(found)
    }

    /// Extents in `segment` that the map holds in `range`.
    fn live_in(&self, segment: SegNo, range: Range<u64>) -> Result<Vec<(Lba, Extent)>> {
        let mut found = Vec::new();
        self.pages.visit_extents(range, |lba, extent| {
            if extent.phys.segment == segment {
                found.push((lba, extent));
            }
            true
        })?;
        Ok(found)
    }

    /// Appends those of `moving` that the map still holds, and points the map to them.
    fn switch(&self, class: u8, moving: &[Moving]) -> Result<()> {
        let mut ranges: Vec<_> = moving.iter().map(Moving::range).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        loop {
            let leaves = self.pages.fault_in(&ranges)?;
            let mut log = self.journal.lock();
            self.journal.check_poison(&log)?;
            let mut map = self.map.write();
            if !map.absent(&ranges).is_empty() {
                continue;
            }
            drop(leaves);
            let moving: Vec<_> =
                moving.iter().filter(|moving| map.holds(moving.lba, &moving.extent)).collect();
            let items: Vec<_> = moving.iter().map(|moving| moving.item()).collect();
            let point = self.gc_point(&log, class, &items).ok_or_else(|| self.journal.full(&log, &map))?;
            let items = log.cut(&map, point, &items);
            let appended = log.append_relocations(point, &items);
            moving.iter().for_each(|moving| log.note_expected(point, moving.expected, 1));
            let mut placed = items.iter().zip(&appended.placed).peekable();
            for moving in &moving {
                while let Some((item, phys)) =
                    placed.next_if(|(item, _)| moving.range().contains(&item.lba.0))
                {
                    map.relocate(moving.lba, &moving.extent, item.range(), *phys, item.crc);
                }
            }
            log.note_relocated(&map, items.len().saturating_sub(moving.len()));
            drop((map, log));
            self.journal.fill(&items, appended)?;
            break;
        }
        if self.pages.is_write_back_due(&self.map.read(), DIRTY_SHARE) {
            match self.checkpointer.write_back_into_spare() {
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
        if log.regaining() != Regaining::No {
            let opens_max = usize::from(log.regaining() == Regaining::MayOpen);
            return Some(self.regain_point()).filter(|point| log.segments_needed(*point, items) <= opens_max);
        }
        let own = AppendPoint::Gc(class);
        let spare = log.spare_for_gc();
        let fresh = log.segments_needed(own, items);
        if fresh == 0 || spare > fresh {
            return Some(own);
        }
        let with_room = AppendPoint::gc().find(|point| log.segments_needed(*point, items) == 0);
        with_room.or((fresh <= 1 && spare >= fresh).then_some(own))
    }
}

/// Entries of all `records`. What does not parse was never mapped.
fn entries_of(records: &[Record]) -> Vec<Entry> {
    records.iter().flat_map(|record| record.entries().unwrap_or_default()).collect()
}

/// Where a collection looks next for what is live.
enum Source {
    /// Nowhere: it was found ahead. The records are those of the segment, should there be more.
    Ahead(Vec<Record>),
    /// The segment's records, of which only headers and entries are kept.
    Records(vec::IntoIter<Record>),
    /// Leaves of the whole map from this sector on: some record cannot be read any more.
    Map(u64),
}

impl Source {
    /// The records of `victim`, from its footer if there is one.
    fn read(collector: &Collector, victim: Life) -> Source {
        let records = match collector.journal.footers(&[victim]).map(|mut footers| footers.remove(0)) {
            Ok(Ok(records)) => Ok(records),
            // It was open when a process or the power ended, so there are few of them; or it is damaged.
            Ok(Err(_)) | Err(_) => scan(collector, victim),
        };
        // What cannot be read here is a copy: where data lies, the map knows.
        records.map_or(Source::Map(0), |records| Source::Records(records.into_iter()))
    }
}

/// What is left from one turn of whoever holds `maintenance` to the next. In memory only.
#[derive(Default)]
pub(crate) struct Collecting {
    under_way: Option<Collection>,
    ahead: Ahead,
}

/// The collection of one segment.
struct Collection {
    victim: Life,
    classes: Classes,
    /// How long what is in the victim was expected to live.
    expected: Expected,
    now: Seq,
    source: Source,
    /// Live extents that were not read yet, in the order in which they lie.
    gathered: Vec<(Lba, Extent)>,
    /// How many of them were.
    read: usize,
    /// Chunks that were read ahead.
    chunks: HashMap<PhysAddr, Vec<u8>>,
    /// What waits to be moved, and its bytes, by class.
    moving: [(Vec<Moving>, usize); CLASSES_MAX],
    verified: HashMap<PhysAddr, bool>,
    /// Extents left in place because their chunk is corrupt.
    corrupt: u64,
}

impl Collection {
    fn begin(collector: &Collector, victim: SegNo, ahead: &mut Ahead) -> Collection {
        let live_bytes = collector.map.read().total().bytes;
        let (victim, expected, classes, now) = {
            let mut log = collector.journal.lock();
            log.set_victim(Some(victim));
            let expected = log.expected(victim);
            (log.life(victim), expected, log.classes(live_bytes), log.last_seq())
        };
        let (source, gathered, chunks) = match ahead.take(collector, victim) {
            Some(Near { records, live, chunks, .. }) => (Source::Ahead(records), live, chunks),
            None => (Source::read(collector, victim), Vec::new(), HashMap::new()),
        };
        Collection {
            victim,
            expected,
            classes,
            now,
            source,
            gathered,
            read: 0,
            chunks,
            moving: Default::default(),
            verified: HashMap::new(),
            corrupt: 0,
        }
    }

    /// Whether this is the collection of `victim` as it is now (invariant 1).
    fn goes_on(&self, collector: &Collector, victim: SegNo) -> bool {
        let log = collector.journal.lock();
        log.segment(victim).state == State::Sealed && log.life(victim) == self.victim
    }

    /// Moves some of what is live; true when nothing is left.
    fn piece(&mut self, collector: &Collector) -> Result<bool> {
        let mut bytes = 0;
        while bytes < PIECE_BYTES {
            if self.read < self.gathered.len() {
                bytes += self.read_some(collector)?;
            } else if !self.gather(collector)? && self.ends(collector)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Looks for more that is live; false when there is nothing.
    fn gather(&mut self, collector: &Collector) -> Result<bool> {
        (self.gathered, self.read) = (Vec::new(), 0);
        while self.gathered.len() < GATHER_EXTENTS {
            let found = match &mut self.source {
                Source::Ahead(_) | Source::Map(u64::MAX) => break,
                Source::Map(start) => {
                    let leaf = *start..collector.map.read().leaf_end(*start);
                    *start = leaf.end;
                    collector.live_in(self.victim.segment, leaf)?
                }
                Source::Records(records) => {
                    let some: Vec<_> = records.take(RECORDS_AT_ONCE).collect();
                    if some.is_empty() {
                        break;
                    }
                    collector.live_among(&entries_of(&some))?
                }
            };
            self.gathered.extend(found);
        }
        self.gathered.sort_unstable_by_key(|(lba, extent)| (extent.phys.grain, *lba));
        Ok(!self.gathered.is_empty())
    }

    /// Moves what is left, and tells whether that was all: else more is looked at, in the end the whole map.
    fn ends(&mut self, collector: &Collector) -> Result<bool> {
        for class in 0..CLASSES_MAX {
            self.switch(collector, class)?;
        }
        let left = collector.map.read().live(self.victim.segment).extents;
        if left <= self.corrupt || matches!(self.source, Source::Map(_)) {
            return Ok(true);
        }
        self.corrupt = 0;
        self.source = match std::mem::replace(&mut self.source, Source::Map(0)) {
            Source::Ahead(records) => Source::Records(records.into_iter()),
            Source::Records(_) | Source::Map(_) => Source::Map(0),
        };
        Ok(false)
    }

    /// Reads some of what was gathered, neighbours at once. Returns how many bytes.
    fn read_some(&mut self, collector: &Collector) -> Result<usize> {
        let gathered = std::mem::take(&mut self.gathered);
        let (from, mut bytes) = (self.read, 0);
        while self.read < gathered.len() && bytes < PIECE_BYTES {
            bytes += usize::from(gathered[self.read].1.stored);
            self.read += 1;
        }
        let chunks = std::mem::take(&mut self.chunks);
        let mut others = Vec::new();
        for (lba, extent) in &gathered[from..self.read] {
            match chunks.get(&extent.phys) {
                Some(chunk) => self.take(collector, *lba, *extent, chunk)?,
                None => others.push((*lba, *extent)),
            }
        }
        self.chunks = chunks;
        let mut rest = &others[..];
        while !rest.is_empty() {
            let runs = runs(&mut rest, 0);
            for (run, chunks) in runs.iter().zip(collector.reader.read_runs(&runs)?) {
                for (lba, extent) in run.extents {
                    let offset = extent.phys.offset() - run.offset;
                    self.take(collector, *lba, *extent, &chunks[offset..][..usize::from(extent.stored)])?;
                }
            }
        }
        self.gathered = gathered;
        Ok(bytes)
    }

    /// Moves an extent, whose chunk was read.
    fn take(&mut self, collector: &Collector, lba: Lba, extent: Extent, chunk: &[u8]) -> Result<()> {
        if !*self.verified.entry(extent.phys).or_insert_with(|| crc32c(chunk) == extent.crc) {
            self.corrupt += 1;
            return Ok(());
        }
        let piece = chunk[usize::from(extent.skip) * SECTOR..][..extent.bytes()].to_vec();
        let crc = if piece.len() == chunk.len() { extent.crc } else { crc32c(&piece) };
        let age = self.now.0.saturating_sub(extent.birth.0);
        let expected = self.classes.moved(self.expected, age);
        let class = usize::from(self.classes.class(expected));
        let (moving, bytes) = &mut self.moving[class];
        *bytes += piece.len();
        moving.push(Moving { lba, extent, crc, bytes: Arc::new(piece), expected });
        match *bytes >= MOVE_BYTES.min(collector.volume.space().segment_bytes / 2) {
            true => self.switch(collector, class),
            false => Ok(()),
        }
    }

    fn switch(&mut self, collector: &Collector, class: usize) -> Result<()> {
        let (moving, _) = std::mem::take(&mut self.moving[class]);
        match moving.is_empty() {
            true => Ok(()),
            false => collector.switch(class as u8, &moving),
        }
    }
}

/// The records of a segment without a footer.
fn scan(collector: &Collector, victim: Life) -> Result<Vec<Record>> {
    let mut scan = Scan::new(&collector.volume, victim, RECORDS_START);
    let mut records = Vec::new();
    while let Some(record) = scan.next_record()? {
        records.push(record);
    }
    Ok(records)
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

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use super::*;
    use crate::{Op, Stream, store::test_store};

    /// What was found ahead is a hint: an extent that was cut since is found in the records.
    #[test]
    fn what_was_cut_since_it_was_found_ahead_is_moved() {
        let store = test_store::store(64 << 20, Some(1 << 20));
        let page = |page: u64| Lba(page * 32);
        for number in 0..150 {
            store
                .writer
                .write_batch(&[Op::Write { lba: page(number), data: &[7; 16384] }], Stream::Data)
                .unwrap();
        }
        for number in (0..150).filter(|number| number % 30 > 0) {
            store.writer.write_batch(&[Op::Trim { lba: page(number), sectors: 32 }], Stream::Data).unwrap();
        }
        store.journal.flush_all().unwrap();
        let mut collecting = store.collector.collecting();
        let victim =
            store.collector.victim(&store.journal.lock(), &store.map.read(), &mut collecting).unwrap();
        let mut collection = Collection::begin(&store.collector, victim, &mut collecting.ahead);
        let (lba, _) = collection.gathered[0];
        assert!(matches!(collection.source, Source::Ahead(_)));
        store.writer.write_batch(&[Op::Trim { lba: Lba(lba.0 + 8), sectors: 8 }], Stream::Data).unwrap();
        while !collection.piece(&store.collector).unwrap() {}
        assert_eq!(store.map.read().live(victim).extents, 0);
        assert!(matches!(collection.source, Source::Records(_)), "without a look at the whole map");
        let mut back = [0; 16384];
        store.reader.read(lba, &mut back).unwrap();
        assert!(back[..4096] == [7; 4096] && back[4096..8192] == [0; 4096] && back[8192..] == [7; 8192]);
    }
}
