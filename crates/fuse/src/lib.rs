//! Serves a Lacuna file system to the kernel.
mod innodb;
pub use innodb::{Refusal, implied_trim};
