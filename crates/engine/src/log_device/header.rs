//! The header of a log device, and the file that pairs it with the rest of its store. Pure.

use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

/// Bytes of a slot of the header, and of the file that pairs.
pub(super) const SECTOR: usize = 512;
/// Files of the log that there may be at a time: one, and the next while the first is given back.
pub(super) const FILES_MAX: usize = 4;
const NAME_BYTES: usize = 24;
const MAGIC: u64 = u64::from_le_bytes(*b"LacunaLR");
const PAIR_MAGIC: u64 = u64::from_le_bytes(*b"LacunaLP");
const VERSION: u32 = 1;
/// Greatest offset, length and count that is taken for one that was counted up to.
const COUNTER_MAX: u64 = 1 << 62;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct FileRaw {
    name: [u8; NAME_BYTES],
    base: U64,
    from: U64,
    bytes: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Raw {
    magic: U64,
    version: U32,
    /// CRC32C of the header with this field zero.
    checksum: U32,
    id: [u8; 16],
    opens: U64,
    sequence: U64,
    ring_bytes: U64,
    files: [FileRaw; FILES_MAX],
}

const _: () = assert!(size_of::<Raw>() == 56 + FILES_MAX * 48 && size_of::<Raw>() <= SECTOR);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct PairRaw {
    magic: U64,
    version: U32,
    /// CRC32C of it with this field zero.
    checksum: U32,
    id: [u8; 16],
    opens: U64,
}

const _: () = assert!(size_of::<PairRaw>() == 40);

/// Which store a log device belongs to, and how often both were opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) id: [u8; 16],
    pub(super) opens: u64,
}

/// A file of the log. Its byte `n` lies at byte `base + n` of the ring, modulo the ring's length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RingFile {
    pub(super) name: String,
    pub(super) base: u64,
    /// Bytes before this one were given back.
    pub(super) from: u64,
    pub(super) bytes: u64,
}

/// What the header of a log device says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) pair: Pair,
    /// Counts writes of the header; the slot with the greater one counts.
    pub(super) sequence: u64,
    pub(super) ring_bytes: u64,
    /// Those that were made earlier first.
    pub(super) files: Vec<RingFile>,
}

impl Header {
    pub(super) fn to_sector(&self) -> [u8; SECTOR] {
        let mut files = [FileRaw::new_zeroed(); FILES_MAX];
        assert!(self.files.len() <= FILES_MAX, "{} files of the log", self.files.len());
        for (raw, file) in files.iter_mut().zip(&self.files) {
            raw.name[..file.name.len()].copy_from_slice(file.name.as_bytes());
            (raw.base, raw.from, raw.bytes) = (file.base.into(), file.from.into(), file.bytes.into());
        }
        let mut raw = Raw {
            magic: MAGIC.into(),
            version: VERSION.into(),
            checksum: 0.into(),
            id: self.pair.id,
            opens: self.pair.opens.into(),
            sequence: self.sequence.into(),
            ring_bytes: self.ring_bytes.into(),
            files,
        };
        raw.checksum = lacuna_crc::crc32c(raw.as_bytes()).into();
        sector(raw.as_bytes())
    }

    /// Nothing where there is no whole header; the reason where there is one that cannot be.
    pub(super) fn of(sector: &[u8]) -> Option<Result<Header, &'static str>> {
        let (mut raw, _) = Raw::read_from_prefix(sector).expect("a sector is longer");
        let checksum = std::mem::replace(&mut raw.checksum, 0.into());
        if raw.magic != MAGIC || lacuna_crc::crc32c(raw.as_bytes()) != checksum.get() {
            return None;
        }
        Some(Header::parse(&raw))
    }

    fn parse(raw: &Raw) -> Result<Header, &'static str> {
        if raw.version != VERSION {
            return Err("was written by a newer version");
        }
        let (opens, sequence) = (raw.opens.get(), raw.sequence.get());
        let mut header = Header {
            pair: Pair { id: raw.id, opens },
            sequence,
            ring_bytes: raw.ring_bytes.get(),
            files: Vec::new(),
        };
        let mut counters = vec![opens, sequence, header.ring_bytes];
        for file in &raw.files {
            let end = file.name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
            if end == 0 {
                break;
            }
            let name = str::from_utf8(&file.name[..end]).map_err(|_| "names a file in no text")?;
            let (base, from, bytes) = (file.base.get(), file.from.get(), file.bytes.get());
            counters.extend([base, from, bytes]);
            header.files.push(RingFile { name: name.to_owned(), base, from, bytes });
        }
        match counters.iter().all(|counter| *counter < COUNTER_MAX) {
            true => Ok(header),
            false => Err("counts further than anything can"),
        }
    }

    /// Whether a file of that name has space in a header.
    pub(super) fn takes_name(name: &str) -> bool {
        !name.is_empty() && name.len() <= NAME_BYTES && !name.contains('\0')
    }
}

impl Pair {
    pub(super) fn to_sector(self) -> [u8; SECTOR] {
        let mut raw = PairRaw {
            magic: PAIR_MAGIC.into(),
            version: VERSION.into(),
            checksum: 0.into(),
            id: self.id,
            opens: self.opens.into(),
        };
        raw.checksum = lacuna_crc::crc32c(raw.as_bytes()).into();
        sector(raw.as_bytes())
    }

    pub(super) fn of(sector: &[u8]) -> Option<Pair> {
        let (mut raw, _) = PairRaw::read_from_prefix(sector).expect("a sector is longer");
        let checksum = std::mem::replace(&mut raw.checksum, 0.into());
        let is_whole = raw.magic == PAIR_MAGIC
            && raw.version == VERSION
            && lacuna_crc::crc32c(raw.as_bytes()) == checksum.get()
            && raw.opens.get() < COUNTER_MAX;
        is_whole.then_some(Pair { id: raw.id, opens: raw.opens.get() })
    }
}

/// Both structures as they are, and under a valid checksum; the header if it is one then. See the module fuzz.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzz(bytes: &[u8; SECTOR]) -> Option<Header> {
    let (mut raw, _) = PairRaw::read_from_prefix(bytes).expect("a sector is longer");
    let _ = Pair::of(bytes);
    (raw.magic, raw.version, raw.checksum) = (PAIR_MAGIC.into(), VERSION.into(), 0.into());
    raw.checksum = lacuna_crc::crc32c(raw.as_bytes()).into();
    if let Some(pair) = Pair::of(&sector(raw.as_bytes())) {
        assert_eq!(pair.to_sector(), sector(raw.as_bytes()));
    }
    let (mut raw, _) = Raw::read_from_prefix(bytes).expect("a sector is longer");
    let _ = Header::of(bytes);
    (raw.magic, raw.checksum) = (MAGIC.into(), 0.into());
    raw.checksum = lacuna_crc::crc32c(raw.as_bytes()).into();
    let header = Header::of(&sector(raw.as_bytes())).expect("magic and checksum are right").ok()?;
    assert_eq!(Header::of(&header.to_sector()), Some(Ok(header.clone())));
    Some(header)
}

fn sector(bytes: &[u8]) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    sector[..bytes.len()].copy_from_slice(bytes);
    sector
}

/// Rows of FORMAT.md: structure, offset, bytes, field.
#[cfg(test)]
pub(crate) const LAYOUT: &[(&str, usize, usize, &str)] = &[
    ("log device", std::mem::offset_of!(Raw, magic), 8, "magic"),
    ("log device", std::mem::offset_of!(Raw, version), 4, "version"),
    ("log device", std::mem::offset_of!(Raw, checksum), 4, "checksum"),
    ("log device", std::mem::offset_of!(Raw, id), 16, "id"),
    ("log device", std::mem::offset_of!(Raw, opens), 8, "opens"),
    ("log device", std::mem::offset_of!(Raw, sequence), 8, "sequence"),
    ("log device", std::mem::offset_of!(Raw, ring_bytes), 8, "ring_bytes"),
    ("log device", std::mem::offset_of!(Raw, files), size_of::<[FileRaw; FILES_MAX]>(), "files"),
    ("log file", std::mem::offset_of!(FileRaw, name), NAME_BYTES, "name"),
    ("log file", std::mem::offset_of!(FileRaw, base), 8, "base"),
    ("log file", std::mem::offset_of!(FileRaw, from), 8, "from"),
    ("log file", std::mem::offset_of!(FileRaw, bytes), 8, "bytes"),
    ("log pair", std::mem::offset_of!(PairRaw, magic), 8, "magic"),
    ("log pair", std::mem::offset_of!(PairRaw, version), 4, "version"),
    ("log pair", std::mem::offset_of!(PairRaw, checksum), 4, "checksum"),
    ("log pair", std::mem::offset_of!(PairRaw, id), 16, "id"),
    ("log pair", std::mem::offset_of!(PairRaw, opens), 8, "opens"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let file = |name: &str, base| RingFile { name: name.into(), base, from: 512, bytes: 1 << 26 };
        Header {
            pair: Pair { id: [7; 16], opens: 3 },
            sequence: 9,
            ring_bytes: 1 << 20,
            files: vec![file("wal.000000", 0), file("wal.000001", 4096)],
        }
    }

    #[test]
    fn headers_survive_and_damage_does_not() {
        let sector = header().to_sector();
        assert_eq!(Header::of(&sector), Some(Ok(header())));
        let pair = header().pair.to_sector();
        assert_eq!(Pair::of(&pair), Some(header().pair));
        for bit in 0..size_of::<Raw>() * 8 {
            let mut bad = sector;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::of(&bad), None, "bit {bit}");
        }
        for bit in 0..size_of::<PairRaw>() * 8 {
            let mut bad = pair;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Pair::of(&bad), None, "bit {bit}");
        }
    }

    #[test]
    fn forged_counts_are_refused() {
        let mut forged = header();
        forged.files[1].from = u64::MAX;
        assert!(matches!(Header::of(&forged.to_sector()), Some(Err(_))));
        forged = Header { ring_bytes: u64::MAX, ..header() };
        assert!(matches!(Header::of(&forged.to_sector()), Some(Err(_))));
    }
}
