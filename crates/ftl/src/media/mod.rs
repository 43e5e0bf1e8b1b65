//! What lies on a device, short of the map: superblocks, segments with their records and footers.

pub(crate) mod scan;
pub(crate) mod superblock;
