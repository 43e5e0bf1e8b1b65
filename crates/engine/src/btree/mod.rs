//! The B+tree: an ordered map of byte keys in one table file.
//!
//! Records live in leaves only; the root is page 1 for ever. Nodes have no sibling links: a scan goes
//! from leaf to leaf by descending again from the *fence*, the separator that bounds the leaf.
//!
//! Latches: a descent latches a child before it releases the parent. Readers latch shared; writers latch the leaf
//! exclusively, and everything above it shared. A change of structure (`split`, `merge`) descends with exclusive
//! latches on one parent and its children, splitting full nodes on its way down, so it never needs to go up again. All
//! latches are taken from the root down, siblings from left to right and only under their exclusively latched parent,
//! then the allocation page: no cycle.
//!
//! Crash argument: each change of structure is one mini-transaction, and leaves a valid tree.

mod check;
mod estimate;
mod finger;
mod merge;
mod scan;
mod split;

use std::sync::Arc;

pub(crate) use finger::Finger;
pub(crate) use merge::asks as asks_to_merge;
pub use scan::Direction;
pub(crate) use scan::Start;

use crate::{
    alloc::Allocator,
    mtr::{Mtr, Pager},
    mutant::{Rule, is_broken},
    page::{
        node::Node,
        ops::{self, PageKind, PageOp},
    },
    pool::{ReadGuard, WriteGuard},
    space::{Space, corrupt},
    types::{PageNo, Result},
};

/// Greatest level of a root: each level has twice as many pages at least.
const LEVEL_MAX: u16 = 64;
/// Where every tree starts.
const ROOT: PageNo = PageNo(1);

/// The tree of a table.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'a> {
    pager: &'a Pager,
    space: &'a Arc<Space>,
}

impl<'a> Tree<'a> {
    pub(crate) fn new(pager: &'a Pager, space: &'a Arc<Space>) -> Tree<'a> {
        Tree { pager, space }
    }

    /// Makes an empty tree in an empty file.
    pub(crate) fn format(pager: &Pager, space: &Arc<Space>) -> Result<()> {
        let mut mtr = Mtr::new();
        let mut allocator = Allocator::format(pager, space, &mut mtr, 2)?;
        let mut root = pager.create(space, ROOT);
        mtr.apply(&mut root, PageOp::Init { level: 0 });
        mtr.commit(pager, &mut [&mut allocator.header, &mut root])?;
        Ok(())
    }

    /// The leaf that holds `key` if any does, latched shared.
    pub(crate) fn leaf_read(self, key: &[u8]) -> Result<ReadGuard> {
        let mut page = self.pager.read(self.space, ROOT)?;
        self.check_node(&page, ROOT, None)?;
        while !Node::new(&page).is_leaf() {
            let slot = Node::new(&page).child_slot(key);
            page = self.go_down(page, slot)?;
        }
        Ok(page)
    }

    /// The leaf that holds `key` if any does, latched exclusively.
    pub(crate) fn leaf_write(self, key: &[u8]) -> Result<WriteGuard> {
        self.descend(key, |_| ())
    }

    /// The same. `bound` is called with each separator on the way that is greater than `key`: the last of them is where
    /// the next leaf starts, and without any the leaf is the last one.
    fn descend(self, key: &[u8], mut bound: impl FnMut(&[u8])) -> Result<WriteGuard> {
        loop {
            let mut page = self.pager.read(self.space, ROOT)?;
            self.check_node(&page, ROOT, None)?;
            if Node::new(&page).is_leaf() {
                drop(page);
                let root = self.pager.write(self.space, ROOT)?;
                if Node::new(&root).is_leaf() {
                    return Ok(root);
                }
                continue; // It grew meanwhile.
            }
            loop {
                let node = Node::new(&page);
                let slot = node.child_slot(key);
                if slot + 1 < node.count() {
                    bound(node.key(slot + 1));
                }
                if node.level() == 1 {
                    return self.write_child(node, slot);
                }
                page = self.read_child(node, slot)?;
            }
        }
    }

    /// The child, latched before its parent is released.
    fn go_down(self, parent: ReadGuard, slot: usize) -> Result<ReadGuard> {
        if is_broken(Rule::DescentsCouple) {
            let (number, level) = (Node::new(&parent).child(slot), Node::new(&parent).level() - 1);
            drop(parent);
            let child = self.pager.read(self.space, number)?;
            return self.check_node(&child, number, Some(level)).map(|()| child);
        }
        self.read_child(Node::new(&parent), slot)
    }

    fn read_child(self, parent: Node<'_>, slot: usize) -> Result<ReadGuard> {
        let number = self.child_below(parent, slot)?;
        let child = self.pager.read(self.space, number)?;
        self.check_node(&child, number, Some(parent.level() - 1))?;
        Ok(child)
    }

    /// The child's number. The parent is latched shared: whoever follows a page that names itself would wait for itself,
    /// a reader too if a writer waits in between.
    fn child_below(self, parent: Node<'_>, slot: usize) -> Result<PageNo> {
        let number = parent.child(slot);
        match number == ROOT || number == parent.number() {
            true => Err(corrupt(self.space, number, "a node above in the place of a child")),
            false => Ok(number),
        }
    }

    fn write_child(self, parent: Node<'_>, slot: usize) -> Result<WriteGuard> {
        let number = self.child_below(parent, slot)?;
        let child = self.pager.write(self.space, number)?;
        self.check_node(&child, number, Some(parent.level() - 1))?;
        self.check_fences(parent, slot, Node::new(&child), number)?;
        Ok(child)
    }

    /// Guards against keys that belong to another child: who changes this one could not find them again, and would put
    /// them out of order when nodes are merged.
    fn check_fences(self, parent: Node<'_>, slot: usize, child: Node<'_>, number: PageNo) -> Result<()> {
        // The first key of an inner node is empty, whatever its fence is.
        let (first, count) = (usize::from(!child.is_leaf()), child.count());
        let is_low = first < count && child.key(first) < parent.key(slot);
        let is_high = count > 0 && slot + 1 < parent.count() && child.key(count - 1) >= parent.key(slot + 1);
        match is_low || is_high {
            true => Err(corrupt(self.space, number, "keys outside of the node's fences")),
            false => Ok(()),
        }
    }

    /// Guards against pages that are sound in themselves but do not belong where a pointer led.
    fn check_node(self, page: &[u8], number: PageNo, level: Option<u16>) -> Result<()> {
        if ops::kind(page) != Some(PageKind::Node) {
            return Err(corrupt(self.space, number, "not a tree node"));
        }
        let found = Node::new(page).level();
        match level {
            Some(want) if want != found => Err(corrupt(
                self.space,
                number,
                format!("node of level {found} in the place of level {want}"),
            )),
            None if found > LEVEL_MAX => {
                Err(corrupt(self.space, number, format!("a root of level {found}, higher than any tree")))
            }
            _ => Ok(()),
        }
    }
}
