use std::sync::Arc;

use crate::{Error, Result};

/// The operation of [`File::write_atomic`], in errors.
pub(crate) const ATOMIC_WRITE: &str = "atomic write";

/// Identifies an open file of a [`Vfs`]; unique within the VFS, never reused while open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// The guarantees of a file's medium. An engine chooses its crash protocol by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileProps {
    /// Largest batch, in bytes of data, that is applied whole or not at all across a crash;
    /// 0 when not even a single page is.
    pub atomic_bytes_max: u64,
    /// Alignment and unit that a write needs to be atomic, in bytes (0 when `atomic_bytes_max` is).
    pub atomic_align: u32,
    /// What [`File::write_atomic`] takes, where batches are not atomic but single writes can be.
    pub atomic_writes: Option<AtomicWrites>,
    /// Granularity at which holes free space, in bytes; 0 when there are no holes.
    pub hole_unit: u32,
    /// Alignment of offsets, lengths and file sizes, in bytes.
    pub io_align: u32,
    /// Later writes, to any file of the VFS, never survive a crash that loses earlier ones.
    pub ordered: bool,
}

/// The single writes that a medium applies whole or not at all across a crash: a power of two bytes long, at an offset
/// that is a multiple of the length. (So Linux defines `RWF_ATOMIC`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicWrites {
    /// Shortest one, in bytes; a power of two.
    pub bytes_min: u32,
    /// Longest one, in bytes; a power of two.
    pub bytes_max: u32,
}

impl AtomicWrites {
    /// Whether it can write `len` bytes at `offset`.
    pub fn can_write(self, offset: u64, len: u64) -> bool {
        len.is_power_of_two()
            && (u64::from(self.bytes_min)..=u64::from(self.bytes_max)).contains(&len)
            && offset.is_multiple_of(len)
    }
}

impl FileProps {
    /// [`Error::BadRange`] for a request on the file `what` that is off the grid of
    /// [`FileProps::io_align`] or reaches past the largest offset.
    pub fn check_range(&self, what: &str, offset: u64, len: u64) -> Result<()> {
        let align = u64::from(self.io_align);
        let aligned = offset.is_multiple_of(align) && len.is_multiple_of(align);
        match offset.checked_add(len) {
            Some(end) if aligned && end <= i64::MAX as u64 => Ok(()),
            _ => Err(Error::BadRange { what: what.to_owned(), offset, len }),
        }
    }
}

/// [`Error::BadName`] for what is not a file name in any [`Vfs`]: 1 to 255 bytes, without `/` and
/// NUL, and neither `.` nor `..`.
pub fn check_file_name(name: &str) -> Result<()> {
    let reason = match name {
        "" => "empty",
        "." | ".." => "reserved",
        _ if name.len() > 255 => "longer than 255 bytes",
        _ if name.contains('/') => "contains a slash",
        _ if name.contains('\0') => "contains a NUL",
        _ => return Ok(()),
    };
    Err(Error::BadName { name: name.to_owned(), reason })
}

/// Expected lifetime of the data written to a file, chosen when it is opened. Data of one stream is kept apart from
/// that of others on flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamHint {
    /// Pages that are overwritten in place.
    #[default]
    Data,
    /// A log: appended, then trimmed from the front.
    Log,
}

/// One element of an atomic batch.
#[derive(Clone, Copy, Debug)]
pub enum BatchOp<'a> {
    /// Write `data` at byte `offset` of `file`, extending it where needed.
    Write {
        /// The file, open in this VFS.
        file: FileId,
        /// Byte offset, a multiple of [`FileProps::io_align`].
        offset: u64,
        /// The bytes; their length is a multiple of [`FileProps::io_align`].
        data: &'a [u8],
    },
    /// Make `len` bytes at `offset` read as zeros and free their space. Keeps the file's length.
    Punch {
        /// The file, open in this VFS.
        file: FileId,
        /// Byte offset, a multiple of [`FileProps::io_align`].
        offset: u64,
        /// Length in bytes, a multiple of [`FileProps::io_align`].
        len: u64,
    },
}

impl BatchOp<'_> {
    /// The file it changes.
    pub fn file(&self) -> FileId {
        match *self {
            BatchOp::Write { file, .. } | BatchOp::Punch { file, .. } => file,
        }
    }

    /// The byte range that it changes, as offset and length.
    pub fn range(&self) -> (u64, u64) {
        match *self {
            BatchOp::Write { offset, data, .. } => (offset, data.len() as u64),
            BatchOp::Punch { offset, len, .. } => (offset, len),
        }
    }

    /// Bytes of data that it carries: those that count against [`FileProps::atomic_bytes_max`].
    pub fn data_bytes(&self) -> u64 {
        match *self {
            BatchOp::Write { data, .. } => data.len() as u64,
            BatchOp::Punch { .. } => 0,
        }
    }
}

/// A positional file with holes. Handles may be used from many threads at once.
pub trait File: Send + Sync {
    /// The file's number, for [`BatchOp`].
    fn id(&self) -> FileId;

    /// The guarantees of its medium.
    fn props(&self) -> FileProps;

    /// Length in bytes.
    fn len(&self) -> Result<u64>;

    /// Whether the length is zero.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Truncates or extends the file; added bytes read as zeros and take no space.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Fills `buf` from byte `offset`; bytes in a hole or past the end read as zeros.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Writes `data` at `offset`, extending the file where needed.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Writes `data` at `offset`, whole or not at all across a crash. Like any other write it is durable only after a
    /// sync.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a write that [`FileProps::atomic_writes`] does not offer, or that the system refuses;
    /// nothing is written then.
    fn write_atomic(&self, offset: u64, data: &[u8]) -> Result<()> {
        let what = format!("write of {} bytes at byte {offset}", data.len());
        Err(Error::Unsupported { what, operation: ATOMIC_WRITE })
    }

    /// Makes a hole (see [`BatchOp::Punch`]).
    fn punch(&self, offset: u64, len: u64) -> Result<()>;

    /// Space taken in the byte range `offset .. offset + len`, in bytes.
    fn allocated(&self, offset: u64, len: u64) -> Result<u64>;

    /// Every write, punch and `set_len` to this file that returned before this call survives a
    /// crash after it.
    fn sync(&self) -> Result<()>;
}

/// Traffic of a VFS and the space that it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VfsStats {
    /// All bytes that reached the device since the VFS was opened: data, log, metadata, garbage
    /// collection, checkpoints.
    pub device_written_bytes: u64,
    /// All bytes read from the device.
    pub device_read_bytes: u64,
    /// Device syncs.
    pub device_syncs: u64,
    /// Live bytes of all files.
    pub allocated_bytes: u64,
    /// Space taken on the device, garbage and metadata included.
    pub store_bytes: u64,
}

/// A named set of files with atomic batches across them.
///
/// Names are UTF-8, 1 to 255 bytes, without `/` and NUL, and neither `.` nor `..`.
pub trait Vfs: Send + Sync {
    /// A name for error messages, such as the path.
    fn name(&self) -> &str;

    /// Identifies the VFS: equal for two objects of this process that stand for one VFS, while they live. By
    /// default the object's address; a wrapper returns the identity of the VFS within.
    fn identity(&self) -> (usize, u64) {
        (std::ptr::from_ref(self).addr(), 0)
    }

    /// The guarantees of this VFS's files.
    fn props(&self) -> FileProps;

    /// Opens the file `name`; [`crate::Error::NotFound`] when there is none.
    fn open(&self, name: &str, hint: StreamHint) -> Result<Arc<dyn File>>;

    /// Creates the empty file `name` and opens it; [`crate::Error::Exists`] when there is one.
    fn create(&self, name: &str, hint: StreamHint) -> Result<Arc<dyn File>>;

    /// Removes the file `name`. Open handles of it must not be used any more.
    fn remove(&self, name: &str) -> Result<()>;

    /// Renames `from` to `to`, replacing it.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// All names, in no particular order.
    fn list(&self) -> Result<Vec<String>>;

    /// Applies `ops` in order. Whole or not at all across a crash when their data is at most
    /// [`FileProps::atomic_bytes_max`]; larger or unsupported ones are applied one by one where
    /// `atomic_bytes_max` is 0, else refused with [`crate::Error::BatchTooLarge`].
    fn write_batch(&self, ops: &[BatchOp<'_>]) -> Result<()>;

    /// Like [`File::sync`] for every file, and for names created, removed and renamed.
    fn sync(&self) -> Result<()>;

    /// Traffic and space taken.
    fn stats(&self) -> Result<VfsStats>;

    /// Space left for new data, in bytes; `None` when it is unbounded or unknown. Cheap enough to be
    /// asked many times a second.
    fn free_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Bytes that an engine's log may have here at most, where that is less than there is space: a log device's.
    fn log_bytes_max(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let longest = "x".repeat(255);
        for good in ["a", "a b", "ü", "...", longest.as_str()] {
            check_file_name(good).unwrap();
        }
        let too_long = "x".repeat(256);
        for bad in ["", ".", "..", "a/b", "a\0", too_long.as_str()] {
            assert!(matches!(check_file_name(bad), Err(Error::BadName { .. })), "{bad:?}");
        }
    }
}
