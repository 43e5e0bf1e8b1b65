//! The superblock in its slots and copies.
//!
//! 1. A superblock is written to the first slot, synced, then to the second slot and the copies, synced. So while one
//!    place is being written another is whole, and outside of that moment all hold the same: damage to any of them is
//!    harmless, whether it cannot be read or claims an unknown version. Segments that the old root needs are freed only
//!    after all places hold the new root, so each of them leads to an intact checkpoint at any time.
//! 2. *The slots decide.* Copies count only where neither slot holds a superblock. A copy counts only in a place that
//!    it names itself, so one that an enlarged or older store has left elsewhere does not.
//! 3. *Who took the place of a store is safe.* A store is opened for writing from a copy only if the first bytes of the
//!    device are zeros. Otherwise another file system may be there now, of which the slots would destroy a part.
//! 4. *No copy outlives its store*: `format` wipes all copies that it finds, and growth (`maintenance::grow`) the one
//!    at the old end. Copies of different stores, which only a partial copy of a device leaves, are refused.

use lacuna_crypt::{KEY_BLOCK_BYTES, KEY_BLOCK_MAGIC};
use lacuna_device::{AlignedBuf, BlockDevice};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    Error, Result, SECTOR,
    format::{
        END_UNIT, Flaw, KEYS_OFFSET, SUPERBLOCK_SLOTS, SlotContent, Superblock, SuperblockRaw, VERSION,
        copy_places,
    },
    space::Space,
};

/// Bytes at the start of a device that show whether something else is there now: file systems, partition tables and the
/// like have their signatures in them.
pub(super) const LOOK_START_BYTES: u64 = 1 << 20;

/// Bytes that are read and written of a superblock's place.
pub(super) fn slot_bytes(device: &dyn BlockDevice) -> usize {
    SECTOR.next_multiple_of(device.geometry().block_bytes as usize)
}

pub(super) fn read(device: &dyn BlockDevice, offset: u64, len: u64) -> Result<AlignedBuf> {
    let mut buf = AlignedBuf::zeroed(len as usize);
    device.read_at(offset, &mut buf)?;
    Ok(buf)
}

/// The superblock at byte `at`, not verified.
pub(super) fn read_raw(device: &dyn BlockDevice, at: u64) -> Result<SuperblockRaw> {
    let bytes = read(device, at, slot_bytes(device) as u64)?;
    Ok(SuperblockRaw::read_from_prefix(&bytes).expect("a sector is longer than a superblock").0)
}

/// The superblocks found so far.
struct Search<'a> {
    device: &'a dyn BlockDevice,
    newest: Option<Superblock>,
    /// Why the last place that was looked at does not hold one.
    flaw: Flaw,
    /// Why a place that may be damaged does not: returned only if no other holds one.
    damage: Option<Error>,
}

const NOTHING: Flaw = "no superblock";

impl Search<'_> {
    /// Looks at byte `at`, whose superblock must satisfy `counts`.
    fn look(&mut self, at: u64, counts: impl Fn(&Superblock) -> bool) -> Result<()> {
        let name = || self.device.name().to_owned();
        let raw = match read_raw(self.device, at) {
            Ok(raw) => raw,
            Err(error) => {
                self.damage = Some(error);
                return Ok(());
            }
        };
        match raw.verify() {
            SlotContent::Newer { version, is_sealed } => {
                let refused = Error::Version { device: name(), found: version, supported: VERSION };
                if is_sealed {
                    return Err(refused);
                }
                self.damage = Some(refused);
            }
            SlotContent::UnknownFeatures(flags) => return Err(Error::Features { device: name(), flags }),
            SlotContent::Invalid(NOTHING) => {}
            SlotContent::Invalid(reason) => self.flaw = reason,
            SlotContent::Valid(superblock) if counts(&superblock) => {
                let newest = self.newest.as_ref();
                if newest.is_some_and(|newest| newest.uuid != superblock.uuid) {
                    let reason = "superblocks of different stores";
                    return Err(Error::NotAStore { device: name(), reason });
                }
                if newest.is_none_or(|newest| newest.sequence < superblock.sequence) {
                    self.newest = Some(superblock);
                }
            }
            SlotContent::Valid(_) => {}
        }
        Ok(())
    }
}

/// The newest superblock on the device, fit for it; `may_write` says whether the store is to be written to.
pub(crate) fn load(device: &dyn BlockDevice, may_write: bool) -> Result<Superblock> {
    let name = || device.name().to_owned();
    let geometry = device.geometry();
    if geometry.capacity_bytes < SUPERBLOCK_SLOTS[1] + slot_bytes(device) as u64 {
        return Err(Error::NotAStore { device: name(), reason: "the device is too small for one" });
    }
    let mut search = Search { device, newest: None, flaw: NOTHING, damage: None };
    for slot in SUPERBLOCK_SLOTS {
        search.look(slot, |_| true)?;
    }
    let Search { newest, flaw, damage, .. } = search;
    let superblock = match (newest, damage) {
        (Some(superblock), _) => superblock,
        (None, Some(damage)) if may_write => return Err(damage),
        (None, damage) => load_copy(device, may_write)?
            .ok_or_else(|| damage.unwrap_or(Error::NotAStore { device: name(), reason: flaw }))?,
    };
    let misfit = |reason: String| Err(Error::Geometry { device: name(), reason });
    if superblock.capacity_bytes > geometry.capacity_bytes {
        let (found, made) = (geometry.capacity_bytes, superblock.capacity_bytes);
        return misfit(format!(
            "truncated: the store was made for {made} bytes, {found} are there; to save what is left, make a copy of it \
             in a file, make that as long (truncate -s {made}), and rescue it"
        ));
    }
    // As `format` and growing make it: so the size of a segment bounds what opening reads and keeps for all of them.
    if !space(device, &superblock).root_fits() {
        let (found, segment_bytes) = (superblock.capacity_bytes, superblock.segment_bytes);
        return misfit(format!("{found} bytes are too many segments of {segment_bytes} bytes for a store"));
    }
    if !superblock.block_bytes.is_multiple_of(geometry.block_bytes) {
        let (found, made) = (geometry.block_bytes, superblock.block_bytes);
        return misfit(format!(
            "the store was made for blocks of {made} bytes, the device has {found}: copy its files to a new store"
        ));
    }
    Ok(superblock)
}

/// The newest copy on a device without a superblock in its slots.
fn load_copy(device: &dyn BlockDevice, may_write: bool) -> Result<Option<Superblock>> {
    let mut search = Search { device, newest: None, flaw: NOTHING, damage: None };
    let capacity = device.geometry().capacity_bytes;
    for at in copy_places(capacity) {
        search.look(at, |superblock| superblock.copies().any(|copy| copy == at))?;
    }
    let Some(superblock) = search.newest else { return Ok(None) };
    let start_bytes = LOOK_START_BYTES.min(superblock.segment_bytes.into());
    let is_wiped = || {
        read(device, 0, start_bytes).is_ok_and(|mut start| {
            if superblock.is_encrypted {
                forget_keys(&mut start);
            }
            start.iter().all(|byte| *byte == 0)
        })
    };
    if may_write && !is_wiped() {
        return Err(Error::Corrupt {
            what: format!("{}, superblock", device.name()),
            at: 0,
            reason: "something else is in its place; a copy is left, so the store can be read (rescue)"
                .into(),
        });
    }
    Ok(Some(superblock))
}

/// Makes zeros of the key blocks in the first bytes of a device: they do not count as something that took the place of
/// the store that they belong to.
fn forget_keys(start: &mut [u8]) {
    for at in SUPERBLOCK_SLOTS.map(|at| (at + KEYS_OFFSET) as usize) {
        if let Some(block) = start.get_mut(at..at + KEY_BLOCK_BYTES)
            && block.starts_with(&KEY_BLOCK_MAGIC)
        {
            block.fill(0);
        }
    }
}

/// Makes `superblock` durable in all its places (invariant 1); returns the bytes written.
pub(crate) fn write(device: &dyn BlockDevice, superblock: &Superblock) -> lacuna_device::Result<u64> {
    let mut block = AlignedBuf::zeroed(slot_bytes(device));
    block[..size_of::<SuperblockRaw>()].copy_from_slice(superblock.to_raw().as_bytes());
    let [first, second] = SUPERBLOCK_SLOTS;
    device.write_at(first, &block)?;
    device.sync()?;
    let mut written = block.len() as u64;
    for at in [second].into_iter().chain(superblock.copies()) {
        device.write_at(at, &block)?;
        written += block.len() as u64;
    }
    device.sync()?;
    Ok(written)
}

/// Wipes the copy behind the end of the store, whose place is about to become part of a segment. The caller syncs.
pub(crate) fn wipe_end_copy(device: &dyn BlockDevice, superblock: &Superblock) -> lacuna_device::Result<()> {
    let Some(at) = superblock.copies().last() else { return Ok(()) };
    device.write_at(at, &AlignedBuf::zeroed(slot_bytes(device)))
}

/// Makes zeros of the place behind the end of the store of `superblock`, which is to have a copy and keys there.
///
/// # Errors
/// When the device has no space for it, which is not waited for.
pub(crate) fn reserve_end_copy(
    device: &dyn BlockDevice,
    superblock: &Superblock,
) -> lacuna_device::Result<()> {
    let Some(at) = superblock.copies().last() else { return Ok(()) };
    device.write_if_space(at, &AlignedBuf::zeroed(END_UNIT as usize))
}

/// Wherever `superblock` lies.
pub(crate) fn places(superblock: &Superblock) -> impl Iterator<Item = u64> {
    SUPERBLOCK_SLOTS.into_iter().chain(superblock.copies())
}

/// Why byte `at` does not hold `superblock`, which is in force; an older one is accepted unless it `is_settled`.
pub(crate) fn check_place(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    at: u64,
    is_settled: bool,
) -> Result<()> {
    let reason = match read_raw(device, at)?.verify() {
        SlotContent::Valid(found) if found == *superblock || !is_settled => return Ok(()),
        SlotContent::Valid(_) => "not the newest",
        SlotContent::Invalid(reason) => reason,
        SlotContent::Newer { .. } | SlotContent::UnknownFeatures(_) => "not the version that was opened",
    };
    Err(Error::Corrupt { what: format!("{}, superblock", device.name()), at, reason: reason.into() })
}

/// Makes the loaded `superblock` durable in all its places, unless they hold it: then the first was synced before the
/// others were written.
pub(crate) fn settle(device: &dyn BlockDevice, superblock: &Superblock) -> Result<()> {
    if places(superblock).any(|at| check_place(device, superblock, at, true).is_err()) {
        write(device, superblock)?;
    }
    Ok(())
}

/// Sizes of a store on `device`.
pub(crate) fn space(device: &dyn BlockDevice, superblock: &Superblock) -> Space {
    let has_copies = superblock.copy_segment.is_some();
    Space {
        segments: superblock.segments() as usize,
        segment_bytes: superblock.segment_bytes as usize,
        block_bytes: if has_copies { device.geometry().block_bytes } else { superblock.block_bytes } as usize,
        block_bytes_max: superblock.block_bytes as usize,
        superblock_segments: 1 + usize::from(has_copies),
    }
}
