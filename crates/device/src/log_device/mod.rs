//! Log devices: small, fast, persistent space that is addressed by bytes.
//!
//! A store may have one beside its flash. What a flush must make durable goes there first and reaches the flash later.
//! [`open_log_device`] takes what it is given: memory is mapped ([`MappedMemory`]), anything else is used in blocks
//! ([`BlockLog`]).
//!
//! # What a power cut may do (the contract of [`LogDevice`])
//!
//! 1. What was written, then written back, survives once a [`LogDevice::fence`] that began after that returned `Ok`, all
//!    of it called by the same thread.
//! 2. Every other write may be there or not, on memory line by line (64 bytes) in any order, on blocks sector by sector.
//!    It may be there at any time, whether it was written back or not.
//! 3. A line of memory may be torn at 8 bytes, which are never torn themselves if they are aligned. Of several writes to
//!    one line a power cut leaves what some of them, from the first one on, have made of it, at least those that are
//!    durable; the next one may be torn.
//! 4. After a failed fence nothing is known about any write since the last good one.
//!
//! So a writer that never writes to a line, or a block, which holds bytes that must survive loses nothing that was
//! acknowledged.

mod block;
mod mapped;

use std::{fmt, path::Path, sync::Arc};

pub use block::BlockLog;
pub use mapped::MappedMemory;

use crate::{Error, NewFile, RawDevice, RawOptions, Result};

/// Size of a line of memory in bytes: the unit of writing back.
pub const LINE: usize = 64;

/// Persistent space that is addressed by bytes. See the contract above; calls may be made from many threads at once.
pub trait LogDevice: Send + Sync {
    /// A name for error messages, such as the path.
    fn name(&self) -> &str;

    /// Size in bytes, a multiple of [`LogDevice::unit_bytes`].
    fn capacity_bytes(&self) -> u64;

    /// Writes begin and end at multiples of so many bytes: 1 on memory, the block elsewhere. A power of two.
    fn unit_bytes(&self) -> u32;

    /// Whether the content is gone when the power is: memory that is no persistent memory, for trials.
    fn is_volatile(&self) -> bool;

    /// Fills `buf` from byte `offset`, wherever that is.
    ///
    /// # Errors
    /// [`Error::BadRange`] beyond the end, and the device's own.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Writes `data` at byte `offset`. Durable only after [`LogDevice::write_back`] and [`LogDevice::fence`].
    ///
    /// # Errors
    /// [`Error::BadRange`] beyond the end or off the grid of units, and the device's own.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Begins to write `len` bytes at `offset` back to the medium.
    ///
    /// # Errors
    /// As [`LogDevice::write_at`].
    fn write_back(&self, offset: u64, len: u64) -> Result<()>;

    /// Waits until everything is durable that this thread has written back.
    ///
    /// # Errors
    /// The device's own; then nothing is known about what was written since the last fence.
    fn fence(&self) -> Result<()>;

    /// Writes `data` at byte `offset` and makes it durable.
    ///
    /// # Errors
    /// As [`LogDevice::write_at`] and [`LogDevice::fence`].
    fn persist(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write_at(offset, data)?;
        self.write_back(offset, data.len() as u64)?;
        self.fence()
    }
}

impl fmt::Debug for dyn LogDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogDevice").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// [`Error::BadRange`] for a range of the device `what` that is beyond its `capacity` or off the grid of `unit`.
fn check_range(what: &str, (capacity, unit): (u64, u32), offset: u64, len: u64) -> Result<()> {
    let unit = u64::from(unit);
    let is_aligned = offset.is_multiple_of(unit) && len.is_multiple_of(unit);
    match offset.checked_add(len) {
        Some(end) if is_aligned && end <= capacity => Ok(()),
        _ => Err(Error::BadRange { what: what.to_owned(), offset, len }),
    }
}

/// Opens `path` as a log device, for this process alone: `/dev/dax*`, a file on a file system with DAX or in memory, a
/// store file, or a block device.
///
/// # Errors
/// As [`RawDevice::open`], and the system's where memory cannot be mapped.
pub fn open_log_device(path: &Path, read_only: bool) -> Result<Arc<dyn LogDevice>> {
    if let Some(memory) = MappedMemory::open(path, read_only)? {
        return Ok(Arc::new(memory));
    }
    let device = RawDevice::open(path, RawOptions { read_only, ..RawOptions::default() })?;
    Ok(Arc::new(BlockLog::new(Arc::new(device))))
}

/// Makes a file of `size_bytes` for a log device, all of its space set aside, for its owner alone, and opens it.
///
/// # Errors
/// [`Error::Exists`], [`Error::Full`], and as [`RawDevice::create`]. On any error nothing is left behind.
pub fn create_log_device(path: &Path, size_bytes: u64) -> Result<Arc<dyn LogDevice>> {
    let file = NewFile::make(path, size_bytes, RawOptions::default())?;
    // A file system that sets no space aside may run out of it; then a flush fails, as on any full device.
    match file.device().preallocate() {
        Ok(()) | Err(Error::Unsupported { .. }) => {}
        Err(error) => return Err(error),
    }
    file.publish()?;
    open_log_device(path, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_units_within_the_device() {
        for (offset, len, is_good) in [
            (0, 8192, true),
            (8192, 0, true),
            (512, 1024, true),
            (512, 100, false),
            (100, 512, false),
            (8192, 512, false),
            (u64::MAX - 511, 512, false),
        ] {
            assert_eq!(check_range("it", (8192, 512), offset, len).is_ok(), is_good, "{offset}+{len}");
        }
    }
}
