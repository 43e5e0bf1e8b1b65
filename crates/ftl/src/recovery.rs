//! From the bytes on a device to an open store.
//!
//! Superblock -> checkpoint -> replay of all batches after it, in order, up to the first that is not
//! there whole. Nothing is written here: [`crate::Ftl::open`] follows with a checkpoint under a new
//! epoch, before it accepts a batch. Until that checkpoint's superblock is durable, a second power cut
//! leads to the same recovery again: the checkpoint goes only into segments that this recovery does
//! not read. Once it is durable, no record of an older epoch is ever replayed again, so what lies past
//! the cut is void for ever, although its numbers are given out anew.
//!
//! Relocations are not replayed. Collection never changes what a sector holds, and the place that an
//! extent was moved away from stays intact until a checkpoint that knows the new place is durable. So
//! a power cut merely undoes collection since the last checkpoint, and with it all room that
//! half-done collection took.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU32},
};

use crc32c::crc32c;
use lacuna_device::BlockDevice;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    Error, Options, Result, Seq,
    addr::SegNo,
    background::Background,
    checkpoint,
    format::{
        Entry, EntryKind, Life, Place, RECORDS_START, RecordKind, Root, Salt, SegmentHeader, SegmentKind,
    },
    log::{Log, Segment, State},
    map::Map,
    mutant::{Rule, is_broken},
    scan::{Record, Scan, SegmentReader, claimed_life, corrupt, read_header},
    space::Space,
    store::Store,
    superblock,
};

/// Reads the store on `device` into memory.
pub(crate) fn open(device: Arc<dyn BlockDevice>, options: Options) -> Result<Store> {
    let superblock = superblock::load(&*device)?;
    let space = superblock::space(&superblock, options.reserve_percent);
    if space.limits(0).is_none() {
        let reason = "the store has too few segments".into();
        return Err(Error::Geometry { device: device.name().into(), reason });
    }
    let salt = Salt::of(&superblock.uuid);
    let (mut map, root) = checkpoint::load(&*device, space, salt, &superblock)?;
    let headers = (0..space.segments as u32)
        .map(|no| if no == 0 { Ok(None) } else { read_header(&*device, space, salt, SegNo(no)) })
        .collect::<Result<Vec<_>>>()?;

    let mut needed: Vec<bool> =
        (0..space.segments).map(|no| map.live(SegNo(no as u32)).extents > 0).collect();
    let extents_loaded = map.total().extents;
    let replay = Replay { device: &*device, space, salt, epoch: superblock.epoch };
    let sources = replay.sources(&root, &headers)?;
    for (life, _) in &sources {
        needed[life.segment.0 as usize] = true;
    }
    let flushed = superblock.flushed_seq.max(replay.marks_without_header(&root, &headers)?);
    let last_seq = replay.run(&sources, &root, flushed, &mut map)?;

    let segments = headers.iter().zip(&needed).enumerate().map(|(no, (header, needed))| {
        let in_root = root.segments.iter().any(|place| place.segment.0 as usize == no);
        let state = match (no, in_root, needed) {
            (0, _, _) => State::Superblock,
            (_, true, _) => State::Checkpoint,
            (_, _, true) => State::Sealed,
            _ => State::Free,
        };
        let (generation, epoch) = header.map_or((0, 0), |header| (header.generation, header.epoch));
        let opened_seq = header.map_or(Seq(0), |header| header.opened_seq);
        let is_fresh = header.is_some_and(|header| header.kind != SegmentKind::Gc);
        Segment { state, generation, epoch, opened_seq, is_fresh }
    });
    let seen = headers.iter().flatten();
    let epoch_next = seen.clone().map(|header| header.epoch).max().unwrap_or(0).max(superblock.epoch) + 1;
    let epoch = if options.read_only { superblock.epoch } else { epoch_next };
    let mut log = Log::new(space, salt, epoch, last_seq, segments.collect());
    log.generation_next =
        seen.map(|header| header.generation + 1).max().unwrap_or(1).max(root.generation_next);
    log.checkpoint_segments = root.segments.iter().map(|place| place.segment).collect();
    log.peak.note(extents_loaded.max(map.total().extents));
    log.counters.replayed_batches = last_seq.0 - root.start_seq.0;

    let segment_bytes = space.segment_bytes as u32;
    Ok(Store {
        device,
        options,
        space,
        superblock: Mutex::new(superblock),
        maintenance: Mutex::new(()),
        log: Mutex::new(log),
        map: RwLock::new(map),
        pins: (0..space.segments).map(|_| AtomicU32::new(0)).collect(),
        written: (0..space.segments).map(|_| AtomicU32::new(segment_bytes)).collect(),
        io_done: Condvar::new(),
        background: Background::default(),
    })
}

/// Applies to the map what the log holds after a checkpoint.
struct Replay<'a> {
    device: &'a dyn BlockDevice,
    space: Space,
    salt: Salt,
    /// Epoch under which the log was written.
    epoch: u64,
}

/// A part of a batch, as found.
struct Part {
    record: Record,
    at: u64,
}

impl Replay<'_> {
    /// Where to scan: the segments that were open when the checkpoint began, from there on, and
    /// those that were opened later.
    fn sources(&self, root: &Root, headers: &[Option<SegmentHeader>]) -> Result<Vec<(Life, usize)>> {
        let is_fresh = |header: &SegmentHeader| matches!(header.kind, SegmentKind::Data | SegmentKind::Log);
        let mut sources = Vec::new();
        for Place { segment, generation, offset } in root.positions.iter().flatten() {
            let header = headers[segment.0 as usize].filter(|header| {
                is_fresh(header) && header.generation == *generation && header.epoch == self.epoch
            });
            if header.is_none() {
                let at = u64::from(segment.0) * self.space.segment_bytes as u64;
                return Err(corrupt(
                    self.device,
                    "segment header",
                    at,
                    "not the one that the checkpoint names",
                ));
            }
            let life = Life { segment: *segment, generation: *generation, epoch: self.epoch };
            sources.push((life, *offset as usize));
        }
        for header in headers.iter().flatten() {
            let SegmentHeader { segment, generation, epoch, .. } = *header;
            if is_fresh(header) && epoch == self.epoch && generation >= root.generation_next {
                sources.push((Life { segment, generation, epoch }, RECORDS_START));
            }
        }
        Ok(sources)
    }

    /// The newest flush mark in segments that should be replayed and whose header is damaged. Without a
    /// header nothing of them is replayed, and if a flushed batch was among it, it must be missed.
    fn marks_without_header(&self, root: &Root, headers: &[Option<SegmentHeader>]) -> Result<Seq> {
        let mut mark = Seq(0);
        for (no, _) in headers.iter().enumerate().skip(1).filter(|(_, header)| header.is_none()) {
            let segment = SegNo(no as u32);
            let claimed = claimed_life(self.device, self.space, segment)?;
            let is_wanted = |life: &Life| life.epoch == self.epoch && life.generation >= root.generation_next;
            if let Some(life) = claimed.filter(is_wanted) {
                let reader = SegmentReader::new(self.device, self.space, segment);
                mark = mark.max(Scan::new(reader, self.salt, life, RECORDS_START).mark_beyond()?);
            }
        }
        Ok(mark)
    }

    /// Applies the longest prefix of batches that is there, and returns the last one's number.
    fn run(&self, sources: &[(Life, usize)], root: &Root, flushed: Seq, map: &mut Map) -> Result<Seq> {
        let mut batches: BTreeMap<Seq, Vec<Part>> = BTreeMap::new();
        let mut flushed = flushed;
        let mut scan_end = 0;
        for (life, offset) in sources {
            let reader = SegmentReader::new(self.device, self.space, life.segment);
            let mut scan = Scan::new(reader, self.salt, *life, *offset);
            while let Some(record) = scan.next_record()? {
                flushed = flushed.max(record.header.flushed_seq);
                let at = scan.reader.device_offset(record.header.offset as usize);
                if record.header.kind == RecordKind::Batch && record.header.seq > root.start_seq {
                    batches.entry(record.header.seq).or_default().push(Part { record, at });
                }
            }
            scan_end = scan.device_offset();
            flushed = flushed.max(scan.mark_beyond()?);
        }
        let mut last = root.start_seq;
        while let Some((seq, mut parts)) = take_next(&mut batches, last) {
            parts.sort_unstable_by_key(|part| part.record.header.part);
            if !is_whole(&parts) && !is_broken(Rule::AllParts) {
                break;
            }
            let entries = self.entries(&parts)?;
            if seq > flushed && !self.payload_is_whole(&entries)? && !is_broken(Rule::ReplayVerifies) {
                break;
            }
            last = seq;
            for entry in entries {
                apply(map, entry, last);
            }
        }
        if last < flushed && !is_broken(Rule::MarksCount) {
            let reason = format!(
                "batch {} was flushed and is not there; the log goes up to {}",
                last.0 + 1,
                flushed.0
            );
            return Err(corrupt(self.device, "log", scan_end, reason));
        }
        Ok(last)
    }

    fn entries(&self, parts: &[Part]) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for part in parts {
            let verified = part.record.entries();
            entries.extend(verified.map_err(|flaw| corrupt(self.device, "log record", part.at, flaw))?);
        }
        Ok(entries)
    }

    /// Whether all payload of a batch that may have been cut by the power is there.
    fn payload_is_whole(&self, entries: &[Entry]) -> Result<bool> {
        let mut reader: Option<(SegNo, SegmentReader<'_>)> = None;
        for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Write) {
            let segment = entry.phys.segment;
            if reader.as_ref().is_none_or(|(open, _)| *open != segment) {
                reader = Some((segment, SegmentReader::new(self.device, self.space, segment)));
            }
            let (_, open) = reader.as_mut().expect("just set");
            if crc32c(open.bytes(entry.phys.offset(), usize::from(entry.stored))?) != entry.crc {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Takes out the batch after `last`. None when it is missing: what follows a gap is void.
fn take_next(batches: &mut BTreeMap<Seq, Vec<Part>>, last: Seq) -> Option<(Seq, Vec<Part>)> {
    let next = batches.first_entry()?;
    (*next.key() == last.next() || is_broken(Rule::StopAtGap)).then(|| next.remove_entry())
}

/// Whether the sorted `parts` are a batch: numbered from 0, the last and only the last marked so.
fn is_whole(parts: &[Part]) -> bool {
    let numbered = |(index, part): (usize, &Part)| {
        let header = &part.record.header;
        header.part as usize == index && header.last_part == (index + 1 == parts.len())
    };
    parts.iter().enumerate().all(numbered)
}

fn apply(map: &mut Map, entry: Entry, seq: Seq) {
    match entry.kind {
        EntryKind::Trim => map.trim(entry.lba.0..entry.lba.0 + entry.sectors),
        EntryKind::Write => map.write(entry.lba, entry.sectors, entry.phys, entry.stored, entry.crc, seq),
        EntryKind::Relocate => unreachable!("a batch record has no relocations"),
    }
}
