//! Structure modifications: splitting full nodes. `merge` does the reverse.

use super::{ROOT, Tree};
use crate::{
    alloc::Allocator,
    mtr::{self, LOGGED_OP_BYTES, Mtr},
    page::{
        node::{self, Node, SLOT},
        ops::PageOp,
    },
    pool::WriteGuard,
    row,
    types::{PageNo, Result},
};

/// A leaf filled by ascending inserts is left with one sixteenth free for later growth; not so for records longer than
/// that, which would not grow in it, and of which one more may fit.
const RUN_FILL: (usize, usize) = (15, 16);
/// Inserts in a row, one right after the other, that make a run.
const RUN_MIN: u16 = 4;

impl Tree<'_> {
    /// Whether a new cell of `bytes` (slot included) may go into the leaf at `slot`, by space and by
    /// the fill that ascending inserts should leave.
    pub(crate) fn accepts(self, leaf: Node<'_>, slot: usize, bytes: usize) -> bool {
        let pad_bytes = self.space.blocks().map_or(0, |blocks| blocks.pad_bytes());
        accepts_beside(leaf, slot, bytes, pad_bytes)
    }

    /// Whether the leaf takes `bytes` more, and its block `logged` bytes of operations.
    fn takes(self, leaf: &mut WriteGuard, key: &[u8], bytes: usize, logged: usize) -> Result<bool> {
        let node = Node::new(leaf);
        let slot = node.search(key).unwrap_or_else(|slot| slot);
        let in_page = self.accepts(node, slot, bytes) && node.free() >= bytes;
        let is_padded = !in_page && accepts_beside(node, slot, bytes, 0) && node.free() >= bytes;
        let fits = in_page && mtr::try_make_space(self.pager, leaf, logged)?;
        if let Some(blocks) = self.space.blocks()
            && (is_padded || in_page && !fits)
        {
            blocks.count_split();
        }
        Ok(fits)
    }

    /// Splits the leaf of `key`, unless it accepts `bytes` more there by now, and its block `logged` bytes
    /// of operations. The caller tries its insert again afterwards, and splits again if it must: a leaf of
    /// one record takes any other.
    pub(crate) fn split(self, key: &[u8], bytes: usize, logged: usize) -> Result<()> {
        let separator_bytes = node::inner_cell_bytes_max(self.space.slot_bytes());
        let separator_logged = separator_bytes + LOGGED_OP_BYTES;
        let mut parent = self.pager.write(self.space, ROOT)?;
        self.check_node(&parent, ROOT, None)?;
        if Node::new(&parent).is_leaf() {
            if self.takes(&mut parent, key, bytes, logged)? {
                return Ok(());
            }
            self.grow_root(&mut parent)?;
        } else if Node::new(&parent).free() < separator_bytes
            || !mtr::try_make_space(self.pager, &mut parent, separator_logged)?
        {
            self.grow_root(&mut parent)?;
        }
        loop {
            let slot = Node::new(&parent).child_slot(key);
            let mut child = self.write_child(Node::new(&parent), slot)?;
            let node = Node::new(&child);
            if node.is_leaf() {
                if !self.takes(&mut child, key, bytes, logged)? {
                    self.split_leaf(&mut parent, slot, &mut child, key)?;
                }
                return Ok(());
            }
            if node.free() < separator_bytes
                || !mtr::try_make_space(self.pager, &mut child, separator_logged)?
            {
                let node = Node::new(&child);
                let (at, block) = self.right_part(node, middle(node));
                let separator = node.key(at).to_vec();
                self.split_child(&mut parent, slot, &mut child, (at, block), &separator)?;
                if self.space.blocks().is_some() {
                    // The parent's block may be full by now, and the child's need more than one split.
                    return Ok(());
                }
                continue;
            }
            parent = child;
        }
    }

    /// Moves all that the root holds into a new child, its only one.
    fn grow_root(self, root: &mut WriteGuard) -> Result<()> {
        let mut mtr = Mtr::new();
        let mut allocator = Allocator::latch(self.pager, self.space)?;
        let mut child = allocator.allocate(&mut mtr)?;
        let level = Node::new(root).level();
        if self.space.blocks().is_some() {
            // The same block fits again, whatever it holds.
            mtr.apply(&mut child, PageOp::Block { data: &root.export_block() });
        } else {
            mtr.apply(&mut child, PageOp::Init { level });
            append_cells(&mut mtr, root, 0, &mut child);
        }
        mtr.apply(root, PageOp::Init { level: level + 1 });
        insert_child(&mut mtr, root, 0, b"", child.id().page);
        self.note_restructured();
        self.space.count_split();
        mtr.commit(self.pager, &mut [&mut allocator.header, &mut child, root])?;
        Ok(())
    }

    fn split_leaf(
        self,
        parent: &mut WriteGuard,
        slot: usize,
        leaf: &mut WriteGuard,
        key: &[u8],
    ) -> Result<()> {
        let node = Node::new(leaf);
        let found = node.search(key);
        let at = found.unwrap_or_else(|slot| slot);
        let (run, next) = node.insert_run();
        let count = node.count();
        // Fewer long records than make a run may have filled a leaf.
        let is_filled_up = at == next && usize::from(run) + 1 >= count.min(usize::from(RUN_MIN) + 1);
        let (right, separator) = if at == count && (count < 2 || is_filled_up) {
            // The new record opens the next leaf; this one stays as it is.
            ((count, None), node::separator(node.key(count - 1), key).to_vec())
        } else {
            let is_run = run >= RUN_MIN && at == next && at > 0 && at < count;
            // A record that is there, and is to grow, stays in the left part.
            let is_descending = found == Err(0) && (run, next) == (0, 1) && count > 1;
            let at = match (is_run, is_descending) {
                (true, _) => at,
                // The left part is filled from its end on; what is right of it stays as full as a run leaves it.
                (false, true) => count * (RUN_FILL.1 - RUN_FILL.0) / RUN_FILL.1,
                (false, false) => middle(node),
            };
            let (at, block) = self.right_part(node, at);
            let before = if at == 0 { key } else { node.key(at - 1) };
            ((at, block), node::separator(before, node.key(at)).to_vec())
        };
        self.split_child(parent, slot, leaf, right, &separator)
    }

    /// Where to cut a node, at `at` or after it, so that the right part fits into a block, and that block.
    fn right_part(self, node: Node<'_>, mut at: usize) -> (usize, Option<Vec<u8>>) {
        let Some(blocks) = self.space.blocks() else { return (at, None) };
        loop {
            let page = page_of(&[(node, at)], self.space.page_bytes());
            if let Some(block) = row::block_of(blocks, &page) {
                return (at, Some(block));
            }
            assert!(at + 1 < node.count(), "row-compressed tables, invariant 4");
            at += (node.count() - at) / 2;
        }
    }

    /// Moves the cells of `child` from `at` on into a new right sibling after `separator`, in a row-compressed table by
    /// the block that [`Tree::right_part`] made of them.
    fn split_child(
        self,
        parent: &mut WriteGuard,
        slot: usize,
        child: &mut WriteGuard,
        (at, block): (usize, Option<Vec<u8>>),
        separator: &[u8],
    ) -> Result<()> {
        let mut mtr = Mtr::new();
        let mut allocator = Allocator::latch(self.pager, self.space)?;
        let mut right = allocator.allocate(&mut mtr)?;
        let node = Node::new(child);
        if let Some(block) = block {
            mtr.apply(&mut right, PageOp::Block { data: &block });
        } else {
            mtr.apply(&mut right, PageOp::Init { level: node.level() });
            if node.is_leaf() {
                append_cells(&mut mtr, child, at, &mut right);
            } else {
                insert_child(&mut mtr, &mut right, 0, b"", node.child(at));
                append_cells(&mut mtr, child, at + 1, &mut right);
            }
        }
        if at < Node::new(child).count() {
            mtr.apply(child, PageOp::Truncate { slot: at as u16 });
        }
        insert_child(&mut mtr, parent, slot + 1, separator, right.id().page);
        self.note_restructured();
        self.space.count_split();
        mtr.commit(self.pager, &mut [&mut allocator.header, &mut right, child, parent])?;
        Ok(())
    }
}

/// Whether a leaf takes a cell of `bytes` at `slot` and keeps `pad_bytes` free beside the share that ascending
/// inserts leave.
fn accepts_beside(leaf: Node<'_>, slot: usize, bytes: usize, pad_bytes: usize) -> bool {
    let (run, next) = leaf.insert_run();
    let spare = leaf.free() as isize - bytes as isize - pad_bytes as isize;
    let capacity = leaf.used() + leaf.free();
    let kept = capacity - capacity * RUN_FILL.0 / RUN_FILL.1;
    if run >= RUN_MIN && slot == next && slot == leaf.count() && bytes <= kept {
        return spare >= kept as isize;
    }
    spare >= 0
}

/// A page, of no address yet, with the cells from each slot on of each node; the first cell of an inner node
/// loses its key.
pub(super) fn page_of(parts: &[(Node<'_>, usize)], page_bytes: usize) -> Vec<u8> {
    let mut page = vec![0; page_bytes];
    let level = parts[0].0.level();
    let fits = "a part of a node, or two that were measured";
    PageOp::Init { level }.apply(&mut page).expect(fits);
    let mut slot = 0;
    for (node, at) in parts {
        for i in *at..node.count() {
            let mut first = Vec::new();
            let cell = if slot == 0 && level > 0 {
                node::encode_inner(b"", node.child(i), &mut first);
                &first
            } else {
                node.cell(i)
            };
            PageOp::Insert { slot, cell }.apply(&mut page).expect(fits);
            slot += 1;
        }
    }
    page
}

/// The slot that halves a node's bytes; at least one cell stays on either side.
fn middle(node: Node<'_>) -> usize {
    let half = node.used() / 2;
    let mut bytes = 0;
    for slot in 0..node.count() {
        bytes += node.cell(slot).len() + SLOT;
        if bytes > half {
            return slot.clamp(1, node.count() - 1);
        }
    }
    node.count() - 1
}

/// Copies the cells of `from` from slot `at` on after those of `to`.
pub(super) fn append_cells(mtr: &mut Mtr, from: &WriteGuard, at: usize, to: &mut WriteGuard) {
    let from = Node::new(from);
    let base = Node::new(to).count();
    for (i, slot) in (at..from.count()).enumerate() {
        mtr.apply(to, PageOp::Insert { slot: (base + i) as u16, cell: from.cell(slot) });
    }
}

pub(super) fn insert_child(mtr: &mut Mtr, node: &mut WriteGuard, slot: usize, key: &[u8], child: PageNo) {
    let mut cell = Vec::new();
    node::encode_inner(key, child, &mut cell);
    mtr.apply(node, PageOp::Insert { slot: slot as u16, cell: &cell });
}
