//! The entries of batch and relocation records: one for each change. The record and the summary of its segment hold the
//! same bytes, *packed*: numbers are varints, numbers close to the previous entry's are stored as differences, and the
//! place of a payload follows from the lengths of all payloads before it. A whole page takes 8 to 16 bytes.

use std::ops::Range;

use lacuna_codec::Algorithm;

use super::{
    Extent, Flaw, Life, RECORD_HEADER_BYTES, RecordHeader, RecordKind, check_counters,
    varint::{self, VARINT_BYTES_MAX},
};
use crate::{
    SECTOR,
    addr::{BLOCK, CHUNK_BYTES, CHUNK_SECTORS, GRAIN, Lba, PhysAddr, Seq},
    encoding::encoded_bytes_min,
};

/// What an entry of a record does to the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Write,
    Trim,
    /// A copy of the bytes that the batch `birth` wrote.
    Relocate,
}

impl EntryKind {
    fn to_raw(self) -> u8 {
        match self {
            EntryKind::Write => 1,
            EntryKind::Trim => 2,
            EntryKind::Relocate => 3,
        }
    }

    fn from_raw(raw: u8) -> Option<EntryKind> {
        [EntryKind::Write, EntryKind::Trim, EntryKind::Relocate].into_iter().find(|kind| kind.to_raw() == raw)
    }
}

/// One change in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: EntryKind,
    pub(crate) lba: Lba,
    pub(crate) sectors: u64,
    /// The batch that wrote a relocated extent; 0 otherwise.
    pub(crate) birth: Seq,
    /// Payload; offset 0 for a trim.
    pub(crate) phys: PhysAddr,
    /// Payload bytes; the rest of the sectors is zeros, unless it is encoded.
    pub(crate) stored: u16,
    /// CRC32C of the payload.
    pub(crate) crc: u32,
    /// How the payload is encoded; then it is the data of all sectors.
    pub(crate) encoding: Algorithm,
}

impl Entry {
    /// What the map holds at its first sector once it is applied, of data that `birth` wrote.
    pub(crate) fn extent(&self, birth: Seq) -> Extent {
        let Entry { phys, stored, crc, encoding, .. } = *self;
        let (sectors, chunk_sectors) = match encoding {
            Algorithm::None => (usize::from(stored).div_ceil(SECTOR) as u8, 0),
            _ => (self.sectors as u8, self.sectors as u8),
        };
        Extent { phys, stored, crc, birth, sectors, skip: 0, encoding, chunk_sectors }
    }

    /// Its sectors.
    pub(crate) fn range(&self) -> Range<u64> {
        self.lba.0..self.lba.0 + self.sectors
    }

    /// Checks the entry against the record, verified itself, that it was found in.
    fn check(&self, record: &RecordHeader) -> Result<(), Flaw> {
        let is_move = self.kind == EntryKind::Relocate;
        let holds = if is_move { RecordKind::Relocation } else { RecordKind::Batch };
        if record.kind != holds {
            return Err("entry of a kind that the record cannot hold");
        }
        check_counters(&[self.birth.0])?;
        if is_move != (self.birth.0 != 0) {
            return Err("relocation without a birth, or a batch with one");
        }
        if self.sectors == 0 || self.lba.0.checked_add(self.sectors).is_none() {
            return Err("entry outside the space");
        }
        if self.kind == EntryKind::Trim {
            let is_bare = self.stored == 0 && self.phys.grain == 0 && self.encoding == Algorithm::None;
            return if is_bare { Ok(()) } else { Err("trim with payload") };
        }
        let start = u64::from(self.phys.grain) * GRAIN as u64;
        let record_start = u64::from(record.offset);
        if start < record_start + (RECORD_HEADER_BYTES + record.body_bytes as usize) as u64
            || start + u64::from(self.stored) > record_start + u64::from(record.total_bytes)
        {
            return Err("payload outside its record");
        }
        check_chunk(self.lba, self.sectors, self.stored)?;
        if self.encoding != Algorithm::None {
            return check_encoded(self.sectors as usize, self.stored);
        }
        // Only extents are moved, and an extent has payload in each of its sectors.
        if is_move && usize::from(self.stored).div_ceil(SECTOR) as u64 != self.sectors {
            return Err("relocation of sectors without payload");
        }
        Ok(())
    }
}

/// Whether sectors and stored bytes can be those of a chunk at `lba`.
fn check_chunk(lba: Lba, sectors: u64, stored: u16) -> Result<(), Flaw> {
    if lba.0 % CHUNK_SECTORS + sectors > CHUNK_SECTORS {
        return Err("chunk crosses a chunk boundary");
    }
    if stored == 0
        || !usize::from(stored).is_multiple_of(GRAIN)
        || usize::from(stored) > sectors as usize * SECTOR
    {
        return Err("bad stored length");
    }
    Ok(())
}

/// The encoding of that number.
pub(super) fn encoding_of(number: u8) -> Option<Algorithm> {
    match number {
        0 => Some(Algorithm::None),
        1 => Some(Algorithm::Lz4),
        2 => Some(Algorithm::Zstd),
        _ => None,
    }
}

/// Whether that can be the payload of an encoded chunk of `sectors` sectors: [`crate::encoding`], invariants 1 and 2.
pub(super) fn check_encoded(sectors: usize, stored: u16) -> Result<(), Flaw> {
    let stored = usize::from(stored);
    match (encoded_bytes_min(sectors)..=(sectors * SECTOR).saturating_sub(SECTOR)).contains(&stored) {
        true => Ok(()),
        false => Err("bad length of an encoded chunk"),
    }
}

/// Set in the first byte of a packed entry whose sectors are all of a chunk's; if it is plain, without trailing zeros.
const FLAG_WHOLE: u8 = 4;
const KIND_MASK: u8 = 3;
/// The encoding is in the bits from this one on.
const ENCODING_SHIFT: u32 = 3;
/// Largest packed entry: kind, lba, sectors and grains of a chunk, crc, birth. A trim has fewer.
pub(crate) const PACKED_ENTRY_BYTES_MAX: usize = 1 + VARINT_BYTES_MAX + 1 + 2 + 4 + VARINT_BYTES_MAX;

/// The state that earlier entries of a record leave for the next one, which is coded as differences from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Packing {
    /// Where the last one ended.
    lba: u64,
    birth: u64,
}

impl Packing {
    /// The numbers that `entry`, as the next one, takes: address, then sectors and grains if it is not a whole
    /// chunk, birth.
    fn numbers(&mut self, entry: &Entry) -> (bool, [Option<u64>; 4]) {
        let grains = u64::from(entry.stored) / GRAIN as u64;
        let is_encoded = entry.encoding != Algorithm::None;
        let is_whole = (usize::from(entry.stored) == CHUNK_BYTES || is_encoded)
            && entry.sectors == CHUNK_SECTORS
            && entry.lba.0.is_multiple_of(CHUNK_SECTORS);
        let unit = if is_whole { CHUNK_SECTORS } else { 1 };
        let numbers = [
            Some(varint::step(self.lba / unit, entry.lba.0 / unit)),
            (!is_whole).then_some(entry.sectors),
            ((!is_whole || is_encoded) && entry.kind != EntryKind::Trim).then_some(grains),
            (entry.kind == EntryKind::Relocate).then(|| varint::step(self.birth, entry.birth.0)),
        ];
        (self.lba, self.birth) = (entry.lba.0.wrapping_add(entry.sectors), entry.birth.0);
        (is_whole, numbers)
    }

    /// Bytes that `entry` takes as the next one.
    pub(crate) fn len(&mut self, entry: &Entry) -> usize {
        let (_, numbers) = self.numbers(entry);
        let crc = if entry.kind == EntryKind::Trim { 0 } else { size_of_val(&entry.crc) };
        1 + numbers.into_iter().flatten().map(varint::len).sum::<usize>() + crc
    }

    /// Appends `entry` as the next one.
    fn pack(&mut self, entry: &Entry, out: &mut Vec<u8>) {
        let (is_whole, numbers) = self.numbers(entry);
        let flags = if is_whole { FLAG_WHOLE } else { 0 } | u8::from(entry.encoding) << ENCODING_SHIFT;
        out.push(entry.kind.to_raw() | flags);
        numbers.into_iter().flatten().for_each(|number| varint::put(out, number));
        if entry.kind != EntryKind::Trim {
            out.extend_from_slice(&entry.crc.to_le_bytes());
        }
    }

    /// Takes the next entry off the front of `rest`; the place of its payload is not set yet.
    fn take(&mut self, life: Life, rest: &mut &[u8]) -> Result<Entry, Flaw> {
        let (first, behind) = rest.split_first().ok_or(SHORT)?;
        *rest = behind;
        let kind = EntryKind::from_raw(first & KIND_MASK).ok_or("unknown kind of entry")?;
        let is_whole = first & FLAG_WHOLE != 0;
        let encoding = encoding_of(first >> ENCODING_SHIFT).ok_or("entry of an unknown encoding")?;
        let is_encoded = encoding != Algorithm::None;
        if (is_whole || is_encoded) && kind == EntryKind::Trim {
            return Err("trim with payload");
        }
        let unit = if is_whole { CHUNK_SECTORS } else { 1 };
        let lba = varint::stepped(self.lba / unit, varint::take(rest)?);
        let lba = lba.checked_mul(unit).ok_or("entry outside the space")?;
        let (mut sectors, mut grains) = (CHUNK_SECTORS, CHUNK_BYTES / GRAIN);
        if !is_whole {
            sectors = varint::take(rest)?;
        }
        if !is_whole || is_encoded {
            grains = if kind == EntryKind::Trim { 0 } else { varint::take(rest)? as usize };
        }
        let birth = match kind {
            EntryKind::Relocate => varint::stepped(self.birth, varint::take(rest)?),
            EntryKind::Write | EntryKind::Trim => 0,
        };
        let mut crc = 0;
        if kind != EntryKind::Trim {
            let (bytes, behind) = rest.split_first_chunk().ok_or(SHORT)?;
            (crc, *rest) = (u32::from_le_bytes(*bytes), behind);
        }
        (self.lba, self.birth) = (lba.wrapping_add(sectors), birth);
        let stored = grains.checked_mul(GRAIN).and_then(|bytes| u16::try_from(bytes).ok());
        Ok(Entry {
            kind,
            lba: Lba(lba),
            sectors,
            birth: Seq(birth),
            phys: PhysAddr { segment: life.segment, grain: 0 },
            stored: stored.ok_or("bad stored length")?,
            crc,
            encoding,
        })
    }
}

const SHORT: Flaw = "body ends within an entry";

/// Body of a record of `entries`.
pub(crate) fn pack(entries: impl Iterator<Item = Entry>) -> Vec<u8> {
    let (mut packing, mut body) = (Packing::default(), Vec::new());
    entries.for_each(|entry| packing.pack(&entry, &mut body));
    body
}

/// Whether payload of that length comes before that of all others in its record.
pub(crate) fn is_blocks(stored: usize) -> bool {
    stored > 0 && stored.is_multiple_of(BLOCK)
}

/// Sets the payload places in `entries`: payload ends with the record, whole blocks come first.
fn place(record: &RecordHeader, entries: &mut [Entry]) -> Result<(), Flaw> {
    let payload = entries.iter().map(|entry| usize::from(entry.stored)).sum();
    let end = (record.offset as usize).checked_add(record.total_bytes as usize);
    let start = end.and_then(|end| end.checked_sub(payload)).ok_or("payload outside its record")?;
    if payload > 0 && !start.is_multiple_of(GRAIN) {
        return Err("payload that does not start on a grain");
    }
    let mut grain = (start / GRAIN) as u32;
    for first in [true, false] {
        let has_payload = entries.iter_mut().filter(|entry| entry.stored > 0);
        for entry in has_payload.filter(|entry| is_blocks(entry.stored.into()) == first) {
            entry.phys.grain = grain;
            grain += u32::from(entry.stored) / GRAIN as u32;
        }
    }
    Ok(())
}

impl RecordHeader {
    /// The entries in the body of a batch or relocation record.
    pub(crate) fn entries(&self, body: &[u8]) -> Result<Vec<Entry>, Flaw> {
        let (mut entries, mut packing, mut rest) = (Vec::new(), Packing::default(), body);
        while !rest.is_empty() {
            entries.push(packing.take(self.life, &mut rest)?);
        }
        place(self, &mut entries)?;
        entries.iter().try_for_each(|entry| entry.check(self))?;
        Ok(entries)
    }
}
