//! The B+tree: an ordered map of byte keys in one table file.
//!
//! Records live in leaves only; the root is page 1 for ever. Nodes have no sibling links: a scan goes
//! from leaf to leaf by descending again from the *fence*, the separator that bounds the leaf.
//!
//! Latches: a descent latches a child before it gives up the parent. Readers latch shared; writers
//! latch the leaf exclusively, and everything above it shared. A change of structure (`smo`) descends
//! with exclusive latches on one parent and its children, splitting full nodes on its way down, so
//! it never needs to go up again. All latches are taken from the root down, siblings from left to
//! right and only under their exclusively latched parent, then the allocation page: no cycle.
//!
//! Crash argument: each change of structure is one mini-transaction, and leaves a valid tree.

mod check;
mod scan;
mod smo;

use std::sync::Arc;

pub use scan::Direction;
pub(crate) use scan::Start;

use crate::{
    alloc::{Allocator, corrupt},
    core::Core,
    error::Result,
    ids::PageNo,
    mtr::Mtr,
    mutant::{Rule, is_broken},
    node::Node,
    ops::{self, PageKind, PageOp},
    pool::{ReadGuard, WriteGuard},
    space::Space,
};

/// Where every tree starts.
const ROOT: PageNo = PageNo(1);

/// The tree of a table.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'a> {
    core: &'a Core,
    space: &'a Arc<Space>,
}

impl<'a> Tree<'a> {
    pub(crate) fn new(core: &'a Core, space: &'a Arc<Space>) -> Tree<'a> {
        Tree { core, space }
    }

    /// Makes an empty tree in an empty file.
    pub(crate) fn format(core: &Core, space: &Arc<Space>) -> Result<()> {
        let mut mtr = Mtr::new();
        let mut allocator = Allocator::format(core, space, &mut mtr, 2)?;
        let mut root = core.pool.create(space, ROOT);
        mtr.apply(&mut root, PageOp::Init { level: 0 });
        mtr.commit(core, &mut [&mut allocator.header, &mut root])?;
        Ok(())
    }

    /// The leaf that holds `key` if any does, latched shared.
    pub(crate) fn leaf_read(self, key: &[u8]) -> Result<ReadGuard> {
        let mut page = self.core.pool.read(self.space, ROOT)?;
        self.check_node(&page, ROOT, None)?;
        while !Node::new(&page).is_leaf() {
            let node = Node::new(&page);
            page = self.read_child(node, node.child_slot(key))?;
        }
        Ok(page)
    }

    /// The leaf that holds `key` if any does, latched exclusively.
    pub(crate) fn leaf_write(self, key: &[u8]) -> Result<WriteGuard> {
        loop {
            let mut page = self.core.pool.read(self.space, ROOT)?;
            self.check_node(&page, ROOT, None)?;
            if Node::new(&page).is_leaf() {
                drop(page);
                let root = self.core.pool.write(self.space, ROOT)?;
                if Node::new(&root).is_leaf() {
                    return Ok(root);
                }
                continue; // It grew meanwhile.
            }
            loop {
                let node = Node::new(&page);
                let slot = node.child_slot(key);
                if node.level() == 1 {
                    return self.write_child(node, slot);
                }
                page = self.read_child(node, slot)?;
            }
        }
    }

    /// The leaf of `key`, latched exclusively, if it is `page`, in memory, and has the key: a key is in one leaf only,
    /// so where it is found is where a descent would end. A leaf that gave its records away has none of them left once
    /// its latch is free: splits and merges hold all their pages latched, and a page that is freed is blanked.
    pub(crate) fn leaf_again(self, page: PageNo, key: &[u8]) -> Option<WriteGuard> {
        let page = self.core.pool.write_in_memory(self.space, page)?;
        let is_leaf = ops::kind(&page) == Some(PageKind::Node) && Node::new(&page).is_leaf();
        // Broken only where there is room: who finds none splits the key's own leaf, and looks again.
        let is_wrong = || is_broken(Rule::LeafHasKey) && Node::new(&page).free() > self.space.page_bytes / 8;
        (is_leaf && (Node::new(&page).search(key).is_ok() || is_wrong())).then_some(page)
    }

    fn read_child(self, parent: Node<'_>, slot: usize) -> Result<ReadGuard> {
        let number = parent.child(slot);
        let child = self.core.pool.read(self.space, number)?;
        self.check_node(&child, number, Some(parent.level() - 1))?;
        Ok(child)
    }

    fn write_child(self, parent: Node<'_>, slot: usize) -> Result<WriteGuard> {
        let number = parent.child(slot);
        let child = self.core.pool.write(self.space, number)?;
        self.check_node(&child, number, Some(parent.level() - 1))?;
        Ok(child)
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
            _ => Ok(()),
        }
    }
}
