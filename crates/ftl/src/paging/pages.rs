//! Look-ups in the map, and changes of it, that may need leaves which are on the device only.

use std::{ops::Range, sync::Arc};

use super::leaf_reader::LeafReader;
use crate::{
    Error, Lba, Result,
    format::{Extent, LEAF_BYTES_MAX},
    log::Journal,
    map::{Absent, Leaf, Map, SharedMap},
    media::Volume,
    ranges::merged,
    sync::atomic::{AtomicU64, Ordering},
};

/// A leaf has at least about this many extents.
const LEAF_EXTENTS: usize = 64;

/// Ranges of which the extents are visited under one hold of the map's lock.
const LOOKS_AT_ONCE: usize = 64;

/// Leaves that eviction looks at under one hold of the map's lock.
const EVICT_VISITS: u64 = 16 << 10;

/// Eighths of the memory for the map that changed leaves may take before they are written out, and
/// before writers do that themselves.
pub(crate) const DIRTY_SHARE: u64 = 4;

pub(crate) const DIRTY_SHARE_MAX: u64 = 6;

/// The map, of which a part may be on the device only.
pub(crate) struct PagedMap {
    pub(super) volume: Arc<Volume>,
    pub(super) map: Arc<SharedMap>,
    pub(super) journal: Arc<Journal>,
    /// See [`crate::Options::map_memory`].
    pub(super) memory_max: Option<u64>,
    /// Leaves of the map that were read, and evicted, since open.
    pub(super) faults: AtomicU64,
    pub(super) evictions: AtomicU64,
}

impl PagedMap {
    /// Whether the memory for the map has a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.memory_max.is_some()
    }

    /// Leaves that were read, and evicted, since open.
    pub(crate) fn faults_and_evictions(&self) -> (u64, u64) {
        (self.faults.load(Ordering::Relaxed), self.evictions.load(Ordering::Relaxed))
    }

    /// See [`crate::Ftl::load_leaves`].
    pub(crate) fn load_leaves(&self, ranges: &[Range<Lba>]) -> Result<ResidentLeaves> {
        let ranges = merged(ranges.iter().map(|range| range.start.0..range.end.0).collect());
        Ok(ResidentLeaves { _leaves: self.fault_in(&ranges)? })
    }

    /// The result of `look` on the map; none if it meets an evicted leaf.
    pub(crate) fn in_memory<T>(&self, look: impl FnOnce(&Map) -> Result<T, Absent>) -> Option<T> {
        if self.journal.is_lost() {
            return None; // The caller brings in the leaf next, and gets the error there.
        }
        look(&self.map.read()).ok()
    }

    /// See [`crate::Ftl::mapped_sectors`].
    pub(crate) fn mapped_sectors(&self, range: Range<u64>, sectors_max: usize) -> Result<Vec<Lba>> {
        let _kept = self.fault_ahead(|map| map.absent_ahead(range.clone(), leaves_ahead(sectors_max)))?;
        let mut found = Vec::with_capacity(sectors_max);
        self.visit_extents(range, |lba, extent| {
            let sectors = (0..u64::from(extent.sectors)).map(|sector| Lba(lba.0 + sector));
            found.extend(sectors.take(sectors_max - found.len()));
            found.len() < sectors_max
        })?;
        Ok(found)
    }

    /// Reads the leaves that `absent` names, at the same time: all that several look-ups are going to need.
    pub(crate) fn fault_ahead(&self, absent: impl FnOnce(&Map) -> Vec<Absent>) -> Result<Vec<Leaf>> {
        let pinned = {
            let map = self.map.read();
            PinnedLeaves::new(self, &map, absent(&map))
        };
        if pinned.absent.is_empty() { Ok(Vec::new()) } else { pinned.install() }
    }

    pub(crate) fn leaf_reader(&self) -> LeafReader<'_> {
        LeafReader::new(&self.volume)
    }

    /// Calls `visit` with the extents in `range`, cut to it, in order, until it returns false. The map is
    /// locked during each call, but not from one to the next.
    pub(crate) fn visit_extents(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(Lba, Extent) -> bool,
    ) -> Result<()> {
        self.journal.must_not_be_stopped()?;
        let mut cursor = range.start;
        let mut _kept = Vec::new();
        loop {
            let pinned = {
                let map = self.map.read();
                let mut absent = None;
                for found in map.extents(cursor..range.end) {
                    match found {
                        Ok((lba, extent)) if visit(lba, extent) => {
                            cursor = lba.0 + u64::from(extent.sectors);
                        }
                        Ok(_) => return Ok(()),
                        Err(leaf) => absent = Some(leaf),
                    }
                }
                let Some(absent) = absent else { return Ok(()) };
                cursor = cursor.max(absent.span.start);
                PinnedLeaves::new(self, &map, vec![absent])
            };
            _kept = pinned.install()?;
        }
    }

    /// Calls `visit` with the index of each of `ranges` and the extents in it, cut to it, in order. The map is
    /// locked for some ranges at a time.
    pub(crate) fn visit_extents_of_each(
        &self,
        ranges: Vec<Range<u64>>,
        visit: impl FnMut(usize, Lba, Extent),
    ) -> Result<()> {
        self.visit_readable(ranges, visit, Err)
    }

    /// As [`Pages::visit_extents_of_each`]. A leaf that cannot be read is passed over if `unreadable`, which is called
    /// with the error, returns none.
    pub(crate) fn visit_readable(
        &self,
        mut ranges: Vec<Range<u64>>,
        mut visit: impl FnMut(usize, Lba, Extent),
        mut unreadable: impl FnMut(Error) -> Result<()>,
    ) -> Result<()> {
        self.journal.must_not_be_stopped()?;
        let (mut first, mut _kept) = (0, Vec::new());
        while first < ranges.len() {
            let mut absent = None;
            let until = ranges.len().min(first + LOOKS_AT_ONCE);
            let map = self.map.read();
            map.extents_of_each(&ranges[first..until], |index, found| match found {
                Ok((lba, extent)) => {
                    visit(first + index, lba, extent);
                    true
                }
                Err(leaf) => {
                    absent = Some((first + index, leaf));
                    false
                }
            });
            let Some((index, absent)) = absent else {
                first = until;
                continue;
            };
            // The part before this leaf was visited.
            ranges[index].start = ranges[index].start.max(absent.span.start);
            first = index;
            let end = absent.span.end;
            let pinned = PinnedLeaves::new(self, &map, vec![absent]);
            drop(map);
            match pinned.install() {
                Ok(installed) => _kept = installed,
                Err(error) => {
                    unreadable(error)?;
                    let range = &mut ranges[index];
                    range.start = end.min(range.end);
                    first += usize::from(range.is_empty());
                }
            }
        }
        Ok(())
    }

    /// The result of `look` on the map; it is called again after each evicted leaf that it meets.
    pub(crate) fn with_map<T>(&self, mut look: impl FnMut(&Map) -> Result<T, Absent>) -> Result<T> {
        self.journal.must_not_be_stopped()?;
        let mut kept = Vec::new();
        loop {
            let pinned = {
                let map = self.map.read();
                match look(&map) {
                    Ok(found) => return Ok(found),
                    Err(absent) => PinnedLeaves::new(self, &map, vec![absent]),
                }
            };
            kept.extend(pinned.install()?);
        }
    }

    /// Brings in all leaves that changes of `ranges` (sorted, without overlap) need, and keeps the leaves in these
    /// ranges from eviction as long as the result lives. A leaf that changes meanwhile may still be evicted, so the
    /// caller must check [`Map::absent`] under the lock.
    pub(crate) fn fault_in(&self, ranges: &[Range<u64>]) -> Result<Vec<Leaf>> {
        self.journal.must_not_be_stopped()?;
        let mut kept = Vec::new();
        loop {
            let pinned = {
                let map = self.map.read();
                let absent = map.absent(ranges);
                if absent.is_empty() {
                    if self.memory_max.is_some() {
                        kept.extend(map.share(ranges));
                    }
                    map.load_ahead(ranges.iter().cloned());
                    return Ok(kept);
                }
                PinnedLeaves::new(self, &map, absent)
            };
            match pinned.install() {
                Ok(installed) => kept.extend(installed),
                Err(error) if error.is_damage() && pinned.note_unreadable(ranges) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether changed leaves, which cannot be evicted before they are written, take so much of the budget that some
    /// should be. They may take `share` of it, in eighths.
    pub(crate) fn is_write_back_due(&self, map: &Map, share: u64) -> bool {
        resident_bytes_max(self.memory_max, map).is_some_and(|bytes_max| {
            // However small the budget is, a leaf of middling size may be dirty.
            map.residence().dirty_memory > bytes_max / 8 * share + (LEAF_BYTES_MAX / 4) as u64
        })
    }

    /// Evicts clean leaves while the map is larger than the budget.
    pub(crate) fn evict_excess(&self) {
        let is_over = |map: &Map| {
            resident_bytes_max(self.memory_max, map)
                .is_some_and(|bytes_max| map.residence().resident_memory > bytes_max)
        };
        if self.memory_max.is_none() || !is_over(&self.map.read()) {
            return;
        }
        let mut map = self.map.write();
        let evicted = evict(&mut map, self.memory_max);
        self.evictions.fetch_add(evicted, Ordering::Relaxed);
    }
}

/// Leaves of the map that stay in memory as long as it lives, but for those that are changed meanwhile.
#[must_use]
pub struct ResidentLeaves {
    _leaves: Vec<Leaf>,
}

/// Absent leaves whose segments are pinned until it is dropped.
pub(crate) struct PinnedLeaves<'a> {
    pages: &'a PagedMap,
    absent: Vec<Absent>,
}

impl<'a> PinnedLeaves<'a> {
    /// Pins the segments of `absent`: leaves that `map`, which is locked, has on the device, in memory or not.
    pub(crate) fn new(pages: &'a PagedMap, _map: &Map, absent: Vec<Absent>) -> PinnedLeaves<'a> {
        absent.iter().for_each(|absent| pages.map.pin(absent.place.segment));
        PinnedLeaves { pages, absent }
    }

    /// Reads the leaves and puts them into memory, where they stay as long as the result lives.
    fn install(&self) -> Result<Vec<Leaf>> {
        let (pages, mut kept) = (self.pages, Vec::with_capacity(self.absent.len()));
        let _sentinel = pages.journal.sentinel();
        pages.journal.must_not_be_stopped()?;
        pages.leaf_reader().read(self.absent.clone(), |absent, leaf| {
            kept.push(leaf.clone());
            let is_new = pages.map.write().install(absent, leaf);
            pages.faults.fetch_add(u64::from(is_new), Ordering::Relaxed);
        })?;
        pages.evict_excess();
        Ok(kept)
    }

    /// Notes in the map which of the leaves cannot be read. Returns whether changes of `ranges` can do without these.
    fn note_unreadable(&self, ranges: &[Range<u64>]) -> bool {
        let mut unreadable = Vec::new();
        self.verify(|absent, _| unreadable.push(absent.clone()));
        let mut map = self.pages.map.write();
        unreadable.iter().for_each(|absent| map.note_unreadable(absent));
        !unreadable.is_empty() && !map.needs_unreadable(ranges)
    }

    /// Reads the leaves, and passes to `damaged` those that are not what was written, or cannot be read.
    pub(crate) fn verify(&self, mut damaged: impl FnMut(&Absent, Error)) {
        self.pages.leaf_reader().read_each(&self.absent, |absent, leaf| {
            if let Err(error) = leaf {
                damaged(absent, error);
            }
        });
    }
}

impl Drop for PinnedLeaves<'_> {
    fn drop(&mut self) {
        self.absent.iter().for_each(|absent| self.pages.map.unpin(absent.place.segment));
    }
}

/// How many leaves to read for this many extents ahead.
pub(crate) fn leaves_ahead(extents: usize) -> usize {
    extents / LEAF_EXTENTS + 1
}

fn resident_bytes_max(map_memory: Option<u64>, map: &Map) -> Option<u64> {
    map_memory.map(|bytes| bytes.saturating_sub(map.inner_bytes()))
}

/// Evicts clean leaves until `map` fits into `map_memory`, or many were looked at.
pub(crate) fn evict(map: &mut Map, map_memory: Option<u64>) -> u64 {
    match resident_bytes_max(map_memory, map) {
        // Evicts slightly more, so that not every leaf that is read starts an eviction round of its own.
        Some(bytes_max) => map.evict(bytes_max / 32 * 31, EVICT_VISITS),
        None => 0,
    }
}
