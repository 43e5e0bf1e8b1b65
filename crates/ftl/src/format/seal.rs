//! Checksums, and types that several structures share.

use lacuna_crc::{crc32c, crc32c_append};

use crate::addr::{SegNo, Seq};

/// Why bytes from a device were not accepted.
pub(crate) type Flaw = &'static str;

/// First value of every checksum in a store, so that bytes of another store never pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Salt(pub(super) u32);

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

/// Batches, relocations, epochs, generations and superblocks are counted up one by one. A store in which one of these
/// numbers is larger was not made by counting; it is refused, so that none ever overflows. From half of that on a store
/// can only be salvaged, and from a quarter on a check reports it: what a check calls sound can be used for longer than
/// anybody lives.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;

pub(crate) const BEYOND_COUNTER_MAX: Flaw = "a counter beyond all that can be counted to";

/// Refuses counters that were not counted up to.
pub(crate) fn check_counters(counters: &[u64]) -> Result<(), Flaw> {
    match counters.iter().all(|counter| *counter <= COUNTER_MAX) {
        true => Ok(()),
        false => Err(BEYOND_COUNTER_MAX),
    }
}

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

/// Which life of which segment a record belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) segment: SegNo,
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
}
