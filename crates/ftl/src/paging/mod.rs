//! Bringing evicted leaves of the map back into memory, and others out of it.
//!
//! A thread that meets an evicted leaf pins its segment while the map is still locked, so that the segment
//! stays what it is, and releases all locks before it reads. Then it installs the leaf, unless the map
//! has changed there meanwhile, and looks again.
//!
//! A caller that holds locks of its own and must not wait for the device under them asks for an answer from memory
//! alone ([`PagedMap::in_memory`], `Ftl::try_write_batch`). When there is none, it releases its locks, has the leaves
//! brought in and [`Kept`], and starts again.
//!
//! The budget (`Options::map_memory`) holds for what is in memory between operations. A batch needs all leaves that it
//! changes at once, a trim those that lie in its range; recovery's replay writes nothing out, so the leaves that it
//! changes stay too.

mod base;
mod leaf_reader;
mod pages;

pub use pages::ResidentLeaves;

pub(crate) use base::Base;
pub(crate) use leaf_reader::LeafReader;
pub(crate) use pages::{DIRTY_SHARE, DIRTY_SHARE_MAX, PagedMap, PinnedLeaves, evict, leaves_ahead};
