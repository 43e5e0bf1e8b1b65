//! From the bytes on a device to an open store.
//!
//! Superblock -> checkpoint -> replay of all batches after it, in order, up to the first that is not there whole, and
//! of the relocations (`replay`). Recovery writes nothing but bytes that were there already: [`crate::Ftl::open`]
//! follows with a checkpoint under a new epoch, before it accepts a batch.
//!
//! Until that checkpoint's superblock is durable, a second power cut leads to the same recovery again:
//!
//! 1. Before anything is read, the device is synced: what an ended process left in the device's cache is then durable.
//!    If a sync had failed before, and the power stayed on, that proves nothing. So everything that was read from the
//!    log and is not known to be durable is rewritten in place and synced (`resync`). A second recovery then finds the
//!    same records as this one, and builds the same map.
//! 2. The checkpoint goes only into segments that this recovery did not replay and to which its map does not lead. The
//!    old checkpoint's map may lead there: its extents there have been overwritten or moved by records that are
//!    replayed.
//!
//! Once it is durable, no record of an older epoch is ever replayed again, so batches past the cut are void for ever,
//! although their numbers are given out again.

mod log_device;
mod lost_headers;
mod open;
mod replay;
mod resync;
mod retained;
mod salvage;

pub(crate) use open::{Opened, open};
pub(crate) use salvage::Losses;
