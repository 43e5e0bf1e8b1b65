//! The map that threads share, and the readers of segments to which it leads.
//!
//! Readers lock the map, shared, and pin the segments that they are going to read before they release it. A segment to
//! which the map does not lead can get no new pin.

use crate::{
    addr::SegNo,
    map::Map,
    sync::{
        PerSegment, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard,
        atomic::{AtomicU32, Ordering},
    },
};

/// See the module documentation.
pub(crate) struct SharedMap {
    map: RwLock<Map>,
    /// Readers of each segment.
    pins: PerSegment,
}

impl SharedMap {
    pub(crate) fn new(map: Map) -> SharedMap {
        let pins = map.segments().iter().map(|_| AtomicU32::new(0)).collect();
        SharedMap { map: RwLock::new(map), pins }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read()
    }

    pub(crate) fn upgradable_read(&self) -> RwLockUpgradableReadGuard<'_, Map> {
        self.map.upgradable_read()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write()
    }

    pub(crate) fn pin(&self, segment: SegNo) {
        self.pins[segment.0 as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unpin(&self, segment: SegNo) {
        let before = self.pins[segment.0 as usize].fetch_sub(1, Ordering::Release);
        assert_ne!(before, 0, "segment {} unpinned twice", segment.0);
    }

    /// Whether no reader uses a segment that has no live extent any more.
    pub(crate) fn is_unpinned(&self, segment: SegNo) -> bool {
        self.pins[segment.0 as usize].load(Ordering::Acquire) == 0
    }

    /// There are `segments` segments now.
    pub(crate) fn grow(&self, map: &mut Map, segments: usize) {
        for _ in map.segments().len()..segments {
            self.pins.push(AtomicU32::new(0));
        }
        map.grow(segments);
    }
}
