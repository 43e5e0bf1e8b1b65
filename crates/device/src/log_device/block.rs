//! A log device in blocks.

use std::sync::Arc;

use super::{LogDevice, check_range};
use crate::{AlignedBuf, BlockDevice, Result};

/// A [`LogDevice`] on a [`BlockDevice`]: writes are whole blocks, a fence is a sync.
pub struct BlockLog {
    device: Arc<dyn BlockDevice>,
    capacity_bytes: u64,
    block_bytes: u32,
}

impl BlockLog {
    /// All of `device`, as large as it is now.
    pub fn new(device: Arc<dyn BlockDevice>) -> BlockLog {
        let geometry = device.geometry();
        BlockLog { device, capacity_bytes: geometry.capacity_bytes, block_bytes: geometry.block_bytes }
    }
}

impl LogDevice for BlockLog {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn unit_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range(self.name(), (self.capacity_bytes, 1), offset, buf.len() as u64)?;
        let block = u64::from(self.block_bytes);
        let start = offset / block * block;
        let end = (offset + buf.len() as u64).next_multiple_of(block);
        let mut blocks = AlignedBuf::zeroed((end - start) as usize);
        self.device.read_at(start, &mut blocks)?;
        buf.copy_from_slice(&blocks[(offset - start) as usize..][..buf.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        check_range(self.name(), (self.capacity_bytes, self.block_bytes), offset, data.len() as u64)?;
        self.device.write_at(offset, data)
    }

    fn write_back(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn fence(&self) -> Result<()> {
        self.device.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, MemDevice};

    #[test]
    fn reads_are_of_bytes_and_writes_of_blocks() {
        let device = Arc::new(MemDevice::new(1 << 16));
        let log = BlockLog::new(device.clone());
        log.persist(1024, &[7; 512]).unwrap();
        let mut bytes = [9; 100];
        log.read_at(1000, &mut bytes).unwrap();
        assert_eq!((bytes[..24].to_vec(), bytes[24..].to_vec()), (vec![0; 24], vec![7; 76]));
        assert!(matches!(log.write_at(1000, &[1; 512]), Err(Error::BadRange { .. })));
        assert!(matches!(log.read_at((1 << 16) - 50, &mut bytes), Err(Error::BadRange { .. })));
        assert_eq!(device.stats().syncs, 1);
    }
}
