//! Storage devices and files: two interfaces, and the system calls below them.
//!
//! - [`BlockDevice`]: raw space addressed in bytes, sector-aligned. The flash translation layer lives on it.
//!   [`RawDevice`] is a store file or block device, [`MemDevice`] is in memory.
//! - [`File`] and [`Vfs`]: positional files with holes, and a named set of them. The database engine lives on it,
//!   unchanged on a file system of ours, on a directory of ext4 or XFS ([`DirVfs`]) and in memory ([`MemVfs`]).
//! - [`LogDevice`]: small, fast, persistent space addressed by bytes, beside the flash. Its contract of a power cut is its
//!   own ([`log_device`]).
//!
//! This is the only crate of Lacuna that makes storage system calls. The simulators of both interfaces, whose power can
//! be cut, are in `lacuna-sim`; buffers and arenas in `lacuna-memory`.
//!
//! # What a power cut may do (the contract that every layer above is proven against)
//!
//! 1. A write that returned (or whose end was reported) before a `sync` was *called* survives once that `sync`
//!    returned `Ok`.
//! 2. Every other write may, sector by sector (512 bytes), be kept or be lost, in any order.
//! 3. A sector is never half old and half new.
//! 4. After a failed `sync` nothing is known about any write since the last good one.
//!
//! # Modules
//!
//! ```text
//! error <- block, vfs  <- mem         both interfaces in memory
//!                        <- patient     a store file that waits for space of its host
//!                        <- positional  files with direct I/O, shared by
//!                             <- dir    directories
//!                             <- raw    store files and disks; prompt: their threads' scheduling
//!                                  <- log_device  mapped memory, or blocks
//! process                             forks
//! mutant                              rules that tests break
//! ```

#![forbid(unsafe_op_in_unsafe_fn)]

mod block;
mod dir;
mod error;
pub mod log_device;
pub mod mem;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub mod mutant;
mod patient;
mod positional;
mod process;
mod prompt;
mod raw;
mod vfs;

pub use block::{BlockDevice, DeviceStats, Geometry, GrowingGeometry, SECTOR, WriteDone};
pub use dir::{DirOptions, DirVfs};
pub use error::{Error, Result};
pub use log_device::{BlockLog, LogDevice, MappedMemory, create_log_device, open_log_device};
pub use mem::{MemDevice, MemVfs};
pub use patient::Patient;
pub use process::Process;
pub use raw::{BlockIo, NewFile, RawDevice, RawOptions, read_time};
pub use vfs::{AtomicWrites, BatchOp, File, FileId, FileProps, StreamHint, Vfs, VfsStats, check_file_name};

// The interfaces take and return these buffers.
pub use lacuna_memory::{AlignedBuf, Blank, Filled, Home};
