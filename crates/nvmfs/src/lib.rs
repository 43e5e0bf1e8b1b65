//! A file system that is a thin layer of names over a flash translation layer.
//!
//! The [ftl](lacuna_ftl) offers a sparse space of 2^64 sectors, atomic batches and persistent trim. With
//! these a file system needs next to nothing of its own:
//!
//! - A file is a region of the space: 28 bits of an address are its inode number, 36 bits a sector in it.
//!   There are no block lists, no extents and no bitmaps.
//! - The inode table is an array in such a region, a directory a sparse hash table in another.
//! - Every operation (create, remove, rename, a write that extends a file, ...) is one atomic batch. So
//!   there is no journal and no repair; after a crash the file system only frees inodes that were open without a name.
//!
//! [`posix::Posix`] is the whole of it, by inodes: directories, links, attributes, holes. [`Nvmfs`] itself
//! is a [`lacuna_device::Vfs`], and so is each [directory](Nvmfs::directory): the files in it by name, for
//! engines in the same process.
//! Its batches are atomic up to [`lacuna_device::FileProps::atomic_bytes_max`], its writes ordered: after
//! a crash it holds the result of all operations up to some point, everything synced included.
//!
//! ```
//! use std::sync::Arc;
//! use lacuna_device::{MemDevice, Vfs, StreamHint};
//! use lacuna_nvmfs::{FormatOptions, Nvmfs, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Arc::new(MemDevice::new(64 << 20));
//! Nvmfs::format(device.clone(), &FormatOptions::default())?;
//! let vfs = Nvmfs::open(device, Options::default())?;
//! let file = vfs.create("table", StreamHint::Data)?;
//! file.write_at(1 << 30, &[7; 4096])?; // a gigabyte into the file, and 4 KiB of space taken
//! vfs.sync()?;
//! assert_eq!(file.len()?, (1 << 30) + 4096);
//! vfs.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//!
//! A folder imports only from those below it.
//!
//! ```text
//!            vfs      Nvmfs: open, close; directories and files by name; from a path to a file system
//!          /     \
//!     check       salvage      prove the invariants; read what is left after damage
//!          \     /
//!           posix     Posix: every operation by inode numbers
//!          /     \
//!     names       data         directories, look-ups, renames  |  bytes, lengths, holes, attributes
//!          \     /
//!          inodes     inodes in memory, their locks, and the one way to change them: an update, one batch
//!             |
//!          volume     the store: sectors read and verified
//!             |
//!          format     bytes and addresses (pure)          error
//! ```
//!
//! layers: mutant < error < format < volume < inodes < names, data < posix < check, salvage < vfs
//!
//! # Invariants
//!
//! [`Nvmfs::check`] proves them.
//! 1. Every directory entry names an inode of the same number, generation and type. A file's link count is the number
//!    of its entries; a directory has one entry, in the directory that its inode names as parent, and two links and one
//!    for each directory in it. All of them are reachable from the root.
//! 2. Nothing is mapped past the end of a file, in the bytes behind it in its last sector, or in a region without
//!    inode. So a free number is one whose sector of the inode table is not mapped, and no separate allocator state
//!    exists.
//! 3. An inode without name has no links and is in the region of orphans, and nothing else is in there. A directory
//!    without name has no entries. An orphan exists for the programs that have it open and the kernels that know it
//!    (`inodes/lookups.rs`); the operation that drops the last of these references frees it. Where damage to the map
//!    prevents that, it stays, and each open tries again (`names/remove.rs`).
//! 4. The content of the ftl is at any time the result of whole operations: each is one batch.
//! 5. An operation returns a result as if it had happened at one moment. An operation that finds a name, and then finds
//!    that the inode has lost that name meanwhile, looks again (`names/mod.rs`). An operation that makes an object
//!    returns the object as it was made, whatever happened to it since. Only a number that the caller passes in, and
//!    whose inode was not kept for that caller, can be stale.
//! 6. An inode's access control list and the permissions in its mode agree (`data/xattr.rs`).
//! 7. Usage in memory is what a count of the inodes gives, and no user adds to what exceeds its limits
//!    (`inodes/quota/mod.rs`).
//! 8. The superblock says that inodes may have a compression before one has (`volume/mod.rs`), so that programs which know
//!    none refuse the store. A rewrite changes no data (`data/compression.rs`).
//!
//! # Why a crash leaves whole operations
//!
//! The ftl brings back the result of a prefix of the accepted batches, with all flushed ones. By invariant 4 each of
//! these batches is an operation that preserves the invariants. There is no other state: no log, no bitmap, no count to
//! reconcile; what users have is counted at open. The next open only frees orphans, which no process can have open any more; each is a batch of its own, so
//! a crash in between leaves the rest for the open after that.
//!
//! Two files make this so. `inodes/commit.rs` submits every change of inodes and names, and changes nodes in memory
//! only after the ftl accepted the batch. `inodes/file_batch.rs` submits data together with the inode that it makes
//! longer. A sync reaches as far as the number of the last batch that changed the inode (`inodes/last_change.rs`).
//!
//! # Locks
//!
//! In this order: `moves`; sectors of files (`inodes/ranges.rs`), files by ascending number; `record`s
//! of nodes by ascending number; `structure`; then, each for moments, `numbers`, those of `names/read_ahead` and
//! `names/known_entries.rs`, what is in `inodes/node.rs`, and that of `inodes/lookups.rs`.
//!
//! Searches in directories read the ftl without a lock; their result is valid if the buckets that they looked at did
//! not change until the directory's `record` is held (`names/plan.rs`). `record`s are held while the ftl accepts a
//! batch, which may wait for free segments, but not during any read, not even of a leaf of the ftl's map: either the
//! leaves that the batch needs are in memory, or the locks are released while they are read (`inodes/commit.rs`). The
//! same holds for inodes: a reader loads a node only if it finds the node still unloaded after the read.
//!
//! `asking` (`inodes/quota/mod.rs`) comes before all of these, and `books` there behind all of them.
//!
//! Data is compressed before any of these is taken but that of its sectors (`inodes/compress.rs`).
//!
//! Two locks are held during reads, where only operations on the same object have to wait: sectors, while their old
//! content is read, and `moves`, which orders renames from one directory to another, while these search. While
//! [`Nvmfs::check`] reads names and inodes it holds `structure`, and so does a count of what users have, so that only
//! their times change; an operation that
//! would change more releases its `record`s and waits with at most these two locks. `vfs/tests.rs` checks this for
//! every operation.

mod check;
mod data;
mod error;
mod format;
mod inodes;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub mod mutant;
mod names;
pub mod posix;
mod salvage;
mod vfs;
mod volume;

pub use check::Report;
pub use data::ColdPiece;
pub use error::{Error, Refusal, Result};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use format::fuzz;
pub use format::{Compression, FILE_BYTES_MAX, Ino, Limits, Timestamp, UnknownCompression, system_time};
pub use inodes::{CompressionStats, Usage, UserQuota};
pub use lacuna_ftl::{CheckDepth, Finding, Progress, Room, RoomOf, Seq, Spare};
pub use salvage::{RemainingEntry, RemainingInode, Remains};
pub use vfs::{
    Directory, LogDevicePath, Nvmfs, OpenedVfs, Options, VfsOptions, format_path, open_vfs, salvage_store,
};
pub use volume::FormatOptions;
