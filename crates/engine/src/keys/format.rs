//! The bytes of the key files (docs/FORMAT.md, section engine).

use lacuna_crypt::{KEY_BLOCK_BYTES, WRAPPED_KEY_BYTES};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U32};

use crate::types::TableId;

/// Unit in which keys are written.
pub(super) const SECTOR: usize = 512;
/// Where the first entry lies: behind the key block.
pub(super) const ENTRIES_AT: u64 = KEY_BLOCK_BYTES as u64;
/// Entries of a file, at most.
pub(super) const ENTRIES_MAX: usize = 1 << 20;

const MAGIC: u32 = u32::from_le_bytes(*b"LcKE");
const VERSION: u32 = 1;

/// A key, wrapped by the engine's key. The rest of its sector is zero.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct EntryRaw {
    magic: U32,
    version: U32,
    /// CRC32C of the entry with this field zero.
    checksum: U32,
    table: U32,
    pub(super) wrapped: [u8; WRAPPED_KEY_BYTES],
}

const _: () = assert!(size_of::<EntryRaw>() <= SECTOR);

/// What a wrapped key is for; authenticated with it.
pub(super) fn context(uuid: &[u8; 16], table: TableId) -> Vec<u8> {
    let mut context = b"LACUNA engine key v1".to_vec();
    context.extend_from_slice(uuid);
    context.extend_from_slice(&table.0.to_le_bytes());
    context
}

pub(super) fn encode(table: TableId, wrapped: [u8; WRAPPED_KEY_BYTES]) -> EntryRaw {
    let entry = EntryRaw {
        magic: MAGIC.into(),
        version: VERSION.into(),
        checksum: 0.into(),
        table: table.0.into(),
        wrapped,
    };
    EntryRaw { checksum: lacuna_crc::crc32c(entry.as_bytes()).into(), ..entry }
}

/// Table and wrapped key of an entry; `None` for what is none.
pub(super) fn parse(sector: &[u8]) -> Option<(TableId, [u8; WRAPPED_KEY_BYTES])> {
    let (entry, rest) = EntryRaw::read_from_prefix(sector).ok()?;
    let cleared = EntryRaw { checksum: 0.into(), ..entry };
    let is_sound = entry.magic.get() == MAGIC
        && entry.version.get() == VERSION
        && lacuna_crc::crc32c(cleared.as_bytes()) == entry.checksum.get()
        && rest.iter().all(|byte| *byte == 0);
    is_sound.then_some((TableId(entry.table.get()), entry.wrapped))
}

/// An entry as it is, and under a valid checksum; see the module fuzz.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let mut sector = [0; SECTOR];
    let len = bytes.len().min(SECTOR);
    sector[..len].copy_from_slice(&bytes[..len]);
    let _ = parse(&sector);
    let (entry, _) = EntryRaw::read_from_prefix(&sector).expect("a sector is longer");
    let sealed = encode(TableId(entry.table.get()), entry.wrapped);
    sector[..size_of::<EntryRaw>()].copy_from_slice(sealed.as_bytes());
    let is_clear = sector[size_of::<EntryRaw>()..].iter().all(|byte| *byte == 0);
    let sound = (TableId(entry.table.get()), entry.wrapped);
    assert_eq!(parse(&sector), is_clear.then_some(sound));
}

/// Rows of FORMAT.md: structure, offset, bytes, field.
#[cfg(test)]
pub(crate) const LAYOUT: &[(&str, usize, usize, &str)] = &[
    ("key entry", std::mem::offset_of!(EntryRaw, magic), 4, "magic"),
    ("key entry", std::mem::offset_of!(EntryRaw, version), 4, "version"),
    ("key entry", std::mem::offset_of!(EntryRaw, checksum), 4, "checksum"),
    ("key entry", std::mem::offset_of!(EntryRaw, table), 4, "table"),
    ("key entry", std::mem::offset_of!(EntryRaw, wrapped), WRAPPED_KEY_BYTES, "wrapped"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_survives_and_every_flipped_bit_is_noticed() {
        let mut sector = vec![0; SECTOR];
        let entry = encode(TableId(17), [7; WRAPPED_KEY_BYTES]);
        sector[..size_of::<EntryRaw>()].copy_from_slice(entry.as_bytes());
        assert_eq!(parse(&sector), Some((TableId(17), [7; WRAPPED_KEY_BYTES])));
        for bit in 0..SECTOR * 8 {
            sector[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&sector), None, "bit {bit}");
            sector[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(parse(&[0; SECTOR]), None, "free");
    }
}
