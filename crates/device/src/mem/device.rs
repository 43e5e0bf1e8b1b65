//! Raw space in memory.

use parking_lot::{Mutex, RwLock};

use super::SparseBytes;
use crate::{BlockDevice, DeviceStats, Geometry, GrowingGeometry, Result, SECTOR};

/// A [`BlockDevice`] in memory. Its content is gone when it is dropped.
pub struct MemDevice {
    geometry: GrowingGeometry,
    bytes: RwLock<SparseBytes>,
    stats: Mutex<DeviceStats>,
}

impl MemDevice {
    /// A device of `capacity_bytes` zeros, with blocks of one sector.
    ///
    /// # Panics
    /// When the capacity is not a multiple of [`SECTOR`].
    pub fn new(capacity_bytes: u64) -> MemDevice {
        assert!(capacity_bytes.is_multiple_of(SECTOR as u64), "capacity is not a multiple of a sector");
        MemDevice {
            geometry: GrowingGeometry::new(Geometry {
                capacity_bytes,
                block_bytes: SECTOR as u32,
                erase_bytes: 0,
            }),
            bytes: RwLock::default(),
            stats: Mutex::default(),
        }
    }
}

impl BlockDevice for MemDevice {
    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    fn name(&self) -> &str {
        "memory device"
    }

    fn grow(&self, capacity_bytes: u64) -> Result<Geometry> {
        Ok(self.geometry.grow(capacity_bytes))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.geometry().check_range(self.name(), offset, buf.len() as u64)?;
        self.bytes.read().read(offset, buf);
        let mut stats = self.stats.lock();
        stats.reads += 1;
        stats.read_bytes += buf.len() as u64;
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.geometry().check_range(self.name(), offset, data.len() as u64)?;
        self.bytes.write().write(offset, data);
        let mut stats = self.stats.lock();
        stats.writes += 1;
        stats.written_bytes += data.len() as u64;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.stats.lock().syncs += 1;
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check_range(self.name(), offset, len)?;
        self.bytes.write().zero(offset, len);
        self.stats.lock().discarded_bytes += len;
        Ok(())
    }

    fn stats(&self) -> DeviceStats {
        *self.stats.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn reads_back_discards_and_counts() {
        let device = MemDevice::new(1 << 20);
        device.write_at(4096, &[7; 1024]).unwrap();
        let mut back = [0; 1024];
        device.read_at(4096, &mut back).unwrap();
        assert_eq!(back, [7; 1024]);
        device.discard(4096, 512).unwrap();
        device.read_at(4096, &mut back).unwrap();
        assert_eq!((back[0], back[512]), (0, 7));
        device.sync().unwrap();
        let expected = DeviceStats {
            reads: 2,
            read_bytes: 2048,
            writes: 1,
            written_bytes: 1024,
            syncs: 1,
            discarded_bytes: 512,
        };
        assert_eq!(device.stats(), expected);
    }

    #[test]
    fn refuses_bad_ranges() {
        let device = MemDevice::new(8192);
        for (offset, len) in [(8192, 512), (7680, 1024), (100, 512), (0, 100), (u64::MAX - 511, 512)] {
            let mut buf = vec![0; len];
            let refused = |result| matches!(result, Err(Error::BadRange { .. }));
            assert!(refused(device.read_at(offset, &mut buf)), "read {offset}+{len}");
            assert!(refused(device.write_at(offset, &buf)), "write {offset}+{len}");
            assert!(refused(device.discard(offset, len as u64)), "discard {offset}+{len}");
        }
    }
}
