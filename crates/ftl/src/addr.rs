//! Addresses and units of the space and of the device.

pub use lacuna_device::SECTOR;

/// Address of a sector in the sparse space; sectors are [`SECTOR`] bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// Number of an accepted batch. Dense: each batch has the number after the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The number after this one.
    pub(crate) fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

/// Number of a segment: bytes `segment * segment_bytes ..` of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SegNo(pub(crate) u32);

/// Unit in which payload is packed, in bytes.
pub(crate) const GRAIN: usize = 16;

/// Payloads that are whole multiples of this many bytes are aligned to it if they are many.
pub(crate) const BLOCK: usize = 4096;

/// Writes are cut at multiples of this many sectors of the space. What lies between two of them is stored, verified and
/// encoded together: a chunk.
pub const CHUNK_SECTORS: u64 = 32;

/// Largest chunk in bytes.
pub(crate) const CHUNK_BYTES: usize = CHUNK_SECTORS as usize * SECTOR;

/// Place of a chunk on the device: a segment and an offset in it in units of [`GRAIN`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PhysAddr {
    pub(crate) segment: SegNo,
    pub(crate) grain: u32,
}

impl PhysAddr {
    /// Offset in the segment in bytes.
    pub(crate) fn offset(self) -> usize {
        self.grain as usize * GRAIN
    }
}
