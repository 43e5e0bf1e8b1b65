//! The head of a record.

use std::mem::size_of;

use lacuna_crc::{crc32c_append, crc32c_combine};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{Flaw, Life, Marks, Salt, check_counters, seal};
use crate::{
    addr::{SegNo, Seq},
    mutant::{Rule, is_broken},
};

const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"LREC");

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RecordHeaderRaw {
    pub(super) magic: U32,
    pub(super) crc: U32,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) space: U16,
    pub(super) segment: U32,
    pub(super) generation: U64,
    pub(super) epoch: U64,
    pub(super) seq: U64,
    pub(super) flushed_seq: U64,
    pub(super) part: U32,
    pub(super) offset: U32,
    pub(super) body_bytes: U32,
    pub(super) total_bytes: U32,
}
pub(crate) const RECORD_HEADER_BYTES: usize = size_of::<RecordHeaderRaw>();
const _: () = assert!(RECORD_HEADER_BYTES == 64);

const CRC_AT: usize = std::mem::offset_of!(RecordHeaderRaw, crc);
/// Where the checksum in a record's header ends.
pub(crate) const RECORD_CRC_END: usize = CRC_AT + 4;

const FLAG_LAST_PART: u8 = 1;
const FLAG_PACKED: u8 = 2;

/// The kind of a record's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// Part of a batch: entries, then their payload.
    Batch,
    /// Extents moved by garbage collection: entries, then their payload.
    Relocation,
    /// Leaves of the map.
    Map,
    /// Root of a checkpoint.
    Root,
    /// Part of a checkpoint's index of all leaves.
    Index,
    /// Part of a checkpoint's list of the counters of segments.
    Segments,
    /// The summary of a segment that may have been used again since; see [`crate::checkpoint::retained`].
    RetainedSummary,
}

impl RecordKind {
    fn to_raw(self) -> u8 {
        match self {
            RecordKind::Batch => 1,
            RecordKind::Relocation => 2,
            RecordKind::Map => 3,
            RecordKind::Root => 4,
            RecordKind::Index => 5,
            RecordKind::Segments => 6,
            RecordKind::RetainedSummary => 7,
        }
    }

    fn from_raw(raw: u8) -> Option<RecordKind> {
        let batches = [RecordKind::Batch, RecordKind::Relocation];
        let checkpoints = [RecordKind::Root, RecordKind::Index, RecordKind::Segments];
        let others = [RecordKind::Map, RecordKind::RetainedSummary].into_iter().chain(checkpoints);
        batches.into_iter().chain(others).find(|kind| kind.to_raw() == raw)
    }

    /// Flags of all records of this kind: packed entries are marked.
    fn flags(self) -> u8 {
        match self {
            RecordKind::Batch | RecordKind::Relocation => FLAG_PACKED,
            _ => 0,
        }
    }
}

/// Head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    /// No further part of this batch follows.
    pub(crate) last_part: bool,
    pub(crate) life: Life,
    /// The batch's number; of relocations the record's own, in a sequence of theirs; of retained summaries the
    /// relocation up to which all were durable; of other records of the map the last batch accepted.
    pub(crate) seq: Seq,
    /// Every batch, of relocations every relocation, up to this one was durable when the record was
    /// made; 0 in records of the map but retained summaries. See [`RecordHeader::durable`].
    pub(crate) flushed_seq: Seq,
    /// Index of the part in its batch or checkpoint.
    pub(crate) part: u32,
    /// Own offset in the segment.
    pub(crate) offset: u32,
    /// Bytes of entries after the header, under the header's checksum.
    pub(crate) body_bytes: u32,
    /// Whole record: header, body, alignment, payload.
    pub(crate) total_bytes: u32,
}

impl RecordHeader {
    /// The marks that the record carries: what was durable when it was made.
    pub(crate) fn durable(&self) -> Marks {
        match self.kind {
            RecordKind::Batch => Marks { batches: self.flushed_seq, moves: Seq(0) },
            RecordKind::Relocation => Marks { batches: Seq(0), moves: self.flushed_seq },
            RecordKind::RetainedSummary => Marks { batches: self.flushed_seq, moves: self.seq },
            _ => Marks::default(),
        }
    }

    fn flags(&self) -> u8 {
        let last_part = if self.last_part { FLAG_LAST_PART } else { 0 };
        last_part | self.kind.flags()
    }

    /// Header and body as written, sealed. `body` is `body_bytes` long.
    pub(crate) fn seal(&self, salt: Salt, body: &[u8]) -> Vec<u8> {
        assert_eq!(body.len(), self.body_bytes as usize, "body of another length than announced");
        let raw = RecordHeaderRaw {
            magic: RECORD_MAGIC.into(),
            crc: 0.into(),
            kind: self.kind.to_raw(),
            flags: self.flags(),
            space: 0.into(),
            segment: self.life.segment.0.into(),
            generation: self.life.generation.into(),
            epoch: self.life.epoch.into(),
            seq: self.seq.0.into(),
            flushed_seq: self.flushed_seq.0.into(),
            part: self.part.into(),
            offset: self.offset.into(),
            body_bytes: self.body_bytes.into(),
            total_bytes: self.total_bytes.into(),
        };
        let mut bytes = Vec::with_capacity(RECORD_HEADER_BYTES + body.len());
        bytes.extend_from_slice(raw.as_bytes());
        bytes.extend_from_slice(body);
        let crc = seal(salt.0, &bytes, CRC_AT);
        bytes[CRC_AT..RECORD_CRC_END].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

impl RecordHeaderRaw {
    /// The life that the header claims, if it looks like a record at all.
    pub(crate) fn claimed_life(&self) -> Option<Life> {
        (self.magic.get() == RECORD_MAGIC).then(|| Life {
            segment: SegNo(self.segment.get()),
            generation: self.generation.get(),
            epoch: self.epoch.get(),
        })
    }

    /// Whether `bytes` begin as a record does.
    pub(crate) fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(&RECORD_MAGIC.to_le_bytes())
    }

    /// Length of header and body, if this looks like a record of `life` at `offset` at all. The
    /// checksum is still to be verified over that many bytes.
    pub(crate) fn sealed_bytes(&self, life: Life, offset: usize, segment_bytes: usize) -> Option<usize> {
        let body = self.body_bytes.get() as usize;
        let total = self.total_bytes.get() as usize;
        let plausible = self.magic.get() == RECORD_MAGIC
            && self.segment.get() == life.segment.0
            && self.generation.get() == life.generation
            && (self.epoch.get() == life.epoch || is_broken(Rule::EpochCounts))
            && self.offset.get() as usize == offset
            && RECORD_HEADER_BYTES + body <= total
            && total <= segment_bytes - offset;
        plausible.then_some(RECORD_HEADER_BYTES + body)
    }

    /// Verifies the seal over `bytes`, which are header and body.
    pub(crate) fn verify(&self, salt: Salt, life: Life, bytes: &[u8]) -> Result<RecordHeader, Flaw> {
        match seal(salt.0, bytes, CRC_AT) == self.crc.get() {
            true => self.parse(life),
            false => Err("record checksum does not match"),
        }
    }

    /// The checksum that a stream of bytes has up to the end of `sealed` bytes from the start of the header, if they are
    /// sealed. Up to [`RECORD_CRC_END`] it is `before`.
    pub(crate) fn crc_at_end(&self, salt: Salt, before: u32, sealed: usize) -> u32 {
        let start = crc32c_append(crc32c_append(salt.0, &self.as_bytes()[..CRC_AT]), &[0; 4]);
        // Checksums are linear: what the sealed bytes and the stream have in common cancels out.
        crc32c_combine(start ^ before, self.crc.get(), (sealed - RECORD_CRC_END) as u64)
    }

    /// What it says, if that can be. The seal is still to be verified.
    pub(crate) fn parse(&self, life: Life) -> Result<RecordHeader, Flaw> {
        let kind = RecordKind::from_raw(self.kind).ok_or("unknown kind of record")?;
        if self.space.get() != 0 || self.flags & !FLAG_LAST_PART != kind.flags() {
            return Err("record of an unknown space or with unknown flags");
        }
        check_counters(&[self.seq.get(), self.flushed_seq.get()])?;
        Ok(RecordHeader {
            kind,
            last_part: self.flags & FLAG_LAST_PART != 0,
            life,
            seq: Seq(self.seq.get()),
            flushed_seq: Seq(self.flushed_seq.get()),
            part: self.part.get(),
            offset: self.offset.get(),
            body_bytes: self.body_bytes.get(),
            total_bytes: self.total_bytes.get(),
        })
    }
}
