//! The bytes of a key block (docs/FORMAT.md, section keys).

use std::mem::size_of;

use lacuna_crc::{crc32c, crc32c_append};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use crate::{
    error::Error,
    limits::{LABEL_BYTES_MAX, SLOTS},
    secret::VOLUME_KEY_BYTES,
};

/// Bytes of a key block.
pub const KEY_BLOCK_BYTES: usize = 4096;
/// The first bytes of a key block.
pub const KEY_BLOCK_MAGIC: [u8; 8] = *b"LACUNAKY";

const VERSION: u32 = 1;
/// AES-256-XTS, data units of 512 bytes, their address as tweak.
const CIPHER_AES_256_XTS: u32 = 1;
/// Argon2id, version 0x13.
const KDF_ARGON2ID: u8 = 1;
/// Key blocks are counted up one by one, as superblocks are: a number beyond this was not counted to.
pub(crate) const SEQUENCE_MAX: u64 = 1 << 62;
/// Bytes of a wrapped volume key: it, and the tag of Poly1305.
pub(crate) const SEALED_BYTES: usize = VOLUME_KEY_BYTES + 16;

const CRC_AT: usize = 12;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct KeyBlockRaw {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    uuid: [u8; 16],
    sequence: U64,
    cipher: U32,
    reserved: [u8; 20],
    slots: [SlotRaw; SLOTS],
    rest: [u8; 1984],
}
const _: () = assert!(size_of::<KeyBlockRaw>() == KEY_BLOCK_BYTES);

/// A slot as it is stored, all of it but `sealed` authenticated by that. All bytes zero: not in use.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SlotRaw {
    kdf: u8,
    source: u8,
    label_bytes: u8,
    reserved: u8,
    memory_kib: U32,
    passes: U32,
    lanes: U32,
    salt: [u8; 32],
    nonce: [u8; 24],
    sealed: [u8; SEALED_BYTES],
    label: [u8; LABEL_BYTES_MAX],
    rest: [u8; 64],
}
const SLOT_BYTES: usize = size_of::<SlotRaw>();
const _: () = assert!(SLOT_BYTES == 256);

/// A slot in use: a volume key wrapped by a secret, and how.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    /// See [`crate::Source`].
    pub(crate) source: u8,
    pub(crate) label: String,
    pub(crate) memory_kib: u32,
    pub(crate) passes: u32,
    pub(crate) salt: [u8; 32],
    pub(crate) nonce: [u8; 24],
    pub(crate) sealed: [u8; SEALED_BYTES],
}

/// What a key block says.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) uuid: [u8; 16],
    pub(crate) sequence: u64,
    pub(crate) slots: [Option<Slot>; SLOTS],
}

impl Slot {
    fn to_raw(&self) -> SlotRaw {
        let mut label = [0; LABEL_BYTES_MAX];
        label[..self.label.len()].copy_from_slice(self.label.as_bytes());
        SlotRaw {
            kdf: KDF_ARGON2ID,
            source: self.source,
            label_bytes: self.label.len() as u8,
            reserved: 0,
            memory_kib: self.memory_kib.into(),
            passes: self.passes.into(),
            lanes: 1.into(),
            salt: self.salt,
            nonce: self.nonce,
            sealed: self.sealed,
            label,
            rest: [0; 64],
        }
    }

    /// What the seal of the slot authenticates beside the key: the store, the cipher, and the rest of the slot.
    pub(crate) fn associated(&self, uuid: &[u8; 16]) -> Vec<u8> {
        let raw = SlotRaw { sealed: [0; SEALED_BYTES], ..self.to_raw() };
        let mut bytes = KEY_BLOCK_MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&CIPHER_AES_256_XTS.to_le_bytes());
        bytes.extend_from_slice(uuid);
        bytes.extend_from_slice(raw.as_bytes());
        bytes
    }
}

impl SlotRaw {
    fn verify(&self) -> Result<Option<Slot>, &'static str> {
        if self.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if self.kdf != KDF_ARGON2ID || self.lanes.get() != 1 {
            return Err("a key slot of an unknown kind");
        }
        if self.reserved != 0 || self.rest != [0; 64] {
            return Err("reserved bytes of a key slot are not zero");
        }
        let (label, behind) = self.label.split_at_checked(self.label_bytes.into()).ok_or(BAD_LABEL)?;
        let label = std::str::from_utf8(label).map_err(|_| BAD_LABEL)?;
        if label.contains(char::is_control) || behind.iter().any(|byte| *byte != 0) {
            return Err(BAD_LABEL);
        }
        Ok(Some(Slot {
            source: self.source,
            label: label.into(),
            memory_kib: self.memory_kib.get(),
            passes: self.passes.get(),
            salt: self.salt,
            nonce: self.nonce,
            sealed: self.sealed,
        }))
    }
}

const BAD_LABEL: &str = "a key slot with a bad label";

impl Content {
    pub(crate) fn encode(&self) -> [u8; KEY_BLOCK_BYTES] {
        let empty = SlotRaw::read_from_bytes(&[0; SLOT_BYTES]).expect("its length");
        let mut raw = KeyBlockRaw {
            magic: KEY_BLOCK_MAGIC,
            version: VERSION.into(),
            crc: 0.into(),
            uuid: self.uuid,
            sequence: self.sequence.into(),
            cipher: CIPHER_AES_256_XTS.into(),
            reserved: [0; 20],
            slots: std::array::from_fn(|slot| self.slots[slot].as_ref().map_or(empty, Slot::to_raw)),
            rest: [0; 1984],
        };
        raw.crc = seal(raw.as_bytes()).into();
        raw.as_bytes().try_into().expect("its length")
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Content, Error> {
        let damaged = |reason| Err(Error::Damaged(reason));
        let Ok((raw, _)) = KeyBlockRaw::ref_from_prefix(bytes) else { return damaged("no key block") };
        if raw.magic != KEY_BLOCK_MAGIC {
            return damaged("no key block");
        }
        if seal(raw.as_bytes()) != raw.crc.get() {
            return damaged("key block checksum does not match");
        }
        if raw.version.get() != VERSION || raw.cipher.get() != CIPHER_AES_256_XTS {
            return damaged("key block of an unknown version or cipher");
        }
        if raw.reserved != [0; 20] || raw.rest.iter().any(|byte| *byte != 0) {
            return damaged("reserved bytes of a key block are not zero");
        }
        if raw.sequence.get() > SEQUENCE_MAX {
            return damaged("a key block with a number beyond all that can be counted to");
        }
        let mut slots = [const { None }; SLOTS];
        for (slot, raw) in slots.iter_mut().zip(&raw.slots) {
            *slot = raw.verify().map_err(Error::Damaged)?;
        }
        Ok(Content { uuid: raw.uuid, sequence: raw.sequence.get(), slots })
    }
}

/// CRC32C of a key block with its crc taken as zero.
fn seal(bytes: &[u8]) -> u32 {
    let crc = crc32c_append(crc32c(&bytes[..CRC_AT]), &[0; 4]);
    crc32c_append(crc, &bytes[CRC_AT + 4..])
}

/// Makes the checksum of a changed block match.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn reseal(bytes: &mut [u8]) {
    let crc = seal(bytes);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Holds docs/FORMAT.md against the code: each row `| offset | bytes | field |` of its tables of keys.
    #[test]
    fn the_document_agrees() {
        let document = include_str!("../../../docs/FORMAT.md");
        let section = document.split("\n## keys\n").nth(1).expect("a section on keys");
        let section = section.split("\n## ").next().unwrap_or_default();
        macro_rules! rows {
            ($kind:ident: $($field:ident),*) => {
                let (_, part) = section.split_once(concat!("\n### ", stringify!($kind))).expect("its heading");
                let part = part.split("\n### ").next().unwrap_or_default();
                let raw = $kind::read_from_bytes(&[0; size_of::<$kind>()]).expect("its length");
                $(
                    let (at, bytes) = (offset_of!($kind, $field), size_of_val(&raw.$field));
                    let row = format!("| {at} | {bytes} | {} |", stringify!($field));
                    assert!(part.contains(&row), "FORMAT.md does not say {row}");
                )*
                assert_eq!(part.matches("\n| ").count() - 1, [$(stringify!($field)),*].len(), "other rows");
            };
        }
        rows!(KeyBlockRaw: magic, version, crc, uuid, sequence, cipher, reserved, slots, rest);
        rows!(SlotRaw: kdf, source, label_bytes, reserved, memory_kib, passes, lanes, salt, nonce, sealed, label, rest);
    }
}
