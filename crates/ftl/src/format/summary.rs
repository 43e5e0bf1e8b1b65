//! The summary of a sealed segment: the headers and entries of all its records, repeated in one place. It is a copy: a
//! scan of the segment finds whatever the summary cannot provide. Copies are packed: for each record the header fields
//! that differ from the record before, then its body as it is.

use std::mem::size_of;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::{
    Flaw, Life, RECORD_HEADER_BYTES, RECORDS_START, RecordHeader, RecordKind, Salt, check_counters, seal,
    varint::{self, VARINT_BYTES_MAX},
};
use crate::{
    addr::{SegNo, Seq},
    mutant::{Rule, is_broken},
};

const SUMMARY_MAGIC: u32 = u32::from_le_bytes(*b"LFOP");

/// Last bytes of a segment that has a summary; the copies lie right before it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SummaryRaw {
    pub(super) magic: U32,
    pub(super) crc: U32,
    pub(super) segment: U32,
    pub(super) body_bytes: U32,
    pub(super) generation: U64,
    pub(super) epoch: U64,
    pub(super) records: U32,
    pub(super) reserved: [u8; 28],
}
pub(crate) const SUMMARY_BYTES: usize = size_of::<SummaryRaw>();
const _: () = assert!(SUMMARY_BYTES == 64);
const SUMMARY_CRC_AT: usize = 4;

const SHORT: Flaw = "summary ends within a record";

/// The fields of a packed copy that are present beside the batch or relocation number and the body length. An absent
/// field is as in the record before; an absent part is 0, and an absent offset is where the record before ended.
mod flag {
    pub(super) const LAST_PART: u8 = 1;
    pub(super) const RELOCATION: u8 = 2;
    pub(super) const FLUSHED: u8 = 4;
    pub(super) const PART: u8 = 8;
    pub(super) const OFFSET: u8 = 16;
    pub(super) const TOTAL: u8 = 32;
    pub(super) const ALL: u8 = 63;
}

/// Longest packed copy of a record, its body aside: flags, two numbers of batches, four of less than 33 bits.
pub(crate) const SUMMARY_RECORD_BYTES_MAX: usize = 1 + 2 * VARINT_BYTES_MAX + 4 * 5;

/// The record before a packed copy, from which the copy is coded as a difference.
struct Before {
    seq: u64,
    flushed_seq: u64,
    end: u64,
    total_bytes: u64,
}

impl Before {
    fn first() -> Before {
        Before { seq: 0, flushed_seq: 0, end: RECORDS_START as u64, total_bytes: 0 }
    }

    fn note(&mut self, header: &RecordHeader) {
        *self = Before {
            seq: header.seq.0,
            flushed_seq: header.flushed_seq.0,
            end: u64::from(header.offset) + u64::from(header.total_bytes),
            total_bytes: header.total_bytes.into(),
        };
    }

    /// Appends the copy of a record.
    fn put(&mut self, header: &RecordHeader, body: &[u8], out: &mut Vec<u8>) {
        let optional = [
            (flag::FLUSHED, varint::step(self.flushed_seq, header.flushed_seq.0)),
            (flag::PART, header.part.into()),
            (flag::OFFSET, varint::step(self.end, header.offset.into())),
            (flag::TOTAL, varint::step(self.total_bytes, header.total_bytes.into())),
        ];
        let last_part = if header.last_part { flag::LAST_PART } else { 0 };
        let kind = if header.kind == RecordKind::Relocation { flag::RELOCATION } else { 0 };
        let there = optional.into_iter().filter(|(_, number)| *number != 0);
        out.push(there.clone().fold(last_part | kind, |flags, (flag, _)| flags | flag));
        varint::put(out, varint::step(self.seq, header.seq.0));
        varint::put(out, body.len() as u64);
        there.for_each(|(_, number)| varint::put(out, number));
        out.extend_from_slice(body);
        self.note(header);
    }

    /// Takes the copy of a record of a segment of `segment_bytes` off the front of `rest`.
    fn take(
        &mut self,
        life: Life,
        segment_bytes: usize,
        rest: &mut &[u8],
    ) -> Result<(RecordHeader, Vec<u8>), Flaw> {
        let (flags, behind) = rest.split_first().ok_or(SHORT)?;
        *rest = behind;
        let seq = varint::stepped(self.seq, varint::take(rest)?);
        let body_bytes = varint::take(rest)?;
        let mut optional = |flag| if flags & flag != 0 { varint::take(rest) } else { Ok(0) };
        let flushed_seq = varint::stepped(self.flushed_seq, optional(flag::FLUSHED)?);
        let part = optional(flag::PART)?;
        let offset = varint::stepped(self.end, optional(flag::OFFSET)?);
        let total_bytes = varint::stepped(self.total_bytes, optional(flag::TOTAL)?);
        let (body, behind) =
            usize::try_from(body_bytes).ok().and_then(|len| rest.split_at_checked(len)).ok_or(SHORT)?;
        *rest = behind;
        let narrow = |number| u32::try_from(number).map_err(|_| "record of a bad length, offset or part");
        check_counters(&[seq, flushed_seq])?;
        let header = RecordHeader {
            kind: if flags & flag::RELOCATION != 0 { RecordKind::Relocation } else { RecordKind::Batch },
            last_part: flags & flag::LAST_PART != 0,
            life,
            seq: Seq(seq),
            flushed_seq: Seq(flushed_seq),
            part: narrow(part)?,
            offset: narrow(offset)?,
            body_bytes: narrow(body_bytes)?,
            total_bytes: narrow(total_bytes)?,
        };
        if flags & !flag::ALL != 0 || (header.total_bytes as usize) < RECORD_HEADER_BYTES + body.len() {
            return Err("record with unknown flags or a bad length");
        }
        let end = u64::from(header.offset) + u64::from(header.total_bytes);
        if u64::from(header.offset) < self.end || end > segment_bytes as u64 {
            return Err("record that lies over another one or outside its segment");
        }
        self.note(&header);
        Ok((header, body.to_vec()))
    }
}

/// The summary of an open segment, as it grows.
pub(crate) struct Summary {
    body: Vec<u8>,
    records: u32,
    before: Before,
}

impl Default for Summary {
    fn default() -> Summary {
        Summary { body: Vec::new(), records: 0, before: Before::first() }
    }
}

impl Summary {
    /// Bytes of all copies so far.
    pub(crate) fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// The record with this header and this body was appended.
    pub(crate) fn note(&mut self, header: &RecordHeader, body: &[u8]) {
        self.before.put(header, body, &mut self.body);
        self.records += 1;
    }

    /// The last bytes of the segment.
    pub(crate) fn seal(self, salt: Salt, life: Life) -> Vec<u8> {
        let raw = SummaryRaw {
            magic: SUMMARY_MAGIC.into(),
            crc: 0.into(),
            segment: life.segment.0.into(),
            body_bytes: (self.body.len() as u32).into(),
            generation: life.generation.into(),
            epoch: life.epoch.into(),
            records: self.records.into(),
            reserved: [0; 28],
        };
        let mut bytes = self.body;
        let crc_at = bytes.len() + SUMMARY_CRC_AT;
        bytes.extend_from_slice(raw.as_bytes());
        let crc = seal(salt.0, &bytes, crc_at);
        bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

impl SummaryRaw {
    /// Length of the copies, if this looks like a summary of `life` at all. The checksum is still to be
    /// verified over them and this.
    pub(crate) fn body_bytes(&self, life: Life, segment_bytes: usize) -> Option<usize> {
        let body = self.body_bytes.get() as usize;
        let claimed = self.claimed_life()?;
        let is_its_own = claimed == life || is_broken(Rule::SummaryOfThisLife);
        (is_its_own && body <= segment_bytes - SUMMARY_BYTES).then_some(body)
    }

    /// The life that the summary claims, if it looks like a summary at all.
    pub(crate) fn claimed_life(&self) -> Option<Life> {
        (self.magic.get() == SUMMARY_MAGIC).then(|| Life {
            segment: SegNo(self.segment.get()),
            generation: self.generation.get(),
            epoch: self.epoch.get(),
        })
    }

    /// Verifies the seal over `bytes`, which are the copies and the summary, and returns headers and
    /// bodies of all records as they are in the segment, of `segment_bytes`.
    pub(crate) fn verify(
        &self,
        salt: Salt,
        life: Life,
        segment_bytes: usize,
        bytes: &[u8],
    ) -> Result<Vec<(RecordHeader, Vec<u8>)>, Flaw> {
        let (mut rest, _) = bytes.split_at(bytes.len() - SUMMARY_BYTES);
        let is_sealed = seal(salt.0, bytes, rest.len() + SUMMARY_CRC_AT) == self.crc.get();
        if !is_sealed && !is_broken(Rule::SummaryVerified) {
            return Err("summary checksum does not match");
        }
        if self.reserved != [0; 28] {
            return Err("reserved bytes are not zero");
        }
        let (mut records, mut before) = (Vec::new(), Before::first());
        while !rest.is_empty() {
            records.push(before.take(life, segment_bytes, &mut rest)?);
        }
        if records.len() != self.records.get() as usize {
            return Err("summary of another number of records");
        }
        Ok(records)
    }
}

/// The life in `epoch` to which `bytes`, the body of a retained summary, belong. They are still to be verified. The
/// store has `segments` segments of `segment_bytes`.
pub(crate) fn retained_life(
    bytes: &[u8],
    epoch: u64,
    segments: usize,
    segment_bytes: usize,
) -> Result<Life, Flaw> {
    let (_, raw) = SummaryRaw::read_from_suffix(bytes).map_err(|_| SHORT)?;
    let life = Life { segment: SegNo(raw.segment.get()), generation: raw.generation.get(), epoch };
    check_counters(&[life.generation])?;
    let len = raw.body_bytes(life, segment_bytes).map(|body| body + SUMMARY_BYTES);
    match (life.segment.0 as usize) < segments && len == Some(bytes.len()) {
        true => Ok(life),
        false => Err("retained summary without a summary of its epoch"),
    }
}
