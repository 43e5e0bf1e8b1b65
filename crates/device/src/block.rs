use std::sync::atomic::{AtomicU64, Ordering};

use crate::{AlignedBuf, Error, Filled, Result};

/// Size of a sector in bytes: the unit of atomicity and of every address in Lacuna.
pub const SECTOR: usize = 512;

/// Size and alignment of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Usable size in bytes; a multiple of `block_bytes`.
    pub capacity_bytes: u64,
    /// Unit of reads and writes in bytes: offsets, lengths and buffers are aligned to it.
    /// A power of two, at least [`SECTOR`].
    pub block_bytes: u32,
    /// Preferred alignment of large writes and discards in bytes (0 when unknown).
    pub erase_bytes: u32,
}

impl Geometry {
    /// [`Error::BadRange`] for a request on the device `what` that is beyond its capacity or off the
    /// block grid.
    pub fn check_range(&self, what: &str, offset: u64, len: u64) -> Result<()> {
        let block = u64::from(self.block_bytes);
        let aligned = offset.is_multiple_of(block) && len.is_multiple_of(block);
        match offset.checked_add(len) {
            Some(end) if aligned && end <= self.capacity_bytes => Ok(()),
            _ => Err(Error::BadRange { what: what.to_owned(), offset, len }),
        }
    }
}

/// A geometry whose capacity may grow while the device is in use: a part of devices that can grow.
#[derive(Debug)]
pub struct GrowingGeometry {
    first: Geometry,
    capacity_bytes: AtomicU64,
}

impl GrowingGeometry {
    /// A geometry that begins as `first`.
    pub fn new(first: Geometry) -> GrowingGeometry {
        GrowingGeometry { first, capacity_bytes: AtomicU64::new(first.capacity_bytes) }
    }

    /// The geometry now.
    pub fn get(&self) -> Geometry {
        Geometry { capacity_bytes: self.capacity_bytes.load(Ordering::Acquire), ..self.first }
    }

    /// Makes the capacity the whole blocks of `bytes`, if that is more than it is.
    pub fn grow(&self, bytes: u64) -> Geometry {
        self.capacity_bytes.fetch_max(self.whole_blocks(bytes), Ordering::AcqRel);
        self.get()
    }

    /// Makes the capacity the whole blocks of `bytes`, for a device of which nothing is in use.
    pub(crate) fn replace(&mut self, bytes: u64) {
        *self.capacity_bytes.get_mut() = self.whole_blocks(bytes);
    }

    fn whole_blocks(&self, bytes: u64) -> u64 {
        let block = u64::from(self.first.block_bytes);
        bytes / block * block
    }
}

/// Counters of all traffic since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Bytes discarded.
    pub discarded_bytes: u64,
}

/// Called once with the outcome of a write, and its memory; see [`BlockDevice::submit_write`].
pub type WriteDone = Box<dyn FnOnce(Result<()>, Filled) + Send>;

/// Raw space. Offsets and lengths are multiples of [`Geometry::block_bytes`]; a request beyond the
/// capacity or off that grid is [`crate::Error::BadRange`]. Buffers should come from
/// [`crate::AlignedBuf`]; others are copied where the system demands alignment.
///
/// Calls may be made from many threads at once. Overlapping concurrent writes have no defined
/// order; what a power cut may do is stated in the crate's documentation.
pub trait BlockDevice: Send + Sync {
    /// Size and alignment.
    fn geometry(&self) -> Geometry;

    /// Makes the device `capacity_bytes` large while it is in use, if it is smaller and can grow, and measures it: others
    /// may have enlarged it. New space reads as zeros, or as the device's content there. Durable when it returns.
    ///
    /// # Errors
    /// When it cannot be measured, or has to grow and the system refuses. A device that cannot grow returns what it has.
    fn grow(&self, capacity_bytes: u64) -> Result<Geometry> {
        let _ = capacity_bytes;
        Ok(self.geometry())
    }

    /// A name for error messages, such as the path.
    fn name(&self) -> &str;

    /// Whether others use the space that this device does not: a store file may have holes. Then discarded space goes
    /// back to the file system, and writing there again takes longer.
    fn is_sparse(&self) -> bool {
        false
    }

    /// Whether a write waits because the device's host has no space for it. Then the device should be given nothing
    /// that can be refused.
    fn waits_for_space(&self) -> bool {
        false
    }

    /// From now on writes that find no space fail with [`Error::Full`], those that wait too.
    fn stop_waiting(&self) {}

    /// Fills `buf` from byte `offset`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Writes `data` at byte `offset`. Durable only after a later [`BlockDevice::sync`].
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// As [`BlockDevice::write_at`], which may wait for space; this does not.
    ///
    /// # Errors
    /// [`Error::Full`] where the other would wait.
    fn write_if_space(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write_at(offset, data)
    }

    /// Fills all buffers, each from its byte offset, with requests in flight at the same time where the
    /// device can. By default one after the other, in order.
    ///
    /// # Errors
    /// The first failure; the buffers' content is then undefined.
    fn read_many(&self, reads: &mut [(u64, AlignedBuf)]) -> Result<()> {
        reads.iter_mut().try_for_each(|(offset, buf)| self.read_at(*offset, buf))
    }

    /// Writes all `writes`, each at its byte offset, and waits for them, with requests in flight at the same
    /// time where the device can. By default one after the other, in order.
    ///
    /// # Errors
    /// The first failure; it is then unknown which of them are on the device.
    fn write_many(&self, writes: &[(u64, Filled)]) -> Result<()> {
        writes.iter().try_for_each(|(offset, data)| self.write_at(*offset, data))
    }

    /// Begins to write `data` at byte `offset`, and returns. `done` is called when the write has ended: from
    /// any thread, perhaps before this returns. For [`BlockDevice::sync`] that is the moment at which the
    /// write returned. `done` must not wait for other requests, nor drop the device. Dropping the device
    /// waits for all writes.
    ///
    /// By default the write is done before this returns, so that devices which order or count their
    /// operations see them one by one.
    fn submit_write(&self, offset: u64, data: Filled, done: WriteDone) {
        let outcome = self.write_at(offset, &data);
        done(outcome, data);
    }

    /// The name of the I/O engine that carries out concurrent requests, for display.
    ///
    /// # Errors
    /// When the engine that the options name cannot be started.
    fn io_engine(&self) -> Result<&'static str> {
        Ok("one by one")
    }

    /// Makes every write that returned before this call durable.
    fn sync(&self) -> Result<()>;

    /// Declares that `len` bytes at `offset` are no longer needed. Their content is
    /// undefined until they are written again. Advice: may do nothing.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Traffic so far.
    fn stats(&self) -> DeviceStats;
}
