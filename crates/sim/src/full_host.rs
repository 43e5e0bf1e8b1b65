use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use lacuna_device::{BlockDevice, DeviceStats, Error, Geometry, MemDevice, Result};

/// A device in memory like a store file in a file system that may have no space left: writes are torn then, and fail
/// with [`Error::Full`].
pub struct FullHost {
    below: MemDevice,
    is_full: AtomicBool,
    writes: AtomicUsize,
}

impl FullHost {
    /// One that has space as yet.
    pub fn new(capacity_bytes: u64) -> Arc<FullHost> {
        let (below, is_full, writes) =
            (MemDevice::new(capacity_bytes), AtomicBool::new(false), AtomicUsize::new(0));
        Arc::new(FullHost { below, is_full, writes })
    }

    /// Takes its space, or gives it back.
    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
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
        if self.is_full.load(Ordering::SeqCst) {
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
