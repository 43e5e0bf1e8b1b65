//! Records of the map, one after the other, into segments of their own.
//!
//! A segment takes leaves, indexes and roots of many checkpoints in turn; each record starts on a
//! block, so nothing that is durable is written again. All of it happens under the maintenance lock, and a
//! record is on the device before anything refers to it.

use lacuna_device::AlignedBuf;
use zerocopy::IntoBytes;

use crate::{
    Result, Seq,
    addr::{GRAIN, SegNo},
    checkpoint::Checkpointer,
    format::{
        LeafAddr, Life, Marks, Position, RECORD_HEADER_BYTES, RecordHeader, RecordKind, RootRef, Salt,
        SegmentHeader, SegmentKind,
    },
    log::{Claim, State},
    map::Leaf,
    space::MAP_RECORD_BYTES,
};

/// See the module documentation.
pub(crate) struct Writer<'a> {
    checkpointer: &'a Checkpointer,
    salt: Salt,
    epoch: u64,
    seq: Seq,
    /// The claim under which it takes segments.
    claim: Claim,
    /// Where the next record goes.
    position: Option<Position>,
    /// Leaves of the record that is being filled, by the caller's number, and where they will lie.
    filling: Vec<(usize, LeafAddr)>,
    body: Vec<u8>,
    /// Records of leaves that were written for a checkpoint.
    records: u32,
}

impl<'a> Writer<'a> {
    /// A writer of records that say that `seq` was the last batch accepted.
    pub(crate) fn new(checkpointer: &'a Checkpointer, seq: Seq, claim: Claim) -> Writer<'a> {
        let log = checkpointer.journal.lock();
        Writer {
            checkpointer,
            salt: checkpointer.volume.salt(),
            epoch: log.epoch(),
            seq,
            claim,
            position: log.checkpoints().position(),
            filling: Vec::new(),
            body: Vec::new(),
            records: 0,
        }
    }

    /// Longest body of a record at the current position.
    fn body_bytes_max(&self) -> usize {
        let segment_bytes = self.checkpointer.volume.space().segment_bytes;
        let left = self.position.map_or(0, |position| segment_bytes - position.offset as usize);
        left.saturating_sub(RECORD_HEADER_BYTES).min(MAP_RECORD_BYTES)
    }

    /// Adds leaf `number` to the record that is being filled. Returns the leaves of the one before,
    /// if that was full; they are on the device now.
    pub(crate) fn push_leaf(&mut self, number: usize, leaf: &Leaf) -> Result<Vec<(usize, LeafAddr)>> {
        let bytes = leaf.bytes();
        let mut written = Vec::new();
        if self.body.len() + bytes.len() > self.body_bytes_max() {
            written = self.finish_leaves()?;
        }
        if bytes.len() > self.body_bytes_max() {
            self.open_segment()?;
        }
        let position = self.position.expect("a segment is open");
        let offset = position.offset as usize + RECORD_HEADER_BYTES + self.body.len();
        self.filling.push((number, LeafAddr::of(bytes, position.segment, offset)));
        self.body.extend_from_slice(bytes);
        self.body.resize(self.body.len().next_multiple_of(GRAIN), 0);
        Ok(written)
    }

    /// Writes the record that is being filled; returns its leaves.
    pub(crate) fn finish_leaves(&mut self) -> Result<Vec<(usize, LeafAddr)>> {
        let body = std::mem::take(&mut self.body);
        if !body.is_empty() {
            self.records += u32::from(self.claim == Claim::Checkpoint);
            self.put(RecordKind::Map, &body, self.records, false)?;
        }
        Ok(std::mem::take(&mut self.filling))
    }

    /// Writes `rows` of `row_bytes` each as records of `kind`; returns where they lie.
    pub(crate) fn put_rows(
        &mut self,
        kind: RecordKind,
        rows: &[u8],
        row_bytes: usize,
    ) -> Result<Vec<Position>> {
        let (mut rest, mut places) = (rows, Vec::new());
        while !rest.is_empty() {
            let fits = self.body_bytes_max() / row_bytes * row_bytes;
            if fits == 0 {
                self.open_segment()?;
                continue;
            }
            let (body, later) = rest.split_at(fits.min(rest.len()));
            rest = later;
            places.extend(self.position);
            self.put(kind, body, places.len() as u32 - 1, rest.is_empty())?;
        }
        Ok(places)
    }

    /// Writes the root; returns where it lies.
    pub(crate) fn put_root(&mut self, body: &[u8]) -> Result<RootRef> {
        if body.len() > self.body_bytes_max() {
            self.open_segment()?;
        }
        let Position { segment, generation, offset } = self.position.expect("a segment is open");
        self.put(RecordKind::Root, body, 0, true)?;
        Ok(RootRef { segment, generation, offset, bytes: (RECORD_HEADER_BYTES + body.len()) as u32 })
    }

    /// Writes the summary `body` as a retained summary; returns the segment that it lies in.
    pub(crate) fn put_retained(&mut self, body: &[u8], durable: Marks) -> Result<SegNo> {
        if body.len() > self.body_bytes_max() {
            self.open_segment()?;
        }
        let Position { segment, .. } = self.position.expect("a segment is open");
        self.put_numbered(RecordKind::RetainedSummary, body, (0, true), durable.moves, durable.batches)?;
        Ok(segment)
    }

    fn put(&mut self, kind: RecordKind, body: &[u8], part: u32, last_part: bool) -> Result<()> {
        self.put_numbered(kind, body, (part, last_part), self.seq, Seq(0))
    }

    fn put_numbered(
        &mut self,
        kind: RecordKind,
        body: &[u8],
        (part, last_part): (u32, bool),
        seq: Seq,
        flushed_seq: Seq,
    ) -> Result<()> {
        let Position { segment, generation, offset } = self.position.expect("a segment is open");
        let header = RecordHeader {
            kind,
            last_part,
            life: Life { segment, generation, epoch: self.epoch },
            seq,
            flushed_seq,
            part,
            offset,
            body_bytes: body.len() as u32,
            total_bytes: (RECORD_HEADER_BYTES + body.len()) as u32,
        };
        self.write(&header.seal(self.salt, body))
    }

    /// Writes `bytes` at the current position, padded to whole blocks.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut buf =
            AlignedBuf::zeroed(bytes.len().next_multiple_of(self.checkpointer.volume.space().block_bytes));
        buf[..bytes.len()].copy_from_slice(bytes);
        let position = self.position.as_mut().expect("a segment is open");
        let at = self.checkpointer.volume.offset(position.segment, position.offset as usize);
        let done = self.checkpointer.volume.device().write_at(at, &buf);
        position.offset += buf.len() as u32;
        let mut log = self.checkpointer.journal.lock();
        log.counters_mut().checkpoint_bytes += buf.len() as u64;
        log.checkpoints_mut().set_position(Some(*position));
        done.map_err(|error| self.checkpointer.journal.poison(&mut log, error))
    }

    fn open_segment(&mut self) -> Result<()> {
        assert!(self.filling.is_empty(), "a record lies in one segment");
        let life = {
            let mut log = self.checkpointer.journal.lock();
            if self.claim != Claim::Checkpoint && !log.may_write_back() {
                return Err(self.checkpointer.journal.full(&self.checkpointer.map.read(), log.limits()));
            }
            let Some(life) = log.take_free(State::Checkpoint, self.claim) else {
                return Err(self.checkpointer.journal.full(&self.checkpointer.map.read(), log.limits()));
            };
            if self.claim == Claim::Checkpoint {
                log.checkpoints_mut().note_taken();
            }
            life
        };
        let Life { segment, generation, epoch } = life;
        self.position = Some(Position { segment, generation, offset: 0 });
        let (kind, durable) = (SegmentKind::Checkpoint, self.checkpointer.journal.lock().durable());
        let header =
            SegmentHeader { kind, segment, generation, epoch, class: 0, opened_seq: self.seq, durable };
        let start = self.checkpointer.volume.space().checkpoint_start();
        let mut bytes = vec![0; start];
        let header = header.to_raw(self.salt);
        bytes[..header.as_bytes().len()].copy_from_slice(header.as_bytes());
        self.write(&bytes)
    }
}
