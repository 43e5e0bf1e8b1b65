//! Walking along the leaves in either direction.

use std::ops::Range;

use super::{ROOT, Tree};
use crate::{
    page::node::Node,
    pool::ReadGuard,
    types::{PageNo, Result},
};

/// Order of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Backward,
}

/// Where a scan starts, or goes on: towards greater keys in a forward scan, lesser ones in a
/// backward scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// At the first key of all, in scan order.
    End,
    /// At this key.
    At(Vec<u8>),
    /// Just after this key, in scan order.
    Behind(Vec<u8>),
}

/// A leaf met by a scan.
pub(crate) struct Leaf {
    pub(crate) page: ReadGuard,
    /// Slots in range of the start, in scan order: from the first, exclusive of the second, forwards;
    /// or from the last down to the first, backwards.
    pub(crate) slots: Range<usize>,
    /// Where the next leaf starts; `None` at the last one.
    pub(crate) next: Option<Start>,
    /// The following leaves that were asked for, in scan order, as far as its parent has them.
    pub(crate) following: Vec<PageNo>,
}

/// The children after `slot`, in scan order; `which` of them, the next one being 0.
fn following(node: Node<'_>, slot: usize, direction: Direction, which: Range<usize>) -> Vec<PageNo> {
    let at = |next: usize| match direction {
        Direction::Forward => Some(slot + 1 + next).filter(|slot| *slot < node.count()),
        Direction::Backward => slot.checked_sub(1 + next),
    };
    which.map_while(at).map(|slot| node.child(slot)).collect()
}

impl Tree<'_> {
    /// The leaf at which a scan in `direction` starts, and its slots from `start` on. It may hold nothing in range;
    /// then the scan goes on at `next`. `ahead` says which of the leaves after it to list, the next one being 0.
    pub(crate) fn scan_leaf(self, start: &Start, direction: Direction, ahead: Range<usize>) -> Result<Leaf> {
        let mut page = self.pager.read(self.space, ROOT)?;
        self.check_node(&page, ROOT, None)?;
        let mut fence = None;
        let mut listed = Vec::new();
        while !Node::new(&page).is_leaf() {
            let node = Node::new(&page);
            let slot = match direction {
                Direction::Forward => {
                    let slot = match start {
                        Start::End => 0,
                        Start::At(key) | Start::Behind(key) => node.child_slot(key),
                    };
                    if slot + 1 < node.count() {
                        fence = Some(Start::At(node.key(slot + 1).to_vec()));
                    }
                    slot
                }
                Direction::Backward => {
                    let slot = match start {
                        Start::End => node.count() - 1,
                        Start::At(key) => node.child_slot(key),
                        // A separator is the least key of its child: smaller keys are in the children before it.
                        Start::Behind(key) => match node.search(key) {
                            Ok(slot) | Err(slot) => slot.saturating_sub(1),
                        },
                    };
                    if slot > 0 {
                        fence = Some(Start::Behind(node.key(slot).to_vec()));
                    }
                    slot
                }
            };
            if node.level() == 1 {
                listed = following(node, slot, direction, ahead.clone());
            }
            page = self.go_down(page, slot)?;
        }
        let node = Node::new(&page);
        let count = node.count();
        let mut slots = match (direction, start) {
            (_, Start::End) => 0..count,
            (Direction::Forward, Start::At(key)) => node.search(key).unwrap_or_else(|slot| slot)..count,
            (Direction::Forward, Start::Behind(key)) => {
                node.search(key).map_or_else(|slot| slot, |s| s + 1)..count
            }
            (Direction::Backward, Start::At(key)) => 0..node.search(key).map_or_else(|slot| slot, |s| s + 1),
            (Direction::Backward, Start::Behind(key)) => 0..node.search(key).unwrap_or_else(|slot| slot),
        };
        // Since the fence was read a neighbour may have been removed, and this leaf have got its range: what lies beyond
        // the fence is left to the next step.
        let bound = |key| node.search(key).unwrap_or_else(|slot| slot);
        match &fence {
            Some(Start::At(key)) => slots.end = slots.end.min(bound(key)).max(slots.start),
            Some(Start::Behind(key)) => slots.start = slots.start.max(bound(key)).min(slots.end),
            Some(Start::End) | None => {}
        }
        Ok(Leaf { page, slots, next: fence, following: listed })
    }
}
