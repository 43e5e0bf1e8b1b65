//! The map on the device: packed leaves, the index of a checkpoint, and the counters of segments.

use std::mem::size_of;

use lacuna_codec::Algorithm;
use lacuna_crc::crc32c;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{
    Flaw, RECORD_HEADER_BYTES, RECORDS_START, SEGMENT_BYTES_MAX, check_counters, check_encoded, encoding_of,
};
use crate::{
    SECTOR,
    addr::{CHUNK_BYTES, CHUNK_SECTORS, GRAIN, PhysAddr, SegNo, Seq},
};

/// The stored data of a run of sectors: all of a chunk, or the rest of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The whole chunk's payload.
    pub(crate) phys: PhysAddr,
    /// The whole chunk's payload bytes.
    pub(crate) stored: u16,
    /// CRC32C of the whole chunk's payload.
    pub(crate) crc: u32,
    /// The batch that wrote it.
    pub(crate) birth: Seq,
    /// Sectors of this extent.
    pub(crate) sectors: u8,
    /// Sectors of the chunk before this extent.
    pub(crate) skip: u8,
    /// How the chunk is encoded.
    pub(crate) encoding: Algorithm,
    /// Sectors of the whole chunk if it is encoded, else 0.
    pub(crate) chunk_sectors: u8,
}

impl Extent {
    /// Whether its chunk is encoded.
    pub(crate) fn is_encoded(&self) -> bool {
        self.encoding != Algorithm::None
    }

    /// Bytes of data in this extent: all behind them are zeros.
    pub(crate) fn bytes(&self) -> usize {
        if self.is_encoded() {
            return usize::from(self.sectors) * SECTOR;
        }
        let rest = usize::from(self.stored).saturating_sub(usize::from(self.skip) * SECTOR);
        rest.min(usize::from(self.sectors) * SECTOR)
    }

    /// About the stored bytes that are its own: of an encoded chunk its share.
    pub(crate) fn stored_share(&self) -> usize {
        match self.is_encoded() {
            true => usize::from(self.stored) * usize::from(self.sectors) / usize::from(self.chunk_sectors),
            false => self.bytes(),
        }
    }

    /// All of the encoded chunk of which this extent, at `lba`, is a part.
    pub(crate) fn whole_encoded(&self, lba: u64) -> (u64, Extent) {
        (lba - u64::from(self.skip), Extent { sectors: self.chunk_sectors, skip: 0, ..*self })
    }

    /// Its lengths in one number: its column in a leaf, and in every plan of a sweep.
    pub(crate) fn shape(&self) -> u32 {
        let Extent { stored, sectors, skip, encoding, chunk_sectors, .. } = *self;
        assert!((1..=CHUNK_SECTORS as u8).contains(&sectors) && u64::from(skip) < CHUNK_SECTORS, "{self:?}");
        assert!(usize::from(stored).is_multiple_of(GRAIN), "chunk of {stored} bytes");
        // The field that varies most is lowest, those that are mostly 0 highest: whole plain chunks need no byte there.
        let grains = u32::from(stored) / GRAIN as u32;
        let encoded = u32::from(u8::from(encoding)) | u32::from(chunk_sectors.saturating_sub(1)) << 5;
        grains | u32::from(sectors - 1) << 12 | u32::from(skip) << 17 | encoded << 22
    }

    /// The extent with the lengths in `shape`; none if it names an encoding that is unknown.
    pub(crate) fn with_shape(self, shape: u32) -> Option<Extent> {
        let encoding = encoding_of((shape >> 22 & 31) as u8)?;
        let chunk_sectors = (shape >> 27) as u8;
        Some(Extent {
            stored: ((shape & 0xfff) * GRAIN as u32) as u16,
            sectors: (shape >> 12 & 31) as u8 + 1,
            skip: (shape >> 17 & 31) as u8,
            encoding,
            chunk_sectors: if encoding == Algorithm::None { chunk_sectors } else { chunk_sectors + 1 },
            ..self
        })
    }

    /// Whether it is all of its chunk, and all of that is stored as it is.
    pub(crate) fn is_whole_plain_chunk(&self) -> bool {
        !self.is_encoded() && self.skip == 0 && usize::from(self.stored) == usize::from(self.sectors) * SECTOR
    }

    /// Checks an extent at `lba` as read from a store with `segments` segments of `segment_bytes`.
    pub(crate) fn check(&self, lba: u64, segments: u32, segment_bytes: usize) -> Result<(), Flaw> {
        let chunk = lba.checked_sub(u64::from(self.skip)).ok_or("entry outside the space")?;
        lba.checked_add(u64::from(self.sectors)).ok_or("entry outside the space")?;
        // A fragment may end before its chunk's payload does, so only grain, size and boundary bind it.
        let stored = usize::from(self.stored);
        if stored == 0 || !stored.is_multiple_of(GRAIN) || stored > CHUNK_BYTES {
            return Err("bad stored length");
        }
        if chunk % CHUNK_SECTORS + u64::from(self.skip) + u64::from(self.sectors) > CHUNK_SECTORS {
            return Err("chunk crosses a chunk boundary");
        }
        if self.sectors == 0 || self.bytes().div_ceil(SECTOR) != usize::from(self.sectors) {
            return Err("extent without payload");
        }
        if self.is_encoded() {
            let sectors = self.chunk_sectors;
            check_encoded(sectors.into(), self.stored)?;
            if self.skip + self.sectors > sectors
                || chunk % CHUNK_SECTORS + u64::from(sectors) > CHUNK_SECTORS
            {
                return Err("fragment beyond its chunk");
            }
        } else if self.chunk_sectors != 0 {
            return Err("plain chunk with the length of an encoded one");
        }
        if self.birth == Seq(0) {
            return Err("extent that no batch wrote");
        }
        check_counters(&[self.birth.0])?;
        let end = self.phys.offset() + stored;
        if self.phys.segment.0 == 0 || self.phys.segment.0 >= segments || end > segment_bytes {
            return Err("chunk outside the store");
        }
        if self.phys.offset() < RECORDS_START + RECORD_HEADER_BYTES {
            return Err("chunk over a segment header");
        }
        Ok(())
    }
}

/// Sums over the extents in a segment, or below a node of the map. All of the payload of an encoded chunk counts with
/// its first extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Live {
    /// Stored bytes.
    pub(crate) bytes: u64,
    /// Extents.
    pub(crate) extents: u64,
}

// -------------------------------------------------------------------------------------------- leaves

/// Fields of an extent that a leaf packs, each into a column of its own.
pub(crate) const COLUMNS: usize = 6;
/// Zeros behind the columns, so that any value can be loaded eight bytes wide.
pub(crate) const LEAF_PADDING: usize = 8;
/// A leaf of the map has at most this many rows.
pub(crate) const LEAF_ROWS_MAX: usize = 128;
/// Bytes of a row whose columns are as wide as their values can make them.
pub(crate) const ROW_BYTES_MAX: usize = 8 + 8 + 4 + 3 + 4 + 4;
const _: () =
    assert!(SEGMENT_BYTES_MAX as usize / GRAIN <= 1 << 24, "a place in a segment takes three bytes");

/// Head of a leaf; the columns follow, then the padding. In memory and on the device alike.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct MapLeafRaw {
    pub(crate) base: [U64; COLUMNS],
    pub(crate) span: U64,
    pub(crate) len: U16,
    pub(crate) width: [u8; COLUMNS],
}
pub(crate) const LEAF_HEADER_BYTES: usize = size_of::<MapLeafRaw>();
const _: () = assert!(LEAF_HEADER_BYTES == 64);

/// The longest leaf.
pub(crate) const LEAF_BYTES_MAX: usize = LEAF_HEADER_BYTES + LEAF_ROWS_MAX * ROW_BYTES_MAX + LEAF_PADDING;
const _: () = assert!(LEAF_BYTES_MAX <= u16::MAX as usize);

/// Where a leaf lies on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafAddr {
    pub(crate) segment: SegNo,
    /// Offset in the segment / [`GRAIN`].
    pub(crate) grain: u32,
    /// CRC32C of the leaf.
    pub(crate) crc: u32,
    pub(crate) bytes: u16,
}

impl LeafAddr {
    /// The place of `leaf` when it lies at `offset` of `segment`, a multiple of [`GRAIN`].
    pub(crate) fn of(leaf: &[u8], segment: SegNo, offset: usize) -> LeafAddr {
        assert!(offset.is_multiple_of(GRAIN), "leaf at offset {offset}");
        let bytes = u16::try_from(leaf.len()).expect("a leaf has at most LEAF_BYTES_MAX bytes");
        LeafAddr { segment, grain: (offset / GRAIN) as u32, crc: crc32c(leaf), bytes }
    }

    /// Offset in the segment in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.grain as usize * GRAIN
    }
}

// --------------------------------------------------------------------------------------------- index

/// A leaf in the index of a checkpoint.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct MapIndexRaw {
    pub(super) start: U64,
    pub(super) bytes: U64,
    pub(super) segment: U32,
    pub(super) grain: U32,
    pub(super) crc: U32,
    pub(super) leaf_bytes: U16,
    pub(super) extents: U16,
}
pub(crate) const MAP_INDEX_BYTES: usize = size_of::<MapIndexRaw>();
const _: () = assert!(MAP_INDEX_BYTES == 32);

/// See [`MapIndexRaw`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    /// First sector that the leaf is responsible for.
    pub(crate) start: u64,
    /// Sums of its rows.
    pub(crate) live: Live,
    pub(crate) place: LeafAddr,
}

impl IndexEntry {
    pub(crate) fn to_raw(self) -> MapIndexRaw {
        MapIndexRaw {
            start: self.start.into(),
            bytes: self.live.bytes.into(),
            segment: self.place.segment.0.into(),
            grain: self.place.grain.into(),
            crc: self.place.crc.into(),
            leaf_bytes: self.place.bytes.into(),
            extents: u16::try_from(self.live.extents).expect("a leaf has at most LEAF_ROWS_MAX rows").into(),
        }
    }
}

impl MapIndexRaw {
    /// Checks an entry that lies in a verified record, of a store with `segments` segments.
    pub(crate) fn verify(&self, segments: u32, segment_bytes: usize) -> Result<IndexEntry, Flaw> {
        let live = Live { bytes: self.bytes.get(), extents: self.extents.get().into() };
        let place = LeafAddr {
            segment: SegNo(self.segment.get()),
            grain: self.grain.get(),
            crc: self.crc.get(),
            bytes: self.leaf_bytes.get(),
        };
        if !(1..=LEAF_ROWS_MAX as u64).contains(&live.extents)
            || !(1..=live.extents * CHUNK_BYTES as u64).contains(&live.bytes)
        {
            return Err("index entry of a leaf that cannot be");
        }
        if !(LEAF_HEADER_BYTES..=LEAF_BYTES_MAX).contains(&usize::from(place.bytes)) {
            return Err("leaf of a bad length");
        }
        let end = place.offset() + usize::from(place.bytes);
        let inside = place.offset() >= RECORDS_START + RECORD_HEADER_BYTES && end <= segment_bytes;
        if place.segment.0 == 0 || place.segment.0 >= segments || !inside {
            return Err("leaf outside the store");
        }
        if !self.start.get().is_multiple_of(CHUNK_SECTORS) {
            return Err("leaf that starts within a chunk");
        }
        Ok(IndexEntry { start: self.start.get(), live, place })
    }
}

/// What a checkpoint's map holds in one segment.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SegmentLiveRaw {
    pub(super) bytes: U64,
    pub(super) extents: U64,
}
pub(crate) const SEGMENT_LIVE_BYTES: usize = size_of::<SegmentLiveRaw>();
const _: () = assert!(SEGMENT_LIVE_BYTES == 16);

/// A flag in a segment's extent counter: the segment is out of use, because its start could not be read.
const OUT_OF_USE: u64 = 1 << 63;

impl Live {
    pub(crate) fn to_raw(self, is_out_of_use: bool) -> SegmentLiveRaw {
        let mark = if is_out_of_use { OUT_OF_USE } else { 0 };
        SegmentLiveRaw { bytes: self.bytes.into(), extents: (self.extents | mark).into() }
    }
}

impl SegmentLiveRaw {
    /// Checks the counters of one segment of `segment_bytes`. Also returns whether it is out of use.
    pub(crate) fn verify(&self, segment_bytes: usize) -> Result<(Live, bool), Flaw> {
        let extents = self.extents.get();
        let live = Live { bytes: self.bytes.get(), extents: extents & !OUT_OF_USE };
        // Extents share no byte, unless they are parts of an encoded chunk, which has a grain for each of its sectors.
        let fits = live.bytes <= segment_bytes as u64 && live.extents <= live.bytes / GRAIN as u64;
        match (live.bytes == 0) == (live.extents == 0) && fits {
            true => Ok((live, extents & OUT_OF_USE != 0)),
            false => Err("counters of a segment that cannot be"),
        }
    }
}
