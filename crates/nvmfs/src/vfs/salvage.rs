//! The remains of a damaged file system.

use std::sync::Arc;

use lacuna_device::BlockDevice;
use lacuna_ftl::Ftl;

use crate::{
    data::Runs,
    error::Result,
    format::Ino,
    salvage::{self, RemainingEntry, RemainingInode, Remains},
    vfs::{Nvmfs, Options},
    volume::Volume,
};

impl Nvmfs {
    /// Opens the remains of the file system on `device`, for reading only, even where [`Nvmfs::open`] refuses because
    /// of damage, and returns a list of that damage; see [`Ftl::salvage`]. Many calls of [`Nvmfs::posix`] may then
    /// fail.
    ///
    /// # Errors
    /// As [`Nvmfs::open`]; damage only where the ftl has no superblock or root to begin with. What was never a file system
    /// has no remains.
    pub fn salvage(device: Arc<dyn BlockDevice>, options: Options) -> Result<(Nvmfs, Vec<String>)> {
        let name = device.name().to_owned();
        let (ftl, mut damage) = Ftl::salvage(device, options.ftl.clone())?;
        let (volume, lost) = Volume::salvage(ftl, name)?;
        damage.extend(lost.map(|error| error.to_string()));
        let mut options = options;
        options.ftl.read_only = true;
        Ok((Nvmfs::over(volume, options), damage))
    }

    /// The entries of a directory, in no order.
    ///
    /// # Errors
    /// Only what is no damage.
    pub fn remaining_entries(&self, directory: Ino) -> Result<Remains<Vec<RemainingEntry>>> {
        salvage::remaining_entries(self.layers.inodes().volume(), directory)
    }

    /// All inodes but those of files that were removed while they were open; of those that cannot be read, the ones of
    /// which there is data.
    ///
    /// # Errors
    /// Only what is no damage.
    pub fn remaining_inodes(&self) -> Result<Remains<Vec<RemainingInode>>> {
        salvage::remaining_inodes(self.layers.inodes().volume())
    }

    /// Data from `offset`, a multiple of 512, on, regardless of the inode, even if that cannot be read: runs may reach
    /// beyond the file's length. They end at the end of the region, 32 TiB, when there are no more.
    ///
    /// # Errors
    /// Only what is no damage.
    pub fn remaining_data(&self, ino: Ino, offset: u64) -> Result<Remains<Runs>> {
        salvage::remaining_data(self.layers.inodes().volume(), ino, offset)
    }
}
