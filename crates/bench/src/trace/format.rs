//! Every byte of a trace file. The prose is docs/FORMAT.md, section trace; a test holds it against
//! this file.

use std::mem::size_of;

use lacuna_crc::{crc32c, crc32c_append};
use lacuna_device::SECTOR;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::{TraceOp, TraceSource};

/// The format that this code writes and reads.
pub(super) const VERSION: u32 = 1;
/// Most entries of a frame.
pub(super) const FRAME_ENTRIES_MAX: usize = 4096;
/// Most sectors of an entry; more are several entries.
const ENTRY_SECTORS_MAX: u64 = u32::MAX as u64;

const HEADER_MAGIC: [u8; 8] = *b"LACUNATR";
const FRAME_MAGIC: [u8; 4] = *b"LTRF";

const SOURCE_DEVICE: u32 = 1;
const SOURCE_FILES: u32 = 2;
const OP_WRITE: u8 = 1;
const OP_DISCARD: u8 = 2;
const OP_SYNC: u8 = 3;

/// Why bytes of a trace were not accepted.
pub(super) type Flaw = String;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct TraceHeaderRaw {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    source: U32,
    reserved_a: [u8; 4],
    capacity_bytes: U64,
    reserved_b: [u8; 32],
}
const _: () = assert!(size_of::<TraceHeaderRaw>() == 64);
const HEADER_CRC_AT: usize = 12;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct TraceFrameRaw {
    magic: [u8; 4],
    crc: U32,
    number: U64,
    entries_before: U64,
    entries: U32,
    reserved: [u8; 4],
}
const _: () = assert!(size_of::<TraceFrameRaw>() == 32);
const FRAME_CRC_AT: usize = 4;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct TraceEntryRaw {
    sector: U64,
    sectors: U32,
    op: u8,
    reserved: [u8; 3],
}
const _: () = assert!(size_of::<TraceEntryRaw>() == 16);
pub(super) const ENTRY_BYTES: usize = size_of::<TraceEntryRaw>();

impl TraceHeaderRaw {
    pub(super) fn new(source: TraceSource) -> TraceHeaderRaw {
        let (source, capacity_bytes) = match source {
            TraceSource::Device { capacity_bytes } => (SOURCE_DEVICE, capacity_bytes),
            TraceSource::Files => (SOURCE_FILES, 0),
        };
        let mut raw = TraceHeaderRaw {
            magic: HEADER_MAGIC,
            version: VERSION.into(),
            crc: 0.into(),
            source: source.into(),
            reserved_a: [0; 4],
            capacity_bytes: capacity_bytes.into(),
            reserved_b: [0; 32],
        };
        raw.crc = raw.seal().into();
        raw
    }

    fn seal(&self) -> u32 {
        seal(self.as_bytes(), HEADER_CRC_AT, &[])
    }

    /// This header with a checksum that matches.
    #[cfg(feature = "fuzzing")]
    pub(super) fn sealed(mut self) -> TraceHeaderRaw {
        self.crc = self.seal().into();
        self
    }

    pub(super) fn verify(&self) -> Result<TraceSource, Flaw> {
        if self.magic != HEADER_MAGIC {
            return Err("not a Lacuna trace".into());
        }
        if self.version.get() != VERSION {
            return Err(format!("trace format version {}, only {VERSION} is known here", self.version));
        }
        if self.crc.get() != self.seal() {
            return Err("checksum of the header does not match".into());
        }
        if self.reserved_a != [0; 4] || self.reserved_b != [0; 32] {
            return Err("reserved bytes of the header are not zero".into());
        }
        match (self.source.get(), self.capacity_bytes.get()) {
            (SOURCE_DEVICE, capacity_bytes) => Ok(TraceSource::Device { capacity_bytes }),
            (SOURCE_FILES, 0) => Ok(TraceSource::Files),
            (source, _) => Err(format!("unknown source {source}")),
        }
    }
}

impl TraceFrameRaw {
    /// The header of frame `number`; `entries_before` are in the frames before it.
    pub(super) fn new(number: u64, entries_before: u64, entries: &[TraceEntryRaw]) -> TraceFrameRaw {
        assert!(entries.len() <= FRAME_ENTRIES_MAX, "frame of {} entries", entries.len());
        let mut raw = TraceFrameRaw {
            magic: FRAME_MAGIC,
            crc: 0.into(),
            number: number.into(),
            entries_before: entries_before.into(),
            entries: (entries.len() as u32).into(),
            reserved: [0; 4],
        };
        raw.crc = seal(raw.as_bytes(), FRAME_CRC_AT, entries.as_bytes()).into();
        raw
    }

    /// Entries that follow, as far as the frame header shows. 0 is the end of the trace.
    pub(super) fn entries(&self) -> Result<usize, Flaw> {
        if self.magic != FRAME_MAGIC {
            return Err("no frame where one should begin".into());
        }
        let entries = self.entries.get() as usize;
        if entries > FRAME_ENTRIES_MAX || self.reserved != [0; 4] {
            return Err("damaged frame".into());
        }
        Ok(entries)
    }

    /// Whether frame and entries are those written as number `number`.
    pub(super) fn verify(&self, number: u64, before: u64, entries: &[TraceEntryRaw]) -> Result<(), Flaw> {
        if self.crc.get() != seal(self.as_bytes(), FRAME_CRC_AT, entries.as_bytes()) {
            return Err("checksum of the frame does not match".into());
        }
        if (self.number.get(), self.entries_before.get()) != (number, before) {
            return Err(format!("frame {} where frame {number} should be", self.number));
        }
        Ok(())
    }
}

impl TraceEntryRaw {
    /// The entries of one operation: several for very long ones, none for empty ones. Ranges off the grid of sectors
    /// are rounded: writes to more, discards to less.
    pub(super) fn of(op: TraceOp) -> impl Iterator<Item = TraceEntryRaw> {
        const UNIT: u64 = SECTOR as u64;
        let (kind, first, end) = match op {
            TraceOp::Write { offset, len } => {
                (OP_WRITE, offset / UNIT, offset.saturating_add(len).div_ceil(UNIT))
            }
            TraceOp::Discard { offset, len } => {
                (OP_DISCARD, offset.div_ceil(UNIT), offset.saturating_add(len) / UNIT)
            }
            TraceOp::Sync => (OP_SYNC, 0, 0),
        };
        let mut at = first;
        let mut left =
            if kind == OP_SYNC { 1 } else { end.saturating_sub(first).div_ceil(ENTRY_SECTORS_MAX) };
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let sectors = end.saturating_sub(at).min(ENTRY_SECTORS_MAX);
            let entry = TraceEntryRaw {
                sector: at.into(),
                sectors: (sectors as u32).into(),
                op: kind,
                reserved: [0; 3],
            };
            at += sectors;
            Some(entry)
        })
    }

    pub(super) fn verify(&self) -> Result<TraceOp, Flaw> {
        let unit = SECTOR as u64;
        let len = u64::from(self.sectors.get()) * unit;
        let range = self.sector.get().checked_mul(unit).filter(|offset| offset.checked_add(len).is_some());
        let (Some(offset), [0, 0, 0]) = (range, self.reserved) else {
            return Err("entry beyond all addresses".into());
        };
        match (self.op, offset, len) {
            (OP_WRITE, _, 1..) => Ok(TraceOp::Write { offset, len }),
            (OP_DISCARD, _, 1..) => Ok(TraceOp::Discard { offset, len }),
            (OP_SYNC, 0, 0) => Ok(TraceOp::Sync),
            (op, _, _) => Err(format!("unknown operation {op}")),
        }
    }
}

/// CRC32C of `head`, its four bytes at `crc_at` taken as zero, and `body`.
fn seal(head: &[u8], crc_at: usize, body: &[u8]) -> u32 {
    let crc = crc32c_append(crc32c(&head[..crc_at]), &[0; 4]);
    crc32c_append(crc32c_append(crc, &head[crc_at + 4..]), body)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Rows of a table in the section `## trace` of FORMAT.md: offset, size and name.
    fn documented(title: &str) -> Vec<(usize, usize, String)> {
        let text = include_str!("../../../../docs/FORMAT.md");
        let section = text.split("\n## ").find(|section| section.starts_with("trace\n")).expect("section");
        let table = section.split("\n### ").find(|part| part.starts_with(title)).expect("table");
        table
            .lines()
            .filter_map(|line| {
                let cells: Vec<&str> = line.split('|').map(str::trim).collect();
                Some((cells.get(1)?.parse().ok()?, cells[2].parse().ok()?, cells[3].to_owned()))
            })
            .collect()
    }

    macro_rules! fields {
        ($raw:ident: $($field:ident),*) => {{
            let mut fields: Vec<(usize, usize, String)> =
                vec![$((offset_of!($raw, $field), 0, stringify!($field).to_owned())),*];
            let ends: Vec<usize> =
                fields[1..].iter().map(|field| field.0).chain([size_of::<$raw>()]).collect();
            fields.iter_mut().zip(ends).for_each(|(field, end)| field.1 = end - field.0);
            fields
        }};
    }

    #[test]
    fn format_md_is_right() {
        let header =
            fields!(TraceHeaderRaw: magic, version, crc, source, reserved_a, capacity_bytes, reserved_b);
        assert_eq!(documented("TraceHeaderRaw"), header);
        let frame = fields!(TraceFrameRaw: magic, crc, number, entries_before, entries, reserved);
        assert_eq!(documented("TraceFrameRaw"), frame);
        assert_eq!(documented("TraceEntryRaw"), fields!(TraceEntryRaw: sector, sectors, op, reserved));
    }

    #[test]
    fn operations_survive_and_are_rounded_to_sectors() {
        let back = |op| TraceEntryRaw::of(op).map(|raw| raw.verify().unwrap()).collect::<Vec<_>>();
        let write = TraceOp::Write { offset: 4096, len: 512 };
        assert_eq!((back(write), back(TraceOp::Sync)), (vec![write], vec![TraceOp::Sync]));
        assert_eq!(back(TraceOp::Write { offset: 100, len: 500 }), [TraceOp::Write { offset: 0, len: 1024 }]);
        assert_eq!(back(TraceOp::Discard { offset: 100, len: 500 }), []);
        assert_eq!(
            back(TraceOp::Discard { offset: 100, len: 1000 }),
            [TraceOp::Discard { offset: 512, len: 512 }]
        );
        let long = back(TraceOp::Discard { offset: 512, len: 5 << 41 });
        let total: u64 =
            long.iter().map(|op| if let TraceOp::Discard { len, .. } = op { *len } else { 0 }).sum();
        assert_eq!((long.len(), total), (6, 5 << 41));
    }
}
