//! A device for tests of this crate that does something before each read.

use std::sync::Arc;

use lacuna_device::{AlignedBuf, BlockDevice, DeviceStats, Geometry, MemDevice, Result};

/// A device in memory; what comes `before` a read is done in the reader's thread.
pub(crate) struct BeforeReads<F> {
    pub(crate) inner: Arc<MemDevice>,
    pub(crate) before: F,
}

impl<F: Fn() + Send + Sync> BlockDevice for BeforeReads<F> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        (self.before)();
        self.inner.read_at(offset, buf)
    }

    fn read_many(&self, reads: &mut [(u64, AlignedBuf)]) -> Result<()> {
        (self.before)();
        self.inner.read_many(reads)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.inner.write_at(offset, data)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}
