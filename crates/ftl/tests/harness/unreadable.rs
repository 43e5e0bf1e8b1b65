use std::{io, ops::Range, sync::Arc};

use lacuna_device::{BlockDevice, DeviceStats, Error, Geometry, Result};

/// A device on which some bytes cannot be read.
pub(crate) struct Unreadable {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) bytes: Vec<Range<u64>>,
}

impl BlockDevice for Unreadable {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn name(&self) -> &str {
        self.device.name()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset + buf.len() as u64;
        match self.bytes.iter().any(|bytes| offset < bytes.end && bytes.start < end) {
            true => Err(Error::Io { what: self.name().into(), source: io::Error::other("unreadable") }),
            false => self.device.read_at(offset, buf),
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.device.write_at(offset, data)
    }

    fn sync(&self) -> Result<()> {
        self.device.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.device.stats()
    }
}
