//! A device as it would be with the bytes that its log device holds: for a store that is only read.

use std::{ops::Range, sync::Arc};

use lacuna_device::{BlockDevice, DeviceStats, Error, Geometry, Result};

/// See the module documentation.
pub(crate) struct Overlay {
    device: Arc<dyn BlockDevice>,
    /// Byte on the device, and what is there instead.
    patches: Vec<(u64, Vec<u8>)>,
}

impl Overlay {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, patches: Vec<(u64, Vec<u8>)>) -> Overlay {
        Overlay { device, patches }
    }

    /// Whether all of `range` is there in patches.
    fn is_patched(&self, range: Range<u64>) -> bool {
        let mut at = range.start;
        let end_from = |at: u64| {
            let ends = self.patches.iter().map(|(start, bytes)| (*start, start + bytes.len() as u64));
            ends.filter(|(start, end)| *start <= at && at < *end).map(|(_, end)| end).max()
        };
        while at < range.end
            && let Some(end) = end_from(at)
        {
            at = end;
        }
        at >= range.end
    }

    /// Reads what lies below the patches; nothing where a block that cannot be read is patched as a whole.
    fn read_below(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.device.read_at(offset, buf).is_ok() {
            return Ok(());
        }
        let block = self.device.geometry().block_bytes as usize;
        for (block, at) in buf.chunks_mut(block).zip((offset..).step_by(block)) {
            if !self.is_patched(at..at + block.len() as u64) {
                self.device.read_at(at, block)?;
            }
        }
        Ok(())
    }

    fn refused(&self) -> Error {
        Error::Unsupported {
            what: self.device.name().to_owned(),
            operation: "write to a store opened read-only",
        }
    }
}

impl BlockDevice for Overlay {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn name(&self) -> &str {
        self.device.name()
    }

    fn is_sparse(&self) -> bool {
        self.device.is_sparse()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_below(offset, buf)?;
        let end = offset + buf.len() as u64;
        for (at, bytes) in &self.patches {
            let (from, to) = (offset.max(*at), end.min(at + bytes.len() as u64));
            if from < to {
                let patch = &bytes[(from - at) as usize..(to - at) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(patch);
            }
        }
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<()> {
        Err(self.refused())
    }

    fn sync(&self) -> Result<()> {
        Err(self.refused())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Err(self.refused())
    }

    fn stats(&self) -> DeviceStats {
        self.device.stats()
    }
}
