//! The footer of a sealed segment: what the headers and entries of all its records say, once more and
//! in one place. It is a copy: what it cannot give is found by a scan.

use std::mem::size_of;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{
    ENTRY_BYTES, Entry, EntryKind, EntryRaw, FLAG_LAST_PART, Flaw, Life, RECORD_HEADER_BYTES, RecordHeader,
    RecordKind, Salt, seal,
};
use crate::{
    addr::{SegNo, Seq},
    mutant::{Rule, is_broken},
    space::Space,
};

const FOOTER_MAGIC: u32 = u32::from_le_bytes(*b"LFOT");

/// Last bytes of a segment that has a footer; the copies lie right before it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct FooterRaw {
    pub(super) magic: U32,
    pub(super) crc: U32,
    pub(super) segment: U32,
    pub(super) body_bytes: U32,
    pub(super) generation: U64,
    pub(super) epoch: U64,
    pub(super) records: U32,
    pub(super) reserved: [u8; 28],
}
pub(crate) const FOOTER_BYTES: usize = size_of::<FooterRaw>();
const _: () = assert!(FOOTER_BYTES == 64);
const FOOTER_CRC_AT: usize = 4;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct FooterRecordRaw {
    pub(super) seq: U64,
    pub(super) flushed_seq: U64,
    pub(super) offset: U32,
    pub(super) total_bytes: U32,
    pub(super) entries: U32,
    pub(super) part: U16,
    pub(super) kind: u8,
    pub(super) flags: u8,
}
pub(crate) const FOOTER_RECORD_BYTES: usize = size_of::<FooterRecordRaw>();
const _: () = assert!(FOOTER_RECORD_BYTES == 32);

/// Of relocations followed by their birth.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct FooterEntryRaw {
    pub(super) lba: U64,
    /// Trims: sectors; others: grain and above it the checksum.
    pub(super) value: U64,
    pub(super) stored: U16,
    /// Trims: 0.
    pub(super) sectors: u8,
    pub(super) kind: u8,
}
/// Largest copy of an entry.
pub(crate) const FOOTER_ENTRY_BYTES_MAX: usize = size_of::<FooterEntryRaw>() + size_of::<U64>();
const _: () = assert!(FOOTER_ENTRY_BYTES_MAX == 28);

/// Bytes that an entry of `kind` takes in a footer.
pub(crate) fn footer_entry_bytes(kind: EntryKind) -> usize {
    match kind {
        EntryKind::Write | EntryKind::Trim => size_of::<FooterEntryRaw>(),
        EntryKind::Relocate => FOOTER_ENTRY_BYTES_MAX,
    }
}

/// The footer of an open segment, as it grows.
#[derive(Default)]
pub(crate) struct Footer {
    body: Vec<u8>,
    records: u32,
}

impl Footer {
    /// Bytes of all copies so far.
    pub(crate) fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// The record with this header and these entries was appended.
    pub(crate) fn note(&mut self, header: &RecordHeader, entries: impl ExactSizeIterator<Item = Entry>) {
        let record = FooterRecordRaw {
            seq: header.seq.0.into(),
            flushed_seq: header.flushed_seq.0.into(),
            offset: header.offset.into(),
            total_bytes: header.total_bytes.into(),
            entries: u32::try_from(entries.len()).expect("as many entries as fit into a segment").into(),
            part: u16::try_from(header.part).expect("a batch of 2^16 parts").into(),
            kind: header.kind.to_raw(),
            flags: if header.last_part { FLAG_LAST_PART } else { 0 },
        };
        self.body.extend_from_slice(record.as_bytes());
        self.records += 1;
        for entry in entries {
            let raw = entry.to_raw();
            let is_trim = entry.kind == EntryKind::Trim;
            let placed = u64::from(entry.crc) << 32 | u64::from(entry.phys.grain);
            let copy = FooterEntryRaw {
                lba: raw.lba,
                value: if is_trim { raw.sectors } else { placed.into() },
                stored: raw.stored,
                sectors: if is_trim { 0 } else { u8::try_from(entry.sectors).expect("sectors of a chunk") },
                kind: raw.kind,
            };
            self.body.extend_from_slice(copy.as_bytes());
            if entry.kind == EntryKind::Relocate {
                self.body.extend_from_slice(raw.birth.as_bytes());
            }
        }
    }

    /// The last bytes of the segment.
    pub(crate) fn seal(self, salt: Salt, life: Life) -> Vec<u8> {
        let raw = FooterRaw {
            magic: FOOTER_MAGIC.into(),
            crc: 0.into(),
            segment: life.segment.0.into(),
            body_bytes: (self.body.len() as u32).into(),
            generation: life.generation.into(),
            epoch: life.epoch.into(),
            records: self.records.into(),
            reserved: [0; 28],
        };
        let mut bytes = self.body;
        let crc_at = bytes.len() + FOOTER_CRC_AT;
        bytes.extend_from_slice(raw.as_bytes());
        let crc = seal(salt.0, &bytes, crc_at);
        bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

impl FooterRaw {
    /// Length of the copies, if this looks like a footer of `life` at all. The checksum is still to be
    /// verified over them and this.
    pub(crate) fn body_bytes(&self, life: Life, segment_bytes: usize) -> Option<usize> {
        let body = self.body_bytes.get() as usize;
        let claimed = self.claimed_life()?;
        let is_its_own = claimed == life || is_broken(Rule::FooterOfThisLife);
        (is_its_own && body <= segment_bytes - FOOTER_BYTES).then_some(body)
    }

    /// The life that this says it belongs to, if it looks like a footer at all.
    pub(crate) fn claimed_life(&self) -> Option<Life> {
        (self.magic.get() == FOOTER_MAGIC).then(|| Life {
            segment: SegNo(self.segment.get()),
            generation: self.generation.get(),
            epoch: self.epoch.get(),
        })
    }

    /// Verifies the seal over `bytes`, which are the copies and the footer, and returns headers and
    /// bodies of all records as they are in the segment.
    pub(crate) fn verify(
        &self,
        salt: Salt,
        life: Life,
        bytes: &[u8],
    ) -> Result<Vec<(RecordHeader, Vec<u8>)>, Flaw> {
        let (mut rest, _) = bytes.split_at(bytes.len() - FOOTER_BYTES);
        let is_sealed = seal(salt.0, bytes, rest.len() + FOOTER_CRC_AT) == self.crc.get();
        if !is_sealed && !is_broken(Rule::FooterVerified) {
            return Err("footer checksum does not match");
        }
        if self.reserved != [0; 28] {
            return Err("reserved bytes are not zero");
        }
        let mut records = Vec::new();
        while !rest.is_empty() {
            records.push(take_record(life, &mut rest)?);
        }
        if records.len() != self.records.get() as usize {
            return Err("footer of another number of records");
        }
        Ok(records)
    }
}

/// The life in `epoch` to which `bytes`, a footer with its copies as an epitaph has it, belong. They are still to be
/// verified.
pub(crate) fn epitaph_life(bytes: &[u8], epoch: u64, space: Space) -> Result<Life, Flaw> {
    let (_, raw) = FooterRaw::read_from_suffix(bytes).map_err(|_| SHORT)?;
    let life = Life { segment: SegNo(raw.segment.get()), generation: raw.generation.get(), epoch };
    let len = raw.body_bytes(life, space.segment_bytes).map(|body| body + FOOTER_BYTES);
    match (life.segment.0 as usize) < space.segments && len == Some(bytes.len()) {
        true => Ok(life),
        false => Err("epitaph without a footer of its epoch"),
    }
}

const SHORT: Flaw = "footer ends within a record";

fn take<T: FromBytes + KnownLayout + Immutable>(rest: &mut &[u8]) -> Result<T, Flaw> {
    let (raw, behind) = T::read_from_prefix(rest).map_err(|_| SHORT)?;
    *rest = behind;
    Ok(raw)
}

fn take_record(life: Life, rest: &mut &[u8]) -> Result<(RecordHeader, Vec<u8>), Flaw> {
    let raw: FooterRecordRaw = take(rest)?;
    let entries = raw.entries.get() as usize;
    if entries > rest.len() / size_of::<FooterEntryRaw>() {
        return Err(SHORT);
    }
    let mut body = Vec::with_capacity(entries * ENTRY_BYTES);
    for _ in 0..entries {
        body.extend_from_slice(take_entry(rest)?.as_bytes());
    }
    let header = RecordHeader {
        kind: RecordKind::from_raw(raw.kind).ok_or("unknown kind of record")?,
        last_part: raw.flags & FLAG_LAST_PART != 0,
        life,
        seq: Seq(raw.seq.get()),
        flushed_seq: Seq(raw.flushed_seq.get()),
        part: raw.part.get().into(),
        offset: raw.offset.get(),
        body_bytes: body.len() as u32,
        total_bytes: raw.total_bytes.get(),
    };
    if raw.flags & !FLAG_LAST_PART != 0 || (header.total_bytes as usize) < RECORD_HEADER_BYTES + body.len() {
        return Err("record with unknown flags or a bad length");
    }
    Ok((header, body))
}

/// The entry as it is in its record, not verified yet.
fn take_entry(rest: &mut &[u8]) -> Result<EntryRaw, Flaw> {
    let raw: FooterEntryRaw = take(rest)?;
    let is_trim = raw.kind == EntryKind::Trim.to_raw();
    if is_trim && raw.sectors != 0 {
        return Err("trim with two lengths");
    }
    let birth = match raw.kind == EntryKind::Relocate.to_raw() {
        true => take(rest)?,
        false => 0.into(),
    };
    let value = raw.value.get();
    Ok(EntryRaw {
        lba: raw.lba,
        sectors: if is_trim { value } else { raw.sectors.into() }.into(),
        birth,
        grain: if is_trim { 0 } else { value as u32 }.into(),
        crc: if is_trim { 0 } else { (value >> 32) as u32 }.into(),
        stored: raw.stored,
        kind: raw.kind,
        reserved: [0; 5],
    })
}
