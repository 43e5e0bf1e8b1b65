//! The collection of one segment.

use std::{collections::HashMap, sync::Arc, vec};

use lacuna_crc::crc32c;

use super::ahead::{Ahead, Near};
use super::live::{RECORDS_AT_ONCE, entries_of, moved_bytes};
use super::mover::Mover;
use super::moving::Moving;
use crate::{
    Lba, Result, SECTOR, Seq,
    addr::{PhysAddr, SegNo},
    format::{Extent, Life, RECORDS_START},
    log::{Classes, Damaged, Expected, Log, State},
    map::Live,
    media::scan::{Record, Scan},
    read::runs,
    space::CLASSES_MAX,
};

/// Live bytes that are moved under one hold of the log's lock.
const MOVE_BYTES: usize = 512 << 10;

/// Live extents that are gathered, at least, before they are read in the order in which they lie.
const GATHER_EXTENTS: usize = 4096;

/// Live bytes after which a piece of collection ends.
const PIECE_BYTES: usize = 256 << 10;

/// Where a collection looks next for live extents.
enum LiveSource {
    /// Nowhere: the live extents were found ahead. The records are those of the segment, in case there are more.
    Ahead(Vec<Record>),
    /// The segment's records, of which only headers and entries are kept.
    Records(vec::IntoIter<Record>),
    /// Leaves of the whole map from this sector on: some record cannot be read any more. What the segment counted when
    /// the look began.
    Map(u64, Live),
}

impl LiveSource {
    /// The records of `victim`, from its summary if there is one.
    fn read(mover: &Mover, victim: Life) -> LiveSource {
        let records = match mover.journal.summaries(&[victim]).map(|mut summaries| summaries.remove(0)) {
            Ok(Ok(records)) => Ok(records),
            // The segment was open when a process ended or the power failed, and such segments are few; or it is
            // damaged.
            Ok(Err(_)) | Err(_) => scan(mover, victim),
        };
        // Unreadable records lose nothing: they only repeat what the map knows about where data lies.
        records.map_or_else(
            |_| LiveSource::whole_map(mover, victim.segment),
            |records| LiveSource::Records(records.into_iter()),
        )
    }

    fn whole_map(mover: &Mover, victim: SegNo) -> LiveSource {
        LiveSource::Map(0, mover.map.read().live(victim))
    }
}

/// The collection of one segment.
pub(super) struct Collection {
    victim: Life,
    classes: Classes,
    /// How long the victim's data was expected to live.
    expected: Expected,
    now: Seq,
    source: LiveSource,
    /// Gathered live extents, in the order in which they lie.
    gathered: Vec<(Lba, Extent)>,
    /// How many of them were read.
    read: usize,
    /// Chunks that were read ahead.
    chunks: HashMap<PhysAddr, Vec<u8>>,
    /// Extents that wait to be moved, and their bytes, by class.
    moving: [(Vec<Moving>, usize); CLASSES_MAX],
    /// Extents left in place because their chunk is corrupt.
    pub(super) corrupt: u64,
    /// Leaves of the map could not be read that may hold more of its extents.
    is_unreadable: bool,
    /// What is wrong if not all can be moved.
    pub(super) damaged: Damaged,
}

impl Collection {
    pub(super) fn begin(mover: &Mover, victim: SegNo, ahead: &mut Ahead) -> Collection {
        let live_bytes = mover.map.read().total().bytes;
        let (victim, expected, classes, now) = {
            let log = mover.journal.lock();
            let expected = log.expected(victim);
            (log.life(victim), expected, log.classes(live_bytes), log.last_seq())
        };
        let (source, gathered, chunks) = match ahead.take(mover, victim) {
            Some(Near { records, live, chunks, .. }) => (LiveSource::Ahead(records), live, chunks),
            None => (LiveSource::read(mover, victim), Vec::new(), HashMap::new()),
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
            corrupt: 0,
            is_unreadable: false,
            damaged: Damaged::Unreadable,
        }
    }

    /// Its victim, if that is still in the life in which it was chosen (invariant 1).
    pub(super) fn victim(&self, log: &Log) -> Option<SegNo> {
        let victim = self.victim.segment;
        (log.segment(victim).state == State::Sealed && log.life(victim) == self.victim).then_some(victim)
    }

    /// Moves some of the live extents; true when nothing is left.
    pub(super) fn piece(&mut self, mover: &Mover) -> Result<bool> {
        let mut bytes = 0;
        while bytes < PIECE_BYTES {
            if self.read < self.gathered.len() {
                bytes += self.read_some(mover)?;
            } else if !self.gather(mover)? && self.ends(mover)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Looks for more that is live; false when there is nothing.
    fn gather(&mut self, mover: &Mover) -> Result<bool> {
        (self.gathered, self.read) = (Vec::new(), 0);
        while self.gathered.len() < GATHER_EXTENTS {
            let (found, is_whole) = match &mut self.source {
                LiveSource::Ahead(_) | LiveSource::Map(u64::MAX, _) => break,
                LiveSource::Map(start, _) => {
                    let leaf = *start..mover.map.read().leaf_end(*start);
                    *start = leaf.end;
                    mover.live_in(self.victim.segment, leaf)?
                }
                LiveSource::Records(records) => {
                    let some: Vec<_> = records.take(RECORDS_AT_ONCE).collect();
                    if some.is_empty() {
                        break;
                    }
                    mover.live_among(&entries_of(&some))?
                }
            };
            self.gathered.extend(found);
            self.is_unreadable |= !is_whole;
        }
        self.gathered.sort_unstable_by_key(|(lba, extent)| (extent.phys.grain, *lba));
        Ok(!self.gathered.is_empty())
    }

    /// Moves what is left, and returns whether that was all; otherwise the collection looks for more, in the end in the
    /// whole map.
    fn ends(&mut self, mover: &Mover) -> Result<bool> {
        for class in 0..CLASSES_MAX {
            self.switch(mover, class)?;
        }
        let left = mover.map.read().live(self.victim.segment);
        if left.extents <= self.corrupt {
            return Ok(true);
        }
        // What was found has been moved or, by a batch meanwhile, cut or trimmed. Each takes bytes out of the segment, and
        // nothing brings any into one that is sealed. So if there are as many as before, they are nowhere in the map.
        let is_nowhere = matches!(self.source, LiveSource::Map(_, before) if before == left);
        if self.is_unreadable || is_nowhere {
            // What is left is mapped in what cannot be read, as far as is known, or is not there: it stays.
            if !self.is_unreadable && self.corrupt == 0 {
                self.damaged = Damaged::Miscounted;
            }
            self.corrupt = self.corrupt.max(1);
            return Ok(true);
        }
        self.source = match &mut self.source {
            LiveSource::Map(..) => return Ok(true),
            LiveSource::Ahead(records) => LiveSource::Records(std::mem::take(records).into_iter()),
            LiveSource::Records(_) => LiveSource::whole_map(mover, self.victim.segment),
        };
        self.corrupt = 0;
        Ok(false)
    }

    /// Reads some of the gathered extents, neighbours at once. Returns how many bytes.
    fn read_some(&mut self, mover: &Mover) -> Result<usize> {
        let gathered = std::mem::take(&mut self.gathered);
        let (from, mut bytes) = (self.read, 0);
        while self.read < gathered.len() && bytes < PIECE_BYTES {
            bytes += usize::from(gathered[self.read].1.stored);
            self.read += 1;
        }
        let chunks = std::mem::take(&mut self.chunks);
        let mut others = Vec::new();
        for (lba, extent) in &gathered[from..self.read] {
            // In a forged map, chunks of several lengths lie in one place.
            let is_whole = |chunk: &&Vec<u8>| chunk.len() == usize::from(extent.stored);
            match chunks.get(&extent.phys).filter(is_whole) {
                Some(chunk) => self.take(mover, *lba, *extent, chunk)?,
                None => others.push((*lba, *extent)),
            }
        }
        self.chunks = chunks;
        let mut rest = &others[..];
        while !rest.is_empty() {
            let runs = runs(&mut rest, 0);
            for (run, chunks) in runs.iter().zip(mover.reader.read_runs(&runs)?) {
                for (lba, extent) in run.extents {
                    let offset = extent.phys.offset() - run.offset;
                    self.take(mover, *lba, *extent, &chunks[offset..][..usize::from(extent.stored)])?;
                }
            }
        }
        self.gathered = gathered;
        Ok(bytes)
    }

    /// Moves an extent, whose chunk was read.
    fn take(&mut self, mover: &Mover, lba: Lba, extent: Extent, chunk: &[u8]) -> Result<()> {
        if crc32c(chunk) != extent.crc {
            self.corrupt +=
                if extent.is_encoded() { mover.map.read().parts(lba, &extent).count() as u64 } else { 1 };
            return Ok(());
        }
        let piece = chunk[usize::from(extent.skip) * SECTOR..][..moved_bytes(&extent)].to_vec();
        let crc = if piece.len() == chunk.len() { extent.crc } else { crc32c(&piece) };
        let age = self.now.0.saturating_sub(extent.birth.0);
        let expected = self.classes.moved(self.expected, age);
        let class = usize::from(self.classes.class(expected));
        let (moving, bytes) = &mut self.moving[class];
        *bytes += piece.len();
        moving.push(Moving { lba, extent, crc, bytes: Arc::new(piece), expected });
        match *bytes >= MOVE_BYTES.min(mover.volume.space().segment_bytes / 2) {
            true => self.switch(mover, class),
            false => Ok(()),
        }
    }

    fn switch(&mut self, mover: &Mover, class: usize) -> Result<()> {
        let (moving, _) = std::mem::take(&mut self.moving[class]);
        match moving.is_empty() {
            true => Ok(()),
            false => mover.switch(class as u8, &moving),
        }
    }
}

/// The records of a segment without a summary.
fn scan(mover: &Mover, victim: Life) -> Result<Vec<Record>> {
    let mut scan = Scan::new(&mover.volume, victim, RECORDS_START);
    let mut records = Vec::new();
    while let Some(record) = scan.next_record()? {
        records.push(record);
    }
    Ok(records)
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use lacuna_codec::{Algorithm, Codec};
    use lacuna_sim::SeededRng;

    use super::*;
    use crate::{Encoded, Op, Stream, store::test_store};

    /// The extents found ahead are a hint: one that was cut since is found in the records.
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
        let mut collection = Collection::begin(&store.collector.mover, victim, &mut collecting.ahead);
        let (lba, _) = collection.gathered[0];
        assert!(matches!(collection.source, LiveSource::Ahead(_)));
        store.writer.write_batch(&[Op::Trim { lba: Lba(lba.0 + 8), sectors: 8 }], Stream::Data).unwrap();
        while !collection.piece(&store.collector.mover).unwrap() {}
        assert_eq!(store.map.read().live(victim).extents, 0);
        assert!(matches!(collection.source, LiveSource::Records(_)), "without a look at the whole map");
        let mut back = [0; 16384];
        store.reader.read(lba, &mut back).unwrap();
        assert!(back[..4096] == [7; 4096] && back[4096..8192] == [0; 4096] && back[8192..] == [7; 8192]);
    }

    /// A segment that was found in the whole map and then cut, before it was moved, is no segment that counts what is
    /// nowhere.
    #[test]
    fn a_segment_whose_extents_are_cut_meanwhile_is_not_put_out_of_use() {
        for (cut, is_encoded) in
            [(24..32, false), (8..16, false), (0..32, false), (24..32, true), (0..32, true)]
        {
            let store = test_store::store(64 << 20, Some(1 << 20));
            let write = |op: Op<'_>| {
                store.writer.write_batch(&[op], Stream::Data).unwrap();
            };
            for lba in (0..1000).map(|page| Lba(page * 32)) {
                let mut data = [7; 16384];
                SeededRng::new(lba.0).fill(&mut data[..8192]);
                match is_encoded {
                    true => write(Op::Encoded(&Encoded::new(lba, &data[..], Codec::fast(Algorithm::Lz4)))),
                    false => write(Op::Write { lba, data: &data }),
                }
            }
            for page in (0..1000).filter(|page| page % 16 > 0) {
                write(Op::Trim { lba: Lba(page * 32), sectors: 32 });
            }
            store.journal.flush_all().unwrap();
            let (mover, mut ahead) = (&store.collector.mover, Ahead::default());
            let victim = mover.best_victims(&store.journal.lock(), &store.map.read(), 1)[0];
            let mut collection = Collection::begin(mover, victim, &mut ahead);
            collection.source = LiveSource::whole_map(mover, victim);
            assert!(collection.gather(mover).unwrap());
            for (lba, _) in &collection.gathered {
                write(Op::Trim { lba: Lba(lba.0 + cut.start), sectors: cut.end - cut.start });
            }
            while !collection.piece(mover).unwrap() {}
            assert_eq!(collection.corrupt, 0, "sectors {cut:?}, encoded: {is_encoded}");
            let mut collection = Collection::begin(mover, victim, &mut ahead);
            while !collection.piece(mover).unwrap() {}
            assert_eq!(store.map.read().live(victim).extents, 0, "sectors {cut:?}, encoded: {is_encoded}");
        }
    }
}
