//! Freeing pages: empty and underfull nodes are merged with their neighbours, on either side.
//!
//! A writer that takes bytes out of a leaf checks ([`asks`]) whether its fill fell below a mark, and if so calls
//! [`Tree::merge`]. That latches the leaf's parent exclusively and does the first of these that frees a page:
//!
//! - an empty leaf is removed, with the inner nodes above that hold nothing else;
//! - two neighbours become one, or three become two, where [`FILL`] of each page is enough for all.
//!
//! Inner nodes follow when they are underfull, the root when it has one child left. Row-compressed leaves are merged in
//! pairs only, where their common block has space for changes.
//!
//! Invariants:
//!
//! 1. A leaf is empty only until the writer that removed its last record has called [`Tree::merge`], unless it is the
//!    root: so the first record lies in the first leaf, or in the next one that holds more than deleted records. (A
//!    split at either end of a leaf makes an empty one for the next record. If that record is refused, its writer frees
//!    the leaf; after a crash before that, the leaf stays until the next insert, or until a neighbour asks.)
//! 2. Each step is one mini-transaction, with the parent and all nodes that change latched exclusively. A leaf loses
//!    keys of its range only while it is latched so and `Space::restructured` grows (`finger`, invariant 2); a leaf
//!    whose range becomes wider loses no key. Scans continue from the fence that they last read, which may be within a
//!    leaf by then.
//!
//! Latches: those of `btree`.

use super::{ROOT, Tree};
use crate::btree::split::{append_cells, insert_child, page_of};
use crate::{
    alloc::Allocator,
    mtr::{self, LOGGED_OP_BYTES, Mtr},
    mutant::{Rule, is_broken},
    page::{
        node::{self, INNER_CELL_HEADER, Node, SLOT},
        ops::PageOp,
    },
    pool::WriteGuard,
    row,
    types::Result,
};

/// A leaf asks each time its use falls below another sixteenth of the page, once less than this many are used.
const ASK_SIXTEENTHS: usize = 10;
/// Share of a page up to which merging fills it.
const FILL: (usize, usize) = (15, 16);
/// The same of nodes that fill up again by splits of others: inner ones, and leaves that must fit their blocks.
const PAIR_FILL: (usize, usize) = (3, 4);
/// An inner node that uses less than one in this many bytes is merged.
const UNDERFULL: usize = 4;

fn capacity(node: Node<'_>) -> usize {
    node.used() + node.free()
}

/// Whether a leaf of which `used_before` bytes were in use has become so empty that [`Tree::merge`] should be asked.
pub(crate) fn asks(leaf: Node<'_>, used_before: usize) -> bool {
    let used = leaf.used();
    let sixteenths = |bytes: usize| (bytes * 16).div_ceil(capacity(leaf)).min(ASK_SIXTEENTHS + 1);
    used < used_before && sixteenths(used) < sixteenths(used_before)
}

impl Tree<'_> {
    /// Frees the pages that can be spared around the leaf of `key`, as far as their neighbours can be read: the change
    /// that made the leaf small was made all the same. The caller holds no latch.
    pub(crate) fn merge(self, key: &[u8]) {
        if let Err(error) = self.try_merge(key) {
            log::debug!("a leaf is not merged: {error}");
        }
    }

    fn try_merge(self, key: &[u8]) -> Result<()> {
        loop {
            let Some(mut parent) = self.leaf_parent(key)? else { return Ok(()) };
            let slot = Node::new(&parent).child_slot(key);
            let is_merged = self.merge_leaves(&mut parent, slot)?;
            let node = Node::new(&parent);
            let is_small = node.count() == 1 || parent.id().page != ROOT && is_underfull(node);
            drop(parent);
            let is_lower = is_small && self.merge_inner(key)?;
            if !is_merged && !is_lower {
                return Ok(());
            }
        }
    }

    /// Frees the leaf of `key` if a split has made it for a record that was refused. The caller holds no latch.
    pub(crate) fn merge_if_empty(self, key: &[u8]) -> Result<()> {
        let is_empty = Node::new(&self.leaf_read(key)?[..]).count() == 0;
        if is_empty && !is_broken(Rule::RefusedLeavesGo) { self.try_merge(key) } else { Ok(()) }
    }

    /// The parent of the leaf of `key`, latched exclusively; `None` when the root is that leaf.
    fn leaf_parent(self, key: &[u8]) -> Result<Option<WriteGuard>> {
        loop {
            let mut page = self.pager.read(self.space, ROOT)?;
            self.check_node(&page, ROOT, None)?;
            match Node::new(&page).level() {
                0 => return Ok(None),
                1 => {
                    drop(page);
                    let root = self.pager.write(self.space, ROOT)?;
                    if Node::new(&root).level() == 1 {
                        return Ok(Some(root));
                    }
                    continue; // It grew or shrank meanwhile.
                }
                _ => {}
            }
            while Node::new(&page).level() > 2 {
                let node = Node::new(&page);
                page = self.read_child(node, node.child_slot(key))?;
            }
            let node = Node::new(&page);
            return self.write_child(node, node.child_slot(key)).map(Some);
        }
    }

    /// Frees one of the leaves around `slot`, if it can be spared; returns whether it did.
    fn merge_leaves(self, parent: &mut WriteGuard, slot: usize) -> Result<bool> {
        let count = Node::new(parent).count();
        if count == 1 {
            return Ok(false);
        }
        if self.remove_empty(parent, slot)? {
            return Ok(true);
        }
        if is_broken(Rule::EmptyLeavesGo) {
            return Ok(false);
        }
        let left_slot = slot.saturating_sub(1);
        if slot + 1 < count && self.merge_pair(parent, slot)?
            || left_slot < slot && self.merge_pair(parent, left_slot)?
        {
            return Ok(true);
        }
        let is_triple = count > 2 && self.space.blocks().is_none();
        Ok(is_triple && self.merge_triple(parent, left_slot.min(count - 3))?)
    }

    /// Merges inner nodes on the way to `key` that are underfull, or hold an empty leaf only, and lowers the root.
    /// Returns whether anything changed.
    fn merge_inner(self, key: &[u8]) -> Result<bool> {
        let mut parent = self.pager.write(self.space, ROOT)?;
        self.check_node(&parent, ROOT, None)?;
        let mut is_changed = false;
        loop {
            let node = Node::new(&parent);
            if node.is_leaf() {
                return Ok(is_changed);
            }
            let is_single = node.count() == 1;
            if is_single && parent.id().page == ROOT {
                let mut child = self.write_child(node, 0)?;
                self.shrink_root(&mut parent, &mut child)?;
                is_changed = true;
                continue;
            }
            if node.level() == 1 {
                return Ok(is_changed);
            }
            let slot = node.child_slot(key);
            if !is_single && self.remove_empty(&mut parent, slot)? {
                return Ok(true);
            }
            let child = self.write_child(Node::new(&parent), slot)?;
            if is_single || !is_underfull(Node::new(&child)) {
                parent = child;
                continue;
            }
            // Siblings are latched from left to right.
            drop(child);
            let has_right = slot + 1 < Node::new(&parent).count();
            if has_right && self.merge_pair(&mut parent, slot)?
                || slot > 0 && self.merge_pair(&mut parent, slot - 1)?
            {
                is_changed = true;
                continue;
            }
            parent = self.write_child(Node::new(&parent), slot)?;
        }
    }

    /// Removes the child at `slot`, one of several, if there is nothing in it but a chain of only children that ends in
    /// an empty leaf. Returns whether it did.
    fn remove_empty(self, parent: &mut WriteGuard, slot: usize) -> Result<bool> {
        let mut chain = vec![self.write_child(Node::new(parent), slot)?];
        loop {
            let node = Node::new(chain.last().expect("the child at least"));
            match (node.is_leaf(), node.count()) {
                (true, 0) if !is_broken(Rule::EmptyLeavesGo) => break,
                (false, 1) => {}
                _ => return Ok(false),
            }
            let child = self.write_child(node, 0)?;
            chain.push(child);
        }
        if !mtr::try_make_space(self.pager, parent, 2 * LOGGED_OP_BYTES)? {
            return Ok(false);
        }
        let mut allocator = Allocator::latch(self.pager, self.space)?;
        let mut mtr = Mtr::new();
        mtr.apply(parent, PageOp::Remove { slot: slot as u16 });
        if slot == 0 {
            // The next child takes over the keys, and the first key of a node is empty.
            let mut cell = Vec::new();
            node::encode_inner(b"", Node::new(parent).child(0), &mut cell);
            mtr.apply(parent, PageOp::Replace { slot: 0, cell: &cell });
        }
        for page in &mut chain {
            allocator.free(&mut mtr, page);
        }
        self.note_restructured();
        let mut pages: Vec<_> = chain.iter_mut().collect();
        pages.extend([&mut allocator.header, parent]);
        mtr.commit(self.pager, &mut pages)?;
        Ok(true)
    }

    /// Moves all of the right child of a pair into the left one, if there is space. Returns whether it did.
    fn merge_pair(self, parent: &mut WriteGuard, left_slot: usize) -> Result<bool> {
        let mut left = self.write_child(Node::new(parent), left_slot)?;
        let mut right = self.write_child(Node::new(parent), left_slot + 1)?;
        let (l, r) = (Node::new(&left), Node::new(&right));
        let separator = Node::new(parent).key(left_slot + 1).to_vec();
        let pulled = if l.is_leaf() { 0 } else { separator.len() };
        let is_full_leaf = l.is_leaf() && self.space.blocks().is_none();
        let fill = if is_full_leaf { FILL } else { PAIR_FILL };
        if l.used() + r.used() + pulled > capacity(l) * fill.0 / fill.1 {
            return Ok(false);
        }
        let block = match self.space.blocks() {
            None => None,
            Some(blocks) => {
                let merged = merged_page(l, r, &separator, self.space.page_bytes());
                let fits = |block: &Vec<u8>| block.len() <= blocks.block_bytes() / 4 * 3;
                let Some(block) = row::block_of(blocks, &merged).filter(fits) else { return Ok(false) };
                if !mtr::try_make_space(self.pager, parent, LOGGED_OP_BYTES)? {
                    return Ok(false);
                }
                Some(block)
            }
        };
        // Before the first change: a failure after one would leave it without a log record.
        let mut allocator = Allocator::latch(self.pager, self.space)?;
        let mut mtr = Mtr::new();
        if let Some(block) = block {
            mtr.apply(&mut left, PageOp::Block { data: &block });
        } else if l.is_leaf() {
            append_cells(&mut mtr, &right, 0, &mut left);
        } else {
            let (count, child) = (l.count(), r.child(0));
            insert_child(&mut mtr, &mut left, count, &separator, child);
            append_cells(&mut mtr, &right, 1, &mut left);
        }
        mtr.apply(parent, PageOp::Remove { slot: left_slot as u16 + 1 });
        allocator.free(&mut mtr, &mut right);
        self.note_restructured();
        mtr.commit(self.pager, &mut [&mut allocator.header, &mut left, &mut right, parent])?;
        Ok(true)
    }

    /// Distributes the leaf after the one at `left_slot` to that and the next one, if there is space; returns whether
    /// it did.
    fn merge_triple(self, parent: &mut WriteGuard, left_slot: usize) -> Result<bool> {
        let mut left = self.write_child(Node::new(parent), left_slot)?;
        let mut middle = self.write_child(Node::new(parent), left_slot + 1)?;
        let mut right = self.write_child(Node::new(parent), left_slot + 2)?;
        let (l, m, r) = (Node::new(&left), Node::new(&middle), Node::new(&right));
        let full = capacity(l) * FILL.0 / FILL.1;
        let Some(at) = share_out(l, m, r, full) else { return Ok(false) };
        let separator = match at {
            0 => Node::new(parent).key(left_slot + 1).to_vec(),
            _ if is_broken(Rule::SeparatorsMove) => Node::new(parent).key(left_slot + 2).to_vec(),
            at if at == m.count() => Node::new(parent).key(left_slot + 2).to_vec(),
            at => node::separator(m.key(at - 1), m.key(at)).to_vec(),
        };
        let removed =
            [1, 2].map(|i| Node::new(parent).cell(left_slot + i).len() + SLOT).iter().sum::<usize>();
        if INNER_CELL_HEADER + separator.len() + SLOT > Node::new(parent).free() + removed {
            return Ok(false);
        }
        let mut allocator = Allocator::latch(self.pager, self.space)?;
        let mut mtr = Mtr::new();
        let base = l.count();
        for slot in 0..at {
            let op = PageOp::Insert { slot: (base + slot) as u16, cell: Node::new(&middle).cell(slot) };
            mtr.apply(&mut left, op);
        }
        for slot in (at..Node::new(&middle).count()).rev() {
            mtr.apply(&mut right, PageOp::Insert { slot: 0, cell: Node::new(&middle).cell(slot) });
        }
        let right_page = right.id().page;
        mtr.apply(parent, PageOp::Remove { slot: left_slot as u16 + 2 });
        mtr.apply(parent, PageOp::Remove { slot: left_slot as u16 + 1 });
        insert_child(&mut mtr, parent, left_slot + 1, &separator, right_page);
        allocator.free(&mut mtr, &mut middle);
        self.note_restructured();
        let pages = &mut [&mut allocator.header, &mut left, &mut middle, &mut right, parent];
        mtr.commit(self.pager, pages)?;
        Ok(true)
    }

    /// Replaces the root by its only child.
    fn shrink_root(self, root: &mut WriteGuard, child: &mut WriteGuard) -> Result<()> {
        let mut allocator = Allocator::latch(self.pager, self.space)?;
        let mut mtr = Mtr::new();
        if self.space.blocks().is_some() {
            mtr.apply(root, PageOp::Block { data: &child.export_block() });
        } else {
            mtr.apply(root, PageOp::Init { level: Node::new(child).level() });
            append_cells(&mut mtr, child, 0, root);
        }
        allocator.free(&mut mtr, child);
        self.note_restructured();
        mtr.commit(self.pager, &mut [&mut allocator.header, child, root])?;
        Ok(())
    }
}

fn is_underfull(node: Node<'_>) -> bool {
    node.used() < capacity(node) / UNDERFULL
}

/// The first slot of the middle leaf whose cells go to the right one, so that both take `full` bytes at most and are as
/// equal as possible; `None` when the cells do not fit into two leaves.
fn share_out(left: Node<'_>, middle: Node<'_>, right: Node<'_>, full: usize) -> Option<usize> {
    let total = left.used() + middle.used() + right.used();
    if total > 2 * full {
        return None;
    }
    let (mut at, mut used) = (0, left.used());
    while at < middle.count() {
        let cell = middle.cell(at).len() + SLOT;
        if used + cell > full || used >= total / 2 {
            break;
        }
        used += cell;
        at += 1;
    }
    (used <= full && total - used <= full).then_some(at)
}

/// The page that two neighbours give, which `separator` divides.
fn merged_page(left: Node<'_>, right: Node<'_>, separator: &[u8], page_bytes: usize) -> Vec<u8> {
    if left.is_leaf() {
        return page_of(&[(left, 0), (right, 0)], page_bytes);
    }
    let mut page = page_of(&[(left, 0)], page_bytes);
    let mut cell = Vec::new();
    node::encode_inner(separator, right.child(0), &mut cell);
    for (i, cell) in std::iter::once(&cell[..]).chain((1..right.count()).map(|i| right.cell(i))).enumerate() {
        let slot = (left.count() + i) as u16;
        PageOp::Insert { slot, cell }.apply(&mut page).expect("the caller measured both");
    }
    page
}
