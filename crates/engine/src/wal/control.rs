//! The control file: where recovery starts.
//!
//! Two slots of 4 KiB. In each, the first sector names the checkpoint, and the second holds the store's salt; both have
//! a checksum. The valid slot with the greater sequence counts. The other slot is overwritten, so a torn write costs
//! nothing. The file is written before the log that it makes superfluous is freed; on storage that is not `ordered` it
//! is synced in between.

use std::sync::Arc;

use lacuna_device::{AlignedBuf, File, StreamHint, Vfs};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use crate::{
    sync::Mutex,
    types::{Error, Lsn, Result},
    wal::Salt,
};

/// The file's name.
pub(crate) const NAME: &str = "control";
const SLOT_BYTES: u64 = 4096;
const SECTOR: usize = 512;
/// Greatest sequence, epoch and offset in the log that is taken for one that was counted up to.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;
const MAGIC: u64 = u64::from_le_bytes(*b"LacunaDB");
const VERSION: u32 = 1;
/// Features that a reader of version 1 must know. A later program that writes something else adds a bit; a program that
/// does not know the bit refuses the store by name.
const FEATURES: u64 = 0b11_1111_1111;
/// A feature that stores have once they need it: blocks of row-compressed tables that are neither a half nor a quarter
/// of a page, or shorter than 4 KiB.
pub(crate) const ANY_BLOCKS: u64 = 1 << 10;
/// A feature of stores with keys: log, undo and some tables are encrypted.
pub(crate) const ENCRYPTED: u64 = 1 << 11;
/// A feature that stores have once they need it: adaptive tables.
pub(crate) const ADAPTIVE: u64 = 1 << 12;
/// A feature that stores have once they need it: row-compressed tables by LZ4.
pub(crate) const ROW_LZ4: u64 = 1 << 13;
/// A feature of stores where files have no holes: the log's files are short ([`super::SHORT_SEGMENT_BYTES`]).
pub(crate) const SHORT_LOG_FILES: u64 = 1 << 14;
/// Those features.
const OPTIONAL: u64 = ANY_BLOCKS | ENCRYPTED | ADAPTIVE | ROW_LZ4 | SHORT_LOG_FILES;

/// The first sector of a slot.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
struct Slot {
    magic: U64,
    version: U32,
    /// CRC32C of the slot with this field zero.
    checksum: U32,
    features: U64,
    sequence: U64,
    epoch: U64,
    checkpoint: U64,
}

const _: () = assert!(size_of::<Slot>() == 48);

/// The second sector of a slot.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
struct SaltRaw {
    /// CRC32C of it with this field zero.
    checksum: U32,
    reserved: U32,
    salt: U64,
}

const _: () = assert!(size_of::<SaltRaw>() == 16);

/// The start of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    /// Counts openings; groups of the log carry it.
    pub(crate) epoch: u64,
    /// Where recovery starts reading the log: the start of a group.
    pub(crate) checkpoint: Lsn,
    /// The salt that the log's groups carry.
    pub(crate) salt: Salt,
    /// Features beyond those of every store.
    pub(crate) features: u64,
}

/// The open control file.
pub(crate) struct Control {
    file: Arc<dyn File>,
    last: Mutex<(u64, Root)>,
}

impl Control {
    /// Makes the file; durable on return.
    pub(crate) fn create(vfs: &dyn Vfs, root: Root) -> Result<()> {
        let file = vfs.create(NAME, StreamHint::Data)?;
        file.set_len(2 * SLOT_BYTES)?;
        // There is no other slot yet: this one must be blank, or whole.
        file.write_at(SLOT_BYTES + SECTOR as u64, &salt_sector(root.salt))?;
        file.sync()?;
        write(&*file, 1, root)?;
        file.sync()?;
        Ok(())
    }

    /// Opens and reads the file. `None` when there is none, or one whose making was interrupted.
    pub(crate) fn open(vfs: &dyn Vfs) -> Result<Option<(Control, Root)>> {
        let file = match vfs.open(NAME, StreamHint::Data) {
            Ok(file) => file,
            Err(lacuna_device::Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let mut found = None;
        let mut all_blank = true;
        for slot in 0..2 {
            let mut sectors = AlignedBuf::zeroed(2 * SECTOR);
            file.read_at(slot * SLOT_BYTES, &mut sectors)?;
            all_blank &= sectors[..SECTOR].iter().all(|byte| *byte == 0);
            if let Some((sequence, root)) = parse(&sectors, vfs.name())?
                && found.is_none_or(|(newest, _)| sequence > newest)
            {
                found = Some((sequence, root));
            }
        }
        match found {
            Some((sequence, root)) => Ok(Some((Control { file, last: Mutex::new((sequence, root)) }, root))),
            None if all_blank => Ok(None),
            None => Err(Error::Corrupt {
                what: format!("{}: {NAME}", vfs.name()),
                at: "both slots".into(),
                reason: "checksum does not match".into(),
            }),
        }
    }

    /// Times that it was written.
    pub(crate) fn sequence(&self) -> u64 {
        self.last.lock().0
    }

    /// The root that was last read or written.
    pub(crate) fn root(&self) -> Root {
        self.last.lock().1
    }

    /// Replaces the root. One caller at a time.
    pub(crate) fn write(&self, root: Root, sync: bool) -> Result<()> {
        let sequence = self.last.lock().0 + 1;
        write(&*self.file, sequence, root)?;
        if sync {
            self.file.sync()?;
        }
        *self.last.lock() = (sequence, root);
        Ok(())
    }
}

fn write(file: &dyn File, sequence: u64, root: Root) -> Result<()> {
    let mut slot = Slot {
        magic: MAGIC.into(),
        version: VERSION.into(),
        checksum: 0.into(),
        features: (FEATURES | root.features).into(),
        sequence: sequence.into(),
        epoch: root.epoch.into(),
        checkpoint: root.checkpoint.0.into(),
    };
    slot.checksum = lacuna_crc::crc32c(slot.as_bytes()).into();
    let mut sectors = AlignedBuf::zeroed(2 * SECTOR);
    sectors[..size_of::<Slot>()].copy_from_slice(slot.as_bytes());
    sectors[SECTOR..].copy_from_slice(&salt_sector(root.salt));
    file.write_at(sequence % 2 * SLOT_BYTES, &sectors)?;
    Ok(())
}

/// The second sector of a slot.
fn salt_sector(salt: Salt) -> AlignedBuf {
    let mut raw = SaltRaw { checksum: 0.into(), reserved: 0.into(), salt: salt.0.into() };
    raw.checksum = lacuna_crc::crc32c(raw.as_bytes()).into();
    let mut sector = AlignedBuf::zeroed(SECTOR);
    sector[..size_of::<SaltRaw>()].copy_from_slice(raw.as_bytes());
    sector
}

/// Sequence and content of a slot, two sectors; `None` when a checksum does not match.
fn parse(sectors: &[u8], vfs: &str) -> Result<Option<(u64, Root)>> {
    let (sector, behind) = sectors.split_at(SECTOR);
    let (mut slot, rest) = Slot::read_from_prefix(sector).expect("a sector is longer");
    let want = slot.checksum.get();
    slot.checksum = 0.into();
    if slot.magic != MAGIC
        || lacuna_crc::crc32c(slot.as_bytes()) != want
        || rest.iter().any(|byte| *byte != 0)
    {
        return Ok(None);
    }
    let bad = |reason: String| Err(Error::BadStore { what: format!("{vfs}: {NAME}"), reason });
    if slot.version != VERSION {
        return bad(format!("format version {} is unknown to this program", slot.version));
    }
    let unknown = slot.features.get() & !(FEATURES | OPTIONAL);
    if unknown != 0 {
        return bad(format!("features {unknown:#x} are unknown to this program"));
    }
    let features = slot.features.get() & OPTIONAL;
    if slot.features.get() & FEATURES != FEATURES {
        return bad("was written before version 1 was finished".into());
    }
    let (epoch, checkpoint) = (slot.epoch.get(), Lsn(slot.checkpoint.get()));
    // Nobody counts that far. From half of that on a store is not changed any more (`recovery::counters`).
    if [slot.sequence.get(), epoch, checkpoint.0].iter().any(|counter| *counter > COUNTER_MAX)
        || !checkpoint.0.is_multiple_of(SECTOR as u64)
    {
        return bad("names a sequence, an epoch or a checkpoint that cannot be".into());
    }
    Ok(parse_salt(behind).map(|salt| (slot.sequence.get(), Root { epoch, checkpoint, salt, features })))
}

/// The salt after a slot; `None` when it is torn.
fn parse_salt(sector: &[u8]) -> Option<Salt> {
    let (mut raw, rest) = SaltRaw::read_from_prefix(sector).expect("a sector is longer");
    let want = raw.checksum.get();
    raw.checksum = 0.into();
    let is_whole = lacuna_crc::crc32c(raw.as_bytes()) == want
        && raw.reserved == 0
        && raw.salt != 0
        && rest.iter().all(|byte| *byte == 0);
    is_whole.then_some(Salt(raw.salt.get()))
}

/// A slot as it is, and under a valid checksum; see the module fuzz.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let mut sectors = [0; 2 * SECTOR];
    let len = bytes.len().min(sectors.len());
    sectors[..len].copy_from_slice(&bytes[..len]);
    let _ = parse(&sectors, "fuzz");
    let (mut slot, _) = Slot::read_from_prefix(&sectors).expect("a sector is longer");
    slot.magic = MAGIC.into();
    slot.checksum = 0.into();
    slot.checksum = lacuna_crc::crc32c(slot.as_bytes()).into();
    sectors[..size_of::<Slot>()].copy_from_slice(slot.as_bytes());
    let _ = parse(&sectors, "fuzz");
    let (mut salt, _) = SaltRaw::read_from_prefix(&sectors[SECTOR..]).expect("a sector is longer");
    salt.checksum = 0.into();
    salt.checksum = lacuna_crc::crc32c(salt.as_bytes()).into();
    sectors[SECTOR..][..size_of::<SaltRaw>()].copy_from_slice(salt.as_bytes());
    let _ = parse(&sectors, "fuzz");
}

/// Rows of FORMAT.md: structure, offset, bytes, field.
#[cfg(test)]
pub(crate) const LAYOUT: &[(&str, usize, usize, &str)] = &[
    ("control", std::mem::offset_of!(Slot, magic), 8, "magic"),
    ("control", std::mem::offset_of!(Slot, version), 4, "version"),
    ("control", std::mem::offset_of!(Slot, checksum), 4, "checksum"),
    ("control", std::mem::offset_of!(Slot, features), 8, "features"),
    ("control", std::mem::offset_of!(Slot, sequence), 8, "sequence"),
    ("control", std::mem::offset_of!(Slot, epoch), 8, "epoch"),
    ("control", std::mem::offset_of!(Slot, checkpoint), 8, "checkpoint"),
    ("salt", std::mem::offset_of!(SaltRaw, checksum), 4, "checksum"),
    ("salt", std::mem::offset_of!(SaltRaw, reserved), 4, "reserved"),
    ("salt", std::mem::offset_of!(SaltRaw, salt), 8, "salt"),
];

#[cfg(test)]
mod tests {
    use lacuna_device::MemVfs;

    use super::*;

    #[test]
    fn the_newer_slot_counts_and_a_torn_one_does_not() {
        // A byte of the slot itself, or of its salt.
        for torn in [40, SECTOR + 8] {
            torn_slots(Salt(7), torn);
        }
    }

    fn torn_slots(salt: Salt, torn: usize) {
        let vfs = MemVfs::new();
        let root = |n| Root { epoch: n, checkpoint: Lsn(n * 512), salt, features: n / 3 * ANY_BLOCKS };
        assert!(Control::open(&*vfs).expect("open").is_none());
        Control::create(&*vfs, root(1)).expect("create");
        let (control, found) = Control::open(&*vfs).expect("open").expect("there");
        assert_eq!(found, root(1));
        control.write(root(2), true).expect("write");
        control.write(root(3), true).expect("write");
        assert_eq!(Control::open(&*vfs).expect("open").expect("there").1, root(3));
        // Sequence 3 went to slot 1: tear it.
        let file = vfs.open(NAME, StreamHint::Data).expect("open");
        let mut sectors = AlignedBuf::zeroed(2 * SECTOR);
        file.read_at(SLOT_BYTES, &mut sectors).expect("read");
        sectors[torn] ^= 1;
        file.write_at(SLOT_BYTES, &sectors).expect("write");
        assert_eq!(Control::open(&*vfs).expect("open").expect("there").1, root(2));
        file.read_at(0, &mut sectors).expect("read");
        sectors[torn] ^= 1;
        file.write_at(0, &sectors).expect("write");
        assert!(matches!(Control::open(&*vfs), Err(Error::Corrupt { .. })));
    }
}
