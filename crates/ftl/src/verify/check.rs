//! Checking the invariants of an open store.
//!
//! Memory: some 100 bytes for each leaf of the map, so about one for each extent; what the verification of all
//! chunks takes (`sweep`); and the findings.

use std::{collections::BTreeMap, ops::ControlFlow};

use crate::{
    CheckDepth, Error, Finding, Progress, Report, Result, Seq,
    addr::SegNo,
    format::{COUNTER_MAX, Extent, Life, Live, RECORDS_START, SegmentHeader, Superblock},
    log::{Claim, Damaged, Log, State},
    map::{Absent, Leaf, LeafRef, Map, Recount},
    media::{
        scan::{Record, Scan},
        starts::read_headers,
        summaries::read_summary,
    },
    verify::{
        Verifier,
        sweep::{Sweep, Swept, everything},
    },
};

/// Leaves that are read at the same time.
const LEAVES_AT_ONCE: usize = 1 << 10;
/// Chunks that are read at the same time.
const PIECE_BYTES: usize = 4 << 20;

/// Receives the progress of a check.
type ReportProgress<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

impl Verifier {
    /// See [`crate::Ftl::check`].
    pub(crate) fn check(&self, depth: CheckDepth, progress: ReportProgress<'_>) -> Result<Report> {
        self.journal.must_not_be_stopped()?;
        let mut report = Report::default();
        let leaves = {
            let log = self.journal.lock();
            let map = self.map.read();
            report.extents = map.total().extents;
            let mut found = |message: String| report.findings.push(Finding { message });
            map.check(&mut found);
            self.check_segments(&log, &map, &mut found);
            PinnedMap::new(self, &log, &map)
        };
        let log_device = self.journal.check_log_device();
        report.findings.extend(log_device.map(|message| Finding { message }));
        self.check_leaves(&leaves, depth, &mut report, progress)?;
        drop(leaves);
        if depth == CheckDepth::Payload {
            self.check_payload(&mut report, progress)?;
            self.check_summaries(&mut report, progress)?;
        }
        Ok(report)
    }

    fn check_segments(&self, log: &Log, map: &Map, found: &mut impl FnMut(String)) {
        let mut listed = vec![0_u32; self.volume.space().segments];
        log.free().iter().for_each(|free| listed[free.0 as usize] += 1);
        for (no, listed) in (0..).map(SegNo).zip(listed) {
            let state = log.segment(no).state;
            if listed != u32::from(state == State::Free) {
                found(format!("segment {}: {state:?}, but {listed} times on the free list", no.0));
            }
            let holds_data = matches!(state, State::Open | State::Sealed | State::Damaged(_));
            if !holds_data && map.live(no).extents > 0 {
                found(format!("segment {}: {state:?}, but it has {:?}", no.0, map.live(no)));
            }
            let is_referred_to = log.checkpoints().refers_to(no) || map.leaf_bytes(no) > 0;
            if is_referred_to && state != State::Checkpoint {
                found(format!("segment {}: {state:?}, but it holds a part of the map", no.0));
            }
            let at = self.volume.offset(no, 0);
            if self.reuse.has_lost_header(no) {
                found(format!("segment {} at byte {at}: its start cannot be read; it is out of use", no.0));
            } else if let State::Damaged(why) = state {
                let what = match why {
                    Damaged::Unreadable => "holds chunks that cannot be read",
                    Damaged::Miscounted => {
                        "counts data that is nowhere in the map, and its checksums match: no damage, it was made so"
                    }
                };
                found(format!("segment {} at byte {at}: {what}", no.0));
            }
        }
        let is_whole = log.damaged_segments() == 0 && log.checkpoints().left().is_empty();
        if is_whole && !self.volume.is_read_only() && !log.keeps_checkpoints() {
            let (free, kept) = (log.free().len(), log.left_by(Claim::Collection));
            found(format!("{free} segments are free, {kept} must be for checkpoints"));
        }
        let map_segments = log.in_state(State::Checkpoint).count();
        if map_segments != log.map_segments() {
            found(format!("{map_segments} segments hold the map, {} are counted", log.map_segments()));
        }
        let last = log.last();
        for (name, counter) in [
            ("superblocks", self.checkpointer.superblock().sequence),
            ("epochs", log.epoch()),
            ("generations", log.generation_next()),
            ("batches", last.batches.0),
            ("relocations", last.moves.0),
        ] {
            if counter > COUNTER_MAX / 4 {
                found(format!("the number of {name} has come to {counter}, near its end"));
            }
        }
        if log.durable().batches > log.last_seq() {
            found(format!(
                "batch {} is flushed, but {} is the last",
                log.durable().batches.0,
                log.last_seq().0
            ));
        }
    }

    /// Recounts the map as it was when it was pinned. Leaves that are not in memory are read, and with
    /// [`CheckDepth::Payload`] those that are on the device as well.
    fn check_leaves(
        &self,
        map: &PinnedMap<'_>,
        depth: CheckDepth,
        report: &mut Report,
        progress: ReportProgress<'_>,
    ) -> Result<()> {
        let mut recount = Recount::new(self.volume.space().segments);
        let mut is_whole = true;
        for (leaves, done) in map.leaves.chunks(LEAVES_AT_ONCE).zip((0..).step_by(LEAVES_AT_ONCE)) {
            let expected = map.leaves.len() as u64;
            Error::unless_ended(progress(Progress { what: "leaves of the map", done, expected }))?;
            let mut read = self.read_leaves(leaves, depth)?;
            for leaf in leaves {
                let read = read.remove(&leaf.span.start).and_then(|read| sound_leaf(leaf, read, report));
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
        }
        if is_whole {
            recount.finish(&map.segments, |message| report.findings.push(Finding { message }));
        }
        Ok(())
    }

    /// Those of `leaves` that are to be read, by the starts of their spans, as they are on the device.
    fn read_leaves(&self, leaves: &[LeafRef], depth: CheckDepth) -> Result<BTreeMap<u64, Result<Leaf>>> {
        let wanted = leaves.iter().filter(|leaf| leaf.leaf.is_none() || depth == CheckDepth::Payload);
        let absent =
            |leaf: &LeafRef| Some(Absent { span: leaf.span.clone(), live: leaf.live, place: leaf.place? });
        let wanted: Vec<Absent> = wanted.filter_map(absent).collect();
        let (mut all, mut outcome) = (BTreeMap::new(), Ok(()));
        self.pages.leaf_reader().read_each(&wanted, |absent, leaf| match leaf {
            Err(error) if !error.is_damage() => outcome = Err(error),
            leaf => drop(all.insert(absent.span.start, leaf)),
        });
        outcome.map(|()| all)
    }

    fn check_extent(&self, last_seq: Seq, lba: u64, extent: &Extent, found: &mut impl FnMut(String)) {
        let end = extent.phys.offset() + usize::from(extent.stored);
        if end > self.volume.space().segment_bytes || extent.phys.offset() < RECORDS_START {
            found(format!("sector {lba}: chunk lies outside its segment's records: {extent:?}"));
        }
        if extent.birth > last_seq || extent.birth.0 == 0 {
            found(format!("sector {lba}: written by batch {}, which never was", extent.birth.0));
        }
    }

    /// Reads and verifies every mapped chunk. The extents of a leaf that cannot be read are unknown; that leaf was
    /// reported before.
    fn check_payload(&self, report: &mut Report, progress: ReportProgress<'_>) -> Result<()> {
        let expected = self.map.read().total().extents;
        let (mut done, mut damaged, mut outcome) = (0, Vec::new(), Ok(()));
        let mut sweep = Sweep::new(&self.reader, &everything, PIECE_BYTES);
        let mut goes_on = true;
        while goes_on {
            Error::unless_ended(progress(Progress { what: "extents", done, expected }))?;
            goes_on = sweep.step(|swept| {
                let Swept::Extent((lba, extent), verified) = swept else { return };
                done += 1;
                match verified {
                    Ok(_) => report.verified_bytes += u64::from(extent.stored),
                    Err(error) if error.is_damage() => damaged.push((lba.0, error.to_string())),
                    Err(error) => outcome = Err(error),
                }
            })?;
        }
        damaged.sort_unstable();
        let found = |(lba, error)| Finding { message: format!("sector {lba}: {error}") };
        report.findings.extend(damaged.into_iter().map(found));
        outcome
    }

    /// Checks the summaries of all segments against their records.
    fn check_summaries(&self, report: &mut Report, progress: ReportProgress<'_>) -> Result<()> {
        // An unreadable header is no evidence; other parts of the check report it.
        let headers = read_headers(&self.volume);
        let headers = headers.map(|headers| headers.found).unwrap_or_default();
        for segment in (1..self.volume.space().segments as u32).map(SegNo) {
            let (done, expected) = (segment.0.into(), self.volume.space().segments as u64);
            Error::unless_ended(progress(Progress { what: "segments", done, expected }))?;
            match self.check_summary(segment, &headers, report) {
                Err(error) if error.is_damage() => {
                    let message = format!("segment {}: {error}", segment.0);
                    report.findings.push(Finding { message });
                }
                checked => checked?,
            }
        }
        Ok(())
    }

    /// Checks the summary of `segment`, if that is sealed, against its records. A segment that was sealed since open
    /// must have one, and so must one whose summary is known to be durable; in others a power cut may have lost it, or
    /// records that it lists. `headers` may be stale.
    fn check_summary(
        &self,
        segment: SegNo,
        headers: &[Option<SegmentHeader>],
        report: &mut Report,
    ) -> Result<()> {
        // Until it is released, nothing is freed.
        let _turn = self.journal.turn();
        let superblock = self.checkpointer.superblock();
        let (life, must_be_there) = {
            let log = self.journal.lock();
            let is_sealed = matches!(log.segment(segment).state, State::Sealed | State::Damaged(_));
            if !is_sealed || !log.is_written(segment) {
                return Ok(());
            }
            let life = log.life(segment);
            let is_own = life.epoch == log.epoch() && !self.volume.is_read_only();
            (life, is_own || is_summary_durable(headers, &superblock, life))
        };
        let mut found = |at: usize, what: &str| {
            let at = self.volume.offset(segment, at);
            report.findings.push(Finding { message: format!("segment {} at byte {at}: {what}", segment.0) });
        };
        let summary = match read_summary(&self.volume, life)? {
            Ok(summary) => summary,
            Err(flaw) => {
                if must_be_there {
                    found(self.volume.space().segment_bytes, flaw);
                }
                return Ok(());
            }
        };
        let mut scan = Scan::new(&self.volume, life, RECORDS_START);
        let mut listed = summary.iter();
        while let Some(record) = scan.next_record()? {
            // A scan continues at the next block: it may pass over a record that a power cut lost.
            let is_listed = |other: &Record| *other == record;
            let is_there =
                if must_be_there { listed.next().is_some_and(is_listed) } else { listed.any(is_listed) };
            if !is_there {
                found(record.header.offset as usize, "the summary tells of another record");
                return Ok(());
            }
        }
        if let Some(record) = listed.next().filter(|_| must_be_there) {
            found(record.header.offset as usize, "a record that the summary tells of is not there");
        }
        Ok(())
    }
}

/// The leaf as it was read from the device; none if it is damaged. Reports damage, and a difference from the leaf in
/// memory.
fn sound_leaf(leaf: &LeafRef, read: Result<Leaf>, report: &mut Report) -> Option<Leaf> {
    let mut found = |what: &str| {
        let message = format!("map of sectors {:?}: {what}", leaf.span);
        report.findings.push(Finding { message });
    };
    let read = read.map_err(|error| found(&error.to_string())).ok()?;
    if leaf.leaf.as_ref().is_some_and(|resident| resident.bytes() != read.bytes()) {
        found("memory and device differ");
    }
    report.verified_bytes += read.bytes().len() as u64;
    Some(read)
}

/// Whether the summary of `life`, and all records that it lists, were made durable: the next segment was
/// opened at its append point, and a flush that covers a batch after that has ended. Segments are sealed
/// before the next is opened, and a flush waits for all writes in flight.
fn is_summary_durable(headers: &[Option<SegmentHeader>], superblock: &Superblock, life: Life) -> bool {
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
    verifier: &'a Verifier,
    leaves: Vec<LeafRef>,
    segments: Vec<Live>,
    last_seq: Seq,
}

impl<'a> PinnedMap<'a> {
    fn new(verifier: &'a Verifier, log: &Log, map: &Map) -> PinnedMap<'a> {
        let leaves = map.snapshot().leaves(|_| true);
        leaves.iter().flat_map(|leaf| leaf.place).for_each(|place| verifier.map.pin(place.segment));
        PinnedMap { verifier, leaves, segments: map.segments().to_vec(), last_seq: log.last_seq() }
    }
}

impl Drop for PinnedMap<'_> {
    fn drop(&mut self) {
        self.leaves
            .iter()
            .flat_map(|leaf| leaf.place)
            .for_each(|place| self.verifier.map.unpin(place.segment));
    }
}
