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
//! 4. No node has more than its `*_MAX`. Only the root may be empty, and a leaf whose span no leaf in memory could take
//!    over when an edit emptied it: what follows in the same batch may go there.
//!
//! Inner nodes are shared with copies of the root, each of which is the tree as it was when the copy was made
//! ([`super::Snapshot`]): a change of a node that such a copy shares goes into a new node. So a copy costs one
//! reference, and while it exists each change copies at most the nodes on its path.
//!
//! A node that an edit leaves small is merged with a neighbour where both fit well. So of two neighbours that edits
//! have touched, at least one is not small. A neighbour that was evicted is not merged; [`Node::absent`] reports
//! beforehand which leaves an edit needs, such neighbours included, but for those that could not be read: the tree can
//! do without them.

use std::{ops::Range, sync::Arc};

use super::{
    Live,
    keys::{KEYS_MAX, Keys},
    leaf::{self, Leaf},
    row::{Absent, Row, SPACE, clip},
    slot::{Slot, Tally},
};
use crate::addr::CHUNK_SECTORS;

/// An inner node with more children is split, one with fewer is merged.
const CHILDREN_MAX: usize = 128;
const CHILDREN_MIN: usize = CHILDREN_MAX / 3;
const _: () = assert!(CHILDREN_MAX < KEYS_MAX, "one more, until the node is split");

#[derive(Clone)]
pub(super) enum Node {
    Leaf(Slot),
    Inner(Arc<Inner>),
}

#[derive(Clone, Default)]
pub(super) struct Inner {
    keys: Keys,
    sums: Vec<Live>,
    children: Vec<Node>,
}

/// A change of the map: it removes what is mapped in `range`, and `put`, within one chunk, takes its place.
pub(super) struct Edit {
    pub(super) range: Range<u64>,
    pub(super) put: Option<Row>,
}

/// The effect of an edit on the sums.
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
        self.added += other.added;
        self.removed += other.removed;
    }
}

/// A leaf's slot, and the facts about the leaf that its parents know.
#[derive(Clone)]
pub(super) struct LeafAt<'a> {
    pub(super) slot: &'a Slot,
    pub(super) span: Range<u64>,
    /// 0 for the root.
    pub(super) rows: u64,
}

/// A node on the way down to a leaf.
#[derive(Clone)]
pub(super) struct Way<'a> {
    node: &'a Node,
    span: Range<u64>,
    /// 0 for the root.
    rows: u64,
}

impl<'a> Way<'a> {
    pub(super) fn from(root: &'a Node) -> Way<'a> {
        Way { node: root, span: SPACE, rows: 0 }
    }

    /// Goes to the child with `lba` in its span; false if this is a leaf.
    pub(super) fn step(&mut self, lba: u64) -> bool {
        let Node::Inner(inner) = self.node else { return false };
        let index = inner.child_at(lba);
        self.span = inner.span(index, &self.span);
        self.rows = inner.sums[index].extents;
        self.node = &inner.children[index];
        true
    }

    /// Where it ends, below which there is no [`Way::step`].
    pub(super) fn end(&self) -> LeafAt<'a> {
        let Node::Leaf(slot) = self.node else { unreachable!("an inner node has children") };
        LeafAt { slot, span: self.span.clone(), rows: self.rows }
    }
}

/// Whether two nodes with this many rows or children should be one, and fit so that a few more do not
/// split it again.
fn merges(left: usize, right: usize, is_leaf: bool) -> bool {
    let (min, max) = match is_leaf {
        true => (leaf::ROWS_MIN, leaf::ROWS_MAX),
        false => (CHILDREN_MIN, CHILDREN_MAX),
    };
    left.min(right) < min && left + right <= max / 4 * 3
}

impl Node {
    fn is_leaf(&self) -> bool {
        matches!(self, Node::Leaf(_))
    }

    /// Rows or children, `live` being the sum of the rows.
    fn len(&self, live: Live) -> usize {
        match self {
            Node::Leaf(_) => live.extents as usize,
            Node::Inner(inner) => inner.children.len(),
        }
    }

    fn is_large(&self, live: Live) -> bool {
        self.len(live) > if self.is_leaf() { leaf::ROWS_MAX } else { CHILDREN_MAX }
    }

    /// The leaf with `lba` in its span.
    pub(super) fn leaf_at(&self, lba: u64) -> LeafAt<'_> {
        let mut way = Way::from(self);
        while way.step(lba) {}
        way.end()
    }

    /// The slot of the leaf with `lba` in its span.
    pub(super) fn slot_at_mut(&mut self, lba: u64) -> &mut Slot {
        let mut node = self;
        loop {
            match node {
                Node::Leaf(slot) => return slot,
                Node::Inner(inner) => {
                    let index = inner.child_at(lba);
                    node = &mut Arc::make_mut(inner).children[index];
                }
            }
        }
    }

    /// The facts needed to read the leaf with `lba` in its span, which was evicted; `live` is the sum of all rows.
    pub(super) fn absent_at(&self, lba: u64, live: Live) -> Absent {
        let (mut node, mut span, mut live) = (self, SPACE, live);
        loop {
            match node {
                Node::Leaf(slot) => return absent(slot, span, live),
                Node::Inner(inner) => {
                    let index = inner.child_at(lba);
                    (span, live) = (inner.span(index, &span), inner.sums[index]);
                    node = &inner.children[index];
                }
            }
        }
    }

    /// Evicted leaves that edits of `ranges`, one after the other, need, appended to `out`: those that they touch, and,
    /// if they can be read, neighbours with which one of these may have to be merged then, and those that take over the
    /// span of one that becomes empty. The ranges are sorted, do not overlap, and touch the node. `span` and `live` are the node's.
    /// Returns whether it may become empty.
    pub(super) fn absent(
        &self,
        span: Range<u64>,
        live: Live,
        ranges: &[Range<u64>],
        out: &mut Vec<Absent>,
    ) -> bool {
        match self {
            Node::Leaf(slot) => match slot.leaf() {
                Some(leaf) => rows_left(leaf, ranges) == 0,
                // The caller asks again once the leaf is in memory.
                None => {
                    out.push(absent(slot, span, live));
                    false
                }
            },
            Node::Inner(inner) => inner.absent(span, ranges, out),
        }
    }

    /// Appends the last leaf to `out`, or the first one, if it was evicted and can be read.
    fn absent_at_end(&self, span: Range<u64>, live: Live, is_last: bool, out: &mut Vec<Absent>) {
        match self {
            Node::Leaf(slot) if slot.leaf().is_none() && !slot.is_unreadable() => {
                out.push(absent(slot, span, live));
            }
            Node::Leaf(_) => {}
            Node::Inner(inner) => {
                let index = if is_last { inner.children.len() - 1 } else { 0 };
                let span = inner.span(index, &span);
                inner.children[index].absent_at_end(span, inner.sums[index], is_last, out);
            }
        }
    }

    /// Whether the last leaf is in memory, or the first one.
    fn is_resident_at_end(&self, is_last: bool) -> bool {
        match self {
            Node::Leaf(slot) => slot.leaf().is_some(),
            Node::Inner(inner) => {
                let child = if is_last { inner.children.last() } else { inner.children.first() };
                child.expect("an inner node has children").is_resident_at_end(is_last)
            }
        }
    }

    /// Calls `visit` with the start of each leaf's span, from the leaf with `from` in its span on,
    /// until it returns false.
    pub(super) fn sweep(
        &mut self,
        start: u64,
        from: u64,
        visit: &mut impl FnMut(u64, &mut Slot) -> bool,
    ) -> bool {
        match self {
            Node::Leaf(slot) => visit(start, slot),
            Node::Inner(inner) => {
                let inner = Arc::make_mut(inner);
                let first = inner.child_at(from);
                (first..inner.children.len()).all(|index| {
                    let start = if index == 0 { start } else { inner.keys[index] };
                    inner.children[index].sweep(start, from, visit)
                })
            }
        }
    }

    /// Calls `visit` with span, sum and slot of each leaf, in order.
    pub(super) fn for_each(
        &self,
        span: Range<u64>,
        live: Live,
        visit: &mut impl FnMut(Range<u64>, Live, &Slot),
    ) {
        match self {
            Node::Leaf(slot) => visit(span, live, slot),
            Node::Inner(inner) => {
                for (index, child) in inner.children.iter().enumerate() {
                    child.for_each(inner.span(index, &span), inner.sums[index], visit);
                }
            }
        }
    }

    /// The tree over `leaves`, each with its key and sum; there is one at least.
    pub(super) fn build(leaves: Vec<(u64, Live, Node)>) -> Node {
        let mut level = leaves;
        while level.len() > 1 {
            let mut above: Vec<(u64, Live, Node)> = Vec::new();
            let mut rest = level.into_iter().peekable();
            while rest.peek().is_some() {
                let mut inner = Inner::default();
                let mut live = Live::default();
                for (key, sum, node) in rest.by_ref().take(CHILDREN_MAX / 4 * 3) {
                    live += sum;
                    inner.keys.push(key);
                    inner.sums.push(sum);
                    inner.children.push(node);
                }
                above.push((inner.keys[0], live, Node::Inner(Arc::new(inner))));
            }
            level = above;
        }
        level.pop().expect("a tree has a leaf").2
    }

    /// What unmapping the range `at` of `ranges`, all of which are to be unmapped, would free: bytes, and how many
    /// extents fewer there would be. `span` is the node's, `sum` that of its rows. Meets an evicted leaf only at an end
    /// of the range, and then returns a sector of its span.
    pub(super) fn freed_by(
        &self,
        span: Range<u64>,
        sum: Live,
        ranges: &[Range<u64>],
        at: usize,
    ) -> Result<(u64, i64), u64> {
        let range = &ranges[at];
        if range.start <= span.start && span.end <= range.end {
            return Ok((sum.bytes, sum.extents as i64));
        }
        let (mut bytes, mut extents) = (0, 0);
        match self {
            Node::Inner(inner) => {
                for index in inner.children_in(range) {
                    let span = inner.span(index, &span);
                    let freed = inner.children[index].freed_by(span, inner.sums[index], ranges, at)?;
                    bytes += freed.0;
                    extents += freed.1;
                }
            }
            Node::Leaf(slot) => {
                let rows = slot.look().ok_or(span.start)?.view();
                for index in rows.reached(range) {
                    let (start, extent) = rows.get(index);
                    let (_, inside) = clip(start, &extent, range).expect("rows in the range");
                    let end = start + u64::from(extent.sectors);
                    bytes += match extent.is_encoded() {
                        true => rows.freed_of_encoded(index, ranges, at),
                        false => inside.bytes() as u64,
                    };
                    extents += 1 - i64::from(start < range.start) - i64::from(end > range.end);
                }
            }
        }
        Ok((bytes, extents))
    }

    /// The stored bytes of `range` below a node with `span`, whose rows sum up to `sum`; or a sector of an evicted leaf
    /// that must be read.
    pub(super) fn live_in(&self, span: Range<u64>, sum: Live, range: &Range<u64>) -> Result<Live, u64> {
        if range.start <= span.start && span.end <= range.end {
            return Ok(sum);
        }
        match self {
            Node::Inner(inner) => {
                let mut live = Live::default();
                for index in inner.children_in(range) {
                    let span = inner.span(index, &span);
                    live += inner.children[index].live_in(span, inner.sums[index], range)?;
                }
                Ok(live)
            }
            Node::Leaf(slot) => Ok(slot.look().ok_or(span.start)?.live_in(range, sum)),
        }
    }

    /// Carries out `edit` in a node with `span`. The node may be empty or too large afterwards.
    pub(super) fn edit(&mut self, span: Range<u64>, edit: &Edit, tally: &mut Tally) -> Change {
        match self {
            Node::Leaf(slot) => edit_leaf(slot, edit, tally),
            Node::Inner(inner) => Arc::make_mut(inner).edit(span, edit, tally),
        }
    }

    /// Restores the invariants of a root after an edit at `hot`; its rows sum up to `sum`.
    pub(super) fn settle_root(&mut self, sum: Live, hot: u64, tally: &mut Tally) {
        if self.is_large(sum) {
            let old = std::mem::replace(self, Node::Leaf(Slot::dirty(Leaf::default())));
            let mut inner = Inner { keys: Keys::default(), sums: vec![sum], children: vec![old] };
            inner.keys.push(0);
            inner.settle(0, hot, tally);
            *self = Node::Inner(Arc::new(inner));
        }
        while let Node::Inner(inner) = self
            && inner.children.len() < 2
        {
            *self = Arc::make_mut(inner).children.pop().unwrap_or_else(|| Node::empty(tally));
        }
    }

    /// A map's root before anything is mapped.
    pub(super) fn empty(tally: &mut Tally) -> Node {
        let slot = Slot::dirty(Leaf::default());
        tally.enter(&slot);
        Node::Leaf(slot)
    }

    /// A node of the same depth with one leaf, which is empty.
    fn emptied(&self, tally: &mut Tally) -> Node {
        let Node::Inner(inner) = self else { return Node::empty(tally) };
        let mut keys = Keys::default();
        keys.push(inner.keys[0]);
        let children = vec![inner.children[0].emptied(tally)];
        Node::Inner(Arc::new(Inner { keys, sums: vec![Live::default()], children }))
    }

    /// Subtracts all rows below from `tally`, reading each once.
    fn forget(&self, tally: &mut Tally) {
        match self {
            Node::Leaf(slot) => {
                let rows = slot.resident().counted_rows().rev();
                rows.for_each(|((_, extent), bytes)| tally.sub(&extent, bytes));
                tally.leave(slot);
            }
            Node::Inner(inner) => inner.children.iter().for_each(|child| child.forget(tally)),
        }
    }

    fn sum(&self) -> Live {
        match self {
            Node::Leaf(slot) => slot.resident().sum(),
            Node::Inner(inner) => {
                let mut sum = Live::default();
                inner.sums.iter().for_each(|child| sum += *child);
                sum
            }
        }
    }

    /// Checks the invariants of inner nodes against a recount; returns depth and sum. Leaves are assumed to match the
    /// sums.
    pub(super) fn check(
        &self,
        span: Range<u64>,
        live: Live,
        found: &mut impl FnMut(String),
    ) -> (usize, Live) {
        if self.is_large(live) || (self.len(live) == 0 && !self.is_leaf()) {
            found(format!("map node of sectors {span:?} has {} rows or children", self.len(live)));
        }
        let Node::Inner(inner) = self else { return (0, live) };
        let mut depths = Vec::with_capacity(inner.children.len());
        for (index, child) in inner.children.iter().enumerate() {
            let span = inner.span(index, &span);
            if span.is_empty() || !span.start.is_multiple_of(CHUNK_SECTORS) {
                found(format!("map node of sectors {span:?}, which is no span"));
            }
            let (depth, sum) = child.check(span.clone(), inner.sums[index], found);
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

fn absent(slot: &Slot, span: Range<u64>, live: Live) -> Absent {
    Absent { span, live, place: slot.place().expect("a slot has a leaf or a place") }
}

/// Rows of `leaf` that edits of `ranges` leave at least.
fn rows_left(leaf: &Leaf, ranges: &[Range<u64>]) -> usize {
    let removed: usize = ranges.iter().map(|range| leaf.reached(range).len()).sum();
    leaf.len().saturating_sub(removed)
}

fn edit_leaf(slot: &mut Slot, edit: &Edit, tally: &mut Tally) -> Change {
    let Edit { range, put } = edit;
    let old = slot.resident().view();
    let reached = old.reached(range);
    let (mut left, mut right, mut is_encoded) = (None, None, put.is_some_and(|(_, put)| put.is_encoded()));
    for index in reached.clone() {
        let (start, extent) = old.get(index);
        is_encoded |= extent.is_encoded();
        left = left.or(clip(start, &extent, &(0..range.start)));
        right = right.or(clip(start, &extent, &(range.end..u64::MAX)));
    }
    let mut rows = [Row::default(); 3];
    let mut len = 0;
    for row in [left, *put, right].into_iter().flatten() {
        rows[len] = row;
        len += 1;
    }
    // The rows that count something else afterwards. Other parts of encoded chunks lie in the same chunks of the space.
    let counted = match is_encoded {
        true => {
            let end = range.end.checked_next_multiple_of(CHUNK_SECTORS).unwrap_or(u64::MAX);
            old.reached(&(range.start - range.start % CHUNK_SECTORS..end))
        }
        false => reached.clone(),
    };
    let mut change = Change::default();
    for index in counted.clone().rev() {
        let bytes = old.counted(index);
        tally.sub(&old.get(index).1, bytes);
        change.removed.add(bytes);
    }
    if !reached.is_empty() || len > 0 {
        slot.change(tally, |leaf| leaf.splice(reached.clone(), &rows[..len]));
    }
    let new = slot.resident().view();
    for index in counted.start..counted.end + len - reached.len() {
        let bytes = new.counted(index);
        tally.add(&new.get(index).1, bytes);
        change.added.add(bytes);
    }
    change
}

impl Inner {
    /// The child with `lba` in its span.
    fn child_at(&self, lba: u64) -> usize {
        self.keys.search(lba)
    }

    /// The children with a part of `range`, which is not empty, in their spans.
    fn children_in(&self, range: &Range<u64>) -> std::ops::RangeInclusive<usize> {
        self.child_at(range.start)..=self.child_at(range.end - 1)
    }

    /// Span of a child, given the node's own.
    fn span(&self, index: usize, own: &Range<u64>) -> Range<u64> {
        let start = if index == 0 { own.start } else { self.keys[index] };
        start..self.keys.as_slice().get(index + 1).copied().unwrap_or(own.end)
    }

    fn edit(&mut self, span: Range<u64>, edit: &Edit, tally: &mut Tally) -> Change {
        let (first, last) = self.children_in(&edit.range).into_inner();
        let is_dropped = |inner: &Inner, index| {
            let child = inner.span(index, &span);
            edit.put.is_none() && edit.range.start <= child.start && child.end <= edit.range.end
        };
        // All children between the first and the last one go, and those two as well where the range covers them.
        let from = first + usize::from(!is_dropped(self, first));
        let until = last + usize::from(is_dropped(self, last));
        let mut change = Change::default();
        if until == last && last > first {
            change.and(self.edit_child(last, &span, edit, tally));
        }
        if from > first {
            change.and(self.edit_child(first, &span, edit, tally));
        }
        let mut next = from;
        if from < until {
            if !self.is_taken_over(from..until) {
                let kept = self.children[from].emptied(tally);
                std::mem::replace(&mut self.children[from], kept).forget(tally);
                change.removed += std::mem::take(&mut self.sums[from]);
                next += 1;
            }
            for (child, sum) in self.children.drain(next..until).zip(self.sums.drain(next..until)) {
                child.forget(tally);
                change.removed += sum;
            }
            self.keys.remove(next..until);
        }
        // The part of the range in the last child, then in the first.
        if next < self.children.len() && last > first {
            self.settle(next, edit.range.start, tally);
        }
        if first < self.children.len() {
            self.settle(first, edit.range.start, tally);
        }
        change
    }

    fn edit_child(&mut self, index: usize, span: &Range<u64>, edit: &Edit, tally: &mut Tally) -> Change {
        let span = self.span(index, span);
        if let Node::Leaf(slot) = &self.children[index] {
            let lba = edit.range.start.max(span.start);
            slot.resident().touch(lba, &span, self.sums[index].extents);
        }
        let change = self.children[index].edit(span, edit, tally);
        change.apply(&mut self.sums[index]);
        change
    }

    /// Whether a leaf in memory takes over the span of these children if they are removed: the last one before them, or
    /// else the first one behind. If they are all that there are, the parent has to see to it.
    fn is_taken_over(&self, children: Range<usize>) -> bool {
        match children.start.checked_sub(1) {
            Some(left) => self.children[left].is_resident_at_end(true),
            None => self.children.get(children.end).is_some_and(|right| right.is_resident_at_end(false)),
        }
    }

    /// Removes, splits or merges a child that an edit at `hot` has left empty, large or small.
    fn settle(&mut self, index: usize, hot: u64, tally: &mut Tally) {
        if self.sums[index].extents == 0 {
            if !self.is_taken_over(index..index + 1) {
                return;
            }
            self.remove(index).forget(tally);
            // Its neighbours are each other's now.
            if index < self.children.len() && index > 0 {
                self.merge_if_due(index - 1, tally);
            }
        } else if self.children[index].is_large(self.sums[index]) {
            self.split(index, hot, tally);
        } else if !self.merge_if_due(index, tally) && index > 0 {
            self.merge_if_due(index - 1, tally);
        }
    }

    fn remove(&mut self, index: usize) -> Node {
        self.keys.remove(index..index + 1);
        self.sums.remove(index);
        self.children.remove(index)
    }

    fn split(&mut self, index: usize, hot: u64, tally: &mut Tally) {
        let (key, sum, right) = match &mut self.children[index] {
            Node::Leaf(slot) => {
                let leaf = slot.resident();
                let is_at_end = hot / CHUNK_SECTORS == leaf.start(leaf.len() - 1) / CHUNK_SECTORS;
                let right = slot.change(tally, |leaf| leaf.split(is_at_end));
                let (first, sum) = (right.start(0), right.sum());
                let right = Slot::dirty(right);
                tally.enter(&right);
                (first - first % CHUNK_SECTORS, sum, Node::Leaf(right))
            }
            Node::Inner(inner) => {
                let inner = Arc::make_mut(inner);
                let at = inner.children.len() / 2;
                let right = Inner {
                    keys: inner.keys.split_off(at),
                    sums: inner.sums.split_off(at),
                    children: inner.children.split_off(at),
                };
                let right = (right.keys[0], Node::Inner(Arc::new(right)));
                (right.0, right.1.sum(), right.1)
            }
        };
        let left = &mut self.sums[index];
        *left = Live { bytes: left.bytes - sum.bytes, extents: left.extents - sum.extents };
        self.keys.insert(index + 1, key);
        self.sums.insert(index + 1, sum);
        self.children.insert(index + 1, right);
    }

    /// Merges a child with the one after it, if there is one, one of them is small, and they fit.
    fn merge_if_due(&mut self, index: usize, tally: &mut Tally) -> bool {
        let Some(right) = self.children.get(index + 1) else { return false };
        let left = &self.children[index];
        let is_due = merges(left.len(self.sums[index]), right.len(self.sums[index + 1]), left.is_leaf());
        let is_evicted = |node: &Node| matches!(node, Node::Leaf(slot) if slot.leaf().is_none());
        if !is_due || is_evicted(left) || is_evicted(right) {
            return false;
        }
        let (key, sum) = (self.keys[index + 1], self.sums[index + 1]);
        let right = self.remove(index + 1);
        self.sums[index] += sum;
        match (&mut self.children[index], right) {
            (Node::Leaf(left), Node::Leaf(right)) => {
                tally.leave(&right);
                left.change(tally, |left| left.append(right.resident()));
            }
            (Node::Inner(left), Node::Inner(right)) => {
                let (left, mut right) = (Arc::make_mut(left), Arc::unwrap_or_clone(right));
                right.keys.set_first(key);
                left.keys.append(right.keys.as_slice());
                left.sums.append(&mut right.sums);
                left.children.append(&mut right.children);
            }
            _ => unreachable!("invariant 2: all leaves have the same depth"),
        }
        true
    }

    /// See [`Node::absent`].
    fn absent(&self, span: Range<u64>, ranges: &[Range<u64>], out: &mut Vec<Absent>) -> bool {
        let (mut rest, mut emptied) = (ranges, 0);
        let mut index = self.child_at(rest[0].start);
        loop {
            let child = self.span(index, &span);
            let here = &rest[..rest.partition_point(|range| range.start < child.end)];
            let is_emptied = self.children[index].absent(child.clone(), self.sums[index], here, out);
            emptied += usize::from(is_emptied);
            self.absent_neighbours(index, &span, here, is_emptied, out);
            rest = &rest[rest.partition_point(|range| range.end <= child.end)..];
            match rest.first() {
                Some(next) if next.start < span.end => index = self.child_at(next.start).max(index + 1),
                _ => break,
            }
            if index == self.children.len() {
                break;
            }
        }
        emptied == self.children.len()
    }

    /// Evicted neighbours of a leaf that may have to be merged with it after edits of `ranges`, and those that take
    /// over the span of a child that may become empty.
    fn absent_neighbours(
        &self,
        index: usize,
        span: &Range<u64>,
        ranges: &[Range<u64>],
        is_emptied: bool,
        out: &mut Vec<Absent>,
    ) {
        let least = match &self.children[index] {
            _ if is_emptied => 0,
            Node::Leaf(slot) => match slot.leaf() {
                Some(leaf) => rows_left(leaf, ranges),
                None => return,
            },
            Node::Inner(_) => return,
        };
        for other in [index.wrapping_sub(1), index + 1] {
            let Some(node) = self.children.get(other) else { continue };
            if is_emptied || merges(least, self.sums[other].extents as usize, true) {
                node.absent_at_end(self.span(other, span), self.sums[other], other < index, out);
            }
        }
    }
}
