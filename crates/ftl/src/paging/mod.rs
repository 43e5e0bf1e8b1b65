//! Bringing evicted leaves of the map back into memory, and others out of it.
//!
//! Who meets an evicted leaf pins its segment while the map is still locked, so that the segment
//! stays what it is, and releases all locks before it reads. Then it installs the leaf, unless the map
//! has changed there meanwhile, and looks again.
//!
//! Who holds locks of its own and must not wait for the device under them asks for what memory alone can
//! tell ([`PagedMap::in_memory`], `Ftl::try_write_batch`). When that is nothing, it gives its locks back, has
//! the leaves brought in and [`Kept`], and begins anew.
//!
//! The budget (`Options::map_memory`) holds for what is in memory between operations. A batch needs
//! all leaves that it changes at once, a trim those that lie in its range; recovery's replay writes
//! nothing out, so what it changes stays too.

use std::{ops::Range, sync::Arc};

use lacuna_crc::crc32c;
use lacuna_device::AlignedBuf;

use crate::{
    Error, Lba, Result,
    format::{Extent, LEAF_BYTES_MAX, LeafPlace},
    log::{Journal, Log},
    map::{Absent, Leaf, Map, SharedMap},
    media::Volume,
    mutant::{Rule, is_broken},
    ranges::merged,
    space::Space,
    sync::atomic::{AtomicU64, Ordering},
};

/// Leaves that lie in one run of at most so many bytes are read at once.
const RUN_BYTES: usize = 256 << 10;
/// So many bytes between two leaves do not end a run: they are read sooner than a run more is.
const GAP_BYTES: usize = 16 << 10;
/// Runs that are read at the same time.
const RUNS_AT_ONCE: usize = 16;
/// A leaf has at least about so many extents.
const LEAF_EXTENTS: usize = 64;
/// Ranges of which the extents are visited under one hold of the map's lock.
const LOOKS_AT_ONCE: usize = 64;
/// Leaves that eviction looks at under one hold of the map's lock.
const EVICT_VISITS: u64 = 16 << 10;

/// Reads leaves from a device.
#[derive(Clone, Copy)]
pub(crate) struct LeafReader<'a> {
    volume: &'a Volume,
    space: Space,
}

impl<'a> LeafReader<'a> {
    pub(crate) fn new(volume: &'a Volume) -> LeafReader<'a> {
        LeafReader { volume, space: volume.space() }
    }

    fn device_offset(&self, place: &LeafPlace) -> u64 {
        self.volume.offset(place.segment, place.offset())
    }

    /// Reads and verifies `absent`, and passes each leaf to `install`.
    pub(crate) fn read(&self, mut absent: Vec<Absent>, mut install: impl FnMut(&Absent, Leaf)) -> Result<()> {
        absent.sort_unstable_by_key(|absent| (absent.place.segment, absent.place.grain));
        let (mut runs, mut rest) = (Vec::new(), &absent[..]);
        while !rest.is_empty() {
            let (run, later) = rest.split_at(self.run_length(rest));
            runs.push(run);
            rest = later;
        }
        for runs in runs.chunks(RUNS_AT_ONCE) {
            let bytes = runs.iter().map(|run| self.blocks(run));
            let mut reads: Vec<_> = bytes.map(|(at, len)| (at, AlignedBuf::zeroed(len))).collect();
            if self.volume.device().read_many(&mut reads).is_ok() {
                for (run, (start, buf)) in runs.iter().zip(&reads) {
                    run.iter().try_for_each(|absent| self.take(absent, *start, buf, &mut install))?;
                }
                continue;
            }
            // What cannot be read may be another leaf, or lie between them.
            for absent in runs.iter().copied().flatten() {
                let (start, len) = self.blocks(std::slice::from_ref(absent));
                let mut buf = AlignedBuf::zeroed(len);
                self.volume.device().read_at(start, &mut buf)?;
                self.take(absent, start, &buf, &mut install)?;
            }
        }
        Ok(())
    }

    /// Byte on the device and length of the blocks that `run` lies in.
    fn blocks(&self, run: &[Absent]) -> (u64, usize) {
        let (first, last) = (run[0].place, run[run.len() - 1].place);
        let start = first.offset() / self.space.block_bytes * self.space.block_bytes;
        let end = (last.offset() + usize::from(last.bytes)).next_multiple_of(self.space.block_bytes);
        (self.device_offset(&first) - (first.offset() - start) as u64, end - start)
    }

    /// Passes the leaf to `install` that lies in `buf`, which was read from byte `start` of the device.
    fn take(
        &self,
        absent: &Absent,
        start: u64,
        buf: &[u8],
        install: &mut impl FnMut(&Absent, Leaf),
    ) -> Result<()> {
        let at = (self.device_offset(&absent.place) - start) as usize;
        install(absent, self.verify(absent, &buf[at..][..usize::from(absent.place.bytes)])?);
        Ok(())
    }

    /// How many of `absent`, from the first, lie in one run.
    fn run_length(&self, absent: &[Absent]) -> usize {
        let first = absent[0].place;
        let mut end = first.offset() + usize::from(first.bytes);
        let follows = absent[1..].iter().take_while(|absent| {
            let place = absent.place;
            let is_near = place.segment == first.segment
                && place.offset() <= end + GAP_BYTES
                && place.offset() + usize::from(place.bytes) <= first.offset() + RUN_BYTES;
            end = place.offset() + usize::from(place.bytes);
            is_near
        });
        1 + follows.count()
    }

    fn verify(&self, absent: &Absent, bytes: &[u8]) -> Result<Leaf> {
        let Absent { span, live, place } = absent;
        let verified = match crc32c(bytes) == place.crc || is_broken(Rule::LeavesVerified) {
            true => Leaf::verify(bytes, span, *live, self.space.segments as u32, self.space.segment_bytes),
            false => Err("checksum does not match"),
        };
        verified.map_err(|flaw| self.volume.corrupt("map leaf", self.device_offset(place), flaw))
    }

    /// Brings in all that changes of `ranges` (sorted, without overlap) need, where no other thread sees
    /// the map.
    pub(crate) fn fault_in(&self, map: &mut Map, ranges: &[Range<u64>]) -> Result<()> {
        loop {
            let absent = map.absent(ranges);
            if absent.is_empty() {
                return Ok(());
            }
            self.read(absent, |absent, leaf| {
                map.install(absent, leaf);
            })?;
        }
    }
}

/// How many leaves to read for so many extents ahead.
pub(crate) fn leaves_ahead(extents: usize) -> usize {
    extents / LEAF_EXTENTS + 1
}

/// Absent leaves whose segments are pinned until it is dropped.
pub(crate) struct PinnedLeaves<'a> {
    pages: &'a PagedMap,
    absent: Vec<Absent>,
}

impl<'a> PinnedLeaves<'a> {
    /// Pins what `map`, which is locked, says is absent, or on the device as well.
    pub(crate) fn new(pages: &'a PagedMap, _map: &Map, absent: Vec<Absent>) -> PinnedLeaves<'a> {
        absent.iter().for_each(|absent| pages.map.pin(absent.place.segment));
        PinnedLeaves { pages, absent }
    }

    /// Reads the leaves and puts them into memory, where they stay as long as the result lives.
    fn install(&self) -> Result<Vec<Leaf>> {
        let (pages, mut kept) = (self.pages, Vec::with_capacity(self.absent.len()));
        let _sentinel = pages.journal.sentinel();
        pages.journal.must_be_whole()?;
        pages.leaf_reader().read(self.absent.clone(), |absent, leaf| {
            kept.push(leaf.clone());
            let is_new = pages.map.write().install(absent, leaf);
            pages.faults.fetch_add(u64::from(is_new), Ordering::Relaxed);
        })?;
        pages.relieve();
        Ok(kept)
    }

    /// Reads the leaves, and passes to `damaged` those that are not what was written, or cannot be read.
    pub(crate) fn verify(&self, mut damaged: impl FnMut(&Absent, Error)) {
        let reader = self.pages.leaf_reader();
        if reader.read(self.absent.clone(), |_, _| {}).is_ok() {
            return;
        }
        for absent in &self.absent {
            if let Err(error) = reader.read(vec![absent.clone()], |_, _| {}) {
                damaged(absent, error);
            }
        }
    }
}

impl Drop for PinnedLeaves<'_> {
    fn drop(&mut self) {
        self.absent.iter().for_each(|absent| self.pages.map.unpin(absent.place.segment));
    }
}

/// Leaves of the map that stay in memory as long as it lives, but for those that are changed meanwhile.
#[must_use]
pub struct Kept {
    _leaves: Vec<Leaf>,
}

/// Eighths of the memory for the map that changed leaves may take before they are written out, and
/// before writers do that themselves.
pub(crate) const DIRTY_SHARE: u64 = 4;
pub(crate) const DIRTY_SHARE_MAX: u64 = 6;

/// What the parts of a store are built on.
#[derive(Clone)]
pub(crate) struct Base {
    pub(crate) volume: Arc<Volume>,
    pub(crate) map: Arc<SharedMap>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) pages: Arc<PagedMap>,
}

impl Base {
    /// Of a store that was read into memory; see [`crate::Options::map_memory`].
    pub(crate) fn new(volume: Volume, map: Map, log: Log, map_memory: Option<u64>) -> Base {
        let (volume, map) = (Arc::new(volume), Arc::new(SharedMap::new(map)));
        let journal = Arc::new(Journal::new(Arc::clone(&volume), Arc::clone(&map), log));
        let pages = PagedMap {
            volume: Arc::clone(&volume),
            map: Arc::clone(&map),
            journal: Arc::clone(&journal),
            memory_max: map_memory,
            faults: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        };
        Base { volume, map, journal, pages: Arc::new(pages) }
    }
}

/// The map, of which a part may be on the device only.
pub(crate) struct PagedMap {
    volume: Arc<Volume>,
    map: Arc<SharedMap>,
    journal: Arc<Journal>,
    /// See [`crate::Options::map_memory`].
    memory_max: Option<u64>,
    /// Leaves of the map that were read, and evicted, since open.
    faults: AtomicU64,
    evictions: AtomicU64,
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

    /// See [`crate::Ftl::bring_in`].
    pub(crate) fn bring_in(&self, ranges: &[Range<Lba>]) -> Result<Kept> {
        let ranges = merged(ranges.iter().map(|range| range.start.0..range.end.0).collect());
        Ok(Kept { _leaves: self.fault_in(&ranges)? })
    }

    /// What `look` finds in the map; nothing if it meets an evicted leaf.
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

    /// Reads the leaves that `absent` names, at the same time: all that several looks are going to need.
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
        self.journal.must_be_whole()?;
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
        mut ranges: Vec<Range<u64>>,
        mut visit: impl FnMut(usize, Lba, Extent),
    ) -> Result<()> {
        self.journal.must_be_whole()?;
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
            // What lies before this leaf was visited.
            ranges[index].start = ranges[index].start.max(absent.span.start);
            first = index;
            let pinned = PinnedLeaves::new(self, &map, vec![absent]);
            drop(map);
            _kept = pinned.install()?;
        }
        Ok(())
    }

    /// What `look` finds in the map; it is called again after each evicted leaf that it meets.
    pub(crate) fn with_map<T>(&self, mut look: impl FnMut(&Map) -> Result<T, Absent>) -> Result<T> {
        self.journal.must_be_whole()?;
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

    /// Brings in all that changes of `ranges` (sorted, without overlap) need, and keeps the leaves in
    /// these ranges from eviction as long as the result lives. A leaf that changes meanwhile may be
    /// evicted all the same, so that [`Map::absent`] has the last word.
    pub(crate) fn fault_in(&self, ranges: &[Range<u64>]) -> Result<Vec<Leaf>> {
        self.journal.must_be_whole()?;
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
            kept.extend(pinned.install()?);
        }
    }

    /// Whether changed leaves, which cannot be evicted before they are written, take so much of the
    /// budget that some should be. `share` of it, in eighths, is left to them.
    pub(crate) fn is_write_back_due(&self, map: &Map, share: u64) -> bool {
        resident_bytes_max(self.memory_max, map).is_some_and(|bytes_max| {
            // However small the budget is, a leaf of middling size may be dirty.
            map.residence().dirty_memory > bytes_max / 8 * share + (LEAF_BYTES_MAX / 4) as u64
        })
    }

    /// Evicts clean leaves while the map is larger than the budget.
    pub(crate) fn relieve(&self) {
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

fn resident_bytes_max(map_memory: Option<u64>, map: &Map) -> Option<u64> {
    map_memory.map(|bytes| bytes.saturating_sub(map.inner_bytes()))
}

/// Evicts clean leaves until `map` fits into `map_memory`, or many were looked at.
pub(crate) fn evict(map: &mut Map, map_memory: Option<u64>) -> u64 {
    match resident_bytes_max(map_memory, map) {
        // Some more than that, so that not each leaf that comes in makes a round of its own.
        Some(bytes_max) => map.evict(bytes_max / 32 * 31, EVICT_VISITS),
        None => 0,
    }
}
