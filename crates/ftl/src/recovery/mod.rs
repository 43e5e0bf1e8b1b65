//! From the bytes on a device to an open store.
//!
//! Superblock -> checkpoint -> replay of all batches after it, in order, up to the first that is not
//! there whole, and of the relocations (`replay`). Nothing is written here but what was there already:
//! [`crate::Ftl::open`] follows with a checkpoint under a new epoch, before it accepts a batch.
//!
//! Until that checkpoint's superblock is durable, a second power cut leads to the same recovery again:
//!
//! 1. Before anything is read, the device is synced: what an ended process left in the device's cache is then durable.
//!    Where a sync had failed before, and the power stayed on, that proves nothing. So all that came of the log without
//!    being known to be durable is written again in its place and synced (`resync`). A second recovery then finds what
//!    this one has found, and comes to the same map.
//! 2. The checkpoint goes only into segments that this recovery did not replay and to which its map does
//!    not lead. The old checkpoint's map may lead there: what it had there has been overwritten or
//!    moved by records that are replayed.
//!
//! Once it is durable, no record of an older epoch is ever replayed again, so what lies past the cut is
//! void for ever, although its numbers are given out anew.

mod lost_headers;
mod open;
mod replay;
mod resync;
mod retained;
mod salvage;

pub(crate) use open::{Opened, open};
pub(crate) use salvage::Losses;
