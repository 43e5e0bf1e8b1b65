//! The root of a checkpoint.

use std::mem::size_of;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::{Flaw, check_counters};
use crate::addr::{SegNo, Seq};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RootRaw {
    pub(super) start_seq: U64,
    pub(super) start_move: U64,
    pub(super) generation_next: U64,
    pub(super) extents: U64,
    pub(super) leaves: U32,
    pub(super) records: U32,
    pub(super) positions: [PositionRaw; POSITIONS],
    pub(super) reserved: [u8; 24],
}
const _: () = assert!(size_of::<RootRaw>() == 320);

/// Append points for which a root has space.
pub(crate) const POSITIONS: usize = 16;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct PositionRaw {
    pub(super) segment: U32,
    pub(super) offset: U32,
    pub(super) generation: U64,
}
const _: () = assert!(size_of::<PositionRaw>() == 16);

/// A byte of a certain life of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
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
    pub(crate) positions: [Option<Position>; POSITIONS],
    /// The index's records in order, then those of the segments' counters.
    pub(crate) records: Vec<Position>,
}

impl Position {
    fn to_raw(self) -> PositionRaw {
        PositionRaw {
            segment: self.segment.0.into(),
            offset: self.offset.into(),
            generation: self.generation.into(),
        }
    }

    fn verify(raw: &PositionRaw, segments: u32, segment_bytes: usize) -> Result<Position, Flaw> {
        let place = Position {
            segment: SegNo(raw.segment.get()),
            generation: raw.generation.get(),
            offset: raw.offset.get(),
        };
        check_counters(&[place.generation])?;
        if place.segment.0 == 0 || place.segment.0 >= segments || place.offset as usize > segment_bytes {
            return Err("root names a place outside the store");
        }
        Ok(place)
    }
}

impl Root {
    /// Body of the root record.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let none = Position { segment: SegNo(0), generation: 0, offset: 0 };
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
        size_of::<RootRaw>() + records * size_of::<PositionRaw>()
    }

    /// Reads the body of a verified root record.
    pub(crate) fn parse(bytes: &[u8], segments: u32, segment_bytes: usize) -> Result<Root, Flaw> {
        let (raw, rest) = RootRaw::read_from_prefix(bytes).map_err(|_| "root is too short")?;
        let is_whole = (raw.records.get() as usize).checked_mul(size_of::<PositionRaw>()) == Some(rest.len());
        if !is_whole || raw.reserved != [0; 24] {
            return Err("root of a bad length");
        }
        check_counters(&[raw.start_seq.get(), raw.start_move.get(), raw.generation_next.get()])?;
        let mut positions = [None; POSITIONS];
        for (position, raw) in positions.iter_mut().zip(&raw.positions) {
            if raw.segment.get() != 0 {
                *position = Some(Position::verify(raw, segments, segment_bytes)?);
            }
        }
        let list = rest.chunks_exact(size_of::<PositionRaw>()).map(|bytes| {
            let raw = PositionRaw::read_from_bytes(bytes).expect("chunk of that size");
            Position::verify(&raw, segments, segment_bytes)
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
