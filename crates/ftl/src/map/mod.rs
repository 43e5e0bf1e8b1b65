//! The map: which sectors are stored, and where.
//!
//! It owns the extents and everything counted over them. They lie in a B+tree with packed leaves (`leaf`) and sums in
//! its inner nodes (`tree`). Inner nodes are always in memory, and so are the counters of the segments. A leaf may be
//! in memory, on the device, or both (`slot`): checkpoints and the memory budget write leaves out, the budget evicts
//! them, and a caller that needs an evicted one reads it and [`Map::install`]s it (`paging`). Nothing here does I/O: a
//! look-up that meets an evicted leaf returns which leaf is [`Absent`].
//!
//! Invariants:
//! 1. Extents do not overlap, and none crosses a chunk boundary of the space.
//! 2. Every extent has payload in each of its sectors; zero tails are not in the map.
//! 3. The counters of each segment, and the totals, are the sums over the extents. All of the payload of an encoded chunk
//!    counts with the first of its parts that are mapped (`leaf::Rows::counted`), none with the others. Counters that
//!    came with a checkpoint may be forged: [`Map::miscounted`] then tells, the log stops, and a check finds which ones.
//! 4. A thread that changes a range holds the map's lock from the moment at which it finds nothing [`Map::absent`]
//!    there until the change.
//! 5. A leaf that has a place is there byte for byte. `leaf_bytes` of a segment are the sum over
//!    those places.
//!
//! Every change is one [`Edit`]: it removes what is mapped in a range, and may put one extent in its place. It goes
//! down the tree once. Whole nodes in the range are dropped; each of their extents is read a single time, for the
//! counters of its segment, for which their leaves must be in memory too.

mod extents;
mod group;
mod keys;
mod leaf;
mod recount;
mod row;
mod shared;
mod slot;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use crate::format::Live;

/// Of a segment that is [`Map::miscounted`].
pub(crate) const MISCOUNTED: &str = "holds more than the checkpoint counts there";

#[cfg(feature = "bench")]
pub(crate) use extents::Snapshot;
pub(crate) use extents::{LeafRef, Map};
pub(crate) use leaf::Leaf;
pub(crate) use recount::Recount;
pub(crate) use row::Absent;
pub(crate) use shared::SharedMap;
