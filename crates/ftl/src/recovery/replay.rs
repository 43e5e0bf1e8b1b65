//! Applying the log after a checkpoint to the map.
//!
//! Two passes. First batches, in order, up to the first that is not there whole: the *cut*. Then relocations, in their
//! own order, over the result. The log does not record how the two were interleaved, and need not:
//!
//! 1. A sector and the number of the batch that wrote it last name its bytes: a batch is applied whole, so it leaves
//!    exactly one content in a sector. A relocation names both, and holds the bytes.
//! 2. So wherever the map holds that batch in a sector of the relocation, its place is as good as the one in the map,
//!    whichever batches came between. Where the map holds another batch, the relocation does not apply.
//! 3. Of several relocations of the same bytes the last one that is there decides. The places that earlier ones lead
//!    to, and the original place, may have been reused only if the later relocations are durable, and durable
//!    relocations are there (`reuse`).
//! 4. Relocations are independent of each other, so a power cut may lose any that are not durable. The payload of
//!    relocations that may be lost is verified, as for batches.
//! 5. A summary (`media::summaries`) may list records that a power cut lost. So for records that may be lost the record
//!    itself is verified too, and replay builds the same map with a summary as without.
//! 6. The records that a retained summary lists were durable when it was written, and its marks say so: they are not
//!    verified, and may no longer be on the device. So a segment with a retained summary is replayed as if it had not
//!    been used again.
//!
//! Marks of what was durable are in records and in segments' headers. So a segment reused after a flush carries the
//! mark of that flush, and a relocation that is missing below it is reported as damage, with a place.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use lacuna_crc::crc32c;

use crate::{
    Result, Seq,
    addr::SegNo,
    format::{
        Entry, EntryKind, Extent, LEAF_BYTES_MAX, Life, Marks, Position, RECORDS_START, RecordHeader,
        RecordKind, Root, SegmentHeader, SegmentKind,
    },
    map::Map,
    media::{
        Volume,
        scan::{Record, Scan, SegmentReader},
        starts::claimed_lives,
        summaries::read_summary,
    },
    mutant::{Rule, is_broken},
    paging::{self, LeafReader},
    ranges::merged,
    recovery::{Losses, resync::Resync, retained::RetainedSummaries},
};

/// Threads that read a log of [`READERS_FROM_BYTES`] or more.
const READERS: usize = 4;
const READERS_FROM_BYTES: usize = 64 << 20;
/// Leaves of the map that were only looked at are evicted after this many batches or relocations.
const BATCHES_PER_EVICTION: u64 = 256;
/// Entries whose leaves of the map are read together; fewer where memory is short.
const ENTRIES_AHEAD: usize = 64 << 10;

/// Reads the log of one epoch.
pub(crate) struct Replay<'a> {
    pub(crate) volume: &'a Volume,
    /// Epoch under which the log was written.
    pub(crate) epoch: u64,
    /// The root says which relocations its map knows of. Otherwise all are applied, and none is missed.
    pub(crate) are_moves_known: bool,
    pub(crate) leaves: LeafReader<'a>,
    /// See [`crate::Options::map_memory`].
    pub(crate) map_memory: Option<u64>,
    /// The damage that is passed over.
    pub(crate) losses: &'a Losses,
}

/// The part of a segment that is replayed.
pub(crate) struct ReplaySource {
    pub(crate) life: Life,
    /// Records from here on.
    pub(crate) offset: usize,
    /// All its records, if the segment may have been used again since.
    pub(crate) retained_records: Option<Vec<Record>>,
}

/// Where a replay ended.
pub(crate) struct Outcome {
    /// The last batch that is there.
    pub(crate) last_seq: Seq,
    /// The last relocation that is there; some before it may not be.
    pub(crate) last_move: Seq,
    /// Replayed records that may never have been synced.
    pub(crate) resync: Resync,
}

/// A record, as found.
struct FoundRecord {
    record: Record,
    at: u64,
}

/// The records that the log holds.
#[derive(Default)]
struct LogContents {
    batches: BTreeMap<Seq, Vec<FoundRecord>>,
    moves: BTreeMap<Seq, FoundRecord>,
    durable: Marks,
    /// The last byte on the device at which a scan ended.
    end: u64,
}

impl LogContents {
    /// Adds a record that was read.
    fn note(&mut self, part: FoundRecord, root: &Root) {
        let header = part.record.header;
        if !is_broken(Rule::RecordsRaiseDurable) {
            self.durable = self.durable.max(header.durable());
        }
        match header.kind {
            RecordKind::Batch if header.seq > root.start_seq => {
                self.batches.entry(header.seq).or_default().push(part);
            }
            RecordKind::Relocation if header.seq > root.start_move => {
                self.moves.insert(header.seq, part);
            }
            _ => {}
        }
    }

    fn join(&mut self, other: LogContents) {
        for (seq, parts) in other.batches {
            self.batches.entry(seq).or_default().extend(parts);
        }
        self.moves.extend(other.moves);
        if !is_broken(Rule::ReadersRaiseDurable) {
            self.durable = self.durable.max(other.durable);
        }
        self.end = self.end.max(other.end);
    }
}

impl Replay<'_> {
    /// What to replay: the segments that were open when the checkpoint began, from there on, and those that were opened
    /// later. Segments that have a retained summary are replayed from it.
    pub(crate) fn sources(
        &self,
        root: &Root,
        headers: &[Option<SegmentHeader>],
        retained: &mut RetainedSummaries,
    ) -> Result<Vec<ReplaySource>> {
        let is_log = |header: &SegmentHeader| header.kind != SegmentKind::Checkpoint;
        let mut sources = Vec::new();
        for Position { segment, generation, offset } in root.positions.iter().flatten() {
            let life = Life { segment: *segment, generation: *generation, epoch: self.epoch };
            let retained_records = retained.take(life);
            let header = headers[segment.0 as usize].filter(|header| is_log(header) && header.life() == life);
            if header.is_none() && retained_records.is_none() {
                let at = self.volume.offset(*segment, 0);
                let reason = "not the one that the checkpoint names";
                self.losses.pass(Err(self.volume.corrupt("segment header", at, reason)), ())?;
            }
            sources.push(ReplaySource { life, offset: *offset as usize, retained_records });
        }
        let is_wanted = |life: &Life| life.epoch == self.epoch && life.generation >= root.generation_next;
        let offset = RECORDS_START;
        for life in headers.iter().flatten().filter(|header| is_log(header)).map(SegmentHeader::life) {
            if is_wanted(&life) && !retained.has(life) {
                sources.push(ReplaySource { life, offset, retained_records: None });
            }
        }
        if self.losses.are_noted() {
            let headless = self.headless(root, headers)?.filter(|life| !retained.has(*life));
            sources.extend(headless.map(|life| ReplaySource { life, offset, retained_records: None }));
        }
        let retained_records = retained.take_all().filter(|(life, _)| is_wanted(life));
        sources.extend(retained_records.map(|(life, records)| ReplaySource {
            life,
            offset,
            retained_records: Some(records),
        }));
        Ok(sources)
    }

    /// The newest marks in segments that should be replayed and whose header is damaged. Without a header nothing of
    /// them is replayed; if they held something durable, recovery must detect that it is missing.
    pub(crate) fn marks_without_header(
        &self,
        root: &Root,
        headers: &[Option<SegmentHeader>],
    ) -> Result<Marks> {
        let (mut marks, segment_bytes) = (Marks::default(), self.volume.space().segment_bytes);
        for life in self.headless(root, headers)? {
            marks = marks.max(Scan::new(self.volume, life, RECORDS_START).marks_beyond(segment_bytes));
        }
        Ok(marks)
    }

    /// Segments without a header that should be replayed, according to their first records.
    fn headless(
        &self,
        root: &Root,
        headers: &[Option<SegmentHeader>],
    ) -> Result<impl Iterator<Item = Life> + use<>> {
        let headless = headers.iter().enumerate().skip(1).filter(|(_, header)| header.is_none());
        let headless: Vec<_> = headless.map(|(no, _)| SegNo(no as u32)).collect();
        let (epoch, first) = (self.epoch, root.generation_next);
        let claimed = claimed_lives(self.volume, &headless)?;
        Ok(claimed.into_iter().flatten().filter(move |life| life.epoch == epoch && life.generation >= first))
    }

    /// Applies the longest prefix of batches that is there, and the relocations. `durable` are the marks known from
    /// elsewhere.
    pub(crate) fn run(
        &self,
        sources: &[ReplaySource],
        root: &Root,
        durable: Marks,
        map: &mut Map,
    ) -> Result<Outcome> {
        let mut found = self.read_sources(sources, root)?;
        found.durable = found.durable.max(durable);
        let mut resync = Resync::default();
        let last_seq = self.apply_batches(&mut found, root, map, &mut resync)?;
        let last_move = self.apply_moves(&found, root, map, &mut resync)?;
        Ok(Outcome { last_seq, last_move, resync })
    }

    /// Reads all sources, large ones at the same time: one reader does not fill a fast device.
    fn read_sources(&self, sources: &[ReplaySource], root: &Root) -> Result<LogContents> {
        // A segment with a summary takes little time, one without takes long: a thread that is done takes the next.
        let next = AtomicUsize::new(0);
        let read = || {
            let mut found = LogContents::default();
            while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.read_source(source, root, &mut found)?;
            }
            Ok(found)
        };
        if sources.len() * self.volume.space().segment_bytes < READERS_FROM_BYTES {
            return read();
        }
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(read)).collect();
            let mut found = LogContents::default();
            for reader in readers {
                found.join(reader.join().expect("a reader panicked")?);
            }
            Ok(found)
        })
    }

    fn read_source(&self, source: &ReplaySource, root: &Root, found: &mut LogContents) -> Result<()> {
        let ReplaySource { life, offset, ref retained_records } = *source;
        let summary = || read_summary(self.volume, life).ok().and_then(Result::ok);
        if let Some(records) = retained_records.clone().or_else(summary) {
            for record in records.into_iter().filter(|record| record.header.offset as usize >= offset) {
                let at = self.volume.offset(life.segment, record.header.offset as usize);
                found.end = found.end.max(at + u64::from(record.header.total_bytes));
                found.note(FoundRecord { record, at }, root);
            }
            return Ok(());
        }
        let mut scan = Scan::new(self.volume, life, offset);
        while let Some(record) = self.losses.pass(scan.next_record(), None)? {
            let at = scan.reader.device_offset(record.header.offset as usize);
            found.note(FoundRecord { record, at }, root);
        }
        found.end = found.end.max(scan.device_offset());
        found.durable = found.durable.max(scan.marks_beyond(self.volume.space().segment_bytes));
        Ok(())
    }

    /// The first pass; returns the last batch that is there.
    fn apply_batches(
        &self,
        found: &mut LogContents,
        root: &Root,
        map: &mut Map,
        resync: &mut Resync,
    ) -> Result<Seq> {
        let (mut last, mut payloads) = (root.start_seq, self.payloads());
        let mut ahead = last;
        while let Some((seq, mut parts)) = take_next(&mut found.batches, last) {
            parts.sort_unstable_by_key(|part| part.record.header.part);
            if !is_whole(&parts) && !is_broken(Rule::AllParts) {
                break;
            }
            let mut entries = Vec::new();
            for part in &parts {
                entries.extend(self.entries(part)?);
            }
            if seq > found.durable.batches {
                let is_there =
                    payloads.have_records(&parts).and_then(|have| Ok(have && payloads.are_whole(&entries)?));
                if !self.losses.pass(is_there, false)? {
                    break;
                }
                parts.iter().for_each(|part| resync.add_record(&part.record.header, part.at));
            }
            last = seq;
            if last > ahead {
                let rest = found.batches.iter().map(|(seq, parts)| (*seq, parts.as_slice()));
                ahead = self.read_ahead(map, [(seq, parts.as_slice())].into_iter().chain(rest));
            }
            map.load_ahead(entries.iter().map(Entry::range));
            for entry in entries {
                self.losses.change(self.leaves, map, entry.range(), |map, part| {
                    apply(map, &entry, part, last);
                })?;
            }
            if last.0.is_multiple_of(BATCHES_PER_EVICTION) {
                paging::evict(map, self.map_memory);
            }
        }
        if last < found.durable.batches && !is_broken(Rule::MarksCount) {
            let (missing, flushed) = (last.0 + 1, found.durable.batches.0);
            let reason = format!(
                "batch {missing} was flushed and is not there; the log goes up to {flushed}; {} batches that follow are \
                 left out",
                found.batches.len()
            );
            self.losses.pass(Err(self.volume.corrupt("log", found.end, reason)), ())?;
        }
        Ok(last)
    }

    /// The second pass; returns the last relocation that is there.
    fn apply_moves(
        &self,
        found: &LogContents,
        root: &Root,
        map: &mut Map,
        resync: &mut Resync,
    ) -> Result<Seq> {
        let durable = if self.are_moves_known { found.durable.moves } else { Seq(0) };
        let (mut expected, mut payloads) = (root.start_move.next(), self.payloads());
        let mut ahead = root.start_move;
        let missing = |expected: Seq| {
            let reason = format!(
                "relocation {} was made durable and is not there; the log goes up to {}",
                expected.0, durable.0
            );
            Err(self.volume.corrupt("log", found.end, reason))
        };
        for (number, part) in &found.moves {
            if *number > ahead {
                let rest = found.moves.range(*number..);
                ahead =
                    self.read_ahead(map, rest.map(|(number, part)| (*number, std::slice::from_ref(part))));
            }
            if *number > expected && expected <= durable {
                if is_broken(Rule::MoveMarksCount) {
                    break;
                }
                self.losses.pass(missing(expected), ())?;
            }
            if *number > durable {
                let is_there = payloads.have_records(std::slice::from_ref(part));
                if !self.losses.pass(is_there, false)? {
                    continue;
                }
                resync.add_record(&part.record.header, part.at);
            }
            expected = number.next();
            let entries = self.entries(part)?;
            map.load_ahead(entries.iter().map(Entry::range));
            for entry in entries {
                let is_whole = *number <= durable
                    || self.losses.pass(payloads.are_whole(std::slice::from_ref(&entry)), false)?;
                if is_whole {
                    self.losses.change(self.leaves, map, entry.range(), |map, part| {
                        relocate(map, &entry, part);
                    })?;
                }
            }
            if number.0.is_multiple_of(BATCHES_PER_EVICTION) {
                paging::evict(map, self.map_memory);
            }
        }
        if expected <= durable && !is_broken(Rule::MoveMarksCount) {
            self.losses.pass(missing(expected), ())?;
        }
        Ok(Seq(expected.0 - 1))
    }

    /// Brings in the leaves in which the first of `records`, in order, lie, and returns the last of these. They are
    /// read many at a time and in the order of the device; without this they would be read one by one for each record.
    /// A leaf that cannot be read is left to the code that applies the record, because a power cut may have voided the
    /// record.
    fn read_ahead<'p>(&self, map: &mut Map, records: impl Iterator<Item = (Seq, &'p [FoundRecord])>) -> Seq {
        let fit = |bytes: u64| (bytes / 4 / LEAF_BYTES_MAX as u64).max(1) as usize;
        let entries_max = self.map_memory.map_or(ENTRIES_AHEAD, fit).min(ENTRIES_AHEAD);
        let (mut last, mut ranges) = (Seq(0), Vec::new());
        for (number, parts) in records {
            last = number;
            let entries = parts.iter().flat_map(|part| part.record.entries().unwrap_or_default());
            ranges.extend(entries.map(|entry| entry.range()));
            if ranges.len() >= entries_max {
                break;
            }
        }
        let _ = self.leaves.fault_in(map, &merged(ranges));
        last
    }

    fn entries(&self, part: &FoundRecord) -> Result<Vec<Entry>> {
        part.record.entries().map_err(|flaw| self.volume.corrupt("log record", part.at, flaw))
    }

    fn payloads(&self) -> Payloads<'_> {
        Payloads { replay: self, readers: HashMap::new() }
    }
}

/// Verifies records that a power cut may have lost although a summary lists them. They come in the order of the log,
/// from as many segments at a time as there are append points.
struct Payloads<'a> {
    replay: &'a Replay<'a>,
    readers: HashMap<SegNo, SegmentReader<'a>>,
}

impl<'a> Payloads<'a> {
    const READERS_MAX: usize = 16;

    fn reader(&mut self, segment: SegNo) -> &mut SegmentReader<'a> {
        if self.readers.len() >= Self::READERS_MAX && !self.readers.contains_key(&segment) {
            self.readers.clear();
        }
        let volume = self.replay.volume;
        self.readers.entry(segment).or_insert_with(|| SegmentReader::new(volume, segment))
    }

    /// Whether the records themselves are there (argument 5).
    fn have_records(&mut self, parts: &[FoundRecord]) -> Result<bool> {
        for FoundRecord { record, .. } in parts {
            let RecordHeader { life, offset, .. } = record.header;
            let found = self.reader(life.segment).record(offset as usize, life)?;
            if found.as_ref() != Some(record) && !is_broken(Rule::ReplayVerifies) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether all payload of `entries` is there.
    fn are_whole(&mut self, entries: &[Entry]) -> Result<bool> {
        for entry in entries.iter().filter(|entry| entry.kind != EntryKind::Trim) {
            let reader = self.reader(entry.phys.segment);
            let found = crc32c(reader.bytes(entry.phys.offset(), usize::from(entry.stored))?);
            if found != entry.crc && !is_broken(Rule::ReplayVerifies) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Takes out the batch after `last`. None when it is missing: all batches after a gap are void.
fn take_next(batches: &mut BTreeMap<Seq, Vec<FoundRecord>>, last: Seq) -> Option<(Seq, Vec<FoundRecord>)> {
    let next = batches.first_entry()?;
    (*next.key() == last.next() || is_broken(Rule::StopAtGap)).then(|| next.remove_entry())
}

/// Whether the sorted `parts` are a batch: numbered from 0, the last and only the last marked so.
fn is_whole(parts: &[FoundRecord]) -> bool {
    let numbered = |(index, part): (usize, &FoundRecord)| {
        let header = &part.record.header;
        header.part as usize == index && header.last_part == (index + 1 == parts.len())
    };
    parts.iter().enumerate().all(numbered)
}

/// Applies `entry` to `part` of its sectors.
fn apply(map: &mut Map, entry: &Entry, part: Range<u64>, seq: Seq) {
    match entry.kind {
        EntryKind::Trim => map.trim(part),
        EntryKind::Write => map.write_part(entry.lba, part, entry.extent(seq)),
        EntryKind::Relocate => unreachable!("a batch record has no relocations"),
    }
}

/// Whether the relocation `entry` holds the bytes of `piece`, which lies in its sectors (argument 1).
fn holds_bytes_of(entry: &Entry, piece: &Extent) -> bool {
    piece.birth == entry.birth || is_broken(Rule::BirthCounts)
}

/// Points the map to the new place of the extents that it still holds in `part` of the sectors that `entry` moved.
fn relocate(map: &mut Map, entry: &Entry, part: Range<u64>) {
    let pieces = map.extents(part).map(|found| found.expect("all leaves of the range are in memory"));
    let pieces: Vec<_> = pieces.filter(|(_, piece)| holds_bytes_of(entry, piece)).collect();
    for (lba, piece) in pieces {
        let (skip, sectors) = ((lba.0 - entry.lba.0) as u8, piece.sectors);
        map.put(lba.0..lba.0 + u64::from(sectors), Extent { sectors, skip, ..entry.extent(piece.birth) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Lba, addr::PhysAddr};

    const OLD: PhysAddr = PhysAddr { segment: SegNo(1), grain: 100 };
    const NEW: PhysAddr = PhysAddr { segment: SegNo(2), grain: 200 };

    fn moved(lba: u64, sectors: u64, birth: u64) -> Entry {
        let stored = (sectors * 512) as u16;
        Entry {
            kind: EntryKind::Relocate,
            lba: Lba(lba),
            sectors,
            birth: Seq(birth),
            phys: NEW,
            stored,
            crc: 2,
            encoding: Algorithm::None,
        }
    }

    fn move_whole(map: &mut Map, entry: Entry) {
        relocate(map, &entry, entry.range());
    }

    /// Start, sectors, segment and skip of each extent.
    fn shape(map: &Map) -> Vec<(u64, u8, u32, u8)> {
        map.check(|finding| panic!("{finding}"));
        let extents = map.extents(0..u64::MAX).map(Result::unwrap);
        extents.map(|(lba, e)| (lba.0, e.sectors, e.phys.segment.0, e.skip)).collect()
    }

    fn map() -> Map {
        let mut map = Map::new(4);
        map.write(Lba(0), 32, OLD, 16384, 1, Seq(5));
        map
    }

    #[test]
    fn a_whole_extent_goes_to_its_new_place() {
        let mut map = map();
        move_whole(&mut map, moved(0, 32, 5));
        assert_eq!(shape(&map), [(0, 32, 2, 0)]);
        let (_, extent) = map.extents(0..1).next().unwrap().unwrap();
        assert_eq!((extent.phys, extent.crc, extent.birth), (NEW, 2, Seq(5)));
    }

    /// The parts of an encoded chunk that are left go to the copy, and so do those that the cut brought back.
    #[test]
    fn an_encoded_chunk_goes_to_its_copy_in_parts() {
        let mut map = Map::new(4);
        let encoded = Entry { stored: 4096, encoding: Algorithm::Zstd, ..moved(0, 32, 5) };
        map.write_part(Lba(0), 0..32, Extent { phys: OLD, ..encoded.extent(Seq(5)) });
        map.trim(8..12);
        map.write(Lba(16), 4, PhysAddr { segment: SegNo(3), grain: 9 }, 2048, 3, Seq(7));
        move_whole(&mut map, encoded);
        assert_eq!(shape(&map), [(0, 8, 2, 0), (12, 4, 2, 12), (16, 4, 3, 0), (20, 12, 2, 20)]);
        let parts = map.extents(0..32).map(Result::unwrap).filter(|(_, part)| part.is_encoded());
        assert!(
            parts
                .into_iter()
                .all(|(_, part)| (part.phys, part.chunk_sectors, part.stored) == (NEW, 32, 4096))
        );
        assert_eq!((map.live(SegNo(1)).bytes, map.live(SegNo(2)).bytes), (0, 4096));
    }

    #[test]
    fn another_birth_is_left_alone() {
        let mut map = map();
        for birth in [4, 6] {
            move_whole(&mut map, moved(0, 32, birth));
        }
        assert_eq!(shape(&map), [(0, 32, 1, 0)]);
    }

    #[test]
    fn overwritten_and_trimmed_parts_stay_so() {
        let mut map = map();
        map.write(Lba(8), 4, PhysAddr { segment: SegNo(3), grain: 9 }, 2048, 3, Seq(7));
        map.trim(20..24);
        move_whole(&mut map, moved(0, 32, 5));
        assert_eq!(shape(&map), [(0, 8, 2, 0), (8, 4, 3, 0), (12, 8, 2, 12), (24, 8, 2, 24)]);
    }

    /// The relocation of a fragment survived a power cut; the batches that made the fragment did not.
    #[test]
    fn a_moved_fragment_splits_what_the_cut_made_whole_again() {
        let mut map = map();
        move_whole(&mut map, moved(8, 4, 5));
        assert_eq!(shape(&map), [(0, 8, 1, 0), (8, 4, 2, 0), (12, 20, 1, 12)]);
    }

    #[test]
    fn what_one_batch_wrote_twice_is_moved_piece_by_piece() {
        let mut map = map();
        let second = PhysAddr { segment: SegNo(1), grain: 2000 };
        map.write(Lba(8), 4, second, 2048, 3, Seq(5));
        move_whole(&mut map, moved(8, 4, 5));
        assert_eq!(shape(&map), [(0, 8, 1, 0), (8, 4, 2, 0), (12, 20, 1, 12)]);
    }
}
