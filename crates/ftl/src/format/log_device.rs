//! A log device: its headers, and the frames in its ring.

use std::mem::size_of;

use lacuna_crc::{crc32c, crc32c_append, crc32c_combine};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::{Flaw, check_counters, seal};
use crate::addr::{SegNo, Seq};

const LOG_VERSION: u32 = 1;
/// Feature bit: the header says what was opened last.
const FEATURE_OPENING: u64 = 1;
const LOG_MAGIC: [u8; 8] = *b"LACUNALG";
/// Start of the two headers of a log device, in bytes.
pub(crate) const LOG_HEADERS: [u64; 2] = [0, 32 << 10];
/// The ring is all behind this byte.
pub(crate) const RING_START: u64 = 64 << 10;
/// Groups of frames begin at multiples of so many bytes, at least: a line of memory.
pub(crate) const GROUP_UNIT_MIN: u32 = 64;
const GROUP_UNIT_MAX: u32 = 16 << 10;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct LogHeaderRaw {
    pub(super) magic: [u8; 8],
    pub(super) version: U32,
    pub(super) crc: U32,
    pub(super) features: U64,
    pub(super) uuid: [u8; 16],
    pub(super) log_id: [u8; 16],
    pub(super) sequence: U64,
    pub(super) epoch: U64,
    pub(super) frame_next: U64,
    pub(super) position: U64,
    pub(super) settled_seq: U64,
    pub(super) capacity_bytes: U64,
    pub(super) unit_bytes: U32,
    pub(super) opening: U64,
    pub(super) reserved: [u8; 12],
}
const _: () = assert!(size_of::<LogHeaderRaw>() == 128);
pub(super) const LOG_HEADER_CRC_AT: usize = 12;

/// Header of a log device: whose it is, and where its frames begin that are not on the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogHeader {
    /// The store's.
    pub(crate) uuid: [u8; 16],
    /// The log device's own; the superblock names it.
    pub(crate) log_id: [u8; 16],
    /// Rises by one with each header; the highest counts.
    pub(crate) sequence: u64,
    /// Epoch of the store in which all frames that count were written; 0 for none yet.
    pub(crate) epoch: u64,
    /// Number of the first frame that may not be on the flash.
    pub(crate) frame_next: u64,
    /// Where it is, or will be, in bytes, counted on through all rounds of the ring.
    pub(crate) position: u64,
    /// Every batch up to this one was on the flash.
    pub(crate) settled_seq: Seq,
    /// Size of the log device.
    pub(crate) capacity_bytes: u64,
    /// Groups of frames begin at multiples of this in the ring.
    pub(crate) unit_bytes: u32,
    /// Epoch of the last opening that began with this log device; none in headers of older programs.
    pub(crate) opening: Option<u64>,
}

impl LogHeaderRaw {
    pub(crate) fn verify(&self) -> Result<LogHeader, Flaw> {
        if self.magic != LOG_MAGIC {
            return Err("no log of a store");
        }
        if seal(0, self.as_bytes(), LOG_HEADER_CRC_AT) != self.crc.get() {
            return Err("header checksum does not match");
        }
        let has_opening = self.features.get() == FEATURE_OPENING;
        if self.version.get() != LOG_VERSION
            || self.features.get() & !FEATURE_OPENING != 0
            || self.reserved != [0; 12]
            || (!has_opening && self.opening.get() != 0)
        {
            return Err("a log of an unknown version");
        }
        let (unit, capacity) = (self.unit_bytes.get(), self.capacity_bytes.get());
        if !unit.is_power_of_two() || !(GROUP_UNIT_MIN..=GROUP_UNIT_MAX).contains(&unit) {
            return Err("bad unit of a log");
        }
        if capacity < RING_START + u64::from(unit) || !capacity.is_multiple_of(unit.into()) {
            return Err("bad size of a log");
        }
        check_counters(&[self.sequence.get(), self.epoch.get(), self.frame_next.get()])?;
        check_counters(&[self.position.get(), self.settled_seq.get(), self.opening.get()])?;
        if !self.position.get().is_multiple_of(unit.into()) {
            return Err("bad position in a log");
        }
        Ok(LogHeader {
            uuid: self.uuid,
            log_id: self.log_id,
            sequence: self.sequence.get(),
            epoch: self.epoch.get(),
            frame_next: self.frame_next.get(),
            position: self.position.get(),
            settled_seq: Seq(self.settled_seq.get()),
            capacity_bytes: capacity,
            unit_bytes: unit,
            opening: has_opening.then_some(self.opening.get()),
        })
    }
}

impl LogHeader {
    pub(crate) fn to_raw(self) -> LogHeaderRaw {
        let mut raw = LogHeaderRaw {
            magic: LOG_MAGIC,
            version: LOG_VERSION.into(),
            crc: 0.into(),
            features: self.opening.map_or(0, |_| FEATURE_OPENING).into(),
            uuid: self.uuid,
            log_id: self.log_id,
            sequence: self.sequence.into(),
            epoch: self.epoch.into(),
            frame_next: self.frame_next.into(),
            position: self.position.into(),
            settled_seq: self.settled_seq.0.into(),
            capacity_bytes: self.capacity_bytes.into(),
            unit_bytes: self.unit_bytes.into(),
            opening: self.opening.unwrap_or(0).into(),
            reserved: [0; 12],
        };
        raw.crc = seal(0, raw.as_bytes(), LOG_HEADER_CRC_AT).into();
        raw
    }

    /// First value of the checksums of its frames, so that frames of another store, or of another log device, never
    /// pass.
    pub(crate) fn salt(&self) -> u32 {
        crc32c_append(crc32c(&self.uuid), &self.log_id)
    }
}

const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"LLOG");
const FLAG_LAST: u8 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct FrameRaw {
    pub(super) magic: U32,
    pub(super) crc: U32,
    pub(super) number: U64,
    pub(super) epoch: U64,
    pub(super) generation: U64,
    pub(super) acknowledged: U64,
    pub(super) group: U64,
    pub(super) segment: U32,
    pub(super) offset: U32,
    pub(super) bytes: U32,
    pub(super) flags: u8,
    pub(super) reserved: [u8; 3],
}
pub(crate) const FRAME_BYTES: usize = size_of::<FrameRaw>();
const _: () = assert!(FRAME_BYTES == 64);
const FRAME_CRC_AT: usize = 4;
pub(crate) const FRAME_CRC_END: usize = FRAME_CRC_AT + 4;

/// Head of a frame: bytes of a segment that a flush has made durable before they are on the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Dense within an epoch.
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    pub(crate) segment: SegNo,
    pub(crate) generation: u64,
    /// Offset of the bytes in the segment.
    pub(crate) offset: u32,
    /// How many there are, behind the head.
    pub(crate) bytes: u32,
    /// In the last frame of a group: every batch up to this one is durable, on the flash or here. 0 in others.
    pub(crate) acknowledged: Seq,
    /// Number of the first frame of its group: all before that were durable when it was written.
    pub(crate) group: u64,
    /// The next frame begins at the next unit; otherwise behind this one.
    pub(crate) is_last: bool,
}

impl FrameRaw {
    /// Whether this looks like a frame at all.
    pub(crate) fn is_claimed(&self) -> bool {
        self.magic.get() == FRAME_MAGIC
    }

    /// Length of head and bytes, as it says.
    pub(crate) fn sealed_len(&self) -> u64 {
        FRAME_BYTES as u64 + u64::from(self.bytes.get())
    }

    /// Length of head and bytes, if this looks like frame `number` of `epoch` with at most `bytes_max` at all. The
    /// checksum is still to be verified over that many bytes.
    pub(crate) fn sealed_bytes(&self, number: u64, epoch: u64, bytes_max: u64) -> Option<usize> {
        let plausible = self.is_claimed()
            && self.number.get() == number
            && self.epoch.get() == epoch
            && self.sealed_len() <= bytes_max;
        plausible.then_some(self.sealed_len() as usize)
    }

    /// Verifies the seal over `sealed`, which is head and bytes, and that the bytes lie in one of `segments` segments.
    pub(crate) fn verify(
        &self,
        salt: u32,
        sealed: &[u8],
        segments: u64,
        segment_bytes: usize,
    ) -> Result<Frame, Flaw> {
        match seal(salt, sealed, FRAME_CRC_AT) == self.crc.get() {
            true => self.parse(segments, segment_bytes),
            false => Err("frame checksum does not match"),
        }
    }

    /// The checksum that a stream of bytes has up to the end of this frame, if the frame is sealed. Up to the end of the
    /// frame's own checksum it is `before`.
    pub(crate) fn crc_at_end(&self, salt: u32, before: u32) -> u32 {
        let start = crc32c_append(crc32c_append(salt, &self.as_bytes()[..FRAME_CRC_AT]), &[0; 4]);
        // Checksums are linear: what the sealed bytes and the stream have in common cancels out.
        crc32c_combine(start ^ before, self.crc.get(), self.sealed_len() - FRAME_CRC_END as u64)
    }

    /// What it says, if that can be. The seal is still to be verified.
    pub(crate) fn parse(&self, segments: u64, segment_bytes: usize) -> Result<Frame, Flaw> {
        if self.flags & !FLAG_LAST != 0 || self.reserved != [0; 3] {
            return Err("frame with unknown flags");
        }
        check_counters(&[self.generation.get(), self.acknowledged.get(), self.number.get()])?;
        if self.group.get() > self.number.get() {
            return Err("a frame of a later group");
        }
        let segment = self.segment.get();
        let end = u64::from(self.offset.get()) + u64::from(self.bytes.get());
        if segment == 0 || u64::from(segment) >= segments || end > segment_bytes as u64 {
            return Err("a frame names a place outside the store");
        }
        Ok(Frame {
            number: self.number.get(),
            epoch: self.epoch.get(),
            segment: SegNo(segment),
            generation: self.generation.get(),
            offset: self.offset.get(),
            bytes: self.bytes.get(),
            acknowledged: Seq(self.acknowledged.get()),
            group: self.group.get(),
            is_last: self.flags & FLAG_LAST != 0,
        })
    }
}

impl Frame {
    /// Seals the frame whose bytes lie in `sealed` behind space for its head.
    pub(crate) fn seal(self, salt: u32, sealed: &mut [u8]) {
        assert_eq!(sealed.len(), FRAME_BYTES + self.bytes as usize, "bytes of another length than announced");
        let raw = FrameRaw {
            magic: FRAME_MAGIC.into(),
            crc: 0.into(),
            number: self.number.into(),
            epoch: self.epoch.into(),
            generation: self.generation.into(),
            acknowledged: self.acknowledged.0.into(),
            group: self.group.into(),
            segment: self.segment.0.into(),
            offset: self.offset.into(),
            bytes: self.bytes.into(),
            flags: if self.is_last { FLAG_LAST } else { 0 },
            reserved: [0; 3],
        };
        sealed[..FRAME_BYTES].copy_from_slice(raw.as_bytes());
        let crc = seal(salt, sealed, FRAME_CRC_AT);
        sealed[FRAME_CRC_AT..FRAME_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }
}
