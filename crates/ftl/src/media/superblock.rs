//! The two superblock slots, and making an empty store.
//!
//! A superblock is written to the first slot, synced, then to the second, synced. So while one slot is being written
//! the other is whole, and outside of that moment both hold the same: damage to either one is harmless, whether it
//! cannot be read or claims an unknown version. Segments that the old root needs are freed only after both slots hold
//! the new root.

use std::hash::{BuildHasher, Hasher, RandomState};

use lacuna_device::{AlignedBuf, BlockDevice};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    Error, FormatOptions, Result, SECTOR, Seq,
    format::{
        BLOCK_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SUPERBLOCK_MAGIC, SUPERBLOCK_SLOTS,
        SlotContent, Superblock, SuperblockRaw, VERSION,
    },
    space::Space,
};

/// Bytes at the start and at the end of a device in which `format` looks for data it would destroy: file systems,
/// partition tables and the like have their signatures there.
const LOOK_START_BYTES: u64 = 1 << 20;
const LOOK_END_BYTES: u64 = 64 << 10;

/// Segments of the smallest store.
const SEGMENTS_MIN: u64 = 24;

/// See [`crate::Ftl::format`].
pub(crate) fn format(device: &dyn BlockDevice, options: &FormatOptions) -> Result<()> {
    let geometry = device.geometry();
    let refuse = |reason: String| Error::Geometry { device: device.name().into(), reason };
    let by_capacity = (geometry.capacity_bytes / 4096).max(1).next_power_of_two().clamp(1 << 20, 64 << 20);
    let segment_bytes = options.segment_bytes.unwrap_or(by_capacity as u32);
    if !segment_bytes.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes) {
        return Err(refuse(format!("segments of {segment_bytes} bytes are not possible")));
    }
    if geometry.block_bytes > BLOCK_BYTES_MAX {
        return Err(refuse(format!("blocks of {} bytes are too large", geometry.block_bytes)));
    }
    let superblock = Superblock {
        uuid: options.uuid.unwrap_or_else(random_uuid),
        capacity_bytes: geometry.capacity_bytes,
        segment_bytes,
        block_bytes: geometry.block_bytes,
        sequence: 1,
        epoch: 0,
        flushed_seq: Seq(0),
        root: None,
    };
    let segments = geometry.capacity_bytes / u64::from(segment_bytes);
    let space = space(&superblock, 0);
    if segments < SEGMENTS_MIN || space.limits(0).is_none() {
        let bytes_min = SEGMENTS_MIN * u64::from(segment_bytes);
        return Err(refuse(format!("{} bytes are too few; at least {bytes_min}", geometry.capacity_bytes)));
    }
    if segments > u64::from(u32::MAX) || !space.root_fits() {
        return Err(refuse(format!("too many segments of {segment_bytes} bytes")));
    }
    if !options.force {
        refuse_non_empty(device)?;
    }
    // The old slots go first: at no moment can an old superblock outrank the new one.
    let zeros = AlignedBuf::zeroed((SECTOR).next_multiple_of(geometry.block_bytes as usize));
    for slot in SUPERBLOCK_SLOTS {
        device.write_at(slot, &zeros)?;
    }
    device.sync()?;
    write(device, &superblock)?;
    Ok(())
}

fn refuse_non_empty(device: &dyn BlockDevice) -> Result<()> {
    let capacity = device.geometry().capacity_bytes;
    let not_empty = |holds| Err(Error::NotEmpty { device: device.name().into(), holds });
    let start = read(device, 0, LOOK_START_BYTES.min(capacity))?;
    let holds_slot = |slot: &u64| start[*slot as usize..].starts_with(&SUPERBLOCK_MAGIC);
    if SUPERBLOCK_SLOTS.iter().any(holds_slot) {
        return not_empty("a Lacuna store".into());
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
fn random_uuid() -> [u8; 16] {
    let mut uuid = [0; 16];
    for half in uuid.chunks_mut(8) {
        half.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
    }
    uuid
}

/// The newest superblock on the device, fit for it.
pub(crate) fn load(device: &dyn BlockDevice) -> Result<Superblock> {
    let name = || device.name().to_owned();
    let geometry = device.geometry();
    let slot_bytes = SECTOR.next_multiple_of(geometry.block_bytes as usize) as u64;
    if geometry.capacity_bytes < SUPERBLOCK_SLOTS[1] + slot_bytes {
        return Err(Error::NotAStore { device: name(), reason: "the device is too small for one" });
    }
    let mut newest: Option<Superblock> = None;
    let mut flaw = "no superblock";
    // Why a slot that may be damaged is not valid: returned only if the other slot is not valid either.
    let mut resync: Option<Error> = None;
    for slot in SUPERBLOCK_SLOTS {
        let bytes = match read(device, slot, slot_bytes) {
            Ok(bytes) => bytes,
            Err(error) => {
                resync = Some(error);
                continue;
            }
        };
        let (raw, _) = SuperblockRaw::read_from_prefix(&bytes).expect("a sector is longer than a superblock");
        match raw.verify() {
            SlotContent::Newer { version, is_sealed } => {
                let refused = Error::Version { device: name(), found: version, supported: VERSION };
                if is_sealed {
                    return Err(refused);
                }
                resync = Some(refused);
            }
            SlotContent::UnknownFeatures(flags) => return Err(Error::Features { device: name(), flags }),
            SlotContent::Invalid(reason) if reason == flaw => {}
            SlotContent::Invalid(reason) => flaw = reason,
            SlotContent::Valid(superblock) => {
                if newest.as_ref().is_none_or(|newest| newest.sequence < superblock.sequence) {
                    newest = Some(superblock);
                }
            }
        }
    }
    let Some(superblock) = newest else {
        return Err(resync.unwrap_or(Error::NotAStore { device: name(), reason: flaw }));
    };
    let misfit = |reason: String| Err(Error::Geometry { device: name(), reason });
    if superblock.capacity_bytes > geometry.capacity_bytes {
        let (found, made) = (geometry.capacity_bytes, superblock.capacity_bytes);
        return misfit(format!("truncated: the store was made for {made} bytes, {found} are there"));
    }
    // As `format` and growing make it: so the size of a segment bounds what opening reads and keeps for all of them.
    if !space(&superblock, 0).root_fits() {
        let (found, segment_bytes) = (superblock.capacity_bytes, superblock.segment_bytes);
        return misfit(format!("{found} bytes are too many segments of {segment_bytes} bytes for a store"));
    }
    if !superblock.block_bytes.is_multiple_of(geometry.block_bytes) {
        let (found, made) = (geometry.block_bytes, superblock.block_bytes);
        return misfit(format!("the store was made for blocks of {made} bytes, the device has {found}"));
    }
    Ok(superblock)
}

/// Makes `superblock` durable in both slots, one after the other; returns the bytes written.
pub(crate) fn write(device: &dyn BlockDevice, superblock: &Superblock) -> lacuna_device::Result<u64> {
    let mut block = AlignedBuf::zeroed(SECTOR.next_multiple_of(superblock.block_bytes as usize));
    let raw = superblock.to_raw();
    block[..size_of::<SuperblockRaw>()].copy_from_slice(raw.as_bytes());
    write_slots(device, &block)?;
    Ok((SUPERBLOCK_SLOTS.len() * block.len()) as u64)
}

fn write_slots(device: &dyn BlockDevice, block: &[u8]) -> lacuna_device::Result<()> {
    for slot in SUPERBLOCK_SLOTS {
        device.write_at(slot, block)?;
        device.sync()?;
    }
    Ok(())
}

/// Makes the newest superblock, of a device that holds one, durable in both slots, unless they hold the same: then
/// the first was synced before the second was written.
pub(crate) fn settle(device: &dyn BlockDevice) -> Result<()> {
    let slot_bytes = SECTOR.next_multiple_of(device.geometry().block_bytes as usize) as u64;
    let slots = SUPERBLOCK_SLOTS.map(|slot| read(device, slot, slot_bytes).ok());
    if let [Some(first), Some(second)] = &slots
        && first[..] == second[..]
    {
        return Ok(());
    }
    let sequence = |block: &AlignedBuf| {
        let (raw, _) = SuperblockRaw::read_from_prefix(block).expect("a sector is longer than a superblock");
        match raw.verify() {
            SlotContent::Valid(superblock) => Some(superblock.sequence),
            _ => None,
        }
    };
    let newest = slots.iter().flatten().max_by_key(|block| sequence(block));
    Ok(write_slots(device, newest.expect("it was loaded"))?)
}

/// Sizes of a store.
pub(crate) fn space(superblock: &Superblock, reserve_percent: u8) -> Space {
    Space {
        segments: (superblock.capacity_bytes / u64::from(superblock.segment_bytes)) as usize,
        segment_bytes: superblock.segment_bytes as usize,
        block_bytes: superblock.block_bytes as usize,
        reserve_percent,
    }
}
