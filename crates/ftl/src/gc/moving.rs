//! Moving live extents to other segments.

use std::{ops::Range, sync::Arc};

use super::mover::Mover;
use crate::{
    Error, Lba, Result,
    format::{EntryKind, Extent},
    log::{AppendPoint, Expected, Item, Log, Restoring},
    paging::DIRTY_SHARE,
    ranges::merged,
};

/// An extent and its bytes, or an encoded chunk and its payload, being moved.
pub(super) struct Moving {
    pub(super) lba: Lba,
    pub(super) extent: Extent,
    pub(super) bytes: Arc<Vec<u8>>,
    pub(super) crc: u32,
    pub(super) expected: Expected,
}

impl Moving {
    pub(super) fn range(&self) -> Range<u64> {
        self.lba.0..self.lba.0 + u64::from(self.extent.sectors)
    }

    pub(super) fn item(&self) -> Item<'_> {
        Item {
            kind: EntryKind::Relocate,
            lba: self.lba,
            sectors: u64::from(self.extent.sectors),
            payload: &self.bytes,
            crc: self.crc,
            birth: self.extent.birth,
            encoding: self.extent.encoding,
        }
    }
}

impl Mover {
    /// Appends those of `moving` that the map still holds, and points the map to them.
    pub(super) fn switch(&self, class: u8, moving: &[Moving]) -> Result<()> {
        let ranges = merged(moving.iter().map(Moving::range).collect());
        loop {
            let leaves = self.pages.fault_in(&ranges)?;
            let mut log = self.journal.lock();
            self.journal.check_poison(&log)?;
            let mut map = self.map.write();
            if !map.absent(&ranges).is_empty() {
                continue;
            }
            drop(leaves);
            let moving: Vec<_> =
                moving.iter().filter(|moving| map.holds(moving.lba, &moving.extent)).collect();
            let items: Vec<_> = moving.iter().map(|moving| moving.item()).collect();
            let Some(point) = self.gc_point(&log, class, &items) else {
                // There was space for what the victim counts, so it would be chosen again and again if that were wrong.
                if let Some(Moving { extent, .. }) = moving.first() {
                    let bytes = items.iter().map(|item| item.payload.len() as u64).sum();
                    map.note_holds(extent.phys.segment, bytes);
                    log.stop_if_miscounted(&map);
                }
                return Err(self.journal.full(&map, log.limits()));
            };
            let items = log.cut(&map, point, &items);
            let appended = log.append_relocations(point, &items);
            moving.iter().for_each(|moving| log.note_expected(point, moving.expected, 1));
            let mut placed = items.iter().zip(&appended.placed);
            for Moving { lba, extent, .. } in &moving {
                let (item, phys) = placed.next().expect("an item for each that is moved");
                if extent.is_encoded() {
                    map.relocate_encoded(*lba, extent, *phys);
                    continue;
                }
                map.relocate(*lba, extent, item.range(), *phys, item.crc);
                if item.range().end < lba.0 + u64::from(extent.sectors) {
                    let (rest, phys) = placed.next().expect("it was cut in two");
                    map.relocate(*lba, extent, rest.range(), *phys, rest.crc);
                }
            }
            log.note_relocated(&map, items.len().saturating_sub(moving.len()));
            drop((map, log));
            self.journal.fill(&items, appended)?;
            break;
        }
        if self.pages.is_write_back_due(&self.map.read(), DIRTY_SHARE) {
            match self.checkpointer.write_back_into_spare() {
                // A checkpoint must wait until this victim is done; until then memory may exceed its budget.
                Err(Error::Full { .. }) => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Where extents are moved to at opening (`restore`).
    pub(crate) fn restore_target(&self) -> AppendPoint {
        AppendPoint::Gc(self.volume.space().classes() as u8 - 1)
    }

    /// Where to append `items` of `class`: at its own append point, unless that takes the last segment that collection
    /// has, and another one has space: then at the nearest class of these. The live data of a victim fits into one
    /// segment, so a collection that has begun ends if it can take one.
    fn gc_point(&self, log: &Log, class: u8, items: &[Item<'_>]) -> Option<AppendPoint> {
        if log.restoring() != Restoring::No {
            let opens_max = usize::from(log.restoring() == Restoring::MayOpen);
            return Some(self.restore_target())
                .filter(|point| log.segments_needed(*point, items) <= opens_max);
        }
        let own = AppendPoint::Gc(class);
        let spare = log.spare_for_gc();
        let fresh = log.segments_needed(own, items);
        if fresh == 0 || spare > fresh {
            return Some(own);
        }
        let with_space = AppendPoint::gc().filter(|point| log.segments_needed(*point, items) == 0);
        let nearest = with_space.min_by_key(|point| point.class().abs_diff(class));
        nearest.or((fresh <= 1 && spare >= fresh).then_some(own))
    }
}
