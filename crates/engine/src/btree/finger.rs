//! Fingers: finding a leaf again without a descent.
//!
//! A locked record is often written next, and keys are often written in order. So a transaction remembers the leaf of
//! each table that it latched last, as a [`Finger`], and looks there first.
//!
//! Invariants:
//!
//! 1. A key is in one leaf only: where it is found is where a descent would end. A leaf whose records moved elsewhere
//!    has none of them left once its latch is free: splits and merges hold all their pages latched, and a freed page is
//!    blanked.
//! 2. `Space::restructured` is increased while every leaf whose bounds change is latched exclusively. So if it has not
//!    changed since a finger was noted, with the leaf latched then and now, the leaf's bounds are the same, and a key
//!    after its first key and before the noted bound belongs there.

use super::Tree;
use crate::{
    mutant::{Rule, is_broken},
    page::{
        node::Node,
        ops::{self, PageKind},
    },
    pool::WriteGuard,
    types::{PageNo, Result},
};

/// A leaf that was latched exclusively.
#[derive(Default)]
pub(crate) struct Finger {
    page: Option<PageNo>,
    /// Where the next leaf starts; empty at the last one, as no separator is empty.
    bound: Vec<u8>,
    restructured: u64,
}

impl Finger {
    /// The next look goes down from the root.
    pub(crate) fn forget(&mut self) {
        self.page = None;
    }

    /// Whether `key`, which is greater than one that belongs into the finger's leaf and was not found there, belongs
    /// there too. The leaf is still latched.
    pub(crate) fn is_before_bound(&self, key: &[u8]) -> bool {
        self.bound.is_empty() || *key < self.bound[..]
    }
}

impl Tree<'_> {
    /// The leaf that holds `key` if any does, latched exclusively, by way of `finger`, which notes it.
    pub(crate) fn leaf_at(self, finger: &mut Finger, key: &[u8]) -> Result<WriteGuard> {
        if let Some(leaf) = self.leaf_of(finger, key) {
            return Ok(leaf);
        }
        finger.page = None;
        finger.bound.clear();
        let leaf = self.descend(key, |separator| {
            finger.bound.clear();
            finger.bound.extend_from_slice(separator);
        })?;
        finger.page = Some(leaf.id().page);
        finger.restructured = self.space.restructured();
        Ok(leaf)
    }

    /// The leaf of the finger, if it is in memory and that of `key`.
    fn leaf_of(self, finger: &Finger, key: &[u8]) -> Option<WriteGuard> {
        let is_before_bound = finger.is_before_bound(key);
        if !is_before_bound && !self.is_restructured(finger) {
            return None;
        }
        let page = self.pager.write_in_memory(self.space, finger.page?)?;
        if ops::kind(&page) != Some(PageKind::Node) || !Node::new(&page).is_leaf() {
            return None;
        }
        let node = Node::new(&page);
        // Broken only where the leaf has space: without it the writer splits the leaf that its key belongs to, and
        // searches again.
        let breaks = |rule| is_broken(rule) && node.free() > self.space.page_bytes() / 8;
        let is_in_leaf = match node.search(key) {
            Ok(_) => true,
            Err(slot) if slot > 0 && is_before_bound => {
                !self.is_restructured(finger) || breaks(Rule::BoundsNoted)
            }
            Err(_) => false,
        };
        (is_in_leaf || breaks(Rule::LeafHasKey)).then_some(page)
    }

    /// Whether the bounds of a leaf changed since the finger was noted. The caller has the finger's leaf latched, or
    /// only wants to know whether to look.
    fn is_restructured(self, finger: &Finger) -> bool {
        self.space.restructured() != finger.restructured
    }

    /// Notes that bounds of leaves change (invariant 2); the caller has these latched exclusively.
    pub(super) fn note_restructured(self) {
        self.space.note_restructured();
    }
}
