//! Checkpoints: the map on the device, and the root from which recovery starts.
//!
//! It owns the segments that hold leaves of the map and records of checkpoints. A leaf that did not
//! change is not written again: a checkpoint consists of the leaves that changed since the one
//! before, the index of all leaves, what each segment holds, and the root.
//!
//! A checkpoint begins by noting, at one instant (log and map locked): the last batch `S`, the append offsets, the next
//! generation, the counters of all segments, and all leaves, by place or, where they changed, by reference. The leaves
//! come as a snapshot of the map, which is one reference, so the time under the locks grows with the number of
//! segments, not of leaves. The walk that lists the leaves follows without the locks. A batch that changes such a leaf
//! during the walk, or while the list exists, changes a copy. So what is written is exactly the map after `S`, and
//! replay starts from there.
//!
//! Invariants:
//! 1. Leaves have places only where they have been written to. The write need not be durable; the
//!    sync before a root makes it so.
//! 2. A segment of leaves is reusable when neither the durable root nor the map in memory refers to
//!    it, nothing is appended to it, and no reader of a leaf pins it ([`Checkpointer::is_map_reusable`]).
//! 3. When a checkpoint is done, no more segments than `Space::map_segments_max` are in use: leaves in sparse segments
//!    are rewritten until that holds. Segments with leaves that cannot be read stay in use beside those.
//!
//! Order of writes, which is all that the crash argument needs:
//!
//! 1. leaves, index, counters and root, into free segments, or behind what a segment of the map holds;
//! 2. all append points' tails; then a sync: now all that the map points to is durable, and so are
//!    all leaves;
//! 3. the superblock, into one slot, then a sync: now the new root is in force; then the same for the other slot, so
//!    that neither slot refers to the old root any more;
//! 4. only now do segments become free: those that only the old root referred to, and dead segments that the new
//!    checkpoint covers (`reuse`).

mod checkpointer;
mod leaves;
mod load;
mod rebuild;
mod retained;
mod writer;

pub(crate) use checkpointer::{Checkpointer, Rewrite};
pub(crate) use load::{Loaded, load};
pub(crate) use rebuild::rebuild;
