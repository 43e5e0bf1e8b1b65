//! Copies in summaries from before entries were packed.

use std::mem::size_of;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{
    super::record::FLAG_LAST_PART, Flaw, Life, RECORD_HEADER_BYTES, RecordHeader, RecordKind, SHORT,
};
use crate::{
    addr::Seq,
    format::entries::{ENTRY_BYTES, EntryKind, EntryRaw},
};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SummaryRecordRaw {
    pub(crate) seq: U64,
    pub(crate) flushed_seq: U64,
    pub(crate) offset: U32,
    pub(crate) total_bytes: U32,
    pub(crate) entries: U32,
    pub(crate) part: U16,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
}
pub(crate) const SUMMARY_RECORD_BYTES: usize = size_of::<SummaryRecordRaw>();
const _: () = assert!(SUMMARY_RECORD_BYTES == 32);

/// Of relocations followed by their birth.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SummaryEntryRaw {
    pub(crate) lba: U64,
    /// Trims: sectors; others: grain and above it the checksum.
    pub(crate) value: U64,
    pub(crate) stored: U16,
    /// Trims: 0.
    pub(crate) sectors: u8,
    pub(crate) kind: u8,
}

fn take<T: FromBytes + KnownLayout + Immutable>(rest: &mut &[u8]) -> Result<T, Flaw> {
    let (raw, behind) = T::read_from_prefix(rest).map_err(|_| SHORT)?;
    *rest = behind;
    Ok(raw)
}

/// Takes the copy of a record off the front of `rest`: its header, and its body as it is in the segment.
pub(super) fn take_record(life: Life, rest: &mut &[u8]) -> Result<(RecordHeader, Vec<u8>), Flaw> {
    let raw: SummaryRecordRaw = take(rest)?;
    let entries = raw.entries.get() as usize;
    if entries > rest.len() / size_of::<SummaryEntryRaw>() {
        return Err(SHORT);
    }
    let mut body = Vec::with_capacity(entries * ENTRY_BYTES);
    for _ in 0..entries {
        body.extend_from_slice(take_entry(rest)?.as_bytes());
    }
    let header = RecordHeader {
        kind: RecordKind::from_raw(raw.kind).ok_or("unknown kind of record")?,
        last_part: raw.flags & FLAG_LAST_PART != 0,
        is_packed: false,
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
    let raw: SummaryEntryRaw = take(rest)?;
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
