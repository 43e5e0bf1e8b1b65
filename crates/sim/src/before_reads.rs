use std::{ops::Range, sync::Arc};

use lacuna_device::{AlignedBuf, BlockDevice, DeviceStats, Error, Filled, Geometry, Result, WriteDone};

/// A device that calls a test's hook before each read, in the reader's thread. The hook may count reads, do other work
/// first, or make them fail. Reads that are in flight together are one call of the hook.
pub struct BeforeReads<F> {
    inner: Arc<dyn BlockDevice>,
    before: F,
}

impl<F: Fn(&[Range<u64>]) -> Result<()> + Send + Sync> BeforeReads<F> {
    /// Wraps `inner`. `before` gets the byte ranges that are about to be read; if it fails, so do the reads.
    pub fn new(inner: Arc<dyn BlockDevice>, before: F) -> Arc<BeforeReads<F>> {
        Arc::new(BeforeReads { inner, before })
    }
}

/// `device`, on which reads that touch any of `bytes` fail with an I/O error.
pub fn unreadable(device: Arc<dyn BlockDevice>, bytes: Vec<Range<u64>>) -> Arc<dyn BlockDevice> {
    let name = device.name().to_owned();
    BeforeReads::new(device, move |reads| {
        let meet = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
        let lost = bytes.iter().find(|bytes| reads.iter().any(|read| meet(read, bytes)));
        lost.map_or(Ok(()), |lost| {
            Err(Error::io(format!("{name}: read at byte {}", lost.start), rustix::io::Errno::IO.into()))
        })
    })
}

fn range(offset: u64, buf: &[u8]) -> Range<u64> {
    offset..offset + buf.len() as u64
}

impl<F: Fn(&[Range<u64>]) -> Result<()> + Send + Sync> BlockDevice for BeforeReads<F> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        (self.before)(&[range(offset, buf)])?;
        self.inner.read_at(offset, buf)
    }

    fn read_many(&self, reads: &mut [(u64, AlignedBuf)]) -> Result<()> {
        if !reads.is_empty() {
            (self.before)(&reads.iter().map(|(offset, buf)| range(*offset, buf)).collect::<Vec<_>>())?;
        }
        self.inner.read_many(reads)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.inner.write_at(offset, data)
    }

    fn submit_write(&self, offset: u64, data: Filled, done: WriteDone) {
        self.inner.submit_write(offset, data, done);
    }

    fn io_engine(&self) -> Result<&'static str> {
        self.inner.io_engine()
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
