use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use lacuna_device::{BlockDevice, DeviceStats, Error, Geometry, MemDevice, Result};

/// A device in memory like a store file in a file system that may have no space left: writes are torn then, and fail
/// with [`Error::Full`].
pub struct FullHost {
    below: MemDevice,
    /// From this byte on there is no space.
    full_from: AtomicU64,
    writes: AtomicUsize,
}

impl FullHost {
    /// One that has space as yet.
    pub fn new(capacity_bytes: u64) -> Arc<FullHost> {
        let (below, full_from, writes) =
            (MemDevice::new(capacity_bytes), AtomicU64::new(u64::MAX), AtomicUsize::new(0));
        Arc::new(FullHost { below, full_from, writes })
    }

    /// Takes its space, or gives it back.
    pub fn set_full(&self, is_full: bool) {
        self.set_full_from(if is_full { 0 } else { u64::MAX });
    }

    /// Takes the space from byte `at` on: what lies before it has its space already.
    pub fn set_full_from(&self, at: u64) {
        self.full_from.store(at, Ordering::SeqCst);
    }

    /// How many writes were tried.
    pub fn writes(&self) -> usize {
        self.writes.load(Ordering::SeqCst)
    }
}

impl BlockDevice for FullHost {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn grow(&self, capacity_bytes: u64) -> Result<Geometry> {
        self.below.grow(capacity_bytes)
    }

    fn name(&self) -> &str {
        "host"
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        if offset + data.len() as u64 > self.full_from.load(Ordering::SeqCst) {
            self.below.write_at(offset, &data[..512])?;
            return Err(Error::Full { what: "host".into() });
        }
        self.below.write_at(offset, data)
    }

    fn sync(&self) -> Result<()> {
        self.below.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.below.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.below.stats()
    }
}
