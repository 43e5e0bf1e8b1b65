//! Forged stores: bytes changed by somebody who also makes the checksums match, so that what is behind the checksums
//! meets values that no version ever wrote.
//!
//! It knows the layout from docs/FORMAT.md and shares no code with what it attacks. All formats seal alike: a CRC32C
//! over a structure, in which the four bytes of the checksum are zeros. [`reseal`] does that for any of them,
//! [`ForgedStore`] finds all structures of a store of the ftl and seals what was changed. Sectors of nvmfs and files of
//! the engine lie in payload, so they are forged through the layer below ([`reseal_sector`], [`reseal_file_part`]).
//!
//! [`try_seeds`] uses many of them and says what became of each ([`Outcome`]).

mod cases;

pub use cases::{Outcome, try_seed, try_seeds, watch};

use std::ops::Range;

use lacuna_crc::{crc32c, crc32c_append};
use lacuna_device::{AlignedBuf, BlockDevice};

use crate::SeededRng;

/// Start of the second superblock slot.
const SECOND_SLOT: usize = 32 << 10;
const GRAIN: usize = 16;
const SUPERBLOCK_BYTES: usize = 256;
const HEADER_BYTES: usize = 64;

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

/// Makes the checksum at `crc_at` of `bytes` match; it starts from `first`.
pub fn reseal(bytes: &mut [u8], crc_at: usize, first: u32) {
    bytes[crc_at..crc_at + 4].fill(0);
    let crc = crc32c_append(first, bytes);
    bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Seals a sector of nvmfs.
pub fn reseal_sector(sector: &mut [u8]) {
    reseal(sector, 8, 0);
}

/// Seals what a file of an engine's store holds at the start of `part`: a page image, a block, a group of the log, a
/// slot of the control file with its salt, or a region of the doublewrite file. False if it is none of these.
pub fn reseal_file_part(part: &mut [u8]) -> bool {
    let len = part.len();
    let (crc_at, sealed) = match part.get(..8) {
        Some(magic) if magic.starts_with(b"LcPg") && len >= HEADER_BYTES => {
            (36, HEADER_BYTES.saturating_add(u32_at(part, 32)))
        }
        Some(magic) if magic.starts_with(b"LcRB") && len >= HEADER_BYTES => (48, len),
        Some(magic) if magic.starts_with(b"LcWG") && len >= 32 => (8, u32_at(part, 12).max(32)),
        Some(b"LacunaDB") if len >= 528 => {
            reseal(&mut part[512..528], 0, 0);
            (12, 48)
        }
        Some(magic) if magic.starts_with(b"LcDW") && len >= 4096 => (4, 4096),
        _ => return false,
    };
    reseal(&mut part[..sealed.min(len)], crc_at, 0);
    true
}

/// Overwrites one number in `field`, a part of `bytes`: with a value at a limit, one close to the old one, or noise.
pub fn forge_number(bytes: &mut [u8], field: Range<usize>, rng: &mut SeededRng) {
    let width = [1, 2, 4, 8][rng.below(4) as usize].min(field.len());
    if width == 0 {
        return;
    }
    // Fields are aligned to their own width, nearly everywhere.
    let at = field.start + rng.below((field.len() / width) as u64) as usize * width;
    let mut old = [0; 8];
    old[..width].copy_from_slice(&bytes[at..at + width]);
    let old = u64::from_le_bytes(old);
    let new = match rng.below(9) {
        0 => 0,
        1 => u64::MAX - rng.below(4),
        2 => old.wrapping_add(1 + rng.below(3)),
        3 => old.wrapping_sub(1 + rng.below(3)),
        4 => old ^ 1 << rng.below(8 * width as u64),
        5 => (1_u64 << rng.below(64)).wrapping_sub(rng.below(2)),
        6 => rng.below(64),
        7 => (u64::MAX >> rng.below(4)).wrapping_shl(1),
        _ => rng.next_u64(),
    };
    bytes[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
}

/// A kind of structure on a device of the ftl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Structure {
    /// A slot of the superblock.
    Superblock,
    /// The header of a segment.
    Segment,
    /// A record, by its kind as it is stored.
    Record(u8),
    /// The summary of a segment, copies included.
    Summary,
}

/// The bytes of a device that holds a sound store, to be forged.
#[derive(Clone)]
pub struct ForgedStore {
    bytes: Vec<u8>,
    segment_bytes: usize,
    structures: Vec<(Structure, Range<usize>)>,
}

impl ForgedStore {
    /// The store on `device`, which is sound.
    ///
    /// # Panics
    /// When the device cannot be read, or holds no store.
    pub fn of(device: &dyn BlockDevice) -> ForgedStore {
        let mut bytes = AlignedBuf::zeroed(device.geometry().capacity_bytes as usize);
        device.read_at(0, &mut bytes).expect("the device can be read");
        let bytes = bytes.to_vec();
        let segment_bytes = u32_at(&bytes, 48);
        let mut store = ForgedStore { bytes, segment_bytes, structures: Vec::new() };
        store.structures = store.find();
        store
    }

    fn find(&self) -> Vec<(Structure, Range<usize>)> {
        let slots = [0, SECOND_SLOT].map(|at| (Structure::Superblock, at..at + SUPERBLOCK_BYTES));
        let mut found = slots.to_vec();
        for at in (self.segment_bytes..self.bytes.len() - HEADER_BYTES + 1).step_by(GRAIN) {
            found.extend(match &self.bytes[at..at + 4] {
                b"LSEG" => Some((Structure::Segment, at..at + HEADER_BYTES)),
                b"LREC" => {
                    let end = at + HEADER_BYTES + u32_at(&self.bytes, at + 56);
                    Some((Structure::Record(self.bytes[at + 8]), at..end))
                }
                b"LFOP" if (at + HEADER_BYTES).is_multiple_of(self.segment_bytes) => {
                    Some((Structure::Summary, at - u32_at(&self.bytes, at + 12)..at + HEADER_BYTES))
                }
                _ => None,
            });
        }
        found.retain(|(_, range)| range.end <= self.bytes.len());
        found
    }

    /// Where the structures lie on the device.
    pub fn structures(&self) -> &[(Structure, Range<usize>)] {
        &self.structures
    }

    /// The bytes of the device, to be changed; [`ForgedStore::seal`] then makes the checksums match.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Puts a number of eight bytes at `offset` into all structures of this kind.
    pub fn put_u64(&mut self, kind: Structure, offset: usize, value: u64) {
        for (_, range) in self.structures.iter().filter(|(other, _)| *other == kind) {
            self.bytes[range.start + offset..][..8].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Forges a number in a random structure, all kinds of structure being equally likely.
    pub fn forge(&mut self, rng: &mut SeededRng) {
        let mut kinds: Vec<Structure> = self.structures.iter().map(|(kind, _)| *kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let kind = kinds[rng.below(kinds.len() as u64) as usize];
        let of_kind: Vec<_> = self.structures.iter().filter(|(other, _)| *other == kind).collect();
        let (_, mut range) = of_kind[rng.below(of_kind.len() as u64) as usize].clone();
        if kind != Structure::Superblock && range.len() > 2 * HEADER_BYTES && rng.chance(50) {
            // Bodies are long; heads decide more.
            range = if kind == Structure::Summary {
                range.end - HEADER_BYTES..range.end
            } else {
                range.start..range.start + HEADER_BYTES
            };
        }
        let before = self.bytes[range.clone()].to_vec();
        forge_number(&mut self.bytes, range.clone(), rng);
        // Both slots hold the same, or the intact one would count.
        if kind == Structure::Superblock {
            let slot = self.bytes[range].to_vec();
            let changed = if before == slot { return } else { slot };
            for at in [0, SECOND_SLOT] {
                self.bytes[at..at + SUPERBLOCK_BYTES].copy_from_slice(&changed);
            }
        }
    }

    /// Makes all checksums match.
    pub fn seal(&mut self) {
        let salt = crc32c(&self.bytes[24..40]);
        let crc_at = [12, 4];
        for (kind, range) in self.structures.clone() {
            match kind {
                Structure::Superblock => reseal(&mut self.bytes[range], crc_at[0], 0),
                Structure::Segment => reseal(&mut self.bytes[range], crc_at[1], salt),
                Structure::Summary => self.seal_summary(range, salt),
                Structure::Record(kind) => {
                    let body = range.start + HEADER_BYTES..range.end;
                    match kind {
                        5 => self.seal_index(body),
                        7 => self.seal_summary(body, salt),
                        _ => {}
                    }
                    self.seal_record(range, salt);
                }
            }
        }
    }

    /// A record is sealed as long as it says that it is, if it can be that long.
    fn seal_record(&mut self, range: Range<usize>, salt: u32) {
        let body = u32_at(&self.bytes, range.start + 56);
        let end = range.start.saturating_add(HEADER_BYTES).saturating_add(body);
        let end = if end <= self.bytes.len() { end } else { range.end };
        reseal(&mut self.bytes[range.start..end], 4, salt);
    }

    /// The copies end where the summary's own bytes begin.
    fn seal_summary(&mut self, range: Range<usize>, salt: u32) {
        let Some(own) = range.end.checked_sub(HEADER_BYTES).filter(|own| *own >= range.start) else { return };
        let start = own.checked_sub(u32_at(&self.bytes, own + 12)).unwrap_or(range.start);
        reseal(&mut self.bytes[start..range.end], own - start + 4, salt);
    }

    /// The checksums of the leaves that an index lists.
    fn seal_index(&mut self, body: Range<usize>) {
        let len = self.bytes.len();
        for at in body.step_by(32).filter(|at| at + 32 <= len) {
            let (segment, grain) = (u32_at(&self.bytes, at + 16), u32_at(&self.bytes, at + 20));
            let len = usize::from(u16::from_le_bytes([self.bytes[at + 28], self.bytes[at + 29]]));
            let start = segment.saturating_mul(self.segment_bytes).saturating_add(grain * GRAIN);
            if let Some(leaf) = self.bytes.get(start..start.saturating_add(len)) {
                let crc = crc32c(leaf);
                self.bytes[at + 24..at + 28].copy_from_slice(&crc.to_le_bytes());
            }
        }
    }

    /// Writes all bytes to `device`, which is as large.
    ///
    /// # Panics
    /// When the device fails.
    pub fn write_to(&self, device: &dyn BlockDevice) {
        let mut buf = AlignedBuf::zeroed(self.bytes.len());
        buf.copy_from_slice(&self.bytes);
        device.write_at(0, &buf).expect("the device can be written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each part: magic, place of the checksum, length.
    #[test]
    fn each_part_of_an_engines_file_is_sealed() {
        for (magic, crc_at, sealed) in [
            (&b"LcPg"[..], 36, 64),
            (b"LcRB", 48, 4096),
            (b"LcWG", 8, 32),
            (b"LacunaDB", 12, 48),
            (b"LcDW", 4, 4096),
        ] {
            let mut part = vec![0; 4096];
            part[..magic.len()].copy_from_slice(magic);
            assert!(reseal_file_part(&mut part));
            let mut expected = part[..sealed].to_vec();
            expected[crc_at..crc_at + 4].fill(0);
            assert_eq!(u32_at(&part, crc_at), crc32c(&expected) as usize, "{magic:?}");
        }
        assert!(!reseal_file_part(&mut [0; 4096]));
    }
}
