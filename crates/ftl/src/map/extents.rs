//! Extents by address: see the documentation of the folder.

use std::{array, ops::Range};

use super::group::{self, GROUP};
use super::leaf::Rows as LeafRows;
use super::row::{Absent, Row, SPACE, clip};
use super::slot::{Residence, Slot, Tally};
use super::tree::{Edit, LeafAt, Node};

use super::{Leaf, Live};
use crate::{
    Lba, SECTOR,
    addr::{CHUNK_SECTORS, PhysAddr, SegNo},
    format::{Extent, IndexEntry, LeafAddr},
    space::LEAF_WEIGHT,
};

/// The lines loaded for this many look-ups fit into the processor's second-level cache.
const LOADED_AHEAD_MAX: usize = 512;

/// A leaf as it was at one moment.
pub(crate) struct LeafRef {
    pub(crate) span: Range<u64>,
    pub(crate) live: Live,
    /// Present if it had no place, or if it was asked for and in memory.
    pub(crate) leaf: Option<Leaf>,
    pub(crate) place: Option<LeafAddr>,
}

/// See the module documentation.
pub(crate) struct Map {
    root: Node,
    total: Live,
    tally: Tally,
    /// Where eviction and writing back go on.
    hand: u64,
    dirty_hand: u64,
}

/// As [`clip`], for what [`Rows`] yield.
fn clipped(row: Result<Row, Absent>, range: &Range<u64>) -> Option<Result<(Lba, Extent), Absent>> {
    match row {
        Ok((lba, extent)) => clip(lba, &extent, range).map(|(lba, extent)| Ok((Lba(lba), extent))),
        Err(absent) => Some(Err(absent)),
    }
}

impl Map {
    /// An empty map of a device with `segments` segments.
    pub(crate) fn new(segments: u32) -> Map {
        let mut tally = Tally::new(vec![Live::default(); segments as usize]);
        let root = Node::empty(&mut tally);
        Map { root, total: Live::default(), tally, hand: 0, dirty_hand: 0 }
    }

    /// The map of a checkpoint: its index, in order, and what each segment holds. All leaves are
    /// evicted.
    pub(crate) fn load(index: Vec<IndexEntry>, segments: Vec<Live>) -> Map {
        let mut tally = Tally::new(segments);
        let mut total = Live::default();
        let mut leaves = Vec::with_capacity(index.len());
        for IndexEntry { start, live, place } in index {
            let slot = Slot::evicted(place);
            tally.enter(&slot);
            total += live;
            leaves.push((start, live, Node::Leaf(slot)));
        }
        let root = if leaves.is_empty() { Node::empty(&mut tally) } else { Node::build(leaves) };
        Map { root, total, tally, hand: 0, dirty_hand: 0 }
    }

    fn edit(&mut self, edit: &Edit) {
        if edit.range.is_empty() {
            return;
        }
        self.root.edit(SPACE, edit, &mut self.tally).apply(&mut self.total);
        self.root.settle_root(self.total, edit.range.start, &mut self.tally);
    }

    /// Puts `extent` in the place of whatever is there.
    pub(crate) fn put(&mut self, range: Range<u64>, extent: Extent) {
        let lba = range.start;
        assert_eq!(extent.bytes().div_ceil(SECTOR), usize::from(extent.sectors), "invariant 2");
        assert!(lba % CHUNK_SECTORS + (range.end - lba) <= CHUNK_SECTORS, "invariant 1: sectors {range:?}");
        self.edit(&Edit { range, put: Some((lba, extent)) });
    }

    /// Unmaps `range`.
    pub(crate) fn trim(&mut self, range: Range<u64>) {
        self.edit(&Edit { range, put: None });
    }

    /// Maps `sectors` sectors at `lba` to a plain chunk of `stored` bytes; the rest reads as zeros.
    #[cfg(any(test, feature = "bench"))]
    pub(crate) fn write(
        &mut self,
        lba: Lba,
        sectors: u64,
        phys: PhysAddr,
        stored: u16,
        crc: u32,
        birth: crate::Seq,
    ) {
        let payload_sectors = usize::from(stored).div_ceil(SECTOR) as u8;
        let extent = Extent { phys, stored, crc, birth, sectors: payload_sectors, ..Extent::default() };
        self.write_part(lba, lba.0..lba.0 + sectors, extent);
    }

    /// Maps the sectors in `part` of what was written at `lba`: `extent`, and zeros behind it.
    pub(crate) fn write_part(&mut self, lba: Lba, part: Range<u64>, extent: Extent) {
        match clip(lba.0, &extent, &part) {
            Some((start, extent)) => self.put(start..part.end, extent),
            None => self.trim(part),
        }
    }

    /// Whether exactly `extent` is mapped at `lba`, or, if it is an encoded chunk, some part of it. Their leaf is in
    /// memory.
    pub(crate) fn holds(&self, lba: Lba, extent: &Extent) -> bool {
        if extent.is_encoded() {
            return self.parts(lba, extent).next().is_some();
        }
        let LeafAt { slot, span, rows } = self.root.leaf_at(lba.0);
        let leaf = slot.resident();
        leaf.touch(lba.0, &span, rows);
        let rows = leaf.view();
        let index = rows.search(lba.0);
        index < rows.len() && rows.get(index) == (lba.0, *extent)
    }

    /// Replaces the part of `extent` at `lba` that lies in `part`, which the map must hold, by a chunk with the
    /// same bytes.
    pub(crate) fn relocate(&mut self, lba: Lba, extent: &Extent, part: Range<u64>, phys: PhysAddr, crc: u32) {
        let (start, old) = clip(lba.0, extent, &part).expect("a part of the extent");
        let is_held =
            matches!(self.extents(part.clone()).next(), Some(Ok(held)) if held == (Lba(start), old));
        assert!(is_held, "relocation of an extent that is not mapped");
        assert!(!old.is_encoded(), "an encoded chunk is relocated whole");
        let stored = u16::try_from(old.bytes()).expect("an extent is at most a chunk");
        self.put(part, Extent { phys, stored, crc, skip: 0, ..old });
    }

    /// The parts of the encoded chunk `whole`, at `lba`, that are mapped.
    pub(crate) fn parts<'a>(
        &'a self,
        lba: Lba,
        whole: &'a Extent,
    ) -> impl Iterator<Item = (Lba, Extent)> + 'a {
        let found = self.extents(lba.0..lba.0 + u64::from(whole.sectors)).map_while(Result::ok);
        found.filter(move |(_, part)| part.is_encoded() && part.phys == whole.phys)
    }

    /// Points all parts of the encoded chunk `whole`, at `lba`, to a copy of it.
    pub(crate) fn relocate_encoded(&mut self, lba: Lba, whole: &Extent, phys: PhysAddr) {
        for (lba, part) in self.parts(lba, whole).collect::<Vec<_>>() {
            self.put(lba.0..lba.0 + u64::from(part.sectors), Extent { phys, ..part });
        }
    }

    /// All extents in `range`, cut to it, in order, up to the first leaf that must be read.
    pub(crate) fn extents(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = Result<(Lba, Extent), Absent>> + '_ {
        let cut = range.clone();
        self.rows(range).map_while(move |row| clipped(row, &cut))
    }

    fn rows(&self, range: Range<u64>) -> Rows<'_> {
        Rows { map: self, leaf: None, index: 0, next: range.start, until: range.end }
    }

    /// As [`Map::extents`] for each of `ranges`, of which there may be many in any order, in about the time that a few
    /// look-ups wait for memory. `visit` gets the range's index and returns whether to go on; so it also decides what
    /// happens after a leaf that must be read.
    pub(crate) fn extents_of_each(
        &self,
        ranges: &[Range<u64>],
        mut visit: impl FnMut(usize, Result<(Lba, Extent), Absent>) -> bool,
    ) {
        for (ranges, first) in ranges.chunks(GROUP).zip((0..).step_by(GROUP)) {
            let lbas: [u64; GROUP] = array::from_fn(|index| ranges.get(index).map_or(0, |range| range.start));
            let mut goes_on = true;
            group::find(&self.root, &lbas[..ranges.len()], |index, at| {
                let range = &ranges[index];
                let mut rows = Rows { map: self, leaf: None, index: 0, next: range.start, until: range.end };
                let met = if range.is_empty() { None } else { rows.enter(&at) };
                let mut extents = met.into_iter().map(Err).chain(rows).map_while(|row| clipped(row, range));
                goes_on = goes_on && extents.all(|found| visit(first + index, found));
            });
            if !goes_on {
                return;
            }
        }
    }

    /// Prefetches into the processor's cache what look-ups and changes of `ranges` read first. Consecutive ranges are
    /// assumed to lie close together.
    pub(crate) fn load_ahead(&self, ranges: impl Iterator<Item = Range<u64>>) {
        let mut end = None;
        let is_far = |range: &Range<u64>| end.replace(range.end) != Some(range.start);
        let lbas: Vec<u64> = ranges.filter(is_far).map(|range| range.start).take(LOADED_AHEAD_MAX).collect();
        if lbas.len() > 1 {
            lbas.chunks(GROUP).for_each(|lbas| group::find(&self.root, lbas, |_, _| {}));
        }
    }

    /// Evicted leaves without which `ranges`, sorted and without overlap, cannot be changed. Once those are in memory,
    /// more may be absent: only a leaf in memory shows whether it will need its neighbour.
    pub(crate) fn absent(&self, ranges: &[Range<u64>]) -> Vec<Absent> {
        let mut found = Vec::new();
        if !ranges.is_empty() && !self.is_all_resident() {
            self.root.absent(SPACE, self.total, ranges, &mut found);
            found.sort_unstable_by_key(|absent| absent.span.start);
            found.dedup_by_key(|absent| absent.span.start);
        }
        found
    }

    /// A leaf could not be read. Changes that need it only for the sake of its neighbours do without from now on, until it
    /// is in memory.
    pub(crate) fn note_unreadable(&mut self, absent: &Absent) {
        let slot = self.root.slot_at_mut(absent.span.start);
        if slot.place() == Some(absent.place) && slot.leaf().is_none() {
            slot.note_unreadable();
        }
    }

    /// Whether changes of `ranges` need a leaf that could not be read.
    pub(crate) fn needs_unreadable(&self, ranges: &[Range<u64>]) -> bool {
        self.absent(ranges).iter().any(|absent| self.root.leaf_at(absent.span.start).slot.is_unreadable())
    }

    /// Whether no leaf is evicted.
    pub(crate) fn is_all_resident(&self) -> bool {
        self.tally.of_leaves.resident == self.tally.of_leaves.leaves
    }

    /// Puts a leaf that was read into memory, unless the map has changed there since. Returns whether
    /// it did.
    pub(crate) fn install(&mut self, absent: &Absent, leaf: Leaf) -> bool {
        let slot = self.root.slot_at_mut(absent.span.start);
        let is_it = slot.place() == Some(absent.place) && slot.leaf().is_none();
        if is_it {
            slot.install(&mut self.tally, leaf);
        }
        is_it
    }

    /// The leaf at `start` was written to `place`, unless the map has changed there since.
    pub(crate) fn put_at(&mut self, start: u64, was: &LeafRef, place: LeafAddr) {
        let slot = self.root.slot_at_mut(start);
        let is_it = match (&was.place, &was.leaf) {
            (Some(place), _) => slot.place() == Some(*place),
            (None, Some(leaf)) => slot.is_dirty() && slot.leaf().is_some_and(|now| now.is_same(leaf)),
            (None, None) => unreachable!("a leaf is in memory or has a place"),
        };
        if is_it {
            slot.put_at(&mut self.tally, place);
        }
    }

    /// The leaves in `ranges` that are in memory: they are not evicted while the caller holds them.
    pub(crate) fn share(&self, ranges: &[Range<u64>]) -> Vec<Leaf> {
        let mut shared = Vec::new();
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let found = self.root.leaf_at(at);
                shared.extend(found.slot.look().cloned());
                at = found.span.end;
            }
        }
        shared
    }

    /// Evicts clean leaves that are not in use, until at most `bytes` are in memory or `visits` leaves were visited.
    /// Returns how many it evicted.
    pub(crate) fn evict(&mut self, bytes: u64, visits: u64) -> u64 {
        let (mut left, mut evicted) = (visits, 0);
        let Map { root, tally, hand, .. } = self;
        // Dirty leaves stay.
        let bytes = bytes.max(tally.of_leaves.dirty_memory);
        // Twice around at most: the first time takes marks away.
        for _ in 0..3 {
            let is_through = root.sweep(0, *hand, &mut |start, slot| {
                if tally.of_leaves.resident_memory <= bytes || left == 0 {
                    *hand = start;
                    return false;
                }
                left -= 1;
                let is_free = slot.leaf().is_some_and(|leaf| !slot.is_dirty() && !leaf.is_shared());
                if is_free && !slot.take_used() {
                    slot.evict(tally);
                    evicted += 1;
                }
                true
            });
            if !is_through {
                break;
            }
            *hand = 0;
        }
        evicted
    }

    /// Up to `leaves_max` dirty leaves, preferably ones that have not been used for a while.
    pub(crate) fn dirty_leaves(&mut self, leaves_max: usize) -> Vec<LeafRef> {
        let mut starts = Vec::new();
        let Map { root, dirty_hand, .. } = self;
        for _ in 0..3 {
            let is_through = root.sweep(0, *dirty_hand, &mut |start, slot| {
                if starts.len() == leaves_max {
                    *dirty_hand = start;
                    return false;
                }
                if slot.is_to_be_written() && !slot.take_used() {
                    starts.push((start, slot.resident().clone()));
                }
                true
            });
            if !is_through {
                break;
            }
            *dirty_hand = 0;
            if !starts.is_empty() {
                break;
            }
        }
        let reference = |(start, leaf): (u64, Leaf)| LeafRef {
            span: start..u64::MAX,
            live: leaf.sum(),
            leaf: Some(leaf),
            place: None,
        };
        starts.into_iter().map(reference).collect()
    }

    /// End of the span of the leaf that `lba` belongs to.
    pub(crate) fn leaf_end(&self, lba: u64) -> u64 {
        self.root.leaf_at(lba).span.end
    }

    /// End of the span of the last of `leaves` leaves, from the one that `lba` belongs to.
    pub(crate) fn leaves_end(&self, lba: u64, leaves: usize) -> u64 {
        (0..leaves).fold(lba, |at, _| if at == u64::MAX { at } else { self.leaf_end(at) })
    }

    /// Those leaves in `range` that are on the device as they are now.
    pub(crate) fn leaves_on_device(&self, range: Range<u64>) -> Vec<Absent> {
        let (mut leaves, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let found = self.root.leaf_at(at);
            if found.slot.place().is_some() {
                leaves.push(self.root.absent_at(at, self.total));
            }
            at = found.span.end;
        }
        leaves
    }

    /// The leaves as they are now, at the cost of a reference.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot { root: self.root.clone(), total: self.total, leaves: self.tally.of_leaves.leaves }
    }

    /// What unmapping `ranges` (sorted, without overlap) would free: bytes, and how many extents
    /// fewer there would be (negative when more are split than removed).
    pub(crate) fn freed_by(&self, ranges: &[Range<u64>]) -> Result<(u64, i64), Absent> {
        let (mut bytes, mut extents) = (0, 0);
        for at in (0..ranges.len()).filter(|at| !ranges[*at].is_empty()) {
            let freed = self.root.freed_by(SPACE, self.total, ranges, at);
            let freed = freed.map_err(|lba| self.root.absent_at(lba, self.total))?;
            bytes += freed.0;
            extents += freed.1;
        }
        Ok((bytes, extents))
    }

    /// The stored bytes of `range`, and in how many extents, from the tree's sums. Meets an evicted leaf only at an end
    /// of the range.
    pub(crate) fn live_in(&self, range: Range<u64>) -> Result<Live, Absent> {
        if range.is_empty() {
            return Ok(Live::default());
        }
        let live = self.root.live_in(SPACE, self.total, &range);
        live.map_err(|lba| self.root.absent_at(lba, self.total))
    }

    /// The evicted leaves that `lbas` lie in.
    pub(crate) fn absent_of(&self, lbas: impl Iterator<Item = u64>) -> Vec<Absent> {
        let mut absent: Vec<_> =
            lbas.flat_map(|lba| self.absent_ahead(lba..lba.saturating_add(1), 1)).collect();
        absent.sort_unstable_by_key(|absent| absent.span.start);
        absent.dedup_by_key(|absent| absent.span.start);
        absent
    }

    /// Those of the first `leaves_max` leaves of `range` that are evicted.
    pub(crate) fn absent_ahead(&self, range: Range<u64>, leaves_max: usize) -> Vec<Absent> {
        let (mut absent, mut at) = (Vec::new(), range.start);
        for _ in 0..leaves_max {
            if self.is_all_resident() || at >= range.end {
                break;
            }
            let found = self.root.leaf_at(at);
            if found.slot.leaf().is_none() {
                absent.push(self.root.absent_at(at, self.total));
            }
            at = found.span.end;
        }
        absent
    }

    /// Counters of one segment.
    pub(crate) fn live(&self, segment: SegNo) -> Live {
        self.tally.segments[segment.0 as usize]
    }

    /// A segment that held more than the counters that came with the checkpoint said, if a change has met one. Leaves
    /// and counters are both sealed, so somebody forged them. What else lies in that segment is unknown.
    pub(crate) fn miscounted(&self) -> Option<SegNo> {
        self.tally.miscounted
    }

    /// So many bytes were found in a segment, at least.
    pub(crate) fn note_holds(&mut self, segment: SegNo, bytes: u64) {
        if self.live(segment).bytes < bytes {
            self.tally.miscounted.get_or_insert(segment);
        }
    }

    /// Makes a segment count what is not there.
    #[cfg(test)]
    pub(crate) fn forge_live(&mut self, segment: SegNo, live: Live) {
        self.tally.segments[segment.0 as usize] = live;
    }

    /// The store has `segments` segments now.
    pub(crate) fn grow(&mut self, segments: usize) {
        self.tally.grow(segments);
    }

    /// Counters of all segments.
    pub(crate) fn segments(&self) -> &[Live] {
        &self.tally.segments
    }

    /// Bytes of leaves in one segment.
    pub(crate) fn leaf_bytes(&self, segment: SegNo) -> u64 {
        self.tally.leaf_bytes[segment.0 as usize]
    }

    /// Totals.
    pub(crate) fn total(&self) -> Live {
        self.total
    }

    /// The number of extents for which space for checkpoints is reserved, after `items` more changes.
    pub(crate) fn weight(&self, items: u64) -> u64 {
        // An item adds at most two extents: its own and the right part of a split one. It takes 33 of
        // them, or a leaf that is full, to make a leaf more.
        let leaves = self.tally.of_leaves.leaves + items.min(self.tally.of_leaves.leaves + items / 16);
        (self.total.extents + 2 * items).max(leaves * LEAF_WEIGHT)
    }

    /// How much of the map is in memory.
    pub(crate) fn residence(&self) -> Residence {
        self.tally.of_leaves
    }

    /// Memory of inner nodes in bytes: for each leaf its place in one, twice, because those are half
    /// to wholly full.
    pub(crate) fn inner_bytes(&self) -> u64 {
        let place = size_of::<Node>() + size_of::<Live>() + size_of::<u64>();
        self.tally.of_leaves.leaves * 2 * place as u64
    }

    /// Memory in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.tally.of_leaves.resident_memory + self.inner_bytes()
    }

    /// Checks the invariants of the tree above its leaves; calls `found` for each breach.
    pub(crate) fn check(&self, mut found: impl FnMut(String)) {
        let (_, sum) = self.root.check(SPACE, self.total, &mut found);
        if sum != self.total {
            found(format!("map totals are {:?}, the nodes' sum is {sum:?}", self.total));
        }
        let mut tally = Tally::new(self.tally.segments.clone());
        self.root.for_each(SPACE, self.total, &mut |_, _, slot| tally.enter(slot));
        let counts = |tally: &Tally| (tally.leaf_bytes.clone(), tally.of_leaves);
        if counts(&tally) != counts(&self.tally) {
            found(format!("the map counts {:?}, {:?} are there", counts(&self.tally).1, counts(&tally).1));
        }
    }
}

/// All leaves of a map at one moment. As long as it exists, a change of the map copies the nodes that the snapshot
/// shares, and no leaf is evicted.
pub(crate) struct Snapshot {
    root: Node,
    total: Live,
    leaves: u64,
}

impl Snapshot {
    /// All leaves that are not empty, in order. Leaves without a place are included; the others are included if `wants`
    /// selects them and they are in memory.
    pub(crate) fn leaves(&self, wants: impl Fn(&LeafAddr) -> bool) -> Vec<LeafRef> {
        let mut leaves = Vec::with_capacity(self.leaves as usize);
        self.root.for_each(SPACE, self.total, &mut |span, live, slot| {
            if live.extents > 0 {
                let place = slot.place();
                let comes = place.as_ref().is_none_or(&wants);
                let leaf = if comes { slot.leaf().cloned() } else { None };
                leaves.push(LeafRef { span, live, leaf, place });
            }
        });
        leaves
    }
}

/// Rows from one on, leaf by leaf.
struct Rows<'a> {
    map: &'a Map,
    leaf: Option<LeafRows<'a>>,
    /// The next row in `leaf`.
    index: usize,
    /// A sector of the leaf after it.
    next: u64,
    until: u64,
}

impl Iterator for Rows<'_> {
    type Item = Result<Row, Absent>;

    fn next(&mut self) -> Option<Result<Row, Absent>> {
        loop {
            if let Some(leaf) = &self.leaf
                && self.index < leaf.len()
            {
                // A row behind the range is not decoded.
                if leaf.start(self.index) >= self.until {
                    return None;
                }
                self.index += 1;
                return Some(Ok(leaf.get(self.index - 1)));
            }
            if self.next >= self.until {
                return None;
            }
            let at = self.map.root.leaf_at(self.next);
            if let Some(leaf) = at.slot.leaf() {
                leaf.touch(self.next, &at.span, at.rows);
            }
            if let Some(absent) = self.enter(&at) {
                return Some(Err(absent));
            }
        }
    }
}

impl<'a> Rows<'a> {
    /// Goes on in the leaf with `next` in its span, or ends if that must be read.
    fn enter(&mut self, at: &LeafAt<'a>) -> Option<Absent> {
        let Some(leaf) = at.slot.look() else {
            let absent = self.map.root.absent_at(self.next, self.map.total);
            (self.leaf, self.next) = (None, self.until);
            return Some(absent);
        };
        let rows = leaf.view();
        (self.leaf, self.index) = (Some(rows), rows.reach(self.next));
        self.next = at.span.end;
        None
    }
}
