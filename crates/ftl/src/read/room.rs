//! The room that a range takes, by encoding.

use std::ops::Range;

use crate::{
    Algorithm, Result, Room, SECTOR,
    addr::{CHUNK_SECTORS, PhysAddr},
    paging::PagedMap,
};

/// See [`crate::Ftl::room`].
pub(crate) fn room(pages: &PagedMap, range: Range<u64>) -> Result<Room> {
    let mut room = Room::default();
    // Of the chunk of the space that is looked at: the payloads that were counted.
    let (mut window, mut counted) = (u64::MAX, Vec::<PhysAddr>::new());
    // A chunk whose first part lies before the range is not counted, so its parts there must be known.
    let from = range.start / CHUNK_SECTORS * CHUNK_SECTORS;
    pages.visit_extents(from..range.end, |lba, extent| {
        if lba.0 / CHUNK_SECTORS != window {
            window = lba.0 / CHUNK_SECTORS;
            counted.clear();
        }
        let before = range.start.saturating_sub(lba.0).min(extent.sectors.into()) as u8;
        let stored = match extent.is_encoded() {
            false => extent.bytes().saturating_sub(usize::from(before) * SECTOR) as u64,
            true if counted.contains(&extent.phys) => 0,
            true => {
                counted.push(extent.phys);
                if before > 0 { 0 } else { extent.stored.into() }
            }
        };
        let of = match extent.encoding {
            Algorithm::Lz4 => &mut room.lz4,
            Algorithm::Zstd => &mut room.zstd,
            _ => &mut room.plain,
        };
        of.add(extent.sectors - before, stored);
        true
    })?;
    Ok(room)
}
