//! The map's tree: leaves, and inner nodes with the sums of what is below each child.
//!
//! A node does not know its *span*, the sectors that it is responsible for; its parent does. Child
//! `k` of an inner node has the span from `keys[k]` to `keys[k + 1]`, the first one from where the
//! node's own begins (`keys[0]` counts for nothing), the last one to where that ends. The root's span
//! is the whole space.
//!
//! Invariants:
//! 1. Keys ascend and are multiples of a chunk. Extents do not cross chunks, so none crosses a span:
//!    all about a sector is in one leaf.
//! 2. A row lies in the spans of all nodes above it; all leaves have the same depth.
//! 3. A sum is that of all rows below the child.
//! 4. Only the root may be empty; no node has more than its `*_MAX`.
//!
//! A node that an edit leaves small is merged with a neighbour where both fit well. So of two
//! neighbours that edits have touched, at least one is not small.

use std::ops::Range;

use super::{Live, Tally, clip, leaf};
use crate::{
    addr::CHUNK_SECTORS,
    map::leaf::{Leaf, Row},
};

/// An inner node with more children is split, one with fewer is merged.
const CHILDREN_MAX: usize = 128;
const CHILDREN_MIN: usize = CHILDREN_MAX / 3;

pub(super) enum Node {
    Leaf(Leaf),
    Inner(Box<Inner>),
}

#[derive(Default)]
pub(super) struct Inner {
    keys: Vec<u64>,
    sums: Vec<Live>,
    children: Vec<Node>,
}

/// A change of the map: what lies in `range` goes, and `put`, within one chunk, takes its place.
pub(super) struct Edit {
    pub(super) range: Range<u64>,
    pub(super) put: Option<Row>,
}

/// What an edit did to the sums.
#[derive(Clone, Copy, Default)]
pub(super) struct Change {
    added: Live,
    removed: Live,
}

impl Change {
    pub(super) fn apply(&self, sum: &mut Live) {
        sum.bytes = (sum.bytes + self.added.bytes).checked_sub(self.removed.bytes).expect("invariant 3");
        sum.extents =
            (sum.extents + self.added.extents).checked_sub(self.removed.extents).expect("invariant 3");
    }

    fn and(&mut self, other: Change) {
        self.added.bytes += other.added.bytes;
        self.added.extents += other.added.extents;
        self.removed.bytes += other.removed.bytes;
        self.removed.extents += other.removed.extents;
    }
}

impl Node {
    /// Rows or children.
    fn len(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.len(),
            Node::Inner(inner) => inner.children.len(),
        }
    }

    fn is_large(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.len() > leaf::ROWS_MAX,
            Node::Inner(inner) => inner.children.len() > CHILDREN_MAX,
        }
    }

    /// Whether it should be merged with `other`, and both fit so that a few more do not split them.
    fn merges_with(&self, other: &Node) -> bool {
        let (min, max) = match self {
            Node::Leaf(_) => (leaf::ROWS_MIN, leaf::ROWS_MAX),
            Node::Inner(_) => (CHILDREN_MIN, CHILDREN_MAX),
        };
        self.len().min(other.len()) < min && self.len() + other.len() <= max / 4 * 3
    }

    /// The leaf with `lba` in its span, and the end of that span.
    pub(super) fn leaf_at(&self, lba: u64) -> (&Leaf, u64) {
        let (mut node, mut end) = (self, u64::MAX);
        loop {
            match node {
                Node::Leaf(leaf) => return (leaf, end),
                Node::Inner(inner) => {
                    let index = inner.child_at(lba);
                    end = inner.keys.get(index + 1).copied().unwrap_or(end);
                    node = &inner.children[index];
                }
            }
        }
    }

    /// What unmapping `range` would free: bytes, and how many extents fewer there would be. `span`
    /// is the node's, `sum` that of its rows.
    pub(super) fn freed_by(&self, span: Range<u64>, sum: Live, range: &Range<u64>) -> (u64, i64) {
        if range.start <= span.start && span.end <= range.end {
            return (sum.bytes, sum.extents as i64);
        }
        let (mut bytes, mut extents) = (0, 0);
        match self {
            Node::Inner(inner) => {
                for index in inner.children_in(range) {
                    let span = inner.span(index, &span);
                    let freed = inner.children[index].freed_by(span, inner.sums[index], range);
                    bytes += freed.0;
                    extents += freed.1;
                }
            }
            Node::Leaf(leaf) => {
                for (start, extent) in leaf.rows_in(range) {
                    let (_, inside) = clip(start, &extent, range).expect("rows in the range");
                    let end = start + u64::from(extent.sectors);
                    bytes += inside.bytes() as u64;
                    extents += 1 - i64::from(start < range.start) - i64::from(end > range.end);
                }
            }
        }
        (bytes, extents)
    }

    /// Carries out `edit` in a node with `span`. The node may be empty or too large afterwards.
    pub(super) fn edit(&mut self, span: Range<u64>, edit: &Edit, tally: &mut Tally) -> Change {
        match self {
            Node::Leaf(leaf) => leaf.edit(edit, tally),
            Node::Inner(inner) => inner.edit(span, edit, tally),
        }
    }

    /// Makes a root out of what an edit at `hot` has left of it, whose rows sum up to `sum`.
    pub(super) fn settle_root(&mut self, sum: Live, hot: u64, tally: &mut Tally) {
        if self.is_large() {
            let old = std::mem::replace(self, Node::Leaf(Leaf::default()));
            let mut inner = Inner { keys: vec![0], sums: vec![sum], children: vec![old] };
            inner.settle(0, hot, tally);
            *self = Node::Inner(Box::new(inner));
        }
        while let Node::Inner(inner) = self
            && inner.children.len() < 2
        {
            *self = match inner.children.pop() {
                Some(only) => only,
                None => {
                    tally.leaves += 1;
                    Node::Leaf(Leaf::default())
                }
            };
        }
    }

    /// Counts all rows below out of `tally`, reading each once.
    fn forget(&self, tally: &mut Tally) {
        match self {
            Node::Leaf(leaf) => {
                leaf.rows().for_each(|(_, extent)| tally.sub(&extent));
                tally.forget_leaf(leaf);
            }
            Node::Inner(inner) => inner.children.iter().for_each(|child| child.forget(tally)),
        }
    }

    fn sum(&self) -> Live {
        match self {
            Node::Leaf(leaf) => leaf.sum(),
            Node::Inner(inner) => {
                let mut sum = Live::default();
                for child in &inner.sums {
                    sum.bytes += child.bytes;
                    sum.extents += child.extents;
                }
                sum
            }
        }
    }

    /// Holds the invariants against a recount; returns depth and sum.
    pub(super) fn check(&self, span: Range<u64>, found: &mut impl FnMut(String)) -> (usize, Live) {
        if self.is_large() || (self.len() == 0 && span != (0..u64::MAX)) {
            found(format!("map node of sectors {span:?} has {} rows or children", self.len()));
        }
        let Node::Inner(inner) = self else {
            let Node::Leaf(leaf) = self else { unreachable!("a node is inner or a leaf") };
            for (start, extent) in leaf.rows() {
                if !(span.contains(&start) && start + u64::from(extent.sectors) <= span.end) {
                    found(format!("sector {start}: outside its map leaf, which holds {span:?}"));
                }
            }
            return (0, leaf.sum());
        };
        let mut depths = Vec::with_capacity(inner.children.len());
        for (index, child) in inner.children.iter().enumerate() {
            let span = inner.span(index, &span);
            if span.is_empty() || !span.start.is_multiple_of(CHUNK_SECTORS) {
                found(format!("map node of sectors {span:?}, which is no span"));
            }
            let (depth, sum) = child.check(span.clone(), found);
            depths.push(depth);
            if sum != inner.sums[index] {
                found(format!("map node of sectors {span:?} counts {:?}, not {sum:?}", inner.sums[index]));
            }
        }
        if depths.iter().any(|depth| *depth != depths[0]) {
            found(format!("map nodes below sectors {span:?} differ in depth: {depths:?}"));
        }
        (depths.first().map_or(0, |depth| depth + 1), self.sum())
    }
}

impl Leaf {
    /// Rows with a sector in `range`.
    fn rows_in(&self, range: &Range<u64>) -> impl Iterator<Item = Row> + '_ {
        let first = self.reach(range.start);
        (first..self.search(range.end).max(first)).map(|index| self.get(index))
    }

    fn edit(&mut self, edit: &Edit, tally: &mut Tally) -> Change {
        let Edit { range, put } = edit;
        let first = self.reach(range.start);
        let last = self.search(range.end).max(first);
        let mut change = Change::default();
        let (mut left, mut right) = (None, None);
        for index in first..last {
            let (start, extent) = self.get(index);
            tally.sub(&extent);
            change.removed.add(&extent);
            left = left.or(clip(start, &extent, &(0..range.start)));
            right = right.or(clip(start, &extent, &(range.end..u64::MAX)));
        }
        let mut rows = [Row::default(); 3];
        let mut len = 0;
        for row in [left, *put, right].into_iter().flatten() {
            tally.add(&row.1);
            change.added.add(&row.1);
            rows[len] = row;
            len += 1;
        }
        if first < last || len > 0 {
            tally.leaf_bytes -= self.bytes() as u64;
            self.splice(first..last, &rows[..len]);
            tally.leaf_bytes += self.bytes() as u64;
        }
        change
    }
}

impl Inner {
    /// The child with `lba` in its span.
    fn child_at(&self, lba: u64) -> usize {
        self.keys[1..].partition_point(|key| *key <= lba)
    }

    /// The children with a part of `range`, which is not empty, in their spans.
    fn children_in(&self, range: &Range<u64>) -> std::ops::RangeInclusive<usize> {
        self.child_at(range.start)..=self.child_at(range.end - 1)
    }

    /// Span of a child, given the node's own.
    fn span(&self, index: usize, own: &Range<u64>) -> Range<u64> {
        let start = if index == 0 { own.start } else { self.keys[index] };
        start..self.keys.get(index + 1).copied().unwrap_or(own.end)
    }

    fn edit(&mut self, span: Range<u64>, edit: &Edit, tally: &mut Tally) -> Change {
        let (first, last) = self.children_in(&edit.range).into_inner();
        let is_dropped = |inner: &Inner, index| {
            let child = inner.span(index, &span);
            edit.put.is_none() && edit.range.start <= child.start && child.end <= edit.range.end
        };
        // Between the first and the last child, if not from or up to them, all goes.
        let from = first + usize::from(!is_dropped(self, first));
        let until = last + usize::from(is_dropped(self, last));
        let mut change = Change::default();
        if until == last && last > first {
            change.and(self.edit_child(last, &span, edit, tally));
        }
        if from > first {
            change.and(self.edit_child(first, &span, edit, tally));
        }
        if from < until {
            for (child, sum) in self.children.drain(from..until).zip(self.sums.drain(from..until)) {
                child.forget(tally);
                change.removed.bytes += sum.bytes;
                change.removed.extents += sum.extents;
            }
            self.keys.drain(from..until);
        }
        // What is left of the last child, then of the first.
        if from < self.children.len() && last > first {
            self.settle(from, edit.range.start, tally);
        }
        if first < self.children.len() {
            self.settle(first, edit.range.start, tally);
        }
        change
    }

    fn edit_child(&mut self, index: usize, span: &Range<u64>, edit: &Edit, tally: &mut Tally) -> Change {
        let span = self.span(index, span);
        let change = self.children[index].edit(span, edit, tally);
        change.apply(&mut self.sums[index]);
        change
    }

    /// Removes, splits or merges a child that an edit at `hot` has left empty, large or small.
    fn settle(&mut self, index: usize, hot: u64, tally: &mut Tally) {
        if self.children[index].len() == 0 {
            let child = self.remove(index);
            child.forget(tally);
        } else if self.children[index].is_large() {
            self.split(index, hot, tally);
        } else if index + 1 < self.children.len()
            && self.children[index].merges_with(&self.children[index + 1])
        {
            self.merge(index, tally);
        } else if index > 0 && self.children[index - 1].merges_with(&self.children[index]) {
            self.merge(index - 1, tally);
        }
    }

    fn remove(&mut self, index: usize) -> Node {
        self.keys.remove(index);
        self.sums.remove(index);
        self.children.remove(index)
    }

    fn split(&mut self, index: usize, hot: u64, tally: &mut Tally) {
        let (key, right) = match &mut self.children[index] {
            Node::Leaf(leaf) => {
                let last = leaf.start(leaf.len() - 1);
                tally.leaf_bytes -= leaf.bytes() as u64;
                let right = leaf.split(hot / CHUNK_SECTORS == last / CHUNK_SECTORS);
                tally.leaf_bytes += (leaf.bytes() + right.bytes()) as u64;
                tally.leaves += 1;
                let first = right.start(0);
                (first - first % CHUNK_SECTORS, Node::Leaf(right))
            }
            Node::Inner(inner) => {
                let at = inner.children.len() / 2;
                let right = Inner {
                    keys: inner.keys.split_off(at),
                    sums: inner.sums.split_off(at),
                    children: inner.children.split_off(at),
                };
                (right.keys[0], Node::Inner(Box::new(right)))
            }
        };
        let sum = right.sum();
        let left = &mut self.sums[index];
        *left = Live { bytes: left.bytes - sum.bytes, extents: left.extents - sum.extents };
        self.keys.insert(index + 1, key);
        self.sums.insert(index + 1, sum);
        self.children.insert(index + 1, right);
    }

    /// Merges a child with the one after it.
    fn merge(&mut self, index: usize, tally: &mut Tally) {
        let (key, sum) = (self.keys[index + 1], self.sums[index + 1]);
        let right = self.remove(index + 1);
        self.sums[index].bytes += sum.bytes;
        self.sums[index].extents += sum.extents;
        match (&mut self.children[index], right) {
            (Node::Leaf(left), Node::Leaf(right)) => {
                tally.leaf_bytes -= left.bytes() as u64;
                tally.forget_leaf(&right);
                left.append(&right);
                tally.leaf_bytes += left.bytes() as u64;
            }
            (Node::Inner(left), Node::Inner(mut right)) => {
                right.keys[0] = key;
                left.keys.append(&mut right.keys);
                left.sums.append(&mut right.sums);
                left.children.append(&mut right.children);
            }
            _ => unreachable!("invariant 2: all leaves have the same depth"),
        }
    }
}
