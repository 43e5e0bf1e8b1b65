//! The first bytes of a segment.

use std::mem::size_of;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{Flaw, Life, Marks, Salt, VERSION, check_counters, seal};
use crate::{
    SECTOR,
    addr::{SegNo, Seq},
};

/// Records of a segment start here; the segment header lies below.
pub(crate) const RECORDS_START: usize = SECTOR;
const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"LSEG");

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
    pub(super) magic: U32,
    pub(super) crc: U32,
    pub(super) version: U16,
    pub(super) kind: u8,
    pub(super) class: u8,
    pub(super) segment: U32,
    pub(super) generation: U64,
    pub(super) epoch: U64,
    pub(super) opened_seq: U64,
    pub(super) flushed_seq: U64,
    pub(super) flushed_move: U64,
    pub(super) reserved_b: [u8; 8],
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
        check_counters(&[self.generation.get(), self.epoch.get(), self.opened_seq.get()])?;
        check_counters(&[self.flushed_seq.get(), self.flushed_move.get()])?;
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
