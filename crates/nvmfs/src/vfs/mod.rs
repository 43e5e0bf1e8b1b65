//! The file system: names, inodes and the batches that change them.
//!
//! It owns the store's [`Ftl`] and, in memory only, the nodes of inodes in use. All that is durable lies
//! in the space of the ftl.
//!
//! **Invariants.** [`Nvmfs::check`] proves them.
//! 1. Every directory entry names an inode of the same number, generation and type. A file's link count
//!    is the number of its entries; a directory has one entry, in the directory that its inode names as
//!    parent, and two links and one for each directory in it. All of them hang from the root.
//! 2. Nothing is mapped past the end of a file, in the bytes behind it in its last sector, or in a region
//!    without inode. So a free number is one whose sector of the inode table is not mapped, and no
//!    allocator keeps a second truth.
//! 3. An inode without name has no links and is in the region of orphans, and nothing else is in there. A
//!    directory without name has no entries. It is there for who has it open, or knows it (`inodes/lookups.rs`); with
//!    the last of them it goes.
//! 4. What the ftl holds is at any time the result of whole operations: each is one batch.
//! 5. An operation answers as if it had happened at one moment. Who finds a name and then, at its inode, that it has
//!    lost that name meanwhile, looks again (`names/mod.rs`); who made an object tells what was made, whatever
//!    has become of it since; only a number that the caller brings along, and whose inode nobody kept for him, is
//!    stale.
//!
//! **Crash argument.** The ftl brings back the result of a prefix of the accepted batches, with all
//! flushed ones. By 4 each of these is an operation that took the invariants from true to true. There is
//! no other state: no log, no bitmap, no count to bring in line. What is left to do at the next open is
//! to free orphans, which nobody can have open any more; each is a batch of its own, so a crash in
//! between leaves the rest for the open after that.
//!
//! **Locks**, in this order: `moves`; sectors of files (`inodes/ranges.rs`), files by ascending number; `record`s
//! of nodes by ascending number; `structure`; then, each for moments, `numbers`, that of `names/read_ahead`, what is in
//! `inodes/node.rs`, and that of `inodes/lookups.rs`.
//! Searches in directories read the ftl without a lock; what they found holds if the buckets that they
//! looked at did not change until the directory's `record` is held (`names/update.rs`). `record`s are held
//! while the ftl accepts a batch, which may wait for free segments, but not while anything is read, be it
//! a leaf of the ftl's map: what that needs of the map is there, or the locks are given back while it is
//! read. So are inodes: only who finds a node still unloaded afterwards loads it. Two locks are held over
//! reads, where only those wait that need the very same thing: sectors, while their old content is read,
//! and `moves`, which orders renames from one directory to another, while these search. And while
//! [`Nvmfs::check`] reads names and inodes it holds `structure`, so that these stand still but for their times; who
//! would change more gives his `record`s back and waits with these two at most. `vfs/tests.rs` holds every operation
//! against this.

mod directory;
mod file;
mod open;
#[cfg(test)]
mod tests;

pub use directory::Directory;
pub use open::{OpenedPlace, PlaceOptions, format_path, open_place, salvage_store};

use std::sync::Arc;

use lacuna_device::{BlockDevice, FileProps, SECTOR};
use lacuna_ftl::{self as ftl, Ftl};
use parking_lot::{Mutex, RwLock};

use crate::{
    error::Result,
    format::{Ino, Timestamp, system_time},
    inodes::{Lookups, Node, Nodes, Touch},
    names::{Ahead, Numbers},
    volume::{self, FormatOptions, Volume},
};

/// Largest atomic write in bytes, where the store is large enough for it.
const ATOMIC_BYTES_MAX: u64 = 8 << 20;

/// How to run a file system. None of it is stored.
#[derive(Clone, Debug)]
pub struct Options {
    /// The store below it.
    pub ftl: ftl::Options,
    /// Where time comes from.
    pub clock: fn() -> Timestamp,
    /// Keep times of last access, as `relatime` has it.
    pub access_times: bool,
    /// Inodes that are kept in memory though nobody uses them; about 800 bytes each.
    pub inodes_kept: usize,
}

impl Default for Options {
    fn default() -> Options {
        let ftl = ftl::Options::default();
        Options { ftl, clock: system_time, access_times: true, inodes_kept: 1 << 14 }
    }
}

/// An open file system. Its files outlive it: they share what it owns.
pub struct Nvmfs {
    pub(crate) shared: Arc<Shared>,
    pub(crate) root: Directory,
}

/// What handles and the file system share.
pub(crate) struct Shared {
    pub(crate) volume: Volume,
    pub(crate) props: FileProps,
    /// Reads move times of last access.
    pub(crate) keeps_access_times: bool,
    pub(crate) nodes: Nodes,
    pub(crate) clock: fn() -> Timestamp,
    pub(crate) numbers: Mutex<Numbers>,
    /// Inodes that a kernel knows.
    pub(crate) lookups: Lookups,
    /// What listings are going to ask for.
    pub(crate) ahead: Ahead,
    /// Held shared while names or inodes change in more than times, alone while they are checked.
    pub(crate) structure: RwLock<()>,
    /// Held while a name moves from one directory to another.
    pub(crate) moves: Mutex<()>,
}

impl Nvmfs {
    /// Makes an empty file system on `device`.
    ///
    /// # Errors
    /// [`ftl::Error::NotEmpty`] when the device holds anything and the options do not force it.
    pub fn format(device: Arc<dyn BlockDevice>, options: &FormatOptions) -> Result<()> {
        volume::format(device, options)
    }

    /// Opens the file system on `device`.
    ///
    /// # Errors
    /// [`ftl::Error::NotAStore`] and [`Error::NotAFileSystem`] for foreign bytes, which are left as they
    /// are; [`Error::Version`] and [`Error::Features`] for what a newer program wrote.
    pub fn open(device: Arc<dyn BlockDevice>, options: Options) -> Result<Nvmfs> {
        let store = device.name().to_owned();
        let ftl = Ftl::open(device, options.ftl.clone())?;
        let is_read_only = options.ftl.read_only;
        let fs = Nvmfs::over(ftl, store, options)?;
        fs.shared.volume.read_inode(Ino::ROOT)?;
        if !is_read_only {
            fs.shared.free_orphans()?;
        }
        Ok(fs)
    }

    /// The file system in the store `ftl`, of which no more than the superblock was looked at.
    pub(crate) fn over(ftl: Ftl, store: String, options: Options) -> Result<Nvmfs> {
        let volume = Volume::open(ftl, store)?;
        let batch_bytes_max = volume.ftl().batch_bytes_max();
        // The rest is for bookkeeping: a batch of single sectors, and a changed inode with each.
        let atomic_bytes_max = ATOMIC_BYTES_MAX.min(batch_bytes_max / 3 / SECTOR as u64 * SECTOR as u64);
        let shared = Shared {
            volume,
            props: FileProps {
                atomic_bytes_max,
                atomic_align: SECTOR as u32,
                hole_unit: SECTOR as u32,
                io_align: SECTOR as u32,
                ordered: true,
            },
            keeps_access_times: options.access_times && !options.ftl.read_only,
            nodes: Nodes::new(options.inodes_kept),
            clock: options.clock,
            numbers: Mutex::new(Numbers::new((options.clock)())),
            lookups: Lookups::default(),
            ahead: Ahead::default(),
            structure: RwLock::new(()),
            moves: Mutex::new(()),
        };
        let shared = Arc::new(shared);
        Ok(Nvmfs { root: Directory::root(Arc::clone(&shared)), shared })
    }

    /// Makes everything durable and leaves the store so that the next open has nothing to replay. What keeps some of
    /// that from being done keeps nothing else from it.
    pub fn close(&self) -> Result<()> {
        let synced = self.posix().sync();
        self.shared.volume.ftl().close()?;
        synced
    }

    /// Makes the file system larger while it is in use; see [`Ftl::grow`].
    ///
    /// # Errors
    /// As there.
    pub fn grow(&self, capacity_bytes: Option<u64>) -> Result<u64> {
        Ok(self.shared.volume.ftl().grow(capacity_bytes)?)
    }

    /// The store below, for its statistics and background work.
    pub fn ftl(&self) -> &Ftl {
        self.shared.volume.ftl()
    }

    /// Identity of the file system.
    pub fn uuid(&self) -> [u8; 16] {
        self.shared.volume.uuid()
    }
}

impl Shared {
    /// Notes that an inode was read.
    pub(crate) fn touch_accessed(&self, node: &Arc<Node>) {
        if self.keeps_access_times {
            self.nodes.touch(node, Touch::Read, (self.clock)());
        }
    }
}
