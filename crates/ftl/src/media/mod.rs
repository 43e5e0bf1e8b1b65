//! The structures on a device except the map: superblocks, key blocks, segments with their records and summaries.

pub(crate) mod cipher;
pub(crate) mod creation;
mod heads;
pub(crate) mod keys;
pub(crate) mod overlay;
pub(crate) mod ring;
pub(crate) mod scan;
pub(crate) mod starts;
pub(crate) mod summaries;
pub(crate) mod superblock;
mod volume;

pub(crate) use volume::Volume;
