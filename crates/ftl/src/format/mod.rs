//! Every byte that the ftl puts on a device: fixed little-endian structs, their seals and their
//! checks. The prose is docs/FORMAT.md, section ftl; a test below holds it against this file.
//!
//! Bytes from a device become a `*Raw` first, which promises nothing. Only `verify` makes the type
//! of the same name without `Raw` out of it, and that one may be used.

mod entries;
mod footer;
mod map;
mod varint;

use std::mem::size_of;

use lacuna_crc::{crc32c, crc32c_append};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{
    SECTOR,
    addr::{SegNo, Seq},
    mutant::{Rule, is_broken},
};

pub(crate) use entries::*;
pub(crate) use footer::*;
pub(crate) use map::*;

/// The format that this code writes, and the newest that it reads.
pub(crate) const VERSION: u32 = 1;
/// Feature bits that this code knows and sets. Bit 0: epitaphs, and segments marked as out of use. Bit 1: packed
/// entries and footers.
pub(crate) const FEATURES: u64 = 3;
/// Start of the two superblock slots on the device, in bytes.
pub(crate) const SUPERBLOCK_SLOTS: [u64; 2] = [0, 32 << 10];
/// Records of a segment start here; the segment header lies below.
pub(crate) const RECORDS_START: usize = SECTOR;
/// Smallest and largest segment size.
pub(crate) const SEGMENT_BYTES_MIN: u32 = 64 << 10;
pub(crate) const SEGMENT_BYTES_MAX: u32 = 256 << 20;
/// Largest device block.
pub(crate) const BLOCK_BYTES_MAX: u32 = 16 << 10;
// Segment 0 holds both slots, whatever the sizes of segment and block are.
const _: () = assert!(SUPERBLOCK_SLOTS[1] + BLOCK_BYTES_MAX as u64 <= SEGMENT_BYTES_MIN as u64);
const _: () = assert!(BLOCK_BYTES_MAX as u64 <= SUPERBLOCK_SLOTS[1]);

pub(crate) const SUPERBLOCK_MAGIC: [u8; 8] = *b"LACUNAFT";
const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"LSEG");
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"LREC");

/// Why bytes from a device were not accepted.
pub(crate) type Flaw = &'static str;

/// First value of every checksum in a store, so that bytes of another store never pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Salt(u32);

impl Salt {
    pub(crate) fn of(uuid: &[u8; 16]) -> Salt {
        Salt(crc32c(uuid))
    }
}

/// CRC32C of `bytes` with the four bytes at `crc_at` taken as zero.
pub(crate) fn seal(first: u32, bytes: &[u8], crc_at: usize) -> u32 {
    let crc = crc32c_append(first, &bytes[..crc_at]);
    let crc = crc32c_append(crc, &[0; 4]);
    crc32c_append(crc, &bytes[crc_at + 4..])
}

// ---------------------------------------------------------------------------------------- superblock

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SuperblockRaw {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    features: U64,
    uuid: [u8; 16],
    capacity_bytes: U64,
    segment_bytes: U32,
    block_bytes: U32,
    sequence: U64,
    epoch: U64,
    flushed_seq: U64,
    root_generation: U64,
    root_segment: U32,
    root_offset: U32,
    root_bytes: U32,
    reserved: [u8; 156],
}
const _: () = assert!(size_of::<SuperblockRaw>() == 256);
const SUPERBLOCK_CRC_AT: usize = 12;

/// The root of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) uuid: [u8; 16],
    pub(crate) capacity_bytes: u64,
    pub(crate) segment_bytes: u32,
    pub(crate) block_bytes: u32,
    /// Rises by one with each superblock; the highest counts.
    pub(crate) sequence: u64,
    /// Epoch under which everything after the root was written.
    pub(crate) epoch: u64,
    /// Every batch up to this one was durable before the superblock was.
    pub(crate) flushed_seq: Seq,
    /// The checkpoint; none in a new store.
    pub(crate) root: Option<RootRef>,
}

/// Where a checkpoint's root record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RootRef {
    pub(crate) segment: SegNo,
    pub(crate) generation: u64,
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

/// What a superblock slot holds.
pub(crate) enum Slot {
    Valid(Superblock),
    /// A superblock of a version that this code does not know; or damage, if it is not sealed as all known ones.
    Newer {
        version: u32,
        is_sealed: bool,
    },
    /// A superblock that uses features that this code does not know.
    UnknownFeatures(u64),
    Invalid(Flaw),
}

impl SuperblockRaw {
    pub(crate) fn verify(&self) -> Slot {
        if self.magic != SUPERBLOCK_MAGIC {
            return Slot::Invalid("no superblock");
        }
        let (version, is_sealed) =
            (self.version.get(), seal(0, self.as_bytes(), SUPERBLOCK_CRC_AT) == self.crc.get());
        if version > VERSION {
            return Slot::Newer { version, is_sealed };
        }
        if !is_sealed {
            return Slot::Invalid("superblock checksum does not match");
        }
        if self.features.get() & !FEATURES != 0 {
            return Slot::UnknownFeatures(self.features.get() & !FEATURES);
        }
        match self.verified() {
            Ok(superblock) => Slot::Valid(superblock),
            Err(flaw) => Slot::Invalid(flaw),
        }
    }

    fn verified(&self) -> Result<Superblock, Flaw> {
        let segment = self.segment_bytes.get();
        let block = self.block_bytes.get();
        if self.version.get() == 0 || self.reserved.iter().any(|byte| *byte != 0) {
            return Err("reserved bytes are not zero");
        }
        if !segment.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment) {
            return Err("bad segment size");
        }
        if !block.is_power_of_two() || (block as usize) < SECTOR || block > BLOCK_BYTES_MAX {
            return Err("bad block size");
        }
        let segments = self.capacity_bytes.get() / u64::from(segment);
        if segments > u64::from(u32::MAX) {
            return Err("more segments than there are numbers for");
        }
        let root = RootRef {
            segment: SegNo(self.root_segment.get()),
            generation: self.root_generation.get(),
            offset: self.root_offset.get(),
            bytes: self.root_bytes.get(),
        };
        let end = u64::from(root.offset) + u64::from(root.bytes);
        if u64::from(root.segment.0) >= segments || end > u64::from(segment) {
            return Err("checkpoint root lies outside the store");
        }
        Ok(Superblock {
            uuid: self.uuid,
            capacity_bytes: self.capacity_bytes.get(),
            segment_bytes: segment,
            block_bytes: block,
            sequence: self.sequence.get(),
            epoch: self.epoch.get(),
            flushed_seq: Seq(self.flushed_seq.get()),
            root: (root.segment.0 != 0).then_some(root),
        })
    }
}

impl Superblock {
    pub(crate) fn to_raw(&self) -> SuperblockRaw {
        let root = self.root.unwrap_or(RootRef { segment: SegNo(0), generation: 0, offset: 0, bytes: 0 });
        let mut raw = SuperblockRaw {
            magic: SUPERBLOCK_MAGIC,
            version: VERSION.into(),
            crc: 0.into(),
            features: FEATURES.into(),
            uuid: self.uuid,
            capacity_bytes: self.capacity_bytes.into(),
            segment_bytes: self.segment_bytes.into(),
            block_bytes: self.block_bytes.into(),
            sequence: self.sequence.into(),
            epoch: self.epoch.into(),
            flushed_seq: self.flushed_seq.0.into(),
            root_generation: root.generation.into(),
            root_segment: root.segment.0.into(),
            root_offset: root.offset.into(),
            root_bytes: root.bytes.into(),
            reserved: [0; 156],
        };
        raw.crc = seal(0, raw.as_bytes(), SUPERBLOCK_CRC_AT).into();
        raw
    }
}

// ------------------------------------------------------------------------------------ segment header

/// Up to which batch and up to which relocation all was durable at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) batches: Seq,
    /// Relocation records have numbers of their own.
    pub(crate) moves: Seq,
}

impl Marks {
    /// The later of both, each for itself.
    pub(crate) fn max(self, other: Marks) -> Marks {
        Marks { batches: self.batches.max(other.batches), moves: self.moves.max(other.moves) }
    }
}

/// Append points, as numbered on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentKind {
    Data,
    Log,
    Gc,
    Checkpoint,
}

impl SegmentKind {
    fn to_raw(self) -> u8 {
        match self {
            SegmentKind::Data => 1,
            SegmentKind::Log => 2,
            SegmentKind::Gc => 3,
            SegmentKind::Checkpoint => 4,
        }
    }

    fn from_raw(raw: u8) -> Option<SegmentKind> {
        [SegmentKind::Data, SegmentKind::Log, SegmentKind::Gc, SegmentKind::Checkpoint]
            .into_iter()
            .find(|kind| kind.to_raw() == raw)
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SegmentHeaderRaw {
    magic: U32,
    crc: U32,
    version: U16,
    kind: u8,
    class: u8,
    segment: U32,
    generation: U64,
    epoch: U64,
    opened_seq: U64,
    flushed_seq: U64,
    flushed_move: U64,
    reserved_b: [u8; 8],
}
const _: () = assert!(size_of::<SegmentHeaderRaw>() == 64);

/// First bytes of a segment: which life of it this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) kind: SegmentKind,
    pub(crate) segment: SegNo,
    /// Never used before, for any segment of the store.
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
    /// How long its data is expected to live; see [`crate::log::lifetime`]. A hint: any value will do.
    pub(crate) class: u8,
    /// Last batch accepted when the segment was opened.
    pub(crate) opened_seq: Seq,
    /// What was durable then.
    pub(crate) durable: Marks,
}

impl SegmentHeaderRaw {
    pub(crate) fn verify(&self, salt: Salt, segment: SegNo) -> Result<SegmentHeader, Flaw> {
        if self.magic.get() != SEGMENT_MAGIC {
            return Err("no segment header");
        }
        if seal(salt.0, self.as_bytes(), 4) != self.crc.get() {
            return Err("segment header checksum does not match");
        }
        if self.segment.get() != segment.0 {
            return Err("segment header of another segment");
        }
        if u32::from(self.version.get()) != VERSION || self.reserved_b != [0; 8] {
            return Err("unknown segment version");
        }
        let kind = SegmentKind::from_raw(self.kind).ok_or("unknown kind of segment")?;
        Ok(SegmentHeader {
            kind,
            segment,
            generation: self.generation.get(),
            epoch: self.epoch.get(),
            class: self.class,
            opened_seq: Seq(self.opened_seq.get()),
            durable: Marks { batches: Seq(self.flushed_seq.get()), moves: Seq(self.flushed_move.get()) },
        })
    }
}

impl SegmentHeader {
    pub(crate) fn life(&self) -> Life {
        Life { segment: self.segment, generation: self.generation, epoch: self.epoch }
    }

    pub(crate) fn to_raw(self, salt: Salt) -> SegmentHeaderRaw {
        let mut raw = SegmentHeaderRaw {
            magic: SEGMENT_MAGIC.into(),
            crc: 0.into(),
            version: (VERSION as u16).into(),
            kind: self.kind.to_raw(),
            class: self.class,
            segment: self.segment.0.into(),
            generation: self.generation.into(),
            epoch: self.epoch.into(),
            opened_seq: self.opened_seq.0.into(),
            flushed_seq: self.durable.batches.0.into(),
            flushed_move: self.durable.moves.0.into(),
            reserved_b: [0; 8],
        };
        raw.crc = seal(salt.0, raw.as_bytes(), 4).into();
        raw
    }
}

// -------------------------------------------------------------------------------------------- record

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RecordHeaderRaw {
    magic: U32,
    crc: U32,
    kind: u8,
    flags: u8,
    space: U16,
    segment: U32,
    generation: U64,
    epoch: U64,
    seq: U64,
    flushed_seq: U64,
    part: U32,
    offset: U32,
    body_bytes: U32,
    total_bytes: U32,
}
pub(crate) const RECORD_HEADER_BYTES: usize = size_of::<RecordHeaderRaw>();
const _: () = assert!(RECORD_HEADER_BYTES == 64);

const FLAG_LAST_PART: u8 = 1;
const FLAG_PACKED: u8 = 2;

/// What a record's body is.
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
    /// Part of a checkpoint's list of what each segment holds.
    Segments,
    /// The footer of a segment that may have been used again since; see [`crate::checkpoint::retained`].
    Epitaph,
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
            RecordKind::Epitaph => 7,
        }
    }

    fn from_raw(raw: u8) -> Option<RecordKind> {
        let batches = [RecordKind::Batch, RecordKind::Relocation];
        let checkpoints = [RecordKind::Root, RecordKind::Index, RecordKind::Segments];
        let others = [RecordKind::Map, RecordKind::Epitaph].into_iter().chain(checkpoints);
        batches.into_iter().chain(others).find(|kind| kind.to_raw() == raw)
    }

    /// Whether the body is entries.
    fn has_entries(self) -> bool {
        matches!(self, RecordKind::Batch | RecordKind::Relocation)
    }
}

/// Which life of which segment a record belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) segment: SegNo,
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
}

/// Head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    /// No further part of this batch follows.
    pub(crate) last_part: bool,
    /// The entries are packed; only those of batches and relocations are.
    pub(crate) is_packed: bool,
    pub(crate) life: Life,
    /// The batch's number; of relocations the record's own, in a sequence of theirs; of epitaphs the relocation up
    /// to which all were durable; of other records of the map the last batch accepted.
    pub(crate) seq: Seq,
    /// Every batch, of relocations every relocation, up to this one was durable when the record was
    /// made; 0 in records of the map but epitaphs. See [`RecordHeader::durable`].
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
    /// What the record says to have been durable when it was made.
    pub(crate) fn durable(&self) -> Marks {
        match self.kind {
            RecordKind::Batch => Marks { batches: self.flushed_seq, moves: Seq(0) },
            RecordKind::Relocation => Marks { batches: Seq(0), moves: self.flushed_seq },
            RecordKind::Epitaph => Marks { batches: self.flushed_seq, moves: self.seq },
            _ => Marks::default(),
        }
    }

    fn flags(&self) -> u8 {
        let last_part = if self.last_part { FLAG_LAST_PART } else { 0 };
        let is_packed = if self.is_packed { FLAG_PACKED } else { 0 };
        last_part | is_packed
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
        let crc = seal(salt.0, &bytes, 4);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

impl RecordHeaderRaw {
    /// The life that this says it belongs to, if it looks like a record at all.
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
        if seal(salt.0, bytes, 4) != self.crc.get() {
            return Err("record checksum does not match");
        }
        let kind = RecordKind::from_raw(self.kind).ok_or("unknown kind of record")?;
        let flags = FLAG_LAST_PART | if kind.has_entries() { FLAG_PACKED } else { 0 };
        if self.space.get() != 0 || self.flags & !flags != 0 {
            return Err("record of an unknown space or with unknown flags");
        }
        Ok(RecordHeader {
            kind,
            last_part: self.flags & FLAG_LAST_PART != 0,
            is_packed: self.flags & FLAG_PACKED != 0,
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

// --------------------------------------------------------------------------------------------- root

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RootRaw {
    start_seq: U64,
    start_move: U64,
    generation_next: U64,
    extents: U64,
    leaves: U32,
    records: U32,
    positions: [PlaceRaw; POSITIONS],
    reserved: [u8; 24],
}
const _: () = assert!(size_of::<RootRaw>() == 320);

/// Append points for which a root has room.
pub(crate) const POSITIONS: usize = 16;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PlaceRaw {
    segment: U32,
    offset: U32,
    generation: U64,
}
const _: () = assert!(size_of::<PlaceRaw>() == 16);

/// A byte of a certain life of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: SegNo,
    pub(crate) generation: u64,
    pub(crate) offset: u32,
}

/// Body of a checkpoint's last record: what replay starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    /// The map is that after this batch; replay applies all later ones.
    pub(crate) start_seq: Seq,
    /// The map knows of the relocations up to this one; replay looks at all after it.
    pub(crate) start_move: Seq,
    /// Segments with this generation or a later one were opened after `start_seq` was taken.
    pub(crate) generation_next: u64,
    /// Extents in all leaves.
    pub(crate) extents: u64,
    /// Entries of the index.
    pub(crate) leaves: u32,
    /// Append offsets of the append points at `start_seq`, where a segment was open.
    pub(crate) positions: [Option<Place>; POSITIONS],
    /// The index's records in order, then those of the segments' counters.
    pub(crate) records: Vec<Place>,
}

impl Place {
    fn to_raw(self) -> PlaceRaw {
        PlaceRaw {
            segment: self.segment.0.into(),
            offset: self.offset.into(),
            generation: self.generation.into(),
        }
    }

    fn verify(raw: &PlaceRaw, segments: u32, segment_bytes: usize) -> Result<Place, Flaw> {
        let place = Place {
            segment: SegNo(raw.segment.get()),
            generation: raw.generation.get(),
            offset: raw.offset.get(),
        };
        if place.segment.0 == 0 || place.segment.0 >= segments || place.offset as usize > segment_bytes {
            return Err("root names a place outside the store");
        }
        Ok(place)
    }
}

impl Root {
    /// Body of the root record.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let none = Place { segment: SegNo(0), generation: 0, offset: 0 };
        let raw = RootRaw {
            start_seq: self.start_seq.0.into(),
            start_move: self.start_move.0.into(),
            generation_next: self.generation_next.into(),
            extents: self.extents.into(),
            leaves: self.leaves.into(),
            records: u32::try_from(self.records.len()).expect("checkpoint of 2^32 records").into(),
            positions: self.positions.map(|place| place.unwrap_or(none).to_raw()),
            reserved: [0; 24],
        };
        let mut bytes = raw.as_bytes().to_vec();
        for place in &self.records {
            bytes.extend_from_slice(place.to_raw().as_bytes());
        }
        bytes
    }

    /// Bytes of the body of a root that names `records` records.
    pub(crate) fn bytes_for(records: usize) -> usize {
        size_of::<RootRaw>() + records * size_of::<PlaceRaw>()
    }

    /// Reads the body of a verified root record.
    pub(crate) fn parse(bytes: &[u8], segments: u32, segment_bytes: usize) -> Result<Root, Flaw> {
        let (raw, rest) = RootRaw::read_from_prefix(bytes).map_err(|_| "root is too short")?;
        if rest.len() != raw.records.get() as usize * size_of::<PlaceRaw>() || raw.reserved != [0; 24] {
            return Err("root of a bad length");
        }
        let mut positions = [None; POSITIONS];
        for (position, raw) in positions.iter_mut().zip(&raw.positions) {
            if raw.segment.get() != 0 {
                *position = Some(Place::verify(raw, segments, segment_bytes)?);
            }
        }
        let list = rest.chunks_exact(size_of::<PlaceRaw>()).map(|bytes| {
            let raw = PlaceRaw::read_from_bytes(bytes).expect("chunk of that size");
            Place::verify(&raw, segments, segment_bytes)
        });
        Ok(Root {
            start_seq: Seq(raw.start_seq.get()),
            start_move: Seq(raw.start_move.get()),
            generation_next: raw.generation_next.get(),
            extents: raw.extents.get(),
            leaves: raw.leaves.get(),
            positions,
            records: list.collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests;
