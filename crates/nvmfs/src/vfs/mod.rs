//! The file system as its users open it: [`Nvmfs`], its directories and files by name, and from a path to one of them.
//!
//! This module combines the layers below; the invariants, the crash argument and the order of locks are in `lib.rs`.

mod check;
mod directory;
mod file;
mod open;
mod salvage;
#[cfg(test)]
mod tests;

pub use directory::Directory;
pub use open::{LogDevicePath, OpenedVfs, VfsOptions, format_path, open_vfs, salvage_store};

use std::{
    ops::{ControlFlow, Range},
    sync::Arc,
};

use lacuna_device::BlockDevice;
use lacuna_ftl::{self as ftl, Ftl, Seq, Spare};

use crate::{
    data::ColdPiece,
    error::Result,
    format::{Compression, Limits, Timestamp, system_time},
    inodes::{CompressionStats, Inodes, UserQuota},
    posix::{AccessTimes, Layers, Posix},
    volume::{self, FormatOptions, Volume},
};

/// How to run a file system. None of it is stored.
#[derive(Clone, Debug)]
pub struct Options {
    /// The store below it.
    pub ftl: ftl::Options,
    /// The source of time.
    pub clock: fn() -> Timestamp,
    /// When reads update times of last access; never in a store that is open for reading only.
    pub access_times: AccessTimes,
    /// Listings never update those of directories: `nodiratime`.
    pub nodiratime: bool,
    /// Space that only root may fill (see [`Posix::for_users`]).
    pub root_reserve: Spare,
    /// How files are compressed that say nothing themselves; by default as the store says.
    pub compression: Compression,
    /// Unused inodes that are kept in memory; about 800 bytes each. Of those that a kernel has forgotten, a quarter as
    /// many at most.
    pub inodes_kept: usize,
}

impl Default for Options {
    fn default() -> Options {
        let ftl = ftl::Options::default();
        let access_times = AccessTimes::default();
        Options {
            ftl,
            clock: system_time,
            access_times,
            nodiratime: false,
            root_reserve: Spare::Nothing,
            compression: Compression::Default,
            inodes_kept: 1 << 16,
        }
    }
}

/// An open file system. Its files outlive it: they share what it owns.
pub struct Nvmfs {
    layers: Arc<Layers>,
    root: Directory,
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
    /// [`ftl::Error::NotAStore`] and [`Error::NotAFileSystem`](crate::Error::NotAFileSystem) for foreign bytes, which
    /// are left as they are; [`Error::Version`](crate::Error::Version) and [`Error::Features`](crate::Error::Features)
    /// for a file system that a newer program wrote.
    pub fn open(device: Arc<dyn BlockDevice>, options: Options) -> Result<Nvmfs> {
        let store = device.name().to_owned();
        let ftl = Ftl::open(device, options.ftl.clone())?;
        let is_read_only = options.ftl.read_only;
        let fs = Nvmfs::over(Volume::open(ftl, store)?, options);
        let root = fs.layers.inodes().volume().read_root()?;
        fs.layers.inodes().note_root(&root);
        if !is_read_only {
            fs.layers.inodes().free_orphans()?;
        }
        fs.layers.inodes().open_quotas(!is_read_only)?;
        Ok(fs)
    }

    /// The file system of which only the superblock was read.
    fn over(volume: Volume, options: Options) -> Nvmfs {
        let access_times = if options.ftl.read_only { AccessTimes::Never } else { options.access_times };
        let access_times = (access_times, options.nodiratime);
        let inodes =
            Inodes::new(volume, options.clock, access_times, options.inodes_kept, options.root_reserve);
        inodes.set_mount_compression(options.compression);
        let layers = Arc::new(Layers::new(inodes));
        Nvmfs { root: Directory::root(Arc::clone(&layers)), layers }
    }

    /// The same file system by inodes.
    pub fn posix(&self) -> Posix {
        Posix::new(Arc::clone(&self.layers))
    }

    #[cfg(test)]
    pub(crate) fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Makes everything durable and leaves the store so that the next open has nothing to replay. If one step fails,
    /// the others are still done.
    pub fn close(&self) -> Result<()> {
        self.ftl().must_not_be_forked()?;
        let synced = self.posix().sync();
        self.layers.inodes().volume().ftl().close()?;
        synced
    }

    /// Makes the file system larger while it is in use; see [`Ftl::grow`].
    ///
    /// # Errors
    /// As there.
    pub fn grow(&self, capacity_bytes: Option<u64>) -> Result<u64> {
        Ok(self.layers.inodes().volume().ftl().grow(capacity_bytes)?)
    }

    /// What users have and may have, by user. An inode counts for its owner, with what is stored of its data: so holes
    /// take nothing, nor do zeros at the ends of 16 KiB; with the entries of a directory, and with attributes that do
    /// not fit into the inode. Where nobody has a limit, all inodes are counted at the first call, during which changes
    /// of names and lengths wait.
    ///
    /// # Errors
    /// When the inode table cannot be read.
    pub fn quotas(&self) -> Result<Vec<UserQuota>> {
        self.layers.inodes().user_quotas()
    }

    /// As [`Nvmfs::quotas`], but empty as long as nothing was counted: where nobody has a limit, and nobody has asked.
    pub fn known_quotas(&self) -> Vec<UserQuota> {
        self.layers.inodes().known_quotas()
    }

    /// Sets the limits of a user; the default ones are none. They bind what is done on behalf of users other than root
    /// ([`Posix::for_users`]) and adds to what the user has; what it has above them stays. Durable when it returns; a
    /// power cut leaves the old limits or the new ones.
    ///
    /// # Errors
    /// [`Refusal::Invalid`](crate::Refusal::Invalid) for root and for 2^32 - 1, who can have none; as
    /// [`Nvmfs::quotas`].
    pub fn set_limits(&self, uid: u32, limits: Limits) -> Result<()> {
        self.layers.inodes().set_limits(uid, limits)
    }

    /// How files are compressed that say nothing themselves: as the mount says, or else the store.
    pub fn default_compression(&self) -> Compression {
        self.layers.inodes().default_compression()
    }

    /// What the store says of that.
    pub fn store_compression(&self) -> Compression {
        self.layers.inodes().store_compression()
    }

    /// Sets [`Options::compression`] anew.
    pub fn set_compression(&self, compression: Compression) {
        self.layers.inodes().set_mount_compression(compression);
    }

    /// Compresses by `compression`, which is zstd, what was last written by one of the batches `births` and is not
    /// compressed by zstd yet, where it then takes less. Files that say `none` or zstd themselves are left alone. Others may
    /// read and write everything meanwhile. `go_on` is called after each piece of 256 KiB at most, and may wait. Returns
    /// whether all was looked at; not if `go_on` ended it.
    ///
    /// # Errors
    /// As writes of root, on a full store too: what came before is done. Damaged data is passed over.
    pub fn compress_cold(
        &self,
        compression: Compression,
        births: &Range<Seq>,
        go_on: impl FnMut(ColdPiece) -> ControlFlow<()>,
    ) -> Result<bool> {
        self.layers.data().compress_cold(compression, births, go_on)
    }

    /// What compression did since the store was opened.
    pub fn compression_stats(&self) -> CompressionStats {
        self.layers.inodes().compression_stats()
    }

    /// Number of inodes in memory: what is in use, what a kernel knows, and what was used not long ago.
    pub fn inodes_in_memory(&self) -> usize {
        self.layers.inodes().count_in_memory()
    }

    /// The store below, for its statistics and background work.
    pub fn ftl(&self) -> &Ftl {
        self.layers.inodes().volume().ftl()
    }

    /// Identity of the file system.
    pub fn uuid(&self) -> [u8; 16] {
        self.layers.inodes().volume().uuid()
    }
}
