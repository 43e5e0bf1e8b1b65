//! Bytes of the write-ahead log. Pure.
//!
//! The log is a file whose offsets only grow; an [`Lsn`] is one of them. It is a chain of *groups*,
//! each starting on a sector: a header, then mini-transaction records back to back. A group carries
//! its own offset and one checksum over all of it, so that a torn group, or the remains of an older
//! one, are never taken for a whole one; and it carries the store's salt, so that bytes of a value never are.

use std::{fs::File, io::Read};

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32, U64},
};

use lacuna_page::PageCipher;

use crate::types::{Lsn, Result};

/// Unit in which groups are written and addressed, in bytes.
pub(crate) const SECTOR: usize = 512;
/// Length of a group's header in bytes.
pub(crate) const HEADER_BYTES: usize = size_of::<GroupHeader>();
/// Length of the longest group in bytes. What is logged at a time comes nowhere near it; so a forged length takes no
/// more memory than this.
pub(crate) const GROUP_BYTES_MAX: usize = 64 << 20;
/// Length prefix of a record in bytes.
pub(crate) const RECORD_PREFIX: usize = 4;

const MAGIC: u32 = u32::from_le_bytes(*b"LcWG");
const VERSION: u16 = 1;
/// Flag: all behind the header is encrypted, to the end of the last sector.
const ENCRYPTED: u16 = 1;

/// Header of a group.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct GroupHeader {
    magic: U32,
    version: U16,
    /// [`ENCRYPTED`].
    flags: U16,
    /// CRC32C of the group with this field zero; of one that is encrypted, up to the end of its last sector.
    checksum: U32,
    /// Bytes of header and records.
    bytes: U32,
    /// The group's own offset, XORed with the salt.
    start: U64,
    /// Opening of the store that wrote it.
    epoch: U64,
}

const _: () = assert!(HEADER_BYTES == 32);

/// A number of the store's own, not 0, that each of its groups carries whole: the checksum alone would leave only 32
/// bits to guess, and a log holds many guesses. Users who write values do not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Salt(pub(crate) u64);

impl Salt {
    /// One for a new store.
    pub(crate) fn random() -> Result<Salt> {
        const SOURCE: &str = "/dev/urandom";
        let mut salt = [0; 8];
        File::open(SOURCE)
            .and_then(|mut source| source.read_exact(&mut salt))
            .map_err(|error| lacuna_device::Error::io(SOURCE, error))?;
        Ok(Salt(u64::from_le_bytes(salt).max(1)))
    }
}

/// A group in the making.
pub(crate) struct GroupBuilder {
    bytes: Vec<u8>,
    start: Lsn,
}

impl GroupBuilder {
    pub(crate) fn new(start: Lsn, mut bytes: Vec<u8>) -> GroupBuilder {
        assert!(start.0.is_multiple_of(SECTOR as u64));
        bytes.clear();
        bytes.resize(HEADER_BYTES, 0);
        GroupBuilder { bytes, start }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() == HEADER_BYTES
    }

    /// Offset just after the last record.
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.start.0 + self.bytes.len() as u64)
    }

    pub(crate) fn start(&self) -> Lsn {
        self.start
    }

    /// Length so far in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends one mini-transaction; returns where it starts and ends.
    pub(crate) fn push(&mut self, ops: &[u8]) -> (Lsn, Lsn) {
        let start = self.end();
        self.bytes.extend_from_slice(&(ops.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(ops);
        (start, self.end())
    }

    /// Seals the group: bytes to write at [`GroupBuilder::start`], padded to whole sectors.
    pub(crate) fn seal(mut self, epoch: u64, salt: Salt) -> (Lsn, Vec<u8>) {
        assert!(self.bytes.len() <= GROUP_BYTES_MAX, "recovery would take it for none");
        let mut header = GroupHeader {
            magic: MAGIC.into(),
            version: VERSION.into(),
            flags: 0.into(),
            checksum: 0.into(),
            bytes: (self.bytes.len() as u32).into(),
            start: (self.start.0 ^ salt.0).into(),
            epoch: epoch.into(),
        };
        self.bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        header.checksum = lacuna_crc::crc32c(&self.bytes).into();
        self.bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(SECTOR), 0);
        (self.start, self.bytes)
    }
}

/// Offset at which the group after one that ends at `end` starts.
pub(crate) fn next_group(end: Lsn) -> Lsn {
    Lsn(end.0.next_multiple_of(SECTOR as u64))
}

/// Length in bytes and epoch that a group at `at` claims, when `first` (at least [`HEADER_BYTES`] long) looks like its
/// beginning. Not yet verified.
pub(crate) fn claim(first: &[u8], at: Lsn, salt: Salt) -> Option<(usize, u64)> {
    let (header, _) = GroupHeader::read_from_prefix(first).ok()?;
    let bytes = header.bytes.get() as usize;
    let sound = header.magic == MAGIC
        && header.version == VERSION
        && header.start == at.0 ^ salt.0
        && bytes > HEADER_BYTES
        && bytes <= GROUP_BYTES_MAX;
    sound.then_some((bytes, header.epoch.get()))
}

/// The records of a whole group at `at`, and the epoch that wrote it; `None` when it is not one.
pub(crate) fn open_group(group: &[u8], at: Lsn, salt: Salt) -> Option<(u64, GroupRecords<'_>)> {
    let (bytes, epoch) = claim(group, at, salt)?;
    let (mut header, _) = GroupHeader::read_from_prefix(group).ok()?;
    let covered = match header.flags.get() {
        0 => bytes,
        ENCRYPTED => bytes.next_multiple_of(SECTOR),
        _ => return None,
    };
    let body = &group.get(..covered)?[HEADER_BYTES..];
    let want = header.checksum.get();
    header.checksum = 0.into();
    if lacuna_crc::crc32c_append(lacuna_crc::crc32c(header.as_bytes()), body) != want {
        return None;
    }
    Some((epoch, GroupRecords::new(body, at)))
}

/// Encrypts a sealed group, whole sectors that lie at `at`. Its data units begin behind the header, so they are no more
/// than its sectors.
///
/// The tweak is `epoch << 64 | sector of the log`. Within an opening a group is never replaced by other bytes, and the
/// next opening has another epoch, durably, before it appends (wal, invariant 3). So no tweak is used for two texts,
/// also where the log's end was lost and is written again. A stream cipher with this as nonce would be as good, until
/// somebody copies a store and opens both copies: they write different groups at one place in one epoch, which would then
/// show the difference of their texts. In XTS they show which blocks of 16 bytes are equal, and nothing else.
pub(crate) fn encrypt_group(group: &mut [u8], at: Lsn, cipher: &dyn PageCipher) {
    let (header, body) = group.split_at_mut(HEADER_BYTES);
    let mut raw = GroupHeader::read_from_bytes(header).expect("its length");
    cipher.encrypt(tweak(&raw, at), body);
    raw.flags = ENCRYPTED.into();
    raw.checksum = 0.into();
    raw.checksum = lacuna_crc::crc32c_append(lacuna_crc::crc32c(raw.as_bytes()), body).into();
    header.copy_from_slice(raw.as_bytes());
}

fn tweak(header: &GroupHeader, at: Lsn) -> u128 {
    u128::from(header.epoch.get()) << 64 | u128::from(at.0 / SECTOR as u64)
}

/// Whether a whole group is encrypted.
pub(crate) fn is_encrypted(group: &[u8]) -> bool {
    let (header, _) = GroupHeader::read_from_prefix(group).expect("a group is longer");
    header.flags == ENCRYPTED
}

/// What a whole group at `at`, whole sectors, has behind its header, decrypted.
pub(crate) fn decrypt_group(group: &[u8], at: Lsn, cipher: &dyn PageCipher, plain: &mut Vec<u8>) {
    let (header, body) = GroupHeader::read_from_prefix(group).expect("a group is longer");
    plain.clear();
    plain.extend_from_slice(body);
    cipher.decrypt(tweak(&header, at), plain);
    plain.truncate(header.bytes.get() as usize - HEADER_BYTES);
}

/// Iterates over the mini-transactions of a group.
pub(crate) struct GroupRecords<'a> {
    body: &'a [u8],
    at: Lsn,
}

impl<'a> GroupRecords<'a> {
    /// Those of a group at `at` that has `body` behind its header.
    pub(crate) fn new(body: &'a [u8], at: Lsn) -> GroupRecords<'a> {
        GroupRecords { body, at: Lsn(at.0 + HEADER_BYTES as u64) }
    }
}

/// One mini-transaction of the log.
pub(crate) struct LogRecord<'a> {
    pub(crate) start: Lsn,
    pub(crate) end: Lsn,
    /// Its page operations, encoded.
    pub(crate) ops: &'a [u8],
}

impl<'a> Iterator for GroupRecords<'a> {
    type Item = LogRecord<'a>;

    fn next(&mut self) -> Option<LogRecord<'a>> {
        let (prefix, rest) = self.body.split_at_checked(RECORD_PREFIX)?;
        let len = u32::from_le_bytes(prefix.try_into().expect("four bytes")) as usize;
        let (ops, rest) = rest.split_at_checked(len)?;
        let start = self.at;
        self.at = Lsn(start.0 + (RECORD_PREFIX + len) as u64);
        self.body = rest;
        Some(LogRecord { start, end: self.at, ops })
    }
}

/// Rows of FORMAT.md: structure, offset, bytes, field.
#[cfg(test)]
pub(crate) const LAYOUT: &[(&str, usize, usize, &str)] = &[
    ("group", std::mem::offset_of!(GroupHeader, magic), 4, "magic"),
    ("group", std::mem::offset_of!(GroupHeader, version), 2, "version"),
    ("group", std::mem::offset_of!(GroupHeader, flags), 2, "flags"),
    ("group", std::mem::offset_of!(GroupHeader, checksum), 4, "checksum"),
    ("group", std::mem::offset_of!(GroupHeader, bytes), 4, "bytes"),
    ("group", std::mem::offset_of!(GroupHeader, start), 8, "start"),
    ("group", std::mem::offset_of!(GroupHeader, epoch), 8, "epoch"),
];

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: Salt = Salt(7);

    fn group() -> (Lsn, Vec<u8>) {
        let mut group = GroupBuilder::new(Lsn(1024), Vec::new());
        group.push(b"first");
        group.push(&[7; 600]);
        group.seal(3, SALT)
    }

    #[test]
    fn a_group_survives() {
        let (start, bytes) = group();
        assert_eq!(bytes.len() % SECTOR, 0);
        let (epoch, records) = open_group(&bytes, start, SALT).expect("whole");
        assert_eq!(epoch, 3);
        let ops: Vec<_> = records.map(|r| (r.start.0, r.end.0, r.ops.len())).collect();
        assert_eq!(ops, [(1056, 1065, 5), (1065, 1669, 600)]);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (start, bytes) = group();
        let (used, _) = claim(&bytes, start, SALT).expect("header");
        for bit in 0..used * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open_group(&bad, start, SALT).is_none(), "bit {bit}");
        }
        assert!(open_group(&bytes, Lsn(0), SALT).is_none(), "not its place");
        assert!(open_group(&bytes[..SECTOR], start, SALT).is_none(), "cut short");
        assert!(open_group(&bytes, start, Salt(8)).is_none(), "of another store");
    }

    /// Notes the tweaks of all units; encrypts by adding to each byte.
    #[derive(Default)]
    struct Noting(std::sync::Mutex<Vec<u128>>);

    impl PageCipher for Noting {
        fn encrypt(&self, tweak: u128, data: &mut [u8]) {
            let units = data.len().div_ceil(SECTOR) as u128;
            self.0.lock().expect("alone").extend(tweak..tweak + units);
            data.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        }

        fn decrypt(&self, _: u128, data: &mut [u8]) {
            data.iter_mut().for_each(|byte| *byte = byte.wrapping_sub(1));
        }
    }

    #[test]
    fn an_encrypted_group_survives_and_every_flipped_bit_is_noticed() {
        let (start, plain) = group();
        let (mut bytes, cipher) = (plain.clone(), Noting::default());
        encrypt_group(&mut bytes, start, &cipher);
        assert!(is_encrypted(&bytes) && !is_encrypted(&plain));
        assert!(bytes[HEADER_BYTES..].iter().zip(&plain[HEADER_BYTES..]).all(|(a, b)| a != b));
        assert_eq!(open_group(&bytes, start, SALT).expect("whole, without a key").0, 3);
        let mut body = Vec::new();
        decrypt_group(&bytes, start, &cipher, &mut body);
        let ops: Vec<_> =
            GroupRecords::new(&body, start).map(|r| (r.start.0, r.end.0, r.ops.len())).collect();
        assert_eq!(ops, [(1056, 1065, 5), (1065, 1669, 600)]);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(open_group(&bytes, start, SALT).is_none(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Groups that follow each other, and others in their places after the next opening.
    #[test]
    fn no_tweak_is_used_for_two_openings() {
        let cipher = Noting::default();
        for epoch in [3, 4] {
            let mut start = Lsn(1024);
            for record in [1, 470, 480, 482, 512, 5000, 3] {
                let mut group = GroupBuilder::new(start, Vec::new());
                group.push(&vec![7; record]);
                start = next_group(group.end());
                let (at, mut bytes) = group.seal(epoch, SALT);
                encrypt_group(&mut bytes, at, &cipher);
            }
        }
        let mut tweaks = cipher.0.into_inner().expect("alone");
        let all = tweaks.len();
        tweaks.sort_unstable();
        tweaks.dedup();
        assert_eq!(tweaks.len(), all);
    }
}
