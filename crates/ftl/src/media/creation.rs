//! Making an empty store on a device.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, Hasher, RandomState},
};

use lacuna_device::{AlignedBuf, BlockDevice};
use zerocopy::IntoBytes;

use super::{
    keys, ring,
    superblock::{LOOK_START_BYTES, read, read_raw, slot_bytes, space, write},
};
use crate::{
    Error, FormatOptions, Result, Seq,
    format::{
        BLOCK_BYTES_DEFAULT, BLOCK_BYTES_MAX, KEYS_OFFSET, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN,
        SUPERBLOCK_MAGIC, SUPERBLOCK_SLOTS, SlotContent, Superblock, copy_places, copy_segment,
    },
};

/// Bytes at the end of a device in which `format` looks for data it would destroy, beside those at its start.
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
    // It may be refused, so it comes before anything is written over.
    let key_block = options.key.as_ref().map(|key| keys::create(device, &superblock, key)).transpose()?;
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
    if let Some(block) = &key_block {
        keys::write(device, &superblock, block)?;
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

/// See [`crate::Ftl::looks_like_a_store`].
pub(crate) fn looks_like_a_store(start: &[u8]) -> bool {
    let slots = SUPERBLOCK_SLOTS.iter().filter_map(|at| start.get(*at as usize..));
    slots.into_iter().any(|slot| slot.starts_with(&SUPERBLOCK_MAGIC))
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

/// Random enough to distinguish stores: keys that the standard library draws from the system.
pub(crate) fn random_uuid() -> [u8; 16] {
    let mut uuid = [0; 16];
    for half in uuid.chunks_mut(8) {
        half.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
    }
    uuid
}
