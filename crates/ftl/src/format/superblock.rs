//! The root of a store.

use std::mem::size_of;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::{Flaw, check_counters, seal};
use crate::{
    SECTOR,
    addr::{SegNo, Seq},
};

/// The format that this code writes, and the newest that it reads.
pub(crate) const VERSION: u32 = 1;
/// Feature bits of every store of version 1: retained summaries and segments marked as out of use; packed entries and
/// summaries.
const FEATURES: u64 = 3;
/// Feature bit: the superblock has copies beside its slots, and records are padded to the blocks of the device that the
/// store is on, which may be another one each time, and whose blocks may be any up to `block_bytes`.
const FEATURE_COPIES: u64 = 4;
/// Feature bit: the store has a log device, without which the superblock and what it leads to may lack acknowledged
/// batches.
const FEATURE_LOG_DEVICE: u64 = 8;
/// Feature bit: data is encrypted, and there is a key block behind each superblock.
const FEATURE_ENCRYPTED: u64 = 16;
/// Feature bit: entries and map may name encodings of chunks.
const FEATURE_ENCODINGS: u64 = 32;
/// Offset of a key block behind the start of its superblock.
pub(crate) const KEYS_OFFSET: u64 = 16 << 10;
/// Start of the two superblock slots on the device, in bytes.
pub(crate) const SUPERBLOCK_SLOTS: [u64; 2] = [0, 32 << 10];
/// Smallest and largest segment size.
pub(crate) const SEGMENT_BYTES_MIN: u32 = 64 << 10;
pub(crate) const SEGMENT_BYTES_MAX: u32 = 256 << 20;
/// Largest device block.
pub(crate) const BLOCK_BYTES_MAX: u32 = 16 << 10;
/// The last bytes of a store, in which no segment lies: those of a whole segment, or so many.
const END_BYTES_MAX: u64 = 1 << 20;
/// The copy behind the last segment lies at the start of the last whole unit of so many bytes.
pub(crate) const END_UNIT: u64 = SEGMENT_BYTES_MIN as u64;
/// Blocks of a store, at least, so that it opens on all disks.
pub(crate) const BLOCK_BYTES_DEFAULT: u32 = 4096;
const _: () = assert!(BLOCK_BYTES_MAX as u64 <= END_UNIT);
// Segment 0 holds both slots, whatever the sizes of segment and block are.
const _: () = assert!(SUPERBLOCK_SLOTS[1] + BLOCK_BYTES_MAX as u64 <= SEGMENT_BYTES_MIN as u64);
const _: () = assert!(BLOCK_BYTES_MAX as u64 <= SUPERBLOCK_SLOTS[1]);
// A key block lies behind the block of its superblock, before the next slot, and in the segment or unit of each place.
const _: () = assert!(KEYS_OFFSET >= BLOCK_BYTES_MAX as u64);
const _: () = assert!(KEYS_OFFSET + BLOCK_BYTES_MAX as u64 <= SUPERBLOCK_SLOTS[1]);
const _: () = assert!(SUPERBLOCK_SLOTS[1] + KEYS_OFFSET + BLOCK_BYTES_MAX as u64 <= SEGMENT_BYTES_MIN as u64);
const _: () = assert!(lacuna_crypt::KEY_BLOCK_BYTES <= BLOCK_BYTES_MAX as usize);

pub(crate) const SUPERBLOCK_MAGIC: [u8; 8] = *b"LACUNAFT";

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SuperblockRaw {
    pub(super) magic: [u8; 8],
    pub(super) version: U32,
    pub(super) crc: U32,
    pub(super) features: U64,
    pub(super) uuid: [u8; 16],
    pub(super) capacity_bytes: U64,
    pub(super) segment_bytes: U32,
    pub(super) block_bytes: U32,
    pub(super) sequence: U64,
    pub(super) epoch: U64,
    pub(super) flushed_seq: U64,
    pub(super) root_generation: U64,
    pub(super) root_segment: U32,
    pub(super) root_offset: U32,
    pub(super) root_bytes: U32,
    pub(super) copy_segment: U32,
    pub(super) log_id: [u8; 16],
    pub(super) log_bytes: U64,
    pub(super) reserved: [u8; 128],
}
const _: () = assert!(size_of::<SuperblockRaw>() == 256);
pub(super) const SUPERBLOCK_CRC_AT: usize = 12;

/// The root of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) uuid: [u8; 16],
    pub(crate) capacity_bytes: u64,
    pub(crate) segment_bytes: u32,
    /// Largest block of a device that the store opens on. Without copies, that of every record's padding.
    pub(crate) block_bytes: u32,
    /// Rises by one with each superblock; the highest counts.
    pub(crate) sequence: u64,
    /// Epoch under which everything after the root was written.
    pub(crate) epoch: u64,
    /// Every batch up to this one was durable before the superblock was.
    pub(crate) flushed_seq: Seq,
    /// The checkpoint; none in a new store.
    pub(crate) root: Option<RootRef>,
    /// The segment in the middle that holds a copy of the superblock and nothing else; none in a store without copies.
    pub(crate) copy_segment: Option<SegNo>,
    /// Whether data is encrypted; then there are key blocks (`media::keys`).
    pub(crate) is_encrypted: bool,
    /// The log device.
    pub(crate) log: Option<LogRef>,
    /// Whether there may be, or may have been, encoded chunks.
    pub(crate) has_encodings: bool,
}

/// The log device of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogRef {
    /// Random, and another one for each log device that the store ever had.
    pub(crate) id: [u8; 16],
    /// Its size, for messages.
    pub(crate) capacity_bytes: u64,
}

/// Where a checkpoint's root record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RootRef {
    pub(crate) segment: SegNo,
    pub(crate) generation: u64,
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

/// The content of a superblock slot.
pub(crate) enum SlotContent {
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
    pub(crate) fn verify(&self) -> SlotContent {
        if self.magic != SUPERBLOCK_MAGIC {
            return SlotContent::Invalid("no superblock");
        }
        let (version, is_sealed) =
            (self.version.get(), seal(0, self.as_bytes(), SUPERBLOCK_CRC_AT) == self.crc.get());
        if version > VERSION {
            return SlotContent::Newer { version, is_sealed };
        }
        if !is_sealed {
            return SlotContent::Invalid("superblock checksum does not match");
        }
        const KNOWN: u64 =
            FEATURES | FEATURE_COPIES | FEATURE_LOG_DEVICE | FEATURE_ENCRYPTED | FEATURE_ENCODINGS;
        let unknown = self.features.get() & !KNOWN;
        if unknown != 0 {
            return SlotContent::UnknownFeatures(unknown);
        }
        if self.features.get() & FEATURES != FEATURES {
            return SlotContent::Invalid("superblock lacks features of version 1");
        }
        match self.verified() {
            Ok(superblock) => SlotContent::Valid(superblock),
            Err(flaw) => SlotContent::Invalid(flaw),
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
        let has_copies = self.features.get() & FEATURE_COPIES != 0;
        let segments = segments(self.capacity_bytes.get(), segment, has_copies);
        check_counters(&[self.sequence.get(), self.epoch.get(), self.flushed_seq.get()])?;
        check_counters(&[self.root_generation.get()])?;
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
        let copy = SegNo(self.copy_segment.get());
        if has_copies != (copy.0 != 0)
            || u64::from(copy.0) >= segments
            || (has_copies && copy == root.segment)
        {
            return Err("its copy lies outside the store");
        }
        let has_log = self.features.get() & FEATURE_LOG_DEVICE != 0;
        let log = LogRef { id: self.log_id, capacity_bytes: self.log_bytes.get() };
        if has_log != (log.id != [0; 16]) || has_log != (log.capacity_bytes != 0) {
            return Err("its log device has no name");
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
            copy_segment: has_copies.then_some(copy),
            is_encrypted: self.features.get() & FEATURE_ENCRYPTED != 0,
            log: has_log.then_some(log),
            has_encodings: self.features.get() & FEATURE_ENCODINGS != 0,
        })
    }
}

/// Segments of a store of `capacity_bytes`.
fn segments(capacity_bytes: u64, segment_bytes: u32, has_copies: bool) -> u64 {
    let end = if has_copies { END_BYTES_MAX.min(segment_bytes.into()) } else { 0 };
    capacity_bytes.saturating_sub(end) / u64::from(segment_bytes)
}

/// Where a store of `capacity_bytes` has the copy behind its last segment, if it has one.
fn end_copy(capacity_bytes: u64) -> u64 {
    (capacity_bytes / END_UNIT).saturating_sub(1) * END_UNIT
}

/// The segment for the copy in the middle: at the largest power of two in the first half. It is the start of a segment
/// whatever their size, so it is found without a superblock.
pub(crate) fn copy_segment(capacity_bytes: u64, segment_bytes: u32) -> SegNo {
    let at = 1 << (capacity_bytes / 2).max(1).ilog2();
    SegNo((at / u64::from(segment_bytes)) as u32)
}

/// Wherever a store may have a copy of its superblock on a device of `capacity_bytes`, which it fills.
pub(crate) fn copy_places(capacity_bytes: u64) -> impl Iterator<Item = u64> {
    let powers = (SEGMENT_BYTES_MIN.ilog2()..u64::BITS).map(|log2| 1 << log2);
    let last = end_copy(capacity_bytes);
    powers.take_while(move |at| *at < last).chain((last > 0).then_some(last))
}

impl Superblock {
    /// Segments of the store.
    pub(crate) fn segments(&self) -> u64 {
        segments(self.capacity_bytes, self.segment_bytes, self.copy_segment.is_some())
    }

    /// Where copies of it lie beside the slots: in the middle, and behind the last segment.
    pub(crate) fn copies(&self) -> impl Iterator<Item = u64> {
        let copies = self.copy_segment.map(|segment| {
            [u64::from(segment.0) * u64::from(self.segment_bytes), end_copy(self.capacity_bytes)]
        });
        copies.into_iter().flatten()
    }

    fn features(&self) -> u64 {
        let copies = self.copy_segment.map_or(0, |_| FEATURE_COPIES);
        let log = self.log.map_or(0, |_| FEATURE_LOG_DEVICE);
        let encodings = if self.has_encodings { FEATURE_ENCODINGS } else { 0 };
        FEATURES | copies | log | encodings | if self.is_encrypted { FEATURE_ENCRYPTED } else { 0 }
    }

    pub(crate) fn to_raw(&self) -> SuperblockRaw {
        let root = self.root.unwrap_or(RootRef { segment: SegNo(0), generation: 0, offset: 0, bytes: 0 });
        let mut raw = SuperblockRaw {
            magic: SUPERBLOCK_MAGIC,
            version: VERSION.into(),
            crc: 0.into(),
            features: self.features().into(),
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
            copy_segment: self.copy_segment.map_or(0, |segment| segment.0).into(),
            log_id: self.log.map_or([0; 16], |log| log.id),
            log_bytes: self.log.map_or(0, |log| log.capacity_bytes).into(),
            reserved: [0; 128],
        };
        raw.crc = seal(0, raw.as_bytes(), SUPERBLOCK_CRC_AT).into();
        raw
    }
}
