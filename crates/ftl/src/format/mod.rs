//! Every byte that the ftl puts on a device: fixed little-endian structs, their seals and their checks. The prose is
//! docs/FORMAT.md, section ftl; a test below checks it against this file.
//!
//! Bytes from a device are first a `*Raw`, which is parsed but not trusted. Only `verify` turns it into the type of the
//! same name without `Raw`, which may be used.

mod entries;
mod log_device;
mod map;
mod record;
mod root;
mod seal;
mod segment;
mod summary;
mod superblock;
#[cfg(test)]
mod tests;
mod varint;

pub(crate) use entries::*;
pub(crate) use log_device::*;
pub(crate) use map::*;
pub(crate) use record::*;
pub(crate) use root::*;
pub(crate) use seal::*;
pub(crate) use segment::*;
pub(crate) use summary::*;
pub(crate) use superblock::*;
