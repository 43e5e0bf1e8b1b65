//! The superblock in its slots and copies, and making an empty store.
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

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, Hasher, RandomState},
};

use lacuna_device::{AlignedBuf, BlockDevice};
use zerocopy::{FromBytes, IntoBytes};

use super::keys;
use crate::{
    Error, FormatOptions, Result, SECTOR, Seq,
    format::{
        BLOCK_BYTES_DEFAULT, BLOCK_BYTES_MAX, Flaw, KEYS_OFFSET, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN,
        SUPERBLOCK_MAGIC, SUPERBLOCK_SLOTS, SlotContent, Superblock, SuperblockRaw, VERSION, copy_places,
        copy_segment,
    },
    media::ring,
    space::Space,
};

/// Bytes at the start and at the end of a device in which `format` looks for data it would destroy: file systems,
/// partition tables and the like have their signatures there.
const LOOK_START_BYTES: u64 = 1 << 20;
const LOOK_END_BYTES: u64 = 128 << 10;

/// Segments of the smallest store.
const SEGMENTS_MIN: u64 = 24;

/// See [`crate::Ftl::format`].
pub(crate) fn format(device: &dyn BlockDevice, options: &FormatOptions) -> Result<()> {
    let geometry = device.geometry();
    let refuse = |reason: String| Error::Geometry { device: device.name().into(), reason };
    if geometry.block_bytes > BLOCK_BYTES_MAX {
        return Err(refuse(format!("blocks of {} bytes are too large", geometry.block_bytes)));
    }
    let block_bytes = geometry.block_bytes.max(BLOCK_BYTES_DEFAULT);
    let capacity_bytes = whole_blocks(device, options.capacity_bytes, block_bytes)?;
    let by_capacity = (capacity_bytes / 4096).max(1).next_power_of_two().clamp(1 << 20, 64 << 20);
    let segment_bytes = options.segment_bytes.unwrap_or(by_capacity as u32);
    if !segment_bytes.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes) {
        return Err(refuse(format!("segments of {segment_bytes} bytes are not possible")));
    }
    let superblock = Superblock {
        uuid: options.uuid.unwrap_or_else(random_uuid),
        capacity_bytes,
        segment_bytes,
        block_bytes,
        sequence: 1,
        epoch: 0,
        flushed_seq: Seq(0),
        root: None,
        copy_segment: Some(copy_segment(capacity_bytes, segment_bytes)),
        is_encrypted: options.key.is_some(),
        log: None,
        has_encodings: false,
    };
    let space = space(device, &superblock);
    if capacity_bytes / u64::from(segment_bytes) < SEGMENTS_MIN || space.limits(0).is_none() {
        let bytes_min = SEGMENTS_MIN * u64::from(segment_bytes);
        return Err(refuse(format!("{capacity_bytes} bytes are too few; at least {bytes_min}")));
    }
    if superblock.segments() > u64::from(u32::MAX) || !space.root_fits() {
        return Err(refuse(format!("too many segments of {segment_bytes} bytes")));
    }
    if !options.force {
        refuse_non_empty(device)?;
    }
    let log = match &options.log_device {
        Some(device) => Some(ring::format(&**device, superblock.uuid, random_uuid(), options.force)?),
        None => None,
    };
    let superblock = Superblock { log, ..superblock };
    // The old superblocks go first: at no moment can an old one outrank the new one.
    let zeros = AlignedBuf::zeroed(slot_bytes(device));
    for at in old_superblocks(device) {
        device.write_at(at, &zeros)?;
        if at + KEYS_OFFSET + keys::place_bytes(device) as u64 <= device.geometry().capacity_bytes {
            keys::wipe(device, at)?;
        }
    }
    device.sync()?;
    if let Some(key) = &options.key {
        keys::create(device, &superblock, key)?;
    }
    write(device, &superblock)?;
    Ok(())
}

/// The capacity of a store that is `wanted` so large, or else fills `device`.
fn whole_blocks(device: &dyn BlockDevice, wanted: Option<u64>, block_bytes: u32) -> Result<u64> {
    let (found, block) = (device.geometry().capacity_bytes, u64::from(block_bytes));
    let refuse = |reason| Err(Error::Geometry { device: device.name().into(), reason });
    match wanted {
        None => Ok(found / block * block),
        Some(bytes) if !bytes.is_multiple_of(block) => {
            refuse(format!("{bytes} bytes are not a multiple of {block}"))
        }
        Some(bytes) if bytes > found => refuse(format!("it has {found} bytes, not {bytes}")),
        Some(bytes) => Ok(bytes),
    }
}

/// Bytes that are read and written of a superblock's place.
fn slot_bytes(device: &dyn BlockDevice) -> usize {
    SECTOR.next_multiple_of(device.geometry().block_bytes as usize)
}

/// Both slots, and the copies that can be found of any store that was here.
fn old_superblocks(device: &dyn BlockDevice) -> BTreeSet<u64> {
    let capacity = device.geometry().capacity_bytes;
    let mut old: BTreeSet<u64> = SUPERBLOCK_SLOTS.into();
    for at in SUPERBLOCK_SLOTS.into_iter().chain(copy_places(capacity)) {
        let Ok(raw) = read_raw(device, at) else { continue };
        if raw.as_bytes().starts_with(&SUPERBLOCK_MAGIC) {
            old.insert(at);
        }
        if let SlotContent::Valid(superblock) = raw.verify() {
            let last = capacity.saturating_sub(slot_bytes(device) as u64);
            old.extend(superblock.copies().filter(|at| *at <= last));
        }
    }
    old
}

fn refuse_non_empty(device: &dyn BlockDevice) -> Result<()> {
    let capacity = device.geometry().capacity_bytes;
    let not_empty = |holds| Err(Error::NotEmpty { device: device.name().into(), holds });
    let start = read(device, 0, LOOK_START_BYTES.min(capacity))?;
    let holds_superblock =
        |at: &u64| read_raw(device, *at).is_ok_and(|raw| raw.as_bytes().starts_with(&SUPERBLOCK_MAGIC));
    if SUPERBLOCK_SLOTS.iter().any(holds_superblock) {
        return not_empty("a Lacuna store".into());
    }
    if let Some(at) = copy_places(capacity).find(holds_superblock) {
        return not_empty(format!("what is left of a Lacuna store: a superblock at byte {at}"));
    }
    let end_at = capacity.saturating_sub(LOOK_END_BYTES);
    let end = read(device, end_at, capacity - end_at)?;
    for (at, bytes) in [(0, &start), (end_at, &end)] {
        if let Some(offset) = bytes.iter().position(|byte| *byte != 0) {
            return not_empty(format!("foreign data at byte {}", at + offset as u64));
        }
    }
    Ok(())
}

fn read(device: &dyn BlockDevice, offset: u64, len: u64) -> Result<AlignedBuf> {
    let mut buf = AlignedBuf::zeroed(len as usize);
    device.read_at(offset, &mut buf)?;
    Ok(buf)
}

/// Random enough to distinguish stores: keys that the standard library draws from the system.
pub(crate) fn random_uuid() -> [u8; 16] {
    let mut uuid = [0; 16];
    for half in uuid.chunks_mut(8) {
        half.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
    }
    uuid
}

/// The superblock at byte `at`, not verified.
fn read_raw(device: &dyn BlockDevice, at: u64) -> Result<SuperblockRaw> {
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
                keys::forget(&mut start);
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
