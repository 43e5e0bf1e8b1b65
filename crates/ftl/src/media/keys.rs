//! The key block of an encrypted store, of which a copy lies behind each superblock.
//!
//! 1. *Some place is whole.* A block is written to the first place, synced, then to the others, synced. So a power cut
//!    leaves the old keys or the new ones, and outside of a change all places hold the same.
//! 2. *What was removed is gone from all places* once a change has returned. A change that a power cut interrupted is
//!    completed by the next opening, as if it had returned.
//! 3. *Of all valid blocks of the store the newest counts*, wherever it lies. One without the store's uuid counts
//!    nowhere.
//! 4. *No copy outlives the end of its store*: growth wipes that at the old end first, and writes one at the new end once
//!    the store ends there. A power cut in between leaves a store that lacks this copy, which opening restores. At format
//!    keys come before the superblock that needs them.
//!
//! A drive may keep what was overwritten; see docs/SECURITY.md.

use lacuna_crypt::{KEY_BLOCK_BYTES, KeyBlock, KeyChange, Secret, SlotInfo};
use lacuna_device::{AlignedBuf, BlockDevice};

use super::{cipher::Cipher, superblock};
use crate::{
    Error, Key, NewKey, Result,
    format::{KEYS_OFFSET, Superblock},
    mutant::{Rule, is_broken},
};

/// Where the key blocks of the store of `superblock` lie: one behind each superblock.
fn places(superblock: &Superblock) -> impl Iterator<Item = u64> {
    superblock::places(superblock).map(|at| at + KEYS_OFFSET)
}

/// Bytes that are read and written of a place.
pub(super) fn place_bytes(device: &dyn BlockDevice) -> usize {
    KEY_BLOCK_BYTES.next_multiple_of(device.geometry().block_bytes as usize)
}

/// The key block at byte `at`, if it is that of the store of `superblock`.
fn read(device: &dyn BlockDevice, superblock: &Superblock, at: u64) -> Result<KeyBlock> {
    let damaged =
        |reason: String| Error::Corrupt { what: format!("{}, key block", device.name()), at, reason };
    let mut bytes = AlignedBuf::zeroed(place_bytes(device));
    device.read_at(at, &mut bytes)?;
    let block = KeyBlock::parse(&bytes).map_err(|error| damaged(error.to_string()))?;
    match block.uuid() == superblock.uuid {
        true => Ok(block),
        false => Err(damaged("key block of another store".into())),
    }
}

/// The newest key block (invariant 3).
pub(crate) fn load(device: &dyn BlockDevice, superblock: &Superblock) -> Result<KeyBlock> {
    let (mut newest, mut flaw): (Option<KeyBlock>, _) = (None, None);
    for at in places(superblock) {
        match read(device, superblock, at) {
            Ok(block) if newest.as_ref().is_none_or(|newest| newest.sequence() < block.sequence()) => {
                newest = Some(block);
            }
            Ok(_) => {}
            Err(error) => flaw = flaw.or(Some(error)),
        }
    }
    newest.ok_or_else(|| Error::Corrupt {
        what: format!("{}, key block", device.name()),
        at: KEYS_OFFSET,
        reason: match flaw {
            Some(flaw) => format!("none of its copies can be read, and without it no data can ({flaw})"),
            None => "it has no copies".into(),
        },
    })
}

/// Writes `block` to the place behind each superblock (invariant 1).
pub(super) fn write(device: &dyn BlockDevice, superblock: &Superblock, block: &KeyBlock) -> Result<()> {
    for (number, at) in places(superblock).enumerate() {
        put(device, at, block)?;
        if number == 0 && !is_broken(Rule::KeysInTurn) {
            device.sync()?;
        }
    }
    Ok(device.sync()?)
}

fn put(device: &dyn BlockDevice, at: u64, block: &KeyBlock) -> lacuna_device::Result<()> {
    let mut bytes = AlignedBuf::zeroed(place_bytes(device));
    bytes[..KEY_BLOCK_BYTES].copy_from_slice(&block.encode());
    device.write_at(at, &bytes)
}

/// The first key block of the new store of `superblock`; nothing is written yet.
pub(super) fn create(device: &dyn BlockDevice, superblock: &Superblock, key: &NewKey) -> Result<KeyBlock> {
    let created = KeyBlock::create(superblock.uuid, &key.secret, &key.slot);
    created.map(|(block, _)| block).map_err(|reason| refused(device, reason))
}

fn refused(device: &dyn BlockDevice, reason: lacuna_crypt::Error) -> Error {
    Error::Key { device: device.name().into(), reason }
}

/// The cipher of the store, as `key` makes it available.
pub(crate) fn unlock(device: &dyn BlockDevice, superblock: &Superblock, key: &Key) -> Result<Cipher> {
    let name = || device.name().to_owned();
    match key {
        _ if !superblock.is_encrypted => match key {
            // Something has put a plain store in the place of the one that the caller means.
            Key::Secret(_) => Err(Error::NotEncrypted { device: name() }),
            Key::None | Key::Locked => Ok(Cipher::None),
        },
        Key::None => Err(Error::Encrypted { device: name() }),
        Key::Locked => Ok(Cipher::Locked),
        Key::Secret(secret) => {
            let block = load(device, superblock)?;
            let (_, key) = block.unlock(secret).map_err(|reason| refused(device, reason))?;
            Ok(Cipher::Sectors(Box::new(key.cipher())))
        }
    }
}

/// Makes the newest key block durable in all places, unless they hold it: then the first was synced before the others
/// were written. Where none is left, there is nothing to be made durable.
pub(crate) fn settle(device: &dyn BlockDevice, superblock: &Superblock) -> Result<()> {
    if !superblock.is_encrypted {
        return Ok(());
    }
    let Ok(newest) = load(device, superblock) else { return Ok(()) };
    let is_settled =
        places(superblock).all(|at| read(device, superblock, at).is_ok_and(|block| block == newest));
    if !is_settled {
        write(device, superblock, &newest)?;
    }
    Ok(())
}

/// Why the place behind the superblock at byte `superblock_at` does not hold the newest key block; an older one is
/// accepted unless it `is_settled`.
pub(crate) fn check_place(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    superblock_at: u64,
    is_settled: bool,
) -> Result<()> {
    if !superblock.is_encrypted {
        return Ok(());
    }
    let at = superblock_at + KEYS_OFFSET;
    let found = read(device, superblock, at)?;
    if is_settled && found != load(device, superblock)? {
        let reason = "not the newest".into();
        return Err(Error::Corrupt { what: format!("{}, key block", device.name()), at, reason });
    }
    Ok(())
}

/// Wipes the key block behind the end of the store, which is about to grow. The caller syncs.
pub(crate) fn wipe_end(device: &dyn BlockDevice, superblock: &Superblock) -> lacuna_device::Result<()> {
    match superblock.copies().last() {
        Some(at) if superblock.is_encrypted => wipe(device, at),
        _ => Ok(()),
    }
}

/// Makes zeros of the key block behind the superblock at byte `superblock_at`. The caller syncs.
pub(super) fn wipe(device: &dyn BlockDevice, superblock_at: u64) -> lacuna_device::Result<()> {
    device.write_at(superblock_at + KEYS_OFFSET, &AlignedBuf::zeroed(place_bytes(device)))
}

/// The slots in use of the store on `device`.
pub(crate) fn list(device: &dyn BlockDevice) -> Result<Vec<SlotInfo>> {
    let superblock = superblock::load(device, false)?;
    must_be_encrypted(device, &superblock)?;
    Ok(load(device, &superblock)?.slots())
}

/// Changes the keys of the store on `device`, which `secret` opens, and returns the slot that changed.
pub(crate) fn change(device: &dyn BlockDevice, secret: &Secret, change: &KeyChange<'_>) -> Result<usize> {
    device.sync()?;
    let superblock = superblock::load(device, true)?;
    must_be_encrypted(device, &superblock)?;
    let block = load(device, &superblock)?;
    let (block, slot) = block.change(secret, change).map_err(|reason| refused(device, reason))?;
    write(device, &superblock, &block)?;
    Ok(slot)
}

fn must_be_encrypted(device: &dyn BlockDevice, superblock: &Superblock) -> Result<()> {
    match superblock.is_encrypted {
        true => Ok(()),
        false => Err(Error::NotEncrypted { device: device.name().into() }),
    }
}
