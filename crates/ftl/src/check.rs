//! Proving the invariants of an open store.

use crate::{
    CheckDepth, Error, Finding, Report, Result, Seq,
    addr::SegNo,
    format::{Extent, LeafPlace, Life, Live, RECORDS_START, SegmentHeader, Superblock},
    log::{Log, State},
    map::{Absent, Leaf, LeafRef, Map, Recount},
    read::Pinned,
    scan::{Record, Scan, SegmentReader, read_footer, read_headers},
    store::Store,
};

/// Extents that are verified under one pin.
const EXTENTS_AT_ONCE: usize = 256;

impl Store {
    /// See [`crate::Ftl::check`].
    pub(crate) fn check(&self, depth: CheckDepth) -> Result<Report> {
        let mut report = Report::default();
        let leaves = {
            let log = self.log.lock();
            let map = self.map.read();
            report.extents = map.total().extents;
            let mut found = |message: String| report.findings.push(Finding { message });
            map.check(&mut found);
            self.check_segments(&log, &map, &mut found);
            PinnedMap::new(self, &log, &map)
        };
        self.check_leaves(&leaves, depth, &mut report)?;
        drop(leaves);
        if depth == CheckDepth::Payload {
            self.check_payload(&mut report)?;
            let salt = self.log.lock().salt;
            // What cannot be read is no evidence; who needs it says so.
            let headers = read_headers(&*self.device, self.space, salt).unwrap_or_default();
            for segment in (1..self.space.segments as u32).map(SegNo) {
                match self.check_footer(segment, &headers, &mut report) {
                    Err(error @ (Error::Corrupt { .. } | Error::Device(_))) => {
                        let message = format!("segment {}: {error}", segment.0);
                        report.findings.push(Finding { message });
                    }
                    checked => checked?,
                }
            }
        }
        Ok(report)
    }

    fn check_segments(&self, log: &Log, map: &Map, found: &mut impl FnMut(String)) {
        for no in (0..self.space.segments as u32).map(SegNo) {
            let state = log.segment(no).state;
            let listed = log.free.iter().filter(|free| **free == no).count();
            if listed != usize::from(state == State::Free) {
                found(format!("segment {}: {state:?}, but {listed} times on the free list", no.0));
            }
            let holds_data = matches!(state, State::Open | State::Sealed | State::Damaged);
            if !holds_data && map.live(no).extents > 0 {
                found(format!("segment {}: {state:?}, but it has {:?}", no.0, map.live(no)));
            }
            let is_referred_to = log.root_segments.binary_search(&no).is_ok() || map.leaf_bytes(no) > 0;
            if is_referred_to && state != State::Checkpoint {
                found(format!("segment {}: {state:?}, but it holds a part of the map", no.0));
            }
            if state == State::Damaged {
                let at = self.device_offset(no, 0);
                found(format!("segment {} at byte {at}: holds chunks that cannot be read", no.0));
            }
        }
        let map_segments = log.in_state(State::Checkpoint).count();
        if map_segments != log.map_segments {
            found(format!("{map_segments} segments hold the map, {} are counted", log.map_segments));
        }
        if log.flushed_seq > log.last_seq {
            found(format!("batch {} is flushed, but {} is the last", log.flushed_seq.0, log.last_seq.0));
        }
    }

    /// Recounts the map as it was when it was pinned. Leaves that are not in memory are read, and with
    /// [`CheckDepth::Payload`] those that are on the device as well.
    fn check_leaves(&self, map: &PinnedMap<'_>, depth: CheckDepth, report: &mut Report) -> Result<()> {
        let mut recount = Recount::new(self.space.segments);
        let mut is_whole = true;
        for leaf in &map.leaves {
            let read = match leaf.place {
                Some(place) if leaf.leaf.is_none() || depth == CheckDepth::Payload => {
                    self.check_leaf_on_device(leaf, place, report)?
                }
                _ => None,
            };
            let Some(rows) = leaf.leaf.as_ref().or(read.as_ref()) else {
                is_whole = false;
                continue;
            };
            let mut bad = Vec::new();
            recount.leaf(&leaf.span, leaf.live, rows, |message| bad.push(message));
            for (lba, extent) in rows.rows() {
                self.check_extent(map.last_seq, lba, &extent, &mut |message| bad.push(message));
            }
            report.findings.extend(bad.into_iter().map(|message| Finding { message }));
        }
        if is_whole {
            recount.finish(&map.segments, |message| report.findings.push(Finding { message }));
        }
        Ok(())
    }

    /// Reads a leaf from its place; none if it is damaged, which is reported.
    fn check_leaf_on_device(
        &self,
        leaf: &LeafRef,
        place: LeafPlace,
        report: &mut Report,
    ) -> Result<Option<Leaf>> {
        let absent = Absent { span: leaf.span.clone(), live: leaf.live, place };
        let mut found = None;
        match self.leaf_reader().read(vec![absent], |_, leaf| found = Some(leaf)) {
            Ok(()) => report.verified_bytes += u64::from(place.bytes),
            Err(error @ (Error::Corrupt { .. } | Error::Device(_))) => {
                let message = format!("map of sectors {:?}: {error}", leaf.span);
                report.findings.push(Finding { message });
            }
            Err(error) => return Err(error),
        }
        if let (Some(resident), Some(read)) = (&leaf.leaf, &found)
            && resident.bytes() != read.bytes()
        {
            let message = format!("map of sectors {:?}: memory and device differ", leaf.span);
            report.findings.push(Finding { message });
        }
        Ok(found)
    }

    fn check_extent(&self, last_seq: Seq, lba: u64, extent: &Extent, found: &mut impl FnMut(String)) {
        let end = extent.phys.offset() + usize::from(extent.stored);
        if end > self.space.segment_bytes || extent.phys.offset() < RECORDS_START {
            found(format!("sector {lba}: chunk lies outside its segment's records: {extent:?}"));
        }
        if extent.birth > last_seq || extent.birth.0 == 0 {
            found(format!("sector {lba}: written by batch {}, which never was", extent.birth.0));
        }
    }

    /// Reads and verifies every mapped chunk.
    fn check_payload(&self, report: &mut Report) -> Result<()> {
        let mut cursor = 0;
        while let Some((pinned, next)) = self.pin_past_damage(cursor)? {
            cursor = next;
            for (lba, extent) in pinned.extents() {
                let len = usize::from(extent.stored);
                let chunk = self.read_bytes(extent.phys.segment, extent.phys.offset(), len);
                match chunk.and_then(|chunk| self.verify(extent, &chunk)) {
                    Ok(()) => report.verified_bytes += len as u64,
                    Err(error @ (Error::Corrupt { .. } | Error::Device(_))) => {
                        report.findings.push(Finding { message: format!("sector {}: {error}", lba.0) });
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Holds the footer of `segment`, if that is sealed, against its records. A segment that was sealed
    /// since open must have one, and so must one whose footer is known to be durable; in others a cut may
    /// have taken it, or records that it tells of. `headers` may be of some time ago.
    fn check_footer(
        &self,
        segment: SegNo,
        headers: &[Option<SegmentHeader>],
        report: &mut Report,
    ) -> Result<()> {
        // Until it is released, nothing is freed.
        let _turn = self.maintenance.lock();
        let superblock = self.superblock.lock().clone();
        let (life, salt, must_be_there) = {
            let log = self.log.lock();
            let is_sealed = matches!(log.segment(segment).state, State::Sealed | State::Damaged);
            if !is_sealed || !log.is_written(segment) {
                return Ok(());
            }
            let life = log.life(segment);
            let is_own = life.epoch == log.epoch && !self.options.read_only;
            (life, log.salt, is_own || is_footer_durable(headers, &superblock, life))
        };
        let mut found = |at: usize, what: &str| {
            let at = self.device_offset(segment, at);
            report.findings.push(Finding { message: format!("segment {} at byte {at}: {what}", segment.0) });
        };
        let footer = match read_footer(&*self.device, self.space, salt, life)? {
            Ok(footer) => footer,
            Err(flaw) => {
                if must_be_there {
                    found(self.space.segment_bytes, flaw);
                }
                return Ok(());
            }
        };
        let reader = SegmentReader::new(&*self.device, self.space, segment);
        let mut scan = Scan::new(reader, salt, life, RECORDS_START);
        let mut told = footer.iter();
        while let Some(record) = scan.next_record()? {
            // A scan goes on at the next block: it may pass over a record that a cut took.
            let is_told = |other: &Record| *other == record;
            let is_there = if must_be_there { told.next().is_some_and(is_told) } else { told.any(is_told) };
            if !is_there {
                found(record.header.offset as usize, "the footer tells of another record");
                return Ok(());
            }
        }
        if let Some(record) = told.next().filter(|_| must_be_there) {
            found(record.header.offset as usize, "a record that the footer tells of is not there");
        }
        Ok(())
    }

    /// Pins extents of the next leaf that can be read, from `cursor` on, and says where to go on. What
    /// a leaf that cannot be read maps is not known; that leaf was found before.
    fn pin_past_damage(&self, cursor: u64) -> Result<Option<(Pinned<'_>, u64)>> {
        let mut cursor = cursor;
        while cursor < u64::MAX {
            let end = self.map.read().leaf_end(cursor);
            match self.pin_some(cursor..end, EXTENTS_AT_ONCE) {
                Ok(pinned) => {
                    let more = pinned.extents().len() == EXTENTS_AT_ONCE;
                    let last = pinned.extents().last().map(|(lba, last)| lba.0 + u64::from(last.sectors));
                    return Ok(Some((pinned, last.filter(|_| more).unwrap_or(end))));
                }
                Err(Error::Corrupt { .. } | Error::Device(_)) => cursor = end,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// Whether the footer of `life`, and all records that it tells of, were made durable: the next segment was
/// opened at its append point, and a flush that covers a batch after that has ended. Segments are sealed
/// before the next is opened, and a flush waits for all that is on its way.
fn is_footer_durable(headers: &[Option<SegmentHeader>], superblock: &Superblock, life: Life) -> bool {
    let of_epoch = || headers.iter().flatten().filter(|header| header.epoch == life.epoch);
    let known = (superblock.epoch == life.epoch).then_some(superblock.flushed_seq);
    let flushed = of_epoch().map(|header| header.durable.batches).chain(known).max();
    let is_own =
        |header: &&SegmentHeader| header.segment == life.segment && header.generation == life.generation;
    let Some(own) = of_epoch().find(is_own) else { return false };
    let is_later = |next: &SegmentHeader| {
        (next.kind, next.class) == (own.kind, own.class) && next.generation > own.generation
    };
    of_epoch().any(|next| is_later(next) && Some(next.opened_seq) < flushed)
}

/// All leaves of the map at one moment; their segments are pinned until it is dropped.
struct PinnedMap<'a> {
    store: &'a Store,
    leaves: Vec<LeafRef>,
    segments: Vec<Live>,
    last_seq: Seq,
}

impl<'a> PinnedMap<'a> {
    fn new(store: &'a Store, log: &Log, map: &Map) -> PinnedMap<'a> {
        let leaves = map.snapshot().leaves(|_| true);
        leaves.iter().flat_map(|leaf| leaf.place).for_each(|place| store.pin(place.segment));
        PinnedMap { store, leaves, segments: map.segments().to_vec(), last_seq: log.last_seq }
    }
}

impl Drop for PinnedMap<'_> {
    fn drop(&mut self) {
        self.leaves.iter().flat_map(|leaf| leaf.place).for_each(|place| self.store.unpin(place.segment));
    }
}
