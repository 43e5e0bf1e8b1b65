//! A file system that is a thin layer of names over a flash translation layer.
//!
//! The [ftl](lacuna_ftl) offers a sparse space of 2^64 sectors, atomic batches and persistent trim. With
//! these a file system needs next to nothing of its own:
//!
//! - A file is a region of the space: 28 bits of an address are its inode number, 36 bits a sector in it.
//!   There are no block lists, no extents and no bitmaps.
//! - The inode table is an array in such a region, a directory a sparse hash table in another.
//! - Every operation (create, remove, rename, a write that extends a file, ...) is one atomic batch. So
//!   there is no journal and no repair; all that is to be done after a crash is to free what was open
//!   without a name.
//!
//! [`posix::Posix`] is the whole of it, by inodes: directories, links, attributes, holes. [`Nvmfs`] itself
//! is a [`lacuna_device::Place`], and so is each [directory](Nvmfs::directory): the files in it by name, for
//! engines in the same process.
//! Its batches are atomic up to [`lacuna_device::FileProps::atomic_bytes_max`], its writes ordered: after
//! a crash it holds the result of all operations up to some point, everything synced included.
//!
//! ```
//! use std::sync::Arc;
//! use lacuna_device::{MemDevice, Place, StreamHint};
//! use lacuna_nvmfs::{FormatOptions, Nvmfs, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Arc::new(MemDevice::new(64 << 20));
//! Nvmfs::format(device.clone(), &FormatOptions::default())?;
//! let place = Nvmfs::open(device, Options::default())?;
//! let file = place.create("table", StreamHint::Data)?;
//! file.write_at(1 << 30, &[7; 4096])?; // a gigabyte into the file, and 4 KiB of room taken
//! place.sync()?;
//! assert_eq!(file.len()?, (1 << 30) + 4096);
//! place.close()?;
//! # Ok(())
//! # }
//! ```

mod check;
mod data;
mod error;
mod format;
mod inodes;
mod names;
pub mod posix;
mod salvage;
mod vfs;
mod volume;

pub use check::Report;
pub use error::{Error, Refusal, Result};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use format::fuzz;
pub use format::{FILE_BYTES_MAX, Ino, Timestamp, system_time};
pub use lacuna_ftl::{CheckDepth, Finding, Progress};
pub use salvage::{RemainingEntry, RemainingInode, Remains};
pub use vfs::{Directory, Nvmfs, OpenedPlace, Options, PlaceOptions, format_path, open_place, salvage_store};
pub use volume::FormatOptions;
