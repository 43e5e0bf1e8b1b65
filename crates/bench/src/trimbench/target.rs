//! Where the experiments run: the same few calls on a directory and on a store.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process,
    sync::Arc,
};

use anyhow::{Context, Result};
use lacuna_device::{File as VfsFile, StreamHint, Vfs};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, seek, statvfs, syncfs};

use crate::block_stat::{DeviceTraffic, device_traffic, device_under, mount_of};

/// A file under test. Offsets and lengths are multiples of 512.
pub(super) trait TestFile: Send + Sync {
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;
    fn trim(&self, offset: u64, len: u64) -> Result<()>;
    fn sync(&self) -> Result<()>;
    /// Space that it takes.
    fn allocated(&self) -> Result<u64>;
    /// The next range at or after `offset` that is not a hole, as far as the system reports holes; whole files
    /// otherwise.
    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>>;
}

/// A file system under test.
pub(super) trait Target: Sync {
    fn name(&self) -> String;
    /// Its type, such as `ext4` or `nvmfs in-process`.
    fn file_system(&self) -> String;
    /// The counter of its traffic, if there is one.
    fn device(&self) -> Option<String>;
    /// Makes a file; one that is a log is appended to.
    fn create(&self, name: &str, is_log: bool) -> Result<Box<dyn TestFile>>;
    fn remove(&self, name: &str) -> Result<()>;
    /// Space left.
    fn free_bytes(&self) -> Result<u64>;
    /// Forces all deferred work.
    fn settle(&self) -> Result<()>;
    fn traffic(&self) -> Result<Option<DeviceTraffic>>;
}

/// How the names of files begin that this process makes in directories.
pub(super) fn file_prefix() -> String {
    format!("trimbench-{}-", process::id())
}

/// A directory; files in it are opened for direct I/O.
#[derive(Debug)]
pub(super) struct DirTarget {
    path: PathBuf,
    file_system: String,
    device: Option<PathBuf>,
}

impl DirTarget {
    pub(super) fn new(path: &Path) -> Result<DirTarget> {
        anyhow::ensure!(fs::metadata(path)?.is_dir(), "not a directory");
        let file_system = mount_of(path).map_or_else(|| "unknown".to_owned(), |mount| mount.file_system);
        Ok(DirTarget { path: path.to_owned(), file_system, device: device_under(path) })
    }

    /// Names of our own: two runs in one directory do not collide.
    fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(file_prefix() + name)
    }
}

impl Target for DirTarget {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn file_system(&self) -> String {
        self.file_system.clone()
    }

    fn device(&self) -> Option<String> {
        self.device.as_ref().map(|device| device.display().to_string())
    }

    fn create(&self, name: &str, _is_log: bool) -> Result<Box<dyn TestFile>> {
        let path = self.path_of(name);
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(OFlags::DIRECT.bits() as i32);
        let file = options.open(&path).with_context(|| path.display().to_string())?;
        Ok(Box::new(DirFile(file)))
    }

    fn remove(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.path_of(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn free_bytes(&self) -> Result<u64> {
        let stat = statvfs(&self.path)?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    fn settle(&self) -> Result<()> {
        Ok(syncfs(File::open(&self.path)?)?)
    }

    fn traffic(&self) -> Result<Option<DeviceTraffic>> {
        self.device.as_deref().map(device_traffic).transpose()
    }
}

struct DirFile(File);

impl TestFile for DirFile {
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.0.read_exact_at(buf, offset)?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.0.write_all_at(data, offset)?)
    }

    fn trim(&self, offset: u64, len: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.0, flags, offset, len).context("fallocate(FALLOC_FL_PUNCH_HOLE)")
    }

    fn sync(&self) -> Result<()> {
        Ok(self.0.sync_data()?)
    }

    fn allocated(&self) -> Result<u64> {
        Ok(self.0.metadata()?.blocks() * 512)
    }

    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        let start = match seek(&self.0, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some((start, seek(&self.0, SeekFrom::Hole(start))?)))
    }
}

/// A store in this process.
pub(super) struct StoreTarget(Arc<dyn Vfs>);

impl StoreTarget {
    pub(super) fn new(vfs: Arc<dyn Vfs>) -> StoreTarget {
        StoreTarget(vfs)
    }
}

impl Target for StoreTarget {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }

    fn file_system(&self) -> String {
        "nvmfs in-process".to_owned()
    }

    fn device(&self) -> Option<String> {
        Some("the store itself".to_owned())
    }

    fn create(&self, name: &str, is_log: bool) -> Result<Box<dyn TestFile>> {
        let hint = if is_log { StreamHint::Log } else { StreamHint::Data };
        let file = self.0.create(&format!("trimbench-{name}"), hint)?;
        Ok(Box::new(StoreFile(file)))
    }

    fn remove(&self, name: &str) -> Result<()> {
        match self.0.remove(&format!("trimbench-{name}")) {
            Err(error) if !matches!(error, lacuna_device::Error::NotFound { .. }) => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn free_bytes(&self) -> Result<u64> {
        self.0.free_bytes()?.context("the place does not tell its free space")
    }

    fn settle(&self) -> Result<()> {
        Ok(self.0.sync()?)
    }

    fn traffic(&self) -> Result<Option<DeviceTraffic>> {
        let stats = self.0.stats()?;
        let (read_bytes, written_bytes) = (stats.device_read_bytes, stats.device_written_bytes);
        Ok(Some(DeviceTraffic { read_bytes, written_bytes, ..DeviceTraffic::default() }))
    }
}

struct StoreFile(Arc<dyn VfsFile>);

impl TestFile for StoreFile {
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.0.read_at(offset, buf)?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.0.write_at(offset, data)?)
    }

    fn trim(&self, offset: u64, len: u64) -> Result<()> {
        Ok(self.0.punch(offset, len)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.0.sync()?)
    }

    fn allocated(&self) -> Result<u64> {
        Ok(self.0.allocated(0, self.0.len()?)?)
    }

    /// Files of a VFS do not report where their holes are: a range that takes no space is one.
    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        const STEP: u64 = 4096;
        let len = self.0.len()?;
        let mut start = offset;
        while start < len && self.0.allocated(start, STEP)? == 0 {
            start += STEP;
        }
        let mut end = start;
        while end < len && end - start < 1 << 20 && self.0.allocated(end, STEP)? > 0 {
            end += STEP;
        }
        Ok((start < len).then_some((start, end.min(len))))
    }
}
