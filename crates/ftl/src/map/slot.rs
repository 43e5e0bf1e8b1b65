//! A leaf's place in the tree: the leaf, or where on the device it lies, or both.
//!
//! | leaf | place | |
//! |---|---|---|
//! | yes | no | *dirty*: the device has no such leaf |
//! | yes | yes | *clean*: it may be evicted |
//! | no | yes | *evicted*: it must be read before its rows can be looked at |

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Live, leaf::Leaf};
use crate::{
    addr::{GRAIN, SegNo},
    format::{Extent, LeafAddr},
};

/// See the module documentation.
pub(super) struct Slot {
    leaf: Option<Leaf>,
    place: Option<LeafAddr>,
    /// Used since eviction last visited it.
    used: AtomicBool,
    /// The leaf could not be read when it was last needed.
    is_unreadable: bool,
}

impl Clone for Slot {
    fn clone(&self) -> Slot {
        let used = self.used.load(Ordering::Relaxed);
        let Slot { place, is_unreadable, .. } = *self;
        Slot { leaf: self.leaf.clone(), place, used: AtomicBool::new(used), is_unreadable }
    }
}

impl Slot {
    pub(super) fn dirty(leaf: Leaf) -> Slot {
        Slot { leaf: Some(leaf), place: None, used: AtomicBool::new(true), is_unreadable: false }
    }

    pub(super) fn evicted(place: LeafAddr) -> Slot {
        Slot { leaf: None, place: Some(place), used: AtomicBool::new(false), is_unreadable: false }
    }

    /// The leaf, if it is in memory, for a caller that reads its rows; marks it as used.
    pub(super) fn look(&self) -> Option<&Leaf> {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        self.leaf.as_ref()
    }

    /// The leaf, if it is in memory.
    pub(super) fn leaf(&self) -> Option<&Leaf> {
        self.leaf.as_ref()
    }

    /// The leaf of a slot; the caller, which changes the map, has ensured that it is in memory.
    pub(super) fn resident(&self) -> &Leaf {
        self.leaf.as_ref().expect("invariant 4: a leaf is in memory when it is changed")
    }

    pub(super) fn place(&self) -> Option<LeafAddr> {
        self.place
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.place.is_none()
    }

    /// Whether it is dirty and not empty: no empty leaf is written.
    pub(super) fn is_to_be_written(&self) -> bool {
        self.is_dirty() && self.resident().len() > 0
    }

    /// Whether the leaf could not be read when it was last needed.
    pub(super) fn is_unreadable(&self) -> bool {
        self.is_unreadable
    }

    /// The leaf, which was evicted, cannot be read.
    pub(super) fn note_unreadable(&mut self) {
        self.is_unreadable = true;
    }

    /// Whether it was used since the last call.
    pub(super) fn take_used(&mut self) -> bool {
        std::mem::take(self.used.get_mut())
    }

    /// Changes the leaf, which makes it dirty, and keeps `tally` up to date.
    pub(super) fn change<T>(&mut self, tally: &mut Tally, change: impl FnOnce(&mut Leaf) -> T) -> T {
        tally.leave(self);
        self.place = None;
        *self.used.get_mut() = true;
        let leaf = self.leaf.as_mut().expect("invariant 4: a leaf is in memory when it is changed");
        let result = change(leaf);
        tally.enter(self);
        result
    }

    /// Puts the leaf, which equals the bytes at the slot's place, into memory.
    pub(super) fn install(&mut self, tally: &mut Tally, leaf: Leaf) {
        tally.leave(self);
        self.leaf = Some(leaf);
        self.is_unreadable = false;
        *self.used.get_mut() = true;
        tally.enter(self);
    }

    /// The leaf in its current state lies at `place` from now on.
    pub(super) fn put_at(&mut self, tally: &mut Tally, place: LeafAddr) {
        tally.leave(self);
        self.place = Some(place);
        tally.enter(self);
    }

    /// Drops the leaf from memory. It must be clean.
    pub(super) fn evict(&mut self, tally: &mut Tally) {
        assert!(!self.is_dirty(), "eviction of a leaf that the device does not have");
        tally.leave(self);
        self.leaf = None;
        tally.enter(self);
    }
}

/// Bytes that a leaf takes in its segment.
fn stored_bytes(place: LeafAddr) -> u64 {
    usize::from(place.bytes).next_multiple_of(GRAIN) as u64
}

/// How many leaves a map has, and the memory they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Residence {
    pub(crate) leaves: u64,
    pub(crate) resident: u64,
    /// Memory in bytes, without inner nodes.
    pub(crate) resident_memory: u64,
    /// Dirty leaves, but for empty ones.
    pub(crate) dirty: u64,
    pub(crate) dirty_memory: u64,
    /// As long as they will be on the device.
    pub(crate) dirty_bytes: u64,
}

/// Counters beside the tree's own sums.
pub(super) struct Tally {
    /// Live extents and bytes in each segment.
    pub(super) segments: Vec<Live>,
    /// Bytes of leaves of this map in each segment.
    pub(super) leaf_bytes: Vec<u64>,
    pub(super) of_leaves: Residence,
    /// The first segment that held more than its counter said; that came with the checkpoint.
    pub(super) miscounted: Option<SegNo>,
}

impl Tally {
    pub(super) fn new(segments: Vec<Live>) -> Tally {
        let leaf_bytes = vec![0; segments.len()];
        Tally { segments, leaf_bytes, of_leaves: Residence::default(), miscounted: None }
    }

    /// There are `segments` segments now.
    pub(super) fn grow(&mut self, segments: usize) {
        self.segments.resize(segments, Live::default());
        self.leaf_bytes.resize(segments, 0);
    }

    /// Counts an extent, which counts `bytes`.
    pub(super) fn add(&mut self, extent: &Extent, bytes: u64) {
        self.segments[extent.phys.segment.0 as usize].add(bytes);
    }

    /// Uncounts it. Of an encoded chunk all parts are uncounted before any is counted anew, the first one last, so that no
    /// segment ever has extents and no bytes.
    pub(super) fn sub(&mut self, extent: &Extent, bytes: u64) {
        let live = &mut self.segments[extent.phys.segment.0 as usize];
        let left = live.without(bytes);
        if left.is_none() {
            self.miscounted.get_or_insert(extent.phys.segment);
        }
        *live = left.unwrap_or_default();
    }

    /// Counts a slot of the tree.
    pub(super) fn enter(&mut self, slot: &Slot) {
        self.of_leaves.leaves += 1;
        if let Some(leaf) = &slot.leaf {
            self.of_leaves.resident += 1;
            self.of_leaves.resident_memory += leaf.memory_bytes();
            if slot.is_to_be_written() {
                self.of_leaves.dirty += 1;
                self.of_leaves.dirty_memory += leaf.memory_bytes();
                self.of_leaves.dirty_bytes += leaf.bytes().len() as u64;
            }
        }
        if let Some(place) = slot.place {
            self.leaf_bytes[place.segment.0 as usize] += stored_bytes(place);
        }
    }

    /// Uncounts a slot, before it goes or changes.
    pub(super) fn leave(&mut self, slot: &Slot) {
        self.of_leaves.leaves -= 1;
        if let Some(leaf) = &slot.leaf {
            self.of_leaves.resident -= 1;
            self.of_leaves.resident_memory -= leaf.memory_bytes();
            if slot.is_to_be_written() {
                self.of_leaves.dirty -= 1;
                self.of_leaves.dirty_memory -= leaf.memory_bytes();
                self.of_leaves.dirty_bytes -= leaf.bytes().len() as u64;
            }
        }
        if let Some(place) = slot.place {
            let live = &mut self.leaf_bytes[place.segment.0 as usize];
            *live = live.checked_sub(stored_bytes(place)).expect("invariant 5: bytes of leaves below zero");
        }
    }
}
