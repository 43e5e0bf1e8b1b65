use std::sync::Arc;

use lacuna_device::{AlignedBuf, BlockDevice, DeviceStats, Filled, Geometry, Result, WriteDone};

use super::{TraceOp, TraceSource, TraceWriter};

/// A [`BlockDevice`] that passes everything on to another one and records what changes it.
pub struct TraceDevice {
    inner: Arc<dyn BlockDevice>,
    trace: Arc<TraceWriter>,
}

impl TraceDevice {
    /// The source named in a trace of `device`.
    pub fn source(device: &dyn BlockDevice) -> TraceSource {
        TraceSource::Device { capacity_bytes: device.geometry().capacity_bytes }
    }

    /// Records into `trace` all changes to `inner` from now on.
    pub fn new(inner: Arc<dyn BlockDevice>, trace: Arc<TraceWriter>) -> TraceDevice {
        TraceDevice { inner, trace }
    }
}

impl BlockDevice for TraceDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn grow(&self, capacity_bytes: u64) -> Result<Geometry> {
        self.inner.grow(capacity_bytes)
    }

    fn is_sparse(&self) -> bool {
        self.inner.is_sparse()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.inner.write_at(offset, data)?;
        self.trace.record(TraceOp::Write { offset, len: data.len() as u64 });
        Ok(())
    }

    fn read_many(&self, reads: &mut [(u64, AlignedBuf)]) -> Result<()> {
        self.inner.read_many(reads)
    }

    fn write_many(&self, writes: &[(u64, Filled)]) -> Result<()> {
        self.inner.write_many(writes)?;
        for (offset, data) in writes {
            self.trace.record(TraceOp::Write { offset: *offset, len: data.len() as u64 });
        }
        Ok(())
    }

    /// Recorded when it has ended.
    fn submit_write(&self, offset: u64, data: Filled, done: WriteDone) {
        let (trace, len) = (Arc::clone(&self.trace), data.len() as u64);
        let recorded: WriteDone = Box::new(move |outcome, data| {
            if outcome.is_ok() {
                trace.record(TraceOp::Write { offset, len });
            }
            done(outcome, data);
        });
        self.inner.submit_write(offset, data, recorded);
    }

    fn io_engine(&self) -> Result<&'static str> {
        self.inner.io_engine()
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()?;
        self.trace.record(TraceOp::Sync);
        Ok(())
    }

    /// Recorded whether or not the device below makes use of it.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)?;
        self.trace.record(TraceOp::Discard { offset, len });
        Ok(())
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}
