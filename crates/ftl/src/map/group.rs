//! Looking for several leaves at the same time.
//!
//! In a map that no cache holds, a look-up waits for memory again and again: for lines of inner nodes, for the leaf's
//! slot, and only then for the leaf. Look-ups that do not need each other's results can wait together: so all of a
//! group go down one level before any goes on, then all look at their slots, then all load the parts of their leaves
//! that they are going to need ([`Leaf::touch`]). The group only prefetches and computes addresses; each look-up finds
//! what it would find alone.

use std::{array, hint::black_box};

use super::tree::{LeafAt, Node, Way};

/// Look-ups of a group: enough that the processor has as many lines on their way as it can.
pub(super) const GROUP: usize = 16;

/// Calls `found` for each of `lbas`, [`GROUP`] at most, in order, with its index and its leaf, whose lines are on
/// their way by then.
pub(super) fn find<'a>(root: &'a Node, lbas: &[u64], mut found: impl FnMut(usize, LeafAt<'a>)) {
    let mut ways: [Way<'a>; GROUP] = array::from_fn(|_| Way::from(root));
    let ways = &mut ways[..lbas.len()];
    // All leaves have the same depth.
    while ways.iter_mut().zip(lbas).fold(false, |_, (way, lba)| way.step(*lba)) {}
    let leaves = || ways.iter().map(Way::end);
    for at in leaves() {
        black_box(at.slot.leaf().is_some()); // the use that makes the slot be loaded
    }
    for (at, lba) in leaves().zip(lbas) {
        if let Some(leaf) = at.slot.leaf() {
            leaf.touch(*lba, &at.span, at.rows);
        }
    }
    leaves().enumerate().for_each(|(index, at)| found(index, at));
}
