use std::{ops::AddAssign, sync::Arc};

use anyhow::Result;
use lacuna_device::{BlockDevice, File, StreamHint, Vfs};
use lacuna_ftl::{Footprint, FormatOptions, Ftl, Lba, Op, Options, SECTOR, Stats, Stream};

/// Name of the space of a store, in reports.
pub(super) const FTL: &str = "ftl";
/// Name of the bare device.
pub(super) const RAW: &str = "raw";
/// Name of a file whose data is to be compressed.
pub(super) const COMPRESSED: &str = "compressed";
/// Name of one whose data is not.
pub(super) const PLAIN: &str = "plain";

/// The target of a pattern. Offsets and lengths are in bytes, multiples of 512.
pub(super) trait Target: Sync {
    fn name(&self) -> &'static str;
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;
    fn write(&self, offset: u64, data: &[u8], is_log: bool) -> Result<()>;
    fn trim(&self, offset: u64, len: u64) -> Result<()>;
    fn sync(&self) -> Result<()>;
    fn traffic(&self) -> Traffic;
}

/// Bytes that reached the device so far, by cause.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) written_bytes: u64,
    pub(super) read_bytes: u64,
    pub(super) log_bytes: u64,
    pub(super) gc_bytes: u64,
    pub(super) checkpoint_bytes: u64,
}

impl Traffic {
    pub(super) fn since(self, before: Traffic) -> Traffic {
        Traffic {
            written_bytes: self.written_bytes - before.written_bytes,
            read_bytes: self.read_bytes - before.read_bytes,
            log_bytes: self.log_bytes - before.log_bytes,
            gc_bytes: self.gc_bytes - before.gc_bytes,
            checkpoint_bytes: self.checkpoint_bytes - before.checkpoint_bytes,
        }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.written_bytes += other.written_bytes;
        self.read_bytes += other.read_bytes;
        self.log_bytes += other.log_bytes;
        self.gc_bytes += other.gc_bytes;
        self.checkpoint_bytes += other.checkpoint_bytes;
    }
}

/// The space of a new store.
pub(super) struct FtlTarget(Ftl);

impl FtlTarget {
    pub(super) fn format(device: Arc<dyn BlockDevice>, map_memory: Option<u64>) -> Result<FtlTarget> {
        Ftl::format(Arc::clone(&device), &FormatOptions { force: true, ..FormatOptions::default() })?;
        let footprint = Footprint::Whole; // The device is measured, of which all is written beforehand.
        let options = Options { background: true, map_memory, footprint, ..Options::default() };
        Ok(FtlTarget(Ftl::open(device, options)?))
    }
}

fn lba(offset: u64) -> Lba {
    Lba(offset / SECTOR as u64)
}

impl Target for FtlTarget {
    fn name(&self) -> &'static str {
        FTL
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.0.read(lba(offset), buf)?)
    }

    fn write(&self, offset: u64, data: &[u8], is_log: bool) -> Result<()> {
        let stream = if is_log { Stream::Log } else { Stream::Data };
        self.0.write_batch(&[Op::Write { lba: lba(offset), data }], stream)?;
        Ok(())
    }

    fn trim(&self, offset: u64, len: u64) -> Result<()> {
        let sectors = len / SECTOR as u64;
        self.0.write_batch(&[Op::Trim { lba: lba(offset), sectors }], Stream::Data)?;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.0.flush()?)
    }

    fn traffic(&self) -> Traffic {
        let Stats { log_bytes, gc_bytes, checkpoint_bytes, device, .. } = self.0.stats();
        let (written_bytes, read_bytes) = (device.written_bytes, device.read_bytes);
        Traffic { written_bytes, read_bytes, log_bytes, gc_bytes, checkpoint_bytes }
    }
}

/// A file.
pub(super) struct FileTarget {
    name: &'static str,
    vfs: Arc<dyn Vfs>,
    file: Arc<dyn File>,
}

impl FileTarget {
    /// A new one.
    pub(super) fn new(vfs: Arc<dyn Vfs>, name: &'static str) -> Result<FileTarget> {
        Ok(FileTarget { name, file: vfs.create("iobench", StreamHint::Data)?, vfs })
    }
}

impl Target for FileTarget {
    fn name(&self) -> &'static str {
        self.name
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.file.read_at(offset, buf)?)
    }

    fn write(&self, offset: u64, data: &[u8], _is_log: bool) -> Result<()> {
        Ok(self.file.write_at(offset, data)?)
    }

    fn trim(&self, offset: u64, len: u64) -> Result<()> {
        Ok(self.file.punch(offset, len)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.file.sync()?)
    }

    fn traffic(&self) -> Traffic {
        let stats = self.vfs.stats().unwrap_or_default();
        let (written_bytes, read_bytes) = (stats.device_written_bytes, stats.device_read_bytes);
        Traffic { written_bytes, read_bytes, ..Traffic::default() }
    }
}

/// A device, its own addresses.
pub(super) struct RawTarget {
    device: Arc<dyn BlockDevice>,
    block_bytes: u64,
}

impl RawTarget {
    pub(super) fn new(device: Arc<dyn BlockDevice>) -> RawTarget {
        RawTarget { block_bytes: u64::from(device.geometry().block_bytes), device }
    }
}

impl Target for RawTarget {
    fn name(&self) -> &'static str {
        RAW
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.device.read_at(offset, buf)?)
    }

    fn write(&self, offset: u64, data: &[u8], _is_log: bool) -> Result<()> {
        Ok(self.device.write_at(offset, data)?)
    }

    /// Whole blocks only; a device has no smaller holes.
    fn trim(&self, offset: u64, len: u64) -> Result<()> {
        let first = offset.next_multiple_of(self.block_bytes);
        let end = (offset + len) / self.block_bytes * self.block_bytes;
        if first < end {
            self.device.discard(first, end - first)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.device.sync()?)
    }

    fn traffic(&self) -> Traffic {
        let stats = self.device.stats();
        Traffic { written_bytes: stats.written_bytes, read_bytes: stats.read_bytes, ..Traffic::default() }
    }
}
