//! Extents whose segments stay what they are while they are read.

use crate::{Lba, format::Extent, map::SharedMap};

/// Extents whose segments are pinned until it is dropped.
pub(crate) struct Pinned<'a> {
    map: &'a SharedMap,
    extents: Vec<(Lba, Extent)>,
}

impl<'a> Pinned<'a> {
    /// Nothing yet, of `map`.
    pub(super) fn new(map: &'a SharedMap) -> Pinned<'a> {
        Pinned { map, extents: Vec::new() }
    }

    /// Pins an extent that the map, which is locked, holds, or that cannot be freed now.
    pub(super) fn pin(&mut self, lba: Lba, extent: Extent) {
        self.map.pin(extent.phys.segment);
        self.extents.push((lba, extent));
    }

    pub(crate) fn extents(&self) -> &[(Lba, Extent)] {
        &self.extents
    }

    /// Sorts them as they lie on the device, so that extents in the same or neighbouring blocks are read at once.
    pub(super) fn sort_by_place(&mut self) {
        self.extents.sort_unstable_by_key(|(_, extent)| (extent.phys.segment, extent.phys.offset()));
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        for (_, extent) in &self.extents {
            self.map.unpin(extent.phys.segment);
        }
    }
}
