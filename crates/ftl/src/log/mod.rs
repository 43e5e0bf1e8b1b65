//! State of the log: segments, append points, numbering, what is on its way to the device.
//!
//! All of it is behind one mutex in [`crate::store::Store`], which is never held across device I/O.
//! The functions here change memory only: bytes to be written are handed out by
//! [`Log::next_write`] and come back in [`Log::complete`].
//!
//! Invariants:
//! 1. Batches are numbered without gaps, in the order in which they enter the log and the map.
//! 2. A segment's generation was never used before by any segment of the store.
//! 3. A free segment has no live extent, no reader pin, no write on its way, and is not needed by
//!    the durable checkpoint or by replay from it (`reuse`).
//! 4. Relocation records are numbered without gaps, in the order in which they enter log and map.

pub(crate) mod batch;
pub(crate) mod fill;
pub(crate) mod flush;
pub(crate) mod footprint;
pub(crate) mod lifetime;
pub(crate) mod reserve;
pub(crate) mod sentinel;
pub(crate) mod summaries;
pub(crate) mod tail;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use lacuna_device::Filled;
use zerocopy::IntoBytes;

use crate::{
    Footprint, Seq, StreamStats,
    addr::{GRAIN, PhysAddr, SegNo},
    format::{
        EntryKind, Footer, Life, Marks, POSITIONS, Place, RECORDS_START, RecordHeader, RecordKind, Salt,
        SegmentHeader, SegmentKind, pack,
    },
    log::batch::{Item, Room, payload_order, place, segments_needed},
    log::fill::{Appended, RecordRoom},
    log::flush::{Buffers, Flushes},
    log::footprint::FreeSegments,
    log::lifetime::{COLDEST, Classes, Expected, MeanBatch, MeanExpected},
    log::reserve::Claim,
    log::summaries::Footers,
    log::tail::{Piece, Pieces, Tail, Tails},
    reuse::Coverage,
    space::{CLASSES_MAX, Space},
    store::PerSegment,
    sync::atomic::Ordering,
};

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Holds the superblocks.
    Superblock,
    Free,
    /// Records are appended to it.
    Open,
    /// Records, some of them perhaps live.
    Sealed,
    /// Holds leaves of the map or records of a checkpoint.
    Checkpoint,
    /// Sealed, with live data that cannot be read; kept out of use until the store is opened anew.
    Damaged,
}

/// A segment as the log sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) state: State,
    /// This life of it; meaningless while free.
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
    /// Last batch accepted when it was opened: its age, for collection.
    pub(crate) opened_seq: Seq,
    /// How long its data is expected to live; see [`Classes`].
    pub(crate) class: u8,
    /// The same, finer; since open.
    pub(crate) expected: MeanExpected,
    /// A flush of everything that began when it was dead has ended.
    pub(crate) death_is_durable: bool,
    /// A durable epitaph tells of all its records.
    pub(crate) has_epitaph: bool,
}

impl Segment {
    /// One that was never used.
    pub(crate) fn unused(state: State) -> Segment {
        Segment {
            state,
            generation: 0,
            epoch: 0,
            opened_seq: Seq(0),
            class: COLDEST,
            expected: MeanExpected::default(),
            death_is_durable: false,
            has_epitaph: false,
        }
    }
}

/// Where records are appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendPoint {
    /// Batches of one class.
    Data(u8),
    Log,
    /// Moved extents of one class.
    Gc(u8),
}

/// A gap before a footer of so many bytes at most is filled, so that the footer and what lies before it are one write.
/// Whole chunks are cut to leave no more.
const FILLED_GAP_BYTES_MAX: usize = 8 << 10;

const APPEND_POINTS: usize = 1 + 2 * CLASSES_MAX;
const _: () = assert!(APPEND_POINTS <= POSITIONS);

impl AppendPoint {
    fn kind(self) -> SegmentKind {
        match self {
            AppendPoint::Data(_) => SegmentKind::Data,
            AppendPoint::Log => SegmentKind::Log,
            AppendPoint::Gc(_) => SegmentKind::Gc,
        }
    }

    fn index(self) -> usize {
        match self {
            AppendPoint::Log => 0,
            AppendPoint::Data(class) => 1 + usize::from(class),
            AppendPoint::Gc(class) => 1 + CLASSES_MAX + usize::from(class),
        }
    }

    fn class(self) -> u8 {
        match self {
            AppendPoint::Data(class) | AppendPoint::Gc(class) => class,
            AppendPoint::Log => COLDEST,
        }
    }

    /// Whether batches go there.
    pub(crate) fn is_fresh(self) -> bool {
        !matches!(self, AppendPoint::Gc(_))
    }

    pub(crate) fn all() -> impl Iterator<Item = AppendPoint> {
        [AppendPoint::Log].into_iter().chain(AppendPoint::data()).chain(AppendPoint::gc())
    }

    /// All append points for batches of data.
    pub(crate) fn data() -> impl Iterator<Item = AppendPoint> {
        (0..CLASSES_MAX as u8).map(AppendPoint::Data)
    }

    /// All append points for moved extents.
    pub(crate) fn gc() -> impl Iterator<Item = AppendPoint> {
        (0..CLASSES_MAX as u8).map(AppendPoint::Gc)
    }
}

/// A piece on its way to the device.
pub(crate) struct DeviceWrite {
    pub(crate) id: u64,
    pub(crate) segment: SegNo,
    pub(crate) point: AppendPoint,
    pub(crate) piece: Piece,
}

/// Writes handed out that have not come back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InFlight {
    pub(crate) writes: usize,
    pub(crate) bytes: usize,
}

impl InFlight {
    fn has_ended(&mut self, write: &DeviceWrite) {
        self.writes -= 1;
        self.bytes -= write.piece.len;
    }
}

/// Traffic since open; see [`crate::Stats`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) data: StreamStats,
    pub(crate) log: StreamStats,
    pub(crate) gc_bytes: u64,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) prepared_bytes: u64,
    pub(crate) flushes: u64,
    pub(crate) gc_segments: u64,
    pub(crate) epitaphs: u64,
    pub(crate) checkpoints: u64,
    pub(crate) replayed_batches: u64,
    pub(crate) corrupt_chunks: u64,
}

impl Counters {
    /// A batch with `host_bytes` of data was accepted at `point`.
    pub(crate) fn note_batch(&mut self, point: AppendPoint, host_bytes: u64) {
        let stream = if point == AppendPoint::Log { &mut self.log } else { &mut self.data };
        stream.batches += 1;
        stream.host_bytes += host_bytes;
    }
}

/// The largest weight of a map that a recovery could bring back: that of any state since the last
/// flush, because an unflushed trim may be undone by a power cut; and two more for each item since, because
/// the relocations of the fragments that it left may survive the batch that cut. So may one that cut itself.
#[derive(Debug, Default)]
pub(crate) struct Peak {
    flushed: Since,
    /// Of each flush that is led, oldest first.
    began: VecDeque<Since>,
}

/// The same, since some moment.
#[derive(Clone, Copy, Debug, Default)]
struct Since {
    weight: u64,
    cuts: u64,
}

impl Peak {
    fn all(&mut self) -> impl Iterator<Item = &mut Since> {
        [&mut self.flushed].into_iter().chain(&mut self.began)
    }

    pub(crate) fn note(&mut self, weight: u64) {
        self.all().for_each(|since| since.weight = since.weight.max(weight));
    }

    /// A batch of `items` was accepted. Each has two ends, at which it may have cut an extent.
    pub(crate) fn charge(&mut self, items: u64) {
        self.all().for_each(|since| since.cuts += 2 * items);
    }

    /// An extent was cut to be moved.
    pub(crate) fn note_cut(&mut self) {
        self.all().for_each(|since| since.cuts += 1);
    }

    pub(crate) fn flush_begins(&mut self, weight: u64) {
        self.began.push_back(Since { weight, cuts: 0 });
    }

    /// The oldest flush has ended.
    pub(crate) fn flushed(&mut self) {
        self.flushed = self.began.pop_front().expect("it began");
    }

    pub(crate) fn weight(&self) -> u64 {
        self.flushed.weight + self.flushed.cuts
    }

    /// The weight after a batch of `items`, which makes that of the map `weight`.
    pub(crate) fn weight_after(&self, items: u64, weight: u64) -> u64 {
        self.flushed.weight.max(weight) + self.flushed.cuts + 2 * items
    }
}

/// Whether segments are emptied at opening (`regain`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Regaining {
    No,
    /// The step has not opened a segment.
    MayOpen,
    HasOpened,
}

/// See the module documentation.
pub(crate) struct Log {
    pub(crate) space: Space,
    pub(crate) salt: Salt,
    pub(crate) epoch: u64,
    pub(crate) generation_next: u64,
    /// Last batch accepted.
    pub(crate) last_seq: Seq,
    /// Every batch up to this one is durable.
    pub(crate) flushed_seq: Seq,
    /// Last relocation record appended.
    pub(crate) last_move: Seq,
    /// Every relocation up to this one is durable.
    pub(crate) flushed_move: Seq,
    pub(crate) segments: Vec<Segment>,
    /// The segment that is being collected; only the holder of `maintenance` changes it.
    pub(crate) victim: Option<SegNo>,
    /// About how many dead segments wait for nothing but a flush. Only a hint: they die unnoticed as well.
    pub(crate) coming: usize,
    /// Changed only with `maintenance` held.
    pub(crate) regaining: Regaining,
    /// Number of damaged segments.
    pub(crate) damaged: usize,
    pub(crate) free: FreeSegments,
    /// How much of the device to use.
    pub(crate) footprint: Footprint,
    /// Segments beyond which writers pay for what they add (`footprint`).
    pub(crate) limit: usize,
    open: [Option<SegNo>; APPEND_POINTS],
    /// Of the open segments.
    footers: [Footer; APPEND_POINTS],
    /// Of sealed ones.
    pub(crate) kept_footers: Footers,
    /// Of segments whose bytes are not all on the device.
    tails: Tails,
    /// Frozen pieces that nobody has begun to write; some of them may not be filled yet.
    pending: VecDeque<DeviceWrite>,
    /// Memory that pieces are made in.
    pub(crate) buffers: Arc<Buffers>,
    /// Writes handed out or pending, by id.
    outstanding: BTreeSet<u64>,
    /// Bytes of those; what failed stays.
    outstanding_bytes: usize,
    write_next: u64,
    in_flight: InFlight,
    pub(crate) flushes: Flushes,
    /// The first failed write or sync.
    pub(crate) poison: Option<String>,
    /// The same, until somebody has reported it.
    pub(crate) failure: Option<lacuna_device::Error>,
    /// What the durable checkpoint covers.
    pub(crate) coverage: Coverage,
    /// Segments that the durable checkpoint refers to for its map, or that hold epitaphs since, sorted.
    pub(crate) root_segments: Vec<SegNo>,
    /// Segments that hold leaves or records of checkpoints.
    pub(crate) map_segments: usize,
    /// Those among them that the checkpoint being written has taken.
    pub(crate) checkpoint_taken: usize,
    /// Where the next record of the map goes; only the holder of `maintenance` moves it.
    pub(crate) map_position: Option<Place>,
    /// What is live, bookkeeping included, in bytes; see [`Space::cost`]. As of the last batch.
    pub(crate) live_cost: u64,
    /// Bytes appended since the durable checkpoint began.
    pub(crate) bytes_since_checkpoint: u64,
    /// Bytes of epitaphs since the durable checkpoint.
    pub(crate) epitaph_bytes: u64,
    pub(crate) peak: Peak,
    pub(crate) mean_batch: MeanBatch,
    pub(crate) counters: Counters,
}

impl Log {
    /// A log whose segments are as recovery found them, with nothing open.
    pub(crate) fn new(space: Space, salt: Salt, epoch: u64, last_seq: Seq, segments: Vec<Segment>) -> Log {
        let free =
            (0..segments.len() as u32).map(SegNo).filter(|no| segments[no.0 as usize].state == State::Free);
        let damaged = segments.iter().filter(|segment| segment.state == State::Damaged).count();
        let map_segments = segments.iter().filter(|segment| segment.state == State::Checkpoint).count();
        Log {
            space,
            salt,
            epoch,
            generation_next: 1,
            last_seq,
            flushed_seq: last_seq,
            last_move: Seq(0),
            flushed_move: Seq(0),
            free: FreeSegments::new(free, |no| segments[no.0 as usize].generation > 0),
            footprint: Footprint::Whole,
            limit: space.segments,
            segments,
            victim: None,
            coming: 0,
            regaining: Regaining::No,
            damaged,
            open: [None; APPEND_POINTS],
            footers: Default::default(),
            kept_footers: Footers::default(),
            tails: Tails::new(space.segments),
            pending: VecDeque::new(),
            buffers: Arc::new(Buffers::new(space)),
            outstanding: BTreeSet::new(),
            outstanding_bytes: 0,
            write_next: 0,
            in_flight: InFlight::default(),
            flushes: Flushes::default(),
            poison: None,
            failure: None,
            coverage: Coverage::default(),
            root_segments: Vec::new(),
            map_segments,
            checkpoint_taken: 0,
            map_position: None,
            live_cost: 0,
            bytes_since_checkpoint: 0,
            epitaph_bytes: 0,
            peak: Peak::default(),
            mean_batch: MeanBatch::default(),
            counters: Counters::default(),
        }
    }

    pub(crate) fn segment(&self, segment: SegNo) -> &Segment {
        &self.segments[segment.0 as usize]
    }

    pub(crate) fn set_state(&mut self, segment: SegNo, state: State) {
        self.segments[segment.0 as usize].state = state;
    }

    /// Segments in `state`.
    pub(crate) fn in_state(&self, state: State) -> impl Iterator<Item = SegNo> + '_ {
        let numbered = self.segments.iter().enumerate();
        numbered.filter(move |(_, segment)| segment.state == state).map(|(no, _)| SegNo(no as u32))
    }

    /// There are as many segments as `space` says now, the new ones free (`grow`).
    pub(crate) fn grow(&mut self, space: Space) {
        let new = self.segments.len() as u32..space.segments as u32;
        self.segments.resize(space.segments, Segment::unused(State::Free));
        self.tails.grow(space.segments);
        self.free.grow(new.map(SegNo));
        self.space = space;
        self.move_limit();
    }

    /// Takes a free segment into a new life. The caller has made sure that there is one to take (`reserve`).
    pub(crate) fn take_free(&mut self, state: State, claim: Claim) -> Option<Life> {
        let no = self.free.take()?;
        let life = Life { segment: no, generation: self.generation_next, epoch: self.epoch };
        self.generation_next += 1;
        self.map_segments += usize::from(state == State::Checkpoint);
        let (left, kept) = (self.free.len(), self.left_by(claim));
        assert!(left >= kept, "the reserve: {claim:?} leaves {left} free segments, and must leave {kept}");
        let segment = &mut self.segments[no.0 as usize];
        assert_eq!(segment.state, State::Free, "invariant 3: segment {} on the free list", no.0);
        let Life { generation, epoch, .. } = life;
        *segment = Segment { generation, epoch, opened_seq: self.last_seq, ..Segment::unused(state) };
        Some(life)
    }

    /// Puts a segment back on the free list (invariant 3 is the caller's to show).
    pub(crate) fn give_back(&mut self, segment: SegNo) {
        assert_ne!(self.segment(segment).state, State::Free, "segment {} freed twice", segment.0);
        assert!(
            self.tails.get(segment).is_none(),
            "invariant 3: writes to segment {} on their way",
            segment.0
        );
        self.map_segments -= usize::from(self.segment(segment).state == State::Checkpoint);
        self.victim = self.victim.filter(|victim| *victim != segment);
        self.coming = self.coming.saturating_sub(1);
        self.kept_footers.forget(segment);
        self.set_state(segment, State::Free);
        self.free.give_back(segment);
    }

    /// The classes of data, with `live_bytes` in the store.
    pub(crate) fn classes(&self, live_bytes: u64) -> Classes {
        Classes::new(self.space.classes(), self.mean_batch.turnover(live_bytes))
    }

    /// What is expected of the data in a segment.
    pub(crate) fn expected(&self, segment: SegNo) -> Expected {
        let Segment { class, expected, .. } = self.segment(segment);
        expected.or_of(*class)
    }

    /// That much is expected of `items` items that were appended at `point` just now.
    pub(crate) fn note_expected(&mut self, point: AppendPoint, expected: Expected, items: usize) {
        if let Some(segment) = self.open[point.index()] {
            self.segments[segment.0 as usize].expected.note(expected, items);
        }
    }

    /// Life of a segment that is not free.
    pub(crate) fn life(&self, segment: SegNo) -> Life {
        let Segment { generation, epoch, .. } = *self.segment(segment);
        Life { segment, generation, epoch }
    }

    /// What is left of the segment that is open at `point`.
    pub(crate) fn open_room(&self, point: AppendPoint) -> Option<Room> {
        let Place { offset, .. } = self.position(point)?;
        Some(Room::new(self.space, offset as usize, self.footers[point.index()].body_bytes()))
    }

    /// Where the next record of `point` would go.
    fn position(&self, point: AppendPoint) -> Option<Place> {
        let segment = self.open[point.index()]?;
        let offset = self.tails.get(segment)?.append_offset() as u32;
        Some(Place { segment, generation: self.segment(segment).generation, offset })
    }

    /// Where the next record of each append point would go.
    pub(crate) fn positions(&self) -> [Option<Place>; POSITIONS] {
        let mut positions = [None; POSITIONS];
        for point in AppendPoint::all() {
            positions[point.index()] = self.position(point);
        }
        positions
    }

    /// What is durable.
    pub(crate) fn durable(&self) -> Marks {
        Marks { batches: self.flushed_seq, moves: self.flushed_move }
    }

    /// Free segments that `items` need at `point`.
    pub(crate) fn segments_needed(&self, point: AppendPoint, items: &[Item<'_>]) -> usize {
        segments_needed(items, self.open_room(point), self.space)
    }

    /// Bytes that still fit behind the append offset of `point`.
    pub(crate) fn room(&self, point: AppendPoint) -> usize {
        self.open_room(point).map_or(0, |room| room.bytes())
    }

    /// Whether sealed segments have bytes on their way to the device.
    pub(crate) fn sealed_tails(&self) -> bool {
        self.in_state(State::Sealed).any(|segment| !self.is_written(segment))
    }

    /// Whether all of a segment's bytes are on the device.
    pub(crate) fn is_written(&self, segment: SegNo) -> bool {
        self.tails.get(segment).is_none()
    }

    /// What of the `len` bytes at `offset` of a segment is in memory; see [`Tail::read`].
    pub(crate) fn read(&self, segment: SegNo, offset: usize, len: usize) -> Option<(usize, Vec<Filled>)> {
        self.tails.get(segment).map_or(Some((len, Vec::new())), |tail| tail.read(offset, len))
    }

    /// Appends `items` as records of `kind`. Returns where the payload of each lies, and the room that the caller
    /// has to fill without the lock ([`crate::store::Store::fill`]), whatever happens. A batch is the last one
    /// accepted; relocation records are numbered here, one by one (invariant 4). Opens segments as needed;
    /// the caller has made sure that there are enough.
    pub(crate) fn append(
        &mut self,
        point: AppendPoint,
        kind: RecordKind,
        items: &[Item<'_>],
        written: &PerSegment,
    ) -> Appended {
        let mut appended = Appended::new(self.salt, items.len());
        let (mut rest, mut part) = (items, 0);
        while !rest.is_empty() {
            let Some(found) = self.open_room(point).and_then(|room| place(rest, room)) else {
                self.reopen(point, written);
                continue;
            };
            let Place { segment, offset, .. } = self.position(point).expect("a part was placed in it");
            let (now, later) = rest.split_at(found.items);
            rest = later;
            let is_move = kind == RecordKind::Relocation;
            if is_move {
                self.last_move = self.last_move.next();
            }
            // Where the payload lies is not in there.
            let body = pack(now.iter().map(|item| item.entry(PhysAddr { segment, grain: 0 })));
            let header = RecordHeader {
                kind,
                last_part: rest.is_empty() || is_move,
                is_packed: true,
                life: self.life(segment),
                seq: if is_move { self.last_move } else { self.last_seq },
                flushed_seq: if is_move { self.flushed_move } else { self.flushed_seq },
                part: if is_move { 0 } else { part },
                offset,
                body_bytes: body.len() as u32,
                total_bytes: found.end as u32 - offset,
            };
            self.append_record(point, (header, body), now, found.payload, &mut appended);
            part += 1;
        }
        appended.has_pending = self.has_pending();
        appended
    }

    fn append_record(
        &mut self,
        point: AppendPoint,
        (header, body): (RecordHeader, Vec<u8>),
        items: &[Item<'_>],
        payload: usize,
        appended: &mut Appended,
    ) {
        let Life { segment, .. } = header.life;
        let first = appended.placed.len();
        appended.placed.resize(first + items.len(), PhysAddr { segment, grain: 0 });
        let placed = &mut appended.placed[first..];
        let mut offset = payload;
        for index in payload_order(items) {
            if items[index].kind != EntryKind::Trim {
                placed[index].grain = (offset / GRAIN) as u32;
                offset += items[index].payload.len();
            }
        }
        let end = (header.offset + header.total_bytes) as usize;
        assert_eq!(offset, end, "payload does not end where it was placed");
        self.footers[point.index()].note(&header, &body);
        let mut pieces = Pieces::new(&self.buffers, self.outstanding_bytes);
        let mut parts = Vec::with_capacity(1);
        let len = header.total_bytes as usize;
        self.tails.of(segment).reserve(len, &mut pieces, |part| parts.push(part));
        appended.records.push(RecordRoom { header, body, items: first..first + items.len(), payload, parts });
        self.bytes_since_checkpoint += u64::from(header.total_bytes);
        let frozen = pieces.frozen;
        self.queue(segment, point, frozen);
    }

    /// Seals the segment that is open at `point`, if any, with its footer at the end, and opens a fresh one.
    fn reopen(&mut self, point: AppendPoint, written: &PerSegment) {
        if let Some(segment) = self.open[point.index()].take() {
            let footer = std::mem::take(&mut self.footers[point.index()]).seal(self.salt, self.life(segment));
            let tail = self.tails.of(segment);
            let mut pieces = Pieces::new(&self.buffers, self.outstanding_bytes);
            let start = self.space.segment_bytes - footer.len();
            if start - tail.append_offset() > FILLED_GAP_BYTES_MAX {
                tail.pad_and_freeze(&mut pieces);
                tail.skip_to(start / self.space.block_bytes * self.space.block_bytes);
            }
            tail.append_zeros(start, &mut pieces);
            tail.append(&footer, &mut pieces);
            tail.pad_and_freeze(&mut pieces);
            let frozen = pieces.frozen;
            self.queue(segment, point, frozen);
            self.kept_footers.keep(self.life(segment), &footer);
            self.set_state(segment, State::Sealed);
        }
        let claim = match (point.is_fresh(), self.regaining) {
            (true, _) => Claim::Fresh,
            (false, Regaining::No) => Claim::Collection,
            (false, step) => {
                assert_eq!(step, Regaining::MayOpen, "a step opens one segment");
                self.begin_epoch();
                Claim::Regain
            }
        };
        let life = self.take_free(State::Open, claim).expect("admission left too few free segments");
        written[life.segment.0 as usize].store(0, Ordering::Release);
        let Life { segment, generation, epoch } = life;
        self.segments[segment.0 as usize].class = point.class();
        let header = SegmentHeader {
            kind: point.kind(),
            segment,
            generation,
            epoch,
            class: point.class(),
            opened_seq: self.last_seq,
            durable: self.durable(),
        };
        let mut tail = Tail::new(self.space.segment_bytes, self.space.block_bytes);
        let mut pieces = Pieces::new(&self.buffers, self.outstanding_bytes);
        tail.append(header.to_raw(self.salt).as_bytes(), &mut pieces);
        tail.append_zeros(RECORDS_START, &mut pieces);
        assert!(pieces.frozen.is_empty(), "a segment header fills no piece");
        self.tails.insert(segment, tail);
        self.open[point.index()] = Some(segment);
    }

    /// What is opened from here on counts once the superblock names the new epoch (`regain`).
    fn begin_epoch(&mut self) {
        assert!(self.open.iter().all(Option::is_none), "a segment of the old epoch is open");
        self.regaining = Regaining::HasOpened;
        self.epoch += 1;
        self.map_position = None;
    }

    fn queue(&mut self, segment: SegNo, point: AppendPoint, pieces: Vec<Piece>) {
        for piece in pieces {
            let id = self.write_next;
            self.write_next += 1;
            self.outstanding.insert(id);
            self.outstanding_bytes += piece.len;
            self.pending.push_back(DeviceWrite { id, segment, point, piece });
        }
    }

    /// Everything up to `durable` is durable, and so are the deaths of `dead`.
    pub(crate) fn note_flushed(&mut self, durable: Marks, dead: &[SegNo]) {
        (self.flushed_seq, self.flushed_move) = (durable.batches, durable.moves);
        self.peak.flushed();
        for segment in dead {
            self.segments[segment.0 as usize].death_is_durable = true;
        }
    }

    /// Hands all that was appended at `point` out to be written.
    pub(crate) fn freeze(&mut self, point: AppendPoint) {
        if let Some(segment) = self.open[point.index()] {
            let mut pieces = Pieces::new(&self.buffers, self.outstanding_bytes);
            self.tails.of(segment).pad_and_freeze(&mut pieces);
            let frozen = pieces.frozen;
            self.queue(segment, point, frozen);
        }
    }

    /// The last part of a frozen piece is filled, the one at `at`: the piece can be written.
    pub(crate) fn filled(&mut self, segment: SegNo, at: usize) {
        let (start, bytes) = self.tails.of(segment).filled(at);
        let is_it = |write: &&mut DeviceWrite| write.segment == segment && write.piece.start == start;
        let write = self.pending.iter_mut().find(is_it).expect("a piece is pending until it is filled");
        assert!(write.piece.bytes.replace(bytes).is_none(), "a piece was filled twice");
    }

    /// Place in `pending` of the first write that can be begun.
    fn ready(&self) -> Option<usize> {
        self.pending.iter().position(|write| write.piece.bytes.is_some())
    }

    /// Hands out a write with an id below `mark` that nobody has begun yet, as [`Log::next_write`] does.
    pub(crate) fn next_write_below(&mut self, mark: u64) -> Option<DeviceWrite> {
        // In order of their ids, so it is the first or none.
        self.ready().filter(|index| self.pending[*index].id < mark).and_then(|_| self.next_write())
    }

    /// Whether a write waits to be begun. One that is not filled yet waits for who fills it, who then
    /// begins it.
    pub(crate) fn has_pending(&self) -> bool {
        self.ready().is_some()
    }

    /// Writes handed out that have not come back.
    pub(crate) fn in_flight(&self) -> InFlight {
        self.in_flight
    }

    /// Hands out a write that nobody has begun yet. It comes back in [`Log::have_ended`], then in [`Log::complete`] or
    /// [`Log::fail`].
    pub(crate) fn next_write(&mut self) -> Option<DeviceWrite> {
        let write = self.pending.remove(self.ready()?)?;
        self.in_flight.writes += 1;
        self.in_flight.bytes += write.piece.len;
        Some(write)
    }

    /// Id of the next write that will be handed out; all earlier ones have lower ids.
    pub(crate) fn write_mark(&self) -> u64 {
        self.write_next
    }

    /// Whether a write with an id below `mark` is not on the device yet.
    pub(crate) fn is_writing_below(&self, mark: u64) -> bool {
        self.outstanding.first().is_some_and(|id| *id < mark)
    }

    /// `writes` are not on their way any more.
    pub(crate) fn have_ended(&mut self, writes: &[DeviceWrite]) {
        writes.iter().for_each(|write| self.in_flight.has_ended(write));
    }

    /// `write`, which has ended, is on the device.
    pub(crate) fn complete(&mut self, write: &DeviceWrite, written: &PerSegment) {
        assert!(self.outstanding.remove(&write.id), "write completed twice");
        self.outstanding_bytes -= write.piece.len;
        let bytes = write.piece.len as u64;
        match write.point {
            AppendPoint::Data(_) => self.counters.data.written_bytes += bytes,
            AppendPoint::Log => self.counters.log.written_bytes += bytes,
            AppendPoint::Gc(_) => self.counters.gc_bytes += bytes,
        }
        let tail = self.tails.of(write.segment);
        tail.complete(write.piece.start);
        written[write.segment.0 as usize].store(tail.written() as u32, Ordering::Release);
        if tail.is_written() && self.segment(write.segment).state != State::Open {
            self.tails.remove(write.segment);
        }
    }

    /// Nothing is begun any more, for a `reason` that is no error of the device.
    pub(crate) fn stop(&mut self, reason: &str) {
        self.poison.get_or_insert_with(|| reason.to_owned());
        self.flushes.wake_all();
    }

    /// A sync, or a write that was handed out, has failed: what is on the device is unknown from here
    /// on. The write stays outstanding for ever.
    pub(crate) fn fail(&mut self, error: lacuna_device::Error) {
        if self.poison.is_none() {
            self.poison = Some(error.to_string());
            self.failure = Some(error);
        }
        self.flushes.wake_all();
    }
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use super::*;
    use crate::{Lba, Op, Stream, store::test_store};

    /// Writes until a segment is sealed; into how many pieces it was cut.
    fn pieces_of_a_segment(page_bytes: usize) -> u64 {
        let store = test_store::store(64 << 20, Some(1 << 20));
        let data = vec![7; page_bytes];
        let before = store.volume.device().stats().writes;
        for page in 0.. {
            if store.log.lock().in_state(State::Sealed).next().is_some() {
                return store.volume.device().stats().writes - before;
            }
            store.write_batch(&[Op::Write { lba: Lba(page * 32), data: &data }], Stream::Data).unwrap();
        }
        unreachable!("a segment is full some time")
    }

    #[test]
    fn a_footer_is_written_with_what_lies_before_it() {
        assert_eq!(pieces_of_a_segment(16 << 10), 4, "pieces of 256 KiB");
        assert_eq!(pieces_of_a_segment(15 << 10), 5, "a gap of 12 KiB is left");
    }
}
