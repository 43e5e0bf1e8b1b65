//! Inodes in memory, what is known of them, and who uses them.

mod attr;
mod last_change;
mod lookups;
mod node;
mod ranges;

pub(crate) use attr::attr_of;
pub use attr::{Attr, SetAttr, SetTime, StatFs};
pub(crate) use last_change::UnderWay;
pub(crate) use lookups::Lookups;
pub(crate) use node::{Node, Nodes, Record, Touch};
pub(crate) use ranges::HeldRanges;
